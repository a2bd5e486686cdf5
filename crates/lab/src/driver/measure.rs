//! Response times and counts of a run: exact histograms per thread and type, merged at the end, and a few shared
//! counters per thread from which interval figures are taken while the run goes on.

use std::time::Duration;

use hdrhistogram::Histogram;
use varve_rt::atomic::{AtomicU64, Ordering};

use crate::adapter::StoreStats;

/// Longest response time that is told apart; longer ones count as this. In nanoseconds: 1000 s.
const LONGEST_NS: u64 = 1_000_000_000_000;

/// What one thread notes about one transaction type.
pub(super) struct KindRecord {
    pub latency: Histogram<u64>,
    pub rolled_back: u64,
    pub retries: u64,
}

impl KindRecord {
    pub fn new() -> KindRecord {
        let latency = Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("bounds are valid");
        KindRecord { latency, rolled_back: 0, retries: 0 }
    }

    pub fn note(&mut self, took: Duration, rolled_back: bool, retries: u64) {
        self.latency.saturating_record((took.as_nanos() as u64).max(1));
        self.rolled_back += u64::from(rolled_back);
        self.retries += retries;
    }

    pub fn merge(&mut self, other: &KindRecord) {
        self.latency.add(&other.latency).expect("same bounds");
        self.rolled_back += other.rolled_back;
        self.retries += other.retries;
    }
}

/// Counters of one thread that others read while it runs.
#[derive(Default)]
pub(super) struct Live {
    pub done: AtomicU64,
    pub counted: AtomicU64,
    pub retries: AtomicU64,
}

/// Sums of [`Live`] counters at one moment.
#[derive(Default, Clone, Copy)]
pub(super) struct LiveSum {
    pub done: u64,
    pub counted: u64,
    pub retries: u64,
}

impl LiveSum {
    pub fn of<'a>(threads: impl Iterator<Item = &'a Live>) -> LiveSum {
        threads.fold(LiveSum::default(), |sum, live| LiveSum {
            done: sum.done + live.done.load(Ordering::Relaxed),
            counted: sum.counted + live.counted.load(Ordering::Relaxed),
            retries: sum.retries + live.retries.load(Ordering::Relaxed),
        })
    }
}

/// What happened since the interval before.
#[derive(Debug, Clone, Copy)]
pub struct Interval {
    /// Time since the threads were started, warm-up included.
    pub at: Duration,
    /// Length of this interval.
    pub length: Duration,
    /// Whether the warm-up is still going on.
    pub warming_up: bool,
    /// Transactions ended.
    pub done: u64,
    /// Transactions ended of the type whose rate is the result (all, if there is no such type).
    pub counted: u64,
    /// Attempts that had to be repeated.
    pub retries: u64,
    /// Transactions ended since the threads were started.
    pub done_in_all: u64,
    /// What the store counted.
    pub stats: StoreStats,
}

impl Interval {
    /// Transactions per second.
    pub fn per_second(&self) -> f64 {
        self.done as f64 / self.length.as_secs_f64().max(1e-9)
    }

    /// Counted transactions per minute.
    pub fn counted_per_minute(&self) -> f64 {
        60.0 * self.counted as f64 / self.length.as_secs_f64().max(1e-9)
    }
}

impl std::fmt::Display for Interval {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mib = |bytes: u64| bytes as f64 / (1 << 20) as f64 / self.length.as_secs_f64().max(1e-9);
        write!(
            f,
            "{:>6.1} s  {:>9.0} tx/s  {:>7.0} retries  {:>8.1} MiB/s written",
            self.at.as_secs_f64(),
            self.per_second(),
            self.retries,
            mib(self.stats.bytes_written)
        )?;
        if let Some(ratio) = self.stats.hit_ratio() {
            write!(f, "  {:.2} % hits", 100.0 * ratio)?;
        }
        if self.warming_up { write!(f, "  (warm-up)") } else { Ok(()) }
    }
}

/// Response times of one transaction type, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize)]
pub struct Latency {
    /// Arithmetic mean.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 95th percentile.
    pub p95_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// Largest.
    pub max_us: f64,
}

impl Latency {
    pub(super) fn of(histogram: &Histogram<u64>) -> Latency {
        if histogram.is_empty() {
            return Latency::default();
        }
        let at = |q: f64| histogram.value_at_quantile(q) as f64 / 1000.0;
        Latency {
            mean_us: histogram.mean() / 1000.0,
            p50_us: at(0.5),
            p95_us: at(0.95),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: histogram.max() as f64 / 1000.0,
        }
    }
}

/// Shares of transactions at which a distribution is drawn.
const QUANTILES: [f64; 28] = [
    0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9,
    0.95, 0.98, 0.99, 0.995, 0.999, 0.9999, 1.0,
];

/// Response times at [`QUANTILES`], in microseconds.
pub(super) fn quantiles(histogram: &Histogram<u64>) -> Vec<(f64, f64)> {
    if histogram.is_empty() {
        return Vec::new();
    }
    QUANTILES.iter().map(|q| (*q, histogram.value_at_quantile(*q) as f64 / 1000.0)).collect()
}
