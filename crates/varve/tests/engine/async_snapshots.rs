//! Futures that read as of a snapshot: what they give when all was written over since, and what becomes of them and of
//! the snapshot when the database ends, or when nobody waits for them.

use crate::async_support::{ROWS, at_once, block_on, filled, kinds, open, options, value};
use std::pin::pin;
use std::time::Duration;
use varve::{
    Db, Devices, Durability, Error, ErrorKind, Keyspace, KeyspaceKind, Layout, Options, ReadFuture, Snapshot,
    TypedKeyspace,
};
use varve_models::MemDevice;
use varve_rt::{now, sim, sleep, spawn};

type Value = Option<Vec<u8>>;

/// On OS threads, and on simulated ones.
fn in_both_worlds(test: impl Fn() + Clone + Send + 'static) {
    test();
    sim::run(sim::Config { seed: 5, ..sim::Config::default() }, test).unwrap();
}

/// A database with more rows than fit into memory, opened anew.
fn cold(kind: KeyspaceKind) -> (Db, Keyspace) {
    open(&filled(kind, MemDevice::new(0)))
}

/// Every fifth row is written over, every seventh deleted.
fn change(rows: &Keyspace, round: u32) {
    for n in (0..ROWS).step_by(5) {
        rows.put(n.to_be_bytes(), [round.to_be_bytes(), n.to_be_bytes()].concat()).unwrap();
    }
    for n in (round..ROWS).step_by(7) {
        rows.delete(n.to_be_bytes()).unwrap();
    }
}

/// The row after so many of these changes.
fn changed(n: u32, rounds: u32) -> Value {
    let deleted = |round: u32| n >= round && (n - round).is_multiple_of(7);
    match (1..=rounds).rev().find(|round| deleted(*round) || n.is_multiple_of(5)) {
        None => Some(value(n)),
        Some(round) if deleted(round) => None,
        Some(round) => Some([round.to_be_bytes(), n.to_be_bytes()].concat()),
    }
}

/// Requests of snapshots and of the present, mixed in one queue; the snapshots end before the values are there.
#[test]
fn each_future_gives_what_its_snapshot_sees() {
    for kind in kinds() {
        in_both_worlds(move || {
            let (db, rows) = cold(kind);
            let before: Snapshot = db.snapshot().unwrap();
            change(&rows, 1);
            let between = db.snapshot().unwrap();
            change(&rows, 2);
            let reads: Vec<(u32, [ReadFuture<Value>; 3])> = (0..ROWS)
                .step_by(41)
                .map(|n| {
                    let key = n.to_be_bytes();
                    (n, [before.get_async(&rows, key), between.get_async(&rows, key), rows.get_async(key)])
                })
                .collect();
            let keys: Vec<[u8; 4]> = (0..ROWS).rev().step_by(97).chain([5, 5]).map(u32::to_be_bytes).collect();
            let many = [before.multi_get_async(&rows, &keys), between.multi_get_async(&rows, &keys)];
            assert_eq!(before.multi_get(&rows, &keys).unwrap().len(), keys.len());
            drop((before, between));
            for (n, reads) in reads.into_iter().rev() {
                for (rounds, read) in (0..).zip(reads) {
                    assert_eq!(block_on(read).unwrap(), changed(n, rounds), "row {n} after {rounds} changes");
                }
            }
            for (rounds, many) in (0..).zip(many) {
                let expected: Vec<Value> = keys.iter().map(|key| changed(u32::from_be_bytes(*key), rounds)).collect();
                assert_eq!(block_on(many).unwrap(), expected);
            }
            drop(rows);
            db.close().unwrap();
        });
    }
}

/// Old values in memory and long ones, rows that left as a subtree, a keyspace that was dropped.
#[test]
fn what_is_old_is_found_wherever_it_went() {
    for kind in kinds() {
        in_both_worlds(move || {
            let (db, rows) = cold(kind);
            let (long, new) = (vec![7; 60_000], u32::MAX.to_be_bytes());
            rows.put(1u32.to_be_bytes(), &long).unwrap();
            rows.put(2u32.to_be_bytes(), "short").unwrap();
            let before = db.snapshot().unwrap();
            let get = |n: u32| before.get_async(&rows, n.to_be_bytes());
            let in_memory = at_once(get(2));
            assert_eq!(in_memory.map(Result::unwrap).is_some(), kind == KeyspaceKind::Tree, "its leaf is in memory");
            for n in [1u32, 2] {
                rows.put(n.to_be_bytes(), "new").unwrap();
            }
            rows.put(new, "new").unwrap();
            if kind == KeyspaceKind::Tree {
                assert_eq!(at_once(get(2)).expect("so is its old value").unwrap().unwrap(), b"short");
                assert_eq!(at_once(get(u32::MAX)).expect("it had none").unwrap(), None);
            }
            let sees = |what: &str| {
                let found = [1, 2, u32::MAX, ROWS / 2].map(|n| block_on(get(n)).unwrap());
                assert_eq!(found, [Some(long.clone()), Some(b"short".to_vec()), None, Some(value(ROWS / 2))], "{what}");
            };
            sees("written over");
            rows.delete_range(&1u32.to_be_bytes()[..]..).unwrap();
            sees("rows that left together");
            db.drop_keyspace("rows").unwrap();
            sees("a keyspace that was dropped");
            let late = db.snapshot().unwrap().get_async(&rows, new);
            assert!(matches!(block_on(late), Err(Error::NoSuchKeyspace(_))));
            drop((before, rows));
            db.close().unwrap();
        });
    }
}

/// Old values that went to scratch pages, and some that found no room anywhere.
#[test]
fn old_values_on_scratch_pages_are_read_and_lost_ones_are_an_error() {
    for room in [None, Some(0)] {
        let options = Options { snapshot_disk_bytes: room, cache_bytes: 1 << 20, ..options() };
        let db = Db::in_memory(options).unwrap();
        let rows = db.keyspace_or_create("rows").unwrap();
        (0..ROWS).for_each(|n| rows.put(n.to_be_bytes(), n.to_le_bytes()).unwrap());
        let before = db.snapshot().unwrap();
        (0..ROWS).for_each(|n| rows.put(n.to_be_bytes(), "other").unwrap());
        let keys = [3, ROWS - 1, 9, ROWS];
        let one = block_on(before.get_async(&rows, 3u32.to_be_bytes()));
        let many = block_on(before.multi_get_async(&rows, &keys.map(u32::to_be_bytes)));
        if room.is_none() {
            assert!(db.stats().txn.snapshot_disk > 0, "{:?}", db.stats().txn);
            assert_eq!(one.unwrap().unwrap(), 3u32.to_le_bytes());
            assert_eq!(many.unwrap(), keys.map(|n| (n < ROWS).then(|| n.to_le_bytes().to_vec())));
        } else {
            assert_eq!(db.stats().txn.snapshots_evicted, 1);
            assert!(matches!((one, many), (Err(Error::SnapshotTooOld), Err(Error::SnapshotTooOld))));
        }
    }
}

/// A snapshot that sees a commit which is not durable yet: the call returns at once, the value comes when it is.
#[test]
fn nothing_is_told_before_it_is_durable_and_no_call_waits() {
    for kind in kinds() {
        sim::run(sim::Config::default(), move || {
            let log = varve_models::Profile::parse(SLOW_LOG, "slow.toml").unwrap().build(1, 0).unwrap();
            let options = Options { durability: Durability::Sync, ..options() };
            let db = Db::create_on(Devices::new(MemDevice::new(0), log), &Layout::default(), options).unwrap();
            let rows = db.create_keyspace_of("rows", kind).unwrap();
            for n in 0..20u32 {
                let (before, own) = (db.durable_lsn(), rows.clone());
                let writer = spawn("writer", move || own.put("key", n.to_be_bytes()).unwrap());
                sleep(Duration::from_millis(1));
                let (snapshot, called) = (db.snapshot().unwrap(), now());
                let (mut read, many) =
                    (pin!(snapshot.get_async(&rows, "key")), snapshot.multi_get_async(&rows, &["key", "other"]));
                assert!(now() - called < Duration::from_micros(100), "the log takes milliseconds");
                assert!(db.durable_lsn() == before && at_once(read.as_mut()).is_none(), "the log is being written");
                drop(snapshot);
                assert_eq!(block_on(read).unwrap(), Some(n.to_be_bytes().to_vec()));
                assert!(db.durable_lsn() > before, "told of a commit that a crash could take back");
                assert_eq!(block_on(many).unwrap(), [Some(n.to_be_bytes().to_vec()), None]);
                writer.join().unwrap();
            }
            drop(rows);
            db.close().unwrap();
        })
        .unwrap();
    }
}

/// A disk: a write takes milliseconds.
const SLOW_LOG: &str = "
name = \"slow\"
title = \"a slow drive\"
source = \"assumed\"
capacity = 1_000_000_000
[mix]
read_random = [{ kib = 4.0, mb_s = 1.0 }]
write_random = [{ kib = 4.0, mb_s = 1.0 }]
read_latency_us = 100.0
";

/// Futures alone do not keep a database from being closed; a snapshot does, and then they are read.
#[test]
fn each_future_is_told_something_when_the_database_ends() {
    for kind in kinds() {
        for ends_by_drop in [false, true] {
            in_both_worlds(move || {
                let (db, rows) = cold(kind);
                let snapshot = db.snapshot().unwrap();
                let read = |n: u32| (n, snapshot.get_async(&rows, n.to_be_bytes()));
                let first: Vec<_> = (0..ROWS).step_by(29).map(read).collect();
                assert_eq!(db.close().unwrap_err().kind(), ErrorKind::Invalid, "a snapshot is open");
                first.into_iter().for_each(|(n, read)| assert_eq!(block_on(read).unwrap(), Some(value(n))));
                let reads: Vec<_> = (0..ROWS).step_by(3).map(read).collect();
                drop(snapshot);
                if ends_by_drop {
                    drop((db, rows));
                } else {
                    db.close().unwrap();
                }
                for (n, read) in reads {
                    match block_on(read) {
                        Ok(found) => assert_eq!(found, Some(value(n))),
                        // Simulated, a drop is a crash.
                        Err(Error::Poisoned(_)) if ends_by_drop => {}
                        Err(error) => assert!(matches!(error, Error::Closed), "{error}"),
                    }
                }
            });
        }
    }
}

/// Who has got the value can close the database at once; and who dropped the future too.
#[test]
fn dropped_futures_leave_nothing_behind() {
    for kind in kinds() {
        sim::run(sim::Config { seed: 3, ..sim::Config::default() }, move || {
            let (db, rows) = cold(kind);
            let snapshot = db.snapshot().unwrap();
            for n in (0..ROWS).step_by(17) {
                let mut read = pin!(snapshot.get_async(&rows, n.to_be_bytes()));
                let _ = at_once(read.as_mut());
                drop(snapshot.multi_get_async(&rows, &[n.to_be_bytes(), (ROWS - n).to_be_bytes()]));
            }
            drop(snapshot);
            sleep(Duration::from_secs(10));
            assert_eq!(db.stats().txn.snapshots, 0, "what nobody waits for holds no snapshot");
            let kept = db.stats().txn.versions_kept;
            (0..ROWS).step_by(17).for_each(|n| rows.put(n.to_be_bytes(), "other").unwrap());
            assert_eq!(db.stats().txn.versions_kept, kept, "nor does a commit keep anything for it");
            drop(rows);
            db.close().unwrap();
        })
        .unwrap();
    }
}

#[test]
fn typed_values_are_decoded_as_of_a_snapshot() {
    for kind in kinds() {
        let (db, rows) = cold(kind);
        let typed = TypedKeyspace::<u32, [u8; 800]>::new(rows);
        let value = |n: u32| <[u8; 800]>::try_from(value(n)).unwrap();
        let before = db.snapshot().unwrap();
        typed.keyspace().put(3u32.to_be_bytes(), "short").unwrap();
        typed.put(&4, &value(5)).unwrap();
        let after = db.snapshot().unwrap();
        typed.delete(&4).unwrap();
        let (one, many) = (typed.get_at_async(&before, &3), typed.multi_get_at_async(&before, &[4, ROWS, 3]));
        let (sound, wrong) = (typed.get_at_async(&after, &4), typed.multi_get_at_async(&after, &[4, 3]));
        drop((before, after));
        assert_eq!(block_on(one).unwrap(), Some(value(3)));
        assert_eq!(block_on(many).unwrap(), [Some(value(4)), None, Some(value(3))]);
        assert_eq!(block_on(sound).unwrap(), Some(value(5)));
        let error = block_on(wrong).unwrap_err().to_string();
        assert!(error.contains("\"rows\"") && error.contains("0x73686f7274 is no [u8; 800]"), "{error}");
        drop(typed);
        db.close().unwrap();
    }
}
