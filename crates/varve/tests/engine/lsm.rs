//! LSM keyspaces through the public API: as trees to those who use them, over flushes, reopenings and crashes.

use crate::directories::Dir;
use std::sync::Arc;
use varve::{
    BackupOptions, Db, Devices, Durability, Error, Keyspace, KeyspaceKind, Layout, LsmOptions, Options, RestoreOptions,
};
use varve_device::Device;
use varve_models::{MemDevice, MemOptions};
use varve_rt::atomic::{AtomicBool, Ordering};

pub(crate) fn options() -> Options {
    Options { cache_bytes: 16 << 20, durability: Durability::None, ..Options::default() }
}

pub(crate) fn lsm() -> KeyspaceKind {
    KeyspaceKind::Lsm(LsmOptions { memtable_bytes: 64 << 10, segment_bytes: 64 << 10, ..LsmOptions::default() })
}

pub(crate) type Rows = Vec<(Vec<u8>, Vec<u8>)>;

/// All rows, which are the same both ways.
pub(crate) fn rows(db: &Db, keyspace: &Keyspace) -> Rows {
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

/// Overwrites, deletions and snapshots while segments are merged: every snapshot sees what it saw, the rest goes.
#[test]
fn merges_keep_what_somebody_can_see_and_nothing_else() {
    for merge in ["sequential", "pcp"] {
        merges_keep_what_is_seen(merge);
    }
}

fn merges_keep_what_is_seen(merge: &str) {
    let dir = Dir::new(&format!("lsm-merges-{merge}"));
    let db = Db::open_or_create(&dir.0, options()).unwrap();
    let KeyspaceKind::Lsm(mut chosen) = lsm() else { panic!("it is one") };
    chosen.set("merge", merge).unwrap();
    let events = db.create_keyspace_of("events", KeyspaceKind::Lsm(chosen)).unwrap();
    let mut expected = std::collections::BTreeMap::new();
    let mut snapshots = Vec::new();
    for round in 0..12u32 {
        for n in 0..1500u32 {
            let key = (n.wrapping_mul(2_654_435_761) % 2000).to_be_bytes().to_vec();
            if (n + round) % 5 == 0 {
                events.delete(&key).unwrap();
                expected.remove(&key);
            } else {
                let value = [round as u8; 90].to_vec();
                events.put(&key, &value).unwrap();
                expected.insert(key, value);
            }
        }
        if round % 4 == 1 {
            snapshots.push((db.snapshot().unwrap(), expected.clone()));
        }
    }
    db.wait_for_merges().unwrap();
    let of = |map: &std::collections::BTreeMap<Vec<u8>, Vec<u8>>| map.clone().into_iter().collect::<Rows>();
    assert!(rows(&db, &events) == of(&expected));
    for (snapshot, then) in &snapshots {
        let seen: Rows = snapshot.scan(&events, ..).unwrap().map(|row| row.unwrap()).collect();
        assert!(seen == of(then), "a snapshot as of {}", snapshot.lsn());
    }
    let report = db.check().unwrap();
    assert!(report.is_clean(), "{report:?}");
    drop(snapshots);
    for n in 0..40_000u32 {
        events.put(&(n % 2000).to_be_bytes(), &[1; 90]).unwrap();
    }
    db.wait_for_merges().unwrap();
    let report = db.check().unwrap();
    assert!(report.is_clean() && report.keys == 2000, "{report:?}");
    // The rows fill 26 pages, what was overwritten would fill 500.
    assert!(report.allocated_pages < 150, "{} pages", report.allocated_pages);
    drop(events);
    db.close().unwrap();
}

/// No commit comes after the load: nothing but the load itself makes its rows show.
#[test]
fn the_rows_of_a_bulk_load_show_at_once() {
    let dir = Dir::new("lsm-bulk-shows");
    let db = Db::open_or_create(&dir.0, options()).unwrap();
    let other = db.create_keyspace("other").unwrap();
    for n in 0..20u32 {
        // Commits that write to no LSM keyspace do not move the moment as of which such are read.
        other.put(n.to_be_bytes(), "row").unwrap();
        let mut load = db.bulk_load_of(&format!("load-{n}"), lsm()).unwrap();
        (0..100u32).for_each(|row| load.push(&row.to_be_bytes(), b"loaded").unwrap());
        let loaded = load.finish().unwrap();
        let key = (5 * n % 100).to_be_bytes();
        assert_eq!(loaded.get(key).unwrap().as_deref(), Some(&b"loaded"[..]), "load {n}");
        let mut tx = db.begin().unwrap();
        assert_eq!(tx.get(&loaded, key).unwrap().as_deref(), Some(&b"loaded"[..]), "load {n}");
        assert_eq!(tx.scan(&loaded, ..).unwrap().count(), 100, "load {n}");
        tx.rollback();
    }
    db.close().unwrap();
}

#[test]
fn a_bulk_load_is_read_and_written_on() {
    let dir = Dir::new("lsm-bulk");
    let db = Db::open_or_create(&dir.0, options()).unwrap();
    let mut load = db.bulk_load_of("events", lsm()).unwrap();
    for n in 0..5000u32 {
        load.push(&n.to_be_bytes(), &[7; 100]).unwrap();
    }
    assert!(matches!(load.push(&1u32.to_be_bytes(), b""), Err(Error::Invalid(_))));
    let events = load.finish().unwrap();
    assert_eq!(rows(&db, &events).len(), 5000);
    events.put(&17u32.to_be_bytes(), b"new").unwrap();
    assert!(events.delete(&18u32.to_be_bytes()).unwrap());
    db.wait_for_merges().unwrap();
    assert_eq!(events.get(&17u32.to_be_bytes()).unwrap().as_deref(), Some(&b"new"[..]));
    assert_eq!(rows(&db, &events).len(), 4999);
    assert!(db.check().unwrap().is_clean());
    drop(events);
    db.close().unwrap();
}

#[test]
fn options_out_of_range_are_refused_with_what_there_is() {
    let mut options = LsmOptions::default();
    let refused = |options: &mut LsmOptions, name, value| options.set(name, value).unwrap_err().to_string();
    assert!(refused(&mut options, "colour", "red").contains("compression, filter-bits, block, segment, memtable"));
    assert!(refused(&mut options, "compression", "zip").contains("none, lz4, zstd"));
    assert!(refused(&mut options, "merge", "cokvs").contains("sequential, pcp, cokv"));
    assert!(refused(&mut options, "memtable", "1K").contains("from 64K"));
    assert_eq!(options, LsmOptions::default());
    options.set("compression", "zstd").unwrap();
    options.set("memtable", "128M").unwrap();
    assert_eq!((options.compression.name(), options.memtable_bytes), ("zstd", 128 << 20));

    let db = Db::in_memory(self::options()).unwrap();
    let events = db.create_keyspace_of("events", lsm()).unwrap();
    options.set("merge", "near").unwrap();
    let refused = events.set_lsm_options(options).unwrap_err().to_string();
    assert!(refused.contains("needs a worker"), "{refused}");
}

/// A tree puts a long value of a transaction into pages of its own ahead of the commit; an LSM keyspace has none.
#[test]
fn long_values_of_transactions_are_taken_by_both_kinds_also_when_writes_spill() {
    let dir = Dir::new("lsm-long");
    let small = Options { cache_bytes: 1 << 20, ..options() };
    let db = Db::open_or_create(&dir.0, small.clone()).unwrap();
    let events = db.create_keyspace_of("events", lsm()).unwrap();
    let tree = db.create_keyspace("tree").unwrap();
    let value = |n: u32| vec![n as u8; 40_000];
    let mut tx = db.begin().unwrap();
    for n in 0..6u32 {
        tx.put(&events, &n.to_be_bytes(), &value(n)).unwrap();
        tx.put(&tree, &n.to_be_bytes(), &value(n)).unwrap();
    }
    tx.commit().unwrap();
    let expected: Rows = (0..6u32).map(|n| (n.to_be_bytes().to_vec(), value(n))).collect();
    assert!(rows(&db, &events) == expected && rows(&db, &tree) == expected);
    drop((events, tree));
    db.close().unwrap();
    drop(db);
    let db = Db::open(&dir.0, small).unwrap();
    let events = db.keyspace("events").unwrap();
    assert!(rows(&db, &events) == expected);
    assert!(db.check().unwrap().is_clean());
}

/// The first read of an opening, by whichever way, sees all that was committed before.
#[test]
fn the_first_read_after_an_opening_sees_what_was_committed() {
    for read_only in [false, true] {
        let dir = Dir::new(if read_only { "lsm-first-read-only" } else { "lsm-first" });
        let db = Db::open_or_create(&dir.0, options()).unwrap();
        let events = db.create_keyspace_of("events", lsm()).unwrap();
        events.put(b"a", b"1").unwrap();
        drop(events);
        db.close().unwrap();
        drop(db);
        let open = || Db::open(&dir.0, Options { read_only, ..options() }).unwrap();
        let db = open();
        assert_eq!(db.keyspace("events").unwrap().get(b"a").unwrap().as_deref(), Some(&b"1"[..]));
        db.close().unwrap();
        drop(db);
        let db = open();
        assert_eq!(db.check().unwrap().keys, 1);
        db.close().unwrap();
        drop(db);
        let db = open();
        let events = db.keyspace("events").unwrap();
        assert_eq!(
            db.begin_with(varve::TxOptions { read_only, ..Default::default() })
                .unwrap()
                .get(&events, b"a")
                .unwrap()
                .as_deref(),
            Some(&b"1"[..])
        );
    }
}

/// A megabyte of memory, of which memtables get 64 KiB.
fn small(devices: &Devices) -> Db {
    let options = Options { cache_bytes: 1 << 20, ..options() };
    match Db::open_on(devices.clone(), options.clone()) {
        Err(Error::NoDatabase(_)) => {
            Db::create_on(devices.clone(), &Layout { page_size: 4096, ..Layout::default() }, options).unwrap()
        }
        opened => opened.unwrap(),
    }
}

/// What recovery finds in the log counts, but it is not all that memtables may have from then on.
#[test]
fn memtables_have_their_memory_after_a_recovery_too() {
    let devices = Devices::new(MemDevice::new(0), MemDevice::new(0));
    let db = small(&devices);
    let events = db.create_keyspace_of("events", lsm()).unwrap();
    events.put_with(b"first", &[1; 6000], Durability::Sync).unwrap();
    drop((events, db));
    let db = small(&devices);
    assert!(!db.recovery_report().clean);
    let events = db.keyspace("events").unwrap();
    assert_eq!(events.get(b"first").unwrap().unwrap(), [1; 6000]);
    events.put(b"second", &[2; 40_000]).unwrap();
    assert_eq!(events.get(b"second").unwrap().unwrap(), [2; 40_000]);
    drop(events);
    db.close().unwrap();
}

/// A commit that could never be applied is refused before it is decided, and the database goes on.
#[test]
fn a_value_larger_than_memtables_is_refused_in_a_large_transaction_too() {
    let devices = Devices::new(MemDevice::new(0), MemDevice::new(0));
    let db = small(&devices);
    let (events, rows) = (db.create_keyspace_of("events", lsm()).unwrap(), db.create_keyspace("rows").unwrap());
    for spilled in [false, true] {
        let mut tx = db.begin().unwrap();
        let many = if spilled { 400 } else { 2 };
        for n in 0..many {
            tx.put(&rows, &u32::to_be_bytes(n), &[3; 300]).unwrap();
        }
        let refused = tx.put(&events, b"large", &[4; 70_000]).and_then(|()| tx.commit());
        assert!(matches!(refused, Err(Error::TransactionTooLarge { what: "memtables", .. })), "{refused:?}");
    }
    db.transact(|tx| tx.put(&events, b"small", b"5")).unwrap();
    assert_eq!(events.get(b"small").unwrap().unwrap(), b"5");
    assert_eq!((events.get(b"large").unwrap(), rows.get(&[0; 4]).unwrap()), (None, None));
    assert!(db.check().unwrap().is_clean());
    drop((events, rows));
    db.close().unwrap();
}

/// What memtables have is in a backup: what is older than the log that is copied, and what commits while it is made,
/// together with what the same commits wrote to trees.
#[test]
fn a_backup_has_what_memtables_have() {
    let devices = Devices::new(MemDevice::new(0), MemDevice::new(0));
    let db = small(&devices);
    let (events, tree) = (db.create_keyspace_of("events", lsm()).unwrap(), db.create_keyspace("tree").unwrap());
    let put = |n: u32| {
        db.transact(|tx| {
            tx.put(&events, &n.to_be_bytes(), &[n as u8; 200])?;
            tx.put(&tree, &n.to_be_bytes(), b"1")
        })
    };
    (0..40).for_each(|n| put(n).unwrap());
    let mut next = 40;
    let mut files: Vec<Vec<u8>> = Vec::new();
    let mut since = None;
    for _ in 0..3 {
        let mut progress = |_: u64, _: u64| {
            put(next).unwrap();
            events.delete(&(next / 2).to_be_bytes()).unwrap();
            next += 1;
        };
        let mut file = Vec::new();
        let options = BackupOptions { since: since.take(), progress: Some(&mut progress), ..BackupOptions::default() };
        since = Some(db.backup(&mut file, options).unwrap().info);
        files.push(file);
        let copy = Devices::new(MemDevice::new(0), MemDevice::new(0));
        let layout = Layout { page_size: 4096, ..Layout::default() };
        let mut readers: Vec<&[u8]> = files.iter().map(|file| &file[..]).collect();
        let mut readers: Vec<&mut dyn std::io::Read> =
            readers.iter_mut().map(|r| r as &mut dyn std::io::Read).collect();
        varve::restore_on(&copy, &mut readers, &RestoreOptions { layout }).unwrap();
        let restored = small(&copy);
        // Nothing was written since the backup's end but in its progress.
        assert_eq!(rows(&restored, &restored.keyspace("events").unwrap()), rows(&db, &events));
        assert_eq!(rows(&restored, &restored.keyspace("tree").unwrap()), rows(&db, &tree));
        assert!(restored.check().unwrap().is_clean());
        restored.close().unwrap();
        db.wait_for_merges().unwrap();
    }
    assert!(next > 42, "something was written meanwhile");
    drop((events, tree));
    db.close().unwrap();
}

/// The number of a keyspace that was dropped is given out again after a crash; its rows, which the log still has, are
/// not.
#[test]
fn a_new_keyspace_has_no_rows_of_one_that_was_dropped() {
    let devices = Devices::new(MemDevice::new(0), MemDevice::new(0));
    let db = small(&devices);
    let events = db.create_keyspace_of("events", lsm()).unwrap();
    events.put_with(b"old", b"1", Durability::Sync).unwrap();
    let id = events.id();
    drop(events);
    db.drop_keyspace("events").unwrap();
    db.sync().unwrap();
    drop(db);
    let db = small(&devices);
    assert!(!db.recovery_report().clean);
    let events = db.create_keyspace_of("others", lsm()).unwrap();
    assert_eq!((events.id(), events.get(b"old").unwrap()), (id, None));
    drop(events);
    db.close().unwrap();
}

/// A scan that has begun goes on in the segments that it began with, though they were merged away meanwhile and all
/// pages that are free were used again.
#[test]
fn a_scan_goes_on_while_its_segments_are_merged_away() {
    let devices = Devices::new(MemDevice::new(0), MemDevice::new(0));
    let db = small(&devices);
    let events = db.create_keyspace_of("events", lsm()).unwrap();
    const N: u32 = 3000;
    let put_all = |value: u8| (0..N).for_each(|n| events.put(&n.to_be_bytes(), &[value; 100]).unwrap());
    put_all(1);
    db.wait_for_merges().unwrap();
    let snapshot = db.snapshot().unwrap();
    for reverse in [false, true] {
        let mut rows = match reverse {
            false => snapshot.scan(&events, ..).unwrap(),
            true => snapshot.scan_rev(&events, ..).unwrap(),
        };
        for n in 0..N {
            if n % 700 == 600 {
                put_all(2);
                db.wait_for_merges().unwrap();
                db.checkpoint().unwrap();
            }
            let n = if reverse { N - 1 - n } else { n };
            assert_eq!(rows.next().unwrap().unwrap(), (n.to_be_bytes().to_vec(), vec![1; 100]), "row {n}");
        }
        assert!(rows.next().is_none());
    }
    drop((snapshot, events));
    db.close().unwrap();
}

/// Pages that one keyspace gives up become another's at once, or a mark's; the store grows: a check counts none twice,
/// and takes none for a page that is not there.
#[test]
fn a_check_finds_nothing_wrong_while_keyspaces_are_written_and_merged() {
    for (seed, marks) in (0..4).map(|seed| (seed, false)).chain((0..8).map(|seed| (seed, true))) {
        let config = varve_rt::sim::Config { seed, ..varve_rt::sim::Config::default() };
        varve_rt::sim::run(config, move || check_beside_merges(marks))
            .result
            .unwrap_or_else(|e| panic!("{seed} {marks}: {e:?}"));
    }
}

fn check_beside_merges(marks: bool) {
    let device = |seed| MemDevice::with(0, MemOptions { seed, ..MemOptions::default() });
    let devices = Devices::new(device(1), device(2));
    small(&devices).close().unwrap();
    let db =
        Db::open_on(devices, Options { detect_lost_writes: Some(marks), cache_bytes: 1 << 20, ..options() }).unwrap();
    let keyspaces: Vec<_> = (0..6).map(|n| db.create_keyspace_of(&format!("k{n}"), lsm()).unwrap()).collect();
    let ended = Arc::new(AtomicBool::new(false));
    let (all, writes) = (keyspaces.clone(), ended.clone());
    let writer = varve_rt::spawn("writer", move || {
        for n in 0..4000u32 {
            all[n as usize % 6].put((n * 7919 % 499).to_be_bytes(), vec![n as u8; 400]).unwrap();
        }
        writes.store(true, Ordering::Relaxed);
    });
    while !ended.load(Ordering::Relaxed) {
        let report = db.check().unwrap();
        assert!(report.is_clean(), "{report:?}");
    }
    writer.join().unwrap();
    assert!(db.stats().lsm.iter().map(|lsm| lsm.merges).sum::<u64>() > 10, "keyspaces were merged");
    drop(keyspaces);
    db.close().unwrap();
}

/// A commit waits for no part of its own, however many LSM keyspaces it writes to.
#[test]
fn a_commit_to_many_keyspaces_comes_to_its_end() {
    let limit = Some(std::time::Duration::from_secs(60));
    let config = varve_rt::sim::Config { limit, ..varve_rt::sim::Config::default() };
    varve_rt::sim::run(config, commit_to_many).unwrap();
}

fn commit_to_many() {
    let devices = Devices::new(MemDevice::new(0), MemDevice::new(0));
    let options = Options { cache_bytes: 64 << 20, ..options() };
    let db = Db::create_on(devices, &Layout { page_size: 4096, ..Layout::default() }, options).unwrap();
    let keyspaces: Vec<_> = (0..100).map(|n| db.create_keyspace_of(&format!("k{n}"), lsm()).unwrap()).collect();
    let put = |db: &Db, to: &[Keyspace], key: u32| {
        db.transact(|tx| to.iter().try_for_each(|keyspace| tx.put(keyspace, key.to_be_bytes(), b"value"))).unwrap();
    };
    put(&db, &keyspaces, 0);
    // Many at a time, each to some.
    let clients: Vec<_> = (1..90)
        .map(|n| {
            let (db, keyspaces) = (db.clone(), keyspaces[..4].to_vec());
            varve_rt::spawn(format!("client {n}"), move || (0..5).for_each(|i| put(&db, &keyspaces, n * 10 + i)))
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
    assert_eq!((keyspaces[0].len().unwrap(), keyspaces[99].len().unwrap()), (1 + 89 * 5, 1));
    drop(keyspaces);
    db.close().unwrap();
}

/// With little memory flushes are small. Merges of them must not write segments anew that were made for more.
#[test]
fn with_little_memory_merges_write_a_few_times_what_is_flushed() {
    const ROWS: u32 = 120_000;
    let devices = Devices::new(MemDevice::new(0), MemDevice::new(0));
    let options = Options { cache_bytes: 4 << 20, ..options() };
    let db = Db::create_on(devices, &Layout::default(), options).unwrap();
    let rows = db.create_keyspace_of("rows", KeyspaceKind::Lsm(LsmOptions::default())).unwrap();
    for delete in [false, true] {
        // In memory with the first ones: a segment with keys from end to end, over which all that follows lies.
        rows.put(&ROWS.to_be_bytes(), b"the last one").unwrap();
        for first in (0..ROWS).step_by(1000) {
            let one = |tx: &mut varve::Transaction, n: u32| match delete {
                false => tx.put(&rows, n.to_be_bytes(), b"a value"),
                true => tx.delete(&rows, n.to_be_bytes()).map(|_| ()),
            };
            db.transact(|tx| (first..first + 1000).try_for_each(|n| one(tx, n))).unwrap();
        }
    }
    assert_eq!(rows.len().unwrap(), 1);
    db.wait_for_merges().unwrap();
    let stats = &db.stats().lsm[0];
    let (flushed, merged) = (stats.flushed_bytes, stats.merged_bytes.1);
    assert!(stats.flushes > 20, "{stats:?}");
    assert!(merged < 4 * flushed, "{flushed} bytes flushed, {merged} written by merges: {stats:?}");
    drop(rows);
    db.close().unwrap();
}

/// A purge by age: each deletion has all that the ones before have.
#[test]
fn many_growing_range_deletes_stay_small_and_are_kept() {
    let db = Db::create_on(Devices::new(MemDevice::new(0), MemDevice::new(0)), &Layout::default(), options()).unwrap();
    let events = db.create_keyspace_of("events", KeyspaceKind::Lsm(LsmOptions::default())).unwrap();
    let key = |n: u32| [&n.to_be_bytes()[..], &[b'k'; 900]].concat();
    (0..2000).for_each(|n| events.put(key(n), b"x").unwrap());
    let snapshot = db.snapshot().unwrap();
    (1..=1500).for_each(|n| events.delete_range(..key(n)).map(drop).unwrap());
    db.checkpoint().unwrap();
    assert!(db.stats().lsm[0].flushes > 10, "{:?}", db.stats().lsm[0]);
    assert_eq!((events.len().unwrap(), snapshot.count(&events, ..).unwrap()), (500, 2000));
    drop(snapshot);
    db.wait_for_merges().unwrap();
    assert_eq!(events.first().unwrap().map(|(first, _)| first), Some(key(1500)));
    assert!(db.check().unwrap().is_clean());
    drop(events);
    db.close().unwrap();
}

#[test]
fn a_value_that_no_block_can_hold_is_refused_by_each_way_of_putting_it() {
    let large = Options { cache_bytes: 1200 << 20, ..options() };
    let db = Db::create_on(Devices::new(MemDevice::new(0), MemDevice::new(0)), &Layout::default(), large).unwrap();
    let events = db.create_keyspace_of("events", KeyspaceKind::Lsm(LsmOptions::default())).unwrap();
    let value = vec![7; (32 << 20) + 1];
    let refused = |error: Error| assert!(matches!(error, Error::ValueSize { max: 33_554_432, .. }), "{error}");
    refused(events.put(b"k", &value).unwrap_err());
    refused(db.transact(|tx| tx.put(&events, b"k", &value)).unwrap_err());
    events.put(b"k", &value[1..]).unwrap();
    db.checkpoint().unwrap();
    assert_eq!(events.get(b"k").unwrap().map(|value| value.len()), Some(32 << 20));
    drop(events);
    db.close().unwrap();
}

/// What clearing hides is gone with the flush at the latest that closing makes, whatever was being merged.
#[test]
fn clearing_a_keyspace_gives_its_space_back_when_the_database_is_closed() {
    for merged in [true, false] {
        let devices = Devices::new(MemDevice::new(0), MemDevice::new(0));
        let db = small(&devices);
        let events = db.create_keyspace_of("events", lsm()).unwrap();
        (0..20_000u32).for_each(|n| events.put((n * 7919 % 20_011).to_be_bytes(), [n as u8; 200]).unwrap());
        if merged {
            db.wait_for_merges().unwrap();
        }
        let before = db.check().unwrap();
        events.clear().unwrap();
        drop(events);
        db.close().unwrap();
        let db = Db::open_on(devices, options()).unwrap();
        let report = db.check().unwrap();
        assert!(report.is_clean() && report.keys == 0, "{report:?}");
        assert!(before.allocated_pages > 500 && report.allocated_pages < 20, "{before:?} {report:?}");
        db.close().unwrap();
    }
}

/// Merges write past the log, to pages that redo knows nothing of. Those that other merges freed are such at once, so
/// the file does not grow to many times its rows, and no checkpoint is made for that.
#[test]
fn what_merges_free_is_used_again_without_a_checkpoint() {
    let data = MemDevice::new(0);
    let db = Db::create_on(Devices::new(data.clone(), MemDevice::new(0)), &Layout::default(), options()).unwrap();
    let rows = db.create_keyspace_of("rows", lsm()).unwrap();
    for n in 0..60_000u64 {
        rows.put((n * 7919 % 5000).to_be_bytes(), [n as u8; 1000]).unwrap();
    }
    let checkpoints = db.stats().checkpoints.completed;
    let bytes = data.len();
    assert!(checkpoints == 0 && bytes < 40 << 20, "{bytes} bytes, {checkpoints} checkpoints");
    // So it is while a backup is being made.
    let (mut more, mut grown) = (0, 0);
    let mut beside = |_, _| {
        more += 1;
        for n in 0..if more < 12 { 3000u64 } else { 0 } {
            rows.put((n * 7919 % 5000).to_be_bytes(), [n as u8; 1000]).unwrap();
        }
        grown = data.len();
    };
    let progress: Option<&mut dyn FnMut(u64, u64)> = Some(&mut beside);
    let mut backup = Vec::new();
    db.backup(&mut backup, BackupOptions { progress, ..BackupOptions::default() }).unwrap();
    let devices = Devices::new(MemDevice::new(0), MemDevice::new(0));
    varve::restore_on(&devices, &mut [&mut &backup[..]], &RestoreOptions::default()).unwrap();
    let restored = Db::open_on(devices, options()).unwrap();
    assert!(restored.check().unwrap().is_clean());
    assert_eq!(restored.keyspace("rows").unwrap().len().unwrap(), 5000);
    assert!(more > 10 && grown < 50 << 20, "{grown} bytes after {more} batches");
    assert_eq!(rows.len().unwrap(), 5000);
    db.close().unwrap();
}
