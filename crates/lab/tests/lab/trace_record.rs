//! A trace of a running database: replayed, it misses what the pool missed, and its flushes are the pool's writes.

use std::path::{Path, PathBuf};
use varve::{Db, Durability, Layout, Options, TraceEvent};
use varve_lab::replay::{self, References, Shape};
use varve_lab::trace::{Format, ReadOptions, Reader, Record, Recorder};
use varve_rt::Rng;

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let dir = std::env::temp_dir().join(format!("varve-trace-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        Dir(dir)
    }

    fn trace(&self) -> PathBuf {
        self.0.join("trace")
    }

    fn db(&self) -> PathBuf {
        self.0.join("db")
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const ROWS: u64 = 30_000;
const FRAMES: usize = 256;

fn key(n: u64) -> [u8; 8] {
    n.to_be_bytes()
}

fn load(dir: &Dir) {
    let db = Db::create(dir.db(), &Layout { page_size: 4096, ..Layout::default() }, Options::default()).unwrap();
    let rows = db.create_keyspace("rows").unwrap();
    for from in (0..ROWS).step_by(1000) {
        let mut tx = db.begin().unwrap();
        (from..from + 1000).for_each(|n| tx.put(&rows, &key(n), &[n as u8; 150]).unwrap());
        tx.commit().unwrap();
    }
    drop(rows);
    db.close().unwrap();
}

/// Opens with a small pool and records everything from the first page on.
fn open(dir: &Dir, recorder: &std::sync::Arc<Recorder>) -> Db {
    recorder.start(&dir.trace(), 4096).unwrap();
    let options = Options {
        durability: Durability::None,
        pool: "replacement=lru,instances=1".parse().unwrap(),
        pool_frames: FRAMES,
        cleaners: false,
        trace: Some(recorder.handle()),
        ..Options::default()
    };
    Db::open(dir.db(), options).unwrap()
}

fn read(path: &Path) -> (Vec<Record>, References) {
    let open = || Reader::open(path, &ReadOptions::default()).unwrap();
    let mut reader = open();
    assert_eq!((reader.format(), reader.page_size()), (Format::Varve, Some(4096)));
    let mut records = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        records.push(record);
    }
    (records, References::read(&mut open(), &Shape::default()).unwrap())
}

#[test]
fn replay_misses_what_the_pool_missed() {
    let dir = Dir::new("reads");
    load(&dir);
    let recorder = Recorder::new();
    let db = open(&dir, &recorder);
    let rows = db.keyspace("rows").unwrap();
    let mut rng = Rng::from_seed(1);
    for _ in 0..20_000 {
        let n = (ROWS as f64 * rng.f64().powi(3)) as u64;
        assert!(rows.get(&key(n)).unwrap().is_some());
    }
    let pool = db.stats().pool;
    let events = recorder.finish().unwrap();
    drop(rows);
    db.close().unwrap();
    let (records, refs) = read(&dir.trace());
    assert_eq!(records.len() as u64, events);
    let (hits, missed) = (pool.total().hits + pool.hits_dropped, pool.total().misses);
    assert!(missed > 2000 && hits > 20_000, "{hits} hits, {missed} misses tell nothing");
    assert_eq!(refs.len(), hits + missed, "every access is in the trace once");
    let replayed = replay::point(&refs, "lru", FRAMES, &replay::policy_options()).unwrap();
    // Hits reach the pool's policy in small batches, so the two may differ by a hair.
    assert!(replayed.misses.abs_diff(missed) * 100 <= missed, "replay misses {}, the pool {missed}", replayed.misses);
}

#[test]
fn flushes_are_the_pools_writes_with_their_changed_bytes() {
    let dir = Dir::new("writes");
    load(&dir);
    let recorder = Recorder::new();
    let db = open(&dir, &recorder);
    let rows = db.keyspace("rows").unwrap();
    let mut rng = Rng::from_seed(2);
    for _ in 0..3000 {
        rows.put(&key(rng.below(ROWS)), &[rng.below(256) as u8; 150]).unwrap();
    }
    db.checkpoint().unwrap();
    let (pool, counted, id) = (db.stats().pool, db.stats().updates, rows.id());
    recorder.about(&db);
    recorder.finish().unwrap();
    drop(rows);
    db.close().unwrap();
    let (records, refs) = read(&dir.trace());
    let (flushes, known, changed) = refs.flushes;
    assert_eq!(refs.about.keyspaces.get(&id).map(String::as_str), Some("rows"));
    assert!(refs.about.pages > 1000, "{:?}", refs.about);
    for of in &counted {
        assert_eq!(refs.updates[&of.keyspace], of.sizes, "the statistics count what is in the trace");
    }
    let sizes = refs.updates[&id];
    assert!(sizes.updates > 1000 && sizes.more == 0, "{sizes:?}");
    for record in &records {
        let Record::Pool { event: TraceEvent::Flush(flush), .. } = record else { continue };
        let Some(changed) = flush.changed.filter(|_| !flush.new) else { continue };
        let header = changed.gross.unwrap() - changed.net;
        assert!((1..=8).contains(&header), "of the header the LSN changes: {flush:?}");
    }
    assert_eq!(flushes, pool.replacement_writes + pool.recoverability_writes + pool.checkpoint_writes);
    assert!(flushes > 1000 && known * 10 > flushes * 9, "{known} of {flushes} flushes with changed bytes");
    // A flush covers one new value of 150 bytes, or a few.
    let mean = changed / known;
    assert!((100..1000).contains(&mean), "{mean} bytes changed by a flush");
}
