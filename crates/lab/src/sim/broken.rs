//! Builds broken on purpose: runs seeds with one mistake built in until one of them finds it, each on the layout and
//! with the options that the mistake needs to show.

use super::damage::{Class, DamageOptions, run as damage};
use super::pool::PoolChoice;
use super::sweep::{self, SimOptions};
use super::tier;
use serde::Serialize;
use varve::Mistake;

/// Damages of each state that a seed of `varve sim --damage` does here: few first, as most mistakes show at once.
const DAMAGES: [u64; 2] = [100, 1500];
/// A seed of damages stands for so many of crashes.
const SEEDS_PER_DAMAGES: u64 = 500;

/// What became of a mistake.
#[derive(Clone, Debug, Serialize)]
pub struct Caught {
    /// Its name.
    pub name: &'static str,
    /// The part of the engine that makes it.
    pub place: &'static str,
    /// What is done wrong.
    pub mistake: &'static str,
    /// Arguments of the tool with which the seeds were run.
    pub by: String,
    /// The lowest seed that found it; none: none did.
    pub seed: Option<u64>,
    /// What that seed saw.
    pub finding: String,
}

/// Runs seeds 1 to `seeds` with `mistake` built in until it is found. A mistake that only damage at rest shows gets
/// damages in place of crashes, of as many seeds as take about as long.
pub fn catch(mistake: Mistake, seeds: u64, jobs: usize) -> Caught {
    let (by, found) = match mistake.is_about_damage() {
        true => by_damage(mistake, seeds.div_ceil(SEEDS_PER_DAMAGES), jobs.max(1)),
        false => by_crashes(mistake, seeds, jobs.max(1)),
    };
    let (seed, finding) = found.map_or((None, String::new()), |(seed, what)| (Some(seed), what));
    Caught { name: mistake.name(), place: mistake.place(), mistake: mistake.what(), by, seed, finding }
}

/// The layout on which a mistake is made, if it is not made on any.
pub fn layout_for(mistake: Mistake, pool: PoolChoice) -> PoolChoice {
    match mistake.place() {
        "tier" if pool.tier.is_empty() => PoolChoice { tier: tier::ALL.to_string(), ..pool },
        "array" => PoolChoice { array: true, ..pool },
        "flash" => PoolChoice { flash: true, ..pool },
        "lsm" => PoolChoice { lsm: true, ..pool },
        "near" => PoolChoice { near: true, ..pool },
        _ => pool,
    }
}

type Found = (String, Option<(u64, String)>);

fn by_crashes(mistake: Mistake, seeds: u64, jobs: usize) -> Found {
    let pool = layout_for(mistake, PoolChoice::default());
    let by = format!("sim{}", pool.arguments());
    let options = SimOptions { breakage: Some(mistake), most_findings: 1, jobs, pool, ..SimOptions::new(seeds) };
    let found = sweep::run(&options, |_| {}).findings.into_iter().next();
    (by, found.map(|finding| (finding.seed, finding.what)))
}

fn by_damage(mistake: Mistake, seeds: u64, jobs: usize) -> Found {
    let detect = mistake == Mistake::MarksNotKept;
    let by = |damages| format!("sim --damage {damages}{}", if detect { " --detect-lost-writes" } else { "" });
    let of_seed = |damages, seed| {
        let breakage = Some(mistake);
        let options = DamageOptions { breakage, seed, detect, jobs, most_findings: 1, ..DamageOptions::new(damages) };
        let report = damage(&options, |_| {});
        // An untrue answer, or a database that is wrong without any damage.
        let findings = report.findings.iter().filter(|finding| finding.class != Class::Unnamed);
        let what = report.failures.first().cloned().or_else(|| findings.map(ToString::to_string).next());
        what.map(|what| (by(damages), Some((seed, what))))
    };
    let mut tries = DAMAGES.into_iter().flat_map(|damages| (1..=seeds).map(move |seed| (damages, seed)));
    tries.find_map(|(damages, seed)| of_seed(damages, seed)).unwrap_or((by(DAMAGES[1]), None))
}
