//! Scans of a snapshot and of a transaction show what a map has, whatever lies together in a leaf: rows of all lengths,
//! few and many, short values and long ones, changed since and not.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use varve::{Db, Devices, Durability, KeyRange, Keyspace, Layout, Options, Snapshot, Transaction};
use varve_models::MemDevice;
use varve_rt::Rng;

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;
type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

fn create() -> (Db, Keyspace) {
    let layout = Layout { page_size: 4096, log_bytes: 8 << 20, ..Layout::default() };
    let options = Options { durability: Durability::None, ..Options::default().cache_mb(8) };
    let db = Db::create_on(Devices::new(MemDevice::new(0), MemDevice::new(0)), &layout, options).unwrap();
    let rows = db.create_keyspace("rows").unwrap();
    (db, rows)
}

/// Keys with much in common, and of many lengths, none among them.
fn key(rng: &mut Rng) -> Vec<u8> {
    let common: &[u8] = if rng.one_in(8) { b"" } else { b"what all of them begin with/" };
    let len = rng.below(7) as usize;
    common.iter().copied().chain((0..len).map(|_| b"\0ab\xff"[rng.below(4) as usize])).collect()
}

/// Values that fill a leaf with many rows or with few; a few are longer than a leaf takes.
fn value(rng: &mut Rng) -> Vec<u8> {
    let most = [1, 30, 900, 20_000][if rng.one_in(50) { 3 } else { rng.below(3) as usize }];
    vec![rng.below(256) as u8; rng.below(most) as usize]
}

/// Writes some rows, deletes some.
fn change(rows: &Keyspace, model: &mut Rows, rng: &mut Rng, times: usize) {
    for _ in 0..times {
        let (key, value) = (key(rng), value(rng));
        if rng.one_in(4) {
            rows.delete(&key).unwrap();
            model.remove(&key);
        } else {
            rows.put(&key, &value).unwrap();
            model.insert(key, value);
        }
    }
}

fn range(rng: &mut Rng) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let mut bound = || match rng.below(4) {
        0 => Bound::Excluded(key(rng)),
        1 | 2 => Bound::Included(key(rng)),
        _ => Bound::Unbounded,
    };
    (bound(), bound())
}

/// What a map has in a range; nothing where the bounds leave no room.
fn expected(model: &Rows, (low, high): &(Bound<Vec<u8>>, Bound<Vec<u8>>)) -> Pairs {
    let above = |key: &Vec<u8>| match low {
        Bound::Included(low) => key >= low,
        Bound::Excluded(low) => key > low,
        Bound::Unbounded => true,
    };
    let below = |key: &Vec<u8>| match high {
        Bound::Included(high) => key <= high,
        Bound::Excluded(high) => key < high,
        Bound::Unbounded => true,
    };
    let rows = model.iter().filter(|(key, _)| above(key) && below(key));
    rows.map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// Either view of the database, for all ways to scan.
enum View {
    Snapshot(Snapshot),
    Transaction(Box<Transaction>),
}

impl View {
    fn scan(&mut self, rows: &Keyspace, range: KeyRange<'_>, reverse: bool) -> Pairs {
        let scan = match (self, reverse) {
            (View::Snapshot(view), false) => view.scan(rows, range),
            (View::Snapshot(view), true) => view.scan_rev(rows, range),
            (View::Transaction(view), false) => view.scan(rows, range),
            (View::Transaction(view), true) => view.scan_rev(rows, range),
        };
        scan.unwrap().map(Result::unwrap).collect()
    }

    fn lent(&mut self, rows: &Keyspace, range: KeyRange<'_>) -> Pairs {
        let mut found = Pairs::new();
        let each = |key: &[u8], value: &[u8]| {
            found.push((key.to_vec(), value.to_vec()));
            ControlFlow::Continue(())
        };
        match self {
            View::Snapshot(view) => view.scan_with(rows, range, each),
            View::Transaction(view) => view.scan_with(rows, range, each),
        }
        .unwrap();
        found
    }
}

fn compare(view: &mut View, rows: &Keyspace, model: &Rows, rng: &mut Rng, seed: u64) {
    for n in 0..12 {
        let bounds = if n == 0 { (Bound::Unbounded, Bound::Unbounded) } else { range(rng) };
        let mut wanted = expected(model, &bounds);
        let range = || KeyRange::of(&bounds);
        assert!(view.scan(rows, range(), false) == wanted, "seed {seed}: scan of {bounds:?}");
        assert!(view.lent(rows, range()) == wanted, "seed {seed}: scan_with of {bounds:?}");
        wanted.reverse();
        assert!(view.scan(rows, range(), true) == wanted, "seed {seed}: scan_rev of {bounds:?}");
    }
}

#[test]
fn every_way_to_scan_shows_what_a_map_has() {
    for seed in 0..25 {
        let mut rng = Rng::from_seed(seed);
        let (db, rows) = create();
        let mut model = Rows::new();
        change(&rows, &mut model, &mut rng, 1200);
        let (mut old, was) = (View::Snapshot(db.snapshot().unwrap()), model.clone());
        compare(&mut old, &rows, &was, &mut rng, seed);
        // Some leaves are as the snapshot saw them, some are not.
        change(&rows, &mut model, &mut rng, 15);
        compare(&mut old, &rows, &was, &mut rng, seed);
        change(&rows, &mut model, &mut rng, 400);
        compare(&mut old, &rows, &was, &mut rng, seed);
        let mut transaction = db.begin().unwrap();
        for _ in 0..30 {
            let (key, value) = (key(&mut rng), value(&mut rng));
            transaction.put(&rows, &key, &value).unwrap();
            model.insert(key, value);
        }
        compare(&mut View::Transaction(Box::new(transaction)), &rows, &model, &mut rng, seed);
    }
}
