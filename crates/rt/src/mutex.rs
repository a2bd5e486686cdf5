//! The mutual-exclusion lock: one byte, one atomic operation when uncontended in both worlds.
//!
//! The byte: `LOCKED`; `PARKED` (someone is, or is about to be, in the queue of the lock's address); `SIM` (used in a
//! simulation: every operation takes the slow path, where CPU charges are settled and chaos lives); `FRESH` (never
//! used: the first operation finds out which world it is in); `HARDWARE` (guards the state of a modelled device, which
//! is no work of the host: it costs the simulated host nothing).
//!
//! Invariant: a thread queued on the address implies `PARKED`, except while a waker holds the queue. A lock belongs to
//! one world at a time: threads of a simulation and OS threads do not contend for it.

use crate::instant::Instant;
use crate::park;
use crate::spin::Backoff;
use crate::time::now;
use crate::wait::{Caller, Parked, Wait, What, Woken};
use crate::world;
use std::panic::Location;
use std::sync::atomic::{AtomicU8, Ordering::*};
use std::time::Duration;

const LOCKED: u8 = 1;
const PARKED: u8 = 2;
const SIM: u8 = 4;
const FRESH: u8 = 8;
const HARDWARE: u8 = 16;

/// Token of a wake-up that brings the lock along.
const HANDED: usize = 1;
/// Token of a wake-up after which the woken thread tries again.
const RETRY: usize = 0;

/// A raw lock (see [`lock_api::RawMutex`]); [`Mutex`] adds data and guards. Not reentrant.
pub struct RawMutex {
    state: AtomicU8,
}

/// A mutual-exclusion lock over `T`. Fair in the long run; no poisoning.
pub type Mutex<T> = lock_api::Mutex<RawMutex, T>;
/// Unlocks its [`Mutex`] when dropped.
pub type MutexGuard<'a, T> = lock_api::MutexGuard<'a, RawMutex, T>;
/// A [`MutexGuard`] narrowed to a part of the data.
pub type MappedMutexGuard<'a, T> = lock_api::MappedMutexGuard<'a, RawMutex, T>;
/// A guard that keeps its [`Mutex`] alive by an `Arc`.
pub type ArcMutexGuard<T> = lock_api::ArcMutexGuard<RawMutex, T>;

/// A mutex that guards the state of modelled hardware. In a simulation taking it neither settles charges nor costs
/// time, so that threads do not queue for the program that stands for a device; among OS threads it is a mutex like
/// others. Its holder must not wait.
pub fn hardware_mutex<T>(value: T) -> Mutex<T> {
    Mutex::from_raw(RawMutex { state: AtomicU8::new(FRESH | HARDWARE) }, value)
}

impl RawMutex {
    /// Whether the simulated host pays for it.
    fn costs(&self) -> bool {
        self.state.load(Relaxed) & HARDWARE == 0
    }

    fn key(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// Before the lock changes hands in a simulation.
    fn boundary(&self) {
        if self.costs() { world::lock_boundary(self.key()) } else { world::race_point() }
    }

    /// True when the lock was acquired. With `must`, a dying thread that finds it held is not unwound here but lent
    /// the lock: its caller has a guard that will release it.
    #[cold]
    #[inline(never)]
    fn lock_slow(&self, deadline: Option<Instant>, at: Caller, must: bool) -> bool {
        let sim = world::active();
        let mark = if sim { SIM } else { 0 };
        if sim {
            self.boundary();
        }
        let mut backoff = Backoff::new();
        let fresh = self.state.load(Relaxed) & SIM == 0;
        loop {
            let s = self.state.load(Relaxed);
            world::race_point();
            if s & LOCKED == 0 {
                let taken = (s & !FRESH) | LOCKED | mark;
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
            let wait = Wait { key: self.key(), what: What::Mutex, at, token: 0, deadline };
            let blocked = || self.state.load(Relaxed) & (LOCKED | PARKED) == LOCKED | PARKED;
            let left = |last: bool| {
                if last {
                    self.state.fetch_and(!PARKED, Relaxed);
                }
            };
            match park::park(wait, blocked, || {}, left) {
                Parked::Unparked(HANDED) => {
                    self.state.load(Acquire);
                    break;
                }
                Parked::Unparked(_) | Parked::Invalid => backoff = Backoff::new(),
                Parked::TimedOut => return false,
                Parked::Dying => {
                    if self.state.load(Relaxed) & LOCKED == 0 {
                        continue;
                    }
                    if !must {
                        world::unwind_if_possible();
                    }
                    self.state.fetch_or(SIM, Relaxed);
                    world::ghost_lock(self.key());
                    return true;
                }
            }
        }
        if sim && self.costs() {
            world::after_lock(self.key(), true, fresh);
        }
        true
    }

    #[cold]
    #[inline(never)]
    fn try_lock_slow(&self) -> bool {
        let sim = world::active();
        let mark = if sim { SIM } else { 0 };
        if sim {
            self.boundary();
        }
        let fresh = self.state.load(Relaxed) & SIM == 0;
        let take = |s: u8| (s & LOCKED == 0).then_some((s & !FRESH) | LOCKED | mark);
        let taken = self.state.fetch_update(Acquire, Relaxed, take).is_ok();
        if taken && sim && self.costs() {
            world::after_lock(self.key(), true, fresh);
        }
        taken
    }

    #[cold]
    #[inline(never)]
    fn unlock_slow(&self, fair: bool) {
        if world::active() {
            self.boundary();
            if world::ghost_unlock(self.key()) {
                return;
            }
            if self.costs() {
                world::released(self.key(), true);
            }
        }
        let s = self.state.load(Relaxed);
        assert!(s & LOCKED != 0, "unlock of a mutex that is not locked");
        world::race_point();
        if s & PARKED == 0 && self.state.compare_exchange(s, s & !LOCKED, Release, Relaxed).is_ok() {
            return;
        }
        world::race_point();
        park::unpark_one(self.key(), |w: Woken| {
            if w.count > 0 && (w.fair || fair) {
                if !w.more {
                    self.state.fetch_and(!PARKED, Relaxed);
                }
                return HANDED;
            }
            let gone = if w.more { LOCKED } else { LOCKED | PARKED };
            self.state.fetch_and(!gone, Release);
            RETRY
        });
    }

    /// Releases the lock from inside a wait, without settling charges or yielding.
    pub(crate) fn unlock_for_wait(&self) {
        let _quiet = world::Quiet::new();
        // SAFETY: called by `Condvar` only, whose caller holds the lock.
        unsafe { lock_api::RawMutex::unlock(self) }
    }

    /// Takes the lock back after a wait.
    pub(crate) fn lock_after_wait(&self, at: Caller) {
        if self.state.compare_exchange(0, LOCKED, Acquire, Relaxed).is_err() {
            self.lock_slow(None, at, true);
        }
    }

    fn try_until(&self, deadline: Instant, at: Caller) -> bool {
        self.state.compare_exchange(0, LOCKED, Acquire, Relaxed).is_ok() || self.lock_slow(Some(deadline), at, false)
    }
}

// SAFETY: `LOCKED` is set by exactly one successful acquisition at a time (compare-and-swap from a word without it, or
// handed over by the holder), with acquire on taking and release on leaving; see `world::ghost_lock` for dying threads.
unsafe impl lock_api::RawMutex for RawMutex {
    #[allow(clippy::declare_interior_mutable_const)]
    const INIT: RawMutex = RawMutex { state: AtomicU8::new(FRESH) };
    type GuardMarker = lock_api::GuardSend;

    #[inline]
    #[track_caller]
    fn lock(&self) {
        if self.state.compare_exchange_weak(0, LOCKED, Acquire, Relaxed).is_err() {
            self.lock_slow(None, Location::caller(), false);
        }
    }

    #[inline]
    fn try_lock(&self) -> bool {
        let s = self.state.load(Relaxed);
        if s & (SIM | FRESH) != 0 {
            return self.try_lock_slow();
        }
        s & LOCKED == 0
            && (self.state.compare_exchange(s, s | LOCKED, Acquire, Relaxed).is_ok() || self.try_lock_slow())
    }

    #[inline]
    unsafe fn unlock(&self) {
        if self.state.compare_exchange(LOCKED, 0, Release, Relaxed).is_err() {
            self.unlock_slow(false);
        }
    }

    #[inline]
    fn is_locked(&self) -> bool {
        self.state.load(Relaxed) & LOCKED != 0
    }
}

// SAFETY: as for `RawMutex`.
unsafe impl lock_api::RawMutexFair for RawMutex {
    unsafe fn unlock_fair(&self) {
        if self.state.compare_exchange(LOCKED, 0, Release, Relaxed).is_err() {
            self.unlock_slow(true);
        }
    }
}

// SAFETY: as for `RawMutex`.
unsafe impl lock_api::RawMutexTimed for RawMutex {
    type Duration = Duration;
    type Instant = Instant;

    #[track_caller]
    fn try_lock_for(&self, timeout: Duration) -> bool {
        self.try_until(now() + timeout, Location::caller())
    }

    #[track_caller]
    fn try_lock_until(&self, deadline: Instant) -> bool {
        self.try_until(deadline, Location::caller())
    }
}
