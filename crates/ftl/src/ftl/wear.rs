//! Static wear levelling, and refreshing of blocks that were read often.

use super::Ftl;
use varve_device::flash::{FlashArray, FlashError};

impl<A: FlashArray> Ftl<A> {
    /// Moves a block that has been erased `wear_delta` times less than the most worn one, if there is such: its pages
    /// are cold, so they go to the most worn free block. Looks for such blocks once in a while, then takes one at a
    /// time.
    pub(super) fn level(&mut self, at: u64, pool: usize) -> Result<(), FlashError> {
        if self.config.wear_delta == 0 {
            return Ok(());
        }
        self.pools[pool].since_levelled += 1;
        if self.pools[pool].cold.is_empty() && self.pools[pool].since_levelled > self.pools[pool].good / 8 {
            self.pools[pool].since_levelled = 0;
            let closed = self.pools[pool].victims.closed();
            let most = closed.iter().map(|b| self.array.erases(*b)).max().unwrap_or(0);
            let lags = |b: &u32| self.array.erases(*b) + self.config.wear_delta < most;
            let mut cold: Vec<u32> = closed.iter().copied().filter(lags).collect();
            cold.sort_unstable_by_key(|b| (std::cmp::Reverse(self.array.erases(*b)), *b));
            self.pools[pool].cold = cold;
        }
        while let Some(block) = self.pools[pool].cold.pop() {
            if self.pools[pool].victims.contains(block) && !self.blocks[block as usize].retire {
                return self.rest(at, pool, block);
            }
        }
        Ok(())
    }

    /// Moves the pages of `block` to the most worn free block, as a whole.
    fn rest(&mut self, at: u64, pool: usize, block: u32) -> Result<(), FlashError> {
        let array = &self.array;
        let Some(target) = self.pools[pool].take_most_worn(|b| array.erases(b)) else { return Ok(()) };
        if self.array.erases(target) <= self.array.erases(block) {
            let (_, lane) = self.home(target);
            self.pools[pool].give(lane, target);
            return Ok(());
        }
        self.pools[pool].victims.remove(block);
        // The target takes the place of an open block for as long as this takes.
        let front = 0;
        let open = std::mem::replace(&mut self.pools[pool].fronts[front], target);
        let mut result = Ok(());
        for slot in 0..self.blocks[block as usize].fill {
            let from = block * self.slots + slot;
            if self.owner[from as usize] != super::NONE {
                match self.move_page(at, pool, front, from) {
                    Ok(programs) => self.stats.wear_copies += programs,
                    Err(e) => {
                        result = Err(e);
                        break;
                    }
                }
            }
        }
        let target = std::mem::replace(&mut self.pools[pool].fronts[front], open);
        if target != super::NONE {
            self.pools[pool].partial.push(target);
        }
        result?;
        self.reclaim(at, pool, block)
    }

    /// Moves the pages of a full block that was read too often since its erase.
    pub(super) fn refresh(&mut self, at: u64, block: u32) -> Result<(), FlashError> {
        let limit = self.config.read_disturb;
        if limit == 0 || self.array.reads_since_erase(block) < limit || self.worn_out {
            return Ok(());
        }
        let (pool, _) = self.home(block);
        if self.pools[pool].victims.contains(block) {
            self.pools[pool].victims.remove(block);
            self.stats.disturb_copies += self.move_out(at, pool, block)?;
            self.reclaim(at, pool, block)?;
        }
        Ok(())
    }
}
