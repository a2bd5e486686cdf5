//! Large commits that are decided, and whose pieces meet a log that cannot grow, or a power cut and then a salvage.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use varve::{Db, Devices, Durability, Error, Keyspace, KeyspaceKind, Layout, LsmOptions, Options};
use varve_device::{Device, OpKind};
use varve_models::{Fault, FaultPlan, Faulty, MemDevice, MemOptions, PowerSupply, When};
use varve_rt::sim::{self, Domain};
use varve_rt::{Rng, now};

fn layout() -> Layout {
    Layout { page_size: 4096, log_bytes: 1 << 20, ..Layout::default() }
}

fn key(n: u64) -> [u8; 8] {
    n.to_be_bytes()
}

/// A log whose file is as long as it can be takes commits of any size all the same, a piece at a time, also when an
/// opening finishes them.
#[test]
fn a_log_that_cannot_grow_takes_large_commits() {
    const ROWS: u64 = 20_000;
    let put = |db: &Db, rows: &Keyspace, value: u8| -> varve::Result<()> {
        db.transact(|tx| (0..ROWS).try_for_each(|n| tx.put(rows, key(n * 7919 % ROWS), [value; 300])))
    };
    let holds = |rows: &Keyspace, value: u8| {
        let mut scan = rows.iter().unwrap();
        assert!(scan.all(|row| row.unwrap().1 == [value; 300]));
        assert_eq!(rows.len().unwrap(), ROWS);
    };
    let outcome = sim::run(sim::Config::default(), move || {
        let full = || FaultPlan::new(1).rule(&[OpKind::SetLen], None, When::From(1), Fault::NoSpace);
        let log = Faulty::new(MemDevice::new(0), FaultPlan::default());
        let options = Options { cache_bytes: 4 << 20, log_max_bytes: 64 << 20, ..Options::default() };
        let db = Db::create_on(Devices::new(MemDevice::new(0), log.clone()), &layout(), options).unwrap();
        let rows = db.create_keyspace("rows").unwrap();
        log.set_plan(full());
        let began = now();
        (1..4).for_each(|value| put(&db, &rows, value).unwrap());
        assert!(began.elapsed() < Duration::from_secs(30), "nobody waited for room that does not come");
        assert_eq!(db.stats().txn.large_commits, 3);
        holds(&rows, 3);
        assert!(db.check().unwrap().is_clean());
        drop(rows);
        db.close().unwrap();
    });
    outcome.result.unwrap_or_else(|e| panic!("{e:?}"));
}

type Rows = BTreeMap<(String, Vec<u8>), Vec<u8>>;

fn rows_of(db: &Db) -> Rows {
    let snapshot = db.snapshot().unwrap();
    let of = |name: &str| {
        let Ok(space) = db.keyspace(name) else { return Vec::new() };
        let rows = snapshot.scan(&space, ..).unwrap();
        rows.map(|row| row.unwrap()).map(|(key, value)| ((name.to_string(), key), value)).collect::<Vec<_>>()
    };
    ["rows", "events", "gone"].into_iter().flat_map(of).collect()
}

fn salvaged(devices: &Devices) -> (Rows, u64) {
    let mut rows = Rows::new();
    let report = varve::salvage_on(devices, &mut |row| {
        let before = rows.insert((row.keyspace.to_string(), row.key.to_vec()), row.value.to_vec());
        assert!(before.is_none(), "a row comes once: {}, {:?}", row.keyspace, row.key);
        Ok(())
    });
    let report = report.unwrap();
    assert!(report.is_whole(), "{report:?}");
    (rows, report.finished)
}

/// One large commit: most rows anew, some deleted, some with long values, in a tree, in an LSM keyspace.
fn change(db: &Db, version: u64) -> varve::Result<()> {
    let (rows, events) = (db.keyspace("rows")?, db.keyspace("events")?);
    let mut rng = Rng::from_seed(version);
    db.transact(|tx| {
        for n in 0..500 {
            let long = if rng.below(40) == 0 { 20_000 } else { rng.below(300) as usize };
            let value = vec![version as u8; long];
            match rng.below(4) {
                0 => {
                    tx.delete(&rows, key(n))?;
                    tx.delete(&events, key(n))?;
                }
                1 => tx.put(&events, key(n), &value)?,
                2 => tx.put(&rows, key(n), &value)?,
                _ => {
                    tx.put(&rows, key(n), &value)?;
                    tx.put(&events, key(n), &value)?;
                }
            }
        }
        Ok::<_, Error>(())
    })
}

/// After a power cut at any moment salvage finds, to the byte, what the next opening finds.
#[test]
fn salvage_gives_commits_that_are_applied_in_part_as_opening_does() {
    let finished: u64 = (0..40).map(cut_and_salvaged).sum();
    assert!(finished > 4, "{finished} commits were applied in part");
}

fn cut_and_salvaged(seed: u64) -> u64 {
    let outcome = sim::run(sim::Config { seed, ..sim::Config::default() }, move || {
        let supply = PowerSupply::new();
        let [data, log] = [seed, seed + 1].map(|seed| {
            let mem = MemDevice::with(0, MemOptions { seed, ..MemOptions::default() });
            supply.attach(mem.clone());
            Faulty::powered(mem, FaultPlan::new(seed), supply.clone()) as Arc<dyn Device>
        });
        let (pages, devices) = (data.clone(), Devices::new(data, log));
        let options = Options {
            cache_bytes: 3 << 20,
            pool_frames: 64,
            log_max_bytes: 2 << 20,
            durability: Durability::None,
            ..Options::default()
        };
        let db = Db::create_on(devices.clone(), &layout(), options.clone()).unwrap();
        drop(db.create_keyspace("rows").unwrap());
        drop(db.create_keyspace_of("events", KeyspaceKind::Lsm(LsmOptions::default())).unwrap());
        change(&db, 1).unwrap();
        db.close().unwrap();
        supply.cut_at(supply.ops() + 30 + Rng::from_seed(seed).below(600), seed);
        let domain = Domain::new("machine");
        let (opened, reopened) = ((devices.clone(), options.clone()), options);
        let job = domain.spawn("database", move || -> varve::Result<()> {
            let db = Db::open_on(opened.0, opened.1)?;
            (2..).try_for_each(|version| change(&db, version))
        });
        supply.off().wait_for(Duration::from_secs(60));
        domain.power_cut();
        assert!(!matches!(job.join(), Ok(Ok(()))), "the power goes before it ends");
        supply.restore();
        let (found, told) = salvaged(&devices);
        // Without the log nobody knows whether rows in pages are newer.
        let without_log = Devices::new(pages.clone(), MemDevice::new(0));
        let report = varve::salvage_on(&without_log, &mut |_| Ok(()));
        assert!(report.is_ok_and(|report| report.finished == 0 && !report.is_whole()));
        let db = Db::open_on(devices, reopened).unwrap();
        assert_eq!(db.recovery_report().finished, told);
        let expected = rows_of(&db);
        let differs = expected.iter().find(|(path, value)| found.get(*path) != Some(*value));
        assert!(differs.is_none() && found.len() == expected.len(), "{told} in part; {:?}", differs.map(|row| row.0));
        told
    });
    outcome.result.unwrap_or_else(|e| panic!("seed {seed}: {e:?}"))
}
