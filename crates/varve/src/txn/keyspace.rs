//! What transactions know of a keyspace of an open database.
//!
//! Invariants: its index and locks stay; it is dropped, or known from one commit on, and never in between.

use super::former::{Former, Formers};
use super::lock::{KeyspaceLocks, LockTable};
use super::{MAX_VALUE, Manager};
use crate::error::{Error, Result};
use crate::index::Index;
use std::sync::Arc;
use varve_rt::atomic::{AtomicU8, AtomicU64, Ordering};
use varve_volume::{KeyspaceId, Lsn, PageId};

/// What is known of a keyspace that nothing changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sealed {
    /// Some of its values have pages of their own, which its leaves name.
    pub long_values: bool,
}

/// What all handles of a keyspace share.
pub(crate) struct OpenKeyspace {
    index: Index,
    locks: Arc<KeyspaceLocks>,
    /// End of the group that dropped it; 0 while it is hidden, [`Lsn::MAX`] while it can be used.
    gone: AtomicU64,
    /// Nothing may change it: 1, and 2 more if it has long values.
    sealed: AtomicU8,
    /// Snapshots older than this do not know it: it appeared then, with rows in it.
    since: AtomicU64,
    /// Rows that left it at once.
    formers: Formers,
}

impl OpenKeyspace {
    /// The keyspace of this name, whose rows are in `index`.
    pub fn new(name: &str, index: Index, locks: &Arc<LockTable>, dropped: bool) -> OpenKeyspace {
        let (locks, gone) = (locks.keyspace(name), if dropped { 0 } else { Lsn::MAX });
        OpenKeyspace {
            index,
            locks,
            gone: AtomicU64::new(gone),
            sealed: AtomicU8::new(0),
            since: AtomicU64::new(0),
            formers: Formers::default(),
        }
    }

    /// Its name.
    pub fn name(&self) -> Arc<str> {
        self.locks.name()
    }

    /// It is called something else from here on.
    pub fn rename(&self, name: &str) {
        self.locks.rename(name);
    }

    /// Rows that left it at once.
    pub(super) fn formers(&self) -> &Formers {
        &self.formers
    }

    /// Rows leave it; latched are the nodes that led to them.
    pub fn leave(&self, former: Arc<Former>) {
        self.formers.add(former);
    }

    /// No snapshot needs those any more whose tree has this root.
    pub fn forget_former(&self, root: PageId) {
        self.formers.remove(root);
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
        self.gone() != Lsn::MAX
    }

    fn gone(&self) -> Lsn {
        self.gone.load(Ordering::Acquire)
    }

    /// It is dropped from here on, by the group that ends at `end`.
    pub fn drop_it(&self, end: Lsn) {
        assert!(end < Lsn::MAX, "a group ends");
        let before = self.gone.swap(end, Ordering::AcqRel);
        assert_eq!(before, Lsn::MAX, "a keyspace that is dropped was in use");
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

    /// Fails when nothing may change it, or its flash is worn out.
    #[inline]
    pub fn check_changing(&self) -> Result<()> {
        if self.sealed().is_some() {
            return Err(Error::KeyspaceReadOnly(self.name().to_string()));
        }
        self.index.core().space.check_wear(self.id())
    }

    /// It is one like any other from here on; to snapshots older than `since` it does not exist.
    pub fn appear(&self, since: Lsn) {
        self.since.store(since, Ordering::Release);
        self.gone.store(Lsn::MAX, Ordering::Release);
    }

    /// Fails when the keyspace was bulk loaded after a snapshot as of `lsn`, or dropped before it.
    #[inline]
    pub(super) fn known_at(&self, lsn: Lsn) -> Result<()> {
        if self.since.load(Ordering::Acquire) > lsn || self.gone() <= lsn {
            return Err(Error::NoSuchKeyspace(self.name().to_string()));
        }
        Ok(())
    }

    /// Fails when the keyspace is of another database than the manager.
    #[inline]
    pub(super) fn belongs_to(&self, manager: &Manager) -> Result<()> {
        if self.locks.are_of(&manager.locks) {
            return Ok(());
        }
        Err(Error::Invalid(format!("keyspace {:?} belongs to another database", self.name())))
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
