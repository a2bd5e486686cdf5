//! Databases on memory devices: creation, catalog, closing, opening again.

use super::*;
use varve_models::MemDevice;

fn devices() -> Devices {
    Devices::new(MemDevice::new(0), MemDevice::new(0))
}

fn options() -> Options {
    Options { cache_bytes: 4 << 20, ..Options::default() }
}

fn layout() -> Layout {
    Layout { page_size: 4096, log_bytes: 2 << 20, ..Layout::default() }
}

fn names(db: &Db) -> Vec<String> {
    db.keyspaces().unwrap().into_iter().map(|k| k.name).collect()
}

#[test]
fn keyspaces_are_there_after_closing_and_after_a_crash() {
    let devices = devices();
    let db = Db::create_on(devices.clone(), &layout(), options()).unwrap();
    db.create_keyspace("orders").unwrap();
    assert!(matches!(db.create_keyspace("orders"), Err(Error::AlreadyExists(_))));
    db.close().unwrap();

    let db = Db::open_on(devices.clone(), options()).unwrap();
    assert!(db.recovery_report().clean);
    assert_eq!(names(&db), ["orders"]);
    for i in 0..200 {
        db.create_keyspace(&format!("k{i:03}")).unwrap();
    }
    let id = db.keyspace("k007").unwrap().id();
    crash(db);

    let db = Db::open_on(devices.clone(), options()).unwrap();
    assert!(!db.recovery_report().clean);
    assert_eq!(names(&db).len(), 201);
    assert_eq!(db.keyspace("k007").unwrap().id(), id);
    let report = db.check().unwrap();
    assert!(report.is_clean(), "{report:?}");
    db.close().unwrap();
}

/// Lets go of a database without closing it.
fn crash(db: Db) {
    db.inner.core.log.poison("test: crash");
    if let Some(checkpointer) = &db.inner.checkpointer {
        checkpointer.stop();
    }
    db.inner.core.pool.stop();
    db.inner.core.log.stop();
}

#[test]
fn a_dropped_keyspace_gives_its_pages_back() {
    let devices = devices();
    let db = Db::create_on(devices.clone(), &layout(), options()).unwrap();
    let before = db.check().unwrap().allocated_pages;
    let keyspace = db.create_keyspace("gone").unwrap();
    db.drop_keyspace("gone").unwrap();
    assert!(matches!(keyspace.get(b"x"), Err(Error::NoSuchKeyspace(_))));
    assert!(matches!(db.keyspace("gone"), Err(Error::NoSuchKeyspace(_))));
    let again = db.create_keyspace("gone").unwrap();
    assert_ne!(again.id(), keyspace.id(), "a number comes back at the next opening at the earliest");
    drop(again);
    db.drop_keyspace("gone").unwrap();
    assert_ne!(db.create_keyspace("gone").unwrap().id().0, 2, "pages are free, the number is not");
    db.drop_keyspace("gone").unwrap();
    drop(keyspace);
    db.close().unwrap();
    let db = Db::open_on(devices, options()).unwrap();
    let report = db.check().unwrap();
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(report.allocated_pages, before);
    db.close().unwrap();
}

#[test]
fn a_read_only_open_writes_nothing_and_needs_a_clean_close() {
    let devices = devices();
    let db = Db::create_on(devices.clone(), &layout(), options()).unwrap();
    db.create_keyspace("k").unwrap();
    let read_only = Options { read_only: true, ..options() };
    db.close().unwrap();
    let writes = |d: &Devices| (d.part("data").unwrap().stats().write.count, d.log.stats().write.count);
    let before = writes(&devices);
    let db = Db::open_on(devices.clone(), read_only.clone()).unwrap();
    assert_eq!(names(&db), ["k"]);
    assert!(matches!(db.create_keyspace("l"), Err(Error::ReadOnly(_))));
    assert!(matches!(db.checkpoint(), Err(Error::ReadOnly(_))));
    assert!(db.check().unwrap().is_clean());
    db.close().unwrap();
    assert_eq!(writes(&devices), before);

    crash(Db::open_on(devices.clone(), options()).unwrap());
    assert!(matches!(Db::open_on(devices, read_only), Err(Error::ReadOnly(_))));
}

#[test]
fn a_database_directory_is_held_by_one_process() {
    let dir = std::env::temp_dir().join(format!("varve-db-test-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    let db = Db::create(&dir, &layout(), options()).unwrap();
    assert!(matches!(Db::open(&dir, options()), Err(Error::InUse(_))));
    assert!(matches!(Db::create(&dir, &layout(), options()), Err(Error::AlreadyExists(_) | Error::InUse(_))));
    db.create_keyspace("k").unwrap();
    db.close().unwrap();
    assert!(matches!(Db::create(&dir, &layout(), options()), Err(Error::AlreadyExists(_))));
    let db = Db::open(&dir, options()).unwrap();
    assert_eq!(names(&db), ["k"]);
    db.close().unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    assert!(matches!(Db::open(&dir, options()), Err(Error::NoDatabase(_))));
}

fn row(i: u32) -> ([u8; 4], Vec<u8>) {
    // Every hundredth value is too long for a leaf.
    (i.to_be_bytes(), vec![i as u8; if i.is_multiple_of(100) { 9000 } else { (i % 60) as usize }])
}

fn assert_rows(keyspace: &Keyspace, count: u32) {
    let db = Db { inner: keyspace.db.clone() };
    let snapshot = db.snapshot().unwrap();
    let mut rows = snapshot.scan(keyspace, ..).unwrap();
    for i in 0..count {
        let (key, value) = row(i);
        assert_eq!(rows.next_row().unwrap(), Some((&key[..], &value[..])), "row {i}");
    }
    assert_eq!(rows.next_row().unwrap(), None);
}

#[test]
fn a_bulk_load_appears_whole_when_it_is_finished_and_not_before() {
    let devices = devices();
    let db = Db::create_on(devices.clone(), &layout(), options()).unwrap();
    let before = db.check().unwrap().allocated_pages;
    let mut load = db.bulk_load("rows").unwrap();
    for i in 0..5000 {
        let (key, value) = row(i);
        load.push(&key, &value).unwrap();
    }
    assert!(matches!(load.push(&row(4999).0, b""), Err(Error::Invalid(_))), "a key twice");
    assert!(matches!(load.push(&[9; 1025], b""), Err(Error::KeySize { .. })));
    assert!(matches!(db.keyspace("rows"), Err(Error::NoSuchKeyspace(_))));
    assert!(db.check().unwrap().is_clean());
    let older = db.snapshot().unwrap();
    let keyspace = load.finish().unwrap();
    assert_rows(&keyspace, 5000);
    assert!(matches!(older.get(&keyspace, &row(1).0), Err(Error::NoSuchKeyspace(_))), "it appeared after the snapshot");
    drop(older);
    // From here on it is a keyspace like any other.
    keyspace.put(&row(5000).0, &row(5000).1).unwrap();
    assert_rows(&keyspace, 5001);
    assert!(matches!(db.bulk_load("rows"), Err(Error::AlreadyExists(_))));
    // Two of one name: the second to finish fails and leaves nothing; nor does one that is given up.
    let (mut first, mut second) = (db.bulk_load("twice").unwrap(), db.bulk_load("twice").unwrap());
    first.push(b"k", b"first").unwrap();
    second.push(b"k", &vec![2; 100_000]).unwrap();
    let twice = first.finish().unwrap();
    assert!(matches!(second.finish(), Err(Error::AlreadyExists(_))));
    assert_eq!(twice.get(b"k").unwrap().as_deref(), Some(&b"first"[..]));
    let mut given_up = db.bulk_load("given up").unwrap();
    (0..3000).for_each(|i| given_up.push(&row(i).0, &row(i).1).unwrap());
    let db = match db.clone().close() {
        Err(Error::Invalid(_)) => db,
        other => panic!("closed under a bulk load: {other:?}"),
    };
    drop((given_up, keyspace, twice));
    db.drop_keyspace("rows").unwrap();
    db.drop_keyspace("twice").unwrap();
    let report = db.check().unwrap();
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(report.allocated_pages, before);
    db.close().unwrap();
}

#[test]
fn a_bulk_load_of_nothing_makes_an_empty_keyspace() {
    let db = Db::create_on(devices(), &layout(), options()).unwrap();
    let keyspace = db.bulk_load("empty").unwrap().finish().unwrap();
    assert_rows(&keyspace, 0);
    keyspace.put(&row(0).0, &row(0).1).unwrap();
    assert_rows(&keyspace, 1);
    drop(keyspace);
    db.close().unwrap();
}

/// A database in which a crash came between the two groups of a replacement; `before` the crash, something is done.
/// Also how many pages are in use while it has no keyspace.
fn half_replaced(before: impl FnOnce(&Db)) -> (Devices, u64) {
    let devices = devices();
    let db = Db::create_on(devices.clone(), &layout(), options()).unwrap();
    let empty = db.check().unwrap().allocated_pages;
    let old = db.create_keyspace("rows").unwrap();
    old.put(b"old", b"row").unwrap();
    let mut load = db.bulk_replace("rows").unwrap();
    load.push(b"new", b"row").unwrap();
    // Its pages stay while `old` holds it.
    load.finish().unwrap();
    db.inner.registry.unmark(&db.inner.core, &old.shared).unwrap();
    before(&db);
    crash(db);
    (devices, empty)
}

#[test]
fn of_two_entries_of_one_name_the_newer_one_counts() {
    let (devices, empty) = half_replaced(|_| {});
    let mut salvaged = Vec::new();
    salvage_on(&devices, &mut |row| {
        salvaged.push((row.keyspace.to_string(), row.key.to_vec()));
        Ok(())
    })
    .unwrap();
    assert_eq!(salvaged, [("rows".to_string(), b"new".to_vec())]);

    let db = Db::open_on(devices, options()).unwrap();
    assert_eq!(names(&db), ["rows"]);
    assert_eq!(db.keyspace("rows").unwrap().get(b"new").unwrap().as_deref(), Some(&b"row"[..]));
    db.drop_keyspace("rows").unwrap();
    let report = db.check().unwrap();
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(report.allocated_pages, empty);
    db.close().unwrap();
}

/// A mark that is missing is made up for first: without it the older keyspace would have the name for itself.
#[test]
fn what_was_replaced_does_not_come_back_when_the_newer_one_goes() {
    let (devices, _) = half_replaced(|db| db.rename_keyspace("rows", "others").unwrap());
    let db = Db::open_on(devices, options()).unwrap();
    assert_eq!(names(&db), ["others"]);
    db.close().unwrap();
    let (devices, _) = half_replaced(|db| db.drop_keyspace("rows").unwrap());
    let db = Db::open_on(devices, options()).unwrap();
    assert_eq!(names(&db), [""; 0]);
    db.close().unwrap();
}

/// Power cuts at moments spread over a bulk load: afterwards it is there with every row, or nothing of it is.
#[test]
fn a_bulk_load_survives_a_power_cut_whole_or_not_at_all() {
    use varve_models::{FaultPlan, Faulty, MemOptions, PowerSupply};
    let (mut whole, mut nothing) = (0, 0);
    for seed in 0..24u64 {
        let supply = PowerSupply::new();
        let device = || {
            let device = MemDevice::with(0, MemOptions::default());
            supply.attach(device.clone());
            Faulty::powered(device, FaultPlan::new(seed), supply.clone())
        };
        let (data, log) = (device(), device());
        let devices = Devices::new(data, log);
        let db = Db::create_on(devices.clone(), &layout(), options()).unwrap();
        let before = db.check().unwrap().allocated_pages;
        if seed > 0 {
            supply.cut_at(supply.ops() + 2 + seed * seed / 2, seed);
        }
        let load = || -> Result<()> {
            let mut load = db.bulk_load("rows")?;
            for i in 0..12_000 {
                let (key, value) = row(i);
                load.push(&key, &value)?;
            }
            load.finish().map(|_| ())
        };
        let acknowledged = load().is_ok();
        supply.cut_at(0, 0);
        if supply.is_on() {
            supply.cut(seed);
        }
        crash(db);
        supply.restore();
        let db = Db::open_on(devices, options()).unwrap();
        let report = db.check().unwrap();
        assert!(report.is_clean(), "seed {seed}: {report:?}");
        match db.keyspace("rows") {
            Ok(keyspace) => {
                assert_rows(&keyspace, 12_000);
                whole += 1;
            }
            Err(Error::NoSuchKeyspace(_)) => {
                assert!(!acknowledged, "seed {seed}: an acknowledged load is gone");
                assert_eq!(report.allocated_pages, before, "seed {seed}: pages were not given back");
                nothing += 1;
            }
            Err(e) => panic!("seed {seed}: {e}"),
        }
        db.close().unwrap();
    }
    assert!(whole > 0 && nothing > 0, "{whole} loads whole, {nothing} gone: the cuts miss one side");
}

/// Half a change is neither shown nor made durable by the next commit.
#[test]
fn a_panic_while_pages_change_poisons_before_anybody_sees_them() {
    use crate::page::Group;
    use crate::page::PageEdit;
    use crate::wal::GroupKind;
    let devices = devices();
    let db = Db::create_on(devices.clone(), &layout(), options()).unwrap();
    let (rows, other) = (db.create_keyspace("rows").unwrap(), db.create_keyspace("other").unwrap());
    rows.put(b"key", b"value").unwrap();
    other.put(b"key", b"value").unwrap();
    let clumsy = rows.clone();
    let panicked = varve_rt::spawn("clumsy", move || {
        let core = &clumsy.db.core;
        let mut group = Group::begin(core, GroupKind::System, core.page_size()).unwrap();
        let n = group.add(core.pool.write(clumsy.shared.index().root()).unwrap());
        group.page(n).image(|page| {
            // Where nothing is yet.
            page[1000..1100].fill(0xee);
            panic!("half a change");
        });
    });
    assert!(panicked.join().is_err());
    let poisoned =
        |result: Result<Option<Vec<u8>>>| matches!(result, Err(Error::Poisoned(why)) if why.contains("clumsy"));
    assert!(poisoned(rows.get(b"key")), "half a change is read");
    assert!(poisoned(rows.put(b"key", b"new").map(|()| None)), "half a change would be logged");
    assert_eq!(other.get(b"key").unwrap().unwrap(), b"value", "other pages are read");
    assert!(db.close().is_err());
    drop((db, rows, other));
    let db = Db::open_on(devices, options()).unwrap();
    assert_eq!(db.keyspace("rows").unwrap().get(b"key").unwrap().unwrap(), b"value");
    assert!(db.check().unwrap().is_clean());
}

/// The log of a restored database is new: earlier releases are still kept from what they do not know.
#[test]
fn a_restored_database_has_the_features_that_its_keyspaces_need() {
    let db = Db::create_on(devices(), &layout(), options()).unwrap();
    let events = db.create_keyspace_of("events", KeyspaceKind::Lsm(LsmOptions::default())).unwrap();
    let old = db.create_keyspace("old").unwrap();
    old.put("a", "1").unwrap();
    old.set_read_only(true).unwrap();
    let mut backup = Vec::new();
    db.backup(&mut backup, BackupOptions::default()).unwrap();
    drop((events, old));
    db.close().unwrap();

    let to = devices();
    restore_on(&to, &mut [&mut &backup[..]], &RestoreOptions::default()).unwrap();
    let db = Db::open_on(to, options()).unwrap();
    let features = db.inner.core.log.features();
    assert!(features.has(&crate::wal::LSM_KEYSPACES) && features.has(&crate::wal::READ_ONLY_KEYSPACES));
    db.close().unwrap();
}
