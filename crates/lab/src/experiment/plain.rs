//! Points without a database: requests to a modelled device, and write amplification of the flash model.

use super::ExperimentError;
use super::devices::Drives;
use super::document::Point;
use super::machine::HostTime;
use super::point::{PointResult, seconds};
use super::spec::{Clock, Iomix, Spec};
use crate::flash_wa::FlashWaPoint;
use crate::iomix::{self, Extent, Load, Sample};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use varve_device::flash::Drive;
use varve_device::{Build, Device, ModelStats, Profile};
use varve_rt::sim;

/// The result of a point with these figures alone.
fn result(experiment: &str, commit: &str, point: &Point, mut metrics: BTreeMap<String, f64>) -> PointResult {
    metrics.retain(|_, value| value.is_finite());
    PointResult {
        experiment: experiment.to_string(),
        point: point.name(),
        axes: point.axes.clone(),
        seed: point.seed,
        config: point.hash(),
        commit: commit.to_string(),
        clock: point.spec.run.clock.name().to_string(),
        scaled: point.scaled.clone(),
        metrics,
        kinds: BTreeMap::new(),
        latency: Vec::new(),
        locks: Vec::new(),
        location: None,
        series: BTreeMap::new(),
    }
}

/// Runs a point of the flash model's write amplification: no database, no devices, no clock.
pub(super) fn run_flash_wa(
    experiment: &str,
    commit: &str,
    point: &Point,
    wa: &FlashWaPoint,
) -> Result<PointResult, ExperimentError> {
    let wa = FlashWaPoint { seed: point.seed, ..wa.clone() };
    let failed =
        |e: varve_device::flash::FlashError| ExperimentError::Point { point: point.name(), what: e.to_string() };
    Ok(result(experiment, commit, point, wa.run().map_err(failed)?.metrics()))
}

/// Shares of requests at which the distribution of response times is drawn.
const SHARES: [f64; 16] = [0.0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999, 1.0];

/// Runs a point of `[workload.iomix]`: requests to the data device.
pub(super) fn run_iomix(
    experiment: &str,
    commit: &str,
    (point, mix): (&Point, &Iomix),
    drives: &Drives,
) -> Result<PointResult, ExperimentError> {
    let failed = |what: String| ExperimentError::Point { point: point.name(), what };
    let named = |(key, what): (String, String)| failed(format!("{key}: {what}"));
    let (spec, seed) = (&point.spec, point.seed);
    let (profile, _) = spec.devices.profiles().map_err(named)?;
    let aged = spec.devices.data.aged().map_err(&failed)?;
    let how = Build { seed, len: mix.range.0, keep: false, aged, ..Build::default() };
    let drive = drives.get(&profile, "nothing", &how).map_err(|e| failed(e.to_string()))?;
    let config = spec.host.config(seed).map_err(named)?;
    let cores = config.cores;
    let work = || measure(spec, mix, &profile, (&how, drive), cores);
    let measured = match spec.run.clock {
        Clock::Virtual => sim::run(config, work).result.map_err(|failure| failed(failure.to_string()))?,
        Clock::Paced => work(),
    };
    let (sample, metrics) = measured.map_err(|e| failed(e.to_string()))?;
    let mut result = result(experiment, commit, point, metrics);
    result.latency = SHARES.iter().map(|s| (*s, sample.percentile_us(*s) / 1e3)).collect();
    Ok(result)
}

type Measured = (Sample, BTreeMap<String, f64>);

fn measure(
    spec: &Spec,
    mix: &Iomix,
    profile: &Profile,
    (how, drive): (&Build, Option<Arc<Drive>>),
    cores: usize,
) -> crate::Result<Measured> {
    let model =
        profile.build_model(Build { drive, ..how.clone() }).map_err(|e| crate::Error::Profile(e.to_string()))?;
    let device: Arc<dyn Device> = model.clone();
    if profile.needs_laying() && spec.devices.data.aged().unwrap_or(0.0) == 0.0 {
        // Reads of places never written take no time in a flash drive.
        iomix::lay(&*device, mix.range.0, |_| {})?;
    }
    let load =
        Load { bytes: mix.request.0, read_share: mix.read_share, random_share: mix.random_share, depth: mix.depth };
    let extent = Extent {
        warm_time: seconds(spec.run.warmup_s),
        warm_requests: u64::from(mix.depth),
        time: seconds(spec.run.seconds),
        requests: 20,
        range: mix.range.0,
        seed: how.seed,
    };
    let before = (model.model_stats(), HostTime::now(cores), varve_rt::now());
    let sample = iomix::run(&device, load, extent)?;
    let whole = varve_rt::now() - before.2;
    let mut metrics = figures(&sample, &before.0, &model.model_stats(), whole);
    if let (Some(then), Some(now)) = (before.1, HostTime::now(cores)) {
        metrics.insert("host.busy".into(), (now.used - then.used) / whole.as_secs_f64() / now.cores);
    }
    metrics.insert("seconds".into(), sample.seconds);
    Ok((sample, metrics))
}

/// Figures of a sample; of the device over the whole run, warm-up included.
fn figures(sample: &Sample, then: &ModelStats, now: &ModelStats, whole: Duration) -> BTreeMap<String, f64> {
    let share = |part: u64| part as f64 / sample.requests.max(1) as f64;
    let mut m = BTreeMap::new();
    let mut put = |name: &str, value: f64| {
        m.insert(name.to_string(), value);
    };
    put("ops_per_s", sample.iops());
    put("mb_per_s", sample.mb_s());
    put("requests", sample.requests as f64);
    put("mean_ms", sample.mean_us() / 1e3);
    for (name, at) in [("p50_ms", 0.5), ("p95_ms", 0.95), ("p99_ms", 0.99), ("p999_ms", 0.999), ("max_ms", 1.0)] {
        put(name, sample.percentile_us(at) / 1e3);
    }
    put("data.reads_per_s", sample.iops() * share(sample.reads));
    put("data.writes_per_s", sample.iops() * share(sample.requests - sample.reads));
    put("data.utilisation", super::metrics::utilisation(then, now, whole.as_secs_f64()));
    put("slowest_quarter", sample.quarters.into_iter().fold(f64::INFINITY, f64::min));
    for (detail, value) in &now.details {
        put(&format!("data.{detail}"), *value);
    }
    m
}
