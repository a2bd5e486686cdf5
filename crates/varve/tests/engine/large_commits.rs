//! Large commits beside each other: each may pin a quarter of the pool, together they leave it room to work, and each
//! of the pool's instances.

use std::time::Duration;
use varve::{Db, Devices, Durability, Keyspace, Layout, Options, PoolOptions, TxOptions};
use varve_models::{Latency, MemDevice, MemOptions};
use varve_rt::{JoinHandle, now, sim, sleep, spawn};

const CLIENTS: u64 = 8;
/// Leaves that each client's rows are in; a quarter of the pool is a little more.
const LEAVES: u64 = 120;
const ROWS_PER_LEAF: u64 = 4;
const ROWS: u64 = CLIENTS * LEAVES * ROWS_PER_LEAF;

/// Rows that fill nearly twice as many pages as the pool has, on a device that takes its time to read.
fn database(options: Options) -> (Db, Keyspace) {
    let ms = Duration::from_millis;
    let latency = Latency { read: (ms(4), ms(8)), ..Latency::default() };
    let data = MemDevice::with(0, MemOptions { latency, ..MemOptions::default() });
    let layout = Layout { page_size: 4096, log_bytes: 16 << 20, ..Layout::default() };
    let db = Db::create_on(Devices::new(data, MemDevice::new(0)), &layout, options).unwrap();
    let rows = db.create_keyspace("rows").unwrap();
    for n in 0..ROWS {
        rows.put_with(&n.to_be_bytes(), &[1; 900], Durability::None).unwrap();
    }
    db.checkpoint().unwrap();
    (db, rows)
}

/// Commits a change on each leaf of one client's part.
fn client(db: &Db, rows: &Keyspace, n: u64) -> JoinHandle<()> {
    let (db, rows) = (db.clone(), rows.clone());
    spawn(format!("client {n}"), move || {
        for round in 0..3 {
            let mut tx = db.begin_with(TxOptions::durability(Durability::None)).unwrap();
            for leaf in 0..LEAVES {
                let row = (n * LEAVES + leaf) * ROWS_PER_LEAF;
                tx.put(&rows, &row.to_be_bytes(), &[round; 30]).unwrap();
            }
            tx.commit().unwrap();
        }
    })
}

/// In virtual time, which only devices and sleeping take: so the bounds are exact for each seed.
#[test]
fn large_commits_beside_each_other_succeed_and_leave_frames_for_those_who_read() {
    for seed in 1..4 {
        sim::run(sim::Config { seed, ..sim::Config::default() }, || {
            let (db, rows) = database(Options { cache_bytes: 4 << 20, pool_frames: 512, ..Options::default() });
            let clients: Vec<_> = (0..CLIENTS).map(|n| client(&db, &rows, n)).collect();
            let (mut worst, mut n) = (Duration::ZERO, 0u64);
            while !clients.iter().all(JoinHandle::is_finished) {
                n += 1;
                let began = now();
                assert!(rows.get(&(n * 7919 % ROWS).to_be_bytes()).unwrap().is_some());
                worst = worst.max(began.elapsed());
                sleep(Duration::from_millis(1));
            }
            clients.into_iter().for_each(|client| client.join().unwrap());
            assert!(worst < Duration::from_secs(1), "a read took {worst:?} of virtual time");
            assert!(db.check().unwrap().is_clean());
            db.close().unwrap();
        })
        .unwrap();
    }
}

/// Pages lie in the instance that their id's hash names: commits that pin half of all frames may pin all of one.
#[test]
fn commits_leave_frames_in_each_of_many_small_instances() {
    for seed in 1..9 {
        sim::run(sim::Config { seed, ..sim::Config::default() }, || {
            let pool = PoolOptions { instances: Some(3), ..PoolOptions::default() };
            let (db, rows) = database(Options { cache_bytes: 4 << 20, pool_frames: 48, pool, ..Options::default() });
            let clients: Vec<_> = (0..CLIENTS).map(|n| scattered(&db, &rows, n)).collect();
            clients.into_iter().for_each(|client| client.join().unwrap());
            db.close().unwrap();
        })
        .unwrap();
    }
}

/// Commits changes on a few leaves anywhere in one client's part.
fn scattered(db: &Db, rows: &Keyspace, n: u64) -> JoinHandle<()> {
    let (db, rows) = (db.clone(), rows.clone());
    spawn(format!("client {n}"), move || {
        for round in 0..200 {
            let mut tx = db.begin_with(TxOptions::durability(Durability::None)).unwrap();
            for leaf in 0..7 {
                let row = (n * LEAVES + (round * 17 + leaf * 13) % LEAVES) * ROWS_PER_LEAF;
                tx.put(&rows, &row.to_be_bytes(), &[round as u8; 30]).unwrap();
            }
            tx.commit().unwrap();
        }
    })
}
