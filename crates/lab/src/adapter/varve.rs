//! Varve behind the adapter trait.
//!
//! [`TxMode::ReadOnly`] is a read-only transaction, [`TxMode::Snapshot`] a snapshot; the two take different ways
//! through the engine's API. An error of a commit leaves it open whether it took effect if it comes from a device or
//! the log.

use std::borrow::Cow;
use std::ops::{Bound, ControlFlow};

use varve_rt::{Cost, charge};

use varve::{Db, Keyspace, KeyspaceKind, Savepoint, Scan, Snapshot, Transaction, TxOptions};

use super::{Direction, Durability, KeyRange, Store, StoreStats, TxMode, Txn};
use crate::error::{Error, Result};

/// A Varve database as a [`Store`].
#[derive(Clone)]
pub struct VarveStore {
    db: Db,
    /// Bytes that every stored row has and no workload sees.
    overhead: usize,
    /// What keyspaces are made of that it makes.
    kind: KeyspaceKind,
}

impl VarveStore {
    /// Takes a handle of an open database. Closing the database remains with the caller.
    pub fn new(db: Db) -> VarveStore {
        VarveStore { db, overhead: 0, kind: KeyspaceKind::Tree }
    }

    /// Makes every stored row longer by as many bytes as another engine's rows are. The same must be given whenever the
    /// database is opened.
    pub fn with_row_overhead(self, overhead: usize) -> VarveStore {
        VarveStore { overhead, ..self }
    }

    /// Makes keyspaces of this kind; those that are there stay what they are.
    pub fn with_kind(self, kind: KeyspaceKind) -> VarveStore {
        VarveStore { kind, ..self }
    }

    /// The kind of the keyspaces that it makes.
    pub fn kind(&self) -> KeyspaceKind {
        self.kind
    }

    /// The database.
    pub fn db(&self) -> &Db {
        &self.db
    }
}

impl From<varve::Error> for Error {
    fn from(e: varve::Error) -> Error {
        match e {
            varve::Error::Conflict { .. } => Error::Conflict(e.to_string()),
            varve::Error::SnapshotTooOld | varve::Error::SnapshotLost(_) => Error::SnapshotTooOld(e.to_string()),
            other => Error::store(other),
        }
    }
}

/// The row that is stored for a value.
fn widened(value: &[u8], overhead: usize) -> Cow<'_, [u8]> {
    if overhead == 0 {
        return Cow::Borrowed(value);
    }
    let mut row = Vec::with_capacity(value.len() + overhead);
    row.extend_from_slice(value);
    row.resize(value.len() + overhead, 0);
    Cow::Owned(row)
}

/// The value of a stored row. A row that is too short was stored without the overhead; its reader sees an empty value.
fn narrowed(row: &[u8], overhead: usize) -> &[u8] {
    &row[..row.len().saturating_sub(overhead)]
}

/// The error of a commit.
fn at_commit(e: varve::Error) -> Error {
    use varve::Error as E;
    match e {
        E::Poisoned(_) | E::NoSpace(_) | E::Io(_) | E::Volume(_) | E::Corrupt(_) => Error::CommitUnknown(e.into()),
        other => other.into(),
    }
}

fn durability(durability: Durability) -> varve::Durability {
    match durability {
        Durability::Sync => varve::Durability::Sync,
        Durability::Async => varve::Durability::Async,
        Durability::None => varve::Durability::None,
    }
}

impl Store for VarveStore {
    type Keyspace = Keyspace;
    type Txn<'a> = VarveTxn;

    fn name(&self) -> &str {
        "varve"
    }

    fn keyspace(&self, name: &str) -> Result<Keyspace> {
        Ok(self.db.keyspace_or_create_of(name, self.kind)?)
    }

    fn find_keyspace(&self, name: &str) -> Result<Option<Keyspace>> {
        match self.db.keyspace(name) {
            Ok(keyspace) => Ok(Some(keyspace)),
            Err(varve::Error::NoSuchKeyspace(_)) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    fn begin(&self, mode: TxMode, how: Durability) -> Result<VarveTxn> {
        let options = TxOptions { read_only: mode == TxMode::ReadOnly, ..TxOptions::durability(durability(how)) };
        let view = match mode {
            TxMode::ReadWrite | TxMode::ReadOnly => View::Transaction(self.db.begin_with(options)?, Vec::new()),
            TxMode::Snapshot => View::Snapshot(self.db.snapshot()?),
        };
        Ok(VarveTxn { view, overhead: self.overhead })
    }

    fn get_one<R>(&self, ks: &Keyspace, key: &[u8], f: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        Ok(ks.get_with(key, |row| f(row.map(|row| narrowed(row, self.overhead))))?)
    }

    fn put_one(&self, ks: &Keyspace, key: &[u8], value: &[u8], how: Durability) -> Result<()> {
        ks.put_with(key, &widened(value, self.overhead), durability(how)).map_err(at_commit)
    }

    fn stats(&self) -> StoreStats {
        let stats = self.db.stats();
        let pages = stats.pool.total();
        let (data, log) = (&stats.data_device, &stats.log_device);
        StoreStats {
            hits: pages.hits,
            misses: pages.misses,
            frames: stats.pool.frames,
            device_reads: data.read.count + log.read.count,
            device_writes: data.write.count + log.write.count,
            bytes_read: data.read.bytes + log.read.bytes,
            bytes_written: data.write.bytes + log.write.bytes,
            log_bytes: stats.log.written_bytes,
            fsyncs: data.flush.count + log.flush.count + data.durable_writes + log.durable_writes,
            stalls: stats.pool.stalls + stats.log.space_waits + stats.log.buffer_waits,
        }
    }
}

/// A transaction or snapshot of a [`VarveStore`].
pub struct VarveTxn {
    view: View,
    overhead: usize,
}

#[allow(clippy::large_enum_variant)] // lives on the stack; a box would cost each transaction an allocation
enum View {
    Transaction(Transaction, Vec<Savepoint>),
    Snapshot(Snapshot),
}

/// A write in something that only reads.
fn read_only() -> Error {
    Error::store("a write in a snapshot; begin a read-write transaction for it")
}

fn engine_range(range: KeyRange<'_>) -> varve::KeyRange<'_> {
    varve::KeyRange::new(Bound::Included(range.from), range.to.map_or(Bound::Unbounded, Bound::Excluded))
}

fn walk(mut rows: Scan<'_>, overhead: usize, mut each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) -> Result<()> {
    while let Some((key, value)) = rows.next_row()? {
        charge(Cost::ClientCall, 1);
        if each(key, narrowed(value, overhead)).is_break() {
            break;
        }
    }
    Ok(())
}

impl Txn for VarveTxn {
    type Keyspace = Keyspace;

    fn get<R>(&mut self, ks: &Keyspace, key: &[u8], f: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        charge(Cost::ClientCall, 1);
        let overhead = self.overhead;
        match &mut self.view {
            View::Transaction(tx, _) => Ok(tx.get_with(ks, key, |row| f(row.map(|row| narrowed(row, overhead))))?),
            View::Snapshot(snapshot) => Ok(f(snapshot.get(ks, key)?.as_deref().map(|row| narrowed(row, overhead)))),
        }
    }

    fn get_for_update<R>(&mut self, ks: &Keyspace, key: &[u8], f: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        charge(Cost::ClientCall, 1);
        let overhead = self.overhead;
        match &mut self.view {
            View::Transaction(tx, _) => {
                Ok(tx.get_for_update_with(ks, key, |row| f(row.map(|row| narrowed(row, overhead))))?)
            }
            View::Snapshot(_) => Err(read_only()),
        }
    }

    fn put(&mut self, ks: &Keyspace, key: &[u8], value: &[u8]) -> Result<()> {
        charge(Cost::ClientCall, 1);
        match &mut self.view {
            View::Transaction(tx, _) => Ok(tx.put(ks, key, &widened(value, self.overhead))?),
            View::Snapshot(_) => Err(read_only()),
        }
    }

    fn delete(&mut self, ks: &Keyspace, key: &[u8]) -> Result<()> {
        charge(Cost::ClientCall, 1);
        match &mut self.view {
            View::Transaction(tx, _) => Ok(tx.delete(ks, key)?),
            View::Snapshot(_) => Err(read_only()),
        }
    }

    fn scan(
        &mut self,
        ks: &Keyspace,
        range: KeyRange<'_>,
        direction: Direction,
        mut each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        let (range, overhead) = (engine_range(range), self.overhead);
        let rows = match (&mut self.view, direction) {
            (View::Transaction(tx, _), Direction::Forward) => tx.scan(ks, range),
            (View::Transaction(tx, _), Direction::Reverse) => tx.scan_rev(ks, range),
            // Most rows are lent where they lie.
            (View::Snapshot(snapshot), Direction::Forward) => {
                return Ok(snapshot.scan_with(ks, range, |key, value| {
                    charge(Cost::ClientCall, 1);
                    each(key, narrowed(value, overhead))
                })?);
            }
            (View::Snapshot(snapshot), Direction::Reverse) => snapshot.scan_rev(ks, range),
        };
        walk(rows?, overhead, each)
    }

    fn delete_range(&mut self, ks: &Keyspace, range: KeyRange<'_>) -> Result<u64> {
        match &mut self.view {
            View::Transaction(tx, _) => Ok(tx.delete_range(ks, engine_range(range))?),
            View::Snapshot(_) => Err(read_only()),
        }
    }

    fn savepoint(&mut self) -> Result<Option<usize>> {
        match &mut self.view {
            View::Transaction(tx, marks) => {
                marks.push(tx.savepoint()?);
                Ok(Some(marks.len() - 1))
            }
            View::Snapshot(_) => Err(read_only()),
        }
    }

    fn rollback_to(&mut self, savepoint: usize) -> Result<()> {
        match &mut self.view {
            View::Transaction(tx, marks) => Ok(tx.rollback_to(marks[savepoint])?),
            View::Snapshot(_) => Err(read_only()),
        }
    }

    fn commit(self) -> Result<()> {
        match self.view {
            View::Transaction(tx, _) => tx.commit().map_err(at_commit),
            // Each read of a snapshot waited for what it showed to be durable.
            View::Snapshot(_) => Ok(()),
        }
    }

    fn rollback(self) {
        if let View::Transaction(tx, _) = self.view {
            tx.rollback();
        }
    }
}
