//! Rows that leave a keyspace all at once: cleared keyspaces, deleted ranges, renamed and dropped keyspaces, and what
//! snapshots go on seeing of them.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use varve::{Db, Devices, Durability, Error, KeyRange, Keyspace, Layout, Options, Snapshot, TxOptions};
use varve_models::MemDevice;
use varve_rt::atomic::{AtomicU64, Ordering};
use varve_rt::{Rng, sim, spawn};

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

fn options() -> Options {
    Options { durability: Durability::None, ..Options::default().cache_mb(8) }
}

fn create() -> (Devices, Db) {
    let devices = Devices::new(MemDevice::new(0), MemDevice::new(0));
    let layout = Layout { page_size: 4096, log_bytes: 4 << 20, ..Layout::default() };
    let db = Db::create_on(devices.clone(), &layout, options()).unwrap();
    (devices, db)
}

fn key(n: u64) -> Vec<u8> {
    format!("key {n:08}").into_bytes()
}

fn fill(rows: &Keyspace, n: u64) {
    (0..n).for_each(|n| rows.put(&key(n), &[n as u8; 40]).unwrap());
}

fn contents(snapshot: &Snapshot, keyspace: &Keyspace) -> Rows {
    snapshot.scan(keyspace, ..).unwrap().map(Result::unwrap).collect()
}

#[track_caller]
fn sound(db: &Db) {
    let report = db.check().unwrap();
    assert!(report.is_clean(), "{:?} {:?}", report.damages, report.unreadable);
}

fn in_use(db: &Db) -> u64 {
    db.stats().pages - db.stats().free_pages
}

/// What was cut off is taken apart in the background.
#[track_caller]
fn wait_for_pages(db: &Db, most: u64) {
    for _ in 0..1000 {
        if in_use(db) <= most {
            return;
        }
        varve_rt::sleep(std::time::Duration::from_millis(5));
    }
    panic!("{} pages are in use, {most} expected at most", in_use(db));
}

#[test]
fn a_cleared_keyspace_is_empty_and_a_snapshot_still_sees_it() {
    let (devices, db) = create();
    let rows = db.create_keyspace("rows").unwrap();
    let empty = in_use(&db);
    fill(&rows, 30_000);
    let snapshot = db.snapshot().unwrap();
    let before = contents(&snapshot, &rows);
    let log = db.stats().log.group_bytes;
    rows.clear().unwrap();
    assert!(db.stats().log.group_bytes - log < 40_000, "{} bytes of log", db.stats().log.group_bytes - log);
    assert_eq!(rows.get(&key(7)).unwrap(), None);
    rows.put(&key(8), b"new").unwrap();
    sound(&db);
    assert!(contents(&snapshot, &rows) == before);
    let back: Vec<_> = snapshot.scan_rev(&rows, ..).unwrap().map(Result::unwrap).collect();
    assert!(back.into_iter().rev().eq(before.clone()));
    assert_eq!(snapshot.count(&rows, ..).unwrap(), 30_000);
    assert_eq!(snapshot.get(&rows, &key(8)).unwrap().unwrap(), [8; 40]);
    assert_eq!(contents(&db.snapshot().unwrap(), &rows).len(), 1);
    drop(snapshot);
    wait_for_pages(&db, empty + 2);
    sound(&db);
    drop(rows);
    db.close().unwrap();
    let db = Db::open_on(devices, options()).unwrap();
    assert_eq!(contents(&db.snapshot().unwrap(), &db.keyspace("rows").unwrap()).len(), 1);
    sound(&db);
    db.close().unwrap();
}

/// Keys of very different lengths, ranges with every kind of bound, long values, three snapshots of different ages.
/// Rows that left a keyspace, and were seen by a snapshot when the database went, are taken apart by the next opening,
/// also where they are a part of what there was.
#[test]
fn the_next_opening_frees_what_left() {
    let (devices, db) = create();
    let rows = db.create_keyspace("rows").unwrap();
    fill(&rows, 20_000);
    let full = in_use(&db);
    let snapshot = db.snapshot().unwrap();
    rows.delete_range_with(&key(3000)..&key(17_000), Durability::Sync).unwrap();
    assert!(in_use(&db) > full * 9 / 10, "the snapshot needs them");
    drop((rows, snapshot, db));
    let db = Db::open_on(devices, options()).unwrap();
    wait_for_pages(&db, full / 2);
    let rows = db.keyspace("rows").unwrap();
    assert_eq!(db.snapshot().unwrap().count(&rows, ..).unwrap(), 6000);
    sound(&db);
    db.compact().unwrap();
    sound(&db);
    drop(rows);
    db.close().unwrap();
}

#[test]
fn deleted_ranges_agree_with_a_map() {
    for seed in 0..2 {
        let (devices, mut db) = create();
        drop(db.create_keyspace("rows").unwrap());
        let mut rng = Rng::from_seed(seed);
        let mut model = Rows::new();
        let mut snapshots: Vec<(Snapshot, Rows)> = Vec::new();
        let name = |rng: &mut Rng| {
            let n = rng.below(4000);
            let tail = if n.is_multiple_of(97) { 900 } else { n as usize % 40 };
            [key(n), vec![b'x'; tail]].concat()
        };
        for step in 0..50 {
            let rows = db.keyspace("rows").unwrap();
            for _ in 0..150 {
                let (key, len) = (name(&mut rng), if rng.below(50) == 0 { 9000 } else { rng.below(300) });
                let value = vec![step as u8; len as usize];
                rows.put(&key, &value).unwrap();
                model.insert(key, value);
            }
            match rng.below(8) {
                0 => {
                    rows.clear().unwrap();
                    model.clear();
                }
                1..4 => {
                    let (a, b) = (name(&mut rng), name(&mut rng));
                    let (low, high) = (a.clone().min(b.clone()), a.max(b));
                    let ends = [Bound::Included(&low), Bound::Excluded(&low), Bound::Unbounded];
                    let low = ends[rng.below(3) as usize];
                    let ends = [Bound::Included(&high), Bound::Excluded(&high), Bound::Unbounded];
                    let high = ends[rng.below(3) as usize];
                    rows.delete_range(KeyRange::new(low, high)).unwrap();
                    let (low, high) = (low.cloned(), high.cloned());
                    let gone: Vec<_> = model.range((low, high)).map(|(key, _)| key.clone()).collect();
                    gone.iter().for_each(|key| drop(model.remove(key)));
                }
                4 => {
                    snapshots.push((db.snapshot().unwrap(), model.clone()));
                    if snapshots.len() > 3 {
                        drop(snapshots.remove(rng.below(3) as usize));
                    }
                }
                5 if step % 7 == 0 => {
                    snapshots.clear();
                    drop(rows);
                    db.close().unwrap();
                    db = Db::open_on(devices.clone(), options()).unwrap();
                    continue;
                }
                _ => {}
            }
            assert!(contents(&db.snapshot().unwrap(), &rows) == model, "seed {seed} step {step}");
            if step % 10 == 9 {
                sound(&db);
            }
            for (snapshot, then) in &snapshots {
                if !matches!(snapshot.contains(&rows, b""), Err(Error::SnapshotTooOld)) {
                    compare(snapshot, &rows, then, &mut rng, &name);
                }
            }
        }
        snapshots.clear();
        sound(&db);
        db.close().unwrap();
    }
}

fn compare(snapshot: &Snapshot, rows: &Keyspace, then: &Rows, rng: &mut Rng, name: &dyn Fn(&mut Rng) -> Vec<u8>) {
    assert!(contents(snapshot, rows) == *then);
    let back: Vec<_> = snapshot.scan_rev(rows, ..).unwrap().map(Result::unwrap).collect();
    assert!(back.iter().rev().map(|(k, v)| (k, v)).eq(then.iter()));
    let mut lent = Rows::new();
    let each = |key: &[u8], value: &[u8]| {
        lent.insert(key.to_vec(), value.to_vec());
        std::ops::ControlFlow::Continue(())
    };
    snapshot.scan_with(rows, .., each).unwrap();
    assert!(lent == *then);
    for _ in 0..40 {
        let key = name(rng);
        assert_eq!(snapshot.get(rows, &key).unwrap().as_ref(), then.get(&key));
        assert_eq!(snapshot.contains(rows, &key).unwrap(), then.contains_key(&key));
        let mut copy = Vec::new();
        let there = snapshot.get_to(rows, &key, &mut copy).unwrap().is_some();
        assert_eq!(there.then_some(&copy), then.get(&key));
    }
    let (a, b) = (name(rng), name(rng));
    let (low, high) = (a.clone().min(b.clone()), a.max(b));
    let part: Vec<_> = snapshot.scan(rows, &low[..]..&high[..]).unwrap().map(Result::unwrap).collect();
    assert!(part.iter().map(|(k, v)| (k, v)).eq(then.range(low.clone()..high.clone())));
    let part: Vec<_> = snapshot.scan_rev(rows, &low[..]..=&high[..]).unwrap().map(Result::unwrap).collect();
    assert!(part.iter().rev().map(|(k, v)| (k, v)).eq(then.range(low..=high)));
}

/// A transfer moves money between two halves of a keyspace; a clear takes all of it. Whoever reads both halves sees all
/// of the money, or none.
#[test]
fn a_clear_is_serializable_beside_transactions() {
    for seed in 0..4 {
        sim::run(sim::Config { seed, chaos: seed % 2 == 0, ..sim::Config::default() }, move || {
            let (_, db) = create();
            let rows = db.create_keyspace("rows").unwrap();
            const N: u64 = 1500;
            let put = |rows: &Keyspace| {
                db.transact(|tx| (0..N).try_for_each(|n| tx.put(rows, &key(n), &1u64.to_le_bytes()))).unwrap();
            };
            put(&rows);
            let cleared = Arc::new(AtomicU64::new(0));
            let clients: Vec<_> = (0..3u64)
                .map(|c| {
                    let (db, rows, cleared) = (db.clone(), rows.clone(), cleared.clone());
                    spawn(format!("client {c}"), move || {
                        let mut rng = Rng::from_seed(seed * 10 + c);
                        for _ in 0..15 {
                            let (a, b) = (rng.below(N / 2), N / 2 + rng.below(N / 2));
                            let moved = db.transact(|tx| {
                                let read = |v: Option<Vec<u8>>| v.map(|v| u64::from_le_bytes(v.try_into().unwrap()));
                                let (x, y) = (read(tx.get(&rows, &key(a))?), read(tx.get(&rows, &key(b))?));
                                assert_eq!(x.is_some(), y.is_some(), "all of it, or none");
                                let (Some(x @ 1..), Some(y)) = (x, y) else { return Ok(()) };
                                tx.put(&rows, &key(a), &(x - 1).to_le_bytes())?;
                                tx.put(&rows, &key(b), &(y + 1).to_le_bytes())
                            });
                            moved.unwrap();
                            let snapshot = db.snapshot().unwrap();
                            let sum: u64 = contents(&snapshot, &rows)
                                .values()
                                .map(|v| u64::from_le_bytes(v[..].try_into().unwrap()))
                                .sum();
                            assert!(sum == N || sum == 0, "{sum}");
                            if c == 0 && rng.below(6) == 0 {
                                rows.clear().unwrap();
                                cleared.fetch_add(1, Ordering::Relaxed);
                                db.transact(|tx| (0..N).try_for_each(|n| tx.put(&rows, &key(n), &1u64.to_le_bytes())))
                                    .unwrap();
                            }
                        }
                    })
                })
                .collect();
            clients.into_iter().for_each(|client| client.join().unwrap());
            sound(&db);
            db.close().unwrap();
        })
        .unwrap();
    }
}

#[test]
fn a_clear_waits_for_who_read_the_keyspace() {
    let (devices, db) = create();
    let rows = db.create_keyspace("rows").unwrap();
    fill(&rows, 3000);
    drop(rows);
    db.close().unwrap();
    let options = Options { lock_timeout: Some(std::time::Duration::from_millis(50)), ..options() };
    let db = Db::open_on(devices, options).unwrap();
    let rows = db.keyspace("rows").unwrap();
    let mut tx = db.begin_with(TxOptions::default()).unwrap();
    assert!(tx.get(&rows, &key(17)).unwrap().is_some());
    assert!(matches!(rows.clear(), Err(Error::LockTimeout { .. })));
    assert!(matches!(rows.delete_range(&key(10)[..]..), Err(Error::LockTimeout { .. })));
    // What it did not touch does not wait.
    rows.delete_range(&key(1000)[..]..&key(2000)[..]).unwrap();
    assert_eq!(tx.count(&rows, ..).unwrap(), 2000);
    tx.commit().unwrap();
    rows.clear().unwrap();
    assert_eq!(db.snapshot().unwrap().count(&rows, ..).unwrap(), 0);
    drop(rows);
    db.close().unwrap();
}

#[test]
fn a_renamed_keyspace_is_found_by_its_new_name_alone() {
    let (devices, db) = create();
    let rows = db.create_keyspace("rows").unwrap();
    drop(db.create_keyspace("others").unwrap());
    fill(&rows, 100);
    let mut tx = db.begin().unwrap();
    tx.put(&rows, b"a", b"1").unwrap();
    assert!(matches!(db.rename_keyspace("rows", "others"), Err(Error::AlreadyExists(_))));
    assert!(matches!(db.rename_keyspace("nothing", "new"), Err(Error::NoSuchKeyspace(_))));
    assert!(matches!(db.rename_keyspace("rows", "a\0b"), Err(Error::Invalid(_))));
    db.rename_keyspace("rows", "rows").unwrap();
    db.rename_keyspace("rows", "new").unwrap();
    assert_eq!(&*rows.name(), "new");
    tx.commit().unwrap();
    assert!(matches!(db.keyspace("rows"), Err(Error::NoSuchKeyspace(_))));
    assert_eq!(db.keyspace("new").unwrap().get(b"a").unwrap().unwrap(), b"1");
    drop(db.create_keyspace("rows").unwrap());
    drop(rows);
    db.close().unwrap();
    let db = Db::open_on(devices, options()).unwrap();
    let names: Vec<_> = db.keyspaces().unwrap().into_iter().map(|info| info.name).collect();
    assert_eq!(names, ["new", "others", "rows"]);
    assert_eq!(db.snapshot().unwrap().count(&db.keyspace("new").unwrap(), ..).unwrap(), 101);
    db.close().unwrap();
}

#[test]
fn a_snapshot_goes_on_reading_a_dropped_keyspace() {
    let (_, db) = create();
    let rows = db.create_keyspace("rows").unwrap();
    fill(&rows, 2000);
    let before = db.snapshot().unwrap();
    rows.put(b"late", b"1").unwrap();
    let late = db.snapshot().unwrap();
    db.drop_keyspace("rows").unwrap();
    let after = db.snapshot().unwrap();
    assert_eq!(before.count(&rows, ..).unwrap(), 2000);
    assert_eq!(late.get(&rows, b"late").unwrap().unwrap(), b"1");
    assert!(matches!(after.get(&rows, b"late"), Err(Error::NoSuchKeyspace(_))));
    assert!(matches!(rows.get(b"late"), Err(Error::NoSuchKeyspace(_))));
    assert!(matches!(rows.clear(), Err(Error::NoSuchKeyspace(_))));
    drop(db.create_keyspace("rows").unwrap());
    assert_eq!(before.get(&rows, &key(3)).unwrap().unwrap(), [3; 40]);
    drop((before, late, after));
    sound(&db);
    drop(rows);
    db.close().unwrap();
}
