//! `clean-first`: LRU-C's pointer (Lee, An, Lee, VLDB 2023).
//!
//! The victim is the least recently used *clean* page of the cold part of the list, found by a pointer that goes on
//! from the last victim towards the hot end and starts again at the cold end when it reaches the midpoint: a sweep that
//! skips dirty pages, which the cleaner writes behind it. When the cold part has no clean page the thread wakes the
//! cleaner and waits for it to complete a write (a *clean stall*). The pointer is moved on to the next clean page right
//! after each eviction. A foreground thread never writes a page while cleaners run.

use super::{Needs, Taken, VictimEntry, VictimStrategy, out_of_frames};
use crate::buffer::Pool;
use crate::buffer::config::PoolConfig;
use crate::buffer::guard::Exclusive;
use crate::buffer::instance::Instance;
use crate::buffer::policy::{self, Ask};
use crate::error::Result;
use std::time::Duration;
use varve_rt::Instant;
use varve_volume::{Lsn, PageId};

/// Longest wait between two looks.
const PATIENCE: Duration = Duration::from_millis(10);

/// Pages looked at under one hold of the instance's lock, with `parallel`: the hold is as short whatever the share of
/// dirty pages.
const STEP: usize = 128;

/// The strategy's line in the registry.
pub(super) const ENTRY: VictimEntry = VictimEntry {
    name: "clean-first",
    needs: Needs { cleaner: true, passed: true, ..Needs::LEAST },
    make: |config| Box::new(CleanFirst::new(config)),
};

struct CleanFirst {
    step: usize,
}

impl CleanFirst {
    fn new(config: &PoolConfig) -> CleanFirst {
        let can_step = policy::find(config.replacement).is_some_and(|policy| policy.steps);
        let steps = config.cleaner.parallel && can_step;
        CleanFirst { step: if steps { STEP } else { usize::MAX } }
    }
}

impl VictimStrategy for CleanFirst {
    fn take_frame<'a>(&self, pool: &'a Pool, inst: &'a Instance, incoming: PageId) -> Result<Taken<'a>> {
        if let Some(slot) = sweep(pool, inst, self.step, incoming) {
            return Ok(slot.into());
        }
        pool.counters.stalls.inc();
        pool.counters.clean_stalls.inc();
        let began = varve_rt::now();
        let result = loop {
            inst.scan_failed();
            inst.wake_cleaner();
            inst.wait_for_frame(pool, PATIENCE);
            if let Some(slot) =
                sweep(pool, inst, self.step, incoming).or_else(|| last_resort(pool, inst, began, incoming))
            {
                break Ok(slot);
            }
            if let Some(e) = pool.failure() {
                break Err(e);
            }
            if pool.waited_enough(began) {
                break Err(out_of_frames(pool));
            }
        };
        pool.counters.stall_ns.add(began.elapsed().as_nanos() as u64);
        result.map(Taken::from)
    }
}

/// A free frame, or the next clean page of the cold part; a sweep that reached the midpoint starts again at the cold
/// end, once.
fn sweep<'a>(pool: &'a Pool, inst: &'a Instance, step: usize, incoming: PageId) -> Option<Exclusive<'a>> {
    let ask = Ask { depth: step, resume: true, cold_only: true, incoming: Some(incoming) };
    if let Some(held) = pool.pop_free(inst) {
        return Some(held);
    }
    let mut ends = 0;
    loop {
        if let Some(held) = pool.evict_clean(inst, ask) {
            return Some(held);
        }
        ends += u32::from(step == usize::MAX || inst.lock().policy.cursor().is_none());
        if ends == 2 {
            return None;
        }
    }
}

/// What keeps the pool alive where the paper's rule alone would wait for ever: no cleaner runs (the pool is not
/// started, or stopped), the log has failed, or all of the cold part is pinned.
fn last_resort<'a>(pool: &'a Pool, inst: &'a Instance, began: Instant, incoming: PageId) -> Option<Exclusive<'a>> {
    // Once the log has failed, the cold end fills with pages that can never be written, and the cleaner's walk ends
    // among them.
    let helpless = !pool.cleaners.running() || pool.never_covered(Lsn::MAX - 1);
    if helpless {
        // What cannot be written is no reason not to look for a clean page.
        let _ = pool.flush_single(inst, true);
    }
    let ask = Ask { incoming: Some(incoming), ..Ask::any() };
    let patient = !helpless && began.elapsed() < 10 * PATIENCE;
    if patient { None } else { pool.pop_free(inst).or_else(|| pool.evict_clean(inst, ask)) }
}
