//! Which pages are taken, in memory: a bit for each page, and lists of those that are on their way to be free.
//!
//! Invariants: `free` counts the clear bits below `pages`, by zone, and no bit is clear past them; no clear bit of a
//! zone lies in a word below its hint; whatever is reserved, still pinned, or needed by old values counts as taken;
//! every map page is kept in its frame for as long as the space manager lives.

use super::ripe::Unripe;
use super::still::Still;
use super::zones::Zones;
use crate::buffer::KeptPage;
use crate::runs::Runs;
use std::collections::BTreeMap;
use varve_volume::{KeyspaceId, Lsn, PageId};

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
    /// Which pages are for which keyspaces.
    pub(super) zones: Zones,
    /// The zones of keyspaces that are not of the first.
    placed: BTreeMap<u32, usize>,
    /// Clear bits below `pages` in each zone.
    free: Vec<u64>,
    /// No clear bit of a zone lies in a word below this one.
    pub(super) hints: Vec<usize>,
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
    /// What nothing changes, of an array (`still.rs`).
    pub(super) still: Still,
    /// The last page that is in use and past the end of the store, when the map was read.
    pub(super) beyond: Option<PageId>,
}

impl Allocation {
    /// Nothing is there yet.
    pub(super) fn new(zones: Zones, unripe: Unripe) -> Allocation {
        Allocation {
            placed: BTreeMap::new(),
            free: vec![0; zones.len()],
            hints: vec![0; zones.len()],
            zones,
            taken: Vec::new(),
            made: Vec::new(),
            kept: Vec::new(),
            pages: 0,
            pinned: Vec::new(),
            let_go: Vec::new(),
            untrimmed: Vec::new(),
            fixed: Vec::new(),
            kept_free: Vec::new(),
            still: Still::default(),
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

    /// These pages are taken now.
    pub(super) fn count_taken(&mut self, ids: &[PageId]) {
        for id in ids {
            let free = &mut self.free[self.zones.of_page(id.0)];
            assert!(*free > 0, "as many pages are free as are counted");
            *free -= 1;
        }
    }

    /// Pages that are free.
    pub(super) fn free(&self) -> u64 {
        self.free.iter().sum()
    }

    /// Those of a zone.
    pub(super) fn free_in(&self, zone: usize) -> u64 {
        self.free[zone]
    }

    /// A keyspace's pages are of the zone that its name says.
    pub(super) fn place(&mut self, keyspace: KeyspaceId, name: &str) {
        match self.zones.of_name(name) {
            0 => self.placed.remove(&keyspace.0),
            zone => self.placed.insert(keyspace.0, zone),
        };
    }

    /// The zone of a keyspace's pages.
    pub(super) fn zone_of(&self, keyspace: KeyspaceId) -> usize {
        let zone = self.placed.get(&keyspace.0).copied().unwrap_or(0);
        debug_assert!(zone < self.zones.len(), "a keyspace is of a zone that there is");
        zone
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
                self.note_free(id.0);
            }
        }
        assert!(self.free() <= self.pages, "no more pages are free than there are");
    }

    /// A page's bit was cleared.
    fn note_free(&mut self, id: u64) {
        let zone = self.zones.of_page(id);
        self.hints[zone] = self.hints[zone].min(id as usize / 64);
        self.free[zone] += 1;
        debug_assert!(self.free[zone] <= self.zones.pages_before(zone, u64::MAX), "as many are free as there are");
    }

    /// Takes the lowest `n` free pages of a zone.
    pub(super) fn take(&mut self, zone: usize, n: usize) -> Vec<PageId> {
        let mut ids = Vec::with_capacity(n);
        let mut at = self.hints[zone];
        while ids.len() < n {
            let Some(word) = self.taken.get_mut(at) else { break };
            let free = !*word & self.zones.mask(zone, at);
            if free == 0 {
                at += 1;
                continue;
            }
            let bit = free.trailing_zeros();
            *word |= 1 << bit;
            ids.push(PageId(at as u64 * 64 + u64::from(bit)));
        }
        self.hints[zone] = at;
        self.count_taken(&ids);
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
                self.note_free(id);
            }
        }
        self.pages = pages;
        let past = u64::MAX.checked_shl((pages % 64) as u32).filter(|_| !pages.is_multiple_of(64)).unwrap_or(0);
        debug_assert!(self.taken.last().is_none_or(|word| word & past == past), "no bit is clear past the last page");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_are_not_there_are_neither_freed_nor_given_out() {
        let mut allocation = Allocation::new(Zones::one(), Unripe::default());
        allocation.extend(70, |id| id < 3);
        allocation.release(&[1, 69, 70, 127, 4000].map(PageId));
        assert_eq!(allocation.free(), 68, "page 1 is free, page 69 was");
        let given = allocation.take(0, 100);
        assert_eq!((given.len(), given.last(), allocation.free()), (68, Some(&PageId(69)), 0));
    }
}
