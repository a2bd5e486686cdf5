//! Room in the ring: writers make sure of it before they take latches; it grows, or they wait for a checkpoint, which
//! is asked for by the log's age.
//!
//! Invariants: the ring grows under the lock `disk`, and is in a durable superblock before anything is written to what
//! is new; who waits is counted for as long as he does, so that checkpoints hurry.

use super::format::{BLOCK, block_ceil, group_size};
use super::log::Log;
use super::stats::add;
use crate::error::{Error, Result};
use crate::role::{self, Role};
use std::sync::Arc;
use varve_device::Device;
use varve_rt::atomic::Ordering;
use varve_rt::{Event, now};
use varve_volume::Lsn;

impl Log {
    /// Set when a checkpoint is wanted; whoever makes checkpoints resets it.
    pub fn checkpoint_wanted(&self) -> &Arc<Event> {
        &self.wanted
    }

    /// Whether a checkpoint is due: the log is old enough, or somebody waits for space.
    pub fn needs_checkpoint(&self) -> bool {
        self.age() > self.age_limit() || self.starved()
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
        let room = self.cfg.max_capacity.saturating_sub(self.cfg.segment + self.cfg.slack() + 2 * BLOCK);
        room.min(self.cfg.max_capacity / 2).min(u64::from(u32::MAX) - BLOCK)
    }

    /// Makes sure that the ring has room for a group with a body of `bytes`: grows it up to its configured maximum,
    /// asks for a checkpoint and waits for it when that is not enough. No latch may be held.
    pub fn ensure_space(&self, bytes: usize) -> Result<()> {
        self.check_sound()?;
        if bytes as u64 > self.max_group() {
            return Err(Error::TransactionTooLarge { what: "log", needed: bytes as u64, limit: self.max_group() });
        }
        let need = block_ceil(group_size(bytes)) + BLOCK + self.cfg.slack();
        let age = self.tail.position().saturating_sub(self.completed_redo());
        if age > self.age_limit() && !self.wanted.is_set() {
            self.wanted.set();
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

    fn make_space(&self, need: u64) -> Result<()> {
        if role::current() == Role::Merger {
            // Its groups are few and small, and the room that others wait for comes after them: what memtables need of
            // the log is given up when they are flushed. If need be the ring grows past its maximum.
            return Ok(());
        }
        let mut since = None;
        let mut may_grow = true;
        while !self.has_space(need) {
            self.check_sound()?;
            let limit = self.tail.position() + need;
            let capacity = self.ring.read().capacity();
            let full = limit > self.limit.load(Ordering::Acquire);
            if full && may_grow && capacity + self.ring_segment() <= self.cfg.max_capacity {
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
            if !self.has_space(need) && self.check_sound().is_ok() {
                self.space_freed.wait(&mut guard);
            }
            drop(guard);
            let waiters = self.space_waiters.fetch_sub(1, Ordering::AcqRel);
            assert!(waiters > 0, "who waited was counted");
            if varve_rt::dying() {
                return Err(Error::Poisoned("power lost".into()));
            }
        }
        if let Some(since) = since {
            add(&self.stats.space_waits, 1);
            add(&self.stats.space_wait_ns, since.elapsed().as_nanos() as u64);
        }
        Ok(())
    }

    fn ring_segment(&self) -> u64 {
        self.ring.read().segment
    }

    /// Grows the ring so that positions below `limit` have room, to at most `most` bytes; at least by a segment.
    fn grow(&self, limit: Lsn, most: u64) -> Result<()> {
        let mut disk = self.disk.lock();
        let ring = &disk.sb.ring;
        let kept = self.kept_from(&disk);
        let have = ring.limit(kept);
        let room = most.saturating_sub(ring.capacity()) / ring.segment;
        if have >= limit || room == 0 {
            // The room is there: whoever made it may have ended before it could tell.
            self.set_limit(&disk);
            return Ok(());
        }
        assert!(have >= self.limit.load(Ordering::Acquire), "writers know of no more room than there is");
        let least = (limit - have).div_ceil(ring.segment);
        let more = least.max(ring.order.len() as u64 / 2).min(room);
        let Some(grown) = ring.grown(kept, more as usize) else {
            return Err(Error::NoSpace("the log's ring: it has the most segments that a superblock can list".into()));
        };
        self.dev.set_len(grown.device_len())?;
        let mut sb = disk.sb.clone();
        sb.ring = grown.clone();
        self.store_superblock(&mut disk, sb)?;
        *self.ring.write() = grown;
        self.set_limit(&disk);
        add(&self.stats.growths, 1);
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

    /// Wakes those who wait for space.
    pub(super) fn tell_of_space(&self) {
        drop(self.space.lock());
        self.space_freed.notify_all();
    }
}
