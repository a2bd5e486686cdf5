//! TPC-C on native flash, beside the same translation layer in a drive: sound, and as fast.

use std::sync::Arc;
use std::time::Duration;
use varve::flash::{FlashLayout, NativeFlash};
use varve::{Db, Devices, Layout, Options};
use varve_device::flash::Geometry;
use varve_lab::adapter::varve::VarveStore;
use varve_lab::driver::{RunOptions, Until, run};
use varve_lab::tpcc::{self, Scale, Tpcc};
use varve_models::flash::{Contents, FlashConfig, FtlStats, Link, RawModel};
use varve_models::{FlashModel, MemDevice, MemOptions};
use varve_rt::sim::{self, Config};

/// Eight chips, so large that the run's data fill two thirds of them.
fn config() -> FlashConfig {
    let one = FlashConfig::one_plane(28, 32);
    let link = Link { mb_s: 1e6, overhead_us: 0.0, command_us: 0.0 };
    FlashConfig { geometry: Geometry { channels: 4, chips_per_channel: 2, ..one.geometry }, link, ..one }
}

/// Runs TPC-C on devices; transactions a second of virtual time.
fn tpcc_on(devices: Devices) -> f64 {
    let options = Options { pool_frames: 300, ..Options::default() };
    let layout = Layout { log_bytes: 1 << 20, ..Layout::default() };
    let db = Db::create_on(devices.clone(), &layout, Options { log_max_bytes: 2 << 20, ..options.clone() }).unwrap();
    let store = Arc::new(VarveStore::new(db.clone()));
    let scale = Scale { warehouses: 2, districts: 4, customers: 200, items: 2000, foreign_keys: false };
    tpcc::load(&store, scale, 3, 2, |_| {}).unwrap();
    db.checkpoint().unwrap();
    let workload = Arc::new(Tpcc::new(&*store, tpcc::Options { seed: 5, ..tpcc::Options::default() }).unwrap());
    let until = Until::Transactions(12_000);
    let run_options = RunOptions { threads: 8, until, interval: Duration::from_secs(10), ..RunOptions::default() };
    let result = run(&store, &workload, &run_options, |_| {}).unwrap();
    let report = tpcc::check(&*store, |_, _| {}).unwrap();
    assert!(report.consistent(), "{report}");
    let report = db.check().unwrap();
    assert!(report.damages.is_empty() && report.unreadable.is_empty(), "{report:?}");
    drop((store, workload));
    db.close().unwrap();
    Db::open_on(devices, options).unwrap().close().unwrap();
    result.ops_per_s
}

fn simulated(f: impl FnOnce() -> (f64, FtlStats) + Send + 'static) -> (f64, FtlStats) {
    sim::run(Config { seed: 1, ..Config::default() }, f).result.unwrap()
}

fn log() -> Arc<MemDevice> {
    MemDevice::with(0, MemOptions { name: "log".into(), ..MemOptions::default() })
}

#[test]
fn tpcc_on_native_flash_is_as_fast_as_the_same_layer_in_a_drive() {
    let (native, own) = simulated(|| {
        let raw = RawModel::new(&config()).unwrap();
        let flash = NativeFlash::create(raw, &FlashLayout::one(&config().geometry)).unwrap();
        let rate = tpcc_on(Devices::on_flash(flash.clone(), log()));
        flash.verify();
        (rate, flash.region_stats()[0])
    });
    let (behind, drive) = simulated(|| {
        let model = FlashModel::new(&config(), Contents::Full).unwrap();
        let rate = tpcc_on(Devices::new(model.clone(), log()));
        (rate, model.flash_stats().ftl)
    });
    println!("native {native:.1}/s, {own:?}\ndrive {behind:.1}/s, {drive:?}");
    assert!(own.gc_copies > 0 && drive.gc_copies > 0, "garbage was collected");
    assert!((native / behind - 1.0).abs() < 0.02, "native {native:.1}, behind a drive {behind:.1} transactions/s");
}
