//! A model of flash: the raw array ([`Nand`]) with the rules of its cells and its times, and the translation layer
//! ([`Ftl`]) over it. See `docs/flash.md`.
//!
//! Pure: no clock, no lock; time comes in with each operation.

mod config;
mod error;
mod ftl;
mod geometry;
mod journal;
mod nand;
mod store;
pub mod theory;
mod timing;

pub use config::{
    Allocation, Buffer, BufferKind, FaultsEvery, FlashConfig, FtlConfig, GcPolicy, Link, Streams, Timing,
};
pub use error::FlashError;
pub use ftl::{Capacity, Ftl, FtlStats, Recovery};
pub use geometry::{CellMode, Geometry};
pub use journal::NandCut;
pub use nand::{Contents, Nand, NandCounts, Page};
pub use store::{MemPages, PageBytes, PageStore};
pub use timing::{Span, Table, Usage};
