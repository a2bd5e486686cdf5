//! Transactions: locks, write sets, snapshots, commit.

pub(crate) mod key;
pub(crate) mod lock;
