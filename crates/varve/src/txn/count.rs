//! How many rows a range has, for a transaction: those of the index, and its own writes.

use super::OpenKeyspace;
use super::key::{Bounds, is_possible};
use super::lock::Mode;
use super::range::KeyRange;
use super::transaction::Transaction;
use crate::error::Result;
use crate::index::ScanState;
use crate::rows::Direction;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use varve_device::Mistake;
use varve_volume::Lsn;

impl Transaction {
    /// The number of keys in a range, this transaction's writes included. Locks the whole range; reads it without its
    /// values.
    pub fn count(&mut self, keyspace: &Arc<OpenKeyspace>, range: &KeyRange<'_>) -> Result<u64> {
        self.check(keyspace)?;
        if let Some(snapshot) = self.snapshot() {
            return snapshot.count(keyspace, range);
        }
        let bounds = range.bounds();
        if !is_possible(bounds.0, bounds.1) {
            return Ok(0);
        }
        self.lock_range(keyspace, bounds, Mode::Shared)?;
        let mut rows = self.count_rows(keyspace, bounds)?;
        if self.manager.core.faults().has(Mistake::CountIgnoresOwn) {
            return Ok(rows as u64);
        }
        if self.own_writes().is_spilled() {
            rows += self.count_spilled(keyspace, bounds)?;
        } else {
            for (key, write) in self.own_writes().range(keyspace.id(), bounds) {
                let (there, _) = keyspace.index().contains(key, Lsn::MAX)?;
                rows += i64::from(write.is_some()) - i64::from(there);
            }
        }
        Ok(rows as u64)
    }

    /// Rows of a range in the index; the range is locked.
    fn count_rows(&mut self, keyspace: &Arc<OpenKeyspace>, range: Bounds<'_>) -> Result<i64> {
        let (mut rows, mut state) = (0, ScanState::default());
        let mut next: Option<Vec<u8>> = None;
        loop {
            let from = next.as_deref().map_or(range.0, Bound::Included);
            let way = (Direction::Forward, Lsn::MAX);
            let end = keyspace.index().read_batch((from, range.1), way, &mut state, |_, _, _| {
                rows += 1;
                ControlFlow::Continue(())
            })?;
            self.saw(end.seen.lsn)?;
            next = end.next;
            if next.is_none() {
                return Ok(rows);
            }
        }
    }

    /// How many rows of a range there are more with the transaction's own writes.
    fn count_spilled(&self, keyspace: &Arc<OpenKeyspace>, range: Bounds<'_>) -> Result<i64> {
        let (mut more, mut next) = (0, None);
        loop {
            let from = next.as_deref().map_or(range.0, Bound::Included);
            let window = self.own_writes().window(keyspace.id(), (from, range.1), true)?;
            for (key, write) in &window.writes {
                let (there, _) = keyspace.index().contains(key, Lsn::MAX)?;
                more += i64::from(write.is_some()) - i64::from(there);
            }
            debug_assert!(next.is_none() || window.cut.is_none() || next < window.cut, "windows follow each other");
            next = window.cut;
            if next.is_none() {
                return Ok(more);
            }
        }
    }
}
