//! A database on native flash: it lives, is checked, backed up, compacted and restored there; a full one says so where
//! it does no harm; what does not belong together is refused.

use std::sync::Arc;
use varve::flash::{FlashLayout, NativeFlash, RegionConfig};
use varve::{BackupOptions, Db, Devices, Durability, Error, Faults, Layout, Options, RestoreOptions};
use varve_device::Device;
use varve_device::flash::Geometry;
use varve_models::MemDevice;
use varve_models::flash::{FlashConfig, RawModel};
use varve_rt::Rng;
use varve_rt::sim::{Config, run};

/// Four chips, 24 MB in all.
fn raw() -> Arc<RawModel> {
    let one = FlashConfig::one_plane(48, 32);
    RawModel::new(&FlashConfig { geometry: Geometry { channels: 4, ..one.geometry }, ..one }).unwrap()
}

fn regions() -> FlashLayout {
    let region = |chips: [u32; 2]| RegionConfig { spare_factor: 0.25, ..RegionConfig::of(chips) };
    FlashLayout { regions: vec![region([0, 1]), region([2, 3])] }
}

fn options() -> Options {
    Options { durability: Durability::None, pool_frames: 256, ..Options::default() }
}

fn layout(page_size: usize) -> Layout {
    Layout { page_size, log_bytes: 2 << 20, ..Layout::default() }
}

fn in_sim(f: impl FnOnce() + Send + 'static) {
    run(Config::default(), f).result.unwrap();
}

fn row(n: u64, version: u64) -> Vec<u8> {
    (n * 1000 + version).to_le_bytes().repeat(50)
}

fn sound(db: &Db) {
    let report = db.check().unwrap();
    assert!(report.damages.is_empty() && report.unreadable.is_empty(), "{report:?}");
}

fn all_at(db: &Db, rows: u64, version: u64) {
    let space = db.keyspace("rows").unwrap();
    (0..rows).for_each(|n| assert_eq!(space.get(&n.to_be_bytes()).unwrap().unwrap(), row(n, version), "row {n}"));
    sound(db);
}

fn life(page_size: usize) {
    const ROWS: u64 = 9000;
    let (raw, log) = (raw(), MemDevice::new(0));
    let flash = NativeFlash::create(raw.clone(), &regions()).unwrap();
    let made = flash.layout().clone();
    let db = Db::create_on(Devices::on_flash(flash.clone(), log.clone()), &layout(page_size), options()).unwrap();
    let rows = db.create_keyspace("rows").unwrap();
    let mut rng = Rng::from_seed(1);
    for version in 0..8 {
        let mut order: Vec<u64> = (0..ROWS).collect();
        (1..order.len()).for_each(|i| order.swap(i, rng.below(i as u64 + 1) as usize));
        order.iter().for_each(|n| rows.put(&n.to_be_bytes(), &row(*n, version)).unwrap());
    }
    all_at(&db, ROWS, 7);
    let mut backup = Vec::new();
    db.backup(&mut backup, BackupOptions::default()).unwrap();
    (2000..ROWS).for_each(|n| assert!(rows.delete(&n.to_be_bytes()).unwrap()));
    drop(rows);
    db.compact().unwrap();
    all_at(&db, 2000, 7);
    db.close().unwrap();
    flash.verify();
    assert!(flash.region_stats()[0].gc_copies > 0, "garbage was collected: {:?}", flash.region_stats());

    let again = NativeFlash::open(raw, &made, &Faults::default()).unwrap();
    let db = Db::open_on(Devices::on_flash(again, log), options()).unwrap();
    all_at(&db, 2000, 7);
    db.close().unwrap();

    let (flash, log) =
        (NativeFlash::create(self::raw(), &FlashLayout::one(&self::raw_shape())).unwrap(), MemDevice::new(0));
    let devices = Devices::on_flash(flash, log);
    varve::restore_on(&devices, &mut [&mut &backup[..]], &RestoreOptions { layout: layout(page_size) }).unwrap();
    let db = Db::open_on(devices, options()).unwrap();
    all_at(&db, ROWS, 7);
    db.close().unwrap();
}

fn raw_shape() -> Geometry {
    use varve_device::flash::RawFlash;
    raw().geometry()
}

#[test]
fn a_database_lives_on_native_flash() {
    in_sim(|| life(4096));
}

#[test]
fn so_does_one_with_larger_pages() {
    in_sim(|| life(16384));
}

#[test]
fn a_full_flash_is_told_by_the_commit_and_harms_nothing() {
    in_sim(|| {
        let (raw, log) = (raw(), MemDevice::new(0));
        let flash = NativeFlash::create(raw, &regions()).unwrap();
        let devices = Devices::on_flash(flash.clone(), log);
        let db = Db::create_on(devices.clone(), &layout(4096), options()).unwrap();
        let rows = db.create_keyspace("rows").unwrap();
        let mut filled = 0;
        let full = loop {
            match rows.put(&u64::to_be_bytes(filled), &row(filled, 0)) {
                Ok(()) => filled += 1,
                Err(e) => break e,
            }
        };
        assert!(matches!(full, Error::NoSpace(_)), "{full}");
        // An inner node and a leaf at a time are taken, so nearly all is used.
        let used = filled * 400;
        assert!(used > flash.capacity() / 3, "{used} bytes of rows on {} of flash", flash.capacity());
        db.checkpoint().unwrap();
        all_at(&db, filled, 0);
        // What is there can still be changed, and what is deleted makes room.
        (0..200_u64).for_each(|n| rows.put(&n.to_be_bytes(), &row(n, 0)).unwrap());
        (0..filled / 2).for_each(|n| assert!(rows.delete(&n.to_be_bytes()).unwrap()));
        db.checkpoint().unwrap();
        (0..filled / 4).for_each(|n| rows.put(&n.to_be_bytes(), &row(n, 0)).unwrap());
        sound(&db);
        drop(rows);
        db.close().unwrap();
        Db::open_on(devices, options()).unwrap().close().unwrap();
    });
}

#[test]
fn what_does_not_belong_together_is_refused() {
    in_sim(|| {
        let (raw, log) = (raw(), MemDevice::new(0));
        let flash = NativeFlash::create(raw.clone(), &regions()).unwrap();
        let on_flash = Devices::on_flash(flash.clone(), log.clone());
        Db::create_on(on_flash, &layout(4096), options()).unwrap().close().unwrap();
        let why = |devices: Devices| Db::open_on(devices, options()).expect_err("refused").to_string();
        // Its bytes on a device of another kind.
        let copy = MemDevice::new(flash.len());
        let mut bytes = vec![0; 64 * 4096];
        varve_device::read_at(&*flash, 0, &mut bytes).unwrap();
        varve_device::write_at(&*copy, 0, &bytes, false).unwrap();
        assert!(why(Devices::new(copy, log.clone())).contains("lie on native flash"));
        let one = FlashLayout { regions: vec![flash.layout().regions[0].clone()] };
        let part = NativeFlash::open(raw, &one, &Faults::default()).unwrap();
        assert!(why(Devices::on_flash(part, log)).contains("other regions"));
        let new = NativeFlash::create(self::raw(), &regions()).unwrap();
        let tiered = Devices::on_flash(new, MemDevice::new(0)).with("fast", MemDevice::new(1 << 20));
        let refused = Db::create_on(tiered, &layout(4096), options()).expect_err("refused").to_string();
        assert!(refused.contains("a tier over native flash"), "{refused}");
    });
}

/// Overwrites all rows four times with checkpoints between, stops without one, and opens again: the pages logged whole.
fn images_of_a_life(images: bool) -> u64 {
    const ROWS: u64 = 3000;
    let (raw, log) = (raw(), MemDevice::new(0));
    let flash = NativeFlash::create(raw.clone(), &regions()).unwrap();
    let made = flash.layout().clone();
    let options = options().page_images(images);
    let db = Db::create_on(Devices::on_flash(flash, log.clone()), &layout(4096), options.clone()).unwrap();
    let rows = db.create_keyspace("rows").unwrap();
    for version in 0..4 {
        (0..ROWS).for_each(|n| rows.put(n.to_be_bytes(), row(n, version)).unwrap());
        db.checkpoint().unwrap();
    }
    (0..ROWS).for_each(|n| rows.put(n.to_be_bytes(), row(n, 4)).unwrap());
    db.sync().unwrap();
    let logged = db.stats().changes.images;
    drop((rows, db));
    let again = NativeFlash::open(raw, &made, &Faults::default()).unwrap();
    let db = Db::open_on(Devices::on_flash(again, log), options).unwrap();
    assert!(db.recovery_report().bytes > 0, "it was not closed");
    all_at(&db, ROWS, 4);
    db.close().unwrap();
    logged
}

#[test]
fn the_log_may_do_without_page_images_where_no_write_is_torn() {
    in_sim(|| {
        let (with, without) = (images_of_a_life(true), images_of_a_life(false));
        assert!(without * 3 < with, "{without} without, {with} with");
        // Pages of two of the flash's, and a device of another kind.
        let none = || options().page_images(false);
        let flash = NativeFlash::create(raw(), &regions()).unwrap();
        let on_flash = Devices::on_flash(flash, MemDevice::new(0));
        let on_device = Devices::new(MemDevice::new(0), MemDevice::new(0));
        for (devices, page_size) in [(on_flash, 8192), (on_device, 4096)] {
            let create = |options| Db::create_on(devices.clone(), &layout(page_size), options);
            let refused = create(none()).expect_err("refused").to_string();
            assert!(refused.contains("page_images = false cannot be used"), "{refused}");
            create(options()).unwrap().close().unwrap();
            let refused = Db::open_on(devices.clone(), none()).expect_err("refused").to_string();
            assert!(refused.contains("half written"), "{refused}");
        }
    });
}

/// The same regions, whose pages take delta records.
fn appending(merge: bool) -> FlashLayout {
    let mut layout = regions();
    layout.regions.iter_mut().for_each(|region| (region.n, region.m, region.merge) = (2, 48, merge));
    layout
}

/// Small changes of rows: pages are appended to, moved by collection, found again by an opening.
fn small_changes(merge: bool) {
    const ROWS: u64 = 9000;
    let (raw, log) = (raw(), MemDevice::new(0));
    let flash = NativeFlash::create(raw.clone(), &appending(merge)).unwrap();
    let made = flash.layout().clone();
    let db = Db::create_on(Devices::on_flash(flash.clone(), log.clone()), &layout(4096), options()).unwrap();
    let rows = db.create_keyspace("rows").unwrap();
    let mut model: Vec<u64> = vec![0; ROWS as usize];
    (0..ROWS).for_each(|n| rows.put(&n.to_be_bytes(), &row(n, 0)).unwrap());
    let mut rng = Rng::from_seed(7);
    let small = |n: u64, version: u64| [&version.to_le_bytes()[..], &row(n, 0)[8..]].concat();
    for version in 1..30_000 {
        let n = rng.below(ROWS);
        model[n as usize] = version;
        rows.put(&n.to_be_bytes(), &small(n, version)).unwrap();
    }
    drop(rows);
    let same = |db: &Db| {
        let space = db.keyspace("rows").unwrap();
        for (n, version) in (0..ROWS).zip(&model) {
            let wanted = if *version == 0 { row(n, 0) } else { small(n, *version) };
            assert_eq!(space.get(&n.to_be_bytes()).unwrap().unwrap(), wanted, "row {n}");
        }
        sound(db);
    };
    same(&db);
    db.close().unwrap();
    flash.verify();
    let stats = flash.region_stats()[0];
    assert!(stats.host_appends > stats.host_writes / 4 && stats.gc_copies > 0, "{stats:?}");
    assert_eq!(stats.merged > 0, merge, "{stats:?}");

    let again = NativeFlash::open(raw, &made, &Faults::default()).unwrap();
    let db = Db::open_on(Devices::on_flash(again.clone(), log), options()).unwrap();
    same(&db);
    let rows = db.keyspace("rows").unwrap();
    (0..200_u64).for_each(|n| rows.put(&(n * 41).to_be_bytes(), &small(n * 41, n)).unwrap());
    drop(rows);
    db.close().unwrap();
    assert!(again.region_stats()[0].host_appends > 0, "counts of records are found again: {:?}", again.region_stats());
}

#[test]
fn small_changes_are_appended_and_merged() {
    in_sim(|| small_changes(true));
}

#[test]
fn small_changes_are_appended_and_moved_along() {
    in_sim(|| small_changes(false));
}

fn restored(onto: Devices, backup: &[u8], page_size: usize) -> varve::Result<Db> {
    varve::restore_on(&onto, &mut [&mut &backup[..]], &RestoreOptions { layout: layout(page_size) })?;
    Db::open_on(onto, options())
}

/// A database keeps the room that its pages have for delta records, wherever it is restored; one without room is not
/// restored onto regions that need some.
#[test]
fn the_room_for_records_goes_along_with_backups() {
    in_sim(|| {
        let filled = |regions: &FlashLayout| {
            let flash = NativeFlash::create(raw(), regions).unwrap();
            let devices = Devices::on_flash(flash, MemDevice::new(0));
            let db = Db::create_on(devices, &layout(4096), options()).unwrap();
            let rows = db.create_keyspace("rows").unwrap();
            (0..5000_u64).for_each(|n| rows.put(&n.to_be_bytes(), &row(n, 3)).unwrap());
            drop(rows);
            let mut backup = Vec::new();
            db.backup(&mut backup, BackupOptions::default()).unwrap();
            db.close().unwrap();
            backup
        };
        let flash =
            |regions: &FlashLayout| Devices::on_flash(NativeFlash::create(raw(), regions).unwrap(), MemDevice::new(0));
        let with_room = filled(&appending(true));
        let fewer =
            FlashLayout { regions: regions().regions.into_iter().map(|r| RegionConfig { n: 1, m: 48, ..r }).collect() };
        let plain = Devices::new(MemDevice::new(0), MemDevice::new(0));
        for onto in [plain, flash(&appending(false)), flash(&fewer), flash(&regions())] {
            let db = restored(onto, &with_room, 4096).unwrap();
            all_at(&db, 5000, 3);
            let rows = db.keyspace("rows").unwrap();
            (5000..9000_u64).for_each(|n| rows.put(&n.to_be_bytes(), &row(n, 3)).unwrap());
            drop(rows);
            all_at(&db, 9000, 3);
            let mut again = Vec::new();
            db.backup(&mut again, BackupOptions::default()).unwrap();
            db.close().unwrap();
            let db = restored(flash(&appending(true)), &again, 4096).unwrap();
            all_at(&db, 9000, 3);
            db.close().unwrap();
        }
        let Err(refused) = restored(flash(&appending(true)), &filled(&regions()), 4096) else { panic!("no room") };
        assert!(refused.to_string().contains("keep 96 bytes of each page for delta records"), "{refused}");
        let made = NativeFlash::create(raw(), &appending(true)).unwrap();
        let Err(refused) = Db::create_on(Devices::on_flash(made, MemDevice::new(0)), &layout(8192), options()) else {
            panic!("a page of the database is two of the flash")
        };
        assert!(refused.to_string().contains("regions.n = 2"), "{refused}");
    });
}
