//! `clean-first`: LRU-C's pointer (Lee, An, Lee, VLDB 2023).
//!
//! The victim is the least recently used *clean* page of the cold part of the list, found by a pointer that goes on from the last
//! victim towards the hot end and starts again at the cold end when it reaches the midpoint: a sweep that skips dirty pages, which the
//! cleaner writes behind it. When the cold part has no clean page the thread wakes the cleaner and waits for it to complete a write
//! (a *stall*). A foreground thread never writes a page while cleaners run.

use super::{Taken, VictimStrategy, out_of_frames};
use crate::buffer::Pool;
use crate::buffer::guard::Exclusive;
use crate::buffer::instance::Instance;
use crate::buffer::policy::Ask;
use crate::error::Result;
use std::time::Duration;
use varve_rt::Instant;
use varve_volume::{Lsn, PageId};

/// Longest wait between two looks.
const PATIENCE: Duration = Duration::from_millis(10);

pub(super) struct CleanFirst;

impl VictimStrategy for CleanFirst {
    fn take_frame<'a>(&self, pool: &'a Pool, inst: &'a Instance, incoming: PageId) -> Result<Taken<'a>> {
        if let Some(slot) = sweep(pool, inst, incoming) {
            return Ok(slot.into());
        }
        pool.counters.stalls.inc();
        let began = varve_rt::now();
        let result = loop {
            inst.scan_failed();
            inst.wake_cleaner();
            inst.wait_for_frame(PATIENCE);
            if let Some(slot) = sweep(pool, inst, incoming).or_else(|| last_resort(pool, inst, began, incoming)) {
                break Ok(slot);
            }
            if let Some(e) = pool.failure() {
                break Err(e);
            }
            if varve_rt::dying() || began.elapsed() > pool.config().frame_timeout {
                break Err(out_of_frames(pool));
            }
        };
        pool.counters.stall_ns.add(began.elapsed().as_nanos() as u64);
        result.map(Taken::from)
    }
}

fn sweep<'a>(pool: &'a Pool, inst: &'a Instance, incoming: PageId) -> Option<Exclusive<'a>> {
    let ask = Ask { depth: usize::MAX, resume: true, cold_only: true, incoming: Some(incoming) };
    // A sweep that reached the midpoint starts again at the cold end, once.
    let evict = || pool.evict_clean(inst, ask);
    pool.pop_free(inst).or_else(evict).or_else(evict)
}

/// What keeps the pool alive where the paper's rule alone would wait for ever: no cleaner runs (the pool is not started, or
/// stopped), the log has failed, or all of the cold part is pinned.
fn last_resort<'a>(pool: &'a Pool, inst: &'a Instance, began: Instant, incoming: PageId) -> Option<Exclusive<'a>> {
    // Once the log has failed, the cold end fills with pages that can never be written, and the cleaner's walk ends among them.
    let helpless = !pool.cleaners.running() || pool.never_covered(Lsn::MAX - 1);
    if helpless {
        // What cannot be written is no reason not to look for a clean page.
        let _ = pool.flush_single(inst);
    }
    let ask = Ask { incoming: Some(incoming), ..Ask::any() };
    let patient = !helpless && began.elapsed() < 10 * PATIENCE;
    if patient { None } else { pool.pop_free(inst).or_else(|| pool.evict_clean(inst, ask)) }
}
