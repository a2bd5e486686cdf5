//! The map on flash: checkpoints, and a journal of trims between them.
//!
//! Two halves of reserved blocks take turns. A checkpoint goes to the half that is not in use and holds the map and
//! what each block was filled with; the journal follows it. A checkpoint begins when all operations before it are done,
//! the journal when its checkpoint is, and a block is erased only when the trims of its pages are in the journal. So
//! the newest complete checkpoint, its journal, and the spare areas of pages programmed since are the whole truth.
//!
//! The blocks of the map are taken from the planes in turn. They neither wear out nor fail: a controller keeps its map
//! in the most reliable cells that it has.
//!
//! Invariants: generations only grow; a half takes a checkpoint and its journal, no more; trims come in the order of
//! their numbers.

use super::{Ftl, NONE};
use crate::FtlConfig;
use varve_device::flash::{FlashArray, FlashError, Geometry, Page};

/// Bytes of a map page's header: magic, kind, generation, number of the last program, index, total.
const HEADER: usize = 32;
const MAGIC: u32 = 0x5641_524d;
/// Below it are all numbers of programs and generations: what exceeds it would overflow further on.
pub(super) const MOST: u64 = 1 << 62;
const CHECKPOINT: u32 = 1;
const TRIMS: u32 = 2;
/// Bytes of a block's entry in a checkpoint: number of its first program, pages programmed.
const BLOCK_ENTRY: usize = 12;
/// Bytes of a trim in the journal: first page, number of pages, number of the trim.
const TRIM_ENTRY: usize = 16;

const _: () = assert!(HEADER == 4 + 4 + 8 + 8 + 4 + 4 && BLOCK_ENTRY == 8 + 4 && TRIM_ENTRY == 4 + 4 + 8);

/// Pages forgotten by the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trim {
    pub(super) lpn: u32,
    pub(super) count: u32,
    pub(super) seq: u64,
}

#[derive(Clone)]
pub(super) struct Meta {
    halves: [Vec<u32>; 2],
    active: usize,
    /// Used pages of the active half that are programmed.
    used: u32,
    generation: u64,
    /// Trims that are not in the journal yet.
    trims: Vec<Trim>,
    /// When the last page of the map is programmed.
    settled: u64,
    /// Programs at the last checkpoint, and until the next.
    last: u64,
    every: u64,
}

/// What the pages of the map say.
#[derive(Default)]
pub(super) struct Found {
    pub(super) map: Vec<u32>,
    /// First program and fill of each block.
    pub(super) blocks: Vec<(u64, u32)>,
    pub(super) trims: Vec<Trim>,
    /// Number of the last program that the checkpoint covers.
    pub(super) seq: u64,
    /// Pages read.
    pub(super) reads: u64,
}

impl Meta {
    /// Reserves blocks of an empty array.
    pub(super) fn plan(g: &Geometry, config: &FtlConfig, slots: u32) -> Result<Meta, FlashError> {
        let pages = u64::from(g.blocks()) * u64::from(slots);
        let bytes = pages * 4 + u64::from(g.blocks()) * BLOCK_ENTRY as u64;
        let checkpoint = bytes.div_ceil(u64::from(g.page_bytes) - HEADER as u64);
        let half = (checkpoint + u64::from(slots)).div_ceil(u64::from(slots)) as u32;
        if 4 * half > g.blocks() {
            let accepted = format!("at least {}, since the map takes {} blocks", 8 * half, 2 * half);
            return Err(FlashError::config("geometry", format!("{} blocks", g.blocks()), accepted));
        }
        let planes = g.all_planes();
        let block = |i: u32| i % planes * g.blocks_per_plane + i / planes;
        let halves = [(0..half).map(block).collect(), (half..2 * half).map(block).collect()];
        let every = config.checkpoint_every.unwrap_or(pages / 2).max(checkpoint);
        let used = half * slots;
        assert!(checkpoint < u64::from(used), "a checkpoint leaves room for a journal");
        Ok(Meta { halves, active: 1, used, generation: 0, trims: Vec::new(), settled: 0, last: 0, every })
    }

    pub(super) fn owns(&self, block: u32) -> bool {
        self.halves.iter().any(|h| h.contains(&block))
    }

    pub(super) fn blocks(&self) -> impl Iterator<Item = u32> + '_ {
        self.halves.iter().flatten().copied()
    }

    fn header(&self, kind: u32, seq: u64, index: u32, total: u32) -> Vec<u8> {
        let mut page = Vec::with_capacity(HEADER);
        page.extend(MAGIC.to_le_bytes());
        page.extend(kind.to_le_bytes());
        page.extend(self.generation.to_le_bytes());
        page.extend(seq.to_le_bytes());
        page.extend(index.to_le_bytes());
        page.extend(total.to_le_bytes());
        assert_eq!(page.len(), HEADER);
        page
    }
}

/// The error of a map that says what cannot be: of another layout, or damaged past what the code of the cells mends.
pub(super) fn impossible(block: u32) -> FlashError {
    let accepted = "the one with which the array was written: what the map says there cannot be";
    FlashError::config("layout", format!("block {block}"), accepted)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

impl<A: FlashArray> Ftl<A> {
    /// Writes a checkpoint if one is due. Called before the programs of a host request.
    #[inline]
    pub(super) fn before_programs(&mut self, at: u64) -> Result<(), FlashError> {
        match &self.meta {
            Some(m) if self.seq - m.last >= m.every => self.checkpoint(at),
            _ => Ok(()),
        }
    }

    /// Remembers a trim for the journal.
    pub(super) fn note_trim(&mut self, lpn: u32, count: u32) {
        if let Some(m) = &mut self.meta {
            assert!(m.trims.last().is_none_or(|t| t.seq < self.seq), "trims come in the order of their numbers");
            m.trims.push(Trim { lpn, count, seq: self.seq });
        }
    }

    /// Brings all trims so far to the journal; gives the time at which they are safe.
    pub(super) fn settle_trims(&mut self, at: u64) -> Result<u64, FlashError> {
        let Some(m) = &self.meta else { return Ok(0) };
        if m.trims.is_empty() {
            return Ok(m.settled);
        }
        let per_page = (self.array.geometry().page_bytes as usize - HEADER) / TRIM_ENTRY;
        let needed = m.trims.len().div_ceil(per_page) as u32;
        if m.used + needed > m.halves[0].len() as u32 * self.slots {
            self.checkpoint(at)?;
            return Ok(self.meta.as_ref().map_or(0, |m| m.settled));
        }
        let m = self.meta.as_mut().expect("looked at above");
        let (trims, from) = (std::mem::take(&mut m.trims), at.max(m.settled));
        for part in trims.chunks(per_page) {
            let m = self.meta.as_ref().expect("looked at above");
            let mut page = m.header(TRIMS, self.seq, 0, part.len() as u32);
            for t in part {
                page.extend(t.lpn.to_le_bytes());
                page.extend(t.count.to_le_bytes());
                page.extend(t.seq.to_le_bytes());
            }
            self.write_map_page(from, &page)?;
        }
        Ok(self.meta.as_ref().map_or(0, |m| m.settled))
    }

    /// Writes the whole map to the half that is not in use, when everything before is done.
    pub(super) fn checkpoint(&mut self, at: u64) -> Result<(), FlashError> {
        let at = at.max(self.array.idle_at());
        let Some(m) = &mut self.meta else { return Ok(()) };
        m.active = 1 - m.active;
        m.used = 0;
        m.generation += 1;
        m.trims.clear();
        m.last = self.seq;
        for block in m.halves[m.active].clone() {
            self.stats.erases += 1;
            self.stats.map_erases += 1;
            self.array.erase(at, block)?;
        }
        let mut bytes = Vec::with_capacity(self.map.len() * 4 + self.blocks.len() * BLOCK_ENTRY);
        self.map.iter().for_each(|ppn| bytes.extend(ppn.to_le_bytes()));
        for b in &self.blocks {
            bytes.extend(b.opened.to_le_bytes());
            bytes.extend(b.fill.to_le_bytes());
        }
        let payload = self.array.geometry().page_bytes as usize - HEADER;
        let total = bytes.len().div_ceil(payload) as u32;
        for (i, part) in bytes.chunks(payload).enumerate() {
            let m = self.meta.as_ref().expect("looked at above");
            let mut page = m.header(CHECKPOINT, self.seq, i as u32, total);
            page.extend(part);
            self.write_map_page(at, &page)?;
        }
        let used = self.meta.as_ref().map_or(0, |m| m.used);
        assert_eq!(used, total, "a checkpoint begins its half, and has as many pages as it says");
        Ok(())
    }

    fn write_map_page(&mut self, at: u64, data: &[u8]) -> Result<(), FlashError> {
        let m = self.meta.as_ref().expect("a map is written where one is kept");
        let half = &m.halves[m.active];
        assert!(m.used < half.len() as u32 * self.slots, "a half has room for its checkpoint and journal");
        // The blocks of a half are filled in parallel, so that the planes share the work.
        let (block, slot) = (half[m.used as usize % half.len()], m.used / half.len() as u32);
        let page = Page { block, page: self.page(slot) };
        let span = self.array.program(at, page, data, &MAGIC.to_le_bytes())?;
        let m = self.meta.as_mut().expect("looked at above");
        m.used += 1;
        m.settled = m.settled.max(span.end);
        self.stats.map_programs += 1;
        Ok(())
    }

    /// Reads what the map's blocks hold, at `at`; the array is left as it is.
    pub(super) fn read_map(&mut self, at: u64) -> Result<Found, FlashError> {
        let mut best = Found { map: vec![NONE; self.map.len()], ..Found::default() };
        let mut newest = 0;
        let mut reads = 0;
        for half in 0..2 {
            let (found, generation) = self.read_half(at, half, &mut reads)?;
            let Some(m) = self.meta.as_mut() else { return Ok(best) };
            m.generation = m.generation.max(generation);
            if let Some(found) = found
                && generation > newest
            {
                newest = generation;
                m.active = half;
                best = found;
            }
        }
        best.reads = reads;
        assert_eq!(best.map.len(), self.map.len(), "what is found is a map of this drive");
        Ok(best)
    }

    /// The checkpoint and journal of one half, if the checkpoint is complete, and its generation.
    fn read_half(&mut self, at: u64, half: usize, reads: &mut u64) -> Result<(Option<Found>, u64), FlashError> {
        let blocks = self.meta.as_ref().map_or_else(Vec::new, |m| m.halves[half].clone());
        let mut page = vec![0; self.array.geometry().page_bytes as usize];
        let (mut generation, mut seq, mut complete) = (0, 0, false);
        let bytes = self.map.len() * 4 + self.blocks.len() * BLOCK_ENTRY;
        let mut parts: Vec<Option<Vec<u8>>> = vec![None; bytes.div_ceil(page.len() - HEADER)];
        let mut trims = Vec::new();
        for slot in 0..self.slots {
            for block in &blocks {
                let address = Page { block: *block, page: self.page(slot) };
                if address.page >= self.array.next_page(*block) || self.array.is_torn(*block) {
                    continue;
                }
                *reads += 1;
                // Interrupted pages cannot be read: whatever they held was not complete.
                match self.array.read(at, address, &mut page, &mut []) {
                    Err(FlashError::Uncorrectable { .. }) => continue,
                    read => read.map(drop)?,
                }
                if u32_at(&page, 0) != MAGIC {
                    continue;
                }
                let (index, count) = (u32_at(&page, 24) as usize, u32_at(&page, 28) as usize);
                let numbers = [u64_at(&page, 8), u64_at(&page, 16)];
                match u32_at(&page, 4) {
                    _ if numbers.iter().any(|n| *n >= MOST) => return Err(impossible(*block)),
                    CHECKPOINT if count == parts.len() && index < count => {
                        (complete, seq) = (true, numbers[1]);
                        parts[index] = Some(page[HEADER..].to_vec());
                    }
                    TRIMS if count <= (page.len() - HEADER) / TRIM_ENTRY => {
                        let journal = page[HEADER..].chunks_exact(TRIM_ENTRY).take(count);
                        let of_pages: Option<Vec<Trim>> = journal.map(|e| self.noted_trim(e)).collect();
                        trims.extend(of_pages.ok_or_else(|| impossible(*block))?);
                    }
                    _ => return Err(impossible(*block)),
                }
                generation = numbers[0];
            }
        }
        if !complete || parts.iter().any(Option::is_none) {
            return Ok((None, generation));
        }
        let bytes: Vec<u8> = parts.into_iter().flatten().flatten().collect();
        let (map, rest) = bytes.split_at(self.map.len() * 4);
        let map: Vec<u32> = map.chunks_exact(4).map(|c| u32_at(c, 0)).collect();
        if map.iter().any(|ppn| *ppn != NONE && *ppn as usize >= self.owner.len()) {
            return Err(impossible(blocks[0]));
        }
        let entry = |c: &[u8]| (u64_at(c, 0), u32_at(c, 8));
        let blocks = rest.chunks_exact(BLOCK_ENTRY).take(self.blocks.len()).map(entry).collect();
        Ok((Some(Found { map, blocks, trims, seq, reads: 0 }), generation))
    }

    /// A trim of the journal, of pages that there are.
    fn noted_trim(&self, e: &[u8]) -> Option<Trim> {
        let trim = Trim { lpn: u32_at(e, 0), count: u32_at(e, 4), seq: u64_at(e, 8) };
        let end = u64::from(trim.lpn) + u64::from(trim.count);
        (end <= self.map.len() as u64 && trim.seq < MOST).then_some(trim)
    }

    /// For a fork that starts a new clock.
    pub(super) fn restart_map_clock(&mut self) {
        if let Some(m) = &mut self.meta {
            m.settled = 0;
        }
    }

    /// After a power cut: nothing of the map is on its way any more.
    pub(super) fn forget_pending_trims(&mut self) {
        if let Some(m) = &mut self.meta {
            m.trims.clear();
            m.settled = 0;
        }
    }
}
