//! `arc`: Megiddo, Modha, "ARC: A Self-Tuning, Low Overhead Replacement Cache", FAST 2003, figure 4.
//!
//! `T1` holds pages seen once recently, `T2` pages seen at least twice, both LRU lists; `B1` and `B2` remember what
//! left them. The target length `p` of `T1` is real-valued: a miss on a page of `B1` raises it by max(1, |B2|/|B1|),
//! one on a page of `B2` lowers it by max(1, |B1|/|B2|). Invariants (once a page is loaded): |T1| + |B1| <= c, all four
//! together <= 2c.
//!
//! The figure does in one step what comes here as three (victim, unlink, load). `p` is adapted when the missing page is
//! first heard of; the histories are trimmed when it is loaded, which comes to the same lists.

use super::ghosts::Ghosts;
use super::list::Queue;
use super::slots::Slots;
use super::{Ask, Load, Replacement, Slot, Unlink};
use varve_volume::{CostClass, PageId};

/// What is remembered with a ghost: whether `p` was adapted for the miss on it.
const ADAPTED: u64 = 1;

pub(super) struct Arc {
    c: usize,
    p: f64,
    t1: Queue,
    t2: Queue,
    b1: Ghosts,
    b2: Ghosts,
    pages: Slots<PageId>,
}

impl Arc {
    pub(super) fn new(slots: usize) -> Arc {
        Arc {
            c: slots,
            p: 0.0,
            t1: Queue::new(slots),
            t2: Queue::new(slots),
            b1: Ghosts::default(),
            b2: Ghosts::default(),
            pages: Slots::new(slots),
        }
    }

    /// Cases II and III: the target moves, once per miss.
    fn adapt(&mut self, page: PageId) {
        let (b1, b2) = (self.b1.len() as f64, self.b2.len() as f64);
        if let Some(seen) = self.b1.get_mut(page) {
            if std::mem::replace(seen, ADAPTED) != ADAPTED {
                self.p = (self.p + (b2 / b1).max(1.0)).min(self.c as f64);
            }
        } else if let Some(seen) = self.b2.get_mut(page)
            && std::mem::replace(seen, ADAPTED) != ADAPTED
        {
            self.p = (self.p - (b1 / b2).max(1.0)).max(0.0);
        }
    }

    /// Case IV: makes room in the histories for a page that is in none.
    fn trim(&mut self) {
        while self.t1.len() + self.b1.len() >= self.c && self.b1.pop_oldest().is_some() {}
        let all = |s: &Arc| s.t1.len() + s.t2.len() + s.b1.len() + s.b2.len();
        while all(self) >= 2 * self.c && self.b2.pop_oldest().is_some() {}
    }
}

impl Replacement for Arc {
    fn load(&mut self, slot: Slot, page: PageId, _how: Load, _class: CostClass, _now: u64) {
        self.pages[slot] = page;
        self.adapt(page);
        if self.b1.remove(page).or_else(|| self.b2.remove(page)).is_some() {
            self.t2.push_front(slot);
        } else {
            self.trim();
            self.t1.push_front(slot);
        }
        assert!(self.t1.len() + self.b1.len() <= self.c, "|T1| + |B1| <= c");
        assert!(self.len() + self.b1.len() + self.b2.len() <= 2 * self.c, "all four lists have 2c pages at most");
    }

    fn hit(&mut self, slot: Slot, _now: u64) {
        if self.t2.contains(slot) {
            self.t2.move_front(slot);
        } else {
            self.t1.remove(slot);
            self.t2.push_front(slot);
        }
    }

    fn unlink(&mut self, slot: Slot, how: Unlink) {
        let page = self.pages[slot];
        let (list, ghosts) =
            if self.t1.contains(slot) { (&mut self.t1, &mut self.b1) } else { (&mut self.t2, &mut self.b2) };
        list.remove(slot);
        if how == Unlink::Evicted {
            ghosts.push(page, 0);
        }
    }

    fn victim(&mut self, mut ask: Ask, take: &mut dyn FnMut(Slot) -> bool) -> Option<Slot> {
        if let Some(page) = ask.incoming {
            self.adapt(page);
        }
        // REPLACE.
        let t1 = self.t1.len() as f64;
        let from_b2 = ask.incoming.is_some_and(|page| self.b2.contains(page));
        if t1 > self.p || (from_b2 && t1 == self.p) {
            self.t1.walk(&mut ask, take).or_else(|| self.t2.walk(&mut ask, take))
        } else {
            self.t2.walk(&mut ask, take).or_else(|| self.t1.walk(&mut ask, take))
        }
    }

    fn coldest(&self, depth: usize, visit: &mut dyn FnMut(Slot) -> bool) {
        // T1 down to its target, then T2.
        let excess = (self.t1.len() as f64 - self.p).ceil().max(0.0) as usize;
        let t1 = || self.t1.list().iter_cold();
        t1().take(excess).chain(self.t2.list().iter_cold()).chain(t1().skip(excess)).take(depth).all(visit);
    }

    fn rewind(&mut self) {
        self.t1.rewind();
        self.t2.rewind();
    }

    fn len(&self) -> usize {
        self.t1.len() + self.t2.len()
    }

    fn check(&self) {
        self.t1.list().check();
        self.t2.list().check();
        self.b1.check();
        self.b2.check();
        assert!(self.p >= 0.0 && self.p <= self.c as f64, "target {}", self.p);
        assert!(self.t1.len() + self.b1.len() <= self.c, "|T1| + |B1|");
        assert!(self.len() + self.b1.len() + self.b2.len() <= 2 * self.c, "all four lists");
    }
}
