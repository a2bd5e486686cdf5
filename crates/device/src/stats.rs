//! Counters of a device. They order nothing, so plain relaxed atomics of the standard library are right here.
//!
//! Invariants: totals only grow; a request that ends has begun, and as many as are under way are counted in one word
//! with the time since when there are any.

use crate::OpKind;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use varve_rt::Instant;

/// Totals of one operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpStats {
    /// Requests finished, failed ones too.
    pub count: u64,
    /// Bytes of those requests.
    pub bytes: u64,
    /// Time from submission to completion (as seen by the waiter), summed, nanoseconds.
    pub nanos: u64,
    /// Requests that failed.
    pub errors: u64,
}

/// Totals since the device was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceStats {
    /// Reads.
    pub read: OpStats,
    /// Writes, durable ones included.
    pub write: OpStats,
    /// Trims.
    pub trim: OpStats,
    /// Flushes.
    pub flush: OpStats,
    /// Of the writes, those that were asked to be durable.
    pub durable_writes: u64,
    /// Pieces of requests made again after a short transfer or an interruption.
    pub retries: u64,
    /// Requests executed in a slower way than the device's best (see `DeviceInfo::fallback`).
    pub fallbacks: u64,
    /// Writes of a stream that the device does not keep apart from others.
    pub streams_ignored: u64,
    /// How busy the device is; none where that is not measured (models have figures of their own).
    pub busy: Option<BusyStats>,
}

/// How busy a device is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BusyStats {
    /// Time during which at least one request was under way, as seen by who waits, nanoseconds.
    pub nanos: u64,
    /// Requests under way now.
    pub in_flight: u64,
}

#[derive(Default)]
struct OpCounters {
    count: AtomicU64,
    bytes: AtomicU64,
    nanos: AtomicU64,
    errors: AtomicU64,
}

/// What a device adds to as it works.
#[derive(Default)]
pub struct Counters {
    ops: [OpCounters; 4],
    durable: AtomicU64,
    retries: AtomicU64,
    fallbacks: AtomicU64,
    streams_ignored: AtomicU64,
}

impl Counters {
    /// Counts a finished request of `bytes` that took `nanos`.
    pub fn finished(&self, op: OpKind, bytes: u64, nanos: u64, ok: bool) {
        let slot = match op {
            OpKind::Read => 0,
            OpKind::Write => 1,
            OpKind::Trim => 2,
            OpKind::Flush => 3,
            OpKind::Open | OpKind::SetLen => return,
        };
        let c = &self.ops[slot];
        c.count.fetch_add(1, Relaxed);
        c.bytes.fetch_add(bytes, Relaxed);
        c.nanos.fetch_add(nanos, Relaxed);
        c.errors.fetch_add(u64::from(!ok), Relaxed);
    }

    /// Counts a write asked to be durable.
    pub fn durable_write(&self) {
        self.durable.fetch_add(1, Relaxed);
    }

    /// Counts a piece made again.
    pub fn retry(&self) {
        self.retries.fetch_add(1, Relaxed);
    }

    /// Counts a request executed in a slower way.
    pub fn fallback(&self) {
        self.fallbacks.fetch_add(1, Relaxed);
    }

    /// Counts a write whose stream makes no difference.
    pub fn stream_ignored(&self) {
        self.streams_ignored.fetch_add(1, Relaxed);
    }

    /// The totals so far.
    pub fn snapshot(&self) -> DeviceStats {
        let op = |i: usize| {
            let c = &self.ops[i];
            OpStats {
                count: c.count.load(Relaxed),
                bytes: c.bytes.load(Relaxed),
                nanos: c.nanos.load(Relaxed),
                errors: c.errors.load(Relaxed),
            }
        };
        DeviceStats {
            read: op(0),
            write: op(1),
            trim: op(2),
            flush: op(3),
            durable_writes: self.durable.load(Relaxed),
            retries: self.retries.load(Relaxed),
            fallbacks: self.fallbacks.load(Relaxed),
            streams_ignored: self.streams_ignored.load(Relaxed),
            busy: None,
        }
    }
}

/// Bits of [`Busy::state`] that hold the number of requests; the rest is time in units of [`UNIT`].
const COUNT_BITS: u32 = 16;
/// Nanoseconds that one unit of time stands for: 48 bits of them are two years.
const UNIT: u64 = 256;
/// The bits that count.
const COUNT: u64 = (1 << COUNT_BITS) - 1;
// What the count leaves for the time is enough for two years of a process.
const _: () = assert!((u64::MAX >> COUNT_BITS) as u128 * UNIT as u128 > 2 * 365 * 86_400 * 1_000_000_000);

/// Measures how long a device has something to do. One word holds how many requests are under way and since when there
/// are any, so that no period is lost between two threads.
#[derive(Default)]
pub struct Busy {
    state: AtomicU64,
    nanos: AtomicU64,
}

impl Busy {
    /// `n` requests are under way from now on.
    pub fn begun(&self, n: u64, now: Instant) {
        let since = (now.as_nanos() / UNIT) << COUNT_BITS;
        let begin = |state: u64| Some(if state == 0 && n > 0 { since | n } else { state + n });
        if let Ok(before) = self.state.fetch_update(Relaxed, Relaxed, begin) {
            assert!((before & COUNT) + n <= COUNT, "so many requests are counted in so many bits");
        }
    }

    /// One of them has ended.
    pub fn ended(&self) {
        let last = |state: u64| state & COUNT <= 1;
        let before = self.state.fetch_update(Relaxed, Relaxed, |state| Some(if last(state) { 0 } else { state - 1 }));
        if let Ok(state) = before {
            assert!(state & COUNT > 0, "a request that ends has begun");
            if last(state) {
                self.nanos.fetch_add(Busy::period(state), Relaxed);
            }
        }
    }

    /// Nanoseconds since when `state` says that requests are under way.
    fn period(state: u64) -> u64 {
        varve_rt::now().as_nanos().saturating_sub((state >> COUNT_BITS) * UNIT)
    }

    /// The figures so far, the period that has not ended included.
    pub fn snapshot(&self) -> BusyStats {
        let (nanos, state) = (self.nanos.load(Relaxed), self.state.load(Relaxed));
        let running = if state == 0 { 0 } else { Busy::period(state) };
        BusyStats { nanos: nanos + running, in_flight: state & COUNT }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn busy_time_is_the_union_of_the_requests_times() {
        let ms = |n| Duration::from_millis(n);
        let outcome = varve_rt::sim::run(varve_rt::sim::Config::default(), move || {
            let busy = Busy::default();
            let go = |n: u64| varve_rt::sleep(ms(n));
            busy.begun(2, varve_rt::now());
            go(10);
            busy.begun(1, varve_rt::now());
            go(10);
            busy.ended();
            assert_eq!(busy.snapshot().in_flight, 2);
            busy.ended();
            busy.ended();
            go(100); // idle
            busy.begun(1, varve_rt::now());
            go(5);
            busy.snapshot()
        });
        let stats = outcome.result.expect("it ends");
        assert!(stats.nanos.abs_diff(25_000_000) < 2 * UNIT, "{stats:?}");
        assert_eq!(stats.in_flight, 1);
    }
}
