//! Hit buffers: how accesses reach the replacement policy without a lock per access.
//!
//! Invariant: an entry is empty or a whole hit: slot plus one, and the low half of the page's id, in one word.
//!
//! Each instance has a few stripes; a thread always uses the same one. A hit is two stores. When a stripe is
//! full its thread drains it under *try*-lock, and whoever chooses a victim drains them all first. An entry is drained
//! at most once; one that is overwritten before that, or that finds the stripe full, is lost to the policy (and counted
//! as dropped). A pool made inside a simulation whose work takes no time has buffers of size 1, so there every hit
//! reaches the policy at once.

use super::policy::Slot;
use std::sync::atomic::{AtomicU32 as PlainU32, Ordering::Relaxed};
use varve_rt::Local;
use varve_rt::atomic::{AtomicU32, AtomicU64};
use varve_volume::PageId;

/// Number of the calling thread: in order of first use, in a simulation of spawning.
static THREAD: Local<u32> = Local::new(next_thread);

fn next_thread() -> u32 {
    static NEXT: PlainU32 = PlainU32::new(0);
    varve_rt::thread_number().unwrap_or_else(|| NEXT.fetch_add(1, Relaxed))
}

#[repr(align(64))]
struct Stripe {
    used: AtomicU32,
    entries: Box<[AtomicU64]>,
}

pub(super) struct HitBuffers {
    stripes: Box<[Stripe]>,
}

/// What [`HitBuffers::push`] asks of the caller.
#[derive(PartialEq, Eq)]
pub(super) enum Pushed {
    Ok,
    /// The stripe is full now: drain it if the lock is free.
    Full,
    /// The stripe was full already: the hit is lost.
    Dropped,
}

const _: () = assert!(size_of::<Slot>() == 4, "slot and half of a page id fill a word");

/// Empty entry. A real one has the slot plus one in its high half, so it is never zero.
const EMPTY: u64 = 0;

impl HitBuffers {
    pub(super) fn new(stripes: usize, entries: usize) -> HitBuffers {
        let stripe =
            |_| Stripe { used: AtomicU32::new(0), entries: (0..entries).map(|_| AtomicU64::new(EMPTY)).collect() };
        HitBuffers { stripes: (0..stripes).map(stripe).collect() }
    }

    #[inline]
    pub(super) fn push(&self, slot: Slot, page: PageId) -> Pushed {
        let thread = if self.stripes.len() == 1 { 0 } else { THREAD.with(|t| *t) as usize };
        let stripe = &self.stripes[thread % self.stripes.len()];
        // Not one atomic step, which would take longer than all the rest: two threads that share the stripe may lose a
        // hit.
        let at = stripe.used.load(Relaxed);
        stripe.used.store(at.wrapping_add(1), Relaxed);
        let at = at as usize;
        let Some(entry) = stripe.entries.get(at) else {
            return if at.is_power_of_two() { Pushed::Full } else { Pushed::Dropped };
        };
        entry.store(((slot as u64 + 1) << 32) | (page.0 & 0xFFFF_FFFF), Relaxed);
        if at + 1 == stripe.entries.len() { Pushed::Full } else { Pushed::Ok }
    }

    /// Hands every gathered hit (slot, low half of the page id) to `f`. Under the instance's lock. Returns the number
    /// of hits that were lost since the last drain.
    pub(super) fn drain(&self, mut f: impl FnMut(Slot, u32)) -> u64 {
        let mut lost = 0;
        for stripe in &self.stripes {
            if stripe.used.load(Relaxed) == 0 {
                continue;
            }
            let used = stripe.used.swap(0, Relaxed) as usize;
            lost += used.saturating_sub(stripe.entries.len()) as u64;
            for entry in stripe.entries.iter().take(used) {
                // Two plain steps instead of a swap: only one thread drains at a time, and a hit that its thread stores
                // in between is lost like any that is overwritten.
                let hit = entry.load(Relaxed);
                if hit != EMPTY {
                    entry.store(EMPTY, Relaxed);
                    f((hit >> 32) as u32 - 1, hit as u32);
                }
            }
        }
        lost
    }
}
