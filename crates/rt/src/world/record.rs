//! What the scheduler knows of a simulated thread.

use super::Table;
use super::host::Machine;
use super::scheduler::{Co, ThreadId};
use crate::cost::CpuUse;
use crate::wait::{Caller, Parked, What};
use corosensei::Yielder;
use std::cell::{Cell, RefCell, UnsafeCell};
use std::rc::Rc;

/// Where a thread is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Status {
    Ready,
    Running,
    /// In a wait; `woken` tells how it ended once it is ready again.
    Waiting,
    /// Occupying a modelled core until its timer fires.
    OnCore,
    /// Queueing for a modelled core.
    CoreQueue,
    /// Resumed by a power cut only.
    Dying,
}

/// A simulated thread.
pub(super) struct Thread {
    pub(super) id: ThreadId,
    pub(super) name: String,
    pub(super) daemon: bool,
    pub(super) domain: u32,
    /// Whose cores it computes on.
    pub(super) host: Rc<Machine>,
    pub(super) status: Cell<Status>,
    pub(super) yielder: Cell<*const Yielder<(), ()>>,
    /// Touched by `World::resume` only: nobody else looks while the thread runs.
    pub(super) co: UnsafeCell<Option<Co>>,
    /// The lowest usable byte of the stack; the guard page lies below.
    pub(super) stack_low: usize,
    /// What it waits for, in the queue of which key, since where in the source.
    pub(super) wait: Cell<(What, usize, Option<Caller>)>,
    /// The kind of wait, for the running hash.
    pub(super) event: Cell<u64>,
    pub(super) woken: Cell<Option<Parked>>,
    /// Numbers the waits, so that a timer of an earlier one is recognised.
    pub(super) epoch: Cell<u64>,
    /// The running wait has a timer.
    pub(super) timed: Cell<bool>,
    /// CPU charges not settled yet, ps.
    pub(super) pending: Cell<u64>,
    /// The core it is on, or was on last.
    pub(super) core: Cell<usize>,
    pub(super) on_core: Cell<bool>,
    /// Of its quantum, ns.
    pub(super) used: Cell<u64>,
    pub(super) cpu: RefCell<CpuUse>,
    /// When it began to wait, and whether it waits without spinning.
    pub(super) since: Cell<u64>,
    pub(super) asleep: Cell<bool>,
    pub(super) yields: Cell<u32>,
    pub(super) seeds: Cell<u64>,
    pub(super) locals: RefCell<Table>,
    pub(super) dying: Cell<bool>,
    /// This thread was unwinding when it last began to wait, or is being unwound by a power cut.
    pub(super) unwinding: Cell<bool>,
    /// Waits refused while dying.
    pub(super) refused: Cell<u32>,
    pub(super) ghosts: RefCell<Vec<usize>>,
    /// Where the panic under way was raised.
    pub(super) panic_place: RefCell<Option<String>>,
}

impl Thread {
    /// Remembers what the thread is about to wait for.
    #[inline]
    pub(super) fn waits_for(&self, what: What, key: usize, at: Option<Caller>) {
        self.wait.set((what, key, at));
        self.event.set(what.code());
    }

    /// What the thread waits for, or waited for last.
    pub(super) fn last_wait(&self) -> (What, usize, Option<Caller>) {
        self.wait.get()
    }
}
