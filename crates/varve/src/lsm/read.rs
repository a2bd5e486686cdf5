//! Reading an LSM keyspace: one key, or the rows of a range either way, as of a commit number.
//!
//! Newer entries of a key are in younger places, so the first place that has an entry of it, from young to old,
//! decides.

use super::cursor::Cursor;
use super::index::{Lsm, Pinned, Shared};
use super::segments::OpenSegment;
use super::stats::Looked;
use super::{Entry, EntryKind};
use crate::error::Result;
use crate::rows::{BatchEnd, Copied, Direction, Seen, ValueRef};
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use varve_rt::{Cost, charge};
use varve_volume::{Lsn, PageId};

/// Rows of a batch, and bytes of their keys and values, after which it ends.
const BATCH_ROWS: usize = 512;
const BATCH_BYTES: usize = 128 << 10;

/// What a scan remembers from batch to batch: where it stands, if it is as of a moment that stays.
#[derive(Default)]
pub(crate) struct ScanState {
    kept: Option<Box<Kept>>,
}

impl ScanState {
    /// Whether the next batch goes on where the last one ended, and looks for nothing.
    pub(crate) fn is_kept(&self) -> bool {
        self.kept.is_some()
    }
}

struct Kept {
    cursor: Cursor,
    at: Lsn,
    newest: Lsn,
}

impl std::fmt::Debug for ScanState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScanState").field("kept", &self.kept.is_some()).finish()
    }
}

impl Shared {
    /// Hands the newest entry of `key` that is not newer than the moment to `f`.
    fn lookup<R>(&self, pinned: &Pinned, key: &[u8], f: impl FnOnce(Option<Entry<'_>>) -> R) -> Result<R> {
        let view = &pinned.view;
        charge(Cost::NodeSearch, 1);
        for table in std::iter::once(&view.active).chain(&view.frozen) {
            let (entry, deleted) = (table.get(key, pinned.at), table.deleted(key, pinned.at));
            if let Some(entry) = entry.filter(|entry| entry.commit > deleted) {
                return Ok(f(Some(entry)));
            }
            if deleted > 0 {
                return Ok(f(Some(Entry { key, commit: deleted, kind: EntryKind::Delete, value: &[] })));
            }
        }
        self.counters.lookup();
        // As in LevelDB: the first segment that is looked at in vain is charged, if another is looked at after it.
        let (mut vain, mut charged) = (None, None);
        let mut look = |level: usize, open: &Arc<OpenSegment>, how: Looked| {
            self.counters.looked(level, how);
            match how {
                Looked::Filtered => {}
                _ if vain.is_some() => charged = charged.take().or(vain.clone()),
                Looked::Vain => vain = Some(open.segment.clone()),
                Looked::Found => {}
            }
        };
        let found = view.segments.get(key, pinned.at, &mut look, f)?;
        if let Some(segment) = charged
            && self.picker.lock().fruitless(&self.shape(), &segment)
        {
            self.services.wake();
        }
        Ok(found)
    }
}

impl Lsm {
    /// Hands the value of `key` as of `at` (`Lsn::MAX`: now) to `f`; also the commit number that says so, 0 when the
    /// log has no word of the key.
    pub(crate) fn read<R>(&self, key: &[u8], at: Lsn, f: impl FnOnce(Option<&[u8]>) -> R) -> Result<(R, Lsn)> {
        let pinned = self.0.pin(at);
        self.0.lookup(&pinned, key, |entry| match entry {
            Some(entry) => (f((entry.kind == EntryKind::Put).then_some(entry.value)), entry.commit),
            None => (f(None), 0),
        })
    }

    /// Whether a key is there as of `at`.
    pub(crate) fn contains(&self, key: &[u8], at: Lsn) -> Result<(bool, Lsn)> {
        self.read(key, at, |value| value.is_some())
    }

    /// The value of a key as of `at`.
    pub(crate) fn find(&self, key: &[u8], at: Lsn) -> Result<(Option<Copied>, Lsn)> {
        self.read(key, at, |value| value.map(|value| Copied::Bytes(value.into())))
    }

    /// Hands some rows between two bounds, as of `at`, to `f`: those with which the range begins, ascending, or those
    /// with which it ends, descending. A key is valid during its call only. Before each goes the number of the newest
    /// commit that shows.
    pub(crate) fn read_batch(
        &self,
        range: (Bound<&[u8]>, Bound<&[u8]>),
        (direction, at): (Direction, Lsn),
        state: &mut ScanState,
        mut f: impl FnMut(Lsn, &[u8], ValueRef<'_>) -> ControlFlow<()>,
    ) -> Result<BatchEnd> {
        let mut kept = match state.kept.take() {
            Some(kept) if kept.goes_on(range, direction, at) => kept,
            _ => {
                let pinned = self.0.pin(at);
                Box::new(Kept { cursor: Cursor::new(&pinned, range, direction)?, at, newest: pinned.newest })
            }
        };
        assert!(kept.newest <= kept.at || at == Lsn::MAX, "nothing newer than the moment shows");
        let seen = Seen { page: PageId(0), lsn: kept.newest };
        let (mut rows, mut bytes, mut broke) = (0, 0, false);
        while rows < BATCH_ROWS && bytes < BATCH_BYTES && !broke {
            let Some((key, value)) = kept.cursor.row()? else { return Ok(BatchEnd { seen, next: None }) };
            let within = match direction {
                Direction::Forward => is_below(key, range.1),
                Direction::Reverse => is_above(key, range.0),
            };
            if !within {
                return Ok(BatchEnd { seen, next: None });
            }
            charge(Cost::LeafRow, 1);
            rows += 1;
            bytes += key.len() + value.len();
            broke = f(seen.lsn, key, ValueRef::Inline(value)).is_break();
        }
        let next = || match direction {
            Direction::Forward => [kept.cursor.key(), &[0]].concat(),
            Direction::Reverse => kept.cursor.key().to_vec(),
        };
        let next = (!broke).then(next);
        if at != Lsn::MAX {
            state.kept = Some(kept);
        }
        Ok(BatchEnd { seen, next })
    }

    /// Whether nothing was written to the keyspace since a batch was read.
    pub(crate) fn is_unchanged(&self, seen: Seen) -> bool {
        self.0.newest() == seen.lsn
    }
}

impl Kept {
    /// Whether the range begins (ends) right after the row handed out last.
    fn goes_on(&self, range: (Bound<&[u8]>, Bound<&[u8]>), direction: Direction, at: Lsn) -> bool {
        let after = self.cursor.key();
        let next = |key: &[u8]| key.len() == after.len() + 1 && key.starts_with(after) && key[after.len()] == 0;
        let follows = match (direction, range) {
            (Direction::Forward, (Bound::Excluded(key), _)) => key == after,
            (Direction::Forward, (Bound::Included(key), _)) => next(key),
            (Direction::Reverse, (_, Bound::Excluded(key))) => key == after,
            _ => false,
        };
        follows && self.cursor.direction() == direction && self.at == at
    }
}

fn is_below(key: &[u8], to: Bound<&[u8]>) -> bool {
    match to {
        Bound::Unbounded => true,
        Bound::Included(to) => key <= to,
        Bound::Excluded(to) => key < to,
    }
}

fn is_above(key: &[u8], from: Bound<&[u8]>) -> bool {
    match from {
        Bound::Unbounded => true,
        Bound::Included(from) => key >= from,
        Bound::Excluded(from) => key > from,
    }
}
