//! The rows of an LSM keyspace as of a moment, in order, either way: memtables and segments merged, and of the entries
//! of a key the one that shows.
//!
//! Invariant: between two rows the walk stands at the entry of the last row or past it, in the way of the scan; the
//! key of that row does not come again.

use super::index::Pinned;
use super::memtable::MemtableEntries;
use super::merge::Merging;
use super::ranges::Fragments;
use super::segment::SegmentCursor;
use super::segments::LevelWalk;
use super::{Entries, Entry, EntryKind, Segments};
use crate::error::{Error, Result};
use crate::rows::Direction;
use std::cmp::Ordering;
use std::ops::Bound;
use std::sync::Arc;
use varve_volume::Lsn;

/// Entries of one key that are stepped over one by one; the rest is jumped over.
const STEPS: u32 = 4;

/// One of the places that have entries.
enum Source {
    Memtable(MemtableEntries),
    /// Of level 0.
    Segment(SegmentCursor),
    Level(LevelWalk),
}

macro_rules! of_each {
    ($source:expr, $walk:ident => $call:expr) => {
        match $source {
            Source::Memtable($walk) => $call,
            Source::Segment($walk) => $call,
            Source::Level($walk) => $call,
        }
    };
}

impl Entries for Source {
    #[inline]
    fn entry(&self) -> Option<Entry<'_>> {
        of_each!(self, walk => walk.entry())
    }

    fn seek(&mut self, key: &[u8], commit: Lsn) -> Result<()> {
        of_each!(self, walk => walk.seek(key, commit))
    }

    fn seek_before(&mut self, key: &[u8], commit: Lsn) -> Result<()> {
        of_each!(self, walk => walk.seek_before(key, commit))
    }

    fn first(&mut self) -> Result<()> {
        of_each!(self, walk => walk.first())
    }

    fn last(&mut self) -> Result<()> {
        of_each!(self, walk => walk.last())
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        of_each!(self, walk => walk.next())
    }

    fn prev(&mut self) -> Result<()> {
        of_each!(self, walk => walk.prev())
    }
}

/// Whether the entry that shows of its key is a row as of a moment: a value, and not deleted since with a range.
#[inline]
fn is_row(entry: &Entry<'_>, ranges: &Fragments, at: Lsn) -> bool {
    debug_assert!(entry.commit <= at, "what shows is not newer than the moment");
    entry.kind == EntryKind::Put && ranges.covering(entry.key, at) < entry.commit
}

pub(super) struct Cursor {
    walk: Merging<Source>,
    /// Deletions of ranges in all places.
    ranges: Fragments,
    at: Lsn,
    direction: Direction,
    /// The key that was decided last, if one was.
    key: Vec<u8>,
    decided: bool,
    /// Of a row found on the way back: the walk is past it when it is handed out.
    value: Vec<u8>,
    /// Keeps the pages of its segments from being used again while it stands there.
    _segments: Arc<Segments>,
}

impl Cursor {
    /// A cursor where the range begins, or where it ends, as of the moment of what is pinned.
    pub fn new(pinned: &Pinned, range: (Bound<&[u8]>, Bound<&[u8]>), direction: Direction) -> Result<Cursor> {
        let view = &pinned.view;
        assert!(pinned.newest <= pinned.at, "nothing shows that is newer than the moment");
        let tables = || std::iter::once(&view.active).chain(&view.frozen);
        let mut sources = Vec::new();
        for table in tables().filter(|table| !table.is_empty()) {
            sources.push(Source::Memtable(MemtableEntries::new(table.clone())));
        }
        for walk in view.segments.newest_walks() {
            sources.push(Source::Segment(walk?));
        }
        sources.extend(view.segments.level_walks().map(Source::Level));
        let (in_memory, stored) = (tables().map(|table| table.ranges()).collect::<Vec<_>>(), view.segments.ranges()?);
        let all = in_memory.iter().map(|ranges| &**ranges).chain(stored.iter().map(|reader| reader.ranges()));
        let all: Vec<&Fragments> = all.filter(|ranges| !ranges.is_empty()).collect();
        let ranges = if all.is_empty() { Fragments::default() } else { Fragments::union(all) };
        let (walk, segments, at) = (Merging::new(sources), view.segments.clone(), pinned.at);
        let (key, value) = (Vec::new(), Vec::new());
        let mut cursor = Cursor { walk, ranges, at, direction, key, decided: false, value, _segments: segments };
        cursor.seek(range)?;
        Ok(cursor)
    }

    /// The way it goes.
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// The key of the last row.
    pub fn key(&self) -> &[u8] {
        debug_assert!(self.decided, "it has handed out a row");
        &self.key
    }

    fn seek(&mut self, range: (Bound<&[u8]>, Bound<&[u8]>)) -> Result<()> {
        match (self.direction, range) {
            (Direction::Forward, (Bound::Unbounded, _)) => self.walk.first(),
            (Direction::Forward, (Bound::Included(key), _)) => self.walk.seek(key, Lsn::MAX),
            (Direction::Forward, (Bound::Excluded(key), _)) => self.walk.seek(key, 0),
            (Direction::Reverse, (_, Bound::Unbounded)) => self.walk.last(),
            (Direction::Reverse, (_, Bound::Included(key))) => self.walk.seek_before(key, 0),
            (Direction::Reverse, (_, Bound::Excluded(key))) => self.walk.seek_before(key, Lsn::MAX),
        }
    }

    /// The next row; `None` at the end.
    #[inline]
    pub fn row(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        match self.direction {
            Direction::Forward => self.next_row(),
            Direction::Reverse => self.row_before(),
        }
    }

    fn next_row(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        let mut steps = 0;
        loop {
            let Some(entry) = self.walk.entry() else { return Ok(None) };
            let order = if self.decided { entry.key.cmp(&self.key) } else { Ordering::Greater };
            if order.is_lt() {
                return Err(self.out_of_order());
            }
            if order.is_eq() {
                steps += 1;
                let key = &self.key;
                if steps <= STEPS {
                    self.walk.next()?
                } else {
                    self.walk.move_top(|walk| walk.seek(key, 0))?
                }
                continue;
            }
            if entry.commit > self.at {
                steps += 1;
                if steps <= STEPS {
                    self.walk.next()?;
                } else {
                    let (key, at) = (entry.key.to_vec(), self.at);
                    self.walk.move_top(|walk| walk.seek(&key, at))?;
                    steps = 0;
                }
                continue;
            }
            steps = 0;
            self.decided = true;
            self.key.clear();
            self.key.extend_from_slice(entry.key);
            if is_row(&entry, &self.ranges, self.at) {
                // Asked for again, since what was borrowed above cannot be handed out from a loop.
                return Ok(self.walk.entry().map(|entry| (entry.key, entry.value)));
            }
        }
    }

    fn row_before(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        loop {
            let Some(entry) = self.walk.entry() else { return Ok(None) };
            if self.decided && *entry.key >= *self.key {
                return Err(self.out_of_order());
            }
            self.decided = true;
            self.key.clear();
            self.key.extend_from_slice(entry.key);
            if self.pass_back()? {
                return Ok(Some((&self.key, &self.value)));
            }
        }
    }

    /// Passes the entries of the key at which the walk stands, descending, and keeps the value that shows. Whether the
    /// key has one.
    ///
    /// They come the oldest first, so the last one that is not newer than the moment shows. A source that has many is
    /// asked for that one, and left.
    fn pass_back(&mut self) -> Result<bool> {
        let (mut shown, mut there, mut steps) = (0, false, 0);
        let Cursor { walk, ranges, at, key, value, .. } = self;
        let mut see = |entry: Entry<'_>| {
            if entry.commit > shown {
                shown = entry.commit;
                there = is_row(&entry, ranges, *at);
                value.clear();
                value.extend_from_slice(entry.value);
            }
        };
        while let Some(entry) = walk.entry().filter(|entry| *entry.key == **key) {
            if entry.commit > *at {
                walk.move_top(|source| source.seek_before(key, Lsn::MAX))?;
            } else if steps < STEPS {
                see(entry);
                steps += 1;
                walk.prev()?;
            } else {
                walk.move_top(|source| {
                    source.seek(key, *at)?;
                    source.entry().filter(|entry| *entry.key == **key).into_iter().for_each(&mut see);
                    source.seek_before(key, Lsn::MAX)
                })?;
            }
        }
        assert!(shown <= self.at, "what shows is not newer than the moment");
        Ok(there)
    }

    /// A damaged block: what it says comes again, or too late.
    fn out_of_order(&self) -> Error {
        let walk = match self.walk.top() {
            Some(Source::Segment(walk)) => Some(walk),
            Some(Source::Level(level)) => level.walk(),
            Some(Source::Memtable(_)) | None => None,
        };
        walk.expect("entries in memory are in order").out_of_order()
    }
}
