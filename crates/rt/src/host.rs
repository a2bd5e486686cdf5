//! Modelled hosts: the machines that the threads of a simulation run on.

use crate::cost::CpuUse;
use crate::thread::{JoinHandle, spawn_kind, started};
use crate::world::{self, HostConfig, LockWaits, Place};
use std::time::Duration;

/// A machine of a simulation: threads on it compute on its cores, by its table of costs. Threads that its threads start
/// are on it too. Clones are the same host.
///
/// A simulation begins on the host that [`Config`](crate::sim::Config) describes. Hosts share virtual time, and what
/// threads of several of them share in memory moves between them for nothing: it stands for what is modelled by itself,
/// such as a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    id: u32,
    seed: u64,
}

impl Host {
    /// A new host of the simulation the caller is in. Panics outside a simulation, and when it has no core.
    pub fn new(config: HostConfig) -> Host {
        let (id, seed) = world::new_host(config);
        Host { id, seed }
    }

    /// The calling thread's host; `None` on an OS thread.
    pub fn current() -> Option<Host> {
        world::current_host().map(|(id, seed)| Host { id, seed })
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    fn place(&self) -> Place {
        Place { host: Some(self.id), ..Place::default() }
    }

    /// Starts a thread on this host, in the caller's power-cut domain.
    pub fn spawn<T: Send + 'static>(
        &self,
        name: impl Into<String>,
        f: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        started(spawn_kind(name.into(), false, self.place(), f))
    }

    /// Starts a service thread on this host; see [`spawn_daemon`](crate::spawn_daemon).
    pub fn spawn_daemon<T: Send + 'static>(
        &self,
        name: impl Into<String>,
        f: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        started(spawn_kind(name.into(), true, self.place(), f))
    }

    /// Its name.
    pub fn name(&self) -> String {
        world::host_use(self.id, self.seed).name
    }

    /// Its cores.
    pub fn cores(&self) -> usize {
        world::host_use(self.id, self.seed).cores
    }

    /// What its processors did so far; threads that still run are counted with what they were charged.
    pub fn cpu(&self) -> CpuUse {
        world::host_use(self.id, self.seed).cpu
    }

    /// Time that its cores were occupied so far, summed over cores.
    pub fn core_time(&self) -> Duration {
        Duration::from_nanos(self.cpu().core_ns)
    }

    /// Waits of its threads for locks that ended so far, by the source line that asked for the lock.
    pub fn lock_waits(&self) -> Vec<LockWaits> {
        world::host_lock_waits(self.id, self.seed)
    }
}
