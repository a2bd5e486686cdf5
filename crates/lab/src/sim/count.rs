//! From the engine's statistics to the report's counts.

use super::book::Shared;
use super::totals::Totals;
use varve::{RecoveryReport, Stats};

/// Counts of one life.
pub(crate) fn stats(stats: &Stats, shared: &Shared) {
    let pages = stats.pool.total();
    for (name, n) in [
        ("evictions clean", pages.evicted_clean),
        ("evictions dirty", pages.evicted_dirty),
        ("page writes", pages.written),
        ("splits", stats.changes.splits),
        ("merges", stats.changes.merges),
        ("page images logged", stats.changes.images),
        ("checkpoints", stats.checkpoints.completed),
    ] {
        shared.count(name, n);
    }
    let Some(tier) = &stats.tier else { return };
    let c = &tier.counters;
    for (name, n) in [
        ("tier: reads from the fast device", c.fast_reads + c.staged_reads),
        ("tier: clean pages admitted", c.clean_admitted),
        ("tier: dirty pages admitted", c.dirty_admitted),
        ("tier: pages overwritten", c.overwrites),
        ("tier: copies invalidated", c.invalidated),
        ("tier: pages copied home", c.slow_copies),
        ("tier: maps", c.maps),
        ("tier: journal records", c.journal_records),
    ] {
        shared.count(name, n);
    }
}

/// Counts of one recovery.
pub(crate) fn recovery(report: &RecoveryReport, totals: &mut Totals) {
    totals.add("recoveries", 1);
    totals.add("images used", report.images);
}
