//! What the LSM keyspaces of a database share: the memory of their memtables, the thread that flushes and merges, what
//! recovery found in the log for each of them, and who knows which moments snapshots are of.
//!
//! Memory: before a database has an LSM keyspace, the class `Memtables` has no limit of its own; the first one moves
//! half of what old values and locks may take to it. A commit that finds no room waits for a flush. The thread flushes
//! the largest memtable when it has reached its size, or when all together take half of the limit.
//!
//! Lock order: `keyspaces`, `room` and `near` are leaves.
//!
//! Invariants: what recovery found for a keyspace is in its memtable before anybody reads the keyspace; one thread
//! flushes and merges, and none of a database that is opened for reading only.

use super::EntryKind;
use super::index::{Lsm, Shared};
use super::memtable::{Memtable, bytes_of};
use super::near::Host;
use super::options::LsmOptions;
use super::ranges::RangeDelete;
use super::record::{self, Record};
use super::turns::Turns;
use crate::budget::{Budget, Class};
use crate::error::{Error, Result};
use crate::role::{self, Role};
use crate::space::Core;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;
use varve_device::{Health, PoisonListener};
use varve_rt::atomic::{AtomicBool, Ordering};
use varve_rt::{Condvar, Event, JoinHandle, Mutex, now};
use varve_volume::{KeyspaceId, Lsn};

/// Time after a job that failed until it is tried again: a full disk may have room by then.
const AGAIN: Duration = Duration::from_millis(200);

/// Who knows which moments open snapshots are of.
pub(crate) trait Moments: Send + Sync {
    /// The commit numbers that open snapshots read as of, ascending. One that is opened later reads as of the end of
    /// the log, or later.
    fn moments(&self) -> Vec<Lsn>;
}

/// Records of the log that are in no segment, by keyspace: commit number, where the group begins, bytes.
type Found = BTreeMap<KeyspaceId, Vec<(Lsn, Lsn, Box<[u8]>)>>;

/// The same by where their groups begin.
pub(crate) type FoundGroups = BTreeMap<Lsn, Vec<(KeyspaceId, Box<[u8]>)>>;

/// Why a keyspace's memtables cannot be flushed. It takes no more than a memtable then of the memory that all share.
#[derive(Default)]
pub(super) struct Stuck {
    is: AtomicBool,
    /// Why the last flush failed, and the last merge, where flushes wait for it.
    why: Mutex<[Option<Error>; 2]>,
}

impl Stuck {
    const FLUSH: usize = 0;
    const MERGE: usize = 1;

    fn set(&self, what: usize, error: Option<Error>) {
        let mut why = self.why.lock();
        why[what] = error;
        self.is.store(why.iter().any(Option::is_some), Ordering::Release);
    }

    fn why(&self) -> Option<Error> {
        if !self.is.load(Ordering::Acquire) {
            return None;
        }
        let why = self.why.lock();
        why.iter().flatten().next().cloned()
    }
}

#[derive(Default)]
struct Room {
    /// Why the last flush failed; none when it did not.
    failed: Option<Error>,
    /// Why the last merge failed; none when all that are due could be made.
    unmerged: Option<Error>,
    /// Flushes that ended.
    ended: u64,
    /// Times that the thread found nothing more to do, or gave up for a while.
    idle: u64,
    /// Of the database that the thread serves; none before it starts.
    health: Option<Arc<Health>>,
}

impl Room {
    /// Fails when the database is poisoned: then the thread does no more, or is no more.
    fn check_sound(&self) -> Result<()> {
        let cause = self.health.as_ref().and_then(|health| health.cause());
        cause.map_or(Ok(()), |cause| Err(Error::Poisoned(cause.to_string())))
    }
}

/// Shared by the LSM keyspaces of a database.
#[derive(Default)]
pub(crate) struct Services {
    found: Mutex<Found>,
    keyspaces: Mutex<Vec<Weak<Shared>>>,
    /// Memtables have memory of their own. Changed under the lock of `keyspaces`.
    has_memory: AtomicBool,
    moments: Mutex<Option<Arc<dyn Moments>>>,
    room: Mutex<Room>,
    freed: Condvar,
    wanted: Event,
    stop: AtomicBool,
    /// Nothing is written.
    read_only: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
    turns: Turns,
    /// Does parts of merges near the data.
    near: Mutex<Option<Arc<Host>>>,
    /// It counts what is written.
    counts: AtomicBool,
}

/// Recovery.
impl Services {
    /// Takes up a record of the log; `group` is its start and end.
    pub(crate) fn replay(&self, group: (Lsn, Lsn), keyspace: KeyspaceId, bytes: &[u8]) -> Result<()> {
        let mut found = self.found.lock();
        match record::decode(bytes, group.0)? {
            Record::Writes(_) => found.entry(keyspace).or_default().push((group.1, group.0, bytes.into())),
            Record::Settled(commit) => {
                if let Some(records) = found.get_mut(&keyspace) {
                    records.retain(|(end, _, _)| *end > commit);
                }
            }
        }
        Ok(())
    }

    /// Takes what was found and is in no segment, by the groups that it was in. What is not taken, of keyspaces that
    /// are gone, must not be there when their numbers are given out again.
    pub(crate) fn take_found(&self) -> FoundGroups {
        let mut groups = FoundGroups::new();
        for (keyspace, records) in std::mem::take(&mut *self.found.lock()) {
            for (_, start, bytes) in records {
                groups.entry(start).or_default().push((keyspace, bytes));
            }
        }
        groups
    }

    /// A memtable of what recovery found for the keyspace.
    pub(super) fn recovered(&self, core: &Core, keyspace: KeyspaceId) -> Result<Memtable> {
        let records = self.found.lock().remove(&keyspace).unwrap_or_default();
        let table = Memtable::new(core.budget.clone());
        for (commit, start, bytes) in records {
            let Record::Writes(entries) = record::decode(&bytes, start)? else { continue };
            assert!(start < commit, "a group ends after it begins");
            table.writer_begins(start);
            let added = record::entries(entries, commit, &mut |entry| {
                let bytes = bytes_of(entry.key, entry.value);
                core.budget.admit(Class::Memtables, bytes);
                table.takes_charge(bytes);
                match entry.kind {
                    EntryKind::DeleteRange => {
                        table.delete_range(RangeDelete { start: entry.key.to_vec(), end: entry.value.to_vec(), commit })
                    }
                    _ => table.insert(&entry),
                }
                Ok(())
            });
            table.writer_ends();
            added?;
        }
        Ok(table)
    }
}

/// Who waits for the thread looks whether it still does anything.
impl PoisonListener for Services {
    fn poisoned(&self) {
        self.something_ended();
    }
}

/// Memory.
impl Services {
    /// One more keyspace. The first one gets memory for all.
    pub(super) fn add(&self, lsm: &Lsm) {
        let mut keyspaces = self.keyspaces.lock();
        keyspaces.retain(|shared| shared.strong_count() > 0);
        let budget = &lsm.0.core.budget;
        if !self.has_memory.swap(true, Ordering::Relaxed) {
            for class in [Class::Versions, Class::Locks] {
                budget.move_limit(class, Class::Memtables, budget.limit(class) / 2);
            }
        }
        keyspaces.push(Arc::downgrade(&lsm.0));
    }

    fn keyspaces(&self) -> Vec<Lsm> {
        self.keyspaces.lock().iter().filter_map(Weak::upgrade).map(Lsm).collect()
    }

    /// Charges memory for entries; waits for flushes when there is none. `surely`: where nothing can be flushed, the
    /// limit is passed rather than a commit that is decided, or one that makes room, refused.
    ///
    /// # Errors
    /// `TransactionTooLarge` when it could never be had; what flushes, and merges that they wait for, fail with.
    pub(super) fn admit(&self, shared: &Shared, bytes: u64, surely: bool) -> Result<()> {
        debug_assert!(bytes > 0, "an entry takes memory");
        if (surely || !is_held_up(shared)) && shared.core.budget.charge(Class::Memtables, bytes).is_ok() {
            return Ok(());
        }
        let from = varve_rt::now();
        let admitted = self.admit_later(shared, bytes, surely);
        shared.counters.stalled(varve_rt::now() - from);
        admitted
    }

    fn admit_later(&self, shared: &Shared, bytes: u64, surely: bool) -> Result<()> {
        let (core, budget) = (&*shared.core, &shared.core.budget);
        let charged = || (surely || !is_held_up(shared)) && budget.charge(Class::Memtables, bytes).is_ok();
        let limit = budget.limit(Class::Memtables);
        if bytes > limit {
            return Err(Error::TransactionTooLarge { what: "memtables", needed: bytes, limit });
        }
        let began = self.room.lock().idle;
        loop {
            core.log.check_sound()?;
            debug_assert!(bytes <= limit, "it fits when all else is flushed");
            let (ended, idle, failed) = {
                let room = self.room.lock();
                (room.ended, room.idle, room.failed.is_some())
            };
            if charged() {
                return Ok(());
            }
            if self.stopping() {
                return Err(Error::Closed);
            }
            if failed && shared.stuck.why().is_none() && !is_due(shared, budget) {
                // What other keyspaces hold cannot be flushed, so waiting brings nothing. When this one is due it waits
                // for its own flush.
                budget.admit(Class::Memtables, bytes);
                return Ok(());
            }
            let mut room = self.room.lock();
            self.wanted.set();
            // Twice idle: what was there to be flushed when this began is flushed.
            while room.ended == ended && room.idle < idle + 2 && !self.stopping() && room.check_sound().is_ok() {
                self.freed.wait(&mut room);
                self.wanted.set();
            }
            room.check_sound()?;
            let nothing_ended = room.ended == ended;
            // Twice here too: what began before this may have failed for what is mended.
            let tried = room.idle >= began + 2;
            drop(room);
            if charged() {
                return Ok(());
            }
            let stuck = shared.stuck.why();
            if let Some(error) = stuck.as_ref().filter(|_| !surely && tried) {
                return Err(error.clone());
            }
            if (nothing_ended || stuck.is_some() && surely) && !self.stopping() {
                // Nothing of this keyspace can be flushed, or other keyspaces, or commits that wait for each other or
                // for the like of this one, hold all of the memory.
                budget.admit(Class::Memtables, bytes);
                return Ok(());
            }
        }
    }

    /// A commit gives back what it was charged: those who wait look again.
    pub(super) fn memory_is_back(&self) {
        if !varve_rt::dying() {
            self.room.lock().ended += 1;
            self.freed.notify_all();
        }
    }

    /// There may be something to do.
    pub(super) fn wake(&self) {
        self.wanted.set();
    }

    /// A commit has added to a keyspace: wakes the thread when there is something to flush.
    /// `bytes` are those of the memtable that it added to. No lock may be waited for: others wait for the commit.
    #[inline]
    pub(super) fn look_at(&self, shared: &Shared, bytes: u64) {
        let budget = &shared.core.budget;
        if (bytes >= due_bytes(&shared.options(), budget) || is_full(budget)) && !self.wanted.is_set() {
            self.wanted.set();
        }
    }
}

/// Whether a keyspace cannot be flushed, and has what a memtable may have.
fn is_held_up(shared: &Shared) -> bool {
    shared.stuck.is.load(Ordering::Relaxed) && is_due(shared, &shared.core.budget)
}

/// Whether the active memtable of a keyspace is large enough to be flushed.
fn is_due(shared: &Shared, budget: &Budget) -> bool {
    let active = &shared.view().active;
    active.bytes() >= due_bytes(&shared.options(), budget) || active.has_many_ranges()
}

/// Bytes at which a memtable is flushed.
pub(super) fn due_bytes(options: &LsmOptions, budget: &Budget) -> u64 {
    options.memtable_bytes.min(budget.limit(Class::Memtables) / 2)
}

/// Whether memtables take half of what they may.
fn is_full(budget: &Budget) -> bool {
    2 * budget.used(Class::Memtables) >= budget.limit(Class::Memtables)
}

/// The thread.
impl Services {
    /// Nothing is written: neither flushed nor merged.
    pub(crate) fn set_read_only(&self) {
        self.read_only.store(true, Ordering::Release);
    }

    /// Who knows of snapshots.
    pub(crate) fn set_moments(&self, moments: Arc<dyn Moments>) {
        let before = self.moments.lock().replace(moments);
        assert!(before.is_none(), "a database has one registry of snapshots");
    }

    /// Who does parts of merges; before anything is merged.
    pub(crate) fn set_near(&self, host: Host) {
        self.counts.store(host.counts_writes(), Ordering::Relaxed);
        let before = self.near.lock().replace(Arc::new(host));
        assert!(before.is_none(), "a database has one worker");
    }

    /// Who does parts of merges, if there is one.
    pub(crate) fn near(&self) -> Option<Arc<Host>> {
        self.near.lock().clone()
    }

    /// Pairs were written with values of so many bytes.
    pub(super) fn wrote(&self, values: impl ExactSizeIterator<Item = usize>) {
        if self.counts.load(Ordering::Relaxed)
            && let Some(host) = self.near()
        {
            host.note_writes(values);
        }
    }

    /// The moments that open snapshots are of, ascending.
    pub(super) fn moments(&self) -> Vec<Lsn> {
        let moments = self.moments.lock().clone();
        moments.map(|moments| moments.moments()).unwrap_or_default()
    }

    /// Starts the thread, if there is an LSM keyspace and it does not run yet.
    pub(crate) fn start(self: &Arc<Self>, health: &Arc<Health>) -> Result<()> {
        if self.room.lock().health.replace(health.clone()).is_none() {
            let listener: Weak<Services> = Arc::downgrade(self);
            health.listen(listener);
        }
        let mut thread = self.thread.lock();
        let idle = thread.is_some() || self.read_only.load(Ordering::Acquire) || self.stop.load(Ordering::Acquire);
        if idle || self.keyspaces().is_empty() {
            return Ok(());
        }
        assert!(!self.read_only.load(Ordering::Acquire), "nothing is flushed where nothing is written");
        let this = self.clone();
        let life = move || {
            role::set(Role::Merger);
            this.run()
        };
        *thread = Some(health.spawn("merger", life)?);
        self.wanted.set();
        Ok(())
    }

    /// Tells the thread to end after what it is doing; waits for nothing.
    pub(crate) fn end(&self) {
        self.stop.store(true, Ordering::Release);
        self.wanted.set();
        drop(self.room.lock());
        self.freed.notify_all();
    }

    /// Ends the thread and waits for it.
    pub(crate) fn stop(&self) {
        self.end();
        let thread = self.thread.lock().take();
        Health::join(thread);
        self.near().iter().for_each(|host| host.end());
    }

    /// Whether there may be more flushes and merges.
    pub(super) fn goes_on(&self, core: &Core) -> bool {
        !self.stopping() && core.log.check_sound().is_ok()
    }

    fn stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire) || varve_rt::dying()
    }

    fn run(&self) {
        debug_assert_eq!(role::current(), Role::Merger, "the thread has its role");
        let mut unripe = 0;
        while !self.stopping() {
            self.wanted.wait();
            self.wanted.reset();
            let mut again = true;
            while again && !self.stopping() {
                again = match self.work() {
                    Ok(more) => more,
                    Err(error) => self.pause_after(&error, &mut unripe),
                };
            }
            self.is_idle();
        }
    }

    /// Waits a little after a job that failed; whether to try again. A full disk may have room later; a database that
    /// is poisoned is left alone. `unripe`: free pages that had to ripen when this was called last.
    fn pause_after(&self, error: &Error, unripe: &mut u64) -> bool {
        let keyspaces = self.keyspaces();
        let Some(core) = keyspaces.first().map(|lsm| &lsm.0.core) else { return false };
        if matches!(error, Error::NoSpace(_)) {
            let free = core.space.unripe();
            if free > 0 && free != std::mem::replace(unripe, free) {
                // A checkpoint lets them be used.
                core.log.ask_for_checkpoint();
            }
        }
        let sound = core.log.check_sound().is_ok();
        self.is_idle();
        if !sound || self.stopping() {
            return false;
        }
        self.wanted.reset();
        self.wanted.wait_for(AGAIN);
        true
    }

    fn is_idle(&self) {
        self.room.lock().idle += 1;
        self.freed.notify_all();
    }

    /// Flushes all memtables, and returns when there is nothing to merge.
    pub(crate) fn wait_for_merges(&self) -> Result<()> {
        self.flush_older_than(Lsn::MAX)?;
        // It may be about to find that there is nothing more: only the time after that it has seen the last flush.
        for _ in 0..2 {
            let mut room = self.room.lock();
            let before = room.idle;
            self.wanted.set();
            while room.idle == before && self.thread.lock().is_some() && !self.stopping() {
                room.check_sound()?;
                self.freed.wait(&mut room);
            }
            room.failed.clone().map_or(Ok(()), Err)?;
        }
        self.room.lock().unmerged.clone().map_or(Ok(()), Err)
    }

    /// Somebody may wait for what ended.
    pub(super) fn something_ended(&self) {
        drop(self.room.lock());
        self.freed.notify_all();
    }

    /// Waits until the thread has done something.
    pub(super) fn wait_until(&self, done: impl Fn() -> bool) -> Result<()> {
        let mut room = self.room.lock();
        while !done() {
            if self.stopping() || self.thread.lock().is_none() {
                return Err(Error::Closed);
            }
            room.check_sound()?;
            self.wanted.set();
            self.freed.wait(&mut room);
        }
        Ok(())
    }

    /// Does what is most urgent; whether there may be more.
    fn work(&self) -> Result<bool> {
        let flushed = self.flush_due();
        if let Ok(true) = flushed {
            return flushed;
        }
        let merged = self.merge_some();
        if let Ok(true) = merged { merged } else { flushed.and(merged) }
    }

    /// Merges something in the keyspace whose turn it is, of those that have something to merge; whether one had. What
    /// is wrong with one keyspace holds up no other.
    fn merge_some(&self) -> Result<bool> {
        let (mut merged, mut unmerged) = (false, None);
        for (class, lsm) in &self.turns.order(self.keyspaces()) {
            let result = lsm.merge_some();
            let stuck = result.as_ref().err().filter(|_| lsm.is_full()).cloned();
            lsm.0.stuck.set(Stuck::MERGE, stuck);
            match result {
                Ok(done) => merged = done,
                Err(error) => unmerged = unmerged.or(Some(error)),
            }
            if merged {
                self.turns.took(*class, lsm.keyspace());
                break;
            }
        }
        if !merged || unmerged.is_some() {
            self.room.lock().unmerged = unmerged.clone();
        }
        if merged { Ok(true) } else { unmerged.map_or(Ok(false), Err) }
    }

    /// Flushes a memtable if one is due; whether one was.
    fn flush_due(&self) -> Result<bool> {
        // Where level 0 is full, merges come first.
        let keyspaces: Vec<Lsm> = self.keyspaces().into_iter().filter(|lsm| !lsm.is_full()).collect();
        let Some(largest) = keyspaces.iter().max_by_key(|lsm| lsm.0.view().active.bytes()) else { return Ok(false) };
        let budget = largest.0.core.budget.clone();
        // What commits have charged and not entered yet cannot be flushed.
        let full = is_full(&budget) && largest.0.view().active.bytes() > 0;
        let unfinished = keyspaces.iter().filter(|lsm| lsm.0.view().frozen.is_some());
        let due = keyspaces.iter().filter(|lsm| is_due(&lsm.0, &budget)).chain(full.then_some(largest));
        // What is wrong with one keyspace holds up no other.
        let mut failed = None;
        for lsm in unfinished.chain(due) {
            match self.flushed(lsm, lsm.flush()) {
                Ok(()) => return Ok(true),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(false), Err)
    }

    /// Called between the batches of a merge: flushes what is due, and says how long that took. None when the merge is
    /// to be given up.
    pub(super) fn between_batches(&self) -> Result<Option<Duration>> {
        if self.stopping() {
            return Ok(None);
        }
        // Else a simulation would not come to anything else for as long as a merge takes.
        varve_rt::yield_now();
        let begun = now();
        self.flush_due()?;
        Ok(Some(now().duration_since(begun)))
    }

    /// Tells those who wait for memory how a flush ended.
    fn flushed(&self, lsm: &Lsm, result: Result<()>) -> Result<()> {
        lsm.0.stuck.set(Stuck::FLUSH, result.as_ref().err().cloned());
        debug_assert_eq!(role::current(), Role::Merger, "who flushes does not wait for room in the log");
        let mut room = self.room.lock();
        room.ended += 1;
        room.failed = result.as_ref().err().cloned();
        drop(room);
        self.freed.notify_all();
        result
    }

    /// Flushes what memtables hold of the log before `lsn`. What is wrong with one keyspace holds up no other.
    ///
    /// # Errors
    /// Why the first keyspace that could not be flushed could not.
    pub(crate) fn flush_older_than(&self, lsn: Lsn) -> Result<()> {
        let mut failed = None;
        role::with(Role::Merger, || {
            for lsm in self.keyspaces() {
                if let Err(error) = self.flush_one_older_than(&lsm, lsn) {
                    failed = failed.take().or(Some(error));
                }
            }
        });
        failed.map_or(Ok(()), Err)
    }

    fn flush_one_older_than(&self, lsm: &Lsm, lsn: Lsn) -> Result<()> {
        while lsm.oldest_lsn_needed().is_some_and(|oldest| oldest < lsn) {
            // Nothing is flushed any more, and nobody waits here.
            if varve_rt::dying() {
                return Err(Error::Closed);
            }
            self.flushed(lsm, lsm.flush())?;
            // It may be what level 0 had too little of for a merge.
            self.wanted.set();
        }
        if lsn == Lsn::MAX { lsm.drop_hidden().map(drop) } else { Ok(()) }
    }
}
