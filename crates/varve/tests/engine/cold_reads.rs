//! Reads with a cold cache keep the device busy, in virtual time: scans of what lies in a row and of what is scattered,
//! both ways; many keys at once; commits that change much.

use crate::async_support::block_on;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;
use varve::{Db, Devices, Durability, Keyspace, Layout, Options};
use varve_device::Device;
use varve_models::{MemDevice, Profile};
use varve_rt::{Rng, now, sim};

const PAGE: u64 = 8192;

/// Rates of a drive in a virtual machine, by the bytes of a request: requests of 8 KB one at a time 80 MB/s, many
/// 340 MB/s, long ones 1,600 MB/s.
const DRIVE: &str = "
name = \"drive\"
title = \"a drive\"
source = \"varve bench iomix on a virtual machine, rounded\"
capacity = 4_000_000_000
[mix]
read_random = [
    { kib = 4.0, mb_s = 180.0 }, { kib = 8.0, mb_s = 340.0 }, { kib = 64.0, mb_s = 1200.0 }, { kib = 256.0, mb_s = 1600.0 },
]
write_random = [{ kib = 8.0, mb_s = 300.0 }, { kib = 256.0, mb_s = 1000.0 }]
read_latency_us = 100.0
";
const RANDOM: f64 = 340e6;
const SEQUENTIAL: f64 = 1600e6;

/// The database's devices, its options, and what it was filled with.
struct Cold {
    data: Arc<dyn Device>,
    log: Arc<dyn Device>,
    options: Options,
}

impl Cold {
    fn new(cache: u64) -> Cold {
        let data = Profile::parse(DRIVE, "drive.toml").unwrap().build(1, 0).unwrap();
        let options = Options { cache_bytes: cache, durability: Durability::None, ..Options::default() };
        Cold { data, log: MemDevice::new(0), options }
    }

    fn devices(&self) -> Devices {
        Devices::new(self.data.clone(), self.log.clone())
    }

    fn create(&self) -> Db {
        let layout = Layout { log_bytes: 64 << 20, ..Layout::default() };
        Db::create_on(self.devices(), &layout, self.options.clone()).unwrap()
    }

    /// The database anew, nothing in memory.
    fn open(&self) -> (Db, Keyspace) {
        let db = Db::open_on(self.devices(), self.options.clone()).unwrap();
        let rows = db.keyspace("rows").unwrap();
        (db, rows)
    }

    /// Rows in the order of their keys, in finished leaves.
    fn load(&self, rows: u64, bytes: usize) {
        let db = self.create();
        let mut load = db.bulk_load("rows").unwrap();
        (0..rows).for_each(|n| load.push(&n.to_be_bytes(), &vec![n as u8; bytes]).unwrap());
        load.finish().unwrap();
        db.close().unwrap();
    }

    /// Rows one after the other in no order, so that leaves that follow one another lie anywhere.
    fn scatter(&self, rows: u64, bytes: usize) {
        let db = self.create();
        let keyspace = db.create_keyspace("rows").unwrap();
        permuted(rows).for_each(|n| keyspace.put(&n.to_be_bytes(), &vec![n as u8; bytes]).unwrap());
        db.close().unwrap();
    }

    fn bytes_read(db: &Db) -> u64 {
        db.stats().data_device.read.bytes
    }

    /// Scans all rows of a database just opened; bytes read in a second.
    fn scan(&self, rows: u64, reverse: bool) -> f64 {
        let (db, keyspace) = self.open();
        let began = now();
        let mut seen = 0;
        if reverse {
            for row in db.snapshot().unwrap().scan_rev(&keyspace, ..).unwrap() {
                seen += u64::from(!row.unwrap().0.is_empty());
            }
        } else {
            let count = |_: &[u8], _: &[u8]| {
                seen += 1;
                ControlFlow::Continue(())
            };
            keyspace.scan_with(.., count).unwrap();
        }
        assert_eq!(seen, rows);
        let rate = Cold::bytes_read(&db) as f64 / began.elapsed().as_secs_f64();
        drop(keyspace);
        db.close().unwrap();
        rate
    }
}

/// All numbers below `n`, which is a power of two, in no order.
fn permuted(n: u64) -> impl Iterator<Item = u64> {
    assert!(n.is_power_of_two());
    (0..n).map(move |i| i.wrapping_mul(0x9E37_79B1) % n)
}

fn run(f: impl FnOnce() + Send + 'static) {
    sim::run(sim::Config { seed: 7, ..sim::Config::default() }, f).unwrap();
}

/// What lies in a row is read in long requests, several of them at a time.
#[test]
fn a_cold_scan_of_loaded_rows_reads_at_the_devices_sequential_rate() {
    for (cache, rows) in [(16 << 20, 1 << 12), (64 << 20, 1 << 13)] {
        run(move || {
            let cold = Cold::new(cache);
            cold.load(rows, 1900);
            for reverse in [false, true] {
                let rate = cold.scan(rows, reverse);
                assert!(rate >= 0.7 * SEQUENTIAL, "{} MB/s, cache {cache}, reverse {reverse}", rate / 1e6);
            }
        });
    }
}

#[test]
fn a_cold_scan_of_scattered_rows_reads_at_the_devices_random_rate() {
    for (cache, rows) in [(16 << 20, 1 << 12), (64 << 20, 1 << 13)] {
        run(move || {
            let cold = Cold::new(cache);
            cold.scatter(rows, 1900);
            for reverse in [false, true] {
                let rate = cold.scan(rows, reverse);
                assert!(rate >= 0.5 * RANDOM, "{} MB/s, cache {cache}, reverse {reverse}", rate / 1e6);
            }
        });
    }
}

/// Keys anywhere, some twice, some that are not there: in the order in which they were asked for.
#[test]
fn many_keys_at_once_cost_what_the_device_takes_for_their_pages_side_by_side() {
    run(|| {
        let cold = Cold::new(16 << 20);
        cold.scatter(1 << 12, 1900);
        let mut rng = Rng::from_seed(3);
        let keys: Vec<u64> = (0..1500).map(|_| rng.below((1 << 12) + 100)).collect();
        let (db, rows) = cold.open();
        let names: Vec<[u8; 8]> = keys.iter().map(|n| n.to_be_bytes()).collect();
        let began = now();
        let values = rows.multi_get(&names).unwrap();
        let rate = Cold::bytes_read(&db) as f64 / began.elapsed().as_secs_f64();
        let expected = |n: &u64| (*n < 1 << 12).then(|| vec![*n as u8; 1900]);
        assert_eq!(values, keys.iter().map(expected).collect::<Vec<_>>());
        assert!(rate >= 0.5 * RANDOM, "{} MB/s", rate / 1e6);
        assert_eq!(db.snapshot().unwrap().multi_get(&rows, &names).unwrap(), values);
        let in_transaction = db.transact(|tx| {
            tx.put(&rows, &names[0], b"new")?;
            tx.multi_get(&rows, &names[..2])
        });
        assert_eq!(in_transaction.unwrap()[0].as_deref(), Some(&b"new"[..]));
        drop(rows);
        db.close().unwrap();
    });
}

/// The same of calls that nobody waits for, each of one key.
#[test]
fn many_calls_that_nobody_waits_for_keep_the_device_busy() {
    run(|| {
        let cold = Cold::new(16 << 20);
        cold.scatter(1 << 12, 1900);
        let (db, rows) = cold.open();
        let began = now();
        let reads: Vec<_> = permuted(1 << 12).take(1500).map(|n| (n, rows.get_async(n.to_be_bytes()))).collect();
        let asked = began.elapsed();
        assert!(asked < Duration::from_millis(1), "the caller waited for {asked:?}");
        for (n, read) in reads {
            assert_eq!(block_on(read).unwrap(), Some(vec![n as u8; 1900]));
        }
        let rate = Cold::bytes_read(&db) as f64 / began.elapsed().as_secs_f64();
        assert!(rate >= 0.5 * RANDOM, "{} MB/s", rate / 1e6);
        drop(rows);
        db.close().unwrap();
    });
}

/// A commit asks for the leaves that it is going to change.
#[test]
fn a_commit_of_many_rows_reads_their_pages_side_by_side() {
    run(|| {
        let cold = Cold::new(32 << 20);
        cold.scatter(1 << 12, 1900);
        let (db, rows) = cold.open();
        let began = now();
        let mut tx = db.begin().unwrap();
        for n in permuted(1 << 12).take(600) {
            tx.put(&rows, &n.to_be_bytes(), b"short").unwrap();
        }
        tx.commit().unwrap();
        let (took, pages) = (began.elapsed(), Cold::bytes_read(&db) / PAGE);
        let one_by_one = Duration::from_micros(100) * pages as u32;
        assert!(took * 2 < one_by_one, "{pages} pages in {took:?}, one by one {one_by_one:?}");
        drop(rows);
        db.close().unwrap();
    });
}
