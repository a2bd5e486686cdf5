//! What the log counts.

use varve_rt::atomic::{AtomicU64, Ordering};

/// Counters since the log was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Groups made durable.
    pub groups: u64,
    /// Bytes of what was written without the padding: groups, headers included.
    pub group_bytes: u64,
    /// The longest group, bytes.
    pub largest_group: u64,
    /// Device writes of log blocks (each durable when it completes).
    pub writes: u64,
    /// Bytes of those writes.
    pub written_bytes: u64,
    /// Bytes of padding to block boundaries among them.
    pub padding_bytes: u64,
    /// Writes in flight when a write began, summed: divided by `writes` it is the mean depth less one.
    pub in_flight_sum: u64,
    /// The most writes in flight at once.
    pub in_flight_max: u64,
    /// Times that somebody waited for another's log write.
    pub waits: u64,
    /// Times that an append found the log buffer full.
    pub buffer_waits: u64,
    /// Times that somebody waited for log space, that is for a checkpoint.
    pub space_waits: u64,
    /// Nanoseconds of those waits.
    pub space_wait_ns: u64,
    /// Times that the ring grew.
    pub growths: u64,
    /// Times that it gave space back.
    pub shrinks: u64,
    /// Superblock writes.
    pub superblock_writes: u64,
    /// Damaged superblocks that were mended from their copies, over the database's life.
    pub superblocks_mended: u64,
    /// Checkpoints completed.
    pub checkpoints: u64,
    /// Bytes that the ring holds.
    pub capacity: u64,
    /// Bytes from the redo point to the end of the log.
    pub age: u64,
    /// End of the log.
    pub end: u64,
    /// Everything below is on media.
    pub durable: u64,
}

macro_rules! counters {
    ($($name:ident),*) => {
        /// The live counters.
        #[derive(Default)]
        pub(super) struct Counters { $(pub $name: AtomicU64),* }

        impl Counters {
            /// The counters so far; the rest of the snapshot is zero.
            pub fn snapshot(&self) -> LogStats {
                LogStats { $($name: self.$name.load(Ordering::Relaxed),)* ..Default::default() }
            }
        }
    };
}

counters!(
    groups,
    largest_group,
    writes,
    written_bytes,
    padding_bytes,
    in_flight_sum,
    in_flight_max,
    waits,
    buffer_waits,
    space_waits,
    space_wait_ns,
    growths,
    shrinks,
    superblock_writes,
    checkpoints
);

/// Adds to a counter.
pub(super) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}
