//! Cleaners: the background threads that write dirty pages.
//!
//! *Replacement writes* make coming victims clean: so many threads as configured, over which the instances are spread,
//! woken when free frames run low and at each interval; what they do is the configured `Cleaner`. *Recoverability
//! writes* let the oldest log go: one thread for the pool, at each interval (`adaptive`), unless the cleaner does
//! it. Pages that were set aside are written by as many `drainer` threads, if the victim strategy needs them, and,
//! where their writes failed, by each pass.
//!
//! What a cleaner needs of the pool it declares ([`Needs`]): the pool reads needs, never names. A new cleaner is one
//! file here, one line in `mod` and one in [`REGISTRY`].
//!
//! The threads hold the pool weakly: one that is dropped without [`Pool::stop`] takes them along.
//!
//! Invariants: the threads are started once until they were stopped; each instance has one cleaner (or one for each
//! share of its pages) and one drainer at most.

mod adaptive;
mod drainer;
mod dynamic;
mod eager;
mod fixed;
mod reaper;

pub(super) use reaper::Reaper;

use super::Pool;
#[cfg(feature = "baselines")]
use super::baselines;
use super::config::CleanerConfig;
use super::instance::Instance;
use super::policy::Slot;
use super::writer::Outcome;
use crate::error::Result;
use crate::role::{self, Role};
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;
use varve_device::{Health, Place};
use varve_rt::atomic::{AtomicBool, Ordering::*};
use varve_rt::{Event, JoinHandle, Mutex};
use varve_volume::{CostClass, Lsn, PageId, WriteWhy};

/// What one pass came to.
pub(super) struct Pass {
    /// Pages written.
    pub(super) written: usize,
    /// No write failed.
    pub(super) well: bool,
    /// It wrote, and its instance still has fewer free frames than it should.
    pub(super) low: bool,
}

impl Pass {
    /// One that wrote nothing yet.
    const NONE: Pass = Pass { written: 0, well: true, low: false };

    /// What a writer's work for an instance came to.
    pub(super) fn of(outcome: &Outcome, pool: &Pool, inst: &Instance) -> Pass {
        let low = outcome.written > 0 && inst.lock().free_frames() < pool.config().cleaner.free_low;
        Pass { written: outcome.written, well: outcome.failed == 0, low }
    }

    fn and(self, other: Pass) -> Pass {
        let (written, well) = (self.written + other.written, self.well && other.well);
        Pass { written, well, low: self.low || other.low }
    }
}

/// Replacement writes.
pub(super) trait Cleaner: Send + Sync {
    /// One pass over the instances of a thread; it may wait for the log and for writes, and holds no instance lock
    /// meanwhile.
    fn pass(&self, pool: &Pool, mine: &[Instance]) -> Pass;
}

/// One pass over each instance in turn.
pub(super) fn in_turn(mine: &[Instance], pass: impl FnMut(&Instance) -> Pass) -> Pass {
    mine.iter().map(pass).fold(Pass::NONE, Pass::and)
}

/// What a cleaner needs of the pool. The pool reads it when it is made and when its threads start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    /// The list of the dirty pages that searches for a victim have passed: with the parallel list the cleaner takes
    /// them from there, if the victim strategy has such a list.
    pub passed: bool,
    /// A pass that wrote is followed by the next at once while free frames are below `free_low`.
    pub refill: bool,
    /// Over two devices, threads of its own for the pages that the slow one is to get.
    pub by_class: bool,
    /// Recoverability writes by a thread of their own; else the cleaner sees to the age of the log itself.
    pub paced: bool,
    /// Time between passes; none: what is configured.
    pub every: Option<Duration>,
}

impl Needs {
    /// What most need: passes one after the other until enough frames are free.
    pub const LEAST: Needs = Needs { passed: false, refill: true, by_class: false, paced: true, every: None };
}

/// Which pages the threads of a cleaner write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Share {
    /// All of them.
    Everything,
    /// All but dirty pages of the slow device, whose threads it wakes.
    ButSlow,
    /// Dirty pages of the slow device.
    Slow,
}

/// A cleaner: each file has its own.
pub struct Entry {
    /// Name in configurations and statistics.
    pub name: &'static str,
    /// What it needs of the pool.
    pub needs: Needs,
    /// Makes one for a share of the pages: for all of them unless [`Needs::by_class`]. None: nobody writes in the
    /// background.
    pub(super) make: Option<fn(Share) -> Arc<dyn Cleaner>>,
}

impl Entry {
    /// Whether anybody writes in the background.
    pub fn writes(&self) -> bool {
        self.make.is_some()
    }
}

/// No cleaner: victims are written by who needs them, and checkpoints write the rest.
pub(super) const OFF: Entry = Entry { name: "off", needs: Needs::LEAST, make: None };

/// Every cleaner there is.
pub const REGISTRY: &[Entry] = &[
    fixed::ENTRY,
    #[cfg(feature = "baselines")]
    baselines::fixed56::ENTRY,
    dynamic::ENTRY,
    eager::ENTRY,
    OFF,
];

/// The cleaner of that name.
pub fn find(name: &str) -> Option<&'static Entry> {
    REGISTRY.iter().find(|e| e.name == name)
}

/// What every background thread needs: the pool if it still is there, and how it is told to act or to end.
#[derive(Clone)]
struct Service {
    pool: Weak<Pool>,
    wake: Arc<Event>,
    stop: Arc<AtomicBool>,
    config: CleanerConfig,
}

pub(super) struct Cleaners {
    threads: Mutex<Vec<JoinHandle<()>>>,
    stop: Arc<AtomicBool>,
    /// Wakes the thread of recoverability writes, to end it.
    recoverability: Arc<Event>,
}

impl Cleaners {
    pub(super) fn new() -> Cleaners {
        let (stop, recoverability) = (Arc::new(AtomicBool::new(true)), Arc::new(Event::new()));
        Cleaners { threads: Mutex::new(Vec::new()), stop, recoverability }
    }

    /// Whether the threads have been started and not told to end.
    pub(super) fn running(&self) -> bool {
        !self.stop.load(Acquire)
    }

    /// Tells every thread to end; waits for none.
    pub(super) fn end(&self, instances: &[Instance]) {
        self.stop.store(true, Release);
        self.recoverability.set();
        for inst in instances {
            inst.cleaner.set();
            inst.slow_cleaner.set();
            inst.drainer.set();
        }
    }
}

impl Pool {
    /// Starts the background threads: cleaners and read-ahead. May be called again after [`Pool::stop`], which also
    /// ends those that were started before one was refused.
    pub fn start(self: &Arc<Self>) -> Result<()> {
        let mut threads = self.cleaners.threads.lock();
        assert!(threads.is_empty(), "the pool is started already");
        self.cleaners.stop.store(false, Release);
        self.cleaners.recoverability.reset();
        for (name, life) in self.lives() {
            threads.push(self.gate().health().spawn(name, life)?);
        }
        threads.push(self.start_prefetcher()?);
        Ok(())
    }

    /// The background threads of this configuration, but for read-ahead.
    fn lives(self: &Arc<Self>) -> Vec<(String, Box<dyn FnOnce() + Send>)> {
        let service = |wake: &Arc<Event>| Service {
            pool: Arc::downgrade(self),
            wake: wake.clone(),
            stop: self.cleaners.stop.clone(),
            config: self.config().cleaner.clone(),
        };
        let mut lives: Vec<(String, Box<dyn FnOnce() + Send>)> = Vec::new();
        let by_class = self.config().cleaner.writes_by_class();
        let covered: usize = self.config().parts().map(|part| part.len()).sum();
        assert_eq!(covered, self.instances().len(), "each instance is one cleaner's");
        if let Some(make) = self.config().cleaner.entry().make {
            let cleaner = make(if by_class { Share::ButSlow } else { Share::Everything });
            for (i, mine) in self.config().parts().enumerate() {
                let (service, cleaner) = (service(&self.instances()[mine.start].cleaner), cleaner.clone());
                lives.push((format!("cleaner-{i}"), Box::new(move || run(mine, &service, &*cleaner))));
            }
            if by_class {
                for (i, mine) in self.config().parts().enumerate() {
                    let (service, cleaner) = (service(&self.instances()[mine.start].slow_cleaner), make(Share::Slow));
                    lives.push((format!("cleaner-slow-{i}"), Box::new(move || run(mine, &service, &*cleaner))));
                }
            }
        }
        if self.config().cleaner.entry().writes() && self.config().cleaner.entry().needs.paced {
            let service = service(&self.cleaners.recoverability);
            lives.push(("recoverability".into(), Box::new(move || adaptive::run(&service))));
        }
        let needs = self.config().victim_needs();
        if needs.drainer {
            for (i, mine) in self.config().parts().enumerate() {
                let service = service(&self.instances()[mine.start].drainer);
                lives.push((format!("drainer-{i}"), Box::new(move || drainer::run(mine, &service))));
            }
        }
        if needs.reaper {
            self.reaper.open();
            let (service, reaper) = (service(&self.reaper.wake), self.reaper.clone());
            lives.push(("reaper".into(), Box::new(move || reaper::run(&service, &reaper))));
        }
        lives
    }

    /// Tells the background threads to end; waits for nothing.
    pub fn end(&self) {
        self.cleaners.end(self.instances());
        self.prefetcher.close();
        self.reaper.wake.set();
    }

    /// Ends the background threads and waits for them. Writes nothing beyond what they were writing.
    pub fn stop(&self) {
        self.end();
        let threads = std::mem::take(&mut *self.cleaners.threads.lock());
        Health::join(threads);
        self.close_reaper();
    }

    /// Pulls changes of cost class from the store, with no lock held, and tells the policies.
    pub(super) fn drain_class_changes(&self) {
        let mut changes: Vec<(PageId, CostClass)> = Vec::new();
        self.store().drain_class_changes(&mut changes);
        for (id, class) in changes {
            let inst = self.instance(id);
            let mut lists = inst.lock();
            if let Some(slot) = inst.table.find(&inst.frames, id) {
                inst.set_class(&mut lists, slot, class, None, &self.counters);
            }
        }
    }
}

/// Evicts the page in a frame if it is still clean and unused.
pub(super) fn evict(pool: &Pool, inst: &Instance, slot: Slot) {
    let Some(held) = inst.claim(pool, &mut inst.lock(), slot) else { return };
    pool.empty_victim(&held);
    held.unlatch();
    inst.free(slot);
}

/// The life of a cleaner, for the instances of these numbers.
fn run(mine: Range<usize>, service: &Service, cleaner: &dyn Cleaner) {
    let Service { pool, wake, stop, config } = service;
    role::set(Role::Cleaner);
    // A cleaner that does not refill is woken by the dirty pages that searches pass, or by a search that finds no clean
    // page.
    let refill = config.wake_low && config.entry().needs.refill;
    let mut well = true;
    let mut next = varve_rt::now() + config.interval;
    loop {
        let woken = if well {
            let left = next.duration_since(varve_rt::now());
            // A pass that took longer than the interval is followed by the next at once.
            !left.is_zero() && !wake.wait_for(left)
        } else {
            // After a failed write nobody can hurry the cleaner.
            varve_rt::sleep(config.interval);
            false
        };
        if stop.load(Acquire) {
            return;
        }
        wake.reset();
        let Some(pool) = pool.upgrade() else { return };
        well = pool.failure().is_none();
        if !well {
            continue;
        }
        pool.faults().pass(Place::Cleaner);
        pool.counters.cleaner_passes.inc();
        if woken {
            pool.counters.cleaner_wakes.inc();
        } else {
            next = varve_rt::now() + config.interval;
        }
        if mine.start == 0 {
            pool.drain_class_changes();
        }
        let began = varve_rt::now();
        let mine = &pool.instances()[mine.clone()];
        for inst in mine {
            well &= pool.drain_aside(inst, Lsn::MAX, WriteWhy::Replacement).failed == 0;
        }
        let pass = cleaner.pass(&pool, mine);
        well &= pass.well;
        pool.counters.cleaner_ns.add(began.elapsed().as_nanos() as u64);
        if well && refill && pass.low {
            wake.set();
        }
    }
}
