//! Reads that a device fails: tried again when that may help, counted, and told as what they are, which is not damage.

use std::sync::Arc;
use varve::{Db, Devices, Durability, Error, Layout, Options};
use varve_device::{Device, OpKind};
use varve_models::{Fault, FaultPlan, Faulty, MemDevice, When};

const PAGE: u64 = 4096;
/// Attempts that the pool makes at reading a page.
const ATTEMPTS: u64 = 5;

/// A closed database with far more data than the cache of [`open`] holds; its data device.
fn database() -> (Arc<Faulty>, Devices) {
    let faulty = Faulty::new(MemDevice::new(0), FaultPlan::new(1));
    let devices = Devices::new(faulty.clone(), MemDevice::new(0));
    let layout = Layout { page_size: PAGE as usize, log_bytes: 1 << 20, ..Layout::default() };
    let db = Db::create_on(devices.clone(), &layout, options()).unwrap();
    let rows = db.create_keyspace("rows").unwrap();
    for n in 0..4000u32 {
        rows.put_with(&n.to_be_bytes(), &[n as u8; 700], Durability::None).unwrap();
    }
    rows.put(b"long", &[3; 100_000]).unwrap();
    db.close().unwrap();
    (faulty, devices)
}

fn options() -> Options {
    Options { cache_bytes: 1 << 20, cleaners: false, ..Options::default() }
}

fn reads_fail(how: Fault, when: When, from_page: u64) -> FaultPlan {
    FaultPlan::new(7).rule(&[OpKind::Read], Some(from_page * PAGE..u64::MAX), when, how)
}

#[test]
fn reads_that_may_succeed_are_tried_again() {
    let (faulty, devices) = database();
    let db = Db::open_on(devices, options()).unwrap();
    let rows = db.keyspace("rows").unwrap();
    faulty.set_plan(reads_fail(Fault::TransientEio, When::OneIn(6), 0));
    let found = db.snapshot().unwrap().scan(&rows, ..).unwrap().filter(|row| row.is_ok()).count();
    assert_eq!(found, 4001);
    for n in (0..4000u32).step_by(37) {
        assert_eq!(rows.get(&n.to_be_bytes()).unwrap().unwrap(), [n as u8; 700]);
    }
    let report = db.check().unwrap();
    assert!(report.is_clean(), "{report:?}");
    let pool = db.stats().pool;
    assert!(pool.read_retries > 50, "{} reads were tried again", pool.read_retries);
    assert!(db.stats().rows().iter().any(|(name, _)| name == "pool.read_retries"));
    db.close().unwrap();
}

#[test]
fn tries_are_few_and_the_error_says_what_failed() {
    for (how, attempts) in [(Fault::TransientEio, ATTEMPTS), (Fault::Eio, 1)] {
        let (faulty, devices) = database();
        let db = Db::open_on(devices, options()).unwrap();
        let rows = db.keyspace("rows").unwrap();
        // Nothing but the root and its like is resident.
        faulty.set_plan(reads_fail(how, When::From(1), 2));
        let before = (db.stats().pool, faulty.counts().eio);
        let error = rows.get(&2000u32.to_be_bytes()).unwrap_err();
        assert!(matches!(error, Error::Volume(_) | Error::Io(_)), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("page ") && text.contains("read of 4096 bytes") && text.contains("errno 5"), "{text}");
        let pool = db.stats().pool;
        assert_eq!(faulty.counts().eio - before.1, attempts, "{how:?}");
        assert_eq!(pool.read_retries - before.0.read_retries, attempts - 1, "{how:?}");
        assert_eq!(pool.read_errors - before.0.read_errors, 1, "{how:?}");
        // The database goes on, and is whole once the device is.
        faulty.set_plan(FaultPlan::new(1));
        assert_eq!(rows.get(&2000u32.to_be_bytes()).unwrap().unwrap(), [2000u32 as u8; 700]);
        rows.put(b"k", b"v").unwrap();
        db.close().unwrap();
    }
}

#[test]
fn a_check_tells_pages_it_could_not_read_from_damaged_ones() {
    let (faulty, devices) = database();
    let pages = faulty.len() / PAGE;
    let db = Db::open_on(devices.clone(), options()).unwrap();
    faulty.set_plan(reads_fail(Fault::Eio, When::From(1), pages / 4));
    let report = db.check().unwrap();
    assert!(report.damages.is_empty(), "{:?}", report.damages);
    assert!(!report.unreadable.is_empty() && !report.is_clean());
    for page in &report.unreadable {
        let text = page.to_string();
        assert!(page.page.0 >= pages / 4 && text.contains(&format!("page {}", page.page.0)), "{text}");
        assert!(text.contains("could not be read") && text.contains("errno 5"), "{text}");
        assert!(!text.contains("corruption"), "{text}");
    }
    faulty.set_plan(FaultPlan::new(1));
    assert!(db.check().unwrap().is_clean());
    db.close().unwrap();
}
