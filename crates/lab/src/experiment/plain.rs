//! Points without a database: requests to a modelled device or a volume of such, and write amplification of the flash
//! model.

use super::ExperimentError;
use super::devices::Drives;
use super::document::Point;
use super::machine::HostTime;
use super::metrics;
use super::near::Near;
use super::point::OneDevice;
use super::point::{PointResult, seconds};
use super::spec::{Clock, Iomix, Spec};
use crate::flash_wa::FlashWaPoint;
use crate::iomix::{self, Extent, Load, Pages, Sample, Target};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use varve_device::Device;
use varve_models::flash::Drive;
use varve_models::{Build, ModelStats, Modelled, Profile};
use varve_rt::sim;
use varve_volume::tier::Tier;
use varve_volume::{PageStore, Single};

/// The result of a point with these figures alone.
pub(super) fn result(experiment: &str, commit: &str, point: &Point, mut metrics: BTreeMap<String, f64>) -> PointResult {
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
        settings: BTreeMap::new(),
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
        |e: varve_models::flash::FlashError| ExperimentError::Point { point: point.name(), what: e.to_string() };
    Ok(result(experiment, commit, point, wa.run().map_err(failed)?.metrics()))
}

/// Shares of requests at which the distribution of response times is drawn.
const SHARES: [f64; 16] = [0.0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999, 1.0];

/// Runs a point of `[workload.iomix]`: requests to the data device, to a volume on it, or to an array.
pub(super) fn run_iomix(
    experiment: &str,
    commit: &str,
    (point, mix): (&Point, &Iomix),
    drives: &Drives,
) -> Result<PointResult, ExperimentError> {
    if !point.spec.devices.drives.is_empty() {
        return super::array::run(experiment, commit, (point, mix));
    }
    let failed = |what: String| ExperimentError::Point { point: point.name(), what };
    let named = |(key, what): (String, String)| failed(format!("{key}: {what}"));
    let (spec, seed) = (&point.spec, point.seed);
    let (profile, _) = spec.devices.profiles().map_err(named)?;
    let aged = spec.devices.data.aged().map_err(&failed)?;
    let how = Build { seed, len: mix.range.0, keep: mix.volume, aged, ..Build::default() };
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
    let mut near = Near::of(spec)?;
    let device: Arc<dyn Device> = near.device(model.clone())?;
    if mix.volume {
        return Volume::new(spec, mix, model, how.seed)?.measure(spec, mix, how.seed, cores);
    }
    if profile.needs_laying() && spec.devices.data.aged().unwrap_or(0.0) == 0.0 {
        // Reads of places never written take no time in a flash drive.
        iomix::lay(&*device, mix.range.0, |_| {})?;
    }
    let (before, then) = (model.model_stats(), near.moment());
    let (sample, whole, mut metrics) = loaded(spec, mix, &device, how.seed, cores)?;
    let mut put = |name: &str, value: f64| _ = metrics.insert(name.to_string(), value);
    near.moment().figures(&then, whole.as_secs_f64(), sample.iops(), &mut put);
    figures(&mut metrics, &sample, &before, &model.model_stats(), whole);
    Ok((sample, metrics))
}

/// Runs the load; the sample, how long it took with its warm-up, and the figures of the sample and the host.
fn loaded<T: Target + ?Sized + 'static>(
    spec: &Spec,
    mix: &Iomix,
    target: &Arc<T>,
    seed: u64,
    cores: usize,
) -> crate::Result<(Sample, Duration, BTreeMap<String, f64>)> {
    let load =
        Load { bytes: mix.request.0, read_share: mix.read_share, random_share: mix.random_share, depth: mix.depth };
    let extent = Extent {
        warm_time: seconds(spec.run.warmup_s),
        warm_requests: u64::from(mix.depth),
        time: seconds(spec.run.seconds),
        requests: 20,
        range: mix.range.0,
        seed,
    };
    let (host, began) = (HostTime::now(cores), varve_rt::now());
    let sample = iomix::run(target, load, extent)?;
    let whole = varve_rt::now() - began;
    let mut metrics = of_sample(&sample);
    if let (Some(then), Some(now)) = (host, HostTime::now(cores)) {
        metrics.insert("host.busy".into(), (now.used - then.used) / whole.as_secs_f64() / now.cores);
    }
    Ok((sample, whole, metrics))
}

/// A volume of modelled devices: pages on the data device, below an empty tier where there is a fast one.
struct Volume {
    store: Arc<dyn PageStore>,
    tier: Option<Arc<Tier>>,
    devices: Vec<(&'static str, Arc<dyn Modelled>)>,
}

impl Volume {
    fn new(spec: &Spec, mix: &Iomix, data: Arc<dyn Modelled>, seed: u64) -> crate::Result<Volume> {
        let named = |(key, what): (String, String)| crate::Error::Profile(format!("{key}: {what}"));
        let single = Single::new(data.clone(), spec.layout.page_size.0 as usize).map_err(crate::Error::store)?;
        iomix::lay(&*Pages::new(single.clone(), mix.range.0)?, mix.range.0, |_| {})?;
        let mut devices = vec![("data", data)];
        let (Some(profile), Some(size)) = (spec.devices.fast().map_err(named)?, spec.layout.fast) else {
            return Ok(Volume { store: single, tier: None, devices });
        };
        let len = size.of(mix.range.0).next_multiple_of(4096);
        let how =
            Build { seed: seed ^ 0xfa57, len, name: Some(format!("fast ({})", profile.name)), ..Build::default() };
        let fast = profile.build_model(how).map_err(|e| crate::Error::Profile(e.to_string()))?;
        let options = spec.engine.tier.options.0.clone();
        let tier = Tier::create(single, fast.clone(), [1; 16], options).map_err(crate::Error::store)?;
        devices.push(("fast", fast));
        Ok(Volume { store: Arc::new(tier.clone()), tier: Some(tier), devices })
    }

    fn moments(&self) -> Vec<OneDevice> {
        let of = |(name, d): &(&'static str, Arc<dyn Modelled>)| OneDevice {
            name,
            stats: d.stats(),
            model: d.model_stats(),
        };
        self.devices.iter().map(of).collect()
    }

    fn measure(self, spec: &Spec, mix: &Iomix, seed: u64, cores: usize) -> crate::Result<Measured> {
        let pages = Pages::new(self.store.clone(), mix.range.0)?;
        if let Some(tier) = &self.tier {
            tier.start().map_err(varve::Error::from)?;
        }
        let before = (self.moments(), self.tier.as_ref().map(|t| t.tier_stats()));
        let result = loaded(spec, mix, &pages, seed, cores);
        let after = (self.moments(), self.tier.as_ref().map(|t| t.tier_stats()));
        if let Some(tier) = &self.tier {
            tier.stop();
        }
        let (sample, whole, mut metrics) = result?;
        let whole = whole.as_secs_f64();
        let mut put = |name: &str, value: f64| _ = metrics.insert(name.to_string(), value);
        for (then, now) in before.0.iter().zip(&after.0) {
            metrics::device(&mut put, then, now, whole);
        }
        if let (Some(then), Some(now)) = (&before.1, &after.1) {
            metrics::tier(&mut put, then, now, whole);
        }
        Ok((sample, metrics))
    }
}

/// Figures of a sample alone.
fn of_sample(sample: &Sample) -> BTreeMap<String, f64> {
    let times = [("p50_ms", 0.5), ("p95_ms", 0.95), ("p99_ms", 0.99), ("p999_ms", 0.999), ("max_ms", 1.0)];
    let mut m: BTreeMap<String, f64> =
        times.iter().map(|(name, at)| (name.to_string(), sample.percentile_us(*at) / 1e3)).collect();
    for (name, value) in [
        ("ops_per_s", sample.iops()),
        ("mb_per_s", sample.mb_s()),
        ("requests", sample.requests as f64),
        ("mean_ms", sample.mean_us() / 1e3),
        ("slowest_quarter", sample.quarters.into_iter().fold(f64::INFINITY, f64::min)),
        ("seconds", sample.seconds),
    ] {
        m.insert(name.into(), value);
    }
    m
}

/// Figures of the device under a sample, over the whole run, warm-up included.
fn figures(into: &mut BTreeMap<String, f64>, sample: &Sample, then: &ModelStats, now: &ModelStats, whole: Duration) {
    let share = |part: u64| part as f64 / sample.requests.max(1) as f64;
    let mut put = |name: &str, value: f64| _ = into.insert(name.to_string(), value);
    put("data.reads_per_s", sample.iops() * share(sample.reads));
    put("data.writes_per_s", sample.iops() * share(sample.requests - sample.reads));
    put("data.utilisation", metrics::utilisation(then, now, whole.as_secs_f64()));
    for (detail, value) in &now.details {
        put(&format!("data.{detail}"), *value);
    }
}
