//! Giving the end of the store back.
//!
//! The pages past the last one in use are first taken out of the space manager: nobody gets them any more. Then a
//! checkpoint makes redo begin later than that, so that no log that can still be replayed has a change of one of them.
//! Then the store is cut. A crash before the cut leaves a store that is longer than need be, whose pages are free as
//! before.
//!
//! A map page past the cut stays in its frame, pinned as all are; when the store grows back over it, it is logged as
//! new ([`Space::grow`]).
//!
//! Invariants: what is taken out is free, or a map page without pages of its own that names no mark pages; at least
//! [`FIRST_PAGES`] are left.
//!
//! Lock order: `growing` is held throughout, so that nobody grows meanwhile; `trimming` only while pages are taken out,
//! since a checkpoint trims.

use super::Core;
use super::allocation::Allocation;
use super::lost_writes::LostWrites;
use super::{FIRST_PAGES, Reserved, Space};
use crate::error::Result;
use varve_rt::atomic::Ordering;
use varve_volume::{KeyspaceId, PageId};

/// Free pages that are left at the end, as far as there are any: a keyspace can be cleared or dropped, which takes a
/// page or two before it gives any, where the disk has no room for the store to grow.
const SPARE: u64 = 4;

impl Allocation {
    /// Past the last page that is taken and no map.
    pub(super) fn end_in_use(&self, span: u64) -> u64 {
        let in_use = |id: u64| self.is_taken(id) && !id.is_multiple_of(span);
        (0..self.pages).rev().find(|id| in_use(*id)).unwrap_or(0) + 1
    }

    /// Whether there are `n` pages of a zone before `limit` among those that `free` says of each 64.
    fn has_before(&self, zone: usize, limit: PageId, n: u64, free: impl Fn(usize) -> u64) -> bool {
        let words = limit.0.div_ceil(64).min(self.taken.len() as u64) as usize;
        let mut found = 0;
        for i in self.hints[zone]..words {
            let before = limit.0 - i as u64 * 64;
            let mask = if before < 64 { (1 << before) - 1 } else { u64::MAX };
            found += u64::from((free(i) & mask & self.zones.mask(zone, i)).count_ones());
            if found >= n {
                return true;
            }
        }
        n == 0
    }
}

impl Space {
    /// Whether keyspaces have pages of their own.
    pub(crate) fn has_zones(&self) -> bool {
        self.state.lock().zones.len() > 1
    }

    /// The page before which all that is in use would fit of the zone that a keyspace is of.
    pub(crate) fn packed_end(&self, keyspace: KeyspaceId) -> PageId {
        let state = self.state.lock();
        if state.zones.len() > 1 {
            let zone = state.zone_of(keyspace);
            let used = state.zones.pages_before(zone, state.pages) - state.free_in(zone);
            return PageId(state.zones.reach(zone, 0, used).unwrap_or(state.pages));
        }
        let used = (state.pages - state.free()).saturating_sub(state.maps());
        // Of each span, the first page is its map.
        let spans = used / (self.span - 1);
        PageId(spans * self.span + used % (self.span - 1) + 1)
    }

    /// Whether `n` pages before `limit` are free for a keyspace.
    pub(crate) fn has_free_before(&self, keyspace: KeyspaceId, limit: PageId, n: u64) -> bool {
        let state = self.state.lock();
        state.has_before(state.zone_of(keyspace), limit, n, |i| !state.taken[i])
    }

    /// Whether `n` pages before `limit` are free and ripe for a keyspace.
    pub(crate) fn has_ripe_before(&self, keyspace: KeyspaceId, limit: PageId, n: u64) -> bool {
        let state = self.state.lock();
        state.has_before(state.zone_of(keyspace), limit, n, |i| !(state.taken[i] | state.unripe.word(i)))
    }

    /// Sets the lowest page aside that is free for a keyspace, if it lies before `limit`.
    pub(crate) fn reserve_before<'s>(
        &'s self,
        core: &'s Core,
        keyspace: KeyspaceId,
        limit: PageId,
    ) -> Option<Reserved<'s>> {
        let mut state = self.state.lock();
        self.release_unpinned(&mut state);
        let zone = state.zone_of(keyspace);
        if state.free_in(zone) == 0 {
            return None;
        }
        let ids = state.take(zone, 1);
        if ids[0] >= limit {
            state.release(&ids);
            return None;
        }
        Some(Reserved { space: self, log: &core.log, ids })
    }

    /// Cuts the store behind the last page in use and a few to spare; `checkpoint` makes one, and notes how many map
    /// pages are left. Returns the pages there are then.
    pub(crate) fn cut(&self, marks: Option<&LostWrites>, checkpoint: impl FnOnce(u64) -> Result<()>) -> Result<u64> {
        self.free_let_go();
        let _growing = self.growing.lock();
        let end = {
            let _trimming = self.trimming.lock();
            let last = self.map_page(self.maps() - 1);
            marks.map_or_else(|| self.take_out(PageId(0)), |marks| marks.while_placed(last, |end| self.take_out(end)))
        };
        assert!(end <= self.store.pages(), "what is in use lies within the store");
        if end < self.store.pages() {
            checkpoint(self.maps())?;
            self.store.shrink(end)?;
        }
        Ok(self.store.pages())
    }

    /// Takes out the pages past the last one in use and those to spare, from `least` on; gives the first of them. When
    /// the store grows they are free again.
    fn take_out(&self, least: PageId) -> u64 {
        let mut state = self.state.lock();
        self.release_unpinned(&mut state);
        let end = (state.end_in_use(self.span) + SPARE).max(FIRST_PAGES).max(least.0);
        if end >= state.pages {
            return state.pages;
        }
        let goes = |id: u64| !state.is_taken(id) || id.is_multiple_of(self.span);
        debug_assert!((end..state.pages).all(goes), "what is taken out is free, or a map page");
        let free: Vec<PageId> = (end..state.pages).filter(|id| !state.is_taken(*id)).map(PageId).collect();
        state.count_taken(&free);
        state.pages = end;
        state.made.truncate(end.div_ceil(self.span) as usize);
        self.maps.store(state.maps(), Ordering::Release);
        state.taken.truncate(end.div_ceil(64) as usize);
        if !end.is_multiple_of(64) {
            *state.taken.last_mut().expect("pages are left") |= u64::MAX << (end % 64);
        }
        state.untrimmed.retain(|id| id.0 < end);
        assert!(state.made.len() as u64 == end.div_ceil(self.span), "every page that is left is covered by a map page");
        let last = state.taken.len() - 1;
        state.hints.iter_mut().for_each(|hint| *hint = last.min(*hint));
        assert!(state.free() <= state.pages, "no more pages are free than are left");
        end
    }
}
