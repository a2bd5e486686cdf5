//! Compaction gives the end of the data device back and changes nothing else: whatever is stored, whoever works
//! meanwhile, whenever the power fails.

use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use varve::{BackupOptions, Damage, Db, Devices, Durability, Error, Keyspace, Layout, Options};
use varve_device::OpKind;
use varve_models::{Fault, FaultPlan, Faulty, MemDevice, MemOptions, PowerSupply, When};
use varve_rt::atomic::{AtomicBool, Ordering};
use varve_rt::sim::{self, Domain};
use varve_rt::{Event, Rng, spawn};

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

fn layout(page_size: usize) -> Layout {
    Layout { page_size, log_bytes: 4 << 20, ..Layout::default() }
}

fn options() -> Options {
    Options { durability: Durability::None, ..Options::default().cache_mb(8) }
}

fn create(page_size: usize) -> (Devices, Db) {
    create_with(page_size, options())
}

fn create_with(page_size: usize, options: Options) -> (Devices, Db) {
    let devices = Devices::new(MemDevice::new(0), MemDevice::new(0));
    let db = Db::create_on(devices.clone(), &layout(page_size), options).unwrap();
    (devices, db)
}

fn key(n: u64) -> Vec<u8> {
    format!("key {n:06}").into_bytes()
}

fn remove(keyspace: &Keyspace, n: u64) {
    keyspace.delete(&key(n)).unwrap();
}

fn value(n: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (n * 31 + i) as u8).collect()
}

fn contents(keyspace: &Keyspace, db: &Db) -> Rows {
    db.snapshot().unwrap().scan(keyspace, ..).unwrap().map(Result::unwrap).collect()
}

#[track_caller]
fn sound(db: &Db) {
    let report = db.check().unwrap();
    // The superblock that the power cut was written to may be torn; the other one counts.
    let damages = report.damages.iter().filter(|d| !matches!(d, Damage::Superblock(_)));
    assert!(damages.count() == 0 && report.unreadable.is_empty(), "{:?} {:?}", report.damages, report.unreadable);
}

/// Rows that became short leave their leaves nearly empty, which no deletion did: neighbours are merged.
#[test]
fn what_became_short_gives_its_space_back() {
    for page_size in [4096, 8192] {
        let (devices, db) = create(page_size);
        let rows = db.create_keyspace("rows").unwrap();
        (0..6000).for_each(|n| rows.put(&key(n), &value(n, 400)).unwrap());
        (0..6000).for_each(|n| rows.put(&key(n), &value(n, 1)).unwrap());
        let snapshot = db.snapshot().unwrap();
        rows.put(&key(17), b"later").unwrap();
        let before = db.stats().pages;
        let report = db.compact().unwrap();
        assert!(report.merged > before / 2, "{report:?} of {before}");
        assert_eq!(snapshot.get(&rows, &key(17)).unwrap(), Some(value(17, 1)), "snapshots see what was there");
        drop(snapshot);
        rows.put(&key(17), &value(17, 1)).unwrap();
        let short: Rows = (0..6000).map(|n| (key(n), value(n, 1))).collect();
        assert_eq!(contents(&rows, &db), short);
        sound(&db);
        // As large as if it had been loaded so.
        let (_, loaded) = create(page_size);
        let mut load = loaded.bulk_load("rows").unwrap();
        short.iter().for_each(|(key, value)| load.push(key, value).unwrap());
        load.finish().unwrap();
        let (now, least) = (db.stats().pages - report.free, loaded.stats().pages - loaded.stats().free_pages);
        assert!(now <= least * 5 / 4 + 2, "{now} pages in use, {least} when loaded");
        assert!(db.stats().pages < before / 4);
        assert_eq!(db.compact().unwrap().merged, 0, "nothing is left to merge");
        drop(rows);
        db.close().unwrap();
        let again = Db::open_on(devices, options()).unwrap();
        assert_eq!(contents(&again.keyspace("rows").unwrap(), &again), short);
    }
}

#[test]
fn what_is_deleted_gives_its_space_back() {
    for page_size in [4096, 8192, 16384] {
        let (devices, db) = create(page_size);
        let minimum = db.stats().pages;
        // Keyspaces that begin early, in the middle and late, so that roots lie everywhere.
        let keyspaces: Vec<Keyspace> = (0..3)
            .map(|k| {
                let keyspace = db.create_keyspace(&format!("rows {k}")).unwrap();
                (0..4000).for_each(|n| keyspace.put(&key(n), &value(n, 150)).unwrap());
                (0..20).for_each(|n| keyspace.put(&key(9000 + n), &value(n, 50_000)).unwrap());
                keyspace
            })
            .collect();
        let full = db.stats().pages;
        assert!(full > 6 * minimum, "{full} pages, {minimum} at first");
        let report = db.compact().unwrap();
        assert!(report.pages <= full && report.values_left == 0, "{report:?}");
        sound(&db);
        // All but one row in the middle; then that one, too.
        for rest in [1, 0] {
            for keyspace in &keyspaces {
                (0..4000).filter(|n| rest == 0 || *n != 2000).for_each(|n| remove(keyspace, n));
                (0..20).for_each(|n| remove(keyspace, 9000 + n));
            }
            let report = db.compact().unwrap();
            assert!(report.pages < 2 * minimum, "{page_size}: {report:?}, {minimum} pages at first");
            assert_eq!(
                (report.pages, report.pages * page_size as u64),
                (db.stats().pages, devices.part("data").unwrap().len())
            );
            sound(&db);
            let rows: Vec<usize> = keyspaces.iter().map(|k| contents(k, &db).len()).collect();
            assert_eq!(rows, [rest; 3]);
        }
        // It is a database like any other: it grows again, and is found again.
        (0..3000).for_each(|n| keyspaces[1].put(&key(n), &value(n, 300)).unwrap());
        sound(&db);
        drop(keyspaces);
        db.close().unwrap();
        let db = Db::open_on(devices, options()).unwrap();
        sound(&db);
        let rows = contents(&db.keyspace("rows 1").unwrap(), &db);
        assert_eq!(rows, (0..3000).map(|n| (key(n), value(n, 300))).collect());
    }
}

/// A second page of the space map comes, goes with what it covered, and comes again.
#[test]
fn pages_of_the_space_map_go_and_come_again() {
    let (devices, db) = create_with(4096, options().cache_mb(64));
    let span = 8 * 4048;
    let rows = db.create_keyspace("rows").unwrap();
    for _ in 0..2 {
        let mut n = 0;
        while db.stats().pages - db.stats().free_pages < span + 1000 {
            rows.put(&key(n), &value(n, 1 << 20)).unwrap();
            n += 1;
        }
        sound(&db);
        (0..n).filter(|i| i % 40 != 7).for_each(|i| remove(&rows, i));
        let report = db.compact().unwrap();
        assert!(report.pages < span / 10, "{report:?}");
        sound(&db);
        (0..n).filter(|i| i % 40 == 7).for_each(|i| assert_eq!(rows.get(&key(i)).unwrap(), Some(value(i, 1 << 20))));
    }
    drop(rows);
    db.close().unwrap();
    let db = Db::open_on(devices, options()).unwrap();
    sound(&db);
    assert_eq!(db.compact().unwrap().values_left, 0);
    sound(&db);
}

#[derive(Clone, Debug)]
enum Step {
    Put(u64, u64, usize),
    Delete(u64, u64, u64),
    Compact,
    Snapshot,
    Reopen,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let len = prop_oneof![4 => 0usize..200, 2 => 200usize..900, 1 => 4000usize..60_000];
    let step = prop_oneof![
        12 => (0u64..3, 0u64..300, len).prop_map(|(k, n, len)| Step::Put(k, n, len)),
        4 => (0u64..3, 0u64..300, 1u64..120).prop_map(|(k, n, count)| Step::Delete(k, n, count)),
        3 => Just(Step::Compact),
        1 => Just(Step::Snapshot),
        1 => Just(Step::Reopen),
    ];
    proptest::collection::vec(step, 1..150)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn nothing_else_changes(steps in steps()) {
        let (devices, mut db) = create(4096);
        let name = |k: u64| format!("rows {k}");
        (0..3).for_each(|k| drop(db.create_keyspace(&name(k)).unwrap()));
        let mut model: [Rows; 3] = Default::default();
        let mut snapshot = None;
        for step in steps {
            let keyspace = |k: u64| db.keyspace(&name(k)).unwrap();
            match step {
                Step::Put(k, n, len) => {
                    keyspace(k).put(&key(n), &value(n, len)).unwrap();
                    model[k as usize].insert(key(n), value(n, len));
                }
                Step::Delete(k, n, count) => {
                    db.transact(|tx| tx.delete_range(&keyspace(k), &key(n)[..]..&key(n + count)[..])).unwrap();
                    model[k as usize].retain(|stored, _| *stored < key(n) || *stored >= key(n + count));
                }
                Step::Compact => {
                    let report = db.compact().unwrap();
                    prop_assert!(report.pages <= report.pages_before);
                    sound(&db);
                }
                Step::Snapshot => snapshot = Some((db.snapshot().unwrap(), model.clone())),
                Step::Reopen => {
                    snapshot = None;
                    db.close().unwrap();
                    db = Db::open_on(devices.clone(), options()).unwrap();
                    continue;
                }
            }
            if let Some((snapshot, then)) = &snapshot {
                for k in 0..3 {
                    let rows = snapshot.scan(&keyspace(k), ..).unwrap().collect::<Result<Rows, _>>();
                    match rows {
                        Ok(rows) => prop_assert!(rows == then[k as usize], "a snapshot sees what was"),
                        Err(e) => prop_assert!(matches!(e, Error::SnapshotTooOld), "{}", e),
                    }
                }
            }
        }
        for k in 0..3 {
            prop_assert!(contents(&db.keyspace(&name(k)).unwrap(), &db) == model[k as usize]);
        }
        sound(&db);
    }
}

/// Clients move money and replace long values, readers look at all of it, while the database is compacted again and
/// again.
#[test]
fn others_work_meanwhile() {
    const ACCOUNTS: u64 = 300;
    for seed in 1..=12 {
        let config = sim::Config { seed, chaos: seed % 2 == 0, ..sim::Config::default() };
        sim::run(config, move || {
            // Old versions have room for all the long values that are replaced while a snapshot is read.
            let (devices, db) = create_with(4096, options().cache_mb(64));
            let accounts = db.create_keyspace("accounts").unwrap();
            let waste = db.create_keyspace("waste").unwrap();
            (0..400).for_each(|n| waste.put(&key(n), &value(n, 900)).unwrap());
            (0..ACCOUNTS).for_each(|n| accounts.put(&key(n), &100u64.to_le_bytes()).unwrap());
            (0..20).for_each(|n| accounts.put(&key(1000 + n), &value(n, 9000)).unwrap());
            let stop = Arc::new(AtomicBool::new(false));
            let clients: Vec<_> = (0..3u64)
                .map(|c| {
                    let (db, accounts, waste, stop) = (db.clone(), accounts.clone(), waste.clone(), stop.clone());
                    spawn(format!("client {c}"), move || {
                        let mut rng = Rng::from_seed(seed * 10 + c);
                        while !stop.load(Ordering::Acquire) {
                            work(&db, &accounts, &waste, &mut rng, c, ACCOUNTS);
                        }
                    })
                })
                .collect();
            for round in 0..6 {
                if round == 2 {
                    db.transact(|tx| tx.delete_range(&waste, ..)).unwrap();
                }
                db.compact().unwrap();
            }
            stop.store(true, Ordering::Release);
            clients.into_iter().for_each(|c| c.join().unwrap());
            assert_eq!(db.compact().unwrap().values_left, 0);
            sound(&db);
            assert_eq!(total(&contents(&accounts, &db)), ACCOUNTS * 100);
            drop((accounts, waste));
            db.close().unwrap();
            let db = Db::open_on(devices, options()).unwrap();
            assert_eq!(total(&contents(&db.keyspace("accounts").unwrap(), &db)), ACCOUNTS * 100);
            sound(&db);
        })
        .unwrap();
    }
}

fn total(rows: &Rows) -> u64 {
    rows.values().filter(|v| v.len() == 8).map(|v| u64::from_le_bytes(v[..].try_into().unwrap())).sum()
}

fn work(db: &Db, accounts: &Keyspace, waste: &Keyspace, rng: &mut Rng, client: u64, of: u64) {
    match rng.below(10) {
        0 => {
            let rows = contents(accounts, db);
            assert_eq!(total(&rows), of * 100, "a snapshot sees whole transfers");
            let long = rows.iter().filter(|(_, v)| v.len() == 9000);
            assert_eq!(long.filter(|(_, v)| **v == value(u64::from(v[0]) * 223 % 256, 9000)).count(), 20);
        }
        1 => {
            let n = rng.below(20);
            let again = rng.below(256);
            accounts.put(&key(1000 + n), &value(again, 9000)).unwrap();
        }
        2 => waste.put(&key(10_000 * (client + 1) + rng.below(500)), &value(1, 600)).unwrap(),
        3 => remove(waste, 10_000 * (client + 1) + rng.below(500)),
        _ => {
            let (from, to, much) = (rng.below(of), rng.below(of), rng.below(5));
            db.transact(|tx| {
                let get = |v: Option<Vec<u8>>| u64::from_le_bytes(v.unwrap()[..].try_into().unwrap());
                let a = get(tx.get_for_update(accounts, &key(from))?);
                let much = much.min(a);
                tx.put(accounts, &key(from), &(a - much).to_le_bytes())?;
                let b = get(tx.get_for_update(accounts, &key(to))?);
                tx.put(accounts, &key(to), &(b + much).to_le_bytes())
            })
            .unwrap();
        }
    }
}

/// The power fails at each device operation of a compaction in turn, in what follows it too.
#[test]
fn the_power_may_fail_at_any_write() {
    let mut cuts = 0;
    for n in 1.. {
        let done = sim::run(sim::Config { seed: n, ..sim::Config::default() }, move || cut_at(n)).unwrap();
        if done {
            break;
        }
        cuts += 1;
    }
    assert!(cuts > 60, "only {cuts} operations");
}

/// Cuts at the `n`-th operation after the compaction begins; whether everything ended before that.
fn cut_at(n: u64) -> bool {
    let supply = PowerSupply::new();
    let device = |name: &str| {
        let device = MemDevice::with(0, MemOptions { name: name.into(), seed: n, ..MemOptions::default() });
        supply.attach(device.clone());
        Faulty::powered(device, FaultPlan::new(n), supply.clone())
    };
    let devices = Devices::new(device("data"), device("log"));
    let options = Options { cleaners: false, ..options() };
    let mut expected = Rows::new();
    let db = Db::create_on(devices.clone(), &layout(4096), options.clone()).unwrap();
    let rows = db.create_keyspace("rows").unwrap();
    for i in 0..400 {
        rows.put(&key(i), &value(i, if i % 40 == 39 { 9000 } else { 300 })).unwrap();
    }
    // Made late, so that its root has to move.
    let late = db.create_keyspace("late").unwrap();
    late.put(b"key", b"value").unwrap();
    for i in 0..400 {
        if i % 10 == 9 {
            expected.insert(key(i), value(i, if i % 40 == 39 { 9000 } else { 300 }));
        } else {
            rows.delete(&key(i)).unwrap();
        }
    }
    drop((rows, late));
    db.close().unwrap();

    let domain = Domain::new("machine");
    let ended = Arc::new(Event::new());
    supply.cut_at(supply.ops() + n, n);
    {
        let (devices, options, ended) = (devices.clone(), options.clone(), ended.clone());
        domain.spawn("database", move || {
            let ended = SetOnDrop(ended);
            let Ok(db) = Db::open_on(devices, options) else { return };
            let Ok(report) = db.compact() else { return };
            assert!(report.moved > 10 && report.pages < report.pages_before, "{report:?}");
            let late = db.keyspace("late").unwrap();
            let put = (0..20).try_for_each(|i| late.put(&key(i), &value(i, 500)));
            let closed = put.and_then(|()| {
                drop(late);
                db.close()
            });
            drop((closed, ended));
        });
    }
    ended.wait();
    let done = supply.is_on();
    if done {
        supply.cut_at(u64::MAX, n);
        supply.cut(n);
    }
    domain.power_cut();
    supply.restore();
    let db = Db::open_on(devices, options).unwrap();
    sound(&db);
    assert_eq!(contents(&db.keyspace("rows").unwrap(), &db), expected, "cut at operation {n}");
    assert_eq!(db.keyspace("late").unwrap().get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
    let report = db.compact().unwrap();
    assert!(report.pages < 100, "{report:?}");
    sound(&db);
    assert_eq!(contents(&db.keyspace("rows").unwrap(), &db), expected);
    db.close().unwrap();
    done
}

/// Tells when it is dropped, be it because the power went.
struct SetOnDrop(Arc<Event>);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.set();
    }
}

#[test]
fn a_backup_and_a_compaction_exclude_each_other() {
    let (_, db) = create(4096);
    let rows = db.create_keyspace("rows").unwrap();
    (0..2000).for_each(|n| rows.put(&key(n), &value(n, 300)).unwrap());
    (0..1900).for_each(|n| remove(&rows, n));
    let mut said = None;
    let mut progress = |_, _| {
        said.get_or_insert_with(|| db.compact().map(|_| ()).unwrap_err().to_string());
    };
    let mut archive = Vec::new();
    db.backup(&mut archive, BackupOptions { progress: Some(&mut progress), ..BackupOptions::default() }).unwrap();
    assert!(said.expect("asked").contains("a backup is being made"));
    let report = db.compact().unwrap();
    assert!(report.pages < report.pages_before);
    sound(&db);
}

/// A database that was made as small as it goes can still be emptied where the disk has no room left: that is how one
/// makes room.
#[test]
fn a_full_disk_lets_keyspaces_be_cleared_and_dropped_after_a_compaction() {
    let data = Faulty::new(MemDevice::new(0), FaultPlan::new(1));
    let db = Db::create_on(Devices::new(data.clone(), MemDevice::new(0)), &layout(4096), options()).unwrap();
    let [rows, others] = ["rows", "others"].map(|name| db.create_keyspace(name).unwrap());
    for n in 0..4000 {
        rows.put(&key(n), &value(n, 300)).unwrap();
        others.put(&key(n), &value(n, 300)).unwrap();
    }
    let report = db.compact().unwrap();
    assert!(report.free < 20, "it is small: {report:?}");
    data.set_plan(FaultPlan::new(1).rule(&[OpKind::SetLen], None, When::From(1), Fault::NoSpace));
    rows.clear().unwrap();
    drop(others);
    db.drop_keyspace("others").unwrap();
    assert_eq!(contents(&rows, &db), Rows::new());
    (0..1000).for_each(|n| rows.put(&key(n), &value(n, 300)).unwrap());
    sound(&db);
}

#[test]
fn open_snapshots_keep_long_values_where_they_are() {
    let (_, db) = create(4096);
    let rows = db.create_keyspace("rows").unwrap();
    (0..40).for_each(|n| rows.put(&key(n), &value(n, 20_000)).unwrap());
    (0..39).for_each(|n| remove(&rows, n));
    let snapshot = db.snapshot().unwrap();
    assert_eq!(db.compact().unwrap().values_left, 1);
    drop(snapshot);
    let report = db.compact().unwrap();
    assert_eq!((report.values_left, report.pages), (0, 64));
    assert_eq!(rows.get(&key(39)).unwrap(), Some(value(39, 20_000)));
}

/// Longer than the log, and than what a transaction may hold in memory.
#[test]
fn a_value_larger_than_memory_moves_too() {
    let (devices, db) = create_with(4096, Options { log_max_bytes: 4 << 20, ..options().cache_mb(4) });
    let rows = db.create_keyspace("rows").unwrap();
    let long = |n| value(n, 12_000_000);
    for n in 0..4 {
        rows.put_from(&key(n), &mut &long(n)[..]).unwrap();
    }
    let bytes = devices.part("data").unwrap().len();
    let (log, before) = (db.stats().log.group_bytes, db.check().unwrap().allocated_pages);
    // The gap of the second is as long as the fourth, and more is set aside while that is written: a gap must be
    // larger.
    remove(&rows, 1);
    assert_eq!(db.compact().unwrap().values_left, 1);
    remove(&rows, 0);
    let report = db.compact().unwrap();
    assert_eq!(report.values_left, 0);
    assert!(report.moved >= 12_000_000 / 4096, "{report:?}");
    assert!(
        devices.part("data").unwrap().len() < bytes * 6 / 10,
        "{} of {bytes} bytes are left",
        devices.part("data").unwrap().len()
    );
    assert!(db.stats().log.group_bytes - log < 1 << 20, "it went past the log");
    for n in 2..4 {
        assert!(rows.get(&key(n)).unwrap() == Some(long(n)), "value {n}");
        remove(&rows, n);
    }
    assert!(db.check().unwrap().allocated_pages < before / 4);
    sound(&db);
}

/// A gap that is no longer than the value has room for it through the log.
#[test]
fn long_values_fill_gaps_of_their_own_length() {
    let (devices, db) = create_with(4096, options().cache_mb(32));
    let rows = db.create_keyspace("rows").unwrap();
    let long = |n| value(n, 1_100_000);
    for n in 0..6 {
        rows.put(&key(n), &long(n)).unwrap();
    }
    db.compact().unwrap();
    let bytes = devices.part("data").unwrap().len();
    remove(&rows, 1);
    assert_eq!(db.compact().unwrap().values_left, 0);
    assert!(
        devices.part("data").unwrap().len() + 1_000_000 < bytes,
        "{} of {bytes} bytes are left",
        devices.part("data").unwrap().len()
    );
    for n in (0..6).filter(|n| *n != 1) {
        assert!(rows.get(&key(n)).unwrap() == Some(long(n)), "value {n}");
    }
    sound(&db);
}
