//! `lab`: experiments on modelled devices.

use crate::args::lab::{Command, List, Report, Run};
use crate::output::{Failure, Out, by_kind, say};
use indicatif::ProgressBar;
use std::io::ErrorKind;
use varve_lab::experiment::{
    self, BUILT_IN, Experiment, ExperimentError, Judged, PointResult, Progress, Request, Results, RunHow,
};

impl From<ExperimentError> for Failure {
    fn from(e: ExperimentError) -> Failure {
        match e {
            ExperimentError::File { .. } | ExperimentError::Set { .. } | ExperimentError::Unknown { .. } => {
                Failure::Usage(e.to_string())
            }
            ExperimentError::Io { ref source, .. } => match source.kind() {
                ErrorKind::InvalidData => Failure::Usage(e.to_string()),
                kind => by_kind(Some(kind), e.to_string(), Failure::Failed),
            },
            other => Failure::Failed(other.to_string()),
        }
    }
}

/// Commit that the program was built from.
fn commit() -> &'static str {
    env!("VARVE_COMMIT")
}

pub fn run(out: Out, command: &Command) -> Result<(), Failure> {
    match command {
        Command::Run(a) => run_all(out, a),
        Command::List(a) => list(out, a),
        Command::Report(a) => report(out, a),
        Command::Export(a) => crate::export::results(out, a),
        Command::Replay(a) => crate::replay::run(out, a),
    }
}

fn request(a: &Run) -> Result<Request, Failure> {
    let split = |text: &String| {
        let (key, value) = text
            .split_once('=')
            .ok_or_else(|| Failure::Usage(format!("--set {text}: give key=value, such as run.seconds=60")))?;
        Ok((key.trim().to_string(), value.trim().to_string()))
    };
    let sets = a.set.iter().map(split).collect::<Result<_, Failure>>()?;
    Ok(Request { quick: a.quick || a.sensitivity, sets })
}

/// All files are read before the first is run, so that a mistake in the last is told at once.
fn run_all(out: Out, a: &Run) -> Result<(), Failure> {
    let request = request(a)?;
    let mut experiments = Vec::new();
    for what in &a.files {
        let (name, file, text) = experiment::find(what)?;
        experiments.push(experiment::read(&name, &file, &text, request.clone())?);
    }
    let how = RunHow { dir: a.out.clone(), jobs: a.jobs, fresh: a.fresh, commit: commit().to_string() };
    if a.sensitivity {
        return experiments.iter().zip(&a.files).try_for_each(|(e, file)| crate::sensitivity::run(out, e, file, &how));
    }
    let mut missed = Vec::new();
    let mut checks = 0;
    for e in &experiments {
        let results = run_one(out, e, &how)?;
        let judged = experiment::judge_all(&e.name, &e.checks, &results)?;
        print(out, e, &results, &judged)?;
        let written = experiment::write_report(&how.dir, e, &how.commit, &results, &judged)?;
        out.note(format!("report: {}", written.display()));
        checks += judged.len();
        missed.extend(misses(e, &judged));
    }
    match missed.len() {
        0 => Ok(()),
        n => Err(Failure::Failed(format!("{n} of {checks} checks do not hold: {}", missed.join(", ")))),
    }
}

fn misses(e: &Experiment, judged: &[Judged]) -> Vec<String> {
    let missed = |j: &Judged| match j {
        Judged::Verdict(v) if v.holds == Some(false) => Some(format!("{}: {}", e.name, v.check)),
        _ => None,
    };
    judged.iter().filter_map(missed).collect()
}

fn run_one(out: Out, e: &Experiment, how: &RunHow) -> Result<Vec<PointResult>, Failure> {
    let bar: ProgressBar = out.progress(&e.name, 1000 * e.points.len() as u64);
    let mut told = false;
    let results = experiment::run(e, how, |p: &Progress| {
        if p.found > 0 && !told {
            told = true;
            out.note(format!("{}: {} of {} points were done before", e.name, p.found, e.points.len()));
        }
        bar.set_length(1000 * p.points as u64);
        bar.set_position(p.done);
        if let Some((point, seconds)) = &p.ended {
            bar.set_message(format!("{}: {point} took {seconds:.1} s", e.name));
        }
    })?;
    bar.finish_and_clear();
    Ok(results)
}

fn print(out: Out, e: &Experiment, results: &[PointResult], judged: &[Judged]) -> Result<(), Failure> {
    if out.json {
        for j in judged {
            match j {
                Judged::Verdict(v) => say!("{}", serde_json::to_string(v).expect("plain data"))?,
                Judged::Skipped { check, why } => out.note(format!("{}: {check} was not measured: {why}", e.name)),
            }
        }
        return Ok(());
    }
    say!("{}: {}\n", e.name, e.title)?;
    say!("{}", experiment::points_table(results))?;
    say!("{}", experiment::checks_table(judged))?;
    Ok(())
}

fn list(out: Out, _: &List) -> Result<(), Failure> {
    for (name, text) in BUILT_IN {
        let e = experiment::read(name, &format!("experiments/{name}.toml"), text, Request::default())?;
        let quick = experiment::read(name, name, text, Request { quick: true, sets: Vec::new() })?;
        if out.json {
            let json = serde_json::json!({
                "experiment": name, "title": e.title, "points": e.points.len(), "checks": e.checks.len(),
                "quick_points": quick.points.len(), "quick_checks": quick.checks.len(),
            });
            say!("{json}")?;
        } else {
            say!("{name:<14} {:>3} points {:>3} checks  {}", e.points.len(), e.checks.len(), e.title)?;
        }
    }
    Ok(())
}

/// Reads results again: tables, checks and report.
fn report(out: Out, a: &Report) -> Result<(), Failure> {
    let all = Results::all(&a.dir)?;
    if all.is_empty() {
        return Err(Failure::Usage(format!("{}: no results (.jsonl) are in it", a.dir.display())));
    }
    for (path, results) in &all {
        let header = &results.header;
        let file = path.display().to_string();
        let e = experiment::read(&header.experiment, &file, &header.text, header.request())?;
        let judged = experiment::judge_all(&e.name, &e.checks, &results.points)?;
        print(out, &e, &results.points, &judged)?;
        let written = experiment::write_report(&a.dir, &e, &header.commit, &results.points, &judged)?;
        out.note(format!("report: {}", written.display()));
    }
    Ok(())
}
