//! Iterators over rows.

use super::OpenKeyspace;
use super::cursor::Cursor;
use super::range::KeyRange;
use super::snapshot::Snapshot;
use super::transaction::Transaction;
use crate::error::Result;
use std::sync::Arc;

/// The rows of a range, in order. An error ends it.
pub(crate) struct Scan<'t> {
    source: Source<'t>,
    keyspace: Arc<OpenKeyspace>,
    cursor: Cursor,
}

/// What rows are read through.
pub(super) enum Source<'t> {
    Transaction(&'t mut Transaction),
    Snapshot(Arc<Snapshot>),
}

impl Source<'_> {
    /// Most rows of a scan's first batch.
    pub fn first(&self) -> usize {
        match self {
            Source::Transaction(_) => FIRST_LOCKED,
            Source::Snapshot(_) => FIRST_UNLOCKED,
        }
    }

    /// Reads the next batch of a scan; a transaction locks it, and merges its own writes into it. An error ends the
    /// scan.
    pub fn next_batch(&mut self, keyspace: &Arc<OpenKeyspace>, cursor: &mut Cursor) -> Result<()> {
        assert!(cursor.is_drained() && !cursor.is_done(), "a batch is read when the one before it was taken");
        let result = match self {
            Source::Transaction(transaction) => transaction.next_batch(keyspace, cursor),
            Source::Snapshot(snapshot) => snapshot.next_batch(keyspace, cursor),
        };
        result.inspect_err(|_| cursor.stop())
    }
}

/// Rows of the first batch of a transaction's scan. Small, because a batch is also what is locked at a time.
const FIRST_LOCKED: usize = 1;
/// Rows of the first batch of a snapshot's scan.
pub(super) const FIRST_UNLOCKED: usize = 64;

impl<'t> Scan<'t> {
    pub(super) fn new(
        source: Source<'t>,
        keyspace: &Arc<OpenKeyspace>,
        range: &KeyRange<'_>,
        reverse: bool,
    ) -> Scan<'t> {
        let cursor = Cursor::new(range.bounds(), reverse, source.first());
        Scan { source, keyspace: keyspace.clone(), cursor }
    }

    /// Lends the next row; `None` at the end of the range.
    pub fn next_row(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        while self.cursor.is_drained() {
            if self.cursor.is_done() {
                return Ok(None);
            }
            self.source.next_batch(&self.keyspace, &mut self.cursor)?;
        }
        Ok(self.cursor.take())
    }

    /// Passes the rows that come before a key.
    pub fn seek(&mut self, key: &[u8]) {
        self.cursor.skip_to(key);
    }
}
