//! A flag that threads can wait for.
//!
//! The byte: `SET`, and `PARKED` while someone may be queued. `set` clears `PARKED` and wakes the whole queue.
//!
//! Invariant: `PARKED` stands while a thread may be queued on the address, so `set` forgets nobody.

use crate::instant::Instant;
use crate::park;
use crate::time::now;
use crate::wait::{Caller, Parked, Wait, What};
use crate::world;
use std::panic::Location;
use std::sync::atomic::{AtomicU8, Ordering::*};
use std::time::Duration;

const SET: u8 = 1;
const PARKED: u8 = 2;

/// A flag, initially clear; `set` releases every thread waiting for it.
pub struct Event {
    state: AtomicU8,
}

impl Default for Event {
    fn default() -> Self {
        Self::new()
    }
}

impl Event {
    /// A clear event.
    pub const fn new() -> Event {
        Event { state: AtomicU8::new(0) }
    }

    fn key(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// Sets the flag and wakes every waiting thread. What happened before is visible to them. The event may be freed
    /// by a woken thread while this call returns.
    pub fn set(&self) {
        world::before_send();
        let key = self.key();
        if self.state.swap(SET, AcqRel) & PARKED != 0 {
            world::race_point();
            park::unpark_all(key, 0);
        }
    }

    /// True while the flag is set.
    pub fn is_set(&self) -> bool {
        self.state.load(Acquire) & SET != 0
    }

    /// Clears the flag.
    pub fn reset(&self) {
        self.state.fetch_and(!SET, AcqRel);
    }

    /// Waits until the flag is set; returns at once when it is.
    #[track_caller]
    pub fn wait(&self) {
        self.wait_inner(None, What::Event, Location::caller());
    }

    /// Waits for at most `timeout`; true when it timed out.
    #[track_caller]
    pub fn wait_for(&self, timeout: Duration) -> bool {
        !self.is_set() && self.wait_inner(Some(now() + timeout), What::Event, Location::caller())
    }

    /// Waits until `deadline` at most; true when it timed out.
    #[track_caller]
    pub fn wait_until(&self, deadline: Instant) -> bool {
        self.wait_inner(Some(deadline), What::Event, Location::caller())
    }

    /// True when it timed out.
    pub(crate) fn wait_inner(&self, deadline: Option<Instant>, what: What, at: Caller) -> bool {
        loop {
            let s = self.state.load(Acquire);
            if s & SET != 0 {
                return false;
            }
            world::race_point();
            if s & PARKED == 0 && self.state.compare_exchange(s, s | PARKED, Relaxed, Relaxed).is_err() {
                continue;
            }
            world::race_point();
            let wait = Wait { key: self.key(), what, at, token: 0, deadline };
            let left = |last: bool| {
                if last {
                    self.state.fetch_and(!PARKED, Relaxed);
                }
            };
            match park::park(wait, || self.state.load(Relaxed) == PARKED, || {}, left) {
                // Set in the meantime, though it may have been reset since.
                Parked::Unparked(_) => {
                    if world::dying() {
                        world::unwind_if_possible();
                    }
                    return false;
                }
                Parked::Invalid => {}
                Parked::TimedOut => return true,
                Parked::Dying => {
                    world::unwind_if_possible();
                    return true;
                }
            }
        }
    }
}

impl std::fmt::Debug for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Event({})", if self.is_set() { "set" } else { "clear" })
    }
}
