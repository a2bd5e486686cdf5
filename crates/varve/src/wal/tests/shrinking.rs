//! A ring that shrinks while groups are written without a pause.

use super::*;
use std::time::Duration;
use varve_models::{Latency, MemOptions};
use varve_rt::atomic::{AtomicBool, Ordering};
use varve_rt::{sim, sleep, spawn};

/// Makes a log shrink beside a writer, on a device whose superblock takes as long as many a group; whether it did.
/// Every group since the last redo point is found afterwards.
fn shrinks_beside_a_writer(seed: u64) -> bool {
    let us = Duration::from_micros;
    let write = (us(20), us(2000));
    let latency = Latency { read: (us(10), us(20)), write, durable: write, flush: (us(100), us(900)) };
    let dev: Arc<dyn Device> = MemDevice::with(0, MemOptions { seed, latency, ..MemOptions::default() });
    let cfg = LogConfig { capacity: 64 << 10, max_capacity: 16 << 20, idle_checkpoints: 2, ..small() };
    let log = Log::create(dev.clone(), cfg.clone(), header()).unwrap();
    log.start().unwrap();
    let append = |log: &Log, n: u64| {
        log.ensure_space(3000).unwrap();
        log.append(GroupKind::Commit, None, &body(n, 2990)).unwrap().end
    };
    let ends: Vec<Lsn> = (0..400).map(|n| append(&log, n)).collect();
    log.wait_durable(ends[399]).unwrap();
    let ended = Arc::new(AtomicBool::new(false));
    let writer = {
        let (log, ended) = (log.clone(), ended.clone());
        spawn("writer", move || {
            let (mut n, mut end) = (400, 0);
            while !ended.load(Ordering::SeqCst) {
                end = append(&log, n);
                log.flush_soon(end);
                n += 1;
            }
            log.wait_durable(end).unwrap();
            n
        })
    };
    // What was written meanwhile is needed until the next checkpoint.
    for _ in 0..12 {
        let t = log.begin_checkpoint();
        sleep(us(300));
        log.complete_checkpoint(t).unwrap();
        if log.stats().shrinks > 0 {
            break;
        }
    }
    ended.store(true, Ordering::SeqCst);
    let written = writer.join().unwrap();
    let shrank = log.stats().shrinks > 0;
    log.stop();
    drop(log);
    let (log, state) = Log::open(dev, cfg, false).unwrap();
    let (groups, _) = read_all(&log, state.redo).unwrap();
    let first = written - groups.len() as u64;
    for (n, (at, found)) in (first..).zip(&groups) {
        assert_eq!(*found, body(n, 2990), "group {n} at {at}, of {written}");
    }
    shrank
}

#[test]
fn a_ring_that_shrinks_beside_a_writer_loses_nothing() {
    let run =
        |seed| sim::run(sim::Config { seed, ..sim::Config::default() }, || shrinks_beside_a_writer(seed)).unwrap();
    let shrank = (1..=60).filter(|seed| run(*seed)).count();
    assert!(shrank > 20, "it shrank {shrank} times only");
}
