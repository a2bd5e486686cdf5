//! Modelled processors: CPU charges occupy one of the host's cores in virtual time, queueing when all are busy, and a
//! lock's word costs something to move from core to core.

use super::domain::unwind_if_possible;
use super::world::{State, Status, Thread, ThreadId, World};
use crate::hash::{HashMap, fold};
use crate::park::{Parked, What};
use std::collections::VecDeque;

/// Picoseconds in a nanosecond: charges are kept in the former, the clock in the latter.
const PS: u64 = 1000;

/// The cores, who queues for them, and where the words of locks are.
pub(super) struct Cores {
    busy: Vec<bool>,
    free: usize,
    queue: VecDeque<ThreadId>,
    /// By lock: the core that last took it, and when its word is free to move again.
    words: HashMap<usize, (usize, u64)>,
}

impl Cores {
    pub(super) fn new(n: usize) -> Cores {
        Cores { busy: vec![false; n], free: n, queue: VecDeque::new(), words: HashMap::default() }
    }

    /// A free core, rather the one used last.
    fn take(&mut self, last: usize) -> Option<usize> {
        if self.free == 0 {
            return None;
        }
        let core = match self.busy.get(last) {
            Some(false) => last,
            _ => self.busy.iter().position(|b| !b).expect("one is free"),
        };
        self.busy[core] = true;
        self.free -= 1;
        Some(core)
    }
}

impl World {
    /// Adds `ns` to the calling thread's charges; a long computation is settled piece by piece.
    pub(super) fn charge(&self, ns: u64) {
        let me = self.current();
        if me.dying.get() {
            unwind_if_possible();
            return;
        }
        self.add(ns.saturating_mul(PS));
        if u128::from(me.pending.get() / PS) >= self.config.quantum.as_nanos() {
            self.settle();
        }
    }

    /// Adds `ps` picoseconds to the calling thread's charges; those of a dying thread are dropped.
    #[inline]
    pub(super) fn add(&self, ps: u64) {
        let me = self.current();
        if !me.dying.get() {
            me.pending.set(me.pending.get().saturating_add(ps));
        }
    }

    /// The calling thread's own time: the clock and what it has not settled.
    #[inline]
    pub(super) fn local_now(&self) -> u64 {
        self.clock.get() + self.current().pending.get() / PS
    }

    /// Spends the calling thread's charges on a core.
    #[inline]
    pub(super) fn settle(&self) {
        if self.current().pending.get() >= PS {
            self.settle_now();
        }
    }

    #[cold]
    fn settle_now(&self) {
        let me = self.current();
        if self.quiet.get() > 0 || std::thread::panicking() {
            return;
        }
        let quantum = u64::try_from(self.config.quantum.as_nanos()).unwrap_or(u64::MAX).max(1);
        // What is less than a nanosecond stays.
        let mut left = me.pending.get() / PS;
        me.pending.set(me.pending.get() % PS);
        let mut held = None;
        while left > 0 && !me.dying.get() {
            let Some(core) = held.take().or_else(|| self.acquire_core(me)) else { break };
            me.core.set(core);
            // With nobody queueing there is no reason to stop at the quantum; but look again after each.
            let slice = left.min(quantum);
            left -= slice;
            self.occupy(me, self.clock.get().saturating_add(slice));
            if me.dying.get() {
                break;
            }
            if left > 0 && self.state.borrow().cores.queue.is_empty() {
                held = Some(core);
            } else {
                self.release_core(&mut self.state.borrow_mut(), core);
            }
        }
    }

    /// A core, waiting for one; `None` in a thread that is dying.
    fn acquire_core(&self, me: &Thread) -> Option<usize> {
        {
            let state = &mut *self.state.borrow_mut();
            if let Some(core) = state.cores.take(me.core.get()) {
                return Some(core);
            }
            me.waits_for(What::Core, 0, None);
            me.status.set(Status::CoreQueue);
            me.epoch.set(me.epoch.get() + 1);
            state.cores.queue.push_back(me.id);
        }
        self.switch();
        // Whoever released it has set our core.
        (!me.dying.get()).then(|| me.core.get())
    }

    /// Holds the core until the clock shows `until`.
    fn occupy(&self, me: &Thread, until: u64) {
        {
            let state = &mut *self.state.borrow_mut();
            me.waits_for(What::Core, 0, None);
            if self.idle_until(state, me, until) {
                self.clock.set(until);
                state.progress = until;
                self.note(fold(until, u64::from(me.id)));
                return;
            }
            me.status.set(Status::OnCore);
            me.epoch.set(me.epoch.get() + 1);
            self.set_timer(state, me, until);
        }
        self.switch();
    }

    /// Gives the core to the next in the queue, or back.
    fn release_core(&self, state: &mut State, core: usize) {
        match state.cores.queue.pop_front() {
            Some(id) => {
                self.thread(state, id).core.set(core);
                self.wake(state, id, Parked::Unparked(0));
            }
            None => {
                assert!(state.cores.busy[core], "a core is given back once");
                state.cores.busy[core] = false;
                state.cores.free += 1;
            }
        }
    }

    /// Takes a thread that is about to die off its core or out of the queue for one.
    pub(super) fn off_core(&self, state: &mut State, t: &Thread) {
        match t.status.get() {
            Status::OnCore => self.release_core(state, t.core.get()),
            // It may have fired already, or have been given a core it has not begun to use.
            Status::Ready if t.last_wait().0 == What::Core => self.release_core(state, t.core.get()),
            Status::CoreQueue => state.cores.queue.retain(|&id| id != t.id),
            _ => {}
        }
    }

    /// Books a lock to the calling thread, and charges the move of its word between cores.
    pub(super) fn took_lock(&self, key: usize, exclusive: bool, fresh: bool) {
        let me = self.current();
        let state = &mut *self.state.borrow_mut();
        if exclusive {
            state.owners.insert(key, me.id);
        }
        let handoff = u64::try_from(self.config.lock_handoff.as_nanos()).unwrap_or(u64::MAX);
        if handoff == 0 {
            return;
        }
        if fresh {
            state.cores.words.remove(&key);
        }
        let now = self.clock.get();
        let core = me.core.get();
        if core == usize::MAX {
            // Has never been charged anything: not on any core.
            return;
        }
        let word = state.cores.words.entry(key).or_insert((core, now));
        if word.0 != core {
            let done = word.1.max(now).saturating_add(handoff);
            *word = (core, done);
            me.pending.set(me.pending.get().saturating_add((done - now).saturating_mul(PS)));
        }
    }

    /// The calling thread is about to release the lock.
    pub(super) fn released_lock(&self, key: usize) {
        self.state.borrow_mut().owners.remove(&key);
    }
}
