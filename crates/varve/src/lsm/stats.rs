//! What an LSM keyspace counts of itself, and what it comes to.
//!
//! Invariant: counters only rise.

use super::LAST_LEVEL;
use super::options::MergeBy;
use super::picker::Leveled;
use super::version::pages;
use super::{Segment, Version};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Levels that there can be.
const LEVELS: usize = LAST_LEVEL as usize + 1;

/// Figures of a level: sizes as they are now, counters since the database was opened.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LsmLevel {
    /// Segments.
    pub segments: u64,
    /// Bytes of their pages.
    pub bytes: u64,
    /// Bytes that it may have; none on level 0, whose segments are counted, and on the last one.
    pub limit_bytes: Option<u64>,
    /// How much it is over its limit: from 1 on it is to be merged.
    pub score: f64,
    /// Bytes read by merges that wrote to it.
    pub read_bytes: u64,
    /// Bytes written to it, by flushes and merges.
    pub written_bytes: u64,
    /// Looks of look-ups at segments of it that the filter answered: the key is not there.
    pub filter_hits: u64,
    /// Looks that the filter let pass (or that had none), and that found an entry of the key.
    pub found: u64,
    /// Looks that the filter let pass in vain.
    pub false_positives: u64,
}

/// Figures of an LSM keyspace: sizes as they are now, counters since the database was opened.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LsmStats {
    /// Its name.
    pub name: String,
    /// How it is to be merged, if that needs a worker near the data and the database has none: this process merges it
    /// alone, as [`MergeBy::local`] says.
    pub without_worker: Option<MergeBy>,
    /// Level by level.
    pub levels: Vec<LsmLevel>,
    /// Bytes of memtables, bookkeeping included.
    pub memtable_bytes: u64,
    /// Bytes of keys and values that were written.
    pub user_bytes: u64,
    /// Bytes of the log records of these.
    pub log_bytes: u64,
    /// Memtables written as segments.
    pub flushes: u64,
    /// Bytes of these segments.
    pub flushed_bytes: u64,
    /// Merges done.
    pub merges: u64,
    /// Segments that went to the next level as they were.
    pub moves: u64,
    /// Of the merges, those for segments that were looked at in vain too often.
    pub seek_merges: u64,
    /// Bytes that merges read, and wrote.
    pub merged_bytes: (u64, u64),
    /// Time that merges took, nanoseconds; flushes that came in between included.
    pub merge_ns: u64,
    /// Look-ups of single keys that no memtable answered.
    pub lookups: u64,
    /// Writes that waited for back-pressure, and how long, nanoseconds.
    pub delays: (u64, u64),
    /// Writes that waited for memory of memtables, and how long, nanoseconds.
    pub stalls: (u64, u64),
    /// Bytes that merges have to read and write until no level is over its limit, about.
    pub debt_bytes: u64,
    /// The same in seconds, at the rate of the merges so far; none before there was one.
    pub debt_seconds: Option<f64>,
    /// How far writers are held up: 0 not at all, 1 as far as planned.
    pub pressure: f64,
    /// Seconds until the pressure is 1, if writers go on as they did lately; none: it does not rise.
    pub seconds_to_limit: Option<f64>,
}

impl LsmStats {
    /// Bytes written (log, flushes, merges) for each byte of keys and values that was written; none: nothing was.
    pub fn write_amplification(&self) -> Option<f64> {
        let written = self.log_bytes + self.flushed_bytes + self.merged_bytes.1;
        (self.user_bytes > 0).then(|| written as f64 / self.user_bytes as f64)
    }

    /// Data blocks read for each look-up that no memtable answered; none: there was none.
    pub fn read_amplification(&self) -> Option<f64> {
        let blocks: u64 = self.levels.iter().map(|level| level.found + level.false_positives).sum();
        (self.lookups > 0).then(|| blocks as f64 / self.lookups as f64)
    }

    /// Bytes of all segments for each byte of the lowest level that has some, which has the rest of the keys: about the
    /// bytes stored for each that is live. None: there are no segments.
    pub fn space_amplification(&self) -> Option<f64> {
        let all: u64 = self.levels.iter().map(|level| level.bytes).sum();
        let lowest = self.levels.iter().rev().find(|level| level.bytes > 0)?;
        Some(all as f64 / lowest.bytes as f64)
    }

    /// Bytes that merges read and wrote in a second of their time; none: there was no merge.
    pub fn merge_bandwidth(&self) -> Option<f64> {
        let bytes = self.merged_bytes.0 + self.merged_bytes.1;
        (self.merge_ns > 0).then(|| bytes as f64 / (self.merge_ns as f64 / 1e9))
    }
}

#[derive(Default)]
struct LevelCounters {
    read: AtomicU64,
    written: AtomicU64,
    hits: AtomicU64,
    found: AtomicU64,
    vain: AtomicU64,
}

/// Counters of a keyspace.
#[derive(Default)]
pub(super) struct Counters {
    levels: [LevelCounters; LEVELS],
    user: AtomicU64,
    log: AtomicU64,
    flushes: AtomicU64,
    flushed: AtomicU64,
    merges: AtomicU64,
    moves: AtomicU64,
    seeks: AtomicU64,
    merge_read: AtomicU64,
    merge_written: AtomicU64,
    merge_ns: AtomicU64,
    lookups: AtomicU64,
    delays: AtomicU64,
    delay_ns: AtomicU64,
    stalls: AtomicU64,
    stall_ns: AtomicU64,
}

/// How a look at a segment ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Looked {
    /// The filter says that the key is not there.
    Filtered,
    /// An entry was found.
    Found,
    /// The filter let it pass, and there was none.
    Vain,
}

fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Relaxed);
}

fn ns(time: Duration) -> u64 {
    time.as_nanos() as u64
}

impl Counters {
    /// A commit wrote keys and values of so many bytes, with log records of so many.
    pub fn wrote(&self, user: u64, log: u64) {
        add(&self.user, user);
        add(&self.log, log);
    }

    /// Bytes that users wrote.
    pub fn user_bytes(&self) -> u64 {
        self.user.load(Relaxed)
    }

    /// Bytes that merges read and wrote.
    pub fn merge_bytes(&self) -> u64 {
        self.merge_read.load(Relaxed) + self.merge_written.load(Relaxed)
    }

    /// A memtable became a segment of a level.
    pub fn flushed(&self, level: usize, bytes: u64) {
        add(&self.flushes, 1);
        add(&self.flushed, bytes);
        add(&self.levels[level].written, bytes);
    }

    /// A merge into a level took so long.
    pub fn merged(&self, level: usize, (read, written): (u64, u64), time: Duration, seek: bool) {
        add(&self.merges, 1);
        add(&self.seeks, seek.into());
        add(&self.merge_read, read);
        add(&self.merge_written, written);
        add(&self.merge_ns, ns(time));
        add(&self.levels[level].read, read);
        add(&self.levels[level].written, written);
    }

    /// A segment went to the next level as it was.
    pub fn moved(&self) {
        add(&self.moves, 1);
    }

    /// A look-up came to the segments.
    pub fn lookup(&self) {
        add(&self.lookups, 1);
    }

    /// It looked at a segment of a level.
    pub fn looked(&self, level: usize, how: Looked) {
        let of = &self.levels[level];
        let counter = match how {
            Looked::Filtered => &of.hits,
            Looked::Found => &of.found,
            Looked::Vain => &of.vain,
        };
        add(counter, 1);
    }

    /// A write waited for back-pressure.
    pub fn delayed(&self, time: Duration) {
        add(&self.delays, 1);
        add(&self.delay_ns, ns(time));
    }

    /// A write waited for memory.
    pub fn stalled(&self, time: Duration) {
        add(&self.stalls, 1);
        add(&self.stall_ns, ns(time));
    }

    /// What it comes to, with the segments that there are. Name, memtables and pressure are the caller's.
    pub fn stats(&self, shape: &Leveled, version: &Version) -> LsmStats {
        let get = |counter: &AtomicU64| counter.load(Relaxed);
        let last = version.last_level().map_or(0, |last| last + 1);
        let counted = self.levels.iter().rposition(|of| get(&of.written) + get(&of.hits) > 0).map_or(0, |n| n + 1);
        LsmStats {
            levels: (0..last.max(counted)).map(|n| self.level(n, shape, version.level(n), version)).collect(),
            user_bytes: get(&self.user),
            log_bytes: get(&self.log),
            flushes: get(&self.flushes),
            flushed_bytes: get(&self.flushed),
            merges: get(&self.merges),
            moves: get(&self.moves),
            seek_merges: get(&self.seeks),
            merged_bytes: (get(&self.merge_read), get(&self.merge_written)),
            merge_ns: get(&self.merge_ns),
            lookups: get(&self.lookups),
            delays: (get(&self.delays), get(&self.delay_ns)),
            stalls: (get(&self.stalls), get(&self.stall_ns)),
            debt_bytes: shape.debt(version),
            ..LsmStats::default()
        }
    }

    fn level(&self, n: usize, shape: &Leveled, segments: &[std::sync::Arc<Segment>], version: &Version) -> LsmLevel {
        let of = &self.levels[n];
        let get = |counter: &AtomicU64| counter.load(Relaxed);
        LsmLevel {
            segments: segments.len() as u64,
            bytes: pages(segments) * shape.page_bytes,
            limit_bytes: (1..usize::from(LAST_LEVEL)).contains(&n).then(|| shape.limit(n)),
            score: shape.score(version, n),
            read_bytes: get(&of.read),
            written_bytes: get(&of.written),
            filter_hits: get(&of.hits),
            found: get(&of.found),
            false_positives: get(&of.vain),
        }
    }
}
