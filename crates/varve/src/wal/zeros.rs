//! Zeros in what the ring grew by: where they pay.
//!
//! A file system has to note with each write what was never written before: a durable write of a block takes half as
//! long again. So what is new is written with zeros, ahead of small writes. Where the log is written in large pieces,
//! as by a load whose commits wait for nothing, zeros would only double what goes to the device. There new segments are
//! reserved; when small writes come to them, the rest is written piece by piece, ahead of the writers.
//!
//! Invariants: zeros go to places past the limit that writers know, and past every write under way, which ends at most
//! one buffer past the durable LSN; the limit is lowered and raised again under the locks `turn` and `disk`.

use super::format::BLOCK;
use super::log::{Disk, Log};
use crate::error::Result;
use std::ops::Range;
use std::time::Duration;
use varve_device::{AlignedBuf, Device, DeviceKind};
use varve_rt::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use varve_rt::{Instant, sleep};
use varve_volume::Lsn;

/// A ring grows by at most so much at a time, or by a sixteenth: who waits for it, waits until that was written.
const STEP: u64 = 64 << 20;
/// The same where nothing is written.
const RESERVED_STEP: u64 = 16 << 20;
/// Writes of the log from this size on are large, or of an eighth of its buffer if that is less.
const LARGE_WRITE: u64 = 512 << 10;
/// Fewer writes since the ring grew tell nothing: what was found before them holds.
const TELLING: u64 = 8;
/// So many small writes to what is only reserved have the rest of it written.
const SMALL_WRITES: u64 = 16;
/// Zeros written at a time, while nobody writes past them, and the pause between two times.
const PIECE: (u64, Duration) = (1 << 20, Duration::from_millis(1));
const _: () = assert!(PIECE.0.is_multiple_of(BLOCK) && RESERVED_STEP <= STEP);
/// Replay rates expected before the first measured recovery, least and most, bytes of log per second: that of a slow
/// disk, and what one processor was seen to replay.
const EXPECTED_RATES: (u64, u64) = (50 << 20, 200 << 20);
const _: () = assert!(EXPECTED_RATES.0 <= EXPECTED_RATES.1);

/// What is known of the log's writes.
#[derive(Default)]
pub(super) struct Zeros {
    /// Writes and bytes when the ring grew last.
    counted: [AtomicU64; 2],
    /// Whether the log's writes were large then.
    large: AtomicBool,
    /// End of what is reserved only; its beginning is in [`Disk`].
    unwritten_to: AtomicU64,
    /// Small writes before that.
    small: AtomicU64,
    /// Bytes per second of the fastest large write; 0: there was none.
    rate: AtomicU64,
}

impl Log {
    fn large_write(&self) -> u64 {
        LARGE_WRITE.min(self.tail.capacity() / 8)
    }

    /// Writes of the log and their bytes, since the ring grew last.
    fn writes_since(&self, counted: [u64; 2]) -> (u64, u64) {
        let before = self.growth.zeros.counted.each_ref().map(|counter| counter.load(Ordering::Relaxed));
        // It may have grown after those were counted.
        (counted[0].saturating_sub(before[0]), counted[1].saturating_sub(before[1]))
    }

    fn counted(&self) -> [u64; 2] {
        [&self.stats.writes, &self.stats.written_bytes].map(|counter| counter.load(Ordering::Relaxed))
    }

    /// Whether the log is written in large pieces lately.
    fn writes_are_large(&self) -> bool {
        let (writes, bytes) = self.writes_since(self.counted());
        let before = || self.growth.zeros.large.load(Ordering::Relaxed);
        if writes < TELLING { before() } else { bytes >= writes * self.large_write() }
    }

    /// The most by which the ring grows ahead now.
    pub(super) fn step(&self) -> u64 {
        if self.writes_are_large() { RESERVED_STEP } else { STEP }
    }

    /// Makes the device longer; whether what is new was written.
    pub(super) fn lengthen(&self, len: u64) -> Result<bool> {
        let large = self.writes_are_large();
        let zeros = &self.growth.zeros;
        zeros.large.store(large, Ordering::Relaxed);
        zeros.counted.iter().zip(self.counted()).for_each(|(last, now)| last.store(now, Ordering::Relaxed));
        if large {
            self.dev.reserve_len(len)?
        } else {
            self.dev.set_len(len)?
        };
        Ok(!large)
    }

    /// Remembers what is reserved only: with what came before it, if they touch.
    pub(super) fn note_unwritten(&self, disk: &mut Disk, range: Range<Lsn>) {
        assert!(range.start < range.end, "a ring grows by something");
        let start = if disk.unwritten.end == range.start { disk.unwritten.start } else { range.start };
        self.growth.zeros.small.store(0, Ordering::Relaxed);
        self.growth.zeros.unwritten_to.store(range.end, Ordering::Release);
        disk.unwritten = start..range.end;
    }

    /// Whether small writes come to what is reserved only.
    pub(super) fn wants_zeros(&self) -> bool {
        let zeros = &self.growth.zeros;
        zeros.small.load(Ordering::Relaxed) >= SMALL_WRITES
            && self.tail.position() < zeros.unwritten_to.load(Ordering::Acquire)
    }

    /// Remembers that a write that ends at `end`, of so many bytes, begun then, is done.
    pub(super) fn note_write(&self, end: Lsn, bytes: u64, began: Instant) {
        let zeros = &self.growth.zeros;
        if bytes < self.large_write() {
            let reserved = end <= zeros.unwritten_to.load(Ordering::Relaxed);
            if reserved && (zeros.small.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(SMALL_WRITES) {
                self.flusher.nudge();
            }
            return;
        }
        let took = began.elapsed().as_secs_f64();
        // How often checkpoints come is a figure of experiments on models: they keep the slowest.
        let real = || matches!(self.dev.info().kind, DeviceKind::File | DeviceKind::Block);
        if bytes >= LARGE_WRITE && took > 0.0 && real() {
            zeros.rate.fetch_max((bytes as f64 / took) as u64, Ordering::Relaxed);
        }
    }

    /// Bytes of log per second that a recovery is expected to replay: as measured by the last one; before there was
    /// one, half of the rate of the log's fastest write, within bounds.
    pub fn expected_replay_rate(&self) -> u64 {
        let (slowest, fastest) = EXPECTED_RATES;
        let expected = || (self.growth.zeros.rate.load(Ordering::Relaxed) / 2).clamp(slowest, fastest);
        self.replay_rate().unwrap_or_else(expected)
    }

    /// Writes what is reserved only, if small writes come to it.
    pub(super) fn write_zeros(&self) -> Result<()> {
        while self.wants_zeros() && self.write_piece()? {
            // Who waits for the turn has it meanwhile.
            sleep(PIECE.1);
        }
        Ok(())
    }

    /// Writes a piece of it; whether there is more.
    fn write_piece(&self) -> Result<bool> {
        let _turn = self.growth.turn.lock();
        let mut disk = self.disk.lock();
        let limit = disk.sb.ring.limit(self.kept_from(&disk));
        let from = disk.unwritten.start.max(self.durable_lsn() + self.tail.capacity());
        let to = disk.unwritten.end.min(limit).min(from + PIECE.0);
        if from >= to || disk.sb.clean || self.check_sound().is_err() {
            self.growth.zeros.unwritten_to.store(0, Ordering::Release);
            return Ok(false);
        }
        assert!(from.is_multiple_of(BLOCK) && to.is_multiple_of(BLOCK), "a ring has whole blocks");
        // As when the ring shrinks: whoever begins a write later asks for the limit.
        self.limit.store(from, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let begun = self.durable_lsn() + self.tail.capacity() > from;
        let result = if begun { Ok(()) } else { self.zero(&disk, from..to) };
        assert!(begun || self.durable_lsn() <= from, "nobody has written where zeros go");
        self.set_limit(&disk);
        self.tell_of_space();
        result?;
        disk.unwritten.start = if begun { from } else { to };
        Ok(true)
    }

    fn zero(&self, disk: &Disk, range: Range<Lsn>) -> Result<()> {
        let zeros = AlignedBuf::new((range.end - range.start) as usize);
        for (_, offset, len) in disk.sb.ring.pieces(range.start, range.end) {
            varve_device::write_at(&*self.dev, offset, &zeros[..len as usize], false)?;
        }
        Ok(())
    }
}
