//! Medians, ratios, the Markdown table and the JSON file.

use std::fmt::Write as _;
use std::process::Command;

use crate::bench::{Against, Ask, Group, ROWS, Row, Sample};
use crate::child::LARGE_THREADS;
use crate::engine::Kind;
use crate::engines::{self, ENGINES};
use crate::options::Options;
use crate::runner::{Outcome, settings};

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

/// The figures of a row, in the order of the engines, fio's last.
pub fn figures(row: &Row, samples: &[Sample]) -> Vec<Figure> {
    let mut found = Vec::new();
    for engine in ENGINES.iter().map(|e| e.name).chain(["fio"]) {
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

/// Varve's figure over that of the best it is compared with, and who that is.
pub fn ratio(against: Against, figures: &[Figure]) -> Option<(f64, &Figure)> {
    let varve = figures.iter().find(|f| f.engine == "varve")?;
    let counts = |engine: &str| match against {
        Against::Best => true,
        Against::BestThatFlushes => engines::named(engine).is_some_and(|e| e.flushes),
        Against::BestBTree => engines::named(engine).is_some_and(|e| e.kind == Kind::BTree),
        Against::One(name) => engine == name,
    };
    let others = figures.iter().filter(|f| !f.engine.starts_with("varve") && counts(f.engine));
    let best = others.max_by(|a, b| a.median.total_cmp(&b.median))?;
    Some((varve.median / best.median, best))
}

/// What is asked in a row, or just to be known how it stands to the best.
fn compared(row: &Row) -> Vec<(Against, Option<Ask>)> {
    match row.asks {
        [] => vec![(Against::Best, None)],
        asks => asks.iter().map(|ask| (ask.against, Some(*ask))).collect(),
    }
}

/// Whether a ratio is what was asked.
fn met(ratio: f64, ask: &Ask) -> &'static str {
    match ratio {
        r if r >= ask.aim => "yes, the aim",
        r if r >= ask.least => "yes",
        _ => "NO",
    }
}

/// The cells of a row from the ratio on: ratio and rival, asked, met.
fn verdict(row: &Row, figures: &[Figure]) -> [String; 3] {
    let mut cells: [Vec<String>; 3] = Default::default();
    for (against, ask) in compared(row) {
        let found = ratio(against, figures);
        cells[0].push(match found {
            // fio has no column of its own.
            Some((ratio, rival)) if rival.engine == "fio" => format!("{ratio:.2} of fio ({})", short(rival.median)),
            Some((ratio, rival)) => format!("{ratio:.2} of {}", rival.engine),
            None => "-".to_string(),
        });
        if let Some(ask) = ask {
            cells[1].push(format!("{:.1}, {:.1}", ask.least, ask.aim));
            cells[2].push(found.map_or("-", |(ratio, _)| met(ratio, &ask)).to_string());
        }
    }
    cells.map(|cell| cell.join("; "))
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

/// The table, what it cost, and the engines' settings as Markdown.
pub fn markdown(options: &Options, origin: &Origin, outcome: &Outcome) -> String {
    let mut out = String::new();
    let samples = &outcome.samples;
    let engines: Vec<&str> =
        ENGINES.iter().map(|e| e.name).filter(|name| samples.iter().any(|s| s.engine == *name)).collect();
    let rows: Vec<(&Row, Vec<Figure>)> = ROWS.iter().map(|row| (row, figures(row, samples))).collect();
    let rows: Vec<(&Row, Vec<Figure>)> = rows.into_iter().filter(|(_, figures)| !figures.is_empty()).collect();
    rates(&mut out, &engines, &rows);
    costs(&mut out, &engines, &rows);
    let mut line = |text: String| _ = writeln!(out, "{text}");
    for failure in &outcome.failures {
        line(format!("FAILED: {} ({:?}): {}\n", failure.engine, failure.group, failure.why));
    }
    line(format!(
        "Medians of {} rounds; commit {}, seed {}, {}; {}, {}; {} other processes wanted to run.\n",
        options.rounds, origin.commit, origin.seed, origin.date, origin.processor, origin.system, origin.load
    ));
    line("| engine | version | set up with | where memory is scarce | durable commit | not synced | isolation | bulk load |".into());
    line("|---|---|---|---|---|---|---|---|".to_string());
    for entry in ENGINES.iter().filter(|e| engines.contains(&e.name)) {
        let d = (entry.describe)(&settings(Group::Small, &options.scale, 1));
        let scarce = (entry.describe)(&settings(Group::Large, &options.scale, LARGE_THREADS)).setup;
        line(format!(
            "| {} | {} | {} | {scarce} | {} | {} | {} | {} |",
            entry.name, d.version, d.setup, d.durable, d.not_synced, d.isolation, d.bulk
        ));
    }
    out
}

fn rates(out: &mut String, engines: &[&str], rows: &[(&Row, Vec<Figure>)]) {
    _ = writeln!(out, "| | unit | {} | Varve / other | asked: at least, aim | met |", engines.join(" | "));
    _ = writeln!(out, "|---|---|{}---|---|---|", "---:|".repeat(engines.len()));
    for (row, figures) in rows {
        let flushes = |engine: &str| engines::named(engine).is_some_and(|e| e.flushes);
        let durable = row.asks.iter().any(|ask| ask.against == Against::BestThatFlushes);
        let cell = |engine: &&str| match figures.iter().find(|f| f.engine == *engine) {
            Some(f) if matches!(row.group, Group::Tpcc | Group::TpccScarce) => {
                format!("{} ({} thr.)", short(f.median), f.threads)
            }
            Some(f) if durable && !flushes(engine) => format!("({})", short(f.median)),
            Some(f) => short(f.median),
            None => String::new(),
        };
        let cells: Vec<String> = engines.iter().map(cell).collect();
        let [ratio, asked, met] = verdict(row, figures);
        _ = writeln!(out, "| {} | {} | {} | {ratio} | {asked} | {met} |", row.title, row.unit, cells.join(" | "));
    }
}

fn costs(out: &mut String, engines: &[&str], rows: &[(&Row, Vec<Figure>)]) {
    _ = writeln!(out, "\nProcessor time of the whole process per operation (TPC-C: per new order), µs:\n");
    _ = writeln!(out, "| | {} |", engines.join(" | "));
    _ = writeln!(out, "|---|{}", "---:|".repeat(engines.len()));
    for (row, figures) in rows {
        let cost =
            |engine: &&str| figures.iter().find(|f| f.engine == *engine).map_or(String::new(), |f| cost(f.cpu_us));
        _ = writeln!(out, "| {} | {} |", row.title, engines.iter().map(cost).collect::<Vec<_>>().join(" | "));
    }
    _ = writeln!(out);
}

/// Everything as JSON: settings, and per row its medians, ratios and samples with commit, seed and date.
pub fn json(options: &Options, origin: &Origin, outcome: &Outcome) -> serde_json::Value {
    let samples = &outcome.samples;
    let rows = ROWS.iter().filter_map(|row| {
        let figures = figures(row, samples);
        let compared = compared(row).into_iter().filter_map(|(against, ask)| {
            let (ratio, rival) = ratio(against, &figures)?;
            let met = ask.map(|ask| met(ratio, &ask));
            Some(serde_json::json!({"ratio": ratio, "of": rival.engine, "asked": ask, "met": met}))
        });
        let compared: Vec<_> = compared.collect();
        let of_row: Vec<&Sample> = samples.iter().filter(|s| s.row == row.name).collect();
        (!figures.is_empty()).then(|| {
            serde_json::json!({
                "row": row.name,
                "title": row.title,
                "unit": row.unit,
                "figures": figures,
                "compared": compared,
                "samples": of_row,
                "commit": origin.commit,
                "seed": origin.seed,
                "date": origin.date,
            })
        })
    });
    let settings = settings(Group::Small, &options.scale, 1);
    let engines: serde_json::Map<String, serde_json::Value> =
        ENGINES.iter().map(|e| (e.name.to_string(), serde_json::json!((e.describe)(&settings)))).collect();
    serde_json::json!({
        "origin": origin,
        "quick": options.quick,
        "rounds": options.rounds,
        "scale": options.scale,
        "engines": engines,
        "rows": rows.collect::<Vec<_>>(),
        "failures": outcome.failures,
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
        let (by, rival) = ratio(Against::One("sqlite"), &figures).expect("both are there");
        assert_eq!((by, rival.engine), (30.0 / 14.0, "sqlite"));
        let [ratio, asked, met] = verdict(row, &figures);
        assert_eq!([&ratio[..], &asked[..], &met[..]], ["2.14 of sqlite", "4.0, 8.0", "NO"]);
    }

    #[test]
    fn who_counts_depends_on_the_row() {
        let figure = |engine, median| Figure { engine, median, cpu_us: 1.0, threads: 1 };
        let mut figures =
            vec![figure("varve", 60.0), figure("redb", 20.0), figure("fjall", 40.0), figure("sled", 30.0)];
        let of_others = figures.clone();
        // Another kind of keyspace of the same engine is nobody to be compared with.
        figures.push(figure("varve-lsm", 90.0));
        let of = |against| ratio(against, &figures).map(|(ratio, rival)| (ratio, rival.engine));
        assert_eq!(of(Against::Best), Some((1.5, "fjall")));
        assert_eq!(of(Against::BestThatFlushes), Some((1.5, "fjall")));
        assert_eq!(of(Against::BestBTree), Some((2.0, "sled")));
        assert_eq!(of(Against::One("fio")), None);
        let without_fjall = [&of_others[..2], &of_others[3..]].concat();
        assert_eq!(ratio(Against::BestThatFlushes, &without_fjall).map(|(by, f)| (by, f.engine)), Some((3.0, "redb")));
        let ask = Ask { against: Against::Best, least: 1.0, aim: 2.0 };
        assert_eq!([0.99, 1.0, 1.99, 2.0].map(|r| met(r, &ask)), ["NO", "yes", "yes", "yes, the aim"]);
    }

    #[test]
    fn figures_are_short() {
        let texts = [7.2, 999.0, 1234.0, 12345.0, 123_456.0].map(short);
        assert_eq!(texts, ["7", "999", "1.23 k", "12.3 k", "123 k"]);
        assert_eq!([0.123, 12.34, 123.4].map(cost), ["0.12", "12.3", "123"]);
    }
}
