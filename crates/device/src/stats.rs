//! Counters of a device. They order nothing, so plain relaxed atomics of the standard library are right here.

use crate::OpKind;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

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
        }
    }
}
