//! What the harness asks of an engine besides the lab's `Store`: opening it with a given memory budget, closing it,
//! saying how it was set up, and its fastest ways to load and to scan.

use std::ops::ControlFlow;
use std::path::Path;

use varve_lab::Result;
use varve_lab::adapter::varve::VarveStore;
use varve_lab::adapter::{Direction, Durability, KeyRange, Store, TxMode, Txn};

/// How a database is opened for a measurement.
#[derive(Debug, Clone, Copy, serde::Serialize, serde::Deserialize)]
pub struct Settings {
    /// Memory that the engine may use as cache, bytes. Engines that read through the system's page cache alone ignore
    /// it.
    pub cache_bytes: u64,
    /// Page size for engines that let one choose, bytes.
    pub page_size: usize,
    /// What there is besides.
    pub memory: Memory,
}

/// What memory there is besides the engine's cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Memory {
    /// Enough for all data to lie in the system's page cache.
    Ample,
    /// Next to none: everything, page cache included, has to fit into the cache's size and [`SPARE`] more.
    Scarce {
        /// Threads that will use the database, for engines whose cache is per connection.
        clients: usize,
    },
}

/// Memory that a process has besides its cache where memory is scarce, bytes.
pub const SPARE: u64 = 64 << 20;

impl Settings {
    /// Whether memory is scarce.
    pub fn scarce(&self) -> bool {
        self.memory != Memory::Ample
    }
}

/// What an engine is built on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub enum Kind {
    /// A tree whose pages are changed in place or copied.
    BTree,
    /// A log-structured merge tree.
    Lsm,
}

/// Takes one row of a bulk load.
pub type Push<'a> = dyn FnMut(&[u8], &[u8]) -> Result<()> + 'a;

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
    /// How rows are loaded in bulk.
    pub bulk: &'static str,
}

/// An engine that can be compared.
pub trait Engine: Store + Sized {
    /// Name on the command line and in tables.
    const NAME: &'static str;
    /// What it is built on.
    const KIND: Kind;
    /// Whether a durable commit survives a power cut.
    const FLUSHES: bool = true;

    /// Opens the database in the directory `dir`; makes one if it is empty.
    fn open(dir: &Path, settings: &Settings) -> Result<Self>;

    /// Closes the database; background work ends before this returns.
    fn close(self) -> Result<()> {
        drop(self);
        Ok(())
    }

    /// How it is set up.
    fn describe(settings: &Settings) -> Description;

    /// Fills the new keyspace `name` the engine's fastest way; everything is durable on return. `rows` hands over the
    /// rows in ascending order of their keys.
    fn bulk_load(&self, name: &str, rows: impl FnOnce(&mut Push<'_>) -> Result<()>) -> Result<Self::Keyspace>;

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

    /// The same by the iterator that programs use most, where that is another way.
    fn iterate_from(
        &self,
        ks: &Self::Keyspace,
        from: &[u8],
        each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        self.scan_from(ks, from, each)
    }
}

/// The file of Varve's pages, below the directory that [`Engine::open`] is given.
pub const VARVE_DATA: &str = "db/data";

impl Engine for VarveStore {
    const NAME: &'static str = "varve";
    const KIND: Kind = Kind::BTree;

    fn open(dir: &Path, settings: &Settings) -> Result<Self> {
        let layout = varve::Layout { page_size: settings.page_size, ..varve::Layout::default() };
        let options = varve::Options { cache_bytes: settings.cache_bytes, ..varve::Options::default() };
        let path = dir.join("db");
        Ok(VarveStore::new(match path.exists() {
            true => varve::Db::open(path, options)?,
            false => varve::Db::create(path, &layout, options)?,
        }))
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
            bulk: "`Db::bulk_load`",
        }
    }

    fn bulk_load(&self, name: &str, rows: impl FnOnce(&mut Push<'_>) -> Result<()>) -> Result<varve::Keyspace> {
        let mut load = self.db().bulk_load_of(name, self.kind())?;
        rows(&mut |key, value| Ok(load.push(key, value)?))?;
        Ok(load.finish()?)
    }

    fn scan_from(
        &self,
        ks: &varve::Keyspace,
        from: &[u8],
        each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        Ok(ks.scan_with(from.., each)?)
    }

    fn iterate_from(
        &self,
        ks: &varve::Keyspace,
        from: &[u8],
        mut each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut rows = self.db().snapshot()?.scan(ks, from..)?;
        while let Some((key, value)) = rows.next_row()? {
            if each(key, value).is_break() {
                break;
            }
        }
        Ok(())
    }
}
