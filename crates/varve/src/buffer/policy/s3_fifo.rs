//! `s3-fifo`: Yang, Zhang, Qiu, Yue, Rashmi, "FIFO queues are all you need for cache eviction", SOSP 2023.
//!
//! A small queue of a tenth of the slots, a main queue for the rest, and a ghost queue that remembers as many pages as
//! the main queue holds. New pages enter the small queue, remembered ones the main queue. Hits are counted up to 3.
//! While the small queue has its share, it gives up its oldest page; pages with at least 2 hits go to the main queue
//! instead, their count cleared. Else the main queue gives up its oldest, reinserting those with hits at one less.
//!
//! Until something is evicted for the first time, pages that find the small queue at its share enter the main queue, as
//! in the authors' own simulator (libCacheSim since December 2024); the paper says nothing about a cache that is not
//! full. Otherwise all pages of the filling phase would have to leave through the small queue. Ghosts: as many as the
//! main queue's share of the slots.

use super::ghosts::Ghosts;
use super::list::{List, NIL};
use super::slots::Slots;
use super::{Ask, Load, Replacement, Slot, Unlink};
use varve_volume::{CostClass, PageId};

/// Hits counted at most.
const MOST: u8 = 3;
/// Hits that take a page from the small queue to the main queue.
const PROMOTE: u8 = 2;
const _: () = assert!(PROMOTE <= MOST, "a page can be used often enough to go to the main queue");
const _: () = assert!(MOST == 3, "the order of candidates names each count of hits");

pub(super) struct S3Fifo {
    /// Share of the small queue, slots.
    share: usize,
    small: List,
    main: List,
    hits: Vec<u8>,
    ghosts: Ghosts,
    pages: Slots<PageId>,
    /// Whether a page was evicted yet.
    evicted: bool,
}

impl S3Fifo {
    pub(super) fn new(slots: usize) -> S3Fifo {
        S3Fifo {
            share: (slots / 10).max(1),
            small: List::new(slots),
            main: List::new(slots),
            hits: vec![0; slots],
            ghosts: Ghosts::default(),
            pages: Slots::new(slots),
            evicted: false,
        }
    }

    fn ghost_limit(&self) -> usize {
        self.pages.slots() - self.share.min(self.pages.slots())
    }

    fn walk_small(&mut self, left: &mut usize, take: &mut dyn FnMut(Slot) -> bool) -> Option<Slot> {
        let mut at = self.small.back();
        while at != NIL && *left > 0 {
            *left -= 1;
            let next = self.small.hotter(at);
            if self.hits[at as usize] >= PROMOTE {
                self.small.remove(at);
                self.main.push_front(at);
                self.hits[at as usize] = 0;
            } else if take(at) {
                return Some(at);
            }
            at = next;
        }
        None
    }

    fn walk_main(&mut self, left: &mut usize, take: &mut dyn FnMut(Slot) -> bool) -> Option<Slot> {
        let mut at = self.main.back();
        while at != NIL && *left > 0 {
            *left -= 1;
            let mut next = self.main.hotter(at);
            if self.hits[at as usize] > 0 {
                self.hits[at as usize] -= 1;
                self.main.move_front(at);
                if next == NIL {
                    next = at;
                }
            } else if take(at) {
                return Some(at);
            }
            at = next;
        }
        None
    }

    fn small_first(&self) -> bool {
        self.small.len() >= self.share
    }
}

impl Replacement for S3Fifo {
    fn load(&mut self, slot: Slot, page: PageId, _how: Load, _class: CostClass, _now: u64) {
        self.pages[slot] = page;
        self.hits[slot as usize] = 0;
        let known = self.ghosts.remove(page).is_some();
        self.ghosts.trim(self.ghost_limit());
        let filling = !self.evicted && self.small.len() >= self.share;
        if known || filling { self.main.push_front(slot) } else { self.small.push_front(slot) }
    }

    fn hit(&mut self, slot: Slot, _now: u64) {
        debug_assert!(self.small.contains(slot) || self.main.contains(slot), "a page that is used is in a queue");
        let hits = &mut self.hits[slot as usize];
        *hits = (*hits + 1).min(MOST);
    }

    fn unlink(&mut self, slot: Slot, how: Unlink) {
        self.evicted |= how == Unlink::Evicted;
        if self.main.contains(slot) {
            self.main.remove(slot);
            return;
        }
        self.small.remove(slot);
        if how == Unlink::Evicted {
            self.ghosts.push(self.pages[slot], 0);
        }
    }

    fn victim(&mut self, ask: Ask, take: &mut dyn FnMut(Slot) -> bool) -> Option<Slot> {
        let mut left = ask.depth;
        if self.small_first() {
            self.walk_small(&mut left, take).or_else(|| self.walk_main(&mut left, take))
        } else {
            self.walk_main(&mut left, take).or_else(|| self.walk_small(&mut left, take))
        }
    }

    fn coldest(&self, depth: usize, visit: &mut dyn FnMut(Slot) -> bool) {
        let small = |promoted| self.small.iter_cold().filter(move |s| (self.hits[*s as usize] >= PROMOTE) == promoted);
        let main = |hits| self.main.iter_cold().filter(move |s| self.hits[*s as usize] == hits);
        let reinserted = || main(1).chain(main(2)).chain(main(3));
        if self.small_first() {
            small(false).chain(main(0)).chain(small(true)).chain(reinserted()).take(depth).all(visit);
        } else {
            main(0).chain(reinserted()).chain(small(false)).chain(small(true)).take(depth).all(visit);
        }
    }

    fn len(&self) -> usize {
        self.small.len() + self.main.len()
    }

    fn check(&self) {
        self.small.check();
        self.main.check();
        self.ghosts.check();
        assert!(self.ghosts.len() <= self.ghost_limit() + self.pages.slots() - self.len(), "ghosts");
        assert!(self.hits.iter().all(|h| *h <= MOST), "hits");
    }
}
