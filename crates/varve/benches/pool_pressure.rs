//! A pool far smaller than its data, with durable commits: does eviction keep up? `cargo bench -p varve --bench
//! pool_pressure`
//!
//! Eight threads change random pages (three quarters of the references go to a tenth of them) of a real file of 20,000
//! pages through a pool of 2,000 frames; every fourth change waits for a log that takes 300 us per flush, shared by
//! whoever waits. Printed per victim and cleaner setting: changes per second, misses, how many misses stalled and for
//! how long, who wrote.

use std::sync::Arc;
use std::time::Duration;
use varve::Result;
use varve::buffer::{LogAge, LogGate, Pool, PoolConfig};
use varve_device::{FileDevice, Options};
use varve_rt::atomic::{AtomicU64, Ordering::*};
use varve_rt::{Mutex, Rng, now, sleep, spawn};
use varve_volume::{KeyspaceId, Lsn, PageId, Single};

const PAGES: u64 = 20_000;
const FRAMES: usize = 2_000;
const THREADS: u64 = 8;
const TIME: Duration = Duration::from_secs(5);

#[derive(Default)]
struct Log {
    end: AtomicU64,
    durable: AtomicU64,
    flush: Mutex<()>,
}

impl LogGate for Log {
    fn durable_lsn(&self) -> Lsn {
        self.durable.load(Acquire)
    }
    fn force(&self, lsn: Lsn) -> Result<()> {
        while self.durable_lsn() < lsn {
            let _leader = self.flush.lock();
            if self.durable_lsn() < lsn {
                let end = self.end.load(Acquire);
                sleep(Duration::from_micros(300));
                self.durable.store(end, Release);
            }
        }
        Ok(())
    }
    fn age(&self) -> LogAge {
        LogAge { bytes_since_redo: 0, capacity: 1 }
    }
}

fn change(pool: &Pool, log: &Log, id: PageId, new: bool) -> Lsn {
    let mut page = if new { pool.create(id, KeyspaceId(1)).unwrap() } else { pool.write(id).unwrap() };
    page.set_dirty(log.end.load(Acquire));
    let next = page.bytes()[100].wrapping_add(1);
    page.bytes_mut().write(100, &[next]);
    let lsn = log.end.fetch_add(200, AcqRel) + 200;
    page.stamp(lsn);
    lsn
}

fn worker(pool: &Pool, log: &Log, seed: u64) -> u64 {
    let mut rng = Rng::from_seed(seed);
    let end = now() + TIME;
    let mut changes = 0;
    while now() < end {
        let p = if rng.below(4) > 0 { rng.below(PAGES / 10) } else { rng.below(PAGES) };
        let lsn = change(pool, log, PageId(p), false);
        changes += 1;
        if changes % 4 == 0 {
            log.force(lsn).unwrap();
        }
    }
    changes
}

fn run(name: &str, change_config: fn(PoolConfig) -> PoolConfig) {
    let path = std::env::temp_dir().join(format!("varve-pool-pressure-{}", std::process::id()));
    let device = FileDevice::open(&path, Options { create: true, ..Options::default() }).unwrap();
    varve_device::Device::set_len(&*device, PAGES * 4096).unwrap();
    let log = Arc::new(Log::default());
    let config = change_config(PoolConfig::new(4096, FRAMES));
    let pool = Pool::new(config, Single::new(device, 4096).unwrap(), log.clone()).unwrap();
    pool.start().unwrap();
    (0..PAGES).for_each(|p| _ = change(&pool, &log, PageId(p), true));
    let before = pool.stats();
    let workers: Vec<_> = (0..THREADS)
        .map(|t| {
            let (pool, log) = (pool.clone(), log.clone());
            spawn(format!("worker-{t}"), move || worker(&pool, &log, t))
        })
        .collect();
    let changes: u64 = workers.into_iter().map(|w| w.join().unwrap()).sum();
    let s = pool.stats();
    pool.stop();
    let stalls = s.stalls - before.stalls;
    println!(
        "{name}: {:.0} changes/s, {} misses, {stalls} stalled ({} us each), {} single-page flushes, {} replacement writes, {} log forces",
        changes as f64 / TIME.as_secs_f64(),
        s.total().misses - before.total().misses,
        (s.stall_ns - before.stall_ns) / stalls.max(1) / 1000,
        s.single_page_flushes - before.single_page_flushes,
        s.replacement_writes - before.replacement_writes,
        s.log_forces - before.log_forces,
    );
    std::fs::remove_file(&path).unwrap();
}

fn main() {
    if std::env::args().any(|a| a == "--test") {
        return;
    }
    run("spf, no cleaner", |mut config| {
        config.cleaner.kind = "off";
        config
    });
    run("vanilla57", |config| config.with_preset("vanilla57").unwrap());
    run("lru-c", |config| config.with_preset("lru-c").unwrap());
}
