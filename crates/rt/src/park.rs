//! Waiting by address, the one thing every primitive is built from. Dispatches to the simulation when the caller is
//! a simulated thread, else to `parking_lot_core`'s global table.
//!
//! Invariant: a key is the address of the waiting object (or that address tagged in its top bit for
//! [`crate::parking`]), so two objects never share a queue. Callbacks run with the queue locked and must not wait.

use crate::time::os_deadline;
use crate::wait::{Parked, Pick, Wait, Woken};
use crate::world;
use parking_lot_core as plc;

/// Waits in the queue of `wait.key`, if `validate` (run with the queue locked) still says so. `before_sleep` runs
/// after the caller is queued; `timed_out(was_last)` runs with the queue locked when the wait ends without a waker.
pub(crate) fn park(
    wait: Wait,
    validate: impl FnOnce() -> bool,
    before_sleep: impl FnOnce(),
    timed_out: impl FnOnce(bool),
) -> Parked {
    if world::active() {
        return world::park(wait, validate, before_sleep, timed_out);
    }
    let deadline = wait.deadline.map(os_deadline);
    // SAFETY: the key is an address the calling primitive owns, and neither callback waits nor calls back into the
    // parking table while the queue is locked (`before_sleep` runs unlocked).
    let result = unsafe {
        plc::park(wait.key, validate, before_sleep, |_, last| timed_out(last), plc::ParkToken(wait.token), deadline)
    };
    match result {
        plc::ParkResult::Unparked(token) => Parked::Unparked(token.0),
        plc::ParkResult::Invalid => Parked::Invalid,
        plc::ParkResult::TimedOut => Parked::TimedOut,
    }
}

/// Wakes the longest waiter of `key`; `callback` runs with the queue locked, also when nobody waits, and gives the
/// token the woken thread sees.
pub(crate) fn unpark_one(key: usize, callback: impl FnOnce(Woken) -> usize) {
    if world::active() {
        let mut first = true;
        world::unpark(key, |_| if std::mem::take(&mut first) { Pick::Wake } else { Pick::Stop }, callback);
        return;
    }
    // SAFETY: as in `park`.
    unsafe {
        plc::unpark_one(key, |r| {
            plc::UnparkToken(callback(Woken { count: r.unparked_threads, more: r.have_more_threads, fair: r.be_fair }))
        });
    }
}

/// Wakes the waiters of `key` that `filter` picks by their token, in queue order; else as [`unpark_one`].
pub(crate) fn unpark_filter(key: usize, mut filter: impl FnMut(usize) -> Pick, callback: impl FnOnce(Woken) -> usize) {
    if world::active() {
        world::unpark(key, filter, callback);
        return;
    }
    // SAFETY: as in `park`.
    unsafe {
        plc::unpark_filter(
            key,
            |token| match filter(token.0) {
                Pick::Wake => plc::FilterOp::Unpark,
                Pick::Stop => plc::FilterOp::Stop,
            },
            |r| {
                plc::UnparkToken(callback(Woken {
                    count: r.unparked_threads,
                    more: r.have_more_threads,
                    fair: r.be_fair,
                }))
            },
        );
    }
}

/// Wakes every waiter of `key`.
pub(crate) fn unpark_all(key: usize, token: usize) -> usize {
    if world::active() {
        let mut count = 0;
        world::unpark(
            key,
            |_| Pick::Wake,
            |w| {
                count = w.count;
                token
            },
        );
        return count;
    }
    // SAFETY: as in `park`.
    unsafe { plc::unpark_all(key, plc::UnparkToken(token)) }
}
