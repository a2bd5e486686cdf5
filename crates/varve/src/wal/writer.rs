//! Writing the log out: leader and follower group commit.
//!
//! A thread that waits for durability leads a write if fewer than `max_in_flight` are under way: it writes everything
//! appended so far. The others wait until their groups are durable, or are woken to lead the next write. Writes may
//! complete out of order: the durable LSN is the end of the gapless prefix of completed ones.
//!
//! Invariants: a write's range is claimed under the writer lock, in order, and ends at a block boundary at most one
//! buffer past the durable LSN, so that whoever has to fill it can do so without waiting; a waiter sleeps only while a
//! write is in flight, another waiter has been woken to lead, or writing is paused. A failed write is never retried: it
//! poisons the log.
//!
//! Lock order: the writer lock is a leaf; it is held neither during I/O nor while waking.

use super::format::{BLOCK, block_floor};
use super::listeners::Listeners;
use super::log::Log;
use super::stats::add;
use crate::error::{Error, Result};
use std::collections::VecDeque;
use std::sync::Arc;
use varve_device::{Device, DeviceError, Io, Mistake, Place, Stream};
use varve_rt::atomic::Ordering;
use varve_rt::{Cost, Event, charge, now};
use varve_volume::Lsn;

/// A write under way, or done with one before it still under way.
struct Flight {
    start: Lsn,
    end: Lsn,
    /// Bytes of groups in it, without the padding at its end.
    bytes: u64,
    done: bool,
}

/// State of writing, under the writer lock.
pub(super) struct Writer {
    /// Everything below is durable or in a flight.
    next: Lsn,
    /// In LSN order, gapless from the durable LSN to `next`.
    flights: VecDeque<Flight>,
    /// Flights not done.
    writing: usize,
    waiters: Vec<(Lsn, Arc<Event>)>,
    pub(super) listeners: Listeners,
    /// No write begins: the ring is being changed under what comes next.
    paused: bool,
}

impl Writer {
    pub fn new(next: Lsn) -> Writer {
        let (flights, waiters) = (VecDeque::new(), Vec::new());
        Writer { next, flights, writing: 0, waiters, listeners: Listeners::default(), paused: false }
    }

    /// Sets where writing begins, before the first write.
    pub fn restart(&mut self, next: Lsn) {
        assert!(self.flights.is_empty() && self.writing == 0, "no write is under way");
        assert!(next.is_multiple_of(BLOCK), "writing begins at a block boundary");
        self.next = next;
    }

    /// Whether what waits, up to `position`, is worth a write of its own beside those under way: at least half of what
    /// the largest of them carries. So groups share writes when committers are many, and overlap writes when they are
    /// few.
    fn worth_writing(&self, position: Lsn) -> bool {
        let largest = self.flights.iter().filter(|f| !f.done).map(|f| f.bytes).max().unwrap_or(0);
        2 * position.saturating_sub(self.next) >= largest
    }

    /// The waiters to wake now: those served, one to lead the next write if there is room for it, all when `all`.
    fn ready(&mut self, durable: Lsn, position: Lsn, max: usize, all: bool) -> Vec<Arc<Event>> {
        let mut wake = Vec::new();
        let (next, mut lead) = (self.next, self.writing < max && self.worth_writing(position));
        self.waiters.retain(|(lsn, event)| {
            let served = all || *lsn <= durable;
            let leads = !served && lead && *lsn > next;
            lead &= !leads;
            if served || leads {
                wake.push(event.clone());
            }
            !(served || leads)
        });
        debug_assert!(self.waiters.iter().all(|(lsn, _)| !all && *lsn > durable), "nobody who was served waits on");
        wake
    }
}

impl Log {
    /// Returns when everything below `lsn` is on media. The caller itself writes when the device has room for a write.
    /// Fails when the log is poisoned and `lsn` was not reached before, and when `lsn` lies past the end of the log.
    pub fn wait_durable(&self, lsn: Lsn) -> Result<()> {
        self.check_appended(lsn)?;
        self.wait_until(|log| log.durable_lsn() >= lsn, lsn, lsn)
    }

    /// Fails when `lsn` lies past the end of the log.
    pub(super) fn check_appended(&self, lsn: Lsn) -> Result<()> {
        if lsn <= self.end_lsn() {
            return Ok(());
        }
        self.check_sound()?;
        Err(Error::Invalid(format!("LSN {lsn} lies past the end of the log: its group was never appended")))
    }

    /// Returns when the byte at `at` has room in the buffer, helping to drain it.
    pub(super) fn wait_room(&self, at: Lsn) -> Result<()> {
        add(&self.stats.buffer_waits, 1);
        let lsn = at + 1 - self.tail.capacity();
        self.wait_until(|log| log.has_room(at), lsn, 0)
    }

    /// Whether the byte at `at` has room in the buffer.
    pub(super) fn has_room(&self, at: Lsn) -> bool {
        at < self.durable_lsn() + self.tail.capacity()
    }

    /// Everything below `end` is on media: who sees that may fill the buffer again. The writer's lock is held, so
    /// nobody else raises it. (A store, since ThreadSanitizer does not know what `fetch_max` orders.)
    fn raise_durable(&self, _: &Writer, end: Lsn) {
        if end > self.durable.load(Ordering::Relaxed) {
            assert!(end.is_multiple_of(BLOCK), "what is durable ends with a block");
            self.durable.store(end, Ordering::Release);
        }
    }

    /// Waits until `done`, which the durable LSN reaching `lsn` brings about; the open block is closed if `need` lies
    /// in it.
    fn wait_until(&self, done: impl Fn(&Log) -> bool, lsn: Lsn, need: Lsn) -> Result<()> {
        loop {
            if done(self) {
                return Ok(());
            }
            let mut writer = self.writer.lock();
            // Under the lock: the durable LSN stands still, and whoever poisons the log wakes the waiters after us.
            if done(self) {
                return Ok(());
            }
            self.check_sound()?;
            if varve_rt::dying() {
                return Err(Error::Poisoned("the machine has lost power".into()));
            }
            if let Some(range) = self.claim(&mut writer, need) {
                drop(writer);
                self.write_out(range.0, range.1);
                continue;
            }
            let event = Arc::new(Event::new());
            writer.waiters.push((lsn, event.clone()));
            drop(writer);
            add(&self.stats.waits, 1);
            event.wait();
        }
    }

    /// Writes complete blocks while more than `keep` bytes are waiting; for the flusher.
    pub(super) fn drain(&self, keep: u64) {
        loop {
            let mut writer = self.writer.lock();
            if block_floor(self.tail.position()) < writer.next + keep.max(1) || self.check_sound().is_err() {
                return;
            }
            let Some(range) = self.claim(&mut writer, 0) else { return };
            drop(writer);
            self.write_out(range.0, range.1);
        }
    }

    /// Lets no write begin, if none is under way and `may` says so of where the next one would; returns that place.
    pub(super) fn pause_writing(&self, may: impl FnOnce(Lsn) -> bool) -> Option<Lsn> {
        let mut writer = self.writer.lock();
        assert!(!writer.paused, "one at a time changes the ring");
        writer.paused = writer.writing == 0 && writer.flights.is_empty() && may(writer.next);
        writer.paused.then_some(writer.next)
    }

    /// Writes begin again.
    pub(super) fn resume_writing(&self) {
        let mut writer = self.writer.lock();
        assert!(writer.paused, "writing was paused");
        writer.paused = false;
        let wake = writer.ready(self.durable_lsn(), self.tail.position(), self.cfg.max_in_flight, false);
        drop(writer);
        wake.iter().for_each(|event| event.set());
        self.flusher.nudge();
    }

    /// Claims the next range to write, if there is one and the device has room for a write.
    fn claim(&self, writer: &mut Writer, need: Lsn) -> Option<(Lsn, Lsn)> {
        let before = self.tail.position();
        if writer.paused || writer.writing >= self.cfg.max_in_flight || !writer.worth_writing(before) {
            return None;
        }
        let limit = self.durable_lsn() + self.tail.capacity();
        let reserved = if need > block_floor(before) {
            self.tail.close_block(limit, self.salt, self.run.load(Ordering::Relaxed))
        } else {
            block_floor(before)
        };
        let start = writer.next;
        let end = reserved.min(limit).min(start + self.max_write());
        if end <= start {
            return None;
        }
        assert!(start.is_multiple_of(BLOCK) && end.is_multiple_of(BLOCK), "blocks are written whole");
        assert!(self.durable_lsn() <= start && start <= before, "what is written was appended, and is not durable");
        assert!(writer.flights.back().is_none_or(|last| last.end == start), "writes follow each other without a gap");
        let bytes = before.min(end) - start;
        writer.flights.push_back(Flight { start, end, bytes, done: false });
        add(&self.stats.padding_bytes, end - start - bytes);
        writer.next = end;
        add(&self.stats.in_flight_sum, writer.writing as u64);
        writer.writing += 1;
        self.stats.in_flight_max.fetch_max(writer.writing as u64, Ordering::Relaxed);
        Some((start, end))
    }

    fn max_write(&self) -> u64 {
        (self.tail.capacity() / 4).clamp(BLOCK, 4 << 20)
    }

    /// Writes a claimed range and makes its durability known.
    fn write_out(&self, start: Lsn, end: Lsn) {
        let _guard = self.health().poison_on_panic("it was writing the log, for others too");
        self.faults().pass(Place::LogLeader);
        if !self.wait_filled(start, end) {
            return;
        }
        let began = now();
        if let Err(e) = self.reserve_ring(end).and_then(|()| Ok(self.write_blocks(start, end)?)) {
            self.poison(&format!("log write at LSN {start}: {e}"));
            return;
        }
        self.note_write(end, end - start, began);
        add(&self.stats.writes, 1);
        add(&self.stats.written_bytes, end - start);
        let mut writer = self.writer.lock();
        if self.health().is_poisoned() {
            // The system may have told another write of what this one lost.
            return;
        }
        let flight = writer.flights.iter_mut().find(|f| f.start == start).expect("the flight was claimed");
        assert!(!flight.done && flight.end == end, "a write ends once, as it was claimed");
        flight.done = true;
        assert!(writer.writing > 0, "the write that ends was under way");
        writer.writing -= 1;
        if self.faults().has(Mistake::DurablePastGap) {
            self.raise_durable(&writer, end);
        }
        while writer.flights.front().is_some_and(|f| f.done) {
            let flight = writer.flights.pop_front().expect("there is a front");
            let gap = flight.start != self.durable_lsn() && !self.faults().has(Mistake::DurablePastGap);
            assert!(!gap, "what is durable has no gap");
            add(&self.stats.groups, self.tail.reclaim(flight.start, flight.end));
            self.raise_durable(&writer, flight.end);
        }
        let under_way = writer.flights.iter().filter(|f| !f.done);
        debug_assert_eq!(under_way.count(), writer.writing, "the writes that are counted are those under way");
        let durable = self.durable_lsn();
        debug_assert!(!writer.flights.is_empty() || durable == writer.next, "what was claimed is durable or under way");
        debug_assert!(self.durable_lsn() <= writer.next, "nothing is durable that no write has claimed");
        let wake = writer.ready(self.durable_lsn(), self.tail.position(), self.cfg.max_in_flight, false);
        let tells = writer.listeners.has_due(self.durable_lsn());
        drop(writer);
        for event in wake {
            event.set();
        }
        if tells {
            self.flusher.nudge();
        }
    }

    /// Waits until every block of the range is complete; false when the log was poisoned meanwhile.
    fn wait_filled(&self, start: Lsn, end: Lsn) -> bool {
        let (mut block, mut tries) = (start, 0);
        while block < end {
            if self.tail.is_full(block) {
                block += BLOCK;
                tries = 0;
            } else if self.check_sound().is_err() || varve_rt::dying() {
                return false;
            } else {
                varve_rt::spin(tries);
                tries += 1;
            }
        }
        true
    }

    fn write_blocks(&self, start: Lsn, end: Lsn) -> Result<(), DeviceError> {
        let durable = !self.faults().has(Mistake::SkipLogFlush);
        let mut batch = Vec::with_capacity(1);
        for (lsn, offset, len) in self.ring.read().pieces(start, end) {
            let mut at = 0;
            while at < len {
                let (address, room) = self.tail.address(lsn + at);
                let part = room.min(len - at);
                // SAFETY: the blocks are complete, so nobody writes to them before they are reclaimed, which happens
                // after this request was waited for; the buffer lives as long as the log.
                let write = unsafe { Io::write(offset + at, address, part as usize, durable) };
                batch.push(write.in_stream(Stream::LOG));
                at += part;
            }
        }
        assert!(!batch.is_empty(), "a range that was claimed has blocks");
        let requests = batch.len() as u64;
        charge(Cost::IoSubmit, requests);
        let result = if requests == 1 { self.dev.run(batch.remove(0)) } else { self.dev.submit(batch).wait_all() };
        charge(Cost::IoComplete, requests);
        result
    }

    /// Wakes every waiter, and has every listener told: the log was poisoned.
    pub(super) fn wake_all(&self) {
        let wake = self.writer.lock().ready(0, 0, 0, true);
        for event in wake {
            event.set();
        }
        self.flusher.nudge();
    }
}
