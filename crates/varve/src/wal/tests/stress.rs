//! Reservation and publication under many threads: in simulation with chaos (interleavings) and on OS threads (memory
//! order).

use super::*;
use std::time::Duration;
use varve_device::OpKind;
use varve_models::{Fault, FaultPlan, Faulty, MemOptions};
use varve_rt::{Mutex, Rng, rng, sim, sleep, spawn};

/// One group as its writer saw it.
#[derive(Debug, Clone, Copy)]
struct Written {
    start: Lsn,
    end: Lsn,
    floor: Lsn,
    writer: u64,
    n: u64,
}

fn content(w: u64, n: u64) -> Vec<u8> {
    let len = Rng::from_seed(w << 40 ^ n).below(if n.is_multiple_of(97) { 30_000 } else { 400 });
    body(w << 32 | n, len as usize)
}

/// Writers and checkpoints at once; then every group is read back, and lies on the right side of every floor.
fn run(threads: u64, each: u64, checkpoint_every: Duration) {
    let dev: Arc<dyn Device> = MemDevice::with(0, MemOptions::default());
    // Room for everything, so that all of it can be read back at the end.
    let cfg = LogConfig { max_capacity: 64 << 20, segment: 256 << 10, ..small() };
    let log = Log::create(dev.clone(), cfg.clone(), header()).unwrap();
    log.start().unwrap();
    let floors = Arc::new(Mutex::new(vec![FIRST_LSN]));
    let stop = Arc::new(varve_rt::Event::new());
    let raiser = {
        let (log, floors, stop) = (log.clone(), floors.clone(), stop.clone());
        spawn("floors", move || {
            while !stop.wait_for(checkpoint_every) {
                let mut floors = floors.lock();
                floors.push(log.begin_checkpoint());
            }
        })
    };
    let writers: Vec<_> = (0..threads)
        .map(|w| {
            let log = log.clone();
            spawn(format!("writer-{w}"), move || {
                let mut written = Vec::new();
                for n in 0..each {
                    let bytes = content(w, n);
                    log.ensure_space(bytes.len()).unwrap();
                    let (at, floor) = loop {
                        let floor = log.floor();
                        match log.append(GroupKind::Commit, Some(floor.epoch), &bytes) {
                            Ok(at) => break (at, floor.lsn),
                            Err(AppendError::EpochMoved) => {}
                            Err(e) => panic!("{e}"),
                        }
                    };
                    written.push(Written { start: at.start, end: at.end, floor, writer: w, n });
                    if n % 8 == w {
                        log.wait_durable(at.end).unwrap();
                        assert!(log.durable_lsn() >= at.end);
                    }
                }
                written
            })
        })
        .collect();
    let mut all: Vec<Written> = writers.into_iter().flat_map(|w| w.join().unwrap()).collect();
    stop.set();
    raiser.join().unwrap();
    log.wait_durable(log.end_lsn()).unwrap();
    log.stop();
    all.sort_by_key(|g| g.start);
    assert!(all.windows(2).all(|w| w[0].end <= w[1].start), "places overlap");
    let floors = floors.lock();
    for g in &all {
        let newest = floors.iter().rev().find(|t| **t <= g.start).unwrap();
        assert_eq!(g.floor, *newest, "a checkpoint slipped between floor and place of {g:?}");
    }
    drop(log);
    // Miri looks at the threads' accesses, which are over; the whole log read back takes it a quarter of an hour.
    if cfg!(miri) {
        return;
    }
    let (_, groups, _) = recover(&dev, cfg).unwrap();
    assert_eq!(groups.len(), all.len());
    for (g, (end, bytes)) in all.iter().zip(&groups) {
        assert_eq!(g.end, *end);
        assert!(*bytes == content(g.writer, g.n), "the bytes of {g:?}");
    }
}

#[test]
fn every_interleaving_tried_keeps_groups_apart_and_floors_exact() {
    for seed in 0..60 {
        let config = sim::Config { seed, chaos: true, ..Default::default() };
        let outcome = sim::run(config, || run(4, 60, Duration::from_micros(200)));
        outcome.result.unwrap_or_else(|e| panic!("seed {seed}: {e:?}"));
    }
}

#[test]
fn threads_keep_groups_apart_and_floors_exact() {
    let (times, threads, each) = if cfg!(miri) { (1, 2, 20) } else { (3, 6, 3000) };
    for _ in 0..times {
        run(threads, each, Duration::from_millis(1));
    }
}

#[test]
fn a_failed_write_poisons_the_log_for_everyone_and_is_never_believed() {
    for seed in 0..40 {
        let config = sim::Config { seed, chaos: true, ..Default::default() };
        let outcome = sim::run(config, move || {
            let mem = MemDevice::with(0, MemOptions { seed, ..MemOptions::default() });
            let log = Log::create(mem.clone(), small(), header()).unwrap();
            let end = log.append(GroupKind::Commit, None, b"before").unwrap().end;
            log.wait_durable(end).unwrap();
            drop(log);
            let plan = FaultPlan::new(seed).nth(5 + seed % 7, OpKind::Write, Fault::Eio);
            let dev: Arc<dyn Device> = Faulty::new(mem.clone(), plan);
            let (log, _, _) = recover(&dev, small()).unwrap();
            log.start().unwrap();
            let workers: Vec<_> = (0..5u64)
                .map(|w| {
                    let log = log.clone();
                    spawn(format!("writer-{w}"), move || {
                        let mut acked = 0;
                        for n in 0..200 {
                            let Ok(at) = log.append(GroupKind::Commit, None, &body(w << 32 | n, 900)) else { break };
                            if log.wait_durable(at.end).is_err() {
                                // What was reached before the failure is still acknowledged.
                                assert!(log.durable_lsn() < at.end);
                                break;
                            }
                            acked = at.end;
                            sleep(Duration::from_micros(rng().below(50)));
                        }
                        acked
                    })
                })
                .collect();
            let acked = workers.into_iter().map(|w| w.join().unwrap()).max().unwrap();
            let why = log.poisoned().expect("the log is poisoned");
            assert!(why.contains("log write") && why.contains("EIO") || why.contains("errno 5"), "{why}");
            assert!(matches!(log.ensure_space(10), Err(Error::Poisoned(_))));
            assert!(log.complete_checkpoint(log.end_lsn()).is_err());
            log.stop();
            drop(log);
            let (_, groups, end) = recover(&(mem as Arc<dyn Device>), small()).unwrap();
            assert!(end.at >= acked && groups[0].1 == b"before");
        });
        outcome.result.unwrap_or_else(|e| panic!("seed {seed}: {e:?}"));
    }
}
