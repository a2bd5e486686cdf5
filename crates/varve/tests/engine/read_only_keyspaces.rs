//! Keyspaces that were made read-only: nothing changes them, and an array knows which extents they have for themselves.

use crate::array_support::{Rig, assert_whole, equal, fill, key, load, options, sealed};
use varve::{Db, Devices, Error, Layout};
use varve_models::MemDevice;

fn refused<T: std::fmt::Debug>(result: varve::Result<T>) {
    match result {
        Err(e @ Error::KeyspaceReadOnly(_)) => {
            let told = e.to_string();
            assert!(told.contains("\"facts\"") && told.contains("--undo"), "{told}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn whatever_would_change_one_is_refused_until_it_is_undone() {
    let (data, log) = (MemDevice::new(0), MemDevice::new(0));
    let devices = || Devices::new(data.clone(), log.clone());
    let db = Db::create_on(devices(), &Layout::default(), options()).unwrap();
    let facts = fill(&db, "facts", 100);
    let mut before = db.begin().unwrap();
    before.put(&facts, b"late", b"x").unwrap();
    before.rollback();
    facts.set_read_only(true).unwrap();
    let check = |db: &Db| {
        let facts = db.keyspace("facts").unwrap();
        assert!(facts.is_read_only() && db.keyspaces().unwrap()[0].read_only);
        refused(facts.put(b"a", b"b"));
        refused(facts.delete(&key(1)));
        refused(facts.put_from(b"a", &mut &b"b"[..]));
        refused(db.transact(|tx| tx.put(&facts, b"a", b"b")));
        refused(db.transact(|tx| tx.delete(&facts, &key(1))));
        refused(db.transact(|tx| tx.get_for_update(&facts, &key(1))));
        refused(db.transact(|tx| tx.delete_range(&facts, ..)));
        refused(db.drop_keyspace("facts"));
        assert_whole(&facts, 100);
        assert!(db.check().unwrap().is_clean());
    };
    check(&db);
    db.compact().unwrap();
    check(&db);
    drop(facts);
    db.close().unwrap();
    let db = Db::open_on(devices(), options()).unwrap();
    check(&db);
    let facts = db.keyspace("facts").unwrap();
    facts.set_read_only(false).unwrap();
    facts.put(b"a", b"b").unwrap();
    drop(facts);
    db.drop_keyspace("facts").unwrap();
    db.close().unwrap();
}

#[test]
fn a_transaction_that_wrote_before_is_waited_for() {
    varve_rt::sim::run(varve_rt::sim::Config { seed: 7, ..varve_rt::sim::Config::default() }, || {
        let db = Db::create_on(Devices::new(MemDevice::new(0), MemDevice::new(0)), &Layout::default(), options());
        let db = db.unwrap();
        let facts = fill(&db, "facts", 10);
        let mut tx = db.begin().unwrap();
        tx.put(&facts, b"early", b"x").unwrap();
        let other = facts.clone();
        let marks = varve_rt::spawn("marks", move || other.set_read_only(true).map(|_| ()));
        varve_rt::sleep(std::time::Duration::from_millis(100));
        assert!(!facts.is_read_only(), "a writer is under way");
        tx.commit().unwrap();
        marks.join().unwrap().unwrap();
        assert!(facts.is_read_only() && facts.contains(b"early").unwrap());
    })
    .result
    .unwrap();
}

#[test]
fn what_was_loaded_in_bulk_is_sealed_and_what_was_written_row_by_row_shares_its_extents() {
    let rig = Rig::new(&[64, 64]);
    let (db, array) = rig.create(equal(2), options());
    let changing = fill(&db, "changing", 3000);
    let facts = load(&db, "facts", 20_000);
    let report = facts.set_read_only(true).unwrap();
    assert!(report.sealed_extents >= 4 && report.sealed_extents as usize == sealed(&array), "{report:?}");
    assert!(report.sealed_pages as f64 > 0.95 * report.pages as f64, "{report:?}");
    // Writers go around what is sealed.
    let more = fill(&db, "more", 20_000);
    (0..3000).for_each(|n| changing.put(&key(n), b"short").unwrap());
    db.checkpoint().unwrap();
    assert_eq!(sealed(&array) as u64, report.sealed_extents);
    assert_whole(&facts, 20_000);
    assert_whole(&more, 20_000);
    // One that shares its extents is read-only too, and not isolated.
    let shared = more.set_read_only(true).unwrap();
    assert!(shared.pages > report.pages && shared.sealed_pages < shared.pages, "{shared:?}");
    assert!(db.check().unwrap().is_clean());
    facts.set_read_only(false).unwrap();
    assert!((sealed(&array) as u64) < shared.sealed_extents);
    facts.put(&key(1), b"changed").unwrap();
    db.checkpoint().unwrap();
    assert!(db.check().unwrap().is_clean());
}

#[test]
fn the_last_free_pages_are_given_out_all_the_same() {
    let rig = Rig::new(&[10, 10]);
    let (db, array) = rig.create(equal(2), options());
    let facts = load(&db, "facts", 5_000);
    facts.set_read_only(true).unwrap();
    assert!(sealed(&array) > 0);
    let changing = db.create_keyspace("changing").unwrap();
    let full = (0..100_000).find_map(|n| changing.put(&key(n), &[7; 400]).err().map(|e| (n, e)));
    let (rows, e) = full.expect("20 MiB are not enough");
    assert!(matches!(e, Error::NoSpace(_)), "{e}");
    assert!(rows > 20_000, "{rows}");
    assert_whole(&facts, 5_000);
    assert!(db.check().unwrap().is_clean());
}
