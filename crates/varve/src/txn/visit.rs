//! Scans that lend the rows where they lie, in the pool, instead of copying them.

use super::cursor::Cursor;
use super::key::{Bounds, KeyBuf, bound_owned, bound_ref, cmp_low, is_possible};
use super::range::KeyRange;
use super::snapshot::Snapshot;
use super::transaction::Transaction;
use super::{Manager, OpenKeyspace};
use crate::error::Result;
use crate::index::ScanState;
use crate::rows::{Direction, ValueRef};
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use varve_volume::Lsn;

/// Why the rest of what lies together was not lent.
enum Stop {
    /// The caller has what he wants.
    Asked,
    /// Some rows of the keyspace are not as old as the snapshot.
    Changed,
    /// The row of this key has a long value, which lies elsewhere.
    Long(KeyBuf),
}

impl Manager {
    /// Lends the rows of a range to `each`, ascending, until it breaks, as of the moment of the call.
    pub fn scan_with(
        self: &Arc<Self>,
        keyspace: &OpenKeyspace,
        range: &KeyRange<'_>,
        each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        Snapshot::open(self)?.scan_with(keyspace, range, each)
    }
}

impl Transaction {
    /// Lends the rows of a range to `each`, ascending, until it breaks.
    pub fn scan_with(
        &mut self,
        keyspace: &Arc<OpenKeyspace>,
        range: &KeyRange<'_>,
        mut each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        if let Some(snapshot) = self.snapshot() {
            return snapshot.scan_with(keyspace, range, each);
        }
        let manager = self.manager.clone();
        let mut rows = self.scan(keyspace, range, false)?;
        while let Some((key, value)) = rows.next_row()? {
            if manager.lend(|| each(key, value)).is_break() {
                break;
            }
        }
        Ok(())
    }
}

impl Snapshot {
    /// Lends the rows of a range to `each`, ascending, until it breaks.
    pub fn scan_with(
        &self,
        keyspace: &OpenKeyspace,
        range: &KeyRange<'_>,
        mut each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        let (low, high) = range.bounds();
        let mut state = ScanState::default();
        let mut left = is_possible(low, high).then(|| bound_owned(low));
        self.check(keyspace)?;
        while let Some(low) = left {
            left = self.visit_some(keyspace, (bound_ref(&low), high), &mut state, &mut each)?;
            debug_assert!(
                left.as_ref().is_none_or(|next| cmp_low(bound_ref(&low), bound_ref(next)).is_lt()),
                "a scan goes on behind where it was"
            );
        }
        Ok(())
    }

    /// Lends the rows with which the range begins, as many as lie together, and says where to go on; `None` at the end.
    fn visit_some(
        &self,
        keyspace: &OpenKeyspace,
        (low, high): Bounds<'_>,
        state: &mut ScanState,
        each: &mut impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<Option<Bound<KeyBuf>>> {
        let changed = |lsn| self.has_old_values(keyspace, lsn);
        let (mut first, mut stop) = (true, None);
        let way = (Direction::Forward, self.as_of());
        let lent = |lsn: Lsn, key: &[u8], value: ValueRef<'_>| {
            // A commit leaves its old values before it lets go of the rows, which are latched here: asking once is
            // enough.
            stop = match value {
                _ if std::mem::take(&mut first) && changed(lsn) => Some(Stop::Changed),
                ValueRef::Inline(value) => each(key, value).is_break().then_some(Stop::Asked),
                ValueRef::Overflow(_) => Some(Stop::Long(KeyBuf::new(key))),
            };
            if stop.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        // Once for all that lie together: what reads them does not call the database either.
        let end = self.manager.lend(|| keyspace.index().read_batch((low, high), way, state, lent))?;
        self.admit(end.seen.lsn)?;
        match stop {
            Some(Stop::Asked) => Ok(None),
            Some(Stop::Long(key)) => self.visit_copies(keyspace, (Bound::Included(&key), high), each),
            Some(Stop::Changed) => self.visit_copies(keyspace, (low, high), each),
            // Rows that were removed since are among the old values only.
            None if first && changed(end.seen.lsn) => self.visit_copies(keyspace, (low, high), each),
            None => Ok(end.next.map(|next| Bound::Included(KeyBuf::new(&next)))),
        }
    }

    /// The same for some rows by way of copies, which knows old and long values.
    fn visit_copies(
        &self,
        keyspace: &OpenKeyspace,
        range: Bounds<'_>,
        each: &mut impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<Option<Bound<KeyBuf>>> {
        let mut cursor = Cursor::new(range, false, super::scan::FIRST_UNLOCKED);
        self.next_batch(keyspace, &mut cursor)?;
        let stopped = self.manager.lend(|| {
            while let Some((key, value)) = cursor.take() {
                if each(key, value).is_break() {
                    return true;
                }
            }
            false
        });
        Ok((!stopped && !cursor.is_done()).then_some(cursor.low))
    }
}
