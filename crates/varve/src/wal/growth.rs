//! The ring grows: ahead of its writers, in a thread that lives for one growth, or by who must have the room now.
//!
//! New segments are written with zeros first, so that durable writes to them are fast later; that takes a while. So
//! when little of the ring is left, and a checkpoint would not have to come before more is needed, the flusher has it
//! grown. Writers that were faster wait for that growth, or grow the ring themselves.
//!
//! Lock order: `turn` before `disk`. The device gets longer under `turn` alone, so commits, checkpoints and counters go
//! on meanwhile.
//!
//! Invariants: one ring grows at a time; a ring that grew is in a durable superblock before anything is written to what
//! is new; a device is longer than its ring only while somebody has the turn, or after a crash.

use super::LogConfig;
use super::format::BLOCK;
use super::log::{Disk, Log};
use super::ring::{Ring, STEP};
use super::stats::add;
use crate::error::{Error, Result};
use crate::role::{self, Role};
use std::sync::Arc;
use varve_device::{Device, DeviceKind, Health};
use varve_rt::atomic::{AtomicBool, AtomicU64, Ordering};
use varve_rt::{JoinHandle, Mutex, now};
use varve_volume::Lsn;

/// Replay rates expected before the first measured recovery, least and most, bytes of log per second: that of a slow
/// disk, and what one processor was seen to replay.
const EXPECTED_RATES: (u64, u64) = (50 << 20, 200 << 20);
/// Less than this says nothing about a device's rate.
const MEASURABLE: u64 = 4 << 20;

/// What growing needs.
pub(super) struct Growth {
    turn: Mutex<()>,
    /// Past this end of the log the ring is to be grown ahead; [`Lsn::MAX`]: it is large enough, or grows already.
    from: AtomicU64,
    /// A thread grows it ahead.
    busy: AtomicBool,
    /// The thread that grew it last.
    grower: Mutex<Option<JoinHandle<()>>>,
    /// Bytes per second at which what was new was written with zeros and flushed: the most, as others write beside it.
    /// 0: not measured.
    write_rate: AtomicU64,
}

impl Growth {
    pub fn new() -> Growth {
        let (from, write_rate) = (AtomicU64::new(Lsn::MAX), AtomicU64::new(0));
        Growth { turn: Mutex::new(()), from, busy: AtomicBool::new(false), grower: Mutex::new(None), write_rate }
    }
}

impl Log {
    /// Where the end of the log may be, as the ring is now, before it has to be grown ahead. [`Lsn::MAX`]: it holds all
    /// that it may, or writers wait for a checkpoint before it is full.
    fn grows_from(&self, disk: &Disk, limit: Lsn) -> Lsn {
        let (ring, capacity) = (&disk.sb.ring, disk.sb.ring.capacity());
        let suffices = self.completed_redo().saturating_add(self.hard_age()) + LogConfig::slack(capacity) + BLOCK;
        if capacity + ring.unit > self.max_capacity() || limit >= suffices {
            return Lsn::MAX;
        }
        limit - LogConfig::slack(capacity) - (capacity / 4).min(STEP)
    }

    /// Takes over the room that the ring has now.
    pub(super) fn set_limit(&self, disk: &Disk) {
        let limit = disk.sb.ring.limit(self.kept_from(disk));
        let before = self.limit.swap(limit, Ordering::AcqRel);
        assert!(before <= limit, "room in the ring that was given is not taken back");
        self.growth.from.store(self.grows_from(disk, limit), Ordering::Release);
    }

    /// Whether little of the ring is left before `end`, and nobody has seen to it yet.
    pub(super) fn wants_growth(&self, end: Lsn) -> bool {
        end > self.growth.from.load(Ordering::Acquire)
    }

    /// Has the ring grown by a thread of its own if little of it is left; the flusher asks.
    pub(super) fn grow_ahead(self: &Arc<Self>) {
        let growth = &self.growth;
        if !self.wants_growth(self.tail.position()) || growth.busy.swap(true, Ordering::AcqRel) {
            return;
        }
        // Not again before the room changes: a full device is asked once.
        growth.from.store(Lsn::MAX, Ordering::Release);
        let log = self.clone();
        let life = move || {
            role::set(Role::Log);
            // What fails here fails again, and is told, when a writer must have the room.
            let _ = log.grow_by_a_step();
            log.growth.busy.store(false, Ordering::Release);
        };
        match self.health().spawn("log-grower", life) {
            Ok(grower) => {
                let before = growth.grower.lock().replace(grower);
                Health::join(before);
            }
            Err(_) => growth.busy.store(false, Ordering::Release),
        }
    }

    /// Waits for the thread that may be growing the ring.
    pub(super) fn stop_growing(&self) {
        let grower = self.growth.grower.lock().take();
        Health::join(grower);
    }

    fn grow_by_a_step(&self) -> Result<()> {
        let _turn = self.growth.turn.lock();
        let (len, lens) = {
            let disk = self.disk.lock();
            let ring = &disk.sb.ring;
            if self.tail.position() <= self.grows_from(&disk, self.limit.load(Ordering::Acquire)) {
                // A checkpoint made room meanwhile, or a writer that had to have it.
                self.set_limit(&disk);
                return Ok(());
            }
            (ring.device_len(), ring.more(ring.unit, self.max_capacity()))
        };
        self.lengthen(len + lens.iter().sum::<u64>())?;
        let mut disk = self.disk.lock();
        if disk.sb.clean || disk.sb.ring.device_len() != len {
            // It shrank, or the log was closed.
            return self.cut_device(&disk);
        }
        let kept = self.kept_from(&disk);
        let Some(grown) = disk.sb.ring.grown(kept, &lens) else { return self.cut_device(&disk) };
        self.use_grown(&mut disk, grown)
    }

    /// Grows the ring so that positions below `limit` have room, to at most `most` bytes; at least by a segment.
    pub(super) fn grow(&self, limit: Lsn, most: u64) -> Result<()> {
        let _turn = self.growth.turn.lock();
        let mut disk = self.disk.lock();
        let ring = &disk.sb.ring;
        let kept = self.kept_from(&disk);
        let have = ring.limit(kept);
        let room = most.saturating_sub(ring.capacity()) / ring.unit * ring.unit;
        if have >= limit || room == 0 {
            // The room is there: whoever made it may have ended before it could tell.
            self.set_limit(&disk);
            return Ok(());
        }
        assert!(have >= self.limit.load(Ordering::Acquire), "writers know of no more room than there is");
        let Some(grown) = ring.grown(kept, &ring.more((limit - have).min(room), self.cfg.max_capacity)) else {
            return Err(Error::NoSpace("the log's ring: it has the most segments that a superblock can list".into()));
        };
        self.lengthen(grown.device_len())?;
        self.use_grown(&mut disk, grown)
    }

    /// Makes the device longer, and measures it: replay reads from it.
    fn lengthen(&self, len: u64) -> Result<()> {
        let (more, began) = (len.saturating_sub(self.dev.len()), now());
        self.dev.set_len(len)?;
        let took = began.elapsed().as_secs_f64();
        // Only a file is known to write what is new.
        if more >= MEASURABLE && took > 0.0 && self.dev.info().kind == DeviceKind::File {
            self.growth.write_rate.fetch_max((more as f64 / took) as u64, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Bytes of log per second that a recovery is expected to replay: as measured by the last one; before there was
    /// one, half of the rate at which the log's device took zeros, within bounds.
    pub fn expected_replay_rate(&self) -> u64 {
        let (slowest, fastest) = EXPECTED_RATES;
        let expected = || (self.growth.write_rate.load(Ordering::Relaxed) / 2).clamp(slowest, fastest);
        self.replay_rate().unwrap_or_else(expected)
    }

    fn use_grown(&self, disk: &mut Disk, grown: Ring) -> Result<()> {
        assert!(grown.device_len() <= self.dev.len(), "the device is as long as its ring");
        self.store_ring(disk, grown)?;
        self.set_limit(disk);
        add(&self.stats.growths, 1);
        Ok(())
    }
}
