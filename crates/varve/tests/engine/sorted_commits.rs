//! Commits of many rows side by side: what they leave, and that nothing of it is lost, changed or seen half.

use std::collections::BTreeMap;
use varve::{Db, Devices, Durability, Keyspace, Layout, Options};
use varve_models::MemDevice;
use varve_rt::Rng;

const PAGE: u64 = 4096;

fn database() -> (Db, Keyspace) {
    let layout = Layout { page_size: PAGE as usize, ..Layout::default() };
    let options = Options { durability: Durability::None, ..Options::default() };
    let db = Db::create_on(Devices::new(MemDevice::new(0), MemDevice::new(0)), &layout, options).unwrap();
    let rows = db.create_keyspace("rows").unwrap();
    (db, rows)
}

fn key(n: u64) -> Vec<u8> {
    format!("key{n:08}").into_bytes()
}

/// Puts rows in ascending order, so many in each transaction; returns the bytes of pages that each row took.
fn bytes_per_row(rows: u64, batch: u64) -> f64 {
    let (db, keyspace) = database();
    let before = db.check().unwrap().allocated_pages;
    for from in (0..rows).step_by(batch as usize) {
        db.transact(|tx| (from..rows.min(from + batch)).try_for_each(|n| tx.put(&keyspace, key(n), [7; 80]))).unwrap();
    }
    let report = db.check().unwrap();
    assert!(report.is_clean() && report.keys >= rows, "{report:?}");
    ((report.allocated_pages - before) * PAGE) as f64 / rows as f64
}

#[test]
fn ascending_rows_fill_the_pages_however_many_are_in_a_commit() {
    let one = bytes_per_row(6000, 1);
    for batch in [7, 30, 45, 100, 1000, 6000] {
        let many = bytes_per_row(6000, batch);
        assert!(many < 1.03 * one, "{batch} in a commit take {many:.0} bytes a row, one by one {one:.0}");
    }
}

/// What a commit does to some of the keys: runs of neighbours and single ones, put and deleted.
fn changes(rng: &mut Rng) -> BTreeMap<u64, Option<Vec<u8>>> {
    let mut changes = BTreeMap::new();
    for _ in 0..1 + rng.below(6) {
        let (from, step) = (rng.below(20_000), 1 + rng.below(3));
        let deletes = rng.below(4) == 0;
        for n in 0..rng.below(60) {
            let longest = if rng.below(50) == 0 { 3000 } else { 120 };
            let value = vec![n as u8; rng.below(longest) as usize];
            changes.insert(from + n * step, (!deletes).then_some(value));
        }
    }
    changes
}

#[test]
fn runs_of_rows_are_what_single_puts_are() {
    let (db, rows) = database();
    let mut rng = Rng::from_seed(5);
    let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    for round in 0..400 {
        let snapshot = (round % 5 == 0).then(|| (db.snapshot().unwrap(), model.clone()));
        let changes = changes(&mut rng);
        db.transact(|tx| {
            changes.iter().try_for_each(|(n, value)| match value {
                Some(value) => tx.put(&rows, key(*n), value),
                None => tx.delete(&rows, key(*n)),
            })
        })
        .unwrap();
        for (n, value) in changes {
            match value {
                Some(value) => model.insert(key(n), value),
                None => model.remove(&key(n)),
            };
        }
        if let Some((snapshot, then)) = snapshot {
            let seen: BTreeMap<_, _> = snapshot.scan(&rows, ..).unwrap().map(|row| row.unwrap()).collect();
            assert!(seen == then, "round {round}: the snapshot sees what was committed after it");
        }
    }
    let seen: BTreeMap<_, _> = db.snapshot().unwrap().scan(&rows, ..).unwrap().map(|row| row.unwrap()).collect();
    assert!(seen == model, "{} rows, not {}", seen.len(), model.len());
    let report = db.check().unwrap();
    assert!(report.is_clean(), "{report:?}");
}
