//! LSM keyspaces on a device that is full.

use crate::lsm::{Rows, lsm, options, rows};
use varve::{Db, Devices, Error, Keyspace, KeyspaceKind, Layout, LsmOptions};
use varve_device::OpKind;
use varve_models::{Fault, FaultPlan, Faulty, MemDevice, When};

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

/// Merges find no room, and flushes wait for them: writes say so, and go on when there is room again.
#[test]
fn writes_fail_while_a_full_device_stops_merges_and_go_on_when_it_has_room() {
    let data = Faulty::new(MemDevice::new(0), FaultPlan::new(1));
    let layout = Layout { page_size: 4096, log_bytes: 16 << 20, ..Layout::default() };
    let db = Db::create_on(Devices::new(data.clone(), MemDevice::new(0)), &layout, options()).unwrap();
    let shape = LsmOptions { l0_trigger: 2, l0_slowdown: 2, l0_stop: 2, ..LsmOptions::default() };
    let shape = LsmOptions { memtable_bytes: 64 << 10, segment_bytes: 64 << 10, ..shape };
    let events = db.create_keyspace_of("events", KeyspaceKind::Lsm(shape)).unwrap();
    let put = |n: u32| events.put((n * 7919 % 100_003).to_be_bytes(), [n as u8; 500]);
    (0..4000).for_each(|n| put(n).unwrap());
    db.wait_for_merges().unwrap();
    data.set_plan(FaultPlan::new(1).rule(&[OpKind::SetLen], None, When::From(1), Fault::NoSpace));
    let stalls = || db.stats().lsm[0].stalls.0;
    let before = stalls();
    let failed = (4000..100_000).find_map(|n| {
        // Nobody crawls on, a write each time that a merge is tried again.
        assert!(n % 10 > 0 || stalls() < before + 50, "write {n}");
        put(n).err().map(|error| (n, error))
    });
    let (stored, error) = failed.unwrap();
    assert!(matches!(error, Error::NoSpace(_)), "{error}");
    assert!(matches!(db.wait_for_merges(), Err(Error::NoSpace(_))));
    data.set_plan(FaultPlan::new(1));
    (stored..stored + 2000).for_each(|n| put(n).unwrap());
    db.wait_for_merges().unwrap();
    assert_eq!(events.len().unwrap(), u64::from(stored + 2000));
    assert!(db.check().unwrap().is_clean());
    drop(events);
    db.close().unwrap();
}
