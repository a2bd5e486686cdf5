//! A transaction's own writes where it reads, when some of them are spilled.

use super::OpenKeyspace;
use super::cursor::Cursor;
use super::key::{KeyBuf, OwnedBounds, bound_ref, is_possible};
use super::transaction::Transaction;
use super::write_set::Write;
use crate::error::Result;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

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
}
