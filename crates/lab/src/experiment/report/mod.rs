//! The report: one HTML file with everything in it, for screen (light and dark) and paper. No script, no network.

pub(crate) mod chart;

use super::document::Experiment;
use super::parameters::{Basis, parameters};
use super::results::Header;
use super::table::{check_rows, remarks, short, throughput};
use super::{ExperimentError, Judged, PointResult};
use chart::{Axes, Line};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use varve::UPDATE_BOUNDS;

/// Text in HTML.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

pub(crate) const STYLE: &str = include_str!("style.css");

/// A shell word.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,".contains(c);
    if !word.is_empty() && word.chars().all(plain) { word.into() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}

/// The command that repeats a run.
fn command(header: &Header) -> String {
    let mut words = vec!["varve lab run".to_string(), format!("experiments/{}.toml", quoted(&header.experiment))];
    words.extend(header.quick.then(|| "--quick".to_string()));
    words.extend(header.sets.iter().map(|(key, value)| format!("--set {}", quoted(&format!("{key}={value}")))));
    words.join(" ")
}

/// A point's name in charts; the seed where there are several.
fn label(r: &PointResult, seeds: bool) -> String {
    if seeds { format!("{} seed {}", r.point, r.seed) } else { r.point.clone() }
}

/// Characters that a chart has room for.
const ROOM: usize = 40;

/// A point's name where there is little room: the variant without its axis, and the values alone if that is too long
/// still.
fn short_label(r: &PointResult, seeds: bool) -> String {
    let named = |(axis, value): &(String, String)| match axis.as_str() {
        "variant" => value.clone(),
        _ => format!("{axis}={value}"),
    };
    let seed = seeds.then(|| format!("seed {}", r.seed));
    let join = |parts: Vec<String>| parts.into_iter().chain(seed.clone()).collect::<Vec<_>>().join(", ");
    let long = join(r.axes.iter().map(named).collect());
    match () {
        () if r.axes.is_empty() => label(r, seeds),
        () if long.chars().count() <= ROOM => long,
        () => join(r.axes.iter().map(|(_, value)| value.clone()).collect()),
    }
}

pub(crate) fn table(out: &mut String, head: &[&str], rows: &[Vec<String>]) {
    out.push_str("<div class=\"wide\"><table><thead><tr>");
    for name in head {
        let _ = write!(out, "<th>{}</th>", escape(name));
    }
    out.push_str("</tr></thead><tbody>");
    for row in rows {
        out.push_str("<tr>");
        for cell in row {
            let class = match cell.as_str() {
                "holds" | "holds narrowly" => " class=\"good\"",
                "DOES NOT HOLD" | "DOES NOT HOLD, narrowly" => " class=\"bad\"",
                _ => "",
            };
            let _ = write!(out, "<td{class}>{}</td>", escape(cell));
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>");
}

/// Columns of the report's table of points: title, metric, factor.
const COLUMNS: [(&str, &str, f64); 22] = [
    ("mean ms", "mean_ms", 1.0),
    ("p50 ms", "p50_ms", 1.0),
    ("p95 ms", "p95_ms", 1.0),
    ("p99 ms", "p99_ms", 1.0),
    ("p99.9 ms", "p999_ms", 1.0),
    ("hits %", "hit_ratio", 100.0),
    ("in old ms", "pool.residence_ms", 1.0),
    ("left early %", "pool.evicted_early", 100.0),
    ("cleaner busy %", "pool.cleaner_busy", 100.0),
    ("drainer busy %", "pool.drainer_busy", 100.0),
    ("WA", "wa", 1.0),
    ("data reads/s", "data.reads_per_s", 1.0),
    ("data writes/s", "data.writes_per_s", 1.0),
    ("data busy %", "data.utilisation", 100.0),
    ("log busy %", "log.utilisation", 100.0),
    ("cpu %", "host.busy", 100.0),
    ("cpu µs/txn", "host.cpu_us_per_txn", 1.0),
    ("other processes %", "host.others", 100.0),
    ("stalls", "pool.stalls", 1.0),
    ("client writes", "client_writes", 1.0),
    ("latch wait %", "latch_wait_share", 100.0),
    ("lock wait %", "lock_wait_share", 100.0),
];

fn points(out: &mut String, results: &[PointResult], seeds: bool) {
    let Some(first) = results.first() else { return };
    let shown: Vec<_> = COLUMNS.iter().filter(|c| results.iter().any(|r| r.metrics.contains_key(c.1))).collect();
    let mut head = vec!["point", throughput(first).0];
    head.extend(shown.iter().map(|c| c.0));
    let cell = |r: &PointResult, c: &(&str, &str, f64)| r.metrics.get(c.1).map_or(String::new(), |v| short(v * c.2));
    let row = |r: &PointResult| {
        let mut row = vec![label(r, seeds), short(throughput(r).1)];
        row.extend(shown.iter().map(|c| cell(r, c)));
        row
    };
    out.push_str("<h2>Points</h2>");
    table(out, &head, &results.iter().map(row).collect::<Vec<_>>());
    let remark =
        |r: &PointResult| remarks(r).into_iter().map(|text| format!("{}: {text}", label(r, seeds))).collect::<Vec<_>>();
    for text in results.iter().flat_map(remark) {
        let _ = write!(out, "<p class=\"note\">{}</p>", escape(&text));
    }
}

/// The charts that the experiment's file asks for.
fn drawings(out: &mut String, e: &Experiment, results: &[PointResult]) {
    if e.charts.is_empty() {
        return;
    }
    out.push_str("<h2>Figures</h2><div class=\"charts\">");
    for drawing in &e.charts {
        let lines = match drawing.drawn(results) {
            Ok(lines) => lines,
            Err(what) => {
                let _ = write!(out, "<p class=\"note\">{}: {}</p>", escape(&drawing.title), escape(&what));
                continue;
            }
        };
        let lines: Vec<Line> = lines.into_iter().map(|(name, points)| Line { name, points }).collect();
        if !lines.is_empty() {
            let axes = Axes { x: &drawing.labels.0, y: &drawing.labels.1, log_x: false, from_zero: drawing.from_zero };
            out.push_str(&chart::lines(&drawing.title, &axes, &lines));
        }
    }
    out.push_str("</div>");
}

/// Most points that each have a bar; what has more is told by charts of its own.
const BARS: usize = 300;

fn charts(out: &mut String, results: &[PointResult], seeds: bool) {
    let Some(first) = results.first() else { return };
    let bar = |metric: &str, factor: f64| -> Vec<(String, f64)> {
        let value = |r: &PointResult| r.metrics.get(metric).map(|v| (short_label(r, seeds), v * factor));
        results.iter().filter_map(value).collect()
    };
    out.push_str("<h2>Charts</h2>");
    let values_alone = |r: &PointResult| r.axes.len() > 1 && !short_label(r, false).contains('=');
    if results.iter().any(values_alone) {
        let axes: Vec<&str> = first.axes.iter().map(|(axis, _)| axis.as_str()).collect();
        let _ = write!(out, "<p class=\"note\">Points are named by their values of: {}.</p>", escape(&axes.join(", ")));
    }
    out.push_str("<div class=\"charts\">");
    let rows: Vec<_> = results.iter().map(|r| (short_label(r, seeds), throughput(r).1)).collect();
    let unit = if throughput(first).0 == "tpmC" { "new orders per minute" } else { "operations per second" };
    out.push_str(&chart::bars("Throughput", unit, &rows));
    for (title, unit, metric, factor) in [
        ("Response time, 99th percentile", "milliseconds", "p99_ms", 1.0),
        ("Hit ratio of the buffer pool", "percent of page accesses", "hit_ratio", 100.0),
        ("Write amplification", "pages programmed per page written by the host", "wa", 1.0),
        ("Data device busy", "percent of the time", "data.utilisation", 100.0),
        ("Log device busy", "percent of the time", "log.utilisation", 100.0),
        ("Processor use", "percent of the host's cores", "host.busy", 100.0),
        ("Time that misses waited for a frame", "seconds, all clients together", "pool.stall_ms", 1e-3),
    ] {
        let rows = bar(metric, factor);
        if rows.iter().any(|r| r.1 > 0.0) {
            out.push_str(&chart::bars(title, unit, &rows));
        }
    }
    let latency = |r: &PointResult| Line {
        name: short_label(r, seeds),
        points: r.latency.iter().map(|(q, ms)| (ms.max(1e-3), q * 100.0)).collect(),
    };
    let lines: Vec<Line> = results.iter().map(latency).filter(|l| !l.points.is_empty()).collect();
    if !lines.is_empty() {
        let axes = Axes {
            x: "response time, milliseconds",
            y: "percent of transactions within",
            log_x: true,
            from_zero: true,
        };
        out.push_str(&chart::lines("Distribution of response times", &axes, &lines));
    }
    update_sizes(out, results, seeds);
    for (title, y, series, factor) in [
        ("Throughput over time", "per second", "per_s", 1.0),
        ("Data device busy over time", "percent", "data.utilisation", 100.0),
        ("Processor use over time", "percent of the host's cores", "host.busy", 100.0),
        ("Hit ratio over time", "percent", "hit_ratio", 100.0),
        ("Dirty pages over time", "percent of the pool", "pool.dirty_share", 100.0),
    ] {
        let over_time = |r: &PointResult| {
            let (t, v) = (r.series.get("t")?, r.series.get(series)?);
            let points = t.iter().copied().zip(v.iter().map(|v| v * factor)).collect();
            Some(Line { name: short_label(r, seeds), points })
        };
        let lines: Vec<Line> = results.iter().filter_map(over_time).collect();
        if !lines.is_empty() {
            let axes = Axes { x: "time since the start, warm-up included, seconds", y, log_x: false, from_zero: true };
            out.push_str(&chart::lines(title, &axes, &lines));
        }
    }
    out.push_str("</div>");
}

/// How much updates of pages change, where that was counted.
fn update_sizes(out: &mut String, results: &[PointResult], seeds: bool) {
    for (title, which) in
        [("Sizes of page updates, header included", "gross"), ("Sizes of page updates, without the header", "net")]
    {
        let within = |r: &PointResult, bytes: u32| r.metrics.get(&format!("updates.{which}_within_{bytes}")).copied();
        let line = |r: &PointResult| Line {
            name: short_label(r, seeds),
            points: UPDATE_BOUNDS.iter().filter_map(|b| Some((f64::from(*b), within(r, *b)? * 100.0))).collect(),
        };
        let lines: Vec<Line> = results.iter().map(line).filter(|l| !l.points.is_empty()).collect();
        if !lines.is_empty() {
            let axes = Axes { x: "changed bytes", y: "percent of updates within", log_x: true, from_zero: true };
            out.push_str(&chart::lines(title, &axes, &lines));
        }
    }
}

/// What being on the fast device of a tier did to pages.
fn locations(out: &mut String, results: &[PointResult], seeds: bool) {
    for (r, l) in results.iter().filter_map(|r| Some((r, r.location.as_ref()?))) {
        let _ = write!(out, "<h2>On the fast device and off it: {}</h2>", escape(&label(r, seeds)));
        out.push_str("<div class=\"charts\">");
        let line = |(name, points): (&String, &Vec<(f64, f64)>)| Line { name: name.clone(), points: points.clone() };
        let mut lines: Vec<Line> = l.expansion.iter().map(line).collect();
        lines.sort_by_key(|l| std::cmp::Reverse(l.points.len()));
        let axes = Axes { x: "logical reads per minute of a page", y: "factor", log_x: false, from_zero: true };
        out.push_str(&chart::lines("Miss rate on the fast device over that off it, by group of pages", &axes, &lines));
        let (off, on) = ("not on the fast device", "on the fast device");
        out.push_str(&chart::scatter("Miss rate of a page, percent", off, on, &l.misses));
        out.push_str(&chart::scatter("Writes of a page per hundred logical reads", off, on, &l.writes));
        out.push_str("</div>");
    }
}

/// By transaction type, for each point.
fn kinds(out: &mut String, results: &[PointResult], seeds: bool) {
    let mut rows = Vec::new();
    for r in results {
        for (kind, figures) in &r.kinds {
            let mut row = vec![label(r, seeds), kind.clone()];
            for name in ["count", "p50_ms", "p95_ms", "p99_ms", "p999_ms", "max_ms", "retries"] {
                row.push(figures.get(name).map_or(String::new(), |v| short(*v)));
            }
            rows.push(row);
        }
    }
    if !rows.is_empty() {
        out.push_str("<h2>Transaction types</h2>");
        let head = ["point", "type", "count", "p50 ms", "p95 ms", "p99 ms", "p99.9 ms", "max ms", "retries"];
        table(out, &head, &rows);
    }
}

/// Where each point's threads waited for locks of the program.
fn lock_waits(out: &mut String, results: &[PointResult], seeds: bool) {
    let mut rows = Vec::new();
    for r in results {
        for l in &r.locks {
            rows.push(vec![label(r, seeds), l.place.clone(), l.kind.clone(), l.waits.to_string(), short(l.ms)]);
        }
    }
    if !rows.is_empty() {
        out.push_str("<h2>Waits for locks of the program</h2><details><summary>The longest of each point, by the line that asked for the lock</summary>");
        table(out, &["point", "line", "lock", "waits", "ms, all threads"], &rows);
        out.push_str("</details>");
    }
}

/// What the pools were made with: what all points have in common, and what they do not.
fn settings(out: &mut String, results: &[PointResult], seeds: bool) {
    let Some(first) = results.first().filter(|r| !r.settings.is_empty()) else { return };
    let same = |name: &String| results.iter().all(|r| r.settings.get(name) == first.settings.get(name));
    let (common, other): (Vec<&String>, Vec<&String>) = first.settings.keys().partition(|name| same(name));
    out.push_str("<h2>Settings of the buffer pool</h2><details open><summary>In common</summary>");
    let rows: Vec<_> = common.iter().map(|name| vec![name.to_string(), first.settings[*name].clone()]).collect();
    table(out, &["setting", "value"], &rows);
    out.push_str("</details>");
    if !other.is_empty() {
        let head: Vec<&str> = ["point"].into_iter().chain(other.iter().map(|name| name.as_str())).collect();
        let cell = |r: &PointResult, name: &String| r.settings.get(name).cloned().unwrap_or_default();
        let row = |r: &PointResult| [label(r, seeds)].into_iter().chain(other.iter().map(|n| cell(r, n))).collect();
        table(out, &head, &results.iter().map(row).collect::<Vec<_>>());
    }
}

/// What the figures rest on, what is assumed first.
fn basis(out: &mut String, e: &Experiment) {
    let mut all = match parameters(e) {
        Ok(all) if all.is_empty() => return,
        Ok(all) => all,
        Err(why) => {
            let why = escape(&why.to_string());
            let _ = write!(out, "<h2>What the figures rest on</h2><p class=\"note\">Cannot be told: {why}</p>");
            return;
        }
    };
    all.sort_by_key(|b| !b.parameter.is_assumed());
    let count = all.iter().filter(|b| b.parameter.is_assumed()).count();
    let _ = write!(
        out,
        "<h2>What the figures rest on</h2><p class=\"note\">{count} of {} numbers are assumed; \
         <code>varve lab run --sensitivity</code> tells which of them decide a check.</p>\
         <details><summary>Every number with its source</summary>",
        all.len()
    );
    let row = |b: &Basis| {
        let source = b.parameter.source.clone().unwrap_or_else(|| "assumed".into());
        vec![b.of.clone(), b.parameter.key.clone(), b.parameter.value.to_string(), source]
    };
    table(out, &["of", "number", "value", "source"], &all.iter().map(row).collect::<Vec<_>>());
    out.push_str("</details>");
}

fn configuration(out: &mut String, e: &Experiment, header: &Header) {
    out.push_str("<h2>Configuration</h2>");
    if let Some(first) = e.points.first() {
        let rows: Vec<Vec<String>> = first.spec.rows().into_iter().map(|(key, value)| vec![key, value]).collect();
        out.push_str("<details><summary>Every key of the first point, defaults included</summary>");
        table(out, &["key", "value"], &rows);
        out.push_str("</details>");
        if !first.scaled.is_empty() {
            let rows = first.scaled.iter().map(|s| vec![s.key.clone(), s.published.clone(), s.used.clone()]);
            table(out, &["scaled size", "source", "here"], &rows.collect::<Vec<_>>());
        }
    }
    let _ = write!(out, "<h3>The experiment file</h3><pre>{}</pre>", escape(&header.text));
}

/// How long the points were measured: "Quick: 0.3 s measured after 0.3 s, ".
fn lengths(e: &Experiment, quick: bool) -> String {
    let of = |p: &super::document::Point| (p.spec.run.seconds, p.spec.run.warmup_s);
    let all: Vec<(f64, f64)> = e.points.iter().map(of).collect();
    let ends = |values: &mut dyn Iterator<Item = f64>| {
        let (least, most) = values.fold((f64::INFINITY, 0.0f64), |(a, b), x| (a.min(x), b.max(x)));
        if least == most { format!("{} s", short(least)) } else { format!("{} to {} s", short(least), short(most)) }
    };
    let mut workloads = e.points.iter().map(|p| &p.spec.workload);
    let runs = workloads.any(|w| w.tpcc.is_some() || w.tpcb.is_some() || w.ycsb.is_some());
    if all.is_empty() || !runs {
        return if quick { "Quick; ".into() } else { String::new() };
    }
    let (measured, before) = (ends(&mut all.iter().map(|x| x.0)), ends(&mut all.iter().map(|x| x.1)));
    format!("{}: {measured} measured after {before}; ", if quick { "Quick" } else { "Full" })
}

/// The whole page.
pub(super) fn page(e: &Experiment, header: &Header, results: &[PointResult], judged: &[Judged]) -> String {
    let seeds = results.iter().any(|r| r.seed != results[0].seed);
    let title = if e.title.is_empty() { &e.name } else { &e.title };
    let mut out = String::new();
    let _ = write!(
        out,
        "<!DOCTYPE html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\"><title>{0}</title><style>{STYLE}</style></head><body><main><h1>{0}</h1>",
        escape(title)
    );
    let _ = write!(out, "<p>{}</p>", escape(&e.about));
    if !e.source.is_empty() {
        let _ = write!(out, "<p class=\"note\">Source: {}</p>", escape(&e.source));
    }
    let clocks: Vec<&str> =
        ["virtual", "paced"].into_iter().filter(|c| results.iter().any(|r| r.clock == *c)).collect();
    let _ = write!(
        out,
        "<p class=\"note\">{}{} clock, commit {}. Repeat with:</p><pre>{}</pre>",
        lengths(e, header.quick),
        clocks.join(" and "),
        escape(&header.commit),
        escape(&command(header))
    );
    if !judged.is_empty() {
        out.push_str("<h2>Measured beside published</h2>");
        let rows: Vec<Vec<String>> = check_rows(judged).into_iter().map(Vec::from).collect();
        table(&mut out, &["check", "measured", "published", "accepted", "verdict"], &rows);
        let sources = e.checks.iter().filter(|c| !c.source.is_empty());
        let items: String =
            sources.map(|c| format!("<li><b>{}</b>: {}</li>", escape(&c.id), escape(&c.source))).collect();
        if !items.is_empty() {
            let _ = write!(
                out,
                "<details><summary>Sources of the published values and ranges</summary><ul>{items}</ul></details>"
            );
        }
    }
    points(&mut out, results, seeds);
    drawings(&mut out, e, results);
    if e.charts.is_empty() || results.len() <= BARS {
        charts(&mut out, results, seeds);
    }
    locations(&mut out, results, seeds);
    kinds(&mut out, results, seeds);
    lock_waits(&mut out, results, seeds);
    settings(&mut out, results, seeds);
    basis(&mut out, e);
    configuration(&mut out, e, header);
    out.push_str("</main></body></html>\n");
    out
}

/// Writes the report of an experiment into `dir`; returns its path.
///
/// # Errors
/// The file cannot be written.
pub fn write_report(
    dir: &Path,
    e: &Experiment,
    commit: &str,
    results: &[PointResult],
    judged: &[Judged],
) -> Result<PathBuf, ExperimentError> {
    let path = super::results::Files::of(dir, e).report;
    super::results::write(&path, &page(e, &Header::of(e, commit), results, judged))?;
    Ok(path)
}
