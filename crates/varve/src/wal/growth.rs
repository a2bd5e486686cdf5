//! The ring grows: ahead of its writers, in a thread that lives for one growth, or by who must have the room now.
//!
//! New segments are written with zeros first (`zeros`), which takes a while. So when little of the ring is left, and a
//! checkpoint would not have to come before more is needed, the flusher has it grown. Writers that were faster wait for
//! that growth, or grow the ring themselves.
//!
//! Lock order: `turn` before `disk`. The device gets longer under `turn` alone, so commits, checkpoints and counters go
//! on meanwhile.
//!
//! Invariants: one grows the ring at a time; a ring that grew is in a durable superblock before anything is written to
//! what is new; a device is longer than its ring only while somebody has the turn, or after a crash.

use super::LogConfig;
use super::format::BLOCK;
use super::log::{Disk, Log};
use super::ring::Ring;
use super::stats::add;
use super::zeros::Zeros;
use crate::error::{Error, Result};
use crate::role::{self, Role};
use std::sync::Arc;
use varve_device::{Device, Health};
use varve_rt::atomic::{AtomicBool, AtomicU64, Ordering};
use varve_rt::{JoinHandle, Mutex};
use varve_volume::Lsn;

/// What growing needs.
pub(super) struct Growth {
    pub(super) turn: Mutex<()>,
    /// Past this end of the log the ring is to be grown ahead; [`Lsn::MAX`]: it is large enough, or grows already.
    from: AtomicU64,
    /// A thread grows it ahead.
    busy: AtomicBool,
    /// The thread that grew it last.
    grower: Mutex<Option<JoinHandle<()>>>,
    pub(super) zeros: Zeros,
}

impl Growth {
    pub fn new() -> Growth {
        Growth {
            turn: Mutex::new(()),
            from: AtomicU64::new(Lsn::MAX),
            busy: AtomicBool::new(false),
            grower: Mutex::new(None),
            zeros: Zeros::default(),
        }
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
        limit.saturating_sub(LogConfig::slack(capacity) + (capacity / 4).min(self.step()))
    }

    /// Takes over the room that the ring has now.
    pub(super) fn set_limit(&self, disk: &Disk) {
        debug_assert!(
            self.disk.is_locked(),
            "the room that writers are told of changes under the lock of the superblock"
        );
        let limit = disk.sb.ring.limit(self.kept_from(disk));
        let before = self.limit.swap(limit, Ordering::AcqRel);
        assert!(before <= limit, "room in the ring that was given is not taken back");
        self.growth.from.store(self.grows_from(disk, limit), Ordering::Release);
    }

    /// Whether little of the ring is left before `end`, and nobody has seen to it yet.
    pub(super) fn wants_growth(&self, end: Lsn) -> bool {
        end > self.growth.from.load(Ordering::Acquire)
    }

    /// Has the ring grown by a thread of its own if little of it is left, or written where that was left out; the
    /// flusher asks.
    pub(super) fn grow_ahead(self: &Arc<Self>) {
        let growth = &self.growth;
        let grows = self.wants_growth(self.tail.position());
        if !(grows || self.wants_zeros()) || growth.busy.swap(true, Ordering::AcqRel) {
            return;
        }
        let log = self.clone();
        let life = move || {
            role::set(Role::Log);
            // What fails here fails again, and is told, when a writer must have the room.
            if grows {
                // Not again before the room changes: a full device is asked once.
                log.growth.from.store(Lsn::MAX, Ordering::Release);
                let _ = log.grow_by_a_step();
            }
            let _ = log.write_zeros();
            let busy = log.growth.busy.swap(false, Ordering::AcqRel);
            assert!(busy, "one thread grows the ring ahead at a time");
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
            (ring.device_len(), ring.more(ring.unit, self.max_capacity(), self.step()))
        };
        let written = self.lengthen(len + lens.iter().sum::<u64>())?;
        let mut disk = self.disk.lock();
        if disk.sb.clean || disk.sb.ring.device_len() != len {
            // It shrank, or the log was closed.
            return self.cut_device(&disk);
        }
        let kept = self.kept_from(&disk);
        let Some(grown) = disk.sb.ring.grown(kept, &lens) else { return self.cut_device(&disk) };
        self.use_grown(&mut disk, grown, written)
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
        let lens = ring.more((limit - have).min(room), self.cfg.max_capacity, self.step());
        let Some(grown) = ring.grown(kept, &lens) else {
            return Err(Error::NoSpace("the log's ring: it has the most segments that a superblock can list".into()));
        };
        let written = self.lengthen(grown.device_len())?;
        self.use_grown(&mut disk, grown, written)
    }

    fn use_grown(&self, disk: &mut Disk, grown: Ring, written: bool) -> Result<()> {
        debug_assert!(self.growth.turn.is_locked(), "who grows the ring has the turn");
        assert!(grown.device_len() <= self.dev.len(), "the device is as long as its ring");
        let kept = self.kept_from(disk);
        let before = disk.sb.ring.limit(kept);
        self.store_ring(disk, grown)?;
        self.set_limit(disk);
        if !written {
            self.note_unwritten(disk, before..disk.sb.ring.limit(kept));
        }
        add(&self.stats.growths, 1);
        Ok(())
    }
}
