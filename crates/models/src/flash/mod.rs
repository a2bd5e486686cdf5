//! A model of flash: the raw array ([`Nand`]) with the rules of its cells and its times, the translation layer
//! ([`Ftl`]) over it, the drive ([`Drive`]) with buffer and link, and the drive as a device ([`FlashModel`]).
//! [`RawModel`] is the raw array as a device. See `docs/flash.md`.
//!
//! All but these two are pure: no clock, no lock; time comes in with each operation.

mod config;
mod current;
mod drive;
mod histogram;
mod image;
mod journal;
mod model;
mod nand;
mod raw;
mod store;
pub mod theory;
mod timing;
mod translated;

pub use config::{Buffer, BufferKind, FaultsEvery, FlashConfig, Link, SlcCache, Suspend, Timing};
pub use drive::{Done, Drive, FlashStats};
pub use histogram::Histogram;
pub use image::{create_image, image_config, open_image};
pub use journal::NandCut;
pub use model::FlashModel;
pub use nand::{Nand, NandCounts};
pub use raw::{RawAtRest, RawModel};
pub use store::{MemPages, PageBytes, PageContents, SparsePages};
pub use timing::{SuspendTable, Table, Usage};
pub use translated::Ftl;
pub use varve_device::flash::{CellMode, Contents, FlashError, Geometry, Page, Span};
pub use varve_ftl::{Allocation, CacheConfig, CacheFull, Capacity, FtlConfig, FtlStats, GcPolicy, Recovery, Streams};
