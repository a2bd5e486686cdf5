//! Power cuts: a domain is a set of simulated threads that lose power together.

use crate::host::Host;
use crate::thread::{JoinHandle, spawn_kind, started};
use crate::world::{self, Place};

/// A set of simulated threads that lose power together. Threads spawned by its threads belong to it too, and are on the
/// host of who starts them. Clones are the same domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    id: u32,
    seed: u64,
    host: Option<Host>,
}

impl Domain {
    /// A new domain of the simulation the caller is in. Panics outside a simulation.
    pub fn new(name: impl Into<String>) -> Domain {
        let (id, seed) = world::new_domain(name.into());
        Domain { id, seed, host: None }
    }

    /// The same domain; threads that are started through this value run on `host`.
    #[must_use]
    pub fn on(&self, host: &Host) -> Domain {
        Domain { host: Some(host.clone()), ..*self }
    }

    /// Cuts the power: unwinds every thread of the domain, and returns when all have ended. Later spawns in it end
    /// at once. Cut the devices' power first, so that nothing is written by what still runs. A second cut does
    /// nothing.
    ///
    /// Panics when called from a thread of the domain itself.
    pub fn power_cut(&self) {
        world::cut_domain(self.id, self.seed);
    }

    /// The power of this domain was cut.
    pub fn is_dead(&self) -> bool {
        world::is_dead_domain(self.id)
    }

    /// Starts a thread in this domain from outside of it. Joining it after a power cut gives an error that says so.
    pub fn spawn<T: Send + 'static>(
        &self,
        name: impl Into<String>,
        f: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let place = Place { domain: Some(self.id), host: self.host.as_ref().map(Host::id) };
        started(spawn_kind(name.into(), false, place, f))
    }
}
