//! A backup taken under TPC-C restores to a database that keeps TPC-C's conditions.

use std::sync::Arc;

use varve::{BackupOptions, Db, Devices, Layout, Options, RestoreOptions};
use varve_lab::adapter::varve::VarveStore;
use varve_lab::driver::{RunOptions, Until, run};
use varve_lab::tpcc;
use varve_models::MemDevice;
use varve_rt::spawn;

#[test]
fn a_backup_under_tpcc_keeps_its_conditions() {
    let layout = Layout { page_size: 4096, log_bytes: 4 << 20, ..Layout::default() };
    let options = Options { cache_bytes: 4 << 20, ..Options::default() };
    let devices = || Devices::new(MemDevice::new(0), MemDevice::new(0));
    let db = Db::create_on(devices(), &layout, options.clone()).unwrap();
    let store = Arc::new(VarveStore::new(db.clone()));
    tpcc::load(&store, tpcc::Scale::tiny(3), 3, 2, |_| {}).expect("loads");
    let workload = Arc::new(tpcc::Tpcc::new(&*store, tpcc::Options::default()).expect("is loaded"));

    let busy = (store.clone(), workload.clone());
    let traffic = spawn("traffic", move || {
        let how = RunOptions { threads: 4, until: Until::Transactions(6000), ..RunOptions::default() };
        run(&busy.0, &busy.1, &how, |_| {}).expect("runs")
    });
    // A whole backup, and as many incremental ones as the traffic allows.
    let (mut files, mut base) = (Vec::new(), None);
    while files.len() < 2 || !traffic.is_finished() && files.len() < 12 {
        let mut file = Vec::new();
        let report = db.backup(&mut file, BackupOptions { since: base.take(), ..BackupOptions::default() }).unwrap();
        base = Some(report.info);
        files.push(file);
    }
    traffic.join().unwrap();

    for last in 1..=files.len() {
        let copy = devices();
        let mut whole: Vec<&[u8]> = files[..last].iter().map(|f| &f[..]).collect();
        let mut readers: Vec<&mut dyn std::io::Read> = whole.iter_mut().map(|f| f as &mut dyn std::io::Read).collect();
        varve::restore_on(&copy, &mut readers, &RestoreOptions { layout: layout.clone() }).unwrap();
        let copy = Db::open_on(copy, options.clone()).unwrap();
        assert!(copy.check().unwrap().is_clean(), "after {last} backups");
        let report = tpcc::check(&VarveStore::new(copy), |_, _| {}).expect("can be read");
        assert!(report.consistent(), "after {last} backups: {report}");
    }
}
