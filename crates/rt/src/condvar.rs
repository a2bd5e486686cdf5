//! The condition variable for [`Mutex`](crate::Mutex) guards.
//!
//! Invariant: `waiters` counts threads between announcing a wait (with the mutex held) and leaving it, so a notifier
//! that changed the condition under the mutex sees every thread that may have missed the change.

use crate::instant::Instant;
use crate::mutex::MutexGuard;
use crate::park;
use crate::time::now;
use crate::wait::{Caller, Parked, Wait, What};
use crate::world;
use std::panic::Location;
use std::sync::atomic::{AtomicU32, Ordering::*};
use std::time::Duration;

/// A condition to wait for while a mutex is released. Wake-ups may be spurious: check the condition in a loop.
pub struct Condvar {
    waiters: AtomicU32,
}

impl Default for Condvar {
    fn default() -> Self {
        Self::new()
    }
}

impl Condvar {
    /// A condition nobody waits for.
    pub const fn new() -> Condvar {
        Condvar { waiters: AtomicU32::new(0) }
    }

    fn key(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// Releases the mutex, waits for a notification, takes the mutex again.
    #[track_caller]
    pub fn wait<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) {
        self.wait_inner(guard, None, Location::caller());
    }

    /// As [`wait`](Self::wait), for at most `timeout`; true when it timed out.
    #[track_caller]
    pub fn wait_for<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, timeout: Duration) -> bool {
        self.wait_inner(guard, Some(now() + timeout), Location::caller())
    }

    /// As [`wait`](Self::wait), until `deadline` at most; true when it timed out.
    #[track_caller]
    pub fn wait_until<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, deadline: Instant) -> bool {
        self.wait_inner(guard, Some(deadline), Location::caller())
    }

    /// Waits while `blocked` says so.
    #[track_caller]
    pub fn wait_while<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, mut blocked: impl FnMut(&mut T) -> bool) {
        let at = Location::caller();
        while blocked(guard) {
            self.wait_inner(guard, None, at);
        }
    }

    fn wait_inner<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, deadline: Option<Instant>, at: Caller) -> bool {
        // SAFETY: the raw lock is released and taken again within this call, while `guard` is mutably borrowed.
        let raw = unsafe { lock_api::MutexGuard::mutex(guard).raw() };
        self.waiters.fetch_add(1, Relaxed);
        let wait = Wait { key: self.key(), what: What::Condvar, at, token: 0, deadline };
        let mut released = false;
        let before_sleep = || {
            raw.unlock_for_wait();
            released = true;
        };
        let end = park::park(wait, || true, before_sleep, |_| {});
        if released {
            raw.lock_after_wait(at);
        }
        self.waiters.fetch_sub(1, Relaxed);
        if world::dying() {
            world::unwind_if_possible();
        }
        matches!(end, Parked::TimedOut | Parked::Dying)
    }

    /// Wakes one waiting thread, if any.
    pub fn notify_one(&self) {
        if self.waiters.load(Relaxed) != 0 {
            park::unpark_one(self.key(), |_| 0);
        }
    }

    /// Wakes every waiting thread.
    pub fn notify_all(&self) {
        if self.waiters.load(Relaxed) != 0 {
            park::unpark_all(self.key(), 0);
        }
    }
}

impl std::fmt::Debug for Condvar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Condvar({} waiting)", self.waiters.load(Relaxed))
    }
}
