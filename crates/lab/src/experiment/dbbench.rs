//! `[workload.dbbench]` of an experiment: one of the benchmarks, on what another has written.

use super::spec::Spec;
use crate::adapter::Durability;
use crate::adapter::varve::VarveStore;
use crate::dbbench::{self, BESIDE, Benchmark, KEYSPACE, Totals};
use crate::driver::{self, RunOptions, Until};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use varve::KeyspaceKind;

/// `[workload.dbbench]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DbBench {
    /// Which one: `fillseq`, `fillrandom`, ...
    pub benchmark: Benchmark,
    /// What was written before the point begins, without being measured; left out: nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load: Option<Benchmark>,
    /// Keys are numbers below this. As many entries does `load` write.
    pub num: u64,
    /// Entries, look-ups or rows after which the run ends, of all clients; left out: it ends after `run.seconds`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operations: Option<u64>,
    /// Bytes of a key.
    pub key_size: u32,
    /// Bytes of a value.
    pub value_size: u32,
    /// Larger values among them; of `fillrandom` and `overwrite`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub large: Option<Large>,
    /// Of the same: the share of requests that look a key up instead.
    #[serde(skip_serializing_if = "is_nothing")]
    pub reads: f64,
    /// Entries of a commit.
    pub batch: u32,
    /// Entries that each commit writes to a tree besides.
    #[serde(skip_serializing_if = "is_zero")]
    pub beside: u32,
    /// What values compress to, as a share.
    pub compression_ratio: f64,
    /// Rows that `seekrandom` reads after the first.
    pub seek_nexts: u32,
    /// Flushes and merges that are due when the run has ended belong to it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub settle: bool,
    /// Seed of what `load` writes.
    pub load_seed: u64,
}

/// `[workload.dbbench.large]`
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Large {
    /// Bytes of a large value.
    pub value_size: u32,
    /// The share of entries that have one, within the part of the run that follows.
    pub share: f64,
    /// Where that part begins and ends, as shares of `operations`.
    pub from: f64,
    /// See `from`.
    pub until: f64,
}

impl Default for Large {
    fn default() -> Large {
        Large { value_size: 65_536, share: 0.5, from: 0.0, until: 1.0 }
    }
}

impl Large {
    /// As one of so many clients takes it; `operations` are those of all.
    fn of(&self, operations: Option<u64>, clients: usize) -> dbbench::Large {
        let each = operations.map_or(0.0, |n| n as f64 / clients.max(1) as f64);
        let (from, until) = ((self.from * each).round() as u64, (self.until * each).round() as u64);
        let until = if self.until >= 1.0 { u64::MAX } else { until };
        dbbench::Large { value_size: self.value_size, share: self.share, from, until }
    }
}

fn is_nothing(share: &f64) -> bool {
    *share == 0.0
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

impl Default for DbBench {
    fn default() -> DbBench {
        let o = dbbench::Options::default();
        DbBench {
            benchmark: Benchmark::FillRandom,
            load: None,
            num: o.num,
            operations: None,
            key_size: o.key_size,
            value_size: o.value_size,
            large: None,
            reads: 0.0,
            batch: o.batch,
            beside: 0,
            compression_ratio: o.compression_ratio,
            seek_nexts: 0,
            settle: false,
            load_seed: o.seed,
        }
    }
}

/// What is loaded, as far as it decides what the database holds.
#[derive(Clone, Serialize)]
pub(super) struct Load {
    benchmark: Option<Benchmark>,
    num: u64,
    key_size: u32,
    value_size: u32,
    compression_ratio: f64,
    beside: bool,
    seed: u64,
}

/// Entries of a commit of the load.
const BATCH: u32 = 100;

impl DbBench {
    /// What is wrong: the key, and what is accepted.
    pub(super) fn validate(&self) -> Result<(), (String, String)> {
        if let Some(load) = self.load.filter(|load| !load.is_fill()) {
            let what = format!("{}: fillseq and fillrandom are possible", load.name());
            return Err(("workload.dbbench.load".into(), what));
        }
        if self.operations == Some(0) {
            return Err(("workload.dbbench.operations".into(), "1 and more are possible".into()));
        }
        if let Some(large) = self.large {
            let refuse = |key: &str, why: &str| Err((format!("workload.dbbench.large.{key}"), why.to_string()));
            if ![large.from, large.until].iter().all(|place| (0.0..=1.0).contains(place)) {
                return refuse("from", "large.from and large.until are shares of the run, from 0 to 1");
            }
            if self.operations.is_none() && (large.from > 0.0 || large.until < 1.0) {
                return refuse("from", "give workload.dbbench.operations, of which it is a share");
            }
        }
        let options = self.options(0, Default::default(), 1);
        match options.validate().and_then(|()| options.fit(self.benchmark)) {
            Err(crate::Error::Option { name, why }) => Err((format!("workload.dbbench.{name}"), why)),
            _ => Ok(()),
        }
    }

    /// As the workload takes them, with so many clients.
    pub(super) fn options(&self, seed: u64, durability: Durability, clients: usize) -> dbbench::Options {
        dbbench::Options {
            num: self.num,
            key_size: self.key_size,
            value_size: self.value_size,
            large: self.large.map(|large| large.of(self.operations, clients)),
            reads: self.reads,
            batch: self.batch,
            beside: self.beside,
            compression_ratio: self.compression_ratio,
            seek_nexts: self.seek_nexts,
            durability,
            seed,
        }
    }

    pub(super) fn load(&self) -> Load {
        Load {
            benchmark: self.load,
            num: self.num,
            key_size: self.key_size,
            value_size: self.value_size,
            compression_ratio: self.compression_ratio,
            beside: self.beside > 0,
            seed: self.load_seed,
        }
    }

    /// When its run ends, with so many clients that count.
    pub(super) fn until(&self, clients: usize, seconds: f64) -> Until {
        let options = self.options(0, Default::default(), clients);
        match self.operations {
            Some(n) => Until::Transactions(options.requests(self.benchmark, n.div_ceil(clients as u64), clients)),
            None => Until::Time(std::time::Duration::from_secs_f64(seconds)),
        }
    }
}

impl Load {
    /// Makes the keyspaces and fills them. All that is due is merged at the end.
    pub(super) fn run(&self, spec: &Spec, store: &Arc<VarveStore>) -> crate::Result<()> {
        let db = store.db();
        db.create_keyspace_of(KEYSPACE, spec.kind())?;
        if self.beside {
            db.create_keyspace_of(BESIDE, KeyspaceKind::Tree)?;
        }
        let Some(benchmark) = self.benchmark else { return Ok(()) };
        let beside = if self.beside { BATCH } else { 0 };
        let options = dbbench::Options {
            num: self.num,
            key_size: self.key_size,
            value_size: self.value_size,
            batch: BATCH,
            beside,
            compression_ratio: self.compression_ratio,
            seed: self.seed,
            ..dbbench::Options::default()
        };
        let workload = Arc::new(dbbench::DbBench::new(&**store, benchmark, options)?);
        let until = Until::Transactions(options.requests(benchmark, self.num, 1));
        driver::run(store, &workload, &RunOptions { threads: 1, until, ..RunOptions::default() }, |_| {})?;
        db.wait_for_merges()?;
        Ok(())
    }
}

/// Figures of what was done in so many seconds.
pub(super) fn figures(put: &mut impl FnMut(&str, f64), done: &Totals, seconds: f64) {
    let mib = f64::from(1 << 20);
    put("dbbench.operations", done.operations as f64);
    put("dbbench.ops_per_s", done.operations as f64 / seconds);
    put("dbbench.mb_per_s", done.bytes as f64 / mib / seconds);
    put("dbbench.written_mib", done.written as f64 / mib);
    put("dbbench.found", done.found as f64);
}

/// Bytes written to all devices for each byte that the workload wrote.
pub(super) fn amplification(put: &mut impl FnMut(&str, f64), done: &Totals, device_bytes: u64) {
    if done.written > 0 {
        put("dbbench.write_amplification", device_bytes as f64 / done.written as f64);
    }
}
