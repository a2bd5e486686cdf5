//! What happened over all seeds: counts that must not stay zero, or the simulation tests less than it claims.

use super::drives;
use super::epilogue::PageFaults;
use super::faults::Struck;
use super::near;
use super::tables::Table;
use std::collections::BTreeMap;

/// Every count, in the order of the report.
pub(crate) const NAMES: [&str; 68] = [
    "commits",
    "commits sync",
    "commits async",
    "commits none",
    "rollbacks",
    "rollbacks to savepoint",
    "conflicts",
    "snapshots",
    "single operations",
    "rows scanned",
    "range deletes",
    "range deletes of their own",
    "range deletes of subtrees",
    "large transactions",
    "large transactions refused by a full device",
    "write sets spilled",
    "locks made coarser",
    "commits in pieces",
    "commits in pieces that an opening finished",
    "cuts in a large commit",
    "old values spilled",
    "snapshots too old",
    "keyspaces created",
    "keyspaces dropped",
    "cleared under a snapshot",
    "renamed under a snapshot",
    "dropped under a snapshot",
    "bulk loads",
    "bulk loads in the place of a keyspace",
    "backups, whole",
    "backups, incremental",
    "backups beside a checkpoint",
    "backups beside a commit in pieces",
    "incremental backups after a bulk load",
    "backups refused",
    "overflow values",
    "evictions clean",
    "evictions dirty",
    "page writes",
    "splits",
    "merges",
    "page images logged",
    "checkpoints",
    "lives",
    "crashes",
    "crashes inside recovery",
    "clean closes",
    "closes refused",
    "dropped without a close",
    "made over another database",
    "cuts while that is made, or right after",
    "panics inside a group",
    "panics of who writes the log",
    "panics of the flusher",
    "panics of the checkpointer",
    "panics of a cleaner",
    "poisoned lives",
    "recoveries",
    "images used",
    "torn pages healed",
    "in-flight commits that survived",
    "unacknowledged or lazy commits lost",
    "sectors lost",
    "sectors reordered",
    "writes torn",
    "errors seen by clients",
    "transactions refused as too large",
    "damage found by check",
];

/// Further counts without a tier.
const SINGLE: [&str; 3] = ["compactions", "pages moved by compactions", "incremental backups after a compaction"];

/// Further counts with a tier.
const TIER: [&str; 8] = [
    "tier: reads from the fast device",
    "tier: clean pages admitted",
    "tier: dirty pages admitted",
    "tier: pages overwritten",
    "tier: copies invalidated",
    "tier: pages copied home",
    "tier: maps",
    "tier: journal records",
];

/// Counts that may stay zero: not every option exists in every build, and damage must not be found.
const MAY_BE_ZERO: [&str; 2] = ["damage found by check", "transactions refused as too large"];

/// Counts by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    counts: BTreeMap<&'static str, u64>,
    /// Errors of single operations.
    pub(crate) struck: Struck,
    /// Writes that were not done as asked.
    pub(crate) page_faults: PageFaults,
}

impl Totals {
    /// Adds `n` to a count.
    pub(crate) fn add(&mut self, name: &'static str, n: u64) {
        debug_assert!(
            [&NAMES[..], &SINGLE, &TIER, &drives::COUNTS, &near::COUNTS].iter().any(|names| names.contains(&name)),
            "{name} is not a count of the report"
        );
        *self.counts.entry(name).or_default() += n;
    }

    /// Adds all of `other`.
    pub(crate) fn merge(&mut self, other: &Totals) {
        self.struck.merge(&other.struck);
        self.page_faults.merge(&other.page_faults);
        for (name, n) in &other.counts {
            *self.counts.entry(name).or_default() += n;
        }
    }

    /// One count; 0 when it never happened.
    pub fn get(&self, name: &str) -> u64 {
        self.counts.get(name).copied().unwrap_or(0)
    }

    fn on_tier(&self) -> bool {
        self.counts.contains_key(TIER[0])
    }

    /// Faults that never struck an operation.
    pub fn never_struck(&self) -> Vec<String> {
        self.struck.table(self.on_tier()).empty_cells()
    }

    /// How often things that can meet met.
    pub fn tables(&self) -> Vec<Table> {
        vec![self.struck.table(self.on_tier()), self.page_faults.table()]
    }

    /// All counts in the order of the report.
    pub fn all(&self) -> Vec<(&'static str, u64)> {
        let on_tier = self.on_tier();
        let (single, tier): (&[_], &[_]) = if on_tier { (&[], &TIER) } else { (&SINGLE, &[]) };
        let array: &[_] = if self.counts.contains_key(drives::COUNTS[0]) { &drives::COUNTS } else { &[] };
        let near: &[_] = if self.counts.contains_key(near::COUNTS[0]) { &near::COUNTS } else { &[] };
        let more = single.iter().chain(tier).chain(array).chain(near).copied();
        NAMES.into_iter().chain(more).map(|name| (name, self.get(name))).collect()
    }

    /// Counts that are zero and must not be; `excused` may be besides.
    pub fn zeros(&self, excused: &[&str]) -> Vec<&'static str> {
        let must = |(name, n): &(&'static str, u64)| *n == 0 && !MAY_BE_ZERO.contains(name) && !excused.contains(name);
        self.all().into_iter().filter(must).map(|(name, _)| name).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_are_told_until_everything_has_happened() {
        let mut totals = Totals::default();
        assert!(totals.zeros(&[]).contains(&"crashes inside recovery"));
        for (name, _) in totals.clone().all() {
            totals.add(name, 1);
        }
        assert_eq!(totals.zeros(&[]), Vec::<&str>::new());
        let mut twice = totals.clone();
        twice.merge(&totals);
        assert_eq!(twice.get("splits"), 2);
    }
}
