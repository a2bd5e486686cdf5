//! Where a probe runs: a scratch file in a real directory, or a modelled device in a simulation of its own.

use super::{Options, Plan, Point, Report, run};
use crate::error::{Error, Result};
use crate::iomix::{self, Extent, Load, Pages, Sample};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use varve_device::{Device, DeviceError, FileDevice, OpKind};
use varve_models::{Build, Profile};
use varve_rt::sim;
use varve_volume::{Single, VolumeError};

/// Bytes of the scratch file unless the options say otherwise.
const SCRATCH: u64 = 1 << 30;
/// Requests of a repeat on a model.
const REQUESTS: u64 = 2_000;

/// Bytes of a repeat on a modelled flash drive at most.
const FLASH_BYTES: u64 = 64 << 20;

/// Removes the scratch file, whatever happens.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A scratch file of `len` bytes in a directory, reached with direct I/O where that is possible and written whole.
fn scratch(dir: &Path, len: u64) -> Result<(Scratch, Arc<dyn Device>)> {
    if let Err(e) = std::fs::metadata(dir)
        && e.kind() == std::io::ErrorKind::PermissionDenied
    {
        let (name, errno) = (dir.display().to_string().into(), e.raw_os_error().unwrap_or_default());
        return Err(Error::store(DeviceError::from_errno(OpKind::Open, &name, 0, 0, errno)));
    }
    if !dir.is_dir() {
        let why = format!("{} is no directory; give one on the file system to measure", dir.display());
        return Err(Error::Option { name: "path", why });
    }
    let scratch = Scratch(dir.join(format!("varve-probe-{}.tmp", std::process::id())));
    let how = varve_device::Options { create: true, direct: true, ..varve_device::Options::default() };
    let device: Arc<dyn Device> = FileDevice::open(&scratch.0, how).map_err(Error::store)?;
    // Nobody else needs its name: so it is gone with the process, however that ends.
    let _ = std::fs::remove_file(&scratch.0);
    device.set_len(len.next_multiple_of(4096)).map_err(Error::store)?;
    iomix::lay(&*device, len, |_| {})?;
    Ok((scratch, device))
}

/// Probes the place of a directory: a scratch file is made there, written whole, measured with direct I/O, and removed.
pub fn on_path(dir: &Path, options: &Options, progress: impl FnMut(usize, usize, &Point)) -> Result<Report> {
    let len = options.range.unwrap_or(SCRATCH);
    let (_scratch, device) = scratch(dir, len)?;
    let report = run(&device, &options.plan(), len, progress)?;
    Ok(Report { drive: varve_device::drive_identity(dir), ..report })
}

/// Probes a profile's model, in virtual time.
pub fn on_profile(profile: &Profile, options: &Options, progress: impl FnMut(usize, usize, &Point)) -> Result<Report> {
    // Every page of a flash model is worked on singly; requests to the others cost the same whatever their size.
    let bytes = if profile.flash.is_some() { FLASH_BYTES } else { u64::MAX };
    let pages = |f: &varve_models::flash::FlashConfig| u64::from(f.buffer.pages) * u64::from(f.geometry.page_bytes);
    let buffer = profile.flash.as_ref().map_or(0, pages);
    let plan = Plan {
        time: std::time::Duration::ZERO,
        requests: options.requests.unwrap_or(REQUESTS),
        bytes,
        buffer,
        ..options.plan()
    };
    modelled(profile, options.range, options.seed, false, |device, len| {
        let mut report = run(device, &plan, len, progress)?;
        report.capacity = profile.capacity();
        report.parameters = super::parameters(profile, &report);
        Ok(report)
    })
}

/// Puts a load on a scratch file in a directory, or on a volume in it of pages of `page_size` bytes; `extent` without
/// its range, which is 1 GiB unless given.
pub fn iomix_on_path(
    dir: &Path,
    range: Option<u64>,
    page_size: Option<usize>,
    load: Load,
    extent: Extent,
) -> Result<Sample> {
    let range = range.unwrap_or(SCRATCH);
    let (_scratch, device) = scratch(dir, range)?;
    on_device(&device, page_size, load, Extent { range, ..extent })
}

/// Puts a load on a profile's model, or on a volume on it (of 1 GiB unless the range is given), in virtual time.
pub fn iomix_on_profile(
    profile: &Profile,
    range: Option<u64>,
    page_size: Option<usize>,
    load: Load,
    extent: Extent,
) -> Result<Sample> {
    // All of a volume is written first, and kept in memory.
    let range = range.or(page_size.map(|_| SCRATCH));
    modelled(profile, range, extent.seed, page_size.is_some(), |device, range| {
        on_device(device, page_size, load, Extent { range, ..extent })
    })
}

fn on_device(device: &Arc<dyn Device>, page_size: Option<usize>, load: Load, extent: Extent) -> Result<Sample> {
    let Some(page_size) = page_size else { return iomix::run(device, load, extent) };
    let unsupported = |e: VolumeError| Error::Option { name: "page size", why: e.to_string() };
    let store = Single::new(device.clone(), page_size).map_err(unsupported)?;
    let range = extent.range / page_size as u64 * page_size as u64;
    let pages = Pages::new(store, range)?;
    iomix::check(&*pages, &load, &Extent { range, ..extent })?;
    // A page is verified when it is read: each has to be there.
    iomix::lay(&*pages, range, |_| {})?;
    iomix::run(&pages, load, Extent { range, ..extent })
}

/// Runs `f` with a profile's model and the bytes of it to use, in a simulation; `keep`: what is written can be read
/// again.
fn modelled<T>(
    profile: &Profile,
    range: Option<u64>,
    seed: u64,
    keep: bool,
    f: impl FnOnce(&Arc<dyn Device>, u64) -> Result<T>,
) -> Result<T> {
    let len = profile.probe_range().min(range.unwrap_or(u64::MAX));
    let outcome = sim::run(sim::Config { seed, ..sim::Config::default() }, || -> Result<T> {
        let how = Build { seed, len, keep, ..Build::default() };
        let device: Arc<dyn Device> = profile.build_model(how).map_err(|e| Error::Profile(e.to_string()))?;
        if profile.needs_laying() {
            iomix::lay(&*device, len, |_| {})?;
        }
        f(&device, len)
    });
    outcome.result.map_err(|failure| Error::WorkerPanicked(failure.to_string()))?
}
