//! Devices that are not there, for tests and for the lab: the same [`Device`](varve_device::Device) as a file, in
//! virtual time or paced.
//!
//! [`MemDevice`] keeps a durable and a volatile image in memory and loses power on demand. [`Modelled`] answers as a
//! disk, a drive or raw flash would, whose parameters a [`Profile`] holds. [`Linked`] puts a link between host and
//! device. [`Faulty`] injects faults into any device, and a [`PowerSupply`] cuts the power of all that it feeds.
//!
//! Layering: knows of bytes and offsets only; imports nothing of Varve but `varve-rt`, `varve-device` and (for modelled
//! connections) `varve-wire`. The engine does not depend on it.
//!
//! Modules, from below: `due power sources sparse` · `flash mem` · `faulty model` · `fixed` · `disk link mix` ·
//! `port profile`.

mod disk;
mod due;
mod faulty;
mod fixed;
pub mod flash;
mod link;
mod mem;
mod mix;
mod model;
mod port;
mod power;
mod profile;
pub mod sources;
mod sparse;

pub use disk::{DiskConfig, Scheduling, Seek};
pub use faulty::{FalseWrite, Fault, FaultCounts, FaultPlan, Faulty, Rule, When};
pub use fixed::FixedConfig;
pub use flash::FlashModel;
pub use link::{Direction, LinkConfig, LinkModel, Linked, PipeReceiver, PipeSender};
pub use mem::{Latency, MemDevice, MemOptions};
pub use mix::{MixConfig, Penalty, Rate};
pub use model::{Arrival, Model, ModelOptions, ModelStats, Modelled, Schedule, Timing};
pub use port::Port;
pub use power::{CutReport, PowerSupply, Powered};
pub use profile::{Build, Profile, ProfileError};
pub use sparse::Sparse;

/// The examples of the pages are compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/device.md")]
struct Page;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/flash.md")]
struct FlashPage;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/profiles.md")]
struct ProfilesPage;
