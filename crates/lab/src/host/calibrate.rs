//! Finding a host's costs: the engine's benchmarks are timed on this machine, what each is charged is counted in a
//! simulation, and the table that explains the times best is computed ([`super::solve`]). What needs two threads or a
//! device is measured by itself ([`super::threads`]). Costs that this program cannot measure are taken from the profile
//! that the guesses come from, times the ratio of the two machines.

use super::HostProfile;
use super::bench::{Fixture, SAME_ROW};
use super::solve::{self, Row};
use super::threads::{self, Pair};
use crate::error::{Error, Result};
use std::path::Path;
use varve_rt::{Cost, Rng, now, sim};

/// Costs that the benchmarks leave out, because their store does nothing, or because they are one thread.
const ALONE: [Cost; 4] = [Cost::IoSubmit, Cost::IoComplete, Cost::Park, Cost::Unpark];

/// Time of one round of a benchmark, ns: short, so that most are not interrupted on a machine that does other work.
const ROUND_NS: f64 = 1e6;

/// A benchmark's times, ns per operation.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// What was done.
    pub name: String,
    /// The least round (used for what two threads do: a round is either undisturbed or lost), the first quartile (used
    /// for the others), and the median.
    pub least: f64,
    /// A quarter of the rounds was as fast or faster.
    pub quartile: f64,
    /// Half of the rounds were as fast or faster.
    pub median: f64,
    /// What the computed table says it takes; `None` for what is not explained by it.
    pub explained: Option<f64>,
}

impl Measured {
    /// From rounds, ns per operation.
    pub(super) fn of(name: &str, mut rounds: Vec<f64>) -> Measured {
        rounds.sort_by(f64::total_cmp);
        let at = |share: usize| rounds[(rounds.len() - 1) * share / 4];
        Measured { name: name.into(), least: at(0), quartile: at(1), median: at(2), explained: None }
    }
}

/// What was found.
#[derive(Debug, Clone)]
pub struct Calibration {
    /// The profile.
    pub host: HostProfile,
    /// The benchmarks behind it.
    pub measured: Vec<Measured>,
    /// Costs that could not be measured and were scaled from the profile the guesses come from.
    pub scaled: Vec<Cost>,
    /// This machine's times beside that one's.
    pub ratio: f64,
}

/// How to calibrate.
#[derive(Debug, Clone)]
pub struct CalibrateOptions {
    /// Name of the profile to make.
    pub name: String,
    /// Rounds of each benchmark.
    pub rounds: usize,
    /// Warehouses of the TPC-C benchmarks.
    pub warehouses: u32,
    /// Profile of the guesses.
    pub guess: HostProfile,
}

/// Calibrates this machine. `dir` is where a small file is made to measure what a request to a device costs the
/// processor; `each` is told what is being measured.
///
/// Errors: the engine's, and files that cannot be made in `dir`.
pub fn calibrate(options: &CalibrateOptions, dir: &Path, mut each: impl FnMut(&str)) -> Result<Calibration> {
    each("loading");
    let fixture = Fixture::load(options.warehouses)?;
    let mut measured = time(&fixture, options.rounds, &mut each)?;
    each("counting charges");
    let mut rows = count(&fixture, &options.guess)?;
    drop(fixture);
    rows.iter_mut().zip(&measured).for_each(|(row, m)| row.time = m.quartile);

    weigh(&mut rows, &mut measured);

    let guess: Vec<f64> = Cost::ALL.iter().map(|&c| options.guess.costs.ns(c)).collect();
    let ratio = solve::ratio(&rows, &guess);
    let guess: Vec<f64> = guess.iter().map(|g| g * ratio).collect();
    let mut costs = solve::fit(&rows, &guess);
    // Whole transactions are what the table is for: it shall explain the standard mix exactly; at its median, since
    // slow rounds are work too (page images after a checkpoint, pages that split).
    let (mix, median) = rows.last().zip(measured.last().map(|m| m.median)).expect("the mix is the last row");
    let exact = median / mix.predicted(&costs);
    costs.iter_mut().for_each(|c| *c *= exact);
    measured.iter_mut().zip(&rows).for_each(|(m, row)| m.explained = Some(row.predicted(&costs)));

    let mut host = options.guess.clone();
    Cost::ALL.iter().zip(&costs).for_each(|(&c, &ns)| host.costs.set_ns(c, ns));
    each("threads");
    let Pair { handoff, with_data, park, unpark } = threads::pair(options.rounds)?;
    each("device requests");
    let (submit, complete) = threads::requests(dir, options.rounds)?;
    for (cost, m) in
        [(Cost::Park, &park), (Cost::Unpark, &unpark), (Cost::IoSubmit, &submit), (Cost::IoComplete, &complete)]
    {
        host.costs.set_ns(cost, m.least);
    }
    host.lock_handoff_ns = (handoff.least * 10.0).round() / 10.0;
    host.lock_data_ns = ((with_data.least - handoff.least).max(0.0) * 10.0).round() / 10.0;
    measured.extend([handoff, with_data, park, unpark, submit, complete]);
    let seen = |c: &Cost| ALONE.contains(c) || rows.iter().any(|r| r.units[*c as usize] > 0.0);
    let scaled: Vec<Cost> = Cost::ALL.iter().copied().filter(|c| !seen(c)).collect();
    host.name = options.name.clone();
    host.cores = std::thread::available_parallelism().map_or(1, usize::from);
    host.description = processor();
    host.sources = vec!["measured by `varve probe --cpu`".to_string()];
    if !scaled.is_empty() {
        let names: Vec<&str> = scaled.iter().map(|c| c.name()).collect();
        let from = &options.guess.name;
        host.sources.push(format!("not measured, {from} times {ratio:.2}: {}", names.join(", ")));
    }
    Ok(Calibration { host, measured, scaled, ratio })
}

/// Adds the standard mix of TPC-C, computed from its five transactions, and says what counts most: costs are a coarse
/// picture (there is no model of caches, so a row in a cold leaf costs what one in a hot leaf does), and where they
/// cannot fit all, they shall fit whole transactions over much data rather than the same row read again and again.
fn weigh(rows: &mut Vec<Row>, measured: &mut Vec<Measured>) {
    const SHARES: [f64; 5] = [0.45, 0.43, 0.04, 0.04, 0.04];
    let first = rows.len() - SHARES.len();
    let mixed = |of: &dyn Fn(usize) -> f64| SHARES.iter().enumerate().map(|(i, s)| s * of(first + i)).sum::<f64>();
    let units = (0..Cost::ALL.len()).map(|c| mixed(&|i| rows[i].units[c])).collect();
    let mix = Row { units, time: mixed(&|i| rows[i].time), weight: 20.0 };
    let time = |of: fn(&Measured) -> f64| mixed(&|i| of(&measured[i]));
    let (least, quartile, median) = (time(|m| m.least), time(|m| m.quartile), time(|m| m.median));
    for (row, m) in rows.iter_mut().zip(&*measured) {
        row.weight = match m.name.as_str() {
            name if name.starts_with("TPC-C") => 3.0,
            SAME_ROW => 0.2,
            _ => 1.0,
        };
    }
    rows.push(mix);
    measured.push(Measured { name: "TPC-C standard mix".into(), least, quartile, median, explained: None });
}

fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|l| l.strip_prefix("model name")).and_then(|l| l.split_once(':'));
    model.map_or("processor of unknown model".into(), |(_, name)| name.trim().to_string())
}

/// Times every benchmark on this OS thread.
fn time(fixture: &Fixture, rounds: usize, each: &mut impl FnMut(&str)) -> Result<Vec<Measured>> {
    let opened = fixture.open()?;
    let mut all = Vec::new();
    for mut bench in opened.all()? {
        each(bench.name);
        let mut rng = Rng::from_seed(7);
        let mut run = |ops: usize| -> Result<f64> {
            let began = now();
            (0..ops).try_for_each(|_| (bench.op)(&mut rng))?;
            Ok(began.elapsed().as_nanos() as f64 / ops as f64)
        };
        let first = run(20)?.min(run(20)?);
        let ops = ((ROUND_NS / first) as usize).clamp(4, 100_000);
        let times: Vec<f64> = (0..rounds.max(4)).map(|_| run(ops)).collect::<Result<_>>()?;
        all.push(Measured::of(bench.name, times));
    }
    opened.close()?;
    Ok(all)
}

/// Counts what each benchmark is charged per operation, in a simulation.
fn count(fixture: &Fixture, host: &HostProfile) -> Result<Vec<Row>> {
    const OPS: usize = 300;
    let outcome = sim::run(host.config(1), || -> Result<Vec<Row>> {
        let opened = fixture.open()?;
        let mut rows = Vec::new();
        for mut bench in opened.all()? {
            let mut rng = Rng::from_seed(7);
            (0..40).try_for_each(|_| (bench.op)(&mut rng))?;
            let units = || -> Vec<f64> {
                let cpu = sim::thread_cpu().expect("in a simulation");
                Cost::ALL.iter().map(|&c| if ALONE.contains(&c) { 0.0 } else { cpu.units(c) as f64 }).collect()
            };
            let before = units();
            (0..OPS).try_for_each(|_| (bench.op)(&mut rng))?;
            let per = |(after, before): (f64, f64)| (after - before) / OPS as f64;
            rows.push(Row { units: units().into_iter().zip(before).map(per).collect(), time: 0.0, weight: 1.0 });
        }
        opened.close()?;
        Ok(rows)
    });
    outcome.result.map_err(|e| Error::store(e.to_string()))?
}
