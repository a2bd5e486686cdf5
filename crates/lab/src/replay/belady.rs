//! `belady`: MIN (Belady 1966) with forced admission: the page whose next reference is the farthest leaves. Needs the
//! future, so it is for replay only.
//!
//! A heap of (next reference, slot) with entries left behind by hits: such an entry lies in the past, hence below every
//! entry that holds, and is thrown away when it comes up or when the heap is rebuilt. O(log slots) per reference,
//! amortised.

use super::References;
use std::collections::BinaryHeap;
use varve::buffer::policy::{Ask, Load, Replacement, Slot, Unlink};
use varve_volume::{CostClass, PageId};

/// No reference any more.
const NEVER: u32 = u32::MAX;

pub(super) struct Belady {
    /// By reference: when its page is referenced next.
    next: Vec<u32>,
    /// References so far.
    at: usize,
    /// By slot; none: empty.
    due: Vec<Option<u32>>,
    heap: BinaryHeap<(u32, Slot)>,
    present: usize,
}

impl Belady {
    pub(super) fn new(slots: usize, refs: &References) -> Belady {
        let mut seen = vec![NEVER; refs.pages()];
        let mut next = vec![NEVER; refs.len() as usize];
        let mut i = refs.len() as usize;
        for step in refs.steps().iter().rev() {
            let page = step.page() as usize;
            if step.is_discard() {
                // What comes after finds another page under that number.
                seen[page] = NEVER;
                continue;
            }
            i -= 1;
            next[i] = std::mem::replace(&mut seen[page], i as u32);
        }
        Belady { next, at: 0, due: vec![None; slots], heap: BinaryHeap::new(), present: 0 }
    }

    fn reference(&mut self, slot: Slot) {
        let due = self.next[self.at];
        self.at += 1;
        self.due[slot as usize] = Some(due);
        if self.heap.len() > 4 * self.due.len() + 1024 {
            let all = self.due.iter().enumerate();
            self.heap = all.filter_map(|(slot, due)| due.map(|due| (due, slot as Slot))).collect();
        } else {
            self.heap.push((due, slot));
        }
    }

    fn holds(&self, (due, slot): (u32, Slot)) -> bool {
        self.due[slot as usize] == Some(due)
    }
}

impl Replacement for Belady {
    fn load(&mut self, slot: Slot, _page: PageId, _how: Load, _class: CostClass, _now: u64) {
        self.present += 1;
        self.reference(slot);
    }

    fn hit(&mut self, slot: Slot, _now: u64) {
        self.reference(slot);
    }

    fn unlink(&mut self, slot: Slot, _how: Unlink) {
        self.present -= 1;
        self.due[slot as usize] = None;
    }

    fn victim(&mut self, ask: Ask, take: &mut dyn FnMut(Slot) -> bool) -> Option<Slot> {
        let mut refused = Vec::new();
        let mut found = None;
        while refused.len() < ask.depth
            && let Some(entry) = self.heap.pop()
        {
            if self.holds(entry) && !refused.contains(&entry) {
                refused.push(entry);
                if take(entry.1) {
                    found = Some(entry.1);
                    break;
                }
            }
        }
        self.heap.extend(refused);
        found
    }

    fn coldest(&self, depth: usize, visit: &mut dyn FnMut(Slot) -> bool) {
        let all = self.due.iter().enumerate();
        let mut order: Vec<(u32, Slot)> = all.filter_map(|(slot, due)| due.map(|d| (d, slot as Slot))).collect();
        order.sort_unstable_by(|a, b| b.cmp(a));
        order.into_iter().map(|e| e.1).take(depth).all(visit);
    }

    fn len(&self) -> usize {
        self.present
    }

    fn check(&self) {
        assert_eq!(self.due.iter().flatten().count(), self.present, "pages present");
    }
}
