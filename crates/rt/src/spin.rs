//! Backing off while busy-waiting.

use crate::world;

/// One step of backing off, the `n`th in a row (from 0): a few pause instructions at first, then giving the
/// processor to others. In a simulation it lets virtual time pass and others run. For waits known to be short only;
/// anything longer waits on an [`Event`](crate::Event) or [`Condvar`](crate::Condvar).
pub fn spin(n: u32) {
    if world::spin(n) {
        return;
    }
    if n < 6 {
        for _ in 0..1u32 << n {
            std::hint::spin_loop();
        }
    } else {
        std::thread::yield_now();
    }
}

/// How long a lock tries before it parks: a handful of exponential pauses, then a few yields.
pub(crate) struct Backoff(u32);

impl Backoff {
    pub(crate) fn new() -> Backoff {
        Backoff(0)
    }

    /// Waits a little; false when it is time to park (at once in a simulation, where spinning gains nothing).
    pub(crate) fn step(&mut self) -> bool {
        if self.0 >= 10 || world::active() {
            return false;
        }
        if self.0 < 4 {
            for _ in 0..2u32 << self.0 {
                std::hint::spin_loop();
            }
        } else {
            std::thread::yield_now();
        }
        self.0 += 1;
        true
    }
}
