//! What transactions know of a keyspace of an open database.
//!
//! Invariants: its name, index and locks stay; it is dropped, or known from one commit on, and never in between.

use super::lock::{KeyspaceLocks, LockTable};
use super::{MAX_VALUE, Manager};
use crate::error::{Error, Result};
use crate::index::Index;
use std::sync::Arc;
use varve_rt::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use varve_volume::{KeyspaceId, Lsn};

/// What is known of a keyspace that nothing changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sealed {
    /// Some of its values have pages of their own, which its leaves name.
    pub long_values: bool,
}

/// What all handles of a keyspace share.
pub(crate) struct OpenKeyspace {
    name: String,
    index: Index,
    locks: Arc<KeyspaceLocks>,
    dropped: AtomicBool,
    /// Nothing may change it: 1, and 2 more if it has long values.
    sealed: AtomicU8,
    /// Snapshots older than this do not know it: it appeared then, with rows in it.
    since: AtomicU64,
}

impl OpenKeyspace {
    /// The keyspace of this name, whose rows are in `index`.
    pub fn new(name: &str, index: Index, locks: &Arc<LockTable>, dropped: bool) -> OpenKeyspace {
        let (locks, dropped, since) = (locks.keyspace(name), AtomicBool::new(dropped), AtomicU64::new(0));
        OpenKeyspace { name: name.to_string(), index, locks, dropped, sealed: AtomicU8::new(0), since }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its number in log records, page headers and messages.
    pub fn id(&self) -> KeyspaceId {
        self.index.keyspace()
    }

    /// Where its rows are.
    #[inline]
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// Key and interval locks of its transactions.
    #[inline]
    pub(super) fn locks(&self) -> &Arc<KeyspaceLocks> {
        &self.locks
    }

    /// Whether it was dropped.
    #[inline]
    pub fn is_dropped(&self) -> bool {
        self.dropped.load(Ordering::Acquire)
    }

    /// It is dropped from here on.
    pub fn drop_it(&self) {
        self.dropped.store(true, Ordering::Release);
    }

    /// What is known of it, if nothing may change it.
    #[inline]
    pub fn sealed(&self) -> Option<Sealed> {
        let sealed = self.sealed.load(Ordering::Acquire);
        (sealed > 0).then_some(Sealed { long_values: sealed & 2 != 0 })
    }

    /// From here on nothing may change it, or everybody.
    pub fn seal(&self, sealed: Option<Sealed>) {
        let bits = sealed.map_or(0, |sealed| 1 | u8::from(sealed.long_values) << 1);
        debug_assert_eq!(bits & 1 == 1, sealed.is_some(), "long values are those of a keyspace that is read-only");
        self.sealed.store(bits, Ordering::Release);
    }

    /// Fails when nothing may change it.
    #[inline]
    pub fn check_changing(&self) -> Result<()> {
        if self.sealed().is_some() { Err(Error::KeyspaceReadOnly(self.name.clone())) } else { Ok(()) }
    }

    /// It is one like any other from here on; to snapshots older than `since` it does not exist.
    pub fn appear(&self, since: Lsn) {
        self.since.store(since, Ordering::Release);
        self.dropped.store(false, Ordering::Release);
    }

    /// Fails when the keyspace was bulk loaded after a snapshot as of `lsn`.
    #[inline]
    pub(super) fn known_at(&self, lsn: Lsn) -> Result<()> {
        if self.since.load(Ordering::Acquire) > lsn {
            return Err(Error::NoSuchKeyspace(self.name.clone()));
        }
        Ok(())
    }

    /// Fails when the keyspace is of another database than the manager.
    #[inline]
    pub(super) fn belongs_to(&self, manager: &Manager) -> Result<()> {
        if self.locks.are_of(&manager.locks) {
            return Ok(());
        }
        Err(Error::Invalid(format!("keyspace {:?} belongs to another database", self.name)))
    }

    /// Fails for keys that the keyspace cannot hold.
    pub(super) fn check_key(&self, key: &[u8]) -> Result<()> {
        let max = self.index.max_key();
        if self.is_too_long(key) { Err(Error::KeySize { len: key.len(), max }) } else { Ok(()) }
    }

    /// Whether the key is longer than any that the keyspace can hold. Nobody can ever write it: it is not there, and
    /// there is nothing to lock.
    #[inline]
    pub(super) fn is_too_long(&self, key: &[u8]) -> bool {
        key.len() > self.index.max_key()
    }
}

/// Fails for values that no keyspace can hold.
pub(crate) fn check_value(value: &[u8]) -> Result<()> {
    let len = value.len() as u64;
    if len > MAX_VALUE { Err(Error::ValueSize { len, max: MAX_VALUE }) } else { Ok(()) }
}
