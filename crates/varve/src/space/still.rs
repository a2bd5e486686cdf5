//! What the volume is told of extents that nothing changes, where it is an array: it is *sealed*, or it changes.
//!
//! Sealed are extents of which
//!
//! - all pages are of segments that are listed. A segment never changes; when one of the pages is free again, the
//!   extent changes.
//! - all pages were filled by one bulk load. Rows may be written there later: then the page's first write breaks the
//!   seal on the array, and nobody tells it again.
//! - every page that is in use is of a keyspace that is read-only, or of a segment. The free pages are kept from use:
//!   nobody writes there.
//!
//! All of that is in memory alone. Whoever opens the database says it again: segments when their lists are read,
//! keyspaces that are read-only by a walk (`db/read_only.rs`), bulk loads from what the last close wrote down
//! (`db/loaded.rs`).
//!
//! Lock order: `telling`, then (released before) `state`.
//!
//! Invariants: the store was told last what is so, since `telling` is held from the look to the last hint; a page that
//! is noted is in use.

use super::Space;
use super::extents::PageSet;
use std::collections::BTreeSet;
use varve_device::Hint;
use varve_volume::PageId;

/// What is known, under the space manager's lock.
#[derive(Default)]
pub(super) struct Still {
    /// Pages of segments that are listed.
    segments: PageSet,
    /// First pages of the extents that bulk loads filled, as long as no page of them was freed.
    loaded: BTreeSet<u64>,
    /// First pages of the extents that are sealed for keyspaces that are read-only.
    read_only: BTreeSet<u64>,
}

impl Still {
    /// These pages are free again: the first pages of the extents that change by that.
    fn forget(&mut self, ids: &[PageId], extent: u64) -> BTreeSet<u64> {
        let mut changing = BTreeSet::new();
        for id in ids {
            let first = id.0 - id.0 % extent;
            let known = self.segments.remove(*id) | self.loaded.remove(&first);
            if known {
                changing.insert(first);
            }
        }
        debug_assert!(ids.iter().all(|id| !self.segments.has(id.0)), "what is free is no segment's");
        changing
    }
}

/// The first pages of the extents of some pages.
fn extents_of(ids: impl Iterator<Item = PageId>, extent: u64) -> BTreeSet<u64> {
    let mut firsts = BTreeSet::new();
    let mut last = None;
    for id in ids {
        let first = id.0 - id.0 % extent;
        // They come run by run.
        if last.replace(first) != Some(first) {
            firsts.insert(first);
        }
    }
    firsts
}

impl Space {
    fn tell(&self, firsts: impl IntoIterator<Item = u64>, extent: u64, hint: Hint) {
        firsts.into_iter().for_each(|first| self.store.hint((PageId(first), PageId(first + extent)), hint));
    }

    /// Segments with these pages are listed, durably, or were when the database was opened.
    pub(crate) fn segments_listed(&self, pages: impl Iterator<Item = PageId>) {
        let Some(extent) = self.store.extent() else { return };
        let _telling = self.telling.lock();
        let sealed: Vec<u64> = {
            let mut state = self.state.lock();
            let (end, still) = (state.pages, &mut state.still);
            // What damage names past the end is nowhere.
            let added = pages.filter(|id| id.0 < end).inspect(|id| still.segments.add(*id));
            let touched = extents_of(added, extent);
            touched.into_iter().filter(|first| still.segments.has_all(*first, first + extent)).collect()
        };
        self.tell(sealed, extent, Hint::Sealed);
    }

    /// A bulk load has filled these pages, and links no more.
    pub(crate) fn loaded(&self, pages: &PageSet) {
        let Some(extent) = self.store.extent() else { return };
        let _telling = self.telling.lock();
        let sealed: Vec<u64> = {
            let mut state = self.state.lock();
            let firsts = (0..state.pages / extent).map(|n| n * extent);
            let sealed: Vec<u64> = firsts.filter(|first| pages.has_all(*first, first + extent)).collect();
            debug_assert!(sealed.iter().all(|first| state.is_taken(*first)), "what was loaded is in use");
            state.still.loaded.extend(&sealed);
            sealed
        };
        self.tell(sealed, extent, Hint::Sealed);
    }

    /// The extents that bulk loads filled, by number, whether they were written since or not.
    pub(crate) fn loaded_extents(&self) -> Vec<usize> {
        let Some(extent) = self.store.extent() else { return Vec::new() };
        let state = self.state.lock();
        state.still.loaded.iter().map(|first| (first / extent) as usize).collect()
    }

    /// Bulk loads filled these extents, and nobody has written them since. Passes over those that cannot be.
    pub(crate) fn still_loaded(&self, extents: &[usize]) {
        let Some(extent) = self.store.extent() else { return };
        let _telling = self.telling.lock();
        let sealed: Vec<u64> = {
            let mut state = self.state.lock();
            let end = state.pages / extent;
            let firsts = extents.iter().map(|n| *n as u64).filter(|n| *n < end).map(|n| n * extent);
            let whole =
                |first: &u64| (*first..first + extent).all(|id| state.is_taken(id) && !state.still.segments.has(id));
            let sealed: Vec<u64> = firsts.filter(whole).collect();
            state.still.loaded.extend(&sealed);
            sealed
        };
        assert!(sealed.len() <= extents.len(), "no more are sealed than were named");
        self.tell(sealed, extent, Hint::Sealed);
    }

    /// Pages were freed, and nobody was given them yet.
    pub(super) fn still_no_more(&self, ids: &[PageId]) {
        let Some(extent) = self.store.extent() else { return };
        let _telling = self.telling.lock();
        let changing = self.state.lock().still.forget(ids, extent);
        self.tell(changing, extent, Hint::Changing);
    }

    /// Seals the extents of which every page that is in use is one of these, of keyspaces that are read-only, or of a
    /// segment, and keeps their free pages from use; says of those that were sealed so before that they change. Returns
    /// how many are sealed, and how many of the pages lie in them.
    pub(crate) fn seal_extents(&self, pages: &PageSet) -> (u64, u64) {
        let Some(extent) = self.store.extent() else { return (0, 0) };
        let _telling = self.telling.lock();
        let (mut sealed, mut inside) = (BTreeSet::new(), 0);
        let changing: Vec<u64> = {
            let mut state = self.state.lock();
            state.let_use();
            // (What the store grows by later is for everybody.)
            for first in (0..state.pages / extent).map(|n| n * extent) {
                let end = first + extent;
                let theirs = (first..end).filter(|id| pages.has(*id)).count() as u64;
                let other = |id: u64| state.is_taken(id) && !pages.has(id) && !state.still.segments.has(id);
                if theirs > 0 && !(first..end).any(other) {
                    let free = state.take_free_of(first, end);
                    state.kept_free.extend(free);
                    sealed.insert(first);
                    inside += theirs;
                }
            }
            let still = &mut state.still;
            let before = std::mem::replace(&mut still.read_only, sealed.clone());
            // Whoever takes the mark back means to write.
            still.loaded.retain(|first| sealed.contains(first) || !before.contains(first));
            before.difference(&sealed).copied().collect()
        };
        assert!(changing.iter().all(|first| !sealed.contains(first)), "an extent is sealed, or it changes");
        self.tell(changing, extent, Hint::Changing);
        self.tell(sealed.iter().copied(), extent, Hint::Sealed);
        (sealed.len() as u64, inside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extent_changes_when_a_page_of_it_is_free_again() {
        let mut still = Still { loaded: [0, 24].into(), ..Still::default() };
        (8..24).for_each(|id| still.segments.add(PageId(id)));
        assert!(still.segments.has_all(8, 24) && !still.segments.has_all(7, 24) && !still.segments.has_all(16, 25));
        let freed = [9, 10, 25, 40].map(PageId);
        assert_eq!(still.forget(&freed, 8), [8, 24].into(), "page 40 was nobody's");
        assert_eq!((still.forget(&freed, 8), still.loaded), (BTreeSet::new(), [0].into()));
        assert!(!still.segments.has_all(8, 16) && still.segments.has_all(16, 24));
    }
}
