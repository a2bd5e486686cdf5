//! `random`: any page may leave. Deterministic from its seed.
//!
//! The slots present form an array; a victim walk starts at a random place of it and goes round. The order of flush
//! candidates is the one from the place that the next walk will start at.

use super::{Ask, Load, Replacement, Slot, Unlink};
use varve_volume::{CostClass, PageId};

const ABSENT: u32 = u32::MAX;

pub(super) struct Random {
    present: Vec<Slot>,
    /// Index of each slot in `present`.
    at: Vec<u32>,
    /// State of a 64-bit linear congruential generator; the high bits are used.
    state: u64,
}

impl Random {
    pub(super) fn new(slots: usize, seed: u64) -> Random {
        let mut random = Random { present: Vec::with_capacity(slots), at: vec![ABSENT; slots], state: seed };
        random.step();
        random
    }

    fn step(&mut self) {
        // Constants of Knuth's MMIX.
        self.state = self.state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    }

    fn start(&self) -> usize {
        ((u128::from(self.state) * self.present.len() as u128) >> 64) as usize
    }

    fn round(&self, depth: usize) -> impl Iterator<Item = Slot> + '_ {
        let (start, len) = (self.start(), self.present.len());
        (0..len.min(depth)).map(move |i| self.present[(start + i) % len])
    }
}

impl Replacement for Random {
    fn load(&mut self, slot: Slot, _page: PageId, _how: Load, _class: CostClass, _now: u64) {
        assert_eq!(self.at[slot as usize], ABSENT, "slot {slot} is loaded already");
        self.at[slot as usize] = self.present.len() as u32;
        self.present.push(slot);
    }

    fn hit(&mut self, slot: Slot, _now: u64) {
        debug_assert_ne!(self.at[slot as usize], ABSENT);
    }

    fn unlink(&mut self, slot: Slot, _how: Unlink) {
        let at = std::mem::replace(&mut self.at[slot as usize], ABSENT) as usize;
        assert_eq!(self.present[at], slot);
        self.present.swap_remove(at);
        if let Some(&moved) = self.present.get(at) {
            self.at[moved as usize] = at as u32;
        }
    }

    fn victim(&mut self, ask: Ask, take: &mut dyn FnMut(Slot) -> bool) -> Option<Slot> {
        let found = self.round(ask.depth).find(|slot| take(*slot));
        self.step();
        found
    }

    fn coldest(&self, depth: usize, visit: &mut dyn FnMut(Slot) -> bool) {
        self.round(depth).all(visit);
    }

    fn len(&self) -> usize {
        self.present.len()
    }

    fn check(&self) {
        for (i, slot) in self.present.iter().enumerate() {
            assert_eq!(self.at[*slot as usize] as usize, i, "index of slot {slot}");
        }
        assert_eq!(self.at.iter().filter(|a| **a != ABSENT).count(), self.present.len());
    }
}
