//! Iterators over rows.

use super::cursor::Cursor;
use super::range::KeyRange;
use super::snapshot::Snapshot;
use super::transaction::Transaction;
use crate::db::Keyspace;
use crate::error::Result;

/// The rows of a range, in order. It copies a batch of rows at a time and holds nothing of the database between calls (a
/// transaction's locks apart). An error ends it.
///
/// As an iterator it yields owned keys and values; [`Scan::next_row`] lends them instead.
pub struct Scan<'t> {
    source: Source<'t>,
    keyspace: Keyspace,
    cursor: Cursor,
}

enum Source<'t> {
    Transaction(&'t mut Transaction),
    Snapshot(Snapshot),
}

/// Rows of the first batch of a transaction's scan. Small, because a batch is also what is locked at a time.
const FIRST_LOCKED: usize = 1;
/// Rows of the first batch of a snapshot's scan.
pub(super) const FIRST_UNLOCKED: usize = 16;

impl<'t> Scan<'t> {
    pub(super) fn of_transaction(
        transaction: &'t mut Transaction,
        keyspace: &Keyspace,
        range: KeyRange<'_>,
        reverse: bool,
    ) -> Scan<'t> {
        let cursor = Cursor::new(range.bounds(), reverse, FIRST_LOCKED);
        Scan { source: Source::Transaction(transaction), keyspace: keyspace.clone(), cursor }
    }

    pub(super) fn of_snapshot(snapshot: Snapshot, keyspace: &Keyspace, range: KeyRange<'_>, reverse: bool) -> Scan<'t> {
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

impl Iterator for Scan<'_> {
    type Item = Result<(Vec<u8>, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_row().map(|row| row.map(|(key, value)| (key.to_vec(), value.to_vec()))).transpose()
    }
}
