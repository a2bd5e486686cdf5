//! What reads of LSM keyspaces cost: pages read from the device, and batches of rows.

use varve::{Db, Devices, Durability, Keyspace, KeyspaceKind, Layout, LsmOptions, Options};
use varve_models::MemDevice;

const ROWS: u32 = 20_000;

fn key(n: u32) -> Vec<u8> {
    format!("key/{:012}", n * 7919 % ROWS).into_bytes()
}

/// Frames in use.
fn held(db: &Db) -> u64 {
    let pool = db.stats().pool;
    pool.frames - pool.free
}

/// Rows of 100 bytes, flushed and merged, in a database with so much memory.
fn filled(cache_bytes: u64) -> (Db, Keyspace) {
    let devices = Devices::new(MemDevice::new(0), MemDevice::new(0));
    let options = Options { cache_bytes, durability: Durability::None, ..Options::default() };
    let db = Db::create_on(devices, &Layout::default(), options).unwrap();
    let small = LsmOptions { memtable_bytes: 256 << 10, segment_bytes: 256 << 10, ..LsmOptions::default() };
    let rows = db.create_keyspace_of("rows", KeyspaceKind::Lsm(small)).unwrap();
    (0..ROWS).for_each(|n| rows.put(key(n), [n as u8; 100]).unwrap());
    db.checkpoint().unwrap();
    db.wait_for_merges().unwrap();
    (db, rows)
}

#[test]
fn what_was_flushed_and_merged_is_in_the_cache_where_there_is_room() {
    let (db, rows) = filled(64 << 20);
    let before = db.stats().pool;
    for n in 0..ROWS {
        assert_eq!(rows.get(key(n)).unwrap(), Some(vec![n as u8; 100]));
    }
    let after = db.stats().pool;
    assert_eq!(after.total().misses, before.total().misses, "nothing was read from the device");
    // What merges dropped leaves the cache when somebody commits: it holds little more than there is.
    rows.put(key(0), [0; 100]).unwrap();
    db.checkpoint().unwrap();
    let (held, pages) = (held(&db), rows.size_on_disk().unwrap() / 8192);
    assert!(held < pages + pages / 2 + 100, "{held} pages in the cache of {pages}");
    db.close().unwrap();
}

#[test]
fn what_is_written_takes_no_frames_that_others_use() {
    let (db, rows) = filled(4 << 20);
    let before = db.stats().pool;
    assert!(8 * before.free >= before.frames / 2, "{} of {} frames are free", before.free, before.frames);
    assert_eq!(rows.len().unwrap(), u64::from(ROWS));
    db.close().unwrap();
}
