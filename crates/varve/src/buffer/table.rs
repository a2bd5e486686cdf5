//! The page table of one instance: which frame holds which page.
//!
//! Lookups take no lock: bucket heads and the frames' `next` links are atomics, and what they say is only a hint. A
//! lookup may miss a page whose frame is being moved (the caller looks again under the instance's lock before it does
//! anything about a miss), and may name a frame that was just given to another page (the caller latches it and checks
//! the id). Changes are made under the instance's lock, so a lookup under that lock is exact.
//!
//! Invariants, under that lock: a page is in the table once, in the chain of its hash, and its frame bears its id from
//! before it is linked until it is unlinked.

use super::frame::Frame;
use super::policy::Slot;
use varve_rt::atomic::{AtomicU32, Ordering::*};
use varve_volume::PageId;

/// No frame: zero, as fresh memory has it. A link to the frame of a slot is the slot and one.
const NIL: u32 = 0;

/// A lock-free lookup that strays from chain to chain while frames move gives up here.
const MAX_STEPS: usize = 128;

pub(super) struct PageTable {
    heads: Box<[AtomicU32]>,
    mask: u64,
}

/// Spreads page ids over buckets and instances (multiplicative hashing by the golden ratio).
#[inline]
pub(super) fn hash(id: PageId) -> u64 {
    let h = id.0.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    h ^ (h >> 32)
}

impl PageTable {
    pub(super) fn new(frames: usize) -> PageTable {
        assert!(frames < u32::MAX as usize, "slots are numbered with 32 bits");
        let buckets = (frames * 2).next_power_of_two();
        PageTable { heads: AtomicU32::zeros(buckets), mask: buckets as u64 - 1 }
    }

    #[inline]
    fn head(&self, id: PageId) -> &AtomicU32 {
        &self.heads[(hash(id) & self.mask) as usize]
    }

    /// The frame that seems to hold `id`; without any lock.
    #[inline]
    pub(super) fn hint(&self, frames: &[Frame], id: PageId) -> Option<Slot> {
        self.walk(frames, id, MAX_STEPS)
    }

    /// The frame that a lookup of `id` looks at first, which is most often its own; the frame itself is not touched.
    #[inline]
    pub(super) fn first(&self, id: PageId) -> Option<Slot> {
        self.head(id).load(Acquire).checked_sub(1)
    }

    /// The frame that holds `id`. Under the instance's lock.
    pub(super) fn find(&self, frames: &[Frame], id: PageId) -> Option<Slot> {
        self.walk(frames, id, usize::MAX)
    }

    #[inline]
    fn walk(&self, frames: &[Frame], id: PageId, steps: usize) -> Option<Slot> {
        let mut at = self.head(id).load(Acquire);
        for _ in 0..steps {
            // No frame has the number that [`NIL`] becomes.
            let slot = at.wrapping_sub(1);
            let frame = frames.get(slot as usize)?;
            if frame.holds(id) {
                return Some(slot);
            }
            at = frame.next.load(Acquire);
        }
        None
    }

    /// Links a frame that already bears `id`. Under the instance's lock.
    pub(super) fn insert(&self, frames: &[Frame], id: PageId, slot: Slot) {
        debug_assert!(self.find(frames, id).is_none(), "page {id} is in the table already");
        debug_assert!(frames[slot as usize].holds(id), "a frame bears its page's id before it is linked");
        let head = self.head(id);
        frames[slot as usize].next.store(head.load(Relaxed), Release);
        head.store(slot + 1, Release);
    }

    /// Unlinks the frame of `id`. Its own link stays, so that a lookup standing on it finds its way on. Under the
    /// instance's lock.
    pub(super) fn remove(&self, frames: &[Frame], id: PageId, slot: Slot) {
        assert!(frames[slot as usize].holds(id), "a frame is unlinked as the page that it bears");
        let mut link = self.head(id);
        loop {
            let at = link.load(Relaxed);
            assert_ne!(at, NIL, "page {id} is not in the table");
            let next = &frames[at as usize - 1].next;
            if at - 1 == slot {
                link.store(next.load(Relaxed), Release);
                return;
            }
            link = next;
        }
    }
}
