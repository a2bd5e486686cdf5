//! The public API: databases and keyspaces. Transactions and snapshots are in `txn`.

mod check;
mod options;

pub use check::CheckReport;
pub use options::{Durability, Layout, MIN_CACHE_BYTES, Options};
