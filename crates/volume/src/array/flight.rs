//! Requests of an array on their way: each is split into pieces for the drives, and completes with its last piece.
//!
//! A flush goes to the drives that were written since their last one. A write counts as soon as anybody can know that
//! it completed, and a flush stands for the writes that were counted before it was submitted; so a flush that is under
//! way on behalf of somebody else is never taken for one's own. After a flush of a drive that failed no later one is
//! believed: what the failed one should have made durable may be forgotten, whoever had written it (Rebello et al.,
//! "Can Applications Recover from fsync Failures?", ATC 2020). Nor is one believed before those beside it are known:
//! one that failed may have ended while its waiter has not yet looked. So whoever waits for a flush waits for all that
//! the drive has been given, on behalf of whoever asked.
//!
//! Invariants: a piece lies on one drive; all pieces of a request are waited for before its result is given, whatever
//! the first of them came to; a flush leaves `under_way` when its end was noted; a drive's `flushed` never passes its
//! `written`.

use super::map::{Map, Piece, Place};
use super::slots::Layout;
use super::uses::Uses;
use std::ops::Range;
use std::sync::{Arc, Weak};
use varve_device::{Busy, Completion, Counters, Device, DeviceError, Io, Op, OpKind, Ticket};
use varve_rt::atomic::{AtomicBool, AtomicU64, Ordering};
use varve_rt::{Instant, Mutex};

/// Bytes of an extent that is moved of which it is known whether they were written meanwhile (assumed: small beside
/// what is copied in the time that a request takes).
pub(super) const CHUNK: u64 = 64 << 10;

/// One drive of an array.
pub(super) struct Member {
    pub device: Arc<dyn Device>,
    /// It is not a mere place.
    pub is_there: bool,
    /// Writes that completed, durable ones not counted. What an earlier opening left is the first.
    written: AtomicU64,
    /// Of those, how many a flush stands for.
    flushed: AtomicU64,
    /// Flushes that the drive was given and whose end nobody has seen yet. They belong to who waits for them: with a
    /// waiter that unwinds its flush goes.
    under_way: Mutex<Vec<Weak<Flush>>>,
    /// Why a flush failed, if one did.
    failed: Mutex<Option<DeviceError>>,
}

/// A flush of one drive.
pub(super) struct Flush {
    /// The writes that it stands for.
    stands_for: u64,
    ticket: Mutex<Ticket>,
}

impl Member {
    pub fn new(device: Arc<dyn Device>) -> Arc<Member> {
        Member::of(device, true, 1)
    }

    /// In the place of a drive that is not there: there is nothing to flush.
    pub fn absent(device: Arc<dyn Device>) -> Arc<Member> {
        Member::of(device, false, 0)
    }

    fn of(device: Arc<dyn Device>, is_there: bool, written: u64) -> Arc<Member> {
        let (written, flushed) = (AtomicU64::new(written), AtomicU64::new(0));
        let (under_way, failed) = (Mutex::default(), Mutex::default());
        Arc::new(Member { device, is_there, written, flushed, under_way, failed })
    }

    /// A write completed.
    pub fn wrote(&self) {
        self.written.fetch_add(1, Ordering::AcqRel);
    }

    /// Writes that a flush of now must stand for; none if one did already.
    fn unflushed(&self) -> Option<u64> {
        let written = self.written.load(Ordering::Acquire);
        (self.flushed.load(Ordering::Acquire) < written).then_some(written)
    }

    fn was_flushed(&self, written: u64) {
        let before = self.flushed.fetch_max(written, Ordering::AcqRel);
        debug_assert!(before.max(written) <= self.written.load(Ordering::Acquire), "what was flushed was written");
    }

    /// Gives the drive a flush; none if what was written is flushed.
    pub(super) fn begin_flush(&self) -> Option<Arc<Flush>> {
        let stands_for = self.unflushed()?;
        // Known of before it can fail.
        let mut under_way = self.under_way.lock();
        let ticket = Mutex::new(self.device.submit(vec![Io::flush()]));
        let flush = Arc::new(Flush { stands_for, ticket });
        under_way.retain(|other| other.strong_count() > 0);
        under_way.push(Arc::downgrade(&flush));
        Some(flush)
    }

    /// Waits for a flush, and for all others that the drive was given before it ended.
    fn end_flush(&self, flush: &Arc<Flush>) -> Result<(), DeviceError> {
        self.see_end(flush);
        let others: Vec<Arc<Flush>> = self.under_way.lock().iter().filter_map(Weak::upgrade).collect();
        others.iter().for_each(|other| self.see_end(other));
        self.check()
    }

    /// Waits for one flush, and takes note of how it ended.
    fn see_end(&self, flush: &Arc<Flush>) {
        match flush.ticket.lock().wait(0) {
            Ok(()) => self.was_flushed(flush.stands_for),
            Err(why) => drop(self.failed.lock().get_or_insert(why)),
        }
        self.under_way.lock().retain(|other| !std::ptr::eq(other.as_ptr(), &raw const **flush));
    }

    /// Fails when a flush did.
    fn check(&self) -> Result<(), DeviceError> {
        self.failed.lock().clone().map_or(Ok(()), Err)
    }

    /// Makes what was written durable, and waits.
    pub fn flush(&self) -> Result<(), DeviceError> {
        // One that failed meanwhile may have been about what this one stands for.
        let Some(flush) = self.begin_flush() else { return self.check() };
        self.end_flush(&flush)
    }
}

/// An array as a request finds it. Places are not used for anything else as long as somebody has a view with them.
#[derive(Clone)]
pub(super) struct View {
    pub map: Map,
    pub members: Vec<Arc<Member>>,
    /// How new extents are laid over the drives.
    pub layout: Arc<Layout>,
    /// An extent that is on its way to another slot.
    pub moving: Option<Moving>,
    /// What the extents are used for.
    pub uses: Uses,
}

/// Which chunks of an extent were written.
pub(super) struct Marks(Box<[AtomicBool]>);

impl Marks {
    /// Of an extent of so many bytes: none yet.
    pub fn new(extent: u64) -> Arc<Marks> {
        assert!(extent.is_multiple_of(CHUNK), "an extent has whole chunks");
        Arc::new(Marks((0..extent / CHUNK).map(|_| AtomicBool::new(false)).collect()))
    }

    /// Bytes from `from` on are written.
    fn mark(&self, from: u64, len: u64) {
        let chunks = from / CHUNK..(from + len).div_ceil(CHUNK);
        assert!(chunks.end <= self.0.len() as u64, "what was written lies within the extent");
        self.0[chunks.start as usize..chunks.end as usize]
            .iter()
            .for_each(|chunk| chunk.store(true, Ordering::Release));
    }

    /// The chunks that are marked, rising.
    pub fn chunks(&self) -> Vec<u64> {
        (0..).zip(&self.0).filter(|(_, chunk)| chunk.load(Ordering::Acquire)).map(|(chunk, _)| chunk).collect()
    }
}

/// An extent that is on its way; `mover` says how.
#[derive(Clone)]
pub(super) struct Moving {
    pub from: Place,
    pub to: Place,
    /// Writes go to both slots.
    pub mirrored: bool,
    /// Chunks that are written by requests of the views that have this.
    pub written: Arc<Marks>,
    /// Something was written past the requests' way: the copy is worth nothing.
    pub spoiled: Arc<AtomicBool>,
}

impl Moving {
    /// Of writes that go to one slot still.
    pub fn new(from: Place, to: Place, extent: u64) -> Moving {
        assert!(from.drive != to.drive, "an extent moves to another drive");
        Moving { from, to, mirrored: false, written: Marks::new(extent), spoiled: Arc::default() }
    }

    /// The part of a piece that lies in the slot that is left: where, relative to the piece, and where its twin goes.
    fn twin(&self, map: &Map, piece: &Piece) -> Option<(u64, Piece)> {
        let (start, drive) = (map.slot_at(self.from.slot), usize::from(self.from.drive));
        let (from, end) = (piece.at.max(start), (piece.at + piece.len).min(start + map.extent));
        let at = map.slot_at(self.to.slot) + from.saturating_sub(start);
        let twin = Piece { drive: self.to.drive.into(), at, len: end.saturating_sub(from) };
        debug_assert!(twin.len <= piece.len.min(map.extent), "a copy is no longer than what is copied");
        (piece.drive == drive && twin.len > 0).then(|| (from - piece.at, twin))
    }

    /// Somebody writes these bytes to the old slot alone, and is no request.
    pub fn spoil(&self, map: &Map, piece: &Piece) {
        if self.twin(map, piece).is_some() {
            self.spoiled.store(true, Ordering::Release);
        }
    }
}

impl View {
    /// A request that is going to be done.
    fn count(&self, op: Op, offset: u64, bytes: u64, now: Instant) {
        self.uses.count(op, (offset, offset + bytes), self.map.extent, now);
    }

    pub fn devices(&self) -> Vec<Arc<dyn Device>> {
        self.members.iter().map(|member| member.device.clone()).collect()
    }
}

/// What is counted.
#[derive(Default)]
pub(super) struct Totals {
    pub counters: Counters,
    pub busy: Busy,
}

impl Totals {
    fn finished(&self, op: Op, bytes: u64, started: Instant, ok: bool) {
        if op == (Op::Write { durable: true }) {
            self.counters.durable_write();
        }
        self.counters.finished(op.kind(), bytes, (varve_rt::now() - started).as_nanos() as u64, ok);
        self.busy.ended();
    }
}

/// One piece of a request to drive `drive`.
struct Part {
    drive: usize,
    what: What,
}

enum What {
    /// The request of this number among those that the drive was given.
    Piece(usize),
    Flush(Arc<Flush>),
}

struct Request {
    op: Op,
    bytes: u64,
    parts: Range<usize>,
    /// Why nothing was done.
    refused: Option<DeviceError>,
}

/// A batch under way.
struct Flight {
    // Dropped first: who has a ticket waits for it.
    tickets: Vec<Option<Ticket>>,
    requests: Vec<Request>,
    parts: Vec<Part>,
    view: Arc<View>,
    totals: Arc<Totals>,
    started: Instant,
}

/// What the drives are given of a batch.
struct Split<'v> {
    view: &'v View,
    queues: Vec<Vec<Io>>,
    parts: Vec<Part>,
    now: Instant,
}

impl Split<'_> {
    fn push(&mut self, drive: usize, io: Io) {
        self.parts.push(Part { drive, what: What::Piece(self.queues[drive].len()) });
        self.queues[drive].push(io);
    }

    fn request(&mut self, io: Io) -> Request {
        let (op, bytes, first) = (io.op, io.len() as u64, self.parts.len());
        let mut refused = None;
        match op {
            Op::Flush => {
                refused = self.view.members.iter().find_map(|member| member.check().err());
                for (drive, member) in self.view.members.iter().enumerate() {
                    let flush = member.begin_flush().map(What::Flush);
                    self.parts.extend(flush.map(|what| Part { drive, what }));
                }
            }
            Op::Read | Op::Write { .. } | Op::Trim => {
                self.view.count(op, io.offset, bytes, self.now);
                self.cut(io);
            }
        }
        Request { op, bytes, parts: first..self.parts.len(), refused }
    }

    fn refused(&self, io: &Io, why: DeviceError) -> Request {
        let at = self.parts.len();
        Request { op: io.op, bytes: io.len() as u64, parts: at..at, refused: Some(why) }
    }

    /// What is written to a second slot along with a piece.
    fn twin(&self, io: &Io, piece: &Piece) -> Option<(usize, Io)> {
        let (Op::Write { durable }, Some(moving)) = (io.op, &self.view.moving) else { return None };
        let (skip, twin) = moving.twin(&self.view.map, piece)?;
        moving.written.mark(twin.at - self.view.map.slot_at(moving.to.slot), twin.len);
        if !moving.mirrored {
            return None;
        }
        let bytes = io.buf.as_ptr().wrapping_add(skip as usize);
        // SAFETY: a part of the memory of `io`, which is read by both, and both are waited for before the request's
        // result is given.
        Some((twin.drive, unsafe { Io::write(twin.at, bytes, twin.len as usize, durable) }.in_stream(io.stream)))
    }

    fn cut(&mut self, io: Io) {
        let view = self.view;
        let mut rest = io;
        for piece in view.map.pieces(rest.offset, rest.len() as u64) {
            let (mut first, after) = rest.split_at(piece.len as usize);
            first.offset = piece.at;
            let twin = self.twin(&first, &piece);
            self.push(piece.drive, first);
            if let Some((drive, io)) = twin {
                self.push(drive, io);
            }
            rest = after;
        }
        assert_eq!(rest.len(), 0, "the pieces are the whole request");
    }
}

/// Begins a batch; `check` says which of its requests cannot be done.
pub(super) fn submit(
    view: Arc<View>,
    totals: &Arc<Totals>,
    batch: Vec<Io>,
    check: impl Fn(&Io) -> Result<(), DeviceError>,
) -> Ticket {
    let started = varve_rt::now();
    totals.busy.begun(batch.len() as u64, started);
    let queues = view.members.iter().map(|_| Vec::new()).collect();
    let mut split = Split { view: &view, queues, parts: Vec::with_capacity(batch.len()), now: started };
    let begin = |io: Io| match check(&io) {
        Ok(()) => split.request(io),
        Err(why) => split.refused(&io, why),
    };
    let requests: Vec<Request> = batch.into_iter().map(begin).collect();
    let Split { queues, parts, .. } = split;
    let of_requests = requests.windows(2).all(|two| two[0].parts.end == two[1].parts.start);
    let all = requests.last().map_or(0, |last| last.parts.end);
    assert!(of_requests && all == parts.len(), "each part is of one request");
    let each = queues.into_iter().zip(&view.members);
    let given = |(queue, member): (Vec<Io>, &Arc<Member>)| {
        let pieces = queue.len();
        let ticket = (pieces > 0).then(|| member.device.submit(queue));
        assert_eq!(ticket.as_ref().map_or(0, Ticket::len), pieces, "a drive answers for every piece");
        ticket
    };
    let tickets = each.map(given).collect();
    let count = requests.len();
    let flight = Flight { tickets, requests, parts, view, totals: totals.clone(), started };
    Ticket::pending(count, Box::new(flight))
}

/// Executes one request that was checked, and waits.
pub(super) fn run(view: Arc<View>, totals: &Arc<Totals>, mut io: Io) -> Result<(), DeviceError> {
    let (op, bytes) = (io.op, io.len() as u64);
    let mut pieces = match op {
        Op::Write { .. } if view.moving.is_some() => return submit(view, totals, vec![io], |_| Ok(())).wait_all(),
        Op::Flush => return submit(view, totals, vec![io], |_| Ok(())).wait_all(),
        _ => view.map.pieces(io.offset, bytes),
    };
    let (Some(piece), None) = (pieces.next(), pieces.next()) else {
        return submit(view, totals, vec![io], |_| Ok(())).wait_all();
    };
    let started = varve_rt::now();
    totals.busy.begun(1, started);
    let member = &view.members[piece.drive];
    view.count(op, io.offset, bytes, started);
    io.offset = piece.at;
    let result = member.device.run(io);
    if op == (Op::Write { durable: false }) {
        member.wrote();
    }
    totals.finished(op, bytes, started, result.is_ok());
    result
}

impl Flight {
    /// Waits for one piece.
    fn part(&mut self, at: usize, op: Op) -> Result<(), DeviceError> {
        let Part { drive, what } = &self.parts[at];
        let member = &self.view.members[*drive];
        let index = match what {
            What::Flush(flush) => return member.end_flush(flush),
            What::Piece(index) => *index,
        };
        let result = self.tickets[*drive].as_mut().expect("a drive with a piece has a ticket").wait(index);
        if op == (Op::Write { durable: false }) {
            // One that failed may have happened all the same.
            member.wrote();
        }
        result
    }
}

impl Completion for Flight {
    fn wait(&mut self, i: usize) -> Result<(), DeviceError> {
        let Request { op, bytes, parts: ref range, ref refused } = self.requests[i];
        let mut result = refused.clone().map_or(Ok(()), Err);
        for at in range.clone() {
            let part = self.part(at, op);
            result = result.and(part);
        }
        self.totals.finished(op, bytes, self.started, result.is_ok());
        result
    }

    fn try_done(&mut self, i: usize) -> bool {
        let Request { op, parts: ref range, .. } = self.requests[i];
        let done = range.clone().all(|at| {
            let Part { drive, what } = &self.parts[at];
            match what {
                What::Piece(index) => {
                    self.tickets[*drive].as_mut().expect("a drive with a piece has a ticket").try_done(*index)
                }
                // Somebody who holds it waits for it.
                What::Flush(flush) => flush.ticket.try_lock().is_some_and(|mut ticket| ticket.try_done(0)),
            }
        });
        if done && op.kind() == OpKind::Write {
            // A caller that sees this may flush before it waits.
            self.parts[range.clone()].iter().for_each(|part| self.view.members[part.drive].wrote());
        }
        done
    }

    fn abandon(&mut self) {
        // The tickets of the drives, dropped right after this, do it. What was under way may have happened.
        self.view.members.iter().for_each(|member| member.wrote());
    }
}
