//! The SLC cache: host writes go to blocks used with one bit per cell first; what is in it is folded, that is moved to
//! blocks with all bits, oldest block first, while the drive idles, or while the host waits.
//!
//! The cache takes its blocks from the same free lists, up to a fixed number of them for each pool. The space for data
//! is reckoned without these blocks ([`super::Ftl::capacity`]), so the other blocks can hold all logical pages whatever
//! is in the cache, and folding always finds room. Its blocks are no victims of collection, levelling or refreshing.
//! Mapping, spare areas and the rule that a block is erased only when all that replaced its pages is programmed are
//! those of every page, so a power cut finds them.
//!
//! Idle time is found when the next request comes: what the drive would have folded since it had nothing more to do is
//! done then, at the times at which it would have been.
//!
//! Invariants: a pool has at most `limit` blocks in the cache, open ones included, besides those of which a program
//! failed; each of them is used with one bit per cell from the time at which it is opened until its erase.

use super::{Ftl, NONE, Source};
use crate::{CacheConfig, CacheFull};
use varve_device::flash::{FlashArray, FlashError};

/// What the translation layer knows of its cache.
#[derive(Clone, Debug)]
pub(super) struct Cache {
    /// Pages of a block.
    pub(super) slots: u32,
    /// Blocks of a pool at most.
    pub(super) limit: u32,
    full: CacheFull,
    /// Nanoseconds.
    idle: u64,
}

impl Cache {
    /// Refuses a cache that has fewer blocks than it needs.
    pub(super) fn plan(config: &CacheConfig, slots: u32, pools: u32, lanes: u32) -> Result<Cache, FlashError> {
        let limit = config.blocks / pools;
        if slots == 0 || limit <= lanes {
            let accepted = format!("at least {}: one open block for each plane, and one to fold", (lanes + 1) * pools);
            return Err(FlashError::config("slc_cache.blocks", config.blocks, accepted));
        }
        assert!(limit * pools <= config.blocks);
        Ok(Cache { slots, limit, full: config.full, idle: config.idle })
    }
}

impl<A: FlashArray> Ftl<A> {
    /// Pages that a block takes, as it is used now.
    #[inline]
    pub(super) fn limit(&self, block: u32) -> u32 {
        match &self.cache {
            Some(c) if self.array.is_slc(block) => c.slots,
            _ => self.slots,
        }
    }

    /// Whether a place for an open block is one of the cache's.
    #[inline]
    pub(super) fn is_cache_front(&self, pool: usize, front: usize) -> bool {
        front >= self.pools[pool].data_fronts()
    }

    /// A place in the cache for a host page; `None` if there is no cache, or none free and writes go past it.
    pub(super) fn cache_room(&mut self, at: u64, pool: usize) -> Result<Option<usize>, FlashError> {
        let Some(c) = &self.cache else { return Ok(None) };
        let (limit, full) = (c.limit, c.full);
        let stream = self.pools[pool].data_fronts() as u32 / self.pools[pool].lanes;
        let front = self.pools[pool].turn(stream);
        if self.has_room(self.pools[pool].fronts[front]) {
            return Ok(Some(front));
        }
        while self.pools[pool].cache_blocks >= limit {
            let oldest = self.pools[pool].cached.front().copied();
            let dead = oldest.is_some_and(|b| self.blocks[b as usize].valid == 0);
            if full == CacheFull::Direct && !dead {
                self.stats.cache_bypassed += 1;
                return Ok(None);
            }
            self.stats.cache_waits += u64::from(!dead);
            self.fold(at, pool)?;
        }
        self.make_room(at, pool, front)?;
        Ok(Some(front))
    }

    /// Moves the pages of the cache's oldest full block to blocks with all bits, and erases it.
    fn fold(&mut self, at: u64, pool: usize) -> Result<(), FlashError> {
        let block = self.pools[pool].cached.pop_front().expect("a cache that is full, or folded, has a full block");
        assert!(self.array.is_slc(block), "what is folded is the cache's");
        let base = block * self.slots;
        for slot in 0..self.limit(block) {
            let lpn = self.owner[(base + slot) as usize];
            if lpn == NONE {
                continue;
            }
            let stream = self.stream(lpn.into(), true);
            let placed = self.data_room(at, pool, stream).and_then(|front| {
                // Collecting garbage to make room does not touch this block.
                self.place(at, pool, front, lpn, Source::Copy(base + slot, &[]))
            });
            match placed {
                Ok((_, programs)) => self.stats.fold_copies += programs,
                Err(e) => {
                    self.pools[pool].cached.push_front(block);
                    return Err(e);
                }
            }
        }
        self.stats.folds += 1;
        self.reclaim(at, pool, block)
    }

    /// The host asks for something: first comes what the drive has done of itself while it idled.
    #[inline]
    pub(super) fn asked_at(&mut self, at: u64) -> Result<(), FlashError> {
        let Some(c) = &self.cache else { return Ok(()) };
        let idle = c.idle;
        let last = self.asked;
        self.asked = last.max(at);
        if at <= last.saturating_add(idle) || self.worn_out {
            return Ok(());
        }
        let mut from = self.array.idle_at().max(last).saturating_add(idle);
        while from < at && self.pools.iter().any(|p| !p.cached.is_empty()) {
            // A block for each plane at once, then what comes next when these are done.
            for pool in 0..self.pools.len() {
                let several = self.pools[pool].cached.len().min(self.pools[pool].lanes as usize);
                for _ in 0..several {
                    self.fold(from, pool)?;
                }
            }
            from = from.max(self.array.idle_at());
        }
        Ok(())
    }

    /// Folds everything that is in full blocks of the cache.
    pub fn fold_all(&mut self, at: u64) -> Result<(), FlashError> {
        for pool in 0..self.pools.len() {
            while !self.pools[pool].cached.is_empty() {
                self.fold(at, pool)?;
            }
        }
        Ok(())
    }

    /// After a power cut: the cache has no more blocks than it may.
    pub(super) fn shrink_cache(&mut self, at: u64) -> Result<(), FlashError> {
        let limit = self.cache.as_ref().map_or(u32::MAX, |c| c.limit);
        for pool in 0..self.pools.len() {
            while self.pools[pool].cache_blocks > limit && !self.pools[pool].cached.is_empty() {
                self.fold(at, pool)?;
            }
        }
        Ok(())
    }
}
