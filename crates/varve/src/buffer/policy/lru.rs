//! `lru`: least recently used. Every load and every hit goes to the hot end; the cold end leaves.

use super::list::{Cursor, List};
use super::{Ask, Load, Replacement, Slot, Unlink};
use varve_volume::{CostClass, PageId};

pub(super) struct Lru {
    list: List,
    cursor: Cursor,
}

impl Lru {
    pub(super) fn new(slots: usize) -> Lru {
        Lru { list: List::new(slots), cursor: Cursor::default() }
    }
}

impl Replacement for Lru {
    fn load(&mut self, slot: Slot, _page: PageId, _how: Load, _class: CostClass, _now: u64) {
        self.list.push_front(slot);
    }

    fn hit(&mut self, slot: Slot, _now: u64) {
        self.cursor.leaving(&self.list, slot);
        self.list.move_front(slot);
    }

    fn unlink(&mut self, slot: Slot, _how: Unlink) {
        self.cursor.leaving(&self.list, slot);
        self.list.remove(slot);
    }

    fn victim(&mut self, ask: Ask, take: &mut dyn FnMut(Slot) -> bool) -> Option<Slot> {
        self.cursor.walk(&self.list, ask.resume, ask.depth, |_| false, take)
    }

    fn cursor(&self) -> Option<Slot> {
        self.cursor.at()
    }

    fn rewind(&mut self) {
        self.cursor = Cursor::default();
    }

    fn advance(&mut self, depth: usize, good: &mut dyn FnMut(Slot) -> bool) {
        self.cursor.advance(&self.list, depth, |_| false, good);
    }

    fn coldest(&self, depth: usize, visit: &mut dyn FnMut(Slot) -> bool) {
        Cursor::show(&self.list, depth, visit);
    }

    fn len(&self) -> usize {
        self.list.len()
    }

    fn check(&self) {
        self.list.check();
    }
}
