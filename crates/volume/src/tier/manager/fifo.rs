//! MV-FIFO, FaCE: every page that leaves or is cleaned is appended at the rear of a queue of versions; the front leaves
//! first. The older version of a page stays in the queue, dead, until its turn. With a second chance, a page read since
//! it entered is passed over once: it keeps its slot and goes to the rear.
//!
//! Invariant: the queue's positions are given once, in order; none is beyond the rear.

use super::{Manager, ManagerOptions, Memory, Offer, Place, Refusal, Style};
use crate::{KeyspaceId, PageId, ReadWhy};
use varve_rt::HashMap;

#[derive(Clone, Copy)]
struct Version {
    position: u64,
    hit: bool,
}

pub(super) struct MvFifo {
    second_chance: bool,
    pages: HashMap<PageId, Version>,
    rear: u64,
}

impl MvFifo {
    pub fn new(options: &ManagerOptions) -> MvFifo {
        MvFifo { second_chance: options.second_chance, pages: HashMap::default(), rear: 0 }
    }
}

impl Manager for MvFifo {
    fn style(&self) -> Style {
        Style { append: true, ..Style::default() }
    }

    fn read(&mut self, page: PageId, from: Place, _: ReadWhy, _: u64) {
        if from == Place::Fast
            && let Some(version) = self.pages.get_mut(&page)
        {
            version.hit = true;
        }
    }

    fn wrote(&mut self, _: PageId, _: Place, _: u64) {}

    fn used(&mut self, _: PageId, _: KeyspaceId, _: u32, _: Place, _: u64) {}

    fn admits(&mut self, _: &Offer) -> Result<(), Refusal> {
        Ok(())
    }

    fn entered(&mut self, page: PageId, _: u64) {
        self.rear += 1;
        self.pages.insert(page, Version { position: self.rear, hit: false });
    }

    fn left(&mut self, page: PageId, _: u64) {
        self.pages.remove(&page);
    }

    fn evicted(&mut self, _: PageId, _: u64) {}

    fn discarded(&mut self, page: PageId) {
        self.pages.remove(&page);
    }

    /// The position in the queue. The tier asks again before a page leaves: a page that was hit answers with the rear
    /// then.
    fn rank(&mut self, page: PageId, _: bool, _: u64) -> f64 {
        let Some(version) = self.pages.get_mut(&page) else { return 0.0 };
        if self.second_chance && std::mem::take(&mut version.hit) {
            self.rear += 1;
            version.position = self.rear;
        }
        assert!(version.position <= self.rear, "nobody stands behind the rear");
        version.position as f64
    }

    fn memory(&self) -> usize {
        self.pages.capacity() * (size_of::<(PageId, Version)>() + 1)
    }

    /// The queue from its rear on; the only word: whether the page was read since it entered.
    fn remember(&self, _: u64) -> Vec<(u64, Memory)> {
        let memory = |(&page, v): (&PageId, &Version)| {
            let words = [u32::from(v.hit), 0, 0, 0, 0];
            (u64::MAX - v.position, Memory { page, keyspace: KeyspaceId(0), words })
        };
        self.pages.iter().map(memory).collect()
    }

    fn recall(&mut self, memories: &[Memory], _: u64) {
        for m in memories.iter().rev() {
            if let Some(version) = self.pages.get_mut(&m.page) {
                self.rear += 1;
                *version = Version { position: self.rear, hit: m.words[0] != 0 };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_in_first_out_but_for_a_second_chance() {
        for (second_chance, first) in [(false, 1), (true, 2)] {
            let mut m = MvFifo::new(&ManagerOptions { second_chance, ..ManagerOptions::default() });
            (1..4).for_each(|p| m.entered(PageId(p), p));
            m.read(PageId(1), Place::Fast, ReadWhy::Demand, 9);
            let lowest = (1..4).min_by(|a, b| m.rank(PageId(*a), false, 9).total_cmp(&m.rank(PageId(*b), false, 9)));
            assert_eq!(lowest, Some(first), "second chance {second_chance}");
        }
    }
}
