//! A ring that grows beside its writers: what is new is written with zeros, which takes a while.

use super::*;
use std::time::Duration;
use varve_device::{DeviceError, DeviceInfo, DeviceStats, Io, Op, OpKind, Ticket};
use varve_models::{Latency, MemOptions};
use varve_rt::atomic::{AtomicBool, AtomicU64, Ordering};
use varve_rt::{Rng, now, sim, sleep};

const MS: Duration = Duration::from_millis(1);

/// A device that takes its time to get longer, and may be full.
struct Slow {
    inner: Arc<MemDevice>,
    /// Time that getting longer takes, milliseconds.
    takes: AtomicU64,
    full: AtomicBool,
    asked: AtomicU64,
    /// Times it got longer without being written, and writes that need not be durable: zeros.
    reserved: AtomicU64,
    zeros: AtomicU64,
}

impl Slow {
    /// A write takes 1 ms, some 10.
    fn new() -> Arc<Slow> {
        let each = (MS, MS + Duration::from_nanos(1));
        let latency = Latency { read: each, write: each, durable: each, flush: each };
        let inner = MemDevice::with(0, MemOptions { latency, ..MemOptions::default() });
        let zero = || AtomicU64::new(0);
        let (takes, asked, reserved, zeros) = (zero(), zero(), zero(), zero());
        Arc::new(Slow { inner, takes, full: AtomicBool::new(false), asked, reserved, zeros })
    }

    fn log(self: &Arc<Slow>, cfg: LogConfig) -> Arc<Log> {
        let dev: Arc<dyn Device> = self.clone();
        let log = Log::create(dev, cfg, header()).unwrap();
        log.start().unwrap();
        self.asked.store(0, Ordering::Release);
        log
    }

    fn asked(&self) -> u64 {
        self.asked.load(Ordering::Acquire)
    }

    /// Groups found in it by a recovery.
    fn found(self: &Arc<Slow>) -> u64 {
        let dev: Arc<dyn Device> = self.clone();
        recover(&dev, config()).unwrap().1.len() as u64
    }
}

impl Device for Slow {
    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn set_len(&self, len: u64) -> Result<(), DeviceError> {
        self.asked.fetch_add(1, Ordering::AcqRel);
        if self.full.load(Ordering::Acquire) {
            let (op, offset, device) = (OpKind::SetLen, self.len(), "full".into());
            return Err(DeviceError::NoSpace { op, device, offset, len: len - offset });
        }
        sleep(MS * self.takes.load(Ordering::Acquire) as u32);
        self.inner.set_len(len)
    }

    fn reserve_len(&self, len: u64) -> Result<(), DeviceError> {
        self.reserved.fetch_add(1, Ordering::AcqRel);
        self.inner.set_len(len)
    }

    fn submit(&self, batch: Vec<Io>) -> Ticket {
        let zeros = batch.iter().filter(|io| io.op == Op::Write { durable: false }).count();
        self.zeros.fetch_add(zeros as u64, Ordering::AcqRel);
        self.inner.submit(batch)
    }

    fn stats(&self) -> DeviceStats {
        self.inner.stats()
    }
}

/// A ring of 1 MiB that may grow to 8.
fn config() -> LogConfig {
    LogConfig { capacity: 1 << 20, max_capacity: 8 << 20, buffer: 64 << 10, ..small() }
}

/// Appends a durable group of two blocks; the time that it took.
fn append(log: &Log, n: u64) -> Duration {
    let (began, bytes) = (now(), body(n, 4000));
    log.ensure_space(bytes.len()).unwrap();
    let appended = log.append(GroupKind::Commit, None, &bytes).unwrap();
    log.wait_durable(appended.end).unwrap();
    began.elapsed()
}

/// The longest of 400 appends, when the device takes so many milliseconds to get longer.
fn longest_append(takes: u64) -> Duration {
    let dev = Slow::new();
    let log = dev.log(config());
    dev.takes.store(takes, Ordering::Release);
    let longest = (0..400).map(|n| append(&log, n)).max().unwrap();
    log.stop();
    assert!(log.stats().growths > 0 && log.stats().capacity > 400 * 4000, "{:?}", log.stats());
    assert_eq!(dev.found(), 400);
    longest
}

#[test]
fn commits_do_not_wait_for_a_ring_that_grows() {
    let longest = sim::run(sim::Config::default(), || longest_append(40)).unwrap();
    assert!(longest < 20 * MS, "a commit waited {longest:?}");
}

#[test]
fn commits_that_are_faster_wait_for_the_growth_that_is_under_way_and_for_no_second() {
    let longest = sim::run(sim::Config::default(), || longest_append(500)).unwrap();
    assert!((300 * MS..540 * MS).contains(&longest), "a commit waited {longest:?}");
}

#[test]
fn a_full_device_is_asked_ahead_once_after_each_checkpoint() {
    let asked = || {
        let dev = Slow::new();
        let log = dev.log(config());
        dev.full.store(true, Ordering::Release);
        let mut n = 0;
        let mut asked = Vec::new();
        for _ in 0..3 {
            while log.stats().age < 900 << 10 {
                append(&log, n);
                n += 1;
            }
            asked.push((dev.asked(), log.stats().growths));
            let t = log.begin_checkpoint();
            log.complete_checkpoint(t).unwrap();
        }
        log.stop();
        assert_eq!(log.poisoned(), None, "a full device is no reason to fail");
        asked
    };
    assert_eq!(sim::run(sim::Config::default(), asked).unwrap(), [(1, 0), (2, 0), (3, 0)]);
}

/// Loads and small durable commits by turns, and a checkpoint now and then; how often the ring was only reserved, and
/// what was written afterwards.
fn loads_and_commits(seed: u64) -> (u64, u64) {
    let (dev, mut rng) = (Slow::new(), Rng::from_seed(seed));
    let log = dev.log(LogConfig { max_capacity: 64 << 20, ..config() });
    let (mut n, mut first) = (0, 0);
    for _ in 0..6 {
        for _ in 0..rng.below(300) {
            let bytes = body(n, 8000 + rng.below(8000) as usize);
            log.ensure_space(bytes.len()).unwrap();
            log.append(GroupKind::Commit, None, &bytes).unwrap();
            n += 1;
        }
        for _ in 0..rng.below(120) {
            append(&log, n);
            n += 1;
        }
        if rng.below(3) == 0 {
            let t = log.begin_checkpoint();
            log.complete_checkpoint(t).unwrap();
            first = n;
        }
    }
    log.wait_durable(log.end_lsn()).unwrap();
    log.stop();
    let device: Arc<dyn Device> = dev.clone();
    let (_, groups, _) = recover(&device, config()).unwrap();
    let found: Vec<u64> = groups.iter().map(|(_, body)| u64::from_le_bytes(body[..8].try_into().unwrap())).collect();
    assert_eq!(found, (first..n).collect::<Vec<_>>(), "seed {seed}");
    (dev.reserved.load(Ordering::Acquire), dev.zeros.load(Ordering::Acquire))
}

#[test]
fn zeros_ahead_of_small_commits_after_a_load_touch_no_group() {
    let run = |seed| {
        let config = sim::Config { seed, chaos: seed.is_multiple_of(2), ..sim::Config::default() };
        sim::run(config, move || loads_and_commits(seed)).unwrap()
    };
    let (reserved, zeros) = (1..=30).map(run).fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
    assert!(reserved > 30 && zeros > 30, "{reserved} times reserved, {zeros} times written afterwards");
}

#[test]
fn a_load_grows_without_zeros_from_its_first_large_writes_on() {
    let load = || {
        let dev = Slow::new();
        let ring = LogConfig { capacity: 8 << 20, max_capacity: 128 << 20, segment: 1 << 20, ..config() };
        let config = LogConfig { buffer: 1 << 20, ..ring };
        let log = dev.log(config);
        for n in 0..500 {
            let bytes = body(n, 200_000);
            log.ensure_space(bytes.len()).unwrap();
            log.append(GroupKind::Commit, None, &bytes).unwrap();
        }
        log.wait_durable(log.end_lsn()).unwrap();
        log.stop();
        (dev.asked(), dev.reserved.load(Ordering::Acquire))
    };
    let (written, reserved) = sim::run(sim::Config::default(), load).unwrap();
    assert!(written == 0 && reserved > 1, "{written} times with zeros, {reserved} without");
}

#[test]
fn a_ring_that_is_larger_than_it_may_be_still_takes_groups() {
    let (dev, log) = fresh(LogConfig { capacity: 16 << 20, max_capacity: 16 << 20, segment: 1 << 20, ..small() });
    append(&log, 0);
    drop(log);
    let (log, groups, _) = recover(&dev, LogConfig { max_capacity: 1 << 20, ..small() }).unwrap();
    append(&log, 1);
    assert_eq!((groups.len(), log.max_group()), (1, 512 << 10));
}
