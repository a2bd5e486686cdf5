//! Iterators over rows, as users have them.

use super::Inner;
use crate::error::Result;
use crate::txn;
use std::sync::Arc;

/// The rows of a range, in order. It copies a batch of rows at a time and holds nothing of the database between calls
/// (a transaction's locks apart). An error ends it.
///
/// As an iterator it yields owned keys and values; [`Scan::next_row`] lends them instead.
pub struct Scan<'t> {
    pub(super) rows: txn::Scan<'t>,
    /// Last: it may be the last handle. A transaction's scan has the transaction.
    pub(super) _db: Option<Arc<Inner>>,
}

impl std::fmt::Debug for Scan<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scan").finish_non_exhaustive()
    }
}

impl Scan<'_> {
    /// Lends the next row; `None` at the end of the range.
    pub fn next_row(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        self.rows.next_row()
    }

    /// Goes on with the first row that does not come before `key` in the order of the scan: of a descending one, with
    /// the highest row that is not above it. What lies between is not read. It never goes back. See
    /// [`Rows::seek`](crate::Rows::seek).
    pub fn seek(&mut self, key: impl AsRef<[u8]>) {
        self.rows.seek(key.as_ref());
    }
}

impl Iterator for Scan<'_> {
    type Item = Result<(Vec<u8>, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_row().map(|row| row.map(|(key, value)| (key.to_vec(), value.to_vec()))).transpose()
    }
}
