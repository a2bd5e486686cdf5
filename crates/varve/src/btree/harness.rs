//! A tree by itself, over devices in memory: for the benchmark and the tests of this module. Every operation is a log
//! group of its own; there are no transactions, locks or snapshots.

use super::{CellValue, ReadAhead, Tree, leaf};
use crate::budget::Budget;
use crate::buffer::{Pool, PoolConfig};
use crate::error::{Error, Result};
use crate::page::Kernel;
use crate::page::{Group, PageNo};
use crate::report::CheckReport;
use crate::rows::{Direction, OverflowRef, ValueRef, overflow};
use crate::space::{Core, PoolPages};
use crate::space::{Reserved, Ripening, Space};
use crate::wal::checkpoint::{CheckpointConfig, Checkpointer};
use crate::wal::{DbHeader, GroupKind, Log, LogConfig, recovery};
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use varve_device::Device;
use varve_volume::{KeyspaceId, Lsn, PageId, PageStore, Single, TestStore};

/// Keyspace of the harness's tree.
const KEYSPACE: KeyspaceId = KeyspaceId(7);

/// How a harness is set up.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Bytes of a page.
    pub page_size: usize,
    /// Frames of the pool.
    pub frames: usize,
    /// Assert the page store's contract at every call.
    pub strict: bool,
    /// The log.
    pub log: LogConfig,
}

impl Setup {
    /// A pool of `frames` pages, contract assertions on, a small log.
    pub fn new(page_size: usize, frames: usize) -> Setup {
        let log = LogConfig {
            capacity: 4 << 20,
            max_capacity: 64 << 20,
            segment: 1 << 20,
            buffer: 1 << 20,
            ..LogConfig::default()
        };
        Setup { page_size, frames, strict: true, log }
    }
}

/// A tree over two devices. Shared by threads as it is.
pub struct Harness {
    pub(super) core: Arc<Core>,
    pub(super) tree: Tree,
    checkpointer: Arc<Checkpointer>,
}

impl Harness {
    /// Makes an empty tree on empty devices.
    pub fn create(data: Arc<dyn Device>, log: Arc<dyn Device>, setup: &Setup) -> Result<Harness> {
        let header =
            DbHeader { uuid: [7; 16], page_size: setup.page_size as u32, room: 0, created: 0, options: Vec::new() };
        let log = Log::create(log, setup.log.clone(), header)?;
        Harness::assemble(data, log, setup, |_, _| Ok(()))
    }

    /// Opens what was made on the devices before, recovering it.
    pub fn open(data: Arc<dyn Device>, log: Arc<dyn Device>, setup: &Setup) -> Result<Harness> {
        let (log, state) = Log::open(log, setup.log.clone(), false)?;
        Harness::assemble(data, log, setup, |log, pages| {
            recovery::run(log, &state, &**pages, &mut recovery::RecoveryOptions::default()).map(|_| ())
        })
    }

    fn assemble(
        data: Arc<dyn Device>,
        log: Arc<Log>,
        setup: &Setup,
        recover: impl FnOnce(&Log, &Arc<PoolPages>) -> Result<()>,
    ) -> Result<Harness> {
        let single: Arc<dyn PageStore> = Single::new(data, setup.page_size)?;
        let store: Arc<dyn PageStore> = if setup.strict {
            let (test, gate) = (TestStore::over(single), log.clone());
            test.set_log_rule(move |_, lsn| lsn <= gate.durable_lsn());
            test
        } else {
            single
        };
        let pool = Pool::new(PoolConfig::new(setup.page_size, setup.frames), store.clone(), log.clone())?;
        let pages = PoolPages::new(pool.clone(), store.clone(), None);
        recover(&log, &pages)?;
        log.start()?;
        pool.start()?;
        let space = Space::open(pool.clone(), store.clone(), None, (0, false))?;
        let core = Kernel::new(pool, log.clone(), store, Arc::new(Budget::unlimited()));
        let core = Arc::new(Core::new(core, space, None));
        let after = Arc::new(Ripening::new(core.clone(), Some(1)));
        let checkpointer = Checkpointer::with(log, pages, CheckpointConfig::default(), Some(after), None);
        checkpointer.start()?;
        let root = PageId(1);
        if core.space.is_empty() {
            let core = &*core;
            core.space.bootstrap(core, |group| Tree::create_root(core, group, KEYSPACE, root))?;
        }
        Ok(Harness { tree: Tree::open(core.clone(), KEYSPACE, root), core, checkpointer })
    }

    /// Ends the background work; nothing is written.
    pub fn stop(&self) {
        self.checkpointer.stop();
        self.core.pool.stop();
        self.core.log.stop();
    }

    /// Makes a checkpoint.
    pub fn checkpoint(&self) -> Result<()> {
        self.checkpointer.checkpoint()
    }

    /// Waits until everything logged so far is durable.
    pub fn sync(&self) -> Result<()> {
        self.core.log.wait_durable(self.core.log.end_lsn())
    }

    /// Inserts or replaces; returns whether the key was there, and the group's end.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<(bool, Lsn)> {
        let (core, tree) = (&*self.core, &self.tree);
        if key.len() > tree.max_key() {
            return Err(Error::KeySize { len: key.len(), max: tree.max_key() });
        }
        let long = value.len() > tree.max_inline(key.len());
        let reserved = match long {
            true => {
                Some(core.space.reserve(core, KEYSPACE, overflow::pages_for(core, KEYSPACE, value.len() as u64))?)
            }
            false => None,
        };
        let room = match long {
            true => leaf::cell_size(key, &CellValue::Overflow(OverflowRef { head: PageId(0), len: 0, id: 0 })),
            false => leaf::cell_size(key, &CellValue::Inline(value)),
        };
        let ids = reserved.as_ref().map_or(&[][..], Reserved::ids);
        let result = self.change(key, room, ids, |group, placed, leaf| {
            let cell = match long {
                true => CellValue::Overflow(overflow::fill_placed(core, group, KEYSPACE, value, ids, placed)),
                false => CellValue::Inline(value),
            };
            leaf::put(&mut group.page(leaf), key, cell)
        });
        // What a failed log refused is linked in memory all the same.
        if let (Some(r), Ok(_) | Err(Error::Poisoned(_))) = (reserved, &result) {
            r.keep();
        }
        result
    }

    /// Removes a key; returns whether it was there, and the group's end.
    pub fn remove(&self, key: &[u8]) -> Result<(bool, Lsn)> {
        self.change(key, 0, &[], |group, _, leaf| leaf::remove(&mut group.page(leaf), key))
    }

    /// Changes one leaf. Everything that can fail comes before the first change: room is made, the pages of the new
    /// value and of the one it replaces are found, and the leaf is latched.
    fn change<'c>(
        &'c self,
        key: &[u8],
        room: usize,
        alloc: &[PageId],
        change: impl FnOnce(&mut Group<'c>, &[PageNo], PageNo) -> Result<leaf::Change, super::node::Damage>,
    ) -> Result<(bool, Lsn)> {
        let (core, tree) = (&*self.core, &self.tree);
        let long = |bytes: &[u8]| match leaf::get(bytes, key) {
            Ok(Some(ValueRef::Overflow(r))) => Some(r),
            _ => None,
        };
        let (mut group, placed, page, free) = loop {
            let seen = long(tree.leaf_for_write(key, room)?.read().bytes());
            let free = match &seen {
                Some(r) => overflow::pages(core, KEYSPACE, r),
                None => Ok(Vec::new()),
            };
            let mut group = Group::begin(core, GroupKind::Commit, core.page_size() * (2 + alloc.len()))?;
            let placed = overflow::place(core, &mut group, KEYSPACE, alloc)?;
            let page = tree.leaf_exclusive(key)?;
            if leaf::room_for(page.bytes(), key) >= room && long(page.bytes()) == seen {
                break (group, placed, page, free?);
            }
        };
        leaf::prepare(page.bytes(), key, room).map_err(|d| tree.corrupt(page.id(), d))?;
        let n = group.add(page);
        let change = change(&mut group, &placed, n).expect("prepared");
        core.space.apply(core, &mut group, alloc, &free);
        let end = group.commit()?;
        core.space.freed(&free);
        if change.underfull {
            tree.tidy(key)?;
        }
        Ok((change.existed, end))
    }

    /// A key's value.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.tree.get(key)
    }

    /// Length of a key's value, without a copy.
    #[inline]
    pub fn probe(&self, key: &[u8]) -> Result<Option<usize>> {
        self.tree
            .with_leaf(key, |leaf| leaf.find(key).map(|v| v.map(|v| v.len() as usize)))?
            .map_err(|d| self.tree.corrupt(PageId(0), d))
    }

    /// Hands up to `limit` entries from a bound on to `f`; long values as empty slices. Returns how many there were.
    pub fn scan(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        reverse: bool,
        limit: usize,
        mut f: impl FnMut(&[u8], &[u8]),
    ) -> Result<usize> {
        let direction = if reverse { Direction::Reverse } else { Direction::Forward };
        let (mut ahead, mut seen, mut next): (_, _, Option<Vec<u8>>) = (ReadAhead::default(), 0, None);
        loop {
            let (from, to) = match (&next, reverse) {
                (None, _) => (from, to),
                (Some(k), false) => (Bound::Included(&k[..]), to),
                (Some(k), true) => (from, Bound::Excluded(&k[..])),
            };
            let end = self.tree.read_leaf_batch(from, to, direction, &mut ahead, |_, k, v| {
                f(k, if let ValueRef::Inline(v) = v { v } else { &[] });
                seen += 1;
                if seen == limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })?;
            match end.next {
                Some(k) => next = Some(k),
                None => return Ok(seen),
            }
        }
    }

    /// Number of keys.
    pub fn count(&self, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Result<u64> {
        self.tree.count(from, to)
    }

    /// Loads ascending entries above all that the tree holds.
    pub fn load<'e>(&self, entries: impl IntoIterator<Item = (&'e [u8], &'e [u8])>, fill: f64) -> Result<()> {
        let mut load = self.tree.bulk_load(fill);
        entries.into_iter().try_for_each(|(key, value)| load.push(key, value))?;
        load.finish()
    }

    /// Removes everything.
    pub fn clear(&self) -> Result<()> {
        self.tree.dismantle(&|| true).map(|_| ())
    }

    /// Checks tree and space map against each other.
    pub fn check(&self) -> CheckReport {
        let mut report = CheckReport::default();
        let mut walk = self.core.space.begin_check();
        self.tree.check(&mut walk, &mut report);
        self.core.space.finish_check(walk, &mut report);
        report
    }

    /// Pages allocated.
    pub fn pages(&self) -> u64 {
        self.core.space.usage().0
    }
}
