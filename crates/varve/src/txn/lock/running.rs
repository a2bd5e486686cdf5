//! Which transactions the calling thread runs in `transact`. They cannot end before what the thread does now: to wait
//! for one of them is to wait for oneself. (A transaction of `begin` is nobody's in particular: another thread may end
//! it.)
//!
//! Invariant: transactions that a thread runs end in the reverse order of their beginnings.

use super::LockTable;
use super::wait::OwnerId;
use std::cell::RefCell;
use varve_rt::Local;

/// Tables and transactions, the innermost last.
static RUNNING: Local<RefCell<Vec<(usize, OwnerId)>>> = Local::new(Default::default);

/// While it lives, the thread runs a transaction.
pub(crate) struct Running(OwnerId);

impl LockTable {
    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// The calling thread runs a transaction until the result is dropped.
    pub(crate) fn run(&self, owner: OwnerId) -> Running {
        RUNNING.with(|running| running.borrow_mut().push((self.address(), owner)));
        Running(owner)
    }

    /// The transactions that the calling thread runs, without `owner`.
    pub(super) fn running_beside(&self, owner: OwnerId) -> Vec<OwnerId> {
        let table = self.address();
        let others = |&&(at, other): &&(usize, OwnerId)| at == table && other != owner;
        RUNNING.with(|running| running.borrow().iter().filter(others).map(|r| r.1).collect())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let last = RUNNING.with(|running| running.borrow_mut().pop());
        debug_assert!(varve_rt::dying() || last.is_some_and(|(_, owner)| owner == self.0), "the innermost ends first");
    }
}
