//! Databases on a tier: whole, over restarts and crashes, with and without their fast device.

use std::sync::Arc;
use varve::{Db, Devices, Error, Layout, Options, TierOptions};
use varve_device::Device;
use varve_models::MemDevice;
use varve_rt::Rng;
use varve_volume::tier::manager::REGISTRY;

const FAST: u64 = 2 << 20;

fn devices() -> Devices {
    Devices::new(MemDevice::new(0), MemDevice::new(0)).with("fast", MemDevice::new(FAST))
}

fn options(manager: &str) -> Options {
    let tier = TierOptions { manager: manager.into(), ..TierOptions::default() };
    Options { cache_bytes: 2 << 20, tier, ..Options::default() }
}

fn layout() -> Layout {
    Layout { page_size: 4096, log_bytes: 2 << 20, ..Layout::default() }
}

const KEYS: u64 = 12_000;

fn key(n: u64) -> Vec<u8> {
    format!("{n:08}").into_bytes()
}

/// Loads, then reads and changes rows at random, some far more than others.
fn work(db: &Db, seed: u64, rounds: u64) {
    let space = db.keyspace_or_create("rows").unwrap();
    let mut rng = Rng::from_seed(seed);
    for n in 0..rounds {
        let at = if rng.one_in(3) { rng.below(KEYS) } else { rng.below(KEYS / 8) };
        match n % 3 {
            0 => space.put(&key(at), &value(at, n)).unwrap(),
            _ => check_row(&space.get(&key(at)).unwrap().expect("loaded"), at),
        }
    }
}

fn value(at: u64, version: u64) -> Vec<u8> {
    let mut bytes = at.to_le_bytes().to_vec();
    bytes.extend_from_slice(&version.to_le_bytes());
    bytes.resize(300, at as u8);
    bytes
}

fn check_row(bytes: &[u8], at: u64) {
    assert_eq!(bytes[..8], at.to_le_bytes());
    assert!(bytes[16..].iter().all(|b| *b == at as u8), "row {at}");
}

fn load(db: &Db) {
    let space = db.keyspace_or_create("rows").unwrap();
    for from in (0..KEYS).step_by(200) {
        db.transact(|tx| (from..from + 200).try_for_each(|n| tx.put(&space, &key(n), &value(n, 0)))).unwrap();
    }
}

fn all_rows(db: &Db) {
    let space = db.keyspace("rows").unwrap();
    (0..KEYS).for_each(|n| check_row(&space.get(&key(n)).unwrap().expect("there"), n));
    let report = db.check().unwrap();
    assert!(report.is_clean(), "{:?}", report.damages);
}

#[test]
fn every_manager_keeps_a_database_over_restarts() {
    for entry in REGISTRY {
        let devices = devices();
        let db = Db::create_on(devices.clone(), &layout(), options(entry.name)).unwrap();
        load(&db);
        work(&db, 1, 6000);
        let stats = db.stats().tier.unwrap();
        assert_eq!(stats.manager, entry.name);
        assert_eq!(stats.occupied > 0, entry.name != "none", "{}: {stats:?}", entry.name);
        assert_eq!(stats.counters.fast_reads > 0, entry.name != "none", "{}: {stats:?}", entry.name);
        db.close().unwrap();
        let db = Db::open_on(devices.clone(), options(entry.name)).unwrap();
        assert!(db.recovery_report().clean);
        all_rows(&db);
        work(&db, 2, 2000);
        db.close().unwrap();
    }
}

#[test]
fn a_missing_fast_device_is_named_with_what_it_holds() {
    let devices = devices();
    let db = Db::create_on(devices.clone(), &layout(), options("lru2")).unwrap();
    load(&db);
    work(&db, 3, 3000);
    db.close().unwrap();
    let without = devices.clone().without("fast");
    for without_tier in [false, true] {
        let options = Options { without_tier, ..options("lru2") };
        let Err(error) = Db::open_on(without.clone(), options) else { panic!("opened without newest versions") };
        assert!(matches!(error, Error::TierMissing(_)), "{error}");
        assert!(error.to_string().contains("newest version of"), "{error}");
    }
    let db = Db::open_on(devices, options("lru2")).unwrap();
    all_rows(&db);
    db.close().unwrap();
}

#[test]
fn a_tier_that_writes_through_can_be_lost() {
    for manager in ["dw", "cw", "tac"] {
        let devices = devices();
        let db = Db::create_on(devices.clone(), &layout(), options(manager)).unwrap();
        load(&db);
        work(&db, 4, 3000);
        // As after a crash: nothing is closed. What the database wrote is on the devices.
        drop(db);
        let without = devices.clone().without("fast");
        let Err(error) = Db::open_on(without.clone(), options(manager)) else { panic!("opened without being told to") };
        assert!(error.to_string().contains("--without-tier"), "{error}");
        let db = Db::open_on(without.clone(), Options { without_tier: true, ..options(manager) }).unwrap();
        all_rows(&db);
        db.close().unwrap();
        // It has no tier any more, and a fast device is not mixed in unasked.
        let Err(error) = Db::open_on(devices.clone(), options(manager)) else { panic!("took an old fast device") };
        assert!(error.to_string().contains("tier attach"), "{error}");
        let db = Db::open_on(devices, Options { attach_tier: true, ..options(manager) }).unwrap();
        all_rows(&db);
        work(&db, 5, 1000);
        assert!(db.stats().tier.unwrap().occupied > 0);
        db.close().unwrap();
    }
}

#[test]
fn the_fast_device_of_another_database_is_refused() {
    let (one, two) = (devices(), devices());
    for devices in [&one, &two] {
        Db::create_on(devices.clone(), &layout(), options("cac")).unwrap().close().unwrap();
    }
    let mixed = one.with("fast", two.part("fast").unwrap().clone());
    assert!(matches!(Db::open_on(mixed, options("cac")), Err(Error::Volume(_))));
}

#[test]
fn directories_attach_flush_and_detach() {
    let dir = std::env::temp_dir().join(format!("varve-tier-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    let (db_dir, slow, fast) = (dir.join("db"), dir.join("slow"), dir.join("fast"));
    std::fs::create_dir_all(&slow).unwrap();
    std::fs::create_dir_all(&fast).unwrap();
    let placed = Layout { data: Some(slow.clone()), fast: Some(fast.clone()), fast_bytes: FAST, ..layout() };
    let db = Db::create(&db_dir, &placed, options("cac")).unwrap();
    load(&db);
    work(&db, 6, 3000);
    assert!(slow.join("db.data").exists() && fast.join("db.fast").exists());
    db.flush_tier().unwrap();
    db.close().unwrap();
    Db::detach_tier(&db_dir, options("cac")).unwrap();
    std::fs::remove_file(fast.join("db.fast")).unwrap();
    let db = Db::open(&db_dir, options("cac")).unwrap();
    assert!(db.stats().tier.is_none());
    all_rows(&db);
    db.close().unwrap();
    let db = Db::attach_tier(&db_dir, &fast, FAST, options("cac")).unwrap();
    work(&db, 7, 3000);
    all_rows(&db);
    assert!(db.stats().tier.unwrap().occupied > 0);
    db.close().unwrap();
    // Gone without having been detached.
    std::fs::remove_file(fast.join("db.fast")).unwrap();
    assert!(matches!(Db::open(&db_dir, options("cac")), Err(Error::TierMissing(_))));
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_fast_device_may_be_any_that_has_room() {
    let tiny: Arc<dyn Device> = MemDevice::new(64 << 10);
    let devices = Devices::new(MemDevice::new(0), MemDevice::new(0)).with("fast", tiny);
    let Err(error) = Db::create_on(devices, &layout(), options("cac")) else { panic!("made a tier of nothing") };
    assert!(error.to_string().contains("too few"), "{error}");
}
