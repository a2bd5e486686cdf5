//! fjall: a log-structured merge tree per keyspace over one journal, with transactions of one writer at a time.

use std::ops::{Bound, ControlFlow};
use std::path::Path;

use fjall::{
    KeyspaceCreateOptions, PersistMode, Readable, SingleWriterTxDatabase, SingleWriterTxKeyspace, SingleWriterWriteTx,
    Snapshot,
};
use varve_lab::adapter::{Direction, Durability, KeyRange, Store, StoreStats, TxMode, Txn};
use varve_lab::{Error, Result};

use super::read_only;
use crate::engine::{Description, Engine, Kind, Push, Settings};

/// A fjall database.
pub struct FjallStore {
    db: SingleWriterTxDatabase,
    memtable_bytes: u64,
}

/// Size of a memtable, bytes; there may be five.
fn memtable_bytes(settings: &Settings) -> u64 {
    if settings.scarce() { settings.cache_bytes / 16 } else { 64 << 20 }
}

/// The block cache, bytes. Where memory is scarce, memtables and compactions need the larger part: with more than this
/// it ends up beyond 320 MiB where the cache may be 256. What is left goes to the system's page cache.
fn block_cache(settings: &Settings) -> u64 {
    settings.cache_bytes / if settings.scarce() { 4 } else { 1 }
}

fn wrap(e: fjall::Error) -> Error {
    Error::store(e)
}

/// What a commit of this durability does with the journal; `None`: leave it in the journal's buffer.
fn persist_mode(durability: Durability) -> Option<PersistMode> {
    match durability {
        Durability::Sync => Some(PersistMode::SyncData),
        Durability::Async => Some(PersistMode::Buffer),
        Durability::None => None,
    }
}

impl Store for FjallStore {
    type Keyspace = SingleWriterTxKeyspace;
    type Txn<'a> = FjallTxn<'a>;

    fn name(&self) -> &str {
        Self::NAME
    }

    fn keyspace(&self, name: &str) -> Result<SingleWriterTxKeyspace> {
        let options = KeyspaceCreateOptions::default().manual_journal_persist(true);
        self.db.keyspace(name, || options.max_memtable_size(self.memtable_bytes)).map_err(wrap)
    }

    fn find_keyspace(&self, name: &str) -> Result<Option<SingleWriterTxKeyspace>> {
        if self.db.keyspace_exists(name) { self.keyspace(name).map(Some) } else { Ok(None) }
    }

    fn begin(&self, mode: TxMode, durability: Durability) -> Result<FjallTxn<'_>> {
        Ok(match mode {
            TxMode::ReadWrite => FjallTxn::Write(self.db.write_tx().durability(persist_mode(durability))),
            TxMode::ReadOnly | TxMode::Snapshot => FjallTxn::Read(self.db.read_tx()),
        })
    }

    fn stats(&self) -> StoreStats {
        StoreStats::default()
    }

    fn get_one<R>(&self, ks: &SingleWriterTxKeyspace, key: &[u8], f: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        Ok(f(ks.get(key).map_err(wrap)?.as_deref()))
    }

    fn put_one(&self, ks: &SingleWriterTxKeyspace, key: &[u8], value: &[u8], durability: Durability) -> Result<()> {
        ks.inner().insert(key, value).map_err(wrap)?;
        match persist_mode(durability) {
            Some(mode) => self.db.persist(mode).map_err(|e| Error::CommitUnknown(e.into())),
            None => Ok(()),
        }
    }
}

/// A transaction of a [`FjallStore`].
pub enum FjallTxn<'a> {
    /// Reads as of its begin.
    Read(Snapshot),
    /// Holds the database's write lock.
    Write(SingleWriterWriteTx<'a>),
}

impl Txn for FjallTxn<'_> {
    type Keyspace = SingleWriterTxKeyspace;

    fn get<R>(&mut self, ks: &SingleWriterTxKeyspace, key: &[u8], f: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        let found = match self {
            FjallTxn::Read(tx) => tx.get(ks, key),
            FjallTxn::Write(tx) => tx.get(ks, key),
        };
        Ok(f(found.map_err(wrap)?.as_deref()))
    }

    fn put(&mut self, ks: &SingleWriterTxKeyspace, key: &[u8], value: &[u8]) -> Result<()> {
        let FjallTxn::Write(tx) = self else { return Err(read_only()) };
        tx.insert(ks, key, value);
        Ok(())
    }

    fn delete(&mut self, ks: &SingleWriterTxKeyspace, key: &[u8]) -> Result<()> {
        let FjallTxn::Write(tx) = self else { return Err(read_only()) };
        tx.remove(ks, key);
        Ok(())
    }

    fn scan(
        &mut self,
        ks: &SingleWriterTxKeyspace,
        range: KeyRange<'_>,
        direction: Direction,
        mut each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let bounds = (Bound::Included(range.from), range.to.map_or(Bound::Unbounded, Bound::Excluded));
        let mut rows = match self {
            FjallTxn::Read(tx) => tx.range::<&[u8], _>(ks, bounds),
            FjallTxn::Write(tx) => tx.range::<&[u8], _>(ks, bounds),
        };
        loop {
            let row = if direction == Direction::Forward { rows.next() } else { rows.next_back() };
            let Some(row) = row else { return Ok(()) };
            let (key, value) = row.into_inner().map_err(wrap)?;
            if each(&key, &value).is_break() {
                return Ok(());
            }
        }
    }

    fn commit(self) -> Result<()> {
        match self {
            FjallTxn::Read(_) => Ok(()),
            FjallTxn::Write(tx) => tx.commit().map_err(|e| Error::CommitUnknown(e.into())),
        }
    }

    fn rollback(self) {}
}

impl Engine for FjallStore {
    const NAME: &'static str = "fjall";

    const KIND: Kind = Kind::Lsm;

    fn open(dir: &Path, settings: &Settings) -> Result<Self> {
        let memtable_bytes = memtable_bytes(settings);
        let builder = SingleWriterTxDatabase::builder(dir.join("db"));
        let db = builder.cache_size(block_cache(settings)).manual_journal_persist(true).open().map_err(wrap)?;
        Ok(FjallStore { db, memtable_bytes })
    }

    fn describe(settings: &Settings) -> Description {
        Description {
            version: "3".to_string(),
            setup: format!(
                "block cache of {} MiB, memtables of {} MiB, no compression",
                block_cache(settings) >> 20,
                memtable_bytes(settings) >> 20
            ),
            durable: "PersistMode::SyncData: flushes (fdatasync) the journal at each commit",
            not_synced: "journal in memory, written when its buffer is full",
            isolation: "serializable, one writer at a time; single writes go past the transactions",
            bulk: "`start_ingestion`",
        }
    }

    fn bulk_load(&self, name: &str, rows: impl FnOnce(&mut Push<'_>) -> Result<()>) -> Result<SingleWriterTxKeyspace> {
        let ks = self.keyspace(name)?;
        let mut load = ks.inner().start_ingestion().map_err(wrap)?;
        rows(&mut |key, value| load.write(key, value).map_err(wrap))?;
        load.finish().map_err(wrap)?;
        Ok(ks)
    }

    fn scan_from(
        &self,
        ks: &SingleWriterTxKeyspace,
        from: &[u8],
        mut each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        for row in ks.inner().range::<&[u8], _>((Bound::Included(from), Bound::Unbounded)) {
            let (key, value) = row.into_inner().map_err(wrap)?;
            if each(&key, &value).is_break() {
                break;
            }
        }
        Ok(())
    }
}
