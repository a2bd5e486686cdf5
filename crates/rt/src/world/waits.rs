//! Waiting in a simulation: parking by key, sleeping, yielding, and the yields of chaos.

use super::record::{Status, Thread};
use super::scheduler::{State, ThreadId, World};
use super::{Quiet, unwind_if_possible, world};
use crate::cost::Cost;
use crate::hash::fold;
use crate::instant::Instant;
use crate::wait::{Parked, Pick, Wait, What, Woken};
use std::time::Duration;

/// Virtual nanoseconds that a yield takes when nobody else is ready, so that waiting by yielding ends.
const YIELD_NS: u64 = 1_000;

/// How long a thread on a core waits for a lock before it goes to sleep, where work takes time: what the backing off of
/// [`crate::spin`] takes, with a few yields.
const SPIN_NS: u64 = 3_000;
/// A lock is handed to who has waited this long, where work takes time (as in `parking_lot_core`).
const FAIR_NS: u64 = 500_000;

/// See [`crate::park::park`].
pub(crate) fn park(
    wait: Wait,
    validate: impl FnOnce() -> bool,
    before_sleep: impl FnOnce(),
    timed_out: impl FnOnce(bool),
) -> Parked {
    let w = world().expect("in a simulation");
    let me = w.current();
    if me.dying.get() {
        return Parked::Dying;
    }
    w.settle();
    if me.dying.get() {
        return Parked::Dying;
    }
    let lock = matches!(wait.what, What::Mutex | What::Read | What::Write);
    let spins = lock && me.host.costed && me.on_core.get();
    let quiet = Quiet::new();
    if !validate() {
        return Parked::Invalid;
    }
    {
        let state = &mut *w.state.borrow_mut();
        me.waits_for(wait.what, wait.key, Some(wait.at));
        me.status.set(Status::Waiting);
        me.epoch.set(me.epoch.get() + 1);
        me.woken.set(None);
        me.since.set(w.clock.get());
        me.asleep.set(!spins);
        if lock {
            w.contend(state, wait.key);
        }
        let spare = &mut state.spare;
        let queue = state.queues.entry(wait.key).or_insert_with(|| spare.pop().unwrap_or_default());
        queue.push_back((me.id, wait.token));
        let deadline = wait.deadline.map(|d| d.as_nanos().max(w.clock.get()));
        if spins {
            let end = w.clock.get() + SPIN_NS;
            w.set_timer(state, me, deadline.map_or(end, |d| d.min(end)));
        } else {
            w.fall_asleep(state, me, deadline);
        }
    }
    before_sleep();
    drop(quiet);
    w.switch();
    if spins && me.woken.get() == Some(Parked::TimedOut) && !me.dying.get() {
        let deadline = wait.deadline.map(Instant::as_nanos);
        if deadline.is_none_or(|d| d > w.clock.get()) {
            {
                let state = &mut *w.state.borrow_mut();
                me.woken.set(None);
                me.status.set(Status::Waiting);
                me.epoch.set(me.epoch.get() + 1);
                w.fall_asleep(state, me, deadline);
            }
            w.switch();
        }
    }
    let how = me.woken.take();
    me.timed_off(w);
    if lock {
        me.host.lock_waits.borrow_mut().add(wait.what, wait.at, w.clock.get() - me.since.get());
    }
    if me.asleep.replace(false) {
        w.charge_cost(Cost::Park, 1);
    }
    if let Some(Parked::Unparked(token)) = how {
        return Parked::Unparked(token);
    }
    let last = w.leave_queue(me, wait.key);
    timed_out(last);
    if me.dying.get() { Parked::Dying } else { Parked::TimedOut }
}

/// See [`crate::park::unpark_filter`].
pub(crate) fn unpark(key: usize, mut filter: impl FnMut(usize) -> Pick, callback: impl FnOnce(Woken) -> usize) {
    let w = world().expect("in a simulation");
    if w.state.borrow().queues.contains_key(&key) {
        w.settle();
    }
    let _quiet = Quiet::new();
    let queue = w.state.borrow_mut().queues.remove(&key);
    let Some(mut queue) = queue else {
        callback(Woken { count: 0, more: false, fair: false });
        return;
    };
    let mut woken = std::mem::take(&mut w.state.borrow_mut().woken);
    while let Some(&(id, token)) = queue.front() {
        if filter(token) == Pick::Stop {
            break;
        }
        queue.pop_front();
        woken.push(id);
    }
    let asleep = |id: &ThreadId| w.thread(&w.state.borrow(), *id).asleep.get();
    w.charge_cost(Cost::Unpark, woken.iter().filter(|id| asleep(id)).count() as u64);
    let fair = match woken.first() {
        _ if w.config.chaos => w.dice.borrow_mut().below(2) == 0,
        // As real ones: somebody else may be quicker, but not for ever.
        Some(&id) if w.current().host.costed => w.clock.get() >= w.thread(&w.state.borrow(), id).since.get() + FAIR_NS,
        _ => true,
    };
    let token = callback(Woken { count: woken.len(), more: !queue.is_empty(), fair });
    let state = &mut *w.state.borrow_mut();
    if queue.is_empty() {
        state.spare.push(queue);
    } else {
        state.queues.insert(key, queue);
    }
    for id in woken.drain(..) {
        w.wake(state, id, Parked::Unparked(token));
    }
    state.woken = woken;
}

/// Sleeps in virtual time; false on an OS thread.
pub(crate) fn sleep(d: Duration) -> bool {
    let Some(w) = world() else { return false };
    let me = w.current();
    if !me.dying.get() {
        w.settle();
        let ns = u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        w.pause(me, What::Sleep, w.clock.get().saturating_add(ns));
    }
    if me.dying.get() {
        unwind_if_possible();
    }
    true
}

/// One step of busy waiting takes virtual time; false on an OS thread.
pub(crate) fn spin(n: u32) -> bool {
    world().is_some() && sleep(Duration::from_nanos(100 << n.min(8)))
}

/// Lets others run; false on an OS thread.
pub(crate) fn yield_now() -> bool {
    let Some(w) = world() else { return false };
    let me = w.current();
    if !me.dying.get() {
        w.settle();
        if w.state.borrow().ready.is_empty() || me.yields.get() >= 16 {
            me.yields.set(0);
            w.pause(me, What::Yield, w.clock.get() + YIELD_NS);
        } else {
            me.yields.set(me.yields.get() + 1);
            w.leave_core(&mut w.state.borrow_mut(), me);
            w.requeue(me);
        }
    }
    if me.dying.get() {
        unwind_if_possible();
    }
    true
}

impl Thread {
    /// The wait is over: its timer, if it has not fired, is of no use any more.
    fn timed_off(&self, w: &World) {
        if self.timed.replace(false) {
            w.state.borrow_mut().timers_live -= 1;
        }
    }
}

impl World {
    /// The thread, which is in a queue, gives its core up and waits until it is woken or the clock shows `deadline`.
    fn fall_asleep(&self, state: &mut State, me: &Thread, deadline: Option<u64>) {
        me.asleep.set(true);
        self.leave_core(state, me);
        if let Some(deadline) = deadline {
            self.set_timer(state, me, deadline);
        }
    }

    /// Waits until the clock shows `at`, without a queue. Returns early in a dying thread.
    pub(super) fn pause(&self, me: &Thread, what: What, at: u64) {
        if me.dying.get() {
            return;
        }
        {
            let state = &mut *self.state.borrow_mut();
            me.waits_for(what, 0, None);
            self.leave_core(state, me);
            if self.idle_until(state, me, at) {
                self.clock.set(at);
                state.progress = at;
                self.note(fold(at, u64::from(me.id)));
                return;
            }
            me.status.set(Status::Waiting);
            me.epoch.set(me.epoch.get() + 1);
            self.set_timer(state, me, at);
        }
        self.switch();
        me.timed_off(self);
    }

    /// Lets the scheduler pick among the ready threads, the caller included.
    pub(super) fn requeue(&self, me: &Thread) {
        if me.dying.get() {
            return;
        }
        {
            let state = &mut *self.state.borrow_mut();
            me.waits_for(What::Yield, 0, None);
            me.status.set(Status::Ready);
            state.ready.push(me.id);
        }
        self.switch();
    }

    /// In a chaotic simulation: perhaps lets others run here, perhaps for a while.
    pub(super) fn chaos_point(&self) {
        if !self.config.chaos || self.quiet.get() > 0 || std::thread::panicking() || self.current.get().is_null() {
            return;
        }
        let me = self.current();
        if me.dying.get() {
            return;
        }
        let hold = {
            let mut dice = self.dice.borrow_mut();
            if dice.below(self.chaos_rate) != 0 {
                return;
            }
            if dice.below(16) == 0 { dice.below(self.chaos_hold + 1) } else { 0 }
        };
        if hold > 0 {
            self.pause(me, What::Yield, self.clock.get() + hold);
        } else if !self.state.borrow().ready.is_empty() {
            self.requeue(me);
        }
    }

    /// Takes `me` out of the queue of `key`; true when nobody is left in it.
    fn leave_queue(&self, me: &Thread, key: usize) -> bool {
        let state: &mut State = &mut self.state.borrow_mut();
        let Some(queue) = state.queues.get_mut(&key) else { return true };
        queue.retain(|&(id, _)| id != me.id);
        if !queue.is_empty() {
            return false;
        }
        let queue = state.queues.remove(&key).expect("found above");
        state.spare.push(queue);
        true
    }
}
