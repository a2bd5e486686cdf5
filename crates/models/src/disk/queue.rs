//! The disk at work: which request is next, and how long it takes from where the head is.
//!
//! Decisions are made when the head is free (`busy_until`), among the requests that have arrived by then.
//!
//! Invariants: the head does one thing at a time, so `busy_until` does not go back; a request is done at or after its
//! arrival; what is being stored is out of the cache's order, but still counted there.

use super::write_cache::{Cached, DiskCache};
use super::{DiskConfig, Scheduling, SeekCurve};
use crate::fixed::millis;
use crate::model::{Arrival, ModelStats, Schedule, Timing};
use std::collections::VecDeque;
use std::time::Duration;
use varve_device::{DeviceKind, OpKind};
use varve_rt::Instant;

/// The head arrives this much after the sector went by: it still counts as caught (rounding of times).
const TOLERANCE: u64 = 2_000;

/// What the head did last, for sequential requests.
#[derive(Clone, Copy, Debug)]
struct Last {
    end: u64,
    at: Instant,
    read: bool,
}

/// The timing of a disk.
pub(crate) struct Disk {
    config: DiskConfig,
    read_seek: SeekCurve,
    write_seek: SeekCurve,
    /// Rotation, nanoseconds.
    period: u64,
    track_bytes: u64,
    queue: VecDeque<Arrival>,
    cache: DiskCache,
    busy_until: Instant,
    /// A cached write being stored, until `busy_until`.
    storing: Option<Cached>,
    track: u64,
    upward: bool,
    /// Nothing was to be done when the head was free last.
    idle: bool,
    last: Option<Last>,
    stats: ModelStats,
    seeks: u64,
    seek_time: Duration,
    rotation_time: Duration,
    streamed: u64,
}

impl Disk {
    pub(crate) fn new(config: DiskConfig) -> Disk {
        Disk {
            read_seek: SeekCurve::new(config.tracks, config.read_seek),
            write_seek: SeekCurve::new(config.tracks, config.write_seek),
            period: millis(config.rotation_ms).as_nanos() as u64,
            track_bytes: config.track_bytes(),
            queue: VecDeque::new(),
            cache: DiskCache::new(config.write_cache),
            busy_until: Instant::ORIGIN,
            storing: None,
            track: 0,
            upward: true,
            idle: true,
            last: None,
            stats: ModelStats { parts: 1, ..ModelStats::default() },
            seeks: 0,
            seek_time: Duration::ZERO,
            rotation_time: Duration::ZERO,
            streamed: 0,
            config,
        }
    }

    fn overhead(&self) -> Duration {
        millis(self.config.overhead_ms)
    }

    fn at_interface(&self, len: u64) -> Duration {
        self.overhead() + millis(len as f64 / self.config.interface_mb_s / 1e3)
    }

    fn at_media(&self, len: u64) -> Duration {
        millis(len as f64 / self.config.media_mb_s / 1e3)
    }

    fn curve(&self, op: OpKind) -> &SeekCurve {
        if op == OpKind::Read { &self.read_seek } else { &self.write_seek }
    }

    /// Seek and rotation to `offset` for a request whose service begins at `start`.
    fn approach(&self, op: OpKind, offset: u64, start: Instant) -> (Duration, Duration) {
        let seek = self.curve(op).time((offset / self.track_bytes).abs_diff(self.track));
        let angle = (start + seek).as_nanos() % self.period;
        let wanted =
            (u128::from(offset % self.track_bytes) * u128::from(self.period) / u128::from(self.track_bytes)) as u64;
        assert!(wanted <= self.period && angle < self.period, "an angle is less than a turn");
        let wait = (wanted + self.period - angle) % self.period;
        let wait = if self.period - wait <= TOLERANCE { 0 } else { wait };
        (seek, Duration::from_nanos(wait))
    }

    /// When a request that continues the last one has been transferred without a seek: written on at once, or read on,
    /// if need be into the buffer while nobody asked.
    fn stream(&self, r: &Arrival, start: Instant) -> Option<Instant> {
        let last = self.last.filter(|l| l.end == r.offset && l.read == (r.op == OpKind::Read))?;
        let end = last.at + self.at_media(r.len);
        let in_time = start <= last.at + Duration::from_nanos(TOLERANCE);
        (in_time || last.read && self.config.read_ahead).then(|| end.max(start))
    }

    /// Serves `r` from `from` on; when it is done.
    fn serve(&mut self, r: &Arrival, from: Instant) -> Instant {
        let start = from.max(r.at + self.overhead());
        let (end, media_end) = match self.stream(r, start) {
            Some(end) => {
                self.streamed += 1;
                (end, self.last.map_or(end, |l| l.at + self.at_media(r.len)))
            }
            None => {
                let (seek, rotation) = self.approach(r.op, r.offset, start);
                self.seeks += u64::from(!seek.is_zero());
                self.seek_time += seek;
                self.rotation_time += rotation;
                let end = start + seek + rotation + self.at_media(r.len);
                (end, end)
            }
        };
        let track = (r.offset + r.len.max(1) - 1) / self.track_bytes;
        if track != self.track {
            self.upward = track > self.track;
        }
        self.track = track;
        self.last = Some(Last { end: r.offset + r.len, at: media_end, read: r.op == OpKind::Read });
        assert!(from >= self.busy_until && end >= from, "the head does one thing at a time");
        self.stats.busy += end - from;
        self.busy_until = end;
        end
    }

    /// The index in the queue of the request to serve next.
    fn choose(&self, now: Instant) -> Option<usize> {
        let window = self.queue.iter().take(self.config.queue_depth as usize).enumerate();
        let distance = |r: &Arrival| (r.offset / self.track_bytes).abs_diff(self.track);
        let ahead = |r: &Arrival| {
            let track = r.offset / self.track_bytes;
            if self.upward { track >= self.track } else { track <= self.track }
        };
        // Until the transfer begins.
        let reach = |r: &Arrival| {
            let start = now.max(r.at + self.overhead());
            match self.stream(r, start) {
                Some(end) => (end - self.at_media(r.len)) - now,
                None => {
                    let (seek, rotation) = self.approach(r.op, r.offset, start);
                    (start - now) + seek + rotation
                }
            }
        };
        let best = match self.config.scheduling {
            Scheduling::Fifo => window.min_by_key(|(i, _)| *i),
            Scheduling::Sstf => window.min_by_key(|(i, r)| (distance(r), *i)),
            Scheduling::Elevator => window.min_by_key(|(i, r)| (!ahead(r), distance(r), *i)),
            Scheduling::Sptf => window.min_by_key(|(i, r)| (reach(r), *i)),
        };
        best.map(|(i, _)| i)
    }

    /// Begins what is next at `now`, the head being free; false if there is nothing to do.
    fn dispatch(&mut self, now: Instant, out: &mut Schedule) -> bool {
        let host = self.choose(now);
        let cache = !self.cache.is_empty();
        let for_cache = cache && (host.is_none() || self.cache.pressing() && self.stats.served.is_multiple_of(2));
        if for_cache {
            let from = self.track * self.track_bytes;
            let (offset, cached) = self.cache.take(from).expect("not empty");
            let r = Arrival {
                id: 0,
                op: OpKind::Write,
                offset,
                len: cached.len,
                durable: false,
                at: cached.ready - self.overhead(),
            };
            let end = self.serve(&r, now);
            self.stats.served += 1;
            cached.ids.iter().for_each(|id| out.stored(*id, end));
            assert!(self.storing.is_none(), "one write is stored at a time");
            self.storing = Some(cached);
            return true;
        }
        let Some(request) = host.and_then(|i| self.queue.remove(i)) else { return false };
        let end = self.serve(&request, now);
        assert!(request.at <= now && end >= request.at, "a request is served after it came");
        self.stats.waited += now - request.at;
        self.stats.served += 1;
        out.done(request.id, end);
        true
    }

    /// The head is free at `now`: what was stored leaves the cache, and lets others in.
    fn finish(&mut self, now: Instant, out: &mut Schedule) {
        let Some(cached) = self.storing.take() else { return };
        self.cache.stored(&cached);
        self.cache.flushed().into_iter().for_each(|id| out.done(id, now));
        while let Some(r) = self.cache.stalled.front().copied()
            && self.cache.has_room(r.len)
        {
            self.cache.stalled.pop_front();
            let ready = now + self.at_interface(r.len);
            self.cache.enter(&r, ready);
            out.done(r.id, ready);
        }
    }
}

impl Timing for Disk {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Disk
    }

    fn arrive(&mut self, r: Arrival, out: &mut Schedule) {
        let soon = r.at + self.at_interface(r.len);
        match r.op {
            OpKind::Trim => out.done(r.id, r.at + self.overhead()),
            OpKind::Flush => {
                if !self.cache.flush(&r) {
                    out.done(r.id, r.at + self.overhead());
                }
            }
            OpKind::Read if self.cache.holds(r.offset, r.len) => out.done(r.id, soon),
            OpKind::Write if self.cache.exists() && !r.durable => {
                if self.cache.stalled.is_empty() && self.cache.has_room(r.len) {
                    self.cache.enter(&r, soon);
                    out.done(r.id, soon);
                } else {
                    self.cache.stalled.push_back(r);
                }
            }
            _ => {
                self.queue.push_back(r);
                self.stats.deepest = self.stats.deepest.max(self.queue.len() as u32);
            }
        }
    }

    fn advance(&mut self, now: Instant, out: &mut Schedule) {
        while self.busy_until <= now {
            self.finish(self.busy_until, out);
            // Work that the head was busy for begins at once; an idle head begins when work arrives, that is, now.
            let begin = if self.idle { now } else { self.busy_until };
            self.idle = !self.dispatch(begin, out);
            if self.idle {
                return;
            }
        }
    }

    fn next(&self) -> Option<Instant> {
        let open = !self.queue.is_empty() || self.cache.someone_waits();
        open.then_some(self.busy_until)
    }

    fn volatile_cache(&self) -> bool {
        self.cache.exists()
    }

    fn cut(&mut self) {
        self.queue.clear();
        self.cache = DiskCache::new(self.config.write_cache);
        (self.busy_until, self.storing, self.last, self.idle) = (Instant::ORIGIN, None, None, true);
    }

    fn stats(&self) -> ModelStats {
        let mut stats = self.stats.clone();
        stats.details = vec![
            ("seeks", self.seeks as f64),
            ("seek_s", self.seek_time.as_secs_f64()),
            ("rotation_s", self.rotation_time.as_secs_f64()),
            ("streamed", self.streamed as f64),
        ];
        stats
    }
}
