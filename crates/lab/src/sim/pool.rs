//! What the command line fixes of a simulated database's buffer pool and layout; the rest is drawn from the seed.

use super::plan::Plan;
use serde::{Deserialize, Serialize};
use varve::buffer::PRESETS;
use varve::{Options, POOL_OPTIONS, PoolOptions};
use varve_rt::Rng;

/// The choices for a simulation: pool and layout.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolChoice {
    /// Preset and single options; all at their defaults: drawn from the seed.
    pub pool: PoolOptions,
    /// Layout tier: its manager, or `all` for one drawn from the seed; empty: a single device.
    pub tier: String,
    /// Layout array: pages on several drives.
    pub array: bool,
    /// Layout flash: pages on native flash.
    pub flash: bool,
    /// Some keyspaces, or all, are LSM keyspaces.
    pub lsm: bool,
    /// Layout near: pages and merges lie with a worker on a machine of its own. Some keyspaces are LSM keyspaces.
    pub near: bool,
}

/// The same as text, for the second process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct PoolText {
    pool: String,
    #[serde(default)]
    tier: String,
    #[serde(default)]
    array: bool,
    #[serde(default)]
    flash: bool,
    #[serde(default)]
    lsm: bool,
    #[serde(default)]
    near: bool,
}

impl From<&PoolChoice> for PoolText {
    fn from(c: &PoolChoice) -> PoolText {
        let PoolChoice { ref pool, ref tier, array, flash, lsm, near } = *c;
        PoolText { pool: pool.to_string(), tier: tier.clone(), array, flash, lsm, near }
    }
}

impl PoolText {
    /// Whether an array holds the pages.
    pub(crate) fn has_array(&self) -> bool {
        self.array
    }

    /// Whether native flash holds them.
    pub(crate) fn has_flash(&self) -> bool {
        self.flash
    }

    /// Whether keyspaces are LSM keyspaces.
    pub(crate) fn has_lsm(&self) -> bool {
        self.lsm
    }

    pub(crate) fn choice(self) -> Result<PoolChoice, varve::Error> {
        let PoolText { pool, tier, array, flash, lsm, near } = self;
        Ok(PoolChoice { pool: pool.parse()?, tier, array, flash, lsm, near })
    }
}

impl PoolChoice {
    /// The arguments of the tool that choose the same.
    pub(crate) fn arguments(&self) -> String {
        let mut text = String::new();
        if !self.tier.is_empty() {
            text += &format!(" --layout tier --manager {}", self.tier);
        }
        if self.array {
            text += " --layout array";
        }
        if self.flash {
            text += " --layout flash";
        }
        if self.near {
            text += " --layout near";
        } else if self.lsm {
            text += " --kind lsm";
        }
        for setting in POOL_OPTIONS.settings {
            if let (Some(name), Some(value)) = (setting.cli, setting.chosen(&self.pool)) {
                text += &format!(" --{name}={value}");
            }
        }
        text
    }

    /// Whether a victim strategy is fixed that gives up clean pages only.
    pub(crate) fn never_evicts_dirty(&self) -> bool {
        match (&self.pool.victim, &self.pool.preset) {
            (Some(victim), _) => victim == "clean-first",
            (None, preset) => preset.as_deref().is_some_and(|preset| preset.starts_with("lru-c")),
        }
    }

    /// The choice for a plan: what is not fixed here is drawn from its seed, every other time the engine's default. A
    /// victim strategy without a cleaner meets different ones; `clean-first` needs one.
    pub(crate) fn settle(&self, plan: &Plan, options: Options) -> Options {
        let mut rng = Rng::from_seed(plan.seed ^ 0x0706_f01c);
        let mut pool = self.pool.clone();
        let mut cleaners = options.cleaners;
        let PoolChoice { array, flash, lsm, near, .. } = *self;
        let free = *self == PoolChoice { array, flash, lsm, near, ..PoolChoice::default() };
        if free && rng.one_in(2) {
            let presets: Vec<&str> = PRESETS.iter().map(|p| p.name).filter(|name| !name.starts_with("gd2l")).collect();
            pool.preset = Some(presets[rng.below(presets.len() as u64) as usize].to_string());
        }
        if pool.victim.is_some() && pool.cleaner.is_none() && pool.preset.is_none() {
            pool.cleaner = Some(["fixed", "fixed56", "dynamic"][rng.below(3) as usize].to_string());
        }
        if self.never_evicts_dirty() {
            cleaners = true;
        }
        pool.instances = pool.instances.or(Some(plan.instances).filter(|n| *n > 0));
        Options { pool, cleaners, ..options }
    }
}
