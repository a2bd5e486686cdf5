//! Read-ahead for policies that count references: a page that was read ahead is taken as referenced when it was loaded,
//! and the access that it was read for is no second reference. Without this a single pass over a table would look like
//! two.

use super::{Ask, Load, Replacement, Slot, Unlink};
use varve_volume::{CostClass, PageId, WriteWhy};

/// A policy that does not see the first hit of a page that was read ahead.
pub(super) struct Once<P> {
    policy: P,
    awaited: Vec<bool>,
}

impl<P: Replacement> Once<P> {
    pub(super) fn new(slots: usize, policy: P) -> Once<P> {
        Once { policy, awaited: vec![false; slots] }
    }
}

impl<P: Replacement> Replacement for Once<P> {
    fn load(&mut self, slot: Slot, page: PageId, how: Load, class: CostClass, now: u64) {
        self.awaited[slot as usize] = how == Load::Prefetch;
        self.policy.load(slot, page, how, class, now);
    }

    fn hit(&mut self, slot: Slot, now: u64) {
        if !std::mem::take(&mut self.awaited[slot as usize]) {
            self.policy.hit(slot, now);
        }
    }

    fn dirtied(&mut self, slot: Slot, now: u64) {
        self.policy.dirtied(slot, now);
    }

    fn cleaned(&mut self, slot: Slot, why: WriteWhy, now: u64) {
        self.policy.cleaned(slot, why, now);
    }

    fn class_changed(&mut self, slot: Slot, class: CostClass, wrote: Option<WriteWhy>, now: u64) {
        self.policy.class_changed(slot, class, wrote, now);
    }

    fn unlink(&mut self, slot: Slot, how: Unlink) {
        self.policy.unlink(slot, how);
    }

    fn victim(&mut self, ask: Ask, take: &mut dyn FnMut(Slot) -> bool) -> Option<Slot> {
        self.policy.victim(ask, take)
    }

    fn coldest(&self, depth: usize, visit: &mut dyn FnMut(Slot) -> bool) {
        self.policy.coldest(depth, visit);
    }

    fn cold(&self, slot: Slot) -> bool {
        self.policy.cold(slot)
    }

    fn cursor(&self) -> Option<Slot> {
        self.policy.cursor()
    }

    fn rewind(&mut self) {
        self.policy.rewind();
    }

    fn len(&self) -> usize {
        self.policy.len()
    }

    fn check(&self) {
        self.policy.check();
    }
}
