//! Which pages are taken, in memory: a bit for each page, and lists of those that are on their way to be free.
//!
//! Invariants: `free` counts the clear bits below `pages`, and no bit is clear past them; no clear bit lies in a word
//! below `hint`; whatever is reserved, still pinned, or needed by old values counts as taken; every map page is kept in
//! its frame for as long as the space manager lives.

use super::ripe::Unripe;
use crate::buffer::KeptPage;
use crate::runs::Runs;
use varve_volume::{Lsn, PageId};

/// What is taken and what is free, under the space manager's lock.
pub(super) struct Allocation {
    /// A bit per page, set when the page is allocated, reserved, or not there.
    pub(super) taken: Vec<u64>,
    /// The end of the group that made each map page that exists; 0 for those that were there when the database was
    /// opened.
    pub(super) made: Vec<Lsn>,
    /// Keeps the map pages in their frames: those that exist, and those that were cut off since the database was
    /// opened.
    kept: Vec<KeptPage>,
    /// Pages that may be given out: those of the store that a map page covers.
    pub(super) pages: u64,
    /// Clear bits below `pages`.
    pub(super) free: u64,
    /// No clear bit lies in a word below this one.
    pub(super) hint: usize,
    /// Freed pages that somebody still has pinned; they count as taken.
    pub(super) pinned: Vec<PageId>,
    /// Freed pages that old values needed until lately; they count as taken.
    pub(super) let_go: Vec<Runs>,
    /// Free pages that the store has not been told of.
    pub(super) untrimmed: Vec<PageId>,
    pub(super) unripe: Unripe,
    /// Pages that are allocated though no tree uses them: the data device's identity.
    pub(super) fixed: Vec<PageId>,
    /// Free pages that are kept from use (`extents.rs`); they count as taken.
    pub(super) kept_free: Vec<PageId>,
    /// The last page that is in use and past the end of the store, when the map was read.
    pub(super) beyond: Option<PageId>,
}

impl Allocation {
    /// Nothing is there yet.
    pub(super) fn new(unripe: Unripe) -> Allocation {
        Allocation {
            taken: Vec::new(),
            made: Vec::new(),
            kept: Vec::new(),
            pages: 0,
            free: 0,
            hint: 0,
            pinned: Vec::new(),
            let_go: Vec::new(),
            untrimmed: Vec::new(),
            fixed: Vec::new(),
            kept_free: Vec::new(),
            beyond: None,
            unripe,
        }
    }

    /// Map page number `map` is there, made by the group that ends at `made`, and stays in its frame.
    pub(super) fn add_map(&mut self, map: u64, made: Lsn, page: KeptPage) {
        assert_eq!(self.maps(), map, "map pages come one after the other");
        assert!(self.made.last().is_none_or(|last| *last <= made), "map pages are made one after the other");
        self.made.push(made);
        // One that was cut off has been kept, and is there again.
        match self.kept.get_mut(map as usize) {
            Some(kept) => *kept = page,
            None => self.kept.push(page),
        }
        assert!(self.kept.len() >= self.made.len(), "every map page is kept in its frame");
    }

    /// So many pages more are taken.
    pub(super) fn count_taken(&mut self, pages: usize) {
        assert!(self.free >= pages as u64, "as many pages are free as are counted");
        self.free -= pages as u64;
    }

    pub(super) fn is_taken(&self, id: u64) -> bool {
        self.taken.get(id as usize / 64).is_none_or(|w| w >> (id % 64) & 1 == 1)
    }

    /// Map pages that exist.
    pub(super) fn maps(&self) -> u64 {
        self.made.len() as u64
    }

    /// Pages that are not taken, or not there, are passed over: damage can have a tree refer to them, and `check` names
    /// them.
    pub(super) fn release(&mut self, ids: &[PageId]) {
        for id in ids {
            let (at, bit) = (id.0 as usize / 64, 1 << (id.0 % 64));
            let there = id.0 < self.pages;
            if let Some(word) = self.taken.get_mut(at).filter(|word| there && **word & bit != 0) {
                *word &= !bit;
                self.hint = self.hint.min(at);
                self.free += 1;
            }
        }
        assert!(self.free <= self.pages, "no more pages are free than there are");
    }

    /// Takes the lowest `n` free pages.
    pub(super) fn take(&mut self, n: usize) -> Vec<PageId> {
        let mut ids = Vec::with_capacity(n);
        while ids.len() < n {
            let Some(word) = self.taken.get_mut(self.hint) else { break };
            if *word == u64::MAX {
                self.hint += 1;
                continue;
            }
            let bit = word.trailing_ones();
            *word |= 1 << bit;
            ids.push(PageId(self.hint as u64 * 64 + u64::from(bit)));
        }
        self.count_taken(ids.len());
        debug_assert!(ids.last().is_none_or(|id| id.0 < self.pages), "pages are taken that are there");
        ids
    }

    /// Makes the pages up to `pages`, all covered by map pages, available, except those that `taken` names.
    pub(super) fn extend(&mut self, pages: u64, taken: impl Fn(u64) -> bool) {
        assert!(pages >= self.pages, "pages are cut off by a cut alone");
        self.taken.resize(pages.div_ceil(64) as usize, u64::MAX);
        for id in self.pages..pages {
            if !taken(id) {
                self.taken[id as usize / 64] &= !(1 << (id % 64));
                self.hint = self.hint.min(id as usize / 64);
                self.free += 1;
            }
        }
        self.pages = pages;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_are_not_there_are_neither_freed_nor_given_out() {
        let mut allocation = Allocation::new(Unripe::default());
        allocation.extend(70, |id| id < 3);
        allocation.release(&[1, 69, 70, 127, 4000].map(PageId));
        assert_eq!(allocation.free, 68, "page 1 is free, page 69 was");
        let given = allocation.take(100);
        assert_eq!((given.len(), given.last(), allocation.free), (68, Some(&PageId(69)), 0));
    }
}
