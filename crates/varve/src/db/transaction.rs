//! Transactions, as users have them.

use super::{Inner, Keyspace, Rows, Scan};
use crate::error::Result;
use crate::txn::{self, KeyRange, Savepoint};
use std::io::{Read, Write};
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use varve_rt::atomic::AtomicU64;
use varve_volume::Lsn;

/// Bytes of keys that [`Transaction::retain`] removes between two looks at the range.
const RETAIN_BYTES: usize = 64 << 10;

/// An open transaction, serializable against all others. Nothing of it is seen by anybody before
/// [`Transaction::commit`]; dropped without, it changes nothing.
///
/// What it reads and writes is locked until it ends, so calls may wait for other transactions, and may return
/// [`Error::Conflict`](crate::Error::Conflict) when a deadlock can only be solved at its cost: then run it again (or
/// let [`Db::transact`](crate::Db::transact) do that). A call that has waited for longer than
/// [`Options::lock_timeout`](crate::Options) returns [`Error::LockTimeout`](crate::Error::LockTimeout); two
/// transactions that one thread uses in turn can come to that.
///
/// ```
/// let db = varve::Db::temporary(varve::Options::default().cache_mb(8))?;
/// let (stock, orders) = (db.keyspace_or_create("stock")?, db.keyspace_or_create("orders")?);
/// stock.put("nails", "3")?;
///
/// let mut tx = db.begin()?;
/// let left: u32 = String::from_utf8(tx.get_for_update(&stock, "nails")?.unwrap()).unwrap().parse().unwrap();
/// tx.put(&stock, "nails", (left - 1).to_string())?;
/// tx.put(&orders, "1", "nails")?;
/// assert_eq!(stock.get("nails")?, Some(b"3".to_vec())); // nobody sees it yet
/// tx.commit()?; // durable when this returns
/// assert_eq!(stock.get("nails")?, Some(b"2".to_vec()));
/// # drop((stock, orders)); db.close()?;
/// # Ok::<(), varve::Error>(())
/// ```
pub struct Transaction {
    pub(crate) tx: txn::Transaction,
    /// Last: it may be the last handle, with which everything ends that the others need.
    pub(super) _db: Arc<Inner>,
}

impl std::fmt::Debug for Transaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.tx.fmt(f)
    }
}

impl Transaction {
    /// Has the commit number put into `to` as soon as the commit has one: before it is durable, so also when `commit`
    /// never returns. How a crash test knows the order of commits that were in flight.
    #[doc(hidden)]
    pub fn tell_commit_number(&mut self, to: Arc<AtomicU64>) {
        self.tx.tell_commit_number(to);
    }

    /// Its number in error messages; never used twice while the database is open.
    pub fn id(&self) -> u64 {
        self.tx.id()
    }

    /// Reads one key and hands its value (`None`: no such key) to `f`, which may run under a latch. Calls of the
    /// database within `f` fail with [`Error::Reentrant`](crate::Error::Reentrant), and `f` must not wait for threads
    /// that make such calls: copy the value out, and call afterwards.
    pub fn get_with<R>(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        f: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Result<R> {
        let txns = &self._db.txns;
        self.tx.get_with(&keyspace.shared, key.as_ref(), |value| txns.lend(|| f(value)))
    }

    /// The value of a key; `None` if there is none.
    pub fn get(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        self.tx.get_with(&keyspace.shared, key.as_ref(), |value| value.map(<[u8]>::to_vec))
    }

    /// The values of many keys, in their order, each locked as by [`Transaction::get`]; what is not in memory is asked
    /// for at once. See [`Keyspace::multi_get`].
    pub fn multi_get(&mut self, keyspace: &Keyspace, keys: &[impl AsRef<[u8]>]) -> Result<Vec<Option<Vec<u8>>>> {
        let keys: Vec<&[u8]> = keys.iter().map(AsRef::as_ref).collect();
        self.tx.multi_get(&keyspace.shared, &keys)
    }

    /// Puts the value of a key into `into`, instead of what is there; false (and `into` empty) if there is none.
    pub fn get_into(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, into: &mut Vec<u8>) -> Result<bool> {
        into.clear();
        self.tx.get_with(&keyspace.shared, key.as_ref(), |value| {
            into.extend_from_slice(value.unwrap_or_default());
            value.is_some()
        })
    }

    /// Writes the value of a key to `to`, piece by piece; returns its length, `None` if there is no such key. For
    /// values that are too long to be held in memory.
    ///
    /// # Errors
    /// Those of [`Transaction::get`]; `Stream` when writing fails. Then a part of the value may have been written.
    pub fn get_to(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, to: &mut dyn Write) -> Result<Option<u64>> {
        self.tx.get_to(&keyspace.shared, key.as_ref(), to)
    }

    /// Whether a key is there.
    pub fn contains(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<bool> {
        self.tx.contains(&keyspace.shared, key.as_ref())
    }

    /// As [`Transaction::get`], for a key that will be written: locks it for writing at once, so that two transactions
    /// that read and then write the same key wait for each other instead of one failing.
    pub fn get_for_update(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        self.tx.get_for_update_with(&keyspace.shared, key.as_ref(), |value| value.map(<[u8]>::to_vec))
    }

    /// As [`Transaction::get_with`], for a key that will be written. What is said there of `f` holds here too.
    pub fn get_for_update_with<R>(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        f: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Result<R> {
        let txns = &self._db.txns;
        self.tx.get_for_update_with(&keyspace.shared, key.as_ref(), |value| txns.lend(|| f(value)))
    }

    /// Sets the value of a key.
    ///
    /// # Errors
    /// `KeySize`, `ValueSize`; `NoSpace` when the data device has no room for writes that do not fit in memory;
    /// `OverBudget` when so many are open that not even a part fits, `TransactionTooLarge` for a write that alone does
    /// not; `Conflict`, `LockTimeout`.
    pub fn put(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.tx.put(&keyspace.shared, key.as_ref(), value.as_ref())
    }

    /// Sets the value of a key to all that comes from `from`, to its end; returns how many bytes came. For values that
    /// are too long to be held in memory: it takes some 4 MB, and the log does not hold the value.
    ///
    /// # Errors
    /// Those of [`Transaction::put`]; `Stream` when reading fails; device errors. The key is as before then.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("varve-doc-stream-{}", std::process::id()));
    /// # let db = varve::Db::open_or_create(&dir, varve::Options::default())?;
    /// let films = db.create_keyspace("films")?;
    /// let mut reel = std::io::Read::take(std::io::repeat(7), 3_000_000);
    /// let mut tx = db.begin()?;
    /// tx.put_from(&films, b"seven", &mut reel)?;
    /// tx.commit()?;
    /// let mut copy = Vec::new();
    /// assert_eq!(films.get_to(b"seven", &mut copy)?, Some(3_000_000));
    /// # drop(films); db.close()?; std::fs::remove_dir_all(dir).unwrap();
    /// # Ok::<(), varve::Error>(())
    /// ```
    pub fn put_from(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, from: &mut dyn Read) -> Result<u64> {
        self.tx.put_from(&keyspace.shared, key.as_ref(), from)
    }

    /// Removes a key if it is there. Errors as for [`Transaction::put`], but for `KeySize`: a key that is too long is
    /// not there.
    pub fn delete(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<()> {
        self.tx.delete(&keyspace.shared, key.as_ref())
    }

    /// Removes every key of a range; returns how many there were. Keeps others from inserting into it until the
    /// transaction ends. On an error none of them is removed. Errors as for [`Transaction::put`].
    pub fn delete_range<'a>(&mut self, keyspace: &Keyspace, range: impl Into<KeyRange<'a>>) -> Result<u64> {
        self.tx.delete_range(&keyspace.shared, &range.into())
    }

    /// Removes the rows of a range that `keep` does not want: looks at each of them, in ascending order. Returns how
    /// many were removed. Locks the range as [`Transaction::scan`] does. Errors as for [`Transaction::put`]; on an
    /// error some may have been removed: roll back.
    ///
    /// ```
    /// let db = varve::Db::temporary(varve::Options::default().cache_mb(8))?;
    /// let jobs = db.keyspace_or_create("jobs")?;
    /// for (key, state) in [("a", "done"), ("b", "waits"), ("c", "done")] {
    ///     jobs.put(key, state)?;
    /// }
    /// assert_eq!(db.transact(|tx| tx.retain(&jobs, .., |_, state| state != b"done"))?, 2);
    /// assert_eq!(jobs.first()?, Some((b"b".to_vec(), b"waits".to_vec())));
    /// # drop(jobs); db.close()?;
    /// # Ok::<(), varve::Error>(())
    /// ```
    pub fn retain<'a>(
        &mut self,
        keyspace: &Keyspace,
        range: impl Into<KeyRange<'a>>,
        mut keep: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<u64> {
        let range = range.into();
        let (mut after, mut removed): (Option<Vec<u8>>, u64) = (None, 0);
        loop {
            // A batch of rows is looked at, then those that go are removed: a scan has the transaction to itself.
            let (mut going, mut bytes, mut ended) = (Vec::new(), 0, false);
            let from = after.as_deref().map_or(range.bounds().0, Bound::Excluded);
            let mut rows = self.scan(keyspace, KeyRange::new(from, range.bounds().1))?;
            while bytes < RETAIN_BYTES {
                let Some((key, value)) = rows.next_row()? else {
                    ended = true;
                    break;
                };
                if !keep(key, value) {
                    bytes += key.len() + size_of::<Vec<u8>>();
                    going.push(key.to_vec());
                }
            }
            drop(rows);
            debug_assert!(going.is_sorted(), "rows ascend");
            for key in &going {
                self.delete(keyspace, key)?;
            }
            removed += going.len() as u64;
            if ended {
                return Ok(removed);
            }
            after = going.pop();
            assert!(after.is_some(), "a full batch has a last key");
        }
    }

    /// The rows of a range in ascending order, this transaction's writes included. What was returned is locked against
    /// changes and insertions, and so is a little beyond it.
    pub fn scan<'a>(&mut self, keyspace: &Keyspace, range: impl Into<KeyRange<'a>>) -> Result<Scan<'_>> {
        let rows = self.tx.scan(&keyspace.shared, &range.into(), false)?;
        Ok(Scan { rows, _db: None })
    }

    /// As [`Transaction::scan`], in descending order.
    pub fn scan_rev<'a>(&mut self, keyspace: &Keyspace, range: impl Into<KeyRange<'a>>) -> Result<Scan<'_>> {
        let rows = self.tx.scan(&keyspace.shared, &range.into(), true)?;
        Ok(Scan { rows, _db: None })
    }

    /// All rows of a keyspace, from both ends, this transaction's writes included. What was returned is locked against
    /// changes and insertions, and so is a little beyond it at each end. To delete rows while going over them, see
    /// [`Transaction::retain`].
    ///
    /// ```
    /// let db = varve::Db::temporary(varve::Options::default().cache_mb(8))?;
    /// let scores = db.keyspace_or_create("scores")?;
    /// scores.put("ann", "7")?;
    /// let best = db.transact(|tx| {
    ///     tx.put(&scores, "bob", "9")?;
    ///     let mut names = Vec::new();
    ///     for row in tx.iter(&scores)?.rev() {
    ///         names.push(row?.0);
    ///     }
    ///     Ok(names)
    /// })?;
    /// assert_eq!(best, [b"bob", b"ann"]);
    /// # drop(scores); db.close()?;
    /// # Ok::<(), varve::Error>(())
    /// ```
    pub fn iter(&mut self, keyspace: &Keyspace) -> Result<Rows<'_>> {
        self.range(keyspace, ..)
    }

    /// The rows of a range, from both ends: see [`Transaction::iter`].
    pub fn range<'a>(&mut self, keyspace: &Keyspace, range: impl Into<KeyRange<'a>>) -> Result<Rows<'_>> {
        let rows = self.tx.rows(&keyspace.shared, &range.into())?;
        Ok(Rows { rows, _db: None })
    }

    /// The rows whose keys begin with `prefix`, from both ends: see [`Transaction::iter`].
    pub fn prefix(&mut self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> Result<Rows<'_>> {
        self.range(keyspace, KeyRange::prefix(&prefix))
    }

    /// Lends the rows of a range to `each`, ascending, until it breaks. In a read-only transaction as
    /// [`Snapshot::scan_with`](crate::Snapshot::scan_with); else the rows are those of [`Transaction::scan`], and
    /// locked like them. In both, calls of the database within `each` fail with
    /// [`Error::Reentrant`](crate::Error::Reentrant).
    pub fn scan_with<'a>(
        &mut self,
        keyspace: &Keyspace,
        range: impl Into<KeyRange<'a>>,
        each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        self.tx.scan_with(&keyspace.shared, &range.into(), each)
    }

    /// The number of keys in a range, this transaction's writes included. Locks the whole range; reads it without its
    /// values.
    pub fn count<'a>(&mut self, keyspace: &Keyspace, range: impl Into<KeyRange<'a>>) -> Result<u64> {
        self.tx.count(&keyspace.shared, &range.into())
    }

    /// Marks the present state, to return to it with [`Transaction::rollback_to`].
    pub fn savepoint(&mut self) -> Result<Savepoint> {
        self.tx.savepoint()
    }

    /// Undoes every write since the savepoint, which can be used again. Locks stay.
    pub fn rollback_to(&mut self, savepoint: Savepoint) -> Result<()> {
        self.tx.rollback_to(savepoint)
    }

    /// Makes the changes take effect, all of them or (with an error) none, and returns when they are as durable as
    /// asked for, and when everything that was read is durable if its writers asked for that.
    ///
    /// # Errors
    /// `Conflict` if the transaction had to give way before; `TransactionTooLarge`; device errors; after `Poisoned` it
    /// is unknown whether the changes are found when the database is opened again.
    pub fn commit(self) -> Result<()> {
        self.tx.commit()
    }

    /// As [`Transaction::commit`], but returns as soon as the changes have taken effect. They and what was read survive
    /// a power cut when everything up to the returned place in the log is durable: [`Db::wait_durable`](crate::Db)
    /// waits for that, and it is so after [`Options::async_delay`](crate::Options) at the latest.
    ///
    /// ```
    /// let db = varve::Db::temporary(varve::Options::default().cache_mb(8))?;
    /// let entries = db.keyspace_or_create("entries")?;
    /// let mut ticket = 0;
    /// for n in 0..10u32 {
    ///     let mut tx = db.begin()?;
    ///     tx.put(&entries, n.to_be_bytes(), "entry")?;
    ///     ticket = tx.commit_ticket()?;
    /// }
    /// db.wait_durable(ticket)?; // one flush of the log for all ten
    /// assert!(db.durable_lsn() >= ticket);
    /// # Ok::<(), varve::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Transaction::commit`].
    pub fn commit_ticket(self) -> Result<Lsn> {
        let ticket = self.tx.commit_ticket()?;
        assert!(ticket <= self._db.core.log.end_lsn(), "it is in the log");
        Ok(ticket)
    }

    /// Ends the transaction without changing anything; the same as dropping it.
    pub fn rollback(self) {}
}
