//! A ring that grows beside its writers: what is new is written with zeros, which takes a while.

use super::*;
use std::time::Duration;
use varve_device::{DeviceError, DeviceInfo, DeviceStats, Io, OpKind, Ticket};
use varve_models::{Latency, MemOptions};
use varve_rt::atomic::{AtomicBool, AtomicU64, Ordering};
use varve_rt::{now, sim, sleep};

const MS: Duration = Duration::from_millis(1);

/// A device that takes its time to get longer, and may be full.
struct Slow {
    inner: Arc<MemDevice>,
    /// Time that getting longer takes, milliseconds.
    takes: AtomicU64,
    full: AtomicBool,
    asked: AtomicU64,
}

impl Slow {
    /// A write takes 1 ms, some 10.
    fn new() -> Arc<Slow> {
        let each = (MS, MS + Duration::from_nanos(1));
        let latency = Latency { read: each, write: each, durable: each, flush: each };
        let inner = MemDevice::with(0, MemOptions { latency, ..MemOptions::default() });
        let (takes, asked) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Slow { inner, takes, full: AtomicBool::new(false), asked })
    }

    /// A log with a ring of 1 MiB that may grow to 8.
    fn log(self: &Arc<Slow>) -> Arc<Log> {
        let dev: Arc<dyn Device> = self.clone();
        let log = Log::create(dev, config(), header()).unwrap();
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

    fn submit(&self, batch: Vec<Io>) -> Ticket {
        self.inner.submit(batch)
    }

    fn stats(&self) -> DeviceStats {
        self.inner.stats()
    }
}

fn config() -> LogConfig {
    LogConfig { capacity: 1 << 20, max_capacity: 8 << 20, ..small() }
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
    let log = dev.log();
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
        let log = dev.log();
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
