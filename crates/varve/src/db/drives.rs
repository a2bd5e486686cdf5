//! The drives of a database whose pages lie on an array: `drive.0`, `drive.1` and so on in its directory, links to
//! files or block devices elsewhere.
//!
//! Invariant: the number in a link's name is the drive's number in the array.

use super::devices;
use super::options::{DriveLayout, DrivePart, Options};
use crate::error::{Error, Result};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use varve_device::{Device, FileDevice, Options as FileOptions};
use varve_volume::array::{Array, Given, MOST_DRIVES, NewDrive, OpenHow};

fn name(drive: usize) -> String {
    format!("drive.{drive}")
}

/// How many drives a directory has names for; one that is gone in between counts.
pub(super) fn count(dir: &Path) -> usize {
    let there = |drive: &usize| dir.join(name(*drive)).symlink_metadata().is_ok();
    (0..MOST_DRIVES).rev().find(there).map_or(0, |last| last + 1)
}

/// Their names.
pub(super) fn names(dir: &Path) -> impl Iterator<Item = String> {
    (0..count(dir)).map(name)
}

/// Whether none of them holds anything.
pub(super) fn are_blank(dir: &Path) -> bool {
    names(dir).all(|name| devices::is_blank(&dir.join(name)))
}

/// Leaves links to the drives of a new database.
pub(super) fn link(dir: &Path, drives: &[DrivePart]) -> Result<()> {
    drives.iter().enumerate().try_for_each(|(i, drive)| devices::link(dir, &name(i), &drive.path))
}

fn how(options: &Options, create: bool) -> FileOptions {
    let (read_only, direct, punch_holes) = (options.read_only, options.direct_io, options.trim == Some(true));
    FileOptions { create, read_only, direct, punch_holes, ..FileOptions::default() }
}

/// Makes the array of a new database, with its identity, on its drives, which are linked.
pub(super) fn create(
    (dir, id): (&Path, [u8; 16]),
    array: &DriveLayout,
    options: &Options,
    overwrite: bool,
) -> Result<Arc<Array>> {
    let mut drives = Vec::new();
    for (i, part) in array.drives.iter().enumerate() {
        let device = FileDevice::open(dir.join(name(i)), how(options, true))?;
        let device: Arc<dyn Device> = device;
        if !overwrite {
            devices::refuse_owned(&device)?;
        }
        // What a file gets now is zeros.
        let blank = device.len() == 0;
        if device.len() < part.bytes {
            device.set_len(part.bytes)?;
        }
        drives.push(NewDrive { device, blank });
    }
    assert_eq!(drives.len(), count(dir), "each drive has its name in the directory");
    refuse_twice(dir, &array.drives)?;
    Ok(Array::create(id, drives, array.extent, array.layout.clone())?)
}

/// Fails when two names lead to one drive.
fn refuse_twice(dir: &Path, drives: &[DrivePart]) -> Result<()> {
    let mut seen = Vec::new();
    for (i, part) in drives.iter().enumerate() {
        let Some(this) = which(&dir.join(name(i))) else { continue };
        if let Some(first) = seen.iter().position(|other| *other == this) {
            let (one, other) = (drives[first].path.display(), part.path.display());
            return Err(Error::Invalid(format!("{one} and {other} are the same drive: give each drive once")));
        }
        seen.push(this);
    }
    Ok(())
}

/// Opens the array of a database from its drives; also returns the numbers of those that are missing, if it may be
/// opened without them.
pub(super) fn open(dir: &Path, options: &Options) -> Result<(Arc<Array>, Vec<usize>)> {
    let given = |name: String| {
        let path = dir.join(&name);
        let device = FileDevice::open(&path, how(options, false));
        let target = std::fs::read_link(&path).unwrap_or(path);
        let device = device.map(|device| device as Arc<dyn Device>).map_err(|e| e.to_string());
        Given { name: format!("`{name}` ({})", target.display()), device }
    };
    let drives = names(dir).map(given).collect();
    if options.without_drive {
        return Ok(Array::open_without(drives)?);
    }
    let how = if options.read_only { OpenHow::Reading } else { OpenHow::Writing };
    Ok((Array::open(drives, how)?, Vec::new()))
}

/// Leaves a link to a drive that is new to the database, and opens it. What has its name was left by a change that was
/// cut short.
pub(super) fn link_new(
    dir: &Path,
    number: usize,
    part: &DrivePart,
    (options, overwrite): (&Options, bool),
) -> Result<NewDrive> {
    assert!(number < MOST_DRIVES, "an array has so many drives at most");
    unlink(dir, number)?;
    refuse_same(dir, &part.path)?;
    devices::link(dir, &name(number), &part.path)?;
    let opened = open_new(&dir.join(name(number)), part, (options, overwrite));
    opened.inspect_err(|_| drop(unlink(dir, number)))
}

fn open_new(path: &Path, part: &DrivePart, (options, overwrite): (&Options, bool)) -> Result<NewDrive> {
    let device: Arc<dyn Device> = FileDevice::open(path, how(options, true))?;
    if !overwrite {
        devices::refuse_owned(&device)?;
    }
    let blank = device.len() == 0;
    if device.len() < part.bytes {
        device.set_len(part.bytes)?;
    }
    devices::sync_parent(path)?;
    Ok(NewDrive { device, blank })
}

/// Removes the name of a drive; what the drive holds stays.
pub(super) fn unlink(dir: &Path, number: usize) -> Result<()> {
    let link = dir.join(name(number));
    if link.symlink_metadata().is_ok() {
        std::fs::remove_file(&link).map_err(|e| devices::path_error("remove", &link, &e))?;
        devices::sync_parent(&link)?;
    }
    Ok(())
}

/// Which file or block device a path leads to.
fn which(path: &Path) -> Option<(bool, (u64, u64))> {
    let meta = std::fs::metadata(path).ok()?;
    let block = meta.file_type().is_block_device();
    Some((block, if block { (0, meta.rdev()) } else { (meta.dev(), meta.ino()) }))
}

/// Fails when a path leads to a drive that the database has.
fn refuse_same(dir: &Path, path: &Path) -> Result<()> {
    let Some(new) = which(path) else { return Ok(()) };
    match (0..count(dir)).find(|number| which(&dir.join(name(*number))) == Some(new)) {
        None => Ok(()),
        Some(number) => {
            Err(Error::Invalid(format!("{} is drive {number} of the array already: give another one", path.display())))
        }
    }
}
