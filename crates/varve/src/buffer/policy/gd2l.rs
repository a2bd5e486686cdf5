//! `gd2l`: Liu, Salem, "Hybrid Storage Management for Database Systems", VLDB 2013: GreedyDual for classes of reload
//! cost. The paper has two; here there are as many as the volume has ([`MAX_CLASSES`] at most), from the slowest on.
//!
//! Pages of a class are in a list of their own. A page that is used gets H = L + cost of its class and goes to the hot
//! end; of the cold ends the one with the smallest H leaves, and L becomes its H. The lists stay sorted by H, so every
//! step is O(1). Ties leave from the fastest list: such a page is cheaper to fetch again. Where another page than that
//! leaves (colder ones are being written, or it was used after it was chosen), L becomes the least H that is left: it
//! stays at most the H of any page, as in GreedyDual.
//!
//! With `stay_part`, a page that was put at the hot end lately stays where it is when it is used: until as many pages
//! were evicted from its list as that part of those that were ahead of the middle then, or until it is behind the
//! middle. Hits then move few pages, and none while no page is evicted. InnoDB, in which the paper built GD2L, has a
//! rule of the kind; the paper's figure 2 moves the page at each use.
//!
//! What else moves a page: read-ahead puts it at the midpoint of its list (3/8 from the cold end). A page that gets
//! onto a faster device by a replacement write goes to the cold end of its new list, as it is about to leave; by
//! another write, or without one, to the midpoint. One whose fast copy was evicted goes to the midpoint of the slower
//! list; one whose fast copy was invalidated by a change (it was just used) to the hot end, or if so configured to the
//! midpoint. At midpoint and cold end a page takes the H of the page that was there; in an empty list H = L + cost, at
//! the cold end H = L.
//!
//! Invariants: a page is in the list of its class; each list is sorted by H; L never falls, and is at most the H of any
//! page.

use super::list::{Cursor, List, NIL};
use super::slots::Slots;
use super::{Ask, Load, Replacement, Slot, Unlink};
use varve_volume::{CostClass, PageId, WriteWhy};

/// Most classes of reload cost that are told apart; what is faster still counts as the last of them.
pub const MAX_CLASSES: usize = 8;

/// A cost for each class of pages, from the slowest device (class 0) on, in any unit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClassCosts {
    of: [f64; MAX_CLASSES],
    classes: usize,
}

impl ClassCosts {
    /// The first [`MAX_CLASSES`] of `costs`, of which there is one at least.
    pub fn new(costs: impl IntoIterator<Item = f64>) -> ClassCosts {
        let (mut of, mut classes) = ([0.0; MAX_CLASSES], 0);
        for (place, cost) in of.iter_mut().zip(costs) {
            assert!(!cost.is_nan(), "a cost is a number");
            *place = cost;
            classes += 1;
        }
        assert!(classes > 0, "there is a class");
        ClassCosts { of, classes }
    }

    /// Classes.
    pub fn classes(&self) -> usize {
        self.classes
    }
}

impl<const N: usize> From<[f64; N]> for ClassCosts {
    fn from(costs: [f64; N]) -> ClassCosts {
        ClassCosts::new(costs)
    }
}

impl std::ops::Deref for ClassCosts {
    type Target = [f64];

    fn deref(&self) -> &[f64] {
        &self.of[..self.classes]
    }
}

/// Options of `gd2l`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gd2lOptions {
    /// Cost of reading a page again by class. The default is the paper's, normalised.
    pub cost: ClassCosts,
    /// A page whose fast copy was invalidated by a change goes to the midpoint of the slower list, not to its hot end.
    pub invalidated_at_midpoint: bool,
    /// After it was put at the hot end, a page stays in place until (pages ahead of the middle) / `stay_part` pages
    /// were evicted from its list. 0: each use moves it.
    pub stay_part: u32,
    /// Cost of the write that a miss would wait for if it chose a dirty page, by class, in the unit of `cost`: `gd2l-c`
    /// alone.
    pub write_cost: ClassCosts,
}

impl Default for Gd2lOptions {
    fn default() -> Gd2lOptions {
        let (cost, write_cost) = ([70.0, 1.0].into(), [50.0, 3.0].into());
        Gd2lOptions { cost, invalidated_at_midpoint: false, stay_part: 0, write_cost }
    }
}

/// An LRU list that knows the page with exactly three eighths of the list behind it.
pub(super) struct Class {
    pub(super) list: List,
    cursor: Cursor,
    mid: Slot,
    /// Pages colder than `mid`.
    behind: usize,
    cold: Vec<bool>,
    /// Pages evicted from the list.
    evicted: u64,
}

impl Class {
    fn new(slots: usize) -> Class {
        Class {
            list: List::new(slots),
            cursor: Cursor::default(),
            mid: NIL,
            behind: 0,
            cold: vec![false; slots],
            evicted: 0,
        }
    }

    /// Pages behind the middle.
    pub(super) fn behind(&self) -> usize {
        self.behind
    }

    /// Whether the page is behind the middle; in a list without a middle every page is.
    pub(super) fn cold(&self, slot: Slot) -> bool {
        self.behind == 0 || self.cold[slot as usize]
    }

    fn push_front(&mut self, slot: Slot) {
        self.list.push_front(slot);
        self.adjust();
    }

    fn push_back(&mut self, slot: Slot) {
        let first = self.list.is_empty();
        self.list.push_back(slot);
        if !first {
            self.put_behind(slot);
        }
        self.adjust();
    }

    /// Puts `slot` in the place of the middle page, which there is, and which moves one up.
    fn push_middle(&mut self, slot: Slot) {
        self.list.insert_colder(self.mid, slot);
        self.put_behind(slot);
        self.adjust();
    }

    /// The page was put in behind the middle: colder than what a resumed walk has passed.
    fn put_behind(&mut self, slot: Slot) {
        self.cold[slot as usize] = true;
        self.behind += 1;
        self.cursor.set(NIL);
    }

    fn remove(&mut self, slot: Slot) {
        self.cursor.leaving(&self.list, slot);
        if slot == self.mid {
            self.mid = self.list.hotter(slot);
            if self.mid == NIL && self.list.colder(slot) != NIL {
                self.mid = self.list.colder(slot);
                self.cold[self.mid as usize] = false;
                self.behind -= 1;
            }
        } else if std::mem::take(&mut self.cold[slot as usize]) {
            self.behind -= 1;
        }
        self.list.remove(slot);
        self.adjust();
    }

    fn adjust(&mut self) {
        if self.list.is_empty() {
            return;
        }
        if self.mid == NIL {
            self.mid = self.list.back();
        }
        debug_assert!(self.behind <= self.list.len(), "pages behind the middle are pages of the list");
        debug_assert!(self.list.contains(self.mid), "the middle is a page of the list");
        let wanted = 3 * self.list.len() / 8;
        while self.behind < wanted {
            self.cold[self.mid as usize] = true;
            self.mid = self.list.hotter(self.mid);
            self.behind += 1;
        }
        while self.behind > wanted {
            self.mid = self.list.colder(self.mid);
            self.cold[self.mid as usize] = false;
            self.behind -= 1;
        }
    }

    fn check(&self) {
        self.list.check();
        let all: Vec<Slot> = self.list.iter_cold().collect();
        assert_eq!(self.mid, all.get(3 * all.len() / 8).copied().unwrap_or(NIL), "middle");
        assert_eq!(self.cold.iter().filter(|c| **c).count(), self.behind, "pages behind the middle");
        assert!(all.iter().enumerate().all(|(i, s)| self.cold[*s as usize] == (i < self.behind)), "marks");
    }
}

/// A place in each list; [`NIL`]: past its end, or there is no such class.
pub(super) type Places = [Slot; MAX_CLASSES];

#[derive(Clone, Copy, Default)]
struct Page {
    h: f64,
    /// The page stays where it is until as many were evicted from its list.
    stays: u64,
    class: u8,
    dirty: bool,
}

pub(super) struct Gd2l {
    pub(super) options: Gd2lOptions,
    inflation: f64,
    /// From the slowest on.
    pub(super) classes: Vec<Class>,
    pages: Slots<Page>,
}

impl Gd2l {
    pub(super) fn new(slots: usize, options: Gd2lOptions) -> Gd2l {
        Gd2l {
            options,
            inflation: 0.0,
            classes: options.cost.iter().map(|_| Class::new(slots)).collect(),
            pages: Slots::new(slots),
        }
    }

    pub(super) fn class(&self, slot: Slot) -> usize {
        self.pages[slot].class.into()
    }

    /// The class of pages whose reading costs this.
    pub(super) fn class_of(&self, cost: CostClass) -> usize {
        usize::from(cost.0).min(self.classes.len() - 1)
    }

    /// The place that `place` gives for each class.
    pub(super) fn places(&self, place: impl Fn(usize, &Class) -> Slot) -> Places {
        let mut places = [NIL; MAX_CLASSES];
        for (class, list) in self.classes.iter().enumerate() {
            places[class] = place(class, list);
        }
        places
    }

    /// The cold ends.
    pub(super) fn ends(&self) -> Places {
        self.places(|_, class| class.list.back())
    }

    pub(super) fn dirty(&self, slot: Slot) -> bool {
        self.pages[slot].dirty
    }

    pub(super) fn h(&self, slot: Slot) -> f64 {
        self.pages[slot].h
    }

    /// Whether a use leaves the page where it is.
    pub(super) fn stays(&self, slot: Slot) -> bool {
        let (page, class) = (&self.pages[slot], &self.classes[self.class(slot)]);
        class.evicted < page.stays && !class.cold(slot)
    }

    fn put_front(&mut self, slot: Slot) {
        let class = self.class(slot);
        let list = &mut self.classes[class];
        list.push_front(slot);
        let ahead = (list.list.len() - list.behind) as u64;
        let page = &mut self.pages[slot];
        page.h = self.inflation + self.options.cost[class];
        page.stays = ahead.checked_div(self.options.stay_part.into()).map_or(0, |part| list.evicted + part);
    }

    fn put_middle(&mut self, slot: Slot) {
        let class = self.class(slot);
        match self.classes[class].mid {
            NIL => self.put_front(slot),
            there => {
                self.put(slot, self.h(there));
                self.classes[class].push_middle(slot);
            }
        }
    }

    fn put_back(&mut self, slot: Slot) {
        let class = self.class(slot);
        let there = self.classes[class].list.back();
        self.put(slot, if there == NIL { self.inflation } else { self.h(there) });
        self.classes[class].push_back(slot);
    }

    /// The page gets this H, in a place that the next use shall change.
    fn put(&mut self, slot: Slot, h: f64) {
        assert!(!h.is_nan(), "H is a number");
        let page = &mut self.pages[slot];
        (page.h, page.stays) = (h, 0);
    }

    /// The page leaves. L becomes its H, but not more than the H at a cold end and what the policy grants the pages of
    /// that list besides: a page that leaves before those (they were in use, or are being written) says nothing of what
    /// they are worth.
    pub(super) fn leave(&mut self, slot: Slot, how: Unlink, grant: Option<ClassCosts>) {
        let (class, h) = (self.class(slot), self.h(slot));
        debug_assert!(self.classes[class].list.contains(slot), "a page is in the list of its class");
        self.classes[class].remove(slot);
        if how == Unlink::Evicted {
            self.classes[class].evicted += 1;
            let granted = |class: usize| grant.map_or(0.0, |grant| grant[class.min(grant.classes() - 1)]);
            let ends = self.classes.iter().map(|class| class.list.back()).enumerate().filter(|(_, end)| *end != NIL);
            let most = ends.map(|(class, end)| self.h(end) + granted(class)).fold(h, f64::min);
            assert!(!h.is_nan(), "H is a number");
            self.inflation = self.inflation.max(most);
            debug_assert!(self.inflation.is_finite(), "L is the H of some page");
        }
    }

    /// Of places in the lists, the page that leaves first.
    pub(super) fn first(&self, at: &Places) -> Slot {
        let sooner = |first: Slot, slot: Slot| match slot {
            NIL => first,
            slot if first == NIL || self.h(slot) <= self.h(first) => slot,
            _ => first,
        };
        at[..self.classes.len()].iter().copied().fold(NIL, sooner)
    }

    /// All lists from the given places on, merged by H.
    pub(super) fn merged(&self, mut at: Places) -> impl Iterator<Item = Slot> + '_ {
        std::iter::from_fn(move || {
            let slot = self.first(&at);
            if slot == NIL {
                return None;
            }
            let class = self.class(slot);
            at[class] = self.classes[class].list.hotter(slot);
            Some(slot)
        })
    }
}

impl Replacement for Gd2l {
    fn load(&mut self, slot: Slot, _page: PageId, how: Load, class: CostClass, _now: u64) {
        self.pages[slot] = Page { class: self.class_of(class) as u8, ..Page::default() };
        match how {
            Load::Demand => self.put_front(slot),
            Load::Prefetch => self.put_middle(slot),
        }
    }

    fn hit(&mut self, slot: Slot, _now: u64) {
        if self.stays(slot) {
            return;
        }
        let class = self.class(slot);
        self.classes[class].remove(slot);
        self.put_front(slot);
    }

    fn dirtied(&mut self, slot: Slot, _now: u64) {
        self.pages[slot].dirty = true;
    }

    fn cleaned(&mut self, slot: Slot, _why: WriteWhy, _now: u64) {
        self.pages[slot].dirty = false;
    }

    fn class_changed(&mut self, slot: Slot, class: CostClass, wrote: Option<WriteWhy>, _now: u64) {
        let (before, after) = (self.class(slot), self.class_of(class));
        if before == after {
            return;
        }
        self.classes[before].remove(slot);
        self.pages[slot].class = after as u8;
        // A fast copy that goes while the page has changes, or by the write of them, was invalidated, not evicted.
        let invalidated = self.pages[slot].dirty || wrote.is_some();
        match wrote {
            Some(WriteWhy::Replacement) if after > before => self.put_back(slot),
            _ if after < before && invalidated && !self.options.invalidated_at_midpoint => self.put_front(slot),
            _ => self.put_middle(slot),
        }
    }

    fn unlink(&mut self, slot: Slot, how: Unlink) {
        debug_assert!(self.inflation <= self.h(slot), "L is at most the H of any page");
        self.leave(slot, how, None);
    }

    fn victim(&mut self, ask: Ask, take: &mut dyn FnMut(Slot) -> bool) -> Option<Slot> {
        let mut at = self.places(|_, class| class.cursor.start(&class.list, ask.resume));
        let mut found = None;
        for _ in 0..ask.depth {
            let slot = self.first(&at);
            if slot == NIL {
                break;
            }
            let class = self.class(slot);
            at[class] = self.classes[class].list.hotter(slot);
            if take(slot) {
                found = Some(slot);
                break;
            }
        }
        for (class, at) in self.classes.iter_mut().zip(at) {
            class.cursor.set(at);
        }
        found
    }

    fn coldest(&self, depth: usize, visit: &mut dyn FnMut(Slot) -> bool) {
        self.merged(self.ends()).take(depth).all(visit);
    }

    fn rewind(&mut self) {
        self.classes.iter_mut().for_each(|class| class.cursor.set(NIL));
    }

    fn len(&self) -> usize {
        self.classes.iter().map(|c| c.list.len()).sum()
    }

    fn check(&self) {
        for (i, class) in self.classes.iter().enumerate() {
            class.check();
            assert!(class.list.iter().all(|slot| self.class(slot) == i), "pages of the class");
            assert!(class.list.iter_cold().is_sorted_by(|a, b| self.h(*a) <= self.h(*b)), "order of H");
        }
    }
}
