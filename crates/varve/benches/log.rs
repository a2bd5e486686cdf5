//! How fast the log is: durable commits per second at 1, 4 and 16 threads on a real file, and appends per second
//! without durability at 1 and 2 threads.
//!
//! `cargo bench -p varve --bench log [-- DIRECTORY]` (default: the system's directory for temporary files).

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use varve::wal::{DbHeader, GroupKind, Log, LogConfig};
use varve_device::{Device, FileDevice, Options};
use varve_models::MemDevice;
use varve_rt::{now, sleep, spawn};

const BODY: usize = 100;

fn header() -> DbHeader {
    DbHeader { uuid: [7; 16], page_size: 4096, room: 0, created: 0, options: Vec::new() }
}

fn main() {
    let dir = std::env::args().skip(1).find(|a| !a.starts_with('-')).map_or_else(std::env::temp_dir, PathBuf::from);
    let path = dir.join(format!("varve-log-bench-{}", std::process::id()));
    println!("durable commits, groups of {BODY} bytes, on {}", path.display());
    println!(
        "{:>8} {:>12} {:>10} {:>10} {:>14} {:>12}",
        "threads", "commits/s", "writes/s", "p50 us", "groups/write", "bytes/write"
    );
    for in_flight in [1, 2, 4] {
        for threads in [1, 4, 16] {
            let options = Options { create: true, prewrite: true, ..Options::default() };
            let dev: Arc<dyn Device> = FileDevice::open(&path, options).expect("a file for the log");
            commits(dev, threads, in_flight);
            let _ = std::fs::remove_file(&path);
        }
    }
    println!("\nappends without durability, groups of {BODY} bytes, in memory");
    println!("{:>8} {:>12} {:>12}", "threads", "appends/s", "MB/s");
    for threads in [1, 2] {
        appends(MemDevice::new(0), threads);
    }
}

fn keep_space(log: &Log) {
    if log.age() > log.max_capacity() / 2 {
        let t = log.begin_checkpoint();
        log.complete_checkpoint(t).expect("checkpoint");
    }
}

fn commits(dev: Arc<dyn Device>, threads: usize, max_in_flight: usize) {
    let cfg = LogConfig { capacity: 256 << 20, max_in_flight, ..LogConfig::default() };
    let log = Log::create(dev, cfg, header()).expect("create");
    let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let workers: Vec<_> = (0..threads)
        .map(|i| {
            let (log, stop, count) = (log.clone(), stop.clone(), count.clone());
            spawn(format!("committer-{i}"), move || {
                let mut times = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let began = now();
                    let at = log.append(GroupKind::Commit, None, &[i as u8; BODY]).expect("append");
                    log.wait_durable(at.end).expect("durable");
                    times.push(began.elapsed());
                    count.fetch_add(1, Ordering::Relaxed);
                    if i == 0 {
                        keep_space(&log);
                    }
                }
                times
            })
        })
        .collect();
    sleep(Duration::from_millis(200));
    let (before, stats, began) = (count.load(Ordering::Relaxed), log.stats(), now());
    sleep(Duration::from_secs(2));
    let (after, stats2, time) = (count.load(Ordering::Relaxed), log.stats(), began.elapsed().as_secs_f64());
    stop.store(true, Ordering::Relaxed);
    let mut times: Vec<Duration> = workers.into_iter().flat_map(|w| w.join().expect("worker")).collect();
    times.sort_unstable();
    let (commits, writes) = (after - before, stats2.writes - stats.writes);
    println!(
        "{threads:>8} {:>12.0} {:>10.0} {:>10.0} {:>14.2} {:>12.0}  ({max_in_flight} in flight)",
        commits as f64 / time,
        writes as f64 / time,
        times[times.len() / 2].as_secs_f64() * 1e6,
        commits as f64 / writes.max(1) as f64,
        (stats2.written_bytes - stats.written_bytes) as f64 / writes.max(1) as f64,
    );
}

fn appends(dev: Arc<dyn Device>, threads: usize) {
    let log = Log::create(dev, LogConfig { buffer: 16 << 20, ..LogConfig::default() }, header()).expect("create");
    log.start().unwrap();
    const EACH: u64 = 2_000_000;
    let began = now();
    let workers: Vec<_> = (0..threads)
        .map(|i| {
            let log = log.clone();
            spawn(format!("appender-{i}"), move || {
                for n in 0..EACH {
                    log.append(GroupKind::Commit, None, &[i as u8; BODY]).expect("append");
                    if i == 0 && n % 1024 == 0 {
                        keep_space(&log);
                    }
                }
            })
        })
        .collect();
    workers.into_iter().for_each(|w| w.join().expect("worker"));
    let rate = (EACH * threads as u64) as f64 / began.elapsed().as_secs_f64();
    log.stop();
    println!("{threads:>8} {rate:>12.0} {:>12.0}", rate * 144.0 / 1e6);
}
