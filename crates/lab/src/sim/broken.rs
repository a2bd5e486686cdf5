//! Builds broken on purpose: runs seeds with one mistake built in until one of them finds it.

use super::pool::PoolChoice;
use super::sweep::{self, SimOptions};
use super::tier;
use serde::Serialize;
use varve::Mistake;

/// What became of a mistake.
#[derive(Clone, Debug, Serialize)]
pub struct Caught {
    /// Its name.
    pub name: &'static str,
    /// The part of the engine that makes it.
    pub place: &'static str,
    /// What is done wrong.
    pub mistake: &'static str,
    /// The lowest seed that found it; none: none did.
    pub seed: Option<u64>,
    /// What that seed saw.
    pub finding: String,
}

/// Runs seeds 1 to `seeds` with `mistake` built in until it is found, on the layout where it is made.
pub fn catch(mistake: Mistake, seeds: u64, jobs: usize) -> Caught {
    let tier = if mistake.place() == "tier" { tier::ALL } else { "" };
    let pool = PoolChoice { tier: tier.to_string(), ..PoolChoice::default() };
    let options =
        SimOptions { breakage: Some(mistake), most_findings: 1, jobs: jobs.max(1), pool, ..SimOptions::new(seeds) };
    let found = sweep::run(&options, |_| {}).findings.into_iter().next();
    let seed = found.as_ref().map(|finding| finding.seed);
    let finding = found.map_or_else(String::new, |finding| finding.what);
    Caught { name: mistake.name(), place: mistake.place(), mistake: mistake.what(), seed, finding }
}
