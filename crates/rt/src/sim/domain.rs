//! Power cuts: a domain is a set of simulated threads that lose power together.
//!
//! A cut marks every thread of the domain as dying and resumes them one after the other, each to its end, while all
//! others stand still. A dying thread runs on until it would have to wait; there it is unwound by a private panic
//! payload. While unwinding, a wait returns at once, and a held lock is lent (`ghost_lock`).

use super::world;
use super::world::{Status, ThreadId, World};
use crate::thread::{JoinHandle, spawn_kind, started};

/// The payload that unwinds a dying thread.
pub(crate) struct PowerCut;

/// A dying thread that keeps trying to wait this often, without ending, is stuck in a destructor.
const REFUSED_WAITS: u32 = 1_000_000;

/// A set of simulated threads that lose power together. Threads spawned by its threads belong to it too. Clones are
/// the same domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    id: u32,
    seed: u64,
}

impl Domain {
    /// A new domain of the simulation the caller is in. Panics outside a simulation.
    pub fn new(name: impl Into<String>) -> Domain {
        let w = world().expect("power-cut domains exist in simulations only");
        let mut state = w.state.borrow_mut();
        state.domains.push((name.into(), false));
        Domain { id: state.domains.len() as u32 - 1, seed: w.config.seed }
    }

    /// Cuts the power: unwinds every thread of the domain, and returns when all have ended. Later spawns in it end
    /// at once. Cut the devices' power first, so that nothing is written by what still runs. A second cut does
    /// nothing.
    ///
    /// Panics when called from a thread of the domain itself.
    pub fn power_cut(&self) {
        let w = world().expect("power-cut domains exist in simulations only");
        assert_eq!(w.config.seed, self.seed, "the domain belongs to another simulation");
        assert_ne!(w.current().domain, self.id, "a power cut comes from outside the domain");
        w.note(0x4355_5400 ^ u64::from(self.id));
        w.state.borrow_mut().domains[self.id as usize].1 = true;
        let mut ids = w.alive();
        ids.retain(|&id| w.thread(&w.state.borrow(), id).domain == self.id);
        w.kill(ids);
    }

    /// The power of this domain was cut.
    pub fn is_dead(&self) -> bool {
        world().is_some_and(|w| w.state.borrow().domains[self.id as usize].1)
    }

    /// Starts a thread in this domain; see [`domain_spawn`].
    pub fn spawn<T: Send + 'static>(
        &self,
        name: impl Into<String>,
        f: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        domain_spawn(self, name, f)
    }
}

/// Starts a thread in `domain` from outside of it. Joining it after a power cut gives an error that says so.
pub fn domain_spawn<T: Send + 'static>(
    domain: &Domain,
    name: impl Into<String>,
    f: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    started(spawn_kind(name.into(), false, Some(domain.id), f))
}

/// A thread spawned now in `domain` (the caller's, when `None`) would be dead already.
pub(crate) fn refuses_spawn(domain: Option<u32>) -> bool {
    let w = world().expect("called inside a simulation");
    let me = w.current();
    me.dying.get() || w.state.borrow().domains[domain.unwrap_or(me.domain) as usize].1
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
                if t.woken.get() == Some(crate::park::Parked::TimedOut) {
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
