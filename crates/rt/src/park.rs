//! Waiting by address, the one thing every primitive is built from. Dispatches to the simulation when the caller is
//! a simulated thread, else to `parking_lot_core`'s global table.
//!
//! Invariant: a key is the address of the waiting object (or that address tagged in its top bit for
//! [`crate::parking`]), so two objects never share a queue. Callbacks run with the queue locked and must not wait.

use crate::sim;
use crate::time::{Instant, os_deadline};
use parking_lot_core as plc;

/// What a thread waits for; shown in deadlock reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum What {
    Mutex,
    Read,
    Write,
    Condvar,
    Event,
    Join,
    Sleep,
    Core,
    Yield,
    Named(&'static str),
}

impl What {
    /// A small number for the running hash of a simulation.
    pub(crate) fn code(self) -> u64 {
        match self {
            What::Mutex => 1,
            What::Read => 2,
            What::Write => 3,
            What::Condvar => 4,
            What::Event => 5,
            What::Join => 6,
            What::Sleep => 7,
            What::Core => 8,
            What::Yield => 9,
            What::Named(_) => 10,
        }
    }

    pub(crate) fn text(self) -> &'static str {
        match self {
            What::Mutex => "a mutex",
            What::Read => "shared access to a read-write lock",
            What::Write => "exclusive access to a read-write lock",
            What::Condvar => "a condition",
            What::Event => "an event",
            What::Join => "the end of a thread",
            What::Sleep => "time to pass",
            What::Core => "a core",
            What::Yield => "its turn",
            What::Named(name) => name,
        }
    }
}

/// Where a wait was asked for, for deadlock reports.
pub(crate) type Caller = &'static std::panic::Location<'static>;

/// How a wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Parked {
    /// Woken, with the waker's token.
    Unparked(usize),
    /// `validate` said no: the caller did not wait.
    Invalid,
    /// The deadline passed.
    TimedOut,
    /// The calling simulated thread is dying: it must not wait.
    Dying,
}

/// What a waker learns under the queue lock.
pub(crate) struct Woken {
    /// Threads taken off the queue.
    pub(crate) count: usize,
    /// Others stay in the queue.
    pub(crate) more: bool,
    /// The lock should be handed over, so that nobody starves.
    pub(crate) fair: bool,
}

/// A filter's verdict on one waiter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pick {
    Wake,
    Stop,
}

/// A request to wait.
pub(crate) struct Wait {
    pub(crate) key: usize,
    pub(crate) what: What,
    pub(crate) at: Caller,
    /// Seen by `unpark_filter`.
    pub(crate) token: usize,
    pub(crate) deadline: Option<Instant>,
}

/// Waits in the queue of `wait.key`, if `validate` (run with the queue locked) still says so. `before_sleep` runs
/// after the caller is queued; `timed_out(was_last)` runs with the queue locked when the wait ends without a waker.
pub(crate) fn park(
    wait: Wait,
    validate: impl FnOnce() -> bool,
    before_sleep: impl FnOnce(),
    timed_out: impl FnOnce(bool),
) -> Parked {
    if sim::active() {
        return sim::park(wait, validate, before_sleep, timed_out);
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
    if sim::active() {
        let mut first = true;
        sim::unpark(key, |_| if std::mem::take(&mut first) { Pick::Wake } else { Pick::Stop }, callback);
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
    if sim::active() {
        sim::unpark(key, filter, callback);
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
    if sim::active() {
        let mut count = 0;
        sim::unpark(
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
