//! `lru-2`: O'Neil, O'Neil, Weikum, "The LRU-K Page Replacement Algorithm for Database Disk Buffering", SIGMOD 1993, K
//! = 2.
//!
//! The page whose last but one reference is the longest ago leaves. Pages with one known reference leave before all
//! others, the oldest first. Time is counted in references. References within the correlated reference period of the
//! page's last one count as one with it, and a page within that period leaves only when every other is refused. What is
//! known of a page that left is kept as [`History`] says. The order is kept in a tree, so operations are O(log slots).

use super::ghosts::Ghosts;
use super::slots::Slots;
use super::{Ask, Load, Replacement, Slot, Unlink};
use std::collections::BTreeSet;
use std::ops::Bound;
use varve_volume::{CostClass, PageId};

/// What a policy knows of pages that are not resident.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum History {
    /// Nothing.
    Resident,
    /// The pages that left last, at most this many per slot (rounded up).
    PerSlot(f64),
    /// Every page that ever left; memory grows without bound.
    Full,
}

impl History {
    pub(super) fn per_slot(&self) -> f64 {
        match self {
            History::Resident => 0.0,
            History::PerSlot(n) => *n,
            History::Full => f64::INFINITY,
        }
    }

    pub(super) fn limit(&self, slots: usize) -> usize {
        match self {
            History::Resident => 0,
            History::PerSlot(n) => (slots as f64 * n).ceil() as usize,
            History::Full => usize::MAX,
        }
    }
}

/// Options of `lru-2`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lru2Options {
    /// References after a page's last one within which another counts as the same.
    pub correlated: u64,
    /// What is known of pages that left; two per slot by default.
    pub history: History,
}

impl Default for Lru2Options {
    fn default() -> Lru2Options {
        Lru2Options { correlated: 0, history: History::PerSlot(2.0) }
    }
}

#[derive(Clone, Copy, Default)]
struct Page {
    id: PageId,
    present: bool,
    /// Time of the last but one uncorrelated reference; 0 = not known.
    second: u64,
    /// Time of the last uncorrelated reference.
    first: u64,
    /// Time of the last reference.
    last: u64,
}

type Key = (u64, u64, Slot);

pub(super) struct Lru2 {
    options: Lru2Options,
    limit: usize,
    time: u64,
    pages: Slots<Page>,
    order: BTreeSet<Key>,
    ghosts: Ghosts,
    /// Where the last walk ended.
    cursor: Option<Key>,
}

impl Lru2 {
    pub(super) fn new(slots: usize, options: Lru2Options) -> Lru2 {
        Lru2 {
            limit: options.history.limit(slots),
            options,
            time: 0,
            pages: Slots::new(slots),
            order: BTreeSet::new(),
            ghosts: Ghosts::default(),
            cursor: None,
        }
    }

    fn key(&self, slot: Slot) -> Key {
        let page = &self.pages[slot];
        (page.second, page.first, slot)
    }

    /// Puts a page in its place; one that is colder than the cursor makes the next walk begin at the cold end.
    fn put(&mut self, slot: Slot) {
        let key = self.key(slot);
        let new = self.order.insert(key);
        assert!(new, "slot {slot} is in the order already");
        self.cursor = self.cursor.filter(|at| *at < key);
    }

    /// Whether the page is within its correlated reference period at the next reference.
    fn correlated(&self, slot: Slot) -> bool {
        self.time + 1 - self.pages[slot].last <= self.options.correlated
    }
}

impl Replacement for Lru2 {
    fn load(&mut self, slot: Slot, page: PageId, _how: Load, _class: CostClass, _now: u64) {
        self.time += 1;
        let second = self.ghosts.remove(page).unwrap_or(0);
        assert!(second < self.time, "what is remembered of a page came before it does");
        self.ghosts.trim(self.limit);
        self.pages[slot] = Page { id: page, present: true, second, first: self.time, last: self.time };
        self.put(slot);
    }

    fn hit(&mut self, slot: Slot, _now: u64) {
        self.time += 1;
        let page = self.pages[slot];
        assert!(page.present && page.last < self.time, "a page that is used is there, and was used before");
        if self.time - page.last > self.options.correlated {
            let found = self.order.remove(&self.key(slot));
            assert!(found, "slot {slot} is in the order");
            // The paper's HIST(1) + (LAST - HIST(1)): the period of correlated references counts as no time.
            self.pages[slot] = Page { second: page.last, first: self.time, ..page };
            self.put(slot);
        }
        self.pages[slot].last = self.time;
    }

    fn unlink(&mut self, slot: Slot, how: Unlink) {
        let found = self.order.remove(&self.key(slot));
        assert!(found, "slot {slot} holds no page");
        let page = &mut self.pages[slot];
        assert!(page.present, "a page that leaves is there");
        page.present = false;
        if how == Unlink::Evicted && self.limit > 0 {
            self.ghosts.push(page.id, page.first);
        }
    }

    fn victim(&mut self, ask: Ask, take: &mut dyn FnMut(Slot) -> bool) -> Option<Slot> {
        let from = self.cursor.filter(|_| ask.resume).map_or(Bound::Unbounded, Bound::Excluded);
        let passes: &[bool] = if self.options.correlated > 0 { &[false, true] } else { &[false] };
        let (mut left, mut last) = (ask.depth, None);
        for &want in passes {
            for &key in self.order.range((from, Bound::Unbounded)) {
                if self.correlated(key.2) != want {
                    continue;
                }
                if left == 0 {
                    self.cursor = last;
                    return None;
                }
                (left, last) = (left - 1, Some(key));
                if take(key.2) {
                    self.cursor = last;
                    return Some(key.2);
                }
            }
        }
        self.cursor = None;
        None
    }

    fn coldest(&self, depth: usize, visit: &mut dyn FnMut(Slot) -> bool) {
        let pass = |want| self.order.iter().map(|k| k.2).filter(move |slot| self.correlated(*slot) == want);
        pass(false).chain(pass(true)).take(depth).all(visit);
    }

    fn rewind(&mut self) {
        self.cursor = None;
    }

    fn len(&self) -> usize {
        self.order.len()
    }

    fn check(&self) {
        self.ghosts.check();
        assert_eq!(self.pages.written().filter(|(_, p)| p.present).count(), self.order.len(), "pages in the order");
        for (slot, page) in self.pages.written().filter(|(_, p)| p.present) {
            assert!(self.order.contains(&self.key(slot as Slot)), "slot {slot} in the order");
            assert!(page.second < page.first && page.first <= page.last && page.last <= self.time, "times of {slot}");
        }
        assert!(self.ghosts.len() <= self.limit.saturating_add(self.pages.slots() - self.len()), "ghosts");
    }
}
