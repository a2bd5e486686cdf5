//! From measured points to a profile: tables of rates, latencies of lone requests, mix penalties.

use super::plan::deep;
use super::{Point, Report};
use crate::error::{Error, Result};
use varve_models::{MixConfig, Penalty, Profile, Rate};

/// The profile of a plausible report, called `name`.
pub fn fit(report: &Report, name: &str) -> Result<Profile> {
    if let Some(first) = report.findings.first() {
        let why = format!("the figures cannot be believed and are not saved: {first}");
        return Err(Error::Option { name: "save", why });
    }
    let rates = |read: f64, random: bool| -> Vec<Rate> {
        let share = f64::from(u8::from(random));
        let kind = report.points.iter().filter(|p| p.load.read_share == read && p.load.random_share == share);
        let mut table: Vec<_> = kind.filter(|p| p.load.depth == deep(p.load.bytes)).map(rate).collect();
        table.sort_by(|a, b| a.kib.total_cmp(&b.kib));
        table
    };
    let alone = |read: f64| {
        let mut lone = report.points.iter().filter(|p| p.load.depth == 1 && p.load.read_share == read);
        lone.find(|p| p.load.random_share == 1.0).map_or(0.0, |p| round(p.mean_us()))
    };
    let mix = MixConfig {
        read_random: rates(1.0, true),
        read_sequential: rates(1.0, false),
        write_random: rates(0.0, true),
        write_sequential: rates(0.0, false),
        mix_random: penalties(report, true),
        mix_sequential: penalties(report, false),
        read_latency_us: alone(1.0),
        write_latency_us: alone(0.0),
        flush_us: 0.0,
        jitter: 0.0,
        mix_window: 64,
        volatile_cache: 16 << 20,
    };
    let profile = Profile {
        name: name.into(),
        title: format!("{} as measured", report.device),
        source: format!(
            "varve probe, {} clock, {} points over {} MiB, {}; volatile_cache is an assumption: set it to 0 if the device \
             keeps completed writes without power",
            report.clock,
            report.points.len(),
            report.range >> 20,
            report.access
        ),
        drive: report.drive.clone(),
        capacity: Some(report.capacity),
        block: report.block,
        sector: report.sector,
        mix: Some(mix),
        ..Profile::default()
    };
    // What was measured must be a profile that loads.
    Profile::parse(&profile.to_toml(), name).map_err(|e| Error::Profile(e.to_string()))
}

/// To six figures: enough, and readable.
fn round(x: f64) -> f64 {
    let digits = 10f64.powi(5 - x.abs().max(1e-9).log10().floor() as i32);
    (x * digits).round() / digits
}

fn rate(p: &Point) -> Rate {
    Rate { kib: p.load.bytes as f64 / 1024.0, mb_s: round(p.mb_s()) }
}

/// The points of a mix, as (read share, MB/s), by rising share.
fn curve(report: &Report, random: bool, bytes: u64, depth: u32) -> Vec<(f64, f64)> {
    let share = f64::from(u8::from(random));
    let points = report.points.iter().filter(|p| p.load.bytes == bytes && p.load.depth == depth);
    let mut curve: Vec<_> =
        points.filter(|p| p.load.random_share == share).map(|p| (p.load.read_share, p.mb_s())).collect();
    curve.sort_by(|a, b| a.0.total_cmp(&b.0));
    curve
}

/// By least squares: c of 1/T = r/R + (1-r)/W + c r (1-r), for each size that has a curve. A c within the noise is left
/// out.
pub(super) fn penalties(report: &Report, random: bool) -> Vec<Penalty> {
    let mut loads: Vec<(u64, u32)> = report
        .points
        .iter()
        .filter(|p| p.load.read_share > 0.0 && p.load.read_share < 1.0)
        .map(|p| (p.load.bytes, p.load.depth))
        .collect();
    loads.sort_unstable();
    loads.dedup();
    let fitted = loads.into_iter().filter_map(|(bytes, depth)| {
        let curve = curve(report, random, bytes, depth);
        let (zero, one) = (curve.first()?, curve.last()?);
        if zero.0 != 0.0 || one.0 != 1.0 {
            return None;
        }
        let (w, r) = (zero.1, one.1);
        let terms = curve.iter().map(|(share, t)| {
            let x = share * (1.0 - share);
            (x, 1.0 / t - share / r - (1.0 - share) / w)
        });
        let (xy, xx) = terms.fold((0.0, 0.0), |(xy, xx), (x, y)| (xy + x * y, xx + x * x));
        let c = if xx > 0.0 { xy / xx } else { return None };
        let noise = c.abs() * 0.25 < 0.01 / r.max(w);
        let kib = bytes as f64 / 1024.0;
        Some(Penalty { kib, c: if noise { 0.0 } else { round(c) } })
    });
    let penalties: Vec<Penalty> = fitted.collect();
    if penalties.iter().all(|p| p.c == 0.0) { Vec::new() } else { penalties }
}

/// The read-only gain of a drive, MB/s: its rate of pure reading less its mean rate over the measured read shares
/// between 5 and 95 % (Yang, Wan, Fan 2017). `None` where there is no such curve.
pub fn read_only_gain(report: &Report, random: bool, bytes: u64, depth: u32) -> Option<f64> {
    let curve = curve(report, random, bytes, depth);
    let pure = curve.last().filter(|p| p.0 == 1.0)?.1;
    let mixed: Vec<f64> = curve.iter().filter(|p| (0.049..0.951).contains(&p.0)).map(|p| p.1).collect();
    (!mixed.is_empty()).then(|| pure - mixed.iter().sum::<f64>() / mixed.len() as f64)
}
