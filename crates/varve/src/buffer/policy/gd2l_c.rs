//! `gd2l-c`: GD2L that knows of writes. It joins the two parents: the lists, the H and the moves are those of `gd2l`
//! (Liu, Salem, VLDB 2013), the pointers those of LRU-C (Lee, An, Lee, VLDB 2023); the join is our own.
//!
//! What it costs to evict a page is its H (what reading it again costs, aged), and for a dirty page the write that the
//! miss would wait for besides. A search for any victim goes by that cost. A search for a clean one (`cold_only`, as
//! `clean-first` makes it) finds it without a walk: each list has a pointer to where its next clean page is, which goes
//! on from victim to victim and skips dirty pages once. It does not pass pages that are dearer than a page at a cold
//! end with its write: so a dear clean page is not given up where a cheap dirty one only had to be written. And it ends
//! at the middle of the list (3/8 from the cold end); it begins anew when a page of the list was cleaned, or after as
//! many evictions as the part has pages. A search that finds nothing so makes both begin at the cold ends, and takes
//! whatever clean page has the least H: waiting for a write would cost the miss more, and the device may have none to
//! do.
//!
//! The cleaner sees the pages by H: cheap ones that only their changes protect come first. With all pages clean, one
//! class empty and `stay_part` 0 the victims are those of LRU.

use super::gd2l::{Gd2l, Gd2lOptions, MAX_CLASSES, Places};
use super::list::{List, NIL};
use super::{Ask, Load, Replacement, Slot, Unlink};
use std::iter::repeat;
use varve_volume::{CostClass, PageId, WriteWhy};

/// Where a walk stands in one list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pointer {
    /// At the cold end.
    Cold,
    /// At this page.
    At(Slot),
    /// Past the last page.
    Ended,
}

impl Pointer {
    /// The page is about to leave its place in the list.
    fn leaving(&mut self, list: &List, slot: Slot) {
        if *self == Pointer::At(slot) {
            *self = match list.hotter(slot) {
                NIL => Pointer::Ended,
                hotter => Pointer::At(hotter),
            };
        }
    }

    /// The page there, or [`NIL`].
    fn slot(self, list: &List) -> Slot {
        match self {
            Pointer::Cold => list.back(),
            Pointer::At(slot) => slot,
            Pointer::Ended => NIL,
        }
    }

    fn of(list: &List, at: Slot) -> Pointer {
        match at {
            _ if list.is_empty() => Pointer::Cold,
            NIL => Pointer::Ended,
            slot if slot == list.back() => Pointer::Cold,
            slot => Pointer::At(slot),
        }
    }
}

pub(super) struct Gd2lC {
    base: Gd2l,
    pointers: [Pointer; MAX_CLASSES],
    /// Evictions when the pointer reached the middle.
    ended: [u64; MAX_CLASSES],
    evictions: u64,
}

impl Gd2lC {
    pub(super) fn new(slots: usize, options: Gd2lOptions) -> Gd2lC {
        let (pointers, ended) = ([Pointer::Cold; MAX_CLASSES], [0; MAX_CLASSES]);
        Gd2lC { base: Gd2l::new(slots, options), pointers, ended, evictions: 0 }
    }

    fn hotter(&self, slot: Slot) -> Slot {
        self.base.classes[self.base.class(slot)].list.hotter(slot)
    }

    fn classes(&self) -> std::ops::Range<usize> {
        0..self.base.classes.len()
    }

    /// What writing a page of the class costs.
    fn write_cost(&self, class: usize) -> f64 {
        let costs = &self.base.options.write_cost;
        costs[class.min(costs.classes() - 1)]
    }

    /// What evicting the page costs as it is.
    fn cost(&self, slot: Slot) -> f64 {
        let write = if self.base.dirty(slot) { self.write_cost(self.base.class(slot)) } else { 0.0 };
        self.base.h(slot) + write
    }

    /// The list's pointer begins at the cold end again, if it has ended.
    fn reopen(&mut self, class: usize) {
        if self.pointers[class] == Pointer::Ended {
            self.pointers[class] = Pointer::Cold;
        }
    }

    /// The greatest H at which a clean page is not dearer than the page at a cold end, dirty or not.
    fn bound(&self) -> f64 {
        let end = |class: usize| match self.base.classes[class].list.back() {
            NIL => f64::INFINITY,
            slot => self.base.h(slot) + self.write_cost(class),
        };
        self.classes().map(end).fold(f64::INFINITY, f64::min)
    }

    /// The page leaves its place.
    fn leaving(&mut self, slot: Slot) {
        let class = self.base.class(slot);
        let list = &self.base.classes[class].list;
        self.pointers[class].leaving(list, slot);
    }

    /// The pages at these places, by class.
    fn at(&self, pointers: &[Pointer; MAX_CLASSES]) -> Places {
        self.base.places(|class, list| pointers[class].slot(&list.list))
    }

    fn point(&mut self, at: Places) {
        for (class, at) in self.classes().zip(at) {
            let before = self.pointers[class];
            self.pointers[class] = Pointer::of(&self.base.classes[class].list, at);
            if self.pointers[class] == Pointer::Ended && before != Pointer::Ended {
                self.ended[class] = self.evictions;
            }
        }
    }

    /// On from `at` to a page that is `good`, over at most `left` others. The place, [`NIL`] past the middle; and
    /// whether it is a good page that is not too dear.
    fn next(&self, mut at: Slot, bound: f64, left: &mut usize, good: &mut dyn FnMut(Slot) -> bool) -> (Slot, bool) {
        while at != NIL && self.cold(at) {
            if self.base.h(at) > bound {
                return (at, false);
            }
            if good(at) {
                return (at, true);
            }
            if *left == 0 {
                return (at, false);
            }
            *left -= 1;
            at = self.hotter(at);
        }
        (NIL, false)
    }

    /// The next clean page by the pointers.
    fn clean_victim(&mut self, ask: Ask, take: &mut dyn FnMut(Slot) -> bool) -> Option<Slot> {
        let mut at = if ask.resume { self.at(&self.pointers) } else { self.base.ends() };
        let (bound, mut left) = (self.bound(), ask.depth);
        let mut found = None;
        while found.is_none() {
            let mut clean = [NIL; MAX_CLASSES];
            for class in self.classes() {
                // Dirty pages are offered on the way, too: who asks counts them, or knows of one that it is clean by
                // now.
                let mut good = |slot: Slot| {
                    if found.is_none() && self.base.dirty(slot) && take(slot) {
                        found = Some(slot);
                    }
                    found.is_some() || !self.base.dirty(slot)
                };
                let (slot, there) = self.next(at[class], bound, &mut left, &mut good);
                at[class] = slot;
                clean[class] = if there { slot } else { NIL };
            }
            let slot = found.unwrap_or_else(|| self.base.first(&clean));
            if slot == NIL || left == 0 && found.is_none() {
                break;
            }
            at[self.base.class(slot)] = self.hotter(slot);
            if found.is_none() {
                left -= 1;
                found = take(slot).then_some(slot);
            }
        }
        self.point(at);
        if found.is_none() && left > 0 {
            self.pointers = [Pointer::Cold; MAX_CLASSES];
            found = self.base.merged(self.base.ends()).take(left).find(|slot| take(*slot));
        }
        found
    }

    /// All pages by the cost of evicting them: of each list the clean and the dirty ones, merged. Ties: clean before
    /// dirty, fast before slow.
    fn by_cost(&self, mut visit: impl FnMut(Slot) -> bool) {
        let next = |mut at: Slot, dirty: bool| {
            while at != NIL && self.base.dirty(at) != dirty {
                at = self.hotter(at);
            }
            at
        };
        let ends = self.base.ends();
        let mut at = [(NIL, false); 2 * MAX_CLASSES];
        let fastest_first =
            [false, true].iter().flat_map(|dirty| ends[self.classes()].iter().rev().zip(repeat(*dirty)));
        for (place, (end, dirty)) in at.iter_mut().zip(fastest_first) {
            *place = (next(*end, dirty), dirty);
        }
        loop {
            let least = at.iter_mut().filter(|(slot, _)| *slot != NIL).min_by(|a, b| {
                // Of equal ones the first is taken.
                self.cost(a.0).total_cmp(&self.cost(b.0))
            });
            let Some((slot, dirty)) = least else { return };
            let page = *slot;
            *slot = next(self.hotter(page), *dirty);
            if !visit(page) {
                return;
            }
        }
    }
}

impl Replacement for Gd2lC {
    fn load(&mut self, slot: Slot, page: PageId, how: Load, class: CostClass, now: u64) {
        self.base.load(slot, page, how, class, now);
    }

    fn hit(&mut self, slot: Slot, now: u64) {
        if !self.base.stays(slot) {
            self.leaving(slot);
            self.base.hit(slot, now);
        }
    }

    fn dirtied(&mut self, slot: Slot, now: u64) {
        self.base.dirtied(slot, now);
    }

    fn cleaned(&mut self, slot: Slot, why: WriteWhy, now: u64) {
        self.base.cleaned(slot, why, now);
        self.reopen(self.base.class(slot));
    }

    fn class_changed(&mut self, slot: Slot, class: CostClass, wrote: Option<WriteWhy>, now: u64) {
        let (before, after) = (self.base.class(slot), self.base.class_of(class));
        if before == after {
            return;
        }
        self.leaving(slot);
        self.base.class_changed(slot, class, wrote, now);
        self.reopen(after);
        if self.base.classes[after].list.back() == slot {
            // A page that is about to go is taken before those that the pointer stands at.
            self.pointers[after] = Pointer::Cold;
        }
    }

    fn unlink(&mut self, slot: Slot, how: Unlink) {
        self.leaving(slot);
        // A dirty page may be passed over for as much as its write costs.
        self.base.leave(slot, how, Some(self.base.options.write_cost));
        self.evictions += u64::from(how == Unlink::Evicted);
        for class in self.classes() {
            // As many steps as there were evictions: still one step each.
            debug_assert!(self.ended[class] <= self.evictions, "a pointer ended before the next eviction");
            if self.evictions - self.ended[class] > self.base.classes[class].behind() as u64 {
                self.reopen(class);
            }
        }
    }

    fn victim(&mut self, ask: Ask, take: &mut dyn FnMut(Slot) -> bool) -> Option<Slot> {
        if ask.cold_only {
            return self.clean_victim(ask, take);
        }
        let (mut found, mut left) = (None, ask.depth);
        self.by_cost(|slot| {
            if left > 0 && take(slot) {
                found = Some(slot);
            }
            left = left.saturating_sub(1);
            found.is_none() && left > 0
        });
        found
    }

    fn coldest(&self, depth: usize, visit: &mut dyn FnMut(Slot) -> bool) {
        self.base.coldest(depth, visit);
    }

    fn cold(&self, slot: Slot) -> bool {
        self.base.classes[self.base.class(slot)].cold(slot)
    }

    fn cursor(&self) -> Option<Slot> {
        let slot = self.base.first(&self.at(&self.pointers));
        (self.pointers != [Pointer::Cold; MAX_CLASSES] && slot != NIL).then_some(slot)
    }

    fn rewind(&mut self) {
        self.pointers = [Pointer::Cold; MAX_CLASSES];
    }

    fn advance(&mut self, depth: usize, good: &mut dyn FnMut(Slot) -> bool) {
        let (bound, mut left) = (self.bound(), depth);
        let mut at = self.at(&self.pointers);
        for class in self.classes() {
            if matches!(self.pointers[class], Pointer::At(_)) {
                at[class] = self.next(at[class], bound, &mut left, good).0;
            }
        }
        self.point(at);
    }

    fn len(&self) -> usize {
        self.base.len()
    }

    fn check(&self) {
        self.base.check();
        for (class, pointer) in self.classes().zip(&self.pointers) {
            if let Pointer::At(slot) = *pointer {
                assert!(self.base.classes[class].list.contains(slot), "pointer of the list");
            }
        }
    }
}
