//! Snapshots: the database as of one moment, read without locks.
//!
//! Invariants: a snapshot's moment stays; what is read from pages is shown only after it was looked whether old values
//! take its place, and whether they are all there ([`Snapshot::admit`]).

use super::cursor::{Cursor, Overlay};
use super::key::KeyBuf;
use super::range::KeyRange;
use super::registry::Claim;
use super::scan::Scan;
use super::{Manager, OpenKeyspace};
use crate::error::{Error, Result};
use crate::rows::{Copied, OverflowRef, ValueRef, overflow};
use crate::space::Core;
use std::sync::Arc;
use varve_device::Mistake;
use varve_volume::Lsn;

/// A read-only view of the database. Its calls are described where users have them, in `db/snapshot.rs`.
pub(crate) struct Snapshot {
    manager: Arc<Manager>,
    claim: Arc<Claim>,
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        self.manager.snapshots.close(&self.claim);
    }
}

/// What a look at an old value came to.
enum Found<R> {
    /// It was handed over.
    Done(R),
    /// It is long, and has yet to be read.
    Long(OverflowRef),
}

impl Snapshot {
    /// Opens a snapshot of the present state.
    pub fn open(manager: &Arc<Manager>) -> Result<Snapshot> {
        manager.live()?;
        let claim = manager.snapshots.register(&manager.core.log);
        let snapshot = Snapshot { manager: manager.clone(), claim };
        // A close that did not see the snapshot is seen by it.
        manager.live()?;
        Ok(snapshot)
    }

    /// The commit number as of which it reads: it sees every commit whose number is not greater.
    pub fn lsn(&self) -> Lsn {
        self.claim.lsn()
    }

    /// Where old values are looked for.
    fn as_of(&self) -> Lsn {
        if self.core().faults().has(Mistake::OldValuesNotRead) { Lsn::MAX } else { self.lsn() }
    }

    /// Fails when the keyspace cannot be read here.
    pub(super) fn check(&self, keyspace: &OpenKeyspace) -> Result<()> {
        keyspace.belongs_to(&self.manager)?;
        self.manager.live_in(keyspace)?;
        keyspace.known_at(self.lsn())
    }

    /// What was read from a page with this LSN may be shown: old values were not missing, and `Sync` commits are
    /// durable.
    pub(super) fn admit(&self, lsn: Lsn) -> Result<()> {
        if self.claim.is_evicted() {
            return Err(Error::SnapshotTooOld);
        }
        self.manager.check_read(lsn)?;
        self.manager.depend(lsn.min(self.lsn()))
    }

    /// The value of a key that was replaced since, as it was; asked after the index was read.
    pub(super) fn old_value(&self, keyspace: &OpenKeyspace, key: &[u8]) -> Option<Option<Copied>> {
        let versions = &self.manager.snapshots.versions;
        versions.get(keyspace.id(), key, self.as_of(), |value| value.map(Copied::from))
    }

    /// A long value as it was. Its pages are kept, unless the snapshot has lost its old values.
    fn read_old(&self, keyspace: &OpenKeyspace, long: &OverflowRef) -> Result<Vec<u8>> {
        let mut value = Vec::new();
        match overflow::read(self.core(), keyspace.id(), long, 0..long.len, &mut value) {
            Err(_) if self.claim.is_evicted() => Err(Error::SnapshotTooOld),
            read => read.map(|()| value),
        }
    }

    pub(super) fn core(&self) -> &Core {
        &self.manager.core
    }

    /// Whether some row of the keyspace may have an old value. Asked after the index was read.
    pub(super) fn has_old_values(&self, keyspace: &OpenKeyspace) -> bool {
        self.manager.snapshots.versions.any(keyspace.id())
    }

    /// Reads one key and hands its value (`None`: no such key) to `f`. `f` may run under a latch: it must not use the
    /// database.
    pub fn get_with<R>(&self, keyspace: &OpenKeyspace, key: &[u8], mut f: impl FnMut(Option<&[u8]>) -> R) -> Result<R> {
        self.check(keyspace)?;
        let manager = &self.manager;
        // The index first, then the old values: see `version.rs`.
        let (current, lsn) = keyspace.index().read(key, &mut f)?;
        let old = manager.snapshots.versions.get(keyspace.id(), key, self.as_of(), |value| match value {
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

    /// Whether a key is there.
    pub fn contains(&self, keyspace: &OpenKeyspace, key: &[u8]) -> Result<bool> {
        self.check(keyspace)?;
        let manager = &self.manager;
        // The index first, then the old values: see `version.rs`.
        let (current, lsn) = keyspace.index().contains(key)?;
        let old = manager.snapshots.versions.get(keyspace.id(), key, self.as_of(), |value| value.is_some());
        self.admit(lsn)?;
        Ok(old.unwrap_or(current))
    }

    /// The rows of a range.
    pub fn scan(
        this: &Arc<Snapshot>,
        keyspace: &Arc<OpenKeyspace>,
        range: &KeyRange<'_>,
        reverse: bool,
    ) -> Result<Scan<'static>> {
        this.check(keyspace)?;
        Ok(Scan::of_snapshot(this.clone(), keyspace, range, reverse))
    }

    /// The number of keys in a range. Reads them all, but no long value.
    pub fn count(&self, keyspace: &OpenKeyspace, range: &KeyRange<'_>) -> Result<u64> {
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
    pub(super) fn next_batch(&self, keyspace: &OpenKeyspace, cursor: &mut Cursor) -> Result<()> {
        self.check(keyspace)?;
        let manager = &self.manager;
        let mut failed = None;
        loop {
            let filled = cursor.fill(keyspace.index(), None)?;
            let mut overlay: Vec<Overlay> = Vec::new();
            let versions = &manager.snapshots.versions;
            versions.range(keyspace.id(), filled.bounds(), self.as_of(), |key, value| {
                overlay.push((KeyBuf::new(key), value.map(|value| cursor.copied(value))));
            });
            let seen = filled.seen;
            self.admit(seen.lsn)?;
            match cursor.finish(&manager.core, keyspace.id(), filled, overlay) {
                Ok(()) => return Ok(()),
                // A long value that was replaced between the leaf and its pages fails to read: then the leaf has
                // changed.
                Err(error) if failed == Some(seen) => return Err(error),
                Err(_) => failed = Some(seen),
            }
        }
    }
}
