//! A transaction's own writes where it reads, when some of them are spilled.

use super::OpenKeyspace;
use super::cursor::Cursor;
use super::key::{Bounds, KeyBuf, OwnedBounds, bound_ref, is_possible};
use super::transaction::Transaction;
use super::write_set::Write;
use crate::error::Result;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use varve_volume::Lsn;

/// The pending writes of a part of a range, that part, and what is left of the range.
pub(super) type Own = (BTreeMap<KeyBuf, Write>, OwnedBounds, Option<OwnedBounds>);

impl Transaction {
    /// The pending writes of the part of its range with which a scan goes on, that part, and what is left.
    pub(super) fn window(&self, keyspace: &Arc<OpenKeyspace>, cursor: &Cursor) -> Result<Own> {
        let (low, high) = (cursor.low.clone(), cursor.high.clone());
        let window =
            self.own_writes().window(keyspace.id(), (bound_ref(&low), bound_ref(&high)), cursor.is_forward())?;
        let (part, rest) = match (window.cut, cursor.is_forward()) {
            (None, _) => ((low, high), None),
            (Some(cut), true) => ((low, Bound::Excluded(cut.clone())), Some((Bound::Included(cut), high))),
            (Some(cut), false) => ((Bound::Included(cut.clone()), high), Some((low, Bound::Excluded(cut)))),
        };
        let rest = rest.filter(|(low, high)| is_possible(bound_ref(low), bound_ref(high)));
        Ok((window.writes, part, rest))
    }

    /// How many rows of a range there are more with the transaction's own writes.
    pub(super) fn count_spilled(&self, keyspace: &Arc<OpenKeyspace>, range: Bounds<'_>) -> Result<i64> {
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
