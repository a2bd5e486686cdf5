//! Snapshots: the database as of one moment, read without locks.

use super::cursor::{Cursor, Overlay};
use super::key::KeyBuf;
use super::range::KeyRange;
use super::read::{Copied, Found, is_there, read};
use super::registry::Claim;
use super::scan::Scan;
use crate::btree::{OverflowRef, ValueRef, overflow};
use crate::db::{Db, Inner, Keyspace};
use crate::error::{Error, Result};
use crate::space::Core;
use std::sync::Arc;
use varve_volume::{Lsn, Mistake};

/// A read-only view of the database as of one commit: exactly the transactions that were committed when it was opened. It takes
/// no locks, so it neither waits for writers nor makes them wait. Cheap to clone; clones are the same view. Open snapshots make
/// commits keep old values; when those outgrow their share of the memory budget, the oldest snapshot fails with
/// [`Error::SnapshotTooOld`].
#[derive(Clone)]
pub struct Snapshot {
    inner: Arc<View>,
}

struct View {
    db: Arc<Inner>,
    claim: Arc<Claim>,
}

impl Drop for View {
    fn drop(&mut self) {
        self.db.txns.snapshots.close(&self.claim);
    }
}

impl Db {
    /// Opens a snapshot of the present state.
    pub fn snapshot(&self) -> Result<Snapshot> {
        Snapshot::open(&self.inner)
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot").field("lsn", &self.lsn()).finish()
    }
}

impl Snapshot {
    pub(super) fn open(db: &Arc<Inner>) -> Result<Snapshot> {
        db.live()?;
        let claim = db.txns.snapshots.register(&db.core.log);
        let snapshot = Snapshot { inner: Arc::new(View { db: db.clone(), claim }) };
        // A close that did not see the snapshot is seen by it.
        db.live()?;
        Ok(snapshot)
    }

    /// The commit number as of which it reads: it sees every commit whose number is not greater.
    pub fn lsn(&self) -> Lsn {
        self.inner.claim.lsn()
    }

    /// Where old values are looked for.
    fn as_of(&self) -> Lsn {
        if self.core().broken.has(Mistake::OldValuesNotRead) { Lsn::MAX } else { self.lsn() }
    }

    /// Fails when the keyspace cannot be read here.
    pub(super) fn check(&self, keyspace: &Keyspace) -> Result<()> {
        keyspace.belongs_to(&self.inner.db)?;
        keyspace.live()?;
        keyspace.known_at(self.lsn())
    }

    /// What was read from a page with this LSN may be shown: old values were not missing, and `Sync` commits are durable.
    pub(super) fn admit(&self, lsn: Lsn) -> Result<()> {
        if self.inner.claim.is_evicted() {
            return Err(Error::SnapshotTooOld);
        }
        let manager = &self.inner.db.txns;
        manager.check_read(lsn)?;
        manager.depend(lsn.min(self.lsn()))
    }

    /// The value of a key that was replaced since, as it was; asked after the tree was read.
    pub(super) fn old_value(&self, keyspace: &Keyspace, key: &[u8]) -> Option<Option<Copied>> {
        let versions = &self.inner.db.txns.snapshots.versions;
        versions.get(keyspace.id(), key, self.as_of(), |value| value.map(Copied::from))
    }

    /// A long value as it was. Its pages are kept, unless the snapshot has lost its old values.
    fn read_old(&self, keyspace: &Keyspace, long: &OverflowRef) -> Result<Vec<u8>> {
        let mut value = Vec::new();
        match overflow::read(self.core(), keyspace.id(), long, 0..long.len, &mut value) {
            Err(_) if self.inner.claim.is_evicted() => Err(Error::SnapshotTooOld),
            read => read.map(|()| value),
        }
    }

    pub(super) fn core(&self) -> &Core {
        &self.inner.db.core
    }

    /// Whether some row of the keyspace may have an old value. Asked after the tree was read.
    pub(super) fn has_old_values(&self, keyspace: &Keyspace) -> bool {
        self.inner.db.txns.snapshots.versions.any(keyspace.id())
    }

    /// Reads one key and hands its value (`None`: no such key) to `f`. `f` may run under a latch: it must not use the database.
    pub fn get_with<R>(&self, keyspace: &Keyspace, key: &[u8], mut f: impl FnMut(Option<&[u8]>) -> R) -> Result<R> {
        self.check(keyspace)?;
        let db = &self.inner.db;
        // The tree first, then the old values: see `version.rs`.
        let (current, lsn) = read(&db.core, keyspace.tree(), key, &mut f)?;
        let old = db.txns.snapshots.versions.get(keyspace.id(), key, self.as_of(), |value| match value {
            None => Found::Done(f(None)),
            Some(ValueRef::Inline(value)) => Found::Done(f(Some(value))),
            Some(ValueRef::Overflow(long)) => Found::Long(long),
        });
        self.admit(lsn)?;
        match old {
            None => Ok(current),
            Some(Found::Done(old)) => Ok(old),
            Some(Found::Long(long)) => self.read_old(keyspace, &long).map(|value| f(Some(&value))),
        }
    }

    /// The value of a key; `None` if there is none.
    pub fn get(&self, keyspace: &Keyspace, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.get_with(keyspace, key, |value| value.map(<[u8]>::to_vec))
    }

    /// Whether a key is there.
    pub fn contains(&self, keyspace: &Keyspace, key: &[u8]) -> Result<bool> {
        self.check(keyspace)?;
        let db = &self.inner.db;
        // The tree first, then the old values: see `version.rs`.
        let (current, lsn) = is_there(keyspace.tree(), key)?;
        let old = db.txns.snapshots.versions.get(keyspace.id(), key, self.as_of(), |value| value.is_some());
        self.admit(lsn)?;
        Ok(old.unwrap_or(current))
    }

    /// The rows of a range in ascending order.
    pub fn scan<'a>(&self, keyspace: &Keyspace, range: impl Into<KeyRange<'a>>) -> Result<Scan<'static>> {
        self.check(keyspace)?;
        Ok(Scan::of_snapshot(self.clone(), keyspace, range.into(), false))
    }

    /// The rows of a range in descending order.
    pub fn scan_rev<'a>(&self, keyspace: &Keyspace, range: impl Into<KeyRange<'a>>) -> Result<Scan<'static>> {
        self.check(keyspace)?;
        Ok(Scan::of_snapshot(self.clone(), keyspace, range.into(), true))
    }

    /// The number of keys in a range. Reads them all, but no long value.
    pub fn count<'a>(&self, keyspace: &Keyspace, range: impl Into<KeyRange<'a>>) -> Result<u64> {
        let range = range.into();
        self.check(keyspace)?;
        let mut cursor = Cursor::of_keys(range.bounds());
        let mut n = 0;
        while !cursor.is_done() {
            self.next_batch(keyspace, &mut cursor)?;
            n += cursor.rows() as u64;
        }
        Ok(n)
    }

    /// Reads the next batch of a scan.
    pub(super) fn next_batch(&self, keyspace: &Keyspace, cursor: &mut Cursor) -> Result<()> {
        self.check(keyspace)?;
        let db = &self.inner.db;
        let mut failed = None;
        loop {
            let filled = cursor.fill(keyspace.tree(), None)?;
            let mut overlay: Vec<Overlay> = Vec::new();
            let versions = &db.txns.snapshots.versions;
            versions.range(keyspace.id(), filled.bounds(), self.as_of(), |key, value| {
                overlay.push((KeyBuf::new(key), value.map(|value| cursor.copied(value))));
            });
            let (page, lsn) = (filled.page, filled.lsn);
            self.admit(lsn)?;
            match cursor.finish(&db.core, keyspace.tree(), filled, overlay) {
                Ok(()) => return Ok(()),
                // A long value that was replaced between the leaf and its pages fails to read: then the leaf has changed.
                Err(error) if failed == Some((page, lsn)) => return Err(error),
                Err(_) => failed = Some((page, lsn)),
            }
        }
    }
}
