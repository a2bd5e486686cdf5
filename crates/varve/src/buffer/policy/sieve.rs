//! `sieve`: Zhang, Yang, Yue, Vigfusson, Rashmi, "SIEVE is simpler than LRU", NSDI 2024.
//!
//! A queue that nothing moves in: pages enter at the head, not visited; a hit marks them visited. The hand goes from
//! the tail to the head and wraps; it clears the mark of visited pages, which stay where they are, and takes the first
//! unvisited one. A page that the caller refuses is passed as it is.

use super::list::{List, NIL};
use super::{Ask, Load, Replacement, Slot, Unlink};
use varve_volume::{CostClass, PageId};

pub(super) struct Sieve {
    list: List,
    visited: Vec<bool>,
    /// The page looked at next; NIL: the tail.
    hand: Slot,
}

impl Sieve {
    pub(super) fn new(slots: usize) -> Sieve {
        Sieve { list: List::new(slots), visited: vec![false; slots], hand: NIL }
    }

    fn at_hand(&self) -> Slot {
        if self.hand == NIL { self.list.back() } else { self.hand }
    }

    /// All pages once, in the hand's order.
    fn round(&self) -> impl Iterator<Item = Slot> + '_ {
        let mut at = self.at_hand();
        (0..self.list.len()).map(move |_| {
            let slot = at;
            at = self.list.hotter(slot);
            if at == NIL {
                at = self.list.back();
            }
            slot
        })
    }
}

impl Replacement for Sieve {
    fn load(&mut self, slot: Slot, _page: PageId, _how: Load, _class: CostClass, _now: u64) {
        self.list.push_front(slot);
        self.visited[slot as usize] = false;
    }

    fn hit(&mut self, slot: Slot, _now: u64) {
        debug_assert!(self.list.contains(slot));
        self.visited[slot as usize] = true;
    }

    fn unlink(&mut self, slot: Slot, _how: Unlink) {
        if self.hand == slot {
            self.hand = self.list.hotter(slot);
        }
        self.list.remove(slot);
    }

    fn victim(&mut self, ask: Ask, take: &mut dyn FnMut(Slot) -> bool) -> Option<Slot> {
        // Twice round is enough: the first round clears every mark.
        for _ in 0..ask.depth.min(2 * self.list.len()) {
            let slot = self.at_hand();
            let passed = std::mem::take(&mut self.visited[slot as usize]);
            if !passed && take(slot) {
                self.hand = slot;
                return Some(slot);
            }
            self.hand = self.list.hotter(slot);
        }
        None
    }

    fn coldest(&self, depth: usize, visit: &mut dyn FnMut(Slot) -> bool) {
        let pass = |want| self.round().filter(move |slot| self.visited[*slot as usize] == want);
        pass(false).chain(pass(true)).take(depth).all(visit);
    }

    fn len(&self) -> usize {
        self.list.len()
    }

    fn check(&self) {
        self.list.check();
        assert!(self.hand == NIL || self.list.contains(self.hand), "the hand points at a page");
    }
}
