//! How a tier is configured. [`OPTIONS`] has a line for each option.

use super::manager::{self, Alpha, Costs, ManagerOptions};
use crate::setting::{Accepts, Field, Setting, Table};
use crate::{Broken, VolumeError};
use std::fmt;

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

impl fmt::Display for MapRecovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MapRecovery::Zone => "zone",
            MapRecovery::Scan => "scan",
            MapRecovery::Log => "log",
        })
    }
}

/// How a tier is configured; may differ each time it is opened. [`OPTIONS`] tells of each field.
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
    /// Seconds between two savings of what the manager knows of pages, besides the one at the end; `None`: only then.
    pub memory_interval: Option<f64>,
    /// Clean pages that may wait in memory to be written to the fast device.
    pub staging_pages: usize,
    /// Slots kept empty for the next pages; `None`: by the number of slots.
    pub reserve: Option<usize>,
    /// Share of the slots that may hold versions newer than home. Above it dirty pages are not admitted, and are copied
    /// home in the background.
    pub dirty_ceiling: f64,
    /// Bytes a day that may be written to the fast device for admissions; `None`: any number.
    pub daily_budget: Option<u64>,
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
            memory_interval: Some(600.0),
            staging_pages: 256,
            reserve: None,
            dirty_ceiling: 0.95,
            daily_budget: None,
            broken: Broken::default(),
        }
    }
}

macro_rules! field_of_text {
    ($($t:ty),*) => {$(
        impl Field for $t {
            fn put(&mut self, text: &str) -> bool {
                text.parse().map(|value| *self = value).is_ok()
            }
            fn text(&self) -> String {
                self.to_string()
            }
        }
    )*};
}
field_of_text!(MapRecovery, Alpha, Costs);

/// The longest time that options take, seconds.
const LONGEST: f64 = 1e9;

/// The options of a tier.
pub const OPTIONS: Table<TierOptions> = Table {
    of: "tier",
    settings: &[
        Setting {
            name: "manager",
            cli: Some("manager"),
            accepts: Accepts::Name(|| manager::REGISTRY.iter().map(|entry| entry.name).collect()),
            none: None,
            doc: "Which pages the fast device gets. With cw, dw, tac and none every page's newest version is at home.",
            field: |o| &mut o.manager,
        },
        Setting {
            name: "alpha",
            cli: Some("alpha"),
            accepts: Accepts::Name(|| vec!["global", "keyspace", "group"]),
            none: None,
            doc: "Over which pages cac averages how much more often pages miss on the fast device.",
            field: |o| &mut o.options.alpha,
        },
        Setting {
            name: "zone",
            cli: Some("zone"),
            accepts: Accepts::Real(0.001..=1.0, "the slots, as a share"),
            none: None,
            doc: "Slots that are open for eviction until the next map.",
            field: |o| &mut o.zone,
        },
        Setting {
            name: "map_recovery",
            cli: Some("map-recovery"),
            accepts: Accepts::Name(|| vec!["zone", "scan", "log"]),
            none: None,
            doc: "How the map is found again after a crash.",
            field: |o| &mut o.map_recovery,
        },
        Setting {
            name: "dirty_ceiling",
            cli: Some("dirty-ceiling"),
            accepts: Accepts::Real(0.05..=1.0, "the slots, as a share"),
            none: None,
            doc: "Slots that may hold versions newer than home.",
            field: |o| &mut o.dirty_ceiling,
        },
        Setting {
            name: "daily_budget",
            cli: Some("daily-budget"),
            accepts: Accepts::Bytes(4096..=u64::MAX),
            none: Some("any number"),
            doc: "Bytes a day that may be written to the fast device for pages that are new to it.",
            field: |o| &mut o.daily_budget,
        },
        Setting {
            name: "costs_ms",
            cli: Some("tier-costs"),
            accepts: Accepts::Form(
                "four times in milliseconds, as `varve probe` measures them: slow read, slow write, fast read, fast \
                 write (7.2,4.96,0.11,0.27)",
                |text| text.parse::<Costs>().is_ok(),
            ),
            none: None,
            doc: "What reads and writes of the two devices cost.",
            field: |o| &mut o.options.costs,
        },
        Setting {
            name: "bucket_width",
            cli: None,
            accepts: Accepts::Real(1e-3..=1e9, "reads per minute"),
            none: None,
            doc: "Width of a bucket of logical read rates, for the groups of cac.",
            field: |o| &mut o.options.bucket_width,
        },
        Setting {
            name: "outqueue",
            cli: None,
            accepts: Accepts::Number(1..=1 << 32, "pages"),
            none: Some("as many as there are slots"),
            doc: "Pages whose statistics are remembered after they left the pool and the fast device.",
            field: |o| &mut o.options.outqueue,
        },
        Setting {
            name: "half_life_s",
            cli: None,
            accepts: Accepts::Real(1e-3..=LONGEST, "seconds"),
            none: Some("they never age"),
            doc: "Half-life of the manager's counters.",
            field: |o| &mut o.options.half_life,
        },
        Setting {
            name: "second_chance",
            cli: None,
            accepts: Accepts::Flag,
            none: None,
            doc: "mv-fifo passes over pages once that were read since they entered.",
            field: |o| &mut o.options.second_chance,
        },
        Setting {
            name: "cooling_s",
            cli: None,
            accepts: Accepts::Real(1e-3..=LONGEST, "seconds"),
            none: None,
            doc: "Time between halvings of tac's temperatures.",
            field: |o| &mut o.options.cooling,
        },
        Setting {
            name: "sync_admit",
            cli: None,
            accepts: Accepts::Flag,
            none: None,
            doc: "Whoever evicts a clean page waits until it is on the fast device, as in the CAC paper.",
            field: |o| &mut o.sync_admit,
        },
        Setting {
            name: "memory_interval_s",
            cli: None,
            accepts: Accepts::Real(1e-3..=LONGEST, "seconds"),
            none: Some("only when the database is closed"),
            doc: "Time between two savings of what the manager knows of pages.",
            field: |o| &mut o.memory_interval,
        },
        Setting {
            name: "staging_pages",
            cli: None,
            accepts: Accepts::Number(1..=1 << 20, "pages"),
            none: None,
            doc: "Clean pages that may wait in memory to be written to the fast device.",
            field: |o| &mut o.staging_pages,
        },
        Setting {
            name: "reserve",
            cli: None,
            accepts: Accepts::Number(1..=1 << 32, "slots"),
            none: Some("by the number of slots"),
            doc: "Slots kept empty for the next pages.",
            field: |o| &mut o.reserve,
        },
    ],
};

impl TierOptions {
    /// Whether the database loses nothing with the fast device: each page's newest version is at home, at the latest
    /// when a sync ends.
    pub fn survives_loss(&self) -> bool {
        manager::find(&self.manager).is_some_and(|entry| (entry.make)(&self.options).style().survives_loss())
    }

    /// Names a value that cannot work.
    pub fn validate(&self) -> Result<(), VolumeError> {
        OPTIONS.check(self).map_err(|what| VolumeError::Options(format!("tier option {what}")))
    }
}
