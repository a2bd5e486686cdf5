//! One memory budget for the whole database: every class of allocation that can grow is charged here before it is made.
//!
//! Charges are striped atomics per class; a refused charge is an [`Error::OverBudget`] before anything was allocated.
//!
//! Invariants: no class holds more than its limit and what a charge may go beyond it, or less than nothing; a refused
//! charge adds nothing.

use crate::error::{Error, Result};
use varve_rt::atomic::{AtomicU64, Ordering};

/// What memory is used for. Each class has a limit of its own; the limits add up to the budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Class {
    /// Page frames of the pool.
    Frames,
    /// Page table, policy lists and other per-frame bookkeeping.
    PageTable,
    /// Staging buffers of page writers.
    Staging,
    /// Log buffers.
    LogBuffers,
    /// Key and interval locks.
    Locks,
    /// Write sets of open transactions, and groups being built at commit.
    WriteSets,
    /// Old values that open snapshots need.
    Versions,
    /// Entries of LSM keyspaces that are not flushed yet.
    Memtables,
}

/// All classes, in order.
pub const CLASSES: [Class; 8] = [
    Class::Frames,
    Class::PageTable,
    Class::Staging,
    Class::LogBuffers,
    Class::Locks,
    Class::WriteSets,
    Class::Versions,
    Class::Memtables,
];

// Accounts are kept by a class's number.
const _: () = {
    let mut i = 0;
    while i < CLASSES.len() {
        assert!(CLASSES[i] as usize == i, "classes are listed in the order of their numbers");
        i += 1;
    }
};

impl Class {
    /// Name for statistics and errors.
    pub fn name(self) -> &'static str {
        ["frames", "page table", "staging", "log buffers", "locks", "write sets", "versions", "memtables"]
            [self as usize]
    }
}

#[derive(Debug, Default)]
struct Account {
    limit: AtomicU64,
    used: AtomicU64,
    peak: AtomicU64,
    refused: AtomicU64,
}

/// State of one class, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassUse {
    /// The class.
    pub class: Class,
    /// Most bytes allowed.
    pub limit: u64,
    /// Bytes in use.
    pub used: u64,
    /// Most bytes ever in use.
    pub peak: u64,
    /// Charges refused.
    pub refused: u64,
}

/// The budget of one database.
#[derive(Debug)]
pub struct Budget {
    accounts: [Account; CLASSES.len()],
}

impl Budget {
    /// A budget with the given limits in bytes, in the order of [`CLASSES`].
    pub fn new(limits: [u64; CLASSES.len()]) -> Budget {
        let accounts: [Account; CLASSES.len()] = Default::default();
        for (account, limit) in accounts.iter().zip(limits) {
            account.limit.store(limit, Ordering::Relaxed);
        }
        Budget { accounts }
    }

    /// A budget that never refuses (tests).
    pub fn unlimited() -> Budget {
        Budget::new([u64::MAX / 2; CLASSES.len()])
    }

    /// Charges `bytes` to `class`, or refuses. Give them back with [`Budget::release`].
    pub fn charge(&self, class: Class, bytes: u64) -> Result<()> {
        self.charge_over(class, bytes, 0)
    }

    /// The same, if the class goes beyond its limit by no more than `over`.
    pub fn charge_over(&self, class: Class, bytes: u64, over: u64) -> Result<()> {
        let account = &self.accounts[class as usize];
        let limit = account.limit.load(Ordering::Relaxed).saturating_add(over);
        // Not added before it is known to fit: what is refused must not be in the way of what is not.
        let fits = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= limit);
        match account.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits) {
            Ok(before) => {
                account.peak.fetch_max(before + bytes, Ordering::Relaxed);
                Ok(())
            }
            Err(used) => {
                account.refused.fetch_add(1, Ordering::Relaxed);
                let available = limit.saturating_sub(used);
                Err(Error::OverBudget { class: class.name(), requested: bytes, available })
            }
        }
    }

    /// Gives back what [`Budget::charge`] took.
    pub fn release(&self, class: Class, bytes: u64) {
        let before = self.accounts[class as usize].used.fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(before >= bytes, "released more {} than was charged", class.name());
    }

    /// Gives `bytes` of one class's limit to another, as far as the first has that much.
    pub fn move_limit(&self, from: Class, to: Class, bytes: u64) {
        let from = &self.accounts[from as usize].limit;
        let before = from.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |limit| Some(limit.saturating_sub(bytes)));
        let moved = before.expect("always an answer").min(bytes);
        self.accounts[to as usize].limit.fetch_add(moved, Ordering::Relaxed);
    }

    /// Lets a class use so many bytes at least.
    pub fn raise_limit(&self, class: Class, least: u64) {
        self.accounts[class as usize].limit.fetch_max(least, Ordering::Relaxed);
    }

    /// A class that is taken whole, as page frames are, has another size from now on.
    pub fn resize(&self, class: Class, bytes: u64) {
        let account = &self.accounts[class as usize];
        account.limit.store(bytes, Ordering::Relaxed);
        account.used.store(bytes, Ordering::Relaxed);
        account.peak.fetch_max(bytes, Ordering::Relaxed);
    }

    /// Charges `bytes` that are in use already, whatever the limit, which rises to what is used.
    pub fn admit(&self, class: Class, bytes: u64) {
        let account = &self.accounts[class as usize];
        let used = account.used.fetch_add(bytes, Ordering::Relaxed) + bytes;
        account.limit.fetch_max(used, Ordering::Relaxed);
        account.peak.fetch_max(used, Ordering::Relaxed);
    }

    /// Most bytes the class may use.
    pub fn limit(&self, class: Class) -> u64 {
        self.accounts[class as usize].limit.load(Ordering::Relaxed)
    }

    /// Bytes that the class uses now.
    pub fn used(&self, class: Class) -> u64 {
        self.accounts[class as usize].used.load(Ordering::Relaxed)
    }

    /// A line per class.
    pub fn report(&self) -> Vec<ClassUse> {
        let line = |class: Class| {
            let a = &self.accounts[class as usize];
            let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
            ClassUse { class, limit: get(&a.limit), used: get(&a.used), peak: get(&a.peak), refused: get(&a.refused) }
        };
        CLASSES.iter().map(|&c| line(c)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use varve_rt::{sim, spawn};

    /// A charge that does not fit takes nothing, not even for a moment, from one that does.
    #[test]
    fn a_refused_charge_refuses_nobody_else() {
        for seed in 0..50 {
            sim::run(sim::Config { seed, chaos: true, ..sim::Config::default() }, || {
                let budget = Arc::new(Budget::new([100; CLASSES.len()]));
                let large = {
                    let budget = budget.clone();
                    spawn("large", move || (0..20).for_each(|_| assert!(budget.charge(Class::Locks, 101).is_err())))
                };
                for _ in 0..20 {
                    budget.charge(Class::Locks, 60).unwrap();
                    budget.release(Class::Locks, 60);
                }
                large.join().unwrap();
                assert_eq!(budget.used(Class::Locks), 0);
            })
            .unwrap();
        }
    }
}
