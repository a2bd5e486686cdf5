//! What volumes report of themselves: plain figures, for statistics and experiments.

use crate::{KeyspaceId, PageId, VolumeStats, WriteWhy};
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
    /// Refusals, in the order of [`crate::tier::REFUSALS`].
    pub refused: [u64; 7],
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
    /// Bytes of journal blocks written.
    pub journal_bytes: u64,
    /// Times that what the manager knows of pages was saved.
    pub memories: u64,
    /// Bytes written for that.
    pub memory_bytes: u64,
    /// Fast devices attached.
    pub attached: u64,
    /// Pages moved to other slots because theirs went.
    pub relocated: u64,
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
    pub writes: [u64; WriteWhy::ALL.len()],
    /// Bytes written to slots.
    pub slot_bytes: u64,
}

/// What finding the map again took when the tier was opened; zeros for one that was made.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Recovery {
    /// Seconds, map and journal included.
    pub seconds: f64,
    /// Slots that were read.
    pub slots_read: u64,
    /// Pages that were looked up at home.
    pub home_reads: u64,
    /// Journal records applied.
    pub records: u64,
    /// Pages found.
    pub pages: u64,
    /// Pages of which the manager's knowledge was found.
    pub remembered: u64,
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
    /// Since when the oldest of them is there, seconds since 1970; 0: there is none.
    pub newer_since: u64,
    /// Slots open for eviction until the next map.
    pub zone: u64,
    /// Whether there is a fast device in use.
    pub attached: bool,
    /// Its name.
    pub device: String,
    /// Whether it failed so often that it counts as lost, or in a way that it is not relied on any more.
    pub failed: bool,
    /// When it was attached, seconds since 1970.
    pub created: u64,
    /// Bytes that the tier wrote to it since.
    pub written: u64,
    /// Share of its rated life that the fast device says is used up, at most ten minutes ago; none: it does not report
    /// it.
    pub life_used: Option<f64>,
    /// Of today's write budget, the bytes spent.
    pub budget_spent: u64,
    /// The slow store's totals.
    pub slow: VolumeStats,
    /// How it came up.
    pub recovery: Recovery,
    /// Counts.
    pub counters: Counters,
    /// The fast device's own totals.
    pub fast: DeviceStats,
    /// Bytes of memory for map and statistics.
    pub memory: u64,
    /// Seconds since the tier was opened.
    pub seconds: f64,
}

impl TierStats {
    /// Share of the reads waited for that the fast device served.
    pub fn hit_ratio(&self) -> f64 {
        let c = &self.counters;
        c.fast_reads as f64 / (c.fast_reads + c.slow_reads).max(1) as f64
    }

    /// Share of the slots whose version is newer than home.
    pub fn dirty_share(&self) -> f64 {
        self.newer as f64 / self.slots.max(1) as f64
    }

    /// Bytes written to the fast device per day at the rate since the tier was opened.
    pub fn bytes_per_day(&self) -> f64 {
        let c = &self.counters;
        let bytes = c.slot_bytes + c.map_bytes + c.journal_bytes + c.memory_bytes;
        bytes as f64 / self.seconds.max(1.0) * 86_400.0
    }

    /// Bytes written to the fast device per day since it was attached.
    pub fn bytes_per_day_of_life(&self, now: u64) -> f64 {
        self.written as f64 / now.saturating_sub(self.created).max(1) as f64 * 86_400.0
    }
}

impl Counters {
    /// Those that every volume has.
    pub(crate) fn of_volume(&self) -> VolumeStats {
        VolumeStats {
            demand_reads: self.fast_reads + self.slow_reads,
            prefetch_reads: self.fast_prefetches + self.slow_prefetches,
            replacement_writes: self.writes[0],
            recoverability_writes: self.writes[1],
            checkpoint_writes: self.writes[2],
            load_writes: self.writes[3],
            clean_accepted: self.clean_admitted,
            clean_declined: self.refused.iter().sum::<u64>() + self.already_there,
            discarded: self.discarded,
            syncs: self.syncs,
            damaged: self.damaged,
            errors: self.errors,
        }
    }
}

/// How pages of a group were read. The miss rate on the fast device over that off it is CAC's expansion factor of the
/// group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupUse {
    /// The keyspace.
    pub keyspace: KeyspaceId,
    /// Logical reads a minute from which pages belong to the group.
    pub rate: f64,
    /// Logical reads while on the fast device, and while not on it.
    pub logical: [f64; 2],
    /// The same of physical reads.
    pub physical: [f64; 2],
}

/// What is remembered of a page, on the fast device and not on it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PageSides {
    /// The page.
    pub page: PageId,
    /// Logical reads.
    pub logical: [f64; 2],
    /// Physical reads.
    pub physical: [f64; 2],
    /// Writes.
    pub writes: [f64; 2],
}

/// What a manager counted, for reports.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counted {
    /// By group.
    pub groups: Vec<GroupUse>,
    /// By page.
    pub pages: Vec<PageSides>,
}

/// What a change of the size came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resized {
    /// Slots before.
    pub before: u64,
    /// Slots now.
    pub after: u64,
    /// Pages that moved to other slots.
    pub relocated: u64,
    /// Pages that lost their slots.
    pub evicted: u64,
}

/// A region of native flash: what it did since it was opened, and what is left of it. Pages are those of the flash.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RegionReport {
    /// Its name; its number if it has none.
    pub name: String,
    /// The keyspaces that live in it; none: those that no region names.
    pub keyspaces: Vec<String>,
    /// Delta records of a page, and bytes of each.
    pub scheme: String,
    /// Pages that it can hold.
    pub pages: u64,
    /// Pages written whole.
    pub writes: u64,
    /// Pages appended to.
    pub appends: u64,
    /// Pages moved by garbage collection.
    pub migrations: u64,
    /// Pages programmed, those of its map included.
    pub programs: u64,
    /// Blocks erased.
    pub erases: u64,
    /// Erases of its blocks since the flash was new.
    pub all_erases: u64,
    /// Blocks that are bad.
    pub bad_blocks: u64,
    /// Share of the erases that its blocks endure that were done; none: they endure any number.
    pub life_used: Option<f64>,
    /// So many blocks are bad that nothing can be written any more, or soon.
    pub worn_out: bool,
}
