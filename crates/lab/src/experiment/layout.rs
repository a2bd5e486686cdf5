//! Loaded databases: each is made once, in a simulation of its own without costs, and copied per point. One on an array
//! lies on the drives as their layout has it.
//!
//! The copy is copy-on-write. A loaded database is kept as long as a point that needs it is still to come.

use super::ExperimentError;
use super::dbbench;
use super::devices::{self, Drives};
use super::rack::{self, Curves};
use super::regions::{self, Flash};
use super::spec::{IndexName, Spec};
use crate::adapter::varve::VarveStore;
use crate::models::{Loaded, ModelledDevices, Part, RawPart, seeds};
use crate::{tpcb, tpcc, ycsb};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use varve::Db;
use varve_models::{Build, Profile, Sparse};
use varve_rt::{Mutex, sim};
use varve_volume::array::curve::Curve;

/// A closed database at rest.
pub(super) struct Image {
    pub bytes: Loaded,
    /// Bytes of pages that hold something.
    pub used: u64,
    /// What the drives of an array give, as measured.
    pub curves: Vec<Curve>,
}

/// Scale and seed of TPC-C data, scale of TPC-B's, shape and seed of YCSB's, or what a benchmark of `db_bench` writes.
#[derive(Clone, Serialize)]
enum Load {
    Tpcc(tpcc::Scale, u64),
    Tpcb(tpcb::Scale),
    Ycsb(ycsb::Shape, u64, Option<Fixed>),
    DbBench(dbbench::Load),
}

/// Keyspaces beside that of YCSB: how many, records of each, and whether they stay writable.
#[derive(Clone, Copy, Serialize)]
struct Fixed {
    sets: u32,
    records: u64,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    writable: bool,
}

fn load_of(spec: &Spec) -> Load {
    if let Some(bench) = &spec.workload.dbbench {
        return Load::DbBench(bench.load());
    }
    if let Some(t) = &spec.workload.tpcb {
        return Load::Tpcb(t.scale());
    }
    match (&spec.workload.tpcc, &spec.workload.ycsb) {
        (Some(t), _) => {
            let scale = tpcc::Scale {
                warehouses: t.warehouses,
                districts: t.districts,
                customers: t.customers,
                items: t.items,
                foreign_keys: t.foreign_keys,
            };
            Load::Tpcc(scale, t.load_seed)
        }
        (_, Some(y)) => {
            let shape = ycsb::Shape {
                records: y.records,
                fields: y.fields,
                field_length: y.field_bytes,
                ..ycsb::Shape::default()
            };
            let fixed = y.fixed.as_ref().map(|f| Fixed { sets: f.sets, records: f.records, writable: f.writes > 0.0 });
            Load::Ycsb(shape, y.load_seed, fixed)
        }
        _ => unreachable!("a validated point has a workload"),
    }
}

fn key(spec: &Spec) -> String {
    let plain = (load_of(spec), spec.workload.row_overhead(), spec.layout.page_size, spec.layout.log);
    let array = (!spec.devices.drives.is_empty()).then(|| rack::key(spec));
    let text = serde_json::to_string(&plain).expect("plain data");
    let flash = (!spec.devices.flash.is_empty()).then(|| regions::key(spec));
    let lsm = (spec.layout.keyspaces == IndexName::Lsm).then_some(&spec.engine.lsm);
    text + &lsm.map_or(String::new(), |lsm| serde_json::to_string(lsm).expect("plain data"))
        + &array.map_or(String::new(), |key| serde_json::to_string(&key).expect("plain data"))
        + &flash.map_or(String::new(), |key| serde_json::to_string(&key).expect("plain data"))
}

/// The cache that the load itself runs with.
const LOAD_CACHE: u64 = 64 << 20;

/// Loads keyspaces in bulk, in the order of their keys, and makes them read-only unless they are to be written.
fn load_fixed(db: &Db, shape: &ycsb::Shape, seed: u64, fixed: Fixed) -> crate::Result<()> {
    let mut keys: Vec<_> = (0..fixed.records).map(|n| (shape.key(n), n)).collect();
    keys.sort_unstable();
    for set in 0..fixed.sets {
        let mut rng = varve_rt::Rng::from_seed(seed ^ u64::from(set + 1).wrapping_mul(0x2545_f491_4f6c_dd1d));
        let (mut load, mut record) = (db.bulk_load(&ycsb::fixed_name(set))?, Vec::new());
        for (key, n) in &keys {
            shape.fill(*n, &mut rng, &mut record);
            load.push(key, &record)?;
        }
        let keyspace = load.finish()?;
        if !fixed.writable {
            keyspace.set_read_only(true)?;
        }
    }
    Ok(())
}

/// Loaded flash, aged if asked for.
fn at_rest(spec: &Spec, flash: &Flash) -> crate::Result<RawPart> {
    flash.age(spec.devices.flash.aged().map_err(crate::Error::Profile)?)?;
    Ok(flash.part())
}

/// Loads a database for one point only; not on an array.
pub(super) fn load_alone(spec: &Spec) -> Result<Image, ExperimentError> {
    load(spec, Vec::new())
}

fn load(spec: &Spec, curves: Vec<Curve>) -> Result<Image, ExperimentError> {
    let (page_size, log_bytes) = (spec.layout.page_size.0 as usize, spec.layout.log.0);
    let layout = varve::Layout { page_size, log_bytes, ..varve::Layout::default() };
    let what = load_of(spec);
    let main = || -> crate::Result<Image> {
        let instant = devices::instant();
        let machine = ModelledDevices::new(&instant, &instant, &Loaded::default(), 1)?;
        let options = varve::Options { cache_bytes: LOAD_CACHE, lock_timeout: None, ..varve::Options::default() };
        let flash = Flash::create(spec)?;
        let (on, drives) = match (&flash, spec.devices.drives.is_empty()) {
            (Some(flash), _) => (varve::Devices::on_flash(flash.native.clone(), machine.log.clone()), Vec::new()),
            (None, true) => {
                let near = super::near::loader(spec, machine.data.clone())?;
                (near.into_iter().fold(machine.devices(), varve::Devices::with_near), Vec::new())
            }
            (None, false) => {
                let (array, drives) = rack::create(spec, &curves, &instant)?;
                (varve::Devices::on_array(array, machine.log.clone()), drives)
            }
        };
        let store = VarveStore::new(Db::create_on(on, &layout, options)?);
        let store = Arc::new(store.with_row_overhead(spec.workload.row_overhead()).with_kind(spec.kind()));
        match what {
            Load::DbBench(load) => load.run(spec, &store)?,
            Load::Tpcc(scale, seed) => drop(tpcc::load(&store, scale, seed, 1, |_| {})?),
            Load::Tpcb(scale) => drop(tpcb::load(&store, scale)?),
            Load::Ycsb(shape, seed, fixed) => {
                ycsb::load(&store, shape, seed, 1, |_, _| {})?;
                fixed.map_or(Ok(()), |fixed| load_fixed(store.db(), &shape, seed, fixed))?;
            }
        }
        if spec.layout.keyspaces == IndexName::Lsm {
            store.db().wait_for_merges()?;
        }
        let stats = store.db().stats();
        store.db().clone().close()?;
        let used = (stats.pages - stats.free_pages) * stats.page_size as u64;
        let drives = drives.iter().map(|drive| Part::of(&**drive)).collect();
        let flash = flash.map(|flash| at_rest(spec, &flash)).transpose()?;
        Ok(Image { bytes: Loaded { drives, flash, ..machine.loaded() }, used, curves: curves.clone() })
    };
    let outcome = sim::run(sim::Config { seed: 1, ..sim::Config::default() }, main);
    match outcome.result {
        Ok(Ok(image)) => Ok(image),
        Ok(Err(e)) => Err(ExperimentError::Point { point: "loading".into(), what: e.to_string() }),
        Err(failure) => Err(ExperimentError::Point { point: "loading".into(), what: failure.to_string() }),
    }
}

struct Slot {
    /// Points still to come.
    left: usize,
    /// What its points begin with: seed, and profiles of both devices with their age.
    drives: String,
    /// All of them begin with that.
    alike: bool,
    image: Arc<Mutex<Option<Arc<Image>>>>,
}

fn drives_key(spec: &Spec, seed: u64) -> String {
    serde_json::to_string(&(&spec.devices, seed)).expect("plain data")
}

/// The loaded databases of a run. Used on OS threads only.
pub(super) struct Layouts {
    slots: Mutex<BTreeMap<String, Slot>>,
    curves: Curves,
}

/// The loaded database, with the flash drives that a point of this seed begins with.
pub(super) fn on_drives(image: &Image, spec: &Spec, seed: u64, drives: &Drives) -> Result<Loaded, (String, String)> {
    let (data, log) = spec.devices.profiles()?;
    let mut loaded = image.bytes.clone();
    let contents = key(spec);
    let aged = [&spec.devices.data, spec.devices.log_device()].map(|d| d.aged().unwrap_or(0.0));
    for (n, (role, profile, part)) in rack::parts(spec, loaded.drives.iter_mut())?.into_iter().enumerate() {
        let aged = spec.devices.each.aged().unwrap_or(0.0);
        fill(part, (role, &profile), (rack::seed(seed, n), aged), drives, &contents)?;
    }
    let parts = [("data", &data, &mut loaded.data), ("log", &log, &mut loaded.log)];
    for ((role, profile, part), (seed, aged)) in parts.into_iter().zip(seeds(seed).into_iter().zip(aged)) {
        fill(part, (role, profile), (seed, aged), drives, &contents)?;
    }
    Ok(loaded)
}

/// Of a flash drive: begins it with what the part holds, unless it did already.
fn fill(
    part: &mut Part,
    (role, profile): (&str, &Profile),
    (seed, aged): (u64, f64),
    drives: &Drives,
    contents: &str,
) -> Result<(), (String, String)> {
    if part.drive.is_none() && part.len > 0 {
        let name = Some(format!("{role} ({})", profile.name));
        let how = Build { seed, len: part.len, contents: part.contents.clone(), name, aged, ..Build::default() };
        let drive = drives.get(profile, &format!("{role} {contents}"), &how);
        part.drive = drive.map_err(|e| (format!("devices.{role}"), e.to_string()))?;
    }
    Ok(())
}

impl Layouts {
    /// For these points.
    pub fn new<'a>(points: impl Iterator<Item = (&'a Spec, u64)>) -> Layouts {
        let mut slots = BTreeMap::new();
        for (spec, seed) in points {
            let drives = drives_key(spec, seed);
            let fresh = || Slot { left: 0, drives: drives.clone(), alike: true, image: Arc::default() };
            let slot = slots.entry(key(spec)).or_insert_with(fresh);
            slot.left += 1;
            slot.alike &= slot.drives == drives;
        }
        Layouts { slots: Mutex::new(slots), curves: Curves::default() }
    }

    /// The database of a point, loaded now if it is the first to ask; others that want the same wait. If all that want
    /// it begin with the same flash drives, only these are kept.
    pub fn get(&self, spec: &Spec, seed: u64, drives: &Drives) -> Result<Arc<Image>, ExperimentError> {
        let key = key(spec);
        let (cell, alike) = {
            let slots = self.slots.lock();
            let slot = slots.get(&key).expect("every point was announced");
            (slot.image.clone(), slot.alike)
        };
        let mut cell = cell.lock();
        if let Some(image) = &*cell {
            return Ok(image.clone());
        }
        let mut image = load(spec, self.curves.of(spec)?)?;
        if alike {
            let failed =
                |(key, what)| ExperimentError::Point { point: "loading".into(), what: format!("{key}: {what}") };
            image.bytes = on_drives(&image, spec, seed, drives).map_err(failed)?;
            let Loaded { data, log, drives, flash: _ } = &mut image.bytes;
            for part in [data, log].into_iter().chain(drives).filter(|part| part.drive.is_some()) {
                part.contents = Sparse::new();
            }
        }
        Ok(cell.insert(Arc::new(image)).clone())
    }

    /// A point has ended.
    pub fn done(&self, spec: &Spec) {
        let key = key(spec);
        let mut slots = self.slots.lock();
        let slot = slots.get_mut(&key).expect("every point was announced");
        slot.left -= 1;
        if slot.left == 0 {
            slots.remove(&key);
        }
    }
}
