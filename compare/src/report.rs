//! Medians, ratios, the Markdown table and the JSON file.

use std::fmt::Write as _;
use std::process::Command;

use crate::bench::{Group, ROWS, Row, Sample};
use crate::options::Options;
use crate::runner::{ENGINES, settings};

/// Where and when a run was made.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Origin {
    /// Commit of the working tree, with `+` if it had changes; `unknown` outside a repository.
    pub commit: String,
    /// Date and time, UTC.
    pub date: String,
    /// Seed.
    pub seed: u64,
    /// Model of the processor and number of cores.
    pub processor: String,
    /// Operating system.
    pub system: String,
    /// Processes that wanted to run, on average over the minute before the run: what else the machine had to do.
    pub load: f64,
}

fn output(program: &str, args: &[&str]) -> Option<String> {
    let out = Command::new(program).args(args).current_dir(env!("CARGO_MANIFEST_DIR")).output().ok()?;
    let text = String::from_utf8(out.stdout).ok()?;
    out.status.success().then(|| text.trim().to_string())
}

impl Origin {
    /// This machine, now.
    pub fn here(seed: u64) -> Origin {
        let changed = output("git", &["status", "--porcelain", "--untracked-files=no"]).is_some_and(|s| !s.is_empty());
        let commit = output("git", &["rev-parse", "--short=10", "HEAD"]).unwrap_or_else(|| "unknown".to_string());
        let commit = if changed { commit + "+" } else { commit };
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpuinfo.lines().find_map(|l| l.strip_prefix("model name")).unwrap_or(": unknown");
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let cores = std::thread::available_parallelism().map_or(0, |n| n.get());
        Origin {
            commit,
            date: output("date", &["-u", "+%Y-%m-%d %H:%M UTC"]).unwrap_or_default(),
            seed,
            processor: format!("{}, {cores} cores", model.trim_start_matches([' ', '\t', ':'])),
            system: output("uname", &["-sr"]).unwrap_or_default(),
            load: load.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or_default(),
        }
    }
}

/// The figure of one engine in one row.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Figure {
    /// Name of the engine.
    pub engine: &'static str,
    /// Median over the rounds.
    pub median: f64,
    /// Median of the processor time per operation, microseconds.
    pub cpu_us: f64,
    /// Client threads: those of the best median, where several numbers were tried.
    pub threads: usize,
}

/// The middle of some figures; the mean of the two middle ones of an even number.
pub fn median(figures: &mut [f64]) -> f64 {
    assert!(!figures.is_empty(), "a median needs figures");
    figures.sort_by(f64::total_cmp);
    let middle = figures.len() / 2;
    if figures.len() % 2 == 1 { figures[middle] } else { (figures[middle - 1] + figures[middle]) / 2.0 }
}

/// The figures of a row, in the order of the engines.
pub fn figures(row: &Row, samples: &[Sample]) -> Vec<Figure> {
    let mut found = Vec::new();
    for engine in ENGINES.iter().map(|e| e.name) {
        let of_engine = || samples.iter().filter(|s| s.row == row.name && s.engine == engine);
        let mut threads: Vec<usize> = of_engine().map(|s| s.threads).collect();
        threads.sort_unstable();
        threads.dedup();
        let figure = |threads: usize| {
            let of = |figure: fn(&Sample) -> f64| {
                let mut values: Vec<f64> = of_engine().filter(|s| s.threads == threads).map(figure).collect();
                median(&mut values)
            };
            Figure { engine, median: of(|s| s.value), cpu_us: of(|s| s.cpu_us), threads }
        };
        found.extend(threads.into_iter().map(figure).max_by(|a, b| a.median.total_cmp(&b.median)));
    }
    found
}

/// Varve's figure over that of the best other engine, and the name of that one.
pub fn ratio(figures: &[Figure]) -> Option<(f64, &'static str)> {
    let varve = figures.iter().find(|f| f.engine == "varve")?;
    let others = figures.iter().filter(|f| f.engine != "varve");
    let best = others.max_by(|a, b| a.median.total_cmp(&b.median))?;
    Some((varve.median / best.median, best.engine))
}

/// A figure with three digits that matter, thousands apart.
fn short(value: f64) -> String {
    match value {
        v if v >= 99_950.0 => format!("{:.0} k", v / 1000.0),
        v if v >= 9_995.0 => format!("{:.1} k", v / 1000.0),
        v if v >= 999.5 => format!("{:.2} k", v / 1000.0),
        v => format!("{v:.0}"),
    }
}

/// Microseconds with three digits that matter.
fn cost(us: f64) -> String {
    match us {
        us if us >= 99.95 => format!("{us:.0}"),
        us if us >= 9.995 => format!("{us:.1}"),
        us => format!("{us:.2}"),
    }
}

/// The table and the engines' settings as Markdown.
pub fn markdown(options: &Options, origin: &Origin, samples: &[Sample]) -> String {
    let engines: Vec<&str> =
        ENGINES.iter().map(|e| e.name).filter(|name| samples.iter().any(|s| s.engine == *name)).collect();
    let mut out = String::new();
    let mut line = |text: String| _ = writeln!(out, "{text}");
    line(format!("| | unit | {} | Varve / best other |", engines.join(" | ")));
    line(format!("|---|---|{}---|", "---:|".repeat(engines.len())));
    for row in ROWS {
        let figures = figures(row, samples);
        if figures.is_empty() {
            continue;
        }
        let cell = |engine: &&str| match figures.iter().find(|f| f.engine == *engine) {
            Some(f) if row.group == Group::Tpcc => format!("{} ({} thr.)", short(f.median), f.threads),
            Some(f) => short(f.median),
            None => String::new(),
        };
        let cells: Vec<String> = engines.iter().map(cell).collect();
        let ratio = ratio(&figures).map_or(String::new(), |(ratio, best)| format!("{ratio:.2} ({best})"));
        line(format!("| {} | {} | {} | {ratio} |", row.title, row.unit, cells.join(" | ")));
    }
    line(String::new());
    line("Processor time of the whole process per operation (TPC-C: per new order), µs:".to_string());
    line(String::new());
    line(format!("| | {} |", engines.join(" | ")));
    line(format!("|---|{}", "---:|".repeat(engines.len())));
    for row in ROWS {
        let figures = figures(row, samples);
        let cost =
            |engine: &&str| figures.iter().find(|f| f.engine == *engine).map_or(String::new(), |f| cost(f.cpu_us));
        if !figures.is_empty() {
            line(format!("| {} | {} |", row.title, engines.iter().map(cost).collect::<Vec<_>>().join(" | ")));
        }
    }
    line(String::new());
    line(format!(
        "Medians of {} rounds; commit {}, seed {}, {}; {}, {}; {} other processes wanted to run.",
        options.rounds, origin.commit, origin.seed, origin.date, origin.processor, origin.system, origin.load
    ));
    line(String::new());
    let settings = settings(Group::Small, &options.scale);
    line("| engine | version | set up with | durable commit | not synced | isolation |".to_string());
    line("|---|---|---|---|---|---|".to_string());
    for entry in ENGINES.iter().filter(|e| engines.contains(&e.name)) {
        let d = (entry.describe)(&settings);
        line(format!(
            "| {} | {} | {} | {} | {} | {} |",
            entry.name, d.version, d.setup, d.durable, d.not_synced, d.isolation
        ));
    }
    out
}

/// Everything as JSON: settings, and per row its medians, ratio and samples with commit, seed and date.
pub fn json(options: &Options, origin: &Origin, samples: &[Sample]) -> serde_json::Value {
    let rows = ROWS.iter().filter_map(|row| {
        let figures = figures(row, samples);
        let ratio = ratio(&figures);
        let of_row: Vec<&Sample> = samples.iter().filter(|s| s.row == row.name).collect();
        (!figures.is_empty()).then(|| {
            serde_json::json!({
                "row": row.name,
                "title": row.title,
                "unit": row.unit,
                "figures": figures,
                "ratio": ratio.map(|r| r.0),
                "best_other": ratio.map(|r| r.1),
                "samples": of_row,
                "commit": origin.commit,
                "seed": origin.seed,
                "date": origin.date,
            })
        })
    });
    let settings = settings(Group::Small, &options.scale);
    let engines: serde_json::Map<String, serde_json::Value> =
        ENGINES.iter().map(|e| (e.name.to_string(), serde_json::json!((e.describe)(&settings)))).collect();
    serde_json::json!({
        "origin": origin,
        "quick": options.quick,
        "rounds": options.rounds,
        "scale": options.scale,
        "engines": engines,
        "rows": rows.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(engine: &'static str, threads: usize, value: f64) -> Sample {
        Sample { row: "tpcc", engine, round: 1, threads, value, cpu_us: 1000.0 / value }
    }

    #[test]
    fn medians_and_the_best_number_of_threads() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), 2.5);
        let mut samples = Vec::new();
        samples.extend([10.0, 90.0, 30.0].map(|v| sample("varve", 8, v)));
        samples.extend([9.0, 10.0, 11.0].map(|v| sample("sqlite", 1, v)));
        samples.extend([14.0, 15.0, 1.0].map(|v| sample("sqlite", 2, v)));
        let row = ROWS.iter().find(|r| r.name == "tpcc").expect("a row");
        let figures = figures(row, &samples);
        assert_eq!(figures[1], Figure { engine: "sqlite", median: 14.0, cpu_us: 1000.0 / 14.0, threads: 2 });
        assert_eq!(ratio(&figures), Some((30.0 / 14.0, "sqlite")));
    }

    #[test]
    fn figures_are_short() {
        let texts = [7.2, 999.0, 1234.0, 12345.0, 123_456.0].map(short);
        assert_eq!(texts, ["7", "999", "1.23 k", "12.3 k", "123 k"]);
        assert_eq!([0.123, 12.34, 123.4].map(cost), ["0.12", "12.3", "123"]);
    }
}
