//! Power cuts: a domain is a set of simulated threads that lose power together.
//!
//! A cut marks every thread of the domain as dying and resumes them one after the other, each to its end, while all
//! others stand still. A dying thread runs on until it would have to wait; there it is unwound by a private panic
//! payload. While unwinding, a wait returns at once, and a held lock is lent (`ghost_lock`).

use super::record::Status;
use super::scheduler::{Place, ThreadId, World};
use super::world;
use crate::ended::PowerCut;

/// A dying thread that keeps trying to wait this often, without ending, is stuck in a destructor.
const REFUSED_WAITS: u32 = 1_000_000;

/// A new domain's number, and the seed of its simulation. Panics outside a simulation.
pub(crate) fn new_domain(name: String) -> (u32, u64) {
    let w = world().expect("power-cut domains exist in simulations only");
    let mut state = w.state.borrow_mut();
    state.domains.push((name, false));
    (state.domains.len() as u32 - 1, w.config.seed)
}

/// Unwinds every thread of the domain.
pub(crate) fn cut_domain(id: u32, seed: u64) {
    let w = world().expect("power-cut domains exist in simulations only");
    assert_eq!(w.config.seed, seed, "the domain belongs to another simulation");
    assert_ne!(w.current().domain, id, "a power cut comes from outside the domain");
    w.note(0x4355_5400 ^ u64::from(id));
    w.state.borrow_mut().domains[id as usize].1 = true;
    let mut ids = w.alive();
    ids.retain(|&thread| w.thread(&w.state.borrow(), thread).domain == id);
    w.kill(ids);
}

/// The power of this domain was cut.
pub(crate) fn is_dead_domain(id: u32) -> bool {
    world().is_some_and(|w| w.state.borrow().domains[id as usize].1)
}

/// A thread spawned now at `place` would be dead already.
pub(crate) fn refuses_spawn(place: Place) -> bool {
    let w = world().expect("called inside a simulation");
    let me = w.current();
    me.dying.get() || w.state.borrow().domains[place.domain.unwrap_or(me.domain) as usize].1
}

/// Called where the calling thread, which is dying, would have to wait: unwinds it, unless that is under way already.
pub(crate) fn unwind_if_possible() {
    let Some(w) = world() else { return };
    let me = w.current();
    assert!(me.dying.get(), "only dying threads are unwound");
    me.refused.set(me.refused.get() + 1);
    if me.refused.get() > REFUSED_WAITS {
        eprintln!("varve: thread '{}' (seed {}) waits in a destructor after a power cut", me.name, w.config.seed);
        std::process::abort();
    }
    let unwinding = std::thread::panicking() && (w.suspended_unwinding.get() == 0 || me.unwinding.get());
    if !unwinding {
        me.unwinding.set(true);
        std::panic::resume_unwind(Box::new(PowerCut));
    }
}

impl World {
    /// Unwinds the threads `ids`, which are all suspended, in order.
    pub(super) fn kill(&self, ids: Vec<ThreadId>) {
        {
            let state = &mut *self.state.borrow_mut();
            for &id in &ids {
                let t = self.thread(state, id);
                self.off_core(state, t);
            }
            state.ready.retain(|id| !ids.contains(id));
            for &id in &ids {
                let t = self.thread(state, id);
                t.dying.set(true);
                t.pending.set(0);
                t.status.set(Status::Dying);
                if t.timed.replace(false) {
                    state.timers_live -= 1;
                }
                if t.woken.get() == Some(crate::wait::Parked::TimedOut) {
                    t.woken.set(None);
                }
            }
        }
        let quiet = self.quiet.replace(0);
        for id in ids {
            self.resume(id);
            let ended = self.state.borrow().threads[id as usize].is_null();
            assert!(ended, "a dying thread ends without waiting");
        }
        self.quiet.set(quiet);
    }
}
