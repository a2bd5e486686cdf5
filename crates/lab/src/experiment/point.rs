//! One point: a database on modelled devices, a workload, and everything measured.
//!
//! The engine, the workload and the driver are those that run on real devices; here they run in a simulation on the
//! calling OS thread. Results hold no value of the real clock.

use super::ExperimentError;
use super::advised::Collector;
use super::database::{Machine, Memory, Probe};
use super::devices::{self, Drives};
use super::document::{Point, Scaled};
use super::layout::{self, Image};
use super::location::Location;
use super::machine::{self, HostTime, LockPlace};
use super::moves::Moves;
use super::near::NearMoment;
use super::spec::{Clock, Spec};
use crate::adapter::varve::VarveStore;
use crate::driver::{self, Client, Draw, Interval, Outcome, RunOptions, RunResult, Until, Workload};
use crate::models::{Loaded, Part};
use crate::{tpcb, tpcc, ycsb};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use varve::{Db, NearStats};
use varve_device::{DeviceStats, OpStats};
use varve_models::ModelStats;
use varve_models::flash::FtlStats;
use varve_rt::sim;
use varve_volume::array::curve::Curve;

/// The result of a point: one line of the result file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PointResult {
    /// Name of the experiment.
    pub experiment: String,
    /// Name of the point.
    pub point: String,
    /// Values of variant and axes.
    #[serde(with = "pairs")]
    pub axes: Vec<(String, String)>,
    /// Seed.
    pub seed: u64,
    /// Hash of the configuration.
    pub config: String,
    /// Commit of the program.
    pub commit: String,
    /// `virtual` or `paced`.
    pub clock: String,
    /// Sizes that were scaled.
    pub scaled: Vec<Scaled>,
    /// What the buffer pool was made with.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
    /// Figures by name.
    pub metrics: BTreeMap<String, f64>,
    /// By transaction type: its figures.
    pub kinds: BTreeMap<String, BTreeMap<String, f64>>,
    /// Response times: share of transactions, and milliseconds within which they ended.
    pub latency: Vec<(f64, f64)>,
    /// Where threads waited for locks of the program, the longest first; of the virtual clock.
    #[serde(default)]
    pub locks: Vec<LockPlace>,
    /// What a tier's manager counted, if `engine.tier.counted` asks for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub location: Option<Location>,
    /// Values over time, each for the interval that ended at the same place of `t`, seconds.
    pub series: BTreeMap<String, Vec<f64>>,
}

/// Pairs in order, as a map.
mod pairs {
    use serde::de::{MapAccess, Visitor};
    use serde::{Deserializer, Serializer};

    pub fn serialize<S: Serializer>(pairs: &[(String, String)], s: S) -> Result<S::Ok, S::Error> {
        s.collect_map(pairs.iter().map(|(k, v)| (k, v)))
    }

    struct InOrder;
    impl<'de> Visitor<'de> for InOrder {
        type Value = Vec<(String, String)>;
        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a map of text")
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut pairs = Vec::new();
            while let Some(pair) = map.next_entry()? {
                pairs.push(pair);
            }
            Ok(pairs)
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<(String, String)>, D::Error> {
        d.deserialize_map(InOrder)
    }
}

/// A workload whose clients are marked, so that devices can tell their requests from the engine's own.
struct Marked<W> {
    inner: W,
}

struct MarkedClient<C> {
    inner: C,
}

impl<W: Workload<VarveStore>> Workload<VarveStore> for Marked<W> {
    type Client = MarkedClient<W::Client>;

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn kinds(&self) -> &'static [&'static str] {
        self.inner.kinds()
    }

    fn client(&self, store: &Arc<VarveStore>, thread: usize, threads: usize) -> crate::Result<Self::Client> {
        devices::mark_client();
        let inner = self.inner.client(store, thread, threads)?;
        Ok(MarkedClient { inner })
    }

    fn counted_kind(&self) -> Option<usize> {
        self.inner.counted_kind()
    }

    fn ends_run(&self, thread: usize) -> bool {
        self.inner.ends_run(thread)
    }
}

impl<C: Client<VarveStore>> Client<VarveStore> for MarkedClient<C> {
    fn draw(&mut self) -> Draw {
        self.inner.draw()
    }

    fn attempt(&mut self, store: &VarveStore) -> crate::Result<Outcome> {
        self.inner.attempt(store)
    }
}

/// Counters of one moment.
#[derive(Clone)]
pub(super) struct Moment {
    pub at: f64,
    pub engine: varve::Stats,
    /// Data, log, and the fast device of a tier.
    pub devices: Vec<OneDevice>,
    /// What regions of native flash did since they were opened.
    pub regions: Vec<FtlStats>,
    pub client_writes: u64,
    /// What a benchmark of `db_bench` has done.
    pub done: Option<crate::dbbench::Totals>,
    pub host: Option<HostTime>,
    pub locks: Vec<sim::LockWaits>,
    pub near: NearMoment,
    /// Of merges that a worker had a part in.
    pub merges: Option<NearStats>,
}

/// Counters of one device.
#[derive(Clone)]
pub(super) struct OneDevice {
    pub name: &'static str,
    pub stats: DeviceStats,
    pub model: ModelStats,
}

/// What a run leaves, before it is named and numbered.
struct Measured {
    run: RunResult,
    before: Moment,
    after: Moment,
    location: Option<Location>,
    settings: BTreeMap<String, String>,
    /// What opening the database again took; how extents of an array moved.
    more: BTreeMap<String, f64>,
    series: BTreeMap<String, Vec<f64>>,
}

/// Runs a point on a copy of `image`. `progress` counts thousandths of the run.
pub(super) fn run(
    experiment: &str,
    commit: &str,
    point: &Point,
    on: (&Image, &Drives),
    progress: &Arc<AtomicU64>,
) -> Result<PointResult, ExperimentError> {
    run_traced(experiment, commit, point, on, progress, None)
}

/// The same; `collector` is told of page writes.
pub(super) fn run_traced(
    experiment: &str,
    commit: &str,
    point: &Point,
    (image, drives): (&Image, &Drives),
    progress: &Arc<AtomicU64>,
    collector: Option<&Arc<Collector>>,
) -> Result<PointResult, ExperimentError> {
    let spec = point.spec.clone();
    let memory = Memory::of(&spec, image.used);
    let failed = |what: String| ExperimentError::Point { point: point.name(), what };
    let bytes = layout::on_drives(image, &spec, point.seed, drives);
    let bytes = bytes.map_err(|(key, what)| failed(format!("{key}: {what}")))?;
    let (seed, progress, collector) = (point.seed, progress.clone(), collector.cloned());
    let config = spec.host.config(seed).map_err(|(key, what)| failed(format!("{key}: {what}")))?;
    let clock = spec.run.clock;
    let cores = if clock == Clock::Virtual { config.cores } else { machine::real_cores() };
    let curves = image.curves.clone();
    let main = move || measure(&spec, seed, memory, (&bytes, &curves, cores), &progress, collector.as_ref());
    let outcome = match clock {
        Clock::Virtual => sim::run(config, main).result.map_err(|failure| failed(failure.to_string()))?,
        Clock::Paced => main(),
    };
    let measured = outcome.map_err(|e| failed(e.to_string()))?;
    let mut metrics = super::metrics::of(&measured.run, &measured.before, &measured.after);
    let (then, now) = (&measured.before.engine.lsm, &measured.after.engine.lsm);
    super::lsm::model(&mut |name, value| _ = metrics.insert(name.into(), value), &point.spec, then, now);
    metrics.insert("host.cores".into(), cores as f64);
    metrics.insert("data_mib".into(), image.used as f64 / f64::from(1 << 20));
    metrics.insert("cache_mib".into(), memory.cache as f64 / f64::from(1 << 20));
    if memory.fast > 0 {
        metrics.insert("fast_mib".into(), memory.fast as f64 / f64::from(1 << 20));
    }
    if let Some(location) = &measured.location {
        metrics.extend(location.figures().map(|(name, value)| (name.to_string(), value)));
    }
    metrics.extend(measured.more);
    metrics.retain(|_, value| value.is_finite());
    Ok(PointResult {
        experiment: experiment.to_string(),
        point: point.name(),
        axes: point.axes.clone(),
        seed,
        config: point.hash(),
        commit: commit.to_string(),
        clock: point.spec.run.clock.name().to_string(),
        scaled: point.scaled.clone(),
        settings: measured.settings,
        metrics,
        kinds: super::metrics::kinds(&measured.run),
        latency: measured.run.quantiles.iter().map(|(q, us)| (*q, us / 1e3)).collect(),
        locks: machine::lock_places(&measured.before.locks, &measured.after.locks).0,
        location: measured.location,
        series: measured.series,
    })
}

pub(super) fn seconds(s: f64) -> Duration {
    Duration::from_secs_f64(s)
}

fn measure(
    spec: &Spec,
    seed: u64,
    memory: Memory,
    (bytes, curves, cores): (&Loaded, &[Curve], usize),
    progress: &AtomicU64,
    collector: Option<&Arc<Collector>>,
) -> crate::Result<Measured> {
    let mut machine = Machine::new(spec, bytes, &Part { len: memory.fast, ..Part::default() }, seed)?;
    machine.collector = collector.cloned();
    let db = machine.open(spec, memory, memory.fast > 0)?;
    let store = VarveStore::new(db.clone()).with_row_overhead(spec.workload.row_overhead()).with_kind(spec.kind());
    let store = Arc::new(store);
    let mut probe = machine.probe(db.clone(), cores);
    let mut moves = machine.array().map(|array| Moves::begin(spec, &db, array, curves)).transpose()?;
    if spec.run.fill {
        read_all(&db)?;
    }
    let durability = spec.engine.durability.into();
    let mut measured = match (&spec.workload.tpcc, &spec.workload.ycsb) {
        _ if spec.workload.tpcb.is_some() => {
            let inner = tpcb::Tpcb::new(&*store, tpcb::Options { durability, seed })?;
            drive(spec, &store, Arc::new(Marked { inner }), (&probe, moves.as_mut()), progress)?
        }
        (Some(t), _) => {
            let (think_times, read_only) = (t.think_times, t.read_only);
            let mix = tpcc::Mix::Weighted(t.mix);
            let inner = tpcc::Tpcc::new(&*store, tpcc::Options { mix, think_times, read_only, durability, seed })?;
            drive(spec, &store, Arc::new(Marked { inner }), (&probe, moves.as_mut()), progress)?
        }
        (_, Some(y)) => {
            let inner = ycsb::Ycsb::new(&*store, y.options(durability, seed))?;
            let seen = (&probe, moves.as_mut());
            match &y.fixed {
                None => drive(spec, &store, Arc::new(Marked { inner }), seen, progress)?,
                Some(fixed) => {
                    let inner = ycsb::Beside::new(&*store, inner, fixed.load())?;
                    drive(spec, &store, Arc::new(Marked { inner }), seen, progress)?
                }
            }
        }
        _ => {
            let Some(bench) = &spec.workload.dbbench else { unreachable!("a validated point has a workload") };
            let inner = crate::dbbench::DbBench::new(
                &*store,
                bench.benchmark,
                bench.options(seed, durability, spec.run.clients),
            )?;
            let workload = Arc::new(Marked { inner });
            let counted = workload.clone();
            probe.done = Some(Box::new(move || counted.inner.totals()));
            drive(spec, &store, workload, (&probe, moves.as_mut()), progress)?
        }
    };
    if let Some(moves) = &moves {
        measured.more.extend(moves.figures(&db)?);
    }
    let left = spec.run.reopen.then(|| machine.left());
    if spec.run.check {
        consistent(spec, &store)?;
    }
    drop((store, probe, moves, machine));
    db.close()?;
    if let Some((loaded, fast)) = left {
        measured.more.extend(Machine::new(spec, &loaded, &fast, seed)?.reopen(spec, memory)?);
    }
    Ok(measured)
}

/// Fails if the workload's consistency conditions do not hold.
fn consistent(spec: &Spec, store: &VarveStore) -> crate::Result<()> {
    let failed = match (&spec.workload.tpcc, &spec.workload.tpcb) {
        (Some(_), _) => {
            let report = tpcc::check(store, |_, _| {})?;
            (!report.consistent()).then(|| report.to_string())
        }
        (_, Some(_)) => {
            let report = tpcb::check(store)?;
            (!report.consistent()).then(|| report.to_string())
        }
        _ => None,
    };
    let what = |report| crate::Error::store(format!("the data is not consistent after the run:\n{report}"));
    failed.map_or(Ok(()), |report| Err(what(report)))
}

/// Reads every row once, keyspace by keyspace.
fn read_all(db: &Db) -> crate::Result<()> {
    for keyspace in db.keyspaces()? {
        db.keyspace(&keyspace.name)?.scan_with(.., |_, _| ControlFlow::Continue(()))?;
    }
    Ok(())
}

/// When the run of a point ends.
fn until(spec: &Spec) -> Until {
    let run = &spec.run;
    match (&spec.workload.dbbench, &spec.workload.ycsb) {
        (Some(bench), _) => bench.until(run.clients, run.seconds),
        (_, Some(requests)) => requests.until(run.seconds),
        _ => Until::Time(seconds(run.seconds)),
    }
}

fn drive<W: Workload<VarveStore>>(
    spec: &Spec,
    store: &Arc<VarveStore>,
    workload: Arc<W>,
    (probe, mut moves): (&Probe, Option<&mut Moves>),
    progress: &AtomicU64,
) -> crate::Result<Measured> {
    let run = &spec.run;
    let bench = spec.workload.dbbench.as_ref();
    let options = RunOptions {
        threads: run.clients + bench.map_or(0, |bench| bench.benchmark.more_threads()),
        warmup: seconds(run.warmup_s),
        until: until(spec),
        interval: seconds(run.interval_s),
        rate: run.rate,
    };
    let whole = run.warmup_s + run.seconds;
    let mut before = probe.moment();
    let mut last = before.clone();
    let mut series: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    let result = driver::run(store, &workload, &options, |i: &Interval| {
        progress.store((i.at.as_secs_f64() / whole * 1000.0) as u64, Relaxed);
        let now = probe.moment();
        if let Some(moves) = &mut moves {
            moves.look(i, &probe.db);
        }
        if i.warming_up {
            before = now.clone();
            probe.collector.iter().for_each(|collector| collector.warm());
        }
        // What is left after the end is not an interval of its own.
        if i.length.as_secs_f64() >= run.interval_s / 2.0 {
            note(&mut series, i, &last, &now);
        }
        last = now;
    })?;
    if bench.is_some_and(|bench| bench.settle) {
        probe.db.wait_for_merges()?;
        last = probe.moment();
    }
    let location = if spec.engine.tier.counted { Some(Location::of(&probe.db)?) } else { None };
    probe.collector.iter().for_each(|collector| collector.end(&probe.db));
    let settings = probe.db.pool_settings().into_iter().map(|(name, text)| (name.to_string(), text)).collect();
    Ok(Measured { run: result, before, after: last, location, settings, more: probe.sizes(), series })
}

/// One more value of each series; rounded, since nobody reads more digits off a chart.
fn note(series: &mut BTreeMap<String, Vec<f64>>, i: &Interval, then: &Moment, now: &Moment) {
    let length = i.length.as_secs_f64().max(1e-9);
    let mut push = |name: &str, value: f64| {
        let value = if value.is_finite() { (value * 1e4).round() / 1e4 } else { 0.0 };
        series.entry(name.to_string()).or_default().push(value);
    };
    push("t", i.at.as_secs_f64());
    push("per_s", i.counted as f64 / length);
    if let (Some(a), Some(b)) = (&then.host, &now.host) {
        push("host.busy", (b.used - a.used) / (b.cores * length));
    }
    if let Some(busy) = now.near.busy(&then.near, length) {
        push("near.busy", busy);
    }
    push("hit_ratio", i.stats.hit_ratio().unwrap_or(1.0));
    for (then, now) in then.devices.iter().zip(&now.devices) {
        let (name, a, b) = (now.name, &then.stats, &now.stats);
        let per_s = |a: &OpStats, b: &OpStats| (b.count - a.count) as f64 / length;
        push(&format!("{name}.reads_per_s"), per_s(&a.read, &b.read));
        push(&format!("{name}.writes_per_s"), per_s(&a.write, &b.write));
        push(&format!("{name}.utilisation"), super::metrics::utilisation(&then.model, &now.model, length));
    }
    if let (Some(a), Some(b)) = (&then.engine.tier, &now.engine.tier) {
        let tier = super::metrics::TierRun::between(a, b);
        push("tier.hit_ratio", tier.hit_ratio);
        push("tier.dirty_share", b.newer as f64 / b.slots.max(1) as f64);
        push("tier.occupied_share", b.occupied as f64 / b.slots.max(1) as f64);
    }
    if !now.engine.lsm.is_empty() {
        let (a, b) = (&then.engine.lsm, &now.engine.lsm);
        let rise = |read: fn(&varve::LsmStats) -> u64| {
            let sum = |of: &[varve::LsmStats]| of.iter().map(read).sum::<u64>();
            (sum(b) - sum(a)) as f64
        };
        push("lsm.pressure", b.iter().map(|s| s.pressure).fold(0.0, f64::max));
        push("lsm.merge_mb_per_s", rise(|s| s.merged_bytes.0 + s.merged_bytes.1) / 1e6 / length);
        push("lsm.wait_share", rise(|s| s.delays.1 + s.stalls.1) / 1e9 / length);
        let level_0 = b.iter().filter_map(|s| s.levels.first()).map(|l| l.segments).sum::<u64>();
        push("lsm.level0_segments", level_0 as f64);
    }
    push("pool.dirty_share", now.engine.pool.dirty as f64 / now.engine.pool.frames.max(1) as f64);
}
