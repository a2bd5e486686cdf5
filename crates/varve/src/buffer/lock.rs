//! The lock of an instance's lists, timed: how long threads wait for it, and how long each holds it.
//!
//! In both worlds a lock costs three looks at the clock; hits of resident pages take it once in 64. Times in a
//! simulation include the processor time charged under the lock.
//!
//! Invariant: times are counted while the lock is held, so no two threads count at once.

use super::instance::Lists;
use super::stats::Counters;
use std::ops::{Deref, DerefMut};
use std::time::Duration;
use varve_rt::{Condvar, Instant, Mutex, MutexGuard};

/// The lists of an instance under its lock.
pub(super) struct Locked<'a> {
    lists: MutexGuard<'a, Lists>,
    since: Instant,
    counters: &'a Counters,
}

impl<'a> Locked<'a> {
    /// Waits for the lock.
    pub(super) fn lock(lists: &'a Mutex<Lists>, counters: &'a Counters) -> Locked<'a> {
        let asked = varve_rt::now();
        let lists = lists.lock();
        let since = varve_rt::now();
        counters.list_locks.inc();
        counters.list_wait_ns.add((since - asked).as_nanos() as u64);
        Locked { lists, since, counters }
    }

    /// The lock if it is free.
    pub(super) fn try_lock(lists: &'a Mutex<Lists>, counters: &'a Counters) -> Option<Locked<'a>> {
        let lists = lists.try_lock()?;
        counters.list_locks.inc();
        Some(Locked { lists, since: varve_rt::now(), counters })
    }

    /// Lets go of the lock, waits for `event`, at most `limit`, and takes the lock again.
    pub(super) fn wait_for(&mut self, event: &Condvar, limit: Duration) {
        self.note();
        event.wait_for(&mut self.lists, limit);
        self.since = varve_rt::now();
    }

    fn note(&self) {
        let held = self.since.elapsed().as_nanos() as u64;
        self.counters.list_hold_ns.add(held);
        self.counters.list_hold_max_ns.max(held);
    }
}

impl Deref for Locked<'_> {
    type Target = Lists;
    fn deref(&self) -> &Lists {
        &self.lists
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Lists {
        &mut self.lists
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.note();
    }
}
