//! What pages, keyspaces and places in the log are called.

use std::fmt;

/// A page of a store; pages are numbered from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageId(pub u64);

impl fmt::Display for PageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A keyspace; the engine gives out the numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyspaceId(pub u32);

/// A byte position in the log stream.
pub type Lsn = u64;
