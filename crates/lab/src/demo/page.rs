//! The page of the demonstration: one HTML file with everything in it. No script, no network, light and dark.

use super::{Demo, Tenth};
use crate::experiment::report::chart::{Axes, Line, bars, lines};
use crate::experiment::report::{STYLE, escape, table};
use crate::experiment::table::short;
use std::fmt::Write as _;

/// Percent with two digits.
fn percent(ratio: f64) -> String {
    format!("{:.2} %", 100.0 * ratio)
}

/// The page; `command` repeats it.
pub fn to_html(demo: &Demo, command: &str) -> String {
    let mut out = format!(
        "<!DOCTYPE html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\"><title>Varve: a small shop</title><style>{STYLE}</style>\
         </head><body><main><h1>A small shop, and how much cache it needs</h1>"
    );
    let rows: u64 = demo.rows.iter().map(|(_, rows)| rows).sum();
    let visits: u64 = demo.visits.iter().map(|v| v.count).sum();
    let _ = write!(
        out,
        "<p>{} rows were loaded in {} s, {:.1} MiB on disk. Then {} visits of one client took {} s on this machine; \
         an order is a transaction, durable when it returns. The {} page accesses of the visits were \
         recorded, and replayed with caches of other sizes under other policies.</p>",
        short(rows as f64),
        short(demo.load_seconds),
        demo.bytes as f64 / f64::from(1 << 20),
        short(visits as f64),
        short(demo.seconds),
        short(demo.references as f64)
    );
    if visits < demo.planned {
        let planned = short(demo.planned as f64);
        let _ = write!(out, "<p>{planned} visits were planned; time ran out before.</p>");
    }
    if let Some(tenth) = demo.tenth() {
        let _ = write!(out, "<p>{}</p>", escape(&verdict(&tenth, demo.page_size)));
    }
    let _ = write!(
        out,
        "<p class=\"note\">One workload, drawn from one seed: with other accesses the policies may stand in another \
         order. Your own program's accesses can be recorded and replayed as well (`varve trace`, `varve lab replay`). \
         Repeat with:</p><pre>{}</pre><div class=\"charts\">",
        escape(command)
    );
    misses(&mut out, demo);
    let named = demo.visits.iter().map(|v| (v.kind.to_string(), v.count as f64)).collect::<Vec<_>>();
    out.push_str(&bars("What visitors did", "visits", &named));
    let distribution = |v: &super::Visits| Line {
        name: v.kind.to_string(),
        points: v.distribution.iter().map(|(ms, share)| (ms.max(1e-4), 100.0 * share)).collect(),
    };
    let axes = Axes { x: "response time, milliseconds", y: "percent of visits within", log_x: true, from_zero: true };
    let all: Vec<Line> = demo.visits.iter().map(distribution).collect();
    out.push_str(&lines("How long it took, on this machine", &axes, &all));
    let loaded: Vec<_> = demo.rows.iter().map(|(name, rows)| (name.to_string(), *rows as f64)).collect();
    out.push_str(&bars("Rows by keyspace", "rows", &loaded));
    out.push_str("</div><h2>Visits</h2>");
    let row = |v: &super::Visits| vec![v.kind.to_string(), short(v.count as f64), short(v.p50_ms), short(v.p99_ms)];
    table(&mut out, &["visit", "number", "p50 ms", "p99 ms"], &demo.visits.iter().map(row).collect::<Vec<_>>());
    out.push_str("<h2>Miss ratios</h2>");
    ratios(&mut out, demo);
    out.push_str("</main></body></html>\n");
    out
}

/// What a tenth of the pages as a cache comes to, in words.
pub fn verdict(tenth: &Tenth<'_>, page_size: u64) -> String {
    let Tenth { size, lru, best, least } = tenth;
    let mib = (*size as u64 * page_size) as f64 / f64::from(1 << 20);
    let beside = match lru.policy == best.policy {
        true => "no other policy misses fewer".to_string(),
        false => format!("{} misses {}", best.policy, percent(best.miss_ratio)),
    };
    format!(
        "With a cache of {} pages ({mib:.1} MiB, about a tenth of what was accessed), lru misses {} of the accesses; \
         {beside}; the least possible, by a policy that knows the future (belady), is {}.",
        short(*size as f64),
        percent(lru.miss_ratio),
        percent(least.miss_ratio)
    )
}

/// Policies in the order of the points.
fn policies(demo: &Demo) -> Vec<&str> {
    let mut policies: Vec<&str> = Vec::new();
    for point in &demo.points {
        if !policies.contains(&point.policy.as_str()) {
            policies.push(&point.policy);
        }
    }
    policies
}

fn misses(out: &mut String, demo: &Demo) {
    let line = |policy: &str| Line {
        name: policy.to_string(),
        points: demo
            .points
            .iter()
            .filter(|p| p.policy == policy)
            .map(|p| (p.size as f64, 100.0 * p.miss_ratio))
            .collect(),
    };
    let all: Vec<Line> = policies(demo).into_iter().map(line).collect();
    let axes = Axes { x: "cache, pages", y: "accesses that miss, percent", log_x: true, from_zero: true };
    out.push_str(&lines("Misses by cache size and policy", &axes, &all));
}

fn ratios(out: &mut String, demo: &Demo) {
    let mut sizes: Vec<usize> = demo.points.iter().map(|p| p.size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let head: Vec<String> = std::iter::once("percent of accesses; cache of".to_string())
        .chain(sizes.iter().map(|size| format!("{} pages", short(*size as f64))))
        .collect();
    let cell = |policy: &str, size: usize| {
        let point = demo.points.iter().find(|p| p.policy == policy && p.size == size);
        point.map_or(String::new(), |p| format!("{:.2}", 100.0 * p.miss_ratio))
    };
    let row = |policy: &str| {
        std::iter::once(policy.to_string()).chain(sizes.iter().map(|size| cell(policy, *size))).collect()
    };
    let rows: Vec<Vec<String>> = policies(demo).into_iter().map(row).collect();
    table(out, &head.iter().map(String::as_str).collect::<Vec<_>>(), &rows);
}
