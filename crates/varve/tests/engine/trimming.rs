//! Pages that were freed are told to the data device after the checkpoint that makes their freeing final, and nothing
//! else is: counters, modelled flash, files, power cuts.

use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use varve::{Db, Devices, Durability, Layout, Options, Stats};
use varve_device::Device;
use varve_models::flash::{Contents, FlashConfig};
use varve_models::{FlashModel, MemDevice, MemOptions, PowerSupply};
use varve_rt::Rng;
use varve_rt::sim::{self, Domain};

const LAYOUT: Layout = Layout {
    page_size: 4096,
    log_bytes: 4 << 20,
    log_dir: None,
    data: None,
    remote: None,
    fast: None,
    fast_bytes: 0,
    overwrite: false,
    array: None,
    flash: None,
};

fn options(trim: Option<bool>) -> Options {
    Options { trim, durability: Durability::None, ..Options::default().cache_mb(8) }
}

fn key(n: u64) -> [u8; 8] {
    n.to_be_bytes()
}

/// Rows of 40 KB; afterwards three of four are gone again and a checkpoint was made.
fn fill_and_empty(db: &Db) -> Stats {
    let rows = db.create_keyspace("rows").unwrap();
    for n in 0..60 {
        rows.put(&key(n), &vec![n as u8; 40_000]).unwrap();
    }
    db.checkpoint().unwrap();
    (0..60).filter(|n| n % 4 != 0).for_each(|n| assert!(rows.delete(&key(n)).unwrap()));
    assert_eq!(db.stats().trims.pages, 0, "nothing is trimmed before a checkpoint");
    db.checkpoint().unwrap();
    db.stats()
}

/// What was not deleted is there, and the database is sound.
fn whole(db: &Db) {
    let rows = db.keyspace("rows").unwrap();
    for n in 0..60 {
        let expected = (n % 4 == 0).then(|| vec![n as u8; 40_000]);
        assert_eq!(rows.get(&key(n)).unwrap(), expected, "row {n}");
    }
    let report = db.check().unwrap();
    assert!(report.damages.is_empty(), "{:?}", report.damages);
}

#[test]
fn a_flash_drive_is_told_after_the_checkpoint() {
    let flash = FlashModel::new(&FlashConfig::one_plane(256, 64), Contents::Full).unwrap();
    flash.set_len(0).unwrap();
    let devices = Devices::new(flash.clone(), MemDevice::new(0));
    let db = Db::create_on(devices.clone(), &LAYOUT, options(None)).unwrap();
    let stats = fill_and_empty(&db);
    let (trims, device) = (stats.trims, &stats.data_device);
    assert!(trims.pages >= 400 && trims.extents > 0 && trims.extents * 4 < trims.pages, "{trims:?}");
    assert_eq!((device.trim.count, device.trim.bytes, trims.failed), (trims.extents, trims.pages * 4096, 0));
    assert!(flash.flash_stats().ftl.trimmed >= 400, "the drive forgot them: {:?}", flash.flash_stats().ftl);
    whole(&db);
    // Used again, they hold what is written.
    let rows = db.keyspace("rows").unwrap();
    (60..100).for_each(|n| rows.put(&key(n), &vec![n as u8; 40_000]).unwrap());
    drop(rows);
    db.close().unwrap();
    let db = Db::open_on(devices, options(None)).unwrap();
    whole(&db);
    let rows = db.keyspace("rows").unwrap();
    (60..100).for_each(|n| assert_eq!(rows.get(&key(n)).unwrap(), Some(vec![n as u8; 40_000])));
}

#[test]
fn who_says_no_is_not_trimmed() {
    let data = MemDevice::new(0);
    let db = Db::create_on(Devices::new(data, MemDevice::new(0)), &LAYOUT, options(Some(false))).unwrap();
    let stats = fill_and_empty(&db);
    assert_eq!((stats.trims.pages, stats.data_device.trim.count), (0, 0));
    whole(&db);
}

#[test]
fn files_give_space_back_where_it_is_asked_for() {
    let allocated = |trim: Option<bool>, name: &str| -> (Stats, u64) {
        let dir = std::env::temp_dir().join(format!("varve-trimming-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        let db = Db::create(&dir, &LAYOUT, options(trim)).unwrap();
        let stats = fill_and_empty(&db);
        whole(&db);
        db.close().unwrap();
        let blocks = std::fs::metadata(dir.join("data")).unwrap().blocks();
        std::fs::remove_dir_all(&dir).unwrap();
        (stats, blocks * 512)
    };
    let (kept, whole_file) = allocated(None, "kept");
    assert_eq!(kept.trims.pages, 0, "files are left alone");
    let (given, file) = allocated(Some(true), "given");
    if given.access.iter().any(|a| a.contains("trim was refused") || a.contains("space cannot be reserved")) {
        return; // A file system without holes, or without what else we use.
    }
    assert!(given.trims.pages >= 300 && given.trims.extents * 16 <= given.trims.pages, "{:?}", given.trims);
    assert!(file + given.trims.pages * 2048 < whole_file, "{file} bytes of {whole_file} are left");
}

/// The power fails at any moment of filling, emptying, checkpoints and trims: what was durable is there, and the
/// database is sound.
#[test]
fn power_cuts_between_checkpoints_and_trims_lose_nothing() {
    for seed in 0..40 {
        let trimmed = sim::run(sim::Config { seed, ..sim::Config::default() }, move || {
            let supply = PowerSupply::new();
            let device = |name: &str| -> Arc<dyn Device> {
                let device = MemDevice::with(0, MemOptions { name: name.into(), seed, ..MemOptions::default() });
                supply.attach(device.clone());
                device
            };
            let devices = Devices::new(device("data"), device("log"));
            let sync = Options { durability: Durability::Sync, ..options(None) };
            let domain = Domain::new("machine");
            let (inside, how) = (devices.clone(), sync.clone());
            let until = varve_rt::Mutex::new(0);
            let done = Arc::new(until);
            let shown = done.clone();
            domain.spawn("database", move || {
                let db = Db::create_on(inside, &LAYOUT, how).unwrap();
                let rows = db.create_keyspace("rows").unwrap();
                for round in 0..1000_u64 {
                    // Each row is written, then deleted three rounds later; one in five stays.
                    rows.put(&key(round), &vec![round as u8; 9_000]).unwrap();
                    if round >= 3 && (round - 3) % 5 != 0 {
                        rows.delete(&key(round - 3)).unwrap();
                    }
                    *shown.lock() = round;
                    if round % 7 == 6 {
                        db.checkpoint().unwrap();
                    }
                }
            });
            let mut rng = Rng::from_seed(seed);
            varve_rt::sleep(std::time::Duration::from_micros(20_000 + rng.below(400_000)));
            supply.cut(seed);
            domain.power_cut();
            supply.restore();
            let rounds = *done.lock();
            if rounds < 3 {
                return 0;
            }
            let db = Db::open_on(devices.clone(), sync).unwrap();
            let rows = db.keyspace("rows").unwrap();
            for n in 0..=rounds {
                let found = rows.get(&key(n)).unwrap();
                let stays = n % 5 == 0 || n + 3 > rounds;
                if stays && n + 3 != rounds + 1 {
                    assert_eq!(found, Some(vec![n as u8; 9_000]), "seed {seed}: row {n} of {rounds}");
                } else if n + 3 <= rounds {
                    assert_eq!(found, None, "seed {seed}: row {n} of {rounds} was deleted");
                }
            }
            let report = db.check().unwrap();
            assert!(report.damages.is_empty(), "seed {seed}: {:?}", report.damages);
            db.checkpoint().unwrap();
            drop(rows);
            let trimmed = devices.part("data").unwrap().stats().trim.count;
            db.close().unwrap();
            trimmed
        })
        .unwrap();
        assert!(seed != 0 || trimmed > 0, "seed {seed}: nothing was trimmed");
    }
}
