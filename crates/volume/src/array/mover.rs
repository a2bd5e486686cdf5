//! An extent moves to another slot while work goes on.
//!
//! 1. A slot is taken, and noted as blank no longer. From now on a write to the extent is done in place, and marks its
//!    chunks. No write waits for a copy.
//! 2. The copy, piece by piece at a limited rate.
//! 3. Writes go to both slots. When those that began before have ended, the chunks that they marked are copied again. A
//!    write to both may meet that copy, in either order; so writes have marks of their own in each such round, and what
//!    was copied and written in the same round is copied in the next. After few rounds nothing is left.
//! 4. A flush of the new slot's drive.
//! 5. The map changes: durable on all drives, then for requests. At whatever moment the power fails, the slot that the
//!    map names has everything that was ever made durable.
//! 6. When the last request that may read there has ended, the old slot is trimmed, and free.
//!
//! Invariants: one extent moves at a time; a chunk that is left out of a round is the same in both slots, but for
//! writes that go to both; `state` is not held while anything but the change of the map is written.

use super::flight::{CHUNK, Marks, Moving, View};
use super::map::{Map, Place};
use super::{Array, are_gone};
use std::sync::{Arc, Weak};
use std::time::Duration;
use varve_device::{AlignedBuf, DeviceError, Io, Mistake, read_at, write_at};
use varve_rt::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bytes copied at a time.
const PIECE: u64 = 1 << 20;
const _: () = assert!(PIECE >= CHUNK && PIECE.is_multiple_of(CHUNK), "a piece has whole chunks");
/// Rounds of copying what was written meanwhile, at most.
const ROUNDS: u32 = 32;
/// How long to wait for requests that are under way.
const PAUSE: Duration = Duration::from_millis(1);

/// Longest sleep without a look whether the moves were stopped.
const NAP: Duration = Duration::from_millis(50);
/// How late a copy may be and still count as in time: what the drives take is part of the time at the rate.
const LATE: Duration = Duration::from_millis(100);

/// How fast extents are copied, and whether at all. Shared with whoever moves them.
#[derive(Debug)]
pub struct Pace {
    bytes_s: u64,
    /// When the bytes so far are due at this rate, nanoseconds of the clock.
    due: AtomicU64,
    paused: AtomicBool,
    stopped: AtomicBool,
}

impl Pace {
    /// So many bytes per second at most.
    pub fn new(bytes_s: u64) -> Arc<Pace> {
        assert!(bytes_s > 0, "a move that copies nothing never ends");
        let due = AtomicU64::new(varve_rt::now().as_nanos());
        Arc::new(Pace { bytes_s, due, paused: AtomicBool::new(false), stopped: AtomicBool::new(false) })
    }

    /// Nothing is copied from now on until [`Pace::resume`].
    pub fn pause(&self) {
        self.paused.store(true, Ordering::Release);
    }

    /// Goes on.
    pub fn resume(&self) {
        self.paused.store(false, Ordering::Release);
    }

    /// Moves that are under way are given up, and none begins any more.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Waits until so many more bytes are due, and while it is paused.
    fn wait(&self, bytes: u64) {
        let cost = (u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_s)) as u64;
        let now = varve_rt::now().as_nanos();
        self.due.fetch_max(now.saturating_sub(LATE.as_nanos() as u64), Ordering::AcqRel);
        let due = self.due.fetch_add(cost, Ordering::AcqRel) + cost;
        let mut left = Duration::from_nanos(due.saturating_sub(now));
        while !left.is_zero() && !self.is_stopped() {
            let nap = left.min(NAP);
            varve_rt::sleep(nap);
            left -= nap;
        }
        while self.paused.load(Ordering::Acquire) && !self.is_stopped() {
            varve_rt::sleep(PAUSE);
        }
    }
}

/// What became of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// The extent is on the other drive.
    Done,
    /// It was on that drive already.
    There,
    /// It was written too often while it was copied, and stays where it was.
    Written,
    /// The drive has no free slot.
    Full,
    /// The array became shorter: there is no such extent.
    Gone,
    /// The moves were stopped.
    Stopped,
}

/// A move that began, with the views that requests may still have; or why there is none.
type Begun = Result<(Moving, Vec<Weak<View>>), Moved>;

impl Array {
    /// Moves an extent, or a column of a stripe set, to a slot of another drive, while work goes on. Returns when it is
    /// there, or stays.
    ///
    /// # Errors
    /// Those of the drives; the extent stays where it was. If the change of the map failed, nobody knows which drives
    /// have it: nothing is promised durable any more until the array is opened again.
    pub fn move_extent(&self, index: usize, drive: usize, pace: &Pace) -> Result<Moved, DeviceError> {
        let _one = self.mover.lock();
        if pace.is_stopped() {
            return Ok(Moved::Stopped);
        }
        let (moving, before) = match self.begin_move(index, drive)? {
            Ok(begun) => begun,
            Err(why) => return Ok(why),
        };
        let done = self.carry(index, &moving, before, pace);
        if !matches!(done, Ok(Moved::Done)) {
            self.give_up(&moving);
        }
        done
    }

    /// Takes a slot, and has writes tell of themselves; also returns the views of before, which do not.
    fn begin_move(&self, index: usize, drive: usize) -> Result<Begun, DeviceError> {
        let mut state = self.state.lock();
        let view = self.view();
        assert!(drive < view.members.len(), "the drive is one of the array");
        assert!(view.moving.is_none(), "one extent moves at a time");
        let Some(from) = view.map.entries.get(index).map(|entry| entry.place) else { return Ok(Err(Moved::Gone)) };
        if usize::from(from.drive) == drive {
            return Ok(Err(Moved::There));
        }
        state.reuse();
        let Some(to) = state.slots.take_on(drive as u16) else { return Ok(Err(Moved::Full)) };
        let zero_from = state.zero_from;
        if let Err(e) = self.note(&mut state, &view, (&view.map, zero_from), 0..0, Some(to)) {
            state.slots.give_back(to);
            return Err(e);
        }
        let moving = Moving::new(from, to, view.map.extent);
        self.use_map(view.map.clone(), Some(moving.clone()), &mut state);
        Ok(Ok((moving, state.old.clone())))
    }

    fn carry(&self, index: usize, moving: &Moving, before: Vec<Weak<View>>, pace: &Pace) -> Result<Moved, DeviceError> {
        let all: Vec<u64> = (0..self.extent() / CHUNK).collect();
        if !wait_for(&before, pace) || !self.copy(moving, &all, pace, Some(pace))? {
            return Ok(Moved::Stopped);
        }
        let Some((mut marks, before)) = self.mark_anew() else { return Ok(Moved::Gone) };
        if !wait_for(&before, pace) {
            return Ok(Moved::Stopped);
        }
        let (mut left, mut rounds, mut again) = (moving.written.chunks(), 0, 0);
        while !left.is_empty() {
            rounds += 1;
            if rounds > ROUNDS || moving.spoiled.load(Ordering::Acquire) {
                return Ok(Moved::Written);
            }
            // At once: the shorter a round, the less is written in it. It is waited for later.
            if !self.copy(moving, &left, pace, None)? {
                return Ok(Moved::Stopped);
            }
            again += left.len() as u64 * CHUNK;
            let Some((next, before)) = self.mark_anew() else { return Ok(Moved::Gone) };
            if !wait_for(&before, pace) {
                return Ok(Moved::Stopped);
            }
            let written = std::mem::replace(&mut marks, next).chunks();
            left.retain(|chunk| written.binary_search(chunk).is_ok());
        }
        let members = self.view().members.clone();
        if !self.state.lock().faults.has(Mistake::ArrayCopyNotSynced) {
            members[usize::from(moving.to.drive)].flush()?;
        }
        let moved = self.switch(index, moving, pace)?;
        pace.wait(again);
        Ok(moved)
    }

    /// From now on writes go to both slots, and have marks that are new; also returns the views of before. None: there
    /// is no such extent any more.
    fn mark_anew(&self) -> Option<(Arc<Marks>, Vec<Weak<View>>)> {
        let mut state = self.state.lock();
        let view = self.view();
        let marks = Marks::new(view.map.extent);
        let moving = Moving { mirrored: true, written: marks.clone(), ..view.moving.clone()? };
        self.use_map(view.map.clone(), Some(moving), &mut state);
        Some((marks, state.old.clone()))
    }

    /// Copies chunks of the slot, rising, at a rate if there is one; false: the moves were stopped.
    fn copy(&self, moving: &Moving, chunks: &[u64], pace: &Pace, rate: Option<&Pace>) -> Result<bool, DeviceError> {
        let (view, mut buf) = (self.view(), AlignedBuf::new(PIECE as usize));
        let (map, members) = (view.map.clone(), view.members.clone());
        // Nobody shall wait for this view.
        drop(view);
        let (from, to) = (&members[usize::from(moving.from.drive)], &members[usize::from(moving.to.drive)]);
        let runs = chunks.chunk_by(|a, b| a + 1 == *b).flat_map(|run| run.chunks((PIECE / CHUNK) as usize));
        for run in runs {
            if pace.is_stopped() {
                return Ok(false);
            }
            let (at, bytes) = (run[0] * CHUNK, &mut buf[..run.len() * CHUNK as usize]);
            read_at(&*from.device, map.slot_at(moving.from.slot) + at, bytes)?;
            write_at(&*to.device, map.slot_at(moving.to.slot) + at, bytes, false)?;
            to.wrote();
            if let Some(rate) = rate {
                rate.wait(bytes.len() as u64);
            }
        }
        Ok(true)
    }

    /// Makes the other slot the extent's, if the copy is whole; the old one is free when nobody reads there any more.
    fn switch(&self, index: usize, moving: &Moving, pace: &Pace) -> Result<Moved, DeviceError> {
        let gone = {
            let mut state = self.state.lock();
            let view = self.view();
            let Some(now) = &view.moving else { return Ok(Moved::Gone) };
            // A growth writes zeros past the requests' way.
            if moving.spoiled.load(Ordering::Acquire) {
                return Ok(Moved::Written);
            }
            // The drives may be gone: the thread that stopped it may have let go of them.
            if pace.is_stopped() {
                return Ok(Moved::Stopped);
            }
            assert!(now.mirrored && view.map.entries[index].place == moving.from, "nobody else moves extents");
            let mut map: Map = view.map.clone();
            map.entries[index].place = moving.to;
            let zero_from = state.zero_from;
            self.note(&mut state, &view, (&map, zero_from), index..index + 1, None)?;
            self.use_map(map, None, &mut state);
            state.old.clone()
        };
        self.leave(moving.from, gone);
        Ok(Moved::Done)
    }

    /// Trims a slot that an extent left, and frees it.
    fn leave(&self, place: Place, views: Vec<Weak<View>>) {
        while !are_gone(&views) && !varve_rt::dying() {
            varve_rt::sleep(PAUSE);
        }
        let view = self.view();
        let trim = Io::trim(view.map.slot_at(place.slot), view.map.extent as usize);
        // A drive that cannot, or fails at it, keeps bytes that nobody will read.
        let _ = view.members[usize::from(place.drive)].device.run(trim);
        self.state.lock().slots.give_back(place);
    }

    /// The extent stays; its new slot is free when nobody writes there any more.
    fn give_up(&self, moving: &Moving) {
        let mut state = self.state.lock();
        let map = self.view().map.clone();
        self.use_map(map, None, &mut state);
        let views = state.old.clone();
        state.left.push((views, vec![moving.to]));
    }
}

/// Waits until the requests of these views have ended; false: the moves were stopped.
fn wait_for(views: &[Weak<View>], pace: &Pace) -> bool {
    while !are_gone(views) {
        if pace.is_stopped() {
            return false;
        }
        varve_rt::sleep(PAUSE);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use varve_rt::sim;

    /// Seconds that 40 pieces take at 40 MiB/s when copying each takes so long.
    fn seconds(copying: Duration) -> f64 {
        let outcome = sim::run(sim::Config::default(), move || {
            let (pace, began) = (Pace::new(40 << 20), varve_rt::now());
            for _ in 0..40 {
                varve_rt::sleep(copying);
                pace.wait(PIECE);
            }
            began.elapsed().as_secs_f64()
        });
        outcome.result.expect("the simulation ends")
    }

    #[test]
    fn the_time_that_copying_takes_is_part_of_the_time_at_the_rate() {
        for copying in [0, 5, 20] {
            let seconds = seconds(Duration::from_millis(copying));
            assert!((0.99..1.1).contains(&seconds), "{copying} ms a piece: {seconds} s");
        }
        // Slower than the rate: nothing is waited for.
        let slow = seconds(Duration::from_millis(60));
        assert!((2.39..2.45).contains(&slow), "{slow} s");
    }
}
