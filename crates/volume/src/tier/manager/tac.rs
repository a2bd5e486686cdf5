//! TAC: pages are admitted when they are read from the slow device, by the temperature of their extent: the cost that
//! holding it would have saved, halved from time to time. Writes go through to both devices; an out-of-date copy keeps
//! its slot until the page is flushed.
//!
//! Invariant: temperatures are halved once for each interval that has gone by.

use super::{Costs, DirtyWrites, Manager, ManagerOptions, Memory, Offer, Place, Refusal, Style};
use crate::{KeyspaceId, PageId, ReadWhy};
use varve_rt::HashMap;

/// Pages of an extent (TAC paper: 32).
const EXTENT: u64 = 32;

/// Extents of which a temperature is kept: beyond it the cold ones are forgotten at the next halving.
const MAX_EXTENTS: usize = 1 << 20;

pub(super) struct Tac {
    costs: Costs,
    /// Nanoseconds between halvings.
    cooling: u64,
    cooled: u64,
    extents: HashMap<u64, f64>,
    /// Where each extent was read last: a request next to it counts as sequential, and sequential reads warm nothing.
    last: u64,
}

impl Tac {
    pub fn new(options: &ManagerOptions) -> Tac {
        let cooling = (options.cooling.max(1e-3) * 1e9) as u64;
        Tac { costs: options.costs, cooling, cooled: 0, extents: HashMap::default(), last: u64::MAX - 1 }
    }

    fn temperature(&self, page: PageId) -> f64 {
        self.extents.get(&(page.0 / EXTENT)).copied().unwrap_or(0.0)
    }

    fn warm(&mut self, page: PageId, saved: f64, now: u64) {
        assert!(self.cooling > 0, "cooling goes on for ever");
        while now.saturating_sub(self.cooled) >= self.cooling {
            self.cooled += self.cooling;
            let floor = if self.extents.len() > MAX_EXTENTS { 1.0 } else { 1e-6 };
            self.extents.retain(|_, t| {
                *t /= 2.0;
                *t >= floor
            });
        }
        *self.extents.entry(page.0 / EXTENT).or_insert(0.0) += saved;
    }
}

impl Manager for Tac {
    fn style(&self) -> Style {
        Style { dirty: DirtyWrites::Through, admit_on_read: true, keep_invalid: true, ..Style::default() }
    }

    fn read(&mut self, page: PageId, _: Place, why: ReadWhy, now: u64) {
        let sequential = why == ReadWhy::Prefetch || page.0 == self.last.wrapping_add(1);
        self.last = page.0;
        if !sequential {
            self.warm(page, self.costs.read_slow - self.costs.read_fast, now);
        }
    }

    fn wrote(&mut self, _: PageId, _: Place, _: u64) {}

    fn used(&mut self, _: PageId, _: KeyspaceId, _: u32, _: Place, _: u64) {}

    fn admits(&mut self, offer: &Offer) -> Result<(), Refusal> {
        match offer.lowest {
            // A dirty page is refreshed where it has a slot; it is not admitted anew.
            _ if offer.dirty => Err(Refusal::Kind),
            Some(lowest) if lowest >= self.temperature(offer.page) => Err(Refusal::Rank),
            _ => Ok(()),
        }
    }

    fn entered(&mut self, _: PageId, _: u64) {}

    fn left(&mut self, _: PageId, _: u64) {}

    fn evicted(&mut self, _: PageId, _: u64) {}

    fn discarded(&mut self, _: PageId) {}

    fn rank(&mut self, page: PageId, _: bool, _: u64) -> f64 {
        self.temperature(page)
    }

    fn memory(&self) -> usize {
        self.extents.capacity() * size_of::<(u64, f64)>()
    }

    /// Extents by their first pages, hottest first; the only word: the temperature.
    fn remember(&self, _: u64) -> Vec<(u64, Memory)> {
        let memory = |(&extent, &t): (&u64, &f64)| {
            let words = [(t as f32).to_bits(), 0, 0, 0, 0];
            // The bits of numbers above 0 are in the numbers' order.
            (u64::MAX - t.max(0.0).to_bits(), Memory { page: PageId(extent * EXTENT), keyspace: KeyspaceId(0), words })
        };
        self.extents.iter().map(memory).collect()
    }

    fn recall(&mut self, memories: &[Memory], now: u64) {
        // What is recalled cools from now on.
        self.cooled = now;
        for m in memories {
            let t = f64::from(f32::from_bits(m.words[0]));
            if t.is_finite() && t > 0.0 {
                self.extents.insert(m.page.0 / EXTENT, t);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temperature_is_of_the_extent_and_halves() {
        let mut m = Tac::new(&ManagerOptions { cooling: 1.0, ..ManagerOptions::default() });
        m.read(PageId(0), Place::Slow, ReadWhy::Demand, 0);
        m.read(PageId(9), Place::Slow, ReadWhy::Demand, 0);
        m.read(PageId(10), Place::Slow, ReadWhy::Demand, 0);
        let saved = 7.2 - 0.11;
        assert!((m.rank(PageId(31), false, 0) - 2.0 * saved).abs() < 1e-9, "10 follows 9: sequential");
        assert_eq!(m.rank(PageId(32), false, 0), 0.0);
        m.read(PageId(99), Place::Slow, ReadWhy::Demand, 1_500_000_000);
        assert!((m.rank(PageId(0), false, 0) - saved).abs() < 1e-9);
    }
}
