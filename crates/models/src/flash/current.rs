//! The power of a modelled flash device, and waiting for what may be put off or lost with it: shared by the drive and
//! by raw flash.
//!
//! Invariant: a new epoch begins when the power goes; a request of an earlier one is lost.

use crate::due;
use varve_rt::{Condvar, Instant, Mutex, MutexGuard};

/// Whether there is power, and since when.
pub(super) struct Current {
    on: bool,
    /// Counts power cuts.
    epoch: u64,
    /// New requests stay in flight until the power is cut.
    hold: bool,
}

impl Default for Current {
    fn default() -> Current {
        Current { on: true, epoch: 0, hold: false }
    }
}

impl Current {
    pub(super) fn is_on(&self) -> bool {
        self.on
    }

    /// Whether new requests stay in flight.
    pub(super) fn holds(&self) -> bool {
        self.hold
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether requests of an epoch were lost with the power.
    pub(super) fn is_lost(&self, epoch: u64) -> bool {
        assert!(epoch <= self.epoch, "a request is of this epoch or an earlier one");
        self.epoch != epoch || varve_rt::dying()
    }

    /// New requests stay in flight from now on.
    pub(super) fn hold(&mut self) {
        self.hold = self.on;
    }

    /// The power goes.
    pub(super) fn cut(&mut self) {
        assert!(self.on, "power that is there is cut");
        (self.on, self.hold) = (false, false);
        self.epoch += 1;
    }

    /// The power is back.
    pub(super) fn restore(&mut self) {
        assert!(!self.on && !self.hold, "power that is gone comes back");
        self.on = true;
    }
}

/// A state whose requests may be lost.
pub(super) trait Unsettled {
    /// Whether requests of an epoch were lost with the power.
    fn is_lost(&self, epoch: u64) -> bool;
}

/// Waits for a request of `epoch` that was to complete at `at`: until then, and as long as `settles` says that it ends
/// later. `Err`: it was lost.
pub(super) fn wait<'a, S: Unsettled>(
    (lock, changed): (&'a Mutex<S>, &Condvar),
    epoch: u64,
    mut at: Instant,
    settles: impl Fn(&S) -> Instant,
) -> Result<MutexGuard<'a, S>, MutexGuard<'a, S>> {
    loop {
        let state = due::wait(lock, changed, at, |state: &S| state.is_lost(epoch))?;
        let end = settles(&state);
        assert!(end == at || at <= varve_rt::now(), "what is put off was waited for");
        if end <= at {
            return Ok(state);
        }
        at = end;
    }
}
