//! `clock`: one reference bit per page, 0 on insertion, set by a hit. The hand goes from the oldest page to the newest
//! and round again, clears set bits and stops at the first page without one.
//!
//! Kept as a list: a page that the hand passes goes to the front, so the back is always where the hand stands. A page
//! that the caller refuses is passed with its bit as it is.

use super::list::{Cursor, List};
use super::{Ask, Load, Replacement, Slot, Unlink};
use varve_volume::{CostClass, PageId};

pub(super) struct Clock {
    list: List,
    referenced: Vec<bool>,
}

impl Clock {
    pub(super) fn new(slots: usize) -> Clock {
        Clock { list: List::new(slots), referenced: vec![false; slots] }
    }
}

impl Replacement for Clock {
    fn load(&mut self, slot: Slot, _page: PageId, _how: Load, _class: CostClass, _now: u64) {
        self.list.push_front(slot);
        self.referenced[slot as usize] = false;
    }

    fn hit(&mut self, slot: Slot, _now: u64) {
        debug_assert!(self.list.contains(slot), "a page that is used is in the list");
        self.referenced[slot as usize] = true;
    }

    fn unlink(&mut self, slot: Slot, _how: Unlink) {
        self.list.remove(slot);
    }

    fn victim(&mut self, ask: Ask, take: &mut dyn FnMut(Slot) -> bool) -> Option<Slot> {
        // Twice round is enough: the first round clears every bit.
        for _ in 0..ask.depth.min(2 * self.list.len()) {
            let slot = self.list.back();
            let passed = std::mem::take(&mut self.referenced[slot as usize]);
            if !passed && take(slot) {
                return Some(slot);
            }
            self.list.move_front(slot);
        }
        None
    }

    fn coldest(&self, depth: usize, visit: &mut dyn FnMut(Slot) -> bool) {
        // What the hand would take in this round, then what it would take in the next.
        let mut left = depth;
        let mut go_on = true;
        for want in [false, true] {
            Cursor::show(&self.list, usize::MAX, &mut |slot| {
                if self.referenced[slot as usize] == want {
                    go_on = left > 0 && visit(slot);
                    left = left.saturating_sub(1);
                }
                go_on
            });
            if !go_on {
                return;
            }
        }
    }

    fn len(&self) -> usize {
        self.list.len()
    }

    fn check(&self) {
        self.list.check();
    }
}
