//! Open blocks, placing pages, and garbage collection.

use super::{Block, Ftl, NONE, Source, spare_of};
use crate::GcPolicy;
use varve_device::Mistake;
use varve_device::flash::{Contents, FlashArray, FlashError, Page, Span};

impl<A: FlashArray> Ftl<A> {
    #[inline]
    pub(super) fn has_room(&self, block: u32) -> bool {
        block != NONE && self.blocks[block as usize].fill < self.limit(block)
    }

    /// An open block's place with room for a page of `stream`, past the cache, after collection if that is due.
    #[inline]
    pub(super) fn data_room(&mut self, at: u64, pool: usize, stream: u32) -> Result<usize, FlashError> {
        let front = self.pools[pool].turn(stream);
        if !self.has_room(self.pools[pool].fronts[front]) {
            self.make_room(at, pool, front)?;
        }
        Ok(front)
    }

    /// Opens a block at a place that has none with room, after collection if that is due.
    pub(super) fn make_room(&mut self, at: u64, pool: usize, front: usize) -> Result<(), FlashError> {
        let reused = !self.is_cache_front(pool, front) && !self.pools[pool].partial.is_empty();
        if !reused && self.pools[pool].free_blocks() <= self.low {
            loop {
                self.collect(at, pool, None)?;
                let p = &self.pools[pool];
                if p.free_blocks() + u32::from(self.has_room(p.fronts[front])) >= self.high {
                    break;
                }
            }
            self.level(at, pool)?;
        }
        self.open_block(pool, front)
    }

    /// Makes sure that the place holds a block with room.
    fn open_block(&mut self, pool: usize, front: usize) -> Result<(), FlashError> {
        let old = self.pools[pool].fronts[front];
        if self.has_room(old) {
            return Ok(());
        }
        assert_eq!(old, NONE, "a full block is closed at once");
        let cache = self.is_cache_front(pool, front);
        let p = &mut self.pools[pool];
        let lane = p.lane(front);
        let partial = if cache { None } else { p.partial.pop() };
        let block = match partial {
            Some(block) => block,
            None => match p.take(lane) {
                Some(block) => {
                    p.cache_blocks += u32::from(cache);
                    let erased = self.array.next_page(block) == 0;
                    assert!(erased || !self.array.is_alive(), "free block {block} is erased");
                    block
                }
                None => return Err(self.out_of_space()),
            },
        };
        if cache {
            let p = &self.pools[pool];
            let failed = p.cached.iter().filter(|b| self.blocks[**b as usize].retire).count() as u32;
            assert!(p.cache_blocks <= self.cache_limit() + failed, "the cache takes no more blocks than it may");
            self.array.set_slc(block, true)?;
        }
        assert!(self.has_room(block), "block {block} is opened with room");
        if self.hints.is_some() && !cache {
            let stream = front as u32 / self.pools[pool].lanes;
            self.blocks[block as usize].stream = stream as u8;
        }
        self.pools[pool].fronts[front] = block;
        Ok(())
    }

    pub(super) fn close(&mut self, pool: usize, block: u32) {
        if self.cache.is_some() && self.array.is_slc(block) {
            self.pools[pool].cached.push_back(block);
            return;
        }
        let Block { valid, fill, .. } = self.blocks[block as usize];
        assert_eq!(fill, self.slots, "a block is closed when it is full");
        self.pools[pool].victims.insert(block, valid, self.stats.clock);
    }

    fn out_of_space(&mut self) -> FlashError {
        self.worn_out = true;
        FlashError::EndOfLife { bad: self.bad_blocks() }
    }

    /// Programs a page into an open block and maps it; gives the span and the number of programs that it took (more
    /// than one if some failed).
    pub(super) fn place(
        &mut self,
        at: u64,
        pool: usize,
        front: usize,
        lpn: u32,
        source: Source<'_>,
    ) -> Result<(Span, u64), FlashError> {
        for programs in 1.. {
            let block = self.pools[pool].fronts[front];
            let slot = self.blocks[block as usize].fill;
            let limit = self.limit(block);
            assert!(slot < limit, "block {block} has room");
            debug_assert_eq!(self.home(block).0, pool, "a pool fills its own blocks");
            let page = Page { block, page: self.page(slot) };
            self.seq += 1;
            let span = self.program(at, page, lpn, source);
            if matches!(span, Ok(_) | Err(FlashError::ProgramFailed { .. })) {
                let b = &mut self.blocks[block as usize];
                b.fill += 1;
                if slot == 0 {
                    b.opened = self.seq;
                }
            }
            match span {
                Ok(span) => {
                    self.remap(block * self.slots + slot, lpn, span);
                    if slot + 1 == limit {
                        self.pools[pool].fronts[front] = NONE;
                        self.close(pool, block);
                    }
                    return Ok((span, programs));
                }
                Err(FlashError::ProgramFailed { .. }) => {
                    self.retire_open(pool, front);
                    self.open_block(pool, front)?;
                }
                Err(e) => return Err(e),
            }
        }
        unreachable!("the loop ends by returning")
    }

    fn program(&mut self, at: u64, page: Page, lpn: u32, source: Source<'_>) -> Result<Span, FlashError> {
        if self.array.contents() == Contents::Nothing {
            return match source {
                Source::Host(_) => self.array.program(at, page, &[], &[]),
                Source::Copy(from, _) => self.array.copy(at, self.address(from), page, &[]),
            };
        }
        let spare = spare_of(lpn, self.seq);
        match source {
            Source::Host(data) => self.array.program(at, page, data.unwrap_or_default(), &spare),
            Source::Copy(from, []) => self.array.copy(at, self.address(from), page, &spare),
            Source::Copy(from, tail) => {
                let spare = [&spare[..], tail].concat();
                self.array.copy(at, self.address(from), page, &spare)
            }
        }
    }

    #[inline]
    fn remap(&mut self, ppn: u32, lpn: u32, span: Span) {
        let old = std::mem::replace(&mut self.map[lpn as usize], ppn);
        let before = std::mem::replace(&mut self.owner[ppn as usize], lpn);
        assert_eq!(before, NONE, "physical page {ppn} is given once between two erases");
        let b = &mut self.blocks[(ppn / self.slots) as usize];
        b.valid += 1;
        assert!(b.valid <= b.fill, "valid pages are programmed");
        if let Some(d) = self.deltas.get_mut(ppn as usize) {
            *d = 0;
        }
        if old != NONE {
            self.invalidate(old, span.end);
        }
    }

    /// Collects one block: the policy's choice, or `victim`.
    pub(super) fn collect(&mut self, at: u64, pool: usize, victim: Option<u32>) -> Result<(), FlashError> {
        let victim = victim.or_else(|| self.pick_hinted(pool));
        let (clock, blocks) = (self.stats.clock, &self.blocks);
        let p = &mut self.pools[pool];
        let picked = victim.or_else(|| p.victims.pick(&mut self.rng, clock, |b| blocks[b as usize].valid));
        let Some(victim) = picked else { return Err(self.out_of_space()) };
        p.victims.remove(victim);
        self.stats.victims += 1;
        self.stats.victim_valid += u64::from(self.blocks[victim as usize].valid);
        self.stats.gc_copies += self.move_out(at, pool, victim)?;
        self.reclaim(at, pool, victim)
    }

    /// Moves the valid pages of a block that is in no list; gives their number.
    pub(super) fn move_out(&mut self, at: u64, pool: usize, victim: u32) -> Result<u64, FlashError> {
        let base = victim * self.slots;
        let mut copies = 0;
        for slot in 0..self.blocks[victim as usize].fill {
            let from = base + slot;
            let lpn = self.owner[from as usize];
            if lpn == NONE {
                continue;
            }
            let stream = self.stream(lpn.into(), true);
            let front = self.pools[pool].turn(stream);
            if !self.has_room(self.pools[pool].fronts[front]) {
                self.open_block(pool, front)?;
            }
            copies += self.move_page(at, pool, front, from)?;
        }
        Ok(copies)
    }

    /// Erases a block without valid pages that is in no list, and gives it to the free ones (or retires it).
    pub(super) fn reclaim(&mut self, at: u64, pool: usize, block: u32) -> Result<(), FlashError> {
        assert_eq!(self.blocks[block as usize].valid, 0, "block {block} is empty");
        assert!(!self.pools[pool].victims.contains(block), "a block that is erased is in no list");
        debug_assert!(!self.is_meta(block), "the map's blocks are erased by checkpoints alone");
        debug_assert!(self.owner[(block * self.slots) as usize..][..self.slots as usize].iter().all(|o| *o == NONE));
        let b = self.blocks[block as usize];
        let settled = if self.faults.has(Mistake::FlashErasedEarly) { 0 } else { b.settled };
        let at = at.max(settled).max(self.settle_trims(at)?);
        self.blocks[block as usize] = Default::default();
        if self.cache.is_some() && self.array.is_slc(block) {
            self.pools[pool].cache_blocks -= 1;
        }
        let (home, lane) = self.home(block);
        assert_eq!(home, pool, "a block stays in its pool");
        if b.retire {
            self.array.mark_bad(block);
        } else {
            self.stats.erases += 1;
            match self.array.erase(at, block) {
                Ok(_) => {
                    self.pools[pool].give(lane, block);
                    return Ok(());
                }
                Err(FlashError::WornOut { .. } | FlashError::EraseFailed { .. }) => {}
                Err(e) => return Err(e),
            }
        }
        assert!(self.pools[pool].good > 0, "a pool has the block that it loses");
        self.pools[pool].good -= 1;
        self.pools[pool].bad += 1;
        if self.pools[pool].logical > self.most_logical(&self.pools[pool]) {
            self.worn_out = true;
        }
        Ok(())
    }

    /// A program of the open block failed: its pages move elsewhere, the block is retired.
    fn retire_open(&mut self, pool: usize, front: usize) {
        let block = std::mem::replace(&mut self.pools[pool].fronts[front], NONE);
        assert!(!self.blocks[block as usize].retire, "a block is retired once");
        self.blocks[block as usize].retire = true;
        // Closed: collection will find it. Its free pages are not used any more.
        self.blocks[block as usize].fill = self.limit(block);
        self.close(pool, block);
    }

    /// Restores the reserve after a power cut, whatever the policy: takes the blocks with the fewest valid pages.
    pub(super) fn restore_reserve(&mut self, at: u64, pool: usize) -> Result<(), FlashError> {
        while self.pools[pool].free_blocks() < self.low {
            let closed = self.pools[pool].victims.closed();
            let victim = closed.iter().copied().min_by_key(|b| (self.blocks[*b as usize].valid, *b));
            if victim.is_none_or(|v| self.blocks[v as usize].valid == self.slots) {
                return Err(self.out_of_space());
            }
            self.collect(at, pool, victim)?;
        }
        Ok(())
    }

    /// The policy in use.
    pub fn policy(&self) -> GcPolicy {
        self.config.gc
    }
}
