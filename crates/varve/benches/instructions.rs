//! One kind of operation, so many times, for an instruction counter: where a machine is busy, clocks tell two builds
//! apart by no less than a tenth, instructions by a hundredth.
//!
//! `cargo bench -p varve --bench instructions --no-run`, then the program under `valgrind --tool=callgrind` with the
//! name of an operation and how many there shall be; the same with 0 is what set-up costs. One thread, everything in
//! memory.

use std::ops::ControlFlow;
use varve::{Db, Devices, Durability, Keyspace, Layout, Options, Transaction};
use varve_models::MemDevice;
use varve_rt::Rng;

const ROWS: u64 = 20_000;

type Work = fn(&Db, &Keyspace, &mut Rng);

fn key(rng: &mut Rng) -> [u8; 8] {
    rng.below(ROWS).to_be_bytes()
}

fn get(_: &Db, rows: &Keyspace, rng: &mut Rng) {
    assert!(rows.get(&key(rng)).expect("reads").is_some());
}

fn get_with(_: &Db, rows: &Keyspace, rng: &mut Rng) {
    assert!(rows.get_with(key(rng), |value| value.is_some()).expect("reads"));
}

fn put(_: &Db, rows: &Keyspace, rng: &mut Rng) {
    rows.put(&key(rng), &[2; 100]).expect("puts");
}

/// Two reads for update and two writes.
fn transfer(db: &Db, rows: &Keyspace, rng: &mut Rng) {
    let (from, to) = (key(rng), key(rng));
    let work = |tx: &mut Transaction| {
        for key in [from, to] {
            let mut value = tx.get_for_update(rows, &key)?.expect("a row").to_vec();
            value[0] ^= 1;
            tx.put(rows, &key, &value)?;
        }
        Ok(())
    };
    db.transact(work).expect("commits");
}

fn scan(db: &Db, rows: &Keyspace, rng: &mut Rng) {
    let from = rng.below(ROWS - 50).to_be_bytes();
    let snapshot = db.snapshot().expect("a snapshot");
    let found = snapshot.scan(rows, &from[..]..).expect("scans").take(50).filter(|row| row.is_ok()).count();
    assert_eq!(found, 50);
}

fn scan_with(_: &Db, rows: &Keyspace, rng: &mut Rng) {
    let (from, mut found) = (rng.below(ROWS - 50).to_be_bytes(), 0);
    let count = |_: &[u8], _: &[u8]| {
        found += 1;
        if found < 50 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    rows.scan_with(&from[..].., count).expect("scans");
    assert_eq!(found, 50);
}

const WORKS: [(&str, Work); 6] = [
    ("get", get),
    ("get_with", get_with),
    ("put", put),
    ("transfer", transfer),
    ("scan", scan),
    ("scan_with", scan_with),
];

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let (name, ops) = (arguments.next(), arguments.next().map(|ops| ops.parse::<u32>()));
    let work = WORKS.iter().find(|(known, _)| name.as_deref() == Some(*known));
    let (Some((_, work)), Some(Ok(ops))) = (work, ops) else {
        let names: Vec<_> = WORKS.iter().map(|(name, _)| *name).collect();
        return println!("an operation ({}) and how many of it are wanted", names.join(", "));
    };
    let devices = Devices::new(MemDevice::new(0), MemDevice::new(0));
    let options =
        Options { cache_bytes: 64 << 20, durability: Durability::None, cleaners: false, ..Options::default() };
    let db = Db::create_on(devices, &Layout::default(), options).expect("a database");
    let rows = db.create_keyspace("rows").expect("a keyspace");
    (0..ROWS).for_each(|n| rows.put(&n.to_be_bytes(), &[1; 100]).expect("puts"));
    let mut rng = Rng::from_seed(1);
    (0..ops).for_each(|_| work(&db, &rows, &mut rng));
}
