//! All locks of one transaction, and what becomes of them when they take more than its share of memory.
//!
//! A quarter of what all locks may take is one transaction's share. When it is used up, neighbouring keys and intervals
//! become one interval, of each keyspace as few as [`MOST`], and if that is not enough, fewer, down to one. Shared and
//! exclusive locks are covered apart. A transaction may wait for others then, and give way, as with any lock.
//!
//! Invariants: `bytes` is at least what the locks take that are counted here; a key is in the list of its keyspace as
//! long as its lock is held in a shard.

use super::{Asker, KeyspaceLocks, LockTable, Mode, OwnerId, coarse, interval, shard};
use crate::budget::Class;
use crate::error::{Error, Result};
use crate::txn::key::{Bounds, KeyBuf, OwnedBounds, bound_ref, contains, is_possible};
use smallvec::SmallVec;
use std::ops::Bound;
use std::sync::Arc;
use varve_rt::atomic::Ordering;

/// Part of the memory for locks that one transaction may use for fine ones (assumed).
const SHARE: u64 = 4;
/// Intervals that the locks of one mode in one keyspace become at first (assumed).
const MOST: usize = 64;

struct Held {
    locks: Arc<KeyspaceLocks>,
    keys: SmallVec<[KeyBuf; 2]>,
    ranged: bool,
}

/// All locks of one transaction. They are released together, by [`LockSet::release`] or when it is dropped.
pub(crate) struct LockSet {
    asker: Asker,
    held: SmallVec<[Held; 1]>,
    /// Bytes that the locks take, or more.
    bytes: u64,
    /// Above this they become coarser.
    share: u64,
}

impl LockSet {
    /// An owner without locks. `birth`: identity of the first attempt, when this is a retry.
    pub fn new(table: &LockTable, birth: Option<u64>) -> LockSet {
        let id = table.new_owner();
        let share = table.budget.limit(Class::Locks) / SHARE;
        LockSet { asker: Asker { id, birth: birth.unwrap_or(id) }, held: SmallVec::new(), bytes: 0, share }
    }

    /// It has another share.
    #[cfg(test)]
    pub fn set_share(&mut self, share: Option<u64>) {
        self.share = share.unwrap_or(self.share);
    }

    /// Identity of the owner.
    pub fn id(&self) -> OwnerId {
        self.asker.id
    }

    /// The age by which deadlock victims are chosen.
    pub fn birth(&self) -> u64 {
        self.asker.birth
    }

    /// Bytes that the locks take, or more.
    pub fn bytes(&self) -> u64 {
        debug_assert!(self.bytes > 0 || self.is_empty(), "what is locked takes memory");
        self.bytes
    }

    /// Whether it has no lock.
    pub fn is_empty(&self) -> bool {
        self.held.iter().all(|held| held.keys.is_empty() && !held.ranged)
    }

    /// Whether the owner may write `key`. For assertions: it takes locks of the table.
    pub fn holds_exclusive(&self, locks: &KeyspaceLocks, key: &[u8]) -> bool {
        locks.holds_exclusive(self.asker.id, key)
    }

    #[inline]
    fn space(&mut self, locks: &Arc<KeyspaceLocks>) -> &mut Held {
        let found = self.held.iter().position(|h| Arc::ptr_eq(&h.locks, locks));
        let at = found.unwrap_or_else(|| {
            self.held.push(Held { locks: locks.clone(), keys: SmallVec::new(), ranged: false });
            self.held.len() - 1
        });
        &mut self.held[at]
    }

    /// Locks a key, waiting for those who hold it.
    ///
    /// # Errors
    /// `Conflict` when this transaction has to give way in a deadlock (the caller then releases all);
    /// `OverBudget` when there is no memory for another lock, `LockTimeout`, `WouldDeadlock` (what is held stays held).
    #[inline]
    pub fn lock_key(&mut self, locks: &Arc<KeyspaceLocks>, key: &[u8], mode: Mode) -> Result<()> {
        match self.try_lock_key(locks, key, mode) {
            Ok(()) if self.bytes <= self.share => Ok(()),
            Ok(()) => self.share_is_used_up(),
            Err(Error::OverBudget { .. }) if self.coarsen()? => self.try_lock_key(locks, key, mode),
            Err(error) => Err(error),
        }
    }

    #[inline]
    fn try_lock_key(&mut self, locks: &Arc<KeyspaceLocks>, key: &[u8], mode: Mode) -> Result<()> {
        let asker = self.asker;
        let space = self.space(locks);
        if space.locks.lock_key(asker, key, mode, space.ranged)? {
            space.keys.push(KeyBuf::new(key));
            self.bytes += shard::bytes_of(key) as u64;
        }
        Ok(())
    }

    /// Locks a range of keys, those not there included. Errors as for [`LockSet::lock_key`].
    pub fn lock_range(&mut self, locks: &Arc<KeyspaceLocks>, range: Bounds<'_>, mode: Mode) -> Result<()> {
        match self.try_lock_range(locks, range, mode) {
            Ok(()) if self.bytes <= self.share => Ok(()),
            Ok(()) => self.share_is_used_up(),
            Err(Error::OverBudget { .. }) if self.coarsen()? => self.try_lock_range(locks, range, mode),
            Err(error) => Err(error),
        }
    }

    fn try_lock_range(&mut self, locks: &Arc<KeyspaceLocks>, range: Bounds<'_>, mode: Mode) -> Result<()> {
        let asker = self.asker;
        let space = self.space(locks);
        if space.locks.lock_range(asker, range, mode)? {
            space.ranged = true;
            self.bytes += interval::Request::bytes(range.0, range.1) as u64;
        }
        Ok(())
    }

    /// Makes the locks coarser if they do take so much. Where that cannot be done now, they stay as they are.
    #[cold]
    fn share_is_used_up(&mut self) -> Result<()> {
        self.recount();
        if self.bytes * 4 <= self.share * 3 {
            return Ok(());
        }
        match self.coarsen() {
            Err(error @ Error::Conflict { .. }) => Err(error),
            // What was asked for is locked. The next attempt comes when more is.
            _ => {
                self.share = self.share.max(self.bytes + self.share / 4);
                Ok(())
            }
        }
    }

    /// Counts what the locks take.
    fn recount(&mut self) {
        let id = self.asker.id;
        let of = |space: &Held| {
            let keys: usize = space.keys.iter().map(|key| shard::bytes_of(key)).sum();
            let ranges = |mode| if space.ranged { space.locks.intervals.held(id, mode).1 } else { 0 };
            (keys + ranges(Mode::Shared) + ranges(Mode::Exclusive)) as u64
        };
        self.bytes = self.held.iter().map(of).sum();
    }

    /// Covers neighbours by intervals until half of the share is free again; whether there is less than before.
    #[cold]
    fn coarsen(&mut self) -> Result<bool> {
        self.recount();
        let before = self.bytes;
        assert!(!self.held.is_empty() || before == 0, "what takes memory is held");
        let mut most = MOST;
        while most > 0 {
            for at in 0..self.held.len() {
                for mode in [Mode::Exclusive, Mode::Shared] {
                    self.cover(at, mode, most)?;
                }
            }
            self.recount();
            if self.bytes <= self.share / 2 {
                break;
            }
            most /= 4;
        }
        if self.bytes < before {
            self.held[0].locks.table.coarsened.fetch_add(1, Ordering::Relaxed);
        }
        Ok(self.bytes < before)
    }

    /// Covers the locks of a mode in a keyspace by as many intervals at most.
    fn cover(&mut self, at: usize, mode: Mode, most: usize) -> Result<()> {
        let asker = self.asker;
        let space = &mut self.held[at];
        let locks = space.locks.clone();
        let is_of = |key: &KeyBuf| (mode == Mode::Exclusive) == locks.shard(key).holds_exclusive(key, asker.id);
        let mut ranges: Vec<OwnedBounds> =
            if space.ranged { locks.intervals.held(asker.id, mode).0 } else { Vec::new() };
        ranges.extend(space.keys.iter().filter(|key| is_of(key)).map(|key| {
            let end = Bound::Included(key.clone());
            (end.clone(), end)
        }));
        if ranges.len() <= most {
            return Ok(());
        }
        for ((low, high), members) in coarse::cover(ranges, most) {
            if members == 1 {
                continue;
            }
            let range = (bound_ref(&low), bound_ref(&high));
            debug_assert!(is_possible(range.0, range.1), "what covers locks is a range");
            space.ranged |= locks.lock_range(asker, range, mode)?;
            let budget = &*locks.table.budget;
            space.keys.retain(|key| {
                let covered = contains(range, key) && (mode == Mode::Exclusive || is_of(key));
                if covered {
                    locks.shard(key).release(budget, key, asker.id, false);
                }
                !covered
            });
        }
        Ok(())
    }

    /// Releases everything.
    pub fn release(&mut self) {
        if varve_rt::dying() {
            return;
        }
        for space in self.held.drain(..) {
            space.locks.release(&space.keys, self.asker.id);
            space.locks.end(self.asker.id, space.ranged);
        }
        self.bytes = 0;
    }
}

impl Drop for LockSet {
    fn drop(&mut self) {
        self.release();
    }
}
