//! `lirs`: Jiang, Zhang, "LIRS: An Efficient Low Inter-reference Recency Set Replacement Policy", SIGMETRICS 2002.
//!
//! Stack `S` holds pages by recency: the LIR pages (all resident), and HIR pages referenced since the LIR page at its
//! bottom, resident or not. Queue `Q` holds the resident HIR pages; its oldest leaves. A HIR page referenced while in
//! `S` becomes LIR, and the LIR page at the bottom HIR; the bottom of `S` is always LIR (*pruning*). The first pages
//! become LIR until there are enough. The published stack is unbounded; here it may be given a bound, kept by
//! forgetting the non-resident page that left first. LIR pages leave only when every HIR page is refused.
//!
//! Nodes of `S` below `slots` are slots; above, non-resident pages.
//!
//! Invariants: a LIR page is in `S` and not in `Q`, a resident HIR page in `Q`; no more pages are LIR than wanted.

use super::list::{List, NIL, Queue};
use super::{Ask, Load, Replacement, Slot, Unlink};
use varve_rt::HashMap;
use varve_volume::{CostClass, PageId};

/// Options of `lirs`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LirsOptions {
    /// Slots of resident HIR pages, percent; at least one slot.
    pub hir_percent: f64,
    /// Entries of the stack per slot at most (at least 1); none: unbounded, as published.
    pub stack: Option<f64>,
}

impl Default for LirsOptions {
    fn default() -> LirsOptions {
        LirsOptions { hir_percent: 1.0, stack: Some(2.0) }
    }
}

pub(super) struct Lirs {
    slots: usize,
    /// LIR pages wanted.
    lir_wanted: usize,
    lir_count: usize,
    stack_limit: usize,
    stack: List,
    queue: Queue,
    lir: Vec<bool>,
    /// Pages of all nodes.
    pages: Vec<PageId>,
    ghosts: HashMap<u64, Slot>,
    /// Non-resident nodes, the one that left last in front.
    left: List,
    spare: Vec<Slot>,
}

impl Lirs {
    pub(super) fn new(slots: usize, options: LirsOptions) -> Lirs {
        let hir = ((slots as f64 * options.hir_percent / 100.0) as usize).clamp(1, slots.max(1));
        Lirs {
            slots,
            lir_wanted: slots.saturating_sub(hir),
            lir_count: 0,
            stack_limit: options.stack.map_or(usize::MAX, |n| (slots as f64 * n.max(1.0)) as usize),
            stack: List::new(slots),
            queue: Queue::new(slots),
            lir: vec![false; slots],
            pages: vec![PageId(0); slots],
            ghosts: HashMap::default(),
            left: List::default(),
            spare: Vec::new(),
        }
    }

    fn is_lir(&self, node: Slot) -> bool {
        (node as usize) < self.slots && self.lir[node as usize]
    }

    /// The page in `slot` has left; its place in the stack is taken by a non-resident node.
    fn remember(&mut self, slot: Slot) {
        let node = self.spare.pop().unwrap_or_else(|| {
            self.pages.push(PageId(0));
            let room = self.pages.len().next_power_of_two();
            self.stack.grow(room);
            self.left.grow(room);
            self.pages.len() as Slot - 1
        });
        self.pages[node as usize] = self.pages[slot as usize];
        self.stack.insert_hotter(slot, node);
        self.stack.remove(slot);
        self.left.push_front(node);
        self.ghosts.insert(self.pages[node as usize].0, node);
        assert_eq!(self.ghosts.len(), self.left.len(), "who left and is remembered is known by its page");
    }

    /// Takes a non-resident node out.
    fn forget(&mut self, node: Slot) {
        self.stack.remove(node);
        self.left.remove(node);
        self.ghosts.remove(&self.pages[node as usize].0);
        self.spare.push(node);
    }

    /// Takes HIR pages off the bottom of the stack.
    fn prune(&mut self) {
        loop {
            let bottom = self.stack.back();
            if bottom == NIL || self.is_lir(bottom) {
                return;
            }
            if (bottom as usize) < self.slots { self.stack.remove(bottom) } else { self.forget(bottom) }
        }
    }

    /// Makes a page on the stack LIR, and the one at the bottom HIR if there are too many.
    fn promote(&mut self, slot: Slot) {
        self.lir[slot as usize] = true;
        self.lir_count += 1;
        if self.lir_count > self.lir_wanted {
            // The bottom is LIR already unless there was no LIR page at all.
            self.prune();
            let bottom = self.stack.back();
            assert!(self.is_lir(bottom), "the bottom of the stack is a LIR page");
            self.lir[bottom as usize] = false;
            self.lir_count -= 1;
            self.stack.remove(bottom);
            self.queue.push_front(bottom);
        }
        assert!(self.lir_count <= self.lir_wanted, "no more pages are LIR than wanted");
        debug_assert!(!self.lir[slot as usize] || self.stack.contains(slot), "a LIR page is in the stack");
        self.prune();
    }

    /// Keeps the stack within its bound.
    fn bound(&mut self) {
        while self.stack.len() > self.stack_limit && !self.left.is_empty() {
            self.forget(self.left.back());
        }
    }
}

impl Replacement for Lirs {
    fn load(&mut self, slot: Slot, page: PageId, _how: Load, _class: CostClass, _now: u64) {
        self.pages[slot as usize] = page;
        assert!(!self.lir[slot as usize], "a page that comes is not LIR yet");
        let known = self.ghosts.get(&page.0).copied();
        if let Some(node) = known {
            self.forget(node);
        }
        self.stack.push_front(slot);
        if known.is_some() || self.lir_count < self.lir_wanted {
            self.promote(slot);
        } else {
            self.queue.push_front(slot);
        }
        self.bound();
    }

    fn hit(&mut self, slot: Slot, _now: u64) {
        if self.is_lir(slot) {
            self.stack.move_front(slot);
            self.prune();
        } else if self.stack.contains(slot) {
            self.stack.move_front(slot);
            self.queue.remove(slot);
            self.promote(slot);
        } else {
            self.stack.push_front(slot);
            self.queue.move_front(slot);
        }
        self.bound();
    }

    fn unlink(&mut self, slot: Slot, how: Unlink) {
        if std::mem::take(&mut self.lir[slot as usize]) {
            assert!(self.lir_count > 0, "LIR pages are counted");
            self.lir_count -= 1;
            self.stack.remove(slot);
            self.prune();
            return;
        }
        self.queue.remove(slot);
        match (self.stack.contains(slot), how) {
            (true, Unlink::Evicted) => self.remember(slot),
            (true, Unlink::Discarded) => self.stack.remove(slot),
            (false, _) => {}
        }
    }

    fn victim(&mut self, mut ask: Ask, take: &mut dyn FnMut(Slot) -> bool) -> Option<Slot> {
        self.queue.walk(&mut ask, take).or_else(|| {
            let lir = self.stack.iter_cold().filter(|node| self.is_lir(*node));
            lir.take(ask.depth).find(|slot| take(*slot))
        })
    }

    fn coldest(&self, depth: usize, visit: &mut dyn FnMut(Slot) -> bool) {
        let lir = self.stack.iter_cold().filter(|node| self.is_lir(*node));
        self.queue.list().iter_cold().chain(lir).take(depth).all(visit);
    }

    fn rewind(&mut self) {
        self.queue.rewind();
    }

    fn len(&self) -> usize {
        self.queue.len() + self.lir_count
    }

    fn check(&self) {
        self.stack.check();
        self.queue.list().check();
        self.left.check();
        assert_eq!(self.lir.iter().filter(|l| **l).count(), self.lir_count, "LIR pages");
        assert!(self.lir_count <= self.lir_wanted, "{} LIR pages of {}", self.lir_count, self.lir_wanted);
        assert_eq!(self.ghosts.len(), self.left.len(), "non-resident pages");
        assert!(self.stack.len() <= self.stack_limit || self.left.is_empty(), "stack of {}", self.stack.len());
        for slot in 0..self.slots as Slot {
            assert!(!(self.is_lir(slot) && self.queue.contains(slot)), "slot {slot} is LIR and queued");
            assert!(!self.is_lir(slot) || self.stack.contains(slot), "slot {slot} is LIR and not in the stack");
        }
    }
}
