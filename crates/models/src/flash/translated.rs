//! The translation layer over a modelled array: power that fails, and clocks that begin anew.

use super::journal::NandCut;
use super::store::PageContents;
use super::{Contents, FlashConfig, FlashError, Nand};
use std::ops::{Deref, DerefMut};
use varve_device::flash::{CellMode, FlashArray, Geometry, Page, Span};

/// [`varve_ftl::Ftl`] over [`Nand`].
#[derive(Clone)]
pub struct Ftl(varve_ftl::Ftl<Nand>);

impl Deref for Ftl {
    type Target = varve_ftl::Ftl<Nand>;

    fn deref(&self) -> &varve_ftl::Ftl<Nand> {
        &self.0
    }
}

impl DerefMut for Ftl {
    fn deref_mut(&mut self) -> &mut varve_ftl::Ftl<Nand> {
        &mut self.0
    }
}

impl Ftl {
    /// An empty drive kept in memory. Refuses a configuration that cannot work, with the reason.
    pub fn new(config: &FlashConfig, contents: Contents) -> Result<Ftl, FlashError> {
        Ftl::over(config, Nand::new(config, contents)?)
    }

    /// An empty drive whose pages are kept in `store`, which must be empty.
    pub fn with_store(
        config: &FlashConfig,
        contents: Contents,
        store: Box<dyn PageContents>,
    ) -> Result<Ftl, FlashError> {
        Ftl::over(config, Nand::with_store(config, contents, store)?)
    }

    fn over(config: &FlashConfig, nand: Nand) -> Result<Ftl, FlashError> {
        assert_eq!(nand.mode(0), config.cell, "an array is used as its configuration says");
        Ok(Ftl(varve_ftl::Ftl::new(nand, &config.ftl, config.cache().as_ref())?))
    }

    /// The array.
    pub fn nand(&self) -> &Nand {
        self.0.array()
    }

    /// Tells the array the time, as [`Nand::advance`].
    pub fn advance(&mut self, now: u64) {
        self.0.array_mut().advance(now);
        let now = self.nand().now();
        self.0.release(now);
    }

    /// The bytes of a logical page without an operation of the array.
    pub fn peek(&self, lpn: u64, data: &mut [u8]) -> Result<(), FlashError> {
        self.check(lpn)?;
        match self.locate(lpn) {
            None => data.fill(0),
            Some(page) => self.nand().look(page, data, &mut [])?,
        }
        Ok(())
    }

    /// Whether the newest version of a logical page is still on its way to the array.
    pub fn is_pending(&self, lpn: u64) -> bool {
        self.locate(lpn).is_some_and(|page| self.nand().is_pending(page))
    }

    /// A power cut that a capacitor bridges: everything given so far is done, trims are in the journal. A recovery
    /// must follow.
    pub fn power_cut_bridged(&mut self, at: u64) -> Result<(), FlashError> {
        let settled = self.0.settle(at);
        self.0.array_mut().finish_all();
        self.0.forget_waiting();
        settled.map(drop)
    }

    /// Cuts the power of the array, as [`Nand::power_cut`]; a recovery must follow before anything else.
    pub fn power_cut(&mut self, at: u64, seed: u64) -> NandCut {
        self.0.forget_waiting();
        self.0.array_mut().power_cut(at, seed)
    }

    /// Starts the totals anew.
    pub fn reset_stats(&mut self) {
        self.0.reset_stats();
        self.0.array_mut().reset_counts();
    }

    /// For a fork that starts a new clock: everything is done, nothing waits for anything.
    pub(super) fn restart_clock(&mut self) {
        self.0.restart_clock();
        self.0.array_mut().restart_clock();
    }
}

impl FlashArray for Nand {
    #[inline]
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn mode(&self, chip: u32) -> CellMode {
        Nand::mode(self, chip)
    }

    #[inline]
    fn contents(&self) -> Contents {
        self.contents
    }

    fn set_reliable(&mut self, blocks: Vec<u32>) {
        Nand::set_reliable(self, blocks);
    }

    fn is_bad(&self, block: u32) -> bool {
        Nand::is_bad(self, block)
    }

    fn mark_bad(&mut self, block: u32) {
        Nand::mark_bad(self, block);
    }

    fn is_torn(&self, block: u32) -> bool {
        Nand::is_torn(self, block)
    }

    #[inline]
    fn erases(&self, block: u32) -> u32 {
        Nand::erases(self, block)
    }

    #[inline]
    fn reads_since_erase(&self, block: u32) -> u32 {
        Nand::reads_since_erase(self, block)
    }

    #[inline]
    fn next_page(&self, block: u32) -> u32 {
        Nand::next_page(self, block)
    }

    #[inline]
    fn is_slc(&self, block: u32) -> bool {
        Nand::is_slc(self, block)
    }

    fn set_slc(&mut self, block: u32, slc: bool) -> Result<(), FlashError> {
        Nand::set_slc(self, block, slc)
    }

    fn read(&mut self, at: u64, page: Page, data: &mut [u8], spare: &mut [u8]) -> Result<Span, FlashError> {
        Nand::read(self, at, page, data, spare)
    }

    fn sense(&mut self, at: u64, page: Page, bytes: usize) -> Result<Span, FlashError> {
        Nand::sense(self, at, page, bytes)
    }

    #[inline]
    fn program(&mut self, at: u64, page: Page, data: &[u8], spare: &[u8]) -> Result<Span, FlashError> {
        if self.contents == Contents::Nothing {
            return self.program_blank(page).map(|()| Span::default());
        }
        Nand::program(self, at, page, data, spare)
    }

    fn append(&mut self, at: u64, page: Page, data: (usize, &[u8]), spare: (usize, &[u8])) -> Result<Span, FlashError> {
        Nand::append(self, at, page, data, spare)
    }

    fn may_append(&self, page: Page) -> Result<(), FlashError> {
        Nand::may_append(self, page)
    }

    #[inline]
    fn copy(&mut self, at: u64, from: Page, to: Page, spare: &[u8]) -> Result<Span, FlashError> {
        Nand::copy(self, at, from, to, spare)
    }

    fn erase(&mut self, at: u64, block: u32) -> Result<Span, FlashError> {
        Nand::erase(self, at, block)
    }

    fn idle_at(&self) -> u64 {
        Nand::idle_at(self)
    }

    fn forget_data(&mut self, page: Page) {
        Nand::forget_data(self, page);
    }

    #[inline]
    fn forgets(&self) -> bool {
        self.contents == Contents::Full
    }

    fn programs(&self) -> Option<u64> {
        Some(self.counts().programs)
    }
}
