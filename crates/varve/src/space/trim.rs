//! Telling the store which pages hold nothing any more.
//!
//! Told of are pages that are ripe (`ripe.rs`): a crash cannot bring them back. Pages that were used or freed
//! again since the checkpoint began are left to the next one. While the store is told, the pages count as taken, so
//! that no write of a new use overtakes the trim; who finds too few free pages waits for that ([`Space::reserve`]).
//! What is not trimmed yet at a crash stays as it is until the pages are used again.
//!
//! Invariant: a page counts as taken from before the store is told of it until the store has been told.
//!
//! Lock order: `ripe` and `trimming` before the space manager's `state`; the store is told with `trimming` held alone.

use super::Space;
use super::allocation::Allocation;
use varve_rt::HashSet;
use varve_rt::atomic::{AtomicU64, Ordering};
use varve_volume::PageId;

/// Pages that are held back from use at a time, and told in one batch.
const BATCH: usize = 1024;

/// What trimming did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TrimStats {
    /// Pages that the store was told of.
    pub pages: u64,
    /// Runs of neighbouring pages in which it was told.
    pub extents: u64,
    /// Batches that failed; their pages are free all the same.
    pub failed: u64,
}

/// Counters of [`TrimStats`].
#[derive(Default)]
pub(super) struct Counters {
    pages: AtomicU64,
    extents: AtomicU64,
    failed: AtomicU64,
}

impl Space {
    /// What trimming did so far.
    pub(crate) fn trim_stats(&self) -> TrimStats {
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let c = &self.trims;
        TrimStats { pages: get(&c.pages), extents: get(&c.extents), failed: get(&c.failed) }
    }

    /// The pages freed so far that the store was not told of; from here on they are the caller's to remember.
    pub(super) fn take_untrimmed(&self) -> Vec<PageId> {
        std::mem::take(&mut self.state.lock().untrimmed)
    }

    /// Tells the store of ripe pages, in runs of at least `least` (what is in shorter ones is kept for later).
    pub(super) fn trim(&self, mut ids: Vec<PageId>, least: usize) {
        ids.sort_unstable();
        ids.dedup();
        {
            let mut state = self.state.lock();
            let again: HashSet<u64> = state.untrimmed.iter().map(|id| id.0).collect();
            ids.retain(|id| !state.is_taken(id.0) && !again.contains(&id.0));
            let short = ids.chunk_by(|a, b| a.0 + 1 == b.0).filter(|run| run.len() < least).flatten();
            let short: Vec<PageId> = short.copied().collect();
            Space::note_untrimmed(&mut state, &short);
        }
        let runs = ids.chunk_by(|a, b| a.0 + 1 == b.0).filter(|run| run.len() >= least);
        let ids: Vec<PageId> = runs.flatten().copied().collect();
        for batch in ids.chunks(BATCH) {
            let _trimming = self.trimming.lock();
            let batch = self.state.lock().hold_back(batch);
            if batch.is_empty() {
                continue;
            }
            assert!(batch.is_sorted_by(|a, b| a < b), "the store is told of each page once");
            let told = self.store.discard(&batch);
            self.state.lock().release(&batch);
            match told {
                Ok(()) => {
                    let extents = batch.chunk_by(|a, b| a.0 + 1 == b.0).count();
                    self.trims.pages.fetch_add(batch.len() as u64, Ordering::Relaxed);
                    self.trims.extents.fetch_add(extents as u64, Ordering::Relaxed);
                }
                Err(_) => {
                    // A store that cannot be told loses nothing; the next checkpoint finds out whether it still writes.
                    self.trims.failed.fetch_add(1, Ordering::Relaxed);
                    return;
                }
            }
        }
    }
}

impl Allocation {
    /// Takes those of the pages that are free; gives them.
    fn hold_back(&mut self, ids: &[PageId]) -> Vec<PageId> {
        let ids: Vec<PageId> = ids.iter().copied().filter(|id| !self.is_taken(id.0)).collect();
        assert!(ids.iter().all(|id| id.0 < self.pages), "what is held back from use is there");
        for id in &ids {
            self.taken[id.0 as usize / 64] |= 1 << (id.0 % 64);
        }
        self.count_taken(&ids);
        ids
    }
}
