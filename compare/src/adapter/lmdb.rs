//! LMDB through heed: a copy-on-write tree in a memory map, one writer at a time, readers that block nobody.
//!
//! Durability is a flag of the environment, not of a transaction. It is set by the writer, which has the
//! environment's one write lock by then.

use std::ops::{Bound, ControlFlow};
use std::path::Path;

use heed::types::Bytes;
use heed::{Database, Env, EnvFlags, EnvOpenOptions, FlagSetMode, PutFlags, RoTxn, RwTxn, WithTls};
use varve_lab::adapter::{Direction, Durability, KeyRange, Store, StoreStats, TxMode, Txn};
use varve_lab::{Error, Result};
use varve_rt::atomic::{AtomicBool, Ordering};

use super::read_only;
use crate::engine::{Description, Engine, Kind, Push, Settings};

/// Address space reserved for the map, bytes.
const MAP_BYTES: usize = 64 << 30;
/// Bytes of rows per transaction of a bulk load.
const LOAD_BYTES: usize = 64 << 20;

/// An LMDB environment.
pub struct LmdbStore {
    env: Env<WithTls>,
    /// Whether the environment is set to flush; changed under its write lock.
    syncing: AtomicBool,
}

/// A named database of the environment.
pub type LmdbKeyspace = Database<Bytes, Bytes>;

fn wrap(e: heed::Error) -> Error {
    Error::store(e)
}

impl LmdbStore {
    fn set_syncing(&self, sync: bool) -> Result<()> {
        if self.syncing.load(Ordering::Relaxed) != sync {
            let mode = if sync { FlagSetMode::Disable } else { FlagSetMode::Enable };
            // SAFETY: the flag only decides whether commits flush; the caller holds the environment's write lock.
            unsafe { self.env.set_flags(EnvFlags::NO_SYNC, mode) }.map_err(wrap)?;
            self.syncing.store(sync, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl Store for LmdbStore {
    type Keyspace = LmdbKeyspace;
    type Txn<'a> = LmdbTxn<'a>;

    fn name(&self) -> &str {
        Self::NAME
    }

    fn keyspace(&self, name: &str) -> Result<LmdbKeyspace> {
        let mut tx = self.env.write_txn().map_err(wrap)?;
        let database = self.env.create_database(&mut tx, Some(name)).map_err(wrap)?;
        tx.commit().map_err(wrap)?;
        Ok(database)
    }

    fn find_keyspace(&self, name: &str) -> Result<Option<LmdbKeyspace>> {
        let tx = self.env.read_txn().map_err(wrap)?;
        let database = self.env.open_database(&tx, Some(name)).map_err(wrap)?;
        // A handle opened in a transaction belongs to everyone once that has committed.
        tx.commit().map_err(wrap)?;
        Ok(database)
    }

    fn begin(&self, mode: TxMode, durability: Durability) -> Result<LmdbTxn<'_>> {
        if mode != TxMode::ReadWrite {
            return Ok(LmdbTxn::Read(self.env.read_txn().map_err(wrap)?));
        }
        let tx = self.env.write_txn().map_err(wrap)?;
        self.set_syncing(durability == Durability::Sync)?;
        Ok(LmdbTxn::Write(tx))
    }

    fn stats(&self) -> StoreStats {
        StoreStats::default()
    }
}

/// A transaction of an [`LmdbStore`].
pub enum LmdbTxn<'a> {
    /// Reads as of its begin.
    Read(RoTxn<'a, WithTls>),
    /// Holds the environment's write lock.
    Write(RwTxn<'a>),
}

impl LmdbTxn<'_> {
    fn reader(&self) -> &RoTxn<'_> {
        match self {
            LmdbTxn::Read(tx) => tx,
            LmdbTxn::Write(tx) => tx,
        }
    }

    fn writer<'t, 'a>(this: &'t mut LmdbTxn<'a>) -> Result<&'t mut RwTxn<'a>> {
        match this {
            LmdbTxn::Read(_) => Err(read_only()),
            LmdbTxn::Write(tx) => Ok(tx),
        }
    }
}

impl Txn for LmdbTxn<'_> {
    type Keyspace = LmdbKeyspace;

    fn get<R>(&mut self, ks: &LmdbKeyspace, key: &[u8], f: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        Ok(f(ks.get(self.reader(), key).map_err(wrap)?))
    }

    fn put(&mut self, ks: &LmdbKeyspace, key: &[u8], value: &[u8]) -> Result<()> {
        ks.put(Self::writer(self)?, key, value).map_err(wrap)
    }

    fn delete(&mut self, ks: &LmdbKeyspace, key: &[u8]) -> Result<()> {
        ks.delete(Self::writer(self)?, key).map(|_| ()).map_err(wrap)
    }

    fn scan(
        &mut self,
        ks: &LmdbKeyspace,
        range: KeyRange<'_>,
        direction: Direction,
        mut each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        // LMDB knows no empty key, not even to look for.
        let from = if range.from.is_empty() { Bound::Unbounded } else { Bound::Included(range.from) };
        let bounds = (from, range.to.map_or(Bound::Unbounded, Bound::Excluded));
        let mut walk = |rows: &mut dyn Iterator<Item = heed::Result<(&[u8], &[u8])>>| {
            for row in rows {
                let (key, value) = row.map_err(wrap)?;
                if each(key, value).is_break() {
                    break;
                }
            }
            Ok(())
        };
        match direction {
            Direction::Forward => walk(&mut ks.range(self.reader(), &bounds).map_err(wrap)?),
            Direction::Reverse => walk(&mut ks.rev_range(self.reader(), &bounds).map_err(wrap)?),
        }
    }

    fn commit(self) -> Result<()> {
        match self {
            LmdbTxn::Read(tx) => tx.commit().map_err(wrap),
            LmdbTxn::Write(tx) => tx.commit().map_err(|e| Error::CommitUnknown(e.into())),
        }
    }

    fn rollback(self) {}
}

impl Engine for LmdbStore {
    const NAME: &'static str = "lmdb";

    const KIND: Kind = Kind::BTree;

    fn open(dir: &Path, settings: &Settings) -> Result<Self> {
        let mut options = EnvOpenOptions::new();
        options.map_size(MAP_BYTES).max_dbs(64).max_readers(256);
        if settings.scarce() {
            // SAFETY: the flag only says that neighbours of a page that is read are not wanted.
            unsafe { options.flags(EnvFlags::NO_READ_AHEAD) };
        }
        // SAFETY: the directory was made for this process and nobody else touches the file.
        let env = unsafe { options.open(dir) }.map_err(wrap)?;
        Ok(LmdbStore { env, syncing: AtomicBool::new(true) })
    }

    fn close(self) -> Result<()> {
        self.env.prepare_for_closing().wait();
        Ok(())
    }

    fn bulk_load(&self, name: &str, rows: impl FnOnce(&mut Push<'_>) -> Result<()>) -> Result<LmdbKeyspace> {
        let ks = self.keyspace(name)?;
        let (mut open, mut bytes) = (None, 0);
        rows(&mut |key, value| {
            if open.is_none() {
                open = Some(self.env.write_txn().map_err(wrap)?);
                self.set_syncing(false)?;
            }
            let tx = open.as_mut().expect("begun above");
            ks.put_with_flags(tx, PutFlags::APPEND, key, value).map_err(wrap)?;
            bytes += key.len() + value.len();
            if bytes > LOAD_BYTES {
                bytes = 0;
                open.take().map_or(Ok(()), RwTxn::commit).map_err(wrap)?;
            }
            Ok(())
        })?;
        open.map_or(Ok(()), RwTxn::commit).map_err(wrap)?;
        self.env.force_sync().map_err(wrap)?;
        Ok(ks)
    }

    fn describe(settings: &Settings) -> Description {
        let (major, minor, patch) =
            (heed::lmdb_version().major, heed::lmdb_version().minor, heed::lmdb_version().patch);
        Description {
            version: format!("{major}.{minor}.{patch}"),
            setup: format!(
                "heed, memory map, no cache of its own: the system's page cache{}",
                if settings.scarce() { ", no read-ahead" } else { "" }
            ),
            durable: "flushes the pages (fdatasync), then the meta page (O_DSYNC), at each commit",
            not_synced: "NO_SYNC: pages written to the system, not flushed; a power cut may damage the file",
            isolation: "serializable, one writer at a time",
            bulk: "MDB_APPEND, 64 MiB per transaction, one flush at the end",
        }
    }
}
