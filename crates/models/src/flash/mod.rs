//! A model of flash: the raw array ([`Nand`]) with the rules of its cells and its times, the translation layer
//! ([`Ftl`]) over it, the drive ([`Drive`]) with buffer and link, and the drive as a device ([`FlashModel`]). See
//! `docs/flash.md`.
//!
//! All but the last are pure: no clock, no lock; time comes in with each operation.

mod config;
mod drive;
mod error;
mod ftl;
mod geometry;
mod histogram;
mod journal;
mod model;
mod nand;
mod store;
pub mod theory;
mod timing;

pub use config::{
    Allocation, Buffer, BufferKind, CacheFull, FaultsEvery, FlashConfig, FtlConfig, GcPolicy, Link, SlcCache, Streams,
    Suspend, Timing,
};
pub use drive::{Done, Drive, FlashStats};
pub use error::FlashError;
pub use ftl::{Capacity, Ftl, FtlStats, Recovery};
pub use geometry::{CellMode, Geometry};
pub use histogram::Histogram;
pub use journal::NandCut;
pub use model::FlashModel;
pub use nand::{Contents, Nand, NandCounts, Page};
pub use store::{MemPages, PageBytes, PageContents, SparsePages};
pub use timing::{Span, SuspendTable, Table, Usage};
