//! What the harness asks of an engine besides the lab's `Store`: opening it with a given memory budget, closing it,
//! saying how it was set up, and its direct way for single operations where it has one that is faster than a
//! transaction.

use std::ops::ControlFlow;
use std::path::Path;

use varve_lab::Result;
use varve_lab::adapter::varve::VarveStore;
use varve_lab::adapter::{Direction, Durability, KeyRange, Store, TxMode, Txn};

/// How a database is opened for a measurement.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Memory that the engine may use as cache, bytes. Engines that read through the system's page cache alone ignore
    /// it; the machine has enough of that for every data set here.
    pub cache_bytes: u64,
    /// Page size for engines that let one choose, bytes.
    pub page_size: usize,
}

/// How an engine was set up, for the page of results.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Description {
    /// Version of the engine.
    pub version: String,
    /// Cache, page or block size, and whatever else was set.
    pub setup: String,
    /// What a durable commit does, and whether that really reaches the medium.
    pub durable: &'static str,
    /// What a commit that is not synced does.
    pub not_synced: &'static str,
    /// Isolation of read-write transactions.
    pub isolation: &'static str,
}

/// An engine that can be compared.
pub trait Engine: Store + Sized {
    /// Name on the command line and in tables.
    const NAME: &'static str;

    /// Creates a database in the empty directory `dir`.
    fn create(dir: &Path, settings: &Settings) -> Result<Self>;

    /// Closes the database; background work ends before this returns.
    fn close(self) -> Result<()> {
        drop(self);
        Ok(())
    }

    /// How it is set up.
    fn describe(settings: &Settings) -> Description;

    /// Reads one key by itself.
    fn read_one<R>(&self, ks: &Self::Keyspace, key: &[u8], f: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        let mut tx = self.begin(TxMode::ReadOnly, Durability::None)?;
        let value = tx.get(ks, key, f)?;
        tx.commit()?;
        Ok(value)
    }

    /// Writes one key by itself.
    fn write_one(&self, ks: &Self::Keyspace, key: &[u8], value: &[u8], durability: Durability) -> Result<()> {
        let mut tx = self.begin(TxMode::ReadWrite, durability)?;
        tx.put(ks, key, value)?;
        tx.commit()
    }

    /// Walks up from `from` by itself.
    fn scan_from(
        &self,
        ks: &Self::Keyspace,
        from: &[u8],
        each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut tx = self.begin(TxMode::ReadOnly, Durability::None)?;
        tx.scan(ks, KeyRange::starting_at(from), Direction::Forward, each)?;
        tx.commit()
    }
}

impl Engine for VarveStore {
    const NAME: &'static str = "varve";

    fn create(dir: &Path, settings: &Settings) -> Result<Self> {
        let layout = varve::Layout { page_size: settings.page_size, ..varve::Layout::default() };
        let options = varve::Options { cache_bytes: settings.cache_bytes, ..varve::Options::default() };
        Ok(VarveStore::new(varve::Db::create(dir.join("db"), &layout, options)?))
    }

    fn close(self) -> Result<()> {
        Ok(self.db().clone().close()?)
    }

    fn describe(settings: &Settings) -> Description {
        Description {
            version: env!("CARGO_PKG_VERSION").to_string(),
            setup: format!(
                "memory for everything {} MiB, pages of {} bytes, O_DIRECT, checksums",
                settings.cache_bytes >> 20,
                settings.page_size
            ),
            durable: "log write that is on the medium, shared by concurrent commits; flushes",
            not_synced: "durability `none`: log in memory, written when the engine needs to",
            isolation: "serializable",
        }
    }

    fn read_one<R>(&self, ks: &varve::Keyspace, key: &[u8], f: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        Ok(ks.get_with(key, f)?)
    }

    fn write_one(&self, ks: &varve::Keyspace, key: &[u8], value: &[u8], durability: Durability) -> Result<()> {
        let durability = match durability {
            Durability::Sync => varve::Durability::Sync,
            Durability::Async => varve::Durability::Async,
            Durability::None => varve::Durability::None,
        };
        Ok(ks.put_with(key, value, durability)?)
    }
}
