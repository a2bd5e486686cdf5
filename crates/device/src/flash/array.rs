//! The seam between what drives raw flash and what it drives: blocks of pages that are programmed, read and erased.
//!
//! What may be programmed when is the array's business: it refuses what its cells do not allow. Who drives it knows
//! pages that can be used, in the order in which they are programmed, and blocks that are erased as a whole.

use super::{CellMode, Contents, FlashError, Geometry, Page, Span};

/// An array of flash, or a part of one, that somebody drives.
///
/// Each operation comes with the time before which it does not begin, and is told when it begins and ends. An array
/// that waits for nothing counts in nanoseconds. One that passes operations on to a device counts in marks: whatever
/// it counts in, an operation that is given the end of another one begins when that one is done.
///
/// Operations take effect in the order in which they are given.
pub trait FlashArray {
    /// The shape, blocks and chips that are not this one's left out.
    fn geometry(&self) -> Geometry;

    /// How the cells of a chip are used.
    fn mode(&self, chip: u32) -> CellMode;

    /// What is kept of the pages.
    fn contents(&self) -> Contents;

    /// These blocks hold what everything rests on: they neither wear out nor fail, and their data are kept whatever
    /// [`FlashArray::contents`] says.
    fn set_reliable(&mut self, blocks: Vec<u32>);

    /// Whether operations are still done. After a power cut what was given last may be undone, though nobody was told.
    fn is_alive(&self) -> bool {
        true
    }

    /// Whether the block is bad.
    fn is_bad(&self, block: u32) -> bool;

    /// Marks a block bad for good.
    fn mark_bad(&mut self, block: u32);

    /// Whether an interrupted erase left the block unreadable.
    fn is_torn(&self, block: u32) -> bool;

    /// Erases of a block so far.
    fn erases(&self, block: u32) -> u32;

    /// Page reads of a block since its erase.
    fn reads_since_erase(&self, block: u32) -> u32;

    /// The page of the block that must be programmed next; pages per block when it is full.
    fn next_page(&self, block: u32) -> u32;

    /// Whether the block is used with one bit per cell until its next erase, unlike the others.
    fn is_slc(&self, block: u32) -> bool {
        let _ = block;
        false
    }

    /// Uses an erased block with one bit per cell (or as its chip's mode says again), until its next erase.
    fn set_slc(&mut self, block: u32, slc: bool) -> Result<(), FlashError> {
        let accepted = format!("none: block {block} cannot change its bits per cell");
        Err(FlashError::config("slc_cache", slc, accepted))
    }

    /// Reads the first bytes of a page's data and spare area; erased pages read as ones. Fails if the page's program,
    /// or its block's erase, was interrupted.
    fn read(&mut self, at: u64, page: Page, data: &mut [u8], spare: &mut [u8]) -> Result<Span, FlashError>;

    /// As `read`, of a page that is moved: what is programmed with these bytes is given with the read's end, so an
    /// array that knows them at once does not wait.
    fn read_to_move(&mut self, at: u64, page: Page, data: &mut [u8], spare: &mut [u8]) -> Result<Span, FlashError> {
        self.read(at, page, data, spare)
    }

    /// Reads the first bytes of the spare areas of several pages: as many bytes of each as fit `spares`.
    fn read_spares(&mut self, at: u64, pages: &[Page], spares: &mut [u8]) -> Vec<Result<Span, FlashError>> {
        let bytes = spares.len() / pages.len().max(1);
        assert_eq!(spares.len(), bytes * pages.len(), "each page has as many bytes for its spare area");
        let each = pages.iter().zip(spares.chunks_mut(bytes.max(1)));
        each.map(|(page, spare)| self.read(at, *page, &mut [], spare)).collect()
    }

    /// Begins a read for the host of the first `bytes` bytes of a page. How the host gets them is the array's
    /// business.
    fn sense(&mut self, at: u64, page: Page, bytes: usize) -> Result<Span, FlashError>;

    /// Programs the next page of a block: the first bytes of its data and spare area. A failed program uses the page
    /// up.
    fn program(&mut self, at: u64, page: Page, data: &[u8], spare: &[u8]) -> Result<Span, FlashError>;

    /// Programs more bits of a page that was programmed before: bytes at an offset of the data, and of the spare area.
    fn append(&mut self, at: u64, page: Page, data: (usize, &[u8]), spare: (usize, &[u8])) -> Result<Span, FlashError>;

    /// Whether the page takes another append.
    fn may_append(&self, page: Page) -> Result<(), FlashError>;

    /// Copies a page to the next page of a block, with a new spare area. The span begins with the read.
    fn copy(&mut self, at: u64, from: Page, to: Page, spare: &[u8]) -> Result<Span, FlashError>;

    /// Erases a block, not before `at`. A block that reaches its endurance is erased once more in vain and is bad.
    fn erase(&mut self, at: u64, block: u32) -> Result<Span, FlashError>;

    /// When everything given so far will be done.
    fn idle_at(&self) -> u64;

    /// The data of a page will never be asked for again; its spare area will.
    fn forget_data(&mut self, page: Page) {
        let _ = page;
    }

    /// Whether [`FlashArray::forget_data`] is of use.
    fn forgets(&self) -> bool {
        false
    }

    /// Programs since totals began, if they are counted for this owner alone: what a check compares with.
    fn programs(&self) -> Option<u64> {
        None
    }
}
