//! The crash simulation: a sweep with the second run of each seed in another process, the crash at every operation of a
//! small workload, and the broken builds, which must be caught.

use varve_lab::sim::{self, EveryWriteOptions, Mistake, PoolChoice, SimOptions};
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

/// Seeds within which each broken build must be caught.
const SEEDS_TO_CATCH: u64 = 500;

fn is_caught(breakage: Mistake) {
    is_caught_on("", breakage);
}

fn is_caught_on(tier: &str, breakage: Mistake) {
    let pool = PoolChoice { tier: tier.into(), ..PoolChoice::default() };
    let options = SimOptions { breakage: Some(breakage), most_findings: 1, pool, ..SimOptions::new(SEEDS_TO_CATCH) };
    let report = sim::run(&options, |_| {});
    let finding = report.findings.first().unwrap_or_else(|| panic!("{} is not caught", breakage.name()));
    eprintln!("{} after {} seeds: {}", breakage.name(), report.seeds, finding.what);
}

#[test]
fn page_before_log_is_caught() {
    is_caught(Mistake::PageBeforeLog);
}

#[test]
fn the_image_rule_of_the_completed_checkpoint_is_caught() {
    is_caught(Mistake::ImageRuleCompleted);
}

#[test]
fn a_redo_point_from_the_first_change_is_caught() {
    is_caught(Mistake::RedoFromFirstChange);
}

#[test]
fn an_acknowledgement_before_the_flush_is_caught() {
    is_caught(Mistake::AckBeforeFlush);
}

#[test]
fn a_skipped_log_flush_is_caught() {
    is_caught(Mistake::SkipLogFlush);
}

#[test]
fn a_skipped_superblock_flush_is_caught() {
    is_caught(Mistake::SkipSuperblockFlush);
}

#[test]
fn a_skipped_interval_lock_is_caught() {
    is_caught(Mistake::SkipIntervalLock);
}

#[test]
fn a_group_applied_in_part_is_caught() {
    is_caught(Mistake::PartialGroup);
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
fn a_tier_without_maps_is_caught() {
    is_caught_on("all", Mistake::TierNoMaps);
}

#[test]
fn a_tier_without_a_journal_is_caught() {
    is_caught_on("all", Mistake::TierNoJournal);
}
