//! Modelled processors: CPU charges occupy one of their host's cores in virtual time, queueing when all are busy, and a
//! lock's word costs something to move from core to core. Hosts share no caches: between them a word moves for nothing
//! (what threads of two hosts share stands for something that is modelled by itself, as a link is).
//!
//! A thread keeps its core until it waits, or until its quantum is used up while others queue.
//!
//! With a slack, a thread settles at the boundaries of locks only when it has run that far ahead of the clock, or when
//! the lock is contested: when threads that exclude each other took it within a short time. At such locks time is
//! exact. At the others a lock remembers when, in its holder's own time, it was left; who takes it earlier in its own
//! time is charged the difference, as a spin would cost. So holds of a lock never overlap in virtual time.

use super::domain::unwind_if_possible;
use super::record::{Status, Thread};
use super::scheduler::{State, ThreadId, World};
use crate::cost::Cost;
use crate::hash::fold;
use crate::wait::{Parked, What};
use std::collections::VecDeque;

/// Picoseconds in a nanosecond: charges are kept in the former, the clock in the latter.
pub(super) const PS: u64 = 1000;

/// A lock that two threads took within so many times the slack is contested for as long.
const WINDOW: u64 = 16;

const NOBODY: ThreadId = ThreadId::MAX;

/// A core of a host.
type Core = (u32, usize);

/// In place of a core: several cores of the host have read what a lock guards since it was changed.
const CLEAN: usize = usize::MAX;

/// The cores of a host, and who queues for them.
pub(super) struct Cores {
    busy: Vec<bool>,
    free: usize,
    queue: VecDeque<ThreadId>,
}

/// What is known of a lock.
#[derive(Default)]
pub(super) struct Word {
    /// Who took it last, and when; who took it last exclusively, and when.
    last: (ThreadId, u64),
    last_exclusive: (ThreadId, u64),
    /// Until when it counts as contested.
    contested: u64,
    /// The core that last took it.
    core: Core,
    /// The core that last changed what it guards, if no other one of its host has read that since.
    changed_on: Core,
    /// When its word is free to move again.
    moved: u64,
    /// When it was last left by an exclusive holder, and by a shared one, in the holder's own time.
    left: u64,
    shared_left: u64,
}

impl Word {
    /// A lock that nobody took before; now it is on `core`.
    fn new(core: Core) -> Word {
        Word { core, changed_on: core, last: (NOBODY, 0), last_exclusive: (NOBODY, 0), ..Word::default() }
    }

    /// The word moves to `core`, and what the lock guards follows if another core changed it, or is about to be changed
    /// here while others have it. What that costs, of the two costs.
    fn take_to(&mut self, core: Core, exclusive: bool, (word, data): (u64, u64)) -> u64 {
        let moves = self.core != core && self.core.0 == core.0;
        let lines = self.changed_on;
        let follows = lines != core && lines.0 == core.0 && (exclusive || lines.1 != CLEAN);
        self.core = core;
        if exclusive {
            self.changed_on = core;
        } else if follows {
            self.changed_on.1 = CLEAN;
        }
        u64::from(moves) * word + u64::from(follows) * data
    }

    /// Thread `me` takes the lock at `now`. Another one that took it within `window`, one of them exclusively, contests
    /// it.
    fn note(&mut self, me: ThreadId, exclusive: bool, now: u64, window: u64) {
        let other = if exclusive { self.last } else { self.last_exclusive };
        if other.0 != me && other.0 != NOBODY && now < other.1.saturating_add(window) {
            self.contested = now.saturating_add(window);
        }
        self.last = (me, now);
        if exclusive {
            self.last_exclusive = (me, now);
        }
    }
}

impl Cores {
    pub(super) fn new(n: usize) -> Cores {
        Cores { busy: vec![false; n], free: n, queue: VecDeque::new() }
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

impl State {
    /// The cores of the thread's host.
    fn cores_of(&mut self, thread: &Thread) -> &mut Cores {
        &mut self.cores[thread.host.id as usize]
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

    /// Charges by the table of the calling thread's host.
    #[inline]
    pub(super) fn charge_cost(&self, cost: Cost, n: u64) {
        let me = self.current();
        me.cpu.borrow_mut().add(cost, n);
        self.add(me.host.costs.ps(cost, n));
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

    /// As [`World::settle`], at a boundary of the lock `key`: a thread within its slack goes on, unless others want the
    /// lock.
    #[inline]
    pub(super) fn settle_lax(&self, key: usize) {
        let pending = self.current().pending.get();
        if pending >= self.lax || (pending >= PS && self.contested(key)) {
            self.settle_now();
        }
    }

    /// Whether several threads took the lock lately, in a way that they could have met.
    fn contested(&self, key: usize) -> bool {
        self.lax <= PS || self.state.borrow().words.get(&key).is_some_and(|w| w.contested > self.local_now())
    }

    /// Somebody waits for the lock.
    pub(super) fn contend(&self, state: &mut State, key: usize) {
        if self.lax > PS
            && let Some(word) = state.words.get_mut(&key)
        {
            word.contested = self.clock.get().saturating_add(self.lax / PS * WINDOW);
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
        while left > 0 && !me.dying.get() {
            if !me.on_core.get() {
                if !self.acquire_core(me) {
                    break;
                }
                me.used.set(0);
            }
            let slice = left.min(quantum - me.used.get());
            left -= slice;
            me.used.set(me.used.get() + slice);
            self.occupy(me, self.clock.get().saturating_add(slice));
            me.host.used.borrow_mut().core_ns += slice;
            if me.used.get() >= quantum && !me.dying.get() {
                // With nobody queueing there is no reason to stop; but look again after each quantum.
                me.used.set(0);
                let state = &mut *self.state.borrow_mut();
                if !state.cores_of(me).queue.is_empty() {
                    self.leave_core(state, me);
                }
            }
        }
    }

    /// A core, waiting for one; false in a thread that is dying.
    fn acquire_core(&self, me: &Thread) -> bool {
        {
            let state = &mut *self.state.borrow_mut();
            if let Some(core) = state.cores_of(me).take(me.core.get()) {
                me.core.set(core);
                me.on_core.set(true);
                return true;
            }
            me.waits_for(What::Core, 0, None);
            me.status.set(Status::CoreQueue);
            me.epoch.set(me.epoch.get() + 1);
            state.cores_of(me).queue.push_back(me.id);
        }
        self.switch();
        // The thread that left it has set our core.
        !me.dying.get()
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

    /// The thread is about to wait, or has ended: its core, if it has one, goes to the next in the queue, or back.
    pub(super) fn leave_core(&self, state: &mut State, t: &Thread) {
        if !t.on_core.replace(false) {
            return;
        }
        let core = t.core.get();
        match state.cores_of(t).queue.pop_front() {
            Some(id) => {
                let next = self.thread(state, id);
                next.core.set(core);
                next.on_core.set(true);
                self.wake(state, id, Parked::Unparked(0));
            }
            None => {
                let cores = state.cores_of(t);
                assert!(cores.busy[core], "a core is given back once");
                cores.busy[core] = false;
                cores.free += 1;
            }
        }
    }

    /// Takes a thread that is about to die off its core or out of the queue for one.
    pub(super) fn off_core(&self, state: &mut State, t: &Thread) {
        if t.status.get() == Status::CoreQueue {
            state.cores_of(t).queue.retain(|&id| id != t.id);
        }
        self.leave_core(state, t);
    }

    /// Books a lock to the calling thread; charges the wait for a holder that ran ahead of the clock, and the move of
    /// the lock's word between cores.
    pub(super) fn took_lock(&self, key: usize, exclusive: bool, fresh: bool) {
        let me = self.current();
        let state = &mut *self.state.borrow_mut();
        if exclusive {
            state.owners.insert(key, me.id);
        }
        if !self.words.get() {
            return;
        }
        if fresh {
            state.words.remove(&key);
        }
        let now = self.local_now();
        let (host, core) = (&me.host, (me.host.id, me.core.get()));
        let word = state.words.entry(key).or_insert_with(|| Word::new(core));
        word.note(me.id, exclusive, now, self.lax / PS * WINDOW);
        let mut start = now.max(if exclusive { word.left.max(word.shared_left) } else { word.left });
        let mut used = host.used.borrow_mut();
        used.spin_ns += start - now;
        // A thread that has never been charged anything is not on any core.
        let cost = if core.1 == usize::MAX { 0 } else { word.take_to(core, exclusive, host.lock_costs) };
        if cost > 0 {
            let moved = word.moved.max(start).saturating_add(cost);
            used.handoff_ns += moved - start;
            start = moved;
            word.moved = start;
        }
        me.pending.set(me.pending.get().saturating_add((start - now).saturating_mul(PS)));
    }

    /// The calling thread is about to release the lock.
    pub(super) fn released_lock(&self, key: usize, exclusive: bool) {
        let state = &mut *self.state.borrow_mut();
        if exclusive {
            state.owners.remove(&key);
        }
        // Only who may run ahead of the clock leaves a lock at another time than the clock's.
        if self.lax > PS
            && let Some(word) = state.words.get_mut(&key)
        {
            let left = if exclusive { &mut word.left } else { &mut word.shared_left };
            *left = (*left).max(self.local_now());
        }
    }
}
