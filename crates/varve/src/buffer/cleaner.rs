//! Cleaners: the background threads that write dirty pages, one per instance.
//!
//! *Replacement writes*: when free frames run low, and at each interval, the coldest pages are gone through: clean ones are evicted,
//! dirty ones written and then evicted, until the free list has its target length or the scan depth is reached. *Recoverability
//! writes*: the thread of the first instance computes at each interval how many of the oldest changes should be written, from the
//! share of dirty pages and the age of the log (InnoDB's adaptive flushing).
//!
//! The threads hold the pool weakly: one that is dropped without [`Pool::stop`] takes them along.

use super::Pool;
use super::config::{CleanerConfig, CleanerKind};
use super::instance::Instance;
use super::policy::{Slot, Unlink};
use super::pool::LogAge;
use super::writer::{Latch, Writer};
use std::sync::{Arc, Weak};
use std::time::Duration;
use varve_rt::atomic::{AtomicBool, Ordering::*};
use varve_rt::{Event, JoinHandle, Mutex};
use varve_volume::{CostClass, PageId, WriteWhy};

pub(super) struct Cleaners {
    threads: Mutex<Vec<JoinHandle<()>>>,
    pub(super) stop: Arc<AtomicBool>,
}

impl Cleaners {
    pub(super) fn new() -> Cleaners {
        Cleaners { threads: Mutex::new(Vec::new()), stop: Arc::new(AtomicBool::new(false)) }
    }
}

impl Pool {
    /// Starts the background threads: cleaners and read-ahead. May be called again after [`Pool::stop`].
    pub fn start(self: &Arc<Self>) {
        let mut threads = self.cleaners.threads.lock();
        assert!(threads.is_empty(), "the pool is started already");
        self.cleaners.stop.store(false, Release);
        if self.config().cleaner.kind == CleanerKind::Fixed {
            for (i, inst) in self.instances().iter().enumerate() {
                let (pool, wake, stop) = (Arc::downgrade(self), inst.cleaner.clone(), self.cleaners.stop.clone());
                let interval = self.config().cleaner.interval;
                threads.push(varve_rt::spawn_daemon(format!("cleaner-{i}"), move || {
                    run(i, &pool, &wake, &stop, interval)
                }));
            }
        }
        threads.extend(self.start_prefetcher());
    }

    /// Ends the background threads and waits for them. Writes nothing beyond what they were writing.
    pub fn stop(&self) {
        self.cleaners.stop.store(true, Release);
        self.instances().iter().for_each(|inst| inst.cleaner.set());
        self.prefetcher.close();
        let threads = std::mem::take(&mut *self.cleaners.threads.lock());
        for thread in threads {
            if let Err(panicked) = thread.join() {
                assert!(varve_rt::dying(), "a background thread of the pool failed: {panicked}");
            }
        }
    }

    /// One pass over the cold end of an instance; returns the pages written and whether all went well.
    fn replacement_pass(&self, inst: &Instance) -> (usize, bool) {
        let cleaner = &self.config().cleaner;
        let (clean, dirty) = self.coldest(inst, cleaner);
        for slot in clean {
            self.evict_slot(inst, slot);
        }
        let mut writer = Writer::new(self, WriteWhy::Replacement);
        for slot in dirty {
            writer.add(inst, slot, Latch::Skip);
        }
        let outcome = writer.finish();
        (outcome.written, outcome.failed == 0)
    }

    /// The coldest pages of an instance that together would fill its free list: clean ones, dirty ones.
    fn coldest(&self, inst: &Instance, cleaner: &CleanerConfig) -> (Vec<Slot>, Vec<Slot>) {
        let (mut clean, mut dirty) = (Vec::new(), Vec::new());
        let mut lists = inst.lock();
        inst.drain_hits(&mut lists, &self.counters);
        let need = cleaner.free_target.saturating_sub(lists.free.len());
        if need > 0 {
            lists.policy.coldest(cleaner.scan_depth, &mut |slot| {
                let frame = inst.frame(slot);
                if frame.evictable() {
                    clean.push(slot);
                } else if frame.flushable() {
                    dirty.push(slot);
                }
                clean.len() + dirty.len() < need
            });
        }
        (clean, dirty)
    }

    /// Evicts the page in a frame if it is still clean and unused.
    fn evict_slot(&self, inst: &Instance, slot: Slot) {
        if !inst.claim(&mut inst.lock(), slot, Unlink::Evicted) {
            return;
        }
        self.offer(inst, slot);
        self.empty_victim(inst, slot);
        // SAFETY: latched exclusively by `claim`.
        unsafe { inst.frame(slot).latch.unlock_exclusive() };
        inst.free(slot);
    }

    /// Writes of one interval to let the log go, spread over the instances. Returns the pages written.
    fn recoverability_pass(&self, pages: u64) -> usize {
        let n = self.instances().len() as u64;
        let share = pages.div_ceil(n) as usize;
        self.instances().iter().map(|inst| self.flush_oldest(inst, share, WriteWhy::Recoverability).written).sum()
    }

    /// Pulls changes of cost class from the store and tells the policies.
    fn drain_class_changes(&self) {
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

/// A cleaner's life.
fn run(index: usize, pool: &Weak<Pool>, wake: &Event, stop: &AtomicBool, interval: Duration) {
    let mut rate = Rate::default();
    let mut next = varve_rt::now() + interval;
    let mut backoff = false;
    loop {
        let left = next - varve_rt::now();
        // After a failed write nobody can hurry the cleaner.
        let woken = if backoff {
            varve_rt::sleep(left.min(interval));
            false
        } else {
            !wake.wait_for(left)
        };
        if stop.load(Acquire) {
            return;
        }
        wake.reset();
        let Some(pool) = pool.upgrade() else { return };
        if pool.failure().is_some() {
            backoff = true;
            next = varve_rt::now() + interval;
            continue;
        }
        let inst = &pool.instances()[index];
        pool.counters.cleaner_passes.inc();
        if woken {
            pool.counters.cleaner_wakes.inc();
        }
        let (written, well) = pool.replacement_pass(inst);
        backoff = !well;
        if index == 0 {
            pool.drain_class_changes();
        }
        if varve_rt::now() >= next {
            next = varve_rt::now() + interval;
            if index == 0 {
                let pages = rate.pages(&pool, interval);
                rate.done(pool.recoverability_pass(pages), interval);
            }
        }
        if well && written > 0 && inst.lock().free.len() < pool.config().cleaner.free_low {
            wake.set();
        }
    }
}

/// Adaptive flushing: how many pages an interval should write.
#[derive(Default)]
pub(super) struct Rate {
    /// Mean pages per second so far.
    average: f64,
}

impl Rate {
    fn pages(&self, pool: &Pool, interval: Duration) -> u64 {
        let dirty = 100.0 * pool.dirty_pages() as f64 / pool.capacity_frames() as f64;
        let per_second = pages_per_second(&pool.config().cleaner, dirty, pool.gate().age(), self.average);
        (per_second * interval.as_secs_f64()) as u64
    }

    fn done(&mut self, written: usize, interval: Duration) {
        let rate = written as f64 / interval.as_secs_f64().max(1e-3);
        self.average = (self.average + rate) / 2.0;
    }
}

/// InnoDB's adaptive flushing. `dirty` is the share of dirty pages in percent. The dirty term is
/// `100 * dirty / (max_dirty + 1)` above the low-water mark; the log term is `(io_max / io) * age_factor^1.5 / 7.5` with
/// `age_factor = 100 * age / max_age`; the greater one, in percent of `io`, is averaged with the mean so far.
pub(super) fn pages_per_second(c: &CleanerConfig, dirty: f64, age: LogAge, average: f64) -> f64 {
    let (io, io_max) = (f64::from(c.io), f64::from(c.io_max));
    let dirty_term = if dirty >= f64::from(c.low_water) { 100.0 * dirty / (f64::from(c.max_dirty) + 1.0) } else { 0.0 };
    let age_factor = 100.0 * age.bytes_since_redo as f64 / age.capacity.max(1) as f64;
    let log_term = (io_max / io) * age_factor.powf(1.5) / 7.5;
    let wanted = io * dirty_term.max(log_term) / 100.0;
    ((wanted + average) / 2.0).min(io_max)
}
