//! Lock memory is charged to the budget in blocks, so that a single lock touches no shared counter.

use crate::budget::{Budget, Class};
use crate::error::Result;

/// Largest block.
const BLOCK: usize = 4096;
/// A block is at most this part of the class's limit: every shard of every keyspace may keep some unused.
const BLOCKS: u64 = 512;
/// Unused credit above this many blocks goes back to the budget.
const KEPT: usize = 4;

fn block(budget: &Budget) -> usize {
    (budget.limit(Class::Locks) / BLOCKS).clamp(128, BLOCK as u64) as usize
}

/// Bytes charged to [`Class::Locks`], some of them not used yet.
#[derive(Default)]
pub(super) struct Credit {
    unused: usize,
    charged: usize,
}

impl Credit {
    /// Makes sure that `bytes` can be spent.
    #[inline]
    pub fn reserve(&mut self, budget: &Budget, bytes: usize) -> Result<()> {
        if self.unused >= bytes { Ok(()) } else { self.refill(budget, bytes) }
    }

    #[cold]
    fn refill(&mut self, budget: &Budget, bytes: usize) -> Result<()> {
        let block = bytes.max(block(budget));
        budget.charge(Class::Locks, block as u64)?;
        self.unused += block;
        self.charged += block;
        Ok(())
    }

    /// Uses what was reserved.
    #[inline]
    pub fn spend(&mut self, bytes: usize) {
        debug_assert!(self.unused >= bytes, "spent without a reservation");
        self.unused -= bytes;
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
        self.unused += bytes;
        debug_assert!(self.unused <= self.charged, "gave back more than was spent");
        let block = block(budget);
        if self.unused > KEPT * block {
            self.trim(budget, block);
        }
    }

    #[cold]
    fn trim(&mut self, budget: &Budget, keep: usize) {
        let back = self.unused - keep;
        self.unused = keep;
        self.charged -= back;
        budget.release(Class::Locks, back as u64);
    }

    /// Gives all that is unused back to the budget.
    pub fn close(&mut self, budget: &Budget) {
        self.trim(budget, 0);
    }
}
