//! Reads that nobody waits for: what they give, when, and what becomes of them when the database ends.

use crate::async_support::{ROWS, at_once, block_on, filled, kinds, open, options, value};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Wake};
use std::time::Duration;
use varve::{
    Db, Devices, Durability, Error, ErrorKind, Keyspace, KeyspaceKind, Layout, LsmOptions, Options, TxOptions,
    TypedKeyspace,
};
use varve_device::OpKind;
use varve_models::{Fault, FaultPlan, Faulty, MemDevice, When};
use varve_rt::{Event, catch_panic, sim, sleep, spawn};

#[test]
fn what_is_in_memory_is_known_at_once() {
    let db = Db::temporary(options()).unwrap();
    let rows = db.keyspace_or_create("rows").unwrap();
    assert_eq!(at_once(rows.get_async("a")).expect("its only leaf is in memory").unwrap(), None);
    for n in 0..2000u32 {
        rows.put(n.to_be_bytes(), value(n)).unwrap();
    }
    for n in 1990..2000u32 {
        assert_eq!(at_once(rows.get_async(n.to_be_bytes())).expect("just written").unwrap(), Some(value(n)));
    }
    let none: [&[u8]; 0] = [];
    assert_eq!(at_once(rows.multi_get_async(&none)).unwrap().unwrap(), Vec::<Option<Vec<u8>>>::new());
    let long = vec![7; 300_000];
    rows.put("long", &long).unwrap();
    assert_eq!(block_on(rows.get_async("long")).unwrap(), Some(long));
    assert_eq!(block_on(rows.get_async([0; 5000])).unwrap(), None, "longer than any key");
}

#[test]
fn what_is_not_in_memory_comes_though_nobody_polls() {
    for kind in kinds() {
        let (db, rows) = open(&filled(kind, MemDevice::new(0)));
        let reads: Vec<_> = (0..ROWS + 100).step_by(7).map(|n| (n, rows.get_async(n.to_be_bytes()))).collect();
        let keys: Vec<[u8; 4]> = (0..ROWS).rev().step_by(11).chain([5, 5, ROWS + 1]).map(u32::to_be_bytes).collect();
        let many = rows.multi_get_async(&keys);
        let expected = |n: u32| (n < ROWS).then(|| value(n));
        for (n, read) in reads.into_iter().rev() {
            assert_eq!(block_on(read).unwrap(), expected(n));
        }
        let values: Vec<_> = keys.iter().map(|key| expected(u32::from_be_bytes(*key))).collect();
        assert_eq!(block_on(many).unwrap(), values);
        db.close().unwrap();
    }
}

/// Who reads a commit that is not durable yet learns of it when it is, by a tree's page in memory and by an LSM
/// keyspace's threads.
#[test]
fn nothing_is_told_before_it_is_durable() {
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
                let (mut read, many) = (pin!(rows.get_async("key")), rows.multi_get_async(&["key", "other"]));
                assert!(db.durable_lsn() == before && at_once(read.as_mut()).is_none(), "the log is being written");
                assert_eq!(block_on(read).unwrap(), Some(n.to_be_bytes().to_vec()));
                assert!(db.durable_lsn() > before, "told of a commit that a crash could take back");
                assert_eq!(block_on(many).unwrap(), [Some(n.to_be_bytes().to_vec()), None]);
                writer.join().unwrap();
            }
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

#[test]
fn reads_beside_writers_see_what_was_acknowledged_before_they_were_called() {
    for kind in kinds() {
        sim::run(sim::Config { seed: 11, ..sim::Config::default() }, move || {
            let (db, rows) = open(&filled(kind, MemDevice::new(0)));
            let writers: Vec<_> = (0..4u32)
                .map(|part| {
                    let rows = rows.clone();
                    spawn("writer", move || {
                        for round in 0..300u32 {
                            let n = (round * 977 + part * 5000) % ROWS;
                            rows.put(n.to_be_bytes(), round.to_be_bytes()).unwrap();
                            let read = rows.get_async(n.to_be_bytes());
                            let far = rows.get_async(((n + ROWS / 2) % ROWS).to_be_bytes());
                            assert_eq!(block_on(read).unwrap().unwrap(), round.to_be_bytes());
                            assert!(block_on(far).unwrap().is_some());
                        }
                    })
                })
                .collect();
            writers.into_iter().for_each(|writer| writer.join().unwrap());
            assert!(db.check().unwrap().is_clean());
            drop(rows);
            db.close().unwrap();
        })
        .unwrap();
    }
}

#[test]
fn an_error_is_that_of_its_key_alone() {
    let faulty = Faulty::new(MemDevice::new(0), FaultPlan::new(1));
    let devices = filled(KeyspaceKind::Tree, faulty.clone());
    let (db, rows) = open(&devices);
    let warm = rows.get(7u32.to_be_bytes()).unwrap();
    faulty.set_plan(FaultPlan::new(1).rule(&[OpKind::Read], None, When::From(1), Fault::Eio));
    let far = rows.get_async((ROWS - 1).to_be_bytes());
    let both = rows.multi_get_async(&[7u32.to_be_bytes(), (ROWS - 2).to_be_bytes()]);
    assert_eq!(block_on(far).unwrap_err().kind(), ErrorKind::Io);
    assert!(block_on(both).is_err());
    assert_eq!(block_on(rows.get_async(7u32.to_be_bytes())).unwrap(), warm);
    faulty.set_plan(FaultPlan::new(1));
    assert_eq!(block_on(rows.get_async((ROWS - 1).to_be_bytes())).unwrap(), Some(value(ROWS - 1)));
    db.drop_keyspace("rows").unwrap();
    assert!(matches!(block_on(rows.get_async("x")), Err(Error::NoSuchKeyspace(_))));
}

/// The values of types, whether they are in memory or not; one of another type is an error of the future.
#[test]
fn values_of_types_are_decoded_where_the_future_is_polled() {
    for kind in kinds() {
        let (db, rows) = open(&filled(kind, MemDevice::new(0)));
        rows.put(3u32.to_be_bytes(), "short").unwrap();
        let texts = TypedKeyspace::<u32, [u8; 800]>::new(rows.clone());
        let value = |n: u32| <[u8; 800]>::try_from(value(n)).unwrap();
        let reads: Vec<_> = [0, 1, 2, ROWS - 1].map(|n| (n, texts.get_async(&n))).into();
        let keys = [ROWS, 5, 0, ROWS / 2, 5];
        let expected = keys.map(|n| (n < ROWS).then(|| value(n)));
        let many = texts.multi_get_async(&keys);
        assert_eq!(texts.multi_get(&keys).unwrap(), expected);
        let (wrong, both, sound) = (texts.get_async(&3), texts.multi_get_async(&[2, 3]), texts.get_async(&4));
        reads.into_iter().for_each(|(n, read)| assert_eq!(block_on(read).unwrap(), Some(value(n))));
        assert_eq!(block_on(many).unwrap(), expected);
        for error in [block_on(wrong).unwrap_err(), block_on(both).map(|_| ()).unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::Invalid);
            let text = error.to_string();
            assert!(text.contains("\"rows\"") && text.contains("0x73686f7274 is no [u8; 800]"), "{text}");
        }
        assert_eq!(block_on(sound).unwrap(), Some(value(4)));
        assert_eq!(texts.multi_get(&[2, 3]).unwrap_err().kind(), ErrorKind::Invalid);
        // The future has no handle of the database.
        let unread = texts.get_async(&(ROWS - 7));
        drop((rows, texts));
        db.close().unwrap();
        match block_on(unread) {
            Ok(found) => assert_eq!(found, Some(value(ROWS - 7))),
            Err(error) => assert!(matches!(error, Error::Closed), "{error}"),
        }
    }
}

/// A close waits for what is being read; what is queued then fails. Each future gives something.
#[test]
fn each_read_is_told_something_when_the_database_ends() {
    for kind in kinds() {
        for ends_by_drop in [false, true] {
            let (db, rows) = open(&filled(kind, MemDevice::new(0)));
            let reads: Vec<_> = (0..ROWS).step_by(3).map(|n| (n, rows.get_async(n.to_be_bytes()))).collect();
            let before = rows.get_async(1u32.to_be_bytes());
            drop(rows.multi_get_async(&[[0; 4], [1; 4]]));
            if ends_by_drop {
                drop((db, rows));
            } else {
                db.close().unwrap();
                assert!(matches!(block_on(rows.get_async("x")), Err(Error::Closed)));
            }
            for (n, read) in reads {
                match block_on(read) {
                    Ok(found) => assert_eq!(found, Some(value(n))),
                    Err(error) => assert!(matches!(error, Error::Closed), "{error}"),
                }
            }
            let _ = block_on(before);
        }
    }
}

/// A waker is the user's own code: it may panic, call the database, and hold its last handle.
#[test]
fn a_waker_may_panic_and_use_the_database_and_be_the_last_handle() {
    struct Panics(Arc<Event>);
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            self.0.set();
            panic!("a waker's own affair");
        }
    }
    struct Uses(Db, Keyspace, Arc<Event>);
    impl Wake for Uses {
        fn wake(self: Arc<Self>) {
            let Uses(db, rows, used) = &*self;
            rows.put("from within", "value").unwrap();
            assert_eq!(db.keyspace("rows").unwrap().get("from within").unwrap().unwrap(), b"value");
            used.set();
        }
    }
    let devices = filled(KeyspaceKind::Lsm(LsmOptions::default()), MemDevice::new(0));
    let (db, rows) = open(&devices);
    let woken = Arc::new(Event::new());
    let mut read = pin!(rows.get_async(9u32.to_be_bytes()));
    let waker = Arc::new(Panics(woken.clone())).into();
    if read.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
        assert!(!woken.wait_for(Duration::from_secs(60)));
    }
    assert_eq!(block_on(rows.get_async(10u32.to_be_bytes())).unwrap(), Some(value(10)), "others are read still");

    let used = Arc::new(Event::new());
    let mut read = pin!(rows.get_async(11u32.to_be_bytes()));
    let waker = Arc::new(Uses(db.clone(), rows.clone(), used.clone())).into();
    let pending = read.as_mut().poll(&mut Context::from_waker(&waker)).is_pending();
    drop((waker, db, rows));
    if pending {
        assert!(!used.wait_for(Duration::from_secs(60)));
    }
    // The directory's stand-in is free when the last handle is gone.
    while Db::open_on(devices.clone(), options()).is_err() {
        sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_future_that_was_ready_says_so_when_it_is_polled_again() {
    let db = Db::temporary(options()).unwrap();
    let rows = db.keyspace_or_create("rows").unwrap();
    db.transact_with(TxOptions::default(), |tx| tx.put(&rows, "a", "1")).unwrap();
    let mut read = rows.get_async("a");
    assert_eq!(at_once(&mut read).unwrap().unwrap().unwrap(), b"1");
    assert!(catch_panic(std::panic::AssertUnwindSafe(|| at_once(&mut read))).is_err());
}
