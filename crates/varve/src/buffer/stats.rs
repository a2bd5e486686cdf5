//! Counters of the pool, and the snapshot of them that users see.
//!
//! The counters order nothing, so they are relaxed atomics of the standard library.

use super::policy::Turnover;
use crate::role::{self, Role};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use varve_volume::WriteWhy;

/// Page types counted separately; higher type bytes share the last place.
pub const KINDS: usize = 16;

/// Places of [`PoolStats::batch_sizes`].
pub const BATCH_SIZES: usize = 12;

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts of one page type.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct KindStats { $($(#[$doc])* pub $name: u64,)* }
        #[derive(Default)]
        pub(super) struct KindCounters { $(pub(super) $name: Counter,)* }
        impl KindCounters {
            fn get(&self) -> KindStats { KindStats { $($name: self.$name.get(),)* } }
        }
        impl KindStats {
            /// Sum of both.
            pub fn plus(&self, other: &KindStats) -> KindStats { KindStats { $($name: self.$name + other.$name,)* } }
        }
    };
}

kinds! {
    /// Accesses that found the page resident.
    hits,
    /// Accesses that had to read it.
    misses,
    /// Pages read ahead.
    prefetched,
    /// Pages read ahead that were then accessed.
    prefetch_used,
    /// Pages made without a read.
    created,
    /// Clean pages evicted.
    evicted_clean,
    /// Pages evicted right after the write that their frame was wanted for.
    evicted_dirty,
    /// Pages read ahead and evicted without an access.
    prefetch_wasted,
    /// Pages written.
    written,
}

macro_rules! totals {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What a pool did since it was made, and how full it is now.
        #[derive(Debug, Clone, Default, PartialEq, Eq)]
        pub struct PoolStats {
            $($(#[$doc])* pub $name: u64,)*
            /// By page type byte; see [`KINDS`].
            pub kinds: [KindStats; KINDS],
            /// Frames of the pool.
            pub frames: u64,
            /// Frames without a page.
            pub free: u64,
            /// Dirty pages, those set aside included.
            pub dirty: u64,
            /// Dirty pages set aside.
            pub aside: u64,
            /// What became of pages in the cold part of the replacement list, of all instances.
            pub turnover: Turnover,
            /// Threads that do replacement writes; as many write pages set aside, if there are such.
            pub cleaners: u64,
            /// Batches of writes by size: place n counts those of 2^n to 2^(n+1) - 1 pages, the last place all larger
            /// ones too.
            pub batch_sizes: [u64; BATCH_SIZES],
        }
        #[derive(Default)]
        pub(super) struct Counters {
            $(pub(super) $name: Counter,)*
            pub(super) kinds: [KindCounters; KINDS],
            batch_sizes: [Counter; BATCH_SIZES],
        }
        impl Counters {
            /// All but the gauges.
            pub(super) fn get(&self) -> PoolStats {
                PoolStats {
                    $($name: self.$name.get(),)*
                    kinds: std::array::from_fn(|k| self.kinds[k].get()),
                    batch_sizes: std::array::from_fn(|n| self.batch_sizes[n].get()),
                    ..PoolStats::default()
                }
            }
        }
    };
}

totals! {
    /// Hits that no policy heard of, because its buffer was full.
    hits_dropped,
    /// Pages freed and dropped without a write.
    discarded,
    /// Victims written by the thread that missed.
    single_page_flushes,
    /// Misses that found no clean page to take at once.
    stalls,
    /// Nanoseconds that misses waited for a frame.
    stall_ns,
    /// Clean pages that the store took when they were evicted.
    evict_clean_taken,
    /// Clean pages offered to the store that it declined.
    evict_clean_declined,
    /// Pages written because their frame was wanted.
    replacement_writes,
    /// Pages written to let the log go.
    recoverability_writes,
    /// Pages written for a checkpoint.
    checkpoint_writes,
    /// New pages written without the log.
    load_writes,
    /// Batches of writes submitted.
    write_batches,
    /// Pages in those batches.
    batched_pages,
    /// Pages of the largest batch.
    largest_batch,
    /// Times that the lock of an instance's lists was taken.
    list_locks,
    /// Nanoseconds that threads waited for it.
    list_wait_ns,
    /// Nanoseconds that it was held.
    list_hold_ns,
    /// The longest hold, nanoseconds.
    list_hold_max_ns,
    /// Pages copied to the doublewrite area.
    doublewritten,
    /// Syncs of the store after batches and single-page flushes (`sync_writes`).
    write_syncs,
    /// Pages whose write was submitted by a foreground thread.
    foreground_writes,
    /// Misses that waited for the cleaner because the cold part had no clean page (`clean-first`).
    clean_stalls,
    /// Dirty pages that left their frames before they were written (WAR's copies, RW's staged victims).
    set_aside,
    /// Of these, pages that were asked for again before they were written, and came back.
    readmitted,
    /// Pages looked at by misses in search of a victim.
    scanned,
    /// Pages looked at by cleaners.
    cleaner_scanned,
    /// Written pages that had changed again meanwhile, so they stayed dirty.
    redirtied,
    /// Page writes that failed.
    write_errors,
    /// Page reads that failed.
    read_errors,
    /// Page reads tried again after an error that was worth it.
    read_retries,
    /// Passes of the cleaners.
    cleaner_passes,
    /// Nanoseconds that they took.
    cleaner_ns,
    /// Nanoseconds that the threads were at work that write pages set aside.
    drainer_ns,
    /// Times that a cleaner was woken before its interval ended.
    cleaner_wakes,
    /// Times that the log was forced before pages could be written.
    log_forces,
    /// Changes of cost class told by the store.
    class_changes,
    /// Read-ahead batches.
    prefetch_batches,
    /// Hints for read-ahead dropped because the queue was full or no frame was clean.
    prefetch_dropped,
}

impl PoolStats {
    /// Counts over all page types.
    pub fn total(&self) -> KindStats {
        self.kinds.iter().fold(KindStats::default(), |sum, k| sum.plus(k))
    }

    /// Hits over accesses, 0 to 1; 1 when there were none.
    pub fn hit_ratio(&self) -> f64 {
        let t = self.total();
        let hits = t.hits + self.hits_dropped;
        if hits + t.misses == 0 { 1.0 } else { hits as f64 / (hits + t.misses) as f64 }
    }
}

/// A counter that orders nothing.
#[derive(Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    pub(super) fn max(&self, n: u64) {
        self.0.fetch_max(n, Relaxed);
    }

    pub(super) fn inc(&self) {
        self.add(1);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

impl Counters {
    /// A batch of so many writes was submitted by the calling thread.
    pub(super) fn batch(&self, pages: usize) {
        self.largest_batch.max(pages as u64);
        self.batch_sizes[(pages.max(1).ilog2() as usize).min(BATCH_SIZES - 1)].inc();
        if role::current() == Role::Foreground {
            self.foreground_writes.add(pages as u64);
        }
        self.write_batches.inc();
        self.batched_pages.add(pages as u64);
    }

    pub(super) fn kind(&self, kind: u8) -> &KindCounters {
        &self.kinds[(kind as usize).min(KINDS - 1)]
    }

    pub(super) fn writes(&self, why: WriteWhy) -> &Counter {
        match why {
            WriteWhy::Replacement => &self.replacement_writes,
            WriteWhy::Recoverability => &self.recoverability_writes,
            WriteWhy::Checkpoint => &self.checkpoint_writes,
            WriteWhy::Load => &self.load_writes,
        }
    }
}
