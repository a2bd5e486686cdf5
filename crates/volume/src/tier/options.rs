//! How a tier is configured. [`OPTIONS`] has a line for each option.

use super::manager::{self, Alpha, Costs, ManagerOptions};
use crate::VolumeError;
use crate::setting::{Accepts, Plain, Setting, Table};
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
    /// The thread that evicts a clean page waits until it is written to the fast device, as in the CAC paper; else it
    /// is written in the background.
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
        }
    }
}

impl Plain for MapRecovery {}
impl Plain for Alpha {}
impl Plain for Costs {}

/// The longest time that options take, seconds.
const LONGEST: f64 = 1e9;

type Line = Setting<TierOptions>;

/// The options of a tier.
pub const OPTIONS: Table<TierOptions> = Table {
    of: "tier",
    settings: &[
        Line::new(
            "manager",
            Accepts::Name(|| manager::REGISTRY.iter().map(|entry| entry.name).collect()),
            "Which pages the fast device gets. With cw, dw, tac and none every page's newest version is at home.",
            |o| &mut o.manager,
        )
        .cli("manager"),
        Line::new(
            "alpha",
            Accepts::Name(|| vec!["global", "keyspace", "group"]),
            "Over which pages cac averages how much more often pages miss on the fast device.",
            |o| &mut o.options.alpha,
        )
        .cli("alpha"),
        Line::new(
            "zone",
            Accepts::Real(0.001..=1.0, "a share of the slots"),
            "Slots that are open for eviction until the next map.",
            |o| &mut o.zone,
        )
        .cli("zone"),
        Line::new(
            "map_recovery",
            Accepts::Name(|| vec!["zone", "scan", "log"]),
            "How the map is found again after a crash.",
            |o| &mut o.map_recovery,
        )
        .cli("map-recovery"),
        Line::new(
            "dirty_ceiling",
            Accepts::Real(0.05..=1.0, "a share of the slots"),
            "Slots that may hold versions newer than home.",
            |o| &mut o.dirty_ceiling,
        )
        .cli("dirty-ceiling"),
        Line::new(
            "daily_budget",
            Accepts::Bytes(4096..=u64::MAX),
            "Bytes a day that may be written to the fast device for pages that are new to it.",
            |o| &mut o.daily_budget,
        )
        .cli("daily-budget")
        .or_none("any number"),
        Line::new(
            "costs_ms",
            Accepts::Form(
                "four times in milliseconds, as `varve probe` measures them: slow read, slow write, fast read, fast \
                 write (7.2,4.96,0.11,0.27)",
                |text| text.parse::<Costs>().is_ok(),
            ),
            "What reads and writes of the two devices cost.",
            |o| &mut o.options.costs,
        )
        .cli("tier-costs"),
        Line::new(
            "bucket_width",
            Accepts::Real(1e-3..=1e9, "reads per minute"),
            "Width of a bucket of logical read rates, for the groups of cac.",
            |o| &mut o.options.bucket_width,
        ),
        Line::new(
            "outqueue",
            Accepts::Number(1..=1 << 32, "pages"),
            "Pages whose statistics are remembered after they left the pool and the fast device.",
            |o| &mut o.options.outqueue,
        )
        .or_none("as many as there are slots"),
        Line::new(
            "half_life_s",
            Accepts::Real(1e-3..=LONGEST, "seconds"),
            "Half-life of the manager's counters.",
            |o| &mut o.options.half_life,
        )
        .or_none("they never age"),
        Line::new(
            "second_chance",
            Accepts::Flag,
            "mv-fifo passes over pages once that were read since they entered.",
            |o| &mut o.options.second_chance,
        ),
        Line::new(
            "cooling_s",
            Accepts::Real(1e-3..=LONGEST, "seconds"),
            "Time between halvings of tac's temperatures.",
            |o| &mut o.options.cooling,
        ),
        Line::new(
            "sync_admit",
            Accepts::Flag,
            "Whoever evicts a clean page waits until it is on the fast device, as in the CAC paper.",
            |o| &mut o.sync_admit,
        ),
        Line::new(
            "memory_interval_s",
            Accepts::Real(1e-3..=LONGEST, "seconds"),
            "Time between two savings of what the manager knows of pages.",
            |o| &mut o.memory_interval,
        )
        .or_none("only when the database is closed"),
        Line::new(
            "staging_pages",
            Accepts::Number(1..=1 << 20, "pages"),
            "Clean pages that may wait in memory to be written to the fast device.",
            |o| &mut o.staging_pages,
        ),
        Line::new("reserve", Accepts::Number(1..=1 << 32, "slots"), "Slots kept empty for the next pages.", |o| {
            &mut o.reserve
        })
        .or_none("by the number of slots"),
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
