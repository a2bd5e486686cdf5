//! Transactions larger than memory, than the pool and than the log: what they see of themselves, what others see
//! meanwhile, and what a crash leaves.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;
use varve::{
    Db, Devices, Durability, Error, Keyspace, KeyspaceKind, Layout, LsmOptions, Options, PoolOptions, Transaction,
    TxOptions,
};
use varve_device::{Device, OpKind};
use varve_models::{Fault, FaultPlan, Faulty, MemDevice, MemOptions, PowerSupply, When};
use varve_rt::sim::{self, Domain};
use varve_rt::{Mutex, Rng, sleep, spawn};

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

fn layout() -> Layout {
    Layout { page_size: 4096, log_bytes: 1 << 20, ..Layout::default() }
}

fn options() -> Options {
    Options { cache_bytes: 3 << 20, log_max_bytes: 2 << 20, ..Options::default() }
}

fn database() -> (Db, Keyspace) {
    let devices = Devices::new(MemDevice::new(0), MemDevice::new(0));
    let db = Db::create_on(devices, &layout(), options()).unwrap();
    let rows = db.create_keyspace("rows").unwrap();
    (db, rows)
}

fn key(n: u64) -> Vec<u8> {
    n.to_be_bytes().to_vec()
}

fn contents(db: &Db, rows: &Keyspace) -> Rows {
    db.snapshot().unwrap().scan(rows, ..).unwrap().map(|row| row.unwrap()).collect()
}

/// All ways of reading in the transaction agree with what it has done.
fn agrees(tx: &mut Transaction, rows: &Keyspace, expected: &Rows, rng: &mut Rng) {
    let up: Vec<_> = tx.scan(rows, ..).unwrap().map(|row| row.unwrap()).collect();
    assert!(up.iter().map(|row| (&row.0, &row.1)).eq(expected), "{} rows of {}", up.len(), expected.len());
    let down: Vec<_> = tx.scan_rev(rows, ..).unwrap().map(|row| row.unwrap()).collect();
    assert!(down.iter().rev().map(|row| (&row.0, &row.1)).eq(expected));
    assert_eq!(tx.count(rows, ..).unwrap(), expected.len() as u64);
    for _ in 0..40 {
        let (a, b) = (key(rng.below(9000)), key(rng.below(9000)));
        assert_eq!(tx.get(rows, &a).unwrap().as_ref(), expected.get(&a));
        assert_eq!(tx.contains(rows, &b).unwrap(), expected.contains_key(&b));
        let (low, high) = (a.clone().min(b.clone()), a.max(b));
        let some: Vec<_> = tx.scan(rows, &low..&high).unwrap().take(30).map(|row| row.unwrap().0).collect();
        assert!(some.iter().eq(expected.range(low.clone()..high.clone()).take(30).map(|row| row.0)));
        let some: Vec<_> = tx.scan_rev(rows, &low..&high).unwrap().take(30).map(|row| row.unwrap().0).collect();
        assert!(some.iter().eq(expected.range(low..high).rev().take(30).map(|row| row.0)));
    }
}

#[test]
fn a_transaction_of_any_size_sees_its_own_writes_and_commits_them() {
    let (db, rows) = database();
    let other = db.create_keyspace("other").unwrap();
    let mut rng = Rng::from_seed(1);
    let mut before = Rows::new();
    for n in (0..9000).step_by(3) {
        rows.put_with(&key(n), b"before", Durability::None).unwrap();
        before.insert(key(n), b"before".to_vec());
    }
    let mut expected = before.clone();
    let mut tx = db.begin().unwrap();
    let write = |tx: &mut Transaction, expected: &mut Rows, rng: &mut Rng, writes: u64| {
        for _ in 0..writes {
            let n = key(rng.below(9000));
            if rng.below(4) == 0 {
                tx.delete(&rows, &n).unwrap();
                expected.remove(&n);
            } else {
                let value = vec![rng.below(256) as u8; rng.below(90) as usize];
                tx.put(&rows, &n, &value).unwrap();
                expected.insert(n, value);
            }
        }
    };
    write(&mut tx, &mut expected, &mut rng, 4000);
    agrees(&mut tx, &rows, &expected, &mut rng);
    // Savepoints, with what was spilled between them.
    let first = (tx.savepoint().unwrap(), expected.clone());
    write(&mut tx, &mut expected, &mut rng, 3000);
    let second = (tx.savepoint().unwrap(), expected.clone());
    write(&mut tx, &mut expected, &mut rng, 3000);
    tx.rollback_to(second.0).unwrap();
    expected = second.1;
    agrees(&mut tx, &rows, &expected, &mut rng);
    write(&mut tx, &mut expected, &mut rng, 2000);
    tx.rollback_to(first.0).unwrap();
    expected = first.1;
    agrees(&mut tx, &rows, &expected, &mut rng);
    write(&mut tx, &mut expected, &mut rng, 3000);
    // Long values, of both kinds, a range that goes, and another keyspace.
    for n in 0..5 {
        let value = vec![n as u8; 30_000 * (n as usize + 1)];
        tx.put(&rows, &key(20_000 + n), &value).unwrap();
        expected.insert(key(20_000 + n), value);
    }
    let gone = tx.delete_range(&rows, &key(1000)..&key(3000)).unwrap();
    let kept = expected.len();
    expected.retain(|k, _| !(key(1000)..key(3000)).contains(k));
    assert_eq!(gone, (kept - expected.len()) as u64);
    tx.put(&other, b"alone", b"1").unwrap();
    agrees(&mut tx, &rows, &expected, &mut rng);
    let young = db.snapshot().unwrap();
    assert!(young.scan(&rows, ..).unwrap().map(|row| row.unwrap()).eq(before.clone()), "nobody else sees any of it");
    tx.commit().unwrap();
    assert!(contents(&db, &rows) == expected);
    assert_eq!(other.get(b"alone").unwrap().as_deref(), Some(&b"1"[..]));
    drop(young);
    let stats = db.stats();
    assert_eq!(stats.txn.large_commits, 1);
    assert!(stats.txn.spills > 5 && stats.txn.lock_coarsened > 0, "{:?}", stats.txn);
    assert_eq!(stats.scratch.pages, 0, "scratch pages are given back");
    for class in stats.budget.iter().filter(|c| ["locks", "write sets"].contains(&c.class.name())) {
        assert!(class.used <= 32 << 10 && class.peak <= class.limit, "{class:?}");
    }
    let report = db.check().unwrap();
    assert!(report.is_clean(), "{report:?}");
    db.close().unwrap();
}

/// A transaction that is rolled back, or dropped, leaves nothing: no row, no lock, no page.
#[test]
fn what_is_not_committed_leaves_nothing() {
    let (db, rows) = database();
    rows.put(&key(5), b"kept").unwrap();
    for round in 0..3 {
        let mut tx = db.begin().unwrap();
        (0..6000).for_each(|n| tx.put(&rows, &key(n * 7919 % 6000), &[round; 40]).unwrap());
        assert!(db.stats().scratch.pages > 0);
        if round == 0 {
            tx.rollback()
        } else {
            drop(tx)
        }
        assert_eq!(db.stats().scratch.pages, 0);
    }
    assert_eq!(contents(&db, &rows), Rows::from([(key(5), b"kept".to_vec())]));
    assert!(db.check().unwrap().is_clean());
    db.close().unwrap();
}

const ALL: u64 = 900;

/// Puts one value into all rows, in one transaction.
fn put_all(db: &Db, rows: &Keyspace, value: u64) -> varve::Result<()> {
    let mut tx = db.begin_with(TxOptions::durability(Durability::Sync))?;
    for n in 0..ALL {
        tx.put(rows, &key(n * 1009 % ALL), &value.to_be_bytes())?;
    }
    tx.commit()
}

fn number(value: &[u8]) -> u64 {
    u64::from_be_bytes(value.try_into().unwrap())
}

/// Reads in all ways that need no lock; `last` is the newest value that was seen.
fn look(db: &Db, rows: &Keyspace, last: &mut u64, rng: &mut Rng) -> varve::Result<()> {
    let mut saw = |one: u64| {
        assert!(one >= *last, "what was there is gone: {one} after {last}");
        *last = one;
    };
    let snapshot = db.snapshot()?;
    let one = number(&snapshot.get(rows, &key(rng.below(ALL)))?.expect("a row"));
    saw(one);
    let from = rng.below(ALL);
    let (low, high) = (key(from), key((from + 100).min(ALL)));
    for reverse in [false, true] {
        let scan = if reverse { snapshot.scan_rev(rows, &low..&high)? } else { snapshot.scan(rows, &low..&high)? };
        let values = scan.map(|row| Ok(number(&row?.1))).collect::<varve::Result<Vec<_>>>()?;
        assert!(values.iter().all(|value| *value == one), "{one} and {values:?}");
        assert_eq!(values.len() as u64, 100.min(ALL - from));
    }
    assert_eq!(snapshot.count(rows, ..)?, ALL);
    saw(number(&rows.get(&key(rng.below(ALL)))?.expect("a row")));
    assert!(rows.contains(&key(rng.below(ALL)))?);
    let mut lent = Vec::new();
    rows.scan_with(&low..&high, |_, value| {
        lent.push(number(value));
        ControlFlow::Continue(())
    })?;
    lent.into_iter().for_each(saw);
    Ok(())
}

/// Whoever reads beside large commits sees each of them whole or not at all, and none that he saw goes back.
#[test]
fn others_see_a_large_commit_whole_or_not_at_all() {
    for seed in 0..3 {
        sim::run(sim::Config { seed, chaos: seed > 0, ..sim::Config::default() }, move || {
            let ms = |n| Duration::from_micros(n);
            let latency =
                varve_models::Latency { read: (ms(20), ms(60)), write: (ms(20), ms(60)), ..Default::default() };
            let data = MemDevice::with(0, MemOptions { latency, ..MemOptions::default() });
            let db = Db::create_on(Devices::new(data, MemDevice::new(0)), &layout(), options()).unwrap();
            let rows = db.create_keyspace("rows").unwrap();
            put_all(&db, &rows, 1).unwrap();
            let (during, apart) = (Arc::new(Mutex::new(0u64)), db.create_keyspace("apart").unwrap());
            let writer = {
                let (db, rows) = (db.clone(), rows.clone());
                spawn("writer", move || (2..5).for_each(|value| put_all(&db, &rows, value).unwrap()))
            };
            let readers: Vec<_> = (0..3u64)
                .map(|me| {
                    let (db, rows, apart, during) = (db.clone(), rows.clone(), apart.clone(), during.clone());
                    spawn("reader", move || {
                        let (mut rng, mut last) = (Rng::from_seed(seed * 10 + me), 1);
                        while last < 4 {
                            match look(&db, &rows, &mut last, &mut rng) {
                                // Its old values had no room.
                                Ok(()) | Err(Error::SnapshotTooOld) => {}
                                Err(error) => panic!("{error}"),
                            }
                            // Others go on.
                            apart.put_with(&key(me), &last.to_be_bytes(), Durability::Sync).unwrap();
                            *during.lock() += 1;
                            sleep(Duration::from_micros(500));
                        }
                    })
                })
                .collect();
            writer.join().unwrap();
            readers.into_iter().for_each(|reader| reader.join().unwrap());
            assert!(*during.lock() > 12, "{} rounds", during.lock());
            assert!(db.stats().txn.large_commits >= 4, "{:?}", db.stats().txn);
            assert!(db.check().unwrap().is_clean());
            db.close().unwrap();
        })
        .result
        .unwrap_or_else(|e| panic!("seed {seed}: {e:?}"));
    }
}

/// Whenever the power goes, a large commit is there whole or not at all; one that was acknowledged is there. The
/// opening that finishes it is interrupted too.
#[test]
fn a_crash_leaves_all_or_nothing() {
    let mut finished = 0;
    for seed in 0..3 {
        finished += crash(seed);
    }
    assert!(finished > 1, "{finished} commits were finished by an opening");
}

fn crash(seed: u64) -> u64 {
    let outcome = sim::run(sim::Config { seed, ..sim::Config::default() }, move || {
        let supply = PowerSupply::new();
        let devices = [seed, seed + 1].map(|seed| {
            let mem = MemDevice::with(0, MemOptions { seed, ..MemOptions::default() });
            supply.attach(mem.clone());
            Faulty::powered(mem, FaultPlan::new(seed), supply.clone()) as Arc<dyn Device>
        });
        let on = |devices: &[Arc<dyn Device>; 2]| Devices::new(devices[0].clone(), devices[1].clone());
        let db = Db::create_on(on(&devices), &layout(), options()).unwrap();
        let rows = db.create_keyspace("rows").unwrap();
        put_all(&db, &rows, 1).unwrap();
        db.close().unwrap();
        let (acknowledged, finished) = (Arc::new(Mutex::new(1u64)), Arc::new(Mutex::new(0u64)));
        let (mut rng, mut told) = (Rng::from_seed(seed), 0);
        for round in 0..6 {
            if round < 5 {
                supply.cut_at(supply.ops() + 5 + rng.below(250), rng.next_u64());
            }
            let domain = Domain::new("machine");
            let job = {
                let (devices, acknowledged, finished) = (on(&devices), acknowledged.clone(), finished.clone());
                let supply = supply.clone();
                domain.spawn("database", move || -> varve::Result<()> {
                    let db = Db::open_on(devices, options())?;
                    *finished.lock() += db.recovery_report().finished;
                    let rows = db.keyspace("rows")?;
                    let snapshot = db.snapshot()?;
                    let values =
                        snapshot.scan(&rows, ..)?.map(|row| Ok(number(&row?.1))).collect::<varve::Result<Vec<_>>>()?;
                    drop(snapshot);
                    let (one, least) = (values[0], *acknowledged.lock());
                    assert!(values.iter().all(|value| *value == one), "half a commit: {one}, {values:?}");
                    assert!(values.len() as u64 == ALL && (least..least + 2).contains(&one), "{one} of {least}");
                    let report = db.check()?;
                    assert!(report.is_clean() || !supply.is_on(), "{report:?}");
                    *acknowledged.lock() = one;
                    for value in one + 1.. {
                        put_all(&db, &rows, value)?;
                        *acknowledged.lock() = value;
                        if round == 5 {
                            return db.close();
                        }
                    }
                    Ok(())
                })
            };
            if round < 5 {
                supply.off().wait_for(Duration::from_secs(60));
                domain.power_cut();
            }
            match job.join() {
                Ok(Err(e)) if round == 5 => panic!("{e}"),
                Ok(Err(e @ Error::Corrupt(_))) => panic!("{e}"),
                Err(e) if !e.power_cut => panic!("{}", e.message),
                _ => {}
            }
            domain.power_cut();
            supply.cut_at(0, 0);
            supply.restore();
            told += told_by_salvage(&on(&devices));
        }
        assert!(told >= *finished.lock(), "salvage told of {told} commits that were decided and not applied");
        *finished.lock()
    });
    outcome.result.unwrap_or_else(|e| panic!("seed {seed}: {e:?}"))
}

/// How many commits salvage finds decided and not all applied; it finds a database without damage whole.
fn told_by_salvage(devices: &Devices) -> u64 {
    let report = varve::salvage_on(devices, &mut |_| Ok(())).unwrap();
    assert!(report.is_whole(), "{report:?}");
    report.finished
}

/// Two that are decided at the same time are told apart by the opening that finishes them.
#[test]
fn a_crash_leaves_all_or_nothing_of_each_of_two_at_once() {
    let finished: u64 = (0..12).map(crash_of_two).sum();
    assert!(finished > 4, "{finished} commits were finished by an opening");
}

fn crash_of_two(seed: u64) -> u64 {
    let outcome = sim::run(sim::Config { seed, ..sim::Config::default() }, move || {
        let supply = PowerSupply::new();
        let [data, log] = [seed, seed + 1].map(|seed| {
            let mem = MemDevice::with(0, MemOptions { seed, ..MemOptions::default() });
            supply.attach(mem.clone());
            Faulty::powered(mem, FaultPlan::new(seed), supply.clone()) as Arc<dyn Device>
        });
        let devices = Devices::new(data, log);
        let options = Options { durability: Durability::None, ..options() };
        let db = Db::create_on(devices.clone(), &layout(), options.clone()).unwrap();
        for name in ["a", "b"] {
            put_all(&db, &db.create_keyspace(name).unwrap(), 1).unwrap();
        }
        db.close().unwrap();
        supply.cut_at(supply.ops() + 30 + Rng::from_seed(seed).below(300), seed);
        let domain = Domain::new("machine");
        let (opened, reopened) = ((devices.clone(), options.clone()), options);
        let job = domain.spawn("database", move || {
            let Ok(db) = Db::open_on(opened.0, opened.1) else { return };
            let writers = ["a", "b"].map(|name| {
                let (db, rows) = (db.clone(), db.keyspace(name).unwrap());
                spawn(name, move || (2..).try_for_each(|value| put_all(&db, &rows, value)))
            });
            writers.into_iter().for_each(|writer| drop(writer.join()));
        });
        supply.off().wait_for(Duration::from_secs(60));
        domain.power_cut();
        let _ = job.join();
        supply.restore();
        let db = Db::open_on(devices, reopened).unwrap();
        for name in ["a", "b"] {
            let values: Vec<u64> = contents(&db, &db.keyspace(name).unwrap()).values().map(|v| number(v)).collect();
            assert_eq!(values.len() as u64, ALL);
            assert!(values.iter().all(|value| *value == values[0]), "half a commit: {values:?}");
        }
        assert!(db.check().unwrap().is_clean());
        db.recovery_report().finished
    });
    outcome.result.unwrap_or_else(|e| panic!("seed {seed}: {e:?}"))
}

/// What was decided with much memory is finished with little: rows of an LSM keyspace that memtables may not hold by
/// then are taken all the same, and values of a tree that the pool has no room for at once.
#[test]
fn a_large_commit_is_finished_with_less_memory_than_it_was_decided_with() {
    let lsm = KeyspaceKind::Lsm(LsmOptions::default());
    for (kind, page_size, rows, bytes) in [(lsm, 4096, 10, 100_000), (KeyspaceKind::Tree, 16384, 100, 60_000)] {
        let mut finished = 0;
        for seed in 0..10 {
            let layout = Layout { page_size, ..layout() };
            let job = move || decided_with_much_memory(seed, kind, &layout, (rows, bytes));
            let outcome = sim::run(sim::Config { seed, ..sim::Config::default() }, job);
            finished += outcome.result.unwrap_or_else(|e| panic!("seed {seed}: {e:?}"));
        }
        assert!(finished > 1, "{finished} commits were finished by an opening");
    }
}

/// Commits, by and by, and loses the power; how many commits the opening with less memory has finished.
fn decided_with_much_memory(seed: u64, kind: KeyspaceKind, layout: &Layout, (rows, bytes): (u64, usize)) -> u64 {
    let supply = PowerSupply::new();
    let mem = [1, 2].map(|n| MemDevice::with(0, MemOptions { seed: seed + n, ..MemOptions::default() }));
    let devices = mem.map(|mem| {
        supply.attach(mem.clone());
        Faulty::powered(mem, FaultPlan::new(seed), supply.clone()) as Arc<dyn Device>
    });
    let on = move || Devices::new(devices[0].clone(), devices[1].clone());
    let with = |cache_bytes| Options { cache_bytes, log_max_bytes: 8 << 20, ..options() };
    let value = move |n: u64| vec![n as u8; bytes];
    let (layout, devices, domain) = (layout.clone(), on(), Domain::new("machine"));
    supply.cut_at(600 + 350 * seed, seed);
    let job = domain.spawn("database", move || -> varve::Result<()> {
        let db = Db::create_on(devices, &layout, with(4 << 20))?;
        let events = db.create_keyspace_of("events", kind)?;
        db.transact(|tx| (0..rows).try_for_each(|n| tx.put(&events, &key(n), &value(1))))?;
        loop {
            db.transact(|tx| (0..rows).try_for_each(|n| tx.put(&events, &key(n), &value(2))))?;
        }
    });
    supply.off().wait_for(Duration::from_secs(60));
    domain.power_cut();
    assert!(!matches!(job.join(), Ok(Ok(()))), "the power goes before it ends");
    supply.cut_at(0, 0);
    supply.restore();
    let db = Db::open_on(on(), Options { pool_frames: 16, ..with(1 << 20) }).unwrap();
    if let Ok(events) = db.keyspace("events") {
        let found = contents(&db, &events);
        let first = found.values().next().map(|value| value[0]);
        assert!(found.is_empty() || found.len() as u64 == rows, "half a commit: {} rows", found.len());
        assert!(found.values().all(|row| row.len() == bytes && Some(row[0]) == first), "half a commit");
    }
    let finished = db.recovery_report().finished;
    assert!(db.check().unwrap().is_clean());
    db.close().unwrap();
    finished
}

/// A snapshot of a moment in which a commit was not all applied looks for its writes apart; it looks for rows that left
/// the keyspace since then where they are, all the same.
#[test]
fn rows_that_were_cut_off_are_seen_beside_a_commit_that_was_not_all_applied() {
    let between: usize = (0..1)
        .map(|seed| {
            let config = sim::Config { seed, ..sim::Config::default() };
            sim::run(config, cut_beside_a_commit).unwrap()
        })
        .sum();
    assert!(between > 0, "no snapshot was of a moment between two pieces");
}

fn cut_beside_a_commit() -> usize {
    let devices = Devices::new(MemDevice::new(0), MemDevice::new(0));
    let options = Options { durability: Durability::None, cache_bytes: 12 << 20, ..options() };
    let db = Db::create_on(devices, &layout(), options).unwrap();
    let rows = db.create_keyspace("rows").unwrap();
    let lsm = db.create_keyspace_of("lsm", varve::KeyspaceKind::Lsm(varve::LsmOptions::default())).unwrap();
    (0..2000).for_each(|n| rows.put(key(n), [1; 100]).unwrap());
    let (other, spaces) = (db.clone(), [rows.clone(), lsm.clone()]);
    let ended = Arc::new(Mutex::new(false));
    let end = ended.clone();
    let large = spawn("large", move || {
        let put = |tx: &mut Transaction, n| spaces.iter().try_for_each(|space| tx.put(space, key(n), [2; 300]));
        other.transact(|tx| (10_000..13_000).try_for_each(|n| put(tx, n))).unwrap();
        *end.lock() = true;
    });
    let mut snapshots = Vec::new();
    while !*ended.lock() {
        snapshots.push(db.snapshot().unwrap());
        if snapshots.len() > 12 {
            // Those before the commit was decided do not matter.
            snapshots.drain(..6);
        }
        sleep(Duration::from_millis(1));
    }
    large.join().unwrap();
    // Another one, to trees alone: it forgets nothing of the first.
    db.transact(|tx| (20_000..20_700).try_for_each(|n| tx.put(&rows, key(n), [3; 3000]))).unwrap();
    assert_eq!(db.stats().txn.large_commits, 2);
    rows.clear().unwrap();
    let mut between = 0;
    for snapshot in &snapshots {
        let (forth, back) =
            (snapshot.scan(&rows, ..&key(10_000)).unwrap(), snapshot.scan_rev(&rows, ..&key(10_000)).unwrap());
        let count = |rows: varve::Scan| rows.collect::<varve::Result<Vec<_>>>().unwrap().len();
        assert_eq!((count(forth), count(back)), (2000, 2000));
        let of = |space: &Keyspace| snapshot.count(space, &key(10_000)..&key(20_000)).unwrap();
        assert_eq!(of(&rows), of(&lsm), "half a commit");
        between += usize::from(of(&lsm) > 0);
    }
    drop((snapshots, rows, lsm));
    db.close().unwrap();
    between
}

/// A device that is full fails the transaction that spills, with an error that says so, and nothing else.
#[test]
fn a_full_device_fails_the_transaction_that_spills_alone() {
    let plan = FaultPlan::new(1).rule(&[OpKind::SetLen], None, When::From(4), Fault::NoSpace);
    let data = Faulty::new(MemDevice::new(0), plan);
    let db = Db::create_on(Devices::new(data, MemDevice::new(0)), &layout(), options()).unwrap();
    let rows = db.create_keyspace("rows").unwrap();
    rows.put(&key(1), b"before").unwrap();
    let mut small = db.begin().unwrap();
    small.put(&rows, &key(u64::MAX), b"small").unwrap();
    let mut tx = db.begin().unwrap();
    let error = (2..200_000).find_map(|n| tx.put(&rows, &key(n), &[1; 400]).err()).expect("the device is full");
    assert!(matches!(error, Error::NoSpace(_)), "{error}");
    assert!(error.to_string().contains("free space or grow the device"), "{error}");
    // What it has written it still sees.
    assert_eq!(tx.get(&rows, &key(2)).unwrap().as_deref(), Some(&[1; 400][..]));
    drop(tx);
    small.commit().unwrap();
    rows.put(&key(3), b"after").unwrap();
    let expected = [(key(1), b"before".to_vec()), (key(3), b"after".to_vec()), (key(u64::MAX), b"small".to_vec())];
    assert_eq!(contents(&db, &rows), Rows::from(expected));
    assert_eq!(db.stats().scratch.pages, 0);
    assert!(db.check().unwrap().is_clean());
    db.close().unwrap();
}

/// A piece of a commit has at least one value: those that a small pool could not take go to pages of their own before.
#[test]
fn a_value_as_large_as_a_commit_may_change_at_once_is_committed_with_many_others() {
    for (frames, instances, pages) in
        [(24, 1, 5), (16, 1, 2), (19, 1, 3), (16, 2, 2), (27, 3, 2), (54, 3, 4), (40, 4, 16)]
    {
        let devices = Devices::new(MemDevice::new(0), MemDevice::new(0));
        let pool = PoolOptions { instances: Some(instances), ..PoolOptions::default() };
        let options = Options { pool_frames: frames, pool, cache_bytes: 1 << 20, ..options() };
        let db = Db::create_on(devices, &layout(), options).unwrap();
        let rows = db.create_keyspace("rows").unwrap();
        let value = vec![2; pages * 4096];
        db.transact(|tx| {
            (0..600).try_for_each(|n| tx.put(&rows, &key(n), &[1; 200]))?;
            tx.put(&rows, &key(300), &value)
        })
        .unwrap_or_else(|e| panic!("{frames} frames in {instances} instances: {e}"));
        assert_eq!(rows.get(&key(300)).unwrap().unwrap(), value);
        assert_eq!(contents(&db, &rows).len(), 600);
        assert!(db.check().unwrap().is_clean());
        drop(rows);
        db.close().unwrap();
    }
}

/// A long value that was spilled and then overwritten, deleted or rolled back has pages that nothing names.
#[test]
fn pages_of_values_that_were_taken_back_are_free_after_the_commit() {
    let (db, rows) = database();
    let mut tx = db.begin().unwrap();
    let fill = |tx: &mut Transaction, from: u64| {
        (from..from + 2000).for_each(|n| tx.put(&rows, &key(n), &[1; 1000]).unwrap());
    };
    tx.put_from(&rows, b"kept", &mut &vec![3; 300_000][..]).unwrap();
    tx.put_from(&rows, b"overwritten", &mut &vec![1; 300_000][..]).unwrap();
    tx.put_from(&rows, b"deleted", &mut &vec![1; 300_000][..]).unwrap();
    fill(&mut tx, 0);
    let savepoint = tx.savepoint().unwrap();
    tx.put_from(&rows, b"rolled back", &mut &vec![1; 300_000][..]).unwrap();
    fill(&mut tx, 2000);
    tx.rollback_to(savepoint).unwrap();
    tx.put(&rows, b"overwritten", b"short").unwrap();
    tx.delete(&rows, b"deleted").unwrap();
    fill(&mut tx, 4000);
    tx.commit().unwrap();
    assert!(db.stats().txn.large_commits > 0, "the commit came in pieces");
    let report = db.check().unwrap();
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(rows.get(b"kept").unwrap().unwrap(), vec![3; 300_000]);
    drop(rows);
    db.close().unwrap();
}
