//! Keyspaces that live in regions of native flash: their pages come from there, a full region is told by the commit and
//! harms no other keyspace, an opening finds it all again, compaction moves nothing across.

use std::sync::Arc;
use varve::flash::{FlashLayout, NativeFlash, RegionConfig};
use varve::{Db, Devices, Durability, Error, Faults, Layout, Options};
use varve_device::flash::Geometry;
use varve_models::MemDevice;
use varve_models::flash::{FlashConfig, RawModel};
use varve_rt::sim::{Config, run};

/// Four chips of 6 MB.
fn raw() -> Arc<RawModel> {
    let one = FlashConfig::one_plane(48, 32);
    RawModel::new(&FlashConfig { geometry: Geometry { channels: 4, ..one.geometry }, ..one }).unwrap()
}

/// The first region is not the one for all others, so that the catalog lies between.
fn regions() -> FlashLayout {
    let region = |name: &str, chips: &[u32], keyspaces: &[&str]| RegionConfig {
        name: name.into(),
        keyspaces: keyspaces.iter().map(|k| k.to_string()).collect(),
        spare_factor: 0.25,
        ..RegionConfig::of(chips.iter().copied())
    };
    let cold = RegionConfig { n: 2, m: 48, ..region("cold", &[3], &["cold"]) };
    FlashLayout { regions: vec![region("hot", &[0], &["hot", "hot too"]), region("rest", &[1, 2], &[]), cold] }
}

fn options() -> Options {
    Options { durability: Durability::None, pool_frames: 256, ..Options::default() }
}

fn in_sim(f: impl FnOnce() + Send + 'static) {
    run(Config::default(), f).result.unwrap();
}

fn create() -> (Arc<NativeFlash>, Arc<RawModel>, Arc<MemDevice>, Db) {
    let (raw, log) = (raw(), MemDevice::new(0));
    let flash = NativeFlash::create(raw.clone(), &regions()).unwrap();
    let layout = Layout { page_size: 4096, log_bytes: 2 << 20, ..Layout::default() };
    let db = Db::create_on(Devices::on_flash(flash.clone(), log.clone()), &layout, options()).unwrap();
    (flash, raw, log, db)
}

/// Pages that each region was written.
fn writes(flash: &NativeFlash) -> Vec<u64> {
    flash.region_stats().iter().map(|stats| stats.host_writes + stats.host_appends).collect()
}

fn sound(db: &Db) {
    let report = db.check().unwrap();
    assert!(report.damages.is_empty() && report.unreadable.is_empty(), "{report:?}");
}

fn fill(db: &Db, name: &str, rows: std::ops::Range<u64>) {
    let space = db.keyspace_or_create(name).unwrap();
    rows.for_each(|n| space.put(&n.to_be_bytes(), &n.to_le_bytes().repeat(50)).unwrap());
}

fn all_there(db: &Db, name: &str, rows: std::ops::Range<u64>) {
    let space = db.keyspace(name).unwrap();
    rows.for_each(|n| {
        let value = space.get(&n.to_be_bytes()).unwrap().expect("the row is there");
        assert_eq!(value, n.to_le_bytes().repeat(50), "row {n} of {name}");
    });
}

#[test]
fn pages_of_a_keyspace_come_from_its_region() {
    in_sim(|| {
        let (flash, raw, log, db) = create();
        for (name, region) in [("hot", 0), ("other", 1), ("cold", 2), ("hot too", 0)] {
            db.keyspace_or_create(name).unwrap();
            db.checkpoint().unwrap();
            let before = writes(&flash);
            fill(&db, name, 0..1500);
            db.checkpoint().unwrap();
            let after = writes(&flash);
            let written: Vec<u64> = before.iter().zip(&after).map(|(before, after)| after - before).collect();
            assert!(written[region] > 120, "{name}: {written:?}");
            // The catalog and the space map alone are elsewhere.
            let others: u64 = (0..3).filter(|other| *other != region).map(|other| written[other]).sum();
            assert!(others < 40, "{name}: {written:?}");
        }
        // Long values of two regions in one commit.
        let (hot, cold) = (db.keyspace("hot").unwrap(), db.keyspace("cold").unwrap());
        let long = |n: u8| vec![n; 60_000];
        db.transact(|tx| {
            tx.put(&hot, b"long", &long(1))?;
            tx.put(&cold, b"long", &long(2))
        })
        .unwrap();
        drop((hot, cold));
        sound(&db);
        let made = flash.layout().clone();
        db.close().unwrap();

        let flash = NativeFlash::open(raw, &made, &Faults::default()).unwrap();
        let db = Db::open_on(Devices::on_flash(flash.clone(), log), options()).unwrap();
        for name in ["hot", "other", "cold", "hot too"] {
            all_there(&db, name, 0..1500);
        }
        assert_eq!(db.keyspace("cold").unwrap().get(b"long").unwrap().unwrap(), long(2));
        let before = writes(&flash);
        fill(&db, "cold", 1500..2500);
        db.checkpoint().unwrap();
        let after = writes(&flash);
        assert!(after[2] > before[2] + 75 && after[0] < before[0] + 20, "{before:?}, {after:?}");
        sound(&db);
        db.close().unwrap();
    });
}

#[test]
fn a_full_region_is_told_by_the_commit_and_harms_no_other() {
    in_sim(|| {
        let (flash, _, log, db) = create();
        fill(&db, "other", 0..1000);
        let hot = db.create_keyspace("hot").unwrap();
        let mut filled = 0;
        let full = loop {
            match hot.put(&u64::to_be_bytes(filled), &filled.to_le_bytes().repeat(50)) {
                Ok(()) => filled += 1,
                Err(e) => break e,
            }
        };
        assert!(matches!(full, Error::NoSpace(_)), "{full}");
        assert!(full.to_string().contains(r#"region "hot""#) && full.to_string().contains("hot, hot too"), "{full}");
        let bytes = flash.region_capacity()[0].logical * 4096;
        assert!(filled * 400 > bytes / 2 && filled * 400 < bytes, "{filled} rows on {bytes} bytes");
        // Its neighbours in the region are full too, others are not.
        db.checkpoint().unwrap();
        let mut refused = db.create_keyspace("hot too").err();
        if refused.is_none() {
            let too = db.keyspace("hot too").unwrap();
            refused = (0..200_u64).find_map(|n| too.put(&n.to_be_bytes(), &[1; 400]).err());
        }
        assert!(matches!(refused, Some(Error::NoSpace(_))), "{refused:?}");
        fill(&db, "other", 1000..4000);
        fill(&db, "cold", 0..1000);
        // What is there can be changed, and what is deleted makes room.
        (0..200_u64).for_each(|n| hot.put(&n.to_be_bytes(), &n.to_le_bytes().repeat(50)).unwrap());
        (filled / 2..filled).for_each(|n| assert!(hot.delete(&n.to_be_bytes()).unwrap()));
        db.checkpoint().unwrap();
        fill(&db, "hot", filled / 2..filled / 2 + 500);
        sound(&db);
        // Compaction moves what is at the end of a region to the front of that one.
        let before = writes(&flash);
        (0..900_u64).for_each(|n| assert!(db.keyspace("cold").unwrap().delete(&n.to_be_bytes()).unwrap()));
        (500..filled / 2).for_each(|n| assert!(hot.delete(&n.to_be_bytes()).unwrap()));
        db.checkpoint().unwrap();
        let report = db.compact().unwrap();
        assert!(report.moved > 0, "{report:?}");
        db.checkpoint().unwrap();
        assert!(writes(&flash)[0] > before[0], "pages of the hot region moved");
        all_there(&db, "hot", 0..500);
        all_there(&db, "hot", filled / 2..filled / 2 + 500);
        all_there(&db, "other", 0..4000);
        sound(&db);
        let now = flash.layout().clone();
        assert_eq!(now.regions[0].keyspaces, ["hot", "hot too"]);
        drop(hot);
        db.close().unwrap();
        Db::open_on(Devices::on_flash(flash, log), options()).unwrap().close().unwrap();
    });
}
