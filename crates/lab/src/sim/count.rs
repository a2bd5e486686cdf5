//! From the engine's statistics to the report's counts.

use super::book::Shared;
use super::totals::Totals;
use varve::{RecoveryReport, Stats};

/// Counts of one life.
pub(crate) fn stats(stats: &Stats, shared: &Shared) {
    let _ = (stats, shared);
}

/// Counts of one recovery.
pub(crate) fn recovery(report: &RecoveryReport, totals: &mut Totals) {
    totals.add("recoveries", 1);
    totals.add("images used", report.pages_imaged);
    totals.add("torn pages healed", report.torn_pages_healed);
}
