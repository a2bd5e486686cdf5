//! Loading the records, in parallel and in key order as far as memory allows, and checking them.
//!
//! As in TPC-C, `ycsb_meta` holds `loading` before the first record and `loaded` after the last.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use varve_rt::Rng;
use varve_rt::atomic::{AtomicU64, Ordering};

use super::distribution::scatter;
use super::{Shape, YcsbKey};
use crate::adapter::{Direction, Durability, End, KeyRange, Store, TxMode, Txn, transact};
use crate::batch::Batch;
use crate::error::{Error, Result};

/// What the loader writes down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Loaded {
    /// Layout of records and keys; this build reads and writes 1.
    pub version: u32,
    /// What the records look like.
    pub shape: Shape,
}

/// Layout that this build reads and writes.
const VERSION: u32 = 1;

/// Records that are sorted by key at a time.
const PART: u64 = 100_000;

/// Reads what the loader wrote down: `None` if the store holds no completely loaded YCSB data.
pub fn loaded<S: Store>(store: &S) -> Result<Option<Loaded>> {
    read_meta(store, b"loaded")
}

fn read_meta<S: Store>(store: &S, name: &[u8]) -> Result<Option<Loaded>> {
    let Some(meta) = store.find_keyspace("ycsb_meta")? else { return Ok(None) };
    let bytes = transact(store, TxMode::ReadOnly, Durability::Sync, |tx| {
        Ok((tx.get(&meta, name, |v| v.map(<[u8]>::to_vec))?, End::Commit))
    })?;
    let Some(bytes) = bytes else { return Ok(None) };
    let note: Loaded = serde_json::from_slice(&bytes).map_err(|e| Error::Row {
        table: "ycsb_meta",
        key: String::from_utf8_lossy(name).into_owned(),
        why: e.to_string(),
    })?;
    if note.version != VERSION {
        let why = format!("its YCSB data has layout {}, this build knows {VERSION}", note.version);
        return Err(Error::NotLoaded(why));
    }
    note.shape.validate()?;
    Ok(Some(note))
}

fn write_meta<S: Store>(store: &S, name: &[u8], note: &Loaded, how: Durability) -> Result<()> {
    let meta = store.keyspace("ycsb_meta")?;
    let bytes = serde_json::to_vec(note).expect("plain data");
    transact(store, TxMode::ReadWrite, how, |tx| Ok((tx.put(&meta, name, &bytes)?, End::Commit)))
}

/// Loads the records with `threads` threads. `progress` is called on the calling thread with the records written and
/// their number.
///
/// Errors: the shape is not possible, the store holds records of another shape, or the store failed.
pub fn load<S: Store>(
    store: &Arc<S>,
    shape: Shape,
    seed: u64,
    threads: usize,
    mut progress: impl FnMut(u64, u64),
) -> Result<Loaded> {
    shape.validate()?;
    let note = Loaded { version: VERSION, shape };
    if let Some(earlier) = read_meta(&**store, b"loading")?
        && earlier != note
    {
        return Err(Error::NotLoaded(format!("it holds YCSB data of {:?}, not of {shape:?}", earlier.shape)));
    }
    write_meta(&**store, b"loading", &note, Durability::None)?;
    let records = store.keyspace("ycsb")?;
    let parts = shape.records.div_ceil(PART);
    let next = Arc::new(AtomicU64::new(0));
    let (send, receive) = varve_rt::channel::unbounded::<u64>();
    let mut workers = Vec::new();
    for i in 0..threads.clamp(1, parts as usize) {
        let (store, records, next, send) = (store.clone(), records.clone(), next.clone(), send.clone());
        workers.push(varve_rt::spawn(format!("ycsb-load-{i}"), move || -> Result<()> {
            loop {
                let part = next.fetch_add(1, Ordering::Relaxed);
                if part >= parts {
                    return Ok(());
                }
                let mut report = |rows| _ = send.send(rows);
                let mut batch = Batch::new(&*store, &mut report);
                let mut rng = Rng::from_seed(seed ^ (part + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
                let mut record = Vec::new();
                for (key, n) in keys_of_part(&shape, part, parts) {
                    shape.fill(n, &mut rng, &mut record);
                    batch.put(&records, &key, &record)?;
                }
                batch.flush()?;
            }
        }));
    }
    drop(send);
    let mut written = 0;
    while let Ok(more) = receive.recv() {
        written += more;
        progress(written, shape.records);
    }
    for worker in workers {
        let name = worker.name().to_string();
        worker.join().map_err(|_| Error::WorkerPanicked(name))??;
    }
    write_meta(&**store, b"loaded", &note, Durability::Sync)?;
    Ok(note)
}

/// The keys of one part in order, with their record numbers. Parts are ranges of keys, so the store sees the keys of
/// each ascend.
fn keys_of_part(shape: &Shape, part: u64, parts: u64) -> Vec<(YcsbKey, u64)> {
    let place =
        |n: u64| if shape.ordered { n / PART } else { ((u128::from(scatter(n)) * u128::from(parts)) >> 64) as u64 };
    let numbers = if shape.ordered { part * PART..((part + 1) * PART).min(shape.records) } else { 0..shape.records };
    let mut keys: Vec<_> = numbers.filter(|n| place(*n) == part).map(|n| (shape.key(n), n)).collect();
    keys.sort_unstable();
    keys
}

/// What a check found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Records there are.
    pub records: u64,
    /// Number of failures.
    pub failures: u64,
    /// The first failures, readable.
    pub first: Vec<String>,
}

impl CheckReport {
    /// Whether everything holds.
    pub fn consistent(&self) -> bool {
        self.failures == 0
    }

    fn fail(&mut self, text: String) {
        self.failures += 1;
        if self.first.len() < 10 {
            self.first.push(text);
        }
    }
}

impl fmt::Display for CheckReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for failure in &self.first {
            writeln!(f, "{failure}")?;
        }
        match self.consistent() {
            true => writeln!(f, "consistent: {} records", self.records),
            false => writeln!(f, "NOT consistent: {} failures in {} records", self.failures, self.records),
        }
    }
}

/// Checks that each record stands under its key and that none of the loaded ones is missing.
///
/// Errors: there are no loaded records, or the store failed. Records that are wrong are not an error but a report
/// that says so.
pub fn check<S: Store>(store: &S) -> Result<CheckReport> {
    let shape = loaded(store)?.ok_or_else(|| Error::NotLoaded("it holds no complete YCSB data".into()))?.shape;
    let records = store.keyspace("ycsb")?;
    let mut report = CheckReport::default();
    let mut of_the_load = 0;
    let mut tx = store.begin(TxMode::ReadOnly, Durability::None)?;
    tx.scan(&records, KeyRange::ALL, Direction::Forward, |key, value| {
        report.records += 1;
        let mut head = [0; 8];
        let len = value.len().min(8);
        head[..len].copy_from_slice(&value[..len]);
        let n = u64::from_le_bytes(head);
        // Records of less than eight bytes cannot tell their number.
        let told = shape.record_length() >= 8;
        let name = String::from_utf8_lossy(key);
        if value.len() != shape.record_length() {
            report.fail(format!("ycsb {name}: {} bytes long, {} expected", value.len(), shape.record_length()));
        } else if told && *shape.key(n) != *key {
            report.fail(format!("ycsb {name}: it holds record {n}, which belongs elsewhere"));
        } else {
            of_the_load += u64::from(!told || n < shape.records);
        }
        ControlFlow::Continue(())
    })?;
    tx.commit()?;
    if of_the_load < shape.records {
        report.fail(format!("ycsb: {of_the_load} of the {} loaded records are whole", shape.records));
    }
    Ok(report)
}
