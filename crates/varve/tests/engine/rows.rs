//! Rows from both ends that move by keys, of keyspaces, snapshots and transactions: they show what a map has, and a
//! transaction locks what it was shown, not what it passed.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;
use varve::{
    Db, Devices, Durability, Error, KeyRange, Keyspace, KeyspaceKind, Layout, LsmOptions, Options, Rows, TxOptions,
};
use varve_models::MemDevice;
use varve_rt::Rng;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;
type Ends = (Bound<Vec<u8>>, Bound<Vec<u8>>);

fn create(lock_timeout: Option<Duration>) -> Db {
    let layout = Layout { page_size: 4096, log_bytes: 8 << 20, ..Layout::default() };
    let options = Options { durability: Durability::None, lock_timeout, ..Options::default().cache_mb(8) };
    Db::create_on(Devices::new(MemDevice::new(0), MemDevice::new(0)), &layout, options).unwrap()
}

/// A keyspace of each kind.
fn both_kinds(db: &Db) -> [Keyspace; 2] {
    let lsm = KeyspaceKind::Lsm(LsmOptions::default());
    [db.create_keyspace("tree").unwrap(), db.create_keyspace_of("lsm", lsm).unwrap()]
}

/// Keys of many lengths, which lie close together here and there, and the empty one.
fn key(rng: &mut Rng) -> Vec<u8> {
    let common: &[u8] = if rng.one_in(4) { b"" } else { b"what many begin with, so that keys are long/" };
    let len = rng.below(7) as usize;
    common.iter().copied().chain((0..len).map(|_| b"\0ab\xff"[rng.below(4) as usize])).collect()
}

fn value(rng: &mut Rng) -> Vec<u8> {
    let most = if rng.one_in(60) { 12_000 } else { 60 };
    vec![rng.below(256) as u8; rng.below(most) as usize]
}

/// Changes some rows, in the map too.
fn change(map: &mut Map, rng: &mut Rng, times: usize, mut write: impl FnMut(&[u8], Option<&[u8]>)) {
    for _ in 0..times {
        let (key, value) = (key(rng), value(rng));
        if rng.one_in(4) {
            write(&key, None);
            map.remove(&key);
        } else {
            write(&key, Some(&value));
            map.insert(key, value);
        }
    }
}

fn change_rows(rows: &Keyspace, map: &mut Map, rng: &mut Rng, times: usize) {
    change(map, rng, times, |key, value| match value {
        Some(value) => rows.put(key, value).unwrap(),
        None => assert!(rows.delete(key).is_ok()),
    });
}

fn range(rng: &mut Rng) -> Ends {
    let mut bound = || match rng.below(6) {
        0 => Bound::Excluded(key(rng)),
        1 => Bound::Included(key(rng)),
        _ => Bound::Unbounded,
    };
    (bound(), bound())
}

fn is_above(low: &Bound<Vec<u8>>, key: &[u8]) -> bool {
    match low {
        Bound::Included(low) => key >= &low[..],
        Bound::Excluded(low) => key > &low[..],
        Bound::Unbounded => true,
    }
}

fn is_below(high: &Bound<Vec<u8>>, key: &[u8]) -> bool {
    match high {
        Bound::Included(high) => key <= &high[..],
        Bound::Excluded(high) => key < &high[..],
        Bound::Unbounded => true,
    }
}

/// What a map has in a range; nothing where the ends leave no room.
fn found<'m>(map: &'m Map, (low, high): &Ends) -> impl DoubleEndedIterator<Item = (&'m Vec<u8>, &'m Vec<u8>)> {
    let possible = match (low, high) {
        (Bound::Included(low), Bound::Included(high)) => low <= high,
        (Bound::Included(low) | Bound::Excluded(low), Bound::Included(high) | Bound::Excluded(high)) => low < high,
        _ => true,
    };
    possible.then(|| map.range::<Vec<u8>, _>((low.as_ref(), high.as_ref()))).into_iter().flatten()
}

/// Takes rows from both ends and moves the ends, as the map says. `descending`: mostly from the high end.
fn follow(mut rows: Rows<'_>, map: &Map, mut left: Ends, rng: &mut Rng) {
    let descending = rng.below(101);
    let seeks = rng.below(40);
    let mut ended = false;
    for _ in 0..rng.below(400) {
        let back = rng.below(100) < descending;
        if rng.below(100) < seeks {
            // Near the end, mostly: that is where rows were read ahead.
            let nth = rng.below(20) as usize;
            let near = if back { found(map, &left).nth_back(nth) } else { found(map, &left).nth(nth) };
            let to = near.filter(|_| !rng.one_in(5)).map_or_else(|| key(rng), |(key, _)| key.clone());
            if back {
                rows.seek_back(&to);
                if is_below(&left.1, &to) {
                    left.1 = Bound::Included(to);
                }
            } else {
                rows.seek(&to);
                if is_above(&left.0, &to) {
                    left.0 = Bound::Included(to);
                }
            }
            continue;
        }
        let expected = if back { found(map, &left).next_back() } else { found(map, &left).next() };
        let expected = expected.filter(|_| !ended).map(|(key, value)| (key.clone(), value.clone()));
        let row = if back { rows.next_back() } else { rows.next() };
        assert_eq!(row.map(Result::unwrap), expected, "left: {left:?}, {back}");
        match expected {
            Some((key, _)) if back => left.1 = Bound::Excluded(key),
            Some((key, _)) => left.0 = Bound::Excluded(key),
            None => ended = true,
        }
    }
}

#[test]
fn rows_that_move_by_keys_show_what_a_map_has() {
    for seed in 0..20 {
        let mut rng = Rng::from_seed(seed);
        let db = create(None);
        for rows in both_kinds(&db) {
            let mut map = Map::new();
            change_rows(&rows, &mut map, &mut rng, 1500);
            let (old, was) = (db.snapshot().unwrap(), map.clone());
            change_rows(&rows, &mut map, &mut rng, 300);
            let mut read_only = db.begin_with(TxOptions::read_only()).unwrap();
            let mut tx = db.begin().unwrap();
            let mut own = map.clone();
            change(&mut own, &mut rng, 100, |key, value| match value {
                Some(value) => tx.put(&rows, key, value).unwrap(),
                None => tx.delete(&rows, key).unwrap(),
            });
            for n in 0..24 {
                let left = if n % 4 == 0 { (Bound::Unbounded, Bound::Unbounded) } else { range(&mut rng) };
                let range = || KeyRange::from(&left);
                follow(old.range(&rows, range()).unwrap(), &was, left.clone(), &mut rng);
                follow(rows.range(range()).unwrap(), &map, left.clone(), &mut rng);
                follow(read_only.range(&rows, range()).unwrap(), &map, left.clone(), &mut rng);
                follow(tx.range(&rows, range()).unwrap(), &own, left.clone(), &mut rng);
            }
            tx.commit().unwrap();
            follow(rows.iter().unwrap(), &own, (Bound::Unbounded, Bound::Unbounded), &mut rng);
            drop(read_only);
        }
        db.close().unwrap();
    }
}

/// A transaction that memory has no room for: its writes are merged from scratch pages.
#[test]
fn spilled_writes_are_among_a_transactions_rows() {
    let db = create(None);
    for rows in both_kinds(&db) {
        let mut rng = Rng::from_seed(5);
        let mut map = Map::new();
        change_rows(&rows, &mut map, &mut rng, 1000);
        let mut tx = db.begin().unwrap();
        let spills = db.stats().scratch.pages;
        for n in 0..6000u32 {
            let (key, value) = ([b"s", &n.wrapping_mul(7919).to_be_bytes()[..]].concat(), vec![n as u8; 150]);
            tx.put(&rows, &key, &value).unwrap();
            map.insert(key, value);
        }
        change(&mut map, &mut rng, 100, |key, value| match value {
            Some(value) => tx.put(&rows, key, value).unwrap(),
            None => tx.delete(&rows, key).unwrap(),
        });
        assert!(db.stats().scratch.pages > spills, "it is to be more than memory takes");
        for n in 0..15 {
            let left = if n < 5 { (Bound::Unbounded, Bound::Unbounded) } else { range(&mut rng) };
            follow(tx.range(&rows, &left).unwrap(), &map, left.clone(), &mut rng);
        }
        let all: Vec<_> = tx.iter(&rows).unwrap().rev().map(Result::unwrap).collect();
        assert!(all.into_iter().eq(map.iter().rev().map(|(key, value)| (key.clone(), value.clone()))));
        assert_eq!(tx.prefix(&rows, "s").unwrap().count(), 6000);
        tx.rollback();
    }
    db.close().unwrap();
}

#[test]
fn scans_move_by_keys_too() {
    let db = create(None);
    for rows in both_kinds(&db) {
        (0..200u8).step_by(2).for_each(|n| rows.put([n], "").unwrap());
        let snapshot = db.snapshot().unwrap();
        let mut up = snapshot.scan(&rows, ..).unwrap();
        let mut down = snapshot.scan_rev(&rows, ..[180]).unwrap();
        let next = |scan: &mut varve::Scan<'_>| scan.next().map(|row| row.unwrap().0[0]);
        up.seek([3]);
        down.seek([101]);
        assert_eq!((next(&mut up), next(&mut down)), (Some(4), Some(100)));
        up.seek([2]);
        down.seek([200]);
        assert_eq!((next(&mut up), next(&mut down)), (Some(6), Some(98)), "they never go back");
        up.seek([199]);
        down.seek([0]);
        assert_eq!((next(&mut up), next(&mut down)), (None, Some(0)));
        assert_eq!(next(&mut down), None);
    }
    db.close().unwrap();
}

/// What a transaction's rows showed stays as it is until it ends, at both ends; what they passed does not.
#[test]
fn what_rows_showed_is_locked_and_what_they_passed_is_not() {
    let db = create(Some(Duration::from_millis(20)));
    for rows in both_kinds(&db) {
        (0..1000u32).for_each(|n| rows.put((10 * n).to_be_bytes(), "old").unwrap());
        let mut tx = db.begin().unwrap();
        let mut all = tx.iter(&rows).unwrap();
        let mut next = |back: bool| {
            let row = if back { all.next_back() } else { all.next() };
            u32::from_be_bytes(row.unwrap().unwrap().0.try_into().unwrap())
        };
        assert_eq!((next(false), next(false), next(true)), (0, 10, 9990));
        all.seek(4001u32.to_be_bytes());
        all.seek_back(5009u32.to_be_bytes());
        let mut next = |back: bool| {
            let row = if back { all.next_back() } else { all.next() };
            u32::from_be_bytes(row.unwrap().unwrap().0.try_into().unwrap())
        };
        assert_eq!((next(false), next(true)), (4010, 5000));
        drop(all);
        for n in [0u32, 3, 10, 4001, 4005, 4010, 5000, 5004, 5009, 9990, 9995] {
            let error = rows.put(n.to_be_bytes(), "new").unwrap_err();
            assert!(matches!(error, Error::LockTimeout { .. }), "{n}: {error}");
        }
        for n in [2000u32, 2005, 3999, 4500, 4505, 7000, 7005] {
            rows.put(n.to_be_bytes(), "new").unwrap();
        }
        // What it wrote itself meanwhile shows the next time.
        tx.put(&rows, 4011u32.to_be_bytes(), "own").unwrap();
        let row = tx.range(&rows, 4011u32.to_be_bytes()..).unwrap().next().unwrap().unwrap();
        assert_eq!(row, (4011u32.to_be_bytes().to_vec(), b"own".to_vec()));
        tx.commit().unwrap();
        rows.put(10u32.to_be_bytes(), "new").unwrap();
    }
    db.close().unwrap();
}

#[test]
fn rows_of_another_database_are_refused_at_once() {
    let (db, other) = (create(None), create(None));
    let foreign = other.create_keyspace("rows").unwrap();
    let mut tx = db.begin().unwrap();
    assert!(tx.iter(&foreign).is_err() && db.snapshot().unwrap().iter(&foreign).is_err());
    drop(tx);
    drop(foreign);
    other.close().unwrap();
    db.close().unwrap();
}
