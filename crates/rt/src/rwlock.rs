//! The shared/exclusive lock: one 32-bit word, one atomic operation when uncontended.
//!
//! The word: `WRITER` (held exclusively); `PARKED`, `SIM`, `FRESH` as in [`crate::mutex`]; the number of shared holders
//! in the upper bits. New readers stand back while anyone is parked, so a stream of readers does not starve a writer;
//! hence a thread that already holds shared access must not ask for it again.
//!
//! Invariant: `PARKED` with no holder means that a woken thread is on its way to try (it will acquire, or find a new
//! holder, whose release wakes again) or that a waker is at work, so nobody is forgotten.

use crate::instant::Instant;
use crate::park;
use crate::spin::Backoff;
use crate::time::now;
use crate::wait::{Caller, Parked, Pick, Wait, What, Woken};
use crate::world;
use std::panic::Location;
use std::sync::atomic::{AtomicU32, Ordering::*};
use std::time::Duration;

const WRITER: u32 = 1;
const PARKED: u32 = 2;
const SIM: u32 = 4;
const FRESH: u32 = 8;
const READER: u32 = 16;
const READERS: u32 = !(READER - 1);

/// Park tokens.
const WANTS_READ: usize = 0;
const WANTS_WRITE: usize = 1;
/// Unpark tokens, as for the mutex.
const RETRY: usize = 0;
const HANDED: usize = 1;

/// A raw shared/exclusive lock (see [`lock_api::RawRwLock`]); [`RwLock`] adds data and guards.
pub struct RawRwLock {
    state: AtomicU32,
}

/// A shared/exclusive lock over `T`. Neither readers nor writers starve; no poisoning; not reentrant, not even shared.
pub type RwLock<T> = lock_api::RwLock<RawRwLock, T>;
/// Shared access to a [`RwLock`], released when dropped.
pub type RwLockReadGuard<'a, T> = lock_api::RwLockReadGuard<'a, RawRwLock, T>;
/// Exclusive access to a [`RwLock`], released when dropped.
pub type RwLockWriteGuard<'a, T> = lock_api::RwLockWriteGuard<'a, RawRwLock, T>;
/// A [`RwLockReadGuard`] narrowed to a part of the data.
pub type MappedRwLockReadGuard<'a, T> = lock_api::MappedRwLockReadGuard<'a, RawRwLock, T>;
/// A [`RwLockWriteGuard`] narrowed to a part of the data.
pub type MappedRwLockWriteGuard<'a, T> = lock_api::MappedRwLockWriteGuard<'a, RawRwLock, T>;
/// Shared access that keeps its lock alive by an `Arc`.
pub type ArcRwLockReadGuard<T> = lock_api::ArcRwLockReadGuard<RawRwLock, T>;
/// Exclusive access that keeps its lock alive by an `Arc`.
pub type ArcRwLockWriteGuard<T> = lock_api::ArcRwLockWriteGuard<RawRwLock, T>;

fn add_reader(s: u32, n: u32) -> u32 {
    s.checked_add(n * READER).expect("more than 2^28 shared holders of one lock")
}

impl RawRwLock {
    fn key(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// The word after `kind` of access was granted in state `s`, if it can be; `woken` threads may pass parked ones.
    fn granted(s: u32, kind: usize, woken: bool) -> Option<u32> {
        if kind == WANTS_WRITE {
            (s & (WRITER | READERS) == 0).then_some(s | WRITER)
        } else {
            let free = s & WRITER == 0 && (s & PARKED == 0 || s & READERS == 0 || woken);
            free.then(|| add_reader(s, 1))
        }
    }

    /// True when access was acquired.
    #[cold]
    #[inline(never)]
    fn lock_slow(&self, kind: usize, deadline: Option<Instant>, at: Caller) -> bool {
        let sim = world::active();
        let mark = if sim { SIM } else { 0 };
        if sim {
            world::lock_boundary(self.key());
        }
        let what = if kind == WANTS_WRITE { What::Write } else { What::Read };
        let mut backoff = Backoff::new();
        let fresh = self.state.load(Relaxed) & SIM == 0;
        let mut woken = false;
        loop {
            let s = self.state.load(Relaxed);
            world::race_point();
            if let Some(taken) = Self::granted(s, kind, woken) {
                let taken = (taken & !FRESH) | mark;
                if self.state.compare_exchange_weak(s, taken, Acquire, Relaxed).is_ok() {
                    break;
                }
                continue;
            }
            if s & PARKED == 0 {
                if backoff.step() {
                    continue;
                }
                if self.state.compare_exchange_weak(s, s | PARKED | mark, Relaxed, Relaxed).is_err() {
                    continue;
                }
            }
            world::race_point();
            let wait = Wait { key: self.key(), what, at, token: kind, deadline };
            let blocked = || {
                let s = self.state.load(Relaxed);
                s & PARKED != 0 && Self::granted(s, kind, woken).is_none()
            };
            let left = |last: bool| {
                if last {
                    self.state.fetch_and(!PARKED, Relaxed);
                }
            };
            match park::park(wait, blocked, || {}, left) {
                Parked::Unparked(HANDED) => {
                    // Orders this holder after every earlier one, not just after the thread that woke it.
                    self.state.load(Acquire);
                    break;
                }
                Parked::Unparked(_) => {
                    woken = true;
                    backoff = Backoff::new();
                }
                Parked::Invalid => {}
                Parked::TimedOut => return false,
                Parked::Dying => {
                    if Self::granted(self.state.load(Relaxed), kind, true).is_some() {
                        woken = true;
                        continue;
                    }
                    world::unwind_if_possible();
                    self.state.fetch_or(SIM, Relaxed);
                    world::ghost_lock(self.key());
                    return true;
                }
            }
        }
        if sim {
            world::after_lock(self.key(), kind == WANTS_WRITE, fresh);
        }
        true
    }

    #[cold]
    #[inline(never)]
    fn try_slow(&self, kind: usize) -> bool {
        let sim = world::active();
        let mark = if sim { SIM } else { 0 };
        if sim {
            world::lock_boundary(self.key());
        }
        let fresh = self.state.load(Relaxed) & SIM == 0;
        let take = |s: u32| Self::granted(s, kind, false).map(|t| (t & !FRESH) | mark);
        let taken = self.state.fetch_update(Acquire, Relaxed, take).is_ok();
        if taken && sim {
            world::after_lock(self.key(), kind == WANTS_WRITE, fresh);
        }
        taken
    }

    /// Settles a simulated thread's charges before it unlocks; true when the lock was only lent to a dying thread.
    #[cold]
    #[inline(never)]
    fn leaving_in_simulation(&self, exclusive: bool) -> bool {
        if !world::active() {
            return false;
        }
        world::lock_boundary(self.key());
        if world::ghost_unlock(self.key()) {
            return true;
        }
        world::released(self.key(), exclusive);
        false
    }

    /// Wakes the front of the queue: one writer, or every reader up to the first writer. Readers get the lock handed;
    /// a writer only when `fair` or when the queue says it has waited long.
    #[cold]
    #[inline(never)]
    fn wake(&self, readers_only: bool, fair: bool) {
        world::race_point();
        // Who was picked: written by the filter, read by the callback.
        let picked = std::cell::Cell::new((0u32, false));
        park::unpark_filter(
            self.key(),
            |kind| match (kind, picked.get()) {
                (WANTS_READ, (n, false)) => {
                    picked.set((n + 1, false));
                    Pick::Wake
                }
                (WANTS_WRITE, (0, false)) if !readers_only => {
                    picked.set((0, true));
                    Pick::Wake
                }
                _ => Pick::Stop,
            },
            |w: Woken| {
                let (readers, writer) = picked.get();
                loop {
                    let s = self.state.load(Relaxed);
                    let rest = if w.more { s | PARKED } else { s & !PARKED };
                    let (new, token) = if writer {
                        let free = s & (WRITER | READERS) == 0;
                        if free && (w.fair || fair) { (rest | WRITER, HANDED) } else { (rest, RETRY) }
                    } else if readers > 0 && s & WRITER == 0 {
                        (add_reader(rest, readers), HANDED)
                    } else {
                        (rest, RETRY)
                    };
                    if self.state.compare_exchange_weak(s, new, Relaxed, Relaxed).is_ok() {
                        return token;
                    }
                }
            },
        );
    }

    #[cold]
    #[inline(never)]
    fn unlock_exclusive_slow(&self, fair: bool) {
        if self.state.load(Relaxed) & SIM != 0 && self.leaving_in_simulation(true) {
            return;
        }
        let before = self.state.fetch_and(!WRITER, Release);
        assert!(before & WRITER != 0, "release of exclusive access that is not held");
        if before & PARKED != 0 {
            self.wake(false, fair);
        }
    }

    #[inline]
    fn unlock_shared_with(&self, fair: bool) {
        if self.state.load(Relaxed) & SIM != 0 && self.leaving_in_simulation(false) {
            return;
        }
        let before = self.state.fetch_sub(READER, Release);
        debug_assert!(before & READERS != 0, "release of shared access that is not held");
        if before & (READERS | PARKED) == READER | PARKED {
            self.wake(false, fair);
        }
    }

    #[inline]
    fn read_fast(&self) -> bool {
        let s = self.state.load(Relaxed);
        // The top bit of the count sends the overflow check down the slow path.
        s & (!READERS | 1 << 31) == 0 && self.state.compare_exchange_weak(s, s + READER, Acquire, Relaxed).is_ok()
    }

    #[inline]
    fn write_fast(&self) -> bool {
        self.state.compare_exchange_weak(0, WRITER, Acquire, Relaxed).is_ok()
    }
}

// SAFETY: `WRITER` is only ever set in a word with neither `WRITER` nor a reader, and a reader is only ever added to a
// word without `WRITER`, with acquire on taking and release on leaving; see `world::ghost_lock` for dying threads.
unsafe impl lock_api::RawRwLock for RawRwLock {
    #[allow(clippy::declare_interior_mutable_const)]
    const INIT: RawRwLock = RawRwLock { state: AtomicU32::new(FRESH) };
    type GuardMarker = lock_api::GuardSend;

    #[inline]
    #[track_caller]
    fn lock_shared(&self) {
        if !self.read_fast() {
            self.lock_slow(WANTS_READ, None, Location::caller());
        }
    }

    #[inline]
    fn try_lock_shared(&self) -> bool {
        self.read_fast() || self.try_slow(WANTS_READ)
    }

    #[inline]
    unsafe fn unlock_shared(&self) {
        self.unlock_shared_with(false);
    }

    #[inline]
    #[track_caller]
    fn lock_exclusive(&self) {
        if !self.write_fast() {
            self.lock_slow(WANTS_WRITE, None, Location::caller());
        }
    }

    #[inline]
    fn try_lock_exclusive(&self) -> bool {
        self.write_fast() || self.try_slow(WANTS_WRITE)
    }

    #[inline]
    unsafe fn unlock_exclusive(&self) {
        if self.state.compare_exchange(WRITER, 0, Release, Relaxed).is_err() {
            self.unlock_exclusive_slow(false);
        }
    }

    #[inline]
    fn is_locked(&self) -> bool {
        self.state.load(Relaxed) & (WRITER | READERS) != 0
    }

    #[inline]
    fn is_locked_exclusive(&self) -> bool {
        self.state.load(Relaxed) & WRITER != 0
    }
}

// SAFETY: as for `RawRwLock`.
unsafe impl lock_api::RawRwLockFair for RawRwLock {
    unsafe fn unlock_shared_fair(&self) {
        self.unlock_shared_with(true);
    }

    unsafe fn unlock_exclusive_fair(&self) {
        if self.state.compare_exchange(WRITER, 0, Release, Relaxed).is_err() {
            self.unlock_exclusive_slow(true);
        }
    }
}

// SAFETY: the word goes from `WRITER` to one reader in one step, so no other writer comes in between.
unsafe impl lock_api::RawRwLockDowngrade for RawRwLock {
    unsafe fn downgrade(&self) {
        if self.state.load(Relaxed) & SIM != 0 && world::is_ghost(self.key()) {
            return;
        }
        let before = self.state.fetch_add(READER - WRITER, Release);
        assert!(before & WRITER != 0, "downgrade of exclusive access that is not held");
        if before & PARKED != 0 {
            self.wake(true, false);
        }
    }
}

// SAFETY: as for `RawRwLock`.
unsafe impl lock_api::RawRwLockTimed for RawRwLock {
    type Duration = Duration;
    type Instant = Instant;

    #[track_caller]
    fn try_lock_shared_for(&self, timeout: Duration) -> bool {
        self.read_fast() || self.lock_slow(WANTS_READ, Some(now() + timeout), Location::caller())
    }

    #[track_caller]
    fn try_lock_shared_until(&self, deadline: Instant) -> bool {
        self.read_fast() || self.lock_slow(WANTS_READ, Some(deadline), Location::caller())
    }

    #[track_caller]
    fn try_lock_exclusive_for(&self, timeout: Duration) -> bool {
        self.write_fast() || self.lock_slow(WANTS_WRITE, Some(now() + timeout), Location::caller())
    }

    #[track_caller]
    fn try_lock_exclusive_until(&self, deadline: Instant) -> bool {
        self.write_fast() || self.lock_slow(WANTS_WRITE, Some(deadline), Location::caller())
    }
}
