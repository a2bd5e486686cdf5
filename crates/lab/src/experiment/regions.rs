//! Native flash under a database: `[devices.flash]` with `layout.regions`. It is made and loaded once, as raw flash,
//! and each point begins with a copy of it.

use super::point::OneDevice;
use super::spec::Spec;
use crate::error::{Error, Result};
use crate::flash_layout::{self, RegionSpec};
use crate::models::RawPart;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use varve::flash::{FlashLayout, NativeFlash};
use varve_device::flash::Geometry;
use varve_device::{AlignedBuf, Device, Faults};
use varve_models::ModelStats;
use varve_models::flash::{FlashConfig, FtlStats, RawModel};
use varve_rt::Rng;

/// `2x48`, in brackets or not: delta records of a page, and bytes of each.
fn scheme(text: &str) -> Option<(u8, u16)> {
    let (n, m) = text.trim().trim_start_matches('[').trim_end_matches(']').split_once('x')?;
    Some((n.trim().parse().ok()?, m.trim().parse().ok()?))
}

type Named<T> = std::result::Result<T, (String, String)>;

/// The flash of a point and how it is divided; none: its pages lie elsewhere.
fn flash_of(spec: &Spec) -> Named<Option<(FlashConfig, FlashLayout)>> {
    if spec.devices.flash.is_empty() {
        return Ok(None);
    }
    let profile = spec.devices.flash.profile().map_err(|what| ("devices.flash".to_string(), what))?;
    let refuse = |key: &str, what: String| (key.to_string(), what);
    let flash = profile.flash.ok_or_else(|| refuse("devices.flash", "a profile with [flash] is needed".into()))?;
    let given = spec.layout.scheme.as_deref().unwrap_or("0x0");
    let accepted = "N x M is accepted: records of a page and bytes of each, such as 2x48; 0x0 is none";
    let scheme = scheme(given).ok_or_else(|| refuse("layout.scheme", format!("{given:?}: {accepted}")))?;
    let one = [RegionSpec::default()];
    let regions = if spec.layout.regions.is_empty() { &one[..] } else { &spec.layout.regions };
    let layout = flash_layout::layout(regions, &flash, scheme);
    Ok(Some((flash, layout)))
}

/// The flash of a point that has some.
pub(super) fn config(spec: &Spec) -> std::result::Result<FlashConfig, String> {
    let found = flash_of(spec).map_err(|(key, what)| format!("{key}: {what}"))?;
    Ok(found.expect("a validated point has flash").0)
}

/// Refuses what cannot be run; names the key.
pub(super) fn validate(spec: &Spec) -> Named<()> {
    let refuse = |key: &str, what: String| Err((key.to_string(), what));
    let (devices, layout) = (&spec.devices, &spec.layout);
    let Some((flash, regions)) = flash_of(spec)? else {
        return match (layout.regions.is_empty(), &layout.scheme) {
            (true, None) => Ok(()),
            (true, Some(scheme)) => refuse("layout.scheme", format!("{scheme:?} needs devices.flash")),
            _ => refuse("layout.regions", "regions need devices.flash".into()),
        };
    };
    let records = regions.regions.iter().any(|region| region.n > 0);
    let page = u64::from(flash.geometry.page_bytes);
    match () {
        () if !devices.data.is_empty() || !devices.drives.is_empty() || !devices.fast.is_empty() => {
            refuse("devices.flash", "data, drives and fast do not stand beside it: it has all pages".into())
        }
        () if devices.log.is_empty() => refuse("devices.log", "beside native flash the log has a device".into()),
        () if !spec.workload.has_database() => refuse("devices.flash", "a workload with a database is needed".into()),
        () if records && layout.page_size.0 != page => {
            refuse("layout.page_size", format!("{page}, a page of the flash, is needed for delta records"))
        }
        () => regions.validate(&flash.geometry, flash.nop).map_err(|e| ("layout.regions".to_string(), e.to_string())),
    }
}

fn failed((key, what): (String, String)) -> Error {
    Error::Profile(format!("{key}: {what}"))
}

/// What tells loaded flash apart: points with the same begin with the same.
pub(super) fn key(spec: &Spec) -> impl Serialize {
    (spec.devices.flash.clone(), spec.layout.regions.clone(), spec.layout.scheme.clone())
}

/// Native flash of a point.
pub(super) struct Flash {
    raw: Arc<RawModel>,
    pub native: Arc<NativeFlash>,
    /// What finding its map took.
    pub opening: Duration,
}

impl Flash {
    /// New flash for a database that is to be loaded; none: its pages lie elsewhere.
    pub fn create(spec: &Spec) -> Result<Option<Flash>> {
        let Some((config, layout)) = flash_of(spec).map_err(failed)? else { return Ok(None) };
        let flash = |e: varve_device::flash::FlashError| Error::Profile(format!("devices.flash: {e}"));
        let raw = RawModel::new(&config).map_err(flash)?;
        for region in &layout.regions {
            let mut chips = region.chips.iter().filter(|_| region.mode != config.cell);
            chips.try_for_each(|chip| raw.set_mode(*chip, region.mode)).map_err(flash)?;
        }
        let native = NativeFlash::create(raw.clone(), &layout).map_err(Error::store)?;
        Ok(Some(Flash { raw, native, opening: Duration::ZERO }))
    }

    /// A copy of loaded flash, opened.
    pub fn open(part: &RawPart) -> Result<Flash> {
        let (raw, began) = (part.raw.wake(), varve_rt::now());
        let native = NativeFlash::open(raw.clone(), &part.layout, &Faults::default()).map_err(Error::store)?;
        Ok(Flash { raw, native, opening: began.elapsed() })
    }

    /// What is on it now.
    pub fn part(&self) -> RawPart {
        RawPart { raw: Arc::new(self.raw.rest()), layout: self.native.layout().clone() }
    }

    /// Overwrites `times` as many pages as are in use at random places, each with what it has.
    pub fn age(&self, times: f64) -> Result<()> {
        let page = u64::from(self.native.geometry().page_bytes);
        let pages = self.native.len() / page;
        let (mut rng, mut bytes) = (Rng::from_seed(0xa6ed), AlignedBuf::new(page as usize));
        for _ in 0..(times * pages as f64) as u64 {
            let at = rng.below(pages) * page;
            varve_device::read_at(&*self.native, at, &mut bytes).map_err(Error::store)?;
            varve_device::write_at(&*self.native, at, &bytes, false).map_err(Error::store)?;
        }
        Ok(())
    }

    /// Its counters, as those of the data device.
    pub fn device(&self) -> OneDevice {
        let (gates, counts) = (self.raw.gate_usage(), self.raw.counts());
        let model = ModelStats {
            busy: Duration::from_nanos(gates.iter().map(|gate| gate.busy).sum()),
            parts: gates.len() as u32,
            waited: Duration::from_nanos(gates.iter().map(|gate| gate.waited).sum()),
            served: gates.iter().map(|gate| gate.ops).sum(),
            deepest: 0,
            details: vec![("programs", counts.programs as f64), ("appends", counts.appends as f64)],
        };
        OneDevice { name: "data", stats: self.native.stats(), model }
    }

    /// Sizes: what its regions hold, and the share of all its pages that the database takes.
    pub fn sizes(&self) -> BTreeMap<String, f64> {
        let Geometry { page_bytes, pages_per_block, .. } = self.native.geometry();
        let all = u64::from(self.native.geometry().blocks()) * u64::from(pages_per_block) * u64::from(page_bytes);
        assert!(all >= self.native.capacity(), "regions lie on pages that there are");
        let mib = self.native.capacity() as f64 / f64::from(1 << 20);
        let filled = self.native.len() as f64 / all as f64;
        BTreeMap::from([("flash.capacity_mib".to_string(), mib), ("flash.filled_share".to_string(), filled)])
    }
}

/// Figures of the regions between two moments: of all together, and of each if there are several.
pub(super) fn figures(put: &mut impl FnMut(&str, f64), before: &[FtlStats], after: &[FtlStats]) {
    assert_eq!(before.len(), after.len(), "regions stay as they were made");
    let mut all = [0.0; 6];
    for (n, (then, now)) in before.iter().zip(after).enumerate() {
        let one = [
            now.host_reads - then.host_reads,
            now.host_writes - then.host_writes,
            now.host_appends - then.host_appends,
            now.gc_copies - then.gc_copies,
            now.erases - then.erases,
            now.merged - then.merged,
        ];
        let one = one.map(|count| count as f64);
        all.iter_mut().zip(one).for_each(|(sum, count)| *sum += count);
        if after.len() > 1 {
            put_counts(put, &format!("region{n}"), one);
        }
    }
    if !after.is_empty() {
        put_counts(put, "flash", all);
    }
}

fn put_counts(put: &mut impl FnMut(&str, f64), of: &str, counts: [f64; 6]) {
    let [reads, whole, appends, copies, erases, merged] = counts;
    let (writes, one) = (whole + appends, (whole + appends).max(1.0));
    for (name, value) in [
        ("host_reads", reads),
        ("host_writes", writes),
        ("appends", appends),
        ("out_of_place", whole),
        ("migrations", copies),
        ("merged", merged),
        ("erases", erases),
        ("append_share", appends / one),
        ("migrations_per_write", copies / one),
        ("erases_per_write", erases / one),
    ] {
        put(&format!("{of}.{name}"), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes_are_read() {
        assert_eq!(scheme("2x48"), Some((2, 48)));
        assert_eq!(scheme("[3 x 156]"), Some((3, 156)));
        assert!(["", "2", "x", "2x", "-1x3", "2x70000"].iter().all(|text| scheme(text).is_none()));
    }

    #[test]
    fn figures_are_differences_and_add_up() {
        let of = |host_writes, host_appends, gc_copies, erases| {
            let mut stats = FtlStats::default();
            (stats.host_writes, stats.host_appends) = (host_writes, host_appends);
            (stats.gc_copies, stats.erases) = (gc_copies, erases);
            stats
        };
        let mut found = BTreeMap::new();
        let (before, after) = ([of(10, 0, 1, 1), of(0, 5, 0, 0)], [of(40, 10, 31, 3), of(10, 55, 10, 3)]);
        let mut put =
            |name: &str, value| assert!(found.insert(name.to_string(), value).is_none(), "{name} is told once");
        figures(&mut put, &before, &after);
        assert_eq!(found["flash.host_writes"], 100.0);
        assert_eq!((found["flash.append_share"], found["flash.migrations_per_write"]), (0.6, 0.4));
        assert_eq!((found["region0.appends"], found["region1.erases_per_write"]), (10.0, 0.05));
    }
}
