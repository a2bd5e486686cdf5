//! Limits at the public surface: what is too large is refused before anything changed, with an error that says what to
//! do, and the database goes on.

use std::collections::BTreeMap;
use varve::{Db, Devices, Durability, Error, Keyspace, Layout, Options, TxOptions};
use varve_models::MemDevice;

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

fn database(layout: Layout, options: Options) -> (Db, Keyspace) {
    let devices = Devices::new(MemDevice::new(0), MemDevice::new(0));
    let db = Db::create_on(devices, &layout, options).unwrap();
    let rows = db.create_keyspace("rows").unwrap();
    (db, rows)
}

fn small() -> (Db, Keyspace) {
    let layout = Layout { page_size: 4096, log_bytes: 2 << 20, ..Layout::default() };
    database(layout, Options { cache_bytes: 4 << 20, ..Options::default() })
}

fn key(n: u64) -> Vec<u8> {
    format!("key{n:06}").into_bytes()
}

fn fill(rows: &Keyspace, n: u64, value: &[u8]) -> Rows {
    for i in 0..n {
        rows.put_with(&key(i), value, Durability::None).unwrap();
    }
    (0..n).map(|i| (key(i), value.to_vec())).collect()
}

fn contents(db: &Db, rows: &Keyspace) -> Rows {
    db.snapshot().unwrap().scan(rows, ..).unwrap().map(|row| row.unwrap()).collect()
}

/// The database holds exactly `expected`, is sound, and still takes every kind of work.
fn goes_on(db: &Db, rows: &Keyspace, mut expected: Rows) {
    assert!(contents(db, rows) == expected, "a refused transaction left something behind");
    rows.put(b"after", b"1").unwrap();
    db.transact(|tx| {
        assert_eq!(tx.get(rows, b"after")?.as_deref(), Some(&b"1"[..]));
        tx.put(rows, b"after", b"2")?;
        tx.put(rows, b"before", &[7; 9000])
    })
    .unwrap();
    expected.insert(b"after".to_vec(), b"2".to_vec());
    expected.insert(b"before".to_vec(), vec![7; 9000]);
    assert!(contents(db, rows) == expected);
    db.checkpoint().unwrap();
    let report = db.check().unwrap();
    assert!(report.is_clean(), "{report:?}");
    let stats = db.stats();
    assert_eq!((stats.txn.open, stats.txn.snapshots), (0, 0));
    for class in stats.budget.iter().filter(|c| ["locks", "write sets", "versions"].contains(&c.class.name())) {
        assert!(class.used <= 128 << 10, "{} bytes of {} are still charged", class.used, class.class.name());
    }
}

/// The message names the amounts and what can be done.
fn says(error: &Error, words: &[&str]) {
    let text = error.to_string();
    assert!(words.iter().all(|word| text.contains(word)), "{text:?} lacks one of {words:?}");
    assert!(!error.is_retryable() || matches!(error, Error::SnapshotTooOld), "{text}");
}

#[test]
fn a_commit_of_more_pages_than_can_change_at_once_goes_in_pieces() {
    let (db, rows) = small();
    let mut expected = fill(&rows, 20_000, &[1; 60]);
    let mut tx = db.begin().unwrap();
    tx.put(&rows, b"first", b"early").unwrap();
    tx.delete(&rows, &key(1)).unwrap();
    expected.insert(b"first".to_vec(), b"early".to_vec());
    expected.remove(&key(1));
    for i in (0..20_000).step_by(25) {
        tx.put(&rows, &key(i), b"x").unwrap();
        expected.insert(key(i), b"x".to_vec());
    }
    tx.commit().unwrap();
    assert_eq!(db.stats().txn.large_commits, 1);
    goes_on(&db, &rows, expected);
}

#[test]
fn a_value_larger_than_a_commit_may_be_needs_a_transaction_or_a_reader() {
    let (db, rows) = small();
    let mut expected = fill(&rows, 10, b"old");
    let huge = vec![5; 3 << 20];
    for durability in [Durability::Sync, Durability::None] {
        let error = rows.put_with(&key(3), &huge, durability).unwrap_err();
        assert!(matches!(error, Error::TransactionTooLarge { what: "changed pages", .. }), "{error}");
        says(&error, &["split it", "raise the cache size", "bytes"]);
    }
    let mut tx = db.begin().unwrap();
    tx.put(&rows, &key(4), b"new").unwrap();
    tx.put(&rows, &key(5), &huge).unwrap();
    assert!(tx.get(&rows, &key(5)).unwrap().as_ref() == Some(&huge));
    tx.commit().unwrap();
    expected.insert(key(4), b"new".to_vec());
    expected.insert(key(5), huge);
    goes_on(&db, &rows, expected);
}

#[test]
fn a_write_set_that_memory_has_no_room_for_can_be_committed_or_dropped() {
    let (db, rows) = small();
    let mut expected = fill(&rows, 5, b"old");
    for commit in [false, true] {
        let mut tx = db.begin().unwrap();
        (0..5000).for_each(|i| tx.put(&rows, &key(i), &[3; 300]).unwrap());
        assert!(db.stats().scratch.pages > 0);
        if commit {
            tx.commit().unwrap();
            expected.extend((0..5000).map(|i| (key(i), vec![3; 300])));
        }
    }
    goes_on(&db, &rows, expected);
}

#[test]
fn a_range_of_any_length_is_deleted() {
    let (db, rows) = small();
    let mut expected = fill(&rows, 20_000, &[1; 60]);
    let mut tx = db.begin().unwrap();
    tx.put(&rows, &key(7), b"mine").unwrap();
    let mark = tx.savepoint().unwrap();
    assert_eq!(tx.delete_range(&rows, ..).unwrap(), 20_000);
    assert_eq!(tx.count(&rows, ..).unwrap(), 0);
    tx.rollback_to(mark).unwrap();
    assert_eq!(tx.count(&rows, ..).unwrap(), 20_000);
    assert_eq!(tx.delete_range(&rows, &key(100)..&key(19_000)).unwrap(), 18_900);
    tx.commit().unwrap();
    expected.insert(key(7), b"mine".to_vec());
    (100..19_000).for_each(|i| drop(expected.remove(&key(i))));
    goes_on(&db, &rows, expected);
}

#[test]
fn several_large_write_sets_share_their_part_of_the_cache() {
    let (db, rows) = small();
    let mut expected = fill(&rows, 5, b"old");
    let limit = db.stats().budget.iter().find(|c| c.class.name() == "write sets").unwrap().limit;
    let piece = vec![1; limit as usize / 5];
    let mut all: Vec<_> = (0..4).map(|_| db.begin().unwrap()).collect();
    for i in 0..6 {
        for (n, tx) in all.iter_mut().enumerate() {
            tx.put(&rows, &key(n as u64 * 100 + i), &piece).unwrap();
            expected.insert(key(n as u64 * 100 + i), piece.clone());
        }
    }
    all.into_iter().for_each(|tx| tx.commit().unwrap());
    goes_on(&db, &rows, expected);
}

#[test]
fn any_number_of_keys_is_read_in_one_transaction() {
    let (db, rows) = small();
    let mut expected = fill(&rows, 20_000, &[1; 60]);
    let mut tx = db.begin().unwrap();
    tx.put(&rows, &key(1), b"mine").unwrap();
    for i in 0..20_000 {
        assert!(tx.get(&rows, &key(i * 7919 % 20_000)).unwrap().is_some());
    }
    let stats = db.stats();
    assert!(stats.txn.lock_coarsened > 0);
    let locks = stats.budget.iter().find(|c| c.class.name() == "locks").unwrap();
    assert!(locks.refused == 0 && locks.peak < locks.limit / 2, "{locks:?}");
    tx.commit().unwrap();
    expected.insert(key(1), b"mine".to_vec());
    // A scan of the same rows needs few locks.
    let mut tx = db.begin().unwrap();
    assert_eq!(tx.scan(&rows, ..).unwrap().filter(|row| row.is_ok()).count(), 20_000);
    tx.commit().unwrap();
    goes_on(&db, &rows, expected);
}

#[test]
fn a_value_larger_than_the_log_needs_a_transaction() {
    let layout = Layout { page_size: 4096, log_bytes: 1 << 20, ..Layout::default() };
    let options = Options { cache_bytes: 64 << 20, log_max_bytes: 1 << 20, ..Options::default() };
    let (db, rows) = database(layout, options);
    let mut expected = fill(&rows, 100, b"old");
    for _ in 0..3 {
        let mut tx = db.begin().unwrap();
        tx.put(&rows, &key(3), b"early").unwrap();
        tx.put(&rows, &key(4), &vec![9; 2 << 20]).unwrap();
        tx.commit().unwrap();
        expected.insert(key(3), b"early".to_vec());
        expected.insert(key(4), vec![9; 2 << 20]);
        let error = rows.put(&key(4), &vec![9; 2 << 20]).unwrap_err();
        assert!(matches!(error, Error::TransactionTooLarge { what: "log", .. }), "{error}");
        says(&error, &["log", "split it"]);
    }
    // A good part of the log is still possible, again and again.
    for n in 0..8 {
        rows.put(&key(5), &vec![n; 200 << 10]).unwrap();
        expected.insert(key(5), vec![n; 200 << 10]);
    }
    goes_on(&db, &rows, expected);
}

#[test]
fn keys_and_values_of_impossible_sizes_are_refused_everywhere() {
    for (page_size, longest) in [(4096, 1024), (8192, 2048), (16384, 2048)] {
        let layout = Layout { page_size, log_bytes: 2 << 20, ..Layout::default() };
        let (db, rows) = database(layout, Options { cache_bytes: 8 << 20, ..Options::default() });
        let mut tx = db.begin().unwrap();
        for bad in [vec![1; longest + 1], vec![1; 1 << 20]] {
            for error in [rows.put(&bad, b"v").unwrap_err(), tx.put(&rows, &bad, b"v").unwrap_err()] {
                assert!(matches!(error, Error::KeySize { len, max } if len == bad.len() && max == longest), "{error}");
                says(&error, &["up to", &longest.to_string()]);
            }
        }
        // Zeroed memory that is never touched.
        let huge = vec![0; varve::MAX_VALUE as usize + 1];
        for error in [rows.put(b"k", &huge).unwrap_err(), tx.put(&rows, b"k", &huge).unwrap_err()] {
            assert!(matches!(error, Error::ValueSize { .. }), "{error}");
            says(&error, &["longest value", &varve::MAX_VALUE.to_string()]);
        }
        drop(huge);
        let (first, last) = (vec![0; longest], vec![0xff; longest]);
        tx.put(&rows, &first, b"first").unwrap();
        tx.put(&rows, &last, b"").unwrap();
        tx.commit().unwrap();
        assert_eq!(rows.get(&last).unwrap().as_deref(), Some(&b""[..]));
        let expected = Rows::from([(first, b"first".to_vec()), (last, Vec::new())]);
        goes_on(&db, &rows, expected);
    }
}

#[test]
fn a_snapshot_gets_too_old_and_no_writer_ever_fails() {
    let layout = Layout { page_size: 4096, log_bytes: 2 << 20, ..Layout::default() };
    let in_memory = Options { cache_bytes: 4 << 20, snapshot_disk_bytes: Some(0), ..Options::default() };
    let (db, rows) = database(layout, in_memory);
    let mut expected = fill(&rows, 1000, &[0; 500]);
    let snapshot = db.snapshot().unwrap();
    let mut scan = snapshot.scan(&rows, ..).unwrap();
    scan.next().unwrap().unwrap();
    let reader = db.begin_with(TxOptions::read_only()).unwrap();
    let versions = db.stats().budget.iter().find(|c| c.class.name() == "versions").unwrap().limit;
    assert!(versions < 1000 * 500, "the rows are to be more than the version store holds");
    for round in 0..5 {
        let value = [round as u8 + 1; 500];
        // Both ways of writing.
        for i in 0..500 {
            rows.put_with(&key(i), &value, Durability::None).unwrap();
        }
        for first in (500..1000).step_by(100) {
            let mut tx = db.begin().unwrap();
            (first..first + 100).for_each(|i| tx.put(&rows, &key(i), &value).unwrap());
            tx.commit().unwrap();
        }
        let young = db.snapshot().unwrap();
        assert_eq!(young.get(&rows, &key(7)).unwrap().unwrap(), value);
        expected.values_mut().for_each(|v| *v = value.to_vec());
    }
    let mut reader = reader;
    let errors = [
        snapshot.get(&rows, &key(950)).unwrap_err(),
        snapshot.count(&rows, ..).unwrap_err(),
        scan.find_map(|row| row.err()).expect("a scan may return what it copied before, not more"),
        reader.get(&rows, &key(950)).unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error, Error::SnapshotTooOld), "{error}");
        says(&error, &["open a new snapshot", "cache"]);
    }
    drop((snapshot, reader));
    assert!(db.stats().txn.snapshots_evicted >= 2);
    goes_on(&db, &rows, expected);
}

#[test]
fn locked_keys_can_be_used_when_there_is_no_room_for_more_locks() {
    let (db, rows) = small();
    let expected = fill(&rows, 20_000, b"v");
    // Transactions of one key each have nothing to make coarser.
    let mut all = Vec::new();
    let error = loop {
        let mut tx = db.begin().unwrap();
        match tx.get(&rows, &key(all.len() as u64)) {
            Ok(value) => assert!(value.is_some()),
            Err(error) => break error,
        }
        all.push(tx);
    };
    assert!(matches!(error, Error::OverBudget { class: "locks", .. }), "{error}");
    says(&error, &["locks", "raise the cache size"]);
    for (i, tx) in all.iter_mut().enumerate() {
        assert!(tx.get(&rows, &key(i as u64)).unwrap().is_some(), "key {i}");
    }
    for (i, mut tx) in all.into_iter().enumerate() {
        tx.put(&rows, &key(i as u64), b"v").unwrap();
        tx.commit().unwrap();
    }
    goes_on(&db, &rows, expected);
}

#[test]
fn a_write_set_of_one_key_stays_small_however_often_it_is_written() {
    let (db, rows) = small();
    let mut tx = db.begin().unwrap();
    for _ in 0..2000 {
        tx.put(&rows, b"k", &[0; 1000]).unwrap();
        tx.delete_range(&rows, ..).unwrap();
    }
    // Below a savepoint too: what it goes back to is kept once.
    tx.put(&rows, b"k", b"kept").unwrap();
    let mark = tx.savepoint().unwrap();
    for _ in 0..2000 {
        tx.put(&rows, b"k", &[1; 1000]).unwrap();
        tx.delete_range(&rows, ..).unwrap();
    }
    tx.rollback_to(mark).unwrap();
    assert_eq!(tx.get(&rows, b"k").unwrap().as_deref(), Some(&b"kept"[..]));
    tx.commit().unwrap();
    goes_on(&db, &rows, Rows::from([(b"k".to_vec(), b"kept".to_vec())]));
}

#[test]
fn a_value_is_written_on_from_a_database_that_is_open_for_reading_only() {
    let devices = Devices::new(MemDevice::new(0), MemDevice::new(0));
    let db = Db::create_on(devices.clone(), &Layout::default(), Options::default()).unwrap();
    let rows = db.create_keyspace("rows").unwrap();
    rows.put_from(b"long", &mut std::io::Read::take(std::io::repeat(7), 300_000)).unwrap();
    rows.put(b"short", b"v").unwrap();
    drop(rows);
    db.close().unwrap();
    let db = Db::open_on(devices, Options { read_only: true, ..Options::default() }).unwrap();
    let rows = db.keyspace("rows").unwrap();
    for (key, len) in [(&b"long"[..], Some(300_000)), (b"short", Some(1)), (b"none", None)] {
        let mut value = Vec::new();
        assert_eq!(rows.get_to(key, &mut value).unwrap(), len);
        assert!(rows.get(key).unwrap().unwrap_or_default() == value);
    }
}
