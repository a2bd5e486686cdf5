//! CAC and CC: pages ranked by the I/O time that having them on the fast device saves.
//!
//! `B(p) = (rD^ R_D - rS^ R_S) + (wD^ W_D - wS^ W_S)` with `rS^ = rS + a rD`, `rD^ = rD + rS / a`, and likewise for
//! writes (CAC paper, section 5.1). CC takes the counts as they are, as if a page's rates did not depend on where it
//! is: a page that was hot before it was admitted is kept although, in the pool all the time, it is read from no
//! device.

use super::usage::Usage;
use super::{Costs, Manager, ManagerOptions, Memory, Offer, Place, Refusal, Style};
use crate::{Counted, KeyspaceId, PageId, ReadWhy};

pub(super) struct Benefit {
    costs: Costs,
    /// Whether the rates that the page would have elsewhere are anticipated.
    anticipate: bool,
    usage: Usage,
}

impl Benefit {
    pub fn cac(options: &ManagerOptions) -> Benefit {
        Benefit { costs: options.costs, anticipate: true, usage: Usage::new(options) }
    }

    pub fn cc(options: &ManagerOptions) -> Benefit {
        Benefit { anticipate: false, ..Benefit::cac(options) }
    }

    /// Milliseconds saved by having the page on the fast device.
    fn benefit(&self, page: PageId) -> f64 {
        let Costs { read_slow, write_slow, read_fast, write_fast } = self.costs;
        let r = self.usage.rates(page);
        if !self.anticipate {
            let (reads, writes) = (r.read_fast + r.read_slow, r.write_fast + r.write_slow);
            return reads * (read_slow - read_fast) + writes * (write_slow - write_fast);
        }
        let a = self.usage.expansion(page);
        let reads = (r.read_slow + r.read_fast / a) * read_slow - (r.read_fast + a * r.read_slow) * read_fast;
        let writes = (r.write_slow + r.write_fast / a) * write_slow - (r.write_fast + a * r.write_slow) * write_fast;
        debug_assert!((reads + writes).is_finite(), "benefits can be compared: {r:?}, expansion {a}");
        reads + writes
    }
}

impl Manager for Benefit {
    fn style(&self) -> Style {
        Style::default()
    }

    fn resized(&mut self, slots: usize) {
        self.usage.resized(slots);
    }

    fn read(&mut self, page: PageId, from: Place, why: ReadWhy, now: u64) {
        self.usage.read(page, from, why, now);
    }

    fn wrote(&mut self, page: PageId, to: Place, now: u64) {
        self.usage.wrote(page, to, now);
    }

    fn used(&mut self, page: PageId, keyspace: KeyspaceId, logical: u32, at: Place, now: u64) {
        self.usage.used(page, keyspace, logical, at, now);
    }

    fn admits(&mut self, offer: &Offer) -> Result<(), Refusal> {
        match offer.lowest {
            Some(lowest) if lowest >= self.benefit(offer.page) => Err(Refusal::Rank),
            _ => Ok(()),
        }
    }

    fn entered(&mut self, page: PageId, now: u64) {
        self.usage.entered(page, now);
    }

    fn left(&mut self, page: PageId, now: u64) {
        self.usage.left(page, now);
    }

    fn evicted(&mut self, page: PageId, now: u64) {
        self.usage.evicted(page, now);
    }

    fn discarded(&mut self, page: PageId) {
        self.usage.discarded(page);
    }

    fn rank(&mut self, page: PageId, _newer: bool, _now: u64) -> f64 {
        self.benefit(page)
    }

    fn memory(&self) -> usize {
        self.usage.memory()
    }

    fn outqueue_memory(&self) -> usize {
        self.usage.outqueue_memory()
    }

    fn counted(&self) -> Counted {
        self.usage.counted()
    }

    fn remember(&self, now: u64) -> Vec<(u64, Memory)> {
        self.usage.remember(now)
    }

    fn recall(&mut self, memories: &[Memory], now: u64) {
        self.usage.recall(memories, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cac_anticipates_what_a_move_does_to_the_page() {
        let options = ManagerOptions { outqueue: Some(100), ..ManagerOptions::default() };
        let (mut cac, mut cc) = (Benefit::cac(&options), Benefit::cc(&options));
        let page = PageId(1);
        for m in [&mut cac, &mut cc] {
            m.read(page, Place::Slow, ReadWhy::Demand, 0);
            m.used(page, KeyspaceId(1), 10, Place::Slow, 1);
            m.evicted(page, 1);
            m.entered(page, 1);
            for n in 0..4 {
                m.read(page, Place::Fast, ReadWhy::Demand, n);
            }
            m.used(page, KeyspaceId(1), 10, Place::Fast, 3);
            m.evicted(page, 3);
        }
        // It misses four times as often while it is on the fast device: off it, its four reads would have been one.
        assert!((cac.usage.expansion(page) - 4.0).abs() < 1e-6);
        let expected = (1.0 + 4.0 / 4.0) * 7.2 - (4.0 + 4.0 * 1.0) * 0.11;
        assert!((cac.rank(page, false, 3) - expected).abs() < 1e-6);
        assert!((cc.rank(page, false, 3) - 5.0 * (7.2 - 0.11)).abs() < 1e-6);
    }

    #[test]
    fn cc_counts_reads_and_writes_wherever_they_went() {
        let mut cc = Benefit::cc(&ManagerOptions { outqueue: Some(100), ..ManagerOptions::default() });
        cc.read(PageId(1), Place::Slow, ReadWhy::Demand, 0);
        cc.read(PageId(1), Place::Fast, ReadWhy::Demand, 0);
        cc.wrote(PageId(1), Place::Fast, 0);
        let expected = 2.0 * (7.2 - 0.11) + (4.96 - 0.27);
        assert!((cc.rank(PageId(1), false, 0) - expected).abs() < 1e-9);
        assert_eq!(cc.rank(PageId(9), false, 0), 0.0, "nothing is known of it");
    }

    #[test]
    fn admission_compares_with_the_lowest() {
        let mut cac = Benefit::cac(&ManagerOptions { outqueue: Some(10), ..ManagerOptions::default() });
        let offer =
            |lowest| Offer { page: PageId(3), keyspace: KeyspaceId(1), dirty: false, evicted: true, lowest, now: 0 };
        assert_eq!(cac.admits(&offer(None)), Ok(()), "a free slot costs nobody anything");
        assert_eq!(cac.admits(&offer(Some(0.0))), Err(Refusal::Rank));
        cac.read(PageId(3), Place::Slow, ReadWhy::Demand, 0);
        assert_eq!(cac.admits(&offer(Some(0.0))), Ok(()));
        assert_eq!(cac.admits(&offer(Some(100.0))), Err(Refusal::Rank));
    }
}
