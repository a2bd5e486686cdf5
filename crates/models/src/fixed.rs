//! A device with fixed service times, random and sequential, for reads and writes: the two-number (or four-number)
//! devices of papers. A number of servers work side by side, each serving one request at a time, in order of arrival.
//!
//! Times are those of one *unit* (a page); a longer request takes the sequential time for each further unit. A request
//! is sequential if it begins where one of the last requests ended.
//!
//! Invariants: a server does one thing at a time; the ends of at most so many streams are remembered.

use crate::model::{Arrival, ModelStats, Schedule, Section, Timing, WriteCache};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::time::Duration;
use varve_device::{DeviceKind, OpKind};
use varve_rt::Instant;

/// Streams whose ends are remembered.
const STREAMS: usize = 32;

/// Service times of a device, milliseconds each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FixedConfig {
    /// A random read.
    pub read_random_ms: f64,
    /// A sequential read.
    pub read_sequential_ms: f64,
    /// A random write.
    pub write_random_ms: f64,
    /// A sequential write.
    pub write_sequential_ms: f64,
    /// A flush.
    #[serde(default)]
    pub flush_ms: f64,
    /// The unit, KiB.
    #[serde(default = "page")]
    pub unit_kib: u32,
    /// Requests served side by side.
    #[serde(default = "one")]
    pub servers: u32,
    /// Volatile write cache, bytes: completed writes that a power cut can lose; 0: completed writes are durable.
    #[serde(default)]
    pub volatile_cache: u64,
}

fn page() -> u32 {
    16
}

fn one() -> u32 {
    1
}

impl FixedConfig {
    /// What is wrong with the values: the key, and what it may be.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        let times = [
            ("read_random_ms", self.read_random_ms),
            ("read_sequential_ms", self.read_sequential_ms),
            ("write_random_ms", self.write_random_ms),
            ("write_sequential_ms", self.write_sequential_ms),
        ];
        for (key, ms) in times {
            within(key, ms, 1e-6, 1e6)?;
        }
        within("flush_ms", self.flush_ms, 0.0, 1e6)?;
        within("unit_kib", f64::from(self.unit_kib), 1.0, 1e6)?;
        within("servers", f64::from(self.servers), 1.0, 4096.0)
    }

    /// The time of one request of `len` bytes.
    pub fn service(&self, op: OpKind, sequential: bool, len: u64) -> Duration {
        let (first, further) = match op {
            OpKind::Read => (self.read_random_ms, self.read_sequential_ms),
            OpKind::Write => (self.write_random_ms, self.write_sequential_ms),
            OpKind::Flush => return millis(self.flush_ms),
            _ => return Duration::ZERO,
        };
        let units = len.div_ceil(u64::from(self.unit_kib) << 10).max(1);
        millis(if sequential { further } else { first } + further * (units - 1) as f64)
    }
}

impl Section for FixedConfig {
    fn name(&self) -> &'static str {
        "fixed"
    }

    fn check(&self) -> Result<(), (&'static str, String)> {
        FixedConfig::check(self)
    }

    fn timing(&self, _: u64) -> Box<dyn Timing> {
        Box::new(Fixed::new(self.clone()))
    }
}

/// A number of milliseconds as a duration, to the nanosecond.
pub(crate) fn millis(ms: f64) -> Duration {
    Duration::from_nanos((ms * 1e6).round() as u64)
}

/// Refuses `value` of `key` unless it lies between the bounds.
pub(crate) fn within(key: &'static str, value: f64, low: f64, high: f64) -> Result<(), (&'static str, String)> {
    match value >= low && value <= high {
        true => Ok(()),
        false => Err((key, format!("is {value}, but must lie between {low} and {high}"))),
    }
}

/// Tells sequential requests from random ones.
#[derive(Clone, Debug, Default)]
pub(crate) struct Streams {
    /// Where a stream goes on, and how many requests it has had.
    ends: VecDeque<(u64, u32)>,
}

impl Streams {
    /// Whether a request at `offset` continues one of the last; remembers its end.
    pub(crate) fn continues(&mut self, offset: u64, len: u64) -> bool {
        self.before(offset, len) > 0
    }

    /// Whether a request at `offset` goes on with a stream of at least two. Large requests at random places follow one
    /// of the last by chance (one in twenty, of 32 MiB within 20 GB); one such pair is no stream yet.
    pub(crate) fn goes_on(&mut self, offset: u64, len: u64) -> bool {
        self.before(offset, len) > 1
    }

    /// Requests before this one in its stream; remembers its end.
    fn before(&mut self, offset: u64, len: u64) -> u32 {
        let found = self.ends.iter().position(|(end, _)| *end == offset).and_then(|i| self.ends.remove(i));
        if self.ends.len() == STREAMS {
            self.ends.pop_front();
        }
        let before = found.map_or(0, |(_, requests)| requests);
        self.ends.push_back((offset + len, before.saturating_add(1)));
        assert!(self.ends.len() <= STREAMS);
        before
    }
}

/// The timing of a device with fixed service times.
pub(crate) struct Fixed {
    config: FixedConfig,
    streams: Streams,
    free_at: Vec<Instant>,
    cache: WriteCache,
    stats: ModelStats,
}

impl Fixed {
    pub(crate) fn new(config: FixedConfig) -> Fixed {
        let free_at = vec![Instant::ORIGIN; config.servers as usize];
        let cache = WriteCache::new(config.volatile_cache);
        let stats = ModelStats { parts: config.servers, ..ModelStats::default() };
        Fixed { config, streams: Streams::default(), free_at, cache, stats }
    }
}

impl Timing for Fixed {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Ssd
    }

    fn arrive(&mut self, r: Arrival, out: &mut Schedule) {
        let sequential = self.streams.continues(r.offset, r.len);
        let takes = self.config.service(r.op, sequential, r.len);
        let inside = self.free_at.iter().filter(|t| **t > r.at).count() as u32 + 1;
        self.stats.deepest = self.stats.deepest.max(inside);
        let server = self.free_at.iter_mut().min().expect("at least one server");
        let start = (*server).max(r.at);
        *server = start + takes;
        assert!(*server >= start && start >= r.at, "a server does one thing at a time");
        self.stats.busy += takes;
        self.stats.waited += start - r.at;
        self.stats.served += 1;
        let end = *server;
        self.cache.completed(&r, end, out);
    }

    fn volatile_cache(&self) -> bool {
        self.cache.exists()
    }

    fn cut(&mut self) {
        self.cache.flush();
        self.free_at.fill(Instant::ORIGIN);
        self.streams = Streams::default();
    }

    fn stats(&self) -> ModelStats {
        self.stats.clone()
    }
}
