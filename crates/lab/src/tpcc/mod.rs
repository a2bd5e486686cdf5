//! TPC-C (revision 5.11) over a [`Store`]: nine tables, five transactions, the twelve consistency conditions.
//!
//! Where the specification leaves room, we choose: the Delivery transaction runs at once instead of from a queue, all
//! districts in one database transaction; the two read-only transactions run as [`TxMode::ReadOnly`]; rows are locked
//! from the least to the most contended (stock, then district, then warehouse), which the profiles allow and which
//! keeps hot locks short; a retried transaction keeps its inputs.
//!
//! [`TxMode::ReadOnly`]: crate::adapter::TxMode::ReadOnly

pub mod check;
mod check_district;
mod check_index;
pub mod inputs;
pub mod load;
pub mod random;
pub mod row;
pub mod schema;
mod transactions;

use std::sync::Arc;

use varve_rt::Rng;

pub use check::{CheckReport, Condition, Failure, check};
pub use inputs::Mix;
pub use load::{LoadProgress, Loaded, load, loaded};
pub use random::Scale;
pub use transactions::Terminal;

use crate::adapter::{Durability, Store};
use crate::driver::Workload;
use crate::error::{Error, Result};
use inputs::{Inputs, KINDS};
use random::NuRandC;
use schema::Tables;

/// Now, in microseconds since 1970.
pub(crate) fn date_now() -> u64 {
    varve_rt::unix_time() / 1000
}

/// How TPC-C is run.
#[derive(Debug, Clone)]
pub struct Options {
    /// How transaction types are drawn.
    pub mix: Mix,
    /// Keying and think times of clause 5.2.5.7.
    pub think_times: bool,
    /// The read-only variant: updates become reads, inserts and deletes are left out.
    pub read_only: bool,
    /// Durability of the commits.
    pub durability: Durability,
    /// Seed of the inputs.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options { mix: Mix::default(), think_times: false, read_only: false, durability: Durability::Sync, seed: 1 }
    }
}

/// The workload over loaded data.
pub struct Tpcc<S: Store> {
    tables: Arc<Tables<S>>,
    loaded: Loaded,
    c_run: NuRandC,
    options: Options,
}

impl<S: Store> Tpcc<S> {
    /// Prepares a run over the data the store holds.
    ///
    /// Errors: there is no completely loaded data, or the store failed.
    pub fn new(store: &S, options: Options) -> Result<Tpcc<S>> {
        options.mix.validate()?;
        let loaded = load::loaded(store)?.ok_or_else(|| Error::NotLoaded("it holds no complete TPC-C data".into()))?;
        let c_run = NuRandC::for_run(&loaded.c_load, &mut Rng::from_seed(options.seed));
        let tables = Arc::new(Tables::open(store, loaded.scale.foreign_keys)?);
        Ok(Tpcc { tables, loaded, c_run, options })
    }

    /// What the loader wrote down about the data.
    pub fn loaded(&self) -> &Loaded {
        &self.loaded
    }
}

impl<S: Store> Workload<S> for Tpcc<S> {
    type Client = Terminal<S>;

    fn name(&self) -> &str {
        if self.options.read_only { "tpcc-read-only" } else { "tpcc" }
    }

    fn kinds(&self) -> &'static [&'static str] {
        &KINDS
    }

    fn client(&self, _store: &Arc<S>, thread: usize, threads: usize) -> Result<Terminal<S>> {
        let rng = Rng::from_seed(self.options.seed ^ (thread as u64 + 1).wrapping_mul(0xd134_2543_de82_ef95));
        let inputs = Inputs::new(self.loaded.scale, self.c_run, &self.options, (thread, threads), rng);
        Ok(Terminal::new(self.tables.clone(), inputs, &self.options))
    }

    fn counted_kind(&self) -> Option<usize> {
        Some(inputs::NEW_ORDER)
    }
}
