//! Waiting for a completion time: shared by the devices whose requests know theirs when they are submitted.
//!
//! The device's lock is the caller's; it is not held while time passes.

use varve_rt::{Condvar, Instant, Mutex, MutexGuard};

/// The completion time of requests that a held device keeps in flight until the power is cut.
pub(crate) const NEVER: Instant = Instant::from_nanos(u64::MAX);

/// Waits until `at`, or until `lost` says that the request went with the power; of the two, `Err` is the latter.
/// `changed` is signalled when held requests are let go.
pub(crate) fn wait<'a, S>(
    lock: &'a Mutex<S>,
    changed: &Condvar,
    at: Instant,
    lost: impl Fn(&S) -> bool,
) -> Result<MutexGuard<'a, S>, MutexGuard<'a, S>> {
    let mut state = lock.lock();
    loop {
        if lost(&state) {
            return Err(state);
        }
        let now = varve_rt::now();
        if at <= now {
            return Ok(state);
        }
        if at == NEVER {
            changed.wait(&mut state);
        } else {
            drop(state);
            varve_rt::sleep(at - now);
            state = lock.lock();
        }
    }
}
