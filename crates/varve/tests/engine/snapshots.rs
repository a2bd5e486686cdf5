//! Snapshots that live: while the rows that they see are written over again and again, their old values go to scratch
//! pages.

use std::collections::BTreeMap;
use varve::{Db, Devices, Durability, Error, Keyspace, Layout, Options, Snapshot};
use varve_device::OpKind;
use varve_models::{Fault, FaultPlan, Faulty, MemDevice, When};
use varve_rt::{Rng, spawn};

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// Old values have 64 KiB of memory.
fn options() -> Options {
    Options { durability: Durability::None, ..Options::default().cache_mb(1) }
}

fn create(options: Options) -> (Devices, Db, Keyspace) {
    let devices = Devices::new(MemDevice::new(0), MemDevice::new(0));
    let layout = Layout { page_size: 4096, log_bytes: 4 << 20, ..Layout::default() };
    let db = Db::create_on(devices.clone(), &layout, options).unwrap();
    let rows = db.create_keyspace("rows").unwrap();
    (devices, db, rows)
}

fn key(n: u64) -> [u8; 8] {
    n.to_be_bytes()
}

fn fill(rows: &Keyspace, n: u64) {
    (0..n).for_each(|n| rows.put(&key(n), &n.to_le_bytes()).unwrap());
}

fn contents(snapshot: &Snapshot, keyspace: &Keyspace) -> Rows {
    snapshot.scan(keyspace, ..).unwrap().map(Result::unwrap).collect()
}

#[track_caller]
fn sound(db: &Db) {
    let report = db.check().unwrap();
    assert!(report.is_clean(), "{:?} {:?}", report.damages, report.unreadable);
}

#[test]
fn a_loop_writes_over_what_it_scans() {
    const N: u64 = 30_000;
    let (devices, db, rows) = create(options());
    fill(&rows, N);
    let snapshot = db.snapshot().unwrap();
    let mut seen = 0;
    for row in snapshot.scan(&rows, ..).unwrap() {
        let (key, value) = row.unwrap();
        assert_eq!(value, u64::to_le_bytes(seen));
        rows.put(&key, b"other").unwrap();
        seen += 1;
    }
    assert_eq!(seen, N);
    let stats = db.stats();
    assert!(stats.txn.versions_spilled > N / 2 && stats.txn.snapshot_disk > 0, "{:?}", stats.txn);
    // All of it again, in both directions, and by key.
    assert!(snapshot.scan_rev(&rows, ..).unwrap().map(Result::unwrap).eq((0..N).rev().map(pair)));
    assert!((0..N).step_by(97).all(|n| snapshot.get(&rows, &key(n)).unwrap().unwrap() == n.to_le_bytes()));
    sound(&db);
    drop(snapshot);
    // A merge that is under way gives its part back when it ends.
    let mut patience = 0..60_000;
    while db.stats().txn.snapshot_disk > 0 {
        patience.next().expect("the scratch pages of a snapshot that is gone become free");
        varve_rt::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(db.stats().txn.snapshots_evicted, 0);
    drop(rows);
    db.close().unwrap();
    let db = Db::open_on(devices, options()).unwrap();
    sound(&db);
    db.close().unwrap();
}

fn pair(n: u64) -> (Vec<u8>, Vec<u8>) {
    (key(n).to_vec(), n.to_le_bytes().to_vec())
}

/// Snapshots of many ages, of keys that come, go and come again with short and long values, cleared ranges among them.
#[test]
fn every_snapshot_sees_its_moment() {
    for seed in 0..3 {
        let (_, db, rows) = create(options());
        let mut rng = Rng::from_seed(seed);
        let mut model = Rows::new();
        let mut snapshots: Vec<(Snapshot, Rows)> = Vec::new();
        for step in 0..40 {
            for _ in 0..200 {
                let n = key(rng.below(700));
                if rng.below(4) == 0 {
                    rows.delete(&n).unwrap();
                    model.remove(&n[..]);
                } else {
                    let len = if rng.below(60) == 0 { 6000 } else { rng.below(120) };
                    let value = vec![step; len as usize];
                    rows.put(&n, &value).unwrap();
                    model.insert(n.to_vec(), value);
                }
            }
            if rng.below(6) == 0 {
                let (low, high) = (key(rng.below(700)), key(rng.below(700)));
                rows.delete_range(&low[..]..&high[..]).unwrap();
                model.retain(|key, _| key[..] < low[..] || key[..] >= high[..]);
            }
            snapshots.push((db.snapshot().unwrap(), model.clone()));
            if snapshots.len() > 8 {
                drop(snapshots.remove(rng.below(8) as usize));
            }
            let (snapshot, then) = &snapshots[rng.below(snapshots.len() as u64) as usize];
            assert!(contents(snapshot, &rows) == *then, "seed {seed} step {step}");
            let back: Vec<_> = snapshot.scan_rev(&rows, ..).unwrap().map(Result::unwrap).collect();
            assert!(back.iter().rev().map(|(k, v)| (k, v)).eq(then.iter()));
            for n in (0..40).map(|_| key(rng.below(700))) {
                assert_eq!(snapshot.get(&rows, &n).unwrap().as_ref(), then.get(&n[..]));
                assert_eq!(snapshot.contains(&rows, &n).unwrap(), then.contains_key(&n[..]));
            }
            assert_eq!(snapshot.count(&rows, ..).unwrap(), then.len() as u64);
        }
        for (snapshot, then) in &snapshots {
            assert!(contents(snapshot, &rows) == *then);
        }
        let stats = db.stats().txn;
        assert!(stats.versions_spilled > 1000 && stats.snapshots_evicted == 0, "{stats:?}");
        snapshots.clear();
        sound(&db);
        drop(rows);
        db.close().unwrap();
    }
}

#[test]
fn an_export_finishes_beside_writers_and_so_does_a_backup() {
    const N: u64 = 10_000;
    let (_, db, rows) = create(options());
    fill(&rows, N);
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let writers: Vec<_> = (0..2u64)
        .map(|w| {
            let (rows, stop) = (rows.clone(), stop.clone());
            spawn(format!("writer {w}"), move || {
                let mut rng = Rng::from_seed(w);
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    rows.put(&key(rng.below(N)), &[7; 60]).unwrap();
                }
            })
        })
        .collect();
    for _ in 0..2 {
        let snapshot = db.snapshot().unwrap();
        let first = contents(&snapshot, &rows);
        assert_eq!(first.len() as u64, N);
        assert!(contents(&snapshot, &rows) == first, "it stays what it was");
    }
    let mut backup = Vec::new();
    db.backup(&mut backup, varve::BackupOptions::default()).unwrap();
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    assert_eq!(db.stats().txn.snapshots_evicted, 0);
    sound(&db);
    drop(rows);
    db.close().unwrap();
}

#[test]
fn many_snapshots_are_open_at_once() {
    let (_, db, rows) = create(options());
    fill(&rows, 100);
    let snapshots: Vec<_> = (0..1000u64)
        .map(|n| {
            let snapshot = db.snapshot().unwrap();
            (0..3).for_each(|i| rows.put(&key((n * 3 + i) % 100), &(1000 + n).to_le_bytes()).unwrap());
            snapshot
        })
        .collect();
    for (n, snapshot) in snapshots.iter().enumerate().step_by(53) {
        let rows = contents(snapshot, &rows);
        let newest = rows.values().map(|v| u64::from_le_bytes(v[..].try_into().unwrap())).max().unwrap();
        assert_eq!(newest, if n == 0 { 99 } else { 999 + n as u64 });
    }
    let stats = db.stats().txn;
    assert!(stats.snapshots == 1000 && stats.snapshots_evicted == 0 && stats.versions_spilled > 0, "{stats:?}");
    drop(snapshots);
    sound(&db);
    drop(rows);
    db.close().unwrap();
}

/// The data device has no room for scratch pages: the oldest snapshot fails and says why, everything else goes on.
#[test]
fn a_full_device_costs_the_oldest_snapshot_only() {
    const N: u64 = 3000;
    let data = Faulty::new(MemDevice::new(0), FaultPlan::new(1));
    let layout = Layout { page_size: 4096, log_bytes: 4 << 20, ..Layout::default() };
    let db = Db::create_on(Devices::new(data.clone(), MemDevice::new(0)), &layout, options()).unwrap();
    let rows = db.create_keyspace("rows").unwrap();
    fill(&rows, N);
    db.checkpoint().unwrap();
    let old = db.snapshot().unwrap();
    rows.put(&key(0), b"between").unwrap();
    let young = db.snapshot().unwrap();
    data.set_plan(FaultPlan::new(1).rule(&[OpKind::SetLen], None, When::From(1), Fault::NoSpace));
    let mut others = Vec::new();
    for n in 0..100 * N {
        if db.stats().txn.snapshots_evicted > 0 {
            break;
        }
        // Each snapshot makes the next round leave old values.
        if n % N == 0 {
            others.push(db.snapshot().unwrap());
        }
        rows.put(&key(n % N), &(1 + n).to_be_bytes()).unwrap();
    }
    let error = old.get(&rows, &key(5)).unwrap_err();
    assert!(matches!(&error, Error::SnapshotLost(why) if why.contains("space")), "{error}");
    assert_eq!(young.get(&rows, &key(0)).unwrap().unwrap(), b"between");
    assert_eq!(contents(&young, &rows).len() as u64, N);
    drop((old, young, others));
    sound(&db);
    drop(rows);
    db.close().unwrap();
}

/// Past the limit the oldest is refused, and nobody else.
#[test]
fn scratch_pages_have_a_limit() {
    const N: u64 = 3000;
    let limit = 700 << 10;
    let (_, db, rows) = create(Options { snapshot_disk_bytes: Some(limit), ..options() });
    fill(&rows, N);
    let old = db.snapshot().unwrap();
    let mut most = 0;
    for round in 0.. {
        for n in 0..N {
            rows.put(&key(n), &[round; 100]).unwrap();
            most = most.max(db.stats().txn.snapshot_disk);
        }
        if db.stats().txn.snapshots_evicted > 0 {
            break;
        }
        assert!(round < 50, "it never came to its limit");
        // Each snapshot makes the next round leave old values.
        let young = db.snapshot().unwrap();
        for n in 0..N {
            rows.put(&key(n), &[round; 90]).unwrap();
            most = most.max(db.stats().txn.snapshot_disk);
        }
        // The old one goes first. The young one may follow where the thread that writes scratch pages gets no time.
        let whole = |snapshot: &Snapshot| match snapshot.count(&rows, ..) {
            Ok(count) => count == N,
            Err(e) => {
                assert!(matches!(e, Error::SnapshotTooOld), "{e}");
                false
            }
        };
        assert!(whole(&young) || !whole(&old), "the older is refused first");
        assert!(whole(&old) || db.stats().txn.snapshots_evicted > 0, "nobody is refused without need");
    }
    assert!(matches!(old.get(&rows, &key(1)), Err(Error::SnapshotTooOld)));
    assert!(most > limit / 4 && most <= limit, "{most}");
    let young = db.snapshot().unwrap();
    rows.put(&key(1), b"new").unwrap();
    assert_ne!(young.get(&rows, &key(1)).unwrap().unwrap(), b"new");
    drop((old, young));
    sound(&db);
    drop(rows);
    db.close().unwrap();
}
