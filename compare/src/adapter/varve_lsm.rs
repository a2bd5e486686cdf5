//! Varve with LSM keyspaces, beside Varve with trees: the same engine, opened the same way.

use std::ops::ControlFlow;
use std::path::Path;

use varve::{Compression, KeyspaceKind, LsmOptions};
use varve_lab::Result;
use varve_lab::adapter::varve::{VarveStore, VarveTxn};
use varve_lab::adapter::{Durability, Store, StoreStats, TxMode};

use crate::engine::{Description, Engine, Kind, Push, Settings};

/// A Varve database whose keyspaces are LSM trees.
pub struct VarveLsm(VarveStore);

fn kind() -> KeyspaceKind {
    KeyspaceKind::Lsm(LsmOptions { compression: Compression::None, ..LsmOptions::default() })
}

impl Store for VarveLsm {
    type Keyspace = varve::Keyspace;
    type Txn<'a> = VarveTxn;

    fn name(&self) -> &str {
        Self::NAME
    }

    fn keyspace(&self, name: &str) -> Result<varve::Keyspace> {
        self.0.keyspace(name)
    }

    fn find_keyspace(&self, name: &str) -> Result<Option<varve::Keyspace>> {
        self.0.find_keyspace(name)
    }

    fn begin(&self, mode: TxMode, durability: Durability) -> Result<VarveTxn> {
        self.0.begin(mode, durability)
    }

    fn get_one<R>(&self, ks: &varve::Keyspace, key: &[u8], f: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        self.0.get_one(ks, key, f)
    }

    fn put_one(&self, ks: &varve::Keyspace, key: &[u8], value: &[u8], durability: Durability) -> Result<()> {
        self.0.put_one(ks, key, value, durability)
    }

    fn stats(&self) -> StoreStats {
        self.0.stats()
    }
}

impl Engine for VarveLsm {
    const NAME: &'static str = "varve-lsm";
    const KIND: Kind = Kind::Lsm;

    fn open(dir: &Path, settings: &Settings) -> Result<Self> {
        Ok(VarveLsm(VarveStore::open(dir, settings)?.with_kind(kind())))
    }

    fn close(self) -> Result<()> {
        self.0.close()
    }

    fn describe(settings: &Settings) -> Description {
        let tree = VarveStore::describe(settings);
        let setup = format!("LSM keyspaces with their defaults, not compressed; {}", tree.setup);
        Description { setup, bulk: "`Db::bulk_load_of`", ..tree }
    }

    fn bulk_load(&self, name: &str, rows: impl FnOnce(&mut Push<'_>) -> Result<()>) -> Result<varve::Keyspace> {
        self.0.bulk_load(name, rows)
    }

    fn scan_from(
        &self,
        ks: &varve::Keyspace,
        from: &[u8],
        each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        self.0.scan_from(ks, from, each)
    }

    fn iterate_from(
        &self,
        ks: &varve::Keyspace,
        from: &[u8],
        each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        self.0.iterate_from(ks, from, each)
    }
}
