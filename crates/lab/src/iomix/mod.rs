//! An Iometer-like load on a device or a volume: requests of one size, shares of reads and of random places, a number
//! in flight.
//!
//! As many threads as requests are to be in flight each run one after the other; what comes next is decided in one
//! place for all of them. Shares are exact over every twenty requests (hundred, if the share is no multiple of 5 %):
//! the cards of a shuffled deck, so that short runs are not off by luck. Rates are counted from the completion of the
//! last request of the warm-up to that of the last request measured.
//!
//! What is measured costs each thread no lock: completions are noted by thread and put together at the end, and of
//! random places a thread on a real device draws several at a time. A fast device with many requests in flight would
//! else measure our locks. On a volume each request takes one, as a store is asked for a page by one at a time.
//!
//! Works on OS threads and in simulations. Lock order: `source`, `warm` and `failed` are never held together.

mod target;

pub use target::{Pages, Target};

use crate::error::{Error, Result};
use hdrhistogram::Histogram;
use std::sync::Arc;
use std::time::Duration;
use varve_device::AlignedBuf;
use varve_rt::atomic::{AtomicBool, AtomicU64, Ordering};
use varve_rt::{Instant, Mutex, Rng, now, spawn};

/// What is asked of the device or volume.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Load {
    /// Bytes of a request.
    pub bytes: u64,
    /// Share of reads, 0 to 1.
    pub read_share: f64,
    /// Share of requests at random places, 0 to 1; the others go on one after the other.
    pub random_share: f64,
    /// Requests in flight.
    pub depth: u32,
}

/// How long, and where.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Extent {
    /// Warm-up: at least this long ..
    pub warm_time: Duration,
    /// .. and this many requests.
    pub warm_requests: u64,
    /// Measured: at least this long ..
    pub time: Duration,
    /// .. and this many requests.
    pub requests: u64,
    /// The part that is used, from the beginning, bytes.
    pub range: u64,
    /// Seed of places and order.
    pub seed: u64,
}

/// What was measured.
#[derive(Debug, Clone)]
pub struct Sample {
    /// Requests measured.
    pub requests: u64,
    /// Of these, reads.
    pub reads: u64,
    /// Seconds.
    pub seconds: f64,
    /// Bytes of a request.
    pub bytes: u64,
    /// Response times, nanoseconds.
    pub latency: Histogram<u64>,
    /// Requests per second in each quarter of the time.
    pub quarters: [f64; 4],
}

impl Sample {
    /// Requests per second.
    pub fn iops(&self) -> f64 {
        self.requests as f64 / self.seconds.max(1e-12)
    }

    /// Megabytes (10^6) per second.
    pub fn mb_s(&self) -> f64 {
        self.iops() * self.bytes as f64 / 1e6
    }

    /// A response time by its share of requests that took no longer, microseconds.
    pub fn percentile_us(&self, share: f64) -> f64 {
        self.latency.value_at_quantile(share) as f64 / 1e3
    }

    /// Mean response time, microseconds.
    pub fn mean_us(&self) -> f64 {
        self.latency.mean() / 1e3
    }

    /// The figures as a JSON object.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::json!({
            "requests": self.requests, "reads": self.reads, "seconds": self.seconds,
            "iops": self.iops(), "mb_s": self.mb_s(),
            "mean_us": self.mean_us(), "p50_us": self.percentile_us(0.5), "p95_us": self.percentile_us(0.95),
            "p99_us": self.percentile_us(0.99), "p999_us": self.percentile_us(0.999),
            "max_us": self.latency.max() as f64 / 1e3,
        })
    }
}

/// Memory of requests, kept from one run to the next.
#[derive(Default)]
pub struct Buffers(Mutex<Vec<AlignedBuf>>);

impl Buffers {
    /// The smallest buffer of at least `len` bytes, or a new one, full of bytes that a drive cannot compress.
    fn take(&self, len: usize, seed: u64) -> AlignedBuf {
        let mut free = self.0.lock();
        let fits = free.iter().enumerate().filter(|(_, b)| b.len() >= len);
        if let Some((i, _)) = fits.min_by_key(|(_, b)| b.len()) {
            return free.swap_remove(i);
        }
        drop(free);
        let mut buf = AlignedBuf::new(len);
        if !varve_rt::in_simulation() {
            Rng::from_seed(seed).fill_bytes(&mut buf);
        }
        buf
    }

    fn give_back(&self, buf: AlignedBuf) {
        self.0.lock().push(buf);
    }
}

/// Draws with an exact share of yes.
struct Deck {
    cards: Vec<bool>,
    next: usize,
}

impl Deck {
    fn new(share: f64) -> Deck {
        let of = if (share * 20.0 - (share * 20.0).round()).abs() < 1e-9 { 20 } else { 100 };
        let yes = (share * of as f64).round() as usize;
        Deck { cards: (0..of).map(|i| i < yes).collect(), next: of }
    }

    fn draw(&mut self, rng: &mut Rng) -> bool {
        if self.next == self.cards.len() {
            rng.shuffle(&mut self.cards);
            self.next = 0;
        }
        self.next += 1;
        self.cards[self.next - 1]
    }
}

struct Source {
    rng: Rng,
    reads: Deck,
    random: Deck,
    places: u64,
    next: u64,
}

impl Source {
    /// Whether to read, and the number of the place.
    fn draw(&mut self) -> (bool, u64) {
        let read = self.reads.draw(&mut self.rng);
        if self.random.draw(&mut self.rng) {
            return (read, self.rng.below(self.places));
        }
        let place = self.next;
        self.next = (self.next + 1) % self.places;
        (read, place)
    }
}

/// Places that a thread draws at a time when all are random, on a real device.
const HAND: usize = 16;

/// What all threads know of a run.
struct Progress {
    started: Instant,
    /// Requests of the warm-up that completed.
    warm: Mutex<u64>,
    /// When measuring began, nanoseconds of the clock; 0: it did not yet.
    measuring: AtomicU64,
    /// Requests measured.
    measured: AtomicU64,
    stop: AtomicBool,
    failed: Mutex<Option<Error>>,
}

/// What one thread measured.
struct Tally {
    /// Completions, nanoseconds after measuring began.
    ends: Vec<u64>,
    reads: u64,
    latency: Histogram<u64>,
}

impl Tally {
    fn new() -> Tally {
        let latency = Histogram::new_with_bounds(1, 1_000_000_000_000, 3).expect("bounds are valid");
        Tally { ends: Vec::new(), reads: 0, latency }
    }
}

impl Progress {
    fn finished(&self, extent: &Extent, tally: &mut Tally, read: bool, begun: Instant) {
        let now = now();
        let since = self.measuring.load(Ordering::Acquire);
        if since == 0 {
            let mut warm = self.warm.lock();
            *warm += 1;
            let first = self.measuring.load(Ordering::Acquire) == 0;
            if first && *warm >= extent.warm_requests && now - self.started >= extent.warm_time {
                self.measuring.store(now.as_nanos().max(1), Ordering::Release);
            }
            return;
        }
        if self.stop.load(Ordering::Acquire) {
            return;
        }
        let after = now.as_nanos().saturating_sub(since);
        tally.ends.push(after);
        tally.reads += u64::from(read);
        tally.latency.saturating_record(((now - begun).as_nanos() as u64).max(1));
        let measured = self.measured.fetch_add(1, Ordering::AcqRel) + 1;
        if measured >= extent.requests && u128::from(after) >= extent.time.as_nanos() {
            self.stop.store(true, Ordering::Release);
        }
    }
}

/// Puts a load on a device or volume and measures it. What the range holds is overwritten unless the load only reads.
pub fn run<T: Target + ?Sized + 'static>(target: &Arc<T>, load: Load, extent: Extent) -> Result<Sample> {
    run_with(target, load, extent, &Arc::default())
}

/// As [`run`], with memory kept from earlier runs.
pub fn run_with<T: Target + ?Sized + 'static>(
    target: &Arc<T>,
    load: Load,
    extent: Extent,
    buffers: &Arc<Buffers>,
) -> Result<Sample> {
    let places = check(&**target, &load, &extent)?;
    let rng = Rng::from_seed(extent.seed);
    let (reads, random) = (Deck::new(load.read_share), Deck::new(load.random_share));
    let next = Rng::from_seed(extent.seed ^ 0x5e9).below(places);
    let source = Arc::new(Mutex::new(Source { rng, reads, random, places, next }));
    let progress = Arc::new(Progress {
        started: now(),
        warm: Mutex::new(0),
        measuring: AtomicU64::new(0),
        measured: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        failed: Mutex::new(None),
    });
    let threads: Vec<_> = (0..load.depth)
        .map(|i| {
            let (target, source, progress) = (target.clone(), source.clone(), progress.clone());
            let buffers = buffers.clone();
            spawn(format!("iomix {i}"), move || {
                let mut buf = buffers.take(load.bytes as usize, extent.seed ^ u64::from(i) << 32);
                let part = &mut buf[..load.bytes as usize];
                let tally = worker(&*target, &load, &extent, part, &source, &progress);
                buffers.give_back(buf);
                tally
            })
        })
        .collect();
    let mut all = Tally::new();
    for thread in threads {
        let tally = thread.join().map_err(|e| Error::WorkerPanicked(e.thread))?;
        all.ends.extend(tally.ends);
        all.reads += tally.reads;
        all.latency.add(tally.latency).expect("both have the same bounds");
    }
    match progress.failed.lock().take() {
        Some(error) => Err(error),
        None => Ok(sample(all, &load)),
    }
}

/// Refuses loads that cannot be; the number of places that a request can be at.
pub(crate) fn check<T: Target + ?Sized>(target: &T, load: &Load, extent: &Extent) -> Result<u64> {
    let wrong = |name, why: String| Err(Error::Option { name, why });
    let block = target.unit();
    if load.bytes == 0 || !load.bytes.is_multiple_of(block) {
        return wrong("size", format!("{} bytes are no multiple of the blocks or pages of {block}", load.bytes));
    }
    if load.depth == 0 || load.depth > 1024 {
        return wrong("depth", format!("{} requests in flight; choose 1 to 1024", load.depth));
    }
    for (name, share) in [("read share", load.read_share), ("random share", load.random_share)] {
        if !(0.0..=1.0).contains(&share) {
            return wrong(name, format!("{share} is not between 0 and 1"));
        }
    }
    let places = extent.range.min(target.capacity()) / load.bytes;
    if places < 4 {
        let why = format!(
            "{} bytes hold fewer than four requests of {} bytes",
            extent.range.min(target.capacity()),
            load.bytes
        );
        return wrong("range", why);
    }
    Ok(places)
}

fn worker<T: Target + ?Sized>(
    target: &T,
    load: &Load,
    extent: &Extent,
    buf: &mut [u8],
    source: &Mutex<Source>,
    progress: &Progress,
) -> Tally {
    let mut tally = Tally::new();
    let mut written = 0u64;
    // One after the other they are drawn one at a time, so that they are in flight in their order.
    let several = load.random_share == 1.0 && !varve_rt::in_simulation();
    let mut hand: Vec<(bool, u64)> = Vec::new();
    while !progress.stop.load(Ordering::Acquire) {
        if hand.is_empty() {
            let mut source = source.lock();
            hand.extend((0..if several { HAND } else { 1 }).map(|_| source.draw()));
        }
        let (read, place) = hand.pop().expect("just filled");
        let offset = place * load.bytes;
        let begun = now();
        let result = if read {
            target.read(offset, buf)
        } else {
            written += 1;
            let last = buf.len() - 8;
            buf[last..].copy_from_slice(&written.to_le_bytes());
            target.write(offset, buf)
        };
        match result {
            Ok(()) => progress.finished(extent, &mut tally, read, begun),
            Err(error) => {
                progress.stop.store(true, Ordering::Release);
                progress.failed.lock().get_or_insert(error);
            }
        }
    }
    tally
}

fn sample(tally: Tally, load: &Load) -> Sample {
    let Tally { mut ends, reads, latency } = tally;
    ends.sort_unstable();
    let nanos = ends.last().copied().unwrap_or(1).max(1);
    let mut quarters = [0.0; 4];
    for end in &ends {
        quarters[(end.saturating_sub(1) * 4 / nanos).min(3) as usize] += 4e9 / nanos as f64;
    }
    Sample { requests: ends.len() as u64, reads, seconds: nanos as f64 / 1e9, bytes: load.bytes, latency, quarters }
}

/// Writes the first `range` bytes of a device or volume in order and flushes, so that later reads find data there.
pub fn lay<T: Target + ?Sized>(target: &T, range: u64, mut progress: impl FnMut(u64)) -> Result<()> {
    let range = range.min(target.capacity());
    let mut buf = AlignedBuf::new((4 << 20).min(range as usize));
    Rng::from_seed(range).fill_bytes(&mut buf);
    let mut at = 0;
    while at < range {
        let part = (range - at).min(buf.len() as u64) as usize;
        buf[part - 8..part].copy_from_slice(&at.to_le_bytes());
        target.write(at, &mut buf[..part])?;
        at += part as u64;
        progress(at);
    }
    target.flush()
}
