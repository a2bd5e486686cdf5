//! Pages of old values, which open snapshots still read, and of segments that were dropped, which somebody may read.
//!
//! The group that replaced such a value, or dropped the segment, has marked the pages as free, and after a crash, when
//! there are no readers, they are. Until the last reader that needs them is gone they count as taken in memory, so
//! nobody is given them and the store is not told.
//!
//! The code that lets go of them may hold latches, or be a destructor, so it only notes that they are not needed any
//! more. Their frames are dropped, and the pages are free, when pages are next set aside.
//!
//! Invariant: a page that is held, or was let go and is not free yet, counts as taken.

use super::Core;
use super::Space;
use crate::runs::Runs;
use std::sync::Arc;
use varve_rt::atomic::Ordering::*;
use varve_volume::PageId;

/// Pages that are kept from use; dropped, they will be free.
pub(crate) struct HeldPages {
    core: Arc<Core>,
    pages: Runs,
}

impl HeldPages {
    /// The pages were freed by a group that is in the log. Called instead of [`Space::freed`]; latches may be held.
    pub(crate) fn new(core: &Arc<Core>, pages: &[PageId]) -> HeldPages {
        core.space.state.lock().unripe.freed(pages);
        HeldPages { core: core.clone(), pages: pages.iter().copied().collect() }
    }

    /// The same of a segment's pages. Other segments get them without a checkpoint (`ripe.rs` has the proof), so the
    /// group has to be durable before what is returned is dropped.
    pub(crate) fn of_segment(core: &Arc<Core>, pages: &[PageId]) -> HeldPages {
        core.space.state.lock().unripe.freed_of_segment(pages);
        HeldPages { core: core.clone(), pages: pages.iter().copied().collect() }
    }

    /// Bytes of memory that this takes beside itself.
    pub(crate) fn memory(&self) -> usize {
        self.pages.memory()
    }
}

impl Drop for HeldPages {
    fn drop(&mut self) {
        if !varve_rt::dying() {
            let pages = std::mem::take(&mut self.pages);
            let mut state = self.core.space.state.lock();
            state.let_go.push(pages);
            self.core.space.has_let_go.store(true, Release);
        }
    }
}

impl Space {
    /// Makes the pages free that nobody holds any more. No latch may be held.
    pub(crate) fn free_let_go(&self) {
        // What is let go after this look finds the next one.
        if !self.has_let_go.load(Acquire) {
            return;
        }
        let let_go = {
            let mut state = self.state.lock();
            self.has_let_go.store(false, Release);
            std::mem::take(&mut state.let_go)
        };
        for pages in let_go {
            self.unused(&pages.iter().collect::<Vec<_>>(), false);
        }
    }
}
