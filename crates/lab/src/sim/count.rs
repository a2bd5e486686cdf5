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
        ("write sets spilled", stats.txn.spills),
        ("locks made coarser", stats.txn.lock_coarsened),
        ("commits in pieces", stats.txn.large_commits),
        ("old values spilled", stats.txn.versions_spilled),
        ("snapshots too old", stats.txn.snapshots_evicted),
        ("range deletes of subtrees", stats.txn.subtrees_cut),
    ] {
        shared.count(name, n);
    }
    stats.near.iter().for_each(|near| super::near::stats(near, shared));
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
    totals.add("commits in pieces that an opening finished", report.finished);
}
