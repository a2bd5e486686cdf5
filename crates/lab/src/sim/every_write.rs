//! A fixed small workload, cut at each device operation in turn: no crash point is left to chance.

use super::book::Trace;
use super::plan::Plan;
use super::pool::PoolChoice;
use super::seed;
use super::sweep::Finding;
use std::sync::Arc;
use varve::Mistake;
use varve_rt::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use varve_rt::channel;

/// How to cut.
#[derive(Clone, Debug)]
pub struct EveryWriteOptions {
    /// Chooses the workload and the schedule; the same for every cut.
    pub seed: u64,
    /// Cuts in parallel.
    pub jobs: usize,
    /// A mistake to build in, to see it caught.
    pub breakage: Option<Mistake>,
    /// The buffer pool.
    pub pool: PoolChoice,
    /// Last operation to cut at; `None`: to the end of the workload.
    pub last: Option<u64>,
}

impl EveryWriteOptions {
    /// Seed 1, two jobs, to the end.
    pub fn new() -> EveryWriteOptions {
        EveryWriteOptions { seed: 1, jobs: 2, breakage: None, pool: PoolChoice::default(), last: None }
    }
}

impl Default for EveryWriteOptions {
    fn default() -> EveryWriteOptions {
        EveryWriteOptions::new()
    }
}

/// What came out.
#[derive(Clone, Debug, serde::Serialize)]
pub struct EveryWriteReport {
    /// Device operations of the workload, each cut once (data and log counted together).
    pub operations: u64,
    /// Cuts after which something was wrong; a finding's text begins with the operation.
    pub findings: Vec<Finding>,
    /// Whole run, seconds.
    pub seconds: f64,
}

/// Findings after which the rest is not tried.
const MOST_FINDINGS: usize = 10;

/// Cuts the workload at operation 1, 2, ... until it ends before the cut. `progress` gets the number of cuts made.
pub fn every_write(options: &EveryWriteOptions, mut progress: impl FnMut(u64)) -> EveryWriteReport {
    let start = varve_rt::now();
    let (next, end) = (Arc::new(AtomicU64::new(1)), Arc::new(AtomicBool::new(false)));
    let (sender, receiver) = channel::unbounded();
    let threads: Vec<_> = (0..options.jobs.max(1))
        .map(|job| {
            let (next, end, sender, options) = (next.clone(), end.clone(), sender.clone(), options.clone());
            varve_rt::spawn(format!("cuts {job}"), move || {
                while !end.load(SeqCst) {
                    let op = next.fetch_add(1, SeqCst);
                    if options.last.is_some_and(|last| op > last) {
                        return;
                    }
                    let plan = Plan::small(options.seed);
                    let broken = options.breakage;
                    let result = seed::simulate(plan, &options.pool, broken, Trace::off(), Some(op));
                    let reached = result.totals.get("crashes") > 0 || result.wrong.is_some();
                    if !reached {
                        end.store(true, SeqCst);
                    }
                    if sender.send((op, reached, result.wrong)).is_err() {
                        return;
                    }
                }
            })
        })
        .collect();
    drop(sender);
    let (mut operations, mut findings) = (0, Vec::new());
    while let Ok((op, reached, wrong)) = receiver.recv() {
        operations += u64::from(reached);
        if let Some(what) = wrong {
            let what = format!("cut at operation {op}: {what}");
            let replay = format!("varve sim --every-write --seed {}{}", options.seed, options.pool.arguments());
            let setting = format!("{:?}", Plan::small(options.seed));
            findings.push(Finding { seed: options.seed, what, replay, setting });
            if findings.len() == MOST_FINDINGS {
                end.store(true, SeqCst);
            }
        }
        progress(operations);
    }
    for thread in threads {
        thread.join().expect("a cut's panics are caught by its simulation");
    }
    EveryWriteReport { operations, findings, seconds: start.elapsed().as_secs_f64() }
}
