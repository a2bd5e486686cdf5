//! Drives under a database: an array that is made once, loaded, and found again by each point; what its drives give, as
//! measured.
//!
//! A drive is measured as `varve probe` does it: alone, random requests, every share of reads by a tenth, in a
//! simulation of its own. All points that have such drives go by the same curves.

use super::ExperimentError;
use super::array::{LayoutName, profiles};
use super::spec::Spec;
use crate::iomix::{self, Extent, Load};
use crate::models::Part;
use crate::{Error, Result};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use varve_device::Device;
use varve_models::{Build, Modelled, Profile};
use varve_rt::{Mutex, sim};
use varve_volume::array::curve::{Curve, CurvePoint};
use varve_volume::array::{Array, Given, Layout, NewDrive, OpenHow};

/// Names of drives in results.
pub(super) const NAMES: [&str; 8] = ["drive0", "drive1", "drive2", "drive3", "drive4", "drive5", "drive6", "drive7"];

/// Sizes of requests that are measured, as multiples of a page: the engine asks for pages, and writes runs of them up
/// to a MiB.
const SIZES: [u64; 4] = [1, 4, 16, 64];
/// Requests of a measurement, unless they are more than so many bytes.
const REQUESTS: u64 = 2000;
const BYTES: u64 = 256 << 20;

/// Refuses what cannot be run; names the key.
pub(super) fn validate(spec: &Spec) -> std::result::Result<(), (String, String)> {
    let refuse = |key: &str, what: String| Err((key.to_string(), what));
    let (profiles, array) = (profiles(spec)?, &spec.engine.array);
    let least = profiles.iter().map(Profile::capacity).min().unwrap_or(0);
    let room = array.room.map_or(least, |room| room.0);
    match () {
        () if !(2..=NAMES.len()).contains(&profiles.len()) => {
            refuse("devices.drives", format!("an array under a database has 2 to {} drives here", NAMES.len()))
        }
        () if spec.devices.log.is_empty() => refuse("devices.log", "beside drives the log has a device".into()),
        () if !spec.devices.data.is_empty() => refuse("devices.data", "drives stand in its place".into()),
        () if !array.read_only.is_empty() => {
            refuse("engine.array.read_only", "the engine finds out by itself: for workload.iomix alone".into())
        }
        () if room > least || room < 4 * array.extent.0 => {
            refuse("engine.array.room", format!("four extents to {least} bytes, the smallest drive's, are possible"))
        }
        () if array.speed_at.is_some_and(|share| !(0.0..=1.0).contains(&share)) => {
            refuse("engine.array.speed_at", "0 to 1 are possible".into())
        }
        () if array.replan_s.is_some() && array.layout != LayoutName::Rodi => {
            refuse("engine.array.replan_s", "the layout rodi is needed: others stay as they are".into())
        }
        () => Ok(()),
    }
}

/// Bytes of each drive.
fn room(spec: &Spec, profile: &Profile) -> u64 {
    let room = spec.engine.array.room.map_or(profile.capacity(), |room| room.0);
    room / (1 << 20) * (1 << 20)
}

fn named((key, what): (String, String)) -> Error {
    Error::Profile(format!("{key}: {what}"))
}

/// What drives give, measured once each. Used on OS threads only.
#[derive(Default)]
pub(super) struct Curves(Mutex<BTreeMap<String, Curve>>);

impl Curves {
    /// Those of a point's drives, in order; none without drives.
    pub fn of(&self, spec: &Spec) -> std::result::Result<Vec<Curve>, ExperimentError> {
        let failed = |what: String| ExperimentError::Point { point: "measuring drives".into(), what };
        let profiles = profiles(spec).map_err(|(key, what)| failed(format!("{key}: {what}")))?;
        let (mut known, page) = (self.0.lock(), spec.layout.page_size.0);
        let mut one = |profile: &Profile| {
            let room = room(spec, profile);
            let key = format!("{page} {room} {}", profile.to_toml());
            if let Some(curve) = known.get(&key) {
                return Ok(curve.clone());
            }
            let curve = measured(profile, room, page).map_err(|e| failed(format!("{}: {e}", profile.name)))?;
            known.insert(key, curve.clone());
            Ok(curve)
        };
        profiles.iter().map(&mut one).collect()
    }
}

/// Requests in flight that keep a drive busy.
fn depth(bytes: u64) -> u32 {
    if bytes <= 128 << 10 { 32 } else { 8 }
}

fn measured(profile: &Profile, room: u64, page: u64) -> Result<Curve> {
    let outcome = sim::run(sim::Config { seed: 1, ..sim::Config::default() }, || -> Result<Vec<CurvePoint>> {
        let how = Build { seed: 1, len: room, keep: false, ..Build::default() };
        let device: Arc<dyn Device> = profile.build_model(how).map_err(|e| Error::Profile(e.to_string()))?;
        if profile.needs_laying() {
            iomix::lay(&*device, room, |_| {})?;
        }
        let mut points = Vec::new();
        for bytes in SIZES.map(|pages| pages * page) {
            for tenth in 0u32..=10 {
                let (read_share, depth) = (f64::from(tenth) / 10.0, depth(bytes));
                let load = Load { bytes, read_share, random_share: 1.0, depth };
                let requests = REQUESTS.min(BYTES / bytes).max(2 * u64::from(depth));
                let (warm_time, time, warm_requests) = (Duration::ZERO, Duration::ZERO, requests / 4);
                let extent =
                    Extent { warm_time, warm_requests, time, requests, range: room, seed: u64::from(tenth) + 1 };
                let mb_s = iomix::run(&device, load, extent)?.mb_s();
                points.push(CurvePoint { bytes, read_share, mb_s });
            }
        }
        Ok(points)
    });
    let points = outcome.result.map_err(|failure| Error::WorkerPanicked(failure.to_string()))??;
    Curve::new(points).map_err(|e| Error::Profile(e.to_string()))
}

/// An array that was made, and its drives.
type Made = (Arc<Array>, Vec<Arc<dyn Modelled>>);
/// Name and profile of a drive, and what it holds.
type Drive<'a> = (&'static str, Profile, &'a mut Part);

/// Makes the array of a database that is to be loaded, on blank drives of `instant`; returns these too.
pub(super) fn create(spec: &Spec, curves: &[Curve], instant: &Profile) -> Result<Made> {
    let mut models = Vec::new();
    for (n, profile) in profiles(spec).map_err(named)?.iter().enumerate() {
        let how = Build { len: room(spec, profile), name: Some(NAMES[n].into()), ..Build::default() };
        models.push(instant.build_model(how).map_err(|e| Error::Profile(e.to_string()))?);
    }
    let array = &spec.engine.array;
    let drives = models.iter().map(|model| NewDrive { device: model.clone(), blank: true }).collect();
    let made = Array::create([0xa7; 16], drives, array.extent.0, layout(spec, curves)?);
    Ok((made.map_err(Error::store)?, models))
}

/// How extents are laid: by the drives' speed with requests of a page, half of them reads unless told otherwise.
fn layout(spec: &Spec, curves: &[Curve]) -> Result<Layout> {
    let (array, page) = (&spec.engine.array, spec.layout.page_size.0);
    if array.layout == LayoutName::Stripe {
        return Ok(Layout::Stripe { unit: array.unit.0 });
    }
    let speed = |curve: &Curve| {
        curve.throughput(array.speed_at.unwrap_or(0.5), page).map_err(|e| Error::Profile(e.to_string()))
    };
    Ok(Layout::Proportional { shares: curves.iter().map(speed).collect::<Result<_>>()? })
}

/// What tells images of arrays apart: points with the same begin with the same bytes on their drives.
pub(super) fn key(spec: &Spec) -> impl serde::Serialize {
    let array = &spec.engine.array;
    let striped = array.layout == LayoutName::Stripe;
    let drives = (spec.devices.drives.clone(), spec.devices.each.clone());
    (drives, array.extent, array.unit, array.room, striped, array.speed_at)
}

/// Finds the array on its drives.
pub(super) fn open(drives: Vec<Arc<dyn Device>>) -> Result<Arc<Array>> {
    let given = |device: Arc<dyn Device>| Given { name: device.info().name.to_string(), device: Ok(device) };
    Array::open(drives.into_iter().map(given).collect(), OpenHow::Writing).map_err(Error::store)
}

/// Seeds of the drives of a point with this seed.
pub(super) fn seed(seed: u64, drive: usize) -> u64 {
    seed ^ (drive as u64 + 1) << 40
}

/// The drives of a point, with what each holds.
pub(super) fn parts<'a>(
    spec: &Spec,
    parts: impl Iterator<Item = &'a mut Part>,
) -> std::result::Result<Vec<Drive<'a>>, (String, String)> {
    Ok(NAMES.into_iter().zip(profiles(spec)?).zip(parts).map(|((name, profile), part)| (name, profile, part)).collect())
}
