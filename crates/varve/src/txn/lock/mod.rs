//! The lock table: strict two-phase locks on keys and key intervals, never on pages.
//!
//! Each open keyspace has its own [`KeyspaceLocks`]: key locks in shards by hash, and a list of interval locks.
//! Protocol against phantoms: a scanner first publishes its interval, then looks for X key locks inside it; a writer
//! first takes its key lock, then looks at the intervals if there are any. One of the two sees the other. A writer that
//! meets an interval gives the key back and queues behind the interval, so that a scan's owner never waits for a writer
//! that waits for the scan.
//!
//! Queues are first come, first served. Deadlocks are found when a thread is about to wait (`wait.rs`); the youngest
//! member of the cycle gets [`Error::Conflict`], and its transaction lets go of all its locks. A thread that would wait
//! for a transaction that it runs itself gets [`Error::WouldDeadlock`] at once; whoever has waited for longer than the
//! table allows, [`Error::LockTimeout`]: both keep what they hold. Nothing depends on hash order.
//!
//! A transaction whose locks take more than its share of the memory for them gets coarser ones (`set.rs`): an interval
//! for neighbouring keys, or for neighbouring intervals. It asks for the interval as for any other, beside what it
//! holds, and lets go of the keys once it has it, so it never holds less than before.
//!
//! Invariants: an owner's locks are released together, at its end, but for those that a coarser one covers; an owner
//! waits for one lock at a time, and never for itself; a key is in the list of a [`LockSet`] once, when its lock is
//! new.
//!
//! Lock order inside the table: at most one shard or list mutex at a time, then the waits-for graph's.

mod coarse;
mod credit;
mod interval;
mod range_filter;
mod range_index;
mod running;
mod set;
mod shard;
mod wait;

#[cfg(test)]
mod tests;

use self::interval::{Intervals, Ticket};
use self::shard::{Shard, Taken};
use self::wait::{Outcome, WaitGraph};
use super::key::{Bounds, KeyBuf, show};
use crate::budget::Budget;
use crate::error::{Error, Result};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;
use varve_rt::atomic::{AtomicU64, Ordering};
use varve_rt::{Instant, Mutex};

pub(crate) use self::set::LockSet;
pub(crate) use self::wait::OwnerId;

/// Shards of a keyspace's key locks; a power of two.
const SHARDS: usize = 16;
/// From so many keys on, locks are given up shard by shard, and not key by key.
const MANY: usize = 64;

const _: () = assert!(SHARDS.is_power_of_two());

/// Strength of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Many owners may hold it; keeps writers out.
    Shared,
    /// One owner; keeps all others out.
    Exclusive,
}

/// What the locks of all keyspaces share.
pub(crate) struct LockTable {
    graph: WaitGraph,
    budget: Arc<Budget>,
    ids: Ids,
    /// Nanoseconds that a lock is waited for at most; 0: without end.
    timeout: AtomicU64,
    waits: AtomicU64,
    wait_ns: AtomicU64,
    deadlocks: AtomicU64,
    coarsened: AtomicU64,
}

#[repr(align(128))]
struct Ids(AtomicU64);

/// Counters of the lock table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LockStats {
    /// Times a transaction had to wait for a lock.
    pub waits: u64,
    /// Nanoseconds of those waits.
    pub wait_ns: u64,
    /// Transactions that had to give way in a deadlock.
    pub deadlocks: u64,
    /// Transactions waiting now.
    pub waiting: u64,
    /// Times that a transaction's locks were replaced by fewer, coarser ones.
    pub coarsened: u64,
}

impl LockTable {
    /// An empty table that charges `budget`.
    pub fn new(budget: Arc<Budget>) -> Arc<LockTable> {
        let zero = || AtomicU64::new(0);
        Arc::new(LockTable {
            graph: WaitGraph::new(),
            budget,
            ids: Ids(AtomicU64::new(1)),
            timeout: zero(),
            waits: zero(),
            wait_ns: zero(),
            deadlocks: zero(),
            coarsened: zero(),
        })
    }

    /// How long a lock is waited for at most; `None`, as at the beginning: without end.
    pub fn set_timeout(&self, timeout: Option<Duration>) {
        let ns = timeout.map_or(0, |t| u64::try_from(t.as_nanos()).unwrap_or(u64::MAX).max(1));
        self.timeout.store(ns, Ordering::Relaxed);
    }

    fn timeout(&self) -> Option<Duration> {
        let ns = self.timeout.load(Ordering::Relaxed);
        (ns > 0).then(|| Duration::from_nanos(ns))
    }

    /// The locks of a keyspace: one object per open keyspace. The name is for error messages.
    pub fn keyspace(self: &Arc<LockTable>, name: &str) -> Arc<KeyspaceLocks> {
        let shards = std::array::from_fn(|_| Shard::new());
        Arc::new(KeyspaceLocks {
            name: Mutex::new(name.into()),
            table: self.clone(),
            shards,
            intervals: Intervals::new(),
        })
    }

    /// A fresh identity; smaller is older.
    #[inline]
    pub fn new_owner(&self) -> OwnerId {
        self.ids.0.fetch_add(1, Ordering::Relaxed)
    }

    /// Counters since the table was made.
    pub fn stats(&self) -> LockStats {
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        LockStats {
            waits: get(&self.waits),
            wait_ns: get(&self.wait_ns),
            deadlocks: get(&self.deadlocks),
            waiting: self.graph.waiting() as u64,
            coarsened: get(&self.coarsened),
        }
    }
}

/// Who asks: identity, and age for choosing whom a deadlock costs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asker {
    /// Identity.
    pub id: OwnerId,
    /// Identity of the first attempt, when this is a retry.
    pub birth: u64,
}

/// A lock that is asked for.
struct Asking<'k> {
    by: Asker,
    /// The key, or the lower end of the range.
    key: &'k [u8],
    /// When it was waited for first.
    since: Option<Instant>,
}

impl<'k> Asking<'k> {
    fn new(by: Asker, key: &'k [u8]) -> Asking<'k> {
        Asking { by, key, since: None }
    }
}

/// Key and interval locks of one keyspace.
pub(crate) struct KeyspaceLocks {
    name: Mutex<Arc<str>>,
    table: Arc<LockTable>,
    shards: [Shard; SHARDS],
    intervals: Intervals,
}

/// What changed by a successful [`KeyspaceLocks::take`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Got {
    Nothing,
    Key,
    Upgrade,
}

impl KeyspaceLocks {
    /// The keyspace's name.
    pub fn name(&self) -> Arc<str> {
        self.name.lock().clone()
    }

    /// The keyspace is called something else from here on.
    pub fn rename(&self, name: &str) {
        *self.name.lock() = name.into();
    }

    /// Whether they are of this table.
    #[inline]
    pub fn are_of(&self, table: &Arc<LockTable>) -> bool {
        Arc::ptr_eq(&self.table, table)
    }

    #[inline]
    fn shard_of(&self, key: &[u8]) -> usize {
        hash(key) as usize % SHARDS
    }

    #[inline]
    fn shard(&self, key: &[u8]) -> &Shard {
        &self.shards[self.shard_of(key)]
    }

    /// Locks `key`. True when the owner has a new lock to release. `ranged`: the owner may hold intervals here.
    #[inline]
    fn lock_key(&self, asker: Asker, key: &[u8], mode: Mode, ranged: bool) -> Result<bool> {
        if ranged && self.intervals.covers(asker.id, key, mode) {
            return Ok(false);
        }
        let shard = self.shard(key);
        let got = self.take(shard, &mut Asking::new(asker, key), mode)?;
        let clear = got == Got::Nothing
            || self.intervals.is_idle_for(asker.id, mode, key)
            || !self.intervals.blocks_key(asker.id, key, mode);
        if clear { Ok(got == Got::Key) } else { self.lock_key_behind(shard, asker, key, mode, got) }
    }

    /// The key's lock is in hand, in conflict with an interval: gives it back, queues behind the interval, takes it
    /// again.
    #[cold]
    fn lock_key_behind(&self, shard: &Shard, asker: Asker, key: &[u8], mode: Mode, got: Got) -> Result<bool> {
        let budget = &*self.table.budget;
        shard.release(budget, key, asker.id, got == Got::Upgrade);
        let point = (Bound::Included(key), Bound::Included(key));
        let ticket = self.intervals.publish(budget, asker.id, point, mode, true)?.expect("points are always put in");
        let mut asking = Asking::new(asker, key);
        let result = self.pass_list(&mut asking, ticket).and_then(|()| self.take(shard, &mut asking, mode));
        self.intervals.remove(budget, ticket);
        Ok(result? == Got::Key)
    }

    /// Takes a key lock in its shard, waiting in its queue.
    #[inline]
    fn take(&self, shard: &Shard, asking: &mut Asking<'_>, mode: Mode) -> Result<Got> {
        match shard.acquire(&self.table.budget, asking.key, asking.by.id, mode) {
            Taken::Fresh => Ok(Got::Key),
            Taken::Already => Ok(Got::Nothing),
            Taken::Upgraded => Ok(Got::Upgrade),
            Taken::Full(error) => Err(error),
            Taken::Queued(cell, on, upgrade) => match self.wait(asking, &cell, on) {
                Ok(()) => Ok(if upgrade { Got::Upgrade } else { Got::Key }),
                Err(error) => {
                    shard.withdraw(&self.table.budget, asking.key, &cell, upgrade);
                    Err(error)
                }
            },
        }
    }

    /// Waits until `cell` is granted.
    #[cold]
    fn wait(&self, asking: &mut Asking<'_>, cell: &Arc<wait::WaitCell>, on: Vec<OwnerId>) -> Result<()> {
        let table = &*self.table;
        let behind = table.running_beside(asking.by.id);
        if let Some(&own) = on.iter().find(|owner| behind.contains(owner))
            && cell.give_up()
        {
            return Err(self.would_deadlock(asking, own));
        }
        assert!(!on.is_empty() && !on.contains(&asking.by.id), "who waits does so for others");
        table.waits.fetch_add(1, Ordering::Relaxed);
        let began = varve_rt::now();
        let since = *asking.since.get_or_insert(began);
        let deadline = table.timeout().map(|timeout| since + timeout);
        let first = on.first().copied();
        let outcome = table.graph.wait(cell, asking.by.birth, on, &behind, deadline);
        table.wait_ns.fetch_add(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
        match outcome {
            Outcome::Granted => Ok(()),
            Outcome::Victim => {
                table.deadlocks.fetch_add(1, Ordering::Relaxed);
                Err(self.conflict(asking.key))
            }
            Outcome::TimedOut => Err(self.timed_out(asking, since, first)),
        }
    }

    fn conflict(&self, key: &[u8]) -> Error {
        Error::Conflict {
            keyspace: self.name().to_string(),
            reason: format!("deadlock with older transactions, met at key {}", show(key)),
        }
    }

    fn would_deadlock(&self, asking: &Asking<'_>, holder: OwnerId) -> Error {
        let (keyspace, key) = (self.name().to_string(), show(asking.key));
        Error::WouldDeadlock { keyspace, key, asker: asking.by.id, holder }
    }

    /// `ahead`: the owner who was first in the way when the wait began.
    fn timed_out(&self, asking: &Asking<'_>, since: Instant, ahead: Option<OwnerId>) -> Error {
        let holder = self.shard(asking.key).other_holder(asking.key, asking.by.id).or(ahead);
        let holder = holder.map_or("nobody any more".into(), |holder| match self.table.graph.waits_for(holder) {
            Some(other) => format!("transaction {holder}, which waits for transaction {other}"),
            None => format!("transaction {holder}, which waits for no lock"),
        });
        let (keyspace, key) = (self.name().to_string(), show(asking.key));
        Error::LockTimeout { keyspace, key, holder, waited: since.elapsed() }
    }

    /// Waits until no other request in the interval list stands in the way.
    fn pass_list(&self, asking: &mut Asking<'_>, ticket: Ticket) -> Result<()> {
        while let Some((cell, on)) = self.intervals.evaluate(ticket) {
            self.wait(asking, &cell, on)?;
        }
        Ok(())
    }

    /// Locks a range. True when the owner has something new to release.
    fn lock_range(&self, asker: Asker, range: Bounds<'_>, mode: Mode) -> Result<bool> {
        let budget = &*self.table.budget;
        let Some(ticket) = self.intervals.publish(budget, asker.id, range, mode, false)? else { return Ok(false) };
        match self.pass_range(asker, ticket, range, mode) {
            Ok(()) => {
                self.intervals.grant(budget, ticket);
                Ok(true)
            }
            Err(error) => {
                self.intervals.remove(budget, ticket);
                Err(error)
            }
        }
    }

    fn pass_range(&self, asker: Asker, ticket: Ticket, range: Bounds<'_>, mode: Mode) -> Result<()> {
        let low = match range.0 {
            Bound::Included(key) | Bound::Excluded(key) => key,
            Bound::Unbounded => &[],
        };
        let mut asking = Asking::new(asker, low);
        loop {
            self.pass_list(&mut asking, ticket)?;
            let mut on = self.key_conflicts(range, asker.id, mode);
            if on.is_empty() {
                return Ok(());
            }
            while !on.is_empty() {
                let cell = self.intervals.wait_for_keys(ticket, &on);
                // Owners that let go before the line above woke nobody; those that are still there will.
                let still = self.key_conflicts(range, asker.id, mode);
                if on.iter().all(|o| still.binary_search(o).is_ok()) {
                    self.wait(&mut asking, &cell, on)?;
                    break;
                }
                on = still;
            }
        }
    }

    fn key_conflicts(&self, range: Bounds<'_>, owner: OwnerId, mode: Mode) -> Vec<OwnerId> {
        let mut on = Vec::new();
        for shard in &self.shards {
            shard.conflicts(range, owner, mode, &mut on);
        }
        on.sort_unstable();
        on.dedup();
        on
    }

    /// Gives up the key locks of an owner.
    fn release(&self, keys: &[KeyBuf], owner: OwnerId) {
        let budget = &*self.table.budget;
        if keys.len() < MANY {
            keys.iter().for_each(|key| self.shard(key).release(budget, key, owner, false));
            return;
        }
        let mut by_shard: [Vec<&KeyBuf>; SHARDS] = std::array::from_fn(|_| Vec::new());
        keys.iter().for_each(|key| by_shard[self.shard_of(key)].push(key));
        assert_eq!(by_shard.iter().map(Vec::len).sum::<usize>(), keys.len(), "each key is in one shard");
        for (shard, keys) in self.shards.iter().zip(by_shard) {
            if !shard.release_alone(budget, &keys, owner) {
                shard.release_all(budget, &keys, owner);
            }
        }
    }

    /// The owner has released its key locks here: takes its intervals out and wakes scans that waited for it.
    #[inline]
    fn end(&self, owner: OwnerId, ranged: bool) {
        if ranged || self.intervals.has_waiting() {
            self.intervals.end_owner(&self.table.budget, owner);
        }
    }

    /// Locks one key exclusively for the length of a single operation.
    #[inline]
    pub fn lock_single<'a>(&'a self, key: &'a [u8]) -> Result<SingleLock<'a>> {
        let id = self.table.new_owner();
        let result = self.lock_key(Asker { id, birth: id }, key, Mode::Exclusive, false);
        if result.is_err() {
            self.end(id, false);
        }
        result.map(|_| SingleLock { locks: self, key, id })
    }

    /// Whether the owner may write `key`: holds it, or a range with it, exclusively.
    fn holds_exclusive(&self, owner: OwnerId, key: &[u8]) -> bool {
        self.shard(key).holds_exclusive(key, owner) || self.intervals.covers(owner, key, Mode::Exclusive)
    }

    /// Asserts what must hold while nobody asks for a lock or gives one back.
    #[cfg(test)]
    pub fn check(&self) {
        self.shards.iter().for_each(Shard::check);
        self.intervals.check();
    }

    /// Keys locked now.
    #[cfg(test)]
    pub fn locked_keys(&self) -> usize {
        self.shards.iter().map(Shard::len).sum()
    }

    /// Intervals locked or asked for now.
    #[cfg(test)]
    pub fn intervals(&self) -> usize {
        self.intervals.len()
    }
}

/// An exclusive key lock of a single operation.
pub(crate) struct SingleLock<'a> {
    locks: &'a KeyspaceLocks,
    key: &'a [u8],
    id: OwnerId,
}

impl SingleLock<'_> {
    /// Identity of the operation.
    pub fn id(&self) -> OwnerId {
        self.id
    }
}

impl Drop for SingleLock<'_> {
    #[inline]
    fn drop(&mut self) {
        if varve_rt::dying() {
            return;
        }
        self.locks.shard(self.key).release(&self.locks.table.budget, self.key, self.id, false);
        self.locks.end(self.id, false);
    }
}

#[inline]
fn hash(key: &[u8]) -> u64 {
    const K: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut h = key.len() as u64;
    let mut chunks = key.chunks_exact(8);
    for chunk in &mut chunks {
        h = (h.rotate_left(5) ^ u64::from_le_bytes(chunk.try_into().expect("eight bytes"))).wrapping_mul(K);
    }
    let mut last = 0;
    for &byte in chunks.remainder() {
        last = last << 8 | u64::from(byte);
    }
    h = (h.rotate_left(5) ^ last).wrapping_mul(K);
    h >> 48
}
