//! Managers that take every page they are offered and expel by LRU-2: `lru2` (the CAC paper's variant of lazy
//! cleaning), `lc` (lazy cleaning: everything goes home at a checkpoint, clean pages leave first), `cw` (clean pages
//! only), `dw` (dual write).
//!
//! References are accesses of the fast device to the page: its admission, reads from there, writes to there. A page
//! with fewer than two goes first, oldest first.
//!
//! Invariant: a page is known while it has a slot, and was referred to at least once.

use super::{DirtyWrites, Manager, Memory, Offer, Place, Refusal, Style, ago};
use crate::{KeyspaceId, PageId, ReadWhy};
use varve_rt::HashMap;

/// Times of the last and the one before last reference; the latter 0 for none.
#[derive(Clone, Copy)]
struct References {
    last: u64,
    before: u64,
}

pub(super) struct Lru2 {
    style: Style,
    takes_dirty: bool,
    clean_first: bool,
    pages: HashMap<PageId, References>,
}

/// Ranks of pages with one reference lie below those with two: times stay far below this (three centuries of
/// nanoseconds).
const SPAN: f64 = 1e19;
const _: () = assert!(SPAN > 300.0 * 365.0 * 86_400e9, "no clock reaches the span between two ranks");

impl Lru2 {
    fn new(style: Style, takes_dirty: bool, clean_first: bool) -> Lru2 {
        Lru2 { style, takes_dirty, clean_first, pages: HashMap::default() }
    }

    pub fn plain() -> Lru2 {
        Lru2::new(Style::default(), true, false)
    }

    pub fn lazy_cleaning() -> Lru2 {
        Lru2::new(Style { home_at_sync: true, dirty_percent: 50, ..Style::default() }, true, true)
    }

    pub fn clean_write() -> Lru2 {
        Lru2::new(Style { dirty: DirtyWrites::Home, ..Style::default() }, false, true)
    }

    pub fn dual_write() -> Lru2 {
        Lru2::new(Style { dirty: DirtyWrites::Through, ..Style::default() }, true, true)
    }

    fn refer(&mut self, page: PageId, now: u64) {
        if let Some(r) = self.pages.get_mut(&page) {
            *r = References { last: now.max(1), before: r.last };
        }
    }
}

impl Manager for Lru2 {
    fn style(&self) -> Style {
        self.style
    }

    fn read(&mut self, page: PageId, from: Place, _: ReadWhy, now: u64) {
        if from == Place::Fast {
            self.refer(page, now);
        }
    }

    fn wrote(&mut self, page: PageId, to: Place, now: u64) {
        if to == Place::Fast {
            self.refer(page, now);
        }
    }

    fn used(&mut self, _: PageId, _: KeyspaceId, _: u32, _: Place, _: u64) {}

    fn admits(&mut self, offer: &Offer) -> Result<(), Refusal> {
        if offer.dirty && !self.takes_dirty { Err(Refusal::Kind) } else { Ok(()) }
    }

    fn entered(&mut self, page: PageId, now: u64) {
        self.pages.entry(page).or_insert(References { last: now.max(1), before: 0 });
    }

    fn left(&mut self, page: PageId, _: u64) {
        self.pages.remove(&page);
    }

    fn evicted(&mut self, _: PageId, _: u64) {}

    fn discarded(&mut self, page: PageId) {
        self.pages.remove(&page);
    }

    fn rank(&mut self, page: PageId, newer: bool, _: u64) -> f64 {
        let Some(r) = self.pages.get(&page) else { return 0.0 };
        assert!(r.last > 0, "a page that has a slot was referred to when it got it");
        let by_age = if r.before == 0 { r.last as f64 } else { SPAN + r.before as f64 };
        if self.clean_first && newer { by_age + 2.0 * SPAN } else { by_age }
    }

    fn memory(&self) -> usize {
        self.pages.capacity() * (size_of::<(PageId, References)>() + 1)
    }

    /// Milliseconds since the last reference, and since the one before; all ones for none.
    fn remember(&self, now: u64) -> Vec<(u64, Memory)> {
        let memory = |(&page, r): (&PageId, &References)| {
            let one_before = if r.before == 0 { u32::MAX } else { ago(r.before, now).min(u32::MAX - 1) };
            let words = [ago(r.last, now), one_before, 0, 0, 0];
            (now.saturating_sub(r.before), Memory { page, keyspace: KeyspaceId(0), words })
        };
        self.pages.iter().map(memory).collect()
    }

    /// Times before the clock's origin become its first moments, in their order.
    fn recall(&mut self, memories: &[Memory], now: u64) {
        let oldest = memories.iter().flat_map(|m| [m.words[0], m.words[1]]).filter(|w| *w != u32::MAX).max();
        // A clock that began after the oldest reference is stretched over them.
        let span = oldest.unwrap_or(0).max(1);
        let time = |word: u32| match u64::from(span) * 1_000_000 < now {
            true => now.saturating_sub(u64::from(word) * 1_000_000).max(1),
            false => (now as f64 * (1.0 - f64::from(word) / f64::from(span))) as u64 + 1,
        };
        for m in memories {
            if let Some(r) = self.pages.get_mut(&m.page) {
                let one_before = if m.words[1] == u32::MAX { 0 } else { time(m.words[1]) };
                *r = References { last: time(m.words[0]), before: one_before };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_with_one_reference_go_first_oldest_first() {
        let mut m = Lru2::plain();
        for (page, now) in [(1, 10), (2, 20), (3, 30)] {
            m.entered(PageId(page), now);
        }
        m.read(PageId(1), Place::Fast, ReadWhy::Demand, 40);
        m.wrote(PageId(2), Place::Slow, 50);
        let mut order = [1, 2, 3].map(|p| (m.rank(PageId(p), false, 60), p));
        order.sort_by(|a, b| a.0.total_cmp(&b.0));
        assert_eq!(order.map(|o| o.1), [2, 3, 1]);
    }

    #[test]
    fn lazy_cleaning_expels_clean_pages_first() {
        let mut m = Lru2::lazy_cleaning();
        m.entered(PageId(1), 10);
        m.entered(PageId(2), 20);
        assert!(m.rank(PageId(1), true, 30) > m.rank(PageId(2), false, 30));
        assert!(m.style().home_at_sync);
    }

    #[test]
    fn clean_write_takes_no_dirty_page() {
        let mut m = Lru2::clean_write();
        let offer =
            |dirty| Offer { page: PageId(1), keyspace: KeyspaceId(0), dirty, evicted: true, lowest: None, now: 0 };
        assert_eq!(m.admits(&offer(true)), Err(Refusal::Kind));
        assert_eq!(m.admits(&offer(false)), Ok(()));
    }
}
