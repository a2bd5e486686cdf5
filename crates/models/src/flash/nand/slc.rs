//! Blocks of multi-bit cells used with one bit each for a while: the blocks of an SLC cache.
//!
//! A block is switched while it is erased, and is back to its chip's mode after its next erase. With one bit it has one
//! page for each row of cells: pages 0, 1, .. up to its pages divided by the bits of a cell; the others are not used.

use super::Nand;
use crate::flash::{CellMode, FlashError, Page};

impl Nand {
    /// Whether the block is used with one bit per cell.
    #[inline]
    pub fn is_slc(&self, block: u32) -> bool {
        self.blocks[block as usize].slc
    }

    /// Pages of a block that is used with one bit per cell.
    pub fn slc_pages(&self) -> u32 {
        self.geometry.pages_per_block / self.modes[0].page_types() as u32
    }

    /// Uses an erased block with one bit per cell (or as its chip's mode says again), until its next erase.
    pub fn set_slc(&mut self, block: u32, slc: bool) -> Result<(), FlashError> {
        self.exists(Page { block, page: 0 })?;
        let state = &mut self.blocks[block as usize];
        if state.bad {
            return Err(FlashError::BadBlock { block });
        }
        if state.next != 0 || state.torn {
            return Err(FlashError::NotErased { block });
        }
        let mode = self.modes[self.geometry.chip_of(block) as usize];
        if slc && !(matches!(mode, CellMode::Mlc | CellMode::Tlc | CellMode::Qlc) && self.table.slc.is_some()) {
            let accepted = "cells of two bits or more (mlc, tlc, qlc) and an slc_cache section with its times";
            return Err(FlashError::config("cell", mode, accepted));
        }
        state.slc = slc;
        Ok(())
    }

    /// Whether the block's mode uses the page.
    #[inline]
    pub(super) fn uses(&self, page: Page) -> bool {
        if self.is_slc(page.block) {
            return page.page < self.slc_pages();
        }
        self.mode_of(page.block).uses(page.page, self.geometry.pages_per_block)
    }

    /// The mode in which a block is used, for messages.
    pub(super) fn used_as(&self, block: u32) -> CellMode {
        if self.is_slc(block) { CellMode::Pslc } else { self.mode_of(block) }
    }

    /// Time of an array read of the page, nanoseconds.
    pub(super) fn read_time(&self, page: Page) -> u64 {
        match self.table.slc {
            Some((read, _)) if self.is_slc(page.block) => read,
            _ => self.table.read[self.page_type(page)],
        }
    }

    /// Time of an array program of the page, nanoseconds.
    pub(super) fn program_time(&self, page: Page) -> u64 {
        match self.table.slc {
            Some((_, program)) if self.is_slc(page.block) => program,
            _ => self.table.program[self.page_type(page)],
        }
    }

    /// The page that is programmed after `page`; pages per block when the block is full.
    pub(in crate::flash) fn following(&self, page: Page) -> u32 {
        debug_assert!(self.uses(page), "a page that is not used has no successor");
        let (pages, mode) = (self.geometry.pages_per_block, self.mode_of(page.block));
        if self.is_slc(page.block) {
            return if page.page + 1 < self.slc_pages() { page.page + 1 } else { pages };
        }
        match mode {
            CellMode::Pslc => (page.page + 1..pages).find(|p| mode.uses(*p, pages)).unwrap_or(pages),
            _ => page.page + 1,
        }
    }
}
