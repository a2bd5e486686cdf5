//! What an array is told of extents that nothing changes: those of segments, and of what was loaded in bulk.

use crate::array_support::{EXTENT, MIB, Rig, assert_whole, equal, fill, key, load, options, sealed};
use crate::directories::Dir;
use varve::{Compression, Db, DriveLayout, DrivePart, KeyspaceKind, Layout, LsmOptions, Options};

fn lsm() -> KeyspaceKind {
    let (segment_bytes, compression) = (4 * MIB, Compression::None);
    KeyspaceKind::Lsm(LsmOptions { memtable_bytes: 4 * MIB, segment_bytes, compression, ..LsmOptions::default() })
}

/// Extents that are sealed.
fn told(db: &Db) -> usize {
    db.array_stats().unwrap().sealed
}

#[test]
fn extents_of_segments_are_sealed_until_their_pages_are_free() {
    let rig = Rig::new(&[96, 96]);
    let roomy = || Options { cache_bytes: 32 << 20, ..options() };
    let (db, array) = rig.create(equal(2), roomy());
    let tree = fill(&db, "tree", 3000);
    assert_eq!(told(&db), 0, "what is written row by row is not sealed");
    let mut bulk = db.bulk_load_of("events", lsm()).unwrap();
    (0..40_000).for_each(|n| bulk.push(&key(n), format!("events {n:0390}").as_bytes()).unwrap());
    let events = bulk.finish().unwrap();
    let loaded = told(&db);
    assert!(loaded >= 6 && loaded == sealed(&array), "{loaded} of 16 MiB and more");
    // Flushes and merges make others. What they made of all rows takes as much room.
    (0..40_000).for_each(|n| {
        let value = format!("events {n:0390}");
        events.put_with(&key(n), value.as_bytes(), varve::Durability::None).unwrap();
    });
    db.checkpoint().unwrap();
    events.compact(None, ..).unwrap();
    db.wait_for_merges().unwrap();
    // What was freed is free when pages are asked for next.
    fill(&db, "asks", 100);
    let merged = told(&db);
    assert!((6..=12).contains(&merged), "{merged}, and before {loaded}: what was merged is free");
    assert_whole(&events, 40_000);
    assert!(db.check().unwrap().is_clean());
    drop((events, tree));
    db.close().unwrap();
    // The array remembers none of it.
    drop(array);
    let (db, array) = rig.open(roomy());
    assert_eq!((told(&db), sealed(&array)), (merged, merged));
    assert_whole(&db.keyspace("events").unwrap(), 40_000);
    db.drop_keyspace("events").unwrap();
    fill(&db, "more", 100);
    db.checkpoint().unwrap();
    assert_eq!(told(&db), 0);
    assert!(db.check().unwrap().is_clean());
    db.close().unwrap();
}

#[test]
fn what_was_loaded_in_bulk_is_sealed_until_it_is_written() {
    let dir = Dir::new("sealed-extents");
    let part = |n: u32| DrivePart { path: dir.join(&format!("of-{n}")), bytes: 64 * MIB };
    let drives = DriveLayout { drives: (0..2).map(part).collect(), extent: EXTENT, layout: equal(2) };
    let layout = Layout { log_bytes: 4 << 20, page_size: 4096, array: Some(drives), ..Layout::default() };
    let at = dir.join("db");
    let db = Db::create(&at, &layout, options()).unwrap();
    let (facts, other) = (load(&db, "facts", 30_000), load(&db, "other", 10_000));
    let loaded = told(&db);
    assert!(loaded >= 6, "{loaded} of 15 MiB");
    db.checkpoint().unwrap();
    assert_eq!(told(&db), loaded);
    drop((facts, other));
    db.close().unwrap();
    assert!(at.join("array.loaded").exists());

    let db = Db::open(&at, options()).unwrap();
    assert!(!at.join("array.loaded").exists(), "it is true while the database is closed");
    assert_eq!(told(&db), loaded);
    let facts = db.keyspace("facts").unwrap();
    facts.put(&key(5), b"changed").unwrap();
    assert_eq!(told(&db), loaded, "the page is in memory");
    db.checkpoint().unwrap();
    assert_eq!(told(&db), loaded - 1, "the page was written");
    facts.put(&key(5), format!("facts {:0390}", 5).as_bytes()).unwrap();
    assert_whole(&facts, 30_000);
    drop(facts);
    db.close().unwrap();

    let db = Db::open(&at, options()).unwrap();
    assert_eq!(told(&db), loaded - 1);
    let facts = db.keyspace("facts").unwrap();
    assert!(facts.set_read_only(true).unwrap().sealed_extents as usize > 3);
    assert!(told(&db) >= loaded, "what nothing changes is sealed again");
    facts.set_read_only(false).unwrap();
    let left = told(&db);
    assert!(left > 0 && left + 3 < loaded, "{left}: who takes the mark back means to write");
    drop(facts);
    db.drop_keyspace("other").unwrap();
    fill(&db, "more", 100);
    db.checkpoint().unwrap();
    assert_eq!(told(&db), 0, "what is free changes");
    drop(load(&db, "third", 10_000));
    assert!(told(&db) > 0);
    // Without a close nobody knows what was written since.
    drop(db);
    let db = Db::open(&at, options()).unwrap();
    assert_eq!(told(&db), 0);
    assert_whole(&db.keyspace("third").unwrap(), 10_000);
    assert!(db.check().unwrap().is_clean());
    db.close().unwrap();
}
