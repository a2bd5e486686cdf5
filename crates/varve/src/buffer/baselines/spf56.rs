//! `spf56`: single-page flush, as InnoDB 5.6 does it; the base of the published comparisons.
//!
//! Rounds of: the free list; with doublewrite, if a cleaner's batch is just starting, wait for its end and begin again;
//! a scan from the cold end for a clean page, over the scan depth at first (unless such a scan found nothing since the
//! cleaner's last batch), over the whole list later, which puts the frame on the free list; from the third round on a
//! sleep of 100 ms; then the coldest dirty page is written by the missing thread itself, and synced where writes are;
//! then the coldest clean page, most often that one, is put on the free list, where another thread may take it. The
//! cleaner is not called.
//!
//! [`miss`] is the loop that `war` and `rw` share: they put something before the sleep and the flush.

use crate::buffer::Pool;
use crate::buffer::guard::{Exclusive, FrameRef};
use crate::buffer::instance::Instance;
use crate::buffer::policy::Ask;
use crate::buffer::victim::{Needs, Taken, VictimEntry, VictimStrategy, out_of_frames};
use crate::error::Result;
use std::time::Duration;
use varve_rt::Instant;
use varve_volume::PageId;

/// The sleep from the third round on.
const SLEEP: Duration = Duration::from_millis(100);

/// The strategy's line in the registry.
pub(in crate::buffer) const ENTRY: VictimEntry = VictimEntry {
    name: "spf56",
    needs: Needs { scan_per_write: false, ..Needs::LEAST },
    make: |_| Box::new(SinglePageFlush56),
};

struct SinglePageFlush56;

impl VictimStrategy for SinglePageFlush56 {
    fn take_frame<'a>(&self, pool: &'a Pool, inst: &'a Instance, incoming: PageId) -> Result<Taken<'a>> {
        miss(pool, inst, incoming, |_| None)
    }
}

/// A frame for `incoming`. `instead` is asked each time that no clean page was found: a frame that it makes free
/// without a write that the miss must wait for ends the miss.
pub(super) fn miss<'a>(
    pool: &'a Pool,
    inst: &'a Instance,
    incoming: PageId,
    mut instead: impl FnMut(&mut Stall<'a>) -> Option<Taken<'a>>,
) -> Result<Taken<'a>> {
    let mut rounds = Rounds { pool, inst, incoming, round: 0, stall: Stall { pool, began: None } };
    loop {
        if let Some(held) = rounds.look() {
            return Ok(held.into());
        }
        if pool.failure().is_none()
            && let Some(taken) = instead(&mut rounds.stall)
        {
            return Ok(taken);
        }
        rounds.stall.begin();
        rounds.sleep();
        rounds.flush()?;
    }
}

/// Puts an emptied frame on the free list, where any thread may take it.
fn release(held: Exclusive<'_>) {
    let FrameRef { inst, slot, .. } = held.at();
    held.unlatch();
    inst.free(slot);
}

/// A miss that has to wait before it can read: counted once, and for how long.
pub(super) struct Stall<'a> {
    pool: &'a Pool,
    began: Option<Instant>,
}

impl Stall<'_> {
    /// From now on the miss is a stalled one.
    pub(super) fn begin(&mut self) {
        if self.began.is_none() {
            self.pool.counters.stalls.inc();
            self.began = Some(varve_rt::now());
        }
    }
}

impl Drop for Stall<'_> {
    fn drop(&mut self) {
        if let Some(began) = self.began {
            self.pool.counters.stall_ns.add(began.elapsed().as_nanos() as u64);
        }
    }
}

/// The rounds of one miss.
struct Rounds<'a> {
    pool: &'a Pool,
    inst: &'a Instance,
    incoming: PageId,
    round: u32,
    stall: Stall<'a>,
}

impl<'a> Rounds<'a> {
    /// Steps 1 to 3: free list, batch, scan.
    fn look(&mut self) -> Option<Exclusive<'a>> {
        let (pool, inst) = (self.pool, self.inst);
        loop {
            if let Some(held) = pool.pop_free(inst) {
                return Some(held);
            }
            if pool.config().baselines.doublewrite && inst.batch_starting() {
                self.stall.begin();
                inst.wait_for_batch();
                continue;
            }
            if self.round == 0 && !inst.scan_pays() {
                return None;
            }
            let depth = if self.round == 0 { pool.config().cleaner.scan_depth } else { usize::MAX };
            let ask = Ask { depth, resume: false, cold_only: false, incoming: Some(self.incoming) };
            let Some(held) = pool.evict_clean(inst, ask) else {
                if self.round == 0 {
                    inst.scan_failed();
                }
                return None;
            };
            release(held);
        }
    }

    /// Step 4.
    fn sleep(&self) {
        if self.round > 1 {
            varve_rt::sleep(SLEEP / self.pool.config().baselines.divisor());
        }
    }

    /// Step 5: the coldest dirty page is written here and its frame freed; then the next round begins.
    fn flush(&mut self) -> Result<()> {
        let flushed = match self.pool.failure() {
            None => self.pool.flush_single(self.inst, false),
            Some(e) => Err(e),
        };
        self.round += 1;
        if let Ok(true) = flushed {
            let ask = Ask { incoming: Some(self.incoming), ..Ask::any() };
            if let Some(held) = self.pool.evict_clean(self.inst, ask) {
                release(held);
            }
        }
        if let Err(e) = flushed {
            // The last chance: a clean page anywhere.
            return if self.round > 2 { Err(e) } else { Ok(()) };
        }
        let began = self.stall.began.expect("a flush follows a stall");
        if self.pool.waited_enough(began) {
            return Err(out_of_frames(self.pool));
        }
        Ok(())
    }
}
