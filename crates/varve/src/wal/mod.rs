//! The write-ahead log: groups of redo records in a ring of segments, group commit, checkpoints and recovery.
//!
//! Positions in the log stream are LSNs (bytes). A group is appended at a place reserved without a lock, becomes
//! durable with the next write of its block, and is replayed whole or not at all. `docs/wal.md` tells how and why; the
//! bytes are in `docs/format.md`.
//!
//! Parts, lower to upper: `format` and `ring` (bytes and their place), `superblock`, `tail`
//! (reservation and buffer), `writer` (group commit), `listeners`, `flusher`, [`Log`], [`LogReader`].

mod check;
pub mod checkpoint;
mod features;
mod flusher;
mod format;
mod generation;
mod growth;
mod hold;
mod listeners;
mod log;
mod reader;
pub mod recovery;
mod resume;
mod ring;
mod room;
mod stats;
mod superblock;
mod tail;
mod writer;
mod zeros;

#[cfg(test)]
mod tests;

pub use check::LogCheck;
pub use features::{
    FEATURES, FORMER_TREES, Feature, FeatureClass, Features, IDENTITY, LARGE_COMMITS, LOST_WRITES, LSM_KEYSPACES,
    MAP_COUNT, READ_ONLY_KEYSPACES, ZSTD_BLOCKS,
};
pub use format::{BLOCK, FIRST_LSN, GROUP_HEADER, GroupKind, group_size};
pub use generation::{Companion, Generation};
pub(crate) use hold::LogHold;
pub use log::Log;
pub use reader::{EndRow, GroupView, LogEnd, LogReader, Step};
#[cfg(test)]
pub(crate) use resume::GAP;
pub use resume::Gap;
pub use stats::LogStats;
pub use superblock::DbHeader;
pub(crate) use superblock::{Birth, creation, read_header};

use crate::error::{Error, Result};
use std::sync::Arc;
use std::time::Duration;
use varve_volume::{Lsn, PageId};

/// How a log is laid out and run. Sizes in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogConfig {
    /// Size of a new log's ring; rounded up to whole segments.
    pub capacity: u64,
    /// Size to which the ring may grow. Groups that are under way when it is reached may push it a little further.
    pub max_capacity: u64,
    /// Size of a new log's segments: a multiple of 4096. Those that it gets as it grows may be longer.
    pub segment: u64,
    /// Size of the log buffer: a power of two, at least 16 KiB.
    pub buffer: u64,
    /// Most time that passes before an `async` commit is written.
    pub async_delay: Duration,
    /// Most log writes in flight.
    pub max_in_flight: usize,
    /// Checkpoints in a row that need little of the ring, after which it shrinks.
    pub idle_checkpoints: u32,
}

impl Default for LogConfig {
    fn default() -> LogConfig {
        LogConfig {
            capacity: 64 << 20,
            max_capacity: 2 << 30,
            segment: 8 << 20,
            buffer: 4 << 20,
            async_delay: Duration::from_millis(100),
            max_in_flight: 4,
            idle_checkpoints: 10,
        }
    }
}

impl LogConfig {
    fn check(&self) -> Result<()> {
        let bad = |what: String| Err(Error::Invalid(what));
        if self.segment < 4 * BLOCK || !self.segment.is_multiple_of(BLOCK) || self.segment > 1 << 32 {
            return bad(format!(
                "log segment of {} bytes: a multiple of {BLOCK} between 16 KiB and 4 GiB",
                self.segment
            ));
        }
        if !self.buffer.is_power_of_two() || !(4 * BLOCK..=1 << 30).contains(&self.buffer) {
            return bad(format!("log buffer of {} bytes: a power of two between 16 KiB and 1 GiB", self.buffer));
        }
        if self.max_capacity < self.capacity || self.capacity.div_ceil(self.segment) > ring::MAX_SIZED as u64 {
            let (first, most, segments) = (self.capacity, self.max_capacity, ring::MAX_SIZED);
            return bad(format!(
                "log of {first} bytes, at most {most}: its first size is no more than its largest, and at most \
                 {segments} segments"
            ));
        }
        if self.max_capacity < 4 * self.segment {
            return bad(format!(
                "log of at most {} bytes: at least four segments of {}",
                self.max_capacity, self.segment
            ));
        }
        if self.max_in_flight == 0 {
            return bad("at least one log write in flight".into());
        }
        Ok(())
    }

    /// Room kept free, of so many bytes, for groups that checked for space at the same time.
    fn slack(capacity: u64) -> u64 {
        (capacity / 16).clamp(4 * BLOCK, 8 << 20)
    }
}

/// What opening a log finds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogState {
    /// What was fixed at creation.
    pub header: DbHeader,
    /// Where redo begins.
    pub redo: Lsn,
    /// The database was closed cleanly: nothing to redo.
    pub clean: bool,
    /// The log is known to be durable to here; its exact end when `clean`.
    pub end: Lsn,
    /// Redo bytes per second at the last recovery, if there was one.
    pub replay_rate: Option<u64>,
    /// What is wrong with the older superblock, if anything: a torn write or damage.
    pub damaged_superblock: Option<String>,
    /// Opening or checkpoint that wrote the superblock.
    pub generation: Generation,
    /// Pages of the data device that bear identity and generation.
    pub identity: Option<[PageId; 2]>,
}

/// The image floor and the epoch in which it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Floor {
    /// Moves with every checkpoint begun.
    pub epoch: u32,
    /// A page whose last change ends at or before this is logged whole.
    pub lsn: Lsn,
}

/// Where a group went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// Its first byte.
    pub start: Lsn,
    /// Its end: the LSN of the pages it changed.
    pub end: Lsn,
}

/// Why a group was not appended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AppendError {
    /// A checkpoint began since the floor was read: decide anew which pages are logged whole.
    EpochMoved,
    /// The log is poisoned, closed or not open for writing.
    Poisoned(Arc<str>),
    /// The group is longer than the log allows.
    TooLarge {
        /// Bytes of its body.
        needed: u64,
        /// Bytes allowed.
        limit: u64,
    },
}

impl std::fmt::Display for AppendError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            AppendError::EpochMoved => write!(f, "a checkpoint began meanwhile"),
            AppendError::Poisoned(what) => write!(f, "{what}"),
            AppendError::TooLarge { needed, limit } => {
                write!(f, "a group of {needed} bytes, at most {limit} fit the log")
            }
        }
    }
}

impl std::error::Error for AppendError {}
