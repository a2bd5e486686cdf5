//! Transactions on a database over memory devices: directed cases.

use crate::db::{Db, Devices, Durability, Keyspace, KeyspaceKind, Layout, LsmOptions, Options};
use crate::error::Error;
use crate::txn::{KeyRange, TxOptions};
use std::collections::BTreeMap;
use varve_models::MemDevice;
use varve_rt::Rng;

mod model;

/// The tree of a keyspace that has one.
fn tree(rows: &Keyspace) -> &crate::btree::Tree {
    match rows.shared.index() {
        crate::index::Index::Tree(tree) => tree,
        _ => panic!("it is of another kind"),
    }
}

fn devices() -> Devices {
    Devices::new(MemDevice::new(0), MemDevice::new(0))
}

fn options() -> Options {
    Options { cache_bytes: 8 << 20, ..Options::default() }
}

fn layout() -> Layout {
    Layout { page_size: 4096, log_bytes: 2 << 20, ..Layout::default() }
}

fn database() -> (Db, Keyspace) {
    let db = Db::create_on(devices(), &layout(), options()).unwrap();
    let keyspace = db.create_keyspace("rows").unwrap();
    (db, keyspace)
}

/// An LSM keyspace that is flushed often.
const LSM: KeyspaceKind = KeyspaceKind::Lsm(LsmOptions {
    block_bytes: Some(4 << 10),
    segment_bytes: 64 << 10,
    memtable_bytes: 64 << 10,
    ..LsmOptions::DEFAULT
});

/// A database with a keyspace of each kind, one after the other.
fn databases() -> impl Iterator<Item = (Db, Keyspace)> {
    [KeyspaceKind::Tree, LSM].into_iter().map(|kind| {
        let db = Db::create_on(devices(), &layout(), options()).unwrap();
        let keyspace = db.create_keyspace_of("rows", kind).unwrap();
        (db, keyspace)
    })
}

fn key(n: u64) -> Vec<u8> {
    format!("key{n:06}").into_bytes()
}

#[test]
fn single_operations_and_transactions_see_each_other() {
    for (db, rows) in databases() {
        assert_eq!(rows.get(b"a").unwrap(), None);
        rows.put(b"a", b"1").unwrap();
        assert_eq!(rows.get(b"a").unwrap().as_deref(), Some(&b"1"[..]));
        db.transact(|tx| {
            assert_eq!(tx.get(&rows, b"a")?.as_deref(), Some(&b"1"[..]));
            tx.put(&rows, b"a", b"two")?;
            tx.put(&rows, b"b", b"3")?;
            assert_eq!(tx.get(&rows, b"a")?.as_deref(), Some(&b"two"[..]));
            tx.delete(&rows, b"a")?;
            assert_eq!(tx.get(&rows, b"a")?, None);
            Ok(())
        })
        .unwrap();
        assert_eq!(rows.get(b"a").unwrap(), None);
        assert!(rows.delete(b"b").unwrap());
        assert!(!rows.delete(b"b").unwrap());
        let mut tx = db.begin().unwrap();
        tx.put(&rows, b"c", b"gone").unwrap();
        tx.rollback();
        assert_eq!(rows.get(b"c").unwrap(), None);
        assert!(db.check().unwrap().is_clean());
        db.close().unwrap();
    }
}

#[test]
fn keys_and_values_out_of_bounds_are_refused() {
    for (db, rows) in databases() {
        assert!(matches!(rows.put(&[1; 5000], b"x"), Err(Error::KeySize { .. })));
        let mut tx = db.begin().unwrap();
        assert!(matches!(tx.put(&rows, &[1; 5000], b"x"), Err(Error::KeySize { .. })));
        let mut reader = db.begin_with(TxOptions::read_only()).unwrap();
        assert!(matches!(reader.put(&rows, b"k", b"x"), Err(Error::ReadOnly(_))));
        assert!(matches!(db.clone().close(), Err(Error::Invalid(_))));
        drop((tx, reader));
        db.close().unwrap();
    }
}

#[test]
fn scans_merge_pending_writes_both_ways() {
    for (db, rows) in databases() {
        let mut rng = Rng::from_seed(5);
        let mut model = BTreeMap::new();
        for n in 0..2000 {
            let value = vec![n as u8; rng.below(60) as usize];
            rows.put_with(&key(n * 3), &value, Durability::None).unwrap();
            model.insert(key(n * 3), value);
        }
        let mut tx = db.begin().unwrap();
        for _ in 0..1500 {
            let k = key(rng.below(6000));
            if rng.below(3) == 0 {
                tx.delete(&rows, &k).unwrap();
                model.remove(&k);
            } else {
                let value = vec![7; rng.below(90) as usize];
                tx.put(&rows, &k, &value).unwrap();
                model.insert(k, value);
            }
        }
        for _ in 0..60 {
            let (a, b) = (rng.below(6100), rng.below(6100));
            let (low, high) = (key(a.min(b)), key(a.max(b)));
            let expected: Vec<_> =
                model.range(low.clone()..high.clone()).map(|(k, v)| (k.clone(), v.clone())).collect();
            let found: Vec<_> = tx.scan(&rows, &low..&high).unwrap().map(|r| r.unwrap()).collect();
            assert!(found == expected, "forward, {low:?}..{high:?}");
            let mut found: Vec<_> = tx.scan_rev(&rows, &low..&high).unwrap().map(|r| r.unwrap()).collect();
            found.reverse();
            assert!(found == expected, "reverse, {low:?}..{high:?}");
            assert_eq!(tx.count(&rows, &low..&high).unwrap(), expected.len() as u64);
        }
        assert_eq!(tx.count(&rows, ..).unwrap(), model.len() as u64);
        tx.commit().unwrap();
        let snapshot = db.snapshot().unwrap();
        let found: BTreeMap<_, _> = snapshot.scan(&rows, ..).unwrap().map(|r| r.unwrap()).collect();
        assert!(found == model);
        drop(snapshot);
        let report = db.check().unwrap();
        assert!(report.is_clean(), "{report:?}");
        db.close().unwrap();
    }
}

#[test]
fn savepoints_undo_what_came_after_them() {
    for (db, rows) in databases() {
        let mut tx = db.begin().unwrap();
        tx.put(&rows, b"a", b"1").unwrap();
        let first = tx.savepoint().unwrap();
        tx.put(&rows, b"a", b"2").unwrap();
        tx.put(&rows, b"b", b"2").unwrap();
        let second = tx.savepoint().unwrap();
        tx.delete(&rows, b"a").unwrap();
        assert_eq!(tx.delete_range(&rows, ..).unwrap(), 1);
        tx.rollback_to(second).unwrap();
        assert_eq!(tx.get(&rows, b"a").unwrap().as_deref(), Some(&b"2"[..]));
        tx.rollback_to(first).unwrap();
        assert!(matches!(tx.rollback_to(second), Err(Error::Invalid(_))));
        assert_eq!(tx.get(&rows, b"b").unwrap(), None);
        tx.put(&rows, b"c", b"3").unwrap();
        tx.rollback_to(first).unwrap();
        tx.put(&rows, b"d", b"4").unwrap();
        let other = db.begin().unwrap().savepoint().unwrap();
        assert!(matches!(tx.rollback_to(other), Err(Error::Invalid(_))));
        tx.commit().unwrap();
        let left: Vec<_> = db.snapshot().unwrap().scan(&rows, ..).unwrap().map(|r| r.unwrap()).collect();
        assert_eq!(left, [(b"a".to_vec(), b"1".to_vec()), (b"d".to_vec(), b"4".to_vec())]);
        db.close().unwrap();
    }
}

#[test]
fn long_values_come_and_go_and_snapshots_keep_the_old_ones() {
    for (db, rows) in databases() {
        let long = |n: u8, len: usize| (0..len).map(|i| n ^ (i / 7) as u8).collect::<Vec<u8>>();
        rows.put(b"long", &long(1, 50_000)).unwrap();
        rows.put(b"short", b"s").unwrap();
        assert!(rows.get(b"long").unwrap().unwrap() == long(1, 50_000));
        let before = db.snapshot().unwrap();
        db.transact(|tx| {
            assert!(tx.get(&rows, b"long")?.unwrap() == long(1, 50_000));
            tx.put(&rows, b"long", &long(2, 90_000))?;
            tx.put(&rows, b"long2", &long(3, 10_000))?;
            tx.put(&rows, b"short", &long(4, 20_000))
        })
        .unwrap();
        let between = db.snapshot().unwrap();
        rows.put(b"long", b"not any more").unwrap();
        assert!(rows.delete(b"long2").unwrap());
        assert!(before.get(&rows, b"long").unwrap().unwrap() == long(1, 50_000));
        assert_eq!(before.get(&rows, b"short").unwrap().unwrap(), b"s");
        assert_eq!(before.get(&rows, b"long2").unwrap(), None);
        let seen: Vec<_> = between.scan(&rows, KeyRange::prefix(b"l")).unwrap().map(|r| r.unwrap()).collect();
        assert!(seen == [(b"long".to_vec(), long(2, 90_000)), (b"long2".to_vec(), long(3, 10_000))]);
        let seen: Vec<_> = before.scan_rev(&rows, ..).unwrap().map(|r| r.unwrap().0).collect();
        assert_eq!(seen, [b"short".to_vec(), b"long".to_vec()]);
        drop((before, between));
        assert_eq!(rows.get(b"long").unwrap().unwrap(), b"not any more");
        assert_eq!(db.inner.core.budget.used(crate::budget::Class::Versions), 0);
        let report = db.check().unwrap();
        assert!(report.is_clean(), "{report:?}");
        db.close().unwrap();
    }
}

#[test]
fn a_snapshot_reads_to_its_end_while_a_writer_changes_every_key() {
    for (db, rows) in databases() {
        let n = 400;
        for i in 0..n {
            rows.put_with(&key(i * 2), format!("old{i}").as_bytes(), Durability::None).unwrap();
        }
        let snapshot = db.snapshot().unwrap();
        let mut scan = snapshot.scan(&rows, ..).unwrap();
        let mut seen = Vec::new();
        for _ in 0..n / 3 {
            seen.push(scan.next().unwrap().unwrap());
        }
        // Every key is held, some are gone, new ones lie between; then all of it is committed, twice over.
        for round in 0..2 {
            let mut tx = db.begin().unwrap();
            for i in 0..n {
                match i % 3 {
                    0 => tx.delete(&rows, &key(i * 2)).unwrap(),
                    _ => tx.put(&rows, &key(i * 2), format!("new{round}").as_bytes()).unwrap(),
                }
                tx.put(&rows, &key(i * 2 + 1), b"inserted").unwrap();
            }
            assert_eq!(snapshot.get(&rows, &key(0)).unwrap().unwrap(), b"old0");
            tx.commit().unwrap();
        }
        seen.extend(scan.map(|r| r.unwrap()));
        let expected: Vec<_> = (0..n).map(|i| (key(i * 2), format!("old{i}").into_bytes())).collect();
        assert!(seen == expected);
        assert_eq!(snapshot.count(&rows, ..).unwrap(), n);
        drop(snapshot);
        let left = n + (0..n).filter(|i| i % 3 != 0).count() as u64;
        assert_eq!(db.snapshot().unwrap().count(&rows, ..).unwrap(), left);
        db.close().unwrap();
    }
}

#[test]
fn a_full_version_store_costs_the_oldest_snapshot_only() {
    let options = Options { snapshot_disk_bytes: Some(0), ..options() };
    let db = Db::create_on(devices(), &layout(), options).unwrap();
    let rows = db.create_keyspace("rows").unwrap();
    for i in 0..300 {
        rows.put_with(&key(i), &[1; 900], Durability::None).unwrap();
    }
    let old = db.snapshot().unwrap();
    for i in 0..300 {
        rows.put_with(&key(i), &[2; 900], Durability::None).unwrap();
    }
    assert_eq!(old.get(&rows, &key(7)).unwrap().unwrap(), [1; 900]);
    let young = db.snapshot().unwrap();
    for i in 0..290 {
        rows.put_with(&key(i), &[3; 900], Durability::None).unwrap();
    }
    assert!(matches!(old.get(&rows, &key(7)), Err(Error::SnapshotTooOld)));
    assert!(matches!(old.count(&rows, ..), Err(Error::SnapshotTooOld)));
    assert_eq!(young.get(&rows, &key(7)).unwrap().unwrap(), [2; 900]);
    assert_eq!(young.count(&rows, ..).unwrap(), 300);
    let mut tx = db.begin_with(TxOptions::read_only()).unwrap();
    assert_eq!(tx.get(&rows, &key(7)).unwrap().unwrap(), [3; 900]);
    drop((old, young, tx));
    assert_eq!(db.stats().txn.snapshots_evicted, 1);
    assert_eq!(db.inner.core.budget.used(crate::budget::Class::Versions), 0);
    db.close().unwrap();
}

#[test]
fn transactions_are_as_large_as_they_like_and_single_values_are_not() {
    let (db, rows) = database();
    rows.put(b"k", b"v").unwrap();
    // More writes than the write sets may have memory for.
    let mut tx = db.begin().unwrap();
    (0..30_000).for_each(|i| tx.put(&rows, &key(i), &[1; 60]).unwrap());
    tx.commit().unwrap();
    // Few writes, on more pages than a commit may change at once.
    let mut tx = db.begin().unwrap();
    for i in (0..30_000).step_by(30) {
        tx.put(&rows, &key(i), b"x").unwrap();
    }
    tx.commit().unwrap();
    assert_eq!(db.stats().txn.large_commits, 2);
    for i in 0..30_000 {
        let value = if i % 30 == 0 { &b"x"[..] } else { &[1; 60] };
        assert_eq!(rows.get(&key(i)).unwrap().unwrap(), value);
    }
    let error = rows.put(b"huge", &vec![0; 3 << 20]).unwrap_err();
    assert!(matches!(error, Error::TransactionTooLarge { .. }), "{error}");
    assert_eq!(db.inner.core.budget.used(crate::budget::Class::WriteSets), 0);
    let report = db.check().unwrap();
    assert!(report.is_clean(), "{report:?}");
    db.close().unwrap();
}

#[test]
fn big_commits_into_one_leaf_get_leaves_of_their_own() {
    let (db, rows) = database();
    let mut model = BTreeMap::new();
    let mut rng = Rng::from_seed(9);
    for round in 0..6u64 {
        let mut tx = db.begin().unwrap();
        for i in 0..300 {
            let k = key(if round % 2 == 0 { round * 1000 + i } else { rng.below(9000) });
            let value = vec![round as u8; rng.below(if i % 50 == 0 { 3000 } else { 200 }) as usize];
            tx.put(&rows, &k, &value).unwrap();
            model.insert(k, value);
        }
        tx.commit().unwrap();
    }
    let found: BTreeMap<_, _> = db.snapshot().unwrap().scan(&rows, ..).unwrap().map(|r| r.unwrap()).collect();
    assert!(found == model);
    let n = db.transact(|tx| tx.delete_range(&rows, key(100).as_slice()..key(5000).as_slice())).unwrap();
    let before = model.len();
    model.retain(|k, _| *k < key(100) || *k >= key(5000));
    assert_eq!(n as usize, before - model.len());
    let found: BTreeMap<_, _> = db.snapshot().unwrap().scan(&rows, ..).unwrap().map(|r| r.unwrap()).collect();
    assert!(found == model);
    let report = db.check().unwrap();
    assert!(report.is_clean(), "{report:?}");
    db.close().unwrap();
}

/// The old content of a freed page, which no cache had to write over, comes back when somebody reads it ahead. A
/// transaction that read its key there before must not write there.
#[test]
fn a_leaf_that_left_the_tree_takes_no_writes_though_its_old_content_is_back() {
    let (db, rows) = database();
    let value = [7; 100];
    (0..300).for_each(|n| rows.put(&key(n), &value).unwrap());
    db.checkpoint().unwrap();
    let core = &db.inner.core;
    let leaf = |n| tree(&rows).leaf(&key(n)).unwrap().id();
    let mut tx = db.begin().unwrap();
    let kept = 150;
    assert!(tx.get_for_update(&rows, &key(kept)).unwrap().is_some());
    let old = leaf(kept);
    // Its neighbours are deleted until the leaf joins another; it is the right one of the two, which is freed.
    for n in (100..200).filter(|n| *n != kept) {
        rows.delete(&key(n)).unwrap();
    }
    assert_ne!(leaf(kept), old, "the leaf was freed");
    {
        let stale = core.pool.read(old).unwrap();
        assert!(crate::btree::leaf::covers(stale.bytes(), rows.id(), &key(kept)), "its old content is back");
    }
    tx.put(&rows, &key(kept), b"new").unwrap();
    tx.commit().unwrap();
    assert_eq!(rows.get(&key(kept)).unwrap().as_deref(), Some(&b"new"[..]));
    assert!(db.check().unwrap().is_clean());
    drop(rows);
    db.close().unwrap();
}
