//! One shard of a keyspace's key locks: an ordered map from key to who holds it and who waits.
//!
//! Queues are first come, first served, with direct hand-over; only a holder of S that asks for X (an upgrade) goes to
//! the front. Invariants: an entry has a holder; it is X with one holder or S with one or more; the front of its queue
//! does not fit its holders. `counts` is written by whoever has the entries, and raised, sequentially consistent,
//! before an acquirer looks at the intervals, so that a scan that has published its interval may skip a shard that
//! counts none.
//!
//! Lock order: a shard's mutex is taken with no other lock-table mutex held.

use super::Mode;
use super::credit::Credit;
use super::wait::{OwnerId, WaitCell};
use crate::budget::Budget;
use crate::error::Error;
use crate::txn::key::{Bounds, KeyBuf};
use std::collections::btree_map::Entry as MapEntry;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use varve_rt::atomic::{AtomicU64, Ordering};
use varve_rt::{Cost, Mutex, charge};

/// Bytes an entry takes in the ordered map, with the map's slack.
const ENTRY: usize = (size_of::<KeyBuf>() + size_of::<KeyLock>()) * 3 / 2;
/// Bytes each holder takes: its place in the entry and the key in its own list of locks.
const HOLDER: usize = size_of::<OwnerId>() + size_of::<KeyBuf>() * 3 / 2;

struct Waiter {
    cell: Arc<WaitCell>,
    mode: Mode,
    /// Holds S already.
    upgrade: bool,
}

/// Rarely needed parts of an entry.
#[derive(Default)]
struct Crowd {
    /// Holders beside the first.
    others: Vec<OwnerId>,
    queue: VecDeque<Waiter>,
}

struct KeyLock {
    first: OwnerId,
    mode: Mode,
    crowd: Option<Box<Crowd>>,
}

impl KeyLock {
    fn holds(&self, owner: OwnerId) -> bool {
        self.first == owner || self.crowd.as_ref().is_some_and(|c| c.others.contains(&owner))
    }

    fn holders(&self) -> impl Iterator<Item = OwnerId> + '_ {
        let others = self.crowd.as_ref().map_or(&[][..], |c| &c.others);
        std::iter::once(self.first).chain(others.iter().copied())
    }

    fn is_alone(&self) -> bool {
        self.crowd.as_ref().is_none_or(|c| c.others.is_empty())
    }

    /// A holder asks for more: those that wait to read now wait for it too, even once the writer between is gone.
    fn readers_wait_for(&self, owner: OwnerId) {
        let Some(crowd) = &self.crowd else { return };
        crowd.queue.iter().filter(|w| w.mode == Mode::Shared).for_each(|w| w.cell.also_waits_for(owner));
    }

    /// Whether it is as entries are between two calls.
    fn is_sound(&self) -> bool {
        let waits = |front: &Waiter| match front.upgrade {
            true => self.holds(front.cell.owner) && !self.is_alone(),
            false => front.mode == Mode::Exclusive || self.mode == Mode::Exclusive,
        };
        let front = self.crowd.as_ref().and_then(|crowd| crowd.queue.front());
        (self.mode == Mode::Shared || self.is_alone()) && front.is_none_or(waits)
    }

    fn has_queue(&self) -> bool {
        self.crowd.as_ref().is_some_and(|c| !c.queue.is_empty())
    }
}

/// What came of asking for a key lock.
pub(super) enum Taken {
    /// Held already, at least as strongly.
    Already,
    /// Newly held.
    Fresh,
    /// Was S, is X.
    Upgraded,
    /// Queued behind these owners; true for an upgrade.
    Queued(Arc<WaitCell>, Vec<OwnerId>, bool),
    /// No memory for another lock.
    Full(Error),
}

/// Bytes that the lock of a key takes which nobody else has.
pub(super) fn bytes_of(key: &[u8]) -> usize {
    ENTRY + HOLDER + 2 * KeyBuf::heap_bytes_of(key)
}

#[repr(align(128))]
pub(super) struct Shard {
    entries: Mutex<Entries>,
    /// Keys that are locked, and above [`EXCLUSIVE`] those that are locked exclusively.
    counts: AtomicU64,
}

/// An exclusive lock in a shard's counts.
const EXCLUSIVE: u64 = 1 << 32;
/// Keys that are given up before others get to their turn.
const AT_ONCE: usize = 64;

struct Entries {
    map: BTreeMap<KeyBuf, KeyLock>,
    credit: Credit,
}

impl Shard {
    pub fn new() -> Shard {
        let entries = Entries { map: BTreeMap::new(), credit: Credit::default() };
        Shard { entries: Mutex::new(entries), counts: AtomicU64::new(0) }
    }

    /// Asks for `key`. When queued, the caller waits on the cell, and calls [`Shard::withdraw`] if it has to give way.
    #[inline]
    pub fn acquire(&self, budget: &Budget, key: &[u8], owner: OwnerId, mode: Mode) -> Taken {
        let mut entries = self.entries.lock();
        charge(Cost::LockAcquire, 1);
        let entries = &mut *entries;
        let key = KeyBuf::new(key);
        let heap = key.heap_bytes();
        let (new, more) = (ENTRY + HOLDER + 2 * heap, HOLDER + heap);
        match entries.map.entry(key) {
            MapEntry::Vacant(slot) => {
                if let Err(full) = entries.credit.take(budget, new) {
                    return Taken::Full(full);
                }
                slot.insert(KeyLock { first: owner, mode, crowd: None });
                self.raise(1 + if mode == Mode::Exclusive { EXCLUSIVE } else { 0 });
                Taken::Fresh
            }
            MapEntry::Occupied(slot) => {
                let entry = slot.into_mut();
                // What it holds already takes no more memory, whatever it asks for.
                if !entry.holds(owner)
                    && let Err(full) = entries.credit.take(budget, more)
                {
                    return Taken::Full(full);
                }
                self.acquire_present(entry, owner, mode)
            }
        }
    }

    /// Counts more locks. The caller has the entries.
    #[inline]
    fn raise(&self, by: u64) {
        let counts = self.counts.load(Ordering::Relaxed);
        debug_assert!(counts % EXCLUSIVE + by % EXCLUSIVE < EXCLUSIVE, "the counts of a shard do not run together");
        self.counts.store(counts + by, Ordering::SeqCst);
    }

    /// Counts fewer locks. The caller has the entries.
    #[inline]
    fn lower(&self, by: u64) {
        let counts = self.counts.load(Ordering::Relaxed);
        assert!(counts >= by && counts % EXCLUSIVE >= by % EXCLUSIVE, "a lock was counted");
        self.counts.store(counts - by, Ordering::Release);
    }

    fn acquire_present(&self, entry: &mut KeyLock, owner: OwnerId, mode: Mode) -> Taken {
        if entry.holds(owner) {
            if mode == Mode::Shared || entry.mode == Mode::Exclusive {
                return Taken::Already;
            }
            entry.readers_wait_for(owner);
            if entry.is_alone() {
                entry.mode = Mode::Exclusive;
                self.raise(EXCLUSIVE);
                return Taken::Upgraded;
            }
            let on = entry.holders().filter(|&h| h != owner).collect();
            let cell = WaitCell::new(owner);
            let crowd = entry.crowd.as_mut().expect("several holders");
            crowd.queue.push_front(Waiter { cell: cell.clone(), mode, upgrade: true });
            return Taken::Queued(cell, on, true);
        }
        if mode == Mode::Shared && entry.mode == Mode::Shared && !entry.has_queue() {
            entry.crowd.get_or_insert_default().others.push(owner);
            return Taken::Fresh;
        }
        let mut on: Vec<OwnerId> = Vec::new();
        if mode == Mode::Exclusive || entry.mode == Mode::Exclusive {
            on.extend(entry.holders());
        }
        let crowd = entry.crowd.get_or_insert_default();
        let ahead = crowd.queue.iter().filter(|w| w.mode == Mode::Exclusive || mode == Mode::Exclusive);
        on.extend(ahead.map(|w| w.cell.owner));
        let cell = WaitCell::new(owner);
        crowd.queue.push_back(Waiter { cell: cell.clone(), mode, upgrade: false });
        debug_assert!(!on.is_empty(), "who is queued waits for somebody");
        Taken::Queued(cell, on, false)
    }

    /// Gives `key` up, or back to S when `keep_shared`.
    #[inline]
    pub fn release(&self, budget: &Budget, key: &[u8], owner: OwnerId, keep_shared: bool) {
        let mut entries = self.entries.lock();
        charge(Cost::LockRelease, 1);
        let given = self.release_one(&mut entries.map, key, owner, keep_shared);
        entries.credit.give(budget, given);
    }

    /// Gives up the keys of an owner, all of which it holds.
    pub fn release_all(&self, budget: &Budget, keys: &[&KeyBuf], owner: OwnerId) {
        for keys in keys.chunks(AT_ONCE) {
            let mut entries = self.entries.lock();
            charge(Cost::LockRelease, keys.len() as u64);
            let given = keys.iter().map(|key| self.release_one(&mut entries.map, key, owner, false)).sum();
            entries.credit.give(budget, given);
        }
    }

    /// Gives up the keys of an owner at once if they are all that is locked here, and nobody waits; false if not.
    pub fn release_alone(&self, budget: &Budget, keys: &[&KeyBuf], owner: OwnerId) -> bool {
        let mut entries = self.entries.lock();
        let own = |entry: &KeyLock| entry.first == owner && entry.crowd.is_none();
        if entries.map.len() != keys.len() || !entries.map.values().all(own) {
            return false;
        }
        debug_assert!(keys.iter().all(|key| entries.map.contains_key::<KeyBuf>(key)), "a held lock has an entry");
        charge(Cost::LockRelease, keys.len() as u64);
        let given = keys.iter().map(|key| bytes_of(key)).sum();
        let gone = std::mem::take(&mut entries.map);
        let counts = self.counts.load(Ordering::Relaxed);
        assert_eq!(counts % EXCLUSIVE, keys.len() as u64, "locks are counted");
        self.lower(counts);
        entries.credit.give(budget, given);
        drop(entries);
        drop(gone);
        true
    }

    /// Gives a key up, or back to S; returns the bytes that are free again.
    #[inline]
    fn release_one(&self, map: &mut BTreeMap<KeyBuf, KeyLock>, key: &[u8], owner: OwnerId, keep_shared: bool) -> usize {
        let heap = KeyBuf::heap_bytes_of(key);
        let gone = if heap == 0 {
            // A short key is made without allocating, and looked for once.
            let MapEntry::Occupied(mut slot) = map.entry(KeyBuf::new(key)) else { panic!("a held lock has an entry") };
            let gone = self.give_up(slot.get_mut(), owner, keep_shared);
            if gone {
                slot.remove();
            }
            gone
        } else {
            let entry = map.get_mut(key).expect("a held lock has an entry");
            let gone = self.give_up(entry, owner, keep_shared);
            if gone {
                map.remove(key);
            }
            gone
        };
        if gone {
            self.lower(1);
        }
        (if keep_shared { 0 } else { HOLDER + heap }) + (if gone { ENTRY + heap } else { 0 })
    }

    /// Ends a hold, or makes it S, and hands over. True if nobody has or wants the lock any more.
    #[inline]
    fn give_up(&self, entry: &mut KeyLock, owner: OwnerId, keep_shared: bool) -> bool {
        assert!(entry.holds(owner), "a lock is released by an owner that holds it");
        debug_assert!(entry.is_sound(), "the front of a queue does not fit the holders");
        debug_assert!(!keep_shared || entry.mode == Mode::Exclusive, "what goes back to S was X");
        if entry.mode == Mode::Exclusive {
            self.lower(EXCLUSIVE);
        }
        let emptied = if keep_shared {
            entry.mode = Mode::Shared;
            false
        } else {
            leave(entry, owner)
        };
        (emptied && !entry.has_queue()) || !self.hand_over(entry, emptied)
    }

    /// Takes a waiter that gave way out of the queue.
    pub fn withdraw(&self, budget: &Budget, key: &[u8], cell: &Arc<WaitCell>, upgrade: bool) {
        let mut entries = self.entries.lock();
        let entries = &mut *entries;
        if !upgrade {
            entries.credit.give(budget, HOLDER + KeyBuf::heap_bytes_of(key));
        }
        // The entry may be gone: whoever hands over drops decided waiters on the way.
        let Some(entry) = entries.map.get_mut(key) else { return };
        if let Some(crowd) = &mut entry.crowd {
            crowd.queue.retain(|w| !Arc::ptr_eq(&w.cell, cell));
        }
        let held = self.hand_over(entry, false);
        debug_assert!(held && entry.is_sound(), "who gives up waiting leaves a holder, and a front that has to wait");
    }

    /// Grants the queue's front as far as it fits. `free`: no holder is left. False when it stays so.
    fn hand_over(&self, entry: &mut KeyLock, mut free: bool) -> bool {
        while let Some(crowd) = &mut entry.crowd {
            let Some(front) = crowd.queue.front() else { break };
            let alone = crowd.others.is_empty();
            let fits = if front.upgrade {
                alone && entry.first == front.cell.owner
            } else {
                free || (front.mode == Mode::Shared && entry.mode == Mode::Shared)
            };
            if !fits {
                break;
            }
            let waiter = crowd.queue.pop_front().expect("seen above");
            assert!(!(waiter.upgrade && free), "an upgrader holds its S lock while it waits");
            // Counted before the waiter learns of it: it looks at the intervals next.
            let exclusive = waiter.mode == Mode::Exclusive;
            if exclusive {
                self.raise(EXCLUSIVE);
            }
            if !waiter.cell.grant() {
                if exclusive {
                    self.lower(EXCLUSIVE);
                }
                continue;
            }
            if waiter.upgrade {
                entry.mode = Mode::Exclusive;
            } else if free {
                (entry.first, entry.mode) = (waiter.cell.owner, waiter.mode);
            } else {
                crowd.others.push(waiter.cell.owner);
            }
            free = false;
            if exclusive {
                break;
            }
        }
        !free
    }

    /// Whether the owner holds the key exclusively.
    pub fn holds_exclusive(&self, key: &[u8], owner: OwnerId) -> bool {
        let entries = self.entries.lock();
        entries.map.get(key).is_some_and(|entry| entry.mode == Mode::Exclusive && entry.holds(owner))
    }

    /// Asserts what must hold while nobody asks for a lock or gives one back.
    #[cfg(test)]
    pub fn check(&self) {
        let entries = self.entries.lock();
        let exclusive = entries.map.values().filter(|entry| entry.mode == Mode::Exclusive).count();
        let counts = self.counts.load(Ordering::SeqCst);
        assert_eq!((counts / EXCLUSIVE) as usize, exclusive, "exclusive locks are counted");
        assert_eq!((counts % EXCLUSIVE) as usize, entries.map.len(), "locks are counted");
        assert!(entries.map.values().all(KeyLock::is_sound));
    }

    /// Appends the owners other than `owner` of locks in `range` that an interval lock of `mode` has to wait for.
    pub fn conflicts(&self, range: Bounds<'_>, owner: OwnerId, mode: Mode, into: &mut Vec<OwnerId>) {
        let counts = self.counts.load(Ordering::SeqCst);
        let count = if mode == Mode::Exclusive { counts % EXCLUSIVE } else { counts / EXCLUSIVE };
        if count == 0 {
            return;
        }
        let entries = self.entries.lock();
        for (_, entry) in entries.map.range::<[u8], (Bound<&[u8]>, Bound<&[u8]>)>(range) {
            if mode == Mode::Shared && entry.mode == Mode::Shared {
                continue;
            }
            into.extend(entry.holders().filter(|&h| h != owner));
        }
    }

    /// An owner that holds `key` now, beside `owner`.
    pub fn other_holder(&self, key: &[u8], owner: OwnerId) -> Option<OwnerId> {
        self.entries.lock().map.get(key)?.holders().find(|&h| h != owner)
    }

    /// Keys locked now.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.entries.lock().map.len()
    }
}

/// Takes a holder out; true when none is left.
fn leave(entry: &mut KeyLock, owner: OwnerId) -> bool {
    if entry.first != owner {
        let others = &mut entry.crowd.as_mut().expect("another holder").others;
        others.retain(|&h| h != owner);
        return false;
    }
    match entry.crowd.as_mut().map(|c| &mut c.others) {
        Some(others) if !others.is_empty() => {
            entry.first = others.remove(0);
            false
        }
        _ => true,
    }
}
