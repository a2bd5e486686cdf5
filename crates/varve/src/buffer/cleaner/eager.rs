//! `eager`: Shore-MT's cleaner, as the papers on in-place appends run it (Hardock et al., SIGMOD 2017).
//!
//! As soon as more than an eighth of an instance's frames are dirty, the pages with the oldest changes are written
//! until that is so no longer. As soon as the oldest change reaches back over a quarter of the log, the pages whose
//! first change lies in the oldest eighth of it are written. A quarter of the log is one of what it may hold before a
//! checkpoint is due.
//!
//! Written pages stay in memory, clean. A thread writes one page at a time: by the published rates and response times
//! three to five writes were under way.

use super::{Cleaner, Entry, Needs, Pass};
use crate::buffer::Pool;
use crate::buffer::instance::Instance;
use crate::buffer::writer::Writer;
use std::sync::Arc;
use std::time::Duration;
use varve_volume::{Lsn, WriteWhy};

/// Of the frames, the part that may be dirty.
const DIRTY_PART: usize = 8;
/// Of the log, the part that changes may reach back over, and the part whose changes are written then.
const REACH_PART: u64 = 4;
const OLDEST_PART: u64 = 8;

/// The cleaner's line in the registry. It looks often: what may be dirty is a few tenths of a second's work.
pub(super) const ENTRY: Entry = Entry {
    name: "eager",
    needs: Needs { paced: false, every: Some(Duration::from_millis(100)), ..Needs::LEAST },
    make: Some(|_| Arc::new(Eager)),
};

struct Eager;

impl Cleaner for Eager {
    fn pass(&self, pool: &Pool, mine: &[Instance]) -> Pass {
        super::in_turn(mine, |inst| {
            let outcome = Writer::one_by_one(pool, WriteWhy::Recoverability).write_oldest(inst, wanted(pool, inst));
            Pass::of(&outcome, pool, inst)
        })
    }
}

/// How many of the oldest dirty pages of an instance are to be written.
fn wanted(pool: &Pool, inst: &Instance) -> usize {
    let (end, capacity) = (pool.gate().end_lsn(), pool.gate().age().capacity);
    let frames = pool.capacity_frames() / pool.instances().len();
    let lists = inst.lock();
    let oldest = lists.dirty.first().map_or(end, |(lsn, _)| *lsn);
    let old = lists.dirty.iter().take_while(|(lsn, _)| bound(oldest, end, capacity).is_some_and(|b| *lsn < b)).count();
    old.max(lists.dirty.len().saturating_sub(frames / DIRTY_PART))
}

/// Where the oldest eighth of a log of `capacity` bytes ends, if its oldest change reaches back over a quarter.
fn bound(oldest: Lsn, end: Lsn, capacity: u64) -> Option<Lsn> {
    let full = end != Lsn::MAX && end.saturating_sub(oldest) > capacity / REACH_PART;
    full.then(|| oldest + capacity / OLDEST_PART)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_eighth_of_a_log_goes_when_a_quarter_is_used() {
        assert_eq!(bound(1000, 1200, 800), None, "a quarter, and no more");
        assert_eq!(bound(1000, 1201, 800), Some(1100));
        assert_eq!(bound(1000, Lsn::MAX, 800), None, "nobody knows where the log ends");
    }
}
