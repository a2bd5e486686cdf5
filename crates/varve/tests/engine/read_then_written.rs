//! Rows that a transaction reads for update and writes later: the commit goes back to the leaves where it read them,
//! whatever became of these meanwhile.

use std::collections::BTreeMap;
use varve::{Db, Devices, Durability, Keyspace, Layout, Options};
use varve_models::MemDevice;
use varve_rt::Rng;

fn database() -> (Db, Keyspace) {
    let layout = Layout { page_size: 4096, ..Layout::default() };
    let options = Options { durability: Durability::None, ..Options::default() };
    let db = Db::create_on(Devices::new(MemDevice::new(0), MemDevice::new(0)), &layout, options).unwrap();
    let rows = db.create_keyspace("rows").unwrap();
    (db, rows)
}

fn key(n: u64) -> Vec<u8> {
    format!("key{n:08}").into_bytes()
}

#[test]
fn two_rows_may_come_into_one_leaf_between_the_reads() {
    let (db, rows) = database();
    // One leaf: 0, 1000, .. 9000.
    (0..10).for_each(|n| rows.put(key(n * 1000), [1; 100]).unwrap());
    let mut tx = db.begin().unwrap();
    assert!(tx.get_for_update(&rows, key(9000)).unwrap().is_some());
    // It is divided: what is at the end comes into a new one.
    (1..200).for_each(|n| rows.put(key(n), [2; 100]).unwrap());
    assert!(tx.get_for_update(&rows, key(8000)).unwrap().is_some());
    tx.put(&rows, key(8000), [3; 100]).unwrap();
    tx.put(&rows, key(9000), [4; 100]).unwrap();
    tx.commit().unwrap();
    assert_eq!(rows.get(key(8000)).unwrap().as_deref(), Some(&[3; 100][..]));
    assert_eq!(rows.get(key(9000)).unwrap().as_deref(), Some(&[4; 100][..]));
    assert_eq!(db.stats().txn.relatched, 1, "the case that is meant");
    assert!(db.check().unwrap().is_clean());
}

#[test]
fn leaves_divide_and_merge_between_reads_and_commit() {
    for seed in 0..40 {
        let (db, rows) = database();
        let (mut rng, mut model) = (Rng::from_seed(seed), BTreeMap::new());
        for _ in 0..150 {
            let mut tx = db.begin().unwrap();
            let mut read = Vec::new();
            for _ in 0..1 + rng.below(7) {
                // Those that the transaction reads end in 0, those that come and go between do not.
                let n = rng.below(100) * 10;
                assert_eq!(tx.get_for_update(&rows, key(n)).unwrap(), model.get(&n).cloned(), "seed {seed}, row {n}");
                read.push(n);
                let (from, there) = (rng.below(1000), rng.below(2) == 0);
                for n in (from..from + rng.below(120)).filter(|n| n % 10 > 0) {
                    if there {
                        let value = vec![n as u8; 1 + rng.below(200) as usize];
                        rows.put(key(n), &value).unwrap();
                        model.insert(n, value);
                    } else {
                        rows.delete(key(n)).unwrap();
                        model.remove(&n);
                    }
                }
            }
            for n in read {
                let value = vec![rng.below(256) as u8; 1 + rng.below(200) as usize];
                tx.put(&rows, key(n), &value).unwrap();
                model.insert(n, value);
            }
            tx.commit().unwrap();
        }
        let now: Vec<_> = rows.iter().unwrap().map(|row| row.unwrap()).map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
        let asked: Vec<_> = model.into_iter().map(|(n, value)| (key(n), value)).collect();
        assert_eq!(now, asked, "seed {seed}");
        assert!(db.check().unwrap().is_clean(), "seed {seed}");
    }
}
