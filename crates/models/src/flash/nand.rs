//! The raw array: blocks of pages that are programmed in order, read, appended to and erased, with the rules of the
//! cell mode and, if wanted, times and contents.
//!
//! Pure: time comes in with each operation, as nanoseconds. Operations take effect when they are given; with times on,
//! a journal remembers those that are not finished at the latest time seen, so that a power cut can take them back or
//! tear them ([`Nand::power_cut`]).
//!
//! Invariants: the programmed pages of a block are the used pages before `next`; operations on one gate are given, and
//! happen, in one order. Only reads may go ahead, where programs and erases can be suspended. A page that is programmed
//! was erased, and takes at most `nop` programs until its block is erased again.

mod append;
mod slc;
mod spend;

use super::journal::{Journal, Undo};
use super::store::{MemPages, PageBytes, PageContents};
use super::timing::{Bus, Gate, Table, Usage, Work};
use super::{CellMode, Contents, FaultsEvery, FlashConfig, FlashError, Geometry, Page, Span};
use std::sync::Arc;

/// What an operation is for, for the statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NandCounts {
    /// Pages read.
    pub reads: u64,
    /// Pages programmed, copies and interrupted or failed programs included, appends not.
    pub programs: u64,
    /// Appends to programmed pages.
    pub appends: u64,
    /// Of the programs, copies from another page.
    pub copies: u64,
    /// Blocks erased.
    pub erases: u64,
    /// Bytes moved over the buses.
    pub bus_bytes: u64,
    /// Of the programs, those into blocks used with one bit per cell.
    pub slc_programs: u64,
    /// Times that a program was suspended for a read.
    pub suspended_programs: u64,
    /// Times that an erase was suspended for a read.
    pub suspended_erases: u64,
}

/// State of a block.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BlockState {
    /// The page to program next; pages per block when full.
    pub(super) next: u16,
    pub(super) bad: bool,
    /// An interrupted erase left it unreadable.
    pub(super) torn: bool,
    /// Used with one bit per cell until the next erase.
    pub(super) slc: bool,
    pub(super) erases: u32,
    /// Page reads since the last erase.
    pub(super) reads: u32,
}

/// What is left of a block where the array outlived its process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    pub(super) erases: u32,
    pub(super) bad: bool,
    /// The last page that was programmed since its erase.
    pub(super) last: Option<u32>,
}

/// The raw array.
#[derive(Clone)]
pub struct Nand {
    pub(super) geometry: Geometry,
    /// By chip.
    modes: Vec<CellMode>,
    nop: u8,
    endurance: u32,
    multi_plane: bool,
    copyback: bool,
    faults: FaultsEvery,
    table: Table,
    pub(super) contents: Contents,
    /// Blocks that neither wear out nor fail, and whose data are kept whatever `contents` says; in order.
    reliable: Vec<u32>,
    pub(super) blocks: Vec<BlockState>,
    /// Programs after the first since the block's erase, by page; empty until the first append.
    pub(super) appended: Vec<u8>,
    pub(super) store: Store,
    /// A page of zeros: all of them share it.
    zeros: Arc<[u8]>,
    gates: Vec<Gate>,
    buses: Vec<Bus>,
    /// What senses the pages of several units; empty where each unit senses its own.
    dies: Vec<Bus>,
    units_per_die: u32,
    pub(super) journal: Journal,
    /// Its power is never cut by a model: no operation need be taken back.
    lasting: bool,
    counts: NandCounts,
}

/// A page store that is forked when the array is cloned.
pub(super) struct Store(pub(super) Box<dyn PageContents>);

impl Clone for Store {
    fn clone(&self) -> Store {
        Store(self.0.fork())
    }
}

impl Nand {
    /// An erased array, kept in memory.
    pub fn new(config: &FlashConfig, contents: Contents) -> Result<Nand, FlashError> {
        config.validate()?;
        let pages =
            if contents == Contents::Nothing { 0 } else { config.geometry.blocks() * config.geometry.pages_per_block };
        Nand::with_store(config, contents, Box::new(MemPages::new(pages)))
    }

    /// An erased array whose pages are kept in `store`, which must be empty.
    pub fn with_store(
        config: &FlashConfig,
        contents: Contents,
        store: Box<dyn PageContents>,
    ) -> Result<Nand, FlashError> {
        config.validate()?;
        let g = config.geometry;
        let gates = if config.multi_plane { g.all_planes() } else { g.chips() };
        let dies = if config.units_per_die > 1 { g.chips() / config.units_per_die } else { 0 };
        Ok(Nand {
            geometry: g,
            modes: vec![config.cell; g.chips() as usize],
            nop: config.nop,
            endurance: config.endurance,
            multi_plane: config.multi_plane,
            copyback: config.copyback,
            faults: config.faults,
            table: config.table(),
            contents,
            reliable: Vec::new(),
            blocks: vec![BlockState::default(); g.blocks() as usize],
            appended: Vec::new(),
            store: Store(store),
            zeros: vec![0; g.page_bytes as usize].into(),
            gates: vec![Gate::default(); gates as usize],
            buses: vec![Bus::default(); g.channels as usize],
            dies: vec![Bus::default(); dies as usize],
            units_per_die: config.units_per_die,
            journal: Journal::default(),
            lasting: false,
            counts: NandCounts::default(),
        })
    }

    /// An array that is kept in `store`: how its cells are used by chip, what is left of each block, and the appends
    /// that each page had.
    pub(super) fn kept(
        config: &FlashConfig,
        modes: &[CellMode],
        store: Box<dyn PageContents>,
        (blocks, appended): (&[Kept], Vec<u8>),
    ) -> Result<Nand, FlashError> {
        let mut nand = Nand::with_store(config, Contents::Full, store)?;
        modes.iter().enumerate().try_for_each(|(chip, mode)| nand.set_mode(chip as u32, *mode))?;
        assert_eq!(blocks.len(), nand.blocks.len(), "each block has a state");
        for (block, kept) in (0..).zip(blocks) {
            // (A damaged table can name a page that the mode leaves out.)
            let last = kept.last.map(|page| Page { block, page }).filter(|page| nand.uses(*page));
            let next = last.map_or(0, |page| nand.following(page)) as u16;
            nand.blocks[block as usize] =
                BlockState { next, bad: kept.bad, erases: kept.erases, ..BlockState::default() };
        }
        (nand.appended, nand.lasting) = (appended, true);
        Ok(nand)
    }

    /// The shape.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The mode of a chip's cells.
    pub fn mode(&self, chip: u32) -> CellMode {
        self.modes[chip as usize]
    }

    /// Sets the mode of a chip. Its blocks must all be erased, and the timing table must know the mode's page types.
    pub fn set_mode(&mut self, chip: u32, mode: CellMode) -> Result<(), FlashError> {
        let types = mode.page_types();
        if self.table.read.len() < types || self.table.program.len() < types {
            let accepted =
                format!("a mode with at most {} page types, or more times in the table", self.table.read.len());
            return Err(FlashError::config("cell", mode, accepted));
        }
        let per = self.geometry.blocks_per_chip();
        let used = (chip * per..(chip + 1) * per).find(|b| self.blocks[*b as usize].next != 0);
        if let Some(block) = used {
            return Err(FlashError::config("cell", mode, format!("a chip without programs; block {block} has some")));
        }
        self.modes[chip as usize] = mode;
        Ok(())
    }

    /// Totals of the operations.
    pub fn counts(&self) -> NandCounts {
        self.counts
    }

    /// Usage of each array gate (planes if they work independently, else chips).
    pub fn gate_usage(&self) -> Vec<Usage> {
        self.gates.iter().map(|g| g.usage).collect()
    }

    /// Usage of each channel.
    pub fn bus_usage(&self) -> Vec<Usage> {
        self.buses.iter().map(|b| b.usage).collect()
    }

    /// Usage of what senses the pages of a die's units; empty where each unit senses its own.
    pub fn die_usage(&self) -> Vec<Usage> {
        self.dies.iter().map(|d| d.usage).collect()
    }

    /// Memory that the contents take, bytes.
    pub fn resident_bytes(&self) -> u64 {
        self.store.0.resident_bytes()
    }

    /// Erases of a block so far.
    pub fn erases(&self, block: u32) -> u32 {
        self.blocks[block as usize].erases
    }

    /// Page reads of a block since its erase.
    pub fn reads_since_erase(&self, block: u32) -> u32 {
        self.blocks[block as usize].reads
    }

    /// Programs that a page takes between erases of its block.
    pub fn nop(&self) -> u8 {
        self.nop
    }

    /// Whether the block is bad.
    pub fn is_bad(&self, block: u32) -> bool {
        self.blocks[block as usize].bad
    }

    /// The page of the block that must be programmed next; pages per block when it is full.
    pub fn next_page(&self, block: u32) -> u32 {
        self.blocks[block as usize].next.into()
    }

    /// Marks a block bad for good.
    pub fn mark_bad(&mut self, block: u32) {
        self.blocks[block as usize].bad = true;
        self.store.0.note(block, self.blocks[block as usize].erases, true);
    }

    /// Programs that a page had since its block's erase.
    pub fn programs_of(&self, at: Page) -> u32 {
        if at.page >= self.next_page(at.block) || !self.uses(at) {
            return 0;
        }
        1 + self.appended.get(self.number(at) as usize).map_or(0, |n| u32::from(*n))
    }

    /// These blocks too neither wear out nor fail, and their data are kept whatever the contents.
    pub(super) fn set_reliable(&mut self, blocks: Vec<u32>) {
        self.reliable.extend(blocks);
        self.reliable.sort_unstable();
        self.reliable.dedup();
        assert!(self.reliable.last().is_none_or(|b| *b < self.geometry.blocks()), "a reliable block is there");
    }

    fn is_reliable(&self, block: u32) -> bool {
        self.reliable.binary_search(&block).is_ok()
    }

    /// The latest time seen.
    pub fn now(&self) -> u64 {
        self.journal.now
    }

    /// When the last operation that is under way ends.
    pub fn last_end(&self) -> u64 {
        self.journal.last_end()
    }

    /// The time at which everything given so far will be done.
    pub fn idle_at(&self) -> u64 {
        self.gates.iter().map(|g| g.free_at).max().unwrap_or(0)
    }

    pub(super) fn number(&self, at: Page) -> u32 {
        debug_assert!(self.exists(at).is_ok());
        at.block * self.geometry.pages_per_block + at.page
    }

    pub(super) fn mode_of(&self, block: u32) -> CellMode {
        self.modes[self.geometry.chip_of(block) as usize]
    }

    fn timed(&self) -> bool {
        self.contents != Contents::Nothing
    }

    fn exists(&self, at: Page) -> Result<(), FlashError> {
        let (blocks, pages) = (self.blocks.len() as u32, self.geometry.pages_per_block);
        if at.block >= blocks || at.page >= pages {
            return Err(FlashError::NoSuchPage { block: at.block, page: at.page, blocks, pages });
        }
        Ok(())
    }

    fn fits(&self, data: (usize, usize), spare: (usize, usize)) -> Result<(), FlashError> {
        let areas = [(data, self.geometry.page_bytes, "data"), (spare, self.geometry.spare_bytes, "spare area")];
        for ((offset, bytes), area, what) in areas {
            if offset + bytes > area as usize {
                return Err(FlashError::DoesNotFit { offset: offset as u32, bytes: bytes as u32, area, what });
            }
        }
        Ok(())
    }

    /// Reads a page: `data` and `spare` receive its first bytes (erased pages read as ones). Only what is asked for
    /// crosses the bus. Fails if the page's program, or its block's erase, was interrupted.
    pub fn read(&mut self, at: u64, page: Page, data: &mut [u8], spare: &mut [u8]) -> Result<Span, FlashError> {
        let span = self.sense_checked(at, page, (data.len(), spare.len()))?;
        self.look(page, data, spare)?;
        Ok(span)
    }

    /// Spends the time of a read of `bytes` bytes of a page; fails when the fault plan says so.
    pub(super) fn sense(&mut self, at: u64, page: Page, bytes: usize) -> Result<Span, FlashError> {
        let span = self.spend_read(at, page, bytes, true);
        let due = self.faults.read != 0 && self.counts.reads.is_multiple_of(self.faults.read);
        if due && !self.is_reliable(page.block) {
            return Err(FlashError::Uncorrectable { block: page.block, page: page.page });
        }
        Ok(span)
    }

    /// Spends the time of a read of so many bytes of a page's data and spare area, if there are such.
    pub(super) fn sense_checked(&mut self, at: u64, page: Page, bytes: (usize, usize)) -> Result<Span, FlashError> {
        self.exists(page)?;
        self.fits((0, bytes.0), (0, bytes.1))?;
        self.sense(at, page, bytes.0 + bytes.1)
    }

    /// What a page holds, without an operation of the array; none: it is erased.
    pub(super) fn image(&self, page: Page) -> Result<Option<PageBytes>, FlashError> {
        let state = &self.blocks[page.block as usize];
        let torn = FlashError::Uncorrectable { block: page.block, page: page.page };
        if state.torn {
            return Err(torn);
        }
        let programmed = page.page < u32::from(state.next) && self.uses(page);
        if !programmed || self.contents == Contents::Nothing {
            return Ok(None);
        }
        self.store.0.get(self.number(page)).ok_or(torn).map(Some)
    }

    /// The bytes of a page, without an operation of the array.
    pub(super) fn look(&self, page: Page, data: &mut [u8], spare: &mut [u8]) -> Result<(), FlashError> {
        show(self.image(page)?.as_ref(), data, spare);
        Ok(())
    }

    fn page_type(&self, page: Page) -> usize {
        match self.mode_of(page.block) {
            CellMode::Pslc => 0,
            mode => mode.page_type(page.page, self.geometry.pages_per_block),
        }
    }

    /// Checks that `page` may be programmed for the first time.
    fn may_program(&self, page: Page) -> Result<(), FlashError> {
        self.exists(page)?;
        let state = &self.blocks[page.block as usize];
        if state.bad {
            return Err(FlashError::BadBlock { block: page.block });
        }
        if u32::from(state.next) == page.page {
            return Ok(());
        }
        if !self.uses(page) {
            let mode = self.used_as(page.block);
            return Err(FlashError::PageNotUsed { block: page.block, page: page.page, mode });
        }
        Err(FlashError::OutOfOrder { block: page.block, page: page.page, expected: state.next.into() })
    }

    /// Programs the next page of a block: the first bytes of its data and spare area; the rest stays erased and can be
    /// appended to. A failed program uses the page up.
    pub fn program(&mut self, at: u64, page: Page, data: &[u8], spare: &[u8]) -> Result<Span, FlashError> {
        self.may_program(page)?;
        self.fits((0, data.len()), (0, spare.len()))?;
        let keep = self.contents == Contents::Full || self.is_reliable(page.block);
        let kept = || if *data == *self.zeros { self.zeros.clone() } else { data.into() };
        let bytes =
            (self.contents != Contents::Nothing).then(|| PageBytes { data: keep.then(kept), spare: spare.into() });
        let span = self.spend_program(at, page, data.len() + spare.len());
        self.finish_program(page, bytes, span)
    }

    /// Programs the next page of a block without contents, where none are kept.
    pub(super) fn program_blank(&mut self, page: Page) -> Result<(), FlashError> {
        self.may_program(page)?;
        self.counts.programs += 1;
        self.counts.slc_programs += u64::from(self.is_slc(page.block));
        self.finish_program(page, None, Span::default()).map(drop)
    }

    /// Copies a page to the next page of a block, with a new spare area: inside the plane if the device can, else over
    /// the bus. The span begins with the read.
    pub fn copy(&mut self, at: u64, from: Page, to: Page, spare: &[u8]) -> Result<Span, FlashError> {
        self.exists(from)?;
        self.may_program(to)?;
        self.fits((0, 0), (0, spare.len()))?;
        self.counts.copies += 1;
        if !self.timed() {
            self.counts.reads += 1;
            return self.program_blank(to).map(|()| Span::default());
        }
        let torn = FlashError::Uncorrectable { block: from.block, page: from.page };
        let bytes =
            self.store.0.get(self.number(from)).filter(|_| !self.blocks[from.block as usize].torn).ok_or(torn)?;
        let inside = self.copyback && self.geometry.plane_of(from.block) == self.geometry.plane_of(to.block);
        let length = if inside { 0 } else { self.geometry.page_bytes as usize + spare.len() };
        let read = self.spend_read(at, from, length, false);
        let written = self.spend_program(read.end, to, length);
        let bytes = PageBytes { data: bytes.data, spare: spare.into() };
        self.finish_program(to, Some(bytes), written).map(|w| Span { start: read.start, end: w.end })
    }

    /// Gives up the data of a page that nobody will ask for again; they read as zeros. Its spare area stays.
    pub(super) fn forget_data(&mut self, page: Page) {
        assert!(page.page < self.next_page(page.block), "a page whose data go was programmed");
        let number = self.number(page);
        if let Some(bytes) = self.store.0.get(number).filter(|b| b.data.is_some()) {
            self.store.0.set(number, Some(PageBytes { data: None, ..bytes }));
        }
    }

    fn finish_program(&mut self, page: Page, bytes: Option<PageBytes>, span: Span) -> Result<Span, FlashError> {
        let next = self.following(page);
        let due = self.faults.program != 0 && self.counts.programs.is_multiple_of(self.faults.program);
        let failed = due && !self.is_reliable(page.block);
        let state = &mut self.blocks[page.block as usize];
        assert!(!state.bad && !state.torn, "a block is programmed when it is sound and erased");
        assert!(u32::from(state.next) == page.page && next > page.page, "pages are programmed in order");
        state.next = next as u16;
        if let Some(bytes) = bytes {
            let number = self.number(page);
            debug_assert!(
                self.lasting || self.store.0.get(number).is_none(),
                "a page is erased before it is programmed"
            );
            self.store.0.set(number, (!failed).then_some(bytes));
            self.journal.push(span, Undo::Program(page));
        }
        if failed {
            return Err(FlashError::ProgramFailed { block: page.block, page: page.page });
        }
        Ok(span)
    }

    /// Erases a block, not before `at`. A block that reaches its endurance is erased once more in vain and is bad.
    pub fn erase(&mut self, at: u64, block: u32) -> Result<Span, FlashError> {
        self.exists(Page { block, page: 0 })?;
        if self.blocks[block as usize].bad {
            return Err(FlashError::BadBlock { block });
        }
        self.counts.erases += 1;
        let span = if self.timed() {
            let gate = self.gate(block);
            let bus = self.bus(block);
            let start = self.gates[gate].enter(at);
            let told = self.buses[bus].reserve(self.journal.now, start, self.table.command);
            self.leave(gate, start, told.end + self.table.erase, Work::Erase);
            Span { start: told.end, end: told.end + self.table.erase }
        } else {
            Span::default()
        };
        let before = self.blocks[block as usize];
        assert!(u32::from(before.next) <= self.geometry.pages_per_block);
        let first = self.number(Page { block, page: 0 });
        let mut pages = Vec::new();
        if self.timed() {
            if !self.lasting {
                pages.extend((0..u32::from(before.next)).map(|page| self.store.0.get(first + page)));
            }
            self.store.0.erase(first, before.next.into());
        }
        let range = first as usize..(first + self.geometry.pages_per_block) as usize;
        let timed = self.timed();
        let counts = self.appended.get_mut(range);
        if timed {
            let kept = counts.as_ref().map_or_else(Vec::new, |c| c.to_vec());
            if !self.lasting {
                self.journal.push(span, Undo::Erase { block, before, pages, appended: kept });
            }
        }
        counts.into_iter().for_each(|c| c.fill(0));
        let erases = before.erases + 1;
        self.blocks[block as usize] = BlockState { erases, ..BlockState::default() };
        self.store.0.note(block, erases, false);
        let due = self.faults.erase != 0 && self.counts.erases.is_multiple_of(self.faults.erase);
        let failed = due && !self.is_reliable(block);
        if failed || !self.is_reliable(block) && erases >= self.endurance {
            self.mark_bad(block);
            return Err(if failed { FlashError::EraseFailed { block } } else { FlashError::WornOut { block, erases } });
        }
        Ok(span)
    }

    /// Tells the array the time, so that it forgets how to take back what is finished.
    pub fn advance(&mut self, now: u64) {
        self.journal.advance(now);
    }

    /// Whether the program of a page is still under way (or waiting) at the latest time seen.
    pub fn is_pending(&self, page: Page) -> bool {
        self.journal.is_pending(page)
    }

    /// Starts the totals anew.
    pub fn reset_counts(&mut self) {
        self.gates.iter_mut().for_each(|g| g.usage = Usage::default());
        self.buses.iter_mut().chain(&mut self.dies).for_each(|b| b.usage = Usage::default());
        self.counts = NandCounts::default();
    }

    /// For a copy that starts a new clock: everything given so far is done, and it is time 0.
    pub fn restart_clock(&mut self) {
        self.journal = Journal::default();
        self.stop_all(0);
        self.reset_counts();
    }

    /// Everything given so far is done now: a capacitor has lent the energy.
    pub(super) fn finish_all(&mut self) {
        self.journal.finish_all();
        self.stop_all(self.journal.now);
    }

    /// After a power cut: nothing is under way at `now`.
    pub(super) fn stop_all(&mut self, now: u64) {
        self.gates.iter_mut().for_each(|g| g.stop(now));
        self.buses.iter_mut().chain(&mut self.dies).for_each(|b| b.busy.clear());
    }
}

/// The first bytes of what a page holds; data that were not kept read as zeros.
pub(super) fn show(page: Option<&PageBytes>, data: &mut [u8], spare: &mut [u8]) {
    let Some(bytes) = page else {
        data.fill(0xff);
        spare.fill(0xff);
        return;
    };
    match &bytes.data {
        Some(stored) => copy_padded(stored, data),
        None => data.fill(0),
    }
    copy_padded(&bytes.spare, spare);
}

/// Copies what is there, and ones for the rest.
fn copy_padded(stored: &[u8], out: &mut [u8]) {
    let n = stored.len().min(out.len());
    out[..n].copy_from_slice(&stored[..n]);
    out[n..].fill(0xff);
}
