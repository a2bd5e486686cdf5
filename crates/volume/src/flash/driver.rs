//! Raw flash as an array that a translation layer drives: operations are given, and not waited for.
//!
//! What one operation waits for it says by the mark of the other, so nothing here sleeps while work goes on, as long as
//! the flash knows at once what is read of a page that moves; a recovery alone waits for what it reads.
//!
//! Invariant: `idle` is the largest mark that was given out.

use std::sync::Arc;
use varve_device::flash::{
    BlockInfo, CellMode, Contents, FlashArray, FlashError, Geometry, Page, RawFlash, RawIo, RawOp, RawTicket, Span,
};

/// A handle on raw flash, of one region.
pub(super) struct Driver {
    raw: Arc<dyn RawFlash>,
    geometry: Geometry,
    idle: u64,
    /// Bytes of the spare area that the host wants with what it reads.
    spare: usize,
    /// Of the last program, or read for the host.
    last: Option<RawTicket>,
}

impl Driver {
    /// `spare`: bytes of the spare area that the host wants with what it reads.
    pub(super) fn new(raw: Arc<dyn RawFlash>, spare: usize) -> Driver {
        let geometry = raw.geometry();
        Driver { raw, geometry, idle: 0, spare, last: None }
    }

    /// The ticket of the last program, or read for the host.
    pub(super) fn take_ticket(&mut self) -> Option<RawTicket> {
        self.last.take()
    }

    fn info(&self, block: u32) -> BlockInfo {
        assert!(block < self.geometry.blocks(), "a block of the array");
        self.raw.block(block)
    }

    /// Gives one operation; its ticket, if it was accepted.
    fn give(&mut self, after: u64, op: RawOp<'_>) -> Result<(Span, RawTicket), FlashError> {
        let ticket = self.raw.submit(&[RawIo { op, after }]);
        let span = ticket.given(0)?;
        assert!(span.end >= after, "what waits ends after what it waits for");
        self.idle = self.idle.max(span.end);
        Ok((span, ticket))
    }

    fn keep(&mut self, (span, ticket): (Span, RawTicket)) -> Span {
        self.last = Some(ticket);
        span
    }
}

impl FlashArray for Driver {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn mode(&self, chip: u32) -> CellMode {
        self.raw.mode(chip)
    }

    fn contents(&self) -> Contents {
        Contents::Full
    }

    fn set_reliable(&mut self, blocks: Vec<u32>) {
        self.raw.add_reliable(blocks);
    }

    fn is_alive(&self) -> bool {
        self.raw.fence(0).given(0).is_ok()
    }

    fn is_bad(&self, block: u32) -> bool {
        self.info(block).bad
    }

    fn mark_bad(&mut self, block: u32) {
        self.raw.mark_bad(block);
    }

    fn is_torn(&self, block: u32) -> bool {
        self.info(block).torn
    }

    fn erases(&self, block: u32) -> u32 {
        self.info(block).erases
    }

    fn reads_since_erase(&self, block: u32) -> u32 {
        self.info(block).reads
    }

    fn next_page(&self, block: u32) -> u32 {
        self.info(block).next
    }

    fn read(&mut self, at: u64, page: Page, data: &mut [u8], spare: &mut [u8]) -> Result<Span, FlashError> {
        let op = RawOp::Read { page, data: data.len(), spare: spare.len() };
        let (span, mut ticket) = self.give(at, op)?;
        ticket.read(0, data, spare)?;
        Ok(span)
    }

    fn read_to_move(&mut self, at: u64, page: Page, data: &mut [u8], spare: &mut [u8]) -> Result<Span, FlashError> {
        let op = RawOp::Read { page, data: data.len(), spare: spare.len() };
        let (span, mut ticket) = self.give(at, op)?;
        ticket.read_early(0, data, spare)?;
        Ok(span)
    }

    /// All of them are given before the first is waited for, so the chips work side by side.
    fn read_spares(&mut self, at: u64, pages: &[Page], spares: &mut [u8]) -> Vec<Result<Span, FlashError>> {
        assert!(spares.len().is_multiple_of(pages.len().max(1)), "as many bytes of each page");
        let bytes = spares.len() / pages.len().max(1);
        let read = |page: &Page| RawIo { op: RawOp::Read { page: *page, data: 0, spare: bytes }, after: at };
        let mut ticket = self.raw.submit(&pages.iter().map(read).collect::<Vec<_>>());
        let ends = (0..pages.len()).filter_map(|i| Some(ticket.given(i).ok()?.end));
        self.idle = ends.fold(self.idle, u64::max);
        let each = spares.chunks_mut(bytes.max(1)).enumerate();
        each.map(|(i, spare)| ticket.given(i).and_then(|span| ticket.read(i, &mut [], spare).map(|()| span))).collect()
    }

    fn sense(&mut self, at: u64, page: Page, bytes: usize) -> Result<Span, FlashError> {
        let given = self.give(at, RawOp::Read { page, data: bytes, spare: self.spare })?;
        Ok(self.keep(given))
    }

    fn program(&mut self, at: u64, page: Page, data: &[u8], spare: &[u8]) -> Result<Span, FlashError> {
        let given = self.give(at, RawOp::Program { page, data, spare })?;
        Ok(self.keep(given))
    }

    fn append(&mut self, at: u64, page: Page, data: (usize, &[u8]), spare: (usize, &[u8])) -> Result<Span, FlashError> {
        let given = self.give(at, RawOp::Append { page, data, spare })?;
        Ok(self.keep(given))
    }

    fn may_append(&self, page: Page) -> Result<(), FlashError> {
        self.raw.may_append(page)
    }

    fn copy(&mut self, at: u64, from: Page, to: Page, spare: &[u8]) -> Result<Span, FlashError> {
        Ok(self.give(at, RawOp::Copy { from, to, spare })?.0)
    }

    fn erase(&mut self, at: u64, block: u32) -> Result<Span, FlashError> {
        Ok(self.give(at, RawOp::Erase { block })?.0)
    }

    fn idle_at(&self) -> u64 {
        self.idle
    }
}
