//! What the command line fixes of a simulated database's buffer pool and layout; the rest is drawn from the seed.

use super::plan::Plan;
use serde::{Deserialize, Serialize};
use varve::buffer::PRESETS;
use varve::{Options, PoolOptions};
use varve_rt::Rng;

/// The choices for a simulation: pool and layout.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolChoice {
    /// Preset and single options; all empty: drawn from the seed.
    pub pool: PoolOptions,
    /// Replacement policy; empty: the preset's.
    pub replacement: String,
    /// Instances; 0: drawn from the seed.
    pub instances: usize,
    /// Layout tier: its manager, or `all` for one drawn from the seed; empty: a single device.
    pub tier: String,
}

/// The same as text, for the second process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct PoolText {
    pool: String,
    replacement: String,
    instances: usize,
    #[serde(default)]
    tier: String,
}

impl From<&PoolChoice> for PoolText {
    fn from(c: &PoolChoice) -> PoolText {
        let (replacement, tier) = (c.replacement.clone(), c.tier.clone());
        PoolText { pool: c.pool.to_string(), replacement, instances: c.instances, tier }
    }
}

impl PoolText {
    pub(crate) fn choice(self) -> Result<PoolChoice, varve::Error> {
        let PoolText { pool, replacement, instances, tier } = self;
        Ok(PoolChoice { pool: pool.parse()?, replacement, instances, tier })
    }
}

impl PoolChoice {
    /// The arguments of the tool that choose the same.
    pub(crate) fn arguments(&self) -> String {
        let mut text = String::new();
        let pool = &self.pool;
        if !self.tier.is_empty() {
            text += &format!(" --layout tier --manager {}", self.tier);
        }
        for (name, value) in [
            ("pool", pool.preset.as_str()),
            ("victim", &pool.victim),
            ("cleaner", &pool.cleaner),
            ("replacement", &self.replacement),
        ] {
            if !value.is_empty() {
                text += &format!(" --{name} {value}");
            }
        }
        for (name, n) in [
            ("cleaner-threads", pool.cleaner_threads),
            ("scan-depth", pool.scan_depth),
            ("old-time-us", pool.old_time_us),
            ("pool-instances", self.instances),
        ] {
            if n > 0 {
                text += &format!(" --{name} {n}");
            }
        }
        for (name, set) in [
            ("equal-memory", pool.baselines.equal_memory),
            ("reset-on-clean", pool.reset_on_clean),
            ("timer-only", pool.timer_only),
            ("serial-list", pool.serial_list),
        ] {
            if set {
                text += &format!(" --{name}");
            }
        }
        text
    }

    /// Whether a victim strategy is fixed that gives up clean pages only.
    pub(crate) fn never_evicts_dirty(&self) -> bool {
        self.pool.victim == "clean-first" || self.pool.victim.is_empty() && self.pool.preset.starts_with("lru-c")
    }

    /// The choice for a plan: what is not fixed here is drawn from its seed, every other time the engine's default. A
    /// victim strategy without a cleaner meets different ones; `clean-first` needs one.
    pub(crate) fn settle(&self, plan: &Plan, options: Options) -> Options {
        let mut rng = Rng::from_seed(plan.seed ^ 0x0706_f01c);
        let mut pool = self.pool.clone();
        let mut cleaners = options.cleaners;
        if *self == PoolChoice::default() && rng.one_in(2) {
            let presets: Vec<&str> = PRESETS.iter().map(|p| p.name).filter(|name| !name.starts_with("gd2l")).collect();
            pool.preset = presets[rng.below(presets.len() as u64) as usize].to_string();
        }
        if !pool.victim.is_empty() && pool.cleaner.is_empty() && pool.preset.is_empty() {
            pool.cleaner = ["fixed", "fixed56", "dynamic"][rng.below(3) as usize].to_string();
        }
        if self.never_evicts_dirty() {
            cleaners = true;
        }
        let pool_instances = if self.instances > 0 { self.instances } else { options.pool_instances };
        Options { pool, cleaners, pool_instances, replacement: self.replacement.clone(), ..options }
    }
}
