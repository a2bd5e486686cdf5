//! The rows of a range from both its ends.

use super::Inner;
use crate::error::Result;
use crate::txn;
use std::sync::Arc;

/// A row: its key and its value.
type Row = (Vec<u8>, Vec<u8>);

/// The rows of a range, from both its ends: `next` takes the lowest that is left, `next_back` the highest. Made by
/// [`Keyspace::iter`](crate::Keyspace::iter), [`Snapshot::iter`](crate::Snapshot::iter),
/// [`Transaction::iter`](crate::Transaction::iter) and their like. An error ends it.
///
/// Those of keyspaces and snapshots are of one moment. Those of a transaction have its own writes, and it is lent to
/// them meanwhile; what they hand out, and a little beyond it at each end, is locked as by
/// [`Transaction::scan`](crate::Transaction::scan).
///
/// ```
/// # let dir = std::env::temp_dir().join(format!("varve-doc-rows-{}", std::process::id()));
/// # let db = varve::Db::open_or_create(&dir, varve::Options::default().cache_mb(8))?;
/// let days = db.keyspace_or_create("days")?;
/// for (key, value) in [("1 mon", "work"), ("2 tue", "work"), ("6 sat", "rest")] {
///     days.put(key, value)?;
/// }
/// let mut rows = days.iter()?;
/// assert_eq!(rows.next_back().transpose()?, Some((b"6 sat".to_vec(), b"rest".to_vec())));
/// assert_eq!(rows.next().transpose()?, Some((b"1 mon".to_vec(), b"work".to_vec())));
/// assert_eq!(days.range("2".."6")?.rev().count(), 1);
/// assert_eq!(days.prefix("6")?.count(), 1);
/// # drop((rows, days)); db.close()?; std::fs::remove_dir_all(dir).unwrap();
/// # Ok::<(), varve::Error>(())
/// ```
pub struct Rows<'t> {
    pub(super) rows: txn::Rows<'t>,
    /// Last: it may be the last handle. A transaction's rows have the transaction.
    pub(super) _db: Option<Arc<Inner>>,
}

impl std::fmt::Debug for Rows<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rows").field("keyspace", &self.rows.keyspace()).field("left", &self.rows.left()).finish()
    }
}

impl Rows<'_> {
    /// Moves the low end up to `key`, a key that there need not be: `next` goes on with the lowest row from there on.
    /// What lies between is not read, and in a transaction not locked. An end never goes back: nothing happens where it
    /// is at `key` already, or beyond.
    ///
    /// It costs nothing by itself; `next` costs a search then, but where `key` is among the rows that were read ahead.
    /// So the first row of each of few groups is had without reading the groups:
    ///
    /// ```
    /// let db = varve::Db::temporary(varve::Options::default().cache_mb(8))?;
    /// let orders = db.keyspace_or_create("orders")?;
    /// for key in ["ann/1", "ann/2", "ann/3", "bob/1", "bob/2", "eve/1"] {
    ///     orders.put(key, "")?;
    /// }
    /// let (mut rows, mut customers) = (orders.iter()?, Vec::new());
    /// while let Some(row) = rows.next() {
    ///     let key = String::from_utf8(row?.0).unwrap();
    ///     let customer = key.split('/').next().unwrap().to_string();
    ///     rows.seek(format!("{customer}0")); // '0' comes after '/', so this is behind all orders of the customer
    ///     customers.push(customer);
    /// }
    /// assert_eq!(customers, ["ann", "bob", "eve"]);
    /// # drop((rows, orders)); db.close()?;
    /// # Ok::<(), varve::Error>(())
    /// ```
    pub fn seek(&mut self, key: impl AsRef<[u8]>) {
        self.rows.seek(key.as_ref());
    }

    /// Moves the high end down to `key`: `next_back` goes on with the highest row that is not above it. For all else
    /// see [`Rows::seek`].
    ///
    /// `rev()` takes the rows away; to move while they descend, call `next_back`, or borrow them by `by_ref`:
    ///
    /// ```
    /// let db = varve::Db::temporary(varve::Options::default().cache_mb(8))?;
    /// let temperatures = db.keyspace_or_create("temperatures")?;
    /// for hour in 0..24u8 {
    ///     temperatures.put([hour], [hour + 1])?;
    /// }
    /// let mut rows = temperatures.iter()?;
    /// assert_eq!(rows.by_ref().rev().take(2).count(), 2); // 23 and 22 o'clock
    /// rows.seek_back([12]);
    /// assert_eq!(rows.next_back().transpose()?, Some((vec![12], vec![13])));
    /// # drop((rows, temperatures)); db.close()?;
    /// # Ok::<(), varve::Error>(())
    /// ```
    pub fn seek_back(&mut self, key: impl AsRef<[u8]>) {
        self.rows.seek_back(key.as_ref());
    }
}

impl Iterator for Rows<'_> {
    type Item = Result<Row>;

    fn next(&mut self) -> Option<Self::Item> {
        self.rows.take(false).transpose()
    }
}

impl DoubleEndedIterator for Rows<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.rows.take(true).transpose()
    }
}

impl std::iter::FusedIterator for Rows<'_> {}
