//! Tables for the terminal: the points, and measured beside published.

use super::ExperimentError;
use super::check::judge;
use super::{Check, Judged, PointResult, Verdict};
use std::fmt::Write as _;

/// From this share of the clients' time on, waiting for locks is no longer negligible.
pub const LOCK_BOUND: f64 = 0.05;

/// From this share of the cores on, a point is called CPU-bound.
pub const CPU_BOUND: f64 = 0.9;

/// From this share of this machine's cores on, other processes disturb a point of the paced clock.
pub const SHARED: f64 = 0.05;

/// A number with as many digits as matter.
pub(crate) fn short(x: f64) -> String {
    let a = x.abs();
    match () {
        () if x == x.trunc() && a < 1e12 || a >= 1000.0 => separated(x),
        () if a >= 100.0 => format!("{x:.1}"),
        () if a >= 10.0 => format!("{x:.2}"),
        () if a >= 0.001 => format!("{x:.3}"),
        () => format!("{x:.2e}"),
    }
}

/// A whole number with a comma at every third digit.
fn separated(x: f64) -> String {
    let digits = format!("{:.0}", x.abs());
    let mut out = String::from(if x < 0.0 { "-" } else { "" });
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Lays out rows under a head; the first column to the left, the others to the right.
fn columns(rows: &[Vec<String>]) -> String {
    let n = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|t| t.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..n).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (c, text) in row.iter().enumerate() {
            let _ = match c {
                0 => write!(line, "{text:<w$}", w = widths[0]),
                _ => write!(line, "  {text:>w$}", w = widths[c]),
            };
        }
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out
}

/// The main figure of a result: name and value.
pub(super) fn throughput(r: &PointResult) -> (&'static str, f64) {
    match (r.metrics.get("tpmc"), r.metrics.get("effective_op")) {
        (Some(tpmc), _) => ("tpmC", *tpmc),
        (None, Some(op)) => ("effective OP", *op),
        (None, None) => ("ops/s", r.metrics.get("ops_per_s").copied().unwrap_or(0.0)),
    }
}

/// Columns of the table of points: title, metric, factor.
const COLUMNS: [(&str, &str, f64); 17] = [
    ("p50 ms", "p50_ms", 1.0),
    ("p99 ms", "p99_ms", 1.0),
    ("hits %", "hit_ratio", 100.0),
    ("in old ms", "pool.residence_ms", 1.0),
    ("left early %", "pool.evicted_early", 100.0),
    ("cleaner busy %", "pool.cleaner_busy", 100.0),
    ("drainer busy %", "pool.drainer_busy", 100.0),
    ("WA", "wa", 1.0),
    ("theory", "theory", 1.0),
    ("reads/s", "data.reads_per_s", 1.0),
    ("writes/s", "data.writes_per_s", 1.0),
    ("data busy %", "data.utilisation", 100.0),
    ("log busy %", "log.utilisation", 100.0),
    ("cpu %", "host.busy", 100.0),
    ("cpu us/txn", "host.cpu_us_per_txn", 1.0),
    ("latch wait %", "latch_wait_share", 100.0),
    ("lock wait %", "lock_wait_share", 100.0),
];

/// What is to be known before a point's figures are believed.
pub(super) fn remarks(r: &PointResult) -> Vec<String> {
    let of = |metric: &str| r.metrics.get(metric).copied().unwrap_or(0.0);
    let mut all = Vec::new();
    if of("lock_wait_share") > LOCK_BOUND {
        all.push(format!(
            "not I/O-bound: clients wait for locks for {:.0} % of their time",
            100.0 * of("lock_wait_share")
        ));
    }
    if of("host.busy") > CPU_BOUND {
        all.push(format!("CPU-bound: {:.0} % of {} cores busy", 100.0 * of("host.busy"), of("host.cores")));
    }
    if of("host.others") > SHARED {
        all.push(format!("disturbed: other processes took {:.0} % of the machine", 100.0 * of("host.others")));
    }
    all
}

/// One line per point.
pub fn points_table(results: &[PointResult]) -> String {
    let Some(first) = results.first() else { return String::new() };
    let seeds = results.iter().any(|r| r.seed != first.seed);
    let shown: Vec<_> = COLUMNS.iter().filter(|c| results.iter().any(|r| r.metrics.contains_key(c.1))).collect();
    let mut head = vec!["point".to_string()];
    head.extend(seeds.then(|| "seed".to_string()));
    head.push(throughput(first).0.to_string());
    head.extend(shown.iter().map(|c| c.0.to_string()));
    let mut rows = vec![head];
    for r in results {
        let mut row = vec![r.point.clone()];
        row.extend(seeds.then(|| r.seed.to_string()));
        row.push(short(throughput(r).1));
        for (_, metric, factor) in &shown {
            row.push(r.metrics.get(*metric).map_or(String::new(), |v| short(v * factor)));
        }
        rows.push(row);
    }
    let mut out = columns(&rows);
    for r in results {
        for remark in remarks(r) {
            let _ = writeln!(
                out,
                "{}{}: {remark}",
                r.point,
                if seeds { format!(" seed {}", r.seed) } else { String::new() }
            );
        }
    }
    if !first.scaled.is_empty() {
        out.push('\n');
        let mut rows = vec![vec!["scaled size".to_string(), "source".into(), "here".into()]];
        rows.extend(first.scaled.iter().map(|s| vec![s.key.clone(), s.published.clone(), s.used.clone()]));
        out.push_str(&columns(&rows));
    }
    out
}

/// Judges all checks.
///
/// # Errors
/// A check is wrong: it names a metric that is not there.
pub fn judge_all(name: &str, checks: &[Check], results: &[PointResult]) -> Result<Vec<Judged>, ExperimentError> {
    checks.iter().map(|c| judge(name, c, results).map_err(ExperimentError::Check)).collect()
}

fn range(low: Option<f64>, high: Option<f64>) -> String {
    match (low, high) {
        (Some(l), Some(h)) if l == h => format!("= {}", short(l)),
        (Some(l), Some(h)) => format!("{} .. {}", short(l), short(h)),
        (Some(l), None) => format!(">= {}", short(l)),
        (None, Some(h)) => format!("<= {}", short(h)),
        (None, None) => String::new(),
    }
}

fn yes_or_no(x: f64) -> String {
    if x == 1.0 { "yes".into() } else { "no".into() }
}

fn verdict(v: &Verdict) -> &'static str {
    match (v.holds, v.narrowly) {
        (None, _) => "reported",
        (Some(true), false) => "holds",
        (Some(true), true) => "holds narrowly",
        (Some(false), false) => "DOES NOT HOLD",
        (Some(false), true) => "DOES NOT HOLD, narrowly",
    }
}

/// Cells of the table of checks.
pub(super) fn check_rows(judged: &[Judged]) -> Vec<[String; 5]> {
    let row = |j: &Judged| match j {
        Judged::Verdict(v) => {
            let shown = if v.order { yes_or_no } else { short };
            let number = |x: Option<f64>| x.map_or("-".to_string(), shown);
            let seeds =
                v.seeds.map_or(String::new(), |(least, most)| format!(" ({} to {})", shown(least), shown(most)));
            let accepted = if v.order { number(v.low.or(v.high)) } else { range(v.low, v.high) };
            [v.check.clone(), number(v.measured) + &seeds, number(v.published), accepted, verdict(v).to_string()]
        }
        Judged::Skipped { check, why } => {
            [check.clone(), "-".into(), String::new(), String::new(), format!("not measured: {why}")]
        }
    };
    judged.iter().map(row).collect()
}

/// Measured beside published.
pub fn checks_table(judged: &[Judged]) -> String {
    if judged.is_empty() {
        return String::new();
    }
    let mut rows = vec![["check", "measured", "published", "accepted", ""].map(String::from).to_vec()];
    rows.extend(check_rows(judged).into_iter().map(Vec::from));
    columns(&rows)
}
