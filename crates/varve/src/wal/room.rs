//! Room in the ring: writers make sure of it before they take latches; it grows (`growth`), or they wait for a
//! checkpoint, which is asked for by the log's age.
//!
//! Invariants: the ring grows and shrinks under the lock `disk`. One that grew is in a durable superblock before
//! anything is written to what is new; one that shrank, before anything is written to where the stream goes on, and
//! before the device is cut, and until it is in use nobody writes to where the two rings have other places; who waits
//! is counted for as long as he does, so that checkpoints hurry.

use super::LogConfig;
use super::format::{BLOCK, block_ceil, group_size};
use super::log::{Disk, Log};
use super::ring::Ring;
use super::stats::add;
use crate::error::{Error, Result};
use crate::role::{self, Role};
use std::sync::Arc;
use varve_device::{Device, Mistake};
use varve_rt::atomic::{Ordering, fence};
use varve_rt::{Event, now};
use varve_volume::Lsn;

/// What checkpoints needed of the ring, since one needed much of it.
#[derive(Default)]
pub(super) struct Idle {
    checkpoints: u32,
    /// The most that one of them found in the log, bytes.
    needed: u64,
}

/// Checkpoints that left the redo point where it was, as what pins the log had no room, or belongs to what is damaged.
#[derive(Default)]
pub(super) struct Pinned {
    times: u64,
    /// Why the last checkpoint did; none: it did not.
    why: Option<Error>,
}

impl Log {
    /// Set when a checkpoint is wanted; whoever makes checkpoints resets it.
    pub fn checkpoint_wanted(&self) -> &Arc<Event> {
        &self.wanted
    }

    /// Whether a checkpoint is due: the log is old enough, somebody waits for space, or asked for one.
    pub fn needs_checkpoint(&self) -> bool {
        self.age() > self.age_limit() || self.is_urgent()
    }

    /// Whether the checkpoint that is due, or being made, should hurry.
    pub fn is_urgent(&self) -> bool {
        self.starved() || self.asked.load(Ordering::Acquire)
    }

    /// Asks for a checkpoint soon, however young the log is, without waiting.
    pub(crate) fn ask_for_checkpoint(&self) {
        if !self.asked.swap(true, Ordering::AcqRel) {
            self.wanted.set();
        }
    }

    /// Whether somebody waits for space.
    pub fn starved(&self) -> bool {
        self.space_waiters.load(Ordering::Acquire) > 0
    }

    /// Sets how many bytes of log recovery may have to redo. A checkpoint is asked for at half of it; at all of it,
    /// writers wait. The ring's size bounds it too.
    pub fn set_redo_budget(&self, bytes: u64) {
        self.redo_budget.store(bytes.max(1 << 20), Ordering::Release);
    }

    /// Log age past which writers wait for a checkpoint, bytes.
    pub fn hard_age(&self) -> u64 {
        self.redo_budget.load(Ordering::Acquire).min(self.cfg.max_capacity)
    }

    /// Log age past which a checkpoint is asked for, bytes.
    pub fn age_limit(&self) -> u64 {
        (self.redo_budget.load(Ordering::Acquire) / 2).min(self.cfg.max_capacity / 8 * 5)
    }

    /// Bytes from the redo point to the end of the log.
    pub fn age(&self) -> u64 {
        self.end_lsn().saturating_sub(self.completed_redo())
    }

    /// Most bytes that the ring may hold.
    pub fn max_capacity(&self) -> u64 {
        self.cfg.max_capacity
    }

    /// Longest body of a group, bytes.
    pub fn max_group(&self) -> u64 {
        // A ring that is larger than it may be still shrinks in time: its segments are as long as they are.
        let most = self.cfg.max_capacity.max(self.capacity.load(Ordering::Relaxed));
        let segment = self.longest_segment.load(Ordering::Relaxed).max(most / 16);
        let room = most.saturating_sub(segment + LogConfig::slack(most) + 2 * BLOCK);
        room.min(self.cfg.max_capacity / 2).min(u64::from(u32::MAX) - BLOCK)
    }

    /// Makes sure that the ring has room for a group with a body of `bytes`: grows it up to its configured maximum,
    /// asks for a checkpoint and waits for it when that is not enough. No latch may be held.
    pub fn ensure_space(&self, bytes: usize) -> Result<()> {
        self.check_sound()?;
        if bytes as u64 > self.max_group() {
            return Err(Error::TransactionTooLarge { what: "log", needed: bytes as u64, limit: self.max_group() });
        }
        let need = block_ceil(group_size(bytes)) + BLOCK + LogConfig::slack(self.capacity.load(Ordering::Relaxed));
        let end = self.tail.position();
        if end.saturating_sub(self.completed_redo()) > self.age_limit() && !self.wanted.is_set() {
            self.wanted.set();
        }
        if self.wants_growth(end) {
            self.flusher.nudge();
        }
        if self.has_space(need) {
            return Ok(());
        }
        self.make_space(need)
    }

    /// Whether the ring has room for `need` bytes more and recovery would still be within its bound.
    fn has_space(&self, need: u64) -> bool {
        let end = self.tail.position();
        end + need <= self.limit.load(Ordering::Acquire) && end.saturating_sub(self.completed_redo()) <= self.hard_age()
    }

    /// Says whether the database is opening, when nobody makes checkpoints: then nobody waits for one.
    pub fn set_opening(&self, opening: bool) {
        self.opening.store(opening, Ordering::Release);
    }

    fn make_space(&self, need: u64) -> Result<()> {
        if self.opening.load(Ordering::Acquire) {
            // Nobody would make the room. What an opening writes is little; if need be the ring grows past its maximum.
            return Ok(());
        }
        if role::current() == Role::Merger {
            // Its groups are few and small, and the room that others wait for comes after them: what memtables need of
            // the log is given up when they are flushed. If need be the ring grows past its maximum.
            return Ok(());
        }
        let (mut since, mut pinned_before) = (None, None);
        let mut may_grow = true;
        while !self.has_space(need) {
            self.check_sound()?;
            let limit = self.tail.position() + need;
            let (capacity, unit) = (self.capacity.load(Ordering::Relaxed), self.ring.read().unit);
            let full = limit > self.limit.load(Ordering::Acquire);
            if full && may_grow && capacity + unit <= self.cfg.max_capacity {
                match self.grow(limit, self.cfg.max_capacity) {
                    // A full device is no reason to fail while a checkpoint can make room.
                    Err(Error::NoSpace(_)) if 4 * need <= capacity => may_grow = false,
                    grown => grown?,
                }
                continue;
            }
            if full && self.break_hold() {
                continue;
            }
            since.get_or_insert_with(now);
            self.space_waiters.fetch_add(1, Ordering::AcqRel);
            self.wanted.set();
            let mut guard = self.space.lock();
            let before = *pinned_before.get_or_insert(guard.times);
            // Twice: one of them began after this, and there was no room yet.
            let pinned = guard.why.clone().filter(|_| guard.times > before + 1);
            if pinned.is_none() && !self.has_space(need) && self.check_sound().is_ok() {
                self.space_freed.wait(&mut guard);
            }
            drop(guard);
            let waiters = self.space_waiters.fetch_sub(1, Ordering::AcqRel);
            assert!(waiters > 0, "who waited was counted");
            if let Some(why) = pinned {
                return Err(why);
            }
            if varve_rt::dying() {
                return Err(Error::Poisoned("the machine has lost power".into()));
            }
        }
        if let Some(since) = since {
            add(&self.stats.space_waits, 1);
            add(&self.stats.space_wait_ns, since.elapsed().as_nanos() as u64);
        }
        Ok(())
    }

    /// Makes another ring known, durably, and uses it from here on.
    pub(super) fn store_ring(&self, disk: &mut Disk, ring: Ring) -> Result<()> {
        let mut sb = disk.sb.clone();
        sb.set_ring(ring);
        self.store_superblock(disk, sb)?;
        self.use_ring(&disk.sb.ring);
        Ok(())
    }

    pub(super) fn use_ring(&self, ring: &Ring) {
        self.capacity.store(ring.capacity(), Ordering::Relaxed);
        assert!(ring.longest_segment() <= ring.capacity(), "a segment is a part of the ring");
        self.longest_segment.store(ring.longest_segment(), Ordering::Relaxed);
        *self.ring.write() = ring.clone();
    }

    /// Called with each completed checkpoint, which moved the redo point from `before`: after some in a row that
    /// needed less than a quarter of the ring, the ring shrinks to twice what the largest of them needed. Failure costs
    /// nothing but the space.
    pub(super) fn shrink_if_idle(&self, disk: &mut Disk, before: Lsn) {
        assert!(before <= self.end_lsn(), "redo begins in the log");
        let (needed, capacity) = (self.end_lsn() - before, disk.sb.ring.capacity());
        if self.faults().has(Mistake::LiveLogGivenUp) {
            let _ = self.shrink(disk, disk.sb.ring.least);
            return;
        }
        let idle = &mut disk.idle;
        if needed > capacity / 4 || self.is_held() || self.starved() {
            *idle = Idle::default();
            return;
        }
        (idle.checkpoints, idle.needed) = (idle.checkpoints + 1, idle.needed.max(needed));
        if idle.checkpoints < self.cfg.idle_checkpoints {
            return;
        }
        let target = (2 * idle.needed).max(disk.sb.ring.least);
        *idle = Idle::default();
        if target <= capacity / 2 {
            // A failure that matters has poisoned the log.
            let _ = self.shrink(disk, target);
        }
    }

    /// Gives up segments at the device's end in which nothing live lies, down to `target` bytes.
    fn shrink(&self, disk: &mut Disk, target: u64) -> Result<()> {
        assert!(target >= disk.sb.ring.least, "a log keeps its first size");
        if self.shrink_empty(disk, target)? {
            return Ok(());
        }
        // Writes under way lie at most one buffer past the durable LSN; whoever begins one later asks for the limit.
        let from = self.kept_from(disk);
        let to = (self.durable_lsn() + self.tail.capacity()).max(from);
        if to - from > disk.sb.ring.capacity() {
            return Ok(());
        }
        let Some(ring) = disk.sb.ring.shrunk((from, to), target) else { return Ok(()) };
        // Up to `to` the two rings have the same places, and no further: nobody writes past it until the new one is in
        // use.
        self.limit.store(to, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let stored = if self.durable_lsn() + self.tail.capacity() > to {
            // A write past it may have begun before it heard of that: another time.
            Ok(false)
        } else {
            self.store_ring(disk, ring).map(|()| true)
        };
        self.set_limit(disk);
        self.tell_of_space();
        if stored? { self.cut_device(disk) } else { Ok(()) }
    }

    /// The same when nothing at all is live: then the stream goes on at the device's beginning. No write begins
    /// meanwhile.
    fn shrink_empty(&self, disk: &mut Disk, target: u64) -> Result<bool> {
        let redo = self.completed_redo();
        let wrong = self.faults().has(Mistake::LiveLogGivenUp);
        let Some(end) = self.pause_writing(|end| end == redo || wrong) else { return Ok(false) };
        let ring = disk.sb.ring.emptied(end, target);
        let result = ring.map(|ring| {
            self.limit.store(ring.limit(redo), Ordering::Release);
            self.store_ring(disk, ring)
        });
        self.resume_writing();
        let Some(result) = result else { return Ok(false) };
        result?;
        self.cut_device(disk)?;
        Ok(true)
    }

    /// Gives what the device has past the ring back.
    pub(super) fn cut_device(&self, disk: &Disk) -> Result<()> {
        let len = disk.sb.ring.device_len();
        if self.dev.len() > len {
            self.dev.set_len(len)?;
            add(&self.stats.shrinks, 1);
        }
        Ok(())
    }

    /// Makes sure that blocks up to `end` may be written: if groups under way outran the slack, the ring grows past its
    /// configured maximum, because a reserved place cannot be given back.
    pub(super) fn reserve_ring(&self, end: Lsn) -> Result<()> {
        while end > self.limit.load(Ordering::Acquire) {
            self.grow(end, u64::MAX)?;
        }
        Ok(())
    }

    /// Called at the end of each checkpoint: why what pins the log could not be put into pages, if it could not.
    pub(super) fn note_pinned(&self, why: Option<Error>) {
        assert!(why.as_ref().is_none_or(Error::holds_up_a_part), "other failures are failures");
        let mut pinned = self.space.lock();
        pinned.times += u64::from(why.is_some());
        pinned.why = why;
        drop(pinned);
        self.space_freed.notify_all();
    }

    /// Wakes those who wait for space.
    pub(super) fn tell_of_space(&self) {
        drop(self.space.lock());
        self.space_freed.notify_all();
    }
}
