//! The miss path: a frame is found (by the victim strategy), published under the page's id, and filled.
//!
//! The loading thread holds the frame's exclusive latch from before it is published until the page is there, so
//! everybody else who wants the page finds it in the table and waits for that latch: one read, many waiters. A failed
//! read takes the page out of the table again; the waiters find that and try for themselves.
//!
//! Invariants: a page gets a frame of its own instance, empty and latched; a victim is clean, unlinked from the policy
//! and latched from before it is offered to the store until its frame is empty.

use super::Pool;
use super::frame::{DIRTY, KNOWN, MISSED, NO_PAGE, PREFETCHED, STALE, WRITING};
use super::guard::{Exclusive, FrameRef, PagePin, PageWrite};
use super::instance::Instance;
use super::policy::{Ask, Load};
use super::trace::TraceEvent;
use super::victim::{Owed, Taken};
use super::writer::is_retryable;
use crate::error::{Error, Result};
use std::time::Duration;
use varve_device::DeviceError;
use varve_rt::atomic::Ordering::*;
use varve_rt::{Cost, charge};
use varve_volume::{CostClass, PageId, PageIo, ReadWhy, VolumeError, WriteWhy, page};

/// A frame that was published for a page, latched.
struct New<'a> {
    held: Exclusive<'a>,
    /// A write to be submitted.
    owed: Option<Owed<'a>>,
    /// The page is in it already, and known to the policy.
    served: bool,
}

/// How often a read is tried again that failed with an error worth another try.
pub(crate) const READ_RETRIES: u32 = 4;

impl Pool {
    /// Loads a page that was not found; `None` when somebody else has or did meanwhile (look again).
    pub(super) fn fault(&self, id: PageId) -> Result<Option<PagePin<'_>>> {
        let Some(New { held, owed, served }) = self.latch_new_frame(id, false)? else { return Ok(None) };
        if served {
            self.settle(owed);
            return Ok(Some(held.into_pin()));
        }
        self.note_miss(id);
        self.drain_class_changes();
        let frame = held.frame();
        // SAFETY: the frame is latched exclusively until the read was waited for; frames are page_size bytes each,
        // aligned to 4096.
        let read = unsafe { PageIo::read(id, ReadWhy::Demand, frame.data()) };
        charge(Cost::Miss, 1);
        charge(Cost::IoSubmit, 1);
        let result = match owed {
            None => self.store().submit(vec![read]).wait(0),
            Some(owed) => self.read_with_write(read, owed),
        };
        charge(Cost::IoComplete, 1);
        let result = result.or_else(|e| self.read_again(&held, id, e)).map_err(volume_error);
        match result.and_then(|class| self.vet(&held).map(|()| class)) {
            Ok(class) => {
                frame.count_demand();
                frame.state.fetch_or(MISSED, AcqRel);
                self.finish_load(&held, Load::Demand, class);
                Ok(Some(held.into_pin()))
            }
            Err(e) => {
                self.abandon_load(held);
                Err(e)
            }
        }
    }

    /// Looks at a page that was read, as the store cannot: whether it can be what was written last.
    pub(super) fn vet(&self, held: &Exclusive<'_>) -> Result<()> {
        let (lsn, end) = (page::lsn(held.bytes()), self.gate().end_lsn());
        let gap = self.gate().gap_at(lsn);
        let what = match gap {
            None if lsn <= end => return Ok(()),
            None => format!(
                "its last change is at LSN {lsn}, but the log ends at {end}: it is not of this log, or the log lost \
                its end"
            ),
            Some((end, start)) => format!(
                "its last change is at LSN {lsn}, but after a crash the log ended at {end} and went on at {start}: it \
                is not of this log, or the log had lost its end"
            ),
        };
        Err(Error::corrupt_page(held.at().id(), Some(page::keyspace(held.bytes())), what))
    }

    /// Reads a page again whose read failed, after a wait that grows, while the error says that it may help.
    #[cold]
    fn read_again(&self, held: &Exclusive<'_>, id: PageId, mut error: VolumeError) -> Result<CostClass, VolumeError> {
        for tries in 1..=READ_RETRIES {
            if !is_retryable(&error) || varve_rt::dying() {
                break;
            }
            self.counters.read_retries.inc();
            varve_rt::sleep(Duration::from_millis(1 << tries));
            // SAFETY: as for the first read: the frame is latched exclusively until the read was waited for.
            let read = unsafe { PageIo::read(id, ReadWhy::Demand, held.frame().data()) };
            match self.store().submit(vec![read]).wait(0) {
                Ok(class) => return Ok(class),
                Err(e) => error = e,
            }
        }
        Err(error)
    }

    /// A frame published for `id`, latched, known to the policy, contents undefined (but initialised).
    pub(super) fn empty_page(&self, id: PageId) -> Result<Option<PageWrite<'_>>> {
        let Some(New { held, owed, .. }) = self.latch_new_frame(id, true)? else { return Ok(None) };
        self.settle(owed);
        let FrameRef { inst, slot, .. } = held.at();
        let class = self.store().class_of_new();
        inst.loaded(&mut inst.lock(), slot, id, Load::Demand, class);
        Ok(Some(held.into_write(true)))
    }

    /// Finds a frame and publishes it for `id`. `None` when the page is resident (or being loaded).
    fn latch_new_frame(&self, id: PageId, fresh: bool) -> Result<Option<New<'_>>> {
        let inst = self.instance(id);
        if inst.find(id).is_some() {
            return Ok(None);
        }
        let Taken { held, owed } = self.victim.take_frame(self, inst, id)?;
        assert!(std::ptr::eq(held.at().inst, inst), "a page gets a frame of its own instance");
        match self.publish(held, id, fresh) {
            Some((held, served)) => Ok(Some(New { held, owed, served })),
            None => {
                self.settle(owed);
                Ok(None)
            }
        }
    }

    /// Publishes an empty frame, and says whether the page came with it (it had been set aside); `None` (and the frame
    /// is free again) when the page has become resident. `fresh`: the page is being made anew.
    pub(super) fn publish<'a>(&self, held: Exclusive<'a>, id: PageId, fresh: bool) -> Option<(Exclusive<'a>, bool)> {
        let FrameRef { inst, slot, .. } = held.at();
        {
            let mut lists = inst.lock();
            if inst.publish(&mut lists, slot, id) {
                let served = inst.readmit(&mut lists, &held, fresh, &self.counters);
                drop(lists);
                return Some((held, served));
            }
        }
        held.unlatch();
        inst.free(slot);
        None
    }

    /// Submits a read and the write that made its frame free as one batch; waits for the read alone.
    fn read_with_write(&self, read: PageIo, owed: Owed<'_>) -> Result<CostClass, VolumeError> {
        charge(Cost::IoSubmit, 1);
        let write = owed.write.request(self, WriteWhy::Replacement);
        let mut ticket = self.store().submit(vec![read, write]);
        self.counters.batch(1);
        let result = ticket.wait(0);
        self.reap(ticket, 1, owed);
        result
    }

    /// Submits the write that made a frame free, when there is no read to go with it.
    fn settle(&self, owed: Option<Owed<'_>>) {
        if let Some(owed) = owed {
            charge(Cost::IoSubmit, 1);
            let ticket = self.store().submit(vec![owed.write.request(self, WriteWhy::Replacement)]);
            self.counters.batch(1);
            self.reap(ticket, 0, owed);
        }
    }

    /// The page is in its frame: statistics, policy.
    pub(super) fn finish_load(&self, held: &Exclusive<'_>, how: Load, class: CostClass) {
        let FrameRef { inst, slot, .. } = held.at();
        assert!(!held.frame().is(DIRTY | WRITING), "a page that was just read is clean");
        inst.changes.is_stored(slot);
        let kind = page::kind(held.bytes());
        held.frame().kind.store(kind, Relaxed);
        let counters = self.counters.kind(kind);
        match how {
            Load::Demand => counters.misses.inc(),
            Load::Prefetch => counters.prefetched.inc(),
        }
        inst.loaded(&mut inst.lock(), slot, held.at().id(), how, class);
        if how == Load::Prefetch {
            self.trace(TraceEvent::Prefetch(held.at().id()));
        }
    }

    /// The page could not be read: its frame is free again.
    pub(super) fn abandon_load(&self, held: Exclusive<'_>) {
        let FrameRef { inst, slot, .. } = held.at();
        self.counters.read_errors.inc();
        inst.withdraw(&mut inst.lock(), slot);
        held.unlatch();
        inst.free(slot);
    }

    /// Takes a free frame.
    pub(super) fn pop_free<'a>(&'a self, inst: &'a Instance) -> Option<Exclusive<'a>> {
        let (slot, low) = {
            let mut lists = inst.lock();
            charge(Cost::ListMove, 1);
            let slot = inst.take_free(&mut lists)?;
            (slot, self.config().cleaner.wake_low && lists.free_frames() < self.config().cleaner.free_low)
        };
        if low {
            inst.wake_cleaner();
        }
        // Nobody keeps the latch of an empty frame: a lookup that came too late lets go at once.
        let held = self.at(inst, slot).lock();
        assert_eq!(held.frame().page.load(Acquire), NO_PAGE, "a frame on the free list is empty");
        Some(held)
    }

    /// Evicts a clean page found by the policy; its frame is empty.
    pub(super) fn evict_clean<'a>(&'a self, inst: &'a Instance, ask: Ask) -> Option<Exclusive<'a>> {
        let (held, backlog) = {
            let mut lists = inst.lock();
            let held = inst.claim_victim(self, &mut lists, ask);
            let backlog = lists.passed.len() >= self.config().write_batch * if inst.lists_passed { 2 } else { 1 };
            if backlog && !inst.lists_passed {
                lists.passed.clear();
            }
            (held, backlog)
        };
        if backlog {
            inst.wake_cleaner();
        }
        let held = held?;
        self.empty_victim(&held);
        Some(held)
    }

    /// Takes the page out of a claimed victim: clean, unlinked from the policy.
    pub(super) fn empty_victim(&self, held: &Exclusive<'_>) {
        let FrameRef { inst, slot, .. } = held.at();
        let frame = held.frame();
        assert!(!frame.is(DIRTY | WRITING | KNOWN), "a victim is clean, and out of the policy");
        if !frame.is(STALE) {
            self.offer(held);
        }
        if frame.is(PREFETCHED) {
            self.counters.kind(frame.kind.load(Relaxed)).prefetch_wasted.inc();
        }
        inst.withdraw(&mut inst.lock(), slot);
    }

    /// Offers a clean page that is about to be evicted to the store. The frame is latched exclusively, so nobody can
    /// load the page anew, change and write it before the store has seen these bytes.
    fn offer(&self, held: &Exclusive<'_>) {
        let frame = held.frame();
        let counters = &self.counters;
        if self.store().evict_clean(held.at().id(), held.bytes(), frame.take_usage()) {
            counters.evict_clean_taken.inc();
        } else {
            counters.evict_clean_declined.inc();
        }
        counters.kind(frame.kind.load(Relaxed)).evicted_clean.inc();
    }
}

/// The engine's error for a failed page request.
pub(super) fn volume_error(e: VolumeError) -> Error {
    match e {
        VolumeError::Damaged { .. } | VolumeError::OutOfRange { .. } => e.into(),
        VolumeError::Page { source: DeviceError::NoSpace { .. }, .. } => Error::NoSpace(e.to_string()),
        VolumeError::Device(e) => e.into(),
        e => Error::Volume(e),
    }
}
