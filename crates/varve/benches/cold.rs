//! A database with a cold cache, on a real device: scans, many keys, random inserts, opening, and how small and many
//! databases can be. `cargo bench -p varve --bench cold -- DIR [MIB]`
//!
//! Beside each rate stands what the device gives by itself: reads of 256 KiB in a row, four at a time, and of 8 KiB at
//! random places, 32 at a time. Direct I/O, unless a row says otherwise.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;
use varve::{Db, Durability, Layout, Options};
use varve_device::{AlignedBuf, Device, FileDevice, Io};
use varve_rt::{Rng, now};

const ROW: usize = 100;
const PAGE: usize = 8192;

fn options(cache: u64) -> Options {
    Options { cache_bytes: cache, durability: Durability::None, ..Options::default() }
}

/// Reads `count` pieces of the file, `depth` at a time; MB/s.
fn device(path: &Path, size: usize, depth: usize, place: &mut dyn FnMut() -> u64) -> f64 {
    let file = FileDevice::open(path, varve_device::Options::default()).unwrap();
    let mut buffers: Vec<AlignedBuf> = (0..depth).map(|_| AlignedBuf::new(size)).collect();
    let (began, mut bytes) = (now(), 0);
    while began.elapsed() < Duration::from_secs(2) {
        // SAFETY: each buffer is one request's, and all of them are waited for before it is used again.
        let batch = buffers.iter_mut().map(|b| unsafe { Io::read(place(), b.as_mut_ptr(), size) }).collect();
        file.submit(batch).wait_all().unwrap();
        bytes += size * depth;
    }
    bytes as f64 / 1e6 / began.elapsed().as_secs_f64()
}

/// What the device gives: in a row, and at random places; MB/s.
fn rates(dir: &Path) -> (f64, f64) {
    let (path, mut at, mut rng) = (dir.join("data"), 0, Rng::from_seed(1));
    let len = std::fs::metadata(&path).unwrap().len();
    let row = device(&path, 256 << 10, 4, &mut || {
        at = (at + (256 << 10)) % (len / 2 / (256 << 10) * (256 << 10));
        at
    });
    let random = device(&path, PAGE, 32, &mut || rng.below(len / PAGE as u64) * PAGE as u64);
    (row, random)
}

fn scan(dir: &Path, options: Options, reverse: bool) -> f64 {
    let db = Db::open(dir, options).unwrap();
    let rows = db.keyspace("rows").unwrap();
    let (began, mut bytes) = (now(), 0usize);
    if reverse {
        db.snapshot().unwrap().scan_rev(&rows, ..).unwrap().for_each(|row| bytes += row.unwrap().1.len());
    } else {
        rows.scan_with(.., |_, value| {
            bytes += value.len();
            ControlFlow::Continue(())
        })
        .unwrap();
    }
    let rate = db.stats().data_device.read.bytes as f64 / 1e6 / began.elapsed().as_secs_f64();
    assert!(bytes > 0);
    drop(rows);
    db.close().unwrap();
    rate
}

fn key(n: u64) -> [u8; 8] {
    n.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes()
}

fn fresh(dir: &Path) -> PathBuf {
    let _ = std::fs::remove_dir_all(dir);
    dir.to_path_buf()
}

fn disk_bytes(dir: &Path) -> u64 {
    std::fs::read_dir(dir).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).sum()
}

fn scans(dir: &Path, mib: u64) {
    let (loaded, count) = (fresh(&dir.join("loaded")), mib * (1 << 20) / (ROW as u64 + 16));
    let db = Db::create(&loaded, &Layout::default(), options(64 << 20)).unwrap();
    let mut load = db.bulk_load("rows").unwrap();
    (0..count).for_each(|n| load.push(&n.to_be_bytes(), &[7; ROW]).unwrap());
    load.finish().unwrap();
    db.close().unwrap();
    let (row, random) = rates(&loaded);
    println!("device: {row:.0} MB/s in a row, {random:.0} MB/s at random");
    for (name, cache) in [("16 MB", 16 << 20), ("64 MB", 64 << 20), ("default", 0)] {
        let (forward, back) = (scan(&loaded, options(cache), false), scan(&loaded, options(cache), true));
        let share = forward / row;
        println!(
            "scan of {mib} MiB loaded, cache {name}: {forward:.0} MB/s ({share:.2} of the device), back {back:.0}"
        );
    }
    let buffered = Options { direct_io: false, ..options(64 << 20) };
    println!("the same by the system's cache (warm): {:.0} MB/s", scan(&loaded, buffered, false));

    let (scattered, count) = (fresh(&dir.join("scattered")), mib / 4 * (1 << 20) / (ROW as u64 + 16));
    let db = Db::create(&scattered, &Layout::default(), options(1 << 30)).unwrap();
    let rows = db.create_keyspace("rows").unwrap();
    (0..count).for_each(|n| rows.put(&key(n), &[7; ROW]).unwrap());
    drop(rows);
    db.close().unwrap();
    let (_, random) = rates(&scattered);
    for (name, cache) in [("16 MB", 16 << 20), ("default", 0)] {
        let rate = scan(&scattered, options(cache), false);
        println!("scan of {} MiB scattered, cache {name}: {rate:.0} MB/s ({:.2} of random)", mib / 4, rate / random);
    }
    let db = Db::open(&scattered, options(64 << 20)).unwrap();
    let rows = db.keyspace("rows").unwrap();
    let mut rng = Rng::from_seed(2);
    let keys: Vec<[u8; 8]> = (0..5000).map(|_| key(rng.below(count))).collect();
    let (began, half) = (now(), keys.len() / 2);
    keys[..half].iter().for_each(|key| assert!(rows.get(key).unwrap().is_some()));
    let singly = began.elapsed();
    let began = now();
    assert!(rows.multi_get(&keys[half..]).unwrap().iter().all(Option::is_some));
    println!("{half} keys: get {singly:.2?}, multi_get {:.2?}", began.elapsed());
    drop(rows);
    db.close().unwrap();
}

fn inserts(dir: &Path, rows_of: u64) {
    for (how, direct_io, batch) in [
        ("direct, one by one", true, 1),
        ("direct, 1000 a commit", true, 1000),
        ("buffered, one by one", false, 1),
        ("buffered, 1000 a commit", false, 1000),
    ] {
        let dir = fresh(&dir.join("inserts"));
        let options = Options { direct_io, ..options(64 << 20) };
        let db = Db::create(&dir, &Layout::default(), options).unwrap();
        let rows = db.create_keyspace("rows").unwrap();
        let began = now();
        for first in (0..rows_of).step_by(batch) {
            if batch == 1 {
                rows.put(&key(first), &[7; ROW]).unwrap();
                continue;
            }
            db.transact(|tx| (first..first + batch as u64).try_for_each(|n| tx.put(&rows, &key(n), &[7; ROW])))
                .unwrap();
        }
        let took = began.elapsed();
        let (s, d) = (db.stats(), db.stats().data_device);
        println!(
            "{rows_of} random inserts, cache 64 MB, {how}: {took:.1?}; {} page reads, {} writes, {} ms in reads, \
             {} ms in writes, {} stalls",
            d.read.count,
            d.write.count,
            d.read.nanos / 1_000_000,
            d.write.nanos / 1_000_000,
            s.pool.stalls
        );
        drop(rows);
        db.close().unwrap();
    }
}

fn small_and_many(dir: &Path) {
    let one = fresh(&dir.join("fresh"));
    Db::create(&one, &Layout::default(), Options::default()).unwrap().close().unwrap();
    println!("a fresh database: {} bytes", disk_bytes(&one));
    let began = now();
    let db = Db::open(dir.join("loaded"), Options::default()).unwrap();
    println!("opening the loaded one, clean: {:.1?}, cache {}", began.elapsed(), db.stats().cache_bytes);
    let rows = db.keyspace("rows").unwrap();
    (0..200_000u64).for_each(|n| rows.put(&(n * 7).to_be_bytes(), &[8; ROW]).unwrap());
    println!(
        "log in use: {} bytes",
        disk_bytes(&dir.join("loaded")) - std::fs::metadata(dir.join("loaded/data")).unwrap().len()
    );
    drop((rows, db));
    let began = now();
    let db = Db::open(dir.join("loaded"), Options::default()).unwrap();
    println!("opening it after a crash: {:.1?}; {:?}", began.elapsed(), db.recovery_report());
    db.close().unwrap();
    println!(
        "log after a close: {} bytes",
        disk_bytes(&dir.join("loaded")) - std::fs::metadata(dir.join("loaded/data")).unwrap().len()
    );
    let count = |what: &str| std::fs::read_dir(format!("/proc/self/{what}")).unwrap().count();
    let (threads, files) = (count("task"), count("fd"));
    let many: Vec<Db> = (0..40)
        .map(|n| {
            let db = Db::create(fresh(&dir.join(format!("many-{n}"))), &Layout::default(), Options::default()).unwrap();
            let rows = db.create_keyspace("rows").unwrap();
            (0..100u64).for_each(|n| rows.put(&n.to_be_bytes(), &[1; ROW]).unwrap());
            db
        })
        .collect();
    println!("40 databases: {} threads, {} descriptors", count("task") - threads, count("fd") - files);
    many.iter().for_each(|db| db.close().unwrap());
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let dir = args.first().map_or_else(|| std::env::temp_dir().join("varve-cold"), PathBuf::from);
    let mib = args.get(1).map_or(600, |n| n.parse().expect("MiB"));
    scans(&dir, mib);
    small_and_many(&dir);
    inserts(&dir, 1_000_000);
    std::fs::remove_dir_all(&dir).unwrap();
}
