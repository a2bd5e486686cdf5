//! RocksDB: a column family per keyspace, optimistic transactions (they leave single operations at full speed).
//!
//! Invariant: a column family's handle is dropped before its database (field order of [`Family`]).

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rocksdb::{
    BlockBasedOptions, BoundColumnFamily, Cache, ColumnFamilyDescriptor, DBAccess, DBCompressionType,
    DBRawIteratorWithThreadMode, ErrorKind, IngestExternalFileOptions, MultiThreaded, OptimisticTransactionDB,
    OptimisticTransactionOptions, Options, SnapshotWithThreadMode, SstFileWriter, Transaction, WriteOptions,
};
use varve_lab::adapter::{Direction, Durability, KeyRange, Store, StoreStats, TxMode, Txn};
use varve_lab::{Error, Result};

use super::read_only;
use crate::engine::{Description, Engine, Kind, Push, Settings};

type Db = OptimisticTransactionDB<MultiThreaded>;

/// A RocksDB database.
pub struct RocksStore {
    db: Arc<Db>,
    options: Options,
    /// Where bulk loads write their files.
    new_files: PathBuf,
}

/// Bytes of rows in a file of a bulk load.
const FILE_BYTES: usize = 64 << 20;

fn memtable_bytes(settings: &Settings) -> u64 {
    if settings.scarce() { settings.cache_bytes / 16 } else { 64 << 20 }
}

/// The block cache; where memory is scarce, compactions and memtables come out of it (one in use, one being written,
/// one kept to validate transactions against), and the lock table of optimistic transactions, 56 MiB, takes what else
/// there is.
fn block_cache(settings: &Settings) -> u64 {
    settings.cache_bytes - if settings.scarce() { 8 * memtable_bytes(settings) } else { 0 }
}

fn options(settings: &Settings) -> Result<Options> {
    let scarce = settings.scarce();
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(&Cache::new_lru_cache(block_cache(settings) as usize).map_err(wrap)?);
    table.set_bloom_filter(10.0, false);
    table.set_format_version(5);
    table.set_cache_index_and_filter_blocks(scarce);
    table.set_pin_l0_filter_and_index_blocks_in_cache(scarce);
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_block_based_table_factory(&table);
    options.set_compression_type(DBCompressionType::None);
    options.set_manual_wal_flush(true);
    options.increase_parallelism(2);
    options.set_write_buffer_size(memtable_bytes(settings) as usize);
    if scarce {
        options.set_max_write_buffer_size_to_maintain(memtable_bytes(settings) as i64);
    }
    options.set_use_direct_reads(scarce);
    options.set_use_direct_io_for_flush_and_compaction(scarce);
    Ok(options)
}

struct Family {
    handle: Arc<BoundColumnFamily<'static>>,
    _db: Arc<Db>,
}

// SAFETY: RocksDB allows any number of threads to use a handle at once; the crate declares as much for handles sent.
unsafe impl Sync for Family {}
// SAFETY: as above; a handle may be destroyed by any thread.
unsafe impl Send for Family {}

/// A column family.
#[derive(Clone)]
pub struct RocksKeyspace(Arc<Family>);

fn wrap(e: rocksdb::Error) -> Error {
    match e.kind() {
        ErrorKind::Busy | ErrorKind::TryAgain => Error::Conflict(e.into_string()),
        _ => Error::store(e),
    }
}

fn write_options(durability: Durability) -> WriteOptions {
    let mut options = WriteOptions::default();
    options.set_sync(durability == Durability::Sync);
    options
}

impl Store for RocksStore {
    type Keyspace = RocksKeyspace;
    type Txn<'a> = RocksTxn<'a>;

    fn name(&self) -> &str {
        Self::NAME
    }

    fn keyspace(&self, name: &str) -> Result<RocksKeyspace> {
        if self.db.cf_handle(name).is_none() {
            self.db.create_cf(name, &self.options).map_err(wrap)?;
        }
        self.find_keyspace(name)?.ok_or_else(|| Error::store(format!("column family {name:?} was not created")))
    }

    fn find_keyspace(&self, name: &str) -> Result<Option<RocksKeyspace>> {
        let Some(handle) = self.db.cf_handle(name) else { return Ok(None) };
        // SAFETY: `Family` keeps the database open for as long as the handle is there.
        let handle =
            unsafe { std::mem::transmute::<Arc<BoundColumnFamily<'_>>, Arc<BoundColumnFamily<'static>>>(handle) };
        Ok(Some(RocksKeyspace(Arc::new(Family { handle, _db: self.db.clone() }))))
    }

    fn begin(&self, mode: TxMode, durability: Durability) -> Result<RocksTxn<'_>> {
        if mode != TxMode::ReadWrite {
            return Ok(RocksTxn::Read(self.db.snapshot()));
        }
        let mut options = OptimisticTransactionOptions::default();
        options.set_snapshot(true);
        Ok(RocksTxn::Write(self.db.transaction_opt(&write_options(durability), &options)))
    }

    fn stats(&self) -> StoreStats {
        StoreStats::default()
    }

    fn get_one<R>(&self, ks: &RocksKeyspace, key: &[u8], f: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        Ok(f(self.db.get_pinned_cf(&ks.0.handle, key).map_err(wrap)?.as_deref()))
    }

    fn put_one(&self, ks: &RocksKeyspace, key: &[u8], value: &[u8], durability: Durability) -> Result<()> {
        self.db.put_cf_opt(&ks.0.handle, key, value, &write_options(durability)).map_err(wrap)
    }
}

/// A transaction of a [`RocksStore`].
pub enum RocksTxn<'a> {
    /// Reads as of its begin.
    Read(SnapshotWithThreadMode<'a, Db>),
    /// Validated at commit: keys read and written; ranges are not.
    Write(Transaction<'a, Db>),
}

fn walk<D: DBAccess>(
    mut rows: DBRawIteratorWithThreadMode<'_, D>,
    range: KeyRange<'_>,
    direction: Direction,
    mut each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
) -> Result<()> {
    match (direction, range.to) {
        (Direction::Forward, _) => rows.seek(range.from),
        (Direction::Reverse, None) => rows.seek_to_last(),
        (Direction::Reverse, Some(to)) => {
            rows.seek_for_prev(to);
            if rows.key() == Some(to) {
                rows.prev();
            }
        }
    }
    while let Some((key, value)) = rows.item() {
        if !range.contains(key) || each(key, value).is_break() {
            return Ok(());
        }
        if direction == Direction::Forward { rows.next() } else { rows.prev() }
    }
    rows.status().map_err(wrap)
}

impl Txn for RocksTxn<'_> {
    type Keyspace = RocksKeyspace;

    fn get<R>(&mut self, ks: &RocksKeyspace, key: &[u8], f: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        let cf = &ks.0.handle;
        let found = match self {
            RocksTxn::Read(snapshot) => snapshot.get_pinned_cf(cf, key),
            RocksTxn::Write(tx) => tx.get_pinned_for_update_cf(cf, key, true),
        };
        Ok(f(found.map_err(wrap)?.as_deref()))
    }

    fn put(&mut self, ks: &RocksKeyspace, key: &[u8], value: &[u8]) -> Result<()> {
        let RocksTxn::Write(tx) = self else { return Err(read_only()) };
        tx.put_cf(&ks.0.handle, key, value).map_err(wrap)
    }

    fn delete(&mut self, ks: &RocksKeyspace, key: &[u8]) -> Result<()> {
        let RocksTxn::Write(tx) = self else { return Err(read_only()) };
        tx.delete_cf(&ks.0.handle, key).map_err(wrap)
    }

    fn scan(
        &mut self,
        ks: &RocksKeyspace,
        range: KeyRange<'_>,
        direction: Direction,
        each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        match self {
            RocksTxn::Read(snapshot) => walk(snapshot.raw_iterator_cf(&ks.0.handle), range, direction, each),
            RocksTxn::Write(tx) => walk(tx.raw_iterator_cf(&ks.0.handle), range, direction, each),
        }
    }

    fn commit(self) -> Result<()> {
        match self {
            RocksTxn::Read(_) => Ok(()),
            RocksTxn::Write(tx) => tx.commit().map_err(|e| match wrap(e) {
                Error::Store(e) => Error::CommitUnknown(e),
                other => other,
            }),
        }
    }

    fn rollback(self) {}
}

impl Engine for RocksStore {
    const NAME: &'static str = "rocksdb";

    const KIND: Kind = Kind::Lsm;

    fn open(dir: &Path, settings: &Settings) -> Result<Self> {
        let path = dir.join("db");
        let options = options(settings)?;
        let mut families = Db::list_cf(&options, &path).unwrap_or_default();
        if families.is_empty() {
            families.push("default".to_string());
        }
        let families = families.into_iter().map(|name| ColumnFamilyDescriptor::new(name, options.clone()));
        let db = Db::open_cf_descriptors(&options, path, families).map_err(wrap)?;
        Ok(RocksStore { db: Arc::new(db), options, new_files: dir.join("bulk") })
    }

    fn bulk_load(&self, name: &str, rows: impl FnOnce(&mut Push<'_>) -> Result<()>) -> Result<RocksKeyspace> {
        let ks = self.keyspace(name)?;
        std::fs::create_dir_all(&self.new_files).map_err(Error::store)?;
        let mut writer = SstFileWriter::create(&self.options);
        let (mut files, mut bytes) = (Vec::new(), 0);
        rows(&mut |key, value| {
            if bytes == 0 {
                files.push(self.new_files.join(files.len().to_string()));
                writer.open(&files[files.len() - 1]).map_err(wrap)?;
            }
            writer.put(key, value).map_err(wrap)?;
            bytes += key.len() + value.len();
            if bytes > FILE_BYTES {
                bytes = 0;
                writer.finish().map_err(wrap)?;
            }
            Ok(())
        })?;
        if bytes > 0 {
            writer.finish().map_err(wrap)?;
        }
        let mut how = IngestExternalFileOptions::default();
        how.set_move_files(true);
        self.db.ingest_external_file_cf_opts(&ks.0.handle, &how, files).map_err(wrap)?;
        Ok(ks)
    }

    fn describe(settings: &Settings) -> Description {
        Description {
            version: "7.8 (Debian's library)".to_string(),
            setup: format!(
                "block cache of {} MiB{}, memtables of {} MiB, bloom filters of 10 bits, no compression",
                block_cache(settings) >> 20,
                if settings.scarce() { " with index and filters, direct I/O" } else { "" },
                memtable_bytes(settings) >> 20
            ),
            durable: "sync=true: flushes the log, shared by concurrent commits",
            not_synced: "manual_wal_flush: log in memory, written when its buffer is full",
            isolation: "keys read and written are validated at commit, ranges are not; single writes go past that",
            bulk: "`SstFileWriter`, files moved in",
        }
    }

    fn scan_from(
        &self,
        ks: &RocksKeyspace,
        from: &[u8],
        each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        let rows = self.db.raw_iterator_cf(&ks.0.handle);
        walk(rows, KeyRange::starting_at(from), Direction::Forward, each)
    }
}
