//! What a tier did, and what it holds.

use super::TierOptions;
use super::admit::State;
use super::manager::Refusal;
use varve_device::DeviceStats;

/// Counts since the tier was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Reads that somebody waited for, served by the fast device or from staging.
    pub fast_reads: u64,
    /// Reads of either kind served from staging memory.
    pub staged_reads: u64,
    /// Reads that somebody waited for, served from home.
    pub slow_reads: u64,
    /// Pages read ahead from the fast device.
    pub fast_prefetches: u64,
    /// Pages read ahead from home.
    pub slow_prefetches: u64,
    /// Dirty pages written in place on the fast device.
    pub overwrites: u64,
    /// Dirty pages admitted to the fast device.
    pub dirty_admitted: u64,
    /// Dirty pages written home by the pool.
    pub home_writes: u64,
    /// Clean pages admitted.
    pub clean_admitted: u64,
    /// Clean pages offered that were there already.
    pub already_there: u64,
    /// Refusals, in the order of [`REFUSALS`].
    pub refused: [u64; 6],
    /// Copies dropped because the page changed.
    pub invalidated: u64,
    /// Copies that lost their slot, equal to home or out of date.
    pub evicted_clean: u64,
    /// Pages that lost their slot after being copied home.
    pub evicted_newer: u64,
    /// Pages copied home that kept their slot.
    pub cleaned: u64,
    /// Pages copied home, for either reason.
    pub slow_copies: u64,
    /// Maps written.
    pub maps: u64,
    /// Their bytes.
    pub map_bytes: u64,
    /// Records journalled.
    pub journal_records: u64,
    /// Copies that could not be read and were replaced by home's.
    pub repaired: u64,
    /// Pages whose newest version could not be read.
    pub lost: u64,
    /// Reads that found a damaged page on the fast device.
    pub damaged: u64,
    /// Requests that the fast device failed, and background work that failed.
    pub errors: u64,
    /// Pages freed.
    pub discarded: u64,
    /// Syncs.
    pub syncs: u64,
    /// Writes asked for, by reason: replacement, recoverability, checkpoint.
    pub writes: [u64; 3],
    /// Bytes written to slots.
    pub slot_bytes: u64,
}

/// A tier's state as an operator wants it.
#[derive(Clone, Debug, PartialEq)]
pub struct TierStats {
    /// The manager.
    pub manager: String,
    /// Slots.
    pub slots: u64,
    /// Slots in use.
    pub occupied: u64,
    /// Slots whose version is newer than home.
    pub newer: u64,
    /// Slots open for eviction until the next map.
    pub zone: u64,
    /// Counts.
    pub counters: Counters,
    /// The fast device's own totals.
    pub fast: DeviceStats,
    /// Bytes of memory for map and statistics.
    pub memory: u64,
    /// Seconds since the tier was opened.
    pub seconds: f64,
}

/// Names of the refusals, in the order of their counters.
pub const REFUSALS: [(&str, Refusal); 6] = [
    ("rank", Refusal::Rank),
    ("kind", Refusal::Kind),
    ("no slot", Refusal::NoSlot),
    ("staging full", Refusal::Staging),
    ("write budget", Refusal::Budget),
    ("detached", Refusal::Detached),
];

impl TierStats {
    pub(super) fn new(state: &State, options: &TierOptions, fast: DeviceStats) -> TierStats {
        TierStats {
            manager: options.manager.clone(),
            slots: state.slots.len() as u64,
            occupied: state.slots.occupied() as u64,
            newer: state.slots.newer() as u64,
            zone: state.slots.zone() as u64,
            counters: state.counters,
            fast,
            memory: (state.slots.memory() + state.manager.memory()) as u64,
            seconds: state.opened.elapsed().as_secs_f64(),
        }
    }

    /// Share of the reads waited for that the fast device served.
    pub fn hit_ratio(&self) -> f64 {
        let c = &self.counters;
        let hits = c.fast_reads + c.staged_reads;
        hits as f64 / (hits + c.slow_reads).max(1) as f64
    }

    /// Bytes written to the fast device per day at the rate so far.
    pub fn bytes_per_day(&self) -> f64 {
        (self.counters.slot_bytes + self.counters.map_bytes) as f64 / self.seconds.max(1.0) * 86_400.0
    }
}
