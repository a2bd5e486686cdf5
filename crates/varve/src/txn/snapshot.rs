//! Snapshots: the database as of one moment, read without locks.
//!
//! Invariants: a snapshot's moment stays; what is read from pages is shown only after it was looked whether old values
//! take its place, and whether they are all there ([`Snapshot::admit`]).

use super::cursor::{Cursor, Filled, Overlay};
use super::former::Piece;
use super::key::{Bounds, KeyBuf, OwnedBounds, bound_ref, contains};
use super::large::{Unfinished, copied, left_of, narrowed};
use super::range::KeyRange;
use super::registry::Claim;
use super::rows::Rows;
use super::scan::{Scan, Source};
use super::{Manager, OpenKeyspace};
use crate::error::Result;
use crate::rows::{Copied, OverflowRef, ValueRef, overflow};
use crate::space::Core;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use varve_device::Mistake;
use varve_rt::Mutex;
use varve_volume::Lsn;

/// A read-only view of the database. Its calls are described where users have them, in `db/snapshot.rs`.
pub(crate) struct Snapshot {
    pub(super) manager: Arc<Manager>,
    claim: Arc<Claim>,
    /// The same view, for reads that nobody waits for, while there are such.
    lent: Mutex<Weak<Snapshot>>,
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        // In a fork its locks may be held for ever.
        if self.manager.here().is_ok() {
            self.manager.snapshots.close(&self.claim);
        }
    }
}

impl Snapshot {
    /// Opens a snapshot of the present state.
    pub fn open(manager: &Arc<Manager>) -> Result<Snapshot> {
        manager.live()?;
        if manager.large.is_active() {
            manager.forget_applied();
        }
        let claim = manager.snapshots.register(&manager.core.log);
        let snapshot = Snapshot { manager: manager.clone(), claim, lent: Mutex::default() };
        // A close that did not see the snapshot is seen by it.
        manager.live()?;
        Ok(snapshot)
    }

    /// The same view, for reads that nobody waits for: the database can be closed while it is open, and it stays when
    /// this one ends.
    pub fn lend(&self) -> Result<Arc<Snapshot>> {
        let mut lent = self.lent.lock();
        if let Some(lent) = lent.upgrade() {
            return Ok(lent);
        }
        let Some(claim) = self.manager.snapshots.lend(&self.claim) else {
            return Err(self.claim.lost().expect("the claim of an open snapshot is there, or was lost"));
        };
        let new = Arc::new(Snapshot { manager: self.manager.clone(), claim, lent: Mutex::default() });
        *lent = Arc::downgrade(&new);
        Ok(new)
    }

    /// The commit number as of which it reads: it sees every commit whose number is not greater.
    pub fn lsn(&self) -> Lsn {
        self.claim.lsn()
    }

    /// Where old values are looked for.
    pub(super) fn as_of(&self) -> Lsn {
        if self.core().faults().has(Mistake::OldValuesNotRead) { Lsn::MAX } else { self.lsn() }
    }

    /// Fails when the keyspace cannot be read here.
    pub fn check(&self, keyspace: &OpenKeyspace) -> Result<()> {
        keyspace.belongs_to(&self.manager)?;
        self.manager.live()?;
        keyspace.known_at(self.lsn())
    }

    /// What was read from rows that left: they are kept, unless the snapshot has lost its claim.
    fn kept<T>(&self, read: Result<T>) -> Result<T> {
        read.map_err(|error| self.claim.lost().unwrap_or(error))
    }

    /// The value of a key, and the LSN of the page that said so; a long one stays where it lies.
    pub(super) fn find(&self, keyspace: &OpenKeyspace, key: &[u8]) -> Result<(Option<Copied>, Lsn)> {
        // The index first, then what left it, then the old values: see `former.rs`, `version.rs`.
        let (mut found, mut lsn) = keyspace.index().find(key, self.as_of())?;
        let former = keyspace.formers().of(self.as_of(), key);
        if let Some(former) = &former {
            (found, lsn) = self.kept(former.index.find(key, Lsn::MAX))?;
        }
        let old = self.old_value(keyspace, key, former.map_or(Lsn::MAX, |former| former.end))?;
        Ok((old.unwrap_or(found), lsn))
    }

    /// The value that a key had, if one that ended by `until` was kept; asked after the index was read.
    fn old_value(&self, keyspace: &OpenKeyspace, key: &[u8], until: Lsn) -> Result<Option<Option<Copied>>> {
        let snapshots = &self.manager.snapshots;
        // Memory first: see `runs.rs`.
        let mut old = snapshots.versions.get(keyspace.id(), key, self.as_of(), |end, v| (end, v.map(Copied::from)));
        for run in snapshots.runs().iter().flat_map(|runs| runs.iter()) {
            if let Some(found) = self.kept(run.find(keyspace.id(), key, self.as_of()))?
                && old.as_ref().is_none_or(|old| found.0 < old.0)
            {
                old = Some(found);
            }
        }
        Ok(old.filter(|(end, _)| *end <= until).map(|(_, value)| value))
    }

    /// The old values that take the place of rows of a range.
    fn overlay(
        &self,
        keyspace: &OpenKeyspace,
        range: Bounds<'_>,
        until: Lsn,
        copied: impl Fn(ValueRef<'_>) -> Copied,
    ) -> Result<Vec<Overlay>> {
        let (snapshots, at) = (&self.manager.snapshots, self.as_of());
        let mut found: Vec<(KeyBuf, Lsn, Option<Copied>)> = Vec::new();
        snapshots.versions.range(keyspace.id(), range, at, |key, end, value| {
            found.push((KeyBuf::new(key), end, value.map(&copied)));
        });
        if let Some(runs) = snapshots.runs() {
            for run in runs.iter() {
                self.kept(run.range(keyspace.id(), range, at, |key, end, value| {
                    found.push((KeyBuf::new(key), end, value.map(&copied)));
                }))?;
            }
            found.sort_unstable_by(|a, b| (&a.0, a.1).cmp(&(&b.0, b.1)));
            found.dedup_by(|later, first| later.0 == first.0);
            assert!(found.iter().all(|old| old.1 > at), "an old value ended after the snapshot");
        }
        Ok(found.into_iter().filter(|old| old.1 <= until).map(|(key, _, value)| (key, value)).collect())
    }

    /// What was read from a page with this LSN may be shown: old values were not missing, and `Sync` commits are
    /// durable.
    pub(super) fn admit(&self, lsn: Lsn) -> Result<()> {
        let seen = self.intact(lsn)?;
        self.manager.depend(seen)
    }

    /// What was read from a page with this LSN may be shown when the log is durable as far as `Sync` commits up to here
    /// need it: old values were not missing.
    pub(super) fn intact(&self, lsn: Lsn) -> Result<Lsn> {
        if let Some(error) = self.claim.lost() {
            return Err(error);
        }
        self.manager.check_read(lsn)?;
        Ok(lsn.min(self.lsn()))
    }

    /// A long value as it was. Its pages are kept, unless the snapshot has lost its old values.
    fn read_old(&self, keyspace: &OpenKeyspace, long: &OverflowRef) -> Result<Vec<u8>> {
        let mut value = Vec::new();
        self.kept(overflow::read(self.core(), keyspace.id(), long, 0..long.len, &mut value)).map(|()| value)
    }

    pub(super) fn core(&self) -> &Core {
        &self.manager.core
    }

    /// What a commit that the snapshot sees, and that is not all applied, wrote to a key. Asked before the index is
    /// read.
    pub(super) fn unapplied(&self, keyspace: &OpenKeyspace, key: &[u8]) -> Result<Option<Option<Copied>>> {
        if !self.manager.large.is_active() {
            return Ok(None);
        }
        match self.manager.unapplied(self.lsn(), keyspace.id(), key)? {
            Some((value, commit)) => self.admit(commit).map(|()| Some(value)),
            None => Ok(None),
        }
    }

    /// Whether no old value takes the place of what was read from a page with this LSN: the page's LSN is no less than
    /// the number of any commit that changed it, so the snapshot sees them all.
    fn sees_all(&self, lsn: Lsn) -> bool {
        lsn <= self.as_of()
    }

    /// Whether some row of what was read, from a page with this LSN, may not be as the snapshot sees it. Asked after
    /// the index was read.
    pub(super) fn has_old_values(&self, keyspace: &OpenKeyspace, lsn: Lsn) -> bool {
        let snapshots = &self.manager.snapshots;
        let kept = || snapshots.versions.any(keyspace.id()) || snapshots.runs().is_some();
        let old = !self.sees_all(lsn) && kept();
        old || keyspace.formers().any(self.as_of()) || self.manager.large.is_active()
    }

    /// Reads one key and hands its value (`None`: no such key) to `f`. `f` may run under a latch, and twice.
    pub fn get_with<R>(&self, keyspace: &OpenKeyspace, key: &[u8], f: impl FnMut(Option<&[u8]>) -> R) -> Result<R> {
        let (result, seen) = self.look(keyspace, key, f)?;
        self.manager.depend(seen)?;
        Ok(result)
    }

    /// The same, with the LSN of what was read: the caller must not show it before that is
    /// [durable](Manager::depend).
    pub(super) fn look<R>(
        &self,
        keyspace: &OpenKeyspace,
        key: &[u8],
        mut f: impl FnMut(Option<&[u8]>) -> R,
    ) -> Result<(R, Lsn)> {
        self.check(keyspace)?;
        let manager = &self.manager;
        if manager.large.is_active()
            && let Some((value, commit)) = manager.unapplied_value(self.lsn(), keyspace.id(), key)?
        {
            return self.intact(commit).map(|seen| (f(value.as_deref()), seen));
        }
        // The index first, then what left it, then the old values: see `former.rs`, `version.rs`.
        let (mut current, mut lsn) = keyspace.index().read(key, self.as_of(), &mut f)?;
        let former = keyspace.formers().of(self.as_of(), key);
        if let Some(former) = &former {
            (current, lsn) = self.kept(former.index.read(key, Lsn::MAX, &mut f))?;
        }
        let old = self.old_value(keyspace, key, former.map_or(Lsn::MAX, |former| former.end))?;
        let seen = self.intact(lsn)?;
        let result = match old {
            None => current,
            Some(None) => f(None),
            Some(Some(Copied::Bytes(value))) => f(Some(&value)),
            Some(Some(Copied::Long(long))) => f(Some(&self.read_old(keyspace, &long)?)),
        };
        Ok((result, seen))
    }

    /// Whether a key is there.
    pub fn contains(&self, keyspace: &OpenKeyspace, key: &[u8]) -> Result<bool> {
        self.check(keyspace)?;
        if let Some(value) = self.unapplied(keyspace, key)? {
            return Ok(value.is_some());
        }
        let (found, lsn) = self.find(keyspace, key)?;
        self.admit(lsn)?;
        Ok(found.is_some())
    }

    /// The rows of a range.
    pub fn scan(
        this: &Arc<Snapshot>,
        keyspace: &Arc<OpenKeyspace>,
        range: &KeyRange<'_>,
        reverse: bool,
    ) -> Result<Scan<'static>> {
        this.check(keyspace)?;
        Ok(Scan::new(Source::Snapshot(this.clone()), keyspace, range, reverse))
    }

    /// The rows of a range, from both ends.
    pub fn rows(this: &Arc<Snapshot>, keyspace: &Arc<OpenKeyspace>, range: &KeyRange<'_>) -> Result<Rows<'static>> {
        this.check(keyspace)?;
        Ok(Rows::new(Source::Snapshot(this.clone()), keyspace, range))
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

    /// Reads rows from where the scan stands, or of the part of them that is asked for, out of what has them; says by
    /// when old values of these rows have ended.
    fn fill(&self, keyspace: &OpenKeyspace, cursor: &mut Cursor, asked: Option<&OwnedBounds>) -> Result<(Filled, Lsn)> {
        let formers = keyspace.formers();
        let asked = asked.map(|part| (bound_ref(&part.0), bound_ref(&part.1)));
        loop {
            let left = formers.left();
            let filled = match formers.piece(self.as_of(), asked.unwrap_or(cursor.bounds()), cursor.is_forward()) {
                None => (cursor.fill(keyspace.index(), self.as_of(), asked)?, Lsn::MAX),
                Some(Piece { former, part, rest }) => {
                    let rest = rest.map(|rest| cursor.to_its_end(rest));
                    let index = former.as_ref().map_or(keyspace.index(), |former| &former.index);
                    let part = Some((bound_ref(&part.0), bound_ref(&part.1)));
                    let mut filled = self.kept(cursor.fill(index, self.as_of(), part))?;
                    filled.rest = filled.rest.or(rest);
                    (filled, former.map_or(Lsn::MAX, |former| former.end))
                }
            };
            // What left meanwhile may have been looked for where it was not any more.
            if formers.left() == left {
                return Ok(filled);
            }
        }
    }

    /// Reads the next batch of a scan.
    pub(super) fn next_batch(&self, keyspace: &OpenKeyspace, cursor: &mut Cursor) -> Result<()> {
        self.check(keyspace)?;
        let manager = &self.manager;
        let mut failed = None;
        loop {
            let large = manager.large.seen(self.lsn(), keyspace.id());
            if !large.is_empty() {
                match self.next_unapplied(keyspace, cursor, &large) {
                    Err(error) if failed.is_some() => return Err(error),
                    Err(_) if !manager.large.is_active() => continue,
                    filled => return filled,
                }
            }
            let (filled, until) = self.fill(keyspace, cursor, None)?;
            let seen = filled.seen;
            let overlay = match self.sees_all(seen.lsn) {
                true => Vec::new(),
                false => self.overlay(keyspace, filled.bounds(), until, |value| cursor.copied(value))?,
            };
            self.admit(seen.lsn)?;
            match self.kept(cursor.finish(&manager.core, keyspace.id(), filled, overlay)) {
                Ok(()) => return Ok(()),
                // A long value that was replaced between the leaf and its pages fails to read: then the leaf has
                // changed.
                Err(error) if failed == Some(seen) => return Err(error),
                Err(_) => failed = Some(seen),
            }
        }
    }

    /// The same while commits that the snapshot sees are not all applied. (Rows that such a commit writes to are locked
    /// until it is applied: where they leave the keyspace after that, what it wrote is still what the snapshot sees.)
    #[cold]
    fn next_unapplied(&self, keyspace: &OpenKeyspace, cursor: &mut Cursor, large: &[Arc<Unfinished>]) -> Result<()> {
        let (forward, all) = (cursor.is_forward(), (cursor.low.clone(), cursor.high.clone()));
        let mut part = all.clone();
        let mut writes = BTreeMap::new();
        for unfinished in large {
            let range = (bound_ref(&part.0), bound_ref(&part.1));
            let window = unfinished.window(keyspace.id(), range, forward)?;
            part = narrowed(part, window.cut, forward);
            writes.extend(window.writes.into_iter().map(|(key, write)| (key, copied(write))));
            self.admit(unfinished.commit)?;
        }
        let (mut filled, until) = self.fill(keyspace, cursor, Some(&part))?;
        filled.rest = filled.rest.or_else(|| left_of(all, part, forward));
        let old = self.overlay(keyspace, filled.bounds(), until, |value| cursor.copied(value))?;
        let mut overlay: BTreeMap<KeyBuf, Option<Copied>> = old.into_iter().collect();
        self.admit(filled.seen.lsn)?;
        for (key, value) in writes {
            if contains(filled.bounds(), &key) {
                overlay.insert(key, value.map(|value| cursor.copied(value.as_ref())));
            }
        }
        cursor.finish(&self.manager.core, keyspace.id(), filled, overlay.into_iter().collect())
    }
}
