//! The tier's part of a simulated database: manager, size of the fast device, how the map is found again. What the
//! command line leaves open is drawn from the seed.

use super::plan::{Latency, Plan};
use varve::{Alpha, ManagerOptions, MapRecovery, TierOptions};
use varve_rt::Rng;
use varve_volume::tier::manager::REGISTRY;

/// Stands for a manager drawn from the seed.
pub(crate) const ALL: &str = "all";

/// What a seed makes of the tier.
#[derive(Clone, Debug)]
pub(crate) struct TierPlan {
    pub(crate) fast_bytes: u64,
    pub(crate) latency: Latency,
    options: TierOptions,
    /// Each life has another manager, and finds its map in another way.
    changing: bool,
}

/// The manager of that name, or the `n`-th for "all".
pub(crate) fn manager(name: &str, n: u64) -> &str {
    if name == ALL { REGISTRY[(n % REGISTRY.len() as u64) as usize].name } else { name }
}

impl TierPlan {
    /// Draws the tier of a plan; `name` is a manager's, or "all".
    pub(crate) fn draw(name: &str, plan: &Plan) -> TierPlan {
        let mut rng = Rng::from_seed(plan.seed ^ 0x7_1e4);
        let pages = plan.load_bytes / plan.page_size as u64;
        let slots = rng.between(16.max(pages / 12), pages.max(64));
        let low_us = rng.between(5, 40);
        let latency = Latency { low_us, high_us: low_us + rng.between(5, 200) };
        let options = ManagerOptions {
            alpha: [Alpha::Group, Alpha::Keyspace, Alpha::Global][rng.below(3) as usize],
            second_chance: rng.one_in(2),
            outqueue: rng.one_in(2).then(|| rng.between(4, slots) as usize),
            half_life: rng.one_in(4).then_some(0.5),
            cooling: 0.1,
            ..ManagerOptions::default()
        };
        let options = TierOptions {
            manager: manager(name, plan.seed).to_string(),
            options,
            zone: [0.01, 0.05, 0.1, 0.5][rng.below(4) as usize],
            map_recovery: [MapRecovery::Zone, MapRecovery::Scan, MapRecovery::Log][rng.below(3) as usize],
            staging_pages: rng.between(2, 64) as usize,
            reserve: Some(rng.below(8) as usize).filter(|n| *n > 0),
            dirty_ceiling: [0.95, 0.5, 0.2][rng.below(3) as usize],
            ..TierOptions::default()
        };
        // Blocks of maps and journals come on top of the slots.
        let fast_bytes = slots * plan.page_size as u64 + (4 << 20);
        TierPlan { fast_bytes, latency, options, changing: name == ALL && rng.one_in(4) }
    }

    /// The options of life number `life`.
    pub(crate) fn options(&self, plan: &Plan, life: u64) -> TierOptions {
        let mut options = self.options.clone();
        if self.changing {
            options.manager = manager(ALL, plan.seed + life).to_string();
            let ways = [MapRecovery::Zone, MapRecovery::Scan, MapRecovery::Log];
            options.map_recovery = ways[((plan.seed / 2 + life * life) % 3) as usize];
        }
        options
    }
}
