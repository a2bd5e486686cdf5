//! Varve's volumes: what storage looks like to the engine, fixed-size pages by id.
//!
//! [`PageStore`] is the seam under the buffer pool. [`Single`] puts the pages on one device. [`TestStore`] keeps them
//! in memory and asserts every call of the contract. The [`page`] header (checksum, id, LSN) belongs to this layer.
//!
//! Layering: knows of devices; knows nothing of keys, transactions or the log beyond the LSN that a page carries.
//!
//! Modules, from below: `ids setting` · `error` · `page store` · `report` · `admin` · `array blocking single flash tier
//! watched` · `plan test_store`.
//!
//! A kind of volume is a folder such as the tier's, which has its stores and implements [`Admin`]; [`plan`] knows all
//! kinds.

mod admin;
pub mod array;
mod blocking;
mod error;
pub mod flash;
mod ids;
pub mod page;
pub mod plan;
mod report;
pub mod setting;
mod single;
mod store;
#[cfg(any(test, feature = "testing"))]
mod test_store;
pub mod tier;
mod watched;

pub use admin::{Admin, Opening, Owner, PageCost, Report, Stamp};
pub use blocking::{read_pages, write_pages};
#[doc(hidden)]
pub use error::{PageDamage, VolumeError};
pub use ids::{KeyspaceId, Lsn, PageId};
pub use report::{Counted, GroupUse, PageSides, RegionReport};
pub use single::Single;
pub use store::{
    CostClass, PageCompletion, PageIo, PageRead, PageStore, PageTicket, PageUse, PageWrite, ReadWhy, VolumeStats,
    WriteWhy, Zone,
};
#[cfg(any(test, feature = "testing"))]
pub use test_store::TestStore;
pub use watched::{PageWatch, WatchedStore};
