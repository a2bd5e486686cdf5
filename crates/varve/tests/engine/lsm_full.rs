//! LSM keyspaces on a device that is full.

use crate::lsm::{Rows, lsm, options, rows};
use std::sync::Arc;
use varve::{Db, Devices, Error, Keyspace, KeyspaceKind, Layout, LsmOptions, Options};
use varve_device::{Device, OpKind};
use varve_models::{Fault, FaultPlan, Faulty, MemDevice, When};
use varve_volume::page;

/// Types of pages: a tree's leaves, and its other nodes.
const LEAF: u8 = 2;
const INNER: u8 = 3;

/// The device is full: what is in memory stays in the log when the database is closed. Who clears a keyspace then has
/// its room.
#[test]
fn a_full_device_keeps_nobody_from_closing_or_from_making_room() {
    let data = Faulty::new(MemDevice::new(0), FaultPlan::new(1));
    let log = MemDevice::new(0);
    let devices = || Devices::new(data.clone(), log.clone());
    let layout = Layout { page_size: 4096, log_bytes: 16 << 20, ..Layout::default() };
    let db = Db::create_on(devices(), &layout, options()).unwrap();
    let events = db.create_keyspace_of("events", lsm()).unwrap();
    let value = |n: u32| [n as u8; 500];
    let put = |events: &Keyspace, n: u32| events.put(n.to_be_bytes(), value(n));
    (0..2000).for_each(|n| put(&events, n).unwrap());
    db.wait_for_merges().unwrap();
    data.set_plan(FaultPlan::new(1).rule(&[OpKind::SetLen], None, When::From(1), Fault::NoSpace));
    let stored = (2000..100_000).find(|n| match put(&events, *n) {
        Ok(()) => false,
        Err(error) => {
            assert!(matches!(error, Error::NoSpace(_)), "{error}");
            true
        }
    });
    let stored = stored.expect("the device is full at some time");
    drop(events);
    db.close().unwrap();

    let db = Db::open_on(devices(), options()).unwrap();
    let events = db.keyspace("events").unwrap();
    let expected: Rows = (0..stored).map(|n| (n.to_be_bytes().to_vec(), value(n).to_vec())).collect();
    assert!(rows(&db, &events) == expected, "what was acknowledged is there, and nothing else");
    assert!(db.check().unwrap().is_clean());
    events.clear().unwrap();
    drop(events);
    db.close().unwrap();

    let db = Db::open_on(devices(), options()).unwrap();
    let events = db.keyspace("events").unwrap();
    assert_eq!(rows(&db, &events), []);
    // A quarter: what is merged meanwhile needs room for both copies.
    (0..500).for_each(|n| put(&events, n).unwrap());
    db.checkpoint().unwrap();
    assert!(db.check().unwrap().is_clean());
    drop(events);
    db.close().unwrap();
}

/// Two segments on level 0 hold flushes up until they are merged.
fn held_up_by_merges() -> KeyspaceKind {
    let shape = LsmOptions { l0_trigger: 2, l0_slowdown: 2, l0_stop: 2, ..LsmOptions::default() };
    let small =
        LsmOptions { memtable_bytes: 64 << 10, segment_bytes: 64 << 10, level1_bytes: Some(128 << 10), ..shape };
    KeyspaceKind::Lsm(small)
}

fn put(rows: &Keyspace, n: u32) -> varve::Result<()> {
    rows.put((n * 7919 % 100_003).to_be_bytes(), [n as u8; 500])
}

/// A database whose data device cannot grow any more, so that merges find no room; how many rows it took, the last but
/// one of them.
fn full(options: Options) -> (Arc<Faulty>, Db, Keyspace, u32) {
    let data = Faulty::new(MemDevice::new(0), FaultPlan::new(1));
    let layout = Layout { page_size: 4096, log_bytes: 8 << 20, ..Layout::default() };
    let db = Db::create_on(Devices::new(data.clone(), MemDevice::new(0)), &layout, options).unwrap();
    let events = db.create_keyspace_of("events", held_up_by_merges()).unwrap();
    (0..4000).for_each(|n| put(&events, n).unwrap());
    db.wait_for_merges().unwrap();
    data.set_plan(FaultPlan::new(1).rule(&[OpKind::SetLen], None, When::From(1), Fault::NoSpace));
    let stalls = || db.stats().lsm[0].stalls.0;
    let before = stalls();
    let failed = (4000..100_000).find_map(|n| {
        // Nobody crawls on, a write each time that a merge is tried again.
        assert!(n % 10 > 0 || stalls() < before + 50, "write {n}");
        put(&events, n).err().map(|error| (n, error))
    });
    let (stored, error) = failed.unwrap();
    assert!(matches!(error, Error::NoSpace(_)), "{error}");
    (data, db, events, stored)
}

/// There is room again: writes, which begin at row `stored`, go on. `beside`: rows that are not of this count.
fn goes_on(db: &Db, events: Keyspace, stored: u32, beside: u64) {
    (stored..stored + 2000).for_each(|n| put(&events, n).unwrap());
    db.wait_for_merges().unwrap();
    assert_eq!(events.len().unwrap(), u64::from(stored + 2000) + beside);
    assert!(db.check().unwrap().is_clean());
    drop(events);
    db.close().unwrap();
}

/// Merges find no room, and flushes wait for them: writes say so, and go on when there is room again.
#[test]
fn writes_fail_while_a_full_device_stops_merges_and_go_on_when_it_has_room() {
    let (data, db, events, stored) = full(options());
    assert!(matches!(db.wait_for_merges(), Err(Error::NoSpace(_))));
    data.set_plan(FaultPlan::new(1));
    goes_on(&db, events, stored, 0);
}

/// What makes room is not refused for the lack of it.
#[test]
fn a_keyspace_can_be_cleared_while_a_full_device_refuses_writes() {
    let (_data, db, events, _) = full(options());
    events.clear().unwrap();
    assert_eq!(events.len().unwrap(), 0);
    assert!(db.check().unwrap().is_clean());
    drop(events);
    db.close().unwrap();
}

/// The log is full of what nothing has room for, so no checkpoint moves on: what clearing gives back is used at once.
#[test]
fn a_cleared_keyspace_has_its_room_back_though_the_log_is_pinned() {
    let options = Options { cache_bytes: 512 << 20, log_max_bytes: 8 << 20, ..options() };
    let (_data, db, events, _) = full(options);
    events.clear().unwrap();
    (0..1000).for_each(|n| put(&events, n).unwrap());
    db.checkpoint().unwrap();
    assert_eq!(events.len().unwrap(), 1000);
    assert!(db.check().unwrap().is_clean());
    drop(events);
    db.close().unwrap();
}

/// It is decided with room for its pages; memory for memtables cannot be had.
#[test]
fn a_large_commit_on_a_full_device_fails_before_it_is_decided_or_is_made() {
    let (data, db, events, stored) = full(options());
    let made =
        db.transact(|tx| (0..8000u32).try_for_each(|n| tx.put(&events, [b'x', (n >> 8) as u8, n as u8], [7; 500])));
    assert!(matches!(made, Ok(()) | Err(Error::NoSpace(_))), "{made:?}");
    data.set_plan(FaultPlan::new(1));
    let beside = if made.is_ok() { 8000 } else { 0 };
    assert_eq!(events.len().unwrap(), u64::from(stored) + beside);
    goes_on(&db, events, stored, beside);
}

/// What only memory and the log hold pins the log, and nothing has room for it: who waits for room in the log is told,
/// the database is not poisoned, and all goes on when there is room again.
#[test]
fn a_log_that_a_full_device_pins_is_told_and_goes_on_when_there_is_room() {
    let options = Options { cache_bytes: 512 << 20, log_max_bytes: 8 << 20, ..options() };
    let (data, db, events, stored) = full(options);
    // Who reads keeps what merges would give back, so that flushes use up the room that there is.
    let snapshot = db.snapshot().unwrap();
    let mut reader = snapshot.scan(&events, ..).unwrap();
    assert!(reader.next().is_some());
    let refused = || (0..100_000).find_map(|_| put(&events, stored - 1).err()).unwrap();
    let pinned = (0..1000).find_map(|_| {
        assert!(matches!(refused(), Error::NoSpace(_)));
        db.checkpoint().err()
    });
    assert!(matches!(pinned, Some(Error::NoSpace(_))), "{pinned:?}");
    assert!(matches!(refused(), Error::NoSpace(_)));
    drop((reader, snapshot));
    assert_eq!(events.len().unwrap(), u64::from(stored));
    data.set_plan(FaultPlan::new(1));
    db.checkpoint().unwrap();
    goes_on(&db, events, stored, 0);
}

/// Of two keyspaces one has a damaged segment, which cannot be merged.
#[test]
fn damage_that_stops_the_merges_of_a_keyspace_stops_no_other() {
    let (data, log) = (MemDevice::new(0), MemDevice::new(0));
    let devices = || Devices::new(data.clone(), log.clone());
    let layout = Layout { page_size: 4096, ..Layout::default() };
    let db = Db::create_on(devices(), &layout, options()).unwrap();
    for name in ["damaged", "sound"] {
        let rows = db.create_keyspace_of(name, held_up_by_merges()).unwrap();
        (0..1000u32).for_each(|n| rows.put(n.to_be_bytes(), name.repeat(50)).unwrap());
    }
    db.wait_for_merges().unwrap();
    db.close().unwrap();
    drop(db);
    let mut bytes = vec![0; data.len() as usize];
    varve_device::read_at(&*data, 0, &mut bytes).unwrap();
    let pattern = "damaged".repeat(50);
    // In each page, as some are of segments that were merged away.
    let pages = bytes.chunks(4096).enumerate();
    let with = pages.filter(|(_, page)| page.windows(pattern.len()).any(|window| window == pattern.as_bytes()));
    with.for_each(|(n, _)| data.flip_bit(n as u64 * 4096 + 2000, 3));

    let db = Db::open_on(devices(), options()).unwrap();
    let (damaged, sound) = (db.keyspace("damaged").unwrap(), db.keyspace("sound").unwrap());
    let failed = (0..100_000u32).find_map(|n| damaged.put((n % 1000).to_be_bytes(), "x".repeat(350)).err());
    let failed = failed.unwrap();
    assert!(matches!(failed, Error::Corrupt(_)), "{failed}");
    (0..20_000u32).for_each(|n| sound.put(n.to_be_bytes(), "y".repeat(350)).unwrap());
    assert_eq!(sound.len().unwrap(), 20_000);
    drop((damaged, sound));
    let _ = db.close();
}

/// The list of segments of a keyspace is damaged, so that what it has in memory cannot be flushed and pins the log.
/// Checkpoints go on for all else, and who waits for the log is told of the page; nothing is poisoned.
#[test]
fn a_damaged_list_of_segments_poisons_nothing() {
    let (data, log) = (MemDevice::new(0), MemDevice::new(0));
    let options = Options { log_max_bytes: 8 << 20, ..options() };
    let layout = Layout { page_size: 4096, log_bytes: 8 << 20, ..Layout::default() };
    let db = Db::create_on(Devices::new(data.clone(), log), &layout, options).unwrap();
    let damaged = db.create_keyspace_of("damaged", held_up_by_merges()).unwrap();
    (0..1000u32).for_each(|n| damaged.put(n.to_be_bytes(), [7; 300]).unwrap());
    db.wait_for_merges().unwrap();
    db.checkpoint().unwrap();
    let mut bytes = vec![0; data.len() as usize];
    varve_device::read_at(&*data, 0, &mut bytes).unwrap();
    let is_list = |bytes: &[u8]| page::keyspace(bytes) == damaged.id() && matches!(page::kind(bytes), LEAF | INNER);
    let pages = bytes.chunks(4096).enumerate().filter(|(_, bytes)| page::claims(bytes) && is_list(bytes));
    let list: Vec<u64> = pages.map(|(n, _)| n as u64).collect();
    assert!(!list.is_empty(), "the list has pages");
    list.iter().for_each(|n| data.flip_bit(n * 4096 + 2000, 3));

    // Others take the list's place in memory.
    let sound = db.create_keyspace("sound").unwrap();
    let stored = |keyspace: &Keyspace, n: u32| keyspace.put(n.to_be_bytes(), [n as u8; 400]);
    (0..100_000).for_each(|n| stored(&sound, n).unwrap());
    let told = (0..100_000).find_map(|n| stored(&damaged, n).and_then(|()| stored(&sound, n)).err()).unwrap();
    assert!(matches!(told, Error::Corrupt(_)), "{told}");
    assert!(list.iter().any(|n| told.to_string().contains(&format!("page {n}"))), "{told}");
    let told = db.checkpoint().unwrap_err();
    assert!(matches!(told, Error::Corrupt(_)), "{told}");
    assert_eq!(db.stats().pool.dirty, 0, "all else is written");
    assert!(!db.stats().poisoned);
    assert_eq!(sound.len().unwrap(), 100_000);
    assert_eq!(damaged.get(7u32.to_be_bytes()).unwrap().unwrap().len(), 400);
}

/// What compactions flush is merged though nobody writes any more: writers would wait for merges that nobody begins.
#[test]
fn what_others_flush_is_merged() {
    let flushed = || {
        let devices = Devices::new(MemDevice::new(0), MemDevice::new(0));
        let db = Db::create_on(devices, &Layout { page_size: 4096, ..Layout::default() }, options()).unwrap();
        let rows = db.create_keyspace_of("rows", KeyspaceKind::Lsm(LsmOptions::default())).unwrap();
        // The first two go to levels where there is nothing yet.
        for n in 0..2 + LsmOptions::default().l0_trigger {
            (0..10u32).for_each(|key| rows.put(key.to_be_bytes(), [n as u8; 100]).unwrap());
            db.compact().unwrap();
        }
        varve_rt::sleep(std::time::Duration::from_secs(60));
        db.stats().lsm[0].levels[0].segments
    };
    let left = varve_rt::sim::run(varve_rt::sim::Config::default(), flushed).unwrap();
    assert_eq!(left, 0, "segments are left on level 0");
}
