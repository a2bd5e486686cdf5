//! Panics on purpose, at named places of the engine: simulations see by them what a panic leaves behind.
//!
//! Invariant: a trap springs once each time that it was armed, and never while its thread unwinds.

use std::panic::resume_unwind;
use varve_rt::atomic::{AtomicU64, Ordering};

/// A place that can be made to panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// Pages were changed, and their log group has no place in the log yet.
    Group,
    /// Whoever writes the log for all who wait has claimed what he writes.
    LogLeader,
    /// The log's flusher looks what is due.
    Flusher,
    /// A checkpoint of the checkpointer has written most pages.
    Checkpointer,
    /// A cleaner begins a round.
    Cleaner,
}

impl Place {
    /// All of them.
    pub const ALL: [Place; 5] = [Place::Group, Place::LogLeader, Place::Flusher, Place::Checkpointer, Place::Cleaner];
}

/// Panics once, when a place is passed for the n-th time after it was armed.
#[derive(Debug)]
pub struct Trap {
    place: Place,
    /// Passages until then, that one included; 0: not armed.
    left: AtomicU64,
    sprung: AtomicU64,
}

impl Trap {
    /// How the message of such a panic begins.
    pub const MESSAGE: &str = "a panic on purpose";

    /// A trap that is not armed.
    pub fn new(place: Place) -> Trap {
        Trap { place, left: AtomicU64::new(0), sprung: AtomicU64::new(0) }
    }

    /// Panics when the place is passed for the `nth` time from now on; 0: not at all.
    pub fn arm(&self, nth: u64) {
        self.left.store(nth, Ordering::SeqCst);
    }

    /// Whether it has panicked.
    pub fn has_sprung(&self) -> bool {
        self.sprung.load(Ordering::SeqCst) > 0
    }

    /// Somebody is at `place`.
    pub(crate) fn pass(&self, place: Place) {
        if place != self.place || varve_rt::dying() || varve_rt::panicking() {
            return;
        }
        let less = |left: u64| left.checked_sub(1);
        if self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less) == Ok(1) {
            self.sprung.store(1, Ordering::SeqCst);
            // Without a word on stderr: it is no news.
            resume_unwind(Box::new(format!("{}: {place:?}", Trap::MESSAGE)));
        }
    }
}

/// The same trap.
impl PartialEq for Trap {
    fn eq(&self, other: &Trap) -> bool {
        std::ptr::eq(self, other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn it_springs_once_at_its_place_when_armed() {
        let trap = Trap::new(Place::Group);
        let panics = |place| catch_unwind(AssertUnwindSafe(|| trap.pass(place))).is_err();
        assert!(!panics(Place::Group));
        trap.arm(2);
        let seen = [Place::Flusher, Place::Group, Place::LogLeader, Place::Group, Place::Group].map(panics);
        assert_eq!(seen, [false, false, false, true, false]);
        assert!(trap.has_sprung());
    }
}
