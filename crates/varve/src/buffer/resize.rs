//! A pool becomes smaller, or as large again as it was made.
//!
//! Frames that are too many are retired: emptied as a miss empties them, then out of use, their memory given back. The
//! tables and lists stay as large as they were made. Policies that remember pages go on doing so for the most frames.
//!
//! Commits may pin a quarter of the frames, and half of the frames are given out for that (`pins.rs`; fewer where
//! instances are small). A pool that becomes smaller does so by halves: a commit that found out before how much it may
//! pin still gets it, or all that there is.
//!
//! Invariant: no more frames than `allowed` are in use in an instance when this has ended.

use super::Pool;
use super::instance::Instance;
use super::pins::pinnable;
use super::policy::Ask;
use crate::error::Result;
use varve_rt::atomic::Ordering::*;
use varve_volume::WriteWhy;

/// Dirty pages written at a time where no page is clean.
const BATCH: usize = 64;
/// Fewest frames of an instance.
const LEAST: usize = 16;
/// A pool keeps one in so many of the frames that it was made with.
const LEAST_PART: usize = 16;

impl Pool {
    /// Fewest frames that [`Pool::resize`] leaves.
    pub fn least_frames(&self) -> usize {
        let most = self.config().frames;
        (LEAST * self.instances().len()).max(most.div_ceil(LEAST_PART)).min(most)
    }

    /// Has so many frames from now on: at least [`Pool::least_frames`], at most as many as it was made with. Waits
    /// until pages that have no place any more are written. No latch or pin may be held.
    ///
    /// # Errors
    /// Those of page writes, and `OverBudget` where all pages are in use for too long; it is as small then as it came
    /// to be.
    pub fn resize(&self, frames: usize) -> Result<()> {
        assert!((self.least_frames()..=self.config().frames).contains(&frames), "the caller asked how many may be");
        let _one = self.resizing.lock();
        loop {
            let now = self.capacity_frames();
            let next = frames.max(now.div_ceil(2));
            self.frames.store(next, Release);
            self.pin_room.resize(pinnable(next, self.instances().len()));
            self.allow(next);
            let mut each = self.instances().iter();
            each.try_for_each(|inst| self.retire(inst)).inspect_err(|_| {
                // What could not be emptied stays in use.
                self.frames.store(now, Release);
                self.pin_room.resize(pinnable(now, self.instances().len()));
                self.allow(now);
            })?;
            if next == frames {
                break;
            }
        }
        self.instances().iter().for_each(|inst| inst.release_retired(self));
        Ok(())
    }

    /// Shares so many frames out among the instances.
    fn allow(&self, frames: usize) {
        let count = self.instances().len();
        let bound = |i: usize| i * frames / count;
        self.instances().iter().enumerate().for_each(|(i, inst)| inst.allow(bound(i + 1) - bound(i)));
    }

    /// Empties frames until no more are in use than may be.
    fn retire(&self, inst: &Instance) -> Result<()> {
        let mut began = varve_rt::now();
        while inst.has_too_many() {
            if let Some(held) = self.evict_clean(inst, Ask::any()) {
                let slot = held.at().slot;
                held.unlatch();
                inst.free(slot);
                began = varve_rt::now();
            } else {
                let outcome = self.flush_oldest(inst, BATCH, WriteWhy::Replacement);
                if let Some(e) = outcome.error.or_else(|| self.failure()) {
                    return Err(e);
                }
                if outcome.written == 0 {
                    if self.waited_enough(began) {
                        return Err(super::victim::out_of_frames(self));
                    }
                    inst.wait_for_frame(self, self.config().patience);
                }
            }
        }
        Ok(())
    }
}
