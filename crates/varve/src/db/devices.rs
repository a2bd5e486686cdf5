//! The files of a database directory, and the devices a database runs on.
//!
//! A directory holds `lock`, `data`, `log` and, with a tier, `fast`; the last three may be links to files or block devices elsewhere.
//! Nothing is created, renamed or removed after creation, but for `fast` when a tier is attached or detached.

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
    /// Slots of a tier: copies and newest versions of pages that deserve a faster device (`docs/tier.md`).
    pub fast: Option<Arc<dyn Device>>,
}

impl Devices {
    /// A database without a tier.
    pub fn new(data: Arc<dyn Device>, log: Arc<dyn Device>) -> Devices {
        Devices { data, log, fast: None }
    }
}

const DATA: &str = "data";
const LOG: &str = "log";
const FAST: &str = "fast";

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
    let devices = make_parts(dir, layout, options).inspect_err(|_| remove(dir))?;
    Ok(OpenDir { devices, lock })
}

fn make_parts(dir: &Path, layout: &Layout, options: &Options) -> Result<Devices> {
    if let Some(log_dir) = &layout.log_dir {
        make_dir(log_dir)?;
        link(dir, LOG, log_dir)?;
    }
    if let Some(data) = &layout.data {
        link(dir, DATA, data)?;
    }
    if let Some(fast) = &layout.fast {
        link(dir, FAST, fast)?;
    }
    open_files(dir, options, true, layout.fast.is_some())
}

/// Leaves a link to a part of the database elsewhere: to a block device or file, or to a file of the database's name in a directory.
fn link(dir: &Path, part: &str, to: &Path) -> Result<()> {
    let absolute = |path: &Path| std::path::absolute(path).map_err(|e| path_error("find", path, &e));
    let target = match to.is_dir() {
        true => {
            let file = std::fs::canonicalize(to).map_err(|e| path_error("find", to, &e))?.join(part_name(dir, part));
            if file.exists() {
                return Err(Error::AlreadyExists(file.display().to_string()));
            }
            file
        }
        false => absolute(to)?,
    };
    let link = dir.join(part);
    std::os::unix::fs::symlink(&target, &link).map_err(|e| path_error("link", &link, &e))
}

/// Adds a fast device to the directory of a database that has none.
fn link_fast(dir: &Path, to: &Path) -> Result<()> {
    if dir.join(FAST).symlink_metadata().is_ok() {
        return Err(Error::AlreadyExists(dir.join(FAST).display().to_string()));
    }
    link(dir, FAST, to)
}

/// Takes the fast device out of the directory; what it holds stays where it is.
pub(crate) fn unlink_fast(dir: &Path) -> Result<()> {
    let link = dir.join(FAST);
    match link.symlink_metadata() {
        Ok(_) => std::fs::remove_file(&link).map_err(|e| path_error("remove", &link, &e)),
        Err(_) => Ok(()),
    }
}

/// Removes the files of a database that did not come to be; of a block device only the link to it.
pub(crate) fn remove(dir: &Path) {
    for part in [DATA, LOG, FAST] {
        let link = dir.join(part);
        if let Ok(target) = std::fs::canonicalize(&link)
            && target.is_file()
        {
            let _ = std::fs::remove_file(target);
        }
        let _ = std::fs::remove_file(link);
    }
}

/// Opens the files of an existing database.
pub(crate) fn open(dir: &Path, options: &Options) -> Result<OpenDir> {
    if !exists(dir) {
        return Err(Error::NoDatabase(dir.display().to_string()));
    }
    let lock = lock(dir, options.read_only)?;
    // A link that leads nowhere is a fast device that is missing; whether that matters the superblock says.
    let fast = dir.join(FAST).exists() && !options.without_tier;
    let devices = open_files(dir, options, false, fast)?;
    Ok(OpenDir { devices, lock })
}

/// Opens the files of an existing database and a fast device that is new to it, a file of `bytes` if it is none yet.
pub(crate) fn open_attaching(dir: &Path, fast: &Path, bytes: u64, options: &Options) -> Result<OpenDir> {
    if !exists(dir) {
        return Err(Error::NoDatabase(dir.display().to_string()));
    }
    let lock = lock(dir, false)?;
    link_fast(dir, fast)?;
    let devices = attach_files(dir, bytes, options).inspect_err(|_| drop(unlink_fast(dir)))?;
    Ok(OpenDir { devices, lock })
}

fn attach_files(dir: &Path, bytes: u64, options: &Options) -> Result<Devices> {
    let how = FileOptions { create: true, direct: options.direct_io, ..FileOptions::default() };
    let device = FileDevice::open(dir.join(FAST), how)?;
    if device.len() < bytes {
        device.set_len(bytes)?;
    }
    let devices = open_files(dir, options, false, false)?;
    Ok(Devices { fast: Some(device), ..devices })
}

fn open_files(dir: &Path, options: &Options, create: bool, fast: bool) -> Result<Devices> {
    let open = |name: &str, prewrite: bool| -> Result<Arc<dyn Device>> {
        let (read_only, direct) = (options.read_only, options.direct_io);
        let punch_holes = name == DATA && options.trim == Some(true);
        let how = FileOptions { create, read_only, direct, prewrite, punch_holes, ..FileOptions::default() };
        Ok(FileDevice::open(dir.join(name), how)?)
    };
    let fast = if fast { Some(open(FAST, false)?) } else { None };
    Ok(Devices { data: open(DATA, false)?, log: open(LOG, true)?, fast })
}

/// The name of a part in a directory that several databases may share.
fn part_name(dir: &Path, part: &str) -> PathBuf {
    let name = dir.file_name().map_or_else(|| "varve".into(), |n| n.to_string_lossy().into_owned());
    PathBuf::from(format!("{name}.{part}"))
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
