//! A solid-state drive as a black box, given by what can be measured from outside: throughput by request size, kind and
//! order, the penalty of mixing reads with writes, latency of a lone request.
//!
//! One request of `s` bytes occupies the drive for s / rate(s) (times jitter) plus a mix penalty; requests are served
//! in order of arrival; a request takes at least its latency, which overlaps with others'. Over a share r of bytes read
//! this gives T(r) = 1 / (r/R + (1-r)/W + c r (1-r)): each request pays s c/2 times the share that the other kind had
//! among the last requests, so the mean penalty per byte is r (1-r) c/2 twice.
//!
//! A request is sequential if it goes on where two before it did.
//!
//! Between the sizes of a table the time of a request is interpolated linearly (and so is c, over the logarithm of the
//! size); below the smallest size a request takes as long as one of the smallest, above the largest the rate stays.
//!
//! Invariants: the drive serves one request after the other; the share of reads is a share.

use crate::fixed::{Streams, millis, within};
use crate::model::{Arrival, ModelStats, Schedule, Section, Timing, WriteCache};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use varve_device::{DeviceKind, OpKind};
use varve_rt::{Instant, Rng};

/// A rate measured with requests of one size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// Request size, KiB.
    pub kib: f64,
    /// Throughput with enough requests in flight, MB/s (decimal).
    pub mb_s: f64,
}

/// A mix penalty at one request size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Penalty {
    /// Request size, KiB.
    pub kib: f64,
    /// The c of the formula, seconds per MB.
    pub c: f64,
}

/// A drive given by tables.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MixConfig {
    /// Random reads, rates by size (rising sizes).
    pub read_random: Vec<Rate>,
    /// Sequential reads; as random ones if empty.
    #[serde(default)]
    pub read_sequential: Vec<Rate>,
    /// Random writes.
    pub write_random: Vec<Rate>,
    /// Sequential writes; as random ones if empty.
    #[serde(default)]
    pub write_sequential: Vec<Rate>,
    /// Penalty of mixing random reads and writes; none if empty.
    #[serde(default)]
    pub mix_random: Vec<Penalty>,
    /// Penalty of mixing sequential ones; none if empty.
    #[serde(default)]
    pub mix_sequential: Vec<Penalty>,
    /// Least time of a read, microseconds.
    #[serde(default)]
    pub read_latency_us: f64,
    /// Least time of a write, microseconds.
    #[serde(default)]
    pub write_latency_us: f64,
    /// Time of a flush, microseconds.
    #[serde(default)]
    pub flush_us: f64,
    /// Spread of service times: the coefficient of variation (0 to 1); the mean stays.
    #[serde(default)]
    pub jitter: f64,
    /// Requests that shares of reads and writes are taken over.
    #[serde(default = "window")]
    pub mix_window: u32,
    /// Volatile write cache, bytes; 0: completed writes are durable (none, or capacitors).
    #[serde(default)]
    pub volatile_cache: u64,
}

fn window() -> u32 {
    64
}

impl MixConfig {
    /// What is wrong with the values: the key, and what it may be.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        let rates = [
            ("read_random", &self.read_random, true),
            ("read_sequential", &self.read_sequential, false),
            ("write_random", &self.write_random, true),
            ("write_sequential", &self.write_sequential, false),
        ];
        for (key, table, needed) in rates {
            if needed && table.is_empty() {
                return Err((key, "needs at least one { kib = .., mb_s = .. }".into()));
            }
            rising(key, table.iter().map(|r| r.kib))?;
            table.iter().try_for_each(|r| within(key, r.mb_s, 1e-3, 1e6))?;
        }
        for (key, table) in [("mix_random", &self.mix_random), ("mix_sequential", &self.mix_sequential)] {
            rising(key, table.iter().map(|p| p.kib))?;
            table.iter().try_for_each(|p| within(key, p.c, -1e3, 1e3))?;
        }
        within("read_latency_us", self.read_latency_us, 0.0, 1e9)?;
        within("write_latency_us", self.write_latency_us, 0.0, 1e9)?;
        within("flush_us", self.flush_us, 0.0, 1e9)?;
        within("mix_window", f64::from(self.mix_window), 1.0, 1e6)?;
        within("jitter", self.jitter, 0.0, 1.0)
    }

    /// Time that one request of `bytes` occupies the drive when nothing of the other kind is about.
    pub fn service(&self, write: bool, sequential: bool, bytes: u64) -> Duration {
        let (random, ordered) = match write {
            true => (&self.write_random, &self.write_sequential),
            false => (&self.read_random, &self.read_sequential),
        };
        let table = if sequential && !ordered.is_empty() { ordered } else { random };
        millis(time_ms(table, bytes as f64 / 1024.0))
    }

    /// The c of requests of `bytes`, seconds per MB.
    pub fn penalty(&self, sequential: bool, bytes: u64) -> f64 {
        let table = if sequential { &self.mix_sequential } else { &self.mix_random };
        let kib = bytes as f64 / 1024.0;
        let above = table.iter().position(|p| p.kib > kib).unwrap_or(table.len());
        match (above.checked_sub(1).map(|i| table[i]), table.get(above)) {
            (None, None) => 0.0,
            (Some(p), None) => p.c,
            (None, Some(p)) => p.c,
            (Some(a), Some(b)) => a.c + (b.c - a.c) * (kib / a.kib).ln() / (b.kib / a.kib).ln(),
        }
    }

    /// Throughput of requests of `bytes`, a share `read` of them reads, MB/s: the formula above.
    pub fn throughput(&self, read: f64, sequential: bool, bytes: u64) -> f64 {
        let mb = bytes as f64 / 1e6;
        let per_mb = |write| self.service(write, sequential, bytes).as_secs_f64() / mb;
        let mix = self.penalty(sequential, bytes) * read * (1.0 - read);
        1.0 / (read * per_mb(false) + (1.0 - read) * per_mb(true) + mix)
    }
}

impl Section for MixConfig {
    fn name(&self) -> &'static str {
        "mix"
    }

    fn check(&self) -> Result<(), (&'static str, String)> {
        MixConfig::check(self)
    }

    fn timing(&self, seed: u64) -> Box<dyn Timing> {
        Box::new(Mix::new(self.clone(), seed))
    }
}

fn rising(key: &'static str, sizes: impl Iterator<Item = f64>) -> Result<(), (&'static str, String)> {
    let mut before = 0.0;
    for kib in sizes {
        if kib <= before || kib > 1e9 {
            return Err((key, format!("has size {kib} KiB after {before}: sizes must be positive and rise")));
        }
        before = kib;
    }
    Ok(())
}

/// Milliseconds that a request of `kib` takes by a table of rates.
fn time_ms(table: &[Rate], kib: f64) -> f64 {
    let at = |r: &Rate| r.kib * 1.024 / r.mb_s;
    let above = table.iter().position(|r| r.kib > kib).unwrap_or(table.len());
    match (above.checked_sub(1).map(|i| &table[i]), table.get(above)) {
        (None, Some(r)) => at(r),
        (Some(r), None) => at(r) * kib / r.kib,
        (Some(a), Some(b)) => at(a) + (at(b) - at(a)) * (kib - a.kib) / (b.kib - a.kib),
        (None, None) => 0.0,
    }
}

/// The timing of a drive given by tables.
pub(crate) struct Mix {
    config: MixConfig,
    rng: Rng,
    streams: Streams,
    free_at: Instant,
    /// Share of reads among the last requests' bytes, once there were any.
    read_share: Option<f64>,
    cache: WriteCache,
    stats: ModelStats,
    penalties: Duration,
}

impl Mix {
    pub(crate) fn new(config: MixConfig, seed: u64) -> Mix {
        Mix {
            rng: Rng::from_seed(seed),
            streams: Streams::default(),
            free_at: Instant::ORIGIN,
            read_share: None,
            cache: WriteCache::new(config.volatile_cache),
            stats: ModelStats { parts: 1, ..ModelStats::default() },
            penalties: Duration::ZERO,
            config,
        }
    }

    /// What the mix costs a request, which then counts as one of the last. Requests are weighted alike.
    fn mixing(&mut self, r: &Arrival, sequential: bool) -> Duration {
        let read = f64::from(u8::from(r.op == OpKind::Read));
        let before = self.read_share.unwrap_or(read);
        self.read_share = Some(before + (read - before) / f64::from(self.config.mix_window));
        let others = if r.op == OpKind::Read { 1.0 - before } else { before };
        let c = self.config.penalty(sequential, r.len);
        millis((c / 2.0 * others * r.len as f64 / 1e3).max(0.0))
    }

    /// A factor of mean one.
    fn jitter(&mut self) -> f64 {
        let j = self.config.jitter;
        if j == 0.0 { 1.0 } else { 1.0 - j - j * (1.0 - self.rng.f64()).ln() }
    }
}

impl Timing for Mix {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Ssd
    }

    fn arrive(&mut self, r: Arrival, out: &mut Schedule) {
        let (takes, least) = match r.op {
            OpKind::Read | OpKind::Write => {
                let (write, sequential) = (r.op == OpKind::Write, self.streams.goes_on(r.offset, r.len));
                let mixing = self.mixing(&r, sequential);
                self.penalties += mixing;
                let least = if write { self.config.write_latency_us } else { self.config.read_latency_us };
                let service = self.config.service(write, sequential, r.len).mul_f64(self.jitter());
                (service + mixing, millis(least / 1e3))
            }
            OpKind::Flush => (millis(self.config.flush_us / 1e3), Duration::ZERO),
            _ => (Duration::ZERO, Duration::ZERO),
        };
        let start = self.free_at.max(r.at);
        self.free_at = start + takes;
        debug_assert!(self.read_share.is_none_or(|share| (0.0..=1.0).contains(&share)), "a share is at most all");
        self.stats.busy += takes;
        self.stats.waited += start - r.at;
        self.stats.served += 1;
        let end = self.free_at.max(r.at + least);
        self.cache.completed(&r, end, out);
    }

    fn volatile_cache(&self) -> bool {
        self.cache.exists()
    }

    fn cut(&mut self) {
        self.cache.flush();
        self.streams = Streams::default();
        self.free_at = Instant::ORIGIN;
    }

    fn stats(&self) -> ModelStats {
        let mut stats = self.stats.clone();
        stats.details =
            vec![("mix_penalty_s", self.penalties.as_secs_f64()), ("read_share", self.read_share.unwrap_or_default())];
        stats
    }
}
