//! `[engine.tier]` of an experiment: how the tier of a point works. Plain data, the shape of the file.

use serde::{Deserialize, Serialize};

/// `[engine.tier]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tier {
    /// Which pages get a slot.
    pub manager: String,
    /// Over which pages CAC averages: `global`, `keyspace`, `group`.
    pub alpha: String,
    /// Width of a bucket of logical read rates, reads per minute.
    pub bucket_width: f64,
    /// Pages remembered beyond pool and fast device; 0: as many as there are slots.
    pub outqueue: usize,
    /// Half-life of the counters, seconds; 0: none.
    pub half_life_s: f64,
    /// MV-FIFO passes over pages that were read.
    pub second_chance: bool,
    /// TAC: seconds between halvings of the temperatures.
    pub cooling_s: f64,
    /// Share of the slots open for eviction until the next map.
    pub zone: f64,
    /// `zone`, `scan` or `log`.
    pub map_recovery: String,
    /// Share of the slots that may be newer than home.
    pub dirty_ceiling: f64,
    /// Service times that manager and pool believe in, ms: read and write of the slow device, read and write of the
    /// fast one.
    pub costs_ms: [f64; 4],
    /// The result has what the manager counted by group and page, at the end.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub counted: bool,
}

impl Default for Tier {
    fn default() -> Tier {
        let t = varve::TierOptions::default();
        let (o, c) = (t.options, t.options.costs);
        Tier {
            manager: t.manager,
            alpha: "group".into(),
            bucket_width: o.bucket_width,
            outqueue: o.outqueue,
            half_life_s: o.half_life,
            second_chance: o.second_chance,
            cooling_s: o.cooling,
            zone: t.zone,
            map_recovery: "zone".into(),
            dirty_ceiling: t.dirty_ceiling,
            counted: false,
            costs_ms: [c.read_slow, c.write_slow, c.read_fast, c.write_fast],
        }
    }
}

impl Tier {
    pub(super) fn is_default(&self) -> bool {
        *self == Tier::default()
    }

    /// The engine's options; the error names a key.
    pub fn options(&self) -> Result<varve::TierOptions, (String, String)> {
        let at = |key: &str, what: String| (format!("engine.tier.{key}"), what);
        let [read_slow, write_slow, read_fast, write_fast] = self.costs_ms;
        let mut options = varve::TierOptions {
            manager: self.manager.clone(),
            zone: self.zone,
            map_recovery: self.map_recovery.parse().map_err(|e| at("map_recovery", e))?,
            dirty_ceiling: self.dirty_ceiling,
            ..varve::TierOptions::default()
        };
        options.options = varve::ManagerOptions {
            costs: varve::Costs { read_slow, write_slow, read_fast, write_fast },
            alpha: self.alpha.parse().map_err(|e| at("alpha", e))?,
            bucket_width: self.bucket_width,
            outqueue: self.outqueue,
            half_life: self.half_life_s,
            second_chance: self.second_chance,
            cooling: self.cooling_s,
            ..options.options
        };
        options.validate().map_err(|e| at("manager", e.to_string()))?;
        Ok(options)
    }
}
