//! Bulk loads in the place of a keyspace: what was there stays until the new rows are there, through power cuts at
//! every operation, beside snapshots, drops and renames.

use varve::{Db, Devices, Error, KeyspaceKind, Layout, LsmOptions, Options, Result};
use varve_models::{FaultPlan, Faulty, MemDevice, MemOptions, PowerSupply};

fn options() -> Options {
    Options { cache_bytes: 4 << 20, ..Options::default() }
}

fn layout() -> Layout {
    Layout { page_size: 4096, log_bytes: 2 << 20, ..Layout::default() }
}

fn lsm() -> KeyspaceKind {
    KeyspaceKind::Lsm(LsmOptions { multiplier: 7, ..LsmOptions::default() })
}

/// Loads `rows` rows with this value in the place of the keyspace.
fn replace(db: &Db, name: &str, rows: u32, value: &[u8]) -> Result<varve::Keyspace> {
    let mut load = db.bulk_replace(name)?;
    for row in 0..rows {
        load.push(&row.to_be_bytes(), value)?;
    }
    load.finish()
}

#[test]
fn the_rows_are_replaced_at_once_and_older_snapshots_keep_theirs() {
    for kind in [KeyspaceKind::Tree, lsm()] {
        let db = Db::create_on(Devices::new(MemDevice::new(0), MemDevice::new(0)), &layout(), options()).unwrap();
        let before = db.check().unwrap().allocated_pages;
        let old = db.create_keyspace_of("rows", kind).unwrap();
        old.put(b"old", b"row").unwrap();
        let mut load = db.bulk_replace("rows").unwrap();
        load.push(b"new", b"row").unwrap();
        // Until it is finished nothing of it shows, and the old one can be written.
        assert_eq!(db.keyspace("rows").unwrap().get(b"old").unwrap().as_deref(), Some(&b"row"[..]));
        old.put(b"late", b"row").unwrap();
        let older = db.snapshot().unwrap();
        let new = load.finish().unwrap();
        assert_eq!((new.kind(), new.name().to_string()), (kind, "rows".to_string()));
        assert_eq!(new.get(b"new").unwrap().as_deref(), Some(&b"row"[..]));
        assert_eq!(new.get(b"old").unwrap(), None);
        assert!(matches!(old.put(b"old", b"again"), Err(Error::NoSuchKeyspace(_))));
        assert_eq!(older.get(&old, b"late").unwrap().as_deref(), Some(&b"row"[..]));
        assert!(matches!(older.get(&new, b"new"), Err(Error::NoSuchKeyspace(_))));
        drop((older, old, new));
        db.drop_keyspace("rows").unwrap();
        let report = db.check().unwrap();
        assert!(report.is_clean(), "{report:?}");
        assert_eq!(report.allocated_pages, before);
        db.close().unwrap();
    }
}

#[test]
fn what_cannot_be_replaced_is_said_and_nothing_of_the_load_stays() {
    let db = Db::create_on(Devices::new(MemDevice::new(0), MemDevice::new(0)), &layout(), options()).unwrap();
    assert!(matches!(db.bulk_replace("rows"), Err(Error::NoSuchKeyspace(_))));
    db.create_keyspace("rows").unwrap();
    let before = db.check().unwrap().allocated_pages;

    let load = db.bulk_replace("rows").unwrap();
    db.rename_keyspace("rows", "others").unwrap();
    assert!(matches!(load.finish(), Err(Error::NoSuchKeyspace(_))));
    db.rename_keyspace("others", "rows").unwrap();

    let load = db.bulk_replace("rows").unwrap();
    db.drop_keyspace("rows").unwrap();
    db.create_keyspace("rows").unwrap();
    assert!(matches!(load.finish(), Err(Error::AlreadyExists(_))), "it is another keyspace");

    let (first, second) = (db.bulk_replace("rows").unwrap(), db.bulk_replace("rows").unwrap());
    first.finish().unwrap();
    assert!(matches!(second.finish(), Err(Error::AlreadyExists(_))), "it was replaced already");

    drop(db.bulk_replace("rows").unwrap());
    let report = db.check().unwrap();
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(report.allocated_pages, before);
    db.close().unwrap();
}

/// Whatever the moment of the power cut, the keyspace has all old rows or all new ones, and can be dropped for good.
#[test]
fn power_cuts_at_every_operation_leave_the_old_rows_or_the_new_ones() {
    let (mut old, mut new) = (0, 0);
    for cut in 1..200u64 {
        let supply = PowerSupply::new();
        let device = || {
            let device = MemDevice::with(0, MemOptions::default());
            supply.attach(device.clone());
            Faulty::powered(device, FaultPlan::new(cut), supply.clone())
        };
        let devices = Devices::new(device(), device());
        let db = Db::create_on(devices.clone(), &layout(), options()).unwrap();
        let rows = db.create_keyspace("rows").unwrap();
        rows.put(b"old", b"row").unwrap();
        drop(rows);
        supply.cut_at(supply.ops() + cut, cut);
        let acknowledged = replace(&db, "rows", 300, b"new").is_ok();
        let survived = supply.is_on();
        supply.cut_at(0, 0);
        if survived {
            supply.cut(cut);
        }
        drop(db);
        supply.restore();
        let db = Db::open_on(devices, options()).unwrap();
        let rows = db.keyspace("rows").unwrap_or_else(|e| panic!("cut {cut}: the keyspace is gone: {e}"));
        match db.snapshot().unwrap().count(&rows, ..).unwrap() {
            1 => {
                assert!(!acknowledged, "cut {cut}: an acknowledged load is gone");
                old += 1;
            }
            300 => new += 1,
            other => panic!("cut {cut}: {other} rows"),
        }
        drop(rows);
        db.drop_keyspace("rows").unwrap();
        db.close().map_err(|e| format!("cut {cut}: {e}")).unwrap();
        if survived {
            break;
        }
    }
    assert!(old > 0 && new > 0, "{old} cuts with the old rows, {new} with the new ones: they miss one side");
}
