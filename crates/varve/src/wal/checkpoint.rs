//! Checkpoints: what moves the redo point, when, and how fast.
//!
//! One checkpoint: take T and raise the image floor ([`Log::begin_checkpoint`]); write every page whose first unflushed
//! change lies below T, spread over time; make the pages durable; then, and only then, write the superblock with redo =
//! T and reuse the log before it. Fuzzy: nobody waits while it runs (after ARIES, Mohan et al., TODS 1992, with an
//! ordered flush instead of a dirty-page table in the log).
//!
//! An index may have changes that no page has yet: it is asked ([`LogNeeds`]), and redo begins at the latest T, of this
//! checkpoint or one before, that is not past the oldest of them.
//!
//! Triggers: the log's age against the recovery bound, the ring's fill, [`Checkpointer::checkpoint`], and closing.
//!
//! Lock order: `running` before everything of the pool and the log, and before the space manager's `growing`; never
//! taken with a latch held.
//!
//! Invariants: one checkpoint runs at a time; the redo point moves to a T only after every page with an earlier change
//! was written and synced, and after the log up to T's end is durable; T never lies before the redo point, nor before
//! the T of an earlier checkpoint; `held_back` ascends.

use super::Log;
use crate::error::{Error, Result};
use crate::role::{self, Role};
use std::sync::Arc;
use std::time::Duration;
use varve_device::{Health, Mistake, Place};
use varve_rt::atomic::{AtomicBool, AtomicU64, Ordering};
use varve_rt::{Event, JoinHandle, Mutex, now};
use varve_volume::Lsn;

/// A measured rate below this is not believed: the bound would stop all work.
const LEAST_REPLAY_RATE: u64 = 4 << 20;
/// Parts in which the pages are written, between which the pace is checked.
const STEPS: u64 = 32;
/// Failures in a row, of attempts that may be repeated, after which the log is poisoned.
const MAX_FAILURES: u32 = 10;
/// Time until the next attempt where there is no room for what pins the log.
const FULL: Duration = Duration::from_secs(1);
/// Checkpoints tried while closing, when groups are still being appended.
const CLOSING_TRIES: u32 = 5;

/// What a checkpoint came to.
struct Made {
    /// Redo begins at its T.
    at_t: bool,
    /// Why it does not: what the log alone holds has no room, or belongs to what is damaged.
    pinned: Option<Error>,
}

/// The pages, as checkpoints see them.
pub trait CheckpointPages: Send + Sync {
    /// Writes every page whose first unflushed change is below `t`.
    fn flush_older_than(&self, t: Lsn) -> Result<()>;
    /// Smallest first-change LSN over the dirty pages.
    fn oldest_dirty(&self) -> Option<Lsn>;
    /// Every page written so far survives a power cut from here on.
    fn sync(&self) -> Result<()>;
}

/// A part of the engine, such as an index, with changes that only the log and memory hold, other than dirty pages.
pub trait LogNeeds: Send + Sync {
    /// Makes changes before `t` durable elsewhere, as far as they pin the log. Called by each checkpoint after T was
    /// taken; the log may be full. What cannot be written for want of room, or since what it goes to is damaged, stays
    /// in the log, and holds up nothing else.
    fn settle(&self, t: Lsn) -> Result<()> {
        let _ = t;
        Ok(())
    }

    /// Where the oldest of them begins in the log; `None`: there is none. Asked by each checkpoint after T was taken
    /// and the pages were synced: a change counts from before its group has its place in the log until it is durable
    /// elsewhere.
    fn oldest_lsn_needed(&self) -> Option<Lsn>;
}

/// What is done around each checkpoint by who waited for it, in the thread that made it.
pub trait AfterCheckpoint: Send + Sync {
    /// A checkpoint begins: T is taken after this returns.
    fn begins(&self);
    /// The checkpoint that began last is complete: redo begins at its T or later. Not called when somebody still needs
    /// older log.
    fn completed(&self);
}

/// How checkpoints are made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointConfig {
    /// Most time that recovery may take.
    pub recovery_bound: Duration,
    /// Time over which the writes of an unhurried checkpoint are spread.
    pub spread: Duration,
}

impl Default for CheckpointConfig {
    fn default() -> CheckpointConfig {
        CheckpointConfig { recovery_bound: Duration::from_secs(10), spread: Duration::from_secs(2) }
    }
}

/// What checkpoints did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckpointStats {
    /// Checkpoints completed.
    pub completed: u64,
    /// Attempts that failed.
    pub failed: u64,
    /// Nanoseconds of the last one.
    pub last_ns: u64,
    /// Nanoseconds since the last one was complete; since the database was opened when there was none.
    pub age_ns: u64,
    /// Bytes of log that recovery may have to redo: the recovery bound at the replay rate.
    pub redo_budget: u64,
}

/// Makes checkpoints.
pub struct Checkpointer {
    log: Arc<Log>,
    pages: Arc<dyn CheckpointPages>,
    cfg: CheckpointConfig,
    after: Option<Arc<dyn AfterCheckpoint>>,
    needs: Option<Arc<dyn LogNeeds>>,
    running: Mutex<()>,
    /// T of each checkpoint whose pages are durable, from which on redo cannot begin yet: ascending.
    held_back: Mutex<Vec<Lsn>>,
    /// Callers that want the running checkpoint to hurry.
    hurry: AtomicU64,
    stop: AtomicBool,
    /// Set to cut short a wait between two steps.
    woken: Event,
    daemon: Mutex<Option<JoinHandle<()>>>,
    completed: AtomicU64,
    failed: AtomicU64,
    last_ns: AtomicU64,
    /// When the last one was complete, or this was made: [`varve_rt::Instant`] in nanoseconds.
    last_at: AtomicU64,
}

impl Checkpointer {
    /// A checkpointer; nothing runs before [`Checkpointer::start`]. Sets the log's age limits from the recovery bound
    /// and the replay rate measured at the last recovery.
    pub fn new(log: Arc<Log>, pages: Arc<dyn CheckpointPages>, cfg: CheckpointConfig) -> Arc<Checkpointer> {
        Checkpointer::with(log, pages, cfg, None, None)
    }

    /// As [`Checkpointer::new`], with something that is told of each checkpoint, and somebody who is asked what log is
    /// needed besides that of the dirty pages.
    pub fn with(
        log: Arc<Log>,
        pages: Arc<dyn CheckpointPages>,
        cfg: CheckpointConfig,
        after: Option<Arc<dyn AfterCheckpoint>>,
        needs: Option<Arc<dyn LogNeeds>>,
    ) -> Arc<Checkpointer> {
        let zero = || AtomicU64::new(0);
        let this = Checkpointer {
            log,
            pages,
            cfg,
            after,
            needs,
            running: Mutex::new(()),
            held_back: Mutex::default(),
            hurry: zero(),
            stop: AtomicBool::new(false),
            woken: Event::new(),
            daemon: Mutex::new(None),
            completed: zero(),
            failed: zero(),
            last_ns: zero(),
            last_at: AtomicU64::new(now().as_nanos()),
        };
        this.log.set_redo_budget(this.redo_budget());
        Arc::new(this)
    }

    /// Bytes of log that recovery may have to redo within the bound.
    pub fn redo_budget(&self) -> u64 {
        let rate = self.log.expected_replay_rate().max(LEAST_REPLAY_RATE);
        (rate as f64 * self.cfg.recovery_bound.as_secs_f64()) as u64
    }

    /// Starts the daemon that makes checkpoints when the log asks for them.
    pub fn start(self: &Arc<Self>) -> Result<()> {
        let this = self.clone();
        self.stop.store(false, Ordering::Release);
        let life = move || {
            role::set(Role::Checkpointer);
            this.run()
        };
        let daemon = self.log.health().spawn("checkpointer", life)?;
        let before = self.daemon.lock().replace(daemon);
        assert!(before.is_none(), "one checkpointer runs at a time");
        Ok(())
    }

    /// Tells the daemon to end after the checkpoint it may be making; waits for nothing.
    pub fn end(&self) {
        self.stop.store(true, Ordering::Release);
        self.woken.set();
        self.log.checkpoint_wanted().set();
    }

    /// Ends the daemon, after the checkpoint it may be making, and waits for it.
    pub fn stop(&self) {
        self.end();
        let daemon = self.daemon.lock().take();
        Health::join(daemon);
    }

    /// Makes a checkpoint now, at full speed: on return, recovery needs no log from before the call.
    pub fn checkpoint(&self) -> Result<()> {
        self.alone(|| self.make(false, true)).and_then(|made| made.pinned.map_or(Ok(()), Err))
    }

    /// Runs `f` while nobody else makes a checkpoint, and lets it make one that leaves what only the log and memory
    /// hold where it is: false when redo cannot begin at it for that.
    pub fn with_checkpoint<R>(&self, f: impl FnOnce(&dyn Fn() -> Result<bool>) -> R) -> R {
        self.alone(|| f(&|| self.make(false, false).map(|made| made.at_t)))
    }

    fn alone<R>(&self, f: impl FnOnce() -> R) -> R {
        self.hurry.fetch_add(1, Ordering::AcqRel);
        self.woken.set();
        let result = {
            let _running = self.running.lock();
            role::with(Role::Checkpointer, f)
        };
        let hurrying = self.hurry.fetch_sub(1, Ordering::AcqRel);
        assert!(hurrying > 0, "who hurried a checkpoint was counted");
        result
    }

    /// Ends checkpointing: stops the daemon, makes a last checkpoint and records a clean close in the log. No group may
    /// be appended any more; a few that still are get another checkpoint.
    pub fn close(&self) -> Result<()> {
        self.stop();
        for _ in 0..CLOSING_TRIES {
            self.checkpoint()?;
            if self.log.close_clean()? {
                return Ok(());
            }
        }
        Err(Error::Invalid("the database is still being written to: end all transactions before closing it".into()))
    }

    /// Ends checkpointing where what only the log and memory hold cannot be put into pages: all else is written, the
    /// log is durable, and the next opening recovers the rest from it.
    pub fn leave(&self) -> Result<()> {
        self.stop();
        self.with_checkpoint(|make| make())?;
        let end = self.log.end_lsn();
        self.log.wait_durable(end)
    }

    /// What was done so far.
    pub fn stats(&self) -> CheckpointStats {
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let (completed, failed, last_ns) = (get(&self.completed), get(&self.failed), get(&self.last_ns));
        let age_ns = now().as_nanos().saturating_sub(get(&self.last_at));
        CheckpointStats { completed, failed, last_ns, age_ns, redo_budget: self.redo_budget() }
    }

    fn run(&self) {
        let mut failures = 0;
        while !self.stopping() {
            self.log.checkpoint_wanted().wait();
            if self.stopping() || self.log.poisoned().is_some() {
                break;
            }
            self.log.checkpoint_wanted().reset();
            // The log's device was measured since, as the log grew.
            self.log.set_redo_budget(self.redo_budget());
            if !self.log.needs_checkpoint() {
                continue;
            }
            let result = {
                let _running = self.running.lock();
                self.make(true, true)
            };
            match result {
                Ok(Made { pinned: None, .. }) => failures = 0,
                Ok(_) => {
                    // A full device has not failed: the next one may find room.
                    failures = 0;
                    self.woken.reset();
                    self.woken.wait_for(FULL);
                    self.log.checkpoint_wanted().set();
                }
                Err(e) => {
                    failures += 1;
                    if failures >= MAX_FAILURES {
                        self.log.poison(&format!("checkpoint failed {failures} times, lastly: {e}"));
                        break;
                    }
                    self.woken.reset();
                    self.woken.wait_for(Duration::from_millis(50 << failures.min(6)));
                    self.log.checkpoint_wanted().set();
                }
            }
        }
    }

    fn stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire) || varve_rt::dying()
    }

    fn hurried(&self) -> bool {
        self.hurry.load(Ordering::Acquire) > 0 || self.log.is_urgent() || self.stopping()
    }

    fn make(&self, paced: bool, settle: bool) -> Result<Made> {
        let began = now();
        let result = self.attempt(paced, settle);
        match &result {
            Ok(Made { pinned: None, .. }) => {
                self.completed.fetch_add(1, Ordering::Relaxed);
                self.last_at.store(now().as_nanos(), Ordering::Relaxed);
                self.last_ns.store(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
            }
            _ => {
                self.failed.fetch_add(1, Ordering::Relaxed);
            }
        }
        result
    }

    fn attempt(&self, paced: bool, settle: bool) -> Result<Made> {
        if let Some(why) = self.log.poisoned() {
            return Err(Error::Poisoned(why.to_string()));
        }
        self.after.as_ref().inspect(|after| after.begins());
        debug_assert!(self.running.is_locked(), "one checkpoint runs at a time");
        let t = self.log.begin_checkpoint();
        assert!(t >= self.log.completed_redo(), "a checkpoint begins at or after the redo point");
        if paced {
            self.flush_paced(t)?;
            self.log.faults().pass(Place::Checkpointer);
        }
        // What it writes is older than T in part: so before the pages.
        let pinned = match self.needs.as_ref().filter(|_| settle).map_or(Ok(()), |needs| needs.settle(t)) {
            // It stays in the log; all else is written.
            Err(why) if why.holds_up_a_part() => Some(why),
            settled => settled.map(|()| None)?,
        };
        if !self.log.faults().has(Mistake::CheckpointSkipsPages) {
            self.pages.flush_older_than(t)?;
        }
        // A freed page is dropped without being written, before the group that freed it is durable: that group has to
        // be before the log that made the page goes.
        self.log.wait_durable(self.log.end_lsn())?;
        if !self.log.faults().has(Mistake::SkipSuperblockFlush) {
            // Never repeated and believed: after a failed sync nobody knows which pages are on media.
            self.pages.sync().inspect_err(|e| self.log.poison(&format!("sync of the pages: {e}")))?;
            // Somebody else may have been told of a page that this sync should have made durable.
            self.log.check_sound()?;
        }
        let faults = self.log.faults();
        let redo = match () {
            _ if faults.has(Mistake::RedoFromFirstChange) => self.pages.oldest_dirty().unwrap_or(self.log.end_lsn()),
            _ if faults.has(Mistake::RedoAtCompletion) => self.log.end_lsn(),
            _ => t,
        };
        let point = self.redo_point(redo);
        assert!(point.is_none_or(|point| point <= redo), "redo does not begin after the pages that are written");
        let forward = point.is_none_or(|point| point >= self.log.completed_redo());
        assert!(forward || faults.has(Mistake::RedoFromFirstChange), "the redo point never goes back");
        self.log.complete_checkpoint(point.unwrap_or_else(|| self.log.completed_redo()))?;
        if point == Some(redo) {
            self.after.as_ref().inspect(|after| after.completed());
        }
        if settle {
            self.log.note_pinned(pinned.clone());
        }
        Ok(Made { at_t: point == Some(redo), pinned })
    }

    /// The latest T, this checkpoint's or that of one before, from which on the log has all that is needed; `None`: the
    /// redo point is where it has to stay. Nothing between two of them will do: of a page that changed after a T, the
    /// log has the first change as an image.
    fn redo_point(&self, t: Lsn) -> Option<Lsn> {
        let needed = self.needs.as_ref().and_then(|needs| needs.oldest_lsn_needed());
        let mut held_back = self.held_back.lock();
        let ascends = held_back.last().is_none_or(|last| *last <= t);
        assert!(
            ascends || self.log.faults().has(Mistake::RedoFromFirstChange),
            "checkpoints begin one after the other"
        );
        held_back.push(t);
        let passed = held_back.partition_point(|&t| needed.is_none_or(|needed| t <= needed));
        held_back.drain(..passed).next_back()
    }

    /// Writes most of what is older than `t` in steps, each when its share of the time, or of the log that may be added
    /// meanwhile, has passed.
    fn flush_paced(&self, t: Lsn) -> Result<()> {
        let Some(oldest) = self.pages.oldest_dirty().filter(|&o| o < t) else { return Ok(()) };
        let (began, age) = (now(), self.log.age());
        let growth = (self.log.hard_age() * 7 / 8).saturating_sub(age).max(1);
        for step in 1..STEPS {
            self.pages.flush_older_than(oldest + (t - oldest) / STEPS * step)?;
            let due = self.cfg.spread * step as u32 / STEPS as u32;
            loop {
                let added = self.log.age().saturating_sub(age);
                let early = due.saturating_sub(began.elapsed());
                self.woken.reset();
                if early.is_zero() || added > growth / STEPS * step || self.hurried() {
                    break;
                }
                self.woken.wait_for(early.min(Duration::from_millis(20)));
            }
        }
        Ok(())
    }
}
