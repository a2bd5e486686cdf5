//! What a tier did, and what it holds.

use super::admit::TierState;
use super::fault::Standing;
use super::manager::Refusal;
use super::{TierOptions, TierStats};
use crate::VolumeStats;

/// Names of the refusals, in the order of their counters.
pub const REFUSALS: [(&str, Refusal); 7] = [
    ("rank", Refusal::Rank),
    ("kind", Refusal::Kind),
    ("no slot", Refusal::NoSlot),
    ("staging full", Refusal::Staging),
    ("write budget", Refusal::Budget),
    ("detached", Refusal::Detached),
    ("dirty ceiling", Refusal::Ceiling),
];

/// The state of a tier as it is reported.
pub(super) fn stats(state: &TierState, options: &TierOptions) -> TierStats {
    let (newer, occupied) = (state.slots.newer(), state.slots.occupied());
    assert!(newer <= occupied && occupied <= state.slots.len() && state.slots.zone() <= occupied);
    let life = state.life();
    TierStats {
        manager: options.manager.clone(),
        slots: state.slots.len() as u64,
        occupied: state.slots.occupied() as u64,
        newer: state.slots.newer() as u64,
        newer_since: state.slots.newer_since(),
        zone: state.slots.zone() as u64,
        attached: state.part.is_some(),
        device: state.part.as_ref().map(|part| part.device.info().name.to_string()).unwrap_or_default(),
        failed: state.failed() || state.standing != Standing::Good,
        created: life.created,
        written: life.written,
        life_used: None,
        budget_spent: life.spent,
        slow: VolumeStats::default(),
        recovery: state.recovery,
        counters: state.counters,
        fast: state.part.as_ref().map(|part| part.device.stats()).unwrap_or_default(),
        memory: (state.slots.memory() + state.manager.memory()) as u64,
        seconds: state.opened.elapsed().as_secs_f64(),
    }
}
