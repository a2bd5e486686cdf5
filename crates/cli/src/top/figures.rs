//! What `top` shows, as text: labels and values, without their places on the screen.

use super::State;
use crate::metrics::interval::Interval;
use crate::output::bytes;
use std::collections::BTreeMap;

/// A line of a panel.
pub(super) type Line = (&'static str, String);

/// Devices of a database, in the order in which they are shown.
pub(super) const DEVICES: [&str; 3] = ["data", "log", "fast"];

/// Heading and width of the table of devices, a blank before each cell included.
pub(super) const COLUMNS: [(&str, u16); 9] = [
    ("", 6),
    ("busy", 8),
    ("queue", 7),
    ("reads/s", 8),
    ("writes/s", 9),
    ("read/s", 11),
    ("written/s", 11),
    ("ms", 7),
    ("a day", 11),
];

/// A number in at most six characters.
pub(super) fn short(n: Option<f64>) -> String {
    match n {
        None => "-".into(),
        Some(n) if n < 9.95 && n.fract() != 0.0 => format!("{n:.1}"),
        Some(n) if n < 9999.5 => format!("{n:.0}"),
        Some(n) if n < 999_950.0 => format!("{:.1}k", n / 1e3),
        Some(n) if n < 999_950_000.0 => format!("{:.1}M", n / 1e6),
        Some(n) => format!("{:.0}G", n / 1e9),
    }
}

fn percent(n: Option<f64>) -> String {
    n.map_or("-".into(), |n| format!("{:.1} %", n * 100.0))
}

/// What is known of host and worker, in this order.
fn of_both(n: [Option<f64>; 2], text: impl Fn(Option<f64>) -> String) -> String {
    n.map(text).join("/")
}

fn size(n: Option<f64>) -> String {
    n.map_or("-".into(), |n| bytes(n.max(0.0) as u64))
}

/// A span of time in two units.
pub(super) fn time(seconds: Option<f64>) -> String {
    let Some(s) = seconds else { return "-".into() };
    let n = s as u64;
    match n {
        0..10 => format!("{s:.1} s"),
        10..60 => format!("{n} s"),
        60..3600 => format!("{} min {} s", n / 60, n % 60),
        3600..86_400 => format!("{} h {} min", n / 3600, n % 3600 / 60),
        _ => format!("{} d {} h", n / 86_400, n % 86_400 / 3600),
    }
}

impl State {
    pub(super) fn interval(&self) -> Interval<'_> {
        Interval { before: &self.before, now: &self.now }
    }

    /// Whether there was only one reading so far.
    pub(super) fn is_first(&self) -> bool {
        self.now.at == self.before.at
    }
}

/// The rates that are charted, in the order of the charts.
pub(super) fn charted(i: &Interval<'_>) -> [f64; 4] {
    let rate = |name| i.rate(name, &[]).unwrap_or(0.0);
    [
        rate("varve_transactions_committed_total"),
        rate("varve_device_operations_total"),
        rate("varve_log_written_bytes_total"),
        rate("varve_pool_misses_total"),
    ]
}

pub(super) fn transactions(i: &Interval<'_>) -> [Line; 6] {
    let rate = |name| short(i.rate(name, &[]));
    let gauge = |name| short(i.gauge(name, &[]));
    [
        ("committed/s", rate("varve_transactions_committed_total")),
        ("conflicts/s", rate("varve_transaction_conflicts_total")),
        ("retries/s", rate("varve_transaction_retries_total")),
        ("lock waiters", short(i.rate("varve_lock_wait_seconds_total", &[]))),
        ("open", gauge("varve_transactions_open")),
        ("snapshots", gauge("varve_snapshots_open")),
    ]
}

pub(super) fn pool(i: &Interval<'_>) -> [Line; 6] {
    let free = Interval::share(i.gauge("varve_pool_free_frames", &[]), i.gauge("varve_pool_frames", &[]));
    let frames = i.gauge("varve_pool_frames", &[]).zip(i.gauge("varve_page_size_bytes", &[]));
    [
        ("size", size(frames.map(|(frames, page)| frames * page))),
        ("dirty", percent(i.dirty_share())),
        ("free", percent(free)),
        ("reads/s", short(i.rate("varve_pool_misses_total", &[]))),
        ("stalls/s", short(i.rate("varve_pool_stalls_total", &[]))),
        ("waiting", short(i.rate("varve_pool_stall_seconds_total", &[]))),
    ]
}

/// Hit ratios: all pages, each kind of page, the tier.
pub(super) fn hits(i: &Interval<'_>) -> [Line; 6] {
    [
        ("all pages", percent(i.hit_ratio(None))),
        ("leaf", percent(i.hit_ratio(Some("leaf")))),
        ("inner", percent(i.hit_ratio(Some("inner")))),
        ("overflow", percent(i.hit_ratio(Some("overflow")))),
        ("space map", percent(i.hit_ratio(Some("space_map")))),
        ("tier", percent(i.tier_hit_ratio())),
    ]
}

pub(super) fn log(i: &Interval<'_>) -> [Line; 6] {
    [
        ("written/s", size(i.rate("varve_log_written_bytes_total", &[]))),
        ("age", size(i.gauge("varve_log_age_bytes", &[]))),
        ("waits at", size(i.gauge("varve_log_redo_budget_bytes", &[]))),
        ("waits/s", short(i.rate("varve_log_space_waits_total", &[]))),
        ("checkpoint", time(i.gauge("varve_checkpoint_age_seconds", &[]))),
        ("took", time(i.gauge("varve_checkpoint_last_seconds", &[]))),
    ]
}

pub(super) fn writes(i: &Interval<'_>) -> [Line; 6] {
    let why = |why| short(i.rate("varve_pool_written_pages_total", &[("why", why)]));
    [
        ("for frames/s", why("replacement")),
        ("for log/s", why("recoverability")),
        ("checkpoint/s", why("checkpoint")),
        ("by workers/s", short(i.rate("varve_pool_foreground_writes_total", &[]))),
        ("images/s", short(i.rate("varve_page_images_total", &[]))),
        ("ahead/s", short(i.rate("varve_pool_prefetched_pages_total", &[]))),
    ]
}

/// None without an LSM keyspace; with several all of them together, of the pressure the sum.
pub(super) fn lsm(i: &Interval<'_>) -> Option<[Line; 6]> {
    i.gauge("varve_lsm_memtable_bytes", &[])?;
    let rate = |name| i.rate(name, &[]);
    let merged = rate("varve_lsm_merge_bytes_total");
    let written = [
        rate("varve_lsm_log_bytes_total"),
        rate("varve_lsm_flushed_bytes_total"),
        i.rate("varve_lsm_merge_bytes_total", &[("op", "write")]),
    ];
    let amplification = Interval::share(written.into_iter().sum(), rate("varve_lsm_user_bytes_total"));
    Some([
        ("segments", size(i.gauge("varve_lsm_bytes", &[]))),
        ("written/s", size(rate("varve_lsm_user_bytes_total"))),
        ("merged/s", size(merged)),
        ("times", short(amplification)),
        ("debt", size(i.gauge("varve_lsm_debt_bytes", &[]))),
        ("waiting", short(rate("varve_lsm_wait_seconds_total"))),
    ])
}

/// Of look-ups and levels; none without an LSM keyspace, with several all of them together.
pub(super) fn lsm_reads(i: &Interval<'_>) -> Option<[Line; 6]> {
    i.gauge("varve_lsm_memtable_bytes", &[])?;
    let looks = |outcomes: &[&str]| -> Option<f64> {
        outcomes.iter().map(|outcome| i.rise("varve_lsm_looks_total", &[("outcome", outcome)])).sum()
    };
    let read = looks(&["found", "false_positive"]);
    // By level, of each keyspace: all of it over its lowest level that has something.
    let mut levels: BTreeMap<&str, BTreeMap<&str, f64>> = BTreeMap::new();
    for sample in i.now.samples.iter().filter(|sample| sample.name == "varve_lsm_bytes" && sample.value > 0.0) {
        if let Some((keyspace, level)) = sample.label("keyspace").zip(sample.label("level")) {
            levels.entry(keyspace).or_default().insert(level, sample.value);
        }
    }
    let all: f64 = levels.values().flat_map(BTreeMap::values).sum();
    let lowest: f64 = levels.values().filter_map(|of| of.values().next_back()).sum();
    let deepest = levels.values().map(BTreeMap::len).max().unwrap_or(0);
    let stalled = i.rate("varve_lsm_wait_seconds_total", &[("why", "stall")]);
    Some([
        ("levels", deepest.to_string()),
        ("on level 0", short(i.gauge("varve_lsm_segments", &[("level", "0")]))),
        (
            "filter hits",
            percent(Interval::share(looks(&["filtered"]), looks(&["filtered", "found", "false_positive"]))),
        ),
        ("read times", short(Interval::share(read, i.rise("varve_lsm_lookups_total", &[])))),
        ("space times", short(Interval::share(Some(all), Some(lowest)))),
        ("stalled", short(stalled)),
    ])
}

/// Host and worker, where merges are shared: what both do, then the host, then the worker.
pub(super) fn near(i: &Interval<'_>) -> Option<[[Line; 6]; 3]> {
    i.gauge("varve_near_attached", &[])?;
    let side = |name, side| i.gauge(name, &[("side", side)]);
    let both = |name| ["host", "worker"].map(|of| side(name, of));
    let mode = |piped: Option<f64>| piped.map_or("-", |piped| if piped > 0.0 { "piped" } else { "linear" });
    let waits = ["varve_near_waited_seconds_total", "varve_near_worker_waited_seconds_total"];
    let waits = waits.map(|name| i.rate(name, &[]));
    let ratio = |n: Option<f64>| n.map(|n| n.clamp(0.0, 1.0));
    let whole = |n: Option<f64>| ratio(n).map_or("-".into(), |n| format!("{:.0}", n * 100.0));
    let of = |name: &'static str, waited: Option<f64>| {
        let rate = |metric| i.rate(metric, &[("side", name)]);
        let bytes = rate("varve_near_bytes_total");
        [
            ("parts/s", short(rate("varve_near_tasks_total"))),
            ("bytes/s", size(bytes)),
            ("bandwidth", size(Interval::share(bytes, rate("varve_near_seconds_total")))),
            ("processor", percent(ratio(side("varve_near_cpu_ratio", name)))),
            ("memory", percent(ratio(side("varve_near_memory_ratio", name)))),
            ("waiting", short(waited)),
        ]
    };
    let together = [
        ("host's share", percent(ratio(i.gauge("varve_near_host_share", &[])))),
        ("mode", of_both(both("varve_near_pipelined"), |piped| mode(piped).to_string())),
        ("cpu %", of_both(both("varve_near_cpu_ratio"), whole)),
        ("waiting", of_both(waits, short)),
        ("link/s", size(i.rate("varve_near_link_bytes_total", &[]))),
        ("fallbacks", short(i.gauge("varve_near_fallbacks_total", &[]))),
    ];
    Some([together, of("host", waits[0]), of("worker", waits[1])])
}

/// None without a tier.
pub(super) fn tier(i: &Interval<'_>) -> Option<[Line; 6]> {
    let slots = i.gauge("varve_tier_slots", &[])?;
    let share = |name| percent(Interval::share(i.gauge(name, &[]), Some(slots)));
    let of_page = |rate: Option<f64>| short(rate);
    Some([
        ("occupied", share("varve_tier_occupied_slots")),
        ("dirty", share("varve_tier_dirty_slots")),
        ("admitted/s", of_page(i.rate("varve_tier_admitted_pages_total", &[]))),
        ("refused/s", of_page(i.rate("varve_tier_refused_pages_total", &[]))),
        ("copied/s", of_page(i.rate("varve_tier_copied_back_pages_total", &[]))),
        ("a day", size(i.rate("varve_tier_written_bytes_total", &[]).map(|rate| rate * 86_400.0))),
    ])
}

/// The rows of the table of devices.
pub(super) fn devices(i: &Interval<'_>) -> Vec<[String; COLUMNS.len()]> {
    let there = |device: &str| i.now.sum("varve_device_operations_total", &[("device", device)]).is_some();
    let row = |device: &str| {
        let rate = |name, op| i.rate(name, &[("device", device), ("op", op)]);
        let all = |name| i.rate(name, &[("device", device)]);
        let written = rate("varve_device_bytes_total", "write");
        let under_way = all("varve_device_seconds_total");
        let latency = Interval::share(under_way, all("varve_device_operations_total")).map(|s| s * 1e3);
        [
            device.to_string(),
            percent(all("varve_device_busy_seconds_total").map(|share| share.min(1.0))),
            short(under_way),
            short(rate("varve_device_operations_total", "read")),
            short(rate("varve_device_operations_total", "write")),
            size(rate("varve_device_bytes_total", "read")),
            size(written),
            latency.map_or("-".into(), |ms| if ms < 99.95 { format!("{ms:.2}") } else { short(Some(ms)) }),
            size(written.map(|rate| rate * 86_400.0)),
        ]
    };
    DEVICES.into_iter().filter(|device| there(device)).map(row).collect()
}
