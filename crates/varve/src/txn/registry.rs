//! Which snapshots are open, and which commits have to keep old values for them.
//!
//! A snapshot is an LSN S and sees exactly the commits that end at or before S. Registration: raise `count`; wait until
//! no commit is under way that began without keeping old values; then, under the mutex, take S = end of the log. A
//! commit, with its leaves latched and before its first change, enters one of the `unsaved` counters if `count` is
//! zero, and leaves it once it has its place in the log; else it sets the old values aside and, with its place known,
//! stores those that an open snapshot needs, under the mutex. So a commit without old values always ends at or before
//! every S.
//!
//! What is kept goes to memory first. A thread that has committed, and finds that old values take a good part of their
//! memory, moves the oldest of them to scratch pages (`runs.rs`, [`Snapshots::relieve`]) once it holds nothing any
//! more: nobody waits for that. Where it does not keep up, or the scratch pages come to their limit, or cannot be
//! written, the oldest snapshot loses its claim: its reads fail from then on.
//!
//! Reads that nobody waits for (`later.rs`) have a claim of their own: a close goes ahead though it is open.
//!
//! Invariants: `count` is the number of claims, and of registrations under way; snapshots are as of moments that do not
//! go back; a claim is lent as of a moment of which another is open; each version is in `added` once, or in one
//! batch on its way to scratch pages, and its bytes are charged until it is removed.
//!
//! Lock order: leaf latches, then the mutex here, then a shard of the version store.

use super::key::KeyBuf;
use super::runs::Run;
use super::spilling::Merger;
use super::version::{OldValue, VersionPlace, Versions, bytes_of};
use crate::budget::{Budget, Class};
use crate::error::Error;
use crate::wal::Log;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use varve_rt::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use varve_rt::{Event, Mutex};
use varve_volume::{KeyspaceId, Lsn};

const STRIPES: usize = 8;
/// Old values are moved to scratch pages when they take this part of their memory, about as many at a time.
pub(super) const SHARE: u64 = 4;
/// Bytes by which old values may go beyond their share of memory while they are being moved.
const MOST_OVER: u64 = 32 << 20;
/// Versions dropped at a time without letting others at the mutex.
const SWEEP: usize = 128;

#[repr(align(128))]
struct Stripe(AtomicUsize);

/// Why a snapshot lost its claim.
#[derive(Clone)]
pub(super) enum Lost {
    /// No room.
    Room,
    /// Its old values could not be written to scratch pages.
    Failed(Arc<str>),
}

/// An open snapshot's claim on old values.
pub(super) struct Claim {
    lsn: Lsn,
    serial: u64,
    /// It is held by reads that nobody waits for.
    lent: bool,
    evicted: AtomicBool,
    /// Why. Set before `evicted`.
    why: Mutex<Option<Lost>>,
}

impl Claim {
    /// The snapshot's LSN.
    pub fn lsn(&self) -> Lsn {
        self.lsn
    }

    /// What to say when old values may be missing. Asked after the version store was read.
    pub fn lost(&self) -> Option<Error> {
        if !self.evicted.load(Ordering::Acquire) {
            return None;
        }
        Some(match self.why.lock().as_ref() {
            Some(Lost::Failed(cause)) => Error::SnapshotLost(cause.to_string()),
            _ => Error::SnapshotTooOld,
        })
    }
}

#[derive(Default)]
pub(super) struct Live {
    claims: BTreeMap<(Lsn, u64), Arc<Claim>>,
    /// How many of them are lent.
    lent: usize,
    serial: u64,
    /// Versions in the order in which they were added, nearly that of their ends.
    pub(super) added: VecDeque<VersionPlace>,
    /// Their bytes.
    pub(super) bytes: u64,
}

impl Live {
    /// The moment of the oldest snapshot; past all moments without one.
    pub(super) fn oldest(&self) -> Lsn {
        self.claims.first_key_value().map_or(Lsn::MAX, |((lsn, _), _)| *lsn)
    }

    fn add(&mut self, lsn: Lsn, lent: bool) -> Arc<Claim> {
        self.serial += 1;
        let serial = self.serial;
        let claim = Claim { lsn, serial, lent, evicted: AtomicBool::new(false), why: Mutex::default() };
        let claim = Arc::new(claim);
        self.claims.insert((lsn, serial), claim.clone());
        self.lent += usize::from(lent);
        claim
    }
}

/// The snapshot registry with its version store.
pub(super) struct Snapshots {
    count: AtomicUsize,
    unsaved: [Stripe; STRIPES],
    pub(super) live: Mutex<Live>,
    pub versions: Versions,
    pub(super) budget: Arc<Budget>,
    /// Most bytes of scratch pages, if it was said.
    pub(super) disk_limit: Option<u64>,
    /// Old values that take so much memory are moved to scratch pages.
    pub(super) spill_at: AtomicU64,
    /// Runs of old values on scratch pages. Changed under the lock of `live`.
    pub(super) runs: Mutex<Arc<Vec<Arc<Run>>>>,
    pub(super) run_count: AtomicUsize,
    /// Bytes of `added`, and of scratch pages.
    pub(super) in_memory: AtomicU64,
    pub on_disk: AtomicU64,
    pub(super) merger: Merger,
    /// Set whenever a snapshot ends or loses its claim.
    pub ended: Event,
    pub opened: AtomicU64,
    pub evicted: AtomicU64,
    pub kept: AtomicU64,
    pub spilled: AtomicU64,
}

/// A commit's word on old values, given between latching its leaves and its place in the log.
pub(super) enum Saving<'a> {
    /// No snapshot is open: none are kept. Dropped once the commit has its place in the log.
    No(#[expect(dead_code, reason = "held until it is dropped")] Unsaved<'a>),
    /// Old values are to be set aside before the first change.
    Yes,
}

pub(super) struct Unsaved<'a>(&'a AtomicUsize);

impl Drop for Unsaved<'_> {
    fn drop(&mut self) {
        let before = self.0.fetch_sub(1, Ordering::SeqCst);
        assert!(before > 0, "a commit that ends has begun");
    }
}

impl Snapshots {
    /// `disk_limit`: most bytes of scratch pages; none: a quarter of the database, at least 1 GiB.
    pub fn new(budget: Arc<Budget>, disk_limit: Option<u64>) -> Snapshots {
        let spill_at = if disk_limit == Some(0) { u64::MAX } else { budget.limit(Class::Versions) / SHARE };
        Snapshots {
            count: AtomicUsize::new(0),
            unsaved: std::array::from_fn(|_| Stripe(AtomicUsize::new(0))),
            live: Mutex::default(),
            versions: Versions::new(),
            budget,
            disk_limit,
            spill_at: AtomicU64::new(spill_at),
            runs: Mutex::default(),
            run_count: AtomicUsize::new(0),
            in_memory: AtomicU64::new(0),
            on_disk: AtomicU64::new(0),
            merger: Merger::default(),
            ended: Event::new(),
            opened: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            kept: AtomicU64::new(0),
            spilled: AtomicU64::new(0),
        }
    }

    /// Snapshots open now.
    pub fn open(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// Those that a close is refused for.
    pub fn held(&self) -> usize {
        // What is lent is counted, here and there, under the lock.
        let live = self.live.lock();
        let open = self.open();
        assert!(open >= live.lent, "what is lent is open");
        open - live.lent
    }

    /// The moment of the oldest one; past all moments without one. One that is opened later is as of a later moment.
    pub fn oldest(&self) -> Lsn {
        self.live.lock().oldest()
    }

    /// Whether a snapshot is open of a moment from `from` on, before `to`.
    pub fn any_between(&self, from: Lsn, to: Lsn) -> bool {
        self.live.lock().claims.range((from, 0)..(to.max(from), 0)).next().is_some()
    }

    /// Opens a snapshot as of now.
    pub fn register(&self, log: &Log) -> Arc<Claim> {
        self.count.fetch_add(1, Ordering::SeqCst);
        self.opened.fetch_add(1, Ordering::Relaxed);
        for stripe in &self.unsaved {
            let mut rounds = 0;
            while stripe.0.load(Ordering::SeqCst) != 0 && !varve_rt::dying() {
                varve_rt::spin(rounds);
                rounds += 1;
            }
        }
        fence(Ordering::SeqCst);
        let mut live = self.live.lock();
        let (newest, end) = (live.claims.last_key_value().map_or(0, |((lsn, _), _)| *lsn), log.end_lsn());
        assert!(newest <= end, "the end of the log does not go back");
        live.add(end, false)
    }

    /// Opens a claim beside another, for reads that nobody waits for; none: that one is lost.
    pub fn lend(&self, claim: &Claim) -> Option<Arc<Claim>> {
        let mut live = self.live.lock();
        if !live.claims.contains_key(&(claim.lsn, claim.serial)) {
            return None;
        }
        let before = self.count.fetch_add(1, Ordering::SeqCst);
        assert!(before > 0, "a claim that is there was counted");
        Some(live.add(claim.lsn, true))
    }

    /// The moments of open snapshots, ascending, each once.
    pub fn moments(&self) -> Vec<Lsn> {
        let mut moments: Vec<Lsn> = self.live.lock().claims.keys().map(|(lsn, _)| *lsn).collect();
        moments.dedup();
        moments
    }

    /// Closes a snapshot and drops the versions that nobody needs any more.
    pub fn close(&self, claim: &Claim) {
        if varve_rt::dying() {
            return;
        }
        let was_open = {
            let mut live = self.live.lock();
            let there = live.claims.remove(&(claim.lsn, claim.serial));
            there.inspect(|claim| self.drop_claim(&mut live, claim)).is_some()
        };
        if was_open {
            self.ended.set();
        }
        while self.sweep(&mut self.live.lock()) {}
    }

    /// Asked by a commit that has latched its leaves. `stripe`: any number that spreads threads.
    #[inline]
    pub fn begin_commit(&self, stripe: u64) -> Saving<'_> {
        if self.count.load(Ordering::Relaxed) == 0 {
            let unsaved = &self.unsaved[stripe as usize % STRIPES].0;
            unsaved.fetch_add(1, Ordering::SeqCst);
            let guard = Unsaved(unsaved);
            if self.count.load(Ordering::SeqCst) == 0 {
                return Saving::No(guard);
            }
        }
        Saving::Yes
    }

    /// Stores the old values of a commit that ended at `end`, as far as open snapshots need them. Its leaves are still
    /// latched.
    pub fn keep<'k>(&self, end: Lsn, old: impl Iterator<Item = (KeyspaceId, &'k [u8], OldValue)>) {
        let mut live = self.live.lock();
        for (keyspace, key, value) in old {
            // What is not kept is dropped here all the same: it may hold pages.
            if live.claims.is_empty() {
                continue;
            }
            let since = self.versions.newest_end(keyspace, key);
            assert!(since < end, "commits of one key are in order");
            if live.claims.range((since, 0)..(end, 0)).next().is_none() {
                continue;
            }
            let bytes = bytes_of(key, &value);
            if !self.make_room(&mut live, bytes) {
                continue;
            }
            let place = VersionPlace { keyspace, key: KeyBuf::new(key), end, bytes };
            self.versions.add(&place, value);
            live.bytes += bytes;
            live.added.push_back(place);
            self.kept.fetch_add(1, Ordering::Relaxed);
        }
        self.in_memory.store(live.bytes, Ordering::Relaxed);
    }

    /// This claim is there no more.
    fn drop_claim(&self, live: &mut Live, claim: &Claim) {
        let before = self.count.fetch_sub(1, Ordering::SeqCst);
        assert!(before > 0 && live.lent >= usize::from(claim.lent), "a claim that goes was counted");
        debug_assert!(before > live.claims.len(), "every claim that is left is counted");
        live.lent -= usize::from(claim.lent);
    }

    fn evict(&self, live: &mut Live, claim: &Claim, why: Lost) {
        let before = claim.why.lock().replace(why);
        assert!(before.is_none(), "a claim is lost once");
        claim.evicted.store(true, Ordering::Release);
        self.drop_claim(live, claim);
        self.ended.set();
        self.evicted.fetch_add(u64::from(!claim.lent), Ordering::Relaxed);
    }

    /// Charges `bytes`, at the cost of the oldest snapshots. False when that cost all of them.
    pub(super) fn make_room(&self, live: &mut Live, bytes: u64) -> bool {
        let spills = self.spill_at.load(Ordering::Relaxed) < u64::MAX;
        let over = if spills { self.budget.limit(Class::Versions).min(MOST_OVER) } else { 0 };
        while self.budget.charge_over(Class::Versions, bytes, over).is_err() {
            if !self.evict_oldest(live, Lost::Room) {
                return false;
            }
        }
        true
    }

    /// The oldest snapshot loses its claim. False when there is none.
    pub(super) fn evict_oldest(&self, live: &mut Live, why: Lost) -> bool {
        let Some((_, oldest)) = live.claims.pop_first() else { return false };
        self.evict(live, &oldest, why);
        while self.sweep(live) {}
        true
    }

    /// Drops some versions that no open snapshot needs; true when there may be more.
    pub(super) fn sweep(&self, live: &mut Live) -> bool {
        let oldest = live.oldest();
        self.drop_runs(oldest);
        for _ in 0..SWEEP {
            if live.added.front().is_none_or(|place| place.end > oldest) {
                return false;
            }
            let place = live.added.pop_front().expect("seen above");
            self.forget(live, &place);
        }
        true
    }

    /// Drops a version that is not in `added` any more.
    fn forget(&self, live: &mut Live, place: &VersionPlace) {
        assert!(live.bytes >= place.bytes, "what goes was counted");
        live.bytes -= place.bytes;
        self.in_memory.store(live.bytes, Ordering::Relaxed);
        self.versions.remove(place);
        self.budget.release(Class::Versions, place.bytes);
    }
}
