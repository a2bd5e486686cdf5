//! A point's database: the modelled devices that it lies on, opening it, and opening it again as after a crash.

use super::advised::Collector;
use super::devices::Counted;
use super::machine::HostTime;
use super::near::Near;
use super::point::{Moment, OneDevice, seconds};
use super::rack;
use super::regions::Flash;
use super::spec::{Engine, Spec};
use crate::dbbench::Totals;
use crate::models::{Loaded, ModelledDevices, Part};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use varve::Db;
use varve_device::Device;
use varve_models::Modelled;
use varve_rt::sim;
use varve_volume::array::Array;

/// Refuses times that are none; names the key.
pub(super) fn validate(engine: &Engine) -> Result<(), (String, String)> {
    for (key, value, range) in [
        ("async_delay_ms", engine.async_delay_ms, 0.0..=1e9),
        ("recovery_bound_s", engine.recovery_bound_s, 1e-6..=1e6),
    ] {
        if !range.contains(&value) {
            let (least, most) = range.into_inner();
            return Err((format!("engine.{key}"), format!("{least} to {most} are possible, not {value}")));
        }
    }
    Ok(())
}

/// Bytes of memory, and frames if the buffer was given by itself.
#[derive(Clone, Copy)]
pub(super) struct Memory {
    pub cache: u64,
    pub frames: usize,
    /// The fast device's.
    pub fast: u64,
}

impl Memory {
    /// A buffer given by itself leaves the rest of the engine (locks, write sets, log) as much memory as it may want.
    pub fn of(spec: &Spec, data: u64) -> Memory {
        let e = &spec.engine;
        let cache = e.cache.of(data).max(varve::MIN_CACHE_BYTES);
        let fast = spec.layout.fast.map_or(0, |fast| fast.of(data)).next_multiple_of(4096);
        match e.buffer {
            None => Memory { cache, frames: 0, fast },
            Some(buffer) => {
                let bytes = buffer.of(data);
                let frames = (bytes / spec.layout.page_size.0).max(16);
                Memory { cache: cache.max(2 * bytes), frames: frames as usize, fast }
            }
        }
    }
}

fn named((key, what): (String, String)) -> crate::Error {
    crate::Error::Profile(format!("{key}: {what}"))
}

/// A point's devices.
pub(super) struct Machine {
    models: ModelledDevices,
    near: Near,
    fast_model: Option<Arc<dyn Modelled>>,
    /// The data device, or the drives of an array.
    data: Vec<(&'static str, Arc<Counted>)>,
    /// What the drives are made of.
    drives: Vec<Arc<dyn Modelled>>,
    array: Option<Arc<Array>>,
    /// Native flash, in place of data devices.
    flash: Option<Arc<Flash>>,
    log: Arc<Counted>,
    fast: Option<Arc<Counted>>,
    /// Told of page writes.
    pub collector: Option<Arc<Collector>>,
}

impl Machine {
    /// Devices that hold these bytes; `fast` counts where the point has a tier.
    pub fn new(spec: &Spec, bytes: &Loaded, fast: &Part, seed: u64) -> crate::Result<Machine> {
        let (data, log) = spec.devices.profiles().map_err(named)?;
        let models = ModelledDevices::new(&data, &log, bytes, seed)?;
        let mut near = Near::of(spec)?;
        let mut parts = bytes.drives.clone();
        let mut drives = Vec::new();
        for (n, (name, profile, part)) in rack::parts(spec, parts.iter_mut()).map_err(named)?.into_iter().enumerate() {
            drives.push(models.drive(&profile, (name, part), rack::seed(seed, n))?);
        }
        let counted = |(name, model): (_, &Arc<dyn Modelled>)| (name, Counted::new(model.clone()));
        let flash = bytes.flash.as_ref().map(Flash::open).transpose()?.map(Arc::new);
        let data: Vec<_> = match (&flash, drives.is_empty()) {
            (Some(_), _) => Vec::new(),
            (None, true) => vec![("data", Counted::behind(models.data.clone(), near.device(models.data.clone())?))],
            (None, false) => rack::NAMES.into_iter().zip(&drives).map(counted).collect(),
        };
        let on = data.iter().map(|(_, drive)| -> Arc<dyn Device> { drive.clone() });
        let array = if drives.is_empty() { None } else { Some(rack::open(on.collect())?) };
        let log = Counted::new(models.log.clone());
        let fast_model = match spec.devices.fast().map_err(named)? {
            Some(profile) => Some(models.fast(&profile, fast, seed)?),
            None => None,
        };
        let fast = fast_model.clone().map(Counted::new);
        Ok(Machine { models, near, fast_model, data, drives, array, flash, log, fast, collector: None })
    }

    /// Opens the database. `attach`: make a tier on the fast device.
    pub fn open(&self, spec: &Spec, memory: Memory, attach: bool) -> crate::Result<Db> {
        let e = &spec.engine;
        let options = varve::Options {
            cache_bytes: memory.cache,
            pool_frames: memory.frames,
            cleaners: e.cleaners,
            pool: e.pool.0.clone(),
            async_delay: seconds(e.async_delay_ms / 1e3),
            lock_timeout: None,
            recovery_bound: seconds(e.recovery_bound_s),
            log_max_bytes: e.log_max.0,
            update_sizes: e.update_sizes,
            page_images: e.page_images,
            trace: self.collector.as_ref().map(Collector::handle),
            tier: e.tier.options.0.clone(),
            attach_tier: attach,
            array: e.array.keeper(),
            ..varve::Options::default()
        };
        let on = match (&self.flash, &self.array) {
            (Some(flash), _) => varve::Devices::on_flash(flash.native.clone(), self.log.clone()),
            (None, None) => varve::Devices::new(self.data[0].1.clone(), self.log.clone()),
            (None, Some(array)) => varve::Devices::on_array(array.clone(), self.log.clone()),
        };
        let on = self.fast.iter().fold(on, |on, fast| on.with("fast", fast.clone()));
        let on = self.near.merges().filter(|_| self.fast.is_none()).into_iter().fold(on, varve::Devices::with_near);
        Ok(Db::open_on(on, options)?)
    }

    pub fn probe(&self, db: Db, cores: usize) -> Probe {
        let (data, flash, fast) = (self.data.clone(), self.flash.clone(), self.fast.clone());
        let (log, near, collector) = (self.log.clone(), self.near.clone(), self.collector.clone());
        Probe { db, data, flash, log, near, cores, fast, collector, done: None }
    }

    /// The array that its pages lie on, if they do.
    pub fn array(&self) -> Option<&Arc<Array>> {
        self.array.as_ref()
    }

    /// What a crash now would leave on the devices, were nothing lost of what they have completed.
    pub fn left(&self) -> (Loaded, Part) {
        let fast = self.fast_model.as_ref().map_or_else(Part::default, |fast| Part::of(&**fast));
        let drives = self.drives.iter().map(|drive| Part::of(&**drive)).collect();
        let flash = self.flash.as_ref().map(|flash| flash.part());
        (Loaded { drives, flash, ..self.models.loaded() }, fast)
    }

    /// Opens the database that a crash left and closes it; what the opening took.
    pub fn reopen(&self, spec: &Spec, memory: Memory) -> crate::Result<BTreeMap<String, f64>> {
        let map = self.flash.as_ref().map_or(Duration::ZERO, |flash| flash.opening);
        let began = varve_rt::now();
        let db = self.open(spec, memory, false)?;
        let mut figures = BTreeMap::from([
            ("reopen.open_s".to_string(), (began.elapsed() + map).as_secs_f64()),
            ("reopen.redo_mib".to_string(), db.recovery_report().bytes as f64 / f64::from(1 << 20)),
        ]);
        if self.flash.is_some() {
            figures.insert("reopen.map_s".into(), map.as_secs_f64());
        }
        if let Some(tier) = db.stats().tier {
            let r = tier.recovery;
            figures.extend([
                ("reopen.tier_s".to_string(), r.seconds),
                ("reopen.slots_read".to_string(), r.slots_read as f64),
                ("reopen.home_reads".to_string(), r.home_reads as f64),
                ("reopen.records".to_string(), r.records as f64),
                ("reopen.pages".to_string(), r.pages as f64),
            ]);
        }
        db.close()?;
        Ok(figures)
    }
}

/// Looks at everything that counts.
pub(super) struct Probe {
    pub db: Db,
    data: Vec<(&'static str, Arc<Counted>)>,
    flash: Option<Arc<Flash>>,
    log: Arc<Counted>,
    near: Near,
    cores: usize,
    fast: Option<Arc<Counted>>,
    pub collector: Option<Arc<Collector>>,
    /// Tells what a benchmark of `db_bench` has done.
    pub done: Option<Box<dyn Fn() -> Totals + Send + Sync>>,
}

impl Probe {
    /// Sizes of native flash, if the pages lie there.
    pub fn sizes(&self) -> BTreeMap<String, f64> {
        self.flash.as_ref().map_or_else(BTreeMap::new, |flash| flash.sizes())
    }

    pub fn moment(&self) -> Moment {
        let counted = (self.data.iter().map(|(name, device)| (*name, device)))
            .chain([("log", &self.log)])
            .chain(self.fast.iter().map(|fast| ("fast", fast)))
            .map(|(name, device)| OneDevice { name, stats: device.stats(), model: device.model() });
        Moment {
            at: varve_rt::now().as_nanos() as f64 / 1e9,
            engine: self.db.stats(),
            devices: self.flash.iter().map(|flash| flash.device()).chain(counted).collect(),
            regions: self.flash.as_ref().map_or_else(Vec::new, |flash| flash.native.region_stats()),
            client_writes: self.data.iter().map(|(_, device)| device.client_writes()).sum(),
            done: self.done.as_ref().map(|done| done()),
            host: HostTime::now(self.cores),
            locks: sim::lock_waits(),
            near: self.near.moment(),
            merges: self.db.near_stats(),
        }
    }
}
