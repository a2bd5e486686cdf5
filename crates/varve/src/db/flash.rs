//! The native flash of a database in a directory: `flash`, a link to what the program's driver opens.
//!
//! Invariant: nothing is erased that holds something, unless it may be lost.

use super::devices::{self, FLASH};
use super::options::Options;
use crate::error::{Damage, Error, Result};
use crate::wal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use varve_device::Device;
use varve_device::flash::{FlashError, RawFlash};
use varve_volume::flash::{FlashLayout, NativeFlash};

/// What opens raw flash by a path.
pub type OpenFlash = dyn Fn(&Path) -> Result<Arc<dyn RawFlash>, FlashError> + Send + Sync;

/// How a program gets at raw flash. This crate drives none: an image of it is `varve_models::flash::open_image`.
#[derive(Clone)]
pub struct FlashDriver(pub Arc<OpenFlash>);

impl PartialEq for FlashDriver {
    fn eq(&self, other: &FlashDriver) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl std::fmt::Debug for FlashDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FlashDriver")
    }
}

/// Native flash for the pages of a new database.
#[derive(Debug, Clone, PartialEq)]
pub struct FlashPart {
    /// What the driver opens; a link to it is left in the database's directory.
    pub path: PathBuf,
    /// How it is divided.
    pub regions: FlashLayout,
    /// What opens it.
    pub driver: FlashDriver,
}

/// Whether a directory has a name for native flash.
pub(super) fn is_there(dir: &Path) -> bool {
    dir.join(FLASH).symlink_metadata().is_ok()
}

fn raw(dir: &Path, driver: &FlashDriver) -> Result<Arc<dyn RawFlash>> {
    let path = dir.join(FLASH);
    // The file itself is what nobody else may use.
    let path = std::fs::canonicalize(&path).map_err(|e| devices::path_error("find", &path, &e))?;
    (driver.0)(&path).map_err(|e| match e {
        FlashError::ImageDamaged { .. } => Error::Corrupt(Damage::Device(e.to_string())),
        e => Error::Invalid(e.to_string()),
    })
}

/// Makes the regions of a new database on the flash that the directory names; `begin` notes that before anything is
/// written there.
pub(super) fn create(
    dir: &Path,
    part: &FlashPart,
    overwrite: bool,
    begin: impl FnOnce() -> Result<()>,
) -> Result<Arc<NativeFlash>> {
    let raw = raw(dir, &part.driver)?;
    let holds = (0..raw.geometry().blocks()).any(|block| raw.block(block).next > 0);
    if holds && !overwrite {
        return Err(Error::holds_database(part.path.display()));
    }
    assert!(is_there(dir), "flash that is used has its name in the directory");
    begin()?;
    Ok(NativeFlash::create(raw, &part.regions)?)
}

/// Opens the regions that the superblock on `log` names, on the flash that the directory names.
pub(super) fn open(dir: &Path, log: &dyn Device, options: &Options) -> Result<Arc<NativeFlash>> {
    let record = wal::read_header(log)?.options;
    if !FlashLayout::is_record(&record) {
        return Err(Error::Mismatch(format!(
            "`{FLASH}` is in {}, and the pages lie on a file or drive: open the database on that",
            dir.display()
        )));
    }
    let (layout, made) = FlashLayout::decode(&record)?;
    let none = "the pages lie on native flash, and this program has no driver for any: give `Options::flash`";
    let driver = options.flash.as_ref().ok_or_else(|| Error::Invalid(none.into()))?;
    let raw = raw(dir, driver)?;
    let shape = raw.geometry();
    if shape != made {
        return Err(Error::Mismatch(format!(
            "the database was made on flash of another shape: {made:?}, not {shape:?}"
        )));
    }
    Ok(NativeFlash::open(raw, &layout, &options.faults())?)
}
