//! `lab replay`: miss ratios of a trace by policy and cache size.

use crate::args::replay::{Input, Replay, Size};
use crate::output::{Failure, Out, Rows, by_kind};
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;
use varve_lab::replay::{self, Plan, Point, References};
use varve_lab::trace::{Reader, TraceError};

impl From<TraceError> for Failure {
    fn from(e: TraceError) -> Failure {
        match e {
            TraceError::Damaged { .. } => Failure::Found(e.to_string()),
            TraceError::Unknown { .. } | TraceError::Option(_) => Failure::Usage(e.to_string()),
            TraceError::Io { ref source, .. } => by_kind(Some(source.kind()), e.to_string(), Failure::Failed),
            TraceError::Newer { .. } => Failure::Failed(e.to_string()),
        }
    }
}

/// Reads a trace as references; also its format's name.
pub fn read(out: Out, input: &Input) -> Result<(References, &'static str), Failure> {
    let bar = out.progress("reading", 0);
    let mut reader = Reader::open(&input.trace, &input.read_options())?;
    let refs = References::read(&mut reader, &input.shape())?;
    bar.finish_and_clear();
    Ok((refs, reader.format().name()))
}

pub fn run(out: Out, a: &Replay) -> Result<(), Failure> {
    let plan = Plan { policies: a.policy.clone(), sizes: vec![1], options: a.policy_options(), jobs: jobs(a.jobs) };
    plan.validate().map_err(Failure::Usage)?;
    let (refs, format) = read(out, &a.input)?;
    let plan = Plan { sizes: sizes(&a.sizes, refs.pages()), ..plan };
    plan.validate().map_err(Failure::Usage)?;
    let refs = Arc::new(refs);
    out.note(format!("{}: {format}, {} references to {} pages", a.input.trace.display(), refs.len(), refs.pages()));
    let bar = out.progress("replaying", (plan.policies.len() * plan.sizes.len()) as u64);
    let points = replay::run(&refs, &plan, |_| bar.inc(1)).map_err(Failure::Failed)?;
    bar.finish_and_clear();
    if let Some(path) = &a.html {
        let html = page(a, &refs, format, &points);
        std::fs::write(path, html).map_err(|e| Failure::Failed(format!("{}: {e}", path.display())))?;
        out.note(format!("curve written to {}", path.display()));
    }
    let mut stdout = Rows;
    if out.json {
        for point in &points {
            writeln!(stdout, "{}", serde_json::to_string(point).expect("a point is plain data"))?;
        }
        return Ok(());
    }
    Ok(table(&mut stdout, &plan, &points)?)
}

fn jobs(asked: usize) -> usize {
    if asked > 0 { asked } else { std::thread::available_parallelism().map_or(2, usize::from) }
}

fn sizes(asked: &[Size], pages: usize) -> Vec<usize> {
    let size = |size: &Size| match size {
        Size::Pages(n) => *n,
        Size::Percent(p) => ((pages as f64 * p / 100.0).round() as usize).max(1),
    };
    let mut sizes: Vec<usize> = asked.iter().map(size).collect();
    let mut seen = std::collections::BTreeSet::new();
    sizes.retain(|s| seen.insert(*s));
    sizes
}

fn table(out: &mut impl Write, plan: &Plan, points: &[Point]) -> std::io::Result<()> {
    let by: BTreeMap<(&str, usize), f64> = points.iter().map(|p| ((p.policy.as_str(), p.size), p.miss_ratio)).collect();
    write!(out, "{:<14}", "miss ratio, %")?;
    for size in &plan.sizes {
        write!(out, "{size:>10}")?;
    }
    writeln!(out)?;
    for policy in &plan.policies {
        write!(out, "{policy:<14}")?;
        for size in &plan.sizes {
            write!(out, "{:>10.2}", 100.0 * by[&(policy.as_str(), *size)])?;
        }
        writeln!(out)?;
    }
    Ok(())
}

fn page(a: &Replay, refs: &References, format: &str, points: &[Point]) -> String {
    let name = a.input.trace.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
    let notes = [format!(
        "{} references to {} distinct pages ({format}, {} records). Pages count one each, reads and writes both count, every miss \
         is admitted, the cache starts empty.",
        refs.len(),
        refs.pages(),
        refs.records
    )];
    let command: Vec<String> = std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
    replay::to_html(
        &format!("Miss ratio by cache size: {name}"),
        &notes,
        &format!("varve {}", command.join(" ")),
        points,
    )
}
