//! All points of an experiment: in parallel over OS threads, each a simulation of its own; paced ones afterwards,
//! alone, since they share the real machine, and by turns (all with the first seed, all with the next), since its speed
//! changes.

use super::advised;
use super::devices::Drives;
use super::document::{Experiment, Point};
use super::layout::Layouts;
use super::plain;
use super::point;
use super::results::{self, Files, Header};
use super::spec::Clock;
use super::{ExperimentError, PointResult};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use varve_rt::channel::{RecvTimeoutError, Sender, unbounded};

/// How points are run.
#[derive(Debug, Clone)]
pub struct RunHow {
    /// Directory of the result files.
    pub dir: PathBuf,
    /// Points at the same time; 0 is one per core.
    pub jobs: usize,
    /// Run points again that have a result.
    pub fresh: bool,
    /// Commit of the program.
    pub commit: String,
}

/// How far a run is.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    /// Points there are to run.
    pub points: usize,
    /// Points that were found done.
    pub found: usize,
    /// Points done, thousandths; those under way count in part.
    pub done: u64,
    /// Name of the point that ended last, with the real seconds it took.
    pub ended: Option<(String, f64)>,
}

/// What the threads share.
struct Shared {
    name: String,
    commit: String,
    points: Vec<(usize, Point)>,
    next: AtomicUsize,
    layouts: Layouts,
    drives: Drives,
    progress: Vec<Arc<AtomicU64>>,
    stop: AtomicU64,
}

type Ended = (usize, f64, Result<PointResult, ExperimentError>);

impl Shared {
    fn one(&self, n: usize) -> Ended {
        let (at, point) = &self.points[n];
        let began = varve_rt::now();
        let (name, commit, drives) = (&self.name, &self.commit, &self.drives);
        let result = match (&point.spec.workload.flash_wa, &point.spec.workload.iomix) {
            (Some(wa), _) => plain::run_flash_wa(name, commit, point, wa),
            (_, Some(mix)) => plain::run_iomix(name, commit, (point, mix), drives),
            _ => {
                let image = self.layouts.get(&point.spec, point.seed, drives);
                let run = if point.spec.run.advise { advised::run } else { point::run };
                let result = image.and_then(|image| run(name, commit, point, (&image, drives), &self.progress[n]));
                self.layouts.done(&point.spec);
                result
            }
        };
        self.progress[n].store(1000, Relaxed);
        (*at, began.elapsed().as_secs_f64(), result)
    }

    fn work(&self, send: &Sender<Ended>) {
        loop {
            let n = self.next.fetch_add(1, Relaxed);
            if n >= self.points.len() || self.stop.load(Relaxed) != 0 || send.send(self.one(n)).is_err() {
                return;
            }
        }
    }
}

/// Runs every point that has no result yet and writes the result file; returns all results in the order of the points.
/// `progress` is called on the calling thread several times a second.
///
/// # Errors
/// A point failed (the others under way are finished and kept), or a file cannot be written.
pub fn run(
    experiment: &Experiment,
    how: &RunHow,
    mut progress: impl FnMut(&Progress),
) -> Result<Vec<PointResult>, ExperimentError> {
    results::make_dir(&how.dir)?;
    let files = Files::of(&how.dir, experiment);
    if how.fresh {
        let _ = std::fs::remove_file(&files.partial);
    }
    let known = if how.fresh { BTreeMap::new() } else { results::finished(&files, &how.commit) };
    let mut done: BTreeMap<usize, (String, PointResult)> = BTreeMap::new();
    let mut todo = Vec::new();
    for (at, point) in experiment.points.iter().enumerate() {
        match known.get(&point.hash()) {
            Some(found) => drop(done.insert(at, found.clone())),
            None => todo.push((at, point.clone())),
        }
    }
    let (mut paced, virtual_): (Vec<_>, Vec<_>) = todo.into_iter().partition(|(_, p)| p.spec.run.clock == Clock::Paced);
    let turn = |point: &Point| experiment.points.iter().position(|p| p.seed == point.seed);
    paced.sort_by_key(|(_, point)| turn(point));
    let mut times = BTreeMap::new();
    let mut state = Progress { points: virtual_.len() + paced.len(), found: done.len(), done: 0, ended: None };
    let jobs = if how.jobs == 0 { std::thread::available_parallelism().map_or(1, usize::from) } else { how.jobs };
    let most = experiment.points.iter().map(|p| p.spec.run.jobs).filter(|most| *most > 0).min();
    let jobs = jobs.min(most.unwrap_or(jobs));
    for (points, jobs) in [(virtual_, jobs), (paced, 1)] {
        if points.is_empty() {
            continue;
        }
        let collect = |(at, took, result): (usize, f64, PointResult)| {
            let line = results::line(&result);
            results::append(&files, &line)?;
            times.insert(experiment.points[at].name(), took);
            done.insert(at, (line, result));
            Ok(())
        };
        several(experiment, how, points, jobs, &mut state, &mut progress, collect)?;
    }
    let mut text = serde_json::to_string(&Header::of(experiment, &how.commit)).expect("plain data") + "\n";
    for (line, _) in done.values() {
        text.push_str(line);
        text.push('\n');
    }
    results::write(&files.results, &text)?;
    if !times.is_empty() {
        results::write(&files.times, &serde_json::to_string_pretty(&times).expect("plain data"))?;
    }
    let _ = std::fs::remove_file(&files.partial);
    Ok(done.into_values().map(|(_, result)| result).collect())
}

fn several(
    experiment: &Experiment,
    how: &RunHow,
    points: Vec<(usize, Point)>,
    jobs: usize,
    state: &mut Progress,
    progress: &mut impl FnMut(&Progress),
    mut collect: impl FnMut((usize, f64, PointResult)) -> Result<(), ExperimentError>,
) -> Result<(), ExperimentError> {
    let before = state.done;
    let with_database = points.iter().filter(|(_, p)| p.spec.workload.has_database());
    let shared = Arc::new(Shared {
        name: experiment.name.clone(),
        commit: how.commit.clone(),
        layouts: Layouts::new(with_database.map(|(_, p)| (&p.spec, p.seed))),
        drives: Drives::default(),
        progress: points.iter().map(|_| Arc::default()).collect(),
        next: AtomicUsize::new(0),
        stop: AtomicU64::new(0),
        points,
    });
    let (send, receive) = unbounded();
    let mut workers = Vec::new();
    for n in 0..jobs.clamp(1, shared.points.len()) {
        let (shared, send) = (shared.clone(), send.clone());
        workers.push(varve_rt::spawn(format!("point-{n}"), move || shared.work(&send)));
    }
    drop(send);
    let mut failure = None;
    loop {
        match receive.recv_timeout(Duration::from_millis(200)) {
            Ok((at, took, Ok(result))) => {
                state.ended = Some((experiment.points[at].name(), took));
                if let Err(e) = collect((at, took, result)) {
                    shared.stop.store(1, Relaxed);
                    failure.get_or_insert(e);
                }
            }
            Ok((_, _, Err(e))) => {
                shared.stop.store(1, Relaxed);
                failure.get_or_insert(e);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        state.done = before + shared.progress.iter().map(|p| p.load(Relaxed)).sum::<u64>();
        progress(state);
        state.ended = None;
    }
    for worker in workers {
        let name = worker.name().to_string();
        if worker.join().is_err() {
            failure.get_or_insert(ExperimentError::Point { point: name, what: "panicked; see stderr".into() });
        }
    }
    failure.map_or(Ok(()), Err)
}
