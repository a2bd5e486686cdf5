//! Lock memory is charged to the budget in blocks, and the first bytes of each shard not at all, so that a few locks
//! touch no shared counter. What is not charged is bounded by the number of open keyspaces.
//!
//! Invariants: what is used is free or charged; what is charged beyond need is bounded.

use crate::budget::{Budget, Class};
use crate::error::Result;

/// Bytes that each holder of a credit has without a charge.
const FREE: usize = 1024;
const BLOCK: usize = 1024;
/// Unused credit above this goes back to the budget.
const KEPT: usize = 4 * BLOCK;
const _: () = assert!(FREE <= KEPT && BLOCK <= KEPT, "what is kept at most is more than what is never charged");

/// Bytes in use by locks, and bytes charged to [`Class::Locks`] for them.
#[derive(Default)]
pub(super) struct Credit {
    used: usize,
    charged: usize,
}

impl Credit {
    /// Makes sure that `bytes` can be spent.
    #[inline]
    pub fn reserve(&mut self, budget: &Budget, bytes: usize) -> Result<()> {
        if self.used + bytes <= FREE + self.charged { Ok(()) } else { self.charge(budget, bytes) }
    }

    #[cold]
    fn charge(&mut self, budget: &Budget, bytes: usize) -> Result<()> {
        let more = (self.used + bytes - FREE - self.charged).next_multiple_of(BLOCK);
        budget.charge(Class::Locks, more as u64)?;
        self.charged += more;
        Ok(())
    }

    /// Uses what was reserved.
    #[inline]
    pub fn spend(&mut self, bytes: usize) {
        self.used += bytes;
        assert!(self.used <= FREE + self.charged, "spent without a reservation");
    }

    /// Reserves and spends.
    pub fn take(&mut self, budget: &Budget, bytes: usize) -> Result<()> {
        self.reserve(budget, bytes)?;
        self.spend(bytes);
        Ok(())
    }

    /// Gives back what was spent.
    #[inline]
    pub fn give(&mut self, budget: &Budget, bytes: usize) {
        assert!(self.used >= bytes, "gave back more than was spent");
        self.used -= bytes;
        if self.charged > 0 && (self.used <= FREE / 2 || FREE + self.charged - self.used > KEPT) {
            self.trim(budget);
        }
    }

    #[cold]
    fn trim(&mut self, budget: &Budget) {
        let needed = self.used.saturating_sub(FREE).next_multiple_of(BLOCK);
        assert!(needed <= self.charged, "what is used was charged");
        budget.release(Class::Locks, (self.charged - needed) as u64);
        self.charged = needed;
        assert!(self.used <= FREE + self.charged, "what is used is free or charged");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_charged_covers_what_is_used_and_all_comes_back() {
        let budget = Budget::unlimited();
        let mut credit = Credit::default();
        let mut rng = varve_rt::Rng::from_seed(1);
        let mut spent = Vec::new();
        for step in 0..20_000 {
            if rng.below(10) < if step % 4000 < 2000 { 7 } else { 2 } {
                let bytes = 1 + rng.below(300) as usize;
                credit.take(&budget, bytes).unwrap();
                spent.push(bytes);
            } else if let Some(bytes) = spent.pop() {
                credit.give(&budget, bytes);
            }
            let used: usize = spent.iter().sum();
            assert!(used <= FREE + credit.charged && credit.charged <= used + KEPT);
            assert_eq!(budget.used(Class::Locks), credit.charged as u64);
        }
        spent.drain(..).for_each(|bytes| credit.give(&budget, bytes));
        assert_eq!(budget.used(Class::Locks), 0);
    }
}
