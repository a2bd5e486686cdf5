//! Damage at rest, of all files and in all states: nothing is lost without a word, nothing is read wrong, nothing
//! panics or goes on for ever. The broken builds, which lack one comparison each, must be caught.

use varve::Mistake;
use varve_lab::sim::{self, Class, DamageOptions, DamageReport};

/// Damages of each state; more with `VARVE_DAMAGES`.
fn damages() -> u64 {
    std::env::var("VARVE_DAMAGES").ok().and_then(|n| n.parse().ok()).unwrap_or(150)
}

fn run(options: &DamageOptions) -> DamageReport {
    let report = sim::damage(options, |_| {});
    report.failures.iter().for_each(|failure| eprintln!("{failure}"));
    report.findings.iter().take(40).for_each(|finding| eprintln!("{finding}"));
    for row in &report.rows {
        let counts: Vec<String> =
            report.classes.iter().zip(row.counts).filter(|(_, n)| *n > 0).map(|(c, n)| format!("{n} {c}")).collect();
        eprintln!("{:10} {:4} {:12} {}", row.state, row.file, row.kind, counts.join(", "));
    }
    eprintln!("{} damages in {:.1} s", report.damages, report.seconds);
    report
}

/// Kinds of damage that leave a block which cannot be a page, or not this one.
const NO_PAGE: [&str; 4] = ["bit flip", "zeros", "noise", "other block"];

/// No answer was wrong after damages of these kinds.
fn assert_sound(report: &DamageReport) {
    assert!(report.failures.is_empty());
    for row in report.rows.iter().filter(|row| NO_PAGE.contains(&row.kind)) {
        for (class, count) in Class::ALL.iter().zip(row.counts) {
            assert!(!class.is_fault() || *class == Class::Unnamed || count == 0, "{row:?}");
        }
    }
}

#[test]
fn damages_of_a_single_device_are_survived_or_named() {
    let report = run(&DamageOptions::new(damages()));
    assert!(report.is_clean());
    assert!(report.count(Class::Right) > 0 && report.count(Class::Named) > 0);
}

#[test]
fn damages_of_a_tier_are_survived_or_named() {
    let report = run(&DamageOptions { tier: Some("all".into()), ..DamageOptions::new(damages()) });
    assert!(report.is_clean());
    assert!(report.count(Class::Right) > 0 && report.count(Class::Named) > 0);
}

#[test]
fn no_stale_page_is_believed_where_versions_are_remembered() {
    let report = run(&DamageOptions { detect: true, ..DamageOptions::new(damages()) });
    assert_sound(&report);
}

#[test]
fn a_damage_can_be_done_again() {
    let options = DamageOptions::new(40);
    let again = DamageOptions { jobs: 1, ..options.clone() };
    assert_eq!(run(&options).rows, run(&again).rows);
}

/// Seeds of crashes; those of damages that take as long must catch each broken build.
const SEEDS_TO_CATCH: u64 = 2000;

#[test]
fn builds_that_lack_a_comparison_are_caught() {
    for &mistake in Mistake::ALL.iter().filter(|mistake| mistake.is_about_damage()) {
        let caught = sim::catch(mistake, SEEDS_TO_CATCH, 2);
        eprintln!("{}: {}", caught.name, caught.finding);
        assert!(caught.seed.is_some(), "{} is not caught", caught.name);
    }
}
