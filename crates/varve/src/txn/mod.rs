//! Transactions: strict two-phase locks on keys and intervals, private write sets, snapshots over a version store,
//! commit as one log group.
//!
//! - `lock`: the lock table. Read-write transactions lock what they read (S) and write (X), and the intervals they
//!   scan.
//! - `write_set`: pending writes and savepoints; `spill`: what memory has no room for; `cursor`: scans that merge them
//!   over the index; `own`: the same of those that were spilled; `count`: how many rows there are.
//! - `registry`, `version`: snapshots and the old values they need. Snapshots take no locks.
//! - `commit`: from a write set to one log group; `large`: one that takes many; `single`: the short way for one key.
//! - `stream`: values that do not fit in memory; `many`: many keys at once; `later`, `told`: reads that nobody waits
//!   for.
//! - `keyspace`: what transactions know of a keyspace; `transaction`, `snapshot`, `scan`, `rows`, `visit`, `retry`:
//!   what users call, through `db`.
//!
//! A transaction never waits for a lock with a latch held. Locks are released once the commit has its place in the log,
//! before it is durable; whoever reads what it wrote returns only when it is durable too ([`Manager::depend`]).
//!
//! Invariants: what a transaction writes it has locked exclusively, until its commit has its place in the log; one that
//! had to give way has neither locks nor writes; `open` counts those that keep the database open, and none begins after
//! it was closed.
//!
//! Lock order: key and interval locks; then as in `core.rs`; the snapshot registry's mutex inside leaf latches.

mod commit;
mod count;
mod cursor;
mod durability;
mod former;
pub(crate) mod key;
mod key_map;
mod keyspace;
mod large;
mod later;
pub(crate) mod lock;
mod many;
mod own;
mod range;
mod registry;
mod retry;
mod rows;
mod runs;
mod scan;
mod single;
mod snapshot;
mod spill;
mod spilling;
mod stored_writes;
mod stream;
mod told;
mod transaction;
mod version;
mod visit;
mod write_set;

#[cfg(test)]
mod tests;

pub use durability::Durability;
pub(crate) use former::Former;
pub(crate) use keyspace::{OpenKeyspace, Sealed, check_value};
pub(crate) use large::UNFINISHED;
pub(crate) use later::{Now, Readers, Values};
pub use range::{KeyRange, RangeKey};
pub use retry::TxOptions;
pub(crate) use rows::Rows;
pub(crate) use scan::Scan;
pub(crate) use snapshot::Snapshot;
pub(crate) use stored_writes::Decoder;
pub(crate) use told::Told;
pub(crate) use transaction::Transaction;
pub use write_set::Savepoint;

use crate::error::{Error, Result};
use crate::index::{Index, Moments};
use crate::space::Core;
use large::Large;
use lock::LockTable;
use registry::Snapshots;
use std::sync::Arc;
use varve_device::Mistake;
use varve_rt::atomic::{AtomicBool, AtomicU64, Ordering};
use varve_rt::{Event, Inside, Process};
use varve_volume::Lsn;

/// Longest value, in bytes: 1 GiB. What a transaction puts from memory must fit, all together, in its share of the
/// memory budget and in a quarter of the pool; what it takes from a reader
/// ([`Transaction::put_from`](crate::Transaction::put_from)) need not.
pub const MAX_VALUE: u64 = 1 << 30;

/// What the transactions of a database share.
pub(crate) struct Manager {
    pub(crate) locks: Arc<LockTable>,
    core: Arc<Core>,
    /// Default durability.
    durability: Durability,
    /// The database was opened for reading only.
    read_only: bool,
    closed: AtomicBool,
    /// The one that opened the database.
    process: Process,
    snapshots: Arc<Snapshots>,
    large: Large,
    /// End of the last `Sync` commit: readers of anything older need not wait for more than this.
    last_sync: AtomicU64,
    open: AtomicU64,
    counters: Counters,
}

#[derive(Default)]
struct Counters {
    commits: AtomicU64,
    rollbacks: AtomicU64,
    conflicts: AtomicU64,
    retries: AtomicU64,
    relatched: AtomicU64,
    spills: AtomicU64,
    large_commits: AtomicU64,
    subtrees_cut: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Counters of transactions since the database was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TxnStats {
    /// Transactions committed that wrote something, single operations included.
    pub commits: u64,
    /// Transactions rolled back or dropped, those in conflict included.
    pub rollbacks: u64,
    /// Transactions that had to give way.
    pub conflicts: u64,
    /// Attempts that `transact` repeated.
    pub retries: u64,
    /// Commits that found a leaf changed between pinning and latching it.
    pub relatched: u64,
    /// Waits for locks.
    pub lock_waits: u64,
    /// Nanoseconds of those waits.
    pub lock_wait_ns: u64,
    /// Times that a transaction's locks were replaced by fewer, coarser ones.
    pub lock_coarsened: u64,
    /// Times that a transaction's writes were moved from memory to scratch pages.
    pub spills: u64,
    /// Commits that took more than one log group.
    pub large_commits: u64,
    /// Range deletes whose rows left their keyspace as whole subtrees.
    pub subtrees_cut: u64,
    /// Transactions open now.
    pub open: u64,
    /// Snapshots open now; one more for each that futures read from.
    pub snapshots: u64,
    /// Snapshots ever opened.
    pub snapshots_opened: u64,
    /// Snapshots that lost their old values to the budget.
    pub snapshots_evicted: u64,
    /// Old values kept for snapshots.
    pub versions_kept: u64,
    /// Old values written to scratch pages.
    pub versions_spilled: u64,
    /// Bytes of scratch pages that old values take now.
    pub snapshot_disk: u64,
}

impl TxnStats {
    /// The figures by name, in a stable order.
    pub fn rows(&self) -> [(&'static str, u64); 18] {
        [
            ("commits", self.commits),
            ("rollbacks", self.rollbacks),
            ("conflicts", self.conflicts),
            ("retries", self.retries),
            ("relatched", self.relatched),
            ("lock_waits", self.lock_waits),
            ("lock_wait_ns", self.lock_wait_ns),
            ("lock_coarsened", self.lock_coarsened),
            ("spills", self.spills),
            ("large_commits", self.large_commits),
            ("subtrees_cut", self.subtrees_cut),
            ("open", self.open),
            ("snapshots", self.snapshots),
            ("snapshots_opened", self.snapshots_opened),
            ("snapshots_evicted", self.snapshots_evicted),
            ("versions_kept", self.versions_kept),
            ("versions_spilled", self.versions_spilled),
            ("snapshot_disk", self.snapshot_disk),
        ]
    }
}

impl Manager {
    /// For a database whose commits are of the given durability unless they say otherwise.
    /// `catalog`: where commits that are not all applied are noted. `snapshot_disk`: most bytes of scratch pages for
    /// old values; none: a quarter of the database, at least 1 GiB.
    pub fn new(
        core: Arc<Core>,
        locks: Arc<LockTable>,
        catalog: Arc<Index>,
        (durability, read_only): (Durability, bool),
        snapshot_disk: Option<u64>,
    ) -> Manager {
        Manager {
            locks,
            large: Large::new(catalog),
            durability,
            read_only,
            closed: AtomicBool::new(false),
            process: Process::current(),
            snapshots: Arc::new(Snapshots::new(core.budget.clone(), snapshot_disk)),
            last_sync: AtomicU64::new(0),
            open: AtomicU64::new(0),
            counters: Counters::default(),
            core,
        }
    }

    /// Default durability.
    pub fn durability(&self) -> Durability {
        self.durability
    }

    /// Fails in a process that was forked from the one that opened the database: it has none of the engine's threads,
    /// and nothing that it wrote would last.
    #[inline]
    pub fn here(&self) -> Result<()> {
        if self.process.is_current() {
            return Ok(());
        }
        Err(Error::Forked("use its handles there only; close before the fork, or start a process anew (exec, spawn)"))
    }

    /// Fails where [`Manager::here`] does, and within [`Manager::lend`] of the same thread.
    #[inline]
    pub fn may_call(&self) -> Result<()> {
        self.here()?;
        if Inside::of(self.address()) { Err(Error::Reentrant) } else { Ok(()) }
    }

    /// Runs `f`, code of the user's that is lent rows, maybe under a latch. Every call of this database from it fails:
    /// it could wait for that latch, or for another thread that does.
    #[inline]
    pub fn lend<R>(&self, f: impl FnOnce() -> R) -> R {
        let _inside = Inside::enter(self.address());
        f()
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Fails when the database was closed, and where it cannot be called.
    #[inline]
    pub fn live(&self) -> Result<()> {
        self.may_call()?;
        if self.closed.load(Ordering::SeqCst) { Err(Error::Closed) } else { Ok(()) }
    }

    /// Fails when the database was closed or cannot be written.
    pub fn live_for_write(&self) -> Result<()> {
        self.live()?;
        if self.read_only {
            return Err(Error::ReadOnly(
                "the database was opened for reading only; open it again without read_only".into(),
            ));
        }
        Ok(())
    }

    /// Fails when the database was closed or the keyspace dropped.
    #[inline]
    pub fn live_in(&self, keyspace: &OpenKeyspace) -> Result<()> {
        self.live()?;
        if keyspace.is_dropped() {
            return Err(Error::NoSuchKeyspace(keyspace.name().to_string()));
        }
        Ok(())
    }

    /// The moment of the oldest open snapshot; without one, past all of them.
    pub fn oldest_snapshot(&self) -> Lsn {
        self.snapshots.oldest()
    }

    /// Old values are not merged any more; waits for nothing.
    pub fn end_merging(&self) {
        self.snapshots.end_merging();
    }

    /// The same; no thread does it any more.
    pub fn stop_merging(&self) {
        self.snapshots.stop_merging();
    }

    /// Set whenever a snapshot ends.
    pub fn snapshot_ended(&self) -> &Event {
        &self.snapshots.ended
    }

    /// One more piece of work for which the database must stay open. The caller checks afterwards that it still is.
    pub fn enter(&self) {
        self.open.fetch_add(1, Ordering::SeqCst);
    }

    /// The end of it.
    pub fn leave(&self) {
        let before = self.open.fetch_sub(1, Ordering::SeqCst);
        assert!(before > 0, "what ends has begun");
    }

    /// Whether anything is open besides the transaction that asks.
    fn has_others_open(&self) -> bool {
        let open = self.open.load(Ordering::SeqCst);
        assert!(open > 0, "who asks is open");
        open > 1
    }

    /// Begins work for which the database must stay open: a close is refused until what this returns is dropped.
    pub fn stay(&self) -> Result<Entered<'_>> {
        self.enter();
        let entered = Entered(self);
        self.live()?;
        Ok(entered)
    }

    /// The database is closed from here on, unless something is still open.
    pub fn close(&self) -> Result<()> {
        self.may_call()?;
        self.none_open()?;
        if self.closed.swap(true, Ordering::SeqCst) {
            return Err(Error::Closed);
        }
        // The caller waits for the work that began before this was seen.
        self.none_open().inspect_err(|_| self.closed.store(false, Ordering::SeqCst))
    }

    /// Fails while transactions or snapshots are open.
    fn none_open(&self) -> Result<()> {
        let (transactions, snapshots) = (self.open.load(Ordering::SeqCst), self.snapshots.held());
        if transactions + snapshots as u64 == 0 || self.core.faults().has(Mistake::CloseNotRefused) {
            return Ok(());
        }
        let open = format!("{transactions} transactions and {snapshots} snapshots are open");
        Err(Error::Invalid(format!("{open}; end them before closing the database")))
    }

    /// Counters since the database was opened.
    pub fn stats(&self) -> TxnStats {
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let locks = self.locks.stats();
        TxnStats {
            commits: get(&self.counters.commits),
            rollbacks: get(&self.counters.rollbacks),
            conflicts: get(&self.counters.conflicts),
            retries: get(&self.counters.retries),
            relatched: get(&self.counters.relatched),
            lock_waits: locks.waits,
            lock_wait_ns: locks.wait_ns,
            lock_coarsened: locks.coarsened,
            spills: get(&self.counters.spills),
            large_commits: get(&self.counters.large_commits),
            subtrees_cut: get(&self.counters.subtrees_cut),
            open: get(&self.open),
            snapshots: self.snapshots.open() as u64,
            snapshots_opened: get(&self.snapshots.opened),
            snapshots_evicted: get(&self.snapshots.evicted),
            versions_kept: get(&self.snapshots.kept),
            versions_spilled: get(&self.snapshots.spilled),
            snapshot_disk: get(&self.snapshots.on_disk),
        }
    }

    /// Fails when a page with this LSN shows something that is not durable and never will be. To be asked of every page
    /// read.
    #[inline]
    fn check_read(&self, lsn: Lsn) -> Result<()> {
        if lsn <= self.core.log.durable_lsn() { Ok(()) } else { self.check_read_slow() }
    }

    #[cold]
    fn check_read_slow(&self) -> Result<()> {
        match self.core.log.poisoned() {
            Some(cause) => Err(Error::Poisoned(cause.to_string())),
            None => Ok(()),
        }
    }

    /// Returns when every `Sync` commit that pages with LSNs up to `lsn` can show is durable.
    #[inline]
    fn depend(&self, lsn: Lsn) -> Result<()> {
        if lsn <= self.core.log.durable_lsn() { Ok(()) } else { self.depend_slow(lsn) }
    }

    #[cold]
    fn depend_slow(&self, lsn: Lsn) -> Result<()> {
        self.check_read_slow()?;
        match self.dependence(lsn) {
            0 => Ok(()),
            lsn => self.core.log.wait_durable(lsn),
        }
    }

    /// Up to where the log must be durable before what pages with LSNs up to `lsn` show may be told; 0: it is.
    fn dependence(&self, lsn: Lsn) -> Lsn {
        if self.core.faults().has(Mistake::AckBeforeFlush) || self.core.faults().has(Mistake::ReadsUndurable) {
            return 0;
        }
        let lsn = lsn.min(self.last_sync.load(Ordering::Acquire));
        if lsn <= self.core.log.durable_lsn() { 0 } else { lsn }
    }

    /// Called by a commit with its end LSN while its leaves are latched.
    #[inline]
    pub(crate) fn note_commit(&self, end: Lsn, durability: Durability) {
        if durability == Durability::Sync && !self.core.faults().has(Mistake::SyncNotNoted) {
            self.last_sync.fetch_max(end, Ordering::Release);
        }
    }

    /// Called as [`Manager::note_commit`] by a range delete whose rows leave as subtrees.
    pub(crate) fn note_cut(&self, end: Lsn, durability: Durability) {
        self.note_commit(end, durability);
        count(&self.counters.subtrees_cut);
    }

    /// What a commit that ended at `end`, and read nothing newer, waits for.
    pub(crate) fn acknowledge(&self, end: Lsn, durability: Durability, read: Lsn) -> Result<()> {
        // Nothing is locked any more: who made old values finds room for them.
        self.snapshots.relieve(&self.core);
        match durability {
            Durability::Sync if self.core.faults().has(Mistake::AckBeforeFlush) => Ok(()),
            Durability::Sync if self.core.faults().has(Mistake::AckABlockEarly) => {
                self.core.log.wait_durable(end.saturating_sub(crate::wal::BLOCK))
            }
            Durability::Sync => self.core.log.wait_durable(end),
            Durability::Async => {
                self.core.log.flush_soon(end);
                self.depend(read)
            }
            Durability::None => self.depend(read),
        }
    }
}

impl Moments for Manager {
    fn moments(&self) -> Vec<Lsn> {
        self.snapshots.moments()
    }
}

/// Keeps the database open while it is held.
pub(crate) struct Entered<'m>(&'m Manager);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}
