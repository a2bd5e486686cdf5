//! `sim --damage`: databases whose files are damaged on purpose.

use crate::args::{self, LayoutKind};
use crate::output::{Failure, Out, say};
use serde_json::json;
use varve::Mistake;
use varve_lab::sim::{self, Class, DamageOptions, DamageReport};

pub fn run(out: Out, a: &args::Sim, damages: u64, jobs: usize, breakage: Option<Mistake>) -> Result<(), Failure> {
    let mut options = DamageOptions::new(damages);
    options.seed = a.seed.unwrap_or(1);
    options.jobs = jobs;
    options.breakage = breakage;
    options.detect = a.detect_lost_writes;
    options.states = a.state.map_or(options.states, |state| vec![state]);
    options.tier = match a.layout.layout {
        LayoutKind::Tier => Some(a.layout.manager.clone().unwrap_or_else(|| "all".into())),
        LayoutKind::Single if a.layout.manager.is_some() => {
            return Err(Failure::Usage("--manager is for --layout tier".into()));
        }
        LayoutKind::Single => None,
        LayoutKind::Flash | LayoutKind::Array | LayoutKind::Near => {
            let what = "--damage works on a single device or a tier: leave --layout flash, array and near out";
            return Err(Failure::Usage(what.into()));
        }
    };
    match a.damage_only {
        Some(number) => only(out, a, &options, number),
        None if a.trace => Err(Failure::Usage("--trace shows one damage: say which with --damage-only".into())),
        None => all(out, &options),
    }
}

fn only(out: Out, a: &args::Sim, options: &DamageOptions, number: u64) -> Result<(), Failure> {
    let traced = a.trace;
    let sink = move |line: &str| {
        if traced {
            // A line that nobody can read changes nothing of the damage.
            let _ = say!("{line}");
        }
    };
    let (class, seen) = sim::damage_only(options, number, sink).map_err(Failure::Found)?;
    match out.json {
        true => say!("{}", json!({ "number": number, "class": class, "seen": seen })),
        false => say!("{}: {seen}", class.name()),
    }?;
    if class.is_fault() { Err(Failure::Found(format!("damage {number}: {}", class.name()))) } else { Ok(()) }
}

fn all(out: Out, options: &DamageOptions) -> Result<(), Failure> {
    let bar = out.progress("damages", options.damages * options.states.len() as u64);
    let report = sim::damage(options, |done| bar.set_position(done));
    bar.finish_and_clear();
    match out.json {
        true => say!("{}", serde_json::to_string(&report).expect("a report is plain data")),
        false => print(&report),
    }?;
    if report.is_clean() { Ok(()) } else { Err(Failure::Found("a damage came to what must not be".into())) }
}

/// Findings printed; the report as JSON has all.
const MOST_PRINTED: usize = 30;

fn print(report: &DamageReport) -> std::io::Result<()> {
    report.failures.iter().try_for_each(|failure| say!("{failure}"))?;
    report.findings.iter().take(MOST_PRINTED).try_for_each(|finding| say!("{finding}"))?;
    if report.findings.len() > MOST_PRINTED {
        say!("... and {} more (--json has them)", report.findings.len() - MOST_PRINTED)?;
    }
    let head = ["state", "file", "damage"].into_iter().chain(Class::ALL.map(Class::name)).map(String::from);
    let mut lines: Vec<Vec<String>> = vec![head.collect()];
    for row in &report.rows {
        let place = [row.state, row.file, row.kind].map(String::from);
        lines.push(place.into_iter().chain(row.counts.map(count)).collect());
    }
    let all = ["all", "", ""].map(String::from);
    lines.push(all.into_iter().chain(report.counts.map(count)).collect());
    print_columns(&lines)?;
    let verdict = if report.is_clean() { "no lost row, no wrong answer, no panic, no hang" } else { "WRONG" };
    say!("{} damages in {:.1} s: {verdict}", report.damages, report.seconds)
}

fn count(n: u64) -> String {
    if n == 0 { "-".into() } else { n.to_string() }
}

/// Words to the left, numbers to the right.
fn print_columns(lines: &[Vec<String>]) -> std::io::Result<()> {
    let width = |at: usize| lines.iter().map(|line| line[at].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..lines[0].len()).map(width).collect();
    for line in lines {
        let cells = line.iter().zip(&widths).enumerate().map(|(at, (cell, width))| match at {
            0..3 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        say!("{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}
