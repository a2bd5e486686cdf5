//! The same drivers, generators and checkers in a simulation: virtual time, chaos, and equal runs for equal seeds.

use std::sync::Arc;
use std::time::Duration;

use varve_lab::adapter::mem::{Isolation, MemOptions, MemStore};
use varve_lab::driver::{RunOptions, RunResult, Until, run};
use varve_lab::history::generate::recorder;
use varve_lab::history::{AnomalyKind, CheckOptions, GenerateOptions, History, RealTime, check, generate};
use varve_lab::tpcc;
use varve_rt::sim::{self, Config};

fn simulate<T: Send + 'static>(seed: u64, chaos: bool, body: impl FnOnce() -> T + Send + 'static) -> (T, u64) {
    let outcome = sim::run(Config { seed, chaos, ..Config::default() }, body);
    let hash = outcome.hash;
    (outcome.result.unwrap_or_else(|failure| panic!("seed {seed}: {failure}")), hash)
}

fn store(isolation: Isolation) -> Arc<MemStore> {
    let (op_time, commit_time) = (Duration::from_micros(3), Duration::from_micros(100));
    Arc::new(MemStore::new(MemOptions { isolation, op_time, commit_time }))
}

/// A history, unless the generator itself saw the store contradict itself within a transaction (a range delete that
/// removes other keys than a scan had found).
fn generated(seed: u64, isolation: Isolation) -> (Result<History, String>, u64) {
    simulate(seed, true, move || {
        let (store, recorder) = (store(isolation), Arc::new(recorder("history")));
        let pause = Duration::from_micros(20);
        let options = GenerateOptions { seed, clients: 5, transactions: 60, pause, ..GenerateOptions::default() };
        generate(&store, &recorder, &options).map(|_| recorder.take()).map_err(|e| e.to_string())
    })
}

fn history(seed: u64, isolation: Isolation) -> (History, u64) {
    let (history, hash) = generated(seed, isolation);
    (history.unwrap_or_else(|e| panic!("seed {seed}: {e}")), hash)
}

#[test]
fn histories_repeat_and_are_serializable() {
    let strict = CheckOptions { real_time: RealTime::All, ..CheckOptions::default() };
    for seed in 0..20 {
        let (one, hash) = history(seed, Isolation::Serializable);
        let report = check(&one, &strict);
        assert!(report.serializable(), "seed {seed}\n{report}");
        assert!(report.committed > 150 && report.aborted > 0, "seed {seed}\n{report}");
        if seed < 3 {
            assert!(history(seed, Isolation::Serializable) == (one, hash), "seed {seed} repeats");
        }
    }
}

#[test]
fn weaker_isolation_is_found_out_within_a_few_seeds() {
    let cases = [
        (Isolation::Snapshot, AnomalyKind::G2Item),
        (Isolation::ReadCommitted, AnomalyKind::LostUpdate),
        (Isolation::Dirty, AnomalyKind::G1a),
        (Isolation::NoRangeChecks, AnomalyKind::G2Phantom),
    ];
    for (isolation, kind) in cases {
        let shows = |history: History| check(&history, &CheckOptions::default()).has(kind);
        let found = (0..40).any(|seed| generated(seed, isolation).0.is_ok_and(shows));
        assert!(found, "{isolation:?} shows {kind} within 40 seeds");
    }
}

fn tpcc_run(seed: u64, chaos: bool, think_times: bool, minutes: u64) -> (RunResult, u64) {
    let ((result, report), hash) = simulate(seed, chaos, move || {
        let store = store(Isolation::Serializable);
        tpcc::load(&store, tpcc::Scale::tiny(1), seed, 2, |_| {}).unwrap();
        let options = tpcc::Options { seed, think_times, ..tpcc::Options::default() };
        let workload = Arc::new(tpcc::Tpcc::new(&*store, options).unwrap());
        let until = if minutes > 0 { Until::Time(Duration::from_secs(60 * minutes)) } else { Until::Transactions(400) };
        let interval = Duration::from_secs(10);
        let run_options = RunOptions { threads: 10, until, interval, ..RunOptions::default() };
        let result = run(&store, &workload, &run_options, |_| {}).unwrap();
        (result, tpcc::check(&*store, |_, _| {}).unwrap())
    });
    assert!(report.consistent(), "seed {seed}\n{report}");
    (result, hash)
}

#[test]
fn tpcc_in_a_chaotic_simulation_stays_consistent_and_repeats() {
    for seed in 0..3 {
        let (one, two) = (tpcc_run(seed, true, false, 0), tpcc_run(seed, true, false, 0));
        assert_eq!(one.0.clock, "virtual");
        assert_eq!(one.1, two.1, "seed {seed}");
        assert_eq!(one.0.kinds, two.0.kinds, "seed {seed}");
        assert!(one.0.total.retries > 0, "ten terminals on one small warehouse meet");
    }
}

#[test]
fn keying_and_think_times_bound_the_rate() {
    // Ten terminals on one warehouse can make at most 12.86 new orders per minute (clause 4.1 and 5.2.5.7).
    let (result, _) = tpcc_run(7, false, true, 60);
    let tpmc = result.tpmc.unwrap();
    assert!((11.0..14.5).contains(&tpmc), "{tpmc}");
}
