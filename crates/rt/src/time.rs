//! Time in both worlds: [`now`], [`sleep`] and modelled CPU time.

use crate::sim;
use std::ops::{Add, AddAssign, Sub};
use std::sync::OnceLock;
use std::time::Duration;

/// A point in time, in nanoseconds since an arbitrary origin (the first use in the process, or the start of the
/// simulation). Never goes back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Instant(u64);

impl Instant {
    /// The origin itself.
    pub const ORIGIN: Instant = Instant(0);

    /// The instant `nanos` nanoseconds after the origin.
    pub const fn from_nanos(nanos: u64) -> Instant {
        Instant(nanos)
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Time passed since this instant; zero when it lies in the future.
    pub fn elapsed(self) -> Duration {
        now() - self
    }

    /// Time from `earlier` to this instant; zero when `earlier` is later.
    pub fn duration_since(self, earlier: Instant) -> Duration {
        self - earlier
    }
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

impl Add<Duration> for Instant {
    type Output = Instant;
    /// Saturates at the end of time.
    fn add(self, d: Duration) -> Instant {
        Instant(self.0.saturating_add(nanos(d)))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, d: Duration) {
        *self = *self + d;
    }
}

impl Sub<Duration> for Instant {
    type Output = Instant;
    /// Saturates at the origin.
    fn sub(self, d: Duration) -> Instant {
        Instant(self.0.saturating_sub(nanos(d)))
    }
}

impl Sub<Instant> for Instant {
    type Output = Duration;
    /// Zero when `earlier` is later.
    fn sub(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

fn origin() -> std::time::Instant {
    static ORIGIN: OnceLock<std::time::Instant> = OnceLock::new();
    *ORIGIN.get_or_init(std::time::Instant::now)
}

/// The current time: the system's monotonic clock, or the simulation's virtual clock plus the CPU time the calling
/// thread was charged and has not yet settled.
pub fn now() -> Instant {
    if let Some(t) = sim::virtual_now() {
        return t;
    }
    Instant(nanos(origin().elapsed()))
}

/// The wall clock, in nanoseconds since 1970-01-01 UTC, for people to read. In a simulation it starts at the same
/// fixed moment in every run.
pub fn unix_time() -> u64 {
    /// 2020-01-01 00:00:00 UTC.
    const SIM_START: u64 = 1_577_836_800_000_000_000;
    if let Some(t) = sim::virtual_now() {
        return SIM_START.saturating_add(t.as_nanos());
    }
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map(nanos).unwrap_or(0)
}

/// Waits for `d`.
pub fn sleep(d: Duration) {
    if !sim::sleep(d) {
        std::thread::sleep(d);
    }
}

/// Charges `cpu` of processor time to the calling thread. Nothing on an OS thread, where the time is real. In a
/// simulation charges add up and are settled, by occupying one of the modelled cores, before the next lock, unlock,
/// wait, send or I/O.
#[inline]
pub fn compute(cpu: Duration) {
    if sim::any() {
        sim::compute(cpu);
    }
}

/// The OS clock's view of one of our instants, for parking with a deadline on an OS thread.
pub(crate) fn os_deadline(t: Instant) -> std::time::Instant {
    let base = origin();
    base.checked_add(Duration::from_nanos(t.0)).unwrap_or_else(|| base + Duration::from_secs(86_400 * 365))
}
