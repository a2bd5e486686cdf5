//! The lab's workloads: YCSB and TPC-C, unchanged, with the lab's driver.

use std::sync::Arc;
use std::time::Duration;

use varve_lab::adapter::{Durability, TxMode};
use varve_lab::driver::{RunOptions, Until, run};
use varve_lab::ycsb::Letter;
use varve_lab::{Error, Result, tpcc, ycsb};
use varve_rt::Rng;

use super::drive::{Measured, cpu_time, cpu_us};
use super::{Scale, Session};
use crate::engine::Engine;

fn options(threads: usize, warmup: Duration, measure: Duration) -> RunOptions {
    RunOptions { threads, warmup, until: Until::Time(measure), interval: Duration::from_secs(60), rate: None }
}

/// Loads YCSB records, then measures workloads C, A and E.
pub fn run_ycsb<E: Engine>(store: &Arc<E>, session: &mut Session<'_>) -> Result<()> {
    let shape = ycsb::Shape { records: session.scale.records, ..ycsb::Shape::default() };
    ycsb::load(store, shape, session.seed, 1, |_, _| ())?;
    for (row, letter) in [("ycsb-c", Letter::C), ("ycsb-a", Letter::A), ("ycsb-e", Letter::E)] {
        if (session.wanted)(row) {
            let seed = session.seed ^ (u64::from(session.round) << 32);
            let times = (session.scale.warmup, session.scale.measure);
            (session.sink)(row, 2, measure_ycsb(store, letter, 2, times, seed)?);
        }
    }
    Ok(())
}

/// Measures a YCSB workload over loaded records, not synced, for the times of warm-up and measurement.
pub fn measure_ycsb<E: Engine>(
    store: &Arc<E>,
    letter: Letter,
    threads: usize,
    (warmup, measure): (Duration, Duration),
    seed: u64,
) -> Result<Measured> {
    // Scans in a snapshot, as the other engines have them too: no adapter but Varve's takes locks for reads.
    let scan_mode = TxMode::Snapshot;
    let workload = ycsb::Options { durability: Durability::None, seed, scan_mode, ..ycsb::Options::of(letter) };
    let workload = Arc::new(ycsb::Ycsb::new(&**store, workload)?);
    let before = cpu_time();
    let result = run(store, &workload, &options(threads, warmup, measure), |_| ())?;
    let cpu_us = cpu_us(before, result.ops_per_s * (warmup + measure).as_secs_f64());
    Ok(Measured { value: result.ops_per_s, cpu_us })
}

/// Loads YCSB records in key order, the engine's fastest way.
pub fn bulk_load_ycsb<E: Engine>(store: &E, shape: ycsb::Shape, seed: u64) -> Result<()> {
    let mut order: Vec<_> = (0..shape.records).map(|n| (shape.key(n), n)).collect();
    order.sort_unstable();
    let (mut rng, mut record) = (Rng::from_seed(seed), Vec::new());
    store.bulk_load("ycsb", |push| {
        order.iter().try_for_each(|(key, n)| {
            shape.fill(*n, &mut rng, &mut record);
            push(key, &record)
        })
    })?;
    // What the lab's loader leaves behind at its end.
    let meta = store.keyspace("ycsb_meta")?;
    let note = serde_json::to_vec(&ycsb::Loaded { version: 1, shape }).expect("plain data");
    store.put_one(&meta, b"loaded", &note, Durability::Sync)
}

/// Loads TPC-C.
pub fn load_tpcc<E: Engine>(store: &Arc<E>, scale: &Scale, seed: u64) -> Result<()> {
    tpcc::load(store, tpcc::Scale::of(scale.warehouses), seed, 2, |_| ())?;
    Ok(())
}

/// Runs TPC-C over loaded data and returns new orders per minute.
pub fn run_tpcc<E: Engine>(store: &Arc<E>, scale: &Scale, seed: u64, threads: usize) -> Result<Measured> {
    let workload = tpcc::Options { durability: Durability::Sync, seed, ..tpcc::Options::default() };
    let workload = Arc::new(tpcc::Tpcc::new(&**store, workload)?);
    let before = cpu_time();
    let result = run(store, &workload, &options(threads, scale.warmup, scale.measure_tpcc), |_| ())?;
    let value = result.tpmc.ok_or_else(|| Error::NotLoaded("the run counted no new orders".to_string()))?;
    let minutes = (scale.warmup + scale.measure_tpcc).as_secs_f64() / 60.0;
    Ok(Measured { value, cpu_us: cpu_us(before, value * minutes) })
}

/// Fails unless the twelve consistency conditions hold.
pub fn check_tpcc<E: Engine>(store: &E) -> Result<()> {
    let report = tpcc::check(store, |_, _| ())?;
    if report.consistent() {
        return Ok(());
    }
    Err(Error::Row { table: "tpcc", key: "all".to_string(), why: format!("conditions do not hold: {report}") })
}
