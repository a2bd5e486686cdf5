//! Log-structured merge trees: keyspaces for data that is mostly written.
//!
//! A write goes to the log and to a sorted table in memory (the *memtable*), never to a page. A full memtable is frozen
//! and *flushed*: written as a *segment*, an immutable sorted run of pages that the log knows by their numbers only.
//! *Merges* join segments of one level into the next. Readers look at memtables, then at segments from young to old.
//!
//! What the parts agree on:
//!
//! - **Internal order**: user key ascending, then commit number descending. So the first entry of a key that is not
//!   newer than a moment is what the key was at that moment. [`Entry`] is one; [`Entries`] walks over them, either way.
//! - **Pages**: a segment's writer is fed entries in internal order and hands whole pages of [`PageSink::usable`] bytes
//!   to a [`PageSink`], which knows nothing of their content. A segment's reader asks a [`PageSource`] for the `n`-th
//!   page of the segment, and sees the same bytes. Above it there are two sources: through the buffer pool for reads,
//!   past it for merges. Page header, checksum and page type are the sink's and the source's business.
//! - **Version**: an immutable, reference-counted list of levels of segments ([`Version`], [`Segment`]). Level 0 has
//!   segments that may overlap, the newest first; the segments of every other level are disjoint and ascend. Who reads
//!   keeps the version he began with; pages of a segment that was dropped are free when the last such version is gone.
//! - **Who drops what**: a merge keeps of each key the newest entry, and for each moment of `snapshots` (ascending) the
//!   newest that is not past it. Deletions go where nothing below can hold the key.
//!
//! Pure and format parts know no pool, log, lock or clock: `block`, `filter`, `segment`, `merge`, `version`, `picker`,
//! `executor`, `debt`. Parts that tie them to the engine: `memtable`, `write`, `read`, `flush`, `install`, `recovery`,
//! `services`, `offload`. Merges by a worker beside the data: `near`.

pub(crate) mod block;
pub(crate) mod debt;
pub(crate) mod executor;
pub(crate) mod filter;
pub(crate) mod merge;
pub(crate) mod part;
pub(crate) mod picker;
pub(crate) mod ranges;
#[cfg(test)]
#[path = "tests_samples.rs"]
mod samples;
pub(crate) mod segment;
mod varint;
pub(crate) mod version;

mod bulk;
mod cursor;
mod flush;
mod index;
mod install;
pub(crate) mod list;
mod manual;
mod memtable;
mod merges;
pub(crate) mod near;
mod offload;
mod options;
mod pages;
mod pressure;
mod read;
mod record;
pub(crate) mod salvage;
mod segments;
mod services;
mod stats;
mod turns;
mod upkeep;
mod write;

pub(crate) use bulk::BulkLoad;
pub(crate) use index::Lsm;
pub use options::{Compression, LSM_OPTIONS, LsmOptions, MergeBy, Pick, Pressure};
pub(crate) use pages::KIND_SEGMENT;
pub(crate) use read::ScanState;
pub(crate) use segments::Segments;
pub(crate) use services::{FoundGroups, Moments, Services};
pub use stats::{LsmLevel, LsmStats};
pub(crate) use upkeep::Listed;
pub(crate) use write::MemtableWrites;

use crate::error::Result;
use std::cmp::Ordering;
use std::sync::Arc;
use varve_volume::{Lsn, PageId};

/// The last level that segments can be on.
pub(crate) const LAST_LEVEL: u8 = 6;

/// What an entry does to its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum EntryKind {
    /// The key has the entry's value.
    Put = 1,
    /// The key is not there.
    Delete = 2,
    /// The key has a long value, which lies in pages of its own; the entry's value is a reference
    /// ([`OverflowRef`](crate::rows::OverflowRef)).
    Stored = 3,
    /// No key from the entry's key up to (not including) the one in place of its value is there.
    DeleteRange = 4,
}

impl EntryKind {
    /// The kind that is stored as this byte.
    pub fn from_code(code: u8) -> Option<EntryKind> {
        match code {
            1 => Some(EntryKind::Put),
            2 => Some(EntryKind::Delete),
            3 => Some(EntryKind::Stored),
            4 => Some(EntryKind::DeleteRange),
            _ => None,
        }
    }
}

/// What a commit made of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    pub key: &'a [u8],
    /// End of the commit's group in the log.
    pub commit: Lsn,
    pub kind: EntryKind,
    /// Empty for a deletion.
    pub value: &'a [u8],
}

/// The internal order, of entries as (key, commit).
pub(crate) fn order(a: (&[u8], Lsn), b: (&[u8], Lsn)) -> Ordering {
    a.0.cmp(b.0).then(b.1.cmp(&a.1))
}

/// A walk over entries in internal order, either way.
pub(crate) trait Entries {
    /// The entry where it stands; `None` before the first call of a method below, and past either end.
    fn entry(&self) -> Option<Entry<'_>>;

    /// Goes to the first entry at or after (`key`, `commit`): of that key, the newest that is not newer than `commit`.
    /// `Lsn::MAX` is before all entries of the key, 0 after all of them.
    fn seek(&mut self, key: &[u8], commit: Lsn) -> Result<()>;

    /// Goes to the last entry before (`key`, `commit`).
    fn seek_before(&mut self, key: &[u8], commit: Lsn) -> Result<()>;

    /// Goes to the first entry of all.
    fn first(&mut self) -> Result<()>;

    /// Goes to the last entry of all.
    fn last(&mut self) -> Result<()>;

    /// Goes to the next entry. It stands at one.
    fn next(&mut self) -> Result<()>;

    /// Goes to the entry before. It stands at one.
    fn prev(&mut self) -> Result<()>;
}

/// Takes the pages of a segment that is being written, one after the other.
pub(crate) trait PageSink {
    /// Bytes of a page.
    fn usable(&self) -> usize;

    /// Takes the next page: `fill` is given exactly [`PageSink::usable`] zero bytes.
    fn page(&mut self, fill: &mut dyn FnMut(&mut [u8])) -> Result<()>;
}

/// The pages of one segment, for its reader.
pub(crate) trait PageSource: Send + Sync {
    /// Bytes of a page.
    fn usable(&self) -> usize;

    /// Shows the bytes of the `n`-th page, as the sink got them. `see` must not wait. Errors name the page.
    fn page(&self, n: u64, see: &mut dyn FnMut(&[u8])) -> Result<()>;

    /// Pages from `n` on will be wanted soon.
    fn prefetch(&self, n: u64, pages: u64);

    /// The content of page `n` is not what a segment's page must be: an error that names keyspace, segment and page.
    fn corrupt(&self, n: u64, what: &str) -> crate::error::Error;
}

/// What a segment's writer says of it at the end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SegmentMeta {
    /// Pages that went to the sink.
    pub pages: u64,
    /// First key that it says something of.
    pub smallest: Box<[u8]>,
    /// Last key, or, with `open_end`, the key after all that it says something of: the end of a range deletion.
    pub largest: Box<[u8]>,
    pub open_end: bool,
    /// Entries, deletions included.
    pub entries: u64,
    pub deletions: u64,
    /// Deletions of ranges, which are not entries.
    pub ranges: u64,
    /// Bytes of keys and values before compression.
    pub bytes: u64,
    /// Smallest and largest commit number.
    pub commits: (Lsn, Lsn),
}

/// A segment of a version.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Its number in the keyspace; rises with the time of its making.
    pub id: u64,
    pub meta: SegmentMeta,
    /// First page and number of pages of each run, in the order of the content.
    pub runs: Vec<(PageId, u64)>,
}

/// The segments of a keyspace at a moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Version {
    /// Level 0: newest first, may overlap. Every other level: ascending and disjoint.
    pub levels: Vec<Vec<Arc<Segment>>>,
}
