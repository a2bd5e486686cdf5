//! Waiting by address, for primitives of the layers above that have no room for a condition variable (a bit in a
//! page latch, say). Works in both worlds. Wake-ups may be spurious: callers loop.

use crate::instant::Instant;
use crate::park;
use crate::wait::{Parked, Wait, What};
use crate::world;

/// Keeps these queues apart from those of the locks of this crate, whatever address is used.
const TAG: usize = 1 << (usize::BITS - 1);

/// How a wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wake {
    /// Woken by `unpark_one` or `unpark_all`.
    Unparked,
    /// `still` said no, the caller did not wait.
    Invalid,
    /// The deadline passed.
    TimedOut,
}

/// Waits until another thread wakes the address `key`, if `still` is true when checked with the queue locked. A waker
/// changes the watched state *before* it wakes, so no wake-up is lost. `still` must not wait. `name` tells a deadlock
/// report what is waited for.
#[track_caller]
pub fn park(key: usize, name: &'static str, deadline: Option<Instant>, still: impl FnOnce() -> bool) -> Wake {
    let at = std::panic::Location::caller();
    let wait = Wait { key: key | TAG, what: What::Named(name), at, token: 0, deadline };
    match park::park(wait, still, || {}, |_| {}) {
        Parked::Unparked(_) => Wake::Unparked,
        Parked::Invalid => Wake::Invalid,
        Parked::TimedOut => Wake::TimedOut,
        Parked::Dying => {
            world::unwind_if_possible();
            Wake::TimedOut
        }
    }
}

/// Wakes the longest waiter of `key`, if any; `last(no_more_waiters)` runs with the queue locked and must not wait.
pub fn unpark_one(key: usize, last: impl FnOnce(bool)) {
    park::unpark_one(key | TAG, |w| {
        last(!w.more);
        0
    });
}

/// Wakes every waiter of `key`; returns how many.
pub fn unpark_all(key: usize) -> usize {
    park::unpark_all(key | TAG, 0)
}
