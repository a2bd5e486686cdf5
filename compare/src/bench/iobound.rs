//! Reads that go to the device: uniformly random records of far more data than cache, beside what fio gets out of the
//! same file.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use varve_lab::ycsb::Shape;
use varve_lab::{Error, Result};

use super::drive::{Measured, Timing, rate};
use crate::engine::Engine;

/// Client threads, and fio's requests in flight.
pub const DEPTH: usize = 32;

/// Reads random records.
pub fn reads<E: Engine>(store: &Arc<E>, ks: &E::Keyspace, shape: Shape, timing: Timing, seed: u64) -> Result<Measured> {
    let ks = ks.clone();
    rate(store, DEPTH, timing, seed, move |store, rng| {
        let n = rng.below(shape.records);
        let key = shape.key(n);
        let missing = || Error::Missing { table: "ycsb", key: n.to_string() };
        store.get_one(&ks, &key, |value| value.ok_or_else(missing).and_then(|v| shape.verify(n, &key, v)))??;
        Ok(1)
    })
}

/// fio's two ways of having [`DEPTH`] requests in flight: its threads, and its options for that.
pub const FIO_WAYS: [(usize, [&str; 2]); 2] =
    [(DEPTH, ["--ioengine=psync", "--numjobs=32"]), (1, ["--ioengine=io_uring", "--iodepth=32"])];

/// Random reads of 4 KB per second of fio, past the page cache, from `file`.
///
/// Errors: fio is missing, or failed.
pub fn fio(file: &Path, way: [&str; 2], timing: Timing) -> Result<Measured> {
    let seconds = |time: Duration| time.as_secs().max(1);
    let out = Command::new("fio")
        .args(["--name=reads", "--readonly", "--rw=randread", "--bs=4k", "--direct=1", "--thread", "--time_based"])
        .args(["--randrepeat=0", "--norandommap", "--group_reporting", "--output-format=json"])
        .args(way)
        .arg(format!("--filename={}", file.display()))
        .arg(format!("--ramp_time={}", seconds(timing.warmup)))
        .arg(format!("--runtime={}", seconds(timing.measure)))
        .output()
        .map_err(|e| Error::store(format!("cannot run fio: {e}; apt-get install fio")))?;
    let read = || -> Option<Measured> {
        let report: serde_json::Value = serde_json::from_slice(&out.stdout).ok()?;
        let job = &report["jobs"][0];
        let value = job["read"]["iops"].as_f64()?;
        let processor = job["usr_cpu"].as_f64()? + job["sys_cpu"].as_f64()?;
        Some(Measured { value, cpu_us: processor / 100.0 * 1e6 / value })
    };
    let said = || String::from_utf8_lossy(&out.stderr).trim().to_string();
    read().filter(|_| out.status.success()).ok_or_else(|| Error::store(format!("fio {}: {}", out.status, said())))
}
