//! `spf`: single-page flush, as InnoDB 5.7 does it.
//!
//! Free list; else the coldest 100 pages for a clean one, going on where the last scan ended; else wake the cleaner;
//! from the second round on the whole list; then write the coldest dirty page oneself, put its frame on the free list
//! and try again (another thread may take it). From the third round on wait first, 10 ms at most: unlike InnoDB's sleep
//! ours ends as soon as a frame is freed or a page becomes clean.

use super::{Needs, Taken, VictimEntry, VictimStrategy, out_of_frames};
use crate::buffer::Pool;
use crate::buffer::guard::Exclusive;
use crate::buffer::instance::Instance;
use crate::buffer::policy::Ask;
use crate::error::Result;
use varve_rt::Instant;
use varve_volume::PageId;

/// Pages scanned for a clean one before the cleaner is called.
const FIRST_SCAN: usize = 100;

/// The strategy's line in the registry.
pub(super) const ENTRY: VictimEntry =
    VictimEntry { name: "spf", needs: Needs::LEAST, make: |_| Box::new(SinglePageFlush) };

struct SinglePageFlush;

impl VictimStrategy for SinglePageFlush {
    fn take_frame<'a>(&self, pool: &'a Pool, inst: &'a Instance, incoming: PageId) -> Result<Taken<'a>> {
        let resume = Ask { depth: FIRST_SCAN, resume: true, cold_only: false, incoming: Some(incoming) };
        if let Some(slot) = pool.pop_free(inst) {
            return Ok(slot.into());
        }
        if inst.scan_pays() {
            if let Some(slot) = pool.evict_clean(inst, resume) {
                return Ok(slot.into());
            }
            inst.scan_failed();
        }
        pool.counters.stalls.inc();
        let began = varve_rt::now();
        let result = stalled(pool, inst, incoming, began);
        pool.counters.stall_ns.add(began.elapsed().as_nanos() as u64);
        result.map(Taken::from)
    }
}

fn stalled<'a>(pool: &'a Pool, inst: &'a Instance, incoming: PageId, began: Instant) -> Result<Exclusive<'a>> {
    let whole = Ask { depth: usize::MAX, resume: false, cold_only: false, incoming: Some(incoming) };
    for round in 1u64.. {
        inst.wake_cleaner();
        if round > 2 {
            inst.wait_for_frame(pool, pool.config().patience);
        }
        let flushed = match pool.failure() {
            None => pool.flush_single(inst, true),
            Some(e) => Err(e),
        };
        if let Some(slot) = pool.pop_free(inst) {
            return Ok(slot);
        }
        if let Some(slot) = pool.evict_clean(inst, whole) {
            return Ok(slot);
        }
        inst.scan_failed();
        flushed?;
        if pool.waited_enough(began) {
            break;
        }
    }
    Err(out_of_frames(pool))
}
