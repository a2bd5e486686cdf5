//! Time in both worlds: [`now`] and [`sleep`].

use crate::instant::{Instant, nanos};
use crate::world;
use std::sync::OnceLock;
use std::time::Duration;

impl Instant {
    /// Time passed since this instant; zero when it lies in the future.
    pub fn elapsed(self) -> Duration {
        now() - self
    }
}

fn origin() -> std::time::Instant {
    static ORIGIN: OnceLock<std::time::Instant> = OnceLock::new();
    *ORIGIN.get_or_init(std::time::Instant::now)
}

/// The current time: the system's monotonic clock, or the simulation's virtual clock plus the CPU time the calling
/// thread was charged and has not yet settled.
pub fn now() -> Instant {
    if let Some(t) = world::virtual_now() {
        return t;
    }
    Instant::from_nanos(nanos(origin().elapsed()))
}

/// The wall clock, in nanoseconds since 1970-01-01 UTC, for people to read. In a simulation it starts at the same
/// fixed moment in every run.
pub fn unix_time() -> u64 {
    /// 2020-01-01 00:00:00 UTC.
    const SIM_START: u64 = 1_577_836_800_000_000_000;
    if let Some(t) = world::virtual_now() {
        return SIM_START.saturating_add(t.as_nanos());
    }
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map(nanos).unwrap_or(0)
}

/// Waits for `d`.
pub fn sleep(d: Duration) {
    if !world::sleep(d) {
        std::thread::sleep(d);
    }
}

/// The OS clock's view of one of our instants, for parking with a deadline on an OS thread.
pub(crate) fn os_deadline(t: Instant) -> std::time::Instant {
    let base = origin();
    base.checked_add(Duration::from_nanos(t.as_nanos())).unwrap_or_else(|| base + Duration::from_secs(86_400 * 365))
}
