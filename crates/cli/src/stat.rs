//! `stat`: the figures of a database, its own or of another process, once or over time.

use crate::args::Place;
use crate::args::stat::Stat;
use crate::flash_advice;
use crate::metrics::interval::Interval;
use crate::metrics::{Source, remote};
use crate::open::to_look;
use crate::output::{Failure, Out, Rows, bytes, figure_text, json_figure, table};
use crate::updates;
use serde_json::{Map, Value, json};
use std::io::Write;
use std::time::Duration;
use varve::Figure;

/// Lines between two headings.
const HEADING: u64 = 20;

pub fn run(out: Out, a: &Stat) -> Result<(), Failure> {
    if out.json && a.prometheus {
        return Err(Failure::Usage("choose one of --json and --prometheus".into()));
    }
    let source = source(out, a)?;
    let result = match a.watch {
        _ if a.advise.is_some() => advise(out, &source, a),
        _ if a.updates => updates(out, &source),
        Some(every) => watch(out, &source, every, a.count.unwrap_or(u64::MAX)),
        None => once(out, &source, a.prometheus),
    };
    match source {
        Source::Own(db) => {
            let whole = db.check_length();
            result.and(db.close().map_err(Failure::from)).and(whole.map_err(Failure::from))
        }
        Source::Remote(_) => result,
    }
}

fn source(out: Out, a: &Stat) -> Result<Source, Failure> {
    if a.place.starts_with("http://") {
        return Ok(Source::Remote(a.place.parse().map_err(Failure::Usage)?));
    }
    let place = Place { dir: a.place.clone().into(), open: a.open.clone(), tier: a.tier.clone() };
    let db = to_look(out, &place).inspect_err(|e| {
        if let Failure::Engine(varve::Error::InUse(_)) = e {
            out.note("where its process serves metrics, `varve stat http://HOST:PORT` shows them");
        }
    })?;
    Ok(Source::Own(Box::new(db)))
}

fn once(out: Out, source: &Source, prometheus: bool) -> Result<(), Failure> {
    let mut stdout = Rows;
    if prometheus {
        return Ok(stdout.write_all(source.text()?.as_bytes())?);
    }
    let rows: Vec<(String, Figure)> = match source {
        Source::Own(db) => db.stats().rows(),
        Source::Remote(_) => {
            let samples = source.scrape()?.samples;
            samples.into_iter().map(|s| (s.title(), Figure::Ratio(s.value))).collect()
        }
    };
    if out.json {
        let object: Map<_, _> = rows.into_iter().map(|(name, figure)| (name, json_figure(figure))).collect();
        writeln!(stdout, "{}", Value::Object(object))?;
    } else {
        let text = |(name, figure): (String, Figure)| (name.clone(), figure_text(&name, figure));
        let rows: Vec<(String, String)> = rows.into_iter().map(text).collect();
        table(&mut stdout, &rows)?;
    }
    Ok(())
}

/// What the flash advisor says of the database.
fn advise(out: Out, source: &Source, a: &Stat) -> Result<(), Failure> {
    let (profile, goal) = (a.advise.as_deref().unwrap_or_default(), flash_advice::name(a.goal));
    let query = format!("flash={profile}&goal={goal}&json={}", u8::from(out.json));
    let text = match source {
        Source::Own(db) => flash_advice::of_running(db, &query)?,
        Source::Remote(address) => remote::advice(address, &query)?,
    };
    Ok(Rows.write_all(text.as_bytes())?)
}

/// The distributions of update sizes.
fn updates(out: Out, source: &Source) -> Result<(), Failure> {
    let rows = updates::of_scrape(&source.scrape()?);
    if rows.is_empty() {
        return Err(Failure::Failed(
            "nothing is counted of update sizes: a process that works with the database counts them with \
             --set update_sizes=true, and `varve stat http://HOST:PORT --updates` shows them; `varve trace info` shows \
             those of a trace"
                .into(),
        ));
    }
    updates::print(out, &rows)
}

fn watch(out: Out, source: &Source, every: Duration, count: u64) -> Result<(), Failure> {
    let mut before = source.scrape()?;
    for n in 0..count {
        // Intervals begin at equal distances, however long reading takes.
        let due = before.at + every;
        varve_rt::sleep(due - varve_rt::now());
        let now = source.scrape()?;
        let interval = Interval { before: &before, now: &now };
        let mut stdout = Rows;
        if out.json {
            writeln!(stdout, "{}", as_json(&interval))?;
        } else {
            if n % HEADING == 0 {
                writeln!(stdout, "{}", heading())?;
            }
            writeln!(stdout, "{}", line(&interval))?;
        }
        stdout.flush()?;
        before = now;
    }
    Ok(())
}

fn as_json(interval: &Interval<'_>) -> Value {
    let (mut counters, mut gauges) = (Map::new(), Map::new());
    for sample in &interval.now.samples {
        let labels: Vec<(&str, &str)> = sample.labels.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        if sample.counter {
            let rise = interval.rise(&sample.name, &labels).unwrap_or(0.0);
            counters.insert(sample.title(), json_figure(Figure::Ratio(rise)));
        } else {
            gauges.insert(sample.title(), json_figure(Figure::Ratio(sample.value)));
        }
    }
    json!({ "seconds": interval.seconds(), "counters": counters, "gauges": gauges })
}

/// Columns of a line: heading and width.
const COLUMNS: [(&str, usize); 12] = [
    ("tx/s", 9),
    ("confl/s", 8),
    ("hit %", 6),
    ("tier %", 6),
    ("reads/s", 8),
    ("writes/s", 8),
    ("log/s", 10),
    ("busy %", 6),
    ("dirty %", 7),
    ("stalls/s", 8),
    ("log age", 10),
    ("ckpt s", 6),
];

fn heading() -> String {
    let cells: Vec<String> = COLUMNS.iter().map(|(name, width)| format!("{name:>width$}")).collect();
    cells.join(" ")
}

fn line(i: &Interval<'_>) -> String {
    let number = |n: Option<f64>| n.map_or("-".into(), |n| format!("{n:.0}"));
    let percent = |n: Option<f64>| n.map_or("-".into(), |n| format!("{:.1}", n * 100.0));
    let size = |n: Option<f64>| n.map_or("-".into(), |n| bytes(n as u64));
    let pages = |op| i.rate("varve_device_operations_total", &[("device", "data"), ("op", op)]);
    let cells = [
        number(i.rate("varve_transactions_committed_total", &[])),
        number(i.rate("varve_transaction_conflicts_total", &[])),
        percent(i.hit_ratio(None)),
        percent(i.tier_hit_ratio()),
        number(pages("read")),
        number(pages("write")),
        size(i.rate("varve_log_written_bytes_total", &[])),
        percent(i.rate("varve_device_busy_seconds_total", &[("device", "data")])),
        percent(i.dirty_share()),
        number(i.rate("varve_pool_stalls_total", &[])),
        size(i.gauge("varve_log_age_bytes", &[])),
        number(i.gauge("varve_checkpoint_age_seconds", &[])),
    ];
    let cells: Vec<String> = cells.iter().zip(COLUMNS).map(|(cell, (_, width))| format!("{cell:>width$}")).collect();
    cells.join(" ")
}
