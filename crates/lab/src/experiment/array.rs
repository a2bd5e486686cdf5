//! `devices.drives` and `[engine.array]` of an experiment: several drives as one device, under the requests of
//! `[workload.iomix]`.
//!
//! With `per_drive` every drive has its own part of the requests in flight, as in Yang, Wan, Fan 2017: a lane for each
//! drive, over the extents that lie on it. Without, all requests go to the array as a whole.
//!
//! An array under a database is in `rack`.

use super::ExperimentError;
use super::document::Point;
use super::point::{PointResult, seconds};
use super::rack;
use super::spec::{Clock, Iomix, Spec};
use super::units::Bytes;
use crate::iomix::{self, Load, Sample, Target};
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use varve_device::Device;
use varve_models::{Build, Profile};
use varve_rt::{sim, spawn};
use varve_volume::array::curve::Curve;
use varve_volume::array::planner::{self, Choice, Now, PlanDrive, Question};
use varve_volume::array::{Array, EXTENT, KeeperOptions, Layout, Place, UNIT};

/// `[engine.array]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ArraySpec {
    /// How extents lie.
    pub layout: LayoutName,
    /// Bytes of an extent.
    pub extent: Bytes,
    /// Bytes that go to one drive of a stripe before the next has its turn.
    pub unit: Bytes,
    /// Of `rodi`: the drives that only read, by name; those with the highest read-only gain if left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub read_only: Vec<String>,
    /// Of a database: bytes of each drive; all that it has if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub room: Option<Bytes>,
    /// Of a database: the share of reads at which the drives' speeds are taken for what `proportional` gives each; that
    /// of the load, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speed_at: Option<f64>,
    /// Of a database: seconds between two plans that the engine makes and applies by itself; never if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replan_s: Option<f64>,
    /// How extents are watched and moved: the engine's defaults where nothing is said.
    #[serde(skip_serializing_if = "Keeping::is_default")]
    pub keep: Keeping,
}

/// `[engine.array.keep]`: the engine's `array_rate`, `array_window` and so on. Times in seconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Keeping {
    /// Most bytes that are copied in a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Bytes>,
    /// Within this time no plan moves an extent twice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_s: Option<f64>,
    /// The least gain for which extents move, as a share of the throughput.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub least_gain: Option<f64>,
    /// Without a write for so long, an extent may count as only read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quiet_s: Option<f64>,
    /// Counts of an extent's requests halve in this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub half_life_s: Option<f64>,
    /// Between two looks at what extents are used for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub look_s: Option<f64>,
    /// Reads per second from which an extent without writes counts as only read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reads_per_s: Option<f64>,
}

impl Keeping {
    fn is_default(&self) -> bool {
        *self == Keeping::default()
    }

    fn check(&self) -> std::result::Result<(), (String, String)> {
        let wrong = |value: Option<f64>, least: f64| value.is_some_and(|v| !(least..=1e9).contains(&v));
        let all = [
            ("window_s", self.window_s, 0.0),
            ("least_gain", self.least_gain, 0.0),
            ("quiet_s", self.quiet_s, 0.0),
            ("half_life_s", self.half_life_s, 1e-3),
            ("look_s", self.look_s, 1e-3),
            ("reads_per_s", self.reads_per_s, 0.0),
        ];
        if let Some((key, _, least)) = all.into_iter().find(|(_, value, least)| wrong(*value, *least)) {
            return Err((format!("engine.array.keep.{key}"), format!("{least} to 1e9 are possible")));
        }
        if self.rate.is_some_and(|rate| rate.0 < 64 << 10) {
            return Err(("engine.array.keep.rate".into(), "64 KiB and more are possible".into()));
        }
        Ok(())
    }
}

/// `engine.array.layout`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LayoutName {
    /// RAID 0.
    Stripe,
    /// Whole extents, by the drives' speed under the whole load.
    Proportional,
    /// The read-only part of the range on drives of its own.
    Rodi,
}

impl Default for ArraySpec {
    fn default() -> ArraySpec {
        ArraySpec {
            layout: LayoutName::Stripe,
            extent: Bytes(EXTENT),
            unit: Bytes(UNIT),
            read_only: Vec::new(),
            room: None,
            speed_at: None,
            replan_s: None,
            keep: Keeping::default(),
        }
    }
}

impl ArraySpec {
    pub(super) fn is_default(&self) -> bool {
        *self == ArraySpec::default()
    }

    /// How the engine keeps the extents.
    pub(super) fn keeper(&self) -> KeeperOptions {
        let (mut options, k) = (KeeperOptions::default(), &self.keep);
        options.replan = self.replan_s.map(seconds);
        options.rate = k.rate.map_or(options.rate, |rate| rate.0);
        options.window = k.window_s.map_or(options.window, seconds);
        options.least_gain = k.least_gain.unwrap_or(options.least_gain);
        options.look = k.look_s.map_or(options.look, seconds);
        options.rules.quiet = k.quiet_s.unwrap_or(options.rules.quiet);
        options.rules.half_life = k.half_life_s.unwrap_or(options.rules.half_life);
        options.rules.reads_per_s = k.reads_per_s.unwrap_or(options.rules.reads_per_s);
        options
    }
}

/// `workload.iomix.readonly`
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadOnly {
    /// Share of the requests in flight that go to the part which is only read.
    pub load: f64,
    /// Share of the range that is only read, from its beginning.
    pub range: f64,
}

/// Profiles of the drives, with what `devices.each` puts over them.
pub(super) fn profiles(spec: &Spec) -> std::result::Result<Vec<Profile>, (String, String)> {
    let of = |name: &String| {
        let mut device = spec.devices.each.clone();
        device.0.insert("profile".into(), toml::Value::String(name.clone()));
        device.profile().map_err(|what| ("devices.drives".to_string(), what))
    };
    spec.devices.drives.iter().map(of).collect()
}

/// Refuses what cannot be run; names the key.
pub(super) fn validate(spec: &Spec) -> std::result::Result<(), (String, String)> {
    let refuse = |key: &str, what: String| Err((key.to_string(), what));
    spec.engine.array.keep.check()?;
    if spec.engine.array.replan_s.is_some_and(|s| !(1e-3..=1e9).contains(&s)) {
        return refuse("engine.array.replan_s", "0.001 to 1e9 are possible".into());
    }
    let Some(mix) = &spec.workload.iomix else { return rack::validate(spec) };
    let profiles = profiles(spec)?;
    let n = profiles.len();
    if profiles.iter().any(|p| p.mix.is_none()) {
        return refuse("devices.drives", "drives with a [mix] are possible: the planner must know their curves".into());
    }
    mix.validate(&profiles[0], profiles.iter().map(Profile::capacity).sum(), &spec.layout)?;
    let array = &spec.engine.array;
    let known = |name: &String| spec.devices.drives.contains(name);
    let load = mix.readonly.map_or(0.0, |r| r.load);
    let (k, lanes) = ((load * n as f64).round(), mix.depth as usize / n);
    match () {
        () if n < 2 => refuse("devices.drives", "an array has at least two drives".into()),
        () if mix.volume => refuse("workload.iomix.volume", "requests to an array go to it as a device".into()),
        () if !array.extent.0.is_multiple_of(mix.request.0) => {
            refuse("engine.array.extent", "a multiple of workload.iomix.request is possible".into())
        }
        () if mix.per_drive && lanes * n != mix.depth as usize => {
            refuse("workload.iomix.depth", format!("a multiple of the {n} drives is possible with per_drive"))
        }
        () if mix.readonly.is_some_and(|r| !(0.0..1.0).contains(&r.load) || !(0.0..1.0).contains(&r.range)) => {
            refuse("workload.iomix.readonly", "shares from 0 to less than 1 are possible".into())
        }
        () if load > mix.read_share + 1e-9 => {
            refuse("workload.iomix.read_share", format!("at least readonly.load, {load}, is possible"))
        }
        () if array.room.is_some()
            || array.speed_at.is_some()
            || array.replan_s.is_some()
            || !array.keep.is_default() =>
        {
            refuse("engine.array", "room, speed_at, replan_s and keep are for databases".into())
        }
        () if !array.read_only.iter().all(known) => {
            refuse("engine.array.read_only", "names of devices.drives are possible".into())
        }
        () if array.layout != LayoutName::Rodi => Ok(()),
        () if !mix.per_drive => refuse("workload.iomix.per_drive", "true is needed with the layout rodi".into()),
        () if (load * n as f64 - k).abs() > 1e-6 || k < 1.0 || mix.readonly.is_none_or(|r| r.range <= 0.0) => refuse(
            "workload.iomix.readonly",
            format!("the layout rodi needs a range, and as load some {n}ths: whole drives"),
        ),
        () if !array.read_only.is_empty() && array.read_only.len() != k as usize => {
            refuse("engine.array.read_only", format!("readonly.load is that of {k} drives"))
        }
        () => Ok(()),
    }
}

/// What is measured: the drives, and the array over them.
struct Rig<'s> {
    spec: &'s Spec,
    mix: &'s Iomix,
    drives: Vec<PlanDrive>,
    /// Which drives only read.
    read_only: Vec<bool>,
    array: Arc<Array>,
}

impl<'s> Rig<'s> {
    fn new(spec: &'s Spec, mix: &'s Iomix, seed: u64) -> Result<Rig<'s>> {
        let named = |(key, what): (String, String)| Error::Profile(format!("{key}: {what}"));
        let profiles = profiles(spec).map_err(named)?;
        let extent = spec.engine.array.extent.0;
        let (mut devices, mut drives): (Vec<Arc<dyn Device>>, _) = (Vec::new(), Vec::new());
        for (n, profile) in profiles.iter().enumerate() {
            let len = profile.capacity().min(mix.range.0.next_multiple_of(extent)) / extent * extent;
            let how = Build { seed: seed ^ (n as u64 + 1) << 40, len, keep: false, ..Build::default() };
            devices.push(profile.build_model(how).map_err(|e| Error::Profile(e.to_string()))?);
            let sequential = mix.random_share < 0.5;
            let rates = profile.mix.as_ref().expect("validated");
            let curve = Curve::by(&[mix.request.0], |r, bytes| rates.throughput(r, sequential, bytes));
            let curve = curve.map_err(|e| Error::Profile(format!("{}: {e}", profile.name)))?;
            drives.push(PlanDrive { name: profile.name.clone(), curve, extents: (len / extent) as u32 });
        }
        let read_only = read_only(spec, mix, &drives);
        let array = build(spec, mix, &drives, &read_only, devices)?;
        Ok(Rig { spec, mix, drives, read_only, array })
    }

    /// The share of reads of a drive's lane.
    fn share(&self, drive: usize) -> f64 {
        if self.read_only[drive] { 1.0 } else { rest(self.mix, &self.read_only) }
    }

    /// Where requests go, with how many in flight and what share of reads.
    fn lanes(&self) -> Vec<(Arc<Lane>, u32, f64)> {
        let map = self.array.map();
        let extents = (self.mix.range.0 / map.extent) as usize;
        let lane = |keep: &dyn Fn(usize) -> bool| {
            let offsets = (0..extents).filter(|e| keep(*e)).map(|e| e as u64 * map.extent).collect();
            Arc::new(Lane { device: self.array.clone(), offsets, extent: map.extent })
        };
        if !self.mix.per_drive || self.spec.engine.array.layout == LayoutName::Stripe {
            return vec![(lane(&|_| true), self.mix.depth, self.mix.read_share)];
        }
        let n = self.drives.len();
        let of = |d: usize| {
            let own = lane(&|e| usize::from(map.entries[e].place.drive) == d);
            (own, self.mix.depth / n as u32, self.share(d))
        };
        (0..n).map(of).collect()
    }

    /// Runs all lanes at the same time.
    fn run(&self, seed: u64) -> Result<Vec<Sample>> {
        let (spec, mix) = (self.spec, self.mix);
        let start = |(n, (lane, depth, read_share)): (usize, (Arc<Lane>, u32, f64))| {
            let load = Load { bytes: mix.request.0, read_share, random_share: mix.random_share, depth };
            let extent = iomix::Extent {
                warm_time: seconds(spec.run.warmup_s),
                warm_requests: u64::from(depth),
                time: seconds(spec.run.seconds),
                requests: 20,
                range: lane.capacity(),
                seed: seed ^ (n as u64) << 20,
            };
            spawn(format!("lane {n}"), move || iomix::run(&lane, load, extent))
        };
        let threads: Vec<_> = self.lanes().into_iter().enumerate().map(start).collect();
        threads.into_iter().map(|t| t.join().map_err(|e| Error::WorkerPanicked(e.thread))?).collect()
    }

    /// What the planner predicts of how things lie, from the load that each extent had.
    fn plan(&self, samples: &[Sample]) -> Result<planner::Plan> {
        let map = self.array.map();
        let extents = (self.mix.range.0 / map.extent) as usize;
        let drive_of = |e: usize| usize::from(map.entries[e].place.drive);
        let whole = samples.len() == 1;
        let lane_of = |e: usize| if whole { 0 } else { drive_of(e) };
        let count = |lane: usize| (0..extents).filter(|e| lane_of(*e) == lane).count().max(1) as f64;
        let loads = (0..extents).map(|e| {
            let sample = &samples[lane_of(e)];
            let (bytes, reads) = (sample.mb_s() * 1e6 / count(lane_of(e)), share_of_reads(sample));
            planner::Load {
                read_bytes: bytes * reads,
                write_bytes: bytes * (1.0 - reads),
                requests: bytes / self.mix.request.0 as f64,
                read_only: self.read_only[drive_of(e)],
            }
        });
        let loads = loads.collect();
        let places = || (0..extents).map(drive_of).collect();
        let now = match self.spec.engine.array.layout {
            LayoutName::Stripe => Now::Stripe,
            LayoutName::Proportional => Now::Placed(Choice::Proportional, places()),
            LayoutName::Rodi => Now::Placed(Choice::Rodi, places()),
        };
        let question = Question {
            drives: self.drives.clone(),
            loads,
            now,
            pinned: Vec::new(),
            extent: map.extent,
            least_gain: 0.01,
        };
        planner::plan(&question).map_err(|e| Error::Profile(e.to_string()))
    }
}

fn share_of_reads(sample: &Sample) -> f64 {
    sample.reads as f64 / sample.requests.max(1) as f64
}

/// The share of reads that drives have which do not only read: of three with one that does, (3r - 1) / 2.
fn rest(mix: &Iomix, read_only: &[bool]) -> f64 {
    let only = read_only.iter().filter(|o| **o).count() as f64 / read_only.len() as f64;
    ((mix.read_share - only) / (1.0 - only)).clamp(0.0, 1.0)
}

/// The drives that only read: those named, or the first by read-only gain.
fn read_only(spec: &Spec, mix: &Iomix, drives: &[PlanDrive]) -> Vec<bool> {
    let (array, n) = (&spec.engine.array, drives.len());
    if array.layout != LayoutName::Rodi {
        return vec![false; n];
    }
    if !array.read_only.is_empty() {
        return spec.devices.drives.iter().map(|name| array.read_only.contains(name)).collect();
    }
    let gain = |d: usize| drives[d].curve.read_only_gain(mix.request.0).expect("the curve has this size");
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|a, b| gain(*b).total_cmp(&gain(*a)));
    let k = (mix.readonly.map_or(0.0, |r| r.load) * n as f64).round() as usize;
    (0..n).map(|d| order[..k].contains(&d)).collect()
}

/// The array by its layout.
fn build(
    spec: &Spec,
    mix: &Iomix,
    drives: &[PlanDrive],
    read_only: &[bool],
    devices: Vec<Arc<dyn Device>>,
) -> Result<Arc<Array>> {
    let (array, extents) = (&spec.engine.array, mix.range.0 / spec.engine.array.extent.0);
    let speeds = |share: f64| -> Vec<f64> {
        let speed = |d: &PlanDrive| d.curve.throughput(share, mix.request.0).expect("the curve has this size");
        drives.iter().map(speed).collect()
    };
    let (extent, len) = (array.extent.0, extents * array.extent.0);
    let made = match array.layout {
        LayoutName::Stripe => Array::volatile(devices, (extent, Layout::Stripe { unit: array.unit.0 }), len),
        LayoutName::Proportional => {
            Array::volatile(devices, (extent, Layout::Proportional { shares: speeds(mix.read_share) }), len)
        }
        LayoutName::Rodi => {
            let isolated = (mix.readonly.map_or(0.0, |r| r.range) * extents as f64).round() as u64;
            let (only, others) = (speeds(1.0), speeds(rest(mix, read_only)));
            let mut used = vec![0u32; drives.len()];
            let place = |e: u64| {
                let (speeds, of) = if e < isolated { (&only, true) } else { (&others, false) };
                let ends = |d: &usize| f64::from(used[*d] + 1) / speeds[*d];
                let there = (0..drives.len()).filter(|d| read_only[*d] == of && used[*d] < drives[*d].extents);
                let drive = there.min_by(|a, b| ends(a).total_cmp(&ends(b)))?;
                used[drive] += 1;
                Some(Place { drive: drive as u16, slot: used[drive] - 1 })
            };
            let places: Option<Vec<Place>> = (0..extents).map(place).collect();
            let places =
                places.ok_or_else(|| Error::Profile("the drives have too little room for the range".into()))?;
            Array::volatile_at(devices, (extent, Layout::Rodi { shares: others }), &places)
        }
    };
    made.map_err(Error::store)
}

/// The extents of an array that one stream of requests goes to.
struct Lane {
    device: Arc<Array>,
    offsets: Vec<u64>,
    extent: u64,
}

impl Lane {
    fn at(&self, offset: u64) -> u64 {
        self.offsets[(offset / self.extent) as usize] + offset % self.extent
    }

    fn device(&self) -> &(dyn Device + 'static) {
        &*self.device
    }
}

impl Target for Lane {
    fn unit(&self) -> u64 {
        self.device().unit()
    }

    fn capacity(&self) -> u64 {
        self.offsets.len() as u64 * self.extent
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.device().read(self.at(offset), into)
    }

    fn write(&self, offset: u64, from: &mut [u8]) -> Result<()> {
        self.device().write(self.at(offset), from)
    }

    fn flush(&self) -> Result<()> {
        Target::flush(self.device())
    }
}

/// Runs a point of requests to an array.
pub(super) fn run(
    experiment: &str,
    commit: &str,
    (point, mix): (&Point, &Iomix),
) -> std::result::Result<PointResult, ExperimentError> {
    let failed = |what: String| ExperimentError::Point { point: point.name(), what };
    let (spec, seed) = (&point.spec, point.seed);
    let config = spec.host.config(seed).map_err(|(key, what)| failed(format!("{key}: {what}")))?;
    let work = || {
        let rig = Rig::new(spec, mix, seed)?;
        let samples = rig.run(seed)?;
        let plan = rig.plan(&samples)?;
        Ok(figures(mix, &samples, &plan))
    };
    let measured: Result<BTreeMap<String, f64>> = match spec.run.clock {
        Clock::Virtual => sim::run(config, work).result.map_err(|failure| failed(failure.to_string()))?,
        Clock::Paced => work(),
    };
    Ok(super::plain::result(experiment, commit, point, measured.map_err(|e| failed(e.to_string()))?))
}

fn figures(mix: &Iomix, samples: &[Sample], plan: &planner::Plan) -> BTreeMap<String, f64> {
    let sum = |of: &dyn Fn(&Sample) -> f64| samples.iter().map(of).sum::<f64>();
    let (mb_s, iops) = (sum(&Sample::mb_s), sum(&Sample::iops));
    let mut m: BTreeMap<String, f64> = [
        ("mb_per_s", mb_s),
        ("ops_per_s", iops),
        ("requests", sum(&|s| s.requests as f64)),
        ("mean_ms", sum(&|s| s.mean_us() * s.iops()) / iops / 1e3),
        ("read_share.requested", mix.read_share),
        ("read_share.bytes", sum(&|s| s.mb_s() * share_of_reads(s)) / mb_s),
        ("plan.predicted", plan.before),
        ("plan.best", plan.after),
        ("plan.k", plan.k() as f64),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_string(), value))
    .collect();
    for (lane, sample) in samples.iter().enumerate().filter(|_| samples.len() > 1) {
        m.insert(format!("drive{lane}.mb_per_s"), sample.mb_s());
    }
    m
}
