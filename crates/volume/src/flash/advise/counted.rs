//! An array of flash without contents and times: it knows which pages are programmed, and counts erases. What the
//! advisor replays writes on.
//!
//! Invariant: the programmed pages of a block are those before `next`.

use varve_device::flash::{CellMode, Contents, FlashArray, FlashError, Geometry, Page, Span};

pub(super) struct Counted {
    geometry: Geometry,
    mode: CellMode,
    /// Of each block, the page that comes next, and erases.
    blocks: Vec<(u32, u32)>,
}

impl Counted {
    pub(super) fn new(geometry: Geometry, mode: CellMode) -> Counted {
        Counted { geometry, mode, blocks: vec![(0, 0); geometry.blocks() as usize] }
    }
}

impl FlashArray for Counted {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn mode(&self, _: u32) -> CellMode {
        self.mode
    }

    /// So that the map is kept on the flash as it would be.
    fn contents(&self) -> Contents {
        Contents::Spare
    }

    fn set_reliable(&mut self, _: Vec<u32>) {}

    fn is_bad(&self, _: u32) -> bool {
        false
    }

    fn mark_bad(&mut self, block: u32) {
        unreachable!("block {block} of an array where nothing fails");
    }

    fn is_torn(&self, _: u32) -> bool {
        false
    }

    fn erases(&self, block: u32) -> u32 {
        self.blocks[block as usize].1
    }

    fn reads_since_erase(&self, _: u32) -> u32 {
        0
    }

    fn next_page(&self, block: u32) -> u32 {
        self.blocks[block as usize].0
    }

    fn read(&mut self, _: u64, _: Page, _: &mut [u8], _: &mut [u8]) -> Result<Span, FlashError> {
        Ok(Span::default())
    }

    fn sense(&mut self, _: u64, _: Page, _: usize) -> Result<Span, FlashError> {
        Ok(Span::default())
    }

    fn program(&mut self, _: u64, page: Page, _: &[u8], _: &[u8]) -> Result<Span, FlashError> {
        let next = &mut self.blocks[page.block as usize].0;
        assert!(page.page >= *next, "pages of a block are programmed in order");
        *next = page.page + 1;
        Ok(Span::default())
    }

    fn append(&mut self, _: u64, page: Page, _: (usize, &[u8]), _: (usize, &[u8])) -> Result<Span, FlashError> {
        self.may_append(page).map(|()| Span::default())
    }

    fn may_append(&self, page: Page) -> Result<(), FlashError> {
        assert!(page.page < self.next_page(page.block), "a page that is appended to is programmed");
        if !self.mode.appends(page.page, self.geometry.pages_per_block) {
            return Err(FlashError::AppendNotAllowed { block: page.block, page: page.page, mode: self.mode });
        }
        Ok(())
    }

    fn copy(&mut self, at: u64, _: Page, to: Page, _: &[u8]) -> Result<Span, FlashError> {
        self.program(at, to, &[], &[])
    }

    fn erase(&mut self, _: u64, block: u32) -> Result<Span, FlashError> {
        let state = &mut self.blocks[block as usize];
        assert!(state.1 < u32::MAX, "erases are counted");
        *state = (0, state.1 + 1);
        Ok(Span::default())
    }

    fn idle_at(&self) -> u64 {
        0
    }
}
