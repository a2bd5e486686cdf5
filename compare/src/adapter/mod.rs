//! The other engines behind the lab's `Store` trait. Each is set up as its documentation advises for speed, with the
//! durability that a row asks for really given.

pub mod fjall;
pub mod lmdb;
pub mod redb;
#[cfg(feature = "rocksdb")]
pub mod rocksdb;
pub mod sled;
pub mod sqlite;
pub mod varve_lsm;
#[cfg(feature = "wiredtiger")]
pub mod wiredtiger;

use varve_lab::Error;

/// The error of a write in a transaction that only reads.
fn read_only() -> Error {
    Error::store("a write in a read-only transaction; begin a read-write transaction for it")
}
