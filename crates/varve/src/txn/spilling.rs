//! When old values go to scratch pages, and when their runs are merged.
//!
//! Invariants: what is on its way to scratch pages stays in memory, and is found there, until its run can be found;
//! what is charged for a run is released when it goes; one thread merges at a time.

use super::registry::{Live, Lost, SHARE, Snapshots};
use super::runs::{Entry, FAN_IN, Run, RunWriter, merge};
use super::version::VersionPlace;
use crate::budget::Class;
use crate::error::Result;
use crate::space::Core;
use std::sync::Arc;
use varve_device::{Health, Mistake};
use varve_rt::atomic::{AtomicBool, Ordering};
use varve_rt::{JoinHandle, Mutex};
use varve_volume::Lsn;

/// Least bytes of scratch pages that old values may take without a limit of their own: 1 GiB.
const LEAST_DISK: u64 = 1 << 30;

/// The thread that merges runs. There is none while there is nothing to merge.
#[derive(Default)]
pub(super) struct Merger {
    ended: AtomicBool,
    /// The thread, and whether it still looks for work.
    thread: Mutex<(Option<JoinHandle<()>>, bool)>,
}

impl Snapshots {
    /// Runs of old values on scratch pages, if there are any. Asked after the version store was read.
    #[inline]
    pub fn runs(&self) -> Option<Arc<Vec<Arc<Run>>>> {
        (self.run_count.load(Ordering::Acquire) > 0).then(|| self.runs.lock().clone())
    }

    /// Moves old values to scratch pages if they take much memory. Nothing may be latched, and no lock held that others
    /// wait for.
    #[inline]
    pub fn relieve(self: &Arc<Self>, core: &Arc<Core>) {
        if self.in_memory.load(Ordering::Relaxed) >= self.spill_at.load(Ordering::Relaxed) {
            self.relieve_slow(core);
        }
    }

    #[cold]
    fn relieve_slow(self: &Arc<Self>, core: &Arc<Core>) {
        let least = self.budget.limit(Class::Versions) / SHARE;
        while self.in_memory.load(Ordering::Relaxed) >= self.spill_at.load(Ordering::Relaxed) {
            let Some(batch) = self.take_batch(core, least) else { break };
            match self.write(core, &batch) {
                Ok(run) => {
                    self.exchange(core, batch, run);
                    self.spill_at.store(least, Ordering::Relaxed);
                }
                Err(error) => {
                    self.put_back(batch, Lost::Failed(error.to_string().into()));
                    // Not again for each commit.
                    let now = self.in_memory.load(Ordering::Relaxed);
                    self.spill_at.store(now + least, Ordering::Relaxed);
                }
            }
        }
        self.merge_soon(core);
    }

    /// Takes the oldest versions, about so many bytes, as far as scratch pages may take them.
    fn take_batch(&self, core: &Core, bytes: u64) -> Option<Vec<VersionPlace>> {
        let mut live = self.live.lock();
        while self.sweep(&mut live) {}
        let more = bytes.min(live.bytes);
        while !self.has_room(core, more) {
            if !self.evict_oldest(&mut live, Lost::Room) {
                break;
            }
        }
        let (mut batch, mut sum) = (Vec::new(), 0);
        while sum < bytes
            && let Some(place) = live.added.pop_front()
        {
            sum += place.bytes;
            batch.push(place);
        }
        assert!(sum <= live.bytes, "what is taken was counted");
        live.bytes -= sum;
        self.in_memory.store(live.bytes, Ordering::Relaxed);
        (!batch.is_empty()).then_some(batch)
    }

    /// Whether scratch pages may take so many bytes more, which fill whole pages. What a merge under way is going to
    /// write counts as written.
    fn has_room(&self, core: &Core, bytes: u64) -> bool {
        let page = core.page_size() as u64;
        let limit = self.disk_limit.unwrap_or_else(|| (core.store.pages() * page / 4).max(LEAST_DISK));
        self.on_disk.load(Ordering::Relaxed) + bytes + page <= limit
    }

    /// Writes versions to scratch pages.
    fn write(&self, core: &Arc<Core>, batch: &[VersionPlace]) -> Result<Run> {
        let mut order: Vec<&VersionPlace> = batch.iter().collect();
        order.sort_unstable_by(|a, b| (a.keyspace, &*a.key, a.end).cmp(&(b.keyspace, &*b.key, b.end)));
        let (mut writer, mut held) = (RunWriter::new(core), Vec::new());
        for place in order {
            self.versions.with(place, |value, pages| {
                held.extend(pages.map(|pages| (place.end, pages.clone())));
                let (keyspace, key, end) = (place.keyspace, &*place.key, place.end);
                writer.take(&Entry { keyspace, key, end, value });
            });
            writer.end_full_block()?;
        }
        let run = writer.finish(0)?;
        assert!(held.len() <= batch.len() && run.newest() > 0, "a value has its pages once, and an end");
        *run.held.lock() = held;
        Ok(run)
    }

    /// The versions are on scratch pages: they go from memory.
    fn exchange(&self, core: &Core, batch: Vec<VersionPlace>, run: Run) {
        if !core.faults().has(Mistake::VersionsDroppedEarly) {
            self.add_run(&mut self.live.lock(), core, run);
        }
        for place in &batch {
            self.versions.remove(place);
            self.budget.release(Class::Versions, place.bytes);
        }
        self.spilled.fetch_add(batch.len() as u64, Ordering::Relaxed);
    }

    /// The versions could not be written: they stay in memory, and the oldest snapshot pays.
    fn put_back(&self, batch: Vec<VersionPlace>, why: Lost) {
        let mut live = self.live.lock();
        for place in batch.into_iter().rev() {
            live.bytes += place.bytes;
            live.added.push_front(place);
        }
        self.in_memory.store(live.bytes, Ordering::Relaxed);
        self.evict_oldest(&mut live, why);
    }

    fn add_run(&self, live: &mut Live, core: &Core, mut run: Run) {
        assert_eq!(run.size, (0, 0), "a run is charged once");
        run.size = (run.pages() * core.page_size() as u64, run.memory());
        if run.newest() <= live.oldest() || !self.make_room(live, run.size.1) {
            return;
        }
        self.on_disk.fetch_add(run.size.0, Ordering::Relaxed);
        let mut runs = self.runs.lock();
        Arc::make_mut(&mut runs).push(Arc::new(run));
        self.run_count.store(runs.len(), Ordering::Release);
    }

    /// Drops the runs of which a snapshot as of `oldest`, and later ones, need nothing.
    pub(super) fn drop_runs(&self, oldest: Lsn) {
        if self.run_count.load(Ordering::Acquire) > 0 {
            self.remove_runs(|run| run.newest() <= oldest);
        }
    }

    /// Removes runs; how many.
    fn remove_runs(&self, gone: impl Fn(&Arc<Run>) -> bool) -> usize {
        let mut runs = self.runs.lock();
        let (dropped, stay): (Vec<_>, Vec<_>) = runs.iter().cloned().partition(|run| gone(run));
        if dropped.is_empty() {
            return 0;
        }
        for run in &dropped {
            let before = self.on_disk.fetch_sub(run.size.0, Ordering::Relaxed);
            assert!(before >= run.size.0, "the pages of a run were counted");
            self.budget.release(Class::Versions, run.size.1);
        }
        self.run_count.store(stay.len(), Ordering::Release);
        *runs = Arc::new(stay);
        dropped.len()
    }

    /// Runs that are to be merged, if scratch pages have room for a copy of them, and for what spills meanwhile.
    fn to_merge(&self, core: &Core) -> Option<Vec<Arc<Run>>> {
        let runs = self.runs()?;
        let most = runs.iter().map(|run| run.level).max()?;
        let of = |level| runs.iter().filter(move |run| run.level == level);
        let level = (0..=most).find(|level| of(*level).count() >= FAN_IN)?;
        let chosen: Vec<_> = of(level).take(FAN_IN).cloned().collect();
        assert_eq!(chosen.len(), FAN_IN, "as many were counted");
        let spill = self.budget.limit(Class::Versions) / SHARE;
        self.has_room(core, size(&chosen) + spill).then_some(chosen)
    }

    /// Has runs merged if there are many.
    fn merge_soon(self: &Arc<Self>, core: &Arc<Core>) {
        if self.to_merge(core).is_none() {
            return;
        }
        let mut thread = self.merger.thread.lock();
        if thread.1 || self.merger.ended.load(Ordering::Acquire) {
            return;
        }
        Health::join(thread.0.take());
        let (this, core) = (self.clone(), core.clone());
        let health = core.log.health().clone();
        // Without a thread runs stay as they are: reading them takes longer.
        let Ok(handle) = health.spawn("version-merger", move || this.merge_all(&core)) else { return };
        *thread = (Some(handle), true);
    }

    fn merge_all(&self, core: &Arc<Core>) {
        let on = || !self.merger.ended.load(Ordering::Acquire) && self.open() > 0 && !varve_rt::dying();
        while on()
            && let Some(runs) = self.set_out(core)
        {
            match merge(core, &runs, self.oldest(), &on) {
                Ok(merged) if on() => self.exchange_runs(core, &runs, merged),
                // The next that is written asks again.
                _ => {
                    self.on_disk.fetch_sub(size(&runs), Ordering::Relaxed);
                    break;
                }
            }
        }
        let merging = std::mem::take(&mut self.merger.thread.lock().1);
        assert!(merging, "one thread merges at a time");
    }

    /// Chooses runs to be merged, and counts their copy as written.
    fn set_out(&self, core: &Core) -> Option<Vec<Arc<Run>>> {
        // Who spills looks for room under the same lock.
        let _live = self.live.lock();
        let runs = self.to_merge(core)?;
        self.on_disk.fetch_add(size(&runs), Ordering::Relaxed);
        Some(runs)
    }

    /// Puts a merged run in the place of those that it was made of.
    fn exchange_runs(&self, core: &Core, runs: &[Arc<Run>], merged: Option<Run>) {
        let mut live = self.live.lock();
        let oldest = live.oldest();
        let copy = self.on_disk.fetch_sub(size(runs), Ordering::Relaxed);
        assert!(copy >= size(runs), "the copy was counted");
        if let Some(merged) = merged {
            debug_assert!(merged.pages() * core.page_size() as u64 <= size(runs), "a copy takes no more than they did");
            let held = runs.iter().flat_map(|run| run.held.lock().clone()).filter(|(end, _)| *end > oldest);
            *merged.held.lock() = held.collect();
            self.add_run(&mut live, core, merged);
        }
        self.remove_runs(|run| runs.iter().any(|old| Arc::ptr_eq(old, run)));
    }

    /// Nothing is merged any more; waits for nothing.
    pub fn end_merging(&self) {
        self.merger.ended.store(true, Ordering::Release);
    }

    /// The same; nobody does it any more.
    pub fn stop_merging(&self) {
        self.end_merging();
        let thread = self.merger.thread.lock().0.take();
        Health::join(thread);
    }
}

/// Bytes of scratch pages of some runs.
fn size(runs: &[Arc<Run>]) -> u64 {
    runs.iter().map(|run| run.size.0).sum()
}
