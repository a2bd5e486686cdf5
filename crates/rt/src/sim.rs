//! The simulated world: threads are stackful coroutines on one OS thread, under a seeded scheduler with a virtual
//! clock that jumps to the next event when everyone waits. What the primitives call is in `world`.

pub use crate::domain::Domain;
pub use crate::host::Host;
pub use crate::world::{
    Config, Failure, HostConfig, HostUse, LockWaits, Outcome, StuckReport, Waiting, core_time, costs, excuse_panics,
    lock_waits, name, note, quietly, run, seed, settle, thread_cpu,
};
