//! Varve's devices: batches of reads, writes, trims and flushes of aligned blocks.
//!
//! [`Device`] is the one seam to storage. [`FileDevice`] is a real file or block device. Everything that is specific
//! to one kind of storage (tracing, striping) is another implementation or wrapper of the same trait; what is
//! modelled, or fails on demand, is in `varve-models`.
//!
//! Layering: knows of bytes and offsets only; imports nothing of Varve but `varve-rt`.
//!
//! Modules, from below: `error faults flash words` · `buf io stats ticket` · `memory` · `device` · `file` · `health` ·
//! `latched`.

mod buf;
mod device;
mod error;
mod faults;
mod file;
pub mod flash;
mod health;
mod io;
mod latched;
mod memory;
mod stats;
mod ticket;
mod words;

pub use buf::{AlignedBuf, forget_memory, physical_memory, prefer_huge_pages};
pub use device::{BLOCK, Capabilities, Device, DeviceInfo, DeviceKind, Hint, check, flush, read_at, write_at};
pub use error::{DeviceError, OpKind, reason};
#[cfg(feature = "faults")]
pub use faults::Trap;
pub use faults::{Faults, Mistake, Place};
pub use file::{DirLock, FileDevice, Options, drive_identity, file_size_is_an_error, read_text, sys};
pub use health::{Health, PoisonListener, PoisonOnPanic, Watched};
pub use io::{Io, IoBuf, Op, Stream};
pub use latched::Latched;
pub use memory::{MemoryLimit, memory_limit};
pub use stats::{Busy, BusyStats, Counters, DeviceStats, OpStats};
pub use ticket::{Completion, Ticket};
pub use words::Words;
