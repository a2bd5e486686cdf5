//! `lru-midpoint`: LRU with a midpoint, as InnoDB keeps it.
//!
//! The coldest part of the list (3/8 of it by default) is *old*. A page enters at the midpoint, the hot end of the old
//! part, and moves to the hot end of the whole list when it is accessed again at least `old_time` after its first
//! access: one pass over a large table passes through the old part and leaves the young pages alone. A young page moves
//! to the front only when it has aged past the first quarter of the young part, measured by the number of evictions
//! since it was last put in front. While nothing was ever evicted nothing moves. The old part exists from `old_min`
//! pages on; its length is kept within `tolerance`.
//!
//! Where misses are so many that pages leave the old part before `old_time` is over, no page would ever become young
//! again, and what is young would stay so unused. With `turn_part` the time is at most that part of a *turn*, in which
//! as many pages leave as the old part has. InnoDB has no such bound.
//!
//! Invariants: the old pages are the cold end of the list; there are some from `old_min` pages on, and some young ones.

use super::list::{Cursor, List, NIL};
use super::slots::Slots;
use super::{Ask, Load, Replacement, Slot, Turnover, Unlink};
use varve_volume::{CostClass, PageId};

/// Options of `lru-midpoint`; the defaults are InnoDB's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MidpointOptions {
    /// Share of the old part in percent of the list, 5 to 95.
    pub old_percent: f64,
    /// Nanoseconds between a page's first access and the access that makes it young.
    pub old_time: u64,
    /// `old_time` is at most the last turn of the old part divided by this. 0: it is fixed, as in InnoDB.
    pub turn_part: u32,
    /// Pages that a demand load puts at the midpoint (true) or at the hot end (false). Read-ahead always enters at the
    /// midpoint.
    pub demand_at_midpoint: bool,
    /// Length of the list from which the old part exists.
    pub old_min: usize,
    /// Pages by which the old part may differ from its share.
    pub tolerance: usize,
}

impl Default for MidpointOptions {
    fn default() -> MidpointOptions {
        MidpointOptions {
            old_percent: 37.5,
            old_time: 1_000_000_000,
            turn_part: 0,
            demand_at_midpoint: true,
            old_min: 512,
            tolerance: 20,
        }
    }
}

/// Young pages that the adjustment of the midpoint always leaves.
const YOUNG_MIN: usize = 5;

#[derive(Clone, Copy, Default)]
struct Page {
    old: bool,
    /// It was put at the hot end since it came.
    was_young: bool,
    /// Time of the first access plus one; 0 = not accessed yet.
    first_access: u64,
    /// Evictions of the whole list when the page was last put in front.
    evictions: u64,
}

pub(super) struct Midpoint {
    options: MidpointOptions,
    list: List,
    pages: Slots<Page>,
    /// The hottest old page; NIL while there is no old part.
    old: Slot,
    old_len: usize,
    evictions: u64,
    /// The turn of the old part: evictions before it, when it began, and the time that pages wait until they may become
    /// young.
    turn: (u64, u64),
    wait: u64,
    /// When the last event that came with its time happened.
    now: u64,
    turnover: Turnover,
    cursor: Cursor,
}

impl Midpoint {
    pub(super) fn new(slots: usize, options: MidpointOptions) -> Midpoint {
        // The old part must be able to differ from its share without swallowing a short list.
        let old_min = options.old_min.max(options.tolerance + YOUNG_MIN + 1);
        Midpoint {
            options: MidpointOptions { old_min, old_percent: options.old_percent.clamp(5.0, 95.0), ..options },
            list: List::new(slots),
            pages: Slots::new(slots),
            old: NIL,
            old_len: 0,
            evictions: 0,
            turn: (0, 0),
            wait: options.old_time,
            now: 0,
            turnover: Turnover::default(),
            cursor: Cursor::default(),
        }
    }

    fn page(&mut self, slot: Slot) -> &mut Page {
        &mut self.pages[slot]
    }

    fn put_front(&mut self, slot: Slot) {
        self.list.push_front(slot);
        let evictions = self.evictions;
        let page = self.page(slot);
        page.old = false;
        page.was_young = true;
        page.evictions = evictions;
    }

    fn put_midpoint(&mut self, slot: Slot) {
        self.list.insert_colder(self.old, slot);
        self.page(slot).old = true;
        self.old_len += 1;
    }

    /// Takes a page out of the list; the midpoint and the cursor step away from it first.
    fn take_out(&mut self, slot: Slot) {
        self.cursor.leaving(&self.list, slot);
        if self.old == slot {
            // The hotter neighbour becomes old in its stead; there is one, as the young part is never empty.
            let hotter = self.list.hotter(slot);
            assert_ne!(hotter, NIL, "the young part is empty");
            self.page(hotter).old = true;
            self.old = hotter;
            self.old_len += 1;
        }
        self.list.remove(slot);
        debug_assert!(self.old != slot, "what is taken out is not the midpoint");
        if std::mem::take(&mut self.page(slot).old) {
            assert!(self.old_len > 0, "old pages are counted");
            self.old_len -= 1;
        }
        if self.list.len() < self.options.old_min {
            self.dissolve();
        }
    }

    /// The list got too short for an old part.
    fn dissolve(&mut self) {
        let mut at = self.old;
        while at != NIL {
            self.page(at).old = false;
            at = self.list.colder(at);
        }
        self.old = NIL;
        self.old_len = 0;
    }

    /// Makes or moves the midpoint after the list's length changed.
    fn adjust(&mut self) {
        if self.list.len() < self.options.old_min {
            return;
        }
        if self.old == NIL {
            self.old = self.list.back();
            let back = self.old;
            self.page(back).old = true;
            self.old_len = 1;
        }
        let share = (self.list.len() as f64 * self.options.old_percent / 100.0) as usize;
        let wanted = share.clamp(1, self.list.len() - self.options.tolerance - YOUNG_MIN);
        while self.old_len + self.options.tolerance < wanted || self.old_len == 0 {
            self.old = self.list.hotter(self.old);
            let old = self.old;
            self.page(old).old = true;
            self.old_len += 1;
        }
        while self.old_len > wanted + self.options.tolerance {
            let old = self.old;
            self.page(old).old = false;
            self.old = self.list.colder(old);
            self.old_len -= 1;
        }
        assert!(self.old != NIL && self.old_len < self.list.len(), "a part of the list is old, and a part young");
    }

    /// Ends a turn of the old part if it is over.
    fn turn(&mut self, now: u64) {
        let (evictions, began) = self.turn;
        let over = self.evictions - evictions >= self.old_len.max(1) as u64;
        if self.options.turn_part > 0 && over {
            self.wait = self.options.old_time.min(now.saturating_sub(began) / u64::from(self.options.turn_part));
        }
        if over || self.evictions == 0 {
            self.turn = (self.evictions, now);
        }
    }

    /// Notes that a page is evicted. The time is that of the last event: misses evict right before they load.
    fn note_evicted(&mut self, slot: Slot) {
        let page = self.pages[slot];
        if page.old && !page.was_young && page.first_access > 0 {
            let stayed = (self.now + 1).saturating_sub(page.first_access);
            self.turnover.evicted += 1;
            self.turnover.evicted_ns += stayed;
            self.turnover.evicted_early += u64::from(stayed < self.wait);
        }
    }

    /// Whether an access now should move the page to the front.
    fn worn(&mut self, slot: Slot, now: u64) -> bool {
        if self.evictions == 0 {
            return false;
        }
        let page = self.pages[slot];
        if page.old {
            return page.first_access > 0 && now + 1 - page.first_access >= self.wait;
        }
        let young = self.list.len() as f64 * (100.0 - self.options.old_percent) / 100.0;
        self.evictions - page.evictions >= (young / 4.0) as u64
    }
}

impl Replacement for Midpoint {
    fn load(&mut self, slot: Slot, _page: PageId, how: Load, _class: CostClass, now: u64) {
        *self.page(slot) = Page { first_access: if how == Load::Demand { now + 1 } else { 0 }, ..Page::default() };
        self.now = now;
        self.turn(now);
        let midpoint = how == Load::Prefetch || self.options.demand_at_midpoint;
        if midpoint && self.old != NIL {
            self.put_midpoint(slot);
        } else {
            self.put_front(slot);
        }
        self.adjust();
    }

    fn hit(&mut self, slot: Slot, now: u64) {
        self.now = now;
        let page = self.pages[slot];
        let waits = page.old && !page.was_young && self.evictions > 0;
        let worn = self.worn(slot, now);
        self.turnover.made_young += u64::from(waits && worn);
        self.turnover.not_young += u64::from(waits && !worn);
        if worn {
            self.take_out(slot);
            self.put_front(slot);
            self.adjust();
        }
        let page = self.page(slot);
        if page.first_access == 0 {
            page.first_access = now + 1;
        }
    }

    fn unlink(&mut self, slot: Slot, how: Unlink) {
        if how == Unlink::Evicted {
            self.note_evicted(slot);
        }
        self.take_out(slot);
        if how == Unlink::Evicted {
            self.evictions += 1;
        }
        self.adjust();
    }

    fn victim(&mut self, ask: Ask, take: &mut dyn FnMut(Slot) -> bool) -> Option<Slot> {
        let mut cursor = std::mem::take(&mut self.cursor);
        let end = |slot| ask.cold_only && !self.cold(slot);
        let victim = cursor.walk(&self.list, ask.resume, ask.depth, end, take);
        self.cursor = cursor;
        victim
    }

    fn cold(&self, slot: Slot) -> bool {
        self.old == NIL || self.pages[slot].old
    }

    fn cursor(&self) -> Option<Slot> {
        self.cursor.at()
    }

    fn rewind(&mut self) {
        self.cursor = Cursor::default();
    }

    fn advance(&mut self, depth: usize, good: &mut dyn FnMut(Slot) -> bool) {
        let mut cursor = std::mem::take(&mut self.cursor);
        cursor.advance(&self.list, depth, |slot| !self.cold(slot), good);
        self.cursor = cursor;
    }

    fn coldest(&self, depth: usize, visit: &mut dyn FnMut(Slot) -> bool) {
        Cursor::show(&self.list, depth, visit);
    }

    fn len(&self) -> usize {
        self.list.len()
    }

    fn turnover(&self) -> Turnover {
        self.turnover
    }

    fn check(&self) {
        self.list.check();
        let flags: Vec<bool> = self.list.iter().map(|slot| self.pages[slot].old).collect();
        assert!(flags.is_sorted(), "old pages are the cold end of the list");
        assert_eq!(flags.iter().filter(|old| **old).count(), self.old_len, "length of the old part");
        let first_old = self.list.iter().find(|slot| self.pages[*slot].old).unwrap_or(NIL);
        assert_eq!(self.old, first_old, "midpoint");
        assert_eq!(self.old == NIL, self.list.len() < self.options.old_min, "existence of the old part");
        if self.old != NIL {
            let share = (self.list.len() as f64 * self.options.old_percent / 100.0) as usize;
            let wanted = share.clamp(1, self.list.len() - self.options.tolerance - YOUNG_MIN);
            assert!(
                self.old_len.abs_diff(wanted) <= self.options.tolerance.max(1),
                "old part {} of {wanted}",
                self.old_len
            );
        }
    }
}
