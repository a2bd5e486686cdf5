//! Keyspaces, as users have them.

use super::reads::only;
use super::{Durability, Inner, ReadFuture, Rows, SealReport};
use crate::error::{Error, Result};
use crate::index::{KeyspaceKind, LsmOptions};
use crate::rows::Estimate;
use crate::txn::{KeyRange, OpenKeyspace, TxOptions};
use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::sync::Arc;
use varve_rt::atomic::AtomicU64;
use varve_volume::KeyspaceId;

/// A keyspace of an open database: an ordered map of its own within the database's transactions. Cheap to clone.
///
/// ```
/// let db = varve::Db::temporary(varve::Options::default().cache_mb(8))?;
/// let fruit = db.keyspace_or_create("fruit")?;
/// fruit.put("apple", "red")?; // durable when this returns
/// fruit.put("banana", "yellow")?;
/// assert_eq!(fruit.get("apple")?, Some(b"red".to_vec()));
/// for row in fruit.range("b"..)?.rev() {
///     let (key, value) = row?;
///     assert_eq!((&key[..], &value[..]), (&b"banana"[..], &b"yellow"[..]));
/// }
/// assert!(fruit.delete("apple")?);
/// assert_eq!(fruit.len()?, 1);
/// # drop(fruit); db.close()?;
/// # Ok::<(), varve::Error>(())
/// ```
#[derive(Clone)]
pub struct Keyspace {
    pub(crate) shared: Arc<OpenKeyspace>,
    pub(crate) db: Arc<Inner>,
}

impl std::fmt::Debug for Keyspace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keyspace").field("name", &self.name()).field("id", &self.id().0).finish()
    }
}

impl Keyspace {
    /// Its name.
    pub fn name(&self) -> Arc<str> {
        self.shared.name()
    }

    /// Its number in log records, page headers and messages.
    pub fn id(&self) -> KeyspaceId {
        self.shared.id()
    }

    /// Reads one key and hands its value (`None`: no such key) to `f`, which may run under a latch. Calls of the
    /// database within `f` fail with [`Error::Reentrant`](crate::Error::Reentrant), and `f` must not wait for threads
    /// that make such calls: copy the value out, and call afterwards.
    #[inline]
    pub fn get_with<R>(&self, key: impl AsRef<[u8]>, f: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        let txns = &self.db.txns;
        txns.get_with(&self.shared, key.as_ref(), |value| txns.lend(|| f(value)))
    }

    /// The value of a key, as last committed; `None` if there is none.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        self.db.txns.get_with(&self.shared, key.as_ref(), |value| value.map(<[u8]>::to_vec))
    }

    /// Puts the value of a key into `into`, instead of what is there; false (and `into` empty) if there is none.
    pub fn get_into(&self, key: impl AsRef<[u8]>, into: &mut Vec<u8>) -> Result<bool> {
        into.clear();
        self.db.txns.get_with(&self.shared, key.as_ref(), |value| {
            into.extend_from_slice(value.unwrap_or_default());
            value.is_some()
        })
    }

    /// The values of many keys, in their order; each as last committed when it is read. Takes them in ascending order,
    /// and asks the device for all that is not in memory at once: with a cold cache many times faster than one
    /// [`Keyspace::get`] after the other. For values of one moment see
    /// [`Snapshot::multi_get`](crate::Snapshot::multi_get).
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("varve-doc-multi-{}", std::process::id()));
    /// # let db = varve::Db::open_or_create(&dir, varve::Options::default().cache_mb(8))?;
    /// let colours = db.keyspace_or_create("colours")?;
    /// colours.put(b"sky", b"blue")?;
    /// assert_eq!(colours.multi_get(&["sky", "sea"])?, [Some(b"blue".to_vec()), None]);
    /// # drop(colours); db.close()?; std::fs::remove_dir_all(dir).unwrap();
    /// # Ok::<(), varve::Error>(())
    /// ```
    pub fn multi_get(&self, keys: &[impl AsRef<[u8]>]) -> Result<Vec<Option<Vec<u8>>>> {
        let keys: Vec<&[u8]> = keys.iter().map(AsRef::as_ref).collect();
        self.db.txns.multi_get(&self.shared, &keys)
    }

    /// As [`Keyspace::get`], but returns at once, with a future for any executor: ready from the beginning where the
    /// key's page is in memory, else when one of a few threads of the database has read it. No thread waits for each
    /// call, and nobody needs to poll it meanwhile. LSM keyspaces always read by these threads. What waits takes memory
    /// beside the cache: a caller who has very many calls open should have a limit.
    ///
    /// ```
    /// # async fn example() -> Result<(), varve::Error> {
    /// let db = varve::Db::temporary(varve::Options::default().cache_mb(8))?;
    /// let colours = db.keyspace_or_create("colours")?;
    /// colours.put("sky", "blue")?;
    /// assert_eq!(colours.get_async("sky").await?, Some(b"blue".to_vec()));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// By the future: those of [`Keyspace::get`]; `Closed` also when the database is closed or dropped before the key
    /// was read.
    pub fn get_async(&self, key: impl AsRef<[u8]>) -> ReadFuture<Option<Vec<u8>>> {
        self.db.read_async(None, &self.shared, &[key.as_ref()], |values| Ok(only(values)))
    }

    /// As [`Keyspace::multi_get`], but returns at once, with a future: see [`Keyspace::get_async`].
    pub fn multi_get_async(&self, keys: &[impl AsRef<[u8]>]) -> ReadFuture<Vec<Option<Vec<u8>>>> {
        let keys: Vec<&[u8]> = keys.iter().map(AsRef::as_ref).collect();
        self.db.read_async(None, &self.shared, &keys, Ok)
    }

    /// Writes the value of a key, as last committed, to `to`. See [`Transaction::get_to`](crate::Transaction::get_to).
    pub fn get_to(&self, key: impl AsRef<[u8]>, to: &mut dyn Write) -> Result<Option<u64>> {
        self.db.txns.get_to(&self.shared, key.as_ref(), to)
    }

    /// Whether a key is there.
    pub fn contains(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        self.db.txns.contains(&self.shared, key.as_ref())
    }

    /// Sets the value of a key, in a transaction of its own with the database's default durability.
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.put_with(key, value, self.db.txns.durability())
    }

    /// Sets the value of a key, in a transaction of its own.
    pub fn put_with(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, durability: Durability) -> Result<()> {
        self.db.txns.put(&self.shared, key.as_ref(), value.as_ref(), durability)
    }

    /// Sets the value of a key to all that comes from `from`, in a transaction of its own. See
    /// [`Transaction::put_from`](crate::Transaction::put_from).
    pub fn put_from(&self, key: impl AsRef<[u8]>, from: &mut dyn Read) -> Result<u64> {
        self.db.txns.put_from(&self.shared, key.as_ref(), from)
    }

    /// As [`Keyspace::put_with`] (`None`: as [`Keyspace::delete_with`]); tells its commit number as
    /// [`crate::Transaction::tell_commit_number`] does. A write that changes nothing has none.
    #[doc(hidden)]
    pub fn write_telling(
        &self,
        key: &[u8],
        value: Option<&[u8]>,
        durability: Durability,
        tell: &AtomicU64,
    ) -> Result<bool> {
        self.db.txns.write_telling(&self.shared, key, value, durability, tell)
    }

    /// Makes the keyspace read-only, or lets it be changed again; durable when it returns. Waits for transactions that
    /// write to it. While it is read-only, writes, range deletes and its drop fail with
    /// [`Error::KeyspaceReadOnly`](crate::Error::KeyspaceReadOnly).
    ///
    /// On an array, the extents that it shares with no keyspace that changes are sealed: they may lie on drives that
    /// only read. What was loaded by [`Db::bulk_load`](crate::Db::bulk_load) has extents of its own, but for its last
    /// ones and a few inner nodes; what was written row by row shares them with what was written at that time. To mark
    /// costs reading all rows once.
    ///
    /// # Errors
    /// `LockTimeout` when a transaction that wrote to it stays open; device errors.
    pub fn set_read_only(&self, on: bool) -> Result<SealReport> {
        self.db.set_read_only(&self.shared, on)
    }

    /// Whether it was made read-only.
    pub fn is_read_only(&self) -> bool {
        self.shared.sealed().is_some()
    }

    /// Removes a key, in a transaction of its own with the database's default durability; whether it was there.
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        self.delete_with(key, self.db.txns.durability())
    }

    /// Removes a key, in a transaction of its own; whether it was there.
    pub fn delete_with(&self, key: impl AsRef<[u8]>, durability: Durability) -> Result<bool> {
        self.db.txns.delete(&self.shared, key.as_ref(), durability)
    }

    /// Removes every key of a range, whatever their number, in a transaction of its own with the database's default
    /// durability. Many rows leave together, without being looked at; their pages become free afterwards, and when the
    /// last snapshot that sees them has ended. Waits for transactions that have read or written in the range.
    ///
    /// # Errors
    /// `LockTimeout` when such a transaction stays open; device errors.
    pub fn delete_range<'a>(&self, range: impl Into<KeyRange<'a>>) -> Result<()> {
        self.delete_range_with(range, self.db.txns.durability())
    }

    /// As [`Keyspace::delete_range`], with a durability.
    pub fn delete_range_with<'a>(&self, range: impl Into<KeyRange<'a>>, durability: Durability) -> Result<()> {
        self.db.delete_range(&self.shared, &range.into(), durability, None)
    }

    /// As [`Keyspace::delete_range_with`]; tells its commit number as [`crate::Transaction::tell_commit_number`] does.
    /// One that finds nothing may have none.
    #[doc(hidden)]
    pub fn delete_range_telling<'a>(
        &self,
        range: impl Into<KeyRange<'a>>,
        durability: Durability,
        tell: &Arc<AtomicU64>,
    ) -> Result<()> {
        self.db.delete_range(&self.shared, &range.into(), durability, Some(tell))
    }

    /// Removes every key: [`Keyspace::delete_range`] of all of them.
    pub fn clear(&self) -> Result<()> {
        self.delete_range(..)
    }

    /// What it is made of.
    pub fn kind(&self) -> KeyspaceKind {
        self.shared.index().kind()
    }

    /// Changes the options of an LSM keyspace, durably. What is written from then on is written so: what there is stays
    /// until it is merged.
    ///
    /// # Errors
    /// `Invalid` for a tree, for options that are out of range or do not go together, and for merges by a worker where
    /// there is none; device errors.
    pub fn set_lsm_options(&self, options: LsmOptions) -> Result<()> {
        self.db.txns.live_for_write()?;
        options.validate()?;
        if self.kind() == KeyspaceKind::Tree {
            return Err(Error::Invalid(format!("keyspace {:?} is a tree: it has no options", self.name())));
        }
        self.db.registry.set_kind(&self.db.core, &self.shared, KeyspaceKind::Lsm(options))
    }

    /// Merges what an LSM keyspace has in a range on a level (0 to 5) into the next one, and returns when that is done;
    /// without a level from level 0 on down to the lowest that has segments. Rows that were overwritten or deleted go,
    /// unless a snapshot sees them. Whole segments are merged, so more than the range. Writers and readers go on.
    ///
    /// # Errors
    /// `Invalid` for a tree, and for a level out of range; what merges fail with: a full disk.
    pub fn compact<'a>(&self, level: Option<u8>, range: impl Into<KeyRange<'a>>) -> Result<()> {
        self.db.txns.live_for_write()?;
        let Some((low, high)) = range.into().span(self.shared.index().max_key()) else { return Ok(()) };
        let from = Some(&*low).filter(|low| !low.is_empty());
        let ripen = || match &self.db.checkpointer {
            Some(checkpointer) => checkpointer.checkpoint(),
            None => Err(Error::ReadOnly("merges write".into())),
        };
        self.shared.index().merge_down(level, (from, high.as_deref()), &ripen)
    }

    /// Sets the value of a key unless it is there; whether it did.
    ///
    /// # Errors
    /// Those of [`Db::transact`](crate::Db::transact), as for all that follow.
    pub fn insert_if_absent(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<bool> {
        let (key, value) = (key.as_ref(), value.as_ref());
        self.db.transact(TxOptions::default(), |tx| {
            let there = tx.get_for_update_with(self, key, |value| value.is_some())?;
            if !there {
                tx.put(self, key, value)?;
            }
            Ok(!there)
        })
    }

    /// Sets a key from one value to another; none: the key is not there. When it has another value than `from`, nothing
    /// changes, and that value comes back as the inner error.
    pub fn compare_and_swap(
        &self,
        key: impl AsRef<[u8]>,
        from: Option<&[u8]>,
        to: Option<&[u8]>,
    ) -> Result<std::result::Result<(), Option<Vec<u8>>>> {
        let key = key.as_ref();
        self.db.transact(TxOptions::default(), |tx| {
            let now = tx.get_for_update(self, key)?;
            if now.as_deref() != from {
                return Ok(Err(now));
            }
            match to {
                Some(to) => tx.put(self, key, to)?,
                None => tx.delete(self, key)?,
            }
            Ok(Ok(()))
        })
    }

    /// Sets a key to what `f` makes of its value (none: it is not there, or is to be removed); returns the new one. `f`
    /// may be called again when another transaction was in the way.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("varve-doc-update-{}", std::process::id()));
    /// # let db = varve::Db::open_or_create(&dir, varve::Options::default().cache_mb(8))?;
    /// let visits = db.keyspace_or_create("visits")?;
    /// let one_more = |n: Option<&[u8]>| {
    ///     let n = n.map_or(0, |n| u64::from_be_bytes(n.try_into().expect("eight bytes")));
    ///     Some((n + 1).to_be_bytes().to_vec())
    /// };
    /// visits.update("home", one_more)?;
    /// assert_eq!(visits.update("home", one_more)?, Some(2u64.to_be_bytes().to_vec()));
    /// # drop(visits); db.close()?; std::fs::remove_dir_all(dir).unwrap();
    /// # Ok::<(), varve::Error>(())
    /// ```
    pub fn update(
        &self,
        key: impl AsRef<[u8]>,
        mut f: impl FnMut(Option<&[u8]>) -> Option<Vec<u8>>,
    ) -> Result<Option<Vec<u8>>> {
        let key = key.as_ref();
        self.db.transact(TxOptions::default(), |tx| {
            let new = f(tx.get_for_update(self, key)?.as_deref());
            match &new {
                Some(value) => tx.put(self, key, value)?,
                None => tx.delete(self, key)?,
            }
            Ok(new)
        })
    }

    /// The row with the lowest key.
    pub fn first(&self) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        self.iter()?.next().transpose()
    }

    /// The row with the highest key.
    pub fn last(&self) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        self.iter()?.next_back().transpose()
    }

    /// Removes the row with the lowest key and returns it. As a queue: what is put under ascending keys comes out in
    /// their order, each row to one caller.
    pub fn pop_first(&self) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        self.pop(false)
    }

    /// Removes the row with the highest key and returns it.
    pub fn pop_last(&self) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        self.pop(true)
    }

    fn pop(&self, last: bool) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        self.db.transact(TxOptions::default(), |tx| {
            let mut rows = if last { tx.scan_rev(self, ..)? } else { tx.scan(self, ..)? };
            let row = rows.next().transpose()?;
            drop(rows);
            if let Some((key, _)) = &row {
                tx.delete(self, key)?;
            }
            Ok(row)
        })
    }

    /// The number of rows at this moment. Counts them: it reads every key, but no long value. See
    /// [`Keyspace::estimated_len`] for a figure that costs little.
    pub fn len(&self) -> Result<u64> {
        self.db.snapshot()?.count(self, ..)
    }

    /// The number of rows, about, from a few dozen pages at most, however many rows there are. Exact for a small tree
    /// that nobody writes to; in an LSM keyspace a row that was overwritten counts again until merges have seen it.
    ///
    /// ```
    /// let db = varve::Db::temporary(varve::Options::default().cache_mb(8))?;
    /// let fruit = db.keyspace_or_create("fruit")?;
    /// fruit.put("apple", "red")?;
    /// assert_eq!(fruit.estimated_len()?, 1);
    /// assert_eq!(fruit.size_on_disk()?, 8192); // the page of its only leaf
    /// # drop(fruit); db.close()?;
    /// # Ok::<(), varve::Error>(())
    /// ```
    pub fn estimated_len(&self) -> Result<u64> {
        Ok(self.estimate()?.rows)
    }

    /// Bytes that its pages take on the data device, about: as [`Keyspace::estimated_len`], exact for a small tree that
    /// nobody writes to, and for the segments of an LSM keyspace. Neither old versions nor what waits in memory counts.
    pub fn size_on_disk(&self) -> Result<u64> {
        Ok(self.estimate()?.pages * self.db.core.page_size() as u64)
    }

    fn estimate(&self) -> Result<Estimate> {
        self.db.txns.live_in(&self.shared)?;
        self.shared.index().estimate()
    }

    /// Whether there is no row at this moment.
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.first()?.is_none())
    }

    /// All rows as of the moment of the call, from both ends. While it is there, it counts as an open
    /// [`Snapshot`](crate::Snapshot).
    pub fn iter(&self) -> Result<Rows<'static>> {
        self.range(..)
    }

    /// The rows of a range: see [`Keyspace::iter`].
    pub fn range<'a>(&self, range: impl Into<KeyRange<'a>>) -> Result<Rows<'static>> {
        self.db.snapshot()?.range(self, range)
    }

    /// The rows whose keys begin with `prefix`: see [`Keyspace::iter`].
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Result<Rows<'static>> {
        self.range(KeyRange::prefix(&prefix))
    }

    /// Lends the rows of a range to `each`, ascending, until it breaks, as of the moment of the call. See
    /// [`Snapshot::scan_with`](crate::Snapshot::scan_with), also for what `each` may do.
    pub fn scan_with<'a>(
        &self,
        range: impl Into<KeyRange<'a>>,
        each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        self.db.txns.scan_with(&self.shared, &range.into(), each)
    }
}
