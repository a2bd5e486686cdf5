//! What commits cost that wait for no device: single writes, and transactions of one to 64 keys, with one thread and
//! with two.
//!
//! `cargo bench -p varve --bench commits`. Each figure is the best of many short slices, so that two builds can be run
//! in turns on a busy machine.

use std::time::Duration;
use varve::{Db, Devices, Durability, Keyspace, Layout, Options};
use varve_models::MemDevice;
use varve_rt::{Rng, now, spawn};

const ROWS: u64 = 100_000;
const SLICES: usize = 60;

type Work = fn(&Db, &Keyspace, &mut Rng);

fn transaction<const KEYS: u64>(db: &Db, rows: &Keyspace, rng: &mut Rng) {
    let first = rng.below(ROWS - KEYS);
    let write = |tx: &mut varve::Transaction| {
        (0..KEYS).try_for_each(|n| tx.put(rows, &((first + n * 1009) % ROWS).to_be_bytes(), &[3; 100]))
    };
    db.transact(write).expect("commits");
}

fn single(_: &Db, rows: &Keyspace, rng: &mut Rng) {
    rows.put(&rng.below(ROWS).to_be_bytes(), &[2; 100]).expect("puts");
}

/// Nanoseconds per operation: the best of the slices.
fn best(db: &Db, rows: &Keyspace, seed: u64, ops: u32, work: Work) -> f64 {
    let mut rng = Rng::from_seed(seed);
    let slice = |_| {
        let began = now();
        (0..ops).for_each(|_| work(db, rows, &mut rng));
        began.elapsed()
    };
    let least: Duration = (0..SLICES).map(slice).min().expect("slices");
    least.as_nanos() as f64 / f64::from(ops)
}

fn main() {
    let devices = Devices::new(MemDevice::new(0), MemDevice::new(0));
    let options = Options { cache_bytes: 256 << 20, durability: Durability::None, ..Options::default() };
    let db = Db::create_on(devices, &Layout::default(), options).expect("a database");
    let rows = db.create_keyspace("rows").expect("a keyspace");
    (0..ROWS).for_each(|n| rows.put(&n.to_be_bytes(), &[1; 100]).expect("puts"));
    let works: [(&str, u32, Work); 4] = [
        ("single put", 4000, single),
        ("transact, 1 key", 3000, transaction::<1>),
        ("transact, 8 keys", 600, transaction::<8>),
        ("transact, 64 keys", 80, transaction::<64>),
    ];
    println!("{:<20} {:>12} {:>16}", "ns per operation", "1 thread", "2 threads, each");
    for (name, ops, work) in works {
        let one = best(&db, &rows, 1, ops, work);
        let threads: Vec<_> = (2..4)
            .map(|seed| {
                let (db, rows) = (db.clone(), rows.clone());
                spawn(format!("client {seed}"), move || best(&db, &rows, seed, ops, work))
            })
            .collect();
        let two: f64 = threads.into_iter().map(|t| t.join().expect("runs")).sum::<f64>() / 2.0;
        println!("{name:<20} {one:>12.0} {two:>16.0}");
    }
}
