//! The files of a database directory, and the devices a database runs on.
//!
//! A directory holds `lock`, `data` and `log` (or a link to the log's directory elsewhere). Nothing is created, renamed or
//! removed after creation.

use super::options::{Layout, Options};
use crate::error::{Error, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use varve_device::{Device, DeviceError, DirLock, FileDevice, Options as FileOptions};

/// What a database is stored on.
#[derive(Clone)]
pub struct Devices {
    /// Pages.
    pub data: Arc<dyn Device>,
    /// Superblocks and log.
    pub log: Arc<dyn Device>,
}

const DATA: &str = "data";
const LOG: &str = "log";

/// Whether a directory holds a database (its log and data files).
pub fn exists(dir: &Path) -> bool {
    dir.join(DATA).exists() && dir.join(LOG).exists()
}

pub(crate) struct OpenDir {
    pub devices: Devices,
    pub lock: DirLock,
}

/// Makes the files of a new database; the directory may exist but must not hold a database.
pub(crate) fn create(dir: &Path, layout: &Layout, options: &Options) -> Result<OpenDir> {
    make_dir(dir)?;
    let lock = lock(dir, false)?;
    if dir.join(DATA).exists() || dir.join(LOG).exists() {
        return Err(Error::AlreadyExists(dir.display().to_string()));
    }
    if let Some(log_dir) = &layout.log_dir {
        make_dir(log_dir)?;
        let target = std::fs::canonicalize(log_dir).map_err(|e| path_error("find", log_dir, &e))?.join(log_name(dir));
        if target.exists() {
            return Err(Error::AlreadyExists(target.display().to_string()));
        }
        let link = dir.join(LOG);
        std::os::unix::fs::symlink(&target, &link).map_err(|e| path_error("link", &link, &e))?;
    }
    let devices = open_files(dir, options, true)?;
    Ok(OpenDir { devices, lock })
}

/// Opens the files of an existing database.
pub(crate) fn open(dir: &Path, options: &Options) -> Result<OpenDir> {
    if !exists(dir) {
        return Err(Error::NoDatabase(dir.display().to_string()));
    }
    let lock = lock(dir, options.read_only)?;
    let devices = open_files(dir, options, false)?;
    Ok(OpenDir { devices, lock })
}

fn open_files(dir: &Path, options: &Options, create: bool) -> Result<Devices> {
    let open = |name: &str, prewrite: bool| -> Result<Arc<dyn Device>> {
        let (read_only, direct) = (options.read_only, options.direct_io);
        let how = FileOptions { create, read_only, direct, prewrite, ..FileOptions::default() };
        Ok(FileDevice::open(dir.join(name), how)?)
    };
    Ok(Devices { data: open(DATA, false)?, log: open(LOG, true)? })
}

/// The log's file name in a directory that several databases may share.
fn log_name(dir: &Path) -> PathBuf {
    let name = dir.file_name().map_or_else(|| "varve".into(), |n| n.to_string_lossy().into_owned());
    PathBuf::from(format!("{name}.log"))
}

fn make_dir(dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir).map_err(|e| path_error("create", dir, &e))
}

fn lock(dir: &Path, read_only: bool) -> Result<DirLock> {
    let lock = if read_only { DirLock::shared(dir) } else { DirLock::exclusive(dir) };
    lock.map_err(|e| match e {
        DeviceError::Locked { .. } => Error::InUse(e.to_string()),
        other => other.into(),
    })
}

fn path_error(what: &str, path: &Path, e: &std::io::Error) -> Error {
    Error::Invalid(format!("cannot {what} {}: {e}", path.display()))
}
