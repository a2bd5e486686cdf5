//! Out-of-place pages: the map from logical to physical pages, garbage collection, wear, and finding the map again
//! after a power cut.
//!
//! [`Ftl`] drives whatever has blocks of pages that are erased as a whole
//! ([`FlashArray`](varve_device::flash::FlashArray)): a modelled array, or some chips of one. It knows nothing of the
//! rules of cells: the array refuses what they do not allow.
//!
//! Layering: knows of pages, blocks and times only; imports nothing of Varve but `varve-rt` and `varve-device`.
//!
//! Modules, from below: `chips config` · `ftl`.

mod chips;
mod config;
mod ftl;

pub use chips::Chips;
pub use config::{Allocation, CacheConfig, CacheFull, FtlConfig, GcPolicy, Streams};
pub use ftl::{Appends, Capacity, Ftl, FtlStats, Recovery};
