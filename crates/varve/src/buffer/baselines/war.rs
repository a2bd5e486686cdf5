//! `war`: write after read (An et al., SIGMOD 2022).
//!
//! As `spf56` until no clean page is found; then the missing thread copies the dirty pages of the cold end into the
//! instance's temporary write buffer (its slots for pages set aside), as many as it has room for, under the instance's
//! lock, and reads at once into one of the frames. A background thread of the instance writes the slots, in a batch;
//! while it does, copiers wait (the stalls that are counted). A page asked for again while it lies in a slot is served
//! from there and comes back dirty. Only when nothing could be copied does the thread write a page itself.

use super::spf56::miss;
use crate::buffer::Pool;
use crate::buffer::guard::Exclusive;
use crate::buffer::instance::{Instance, Lists};
use crate::buffer::policy::Slot;
use crate::buffer::victim::{Needs, Taken, VictimEntry, VictimStrategy};
use crate::error::Result;
use std::time::Duration;
use varve_rt::{Cost, charge};
use varve_volume::{Lsn, PageId, page};

/// Longest wait of a copier for the end of a drain, between two looks.
const PATIENCE: Duration = Duration::from_millis(10);

/// The strategy's line in the registry.
pub(in crate::buffer) const ENTRY: VictimEntry = VictimEntry {
    name: "war",
    needs: Needs { scan_per_write: false, asides: true, drainer: true, ..Needs::LEAST },
    make: |_| Box::new(WriteAfterRead),
};

struct WriteAfterRead;

impl VictimStrategy for WriteAfterRead {
    fn take_frame<'a>(&self, pool: &'a Pool, inst: &'a Instance, incoming: PageId) -> Result<Taken<'a>> {
        miss(pool, inst, incoming, |stall| pool.copy_aside(inst, || stall.begin()).map(Taken::from))
    }
}

impl Pool {
    /// Copies dirty pages from the cold end into the free slots of an instance, and returns one of their frames; the
    /// others go on the free list. Waits while the slots are being drained, or are full, unless somebody frees a frame
    /// meanwhile; `waits` is called before. `None` when nothing could be copied.
    fn copy_aside<'a>(&'a self, inst: &'a Instance, mut waits: impl FnMut()) -> Option<Exclusive<'a>> {
        let mut lists = inst.lock();
        let began = varve_rt::now();
        while lists.asides.draining() || lists.asides.room() == 0 {
            if let Some(slot) = inst.take_free(&mut lists) {
                drop(lists);
                return Some(self.at(inst, slot).lock());
            }
            let helpless = !self.cleaners.running() || self.failure().is_some() || self.never_covered(Lsn::MAX - 1);
            if helpless || self.waited_enough(began) {
                return None;
            }
            waits();
            wake_drainer(inst);
            inst.wait_for_slot(&mut lists, PATIENCE);
        }
        let (mine, freed) = self.copy_coldest(inst, &mut lists);
        drop(lists);
        if mine.is_some() {
            wake_drainer(inst);
        }
        inst.frames_freed(freed);
        mine
    }

    /// Copies what there is room for: one emptied frame for the caller, and how many more are on the free list.
    fn copy_coldest<'a>(&'a self, inst: &'a Instance, lists: &mut Lists) -> (Option<Exclusive<'a>>, usize) {
        inst.drain_hits(lists, &self.counters);
        let (room, depth) = (lists.asides.room(), self.config().cleaner.scan_depth as u64);
        let mut found: Vec<Slot> = Vec::new();
        let mut seen = 0;
        lists.policy.coldest(usize::MAX, &mut |slot| {
            seen += 1;
            charge(Cost::ListScan, 1);
            if inst.frame(slot).flushable() {
                found.push(slot);
            }
            // For one page however far from the end: a single-page flush would look as far.
            found.len() < room && (seen < depth || found.is_empty())
        });
        self.counters.scanned.add(seen);
        let (mut mine, mut freed) = (None, 0);
        for slot in found {
            let Some(held) = self.at(inst, slot).try_claim_dirty() else { continue };
            if self.never_covered(page::lsn(held.bytes())) {
                held.unlatch();
                continue;
            }
            inst.set_aside(lists, &held, &self.counters);
            if mine.is_none() {
                mine = Some(held);
                continue;
            }
            inst.put_free(lists, slot);
            freed += 1;
            held.unlatch();
        }
        (mine, freed)
    }
}

fn wake_drainer(inst: &Instance) {
    if !inst.drainer.is_set() {
        inst.drainer.set();
    }
}
