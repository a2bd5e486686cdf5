//! sled: a log-structured B+ tree per keyspace over one log.
//!
//! Its own transactions are closures that it may run twice, and they cannot scan. Here a transaction keeps its writes
//! to itself and hands them to one of sled's at its commit; one at a time may write. Read-only transactions hold off
//! commits while they read.
//!
//! Lock order: `writer`, then `commits`.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::path::Path;

use sled::transaction::{ConflictableTransactionResult, Transactional, TransactionalTree};
use sled::{Batch, Db, IVec, Mode, Tree};
use varve_lab::adapter::{Direction, Durability, KeyRange, Store, StoreStats, TxMode, Txn};
use varve_lab::{Error, Result};
use varve_rt::{Mutex, MutexGuard, RwLock, RwLockReadGuard};

use super::read_only;
use crate::engine::{Description, Engine, Kind, Push, Settings};

/// A sled database.
pub struct SledStore {
    db: Db,
    writer: Mutex<()>,
    commits: RwLock<()>,
}

fn wrap(e: sled::Error) -> Error {
    Error::store(e)
}

impl Store for SledStore {
    type Keyspace = Tree;
    type Txn<'a> = SledTxn<'a>;

    fn name(&self) -> &str {
        Self::NAME
    }

    fn keyspace(&self, name: &str) -> Result<Tree> {
        self.db.open_tree(name).map_err(wrap)
    }

    fn find_keyspace(&self, name: &str) -> Result<Option<Tree>> {
        let there = self.db.tree_names().iter().any(|known| known == name.as_bytes());
        there.then(|| self.keyspace(name)).transpose()
    }

    fn begin(&self, mode: TxMode, durability: Durability) -> Result<SledTxn<'_>> {
        let turn = match mode {
            TxMode::ReadWrite => Turn::Write(self.writer.lock()),
            TxMode::ReadOnly | TxMode::Snapshot => Turn::Read(self.commits.read()),
        };
        Ok(SledTxn { store: self, writes: Vec::new(), sync: durability == Durability::Sync, turn })
    }

    fn stats(&self) -> StoreStats {
        StoreStats::default()
    }

    fn get_one<R>(&self, ks: &Tree, key: &[u8], f: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        Ok(f(ks.get(key).map_err(wrap)?.as_deref()))
    }

    fn put_one(&self, ks: &Tree, key: &[u8], value: &[u8], durability: Durability) -> Result<()> {
        ks.insert(key, value).map_err(wrap)?;
        if durability == Durability::Sync {
            self.db.flush().map_err(|e| Error::CommitUnknown(e.into()))?;
        }
        Ok(())
    }
}

/// Keys written and their values; `None`: deleted.
type Rows = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

enum Turn<'a> {
    Read(#[expect(dead_code, reason = "held, not read")] RwLockReadGuard<'a, ()>),
    Write(#[expect(dead_code, reason = "held, not read")] MutexGuard<'a, ()>),
}

/// A transaction of a [`SledStore`].
pub struct SledTxn<'a> {
    store: &'a SledStore,
    writes: Vec<(Tree, Rows)>,
    sync: bool,
    turn: Turn<'a>,
}

impl SledTxn<'_> {
    fn own(&self, ks: &Tree) -> Option<&Rows> {
        self.writes.iter().find(|(tree, _)| tree.name() == ks.name()).map(|(_, rows)| rows)
    }

    fn set(&mut self, ks: &Tree, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        if let Turn::Read(_) = self.turn {
            return Err(read_only());
        }
        let at = self.writes.iter().position(|(tree, _)| tree.name() == ks.name()).unwrap_or_else(|| {
            self.writes.push((ks.clone(), Rows::new()));
            self.writes.len() - 1
        });
        self.writes[at].1.insert(key.to_vec(), value.map(<[u8]>::to_vec));
        Ok(())
    }
}

fn batch(rows: &Rows) -> Batch {
    let mut batch = Batch::default();
    for (key, value) in rows {
        match value {
            Some(value) => batch.insert(&key[..], &value[..]),
            None => batch.remove(&key[..]),
        }
    }
    batch
}

fn apply(writes: &[(Tree, Rows)]) -> Result<()> {
    if let [(tree, rows)] = writes {
        return tree.apply_batch(batch(rows)).map_err(wrap);
    }
    let trees: Vec<Tree> = writes.iter().map(|(tree, _)| tree.clone()).collect();
    let all = |views: &Vec<TransactionalTree>| -> ConflictableTransactionResult<(), ()> {
        views.iter().zip(writes).try_for_each(|(view, (_, rows))| Ok(view.apply_batch(&batch(rows))?))
    };
    trees[..].transaction(all).map_err(|e| Error::store(format!("{e:?}")))
}

/// The rows that are stored, in order, with a transaction's own in their place.
fn merge(
    mut stored: impl Iterator<Item = sled::Result<(IVec, IVec)>>,
    own: &mut dyn Iterator<Item = (&Vec<u8>, &Option<Vec<u8>>)>,
    direction: Direction,
    mut each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
) -> Result<()> {
    let mut own = own.peekable();
    let mut next = stored.next().transpose().map_err(wrap)?;
    loop {
        let order = match (&next, own.peek()) {
            (None, None) => return Ok(()),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some((key, _)), Some((mine, _))) if direction == Direction::Forward => key[..].cmp(&mine[..]),
            (Some((key, _)), Some((mine, _))) => mine[..].cmp(&key[..]),
        };
        let row =
            if order.is_le() { std::mem::replace(&mut next, stored.next().transpose().map_err(wrap)?) } else { None };
        let mine = if order.is_ge() { own.next() } else { None };
        let flow = match (row, mine) {
            (_, Some((key, Some(value)))) => each(key, value),
            (_, Some((_, None))) => ControlFlow::Continue(()),
            (Some((key, value)), None) => each(&key, &value),
            (None, None) => unreachable!("one side is taken"),
        };
        if flow.is_break() {
            return Ok(());
        }
    }
}

impl Txn for SledTxn<'_> {
    type Keyspace = Tree;

    fn get<R>(&mut self, ks: &Tree, key: &[u8], f: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        match self.own(ks).and_then(|rows| rows.get(key)) {
            Some(value) => Ok(f(value.as_deref())),
            None => Ok(f(ks.get(key).map_err(wrap)?.as_deref())),
        }
    }

    fn put(&mut self, ks: &Tree, key: &[u8], value: &[u8]) -> Result<()> {
        self.set(ks, key, Some(value))
    }

    fn delete(&mut self, ks: &Tree, key: &[u8]) -> Result<()> {
        self.set(ks, key, None)
    }

    fn scan(
        &mut self,
        ks: &Tree,
        range: KeyRange<'_>,
        direction: Direction,
        each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let bounds = (Bound::Included(range.from), range.to.map_or(Bound::Unbounded, Bound::Excluded));
        let stored = ks.range::<&[u8], _>(bounds);
        let own = self.own(ks).into_iter().flat_map(|rows| rows.range::<[u8], _>(bounds));
        match direction {
            Direction::Forward => merge(stored, &mut { own }, direction, each),
            Direction::Reverse => merge(stored.rev(), &mut own.rev(), direction, each),
        }
    }

    fn commit(self) -> Result<()> {
        if self.writes.is_empty() {
            return Ok(());
        }
        let held = self.store.commits.write();
        apply(&self.writes)?;
        drop(held);
        if self.sync {
            self.store.db.flush().map_err(|e| Error::CommitUnknown(e.into()))?;
        }
        Ok(())
    }

    fn rollback(self) {}
}

/// Where memory is scarce, the part of it that sled is told to use: it counts its pages as they are on the medium and
/// needs several times that.
fn cache_bytes(settings: &Settings) -> u64 {
    settings.cache_bytes / if settings.scarce() { 8 } else { 1 }
}

impl Engine for SledStore {
    const NAME: &'static str = "sled";
    const KIND: Kind = Kind::BTree;
    const FLUSHES: bool = false;

    fn open(dir: &Path, settings: &Settings) -> Result<Self> {
        let config = sled::Config::new().path(dir.join("db")).cache_capacity(cache_bytes(settings));
        let db = config.mode(Mode::HighThroughput).open().map_err(wrap)?;
        Ok(SledStore { db, writer: Mutex::new(()), commits: RwLock::new(()) })
    }

    fn close(self) -> Result<()> {
        self.db.flush().map(drop).map_err(wrap)
    }

    fn describe(settings: &Settings) -> Description {
        Description {
            version: "0.34".to_string(),
            setup: format!("cache of {} MiB, mode HighThroughput", cache_bytes(settings) >> 20),
            durable: "`flush` at each commit: sync_file_range, which does not empty the drive's cache; not counted",
            not_synced: "log written every 500 ms or when its buffer is full",
            isolation: "one writer at a time, in front of sled's batches; single operations go past that",
            bulk: "inserts in key order, one flush at the end",
        }
    }

    fn bulk_load(&self, name: &str, rows: impl FnOnce(&mut Push<'_>) -> Result<()>) -> Result<Tree> {
        let tree = self.keyspace(name)?;
        rows(&mut |key, value| tree.insert(key, value).map(drop).map_err(wrap))?;
        self.db.flush().map_err(wrap)?;
        Ok(tree)
    }

    fn scan_from(&self, ks: &Tree, from: &[u8], each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) -> Result<()> {
        merge(ks.range(from..), &mut std::iter::empty(), Direction::Forward, each)
    }
}
