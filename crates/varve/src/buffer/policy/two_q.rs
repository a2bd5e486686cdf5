//! `2q`: Johnson, Shasha, "2Q: A Low Overhead High Performance Buffer Management Replacement Algorithm", VLDB 1994,
//! full version.
//!
//! New pages enter `A1in`, a FIFO; a hit there changes nothing. What leaves it is remembered in `A1out` (page numbers
//! only); a page loaded while remembered there enters `Am`, an LRU list. `A1in` gives up its oldest page while it is
//! longer than Kin, else `Am` its least recently used one. Kin = 25 % of the slots, Kout = 50 %, both rounded down.

use super::ghosts::Ghosts;
use super::list::Queue;
use super::slots::Slots;
use super::{Ask, Load, Replacement, Slot, Unlink};
use varve_volume::{CostClass, PageId};

pub(super) struct TwoQ {
    kin: usize,
    kout: usize,
    a1in: Queue,
    am: Queue,
    a1out: Ghosts,
    pages: Slots<PageId>,
}

impl TwoQ {
    pub(super) fn new(slots: usize) -> TwoQ {
        TwoQ {
            kin: slots / 4,
            kout: slots / 2,
            a1in: Queue::new(slots),
            am: Queue::new(slots),
            a1out: Ghosts::default(),
            pages: Slots::new(slots),
        }
    }
}

impl Replacement for TwoQ {
    fn load(&mut self, slot: Slot, page: PageId, _how: Load, _class: CostClass, _now: u64) {
        self.pages[slot] = page;
        let known = self.a1out.remove(page).is_some();
        self.a1out.trim(self.kout);
        if known { self.am.push_front(slot) } else { self.a1in.push_front(slot) }
    }

    fn hit(&mut self, slot: Slot, _now: u64) {
        if self.am.contains(slot) {
            self.am.move_front(slot);
        } else {
            debug_assert!(self.a1in.contains(slot), "a page that is used is in a queue");
        }
    }

    fn unlink(&mut self, slot: Slot, how: Unlink) {
        if self.am.contains(slot) {
            self.am.remove(slot);
            return;
        }
        self.a1in.remove(slot);
        if how == Unlink::Evicted {
            self.a1out.push(self.pages[slot], 0);
        }
    }

    fn victim(&mut self, mut ask: Ask, take: &mut dyn FnMut(Slot) -> bool) -> Option<Slot> {
        if self.a1in.len() > self.kin {
            self.a1in.walk(&mut ask, take).or_else(|| self.am.walk(&mut ask, take))
        } else {
            self.am.walk(&mut ask, take).or_else(|| self.a1in.walk(&mut ask, take))
        }
    }

    fn coldest(&self, depth: usize, visit: &mut dyn FnMut(Slot) -> bool) {
        let excess = self.a1in.len().saturating_sub(self.kin);
        let a1in = || self.a1in.list().iter_cold();
        a1in().take(excess).chain(self.am.list().iter_cold()).chain(a1in().skip(excess)).take(depth).all(visit);
    }

    fn rewind(&mut self) {
        self.a1in.rewind();
        self.am.rewind();
    }

    fn len(&self) -> usize {
        self.a1in.len() + self.am.len()
    }

    fn check(&self) {
        self.a1in.list().check();
        self.am.list().check();
        self.a1out.check();
        assert!(self.a1out.len() <= self.kout + self.pages.slots() - self.len(), "length of A1out");
    }
}
