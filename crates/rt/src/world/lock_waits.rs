//! Where threads of a simulation waited for locks, and how long: by the source line that asked for the lock.
//!
//! Only waits in a queue are counted; what [`CpuUse::spin_ns`](crate::CpuUse) holds is not.

use crate::wait::{Caller, What};
use std::collections::BTreeMap;

/// Waits for locks at one source line, all threads together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockWaits {
    /// The line that asked for the lock: `file:line`.
    pub place: String,
    /// `mutex`, `read` or `write`.
    pub kind: &'static str,
    /// Waits that ended.
    pub waits: u64,
    /// Time that they took, summed, ns.
    pub ns: u64,
}

/// Waits by file, line and kind.
#[derive(Default)]
pub(super) struct WaitBook(BTreeMap<(&'static str, u32, &'static str), (u64, u64)>);

impl WaitBook {
    pub(super) fn add(&mut self, what: What, at: Caller, ns: u64) {
        let kind = match what {
            What::Read => "read",
            What::Write => "write",
            _ => "mutex",
        };
        let entry = self.0.entry((at.file(), at.line(), kind)).or_default();
        (entry.0, entry.1) = (entry.0 + 1, entry.1 + ns);
    }

    /// In the order of places.
    pub(super) fn all(&self) -> Vec<LockWaits> {
        let of = |(&(file, line, kind), &(waits, ns))| LockWaits { place: format!("{file}:{line}"), kind, waits, ns };
        self.0.iter().map(of).collect()
    }
}
