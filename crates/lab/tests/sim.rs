//! The crash simulation: a sweep with the second run of each seed in another process, the crash at every operation of a
//! small workload, and the broken builds, which must be caught.

use varve_lab::sim::{self, EveryWriteOptions, PoolChoice, SimOptions};
use varve_lab::torture::Command;

/// Seeds of the sweep; more with `VARVE_SIM_SEEDS`.
fn seeds() -> u64 {
    std::env::var("VARVE_SIM_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(40)
}

/// Set in the second process of the sweep.
const SECOND: &str = "VARVE_TEST_SECOND";

/// What the second process runs; in the first one it has nothing to do.
#[test]
fn second_process() {
    if std::env::var_os(SECOND).is_some() {
        std::process::exit(sim::child_main());
    }
}

#[test]
fn seeds_find_nothing_and_run_equally_in_two_processes() {
    let second = Command::current(&["--exact", "second_process", "--nocapture"]).unwrap().with_env(SECOND, "1");
    let options = SimOptions { second: Some(second), ..SimOptions::new(seeds()) };
    let report = sim::run(&options, |_| {});
    for finding in &report.findings {
        eprintln!("{finding}");
    }
    assert!(
        report.is_clean(),
        "not equal: {:?}, zeros: {:?}, {:?}",
        report.not_deterministic,
        report.zeros,
        report.second_process
    );
    assert_eq!((report.seeds, report.compared), (options.seeds, options.seeds));
}

#[test]
fn a_cut_at_any_operation_loses_nothing() {
    let last = if cfg!(debug_assertions) { Some(150) } else { None };
    let report = sim::every_write(&EveryWriteOptions { last, ..EveryWriteOptions::new() }, |_| {});
    for finding in &report.findings {
        eprintln!("{finding}");
    }
    assert!(report.findings.is_empty());
    assert!(report.operations >= 100, "only {} operations were cut", report.operations);
}

#[test]
fn tiers_of_all_managers_find_nothing() {
    let pool = PoolChoice { tier: "all".into(), ..PoolChoice::default() };
    let report = sim::run(&SimOptions { pool, ..SimOptions::new(seeds()) }, |_| {});
    for finding in &report.findings {
        eprintln!("{finding}");
    }
    assert!(report.findings.is_empty(), "{} findings", report.findings.len());
    let count = |name: &str| report.totals.iter().find(|(n, _)| *n == name).map_or(0, |(_, n)| *n);
    for name in ["tier: reads from the fast device", "tier: pages copied home", "tier: maps", "tier: journal records"] {
        assert!(count(name) > 0, "{name} never happened");
    }
}

#[test]
fn crashes_on_an_array_lose_nothing() {
    let pool = PoolChoice { array: true, ..PoolChoice::default() };
    let report = sim::run(&SimOptions { pool, ..SimOptions::new(seeds()) }, |_| {});
    for finding in &report.findings {
        eprintln!("{finding}");
    }
    assert!(report.findings.is_empty(), "{} findings", report.findings.len());
}

#[test]
fn crashes_on_native_flash_lose_nothing() {
    let pool = PoolChoice { flash: true, ..PoolChoice::default() };
    let report = sim::run(&SimOptions { pool, ..SimOptions::new(seeds()) }, |_| {});
    for finding in &report.findings {
        eprintln!("{finding}");
    }
    assert!(report.findings.is_empty(), "{} findings", report.findings.len());
}

#[test]
fn crashes_beside_a_worker_lose_nothing() {
    let pool = PoolChoice { near: true, ..PoolChoice::default() };
    let report = sim::run(&SimOptions { pool, ..SimOptions::new(seeds() / 10) }, |_| {});
    for finding in &report.findings {
        eprintln!("{finding}");
    }
    assert!(report.findings.is_empty(), "{} findings", report.findings.len());
    let count = |name: &str| report.totals.iter().find(|(n, _)| *n == name).map_or(0, |(_, n)| *n);
    for name in ["near: parts of merges by the worker", "near: link cut", "near: worker killed"] {
        assert!(count(name) > 0, "{name} never happened");
    }
}

/// Mistakes that a few seeds find. `varve sim --broken all` tries all there are; `docs/testing.md` says how many seeds
/// each takes.
const SOON: &[&str] = &[
    "image-rule-completed",
    "ack-before-flush",
    "skip-log-flush",
    "skip-superblock-flush",
    "skip-interval-lock",
    "floor-not-raised",
    "no-images",
    "page-not-stamped",
    "dirty-after-append",
    "checkpoint-skips-pages",
    "redo-at-completion",
    "durable-past-gap",
    "ack-a-block-early",
    "unlock-before-commit",
    "reads-not-locked",
    "spill-forgotten",
    "versions-dropped-early",
    "former-forgotten",
    "memtable-forgotten",
    "segment-unsynced",
    "near-overlap",
    "near-any-answer",
    "savepoint-kept",
    "count-ignores-own",
    "long-value-leaks",
    "free-not-logged",
    "alloc-not-logged",
    "array-no-map",
    "flash-no-scan",
    "flash-no-numbers",
    "tier-no-maps",
    "tier-no-journal",
];

/// Seeds within which those must be caught.
const SEEDS_TO_CATCH: u64 = 40;

#[test]
fn mistakes_are_caught() {
    for name in SOON {
        let caught = sim::catch(name.parse().expect("it is in the table"), SEEDS_TO_CATCH, 2);
        eprintln!("{name}: {:?}, {}", caught.seed, caught.finding);
        assert!(caught.seed.is_some(), "{name} is not caught by {SEEDS_TO_CATCH} seeds");
    }
}

/// Its merges panic each time that they are begun. (Without debug assertions they go on for a while, and scans over
/// what it has listed go round for ever: `in_order` and the executors have tests of their own for that.)
#[test]
fn a_host_that_panics_in_its_merges_is_a_finding_and_the_life_ends() {
    let pool = PoolChoice { near: true, ..PoolChoice::default() };
    let breakage = Some("near-overlap".parse().expect("it is in the table"));
    let options = SimOptions { breakage, first_seed: 6, pool, ..SimOptions::new(1) };
    let findings = sim::run(&options, |_| {}).findings;
    assert!(findings.iter().any(|finding| finding.what.contains("panicked")), "{findings:?}");
}
