//! The crash simulation: whole databases on simulated machines, with concurrent clients, power cuts, device errors and
//! full devices, compared with a reference model after every crash. Everything follows from a seed.
//!
//! Layers of this module, upper to lower: [`run`] (many seeds, two processes) over `seed` (one machine, its lives and
//! crashes) over `life` (open, compare, load, clients) over `client` (transactions, `backups`, `reshape`) over `book`
//! (what clients write down). `near` is a worker's machine. `ghosts` and `panics` are what may happen to an open
//! database besides. `plan`, `script`, `rows`, `faults`, `tables` and `model` are pure. `docs/testing.md` says what is
//! simulated and what is not.

mod array;
mod backups;
mod book;
mod broken;
mod client;
mod count;
mod damage;
mod drives;
mod epilogue;
mod every_write;
mod faults;
mod flash;
mod ghosts;
mod judge;
mod life;
mod machine;
mod model;
mod near;
mod panics;
mod plan;
mod pool;
mod reshape;
mod rows;
mod script;
mod seed;
mod single;
mod sweep;
mod tables;
mod tier;
mod totals;

pub use broken::{Caught, catch, layout_for};
pub use damage::{Class, DamageFinding, DamageOptions, DamageReport, DamageRow, State, damage_only, run as damage};
pub use every_write::{EveryWriteOptions, EveryWriteReport, every_write};
pub use pool::PoolChoice;
pub(crate) use pool::PoolText;
pub use sweep::{Finding, SimOptions, SimProgress, SimReport, child_main, run};
pub use tables::Table;
pub(crate) use tier::manager as tier_manager;
pub use totals::Totals;
pub use varve::Mistake;

use std::sync::Arc;

/// Runs one seed and prints every event (device operations, transactions, crashes) through `sink`. Returns the finding,
/// if there is one.
pub fn trace(
    seed: u64,
    pool: &PoolChoice,
    breakage: Option<Mistake>,
    sink: impl Fn(&str) + Send + Sync + 'static,
) -> Option<Finding> {
    let sink: book::Sink = Arc::new(sink);
    sink(&format!("{:#?}", plan::Plan::draw(seed)));
    let result = seed::run(seed, pool, breakage, book::Trace::to(sink));
    result.wrong.map(|what| Finding::new(seed, what, pool, breakage))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traced_run_is_the_same_run() {
        for seed in [3, 7] {
            let run = |trace| seed::run(seed, &PoolChoice::default(), None, trace).hash;
            let sink: book::Sink = Arc::new(|_: &str| {});
            assert_eq!(run(book::Trace::off()), run(book::Trace::to(sink)), "seed {seed}");
        }
    }
}
