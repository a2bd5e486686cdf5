//! redb: a copy-on-write tree with a cache of its own, one writer at a time, readers that block nobody.
//!
//! A table has to be opened in each transaction; a transaction keeps the tables it has opened.
//!
//! Invariant: an open table borrows from the write transaction beside it; it is dropped first (field order of
//! [`RedbTxn`], and [`RedbTxn::end`]).

use std::ops::{Bound, ControlFlow};
use std::path::Path;

use redb::{
    Database, ReadOnlyTable, ReadTransaction, ReadableDatabase, ReadableTable, Table, TableDefinition, WriteTransaction,
};
use varve_lab::adapter::{Direction, Durability, KeyRange, Store, StoreStats, TxMode, Txn};
use varve_lab::{Error, Result};
use varve_rt::Mutex;

use super::read_only;
use crate::engine::{Description, Engine, Kind, Push, Settings};

type Bytes = &'static [u8];

/// A redb database.
pub struct RedbStore {
    db: Database,
    names: Mutex<Vec<&'static str>>,
}

/// A table: its index among those opened, and its name.
#[derive(Debug, Clone, Copy)]
pub struct RedbKeyspace {
    index: usize,
    name: &'static str,
}

impl RedbKeyspace {
    fn definition(&self) -> TableDefinition<'static, Bytes, Bytes> {
        TableDefinition::new(self.name)
    }
}

fn wrap(e: impl Into<redb::Error>) -> Error {
    Error::store(e.into())
}

impl RedbStore {
    fn handle(&self, name: &str) -> RedbKeyspace {
        let mut names = self.names.lock();
        let index = names.iter().position(|n| *n == name).unwrap_or_else(|| {
            // A handful of names per process.
            names.push(String::leak(name.to_string()));
            names.len() - 1
        });
        RedbKeyspace { index, name: names[index] }
    }
}

impl Store for RedbStore {
    type Keyspace = RedbKeyspace;
    type Txn<'a> = RedbTxn;

    fn name(&self) -> &str {
        Self::NAME
    }

    fn keyspace(&self, name: &str) -> Result<RedbKeyspace> {
        let handle = self.handle(name);
        let tx = self.db.begin_write().map_err(wrap)?;
        tx.open_table(handle.definition()).map_err(wrap)?;
        tx.commit().map_err(wrap)?;
        Ok(handle)
    }

    fn find_keyspace(&self, name: &str) -> Result<Option<RedbKeyspace>> {
        let handle = self.handle(name);
        let tx = self.db.begin_read().map_err(wrap)?;
        match tx.open_table(handle.definition()) {
            Ok(_) => Ok(Some(handle)),
            Err(redb::TableError::TableDoesNotExist(_)) => Ok(None),
            Err(e) => Err(wrap(e)),
        }
    }

    fn begin(&self, mode: TxMode, durability: Durability) -> Result<RedbTxn> {
        if mode != TxMode::ReadWrite {
            return Ok(RedbTxn(View::Read { tables: Vec::new(), tx: self.db.begin_read().map_err(wrap)? }));
        }
        let mut tx = self.db.begin_write().map_err(wrap)?;
        let how = if durability == Durability::Sync { redb::Durability::Immediate } else { redb::Durability::None };
        tx.set_durability(how).map_err(wrap)?;
        Ok(RedbTxn(View::Write { tables: Vec::new(), tx: Box::new(tx) }))
    }

    fn stats(&self) -> StoreStats {
        StoreStats::default()
    }
}

/// A transaction of a [`RedbStore`].
pub struct RedbTxn(View);

enum View {
    Read { tables: Vec<Option<ReadOnlyTable<Bytes, Bytes>>>, tx: ReadTransaction },
    Write { tables: Vec<Option<Table<'static, Bytes, Bytes>>>, tx: Box<WriteTransaction> },
}

fn read_table<'t>(
    tables: &'t mut Vec<Option<ReadOnlyTable<Bytes, Bytes>>>,
    tx: &ReadTransaction,
    ks: &RedbKeyspace,
) -> Result<&'t ReadOnlyTable<Bytes, Bytes>> {
    if tables.len() <= ks.index {
        tables.resize_with(ks.index + 1, || None);
    }
    if tables[ks.index].is_none() {
        tables[ks.index] = Some(tx.open_table(ks.definition()).map_err(wrap)?);
    }
    Ok(tables[ks.index].as_ref().expect("opened above"))
}

fn write_table<'t>(
    tables: &'t mut Vec<Option<Table<'static, Bytes, Bytes>>>,
    tx: &WriteTransaction,
    ks: &RedbKeyspace,
) -> Result<&'t mut Table<'static, Bytes, Bytes>> {
    if tables.len() <= ks.index {
        tables.resize_with(ks.index + 1, || None);
    }
    if tables[ks.index].is_none() {
        let table = tx.open_table(ks.definition()).map_err(wrap)?;
        // SAFETY: the transaction is boxed, so that it does not move, and outlives its tables: they are dropped
        // before it, by field order or by `commit`.
        let table = unsafe { std::mem::transmute::<Table<'_, Bytes, Bytes>, Table<'static, Bytes, Bytes>>(table) };
        tables[ks.index] = Some(table);
    }
    Ok(tables[ks.index].as_mut().expect("opened above"))
}

fn walk(
    rows: redb::Range<'_, Bytes, Bytes>,
    direction: Direction,
    mut each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
) -> Result<()> {
    let mut rows = rows;
    loop {
        let row = if direction == Direction::Forward { rows.next() } else { rows.next_back() };
        let Some(row) = row else { return Ok(()) };
        let (key, value) = row.map_err(wrap)?;
        if each(key.value(), value.value()).is_break() {
            return Ok(());
        }
    }
}

impl Txn for RedbTxn {
    type Keyspace = RedbKeyspace;

    fn get<R>(&mut self, ks: &RedbKeyspace, key: &[u8], f: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        let found = match &mut self.0 {
            View::Read { tables, tx } => read_table(tables, tx, ks)?.get(key).map_err(wrap)?,
            View::Write { tables, tx } => {
                let found = write_table(tables, tx, ks)?.get(key).map_err(wrap)?;
                return Ok(f(found.as_ref().map(|v| v.value())));
            }
        };
        Ok(f(found.as_ref().map(|v| v.value())))
    }

    fn put(&mut self, ks: &RedbKeyspace, key: &[u8], value: &[u8]) -> Result<()> {
        let View::Write { tables, tx } = &mut self.0 else { return Err(read_only()) };
        write_table(tables, tx, ks)?.insert(key, value).map_err(wrap)?;
        Ok(())
    }

    fn delete(&mut self, ks: &RedbKeyspace, key: &[u8]) -> Result<()> {
        let View::Write { tables, tx } = &mut self.0 else { return Err(read_only()) };
        write_table(tables, tx, ks)?.remove(key).map_err(wrap)?;
        Ok(())
    }

    fn scan(
        &mut self,
        ks: &RedbKeyspace,
        range: KeyRange<'_>,
        direction: Direction,
        each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let bounds = (Bound::Included(range.from), range.to.map_or(Bound::Unbounded, Bound::Excluded));
        match &mut self.0 {
            View::Read { tables, tx } => {
                walk(read_table(tables, tx, ks)?.range::<&[u8]>(bounds).map_err(wrap)?, direction, each)
            }
            View::Write { tables, tx } => {
                walk(write_table(tables, tx, ks)?.range::<&[u8]>(bounds).map_err(wrap)?, direction, each)
            }
        }
    }

    fn commit(self) -> Result<()> {
        match self.0 {
            View::Read { tables, tx } => {
                drop(tables);
                tx.close().map_err(wrap)
            }
            View::Write { tables, tx } => {
                drop(tables);
                tx.commit().map_err(|e| Error::CommitUnknown(e.into()))
            }
        }
    }

    fn rollback(self) {}
}

/// Where memory is scarce, a part of it: redb has much beside its pages while commits are not durable, and ends up
/// beyond 320 MiB with a cache of 256.
fn cache_bytes(settings: &Settings) -> u64 {
    if settings.scarce() { settings.cache_bytes / 4 * 3 } else { settings.cache_bytes }
}

impl Engine for RedbStore {
    const NAME: &'static str = "redb";

    const KIND: Kind = Kind::BTree;

    fn open(dir: &Path, settings: &Settings) -> Result<Self> {
        let mut builder = redb::Builder::new();
        builder.set_cache_size(cache_bytes(settings) as usize);
        let db = builder.create(dir.join("data.redb")).map_err(wrap)?;
        Ok(RedbStore { db, names: Mutex::new(Vec::new()) })
    }

    fn describe(settings: &Settings) -> Description {
        Description {
            version: "4".to_string(),
            setup: format!("cache of {} MiB, pages of 4096 bytes", cache_bytes(settings) >> 20),
            durable: "Durability::Immediate: flushes (fdatasync) at each commit",
            not_synced: "Durability::None: pages in memory or written to the system",
            isolation: "serializable, one writer at a time",
            bulk: "one transaction of inserts in key order",
        }
    }

    fn bulk_load(&self, name: &str, rows: impl FnOnce(&mut Push<'_>) -> Result<()>) -> Result<RedbKeyspace> {
        let ks = self.handle(name);
        let mut tx = self.begin(TxMode::ReadWrite, Durability::Sync)?;
        rows(&mut |key, value| tx.put(&ks, key, value))?;
        tx.commit()?;
        Ok(ks)
    }
}
