//! Snapshots, as users have them.

use super::reads::only;
use super::{Inner, Keyspace, ReadFuture, Rows, Scan};
use crate::error::Result;
use crate::txn::{self, KeyRange, Values};
use std::io::Write;
use std::ops::ControlFlow;
use std::sync::Arc;
use varve_volume::Lsn;

/// A read-only view of the database as of one commit: exactly the transactions that were committed when it was opened.
/// It takes no locks, so it neither waits for writers nor makes them wait. Cheap to clone; clones are the same view.
/// Open snapshots make commits keep old values, in memory and on scratch pages; when those outgrow
/// [`Options::snapshot_disk_bytes`](crate::Options), the oldest snapshot fails with
/// [`Error::SnapshotTooOld`](crate::Error::SnapshotTooOld).
///
/// ```
/// let db = varve::Db::temporary(varve::Options::default().cache_mb(8))?;
/// let prices = db.keyspace_or_create("prices")?;
/// prices.put("tea", "3")?;
/// let before = db.snapshot()?;
/// prices.put("tea", "4")?;
/// assert_eq!(before.get(&prices, "tea")?, Some(b"3".to_vec()));
/// assert_eq!(prices.get("tea")?, Some(b"4".to_vec()));
/// # drop((before, prices)); db.close()?;
/// # Ok::<(), varve::Error>(())
/// ```
#[derive(Clone)]
pub struct Snapshot {
    pub(super) snapshot: Arc<txn::Snapshot>,
    /// Last: it may be the last handle, with which everything ends that the snapshot needs.
    pub(super) db: Arc<Inner>,
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot").field("lsn", &self.lsn()).finish()
    }
}

impl Snapshot {
    /// The commit number as of which it reads: it sees every commit whose number is not greater.
    pub fn lsn(&self) -> Lsn {
        self.snapshot.lsn()
    }

    /// Reads one key and hands its value (`None`: no such key) to `f`, which may run under a latch. Calls of the
    /// database within `f` fail with [`Error::Reentrant`](crate::Error::Reentrant), and `f` must not wait for threads
    /// that make such calls: copy the value out, and call afterwards.
    pub fn get_with<R>(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        mut f: impl FnMut(Option<&[u8]>) -> R,
    ) -> Result<R> {
        self.snapshot.get_with(&keyspace.shared, key.as_ref(), |value| self.db.txns.lend(|| f(value)))
    }

    /// The value of a key; `None` if there is none.
    pub fn get(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        self.snapshot.get_with(&keyspace.shared, key.as_ref(), |value| value.map(<[u8]>::to_vec))
    }

    /// The values of many keys, in their order, as of the snapshot; what is not in memory is asked for at once. See
    /// [`Keyspace::multi_get`].
    pub fn multi_get(&self, keyspace: &Keyspace, keys: &[impl AsRef<[u8]>]) -> Result<Vec<Option<Vec<u8>>>> {
        let keys: Vec<&[u8]> = keys.iter().map(AsRef::as_ref).collect();
        self.snapshot.multi_get(&keyspace.shared, &keys)
    }

    /// As [`Snapshot::get`], but returns at once, with a future: see [`Keyspace::get_async`]. The future needs no
    /// handle of the snapshot, and none keeps the database from being closed.
    ///
    /// ```
    /// # async fn example() -> Result<(), varve::Error> {
    /// let db = varve::Db::temporary(varve::Options::default().cache_mb(8))?;
    /// let prices = db.keyspace_or_create("prices")?;
    /// prices.put("tea", "3")?;
    /// let before = db.snapshot()?.get_async(&prices, "tea");
    /// prices.put("tea", "4")?;
    /// assert_eq!(before.await?, Some(b"3".to_vec()));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// By the future: those of [`Snapshot::get`]; `Closed` also when the database is closed or dropped before the key
    /// was read.
    pub fn get_async(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> ReadFuture<Option<Vec<u8>>> {
        self.read_async(keyspace, &[key.as_ref()], |values| Ok(only(values)))
    }

    /// As [`Snapshot::multi_get`], but returns at once, with a future: see [`Snapshot::get_async`].
    pub fn multi_get_async(&self, keyspace: &Keyspace, keys: &[impl AsRef<[u8]>]) -> ReadFuture<Vec<Option<Vec<u8>>>> {
        let keys: Vec<&[u8]> = keys.iter().map(AsRef::as_ref).collect();
        self.read_async(keyspace, &keys, Ok)
    }

    pub(super) fn read_async<T>(
        &self,
        keyspace: &Keyspace,
        keys: &[&[u8]],
        make: impl Fn(Values) -> Result<T> + Send + Sync + 'static,
    ) -> ReadFuture<T> {
        self.db.read_async(Some(&self.snapshot), &keyspace.shared, keys, make)
    }

    /// As [`Transaction::get_to`](crate::Transaction::get_to).
    pub fn get_to(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>, to: &mut dyn Write) -> Result<Option<u64>> {
        self.snapshot.get_to(&keyspace.shared, key.as_ref(), to)
    }

    /// Whether a key is there.
    pub fn contains(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<bool> {
        self.snapshot.contains(&keyspace.shared, key.as_ref())
    }

    /// The rows of a range in ascending order.
    pub fn scan<'a>(&self, keyspace: &Keyspace, range: impl Into<KeyRange<'a>>) -> Result<Scan<'static>> {
        self.rows(keyspace, &range.into(), false)
    }

    /// The rows of a range in descending order.
    pub fn scan_rev<'a>(&self, keyspace: &Keyspace, range: impl Into<KeyRange<'a>>) -> Result<Scan<'static>> {
        self.rows(keyspace, &range.into(), true)
    }

    fn rows(&self, keyspace: &Keyspace, range: &KeyRange<'_>, reverse: bool) -> Result<Scan<'static>> {
        let rows = txn::Snapshot::scan(&self.snapshot, &keyspace.shared, range, reverse)?;
        Ok(Scan { rows, _db: Some(self.db.clone()) })
    }

    /// All rows of a keyspace, from both ends.
    pub fn iter(&self, keyspace: &Keyspace) -> Result<Rows<'static>> {
        self.range(keyspace, ..)
    }

    /// The rows of a range, from both ends.
    pub fn range<'a>(&self, keyspace: &Keyspace, range: impl Into<KeyRange<'a>>) -> Result<Rows<'static>> {
        let rows = txn::Snapshot::rows(&self.snapshot, &keyspace.shared, &range.into())?;
        Ok(Rows { rows, _db: Some(self.db.clone()) })
    }

    /// The rows whose keys begin with `prefix`, from both ends.
    pub fn prefix(&self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> Result<Rows<'static>> {
        self.range(keyspace, KeyRange::prefix(&prefix))
    }

    /// Lends the rows of a range to `each`, ascending, until it breaks: the fastest way to read rows in order, as most
    /// are lent where they lie. `each` may run under a latch: it should be short. Calls of the database within it fail
    /// with [`Error::Reentrant`](crate::Error::Reentrant), and it must not wait for threads that make such calls: copy
    /// out what is needed, and call afterwards. When an error is returned, what was lent before may not count.
    pub fn scan_with<'a>(
        &self,
        keyspace: &Keyspace,
        range: impl Into<KeyRange<'a>>,
        each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        self.snapshot.scan_with(&keyspace.shared, &range.into(), each)
    }

    /// The number of keys in a range. Reads them all, but no long value.
    pub fn count<'a>(&self, keyspace: &Keyspace, range: impl Into<KeyRange<'a>>) -> Result<u64> {
        self.snapshot.count(&keyspace.shared, &range.into())
    }
}
