//! A database's devices as models of given profiles, for simulations (and, paced, for threads).

use crate::error::{Error, Result};
use std::sync::Arc;
use varve_device::{Build, Modelled, PowerSupply, Profile, Sparse};

/// The data device and the log device of a database, modelled, on one power supply. Make them in the world that uses them.
pub struct ModelledDevices {
    /// Pages.
    pub data: Arc<dyn Modelled>,
    /// Superblocks and log.
    pub log: Arc<dyn Modelled>,
    /// Feeds both.
    pub supply: Arc<PowerSupply>,
}

/// The bytes of a database on modelled devices: loaded once, cloned for each experiment point.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    /// Bytes and length of the data device.
    pub data: (Sparse, u64),
    /// Bytes and length of the log device.
    pub log: (Sparse, u64),
}

impl ModelledDevices {
    /// Devices of the two profiles that hold `loaded` (by default nothing, with length zero, as `Db::create_on` expects).
    pub fn new(data: &Profile, log: &Profile, loaded: &Loaded, seed: u64) -> Result<ModelledDevices> {
        let supply = PowerSupply::new();
        let build = |profile: &Profile, name: &str, (contents, len): &(Sparse, u64), seed| -> Result<_> {
            let name = Some(format!("{name} ({})", profile.name));
            let how = Build { seed, len: *len, contents: contents.clone(), name, ..Build::default() };
            let device = profile.build_model(how).map_err(|e| Error::Profile(e.to_string()))?;
            supply.attach(device.clone());
            Ok(device)
        };
        let data = build(data, "data", &loaded.data, seed)?;
        let log = build(log, "log", &loaded.log, seed ^ 0x10_6106)?;
        Ok(ModelledDevices { data, log, supply })
    }

    /// What the engine opens.
    pub fn devices(&self) -> varve::Devices {
        varve::Devices::new(self.data.clone(), self.log.clone())
    }

    /// The bytes as they are now. Close the database first, or power cuts are part of the picture.
    pub fn loaded(&self) -> Loaded {
        let of = |device: &Arc<dyn Modelled>| (device.contents(), device.len());
        Loaded { data: of(&self.data), log: of(&self.log) }
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
