//! Rows of a range from both its ends, in turn.
//!
//! Each end has a cursor of its own, made when it is asked for. What is left of the range lies between what was taken,
//! or passed, at the two ends: a cursor reads no further than that, and a transaction's locks no further either.
//!
//! Invariants: a row is handed out once, and only if it is in what is left; nothing comes after the end, or after an
//! error.

use super::OpenKeyspace;
use super::cursor::Cursor;
use super::key::{Bounds, cmp_high, cmp_low, is_possible};
use super::range::KeyRange;
use super::scan::{Scan, Source};
use super::transaction::Transaction;
use crate::error::Result;
use std::ops::Bound;
use std::sync::Arc;

/// A row: its key and its value.
type Row = (Vec<u8>, Vec<u8>);

/// The rows of a range, from both ends.
pub(crate) struct Rows<'t> {
    source: Source<'t>,
    keyspace: Arc<OpenKeyspace>,
    /// What is left of the range.
    low: Bound<Vec<u8>>,
    high: Bound<Vec<u8>>,
    front: Option<Cursor>,
    back: Option<Cursor>,
    ended: bool,
}

fn lent(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

/// The range ends right before `key` there, where it ended further out.
fn exclude(end: &mut Bound<Vec<u8>>, key: &[u8]) {
    match end {
        Bound::Excluded(last) => {
            last.clear();
            last.extend_from_slice(key);
        }
        _ => *end = Bound::Excluded(key.to_vec()),
    }
}

impl<'t> Rows<'t> {
    pub(super) fn new(source: Source<'t>, keyspace: &Arc<OpenKeyspace>, range: &KeyRange<'_>) -> Rows<'t> {
        let (low, high) = range.bounds();
        let (low, high) = (low.map(<[u8]>::to_vec), high.map(<[u8]>::to_vec));
        Rows { source, keyspace: keyspace.clone(), low, high, front: None, back: None, ended: false }
    }

    /// The name of the keyspace.
    pub fn keyspace(&self) -> Arc<str> {
        self.keyspace.name()
    }

    /// What is left of the range.
    pub fn left(&self) -> Bounds<'_> {
        (lent(&self.low), lent(&self.high))
    }

    /// Takes the lowest row that is left, or the highest.
    pub fn take(&mut self, highest: bool) -> Result<Option<Row>> {
        if self.ended {
            return Ok(None);
        }
        let row = self.next(highest);
        self.ended = !matches!(row, Ok(Some(_)));
        row
    }

    fn next(&mut self, highest: bool) -> Result<Option<Row>> {
        let left = (lent(&self.low), lent(&self.high));
        let end = if highest { &mut self.back } else { &mut self.front };
        let cursor = end.get_or_insert_with(|| Cursor::new(left, highest, self.source.first()));
        while cursor.is_drained() {
            cursor.narrow(left);
            if cursor.is_done() {
                return Ok(None);
            }
            self.source.next_batch(&self.keyspace, cursor)?;
        }
        let Some((key, value)) = cursor.take() else { unreachable!("a row is left in the batch") };
        // The batch may have been read before the other end came here.
        let met = match (highest, left.0, left.1) {
            (false, _, Bound::Included(high)) => key > high,
            (false, _, Bound::Excluded(high)) => key >= high,
            (true, Bound::Included(low), _) => key < low,
            (true, Bound::Excluded(low), _) => key <= low,
            _ => false,
        };
        if met {
            return Ok(None);
        }
        let row = (key.to_vec(), value.to_vec());
        debug_assert!(super::key::contains(left, &row.0), "each row is handed out once");
        exclude(if highest { &mut self.high } else { &mut self.low }, &row.0);
        Ok(Some(row))
    }

    /// The low end moves up to `key`, unless it is there or beyond.
    pub fn seek(&mut self, key: &[u8]) {
        if cmp_low(lent(&self.low), Bound::Included(key)).is_lt() {
            self.low = Bound::Included(key.to_vec());
            self.moved(false, key);
        }
    }

    /// The high end moves down to `key`, unless it is there or beyond.
    pub fn seek_back(&mut self, key: &[u8]) {
        if cmp_high(lent(&self.high), Bound::Included(key)).is_gt() {
            self.high = Bound::Included(key.to_vec());
            self.moved(true, key);
        }
    }

    fn moved(&mut self, highest: bool, key: &[u8]) {
        if let Some(cursor) = if highest { &mut self.back } else { &mut self.front } {
            cursor.skip_to(key);
        }
        self.ended |= !is_possible(lent(&self.low), lent(&self.high));
    }
}

impl Transaction {
    /// The rows of a range, this transaction's writes included.
    pub fn scan(&mut self, keyspace: &Arc<OpenKeyspace>, range: &KeyRange<'_>, reverse: bool) -> Result<Scan<'_>> {
        Ok(Scan::new(self.source(keyspace)?, keyspace, range, reverse))
    }

    /// The rows of a range, this transaction's writes included, from both ends.
    pub fn rows(&mut self, keyspace: &Arc<OpenKeyspace>, range: &KeyRange<'_>) -> Result<Rows<'_>> {
        Ok(Rows::new(self.source(keyspace)?, keyspace, range))
    }

    /// What its scans read through: a read-only one's, its snapshot.
    fn source(&mut self, keyspace: &Arc<OpenKeyspace>) -> Result<Source<'_>> {
        self.check(keyspace)?;
        debug_assert!(self.snapshot().is_none() || self.own_writes().is_empty(), "a snapshot is only read");
        match self.snapshot() {
            Some(snapshot) => Ok(Source::Snapshot(snapshot.clone())),
            None => Ok(Source::Transaction(self)),
        }
    }
}
