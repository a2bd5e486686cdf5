//! Extents: stretches of pages that lie on one drive each, where the volume is an array.
//!
//! What is loaded in bulk, and segments, get extents of which they have all pages. What the volume is told of extents
//! that nothing changes: `still.rs`.
//!
//! Invariants: a page that is kept from use counts as taken, and the map says that it is free; when the store can grow
//! no more, they are given out like others.

use super::allocation::Allocation;
use super::{Core, PastLog, Space};
use crate::error::{Error, Result};
use varve_volume::PageId;

impl Allocation {
    /// Whether all pages of a range are there, free, and may be written past the log.
    fn is_all_ripe(&self, first: u64, end: u64, whose: PastLog) -> bool {
        let is_ripe = |id: u64| self.unripe.word_for(id as usize / 64, whose) >> (id % 64) & 1 == 0;
        end <= self.pages && (first..end).all(|id| !self.is_taken(id) && is_ripe(id))
    }

    /// Takes the first extent of which all pages are free and may be written past the log.
    fn take_extent(&mut self, extent: u64, whose: PastLog) -> Option<Vec<PageId>> {
        let from = (self.hints[0] as u64 * 64).next_multiple_of(extent);
        let mut firsts = (from..self.pages).step_by(extent as usize);
        let first = firsts.find(|first| self.is_all_ripe(*first, first + extent, whose))?;
        assert!(first.is_multiple_of(extent) && first + extent <= self.pages, "an extent is whole");
        let ids: Vec<PageId> = (first..first + extent).map(PageId).collect();
        ids.iter().for_each(|id| self.taken[id.0 as usize / 64] |= 1 << (id.0 % 64));
        self.count_taken(&ids);
        Some(ids)
    }

    /// The free pages of a range, taken.
    pub(super) fn take_free_of(&mut self, first: u64, end: u64) -> Vec<PageId> {
        let ids: Vec<PageId> = (first..end).filter(|id| !self.is_taken(*id)).map(PageId).collect();
        debug_assert!(ids.last().is_none_or(|last| last.0 < self.pages), "pages that are free are there");
        ids.iter().for_each(|id| self.taken[id.0 as usize / 64] |= 1 << (id.0 % 64));
        self.count_taken(&ids);
        ids
    }

    /// What was kept from use is free again; whether there was anything.
    pub(super) fn let_use(&mut self) -> bool {
        let kept = std::mem::take(&mut self.kept_free);
        debug_assert!(kept.iter().all(|id| self.is_taken(id.0)), "what is kept from use counts as taken");
        self.release(&kept);
        !kept.is_empty()
    }
}

/// Pages, as a set.
#[derive(Default)]
pub(crate) struct PageSet(Vec<u64>);

impl PageSet {
    pub(crate) fn add(&mut self, id: PageId) {
        let at = id.0 as usize / 64;
        if at >= self.0.len() {
            self.0.resize(at + 1, 0);
        }
        self.0[at] |= 1 << (id.0 % 64);
    }

    /// A bit for each page, 64 in a word.
    pub(super) fn into_words(self) -> Vec<u64> {
        self.0
    }

    /// Takes a page out; whether it was in.
    pub(super) fn remove(&mut self, id: PageId) -> bool {
        let word = self.0.get_mut(id.0 as usize / 64);
        word.is_some_and(|word| {
            let had = *word >> (id.0 % 64) & 1 == 1;
            *word &= !(1 << (id.0 % 64));
            had
        })
    }

    pub(super) fn has(&self, id: u64) -> bool {
        self.0.get(id as usize / 64).is_some_and(|word| word >> (id % 64) & 1 == 1)
    }

    /// Whether all pages of a range are in.
    pub(super) fn has_all(&self, first: u64, end: u64) -> bool {
        (first..end).all(|id| self.has(id))
    }
}

impl Space {
    /// Sets the pages of a whole extent aside, ripe ones, in ascending order; none if the volume has no extents, or has
    /// no room for another.
    pub(crate) fn reserve_extent(&self, core: &Core, whose: PastLog) -> Result<Option<Vec<PageId>>> {
        let Some(extent) = self.store.extent() else { return Ok(None) };
        let whose = self.allowed(whose);
        self.free_let_go();
        loop {
            let free = {
                let mut state = self.state.lock();
                self.release_unpinned(&mut state);
                if let Some(ids) = state.take_extent(extent, whose) {
                    return Ok(Some(ids));
                }
                state.free()
            };
            // Of so many new pages one extent at least is whole.
            match self.grow(core, 0, free + 2 * extent) {
                Err(Error::NoSpace(_)) => return Ok(None),
                grown => grown?,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ripe::Unripe;
    use super::super::zones::Zones;
    use super::*;

    #[test]
    fn whole_extents_are_given_out_and_what_is_kept_comes_back() {
        let mut allocation = Allocation::new(Zones::one(), Unripe::default());
        allocation.extend(40, |id| id == 0 || id == 9);
        let ids = allocation.take_extent(8, PastLog::Other).expect("pages 16 to 23 are free");
        assert_eq!((ids[0], ids.len(), allocation.free()), (PageId(16), 8, 30));
        assert_eq!(allocation.take_extent(8, PastLog::Other).map(|ids| ids[0]), Some(PageId(24)));
        assert_eq!(allocation.take_extent(8, PastLog::Other).map(|ids| ids[0]), Some(PageId(32)));
        assert_eq!(allocation.take_extent(8, PastLog::Other), None);
        allocation.release(&ids[2..]);
        allocation.kept_free = allocation.take_free_of(16, 24);
        assert_eq!((allocation.free(), allocation.kept_free.len()), (14, 6));
        assert_eq!(allocation.take(0, 20).len(), 14, "what is kept is nobody's");
        assert!(allocation.let_use() && !allocation.let_use());
        assert_eq!(allocation.free(), 6);
    }
}
