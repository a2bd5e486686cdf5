//! Can the figures be believed? Each check names what it saw and what to do; a report with findings is not saved.

use super::{Point, Report, Reread};
use crate::error::{Error, Result};
use varve_device::{AlignedBuf, Device};
use varve_rt::{Rng, now};

/// Blocks read twice in the look for a cache.
const SAMPLE: u64 = 200;
/// A second read this much faster than the first comes from a cache.
const CACHED: f64 = 2.0;
/// A rate that falls below this share of its beginning was throttled, or a write buffer ran full.
const FALLEN: f64 = 0.67;
/// The repeats that count may differ by this share of their mean.
const SPREAD: f64 = 0.5;
/// A point whose repeats differ by more than this is measured again.
const SETTLED: f64 = 0.2;
/// No drive answers a lone 4 KB request sooner, microseconds.
const SOONEST_US: f64 = 2.0;
/// No drive moves more, MB/s.
const FASTEST_MB_S: f64 = 30_000.0;

/// Why the figures cannot be believed.
#[derive(Debug, Clone, PartialEq)]
pub enum Finding {
    /// Reads come from a cache, not from the device.
    Cached(String),
    /// The rate fell while it was measured.
    Throttled(String),
    /// A rate of small random requests that is the bandwidth of large ones.
    Bandwidth(String),
    /// Figures that no device reaches.
    Impossible(String),
    /// Repeats differ too much.
    Unsteady(String),
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Finding::Cached(s) => write!(f, "cached: {s}; use a larger range, or a place that direct I/O reaches"),
            Finding::Throttled(s) => {
                write!(
                    f,
                    "throttled: {s}; measure longer (--seconds), after a rest or once the drive is in a steady state"
                )
            }
            Finding::Bandwidth(s) => {
                write!(
                    f,
                    "bandwidth, not IOPS: {s}; something merges or prefetches the requests: measure the device itself"
                )
            }
            Finding::Impossible(s) => write!(f, "impossible: {s}; the requests do not reach a device"),
            Finding::Unsteady(s) => {
                write!(
                    f,
                    "unsteady: {s}; stop what else uses the device, measure longer (--seconds) or more often (--repeats)"
                )
            }
        }
    }
}

/// Reads blocks at random places twice, the second time in another order, one at a time.
pub(super) fn reread(device: &dyn Device, range: u64, seed: u64) -> Result<Option<Reread>> {
    let places = range / 4096;
    if places < 4 * SAMPLE {
        return Ok(None);
    }
    let mut rng = Rng::from_seed(seed ^ 0xcac4e);
    // One block of each stretch of the range: all different, not in order.
    let mut blocks: Vec<u64> = (0..SAMPLE).map(|i| (places / SAMPLE * i + rng.below(places / SAMPLE)) * 4096).collect();
    let mut buf = AlignedBuf::new(4096);
    let mut pass = |blocks: &mut Vec<u64>| -> Result<f64> {
        rng.shuffle(blocks);
        let mut times = Vec::new();
        for at in blocks.iter() {
            let began = now();
            varve_device::read_at(device, *at, &mut buf).map_err(Error::store)?;
            times.push(began.elapsed().as_nanos() as f64 / 1e3);
        }
        // But for the slowest twentieth: a few waits for a processor do not count, while a cache that holds a part
        // does.
        times.sort_by(f64::total_cmp);
        times.truncate(times.len() * 19 / 20);
        Ok(times.iter().sum::<f64>() / times.len().max(1) as f64)
    };
    let first_us = pass(&mut blocks)?;
    let again_us = pass(&mut blocks)?;
    Ok(Some(Reread { first_us, again_us }))
}

/// Whether the second reads came from a cache.
pub(super) fn looks_cached(r: &Reread) -> bool {
    r.first_us > CACHED * r.again_us
}

/// Whether a point needs no more repeats: they agree, and show no trend.
pub(super) fn settled(p: &Point) -> bool {
    p.spread() <= SETTLED && falling(p).is_none() && faster_each_time(p).is_none()
}

/// A point in words.
fn name(p: &Point) -> String {
    let kind = match p.load.read_share {
        1.0 => "reads".to_string(),
        0.0 => "writes".to_string(),
        share => format!("requests with {:.0} % reads", share * 100.0),
    };
    let order = if p.load.random_share > 0.0 { "random" } else { "sequential" };
    format!("{order} {kind} of {} KiB, {} in flight", p.load.bytes >> 10, p.load.depth)
}

/// What is wrong with a report's figures; nothing if they can be believed.
pub fn check(report: &Report) -> Vec<Finding> {
    let mut found = Vec::new();
    if !report.direct {
        found.push(Finding::Cached("requests go through the operating system's cache".into()));
    }
    if let Some(r) = report.reread.filter(looks_cached) {
        let text = format!("a block read again takes {:.1} us, {:.1} us the first time", r.again_us, r.first_us);
        found.push(Finding::Cached(text));
    }
    for p in &report.points {
        if let Some(text) = faster_each_time(p) {
            found.push(Finding::Cached(text));
        }
        if let Some(text) = falling(p) {
            found.push(Finding::Throttled(text));
        } else if p.spread() > SPREAD {
            let rates: Vec<String> = p.samples.iter().map(|s| format!("{:.0}", s.iops())).collect();
            found.push(Finding::Unsteady(format!("{}: {} per second", name(p), rates.join(", "))));
        }
        if p.mb_s() > FASTEST_MB_S {
            found.push(Finding::Impossible(format!("{}: {:.0} MB/s", name(p), p.mb_s())));
        }
        if p.load.depth == 1 && p.mean_us() < SOONEST_US {
            found.push(Finding::Impossible(format!("{}: {:.2} us each", name(p), p.mean_us())));
        }
    }
    if let (Some(p), Some(control)) = (report.points.first(), report.control)
        && control < FALLEN * p.iops()
    {
        let text = format!("{}: {:.0} per second at first, {control:.0} after all the rest", name(p), p.iops());
        found.push(Finding::Throttled(text));
    }
    found.extend(bandwidth(report));
    found.truncate(20);
    found
}

/// Each repeat of random reads much faster than the one before: what was read stays somewhere.
fn faster_each_time(p: &Point) -> Option<String> {
    let reads = p.load.read_share == 1.0 && p.load.random_share > 0.0;
    let (first, last) = (p.samples.first()?.iops(), p.samples.last()?.iops());
    let rising = p.samples.windows(2).all(|w| w[1].iops() > w[0].iops());
    (reads && rising && last > 1.5 * first)
        .then(|| format!("{}: {first:.0} per second at first, {last:.0} in the end", name(p)))
}

/// The rate falls within the repeats, or from one to the next.
fn falling(p: &Point) -> Option<String> {
    let quarters = |i: usize| p.mean(|s| s.quarters[i]);
    let (begin, end) = (quarters(0), quarters(3));
    let enough = p.samples.iter().all(|s| s.requests >= 40 && s.requests >= 8 * u64::from(p.load.depth));
    let (first, last) = (p.samples.first()?.iops(), p.samples.last()?.iops());
    let sinking = p.samples.len() >= 3 && p.samples.windows(2).all(|w| w[1].iops() < w[0].iops());
    // A neighbour's burst of work slows one repeat down, the device itself each of them.
    let slower = p.samples.iter().filter(|s| s.quarters[3] < FALLEN * s.quarters[0]).count();
    if enough && end < FALLEN * begin && quarters(2) < begin && 2 * slower > p.samples.len() {
        Some(format!("{}: {begin:.0} per second at first, {end:.0} in the end", name(p)))
    } else if enough && sinking && last < FALLEN * first {
        Some(format!("{}: {first:.0} per second in the first repeat, {last:.0} in the last", name(p)))
    } else {
        None
    }
}

/// Small random reads, one at a time, that move as many bytes as large sequential ones.
fn bandwidth(report: &Report) -> Option<Finding> {
    let small = report.points.iter().find(|p| {
        p.load.read_share == 1.0 && p.load.random_share == 1.0 && p.load.depth == 1 && p.load.bytes <= 8192
    })?;
    let large = report.points.iter().filter(|p| p.load.read_share == 1.0 && p.load.random_share == 0.0);
    let large = large.filter(|p| p.load.bytes >= 1 << 20).map(Point::mb_s).fold(0.0, f64::max);
    (large > 0.0 && small.mb_s() > 0.9 * large).then(|| {
        let text = format!("{}: {:.0} MB/s; large sequential reads: {large:.0} MB/s", name(small), small.mb_s());
        Finding::Bandwidth(text)
    })
}
