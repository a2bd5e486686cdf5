//! A database's devices as models of given profiles, for simulations (and, paced, for threads).

use crate::error::{Error, Result};
use std::sync::Arc;
use varve::flash::FlashLayout;
use varve_models::flash::{Drive, RawAtRest};
use varve_models::{Build, Modelled, PowerSupply, Profile, Sparse};

/// The data device and the log device of a database, modelled, on one power supply. Make them in the world that uses
/// them.
pub struct ModelledDevices {
    /// Pages.
    pub data: Arc<dyn Modelled>,
    /// Superblocks and log.
    pub log: Arc<dyn Modelled>,
    /// Feeds both.
    pub supply: Arc<PowerSupply>,
}

/// A database on modelled devices: loaded once, cloned for each experiment point.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    /// Of the data device.
    pub data: Part,
    /// Of the log device.
    pub log: Part,
    /// Of the drives of an array, in place of the data device.
    pub drives: Vec<Part>,
    /// Native flash, in place of the data device.
    pub flash: Option<RawPart>,
}

/// Raw flash that holds the pages of a database, at rest.
#[derive(Clone)]
pub struct RawPart {
    /// The chips; who uses them takes a copy.
    pub raw: Arc<RawAtRest>,
    /// The regions that were made on them.
    pub layout: FlashLayout,
}

impl std::fmt::Debug for RawPart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RawPart").field("layout", &self.layout).finish_non_exhaustive()
    }
}

/// What one device holds.
#[derive(Clone, Debug, Default)]
pub struct Part {
    /// Its bytes.
    pub contents: Sparse,
    /// Its length.
    pub len: u64,
    /// Of a flash drive: the drive itself, mapping and wear included; used where the profile has the same geometry.
    pub drive: Option<Arc<Drive>>,
}

impl Part {
    /// What the device holds now: requests that are still under way count as not begun.
    pub fn of(device: &dyn Modelled) -> Part {
        Part { contents: device.contents(), len: device.len(), drive: device.drive() }
    }
}

/// The seeds of data and log device of a point with this seed.
pub(crate) fn seeds(seed: u64) -> [u64; 2] {
    [seed, seed ^ 0x10_6106]
}

impl ModelledDevices {
    /// Devices of the two profiles that hold `loaded` (by default nothing, with length zero, as `Db::create_on`
    /// expects).
    pub fn new(data: &Profile, log: &Profile, loaded: &Loaded, seed: u64) -> Result<ModelledDevices> {
        let supply = PowerSupply::new();
        let build = |profile: &Profile, name: &str, part: &Part, seed| -> Result<_> {
            let name = Some(format!("{name} ({})", profile.name));
            let same = |d: &Arc<Drive>| profile.flash.as_ref().is_some_and(|f| f.geometry == d.config().geometry);
            let (contents, drive) = (part.contents.clone(), part.drive.clone().filter(same));
            let how = Build { seed, len: part.len, contents, name, drive, ..Build::default() };
            let device = profile.build_model(how).map_err(|e| Error::Profile(e.to_string()))?;
            supply.attach(device.clone());
            Ok(device)
        };
        let [data_seed, log_seed] = seeds(seed);
        let data = build(data, "data", &loaded.data, data_seed)?;
        let log = build(log, "log", &loaded.log, log_seed)?;
        Ok(ModelledDevices { data, log, supply })
    }

    /// A fast device beside them that holds `part` (by default nothing; its length is the device's).
    pub fn fast(&self, profile: &Profile, part: &Part, seed: u64) -> Result<Arc<dyn Modelled>> {
        let name = Some(format!("fast ({})", profile.name));
        let (contents, drive) = (part.contents.clone(), part.drive.clone());
        let how = Build { seed: seed ^ 0xfa57, len: part.len, contents, name, drive, ..Build::default() };
        let device = profile.build_model(how).map_err(|e| Error::Profile(e.to_string()))?;
        self.supply.attach(device.clone());
        Ok(device)
    }

    /// A drive of an array beside them that holds `part`.
    pub fn drive(&self, profile: &Profile, (name, part): (&str, &Part), seed: u64) -> Result<Arc<dyn Modelled>> {
        let same = |d: &Arc<Drive>| profile.flash.as_ref().is_some_and(|f| f.geometry == d.config().geometry);
        let (contents, drive) = (part.contents.clone(), part.drive.clone().filter(same));
        let name = Some(format!("{name} ({})", profile.name));
        let how = Build { seed, len: part.len, contents, name, drive, ..Build::default() };
        let device = profile.build_model(how).map_err(|e| Error::Profile(e.to_string()))?;
        self.supply.attach(device.clone());
        Ok(device)
    }

    /// What the engine opens.
    pub fn devices(&self) -> varve::Devices {
        varve::Devices::new(self.data.clone(), self.log.clone())
    }

    /// What data and log device hold now. Close the database first, or power cuts are part of the picture.
    pub fn loaded(&self) -> Loaded {
        Loaded { data: Part::of(&*self.data), log: Part::of(&*self.log), ..Loaded::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use varve::{Db, Layout, Options};
    use varve_rt::sim::{Config, run};

    #[test]
    fn a_database_on_modelled_disks_is_loaded_once_and_cloned() {
        let disk = Profile::load("disk-15k").expect("built in");
        let options = || Options::default().cache_mb(32);
        let loaded = run(Config::default(), || {
            let machine = ModelledDevices::new(&disk, &disk, &Loaded::default(), 1).expect("fits");
            let layout = Layout { log_bytes: 8 << 20, ..Layout::default() };
            let db = Db::create_on(machine.devices(), &layout, options()).expect("creates");
            let keyspace = db.create_keyspace("k").expect("a keyspace");
            keyspace.put(b"key", b"value").expect("writes");
            db.close().expect("closes");
            assert!(machine.data.model_stats().served > 0 && machine.log.model_stats().served > 0);
            machine.loaded()
        })
        .unwrap();
        for seed in 1..3 {
            let outcome = run(Config { seed, ..Config::default() }, || {
                let machine = ModelledDevices::new(&disk, &disk, &loaded, seed).expect("fits");
                let db = Db::open_on(machine.devices(), options()).expect("opens");
                let keyspace = db.keyspace("k").expect("is there");
                assert_eq!(keyspace.get(b"key").expect("reads").as_deref(), Some(&b"value"[..]));
                keyspace.put(b"key", b"other").expect("writes");
                db.close().expect("closes");
            });
            outcome.unwrap();
        }
    }
}
