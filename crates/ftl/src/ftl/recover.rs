//! Finding the map again after a power cut: the newest complete checkpoint, the journal of trims, and the spare areas
//! of the pages programmed since.

use super::meta::{self, Found};
use super::victims::Victims;
use super::{Block, Ftl, MAGIC, NONE, SPARE};
use varve_device::Mistake;
use varve_device::flash::{Contents, FlashArray, FlashError, Page};

/// Spare areas that are read at once.
const AT_ONCE: usize = 4096;

/// What a recovery found and did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Pages read: the map's, and spare areas.
    pub reads: u64,
    /// Blocks whose spare areas were read, beyond their first page's.
    pub scanned_blocks: u64,
    /// Pages that an interrupted operation left unreadable.
    pub torn_pages: u64,
    /// Logical pages mapped.
    pub mapped: u64,
    /// When the drive is ready, nanoseconds.
    pub ready_at: u64,
}

impl<A: FlashArray> Ftl<A> {
    /// Rebuilds everything from the array, after its power was cut. Needs contents.
    pub fn recover(&mut self, at: u64) -> Result<Recovery, FlashError> {
        assert_ne!(self.array.contents(), Contents::Nothing, "nothing was kept to recover from");
        self.forget_pending_trims();
        let found = self.read_map(at)?;
        let mut report = Recovery { reads: found.reads, ..Recovery::default() };
        self.rebuild_map(at, found, &mut report)?;
        self.rebuild_blocks()?;
        report.mapped = self.map.iter().filter(|p| **p != NONE).count() as u64;
        self.rebuild_pools(at)?;
        self.checkpoint(at)?;
        report.ready_at = self.array.idle_at().max(at);
        if cfg!(debug_assertions) && self.array.is_alive() {
            self.verify();
        }
        Ok(report)
    }

    /// Replays what happened after the checkpoint: of all versions of a page and its trims, the last one counts.
    fn rebuild_map(&mut self, at: u64, mut found: Found, report: &mut Recovery) -> Result<(), FlashError> {
        let mut newest = vec![found.seq; found.map.len()];
        self.map = std::mem::take(&mut found.map);
        self.seq = found.seq;
        let scan = self.blocks_to_scan(at, &found, report)?;
        for places in scan.chunks(AT_ONCE) {
            for (place, spare) in places.iter().zip(self.read_spares(at, places, report)?) {
                let Some((lpn, seq)) = spare else { continue };
                self.seq = self.seq.max(seq);
                if seq > newest[lpn as usize] || self.faults.has(Mistake::FlashNoNumbers) {
                    newest[lpn as usize] = seq;
                    self.map[lpn as usize] = place.0 * self.slots + place.1;
                }
            }
        }
        debug_assert!(newest.iter().all(|seq| *seq <= self.seq), "no page has a number that is still to come");
        for trim in found.trims {
            self.seq = self.seq.max(trim.seq);
            let range = trim.lpn as usize..(trim.lpn + trim.count) as usize;
            for (ppn, seq) in self.map[range.clone()].iter_mut().zip(&mut newest[range]) {
                if trim.seq > *seq {
                    (*ppn, *seq) = (NONE, trim.seq);
                }
            }
        }
        Ok(())
    }

    /// Finds which blocks were programmed since the checkpoint, by their first pages; gives their pages, block and
    /// slot, those of different chips by turns.
    fn blocks_to_scan(&mut self, at: u64, found: &Found, report: &mut Recovery) -> Result<Vec<(u32, u32)>, FlashError> {
        self.blocks.iter_mut().for_each(|block| block.opened = 0);
        // (Bad ones too: what moved out of a block whose program failed may not have arrived.)
        let all = 0..self.blocks.len() as u32;
        let of_use = all.filter(|b| !self.is_meta(*b) && !self.array.is_torn(*b) && self.programmed(*b) > 0);
        let mut blocks: Vec<(u32, u32)> = of_use.map(|block| (block, 0)).collect();
        let per_chip = self.array.geometry().blocks_per_chip();
        blocks.sort_by_key(|(block, _)| (block % per_chip, *block));
        let mut scan = Vec::new();
        for firsts in blocks.chunks(AT_ONCE) {
            for ((block, _), first) in firsts.iter().zip(self.read_spares(at, firsts, report)?) {
                let fill = self.programmed(*block);
                let known = found.blocks.get(*block as usize).copied().unwrap_or_default();
                let opened = first.map_or(0, |(_, seq)| seq);
                self.blocks[*block as usize].opened = opened;
                let believed = self.faults.has(Mistake::FlashNoScan) && found.seq > 0;
                let known = if believed { (opened, fill) } else { known };
                let start = if opened != 0 && opened == known.0 { known.1 } else { 0 };
                report.scanned_blocks += u64::from(start < fill);
                scan.extend((start..fill).map(|slot| (*block, slot)));
            }
        }
        Ok(scan)
    }

    /// Logical page and number of programmed pages, by block and slot; `None` for what cannot be read.
    fn read_spares(
        &mut self,
        at: u64,
        places: &[(u32, u32)],
        report: &mut Recovery,
    ) -> Result<Vec<Option<(u32, u64)>>, FlashError> {
        let pages: Vec<Page> =
            places.iter().map(|(block, slot)| Page { block: *block, page: self.page(*slot) }).collect();
        let mut spares = vec![0; SPARE * pages.len()];
        report.reads += pages.len() as u64;
        let read = self.array.read_spares(at, &pages, &mut spares);
        assert_eq!(read.len(), pages.len(), "every read is answered");
        let parse = |((page, read), spare): ((&Page, Result<_, _>), &[u8])| match read {
            Err(FlashError::Uncorrectable { .. }) => {
                report.torn_pages += 1;
                Ok(None)
            }
            read => read.and_then(|_| self.parse_spare(page.block, spare)).map(Some),
        };
        pages.iter().zip(read).zip(spares.chunks(SPARE)).map(parse).collect()
    }

    /// What the spare area of a data page says: its logical page, and its number.
    fn parse_spare(&self, block: u32, spare: &[u8]) -> Result<(u32, u64), FlashError> {
        let word = |i: usize| u32::from_le_bytes(spare[i..i + 4].try_into().expect("four bytes"));
        let seq = u64::from_le_bytes(spare[8..].try_into().expect("eight bytes"));
        if word(0) != MAGIC || u64::from(word(4)) >= self.logical || seq >= meta::MOST {
            let accepted = "the one with which the array was written: a block holds pages that are none of its";
            return Err(FlashError::config("layout", format!("block {block}"), accepted));
        }
        Ok((word(4), seq))
    }

    /// Used pages of a block that are programmed.
    fn programmed(&self, block: u32) -> u32 {
        let next = self.array.next_page(block);
        if self.cache.is_some() && self.array.is_slc(block) {
            return next.min(self.limit(block));
        }
        self.pages.as_ref().map_or(next, |p| p.partition_point(|page| *page < next) as u32)
    }

    fn rebuild_blocks(&mut self) -> Result<(), FlashError> {
        self.owner.fill(NONE);
        for block in 0..self.blocks.len() as u32 {
            let opened = self.blocks[block as usize].opened;
            let fill = if self.array.is_torn(block) { self.slots } else { self.programmed(block) };
            self.blocks[block as usize] = Block { fill, opened, ..Block::default() };
        }
        for (lpn, ppn) in self.map.iter().enumerate() {
            if *ppn != NONE {
                let block = ppn / self.slots;
                let owner = &mut self.owner[*ppn as usize];
                // A page is on a programmed one, which has no other owner and is none of the map's.
                let owns = ppn % self.slots < self.blocks[block as usize].fill && *owner == NONE;
                if !owns || self.meta.as_ref().is_some_and(|meta| meta.owns(block)) {
                    return Err(meta::impossible(block));
                }
                *owner = lpn as u32;
                self.blocks[block as usize].valid += 1;
            }
        }
        // How many appends a page holds is found when it is read.
        self.deltas.fill(super::appends::UNKNOWN);
        self.forget_hints();
        Ok(())
    }

    fn rebuild_pools(&mut self, at: u64) -> Result<(), FlashError> {
        let per_pool = self.blocks.len() as u32 / self.pools.len() as u32;
        let mut order: Vec<u32> = (0..self.blocks.len() as u32).filter(|b| !self.is_meta(*b)).collect();
        order.sort_by_key(|b| (self.blocks[*b as usize].opened, *b));
        for (i, pool) in self.pools.iter_mut().enumerate() {
            let first = i as u32 * per_pool;
            let victims = Victims::new(self.config.gc, self.config.d, self.slots, first, per_pool);
            let streams = pool.streams();
            *pool = super::Pool::new(pool.first_plane, pool.lanes, streams, pool.logical, victims);
        }
        // All of them first: a block that fails to be erased is taken off, and there must be enough without it.
        order.retain(|block| !self.array.is_bad(*block));
        for block in &order {
            let (pool, _) = self.home(*block);
            self.pools[pool].good += 1;
        }
        for block in order {
            let (pool, lane) = self.home(block);
            let Block { valid, fill, .. } = self.blocks[block as usize];
            let slc = self.cache.is_some() && self.array.is_slc(block);
            if slc && fill == 0 {
                // It had become one of the cache's, and was not used yet.
                self.array.set_slc(block, false)?;
            }
            let cached = slc && fill > 0;
            self.pools[pool].cache_blocks += u32::from(cached);
            if fill == 0 {
                self.pools[pool].give(lane, block);
            } else if valid == 0 {
                self.reclaim(at, pool, block)?;
            } else if cached {
                // Also those with room left: the cache begins with new blocks.
                self.pools[pool].cached.push_back(block);
            } else if fill < self.slots {
                self.pools[pool].partial.push(block);
            } else {
                self.close(pool, block);
            }
        }
        for pool in 0..self.pools.len() {
            self.restore_reserve(at, pool)?;
        }
        self.asked = at;
        self.shrink_cache(at)
    }

    /// Checks every invariant of the tables; panics where one does not hold. For tests: costs a walk over everything.
    pub fn verify(&self) {
        let mut valid = vec![0; self.blocks.len()];
        for (lpn, ppn) in self.map.iter().enumerate() {
            if *ppn != NONE {
                assert_eq!(self.owner[*ppn as usize], lpn as u32, "owner of physical page {ppn}");
                valid[(ppn / self.slots) as usize] += 1;
            }
        }
        let owned = self.owner.iter().filter(|o| **o != NONE).count();
        assert_eq!(owned, self.map.iter().filter(|p| **p != NONE).count(), "no page has two places");
        for block in 0..self.blocks.len() as u32 {
            let b = &self.blocks[block as usize];
            assert_eq!(b.valid, valid[block as usize], "valid pages of block {block}");
            if !self.is_meta(block) && !b.retire && !self.array.is_bad(block) && !self.array.is_torn(block) {
                assert_eq!(b.fill, self.programmed(block), "fill of block {block}");
            }
        }
        let mut found = vec![""; self.blocks.len()];
        for (i, pool) in self.pools.iter().enumerate() {
            for (place, block) in pool.places() {
                let before = std::mem::replace(&mut found[block as usize], place);
                assert_eq!(before, "", "block {block} is in one place, not also {place}");
                assert_eq!(self.home(block).0, i, "block {block} is in its pool");
                assert!(
                    !self.is_meta(block) && !self.array.is_bad(block),
                    "block {block}, {place}, is of use for data"
                );
                let free = self.array.next_page(block) == 0 && !self.array.is_torn(block);
                assert!(place != "free" || free, "free block {block} is erased");
            }
            let all = pool.places().count();
            assert_eq!(all, pool.good as usize, "blocks of pool {i}");
            assert_eq!(pool.places().filter(|(place, _)| *place == "free").count(), pool.free_blocks() as usize);
            let open_cached = pool.fronts[pool.data_fronts()..].iter().filter(|f| **f != NONE).count();
            assert_eq!(open_cached + pool.cached.len(), pool.cache_blocks as usize, "blocks of the cache of pool {i}");
            pool.victims.verify(|block| self.blocks[block as usize].valid);
        }
        let s = self.stats();
        let moved = s.gc_copies + s.wear_copies + s.disturb_copies + s.fold_copies;
        let counted = s.host_programs + moved + s.map_programs;
        // What an error cut short is not counted here.
        let all = |programs| counted == programs || self.worn_out && counted < programs;
        assert!(self.array.programs().is_none_or(all), "{counted} programs counted, {:?} done", self.array.programs());
    }
}
