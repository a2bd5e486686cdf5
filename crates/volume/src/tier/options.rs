//! How a tier is configured.

use super::manager::{self, ManagerOptions};
use crate::{Broken, VolumeError};

/// How the map is found again after a crash (CAC paper, section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum MapRecovery {
    /// The last map, and a look into the slots of its eviction zone. The default.
    #[default]
    Zone,
    /// A look into every slot.
    Scan,
    /// The last map and a log of every change of it.
    Log,
}

impl std::str::FromStr for MapRecovery {
    type Err = String;

    fn from_str(s: &str) -> Result<MapRecovery, String> {
        match s {
            "zone" => Ok(MapRecovery::Zone),
            "scan" => Ok(MapRecovery::Scan),
            "log" => Ok(MapRecovery::Log),
            other => Err(format!("map recovery {other:?}: choose zone, scan or log")),
        }
    }
}

/// How a tier is configured; may differ each time it is opened.
#[derive(Clone, Debug, PartialEq)]
pub struct TierOptions {
    /// Which pages have a slot: a name of [`manager::REGISTRY`].
    pub manager: String,
    /// What the manager believes and how it counts.
    pub options: ManagerOptions,
    /// Share of the slots that a map leaves open for eviction.
    pub zone: f64,
    /// How the map is found again.
    pub map_recovery: MapRecovery,
    /// Whoever evicts a clean page waits until it is written to the fast device, as in the CAC paper; else it is
    /// written in the background.
    pub sync_admit: bool,
    /// Seconds between two savings of what the manager knows of pages, besides the one at the end; 0: only then.
    pub memory_interval: f64,
    /// Clean pages that may wait in memory to be written to the fast device.
    pub staging_pages: usize,
    /// Slots kept empty for the next pages; 0 chooses.
    pub reserve: usize,
    /// Share of the slots that may hold versions newer than home. Above it dirty pages are not admitted, and are copied
    /// home in the background.
    pub dirty_ceiling: f64,
    /// Bytes a day that may be written to the fast device for admissions; 0: any number.
    pub daily_budget: u64,
    /// A mistake to build in, for tests.
    #[doc(hidden)]
    pub broken: Broken,
}

impl Default for TierOptions {
    fn default() -> TierOptions {
        TierOptions {
            manager: "cac".to_string(),
            options: ManagerOptions::default(),
            zone: 0.10,
            map_recovery: MapRecovery::Zone,
            sync_admit: false,
            memory_interval: 600.0,
            staging_pages: 256,
            reserve: 0,
            dirty_ceiling: 0.95,
            daily_budget: 0,
            broken: Broken::default(),
        }
    }
}

impl TierOptions {
    /// Whether the database loses nothing with the fast device: each page's newest version is at home, at the latest
    /// when a sync ends.
    pub fn survives_loss(&self) -> bool {
        manager::find(&self.manager).is_some_and(|entry| (entry.make)(&self.options).style().survives_loss())
    }

    /// Names every value that cannot work.
    pub fn validate(&self) -> Result<(), VolumeError> {
        let bad = |what: String| Err(VolumeError::Options(what));
        if manager::find(&self.manager).is_none() {
            let names: Vec<_> = manager::REGISTRY.iter().map(|e| e.name).collect();
            return bad(format!("no tier manager {:?}; there are: {}", self.manager, names.join(", ")));
        }
        if !(0.001..=1.0).contains(&self.zone) {
            return bad(format!("eviction zone {}: choose a share from 0.001 to 1", self.zone));
        }
        if !(0.05..=1.0).contains(&self.dirty_ceiling) {
            return bad(format!("dirty ceiling {}: choose a share from 0.05 to 1", self.dirty_ceiling));
        }
        if !(self.memory_interval.is_finite() && self.memory_interval >= 0.0) {
            return bad(format!("statistics every {} seconds: choose 0 or more", self.memory_interval));
        }
        let c = &self.options.costs;
        if [c.read_slow, c.write_slow, c.read_fast, c.write_fast].iter().any(|ms| !(ms.is_finite() && *ms > 0.0)) {
            return bad("device costs must be positive milliseconds: measure the devices with `varve probe`".into());
        }
        Ok(())
    }
}
