//! Host profiles as text: what is read, what is refused and how. And the engine on a modelled host: virtual time is
//! what was charged, and runs repeat.

use std::sync::Arc;
use std::time::Duration;
use varve::{Db, Devices, Durability, Layout, Options};
use varve_lab::adapter::varve::VarveStore;
use varve_lab::driver::{self, RunOptions, Until};
use varve_lab::host::HostProfile;
use varve_lab::tpcc;
use varve_models::MemDevice;
use varve_rt::{Cost, now, sim};

fn refused(text: &str) -> String {
    HostProfile::parse(text, "test.toml").expect_err("it is refused").to_string()
}

const SCALED: &str = "name = \"fast\"\ncores = 32\nlock_handoff_ns = 90.0\nlock_data_ns = 200.0\nscaled_from = \"vm-2core\"\nscale = 0.5\n";

#[test]
fn every_builtin_profile_is_complete_and_survives_being_written() {
    let mut names: Vec<_> = HostProfile::builtin_names().collect();
    for &name in &names {
        let host = HostProfile::builtin(name).unwrap();
        assert_eq!(host.name, name);
        assert!(!host.sources.is_empty(), "{name} says where its numbers come from");
        for &cost in Cost::ALL {
            assert!(host.costs.ns(cost) > 0.0, "{name}: {}", cost.name());
        }
        assert_eq!(HostProfile::parse(&host.to_toml(), "written").unwrap(), host);
        let config = host.config(7);
        assert_eq!((config.seed, config.cores), (7, host.cores));
        assert_eq!(config.costs, host.costs);
    }
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../profiles/hosts");
    let file = |e: std::io::Result<std::fs::DirEntry>| e.unwrap().path().file_stem().unwrap().display().to_string();
    let mut files: Vec<String> = std::fs::read_dir(dir).unwrap().map(file).collect();
    names.sort_unstable();
    files.sort_unstable();
    assert_eq!(names, files, "every file is built in");
}

/// The scale of a profile is the ratio of public single-thread ratings: a slower machine's costs are higher, by it.
#[test]
fn derived_hosts_are_slower_or_faster_as_their_sources_say() {
    let base = HostProfile::builtin("vm-2core").unwrap();
    for (name, cores, low, high) in [
        ("server-32core", 32, 0.9, 1.1),
        ("arm-4core", 4, 2.4, 2.6),
        ("gd2l-6core", 6, 1.8, 2.1),
        ("ipa-32core", 32, 1.9, 2.2),
        ("copro-host", 2, 1.4, 1.6),
        ("copro-device", 4, 2.4, 2.6),
        ("rodi-4core", 4, 1.0, 1.2),
    ] {
        let host = HostProfile::builtin(name).unwrap();
        assert_eq!(host.cores, cores, "{name}");
        let ratio = host.costs.ns(Cost::PageAccess) / base.costs.ns(Cost::PageAccess);
        assert!((low..=high).contains(&ratio), "{name}: {ratio}");
        assert!(host.sources.iter().any(|s| s.starts_with("scale: ")), "{name} says where its scale is from");
    }
}

#[test]
fn a_profile_can_be_another_one_scaled() {
    let base = HostProfile::builtin("vm-2core").unwrap();
    let fast = HostProfile::parse(&format!("{SCALED}[costs]\npage_access = 12.5\n"), "test.toml").unwrap();
    assert_eq!(fast.costs.ns(Cost::PageAccess), 12.5);
    for &cost in Cost::ALL.iter().filter(|&&c| c != Cost::PageAccess) {
        assert!((fast.costs.ns(cost) - base.costs.ns(cost) / 2.0).abs() <= 0.000_51, "{}", cost.name());
    }
}

#[test]
fn what_cannot_be_used_is_named_with_its_line_and_with_what_can() {
    assert_eq!(refused(&SCALED.replace("32", "0")), "test.toml, line 2: cores: 0: 1 to 4096 are accepted");
    let unknown = refused(&format!("{SCALED}[costs]\nlog_byte = 1\npage_acess = 12.5\n"));
    assert!(unknown.starts_with("test.toml, line 9: page_acess: no such cost; there are page_access, "), "{unknown}");
    let negative = refused(&format!("{SCALED}[costs]\nlog_byte = -1\n"));
    assert!(negative.starts_with("test.toml, line 8: log_byte: -1: "), "{negative}");
    assert!(refused(&SCALED.replace("0.5", "0.0")).contains("line 6: scale: 0: "));
    assert!(
        refused("name = \"x\"\ncores = 2\nlock_handoff_ns = nan\nlock_data_ns = 1\n")
            .contains("line 3: lock_handoff_ns: NaN: ")
    );
    let absent = refused("name = \"x\"\ncores = 2\nlock_handoff_ns = 1\nlock_data_ns = 1\n[costs]\nlog_byte = 1\n");
    assert!(absent.starts_with("test.toml, line 5: costs: [costs] has no page_access"), "{absent}");
    assert!(refused("name = \"x\"\ncores = 2\nfoo = 1\n").starts_with("test.toml, line 3: foo: unknown field `foo`"));
    assert!(refused("name = \"x\"\ncores = \"two\"\n").contains("line 2: cores: invalid type"));
    let other = refused(&SCALED.replace("vm-2core", "pdp-11"));
    assert!(other.contains("no such host profile; there are ") && other.contains("vm-2core"), "{other}");
    assert!(HostProfile::find("/no/such/file.toml").is_err());
}

/// One thread with everything in memory: virtual time is what was charged, to the nanosecond, with and without slack.
#[test]
fn virtual_time_is_what_the_engine_charged() {
    let host = HostProfile::builtin("vm-2core").unwrap();
    for slack in [Duration::ZERO, Duration::from_micros(1)] {
        let config = sim::Config { slack, ..host.config(3) };
        let (passed, charged, units) = sim::run(config, || {
            let devices = Devices::new(MemDevice::new(0), MemDevice::new(0));
            let options = Options { durability: Durability::None, ..Options::default() }.cache_mb(16);
            // A log that never asks for a checkpoint.
            let layout = Layout { log_bytes: 64 << 20, ..Layout::default() };
            let db = Db::create_on(devices, &layout, options).unwrap();
            let rows = db.keyspace_or_create("rows").unwrap();
            let key = |i: u32| format!("row {i:06}");
            (0..3000).for_each(|i| rows.put(key(i).as_bytes(), &[7; 100]).unwrap());
            let (began, before) = (now(), sim::thread_cpu().unwrap());
            for i in 0..3000 {
                assert!(rows.get(key(i).as_bytes()).unwrap().is_some());
                let mut tx = db.begin().unwrap();
                tx.put(&rows, key(i / 2).as_bytes(), &[i as u8; 100]).unwrap();
                assert!(tx.get(&rows, key(i / 3).as_bytes()).unwrap().is_some());
                tx.commit().unwrap();
            }
            let (passed, after) = (now() - began, sim::thread_cpu().unwrap());
            let units = |c: Cost| after.units(c) - before.units(c);
            let charged: u64 = Cost::ALL.iter().map(|&c| host.costs.ps(c, units(c))).sum();
            let units = [Cost::NodeSearch, Cost::TxnBegin, Cost::LogGroup, Cost::LockAcquire].map(units);
            drop(rows);
            db.close().unwrap();
            (passed.as_nanos() as u64, charged, units)
        })
        .unwrap();
        assert!(charged > 3000 * 2_000_000, "{charged} ps for 3000 reads and transactions");
        // A lock that a background thread had before costs its way to this thread's core, which is charged to nobody.
        let word = host.config(3).lock_handoff.as_nanos() as u64;
        let moved = passed.saturating_sub(charged / 1000) / word;
        let rest = passed.abs_diff(charged / 1000 + moved * word);
        assert!(moved <= 3 && rest <= 1, "{passed} ns passed, {charged} ps were charged, {moved} locks moved");
        let [searches, begun, groups, locks] = units;
        assert_eq!((begun, groups, locks), (3000, 3000, 6000));
        assert!(searches > 3000 * 5, "{searches} searches");
    }
}

/// Two runs of TPC-C on a modelled host are the same run; so is its slack, whatever the machine does meanwhile.
#[test]
fn a_modelled_host_repeats() {
    let run = |seed| {
        let host = HostProfile::builtin("vm-2core").unwrap();
        let outcome = sim::run(host.config(seed), || {
            let devices = Devices::new(MemDevice::new(0), MemDevice::new(0));
            let options = Options::default().cache_mb(16);
            let store = Arc::new(VarveStore::new(Db::create_on(devices, &Layout::default(), options).unwrap()));
            tpcc::load(&store, tpcc::Scale::tiny(2), 1, 2, |_| {}).unwrap();
            let workload = Arc::new(tpcc::Tpcc::new(&*store, tpcc::Options::default()).unwrap());
            let until = Until::Time(Duration::from_millis(30));
            let options = RunOptions { threads: 4, until, ..RunOptions::default() };
            let result = driver::run(&store, &workload, &options, |_| {}).unwrap();
            drop(workload);
            store.db().clone().close().unwrap();
            result.total.count
        });
        (outcome.hash, outcome.time, outcome.cpu.clone(), outcome.unwrap())
    };
    let first = run(1);
    assert!(first.3 > 50, "{} transactions", first.3);
    assert_eq!(first, run(1));
    assert_ne!(first.0, run(2).0);
}
