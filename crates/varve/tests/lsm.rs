//! LSM keyspaces through the public API: as trees to those who use them, over flushes, reopenings and crashes.

mod directories;

use directories::Dir;
use varve::{Db, Durability, Error, Keyspace, KeyspaceKind, LsmOptions, Options};

fn options() -> Options {
    Options { cache_bytes: 16 << 20, durability: Durability::None, ..Options::default() }
}

fn lsm() -> KeyspaceKind {
    KeyspaceKind::Lsm(LsmOptions { memtable_bytes: 64 << 10, segment_bytes: 64 << 10, ..LsmOptions::default() })
}

type Rows = Vec<(Vec<u8>, Vec<u8>)>;

/// All rows, which are the same both ways.
fn rows(db: &Db, keyspace: &Keyspace) -> Rows {
    let snapshot = db.snapshot().unwrap();
    let forth: Rows = snapshot.scan(keyspace, ..).unwrap().map(|row| row.unwrap()).collect();
    let mut back: Rows = snapshot.scan_rev(keyspace, ..).unwrap().map(|row| row.unwrap()).collect();
    back.reverse();
    assert_eq!(forth, back);
    forth
}

#[test]
fn rows_are_there_in_memory_flushed_and_after_reopening() {
    let dir = Dir::new("lsm-rows");
    let db = Db::open_or_create(&dir.0, options()).unwrap();
    let events = db.create_keyspace_of("events", lsm()).unwrap();
    let key = |n: u32| (n * 7919 % 10_007).to_be_bytes();
    for n in 0..3000u32 {
        events.put(&key(n), &[n as u8; 100]).unwrap();
    }
    for n in (0..3000).step_by(3) {
        assert!(events.delete(&key(n)).unwrap());
        assert!(!events.delete(&key(n)).unwrap());
    }
    let mut expected: Vec<_> =
        (0..3000u32).filter(|n| n % 3 > 0).map(|n| (key(n).to_vec(), vec![n as u8; 100])).collect();
    expected.sort();
    assert_eq!(rows(&db, &events), expected);
    db.checkpoint().unwrap();
    assert_eq!(rows(&db, &events), expected);
    let report = db.check().unwrap();
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(report.keys, 2000);
    drop(events);
    db.close().unwrap();
    drop(db);
    let db = Db::open(&dir.0, options()).unwrap();
    let events = db.keyspace("events").unwrap();
    assert_eq!(rows(&db, &events), expected);
    assert_eq!(events.get(&key(1)).unwrap(), Some(vec![1; 100]));
    assert_eq!(events.get(&key(3)).unwrap(), None);
    drop(events);
    db.drop_keyspace("events").unwrap();
    let report = db.check().unwrap();
    assert!(report.is_clean(), "{report:?}");
    assert!(matches!(db.keyspace("events"), Err(Error::NoSuchKeyspace(_))));
    db.close().unwrap();
}
