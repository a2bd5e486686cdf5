//! What every change of a page needs: the pool, the log, the store and the memory budget.
//!
//! Invariants: pool and store have pages of one size; `nodes_left` rises under the exclusive latch of the node that
//! leaves.

use super::horizon::Horizon;
use crate::budget::Budget;
use crate::buffer::{LogAge, LogGate, Pool};
use crate::error::Result;
use crate::wal::Log;
use std::sync::Arc;
// Counters order nothing.
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use varve_device::{Faults, Health, Mistake};
use varve_rt::atomic as sync;
use varve_volume::page::HEADER;
use varve_volume::{KeyspaceId, Lsn, PageStore};

/// The engine below the space map.
pub(crate) struct Kernel {
    pub pool: Arc<Pool>,
    pub log: Arc<Log>,
    pub store: Arc<dyn PageStore>,
    pub budget: Arc<Budget>,
    pub counters: Counters,
    pub horizon: Horizon,
    /// A page's first change after a checkpoint is logged as the whole page.
    images: bool,
    /// Backups under way, which need that in any case: a page may be freed before it is copied.
    backups: sync::AtomicU32,
    nodes_left: NodesLeft,
}

/// Read by every transaction, changed seldom: apart from what is changed often.
#[derive(Default)]
#[repr(align(128))]
struct NodesLeft(sync::AtomicU64);
const _: () = assert!(size_of::<NodesLeft>() == 128, "what every descent reads shares no cache line with counters");

/// What is counted of page changes.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub images: AtomicU64,
    pub repeated: AtomicU64,
    pub splits: AtomicU64,
    pub merges: AtomicU64,
}

/// Page changes since the database was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PageChangeStats {
    /// Pages logged whole.
    pub images: u64,
    /// Groups encoded again because a checkpoint began meanwhile.
    pub repeated: u64,
    /// Nodes divided.
    pub splits: u64,
    /// Nodes joined or freed.
    pub merges: u64,
}

impl Counters {
    /// Counts one more.
    pub fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Relaxed);
    }

    /// The counts so far.
    pub fn get(&self) -> PageChangeStats {
        PageChangeStats {
            images: self.images.load(Relaxed),
            repeated: self.repeated.load(Relaxed),
            splits: self.splits.load(Relaxed),
            merges: self.merges.load(Relaxed),
        }
    }
}

impl Kernel {
    /// Puts the parts together.
    pub fn new(pool: Arc<Pool>, log: Arc<Log>, store: Arc<dyn PageStore>, budget: Arc<Budget>) -> Kernel {
        assert_eq!(pool.page_size(), store.page_size(), "pool and store have pages of one size");
        let (counters, nodes_left) = (Counters::default(), NodesLeft::default());
        let horizon = Horizon::new(log.end_lsn());
        Kernel {
            pool,
            log,
            store,
            budget,
            counters,
            horizon,
            images: true,
            backups: sync::AtomicU32::new(0),
            nodes_left,
        }
    }

    /// The same, that logs pages whole after a checkpoint or not. Without, no page write may be torn.
    pub fn with_images(self, images: bool) -> Kernel {
        Kernel { images, ..self }
    }

    /// A backup begins: before it raises the floor, so that no group goes by the old floor without knowing of it.
    pub fn backup_begins(&self) {
        self.backups.fetch_add(1, sync::Ordering::AcqRel);
    }

    /// A backup is over.
    pub fn backup_ends(&self) {
        let before = self.backups.fetch_sub(1, sync::Ordering::AcqRel);
        assert!(before > 0, "a backup ends once");
    }

    /// Whether the next change of a page of this LSN is logged as the whole page, for this floor (docs/wal.md, "Torn
    /// pages").
    #[inline]
    pub fn is_due_whole(&self, lsn: Lsn, floor: Lsn) -> bool {
        // A page without an LSN was never written.
        let due = if self.images || self.backups.load(sync::Ordering::Acquire) > 0 { lsn <= floor } else { lsn == 0 };
        due && !self.faults().has(Mistake::NoImages)
    }

    /// What is to go wrong in this database.
    pub fn faults(&self) -> &Faults {
        self.log.faults()
    }

    /// Nodes that left their trees since the database was opened. A page keeps its place in a tree as long as the
    /// number stays: whoever goes to a page by its number alone asks before he learns the number and again with the
    /// page latched. The page's content does not tell: a freed page is dropped without being written, and what
    /// read-ahead brings back is what was there long before, LSN and all.
    pub fn nodes_left(&self) -> u64 {
        self.nodes_left.0.load(sync::Ordering::Acquire)
    }

    /// A node leaves its tree; it is latched exclusively.
    pub fn node_leaves(&self) {
        self.nodes_left.0.fetch_add(1, sync::Ordering::AcqRel);
    }

    /// Bytes of a keyspace's page after the header that may be used.
    pub fn usable(&self, keyspace: KeyspaceId) -> usize {
        self.store.usable_bytes(keyspace).min(self.page_size() - HEADER)
    }

    /// Bytes of a page, header included.
    pub fn page_size(&self) -> usize {
        self.pool.page_size()
    }
}

impl LogGate for Log {
    fn durable_lsn(&self) -> Lsn {
        Log::durable_lsn(self)
    }

    fn force(&self, lsn: Lsn) -> Result<()> {
        self.wait_durable(lsn)
    }

    fn end_lsn(&self) -> Lsn {
        self.known_end().unwrap_or(Lsn::MAX)
    }

    fn gap_at(&self, lsn: Lsn) -> Option<(Lsn, Lsn)> {
        Log::gap_at(self, lsn).map(|gap| (gap.end, gap.start))
    }

    fn age(&self) -> LogAge {
        LogAge { bytes_since_redo: Log::age(self), capacity: self.age_limit() }
    }

    fn health(&self) -> Arc<Health> {
        Log::health(self).clone()
    }
}
