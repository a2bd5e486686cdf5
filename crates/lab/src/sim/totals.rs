//! What happened over all seeds: counts that must not stay zero, or the simulation tests less than it claims.

use std::collections::BTreeMap;

/// Every count, in the order of the report.
pub(crate) const NAMES: [&str; 37] = [
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
    "keyspaces created",
    "keyspaces dropped",
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
    "latched lives",
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
const SINGLE: [&str; 2] = ["compactions", "pages moved by compactions"];

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
pub struct Totals(BTreeMap<&'static str, u64>);

impl Totals {
    /// Adds `n` to a count.
    pub(crate) fn add(&mut self, name: &'static str, n: u64) {
        debug_assert!(
            NAMES.contains(&name) || SINGLE.contains(&name) || TIER.contains(&name) || is_fault(name),
            "{name} is not a count of the report"
        );
        *self.0.entry(name).or_default() += n;
    }

    /// Adds all of `other`.
    pub(crate) fn merge(&mut self, other: &Totals) {
        for (name, n) in &other.0 {
            *self.0.entry(name).or_default() += n;
        }
    }

    /// One count; 0 when it never happened.
    pub fn get(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// All counts in the order of the report, faults last.
    pub fn all(&self) -> Vec<(&'static str, u64)> {
        let faults = super::plan::FAULTS.iter().map(|(_, name)| *name);
        let on_tier = self.0.contains_key(TIER[0]);
        let (single, tier): (&[_], &[_]) = if on_tier { (&[], &TIER) } else { (&SINGLE, &[]) };
        NAMES
            .into_iter()
            .chain(single.iter().chain(tier).copied())
            .chain(faults)
            .map(|name| (name, self.get(name)))
            .collect()
    }

    /// Counts that are zero and must not be; `excused` may be besides.
    pub fn zeros(&self, excused: &[&str]) -> Vec<&'static str> {
        let must = |(name, n): &(&'static str, u64)| *n == 0 && !MAY_BE_ZERO.contains(name) && !excused.contains(name);
        self.all().into_iter().filter(must).map(|(name, _)| name).collect()
    }
}

fn is_fault(name: &str) -> bool {
    super::plan::FAULTS.iter().any(|(_, fault)| *fault == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_are_told_until_everything_has_happened() {
        let mut totals = Totals::default();
        assert!(totals.zeros(&[]).contains(&"crashes inside recovery") && totals.zeros(&[]).contains(&"log ENOSPC"));
        for (name, _) in totals.clone().all() {
            totals.add(name, 1);
        }
        assert_eq!(totals.zeros(&[]), Vec::<&str>::new());
        let mut twice = totals.clone();
        twice.merge(&totals);
        assert_eq!(twice.get("splits"), 2);
    }
}
