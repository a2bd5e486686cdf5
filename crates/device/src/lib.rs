//! Varve's devices: batches of reads, writes, trims and flushes of aligned blocks.
//!
//! [`Device`] is the one seam to storage. [`FileDevice`] is a real file or block device, [`MemDevice`] keeps a durable
//! and a volatile image in memory and loses power on demand, [`Faulty`] injects faults into any device. Everything that
//! is specific to one kind of storage (tracing, striping, models) is another implementation or wrapper of the same trait.
//!
//! Layering: knows of bytes and offsets only; imports nothing of Varve but `varve-rt`.

mod buf;
mod device;
mod disk;
mod due;
mod error;
mod faulty;
mod file;
mod fixed;
pub mod flash;
mod health;
mod io;
mod link;
mod mem;
mod mix;
mod model;
mod power;
mod profile;
mod sparse;
mod stats;
mod ticket;
mod trap;
mod words;

pub use buf::{AlignedBuf, physical_memory, prefer_huge_pages};
pub use device::{BLOCK, Capabilities, Device, DeviceInfo, DeviceKind, check, flush, read_at, write_at};
pub use disk::{DiskConfig, Scheduling, Seek};
pub use error::{DeviceError, OpKind};
pub use faulty::{FalseWrite, Fault, FaultCounts, FaultPlan, Faulty, Rule, When};
pub use file::{DirLock, FileDevice, Options, sys};
pub use fixed::FixedConfig;
pub use flash::FlashModel;
pub use health::{Health, PoisonListener, PoisonOnPanic, Watched};
pub use io::{Io, IoBuf, Op};
pub use link::{Direction, LinkConfig, LinkModel, Linked, PipeReceiver, PipeSender};
pub use mem::{CutReport, Latency, MemDevice, MemOptions};
pub use mix::{MixConfig, Penalty, Rate};
pub use model::{Arrival, Model, ModelOptions, ModelStats, Modelled, Schedule, Timing};
pub use power::{PowerSupply, Powered};
pub use profile::{Build, Profile, ProfileError};
pub use sparse::Sparse;
pub use stats::{Busy, BusyStats, Counters, DeviceStats, OpStats};
pub use ticket::{Completion, Ticket};
pub use trap::{Place, Trap};
pub use words::Words;

/// The examples of the layer's page are compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/device.md")]
struct Page;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/flash.md")]
struct FlashPage;

/// As for the page on profiles.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/profiles.md")]
struct ProfilesPage;
