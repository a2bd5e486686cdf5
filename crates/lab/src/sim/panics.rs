//! Panics at named places of the engine: the database is poisoned, everybody else gets an error, and what was
//! acknowledged is there after the next opening.

use std::sync::Arc;
use varve::Db;
use varve_device::{Place, Trap};
use varve_rt::{Panicked, Rng};

/// Where to panic, and at which passage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Panic {
    place: Place,
    nth: u64,
}

impl Panic {
    /// Draws one. Which passage it is is drawn evenly over orders of magnitude: there are thousands at some places,
    /// few at others.
    pub(crate) fn draw(rng: &mut Rng) -> Panic {
        let place = Place::ALL[rng.below(Place::ALL.len() as u64) as usize];
        let magnitudes = match place {
            Place::Group => 9,
            Place::LogLeader => 7,
            Place::Flusher | Place::Cleaner => 5,
            Place::Checkpointer => 2,
        };
        let magnitude = rng.below(magnitudes);
        Panic { place, nth: 1 + rng.below(1 << magnitude) }
    }

    /// A trap for it, not armed.
    pub(crate) fn trap(self) -> Arc<Trap> {
        Arc::new(Trap::new(self.place))
    }

    pub(crate) fn arm(self, trap: &Trap) {
        trap.arm(self.nth);
    }

    /// Its count in the report.
    pub(crate) fn count(self) -> &'static str {
        match self.place {
            Place::Group => "panics inside a group",
            Place::LogLeader => "panics of who writes the log",
            Place::Flusher => "panics of the flusher",
            Place::Checkpointer => "panics of the checkpointer",
            Place::Cleaner => "panics of a cleaner",
        }
    }
}

/// Whether a panic was ordered.
pub(crate) fn is_ordered(panicked: &Panicked) -> bool {
    panicked.message.starts_with(Trap::MESSAGE)
}

/// After such a panic nothing is written any more.
pub(crate) fn is_poisoned(db: &Db) -> Result<(), String> {
    let written = db.keyspace_or_create("after a panic").and_then(|space| space.put(b"key", b"value"));
    match written {
        Err(varve::Error::Poisoned(_)) => Ok(()),
        Err(e) => Err(format!("after a panic, a write fails with another error: {e}")),
        Ok(()) => Err("after a panic, a write is acknowledged".into()),
    }
}
