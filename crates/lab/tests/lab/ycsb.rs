//! YCSB on the in-memory store: distributions, the six workloads, and the check.

use std::sync::Arc;

use varve_lab::adapter::mem::MemStore;
use varve_lab::adapter::{Durability, End, Store, TxMode, Txn, transact};
use varve_lab::driver::{RunOptions, RunResult, Until, run};
use varve_lab::experiment::{self, Request, RunHow};
use varve_lab::ycsb::distribution::{Chooser, Zipf, zeta};
use varve_lab::ycsb::{Beside, Distribution, Fixed, KeyForm, Letter, Options, Shape, Ycsb, check, fixed_name, load};

fn loaded(shape: Shape) -> Arc<MemStore> {
    let store = Arc::new(MemStore::default());
    load(&store, shape, 1, 2, |_, _| {}).unwrap();
    store
}

fn small() -> Shape {
    Shape { records: 1000, fields: 4, field_length: 20, ..Shape::default() }
}

fn drive(store: &Arc<MemStore>, options: Options, requests: u64) -> RunResult {
    let workload = Arc::new(Ycsb::new(&**store, options).unwrap());
    let options = RunOptions { threads: 3, until: Until::Transactions(requests), ..RunOptions::default() };
    run(store, &workload, &options, |_| {}).unwrap()
}

#[test]
fn zeta_is_the_sum() {
    let naive = |n: u64, theta: f64| (1..=n).map(|i| (i as f64).powf(-theta)).sum::<f64>();
    for n in [1, 2, 1000, 100_000, 1_000_000] {
        for theta in [0.5, 0.99] {
            let (fast, slow) = (zeta(n, theta), naive(n, theta));
            assert!((fast - slow).abs() < 1e-8 * slow, "zeta({n}, {theta}): {fast} for {slow}");
        }
    }
    // The constant that YCSB has in its source for ten billion.
    assert!((zeta(10_000_000_000, 0.99) - 26.46902820178302).abs() < 1e-6, "{}", zeta(10_000_000_000, 0.99));
    let mut grown = Zipf::new(10, 0.99).unwrap();
    (11..300).for_each(|n| grown.grow(n));
    let fresh = Zipf::new(299, 0.99).unwrap();
    let draws = |zipf: &Zipf| {
        let mut rng = varve_rt::Rng::from_seed(4);
        (0..1000).map(|_| zipf.draw(&mut rng)).collect::<Vec<_>>()
    };
    assert_eq!(draws(&grown), draws(&fresh));
}

#[test]
fn distributions_have_their_shape() {
    let records = 1000;
    let counts = |distribution| {
        let mut chooser = Chooser::new(distribution, records, 0.99).unwrap();
        let mut rng = varve_rt::Rng::from_seed(9);
        let mut counts = vec![0u32; records as usize];
        (0..100_000).for_each(|_| counts[chooser.draw(records, &mut rng) as usize] += 1);
        counts
    };
    let zipfian = counts(Distribution::Zipfian);
    let hottest = *zipfian.iter().max().unwrap();
    // The first rank has a share of 1 / 26.47.
    assert!((3500..4300).contains(&hottest), "{hottest}");
    assert!(zipfian.iter().all(|n| *n > 0), "the tail is spread over all records");
    let latest = counts(Distribution::Latest);
    assert_eq!(latest.iter().max(), latest.last());
    assert!(latest[999] > 10_000 && latest[0] < 100, "{} {}", latest[999], latest[0]);
    let uniform = counts(Distribution::Uniform);
    assert!(uniform.iter().all(|n| (40..180).contains(n)));
    assert!(Zipf::new(5, 1.0).is_err() && Zipf::new(0, 0.5).is_err());
}

#[test]
fn keys_keep_their_form_and_records_their_place() {
    for key in [KeyForm::User, KeyForm::Binary8, KeyForm::Binary16] {
        for ordered in [false, true] {
            let shape = Shape { key, ordered, ..small() };
            let length = [24, 8, 16][key as usize];
            assert_eq!(shape.key(7).len(), length);
            if ordered {
                assert!(*shape.key(7) < *shape.key(8) && *shape.key(255) < *shape.key(256));
            }
            let store = loaded(shape);
            let report = check(&*store).unwrap();
            assert!(report.consistent() && report.records == 1000, "{report}");
        }
    }
    assert!(shape_key_is("user", &small()));
}

fn shape_key_is(prefix: &str, shape: &Shape) -> bool {
    shape.key(1).starts_with(prefix.as_bytes())
}

#[test]
fn the_six_workloads_run_and_leave_the_records_whole() {
    for letter in [Letter::A, Letter::B, Letter::C, Letter::D, Letter::E, Letter::F] {
        for write_one_field in [false, true] {
            let store = loaded(small());
            let result = drive(&store, Options { write_one_field, ..Options::of(letter) }, 2000);
            assert_eq!(result.total.count, 2000);
            for (kind, share) in result.kinds.iter().zip(letter.shares()) {
                let wide = 100 + share * 20;
                let near = (kind.count as i64 - i64::from(share * 20)).unsigned_abs() < 100;
                assert!(near && (share > 0) == (kind.count > 0), "{letter:?} {}: {} {wide}", kind.name, kind.count);
            }
            let inserted = result.kinds[2].count;
            let report = check(&*store).unwrap();
            assert!(report.consistent(), "{report}");
            assert_eq!(report.records, 1000 + inserted);
            assert!(result.tpmc.is_none() && result.to_json().get("tpmc").is_none());
            // A second run goes on where the first stopped inserting.
            let again = drive(&store, Options::of(Letter::D), 500);
            assert_eq!(check(&*store).unwrap().records, 1000 + inserted + again.kinds[2].count);
        }
    }
    assert_eq!("e".parse::<Letter>().unwrap(), Letter::E);
    assert!("g".parse::<Letter>().is_err());
}

#[test]
fn wrong_records_are_noticed() {
    let put = |key: &[u8], value: Option<&[u8]>| {
        let store = loaded(small());
        let records = store.keyspace("ycsb").unwrap();
        transact(&*store, TxMode::ReadWrite, Durability::Sync, |tx| {
            match value {
                Some(value) => tx.put(&records, key, value)?,
                None => tx.delete(&records, key)?,
            }
            Ok(((), End::Commit))
        })
        .unwrap();
        let report = check(&*store).unwrap();
        assert!(!report.consistent(), "{report}");
        report.to_string()
    };
    let key = small().key(5);
    assert!(put(&key, Some(b"short")).contains("5 bytes long"));
    assert!(put(&key, Some(&[9; 80])).contains("belongs elsewhere"));
    assert!(put(&key, None).contains("999 of the 1000"));
    let refused = load(&loaded(small()), Shape::default(), 1, 1, |_, _| {}).unwrap_err();
    assert!(refused.to_string().contains("not loaded"), "{refused}");
}

#[test]
fn a_share_of_the_requests_goes_to_what_nothing_changes() {
    let store = loaded(small());
    let fixed = Fixed { records: 100, sets: 2, share: 0.4, writes: 0.0, scans: 0.25, max_scan: 10, turn: None };
    let beside = |fixed| Beside::new(&*store, Ycsb::new(&*store, Options::of(Letter::A)).unwrap(), fixed);
    assert!(matches!(beside(fixed), Err(varve_lab::Error::NotLoaded(_))), "there are no such keyspaces");
    for set in 0..2 {
        let keyspace = store.keyspace(&fixed_name(set)).unwrap();
        transact(&*store, TxMode::ReadWrite, Durability::None, |tx| {
            let (mut rng, mut record) = (varve_rt::Rng::from_seed(1), Vec::new());
            for n in 0..100 {
                small().fill(n, &mut rng, &mut record);
                tx.put(&keyspace, &small().key(n), &record)?;
            }
            Ok(((), End::Commit))
        })
        .unwrap();
    }
    assert!(beside(Fixed { share: 1.5, ..fixed }).is_err() && beside(Fixed { records: 0, ..fixed }).is_err());
    let options = RunOptions { threads: 3, until: Until::Transactions(6000), ..RunOptions::default() };
    let result = run(&store, &Arc::new(beside(fixed).unwrap()), &options, |_| {}).unwrap();
    let count = |name: &str| result.kinds.iter().find(|kind| kind.name == name).unwrap().count as f64;
    let (reads, scans) = (count("fixed_read"), count("fixed_scan"));
    assert!(((reads + scans) / 6000.0 - 0.4).abs() < 0.03, "{reads} reads, {scans} scans");
    assert!((scans / (reads + scans) - 0.25).abs() < 0.04, "{reads} reads, {scans} scans");
    assert!((count("update") / (count("read") + count("update")) - 0.5).abs() < 0.05, "the rest is YCSB A");
    assert_eq!(count("fixed_write"), 0.0);
    // Records that are overwritten are still the records that they were.
    let written = Fixed { writes: 0.5, ..fixed };
    let result = run(&store, &Arc::new(beside(written).unwrap()), &options, |_| {}).unwrap();
    let count = |name: &str| result.kinds.iter().find(|kind| kind.name == name).unwrap().count as f64;
    let (writes, others) = (count("fixed_write"), count("fixed_read") + count("fixed_scan"));
    assert!((writes / (writes + others) - 0.5).abs() < 0.04, "{writes} writes, {others} others");
    assert!((count("fixed_scan") / others - 0.25).abs() < 0.05, "those that do not write are as before");
}

/// Points of an experiment end after as many requests as they are asked for, of all clients and kinds, or after a time.
#[test]
fn points_end_after_so_many_requests() {
    let text = |requests: &str| {
        let read = |text: &str| experiment::read("requests", "a test", text, Request::default());
        read(&format!(
            "[devices]\ndata.profile = \"disk-15k\"\n[engine]\ncache = \"4 MiB\"\n[run]\nclients = 3\nwarmup_s = 1\n\
             seconds = 2\n[workload.ycsb]\nletter = \"A\"\nrecords = 1000\n{requests}"
        ))
    };
    let dir = std::env::temp_dir().join(format!("varve-ycsb-requests-{}", std::process::id()));
    let how = RunHow { dir: dir.clone(), jobs: 1, fresh: true, commit: "test".into() };
    let figures = |requests: &str| {
        let experiment = text(requests).unwrap_or_else(|e| panic!("{e}"));
        let points = experiment::run(&experiment, &how, |_| {}).unwrap_or_else(|e| panic!("{e}"));
        (points[0].metrics["transactions"], points[0].metrics["seconds"], points[0].metrics["ops_per_s"])
    };
    let (requests, seconds, per_s) = figures("operations = 700");
    assert!(requests == 700.0 && (per_s * seconds - requests).abs() < 1e-6, "{requests} in {seconds} s, {per_s}/s");
    let (requests, longer, _) = figures("operations = 1400");
    assert!(requests == 1400.0 && longer > 1.5 * seconds, "{requests} in {longer} s, half of them in {seconds} s");
    assert_eq!(figures("").1, 2.0);
    std::fs::remove_dir_all(dir).expect("removed");
    let refused = text("operations = 0").map(drop).expect_err("refused").to_string();
    assert!(refused.contains("workload.ycsb.operations: 1 and more"), "{refused}");
}
