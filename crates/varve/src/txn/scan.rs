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

enum Source<'t> {
    Transaction(&'t mut Transaction),
    Snapshot(Arc<Snapshot>),
}

/// Rows of the first batch of a transaction's scan. Small, because a batch is also what is locked at a time.
const FIRST_LOCKED: usize = 1;
/// Rows of the first batch of a snapshot's scan.
pub(super) const FIRST_UNLOCKED: usize = 64;

impl<'t> Scan<'t> {
    pub(super) fn of_transaction(
        transaction: &'t mut Transaction,
        keyspace: &Arc<OpenKeyspace>,
        range: &KeyRange<'_>,
        reverse: bool,
    ) -> Scan<'t> {
        let cursor = Cursor::new(range.bounds(), reverse, FIRST_LOCKED);
        Scan { source: Source::Transaction(transaction), keyspace: keyspace.clone(), cursor }
    }

    pub(super) fn of_snapshot(
        snapshot: Arc<Snapshot>,
        keyspace: &Arc<OpenKeyspace>,
        range: &KeyRange<'_>,
        reverse: bool,
    ) -> Scan<'t> {
        let cursor = Cursor::new(range.bounds(), reverse, FIRST_UNLOCKED);
        Scan { source: Source::Snapshot(snapshot), keyspace: keyspace.clone(), cursor }
    }

    /// Lends the next row; `None` at the end of the range.
    pub fn next_row(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        while self.cursor.is_drained() {
            if self.cursor.is_done() {
                return Ok(None);
            }
            let result = match &mut self.source {
                Source::Transaction(transaction) => transaction.next_batch(&self.keyspace, &mut self.cursor),
                Source::Snapshot(snapshot) => snapshot.next_batch(&self.keyspace, &mut self.cursor),
            };
            result.inspect_err(|_| self.cursor.stop())?;
        }
        Ok(self.cursor.take())
    }
}
