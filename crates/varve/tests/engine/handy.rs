//! Calls that spare their user a transaction or a snapshot of his own: rows from both ends, queues, counters, batches.

use std::collections::BTreeMap;
use std::ops::Bound;
use varve::{
    Db, Devices, Durability, Error, KeyRange, Keyspace, KeyspaceKind, Layout, LsmOptions, Options, WriteBatch,
};
use varve_models::MemDevice;
use varve_rt::{Rng, sim, spawn};

type Row = (Vec<u8>, Vec<u8>);

fn create() -> Db {
    let layout = Layout { page_size: 4096, log_bytes: 4 << 20, ..Layout::default() };
    let options = Options { durability: Durability::None, ..Options::default().cache_mb(8) };
    Db::create_on(Devices::new(MemDevice::new(0), MemDevice::new(0)), &layout, options).unwrap()
}

/// A keyspace of each kind.
fn both_kinds(db: &Db) -> [Keyspace; 2] {
    let lsm = KeyspaceKind::Lsm(LsmOptions::default());
    [db.create_keyspace("tree").unwrap(), db.create_keyspace_of("lsm", lsm).unwrap()]
}

fn key(n: u64) -> [u8; 8] {
    n.to_be_bytes()
}

#[test]
fn rows_come_from_both_ends_once_each() {
    sim::run(sim::Config { seed: 1, ..sim::Config::default() }, || {
        let db = create();
        for rows in both_kinds(&db) {
            let model: BTreeMap<_, _> = (0..500).map(|n| (key(3 * n).to_vec(), n.to_string().into_bytes())).collect();
            model.iter().for_each(|(key, value)| rows.put(key, value).unwrap());
            let mut rng = Rng::from_seed(7);
            for _ in 0..100 {
                let (a, b) = (key(rng.below(1600)), key(rng.below(1600)));
                let (a, b) = (a.min(b), a.max(b));
                let mut real = rows.range(&a..&b).unwrap();
                let mut expected = model.range::<[u8], _>((Bound::Included(&a[..]), Bound::Excluded(&b[..])));
                let backwards = rng.below(101);
                loop {
                    let back = rng.below(100) < backwards;
                    let (real, expected) =
                        if back { (real.next_back(), expected.next_back()) } else { (real.next(), expected.next()) };
                    assert_eq!(real.map(Result::unwrap), expected.map(|(key, value)| (key.clone(), value.clone())));
                    if expected.is_none() {
                        break;
                    }
                }
                assert!(real.next().is_none() && real.next_back().is_none(), "it has ended");
            }
            assert_eq!(rows.len().unwrap(), 500);
            assert_eq!(rows.first().unwrap(), model.first_key_value().map(|(k, v)| (k.clone(), v.clone())));
            assert_eq!(rows.last().unwrap(), model.last_key_value().map(|(k, v)| (k.clone(), v.clone())));
            rows.put("a", "1").unwrap();
            rows.put("ab", "2").unwrap();
            rows.put("b", "3").unwrap();
            let keys = |prefix: &str| rows.prefix(prefix).unwrap().map(|row| row.unwrap().0).collect::<Vec<_>>();
            assert_eq!((keys("a"), keys("c")), (vec![b"a".to_vec(), b"ab".to_vec()], Vec::new()));
        }
        db.close().unwrap();
    })
    .unwrap();
}

#[test]
fn rows_are_of_the_moment_of_the_call() {
    let db = create();
    for rows in both_kinds(&db) {
        rows.put("1", "old").unwrap();
        let (iter, snapshot) = (rows.iter().unwrap(), db.snapshot().unwrap());
        rows.put("1", "new").unwrap();
        rows.put("2", "new").unwrap();
        let old = vec![(b"1".to_vec(), b"old".to_vec())];
        assert_eq!(iter.map(Result::unwrap).collect::<Vec<Row>>(), old);
        assert_eq!(snapshot.iter(&rows).unwrap().rev().map(Result::unwrap).collect::<Vec<Row>>(), old);
        assert_eq!(snapshot.prefix(&rows, "2").unwrap().count(), 0);
        assert_eq!(snapshot.range(&rows, KeyRange::prefix("1")).unwrap().count(), 1);
        drop(snapshot);
    }
    db.close().unwrap();
}

/// Rows that several threads take from a queue: each comes out once, and each thread's in their order.
#[test]
fn a_queue_gives_each_row_to_one() {
    for seed in 0..8 {
        let config = sim::Config { seed, chaos: true, ..sim::Config::default() };
        sim::run(config, || {
            let db = create();
            for queue in both_kinds(&db) {
                (0..60).for_each(|n| queue.put(key(n), "job").unwrap());
                let takers: Vec<_> = (0..3)
                    .map(|t| {
                        let queue = queue.clone();
                        spawn(format!("taker-{t}"), move || {
                            let mut taken = Vec::new();
                            while let Some((key, _)) = queue.pop_first().unwrap() {
                                taken.push(key);
                            }
                            taken
                        })
                    })
                    .collect();
                let taken: Vec<_> = takers.into_iter().map(|taker| taker.join().unwrap()).collect();
                assert!(taken.iter().all(|keys| keys.is_sorted()), "seed {seed}");
                let mut all = taken.concat();
                all.sort();
                assert_eq!(all, (0..60).map(|n| key(n).to_vec()).collect::<Vec<_>>(), "seed {seed}");
                assert!(queue.is_empty().unwrap() && queue.pop_last().unwrap().is_none());
            }
            db.close().unwrap();
        })
        .unwrap();
    }
}

#[test]
fn changes_of_one_key_by_several_threads_all_count() {
    for seed in 0..8 {
        let config = sim::Config { seed, chaos: true, ..sim::Config::default() };
        sim::run(config, || {
            let db = create();
            for rows in both_kinds(&db) {
                let one_more = |value: Option<&[u8]>| {
                    let n = value.map_or(0, |value| u64::from_be_bytes(value.try_into().unwrap()));
                    Some((n + 1).to_be_bytes().to_vec())
                };
                let threads: Vec<_> = (0..4u64)
                    .map(|t| {
                        let rows = rows.clone();
                        spawn(format!("counter-{t}"), move || {
                            (0..10).for_each(|_| drop(rows.update("n", one_more).unwrap()));
                            rows.insert_if_absent("first", t.to_string()).unwrap()
                        })
                    })
                    .collect();
                let won = threads.into_iter().map(|thread| thread.join().unwrap()).filter(|won| *won).count();
                assert_eq!((won, rows.get("n").unwrap()), (1, Some(key(40).to_vec())), "seed {seed}");
            }
            db.close().unwrap();
        })
        .unwrap();
    }
}

#[test]
fn a_swap_compares_first() {
    let db = create();
    for rows in both_kinds(&db) {
        assert_eq!(rows.compare_and_swap("k", None, Some(b"1")).unwrap(), Ok(()));
        assert_eq!(rows.compare_and_swap("k", None, Some(b"2")).unwrap(), Err(Some(b"1".to_vec())));
        assert_eq!(rows.compare_and_swap("k", Some(b"1"), None).unwrap(), Ok(()));
        assert_eq!(rows.compare_and_swap("k", Some(b"1"), Some(b"2")).unwrap(), Err(None));
        assert_eq!(rows.update("k", |value| value.map(<[u8]>::to_vec)).unwrap(), None);
        assert!(rows.is_empty().unwrap());
    }
    db.close().unwrap();
}

#[test]
fn a_batch_is_made_whole_or_not_at_all() {
    let db = create();
    let [tree, lsm] = both_kinds(&db);
    let mut batch = WriteBatch::new();
    batch.put(&tree, "a", "1").put(&lsm, "a", "2").put(&tree, "a", "3").delete(&lsm, "none");
    assert_eq!((batch.len(), batch.is_empty()), (4, false));
    db.write(&batch).unwrap();
    assert_eq!((tree.get("a").unwrap(), lsm.get("a").unwrap()), (Some(b"3".to_vec()), Some(b"2".to_vec())));
    batch.clear();
    batch.put(&tree, "b", "1").put(&tree, vec![0; 100_000], "a key that is too long");
    assert!(matches!(db.write(&batch), Err(Error::KeySize { .. })));
    assert_eq!(tree.get("b").unwrap(), None);
    drop(batch);
    db.close().unwrap();
}

#[derive(Debug, PartialEq)]
enum Mine {
    NotEnough(u64),
    Store(String),
}

impl From<Error> for Mine {
    fn from(error: Error) -> Mine {
        Mine::Store(error.to_string())
    }
}

#[test]
fn a_closure_may_fail_in_its_own_way() {
    let db = create();
    let rows = db.create_keyspace("rows").unwrap();
    let failed: Result<(), Mine> = db.try_transact(Default::default(), |tx| {
        tx.put(&rows, "a", "1")?;
        Err(Mine::NotEnough(7))
    });
    assert_eq!((failed, rows.get("a").unwrap()), (Err(Mine::NotEnough(7)), None));
    let failed: Result<(), Mine> = db.try_transact(Default::default(), |tx| Ok(tx.put(&rows, "", "1")?));
    assert!(matches!(failed, Ok(()) | Err(Mine::Store(_))), "{failed:?}");
    assert_eq!(db.try_transact(Default::default(), |tx| Ok::<_, Mine>(tx.put(&rows, "a", "2")?)), Ok(()));
    assert_eq!(rows.get("a").unwrap().as_deref(), Some(&b"2"[..]));
    db.close().unwrap();
}

/// Who has to give way in a deadlock runs again, though the closure's error hides that it was one.
#[test]
fn a_closure_that_hides_a_conflict_is_run_again() {
    let conflicts = sim::run(sim::Config { seed: 3, chaos: true, ..sim::Config::default() }, || {
        let db = create();
        let rows = db.create_keyspace("rows").unwrap();
        let threads: Vec<_> = (0..4)
            .map(|t| {
                let (db, rows) = (db.clone(), rows.clone());
                spawn(format!("writer-{t}"), move || {
                    for n in 0..20 {
                        let (first, then) = if (t + n) % 2 == 0 { ("a", "b") } else { ("b", "a") };
                        let done = db.try_transact(Default::default(), |tx| {
                            tx.put(&rows, first, n.to_string()).map_err(|_| Mine::NotEnough(0))?;
                            tx.put(&rows, then, n.to_string()).map_err(|_| Mine::NotEnough(0))
                        });
                        assert_eq!(done, Ok(()));
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let conflicts = db.stats().txn.conflicts;
        drop(rows);
        db.close().unwrap();
        conflicts
    });
    assert!(conflicts.unwrap() > 0, "nothing stood in anybody's way");
}

/// Rows that are not counted, but judged by a few nodes: near what there is, at each size.
#[test]
fn lengths_are_told_without_a_count() {
    sim::run(sim::Config { seed: 2, ..sim::Config::default() }, || {
        let db = create();
        for rows in both_kinds(&db) {
            assert_eq!(rows.estimated_len().unwrap(), 0);
            let mut written = 0;
            for more in [10, 3_000, 40_000] {
                let mut batch = WriteBatch::new();
                for n in written..written + more {
                    // Short rows in front, long ones behind: leaves differ in what they hold.
                    batch.put(&rows, key(n), vec![7; if n < 20_000 { 10 } else { 100 }]);
                }
                db.write(&batch).unwrap();
                written += more;
                let (told, near) = (rows.estimated_len().unwrap(), written / 20);
                assert!(told.abs_diff(written) <= near, "{} of {written} rows: {told}", rows.name());
            }
            if rows.kind() == KeyspaceKind::Tree {
                rows.delete_range(key(1_000)..key(written)).unwrap();
                assert_eq!(rows.estimated_len().unwrap(), 1_000, "few nodes are looked at whole");
            }
        }
        db.drop_keyspace("tree").unwrap();
        db.close().unwrap();
    })
    .unwrap();
}

#[test]
fn bytes_on_disk_are_those_of_pages() {
    sim::run(sim::Config { seed: 3, ..sim::Config::default() }, || {
        let db = create();
        let rows = db.create_keyspace("rows").unwrap();
        let used = |db: &Db| (db.stats().pages - db.stats().free_pages) * 4096;
        let empty = used(&db);
        assert_eq!(rows.size_on_disk().unwrap(), 4096);
        for n in 0..200 {
            rows.put(key(n), vec![1; if n % 20 == 0 { 50_000 } else { 100 }]).unwrap();
        }
        assert_eq!(rows.size_on_disk().unwrap(), used(&db) - empty + 4096, "long values count");
        let lsm = db.create_keyspace_of("lsm", KeyspaceKind::Lsm(LsmOptions::default())).unwrap();
        let before = lsm.size_on_disk().unwrap();
        (0..2_000).for_each(|n| lsm.put(key(n), [n as u8; 100]).unwrap());
        lsm.compact(None, ..).unwrap();
        assert!(lsm.size_on_disk().unwrap() >= before + 4096, "segments count");
        let kept = rows.clone();
        db.drop_keyspace("rows").unwrap();
        assert!(matches!(kept.size_on_disk(), Err(Error::NoSuchKeyspace(_))));
        db.close().unwrap();
    })
    .unwrap();
}
