//! Modelled hosts: machines with cores, a table of costs and a book of what was used, each for itself.
//!
//! A simulation begins with one, which its [`Config`] describes; others are added. A thread is on one host from its
//! start to its end.

use super::cores::Cores;
use super::lock_waits::{LockWaits, WaitBook};
use super::scheduler::World;
use super::{Config, world};
use crate::cost::{CpuCosts, CpuUse};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

/// What a modelled host is like.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// Its name, in reports.
    pub name: String,
    /// Cores that [`compute`](crate::compute) occupies.
    pub cores: usize,
    /// What the engine's work costs there; see [`charge`](crate::charge). Zero: no time.
    pub costs: CpuCosts,
    /// As [`Config::lock_handoff`], between cores of this host.
    pub lock_handoff: Duration,
    /// As [`Config::lock_data`], between cores of this host.
    pub lock_data: Duration,
}

impl Config {
    /// The host that a simulation begins with; it is named `host`.
    pub fn host(&self) -> HostConfig {
        HostConfig {
            name: "host".into(),
            cores: self.cores,
            costs: self.costs.clone(),
            lock_handoff: self.lock_handoff,
            lock_data: self.lock_data,
        }
    }
}

/// What a host's processors did in a simulation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostUse {
    /// Its name.
    pub name: String,
    /// Its cores.
    pub cores: usize,
    /// Its processor time, by what it was spent on.
    pub cpu: CpuUse,
}

/// A modelled host.
pub(super) struct Machine {
    pub(super) id: u32,
    name: String,
    cores: usize,
    pub(super) costs: CpuCosts,
    /// The costs are not all zero.
    pub(super) costed: bool,
    /// What a lock's word costs to move between its cores, and what follows the word, ns.
    pub(super) lock_costs: (u64, u64),
    /// Of the threads that have ended; core time, hand-offs and spins of all.
    pub(super) used: RefCell<CpuUse>,
    pub(super) lock_waits: RefCell<WaitBook>,
}

impl Machine {
    /// Its use, of the threads that have ended.
    pub(super) fn told(&self) -> HostUse {
        HostUse { name: self.name.clone(), cores: self.cores, cpu: self.used.borrow().clone() }
    }
}

impl World {
    pub(super) fn add_host(&self, config: HostConfig) -> Rc<Machine> {
        assert!(config.cores > 0, "a modelled host has at least one core");
        let ns = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        let lock_costs = (ns(config.lock_handoff), ns(config.lock_data));
        if lock_costs != (0, 0) {
            self.words.set(true);
        }
        let mut hosts = self.hosts.borrow_mut();
        let host = Rc::new(Machine {
            id: u32::try_from(hosts.len()).expect("fewer than 2^32 hosts"),
            name: config.name,
            cores: config.cores,
            costed: !config.costs.is_zero(),
            costs: config.costs,
            lock_costs,
            used: RefCell::default(),
            lock_waits: RefCell::default(),
        });
        self.state.borrow_mut().cores.push(Cores::new(config.cores));
        hosts.push(host.clone());
        host
    }

    pub(super) fn host(&self, id: u32) -> Rc<Machine> {
        self.hosts.borrow()[id as usize].clone()
    }
}

/// A new host's number, and the seed of its simulation. Panics outside a simulation.
pub(crate) fn new_host(config: HostConfig) -> (u32, u64) {
    let w = world().expect("modelled hosts exist in simulations only");
    (w.add_host(config).id, w.config.seed)
}

/// The number of the calling thread's host, and the seed of its simulation; `None` on an OS thread.
pub(crate) fn current_host() -> Option<(u32, u64)> {
    world().map(|w| (w.current().host.id, w.config.seed))
}

/// What the host `id` of the simulation with this seed did so far, threads that still run included.
pub(crate) fn host_use(id: u32, seed: u64) -> HostUse {
    let w = world().expect("modelled hosts exist in simulations only");
    assert_eq!(w.config.seed, seed, "the host belongs to another simulation");
    let mut told = w.host(id).told();
    for thread in w.alive() {
        let state = w.state.borrow();
        let thread = w.thread(&state, thread);
        if thread.host.id == id {
            told.cpu.merge(&thread.cpu.borrow());
        }
    }
    told
}

/// Waits for locks by threads of the host `id` that ended so far.
pub(crate) fn host_lock_waits(id: u32, seed: u64) -> Vec<LockWaits> {
    let w = world().expect("modelled hosts exist in simulations only");
    assert_eq!(w.config.seed, seed, "the host belongs to another simulation");
    w.host(id).lock_waits.borrow().all()
}
