//! Commits of more writes than one log group, or the pool, can take.
//!
//! 1. The write set, merged into one sorted run (`spill.rs`), is stored as a long value: pages of its own that are
//!    written and synced, and that nobody knows yet.
//! 2. One group links them and puts two rows into the catalog: the value, and how much of it was applied. That group's
//!    end is the commit number; with it the commit is decided. There is no undo: from here on it will be finished.
//! 3. Piece by piece, in the order of paths, the writes are made where they belong; the group of each piece also notes
//!    how far it came. Others go on between the pieces; all that is written stays locked.
//! 4. The last group removes the two rows, and so frees the value's pages.
//!
//! A crash after the second step leaves the rows, and the next opening goes on with what they say
//! ([`Manager::finish`]).
//! Rows and pages are like any others to the log, to checkpoints and backups.
//!
//! Until the last piece is applied, whoever reads without locks looks into the run first ([`Manager::unapplied`]): what
//! is there counts from the commit number on, and cannot change, being locked. Old values of the pieces are kept as
//! those of commits are, under the one commit number.
//!
//! Invariants: a commit is in the list from before its first piece is applied until after the last; while its number
//! is being decided nobody reads the list; what fails after the decision poisons the database, which finishes the
//! commit when it is opened again.
//!
//! Lock order: the list's lock comes before all latches.

use super::commit::{self, How, Target};
use super::key::{Bounds, KeyBuf, OwnedBounds, bound_ref, is_possible};
use super::spill::{Merged, Spill, Version, Window, parts};
use super::stored_writes::{self, Decoder, Found};
use super::stream::{Stored, store_bytes, store_in};
use super::write_set::{Value, Write};
use super::{Durability, Manager, OpenKeyspace, count};
use crate::error::{Error, Result};
use crate::index::{Index, ScanState};
use crate::rows::{Copied, Direction, NewValue, OverflowRef, Write as RowWrite, overflow};
use crate::space::{Core, direct};
use crate::wal::LARGE_COMMITS;
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::time::Duration;
use varve_device::Mistake;
use varve_rt::RwLock;
use varve_rt::atomic::{AtomicU64, AtomicUsize, Ordering};
use varve_volume::{KeyspaceId, Lsn};

/// First bytes of the catalog's rows of unfinished commits; no keyspace has that number.
pub(crate) const UNFINISHED: [u8; 4] = [0xff; 4];
/// Last byte of the row that has the writes, and of that which says how many were applied.
const WRITES: u8 = 0;
const APPLIED: u8 = 1;
/// Writes of the first piece (assumed; a piece for which there is no room is halved).
const FIRST_PIECE: usize = 512;
/// Most writes of a piece, and most bytes of them (assumed: others get their turn in between).
const MOST_ROWS: usize = 8192;
const MOST_BYTES: usize = 256 << 10;
/// How long one write of a commit that is decided waits for room on a full device, and the pause between two attempts.
const PATIENCE: Duration = Duration::from_secs(30);
const AGAIN: Duration = Duration::from_millis(200);

/// A value as a commit wrote it (none: it deleted the key), and the commit's number.
type Written<V> = (Option<V>, Lsn);

/// Which keyspace has a number; none if it is gone.
pub(super) type Find<'f> = &'f dyn Fn(KeyspaceId) -> Option<Arc<OpenKeyspace>>;

/// A commit that is decided and not all applied.
pub(super) struct Unfinished {
    pub commit: Lsn,
    /// End of its last piece; the greatest there is until it is applied. A snapshot of a moment between the two sees
    /// the commit, but rows of an index that keeps versions by the ends of the pieces it finds here alone.
    applied: AtomicU64,
    writes: Merged,
}

impl Unfinished {
    /// Its writes at one end of a range.
    pub fn window(&self, keyspace: KeyspaceId, range: Bounds<'_>, forward: bool) -> Result<Window> {
        self.writes.spill().window(keyspace, range, forward)
    }
}

/// The commits of a database that are not all applied.
pub(super) struct Large {
    catalog: Arc<Index>,
    active: AtomicUsize,
    list: RwLock<Vec<Arc<Unfinished>>>,
}

impl Large {
    pub fn new(catalog: Arc<Index>) -> Large {
        Large { catalog, active: AtomicUsize::new(0), list: RwLock::new(Vec::new()) }
    }

    /// The catalog's keyspace.
    pub fn catalog(&self) -> KeyspaceId {
        self.catalog.keyspace()
    }

    /// Whether there may be some.
    #[inline]
    pub fn is_active(&self) -> bool {
        self.active.load(Ordering::SeqCst) > 0
    }

    /// Those that a reader as of `lsn` sees and that write to a keyspace. No latch may be held.
    pub fn seen(&self, lsn: Lsn, keyspace: KeyspaceId) -> Vec<Arc<Unfinished>> {
        if !self.is_active() {
            return Vec::new();
        }
        let is_seen = |one: &&Arc<Unfinished>| {
            let applied = one.applied.load(Ordering::Acquire);
            // What reads what is newest (as of the greatest LSN) finds what was applied where it belongs.
            one.commit <= lsn && (lsn < applied || applied == Lsn::MAX) && one.writes.spill().touches(keyspace)
        };
        self.list.read().iter().filter(is_seen).cloned().collect()
    }
}

/// The value of a pending write.
pub(super) fn copied(write: Write) -> Option<Copied> {
    write.map(|value| match value {
        Value::Bytes(bytes) => Copied::Bytes(bytes),
        Value::Stored(stored) => Copied::Long(stored.reference),
    })
}

/// Keys of the two rows of a commit.
struct Names {
    writes: Vec<u8>,
    applied: Vec<u8>,
}

impl Names {
    /// Of the commit whose writes are stored there. The first page of them is nobody else's until the rows are gone;
    /// the value's id is not enough: values that are stored at one time may have the same.
    fn new(writes: &OverflowRef) -> Names {
        let name = |last: u8| [&UNFINISHED[..], &writes.head.0.to_be_bytes(), &[last]].concat();
        Names { writes: name(WRITES), applied: name(APPLIED) }
    }
}

/// The writes that a commit still has to make.
struct Rest<'r> {
    names: &'r Names,
    /// Bytes of the value that were applied.
    applied: u64,
    /// Its number, while there may be snapshots.
    commit: Option<Lsn>,
    find: Find<'r>,
    stripe: u64,
}

/// A commit is decided: a panic before it is applied poisons the database, before its locks are let go of.
struct Decided<'a>(&'a Core);

impl Drop for Decided<'_> {
    fn drop(&mut self) {
        self.0.log.health().poison_if_panicking("a commit is decided and not all applied");
    }
}

impl Manager {
    /// Commits the writes of a run to `spaces`, which are locked; gives the commit number. See the module.
    pub(super) fn commit_large(
        &self,
        spaces: &[Arc<OpenKeyspace>],
        writes: Merged,
        durability: Durability,
        (stripe, tell): (u64, Option<&AtomicU64>),
    ) -> Result<Lsn> {
        let core = &self.core;
        core.log.set_feature(&LARGE_COMMITS, true)?;
        let mut source = writes.versions();
        assert!(!spaces.is_empty(), "a commit writes somewhere");
        let (mut pending, mut done, mut room) = (Vec::new(), 0, BTreeMap::<KeyspaceId, usize>::new());
        let stored = store_in(core, self.large.catalog(), |to| {
            if done == pending.len() {
                (done, pending) = (0, Vec::new());
                if let Some(version) = source.next()? {
                    *room.entry(version.keyspace()).or_default() += version.value_len();
                    let durable = writes.durable(version)?;
                    // It will go in pieces of one write if need be, and not in smaller ones.
                    let (keyspace, key) = parts(&durable.path);
                    let write = RowWrite { key, value: durable.new_value()?, hint: None };
                    let space = spaces.iter().find(|space| space.id() == keyspace);
                    space.map_or(Ok(()), |space| space.index().check_fits(&write))?;
                    stored_writes::encode(&durable, &mut pending);
                }
            }
            let n = to.len().min(pending.len() - done);
            to[..n].copy_from_slice(&pending[done..done + n]);
            done += n;
            Ok(n)
        })?;
        {
            // All of it is synced before anybody has to wait for the decision.
            let mut pages: Vec<_> = writes.stored().map(|stored| stored.pages.lock()).collect();
            pages.push(stored.pages.lock());
            drop(direct::link(core, &mut pages)?);
        }
        // Better no commit than one that finds the device full half way. (What others take meanwhile cannot be helped.)
        let needed = |(id, bytes): (KeyspaceId, usize)| core.space.reserve(core, id, 16 + 2 * bytes / core.page_size());
        drop(room.into_iter().map(needed).collect::<Result<Vec<_>>>()?);
        let names = Names::new(&stored.reference);
        let unfinished = self.decide(&names, &stored, writes, durability, (stripe, tell))?;
        let decided = Decided(core);
        assert!(self.large.is_active(), "readers look for a commit that is decided");
        count(&self.counters.large_commits);
        let find = |id| spaces.iter().find(|space| space.id() == id).cloned();
        let commit = unfinished.commit;
        let rest = Rest { names: &names, applied: 0, commit: Some(commit), find: &find, stripe };
        let mut source = unfinished.writes.versions();
        let mut next = || source.next()?.map(|version| unfinished.writes.durable(version)).transpose();
        if let Err(error) = self.apply_rest(rest, &mut next) {
            let what = format!("a commit that is decided could not be applied ({error}); opening again finishes it");
            core.log.poison(&what);
            return Err(Error::Poisoned(what));
        }
        drop(decided);
        unfinished.applied.store(self.core.log.end_lsn(), Ordering::Release);
        self.forget_applied();
        Ok(commit)
    }

    /// Takes commits out of the list that are applied and that nobody looks for there: not those that an open snapshot
    /// sees and that were not all applied then.
    pub(super) fn forget_applied(&self) {
        let mut list = self.large.list.write();
        let before = list.len();
        list.retain(|one| {
            let applied = one.applied.load(Ordering::Acquire);
            applied == Lsn::MAX || self.snapshots.any_between(one.commit, applied)
        });
        let gone = before - list.len();
        let active = self.large.active.fetch_sub(gone, Ordering::SeqCst);
        assert!(active >= gone, "a commit that ends has begun");
    }

    /// The group that decides the commit.
    fn decide(
        &self,
        names: &Names,
        stored: &Stored,
        writes: Merged,
        durability: Durability,
        (stripe, tell): (u64, Option<&AtomicU64>),
    ) -> Result<Arc<Unfinished>> {
        let all: Vec<&Stored> = std::iter::once(stored).chain(writes.stored().map(|stored| &**stored)).collect();
        assert!(names.writes < names.applied, "the rows are in the order of their keys");
        let zero = 0u64.to_le_bytes();
        let rows = [
            RowWrite { key: &names.writes, value: Some(NewValue::Stored(stored.reference)), hint: None },
            RowWrite { key: &names.applied, value: Some(NewValue::Bytes(&zero)), hint: None },
        ];
        let target = Target { index: &self.large.catalog, writes: 0..2, stored: all };
        // Whoever takes a moment from now on that lies past the commit sees that there is one, and waits for its
        // number.
        self.large.active.fetch_add(1, Ordering::SeqCst);
        let mut list = self.large.list.write();
        let how = How { stripe, tell, piece_of: None };
        match commit::run(self, &[target], &rows, durability, how) {
            Ok(done) => {
                assert!(done.changed, "rows that were not there make a group");
                let unfinished = Arc::new(Unfinished { commit: done.end, applied: AtomicU64::new(Lsn::MAX), writes });
                list.push(unfinished.clone());
                Ok(unfinished)
            }
            Err(error) => {
                self.large.active.fetch_sub(1, Ordering::SeqCst);
                Err(error)
            }
        }
    }

    /// Applies all that `next` gives, and removes the rows.
    fn apply_rest(&self, mut rest: Rest<'_>, next: &mut dyn FnMut() -> Result<Option<Version>>) -> Result<()> {
        let mut most = FIRST_PIECE;
        let mut piece: Vec<Version> = Vec::new();
        // The pool may have become too small, since the commit was decided, for one of its values.
        let mut apart = false;
        // Since when one write has found no room.
        let mut full = None;
        loop {
            let mut bytes: usize = piece.iter().map(Version::len).sum();
            while piece.len() < most && bytes < MOST_BYTES {
                let Some(version) = next()? else { break };
                bytes += version.len();
                piece.push(version);
            }
            if piece.is_empty() {
                return self.remove_rows(&rest);
            }
            let n = piece.len().min(most);
            assert!(n > 0 && most <= MOST_ROWS, "a piece has some writes, and not too many");
            debug_assert!(piece.is_sorted_by(|a, b| a.path < b.path), "writes come by path, each path once");
            let applied =
                rest.applied + piece[..n].iter().map(|version| stored_writes::len(version) as u64).sum::<u64>();
            match self.apply_piece(&rest, &piece[..n], applied, apart) {
                Ok(()) => {
                    rest.applied = applied;
                    (apart, full) = (false, None);
                    piece.drain(..n);
                    most = (most + most.div_ceil(8)).min(MOST_ROWS);
                }
                // A log that cannot grow lets short groups wait for a checkpoint; long ones it refuses.
                Err(Error::TransactionTooLarge { .. } | Error::NoSpace(_)) if n > 1 => most = n / 2,
                Err(Error::TransactionTooLarge { .. }) if !apart => apart = true,
                // It is decided: room may come.
                Err(Error::NoSpace(_)) if is_patient(*full.get_or_insert_with(varve_rt::now)) => {
                    varve_rt::sleep(AGAIN);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Writes the long values of a piece to pages of their own; none for writes that have none.
    fn store_apart(&self, piece: &[Version], spaces: &[Option<Arc<OpenKeyspace>>]) -> Result<Vec<Option<Arc<Stored>>>> {
        let mut stored = Vec::with_capacity(piece.len());
        for (part, space) in piece.chunk_by(|a, b| a.keyspace() == b.keyspace()).zip(spaces) {
            for version in part {
                let bytes = match (version.new_value()?, space) {
                    (Some(NewValue::Bytes(bytes)), Some(space)) => {
                        Some(bytes).filter(|bytes| space.index().is_long(parts(&version.path).1, bytes))
                    }
                    _ => None,
                };
                stored.push(bytes.map(|bytes| store_bytes(&self.core, version.keyspace(), bytes)).transpose()?);
            }
        }
        assert_eq!(stored.len(), piece.len(), "each write has its place");
        Ok(stored)
    }

    /// Makes the writes of a piece. `apart`: pages of long values are written before, and pinned by nobody.
    fn apply_piece(&self, rest: &Rest<'_>, piece: &[Version], applied: u64, apart: bool) -> Result<()> {
        assert!(applied > rest.applied, "a piece goes further");
        let value = applied.to_le_bytes();
        let mut rows = vec![RowWrite { key: &rest.names.applied, value: Some(NewValue::Bytes(&value)), hint: None }];
        let spaces: Vec<Option<Arc<OpenKeyspace>>> = {
            let of = piece.chunk_by(|a, b| a.keyspace() == b.keyspace());
            of.map(|part| (rest.find)(part[0].keyspace())).collect()
        };
        let catalog = &*self.large.catalog;
        let stored: Vec<Option<Arc<Stored>>> =
            if apart { self.store_apart(piece, &spaces)? } else { vec![None; piece.len()] };
        let mut stored = stored.iter().map(Option::as_deref);
        let mut targets = vec![Target { index: catalog, writes: 0..1, stored: Vec::new() }];
        for (part, space) in piece.chunk_by(|a, b| a.keyspace() == b.keyspace()).zip(&spaces) {
            let stored: Vec<Option<&Stored>> = stored.by_ref().take(part.len()).collect();
            // What is written to a keyspace that was dropped is nobody's.
            let Some(space) = space else { continue };
            let first = rows.len();
            for (version, stored) in part.iter().zip(&stored) {
                let value = match stored {
                    Some(stored) => Some(NewValue::Stored(stored.reference)),
                    None => version.new_value()?,
                };
                rows.push(RowWrite { key: parts(&version.path).1, value, hint: None });
            }
            let stored = stored.into_iter().flatten().collect();
            targets.push(Target { index: space.index(), writes: first..rows.len(), stored });
        }
        let how = How { stripe: rest.stripe, tell: None, piece_of: Some(rest.commit.unwrap_or(Lsn::MAX)) };
        let done = commit::run(self, &targets, &rows, Durability::None, how)?;
        for at in done.untidy {
            // What stays untidy costs space only.
            let _ = Target::of(&targets, at).index.tidy(rows[at].key);
        }
        Ok(())
    }

    /// All is applied: the commit is one like any other.
    fn remove_rows(&self, rest: &Rest<'_>) -> Result<()> {
        let row = |key| RowWrite { key, value: None, hint: None };
        let rows = [row(&rest.names.writes[..]), row(&rest.names.applied[..])];
        let target = Target { index: &self.large.catalog, writes: 0..2, stored: Vec::new() };
        let how = How { stripe: rest.stripe, tell: None, piece_of: Some(Lsn::MAX) };
        commit::run(self, &[target], &rows, Durability::None, how).map(|_| ())
    }

    /// Finishes the commits that a crash interrupted; nobody else uses the database yet. How many there were.
    pub(crate) fn finish(&self, find: Find<'_>) -> Result<u64> {
        let catalog = &*self.large.catalog;
        let mut found: Vec<(Vec<u8>, Copied)> = Vec::new();
        let mut from = UNFINISHED.to_vec();
        loop {
            let range = (Bound::Included(&from[..]), Bound::Unbounded);
            let way = (Direction::Forward, Lsn::MAX);
            let end = catalog.read_batch(range, way, &mut ScanState::default(), |_, key, value| {
                found.push((key.to_vec(), value.into()));
                ControlFlow::Continue(())
            })?;
            match end.next {
                Some(next) => from = next,
                None => break,
            }
        }
        if self.read_only && !found.is_empty() {
            return Err(Error::ReadOnly("a large commit is to be finished: open the database for writing once".into()));
        }
        if self.core.faults().has(Mistake::LargeCommitUnfinished) {
            return Ok(0);
        }
        let mut finished = 0;
        debug_assert!(found.is_sorted_by(|a, b| a.0 < b.0), "rows come in the order of their keys");
        for rows in found.chunks(2) {
            let [(writes, Copied::Long(value)), (applied, Copied::Bytes(bytes))] = rows else {
                return Err(self.damaged("a row of an unfinished commit is missing"));
            };
            let names = Names { writes: writes.clone(), applied: applied.clone() };
            let done = bytes.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
            let done = done.ok_or_else(|| self.damaged("the progress of an unfinished commit cannot be read"))?;
            let mut reader = StoredWrites::new(&self.core, catalog.keyspace(), *value, done)?;
            let rest = Rest { names: &names, applied: done, commit: None, find, stripe: 0 };
            let damaged = || self.damaged("a write of an unfinished commit cannot be read");
            self.apply_rest(rest, &mut || {
                let Some(read) = reader.next(&self.core)? else { return Ok(None) };
                let version = read.ok_or_else(damaged)?;
                // There may have been more memory when it was decided.
                let (id, key) = parts(&version.path);
                let write = RowWrite { key, value: version.new_value()?, hint: None };
                find(id).iter().for_each(|space| space.index().make_fit(&write));
                Ok(Some(version))
            })?;
            finished += 1;
        }
        Ok(finished)
    }

    fn damaged(&self, what: &str) -> Error {
        Error::corrupt_page(self.large.catalog.root(), Some(self.large.catalog()), what)
    }

    /// What a commit that a reader as of `lsn` sees, and that is not all applied, wrote to a key: the value, and the
    /// commit's number.
    #[cold]
    pub(super) fn unapplied(&self, lsn: Lsn, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<Written<Copied>>> {
        for unfinished in self.large.seen(lsn, keyspace) {
            if let Some(write) = unfinished.writes.spill().get(keyspace, key)? {
                return Ok(Some((copied(write), unfinished.commit)));
            }
        }
        Ok(None)
    }

    /// The same, long values read.
    #[cold]
    pub(super) fn unapplied_value(
        &self,
        lsn: Lsn,
        keyspace: KeyspaceId,
        key: &[u8],
    ) -> Result<Option<Written<Box<[u8]>>>> {
        let Some((found, commit)) = self.unapplied(lsn, keyspace, key)? else { return Ok(None) };
        let value = match found {
            None => None,
            Some(Copied::Bytes(bytes)) => Some(bytes),
            Some(Copied::Long(long)) => {
                let mut value = Vec::new();
                match overflow::read(&self.core, keyspace, &long, 0..long.len, &mut value) {
                    Ok(()) => Some(value.into()),
                    // It was applied meanwhile, and replaced by others.
                    Err(_) if !self.large.is_active() => return Ok(None),
                    Err(error) => return Err(error),
                }
            }
        };
        Ok(Some((value, commit)))
    }
}

/// Whether a write that has found no room since then waits on.
fn is_patient(since: varve_rt::Instant) -> bool {
    since.elapsed() < PATIENCE && !varve_rt::dying()
}

/// The writes of a commit as they were stored, read page by page.
struct StoredWrites {
    keyspace: KeyspaceId,
    reader: overflow::Reader,
    decoder: Decoder,
}

impl StoredWrites {
    fn new(core: &Core, keyspace: KeyspaceId, value: OverflowRef, from: u64) -> Result<StoredWrites> {
        let reader = overflow::Reader::new(core, keyspace, value, from..value.len)?;
        Ok(StoredWrites { keyspace, reader, decoder: Decoder::default() })
    }

    /// The next write: none behind the last; `Some(None)` when it cannot be read.
    fn next(&mut self, core: &Core) -> Result<Option<Option<Version>>> {
        loop {
            match self.decoder.next() {
                Found::More if self.reader.left() > 0 => {
                    self.reader.step(core, self.keyspace, self.decoder.room())?;
                }
                Found::More => return Ok((!self.decoder.is_empty()).then_some(None)),
                Found::Write(version) => return Ok(Some(Some(version))),
                Found::Damage => return Ok(Some(None)),
            }
        }
    }
}

/// What of a range comes before the cut of a window.
pub(super) fn narrowed(range: OwnedBounds, cut: Option<KeyBuf>, forward: bool) -> OwnedBounds {
    match (cut, forward) {
        (None, _) => range,
        (Some(cut), true) => (range.0, Bound::Excluded(cut)),
        (Some(cut), false) => (Bound::Included(cut), range.1),
    }
}

/// What is left of a range behind a part that was [`narrowed`].
pub(super) fn left_of(all: OwnedBounds, part: OwnedBounds, forward: bool) -> Option<OwnedBounds> {
    let left = match (forward, part) {
        (true, (_, Bound::Excluded(cut))) if all.1 != Bound::Excluded(cut.clone()) => (Bound::Included(cut), all.1),
        (false, (Bound::Included(cut), _)) if all.0 != Bound::Included(cut.clone()) => (all.0, Bound::Excluded(cut)),
        _ => return None,
    };
    is_possible(bound_ref(&left.0), bound_ref(&left.1)).then_some(left)
}

impl Spill {
    /// All runs as one, its index of up to `most_index` bytes.
    pub fn into_merged(mut self, most_index: u64) -> Result<Merged> {
        self.merge_all(most_index)?;
        Ok(Merged::new(self))
    }
}
