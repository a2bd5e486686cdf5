//! Requests under way on native flash.

use super::region::{Reading, Region};
use super::region_of;
use std::sync::Arc;
use varve_device::flash::{FlashError, RawTicket};
use varve_device::{Completion, Counters, DeviceError, Io, Op};
use varve_rt::Instant;
use varve_rt::atomic::{AtomicBool, Ordering::SeqCst};

/// What one page of a request waits for.
pub(super) enum Part {
    /// An operation of the flash.
    Ticket(RawTicket),
    /// A page of the flash that is read.
    Page(Reading),
    /// Nothing: a page that was never written.
    Blank,
}

impl From<RawTicket> for Part {
    fn from(ticket: RawTicket) -> Part {
        Part::Ticket(ticket)
    }
}

impl From<Option<Reading>> for Part {
    fn from(reading: Option<Reading>) -> Part {
        reading.map_or(Part::Blank, Part::Page)
    }
}

impl Part {
    fn is_done(&self) -> bool {
        match self {
            Part::Ticket(ticket) => ticket.try_done(0),
            Part::Page(reading) => reading.ticket.try_done(0),
            Part::Blank => true,
        }
    }
}

/// One request.
pub(super) struct Slot {
    pub(super) io: Io,
    pub(super) begun: Result<Vec<Part>, DeviceError>,
    pub(super) started: Instant,
}

/// A batch.
pub(super) struct Flight {
    pub(super) name: Arc<str>,
    pub(super) counters: Arc<Counters>,
    /// Bytes of a page of the flash.
    pub(super) page: usize,
    pub(super) regions: Arc<[Region]>,
    /// No delta record may be torn.
    pub(super) whole: Arc<AtomicBool>,
    pub(super) slots: Vec<Slot>,
}

/// The bytes of a write that is being submitted.
pub(super) fn written(io: &Io) -> &[u8] {
    debug_assert!(matches!(io.op, Op::Write { .. }), "only a write has bytes to be read");
    // SAFETY: the caller of `Io::write` promised valid, unchanging memory until the request was waited for.
    unsafe { std::slice::from_raw_parts(io.buf.as_ptr(), io.len()) }
}

/// Waits for a page that is read, and takes note of what was found of its delta records.
fn finish_page(reading: &mut Reading, place: &mut [u8], regions: &[Region], whole: bool) -> Result<(), FlashError> {
    let found = reading.finish(place)?;
    assert!(found.used > 0 || !found.torn, "what is torn is there");
    if let Some(from) = reading.uncounted {
        region_of(regions, reading.page).counted(reading.page, from, found);
    }
    if found.torn && whole {
        // No power cut has torn it, so a change is missing: whoever checks the page must see that.
        place[..4].iter_mut().for_each(|byte| *byte = !*byte);
    }
    Ok(())
}

impl Slot {
    fn finish(&mut self, page: usize, name: &Arc<str>, regions: &[Region], whole: bool) -> Result<(), DeviceError> {
        let (io, len) = (&self.io, self.io.len());
        let is_read = io.op == Op::Read;
        let mut bytes = vec![0; if is_read { len } else { 0 }];
        let mut places = bytes.chunks_mut(page);
        let begun = self.begun.as_mut().map_err(|e| e.clone())?;
        assert!(!is_read || begun.len() * page == len, "each page that is read has its part of the request");
        for part in begun {
            let place = places.next().unwrap_or_default();
            let done = match part {
                Part::Ticket(ticket) => ticket.wait(0),
                Part::Page(reading) => finish_page(reading, place, regions, whole),
                Part::Blank => Ok(()),
            };
            done.map_err(|e| e.of_request(io.op.kind(), name, (io.offset, len as u64)))?;
        }
        if is_read {
            // SAFETY: the request is waited for just now.
            unsafe { io.buf.fill(&bytes) };
        }
        Ok(())
    }
}

impl Completion for Flight {
    fn wait(&mut self, i: usize) -> Result<(), DeviceError> {
        let slot = &mut self.slots[i];
        let done = slot.finish(self.page, &self.name, &self.regions, self.whole.load(SeqCst));
        let nanos = slot.started.elapsed().as_nanos() as u64;
        self.counters.finished(slot.io.op.kind(), slot.io.len() as u64, nanos, done.is_ok());
        done
    }

    fn try_done(&mut self, i: usize) -> bool {
        let parts = self.slots[i].begun.as_ref().map_or(&[][..], Vec::as_slice);
        parts.iter().all(Part::is_done)
    }

    fn abandon(&mut self) {
        // Requests took effect when they were submitted; only a waiter copies a read's bytes.
    }
}
