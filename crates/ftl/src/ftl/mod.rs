//! The translation layer: logical pages on an array that cannot overwrite.
//!
//! Pure: time comes in with each operation. A page is written to the open block of its stream; when no block is free
//! but the reserve, garbage collection moves the valid pages out of a victim and erases it. Without contents
//! ([`Contents::Nothing`]) only rules, mapping and counts remain, for studies of write amplification.
//!
//! Invariants: `map` and `owner` are each other's inverse; a block's `valid` counts its owners; a block is erased only
//! when everything that replaced its pages is programmed (`settled`), so a power cut at any moment finds every page; a
//! block that is not bad and not the map's is in one place of its pool ([`pool`]). [`Ftl::verify`] looks at them all.

mod appends;
mod gc;
mod hints;
mod meta;
mod pool;
mod recover;
mod slc;
mod stats;
mod victims;
mod wear;

pub use appends::Appends;
pub use recover::Recovery;
pub use stats::FtlStats;

use crate::{Allocation, CacheConfig, FtlConfig, Streams};
use meta::Meta;
use pool::Pool;
use slc::Cache;
use std::collections::VecDeque;
use std::sync::Arc;
use varve_device::Faults;
use varve_device::flash::{Contents, FlashArray, FlashError, LEAST_SPARE, Page, Span};
use varve_rt::Rng;
use victims::Victims;

/// No block, no page.
pub(super) const NONE: u32 = u32::MAX;
/// First bytes of a data page's spare area.
const MAGIC: u32 = 0x5641_5250;
/// Bytes of the spare area that the translation layer uses.
pub(super) const SPARE: usize = 16;

const _: () = assert!(SPARE == 4 + 4 + 8 && SPARE as u32 <= LEAST_SPARE);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Block {
    valid: u32,
    /// Pages programmed, of those used.
    fill: u32,
    /// Number of its first page's program.
    opened: u64,
    /// When all programs that replaced pages of this block are done.
    settled: u64,
    /// The stream whose pages it takes, where the host names streams.
    stream: u8,
    /// To be marked bad instead of erased.
    retire: bool,
}

/// The translation layer over its array.
#[derive(Clone)]
pub struct Ftl<A> {
    array: A,
    config: FtlConfig,
    /// Used pages of a block.
    slots: u32,
    /// Their numbers, where the mode leaves some unused.
    pages: Option<Vec<u32>>,
    logical: u64,
    low: u32,
    high: u32,
    /// Where each logical page is.
    map: Vec<u32>,
    /// Which logical page is there.
    owner: Vec<u32>,
    /// Appends of each physical page, or [`UNKNOWN`]; empty without appends.
    deltas: Vec<u8>,
    /// How the host lays out its appends; needed where contents are kept.
    appends: Option<Arc<dyn Appends>>,
    /// Host writes at the last write of each logical page; empty unless streams go by recency.
    written: Vec<u64>,
    /// There where the host names streams.
    hints: Option<hints::Hints>,
    blocks: Vec<Block>,
    pools: Vec<Pool>,
    /// Programs so far: the number in the spare area.
    seq: u64,
    rng: Rng,
    meta: Option<Meta>,
    cache: Option<Cache>,
    /// Physical pages whose successors are being programmed; their data are kept until those are.
    superseded: VecDeque<Superseded>,
    /// When the host last asked for something, nanoseconds.
    asked: u64,
    /// Writes are refused: too many blocks are bad.
    worn_out: bool,
    /// What is to go wrong on purpose.
    faults: Faults,
    stats: FtlStats,
}

/// A physical page that has a successor.
#[derive(Clone, Copy)]
struct Superseded {
    ppn: u32,
    /// Erases of its block when it got one.
    erases: u32,
    /// When the successor is programmed.
    settled: u64,
}

/// What is known of a configuration before anything is written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Capacity {
    /// Logical pages.
    pub logical: u64,
    /// Physical pages that the model can use ("effective T"): without bad blocks, the reserve that is free whenever
    /// collection starts, half of every other open block, the SLC cache, and the blocks of the map.
    pub effective: f64,
    /// Pages of a block that the mode uses.
    pub slots: u32,
    /// Pools.
    pub pools: u32,
    /// Blocks for data.
    pub blocks: u32,
}

impl Capacity {
    /// Effective over-provisioning, T/U - 1.
    pub fn over_provisioning(&self) -> f64 {
        self.effective / self.logical as f64 - 1.0
    }
}

impl<A: FlashArray> Ftl<A> {
    /// An empty drive on an array that is erased, but for bad blocks. Refuses a configuration that cannot work, with
    /// the reason. `cache`: host writes go to blocks with one bit per cell first.
    pub fn new(array: A, f: &FtlConfig, cache: Option<&CacheConfig>) -> Result<Ftl<A>, FlashError> {
        let mut ftl = Ftl::unsized_on(array, f, cache)?;
        ftl.size()?;
        Ok(ftl)
    }

    /// The drive that an array holds, which was made with the same configuration and a number of logical pages, and
    /// whose host lays out its appends so. Where too many of its blocks went bad since, it can be read only.
    pub fn open(
        array: A,
        f: &FtlConfig,
        appends: Option<Arc<dyn Appends>>,
        faults: &Faults,
        at: u64,
    ) -> Result<(Ftl<A>, Recovery), FlashError> {
        let mut ftl = Ftl::unsized_on(array, f, None)?;
        ftl.appends = appends;
        ftl.faults = faults.clone();
        ftl.logical = f.logical_pages.expect("a drive that is there has a number of pages");
        let pools = ftl.pools.len() as u64;
        if !ftl.logical.is_multiple_of(pools) || !(1..=ftl.owner.len() as u64).contains(&ftl.logical) {
            let accepted = format!("what it was made with: a multiple of {pools}, up to {}", ftl.owner.len());
            return Err(FlashError::config("ftl.logical_pages", ftl.logical, accepted));
        }
        ftl.pools.iter_mut().for_each(|pool| pool.logical = ftl.logical / pools);
        ftl.map = vec![NONE; ftl.logical as usize];
        let found = match ftl.recover(at) {
            Err(FlashError::EndOfLife { .. }) => Recovery::default(),
            found => found?,
        };
        Ok((ftl, found))
    }

    fn unsized_on(array: A, f: &FtlConfig, cache: Option<&CacheConfig>) -> Result<Ftl<A>, FlashError> {
        let (g, contents) = (array.geometry(), array.contents());
        let used = array.mode(0).used_pages(g.pages_per_block);
        let slots = used.len() as u32;
        let pools = if f.allocation == Allocation::PerChip { g.chips() } else { 1 };
        let lanes = g.all_planes() / pools;
        let streams = match f.streams {
            Streams::Mixed => 1,
            Streams::Hinted => f.hinted_streams.into(),
            _ => 2,
        };
        let fronts = lanes * streams;
        let least = if fronts == 1 && contents == Contents::Nothing { 1 } else { fronts + 1 };
        let low = f.low_watermark.unwrap_or(least);
        if low < least {
            let accepted = format!("at least {least}: {fronts} open block(s) of a pool may need another one at once");
            return Err(FlashError::config("ftl.low_watermark", low, accepted));
        }
        let high = f.high_watermark.unwrap_or(low + 1);
        if high <= low {
            let accepted = format!("more than the low watermark, {low}");
            return Err(FlashError::config("ftl.high_watermark", high, accepted));
        }
        let cached = |c| Cache::plan(c, g.pages_per_block / array.mode(0).page_types() as u32, pools, lanes);
        let cache = cache.map(cached).transpose()?;
        let all_streams = streams + u32::from(cache.is_some());
        let data_blocks = g.blocks() / pools;
        let mut ftl = Ftl {
            slots,
            pages: (slots != g.pages_per_block).then_some(used),
            logical: 0,
            low,
            high,
            map: Vec::new(),
            owner: vec![NONE; g.blocks() as usize * slots as usize],
            appends: None,
            deltas: vec![0; if f.append_slots > 0 { g.blocks() as usize * slots as usize } else { 0 }],
            written: Vec::new(),
            hints: None,
            blocks: vec![Block::default(); g.blocks() as usize],
            pools: (0..pools)
                .map(|p| {
                    let victims = Victims::new(f.gc, f.d, slots, p * data_blocks, data_blocks);
                    Pool::new(p * lanes, lanes, (streams, all_streams), 0, victims)
                })
                .collect(),
            seq: 0,
            rng: Rng::from_seed(f.seed),
            meta: None,
            cache,
            superseded: VecDeque::new(),
            asked: 0,
            worn_out: false,
            faults: Faults::default(),
            stats: FtlStats::default(),
            config: f.clone(),
            array,
        };
        if contents != Contents::Nothing {
            let meta = Meta::plan(&g, &ftl.config, slots)?;
            ftl.array.set_reliable(meta.blocks().collect());
            ftl.meta = Some(meta);
        }
        for block in 0..g.blocks() {
            let (pool, lane) = ftl.home(block);
            if !ftl.is_meta(block) && !ftl.array.is_bad(block) {
                ftl.pools[pool].good += 1;
                ftl.pools[pool].give(lane, block);
            } else if !ftl.is_meta(block) {
                ftl.pools[pool].bad += 1;
            }
        }
        Ok(ftl)
    }

    /// Settles the number of logical pages and checks that collection always finds something to collect.
    fn size(&mut self) -> Result<(), FlashError> {
        let effective = self.effective();
        let wanted = self.config.logical_pages.unwrap_or((effective * (1.0 - self.config.spare_factor)).round() as u64);
        let pools = self.pools.len() as u64;
        self.logical = wanted / pools * pools;
        let per_pool = self.logical / pools;
        let most: u64 = self.pools.iter().map(|p| self.most_logical(p)).min().expect("a pool");
        if self.logical == 0 || per_pool > most || self.logical as f64 >= effective {
            let field = if self.config.logical_pages.is_some() { "ftl.logical_pages" } else { "ftl.spare_factor" };
            let value = self.config.logical_pages.map_or(self.config.spare_factor.to_string(), |n| n.to_string());
            let pool = &self.pools[0];
            let accepted = format!(
                "from 1 to {} logical pages ({per_pool} asked of a pool of {} blocks x {} pages, of which {} blocks are \
                 kept free and {} are open): leave more spare blocks",
                (most * pools).min((effective.max(1.0) as u64).saturating_sub(1)),
                pool.good,
                self.slots,
                self.low + self.cache_limit(),
                pool.data_fronts(),
            );
            return Err(FlashError::config(field, value, accepted));
        }
        for pool in &mut self.pools {
            pool.logical = per_pool;
        }
        assert!(self.logical < self.owner.len() as u64, "there are more physical pages than logical ones");
        self.map = vec![NONE; self.logical as usize];
        if self.config.streams == Streams::Hinted {
            self.hints = Some(hints::Hints::new(self.config.hinted_streams, self.logical));
        }
        if self.config.streams == Streams::Recency {
            self.written = vec![0; self.logical as usize];
        }
        Ok(())
    }

    /// Logical pages with which every collection still finds an invalid page in a closed block.
    fn most_logical(&self, pool: &Pool) -> u64 {
        let kept = self.low + self.cache_limit() + pool.data_fronts() as u32 - 1;
        (u64::from(pool.good.saturating_sub(kept)) * u64::from(self.slots)).saturating_sub(1)
    }

    fn effective(&self) -> f64 {
        let of = |p: &Pool| {
            let others = (p.data_fronts() - 1) as f64;
            (f64::from(p.good) - f64::from(self.low + self.cache_limit()) - others / 2.0) * f64::from(self.slots)
        };
        self.pools.iter().map(of).sum::<f64>()
    }

    /// Blocks of a pool that the cache may take.
    fn cache_limit(&self) -> u32 {
        self.cache.as_ref().map_or(0, |c| c.limit)
    }

    /// Sizes, as they are now.
    pub fn capacity(&self) -> Capacity {
        Capacity {
            logical: self.logical,
            effective: self.effective(),
            slots: self.slots,
            pools: self.pools.len() as u32,
            blocks: self.pools.iter().map(|p| p.good).sum(),
        }
    }

    /// Logical pages that hold something.
    pub fn mapped(&self) -> u64 {
        self.blocks.iter().map(|block| u64::from(block.valid)).sum()
    }

    /// The array.
    pub fn array(&self) -> &A {
        &self.array
    }

    /// The array, for what is not the translation layer's: its clock, its power, its counts.
    pub fn array_mut(&mut self) -> &mut A {
        &mut self.array
    }

    /// Gives up the data of pages whose successors were programmed by `now`: no power cut brings them back. Spare areas
    /// stay, for the recovery.
    pub fn release(&mut self, now: u64) {
        while let Some(old) = self.superseded.front().copied()
            && old.settled <= now
        {
            self.superseded.pop_front();
            let page = self.address(old.ppn);
            if self.array.erases(page.block) == old.erases {
                assert_eq!(self.owner[old.ppn as usize], NONE, "data that are given up are nobody's");
                self.array.forget_data(page);
            }
        }
    }

    /// Brings the trims so far to the journal on flash; gives the time at which they are safe.
    pub fn settle(&mut self, at: u64) -> Result<u64, FlashError> {
        self.settle_trims(at)
    }

    /// The power was cut: what waited for programs to end waits no more. [`Ftl::recover`] must follow before anything
    /// else.
    pub fn forget_waiting(&mut self) {
        self.superseded.clear();
    }

    /// Totals.
    pub fn stats(&self) -> FtlStats {
        self.stats
    }

    /// Starts the totals anew.
    pub fn reset_stats(&mut self) {
        self.stats = FtlStats { clock: self.stats.clock, ..FtlStats::default() };
    }

    /// For a fork that starts a new clock: everything is done, nothing waits for anything.
    pub fn restart_clock(&mut self) {
        self.release(u64::MAX);
        self.blocks.iter_mut().for_each(|b| b.settled = 0);
        self.asked = 0;
        self.restart_map_clock();
    }

    /// Erases of every block.
    pub fn wear(&self) -> Vec<u32> {
        (0..self.blocks.len() as u32).map(|b| self.array.erases(b)).collect()
    }

    /// Whether the logical page has been written, and not trimmed since.
    pub fn is_mapped(&self, lpn: u64) -> bool {
        self.map.get(lpn as usize).is_some_and(|p| *p != NONE)
    }

    fn is_meta(&self, block: u32) -> bool {
        self.meta.as_ref().is_some_and(|m| m.owns(block))
    }

    /// Pool and lane of a block.
    #[inline]
    fn home(&self, block: u32) -> (usize, u32) {
        if self.pools.len() == 1 && self.pools[0].lanes == 1 {
            return (0, 0);
        }
        let plane = self.array.geometry().plane_of(block);
        let lanes = self.pools[0].lanes;
        ((plane / lanes) as usize, plane % lanes)
    }

    #[inline]
    fn pool_of(&self, lpn: u64) -> usize {
        if self.pools.len() == 1 { 0 } else { (lpn % self.pools.len() as u64) as usize }
    }

    /// Logical pages up to the last one that has been written, and not trimmed since.
    pub fn end(&self) -> u64 {
        assert_eq!(self.map.len() as u64, self.logical, "every logical page has its place in the map");
        self.map.iter().rposition(|ppn| *ppn != NONE).map_or(0, |last| last as u64 + 1)
    }

    /// The array's address of a physical page.
    #[inline]
    fn address(&self, ppn: u32) -> Page {
        let (block, slot) = (ppn / self.slots, ppn % self.slots);
        Page { block, page: self.page(slot) }
    }

    #[inline]
    fn page(&self, slot: u32) -> u32 {
        self.pages.as_ref().map_or(slot, |p| p[slot as usize])
    }

    /// Refuses a logical page that does not exist.
    pub fn check(&self, lpn: u64) -> Result<(), FlashError> {
        if lpn >= self.logical {
            return Err(FlashError::OutOfRange { page: lpn, pages: self.logical });
        }
        Ok(())
    }

    /// Which open block a page belongs to.
    #[inline]
    fn stream(&self, lpn: u64, moved: bool) -> u32 {
        match self.config.streams {
            Streams::Mixed => 0,
            Streams::HostGc => u32::from(moved),
            Streams::HotRange => u32::from(lpn as f64 >= self.config.hot_share * self.logical as f64),
            Streams::Recency => {
                let (written, clock) = (self.written[lpn as usize], self.stats.clock);
                assert!(written <= clock, "a page was written in the past");
                let age = clock - written;
                u32::from(age > self.logical / 4)
            }
            Streams::Hinted => self.hints.as_ref().map_or(0, |hints| hints.stream(lpn)),
        }
    }

    /// Writes a logical page out of place; `data` is a page, or absent where contents are not kept. The span is that of
    /// the page's program, which may wait for garbage collection.
    pub fn write(&mut self, at: u64, lpn: u64, data: Option<&[u8]>) -> Result<Span, FlashError> {
        self.write_hinted(at, lpn, data, 0)
    }

    /// The same of a page of a stream that the host names; it counts with [`Streams::Hinted`] alone.
    pub fn write_hinted(&mut self, at: u64, lpn: u64, data: Option<&[u8]>, stream: u8) -> Result<Span, FlashError> {
        self.check(lpn)?;
        if self.worn_out {
            return Err(FlashError::EndOfLife { bad: self.bad_blocks() });
        }
        self.asked_at(at)?;
        self.before_programs(at)?;
        let mapped = self.is_mapped(lpn);
        let stream = self.hinted(stream).unwrap_or_else(|| self.stream(lpn, false));
        let pool = self.pool_of(lpn);
        let front = match self.cache_room(at, pool)? {
            Some(front) => {
                self.stats.cache_writes += 1;
                front
            }
            None => self.data_room(at, pool, stream)?,
        };
        self.stats.clock += 1;
        self.stats.host_writes += 1;
        if let Some(w) = self.written.get_mut(lpn as usize) {
            *w = self.stats.clock;
        }
        let (span, programs) = self.place(at, pool, front, lpn as u32, Source::Host(data))?;
        self.note_hint(lpn, stream, mapped);
        self.stats.host_programs += programs;
        Ok(span)
    }

    /// Spends the time of reading `bytes` bytes of a logical page, which [`Ftl::locate`] finds; `None` if it has
    /// never been written (or was trimmed): it reads as zeros.
    pub fn read(&mut self, at: u64, lpn: u64, bytes: usize) -> Result<Option<Span>, FlashError> {
        self.check(lpn)?;
        self.stats.host_reads += 1;
        self.asked_at(at)?;
        let ppn = self.map[lpn as usize];
        if ppn == NONE {
            return Ok(None);
        }
        let page = self.address(ppn);
        let span = self.array.sense(at, page, bytes)?;
        self.refresh(at, page.block)?;
        Ok(Some(span))
    }

    /// Where the newest version of a logical page lies; `None` if it has none.
    pub fn locate(&self, lpn: u64) -> Option<Page> {
        self.map.get(lpn as usize).filter(|ppn| **ppn != NONE).map(|ppn| self.address(*ppn))
    }

    /// Forgets `count` logical pages from `lpn` on: they read as zeros.
    pub fn trim(&mut self, lpn: u64, count: u64) -> Result<(), FlashError> {
        if count == 0 {
            return Ok(());
        }
        self.check(lpn)?;
        self.check(lpn + count - 1)?;
        let mut any = false;
        for page in lpn..lpn + count {
            let ppn = std::mem::replace(&mut self.map[page as usize], NONE);
            if ppn != NONE {
                self.invalidate(ppn, 0);
                self.unhint(page);
                self.stats.trimmed += 1;
                any = true;
            }
        }
        if any {
            self.seq += 1;
            self.note_trim(lpn as u32, count as u32);
        }
        Ok(())
    }

    /// A physical page is no longer its owner's; what replaced it is programmed at `settled`.
    #[inline]
    fn invalidate(&mut self, ppn: u32, settled: u64) {
        let owner = std::mem::replace(&mut self.owner[ppn as usize], NONE);
        assert_ne!(owner, NONE, "physical page {ppn} had an owner");
        let block = ppn / self.slots;
        let b = &mut self.blocks[block as usize];
        assert!(b.valid > 0, "block {block} counts its owners");
        b.valid -= 1;
        b.settled = b.settled.max(settled);
        let valid = b.valid;
        // Not what was trimmed: the trim may be lost.
        if settled > 0 && self.array.forgets() {
            let erases = self.array.erases(block);
            self.superseded.push_back(Superseded { ppn, erases, settled });
        }
        let (pool, _) = self.home(block);
        self.pools[pool].victims.lost(block, valid);
    }

    /// Whether no more is written, or soon: of the spare blocks of a pool more than three quarters went bad, or all but
    /// one.
    pub fn is_worn_out(&self) -> bool {
        let short = |pool: &Pool| {
            let spare = self.most_logical(pool).saturating_sub(pool.logical) / u64::from(self.slots);
            // (One that is short from the beginning has what it was given.)
            pool.bad > 0 && (spare < 2 || 3 * spare < u64::from(pool.bad))
        };
        self.worn_out || self.pools.iter().any(short)
    }

    /// Bad blocks of the array.
    pub fn bad_blocks(&self) -> u32 {
        (0..self.blocks.len() as u32).filter(|b| self.array.is_bad(*b)).count() as u32
    }
}

/// What is programmed.
#[derive(Clone, Copy)]
enum Source<'a> {
    Host(Option<&'a [u8]>),
    /// A copy of this physical page, and what follows the translation layer's bytes in its spare area.
    Copy(u32, &'a [u8]),
}

/// The spare area of a data page.
fn spare_of(lpn: u32, seq: u64) -> [u8; SPARE] {
    let mut spare = [0; SPARE];
    spare[..4].copy_from_slice(&MAGIC.to_le_bytes());
    spare[4..8].copy_from_slice(&lpn.to_le_bytes());
    spare[8..].copy_from_slice(&seq.to_le_bytes());
    spare
}
