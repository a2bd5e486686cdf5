//! The rows of an LSM keyspace as of a moment, in order, either way: memtables and segments merged.
//!
//! There are few places to merge, so the next entry is found by looking at each of them.
//!
//! Invariant: between two rows every place stands at its first entry past the last row, in the way of the scan.

use super::index::Pinned;
use super::memtable::MemtableEntries;
use super::ranges::Fragments;
use super::segments::Segments;
use super::{Entries, Entry, EntryKind};
use crate::error::Result;
use crate::rows::Direction;
use std::cmp::Reverse;
use std::ops::Bound;
use std::sync::Arc;
use varve_volume::Lsn;

pub(super) struct Cursor {
    places: Vec<Box<dyn Entries + Send>>,
    /// Deletions of ranges in all places.
    ranges: Fragments,
    at: Lsn,
    /// Keeps the pages of its segments from being used again while it stands there.
    _segments: Arc<Segments>,
}

impl Cursor {
    pub fn new(pinned: &Pinned) -> Result<Cursor> {
        let view = &pinned.view;
        assert!(pinned.newest <= pinned.at, "nothing shows that is newer than the moment");
        let tables = [Some(&view.active), view.frozen.as_ref()].into_iter().flatten().filter(|table| !table.is_empty());
        let mut places: Vec<Box<dyn Entries + Send>> = Vec::new();
        tables.for_each(|table| places.push(Box::new(MemtableEntries::new(table.clone()))));
        view.segments.places(&mut places)?;
        let in_memory = [Some(&view.active), view.frozen.as_ref()].into_iter().flatten().map(|table| table.ranges());
        let (in_memory, stored) = (in_memory.collect::<Vec<_>>(), view.segments.ranges()?);
        let all = in_memory.iter().map(|ranges| &**ranges).chain(stored.iter().map(|reader| reader.ranges()));
        let all: Vec<&Fragments> = all.filter(|ranges| !ranges.is_empty()).collect();
        let ranges = if all.is_empty() { Fragments::default() } else { Fragments::union(all) };
        Ok(Cursor { places, ranges, at: pinned.at, _segments: view.segments.clone() })
    }

    /// Whether an entry is a row as of the moment: a value, and not deleted since.
    fn is_row(&self, entry: &Entry<'_>) -> bool {
        entry.kind == EntryKind::Put && self.ranges.covering(entry.key, self.at) < entry.commit
    }

    /// Goes to where the range begins; in reverse, where it ends.
    pub fn seek(&mut self, range: (Bound<&[u8]>, Bound<&[u8]>), direction: Direction) -> Result<()> {
        self.places.iter_mut().try_for_each(|place| match (direction, range) {
            (Direction::Forward, (Bound::Unbounded, _)) => place.first(),
            (Direction::Forward, (Bound::Included(key), _)) => place.seek(key, Lsn::MAX),
            (Direction::Forward, (Bound::Excluded(key), _)) => place.seek(key, 0),
            (Direction::Reverse, (_, Bound::Unbounded)) => place.last(),
            (Direction::Reverse, (_, Bound::Included(key))) => place.seek_before(key, 0),
            (Direction::Reverse, (_, Bound::Excluded(key))) => place.seek_before(key, Lsn::MAX),
        })
    }

    /// The place whose entry comes next, with that entry.
    fn least(&self) -> Option<(usize, Entry<'_>)> {
        let entries = self.places.iter().enumerate().filter_map(|(i, place)| place.entry().map(|entry| (i, entry)));
        entries.min_by_key(|(_, entry)| (entry.key, Reverse(entry.commit)))
    }

    /// Hands the next row to `f`, and notes its key in `after`. What `f` says; `None` when there is no row any more, or
    /// `f` says that it is beyond the range.
    pub fn row<R>(
        &mut self,
        direction: Direction,
        after: &mut Vec<u8>,
        f: impl FnOnce(&[u8], &[u8]) -> Option<R>,
    ) -> Result<Option<R>> {
        match direction {
            Direction::Forward => self.next_row(after, f),
            Direction::Reverse => self.row_before(after, f),
        }
    }

    fn next_row<R>(&mut self, after: &mut Vec<u8>, f: impl FnOnce(&[u8], &[u8]) -> Option<R>) -> Result<Option<R>> {
        let result = loop {
            let Some((i, entry)) = self.least() else { return Ok(None) };
            if entry.commit > self.at {
                self.places[i].next()?;
                continue;
            }
            after.clear();
            after.extend_from_slice(entry.key);
            if self.is_row(&entry) {
                break f(entry.key, entry.value);
            }
            self.pass(after)?;
        };
        debug_assert!(self.least().is_none_or(|(_, entry)| entry.key >= &after[..]), "no key comes twice");
        self.pass(after).map(|()| result)
    }

    /// Passes what is left of a key, ascending.
    fn pass(&mut self, key: &[u8]) -> Result<()> {
        for place in &mut self.places {
            // Mostly one entry; of a key that changed often the rest is jumped over.
            for left in (0..4).rev() {
                if place.entry().is_none_or(|entry| entry.key != key) {
                    break;
                }
                if left > 0 { place.next()? } else { place.seek(key, 0)? }
            }
        }
        Ok(())
    }

    fn row_before<R>(&mut self, after: &mut Vec<u8>, f: impl FnOnce(&[u8], &[u8]) -> Option<R>) -> Result<Option<R>> {
        let result = loop {
            let keys = self.places.iter().filter_map(|place| place.entry().map(|entry| entry.key));
            let Some(key) = keys.max() else { return Ok(None) };
            after.clear();
            after.extend_from_slice(key);
            if let Some(i) = self.visible(after)? {
                let entry = self.places[i].entry().expect("found there");
                if self.is_row(&entry) {
                    break f(entry.key, entry.value);
                }
            }
            self.pass_back(after)?;
        };
        debug_assert!(
            self.places.iter().all(|p| p.entry().is_none_or(|e| e.key <= &after[..])),
            "no key is passed over"
        );
        self.pass_back(after).map(|()| result)
    }

    /// Goes to the entry of `key` that shows at the moment: the place that stands at it. Only places that have the key
    /// move.
    fn visible(&mut self, key: &[u8]) -> Result<Option<usize>> {
        let mut found: Option<(Lsn, usize)> = None;
        for (i, place) in self.places.iter_mut().enumerate() {
            if place.entry().is_none_or(|entry| entry.key != key) {
                continue;
            }
            place.seek(key, self.at)?;
            if let Some(entry) = place.entry().filter(|entry| entry.key == key) {
                found = found.max(Some((entry.commit, i)));
            } else {
                place.seek_before(key, Lsn::MAX)?;
            }
        }
        Ok(found.map(|(_, i)| i))
    }

    /// Passes what is left of a key, descending.
    fn pass_back(&mut self, key: &[u8]) -> Result<()> {
        for place in &mut self.places {
            if place.entry().is_some_and(|entry| entry.key == key) {
                place.seek_before(key, Lsn::MAX)?;
            }
        }
        Ok(())
    }
}
