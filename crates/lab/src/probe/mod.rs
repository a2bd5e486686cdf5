//! Measures a device, real or modelled: service times and rates by request size, kind, order, requests in flight and
//! read share; says whether the figures can be believed; makes a profile of them.
//!
//! `plan` chooses the points, `check` looks for caches, throttling and figures that are not what they are called, `fit`
//! makes the profile, `recover` sets what a model's profile says beside what was measured, `show` the table and chart,
//! `target` finds a real place to measure on.

mod check;
mod fit;
mod plan;
mod recover;
mod show;
mod target;

pub use check::{Finding, check};
pub use fit::{fit, read_only_gain};
pub use plan::{Options, Plan};
pub use recover::{Parameter, parameters};
pub use target::{iomix_on_path, iomix_on_profile, on_path, on_profile};

use crate::error::Result;
use crate::iomix::{self, Extent, Load, Sample};
use std::sync::Arc;
use varve_device::Device;

/// One point: a load, measured several times.
#[derive(Debug, Clone)]
pub struct Point {
    /// What was asked of the device.
    pub load: Load,
    /// The repeats.
    pub samples: Vec<Sample>,
}

impl Point {
    /// The middle half of the repeats by rate: of four or more, the fastest and the slowest quarter do not count.
    fn kept(&self) -> Vec<&Sample> {
        let mut samples: Vec<&Sample> = self.samples.iter().collect();
        samples.sort_by(|a, b| a.iops().total_cmp(&b.iops()));
        let aside = samples.len() / 4;
        samples[aside..samples.len() - aside].to_vec()
    }

    fn mean(&self, f: impl Fn(&Sample) -> f64) -> f64 {
        let kept = self.kept();
        kept.iter().map(|s| f(s)).sum::<f64>() / kept.len().max(1) as f64
    }

    /// Requests per second: the mean of the middle half of the repeats (of all, if there are three).
    pub fn iops(&self) -> f64 {
        self.mean(Sample::iops)
    }

    /// Megabytes (10^6) per second.
    pub fn mb_s(&self) -> f64 {
        self.mean(Sample::mb_s)
    }

    /// Mean response time, microseconds.
    pub fn mean_us(&self) -> f64 {
        self.mean(Sample::mean_us)
    }

    /// 99th percentile of the response time, microseconds.
    pub fn p99_us(&self) -> f64 {
        self.mean(|s| s.percentile_us(0.99))
    }

    /// Difference between the fastest and the slowest of the middle half of the repeats, as a share of their mean.
    pub fn spread(&self) -> f64 {
        let kept = self.kept();
        let ends = kept.first().zip(kept.last());
        ends.map_or(0.0, |(slowest, fastest)| (fastest.iops() - slowest.iops()) / self.iops().max(1e-12))
    }
}

/// Blocks read twice: the first time and again, to see a cache.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reread {
    /// Mean time of the first reads but for the slowest twentieth, microseconds.
    pub first_us: f64,
    /// The same of the second reads of the same blocks.
    pub again_us: f64,
}

/// What a probe found.
#[derive(Debug, Clone)]
pub struct Report {
    /// Name of the device.
    pub device: String,
    /// Model and serial number of the drive, where the system tells them.
    pub drive: Option<String>,
    /// How requests got there.
    pub access: String,
    /// Whether they passed the operating system's cache by.
    pub direct: bool,
    /// `virtual` or `real`.
    pub clock: &'static str,
    /// Bytes of the device that were used.
    pub range: u64,
    /// Bytes of the device.
    pub capacity: u64,
    /// Smallest unit a power cut tears at, bytes.
    pub sector: u32,
    /// Alignment, bytes.
    pub block: u32,
    /// The points.
    pub points: Vec<Point>,
    /// The look for a cache.
    pub reread: Option<Reread>,
    /// Requests per second of the first point, measured again at the end.
    pub control: Option<f64>,
    /// What is wrong with the figures; see [`check`].
    pub findings: Vec<Finding>,
    /// Of a model: its profile's parameters beside what was measured of them.
    pub parameters: Vec<Parameter>,
}

impl Report {
    /// The point of a load of one kind, if it was measured.
    pub fn find(&self, read_share: f64, random: bool, bytes: u64, depth: u32) -> Option<&Point> {
        let random_share = f64::from(u8::from(random));
        let wanted = Load { bytes, read_share, random_share, depth };
        self.points.iter().find(|p| p.load == wanted)
    }

    /// Whether the figures can be believed.
    pub fn plausible(&self) -> bool {
        self.findings.is_empty()
    }

    /// The figures as a JSON object.
    pub fn to_json(&self) -> serde_json::Value {
        let point = |p: &Point| {
            serde_json::json!({
                "read_share": p.load.read_share, "random_share": p.load.random_share, "bytes": p.load.bytes,
                "depth": p.load.depth, "iops": p.iops(), "mb_s": p.mb_s(), "mean_us": p.mean_us(), "p99_us": p.p99_us(),
                "spread": p.spread(), "repeats": p.samples.len(),
            })
        };
        let parameter = |p: &Parameter| {
            serde_json::json!({
                "name": p.name, "unit": p.unit, "given": p.given, "measured": p.measured, "difference": p.difference(),
            })
        };
        serde_json::json!({
            "device": self.device, "drive": self.drive, "access": self.access,
            "direct": self.direct, "clock": self.clock,
            "range": self.range, "capacity": self.capacity,
            "points": self.points.iter().map(point).collect::<Vec<_>>(),
            "parameters": self.parameters.iter().map(parameter).collect::<Vec<_>>(),
            "reread": self.reread.map(|r| serde_json::json!({ "first_us": r.first_us, "again_us": r.again_us })),
            "findings": self.findings.iter().map(|f| f.to_string()).collect::<Vec<_>>(),
            "plausible": self.plausible(),
        })
    }
}

/// Looks at something that other work on the machine may disturb.
const TRIES: u64 = 4;

/// Measures a point until its repeats agree, or there have been `plan.most_repeats` of them.
fn measure(
    device: &Arc<dyn Device>,
    plan: &Plan,
    i: usize,
    load: &Load,
    range: u64,
    buffers: &Arc<iomix::Buffers>,
) -> Result<Point> {
    let mut point = Point { load: *load, samples: Vec::new() };
    for repeat in 0..plan.most_repeats.max(plan.repeats) {
        let seed = plan.seed + 1_000 * i as u64 + u64::from(repeat);
        // What did not settle is disturbed by bursts of other work: longer repeats hold their share of them.
        let longer = if repeat < plan.repeats { 1 } else { 4 };
        let extent = plan.extent(load);
        let extent = Extent { range, seed, time: extent.time * longer, ..extent };
        point.samples.push(iomix::run_with(device, *load, extent, buffers)?);
        if load.read_share < 1.0 {
            varve_device::flush(&**device).map_err(crate::Error::store)?;
        }
        if repeat + 1 >= plan.repeats && check::settled(&point) {
            break;
        }
    }
    Ok(point)
}

/// Measures the points of `plan` on the first `range` bytes of a device, which are overwritten. `progress` is told of
/// each point that is done, of how many. Sizes of which fewer than four fit in the range are left out.
pub fn run(
    device: &Arc<dyn Device>,
    plan: &Plan,
    range: u64,
    mut progress: impl FnMut(usize, usize, &Point),
) -> Result<Report> {
    let info = device.info();
    let mut report = Report {
        device: info.name.to_string(),
        drive: None,
        access: info.access.clone(),
        direct: info.direct,
        clock: if varve_rt::in_simulation() { "virtual" } else { "real" },
        range: range.min(device.len()),
        capacity: device.len(),
        sector: info.atomic_write_unit,
        block: info.block,
        points: Vec::new(),
        reread: None,
        control: None,
        findings: Vec::new(),
        parameters: Vec::new(),
    };
    let buffers = Arc::default();
    let fits = |load: &&Load| report.range / load.bytes.max(1) >= 4;
    let mut loads: Vec<Load> = plan.loads.iter().filter(fits).copied().collect();
    if loads.is_empty() {
        // The first says what is wrong.
        loads.extend(plan.loads.first());
    }
    for (i, load) in loads.iter().enumerate() {
        let point = measure(device, plan, i, load, range, &buffers)?;
        progress(i + 1, loads.len(), &point);
        report.points.push(point);
    }
    if let Some(point) = report.points.first() {
        // A busy machine slows a single look down; the device's own slowness stays.
        let mut best = 0.0_f64;
        for again in 0..TRIES {
            let extent = Extent { range, seed: plan.seed + again, ..plan.extent(&point.load) };
            best = best.max(iomix::run_with(device, point.load, extent, &buffers)?.iops());
            if best > 0.9 * point.iops() {
                break;
            }
        }
        report.control = Some(best);
    }
    for again in 0..TRIES {
        let found = check::reread(&**device, report.range, plan.seed + again)?;
        // A cache is seen each time, a neighbour's burst of work once.
        let better = |r: &Reread| report.reread.is_none_or(|b| r.first_us / r.again_us < b.first_us / b.again_us);
        report.reread = found.filter(better).or(report.reread);
        if report.reread.is_none_or(|r| !check::looks_cached(&r)) {
            break;
        }
    }
    report.findings = check(&report);
    Ok(report)
}
