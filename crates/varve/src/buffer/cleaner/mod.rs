//! Cleaners: the background threads that write dirty pages.
//!
//! *Replacement writes* make coming victims clean: so many threads as configured, over which the instances are spread, woken when free
//! frames run low and at each interval; what they do is the configured [`Cleaner`]. *Recoverability writes* let the oldest log go: one
//! thread for the pool, at each interval (`adaptive`). A new cleaner is one file here, one line in `mod` and one in [`make`]. Pages that
//! were set aside are written by as many `drainer` threads (WAR), and, where their writes failed, by each pass.
//!
//! The threads hold the pool weakly: one that is dropped without [`Pool::stop`] takes them along.

mod adaptive;
mod drainer;
mod dynamic;
mod fixed;
mod fixed56;
mod reaper;

pub(super) use reaper::Reaper;

use super::Pool;
use super::config::{CleanerConfig, CleanerKind};
use super::instance::Instance;
use super::policy::Slot;
use crate::error::Result;
use crate::role::{self, Role};
use fixed::Fixed;
use std::ops::Range;
use std::sync::{Arc, Weak};
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
}

/// Replacement writes of one instance.
pub(super) trait Cleaner: Send + Sync {
    /// One pass; it may wait for the log and for writes, and holds no instance lock meanwhile.
    fn pass(&self, pool: &Pool, inst: &Instance) -> Pass;
}

fn make(config: &CleanerConfig) -> Option<Arc<dyn Cleaner>> {
    match config.kind {
        CleanerKind::Fixed if config.writes_by_class() => Some(Arc::new(Fixed::ButSlow)),
        CleanerKind::Fixed => Some(Arc::new(Fixed::Everything)),
        CleanerKind::Fixed56 => Some(Arc::new(fixed56::Fixed56)),
        CleanerKind::Dynamic => Some(Arc::new(dynamic::Dynamic)),
        CleanerKind::Off => None,
    }
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
    /// Starts the background threads: cleaners and read-ahead. May be called again after [`Pool::stop`], which also ends those that were
    /// started before one was refused.
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
        if let Some(cleaner) = make(&self.config().cleaner) {
            for (i, mine) in self.config().parts().enumerate() {
                let (service, cleaner) = (service(&self.instances()[mine.start].cleaner), cleaner.clone());
                lives.push((format!("cleaner-{i}"), Box::new(move || run(mine, &service, &*cleaner))));
            }
            if self.config().cleaner.writes_by_class() {
                for (i, mine) in self.config().parts().enumerate() {
                    let service = service(&self.instances()[mine.start].slow_cleaner);
                    lives.push((format!("cleaner-slow-{i}"), Box::new(move || run(mine, &service, &Fixed::Slow))));
                }
            }
            let service = service(&self.cleaners.recoverability);
            lives.push(("recoverability".into(), Box::new(move || adaptive::run(&service))));
        }
        if self.config().victim == "war" {
            for (i, mine) in self.config().parts().enumerate() {
                let service = service(&self.instances()[mine.start].drainer);
                lives.push((format!("drainer-{i}"), Box::new(move || drainer::run(mine, &service))));
            }
        }
        if self.config().victim == "rw" {
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
fn evict(pool: &Pool, inst: &Instance, slot: Slot) {
    let Some(held) = inst.claim(pool, &mut inst.lock(), slot) else { return };
    pool.empty_victim(&held);
    held.unlatch();
    inst.free(slot);
}

/// The life of a cleaner, for the instances of these numbers.
fn run(mine: Range<usize>, service: &Service, cleaner: &dyn Cleaner) {
    let Service { pool, wake, stop, config } = service;
    role::set(Role::Cleaner);
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
        pool.gate().health().pass(Place::Cleaner);
        pool.counters.cleaner_passes.inc();
        if woken {
            pool.counters.cleaner_wakes.inc();
        } else {
            next = varve_rt::now() + config.interval;
        }
        if mine.start == 0 {
            pool.drain_class_changes();
        }
        let mut again = false;
        for inst in &pool.instances()[mine.clone()] {
            let aside = pool.drain_aside(inst, Lsn::MAX, WriteWhy::Replacement);
            let pass = cleaner.pass(&pool, inst);
            well &= pass.well && aside.failed == 0;
            // The dynamic cleaner is called for what the pointer passes, and by who finds no clean page.
            let refill = config.wake_low && config.kind != CleanerKind::Dynamic;
            again |= pass.written > 0 && refill && inst.lock().free.len() < config.free_low;
        }
        if well && again {
            wake.set();
        }
    }
}
