//! The miss path: a frame is found (by the victim strategy), published under the page's id, and filled.
//!
//! The loading thread holds the frame's exclusive latch from before it is published until the page is there, so everybody
//! else who wants the page finds it in the table and waits for that latch: one read, many waiters. A failed read takes the
//! page out of the table again; the waiters find that and try for themselves.

use super::Pool;
use super::frame::{MISSED, PREFETCHED, STALE};
use super::guard::{PagePin, PageWrite};
use super::instance::Instance;
use super::policy::{Ask, Load, Slot};
use crate::error::{Error, Result};
use varve_device::DeviceError;
use varve_rt::atomic::Ordering::*;
use varve_volume::{CostClass, PageId, PageIo, ReadWhy, VolumeError, page};

impl Pool {
    /// Loads a page that was not found; `None` when somebody else has or did meanwhile (look again).
    pub(super) fn fault(&self, id: PageId) -> Result<Option<PagePin<'_>>> {
        let Some((inst, slot)) = self.latch_new_frame(id)? else { return Ok(None) };
        self.note_miss(id);
        let frame = inst.frame(slot);
        // SAFETY: the frame is latched exclusively until the read was waited for; frames are page_size bytes each, aligned
        // to 4096.
        let read = unsafe { PageIo::read(id, ReadWhy::Demand, frame.data()) };
        let result = self.store().submit(vec![read]).wait(0);
        match result {
            Ok(class) => {
                frame.count_demand();
                frame.state.fetch_or(MISSED, AcqRel);
                self.finish_load(inst, slot, id, Load::Demand, class);
                frame.pins.fetch_add(1, AcqRel);
                let pin = PagePin::held(self.at(inst, slot));
                // SAFETY: latched by `latch_new_frame`.
                unsafe { frame.latch.unlock_exclusive() };
                Ok(Some(pin))
            }
            Err(e) => {
                self.abandon_load(inst, slot);
                Err(volume_error(e))
            }
        }
    }

    /// A frame published for `id`, latched, known to the policy, contents undefined (but initialised).
    pub(super) fn empty_page(&self, id: PageId) -> Result<Option<PageWrite<'_>>> {
        let Some((inst, slot)) = self.latch_new_frame(id)? else { return Ok(None) };
        inst.loaded(&mut inst.lock(), slot, id, Load::Demand, CostClass::default());
        Ok(Some(PageWrite::held(self.at(inst, slot), true)))
    }

    /// Finds a frame and publishes it for `id`, latched exclusively. `None` when the page is resident (or being loaded).
    fn latch_new_frame(&self, id: PageId) -> Result<Option<(&Instance, Slot)>> {
        let inst = self.instance(id);
        {
            let _lists = inst.lock();
            if inst.table.find(&inst.frames, id).is_some() {
                return Ok(None);
            }
        }
        let slot = self.victim.take_frame(self, inst, id)?;
        Ok(self.publish(inst, slot, id).then_some((inst, slot)))
    }

    /// Publishes an empty latched frame; false (and the frame is free again) when the page has become resident.
    pub(super) fn publish(&self, inst: &Instance, slot: Slot, id: PageId) -> bool {
        let published = inst.publish(&mut inst.lock(), slot, id);
        if !published {
            // SAFETY: the frame came latched exclusively from the victim strategy.
            unsafe { inst.frame(slot).latch.unlock_exclusive() };
            inst.free(slot);
        }
        published
    }

    /// The page is in its frame: statistics, policy.
    pub(super) fn finish_load(&self, inst: &Instance, slot: Slot, id: PageId, how: Load, class: CostClass) {
        let frame = inst.frame(slot);
        // SAFETY: the caller holds the exclusive latch.
        let kind = page::kind(unsafe { self.at(inst, slot).bytes() });
        frame.kind.store(kind, Relaxed);
        let counters = self.counters.kind(kind);
        match how {
            Load::Demand => counters.misses.inc(),
            Load::Prefetch => counters.prefetched.inc(),
        }
        inst.loaded(&mut inst.lock(), slot, id, how, class);
    }

    /// The page could not be read: its frame is free again.
    pub(super) fn abandon_load(&self, inst: &Instance, slot: Slot) {
        self.counters.read_errors.inc();
        inst.withdraw(&mut inst.lock(), slot);
        // SAFETY: the caller holds the exclusive latch and gives it up.
        unsafe { inst.frame(slot).latch.unlock_exclusive() };
        inst.free(slot);
    }

    /// Takes a free frame, latched exclusively.
    pub(super) fn pop_free(&self, inst: &Instance) -> Option<Slot> {
        let (slot, low) = {
            let mut lists = inst.lock();
            let slot = lists.free.pop()?;
            (slot, lists.free.len() < self.config().cleaner.free_low)
        };
        if low {
            inst.wake_cleaner();
        }
        // Nobody keeps the latch of an empty frame: a lookup that came too late lets go at once.
        inst.frame(slot).latch.lock_exclusive();
        Some(slot)
    }

    /// Evicts a clean page found by the policy; its frame is empty and latched exclusively.
    pub(super) fn evict_clean(&self, inst: &Instance, ask: Ask) -> Option<Slot> {
        let slot = inst.claim_victim(&mut inst.lock(), ask, &self.counters)?;
        self.offer(inst, slot);
        self.empty_victim(inst, slot);
        Some(slot)
    }

    /// Offers a clean page that is about to be evicted to the store. The frame is latched exclusively, so nobody can load the
    /// page anew, change and write it before the store has seen these bytes.
    pub(super) fn offer(&self, inst: &Instance, slot: Slot) {
        let at = self.at(inst, slot);
        if inst.frame(slot).is(STALE) {
            return;
        }
        // SAFETY: latched exclusively by the caller.
        let taken = self.store().evict_clean(at.id(), unsafe { at.bytes() }, inst.frame(slot).take_usage());
        let counters = &self.counters;
        if taken {
            counters.evict_clean_taken.inc()
        } else {
            counters.evict_clean_declined.inc()
        }
        counters.kind(inst.frame(slot).kind.load(Relaxed)).evicted_clean.inc();
    }

    /// Takes the page out of a claimed victim.
    pub(super) fn empty_victim(&self, inst: &Instance, slot: Slot) {
        let frame = inst.frame(slot);
        if frame.is(PREFETCHED) {
            self.counters.kind(frame.kind.load(Relaxed)).prefetch_wasted.inc();
        }
        inst.withdraw(&mut inst.lock(), slot);
    }
}

/// The engine's error for a failed page request.
pub(super) fn volume_error(e: VolumeError) -> Error {
    match e {
        VolumeError::Damaged { page, damage } => Error::corrupt_page(page, None, damage.to_string()),
        VolumeError::Page { source: DeviceError::NoSpace { .. }, .. } => Error::NoSpace(e.to_string()),
        VolumeError::Device(e) => e.into(),
        e => Error::Volume(e),
    }
}
