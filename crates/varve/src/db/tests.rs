//! Databases on memory devices: creation, catalog, closing, opening again.

use super::*;
use varve_device::MemDevice;

fn devices() -> Devices {
    Devices { data: MemDevice::new(0), log: MemDevice::new(0) }
}

fn options() -> Options {
    Options { cache_bytes: 4 << 20, ..Options::default() }
}

fn layout() -> Layout {
    Layout { page_size: 4096, log_bytes: 2 << 20, log_dir: None }
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
    assert!(matches!(keyspace.live(), Err(Error::NoSuchKeyspace(_))));
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
    let writes = |d: &Devices| (d.data.stats().write.count, d.log.stats().write.count);
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
