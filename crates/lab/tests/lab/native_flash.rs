//! TPC-C on native flash: sound while garbage is collected, and when it is opened again.

use std::sync::Arc;
use std::time::Duration;
use varve::flash::{FlashLayout, NativeFlash};
use varve::{Db, Devices, Layout, Options};
use varve_device::flash::Geometry;
use varve_lab::adapter::varve::VarveStore;
use varve_lab::driver::{RunOptions, Until, run};
use varve_lab::tpcc::{self, Scale, Tpcc};
use varve_models::MemDevice;
use varve_models::flash::{FlashConfig, RawModel};
use varve_rt::sim::{self, Config};

/// Eight chips, so large that the run's data fill two thirds of them.
fn config() -> FlashConfig {
    let one = FlashConfig::one_plane(28, 32);
    FlashConfig { geometry: Geometry { channels: 4, chips_per_channel: 2, ..one.geometry }, ..one }
}

/// Runs TPC-C on devices, and looks at everything.
fn tpcc_on(devices: Devices) {
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
    run(&store, &workload, &run_options, |_| {}).unwrap();
    let report = tpcc::check(&*store, |_, _| {}).unwrap();
    assert!(report.consistent(), "{report}");
    let report = db.check().unwrap();
    assert!(report.damages.is_empty() && report.unreadable.is_empty(), "{report:?}");
    drop((store, workload));
    db.close().unwrap();
    Db::open_on(devices, options).unwrap().close().unwrap();
}

#[test]
fn tpcc_on_native_flash_is_sound() {
    let work = || {
        let raw = RawModel::new(&config()).unwrap();
        let flash = NativeFlash::create(raw, &FlashLayout::one(&config().geometry)).unwrap();
        tpcc_on(Devices::on_flash(flash.clone(), MemDevice::new(0)));
        flash.verify();
        assert!(flash.region_stats()[0].gc_copies > 0, "garbage was collected");
    };
    sim::run(Config { seed: 1, ..Config::default() }, work).result.unwrap();
}
