//! Arrays that are found again: made on drives, and opened from them.
//!
//! Invariant: an array is opened only from all of its drives, each in its place and of the same moment.

use super::format::{DriveRecord, ENTRIES, Id, Shape};
use super::records::{self, Found, JOURNAL_BLOCKS, NotFound, Records};
use super::slots::{Layout, Slots};
use super::{Array, check_drives, check_layout, invalid};
use crate::VolumeError;
use std::sync::Arc;
use varve_device::Device;

/// Slots begin at a multiple of this.
const ALIGN: u64 = 1 << 20;
/// Fewest entries that a map has room for: room for four times the extents that there are is left for drives to come.
const LEAST_ROOM: u64 = 1024;
const ROOM: u64 = 4;
/// Fewest extents that a drive has room for, its tables included.
const LEAST_EXTENTS: u64 = 4;

/// A drive that an array is made on.
pub struct NewDrive {
    /// The drive.
    pub device: Arc<dyn Device>,
    /// It reads as zeros throughout.
    pub blank: bool,
}

/// A drive that an array is to be found on.
pub struct Given {
    /// How messages call it.
    pub name: String,
    /// The drive, or why it cannot be had.
    pub device: Result<Arc<dyn Device>, String>,
}

/// What a drive says of the array that it is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Membership {
    /// The array.
    pub array: [u8; 16],
    /// Which of its drives.
    pub index: usize,
    /// How many it has.
    pub drives: usize,
}

/// Which array a drive is of; none: it bears no superblock of one.
///
/// # Errors
/// The drive's own.
pub fn membership(drive: &dyn Device) -> Result<Option<Membership>, VolumeError> {
    match records::find(drive) {
        Ok(found) => {
            let shape = &found.sup.shape;
            Ok(Some(Membership { array: shape.array, index: found.sup.index, drives: shape.drives.len() }))
        }
        Err(NotFound::Failed(e)) => Err(e.into()),
        Err(NotFound::Version(version)) => Err(newer(&drive.info().name, version)),
        Err(NotFound::None { .. }) => Ok(None),
    }
}

fn newer(name: &str, version: u32) -> VolumeError {
    let ours = super::format::VERSION;
    VolumeError::Invalid(format!(
        "{name} is of an array with format {version}; this release understands {ours}: use the release that made it"
    ))
}

fn new_id() -> Id {
    let mut id = [0; 16];
    varve_rt::rng().fill_bytes(&mut id);
    id
}

fn show(id: &Id) -> String {
    id[..4].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Where slots begin when a map is to have room for four times the extents of these drives, and the map's blocks.
fn tables(drives: &[NewDrive], extent: u64) -> (u64, u32) {
    let extents: u64 = drives.iter().map(|drive| drive.device.len() / extent).sum();
    let map_blocks = (ROOM * extents).max(LEAST_ROOM).div_ceil(ENTRIES as u64) as u32;
    let blocks = 2 + 2 * (u64::from(map_blocks) + u64::from(JOURNAL_BLOCKS));
    ((blocks * super::format::BLOCK as u64).next_multiple_of(ALIGN), map_blocks)
}

impl Array {
    /// Makes an array without a byte yet on these drives, whatever they hold; it grows by `set_len`. Its drives bear
    /// the identity `id` from here on.
    ///
    /// # Errors
    /// [`VolumeError::Options`] says what cannot be used, and what can; or a drive's own.
    pub fn create(id: [u8; 16], drives: Vec<NewDrive>, extent: u64, layout: Layout) -> Result<Arc<Array>, VolumeError> {
        if drives.len() < 2 {
            return Err(invalid(
                "an array has at least two drives: give another one, or use the drive by itself".into(),
            ));
        }
        check_layout(extent, &layout, drives.len())?;
        for NewDrive { device, .. } in &drives {
            if device.len() < LEAST_EXTENTS * extent {
                let (name, len, least) = (device.info().name, device.len(), LEAST_EXTENTS * extent);
                return Err(invalid(format!(
                    "{name} has {len} bytes, less than four extents: give it {least} bytes or more, or choose \
                    smaller extents"
                )));
            }
        }
        let (data_at, map_blocks) = tables(&drives, extent);
        let devices: Vec<Arc<dyn Device>> = drives.iter().map(|drive| drive.device.clone()).collect();
        let counts = check_drives(&devices, extent, data_at)?;
        let shares = layout.shares(drives.len());
        let each = drives.iter().zip(&counts).zip(shares);
        let drives = each.map(|((drive, &slots), share)| {
            let blank_from = if drive.blank { 0 } else { slots };
            DriveRecord { id: new_id(), slots, blank_from, share }
        });
        let (drives, journal_blocks) = (drives.collect(), JOURNAL_BLOCKS);
        let shape = Shape { array: id, layout, extent, data_at, map_blocks, journal_blocks, drives };
        let records = Records::create(&devices, shape)?;
        distinct(&devices, &records)?;
        let map = super::Map { extent, unit: records.shape.layout.unit(extent), data_at, len: 0, entries: Vec::new() };
        let slots = slots_of(&records.shape);
        Ok(Array::assembled(devices, records.shape.layout.clone(), (map, 0), slots, Some(records)))
    }

    /// Opens the array that is on these drives, in their order; for reading, nothing is written. What a crash left
    /// between two of them is put right.
    ///
    /// # Errors
    /// [`VolumeError::DriveMissing`] and [`VolumeError::Mismatch`] name the drives that are missing, foreign, swapped,
    /// cut or of another time, and say what to do.
    pub fn open(drives: Vec<Given>, read_only: bool) -> Result<Arc<Array>, VolumeError> {
        let (names, devices) = all_there(drives)?;
        let found = find_all(&names, &devices)?;
        same_array(&names, &found)?;
        same_time(&names, &found)?;
        let newest = newest(&names, &found)?;
        for (i, drive) in newest.sup.shape.drives.iter().enumerate() {
            let needed = newest.sup.shape.data_at + u64::from(drive.slots) * newest.sup.shape.extent;
            if devices[i].len() < needed {
                return Err(VolumeError::Mismatch(format!(
                    "{} has {} bytes, and {needed} are in use: it was cut",
                    names[i],
                    devices[i].len()
                )));
            }
        }
        let map = newest.map().expect("the newest is sound");
        let (layout, zero_from) = (newest.sup.shape.layout.clone(), newest.sizes.zero_from);
        let slots = slots_of(&newest.sup.shape).with(&map);
        let records = if read_only { None } else { Some(Records::go_on(&devices, &found, &newest)?) };
        Ok(Array::assembled(devices, layout, (map, zero_from), slots, records))
    }
}

fn slots_of(shape: &Shape) -> Slots {
    Slots::new(&shape.drives.iter().map(|drive| (drive.slots, drive.blank_from)).collect::<Vec<_>>())
}

/// Of one drive under two names, the last superblock is left.
fn distinct(devices: &[Arc<dyn Device>], records: &Records) -> Result<(), VolumeError> {
    for (i, device) in devices.iter().enumerate() {
        match membership(&**device)? {
            Some(found) if found.array == records.shape.array && found.index == i => {}
            _ => {
                return Err(invalid(format!(
                    "{} is the same drive as another one of the array: give each drive once",
                    device.info().name
                )));
            }
        }
    }
    Ok(())
}

type Named = (Vec<String>, Vec<Arc<dyn Device>>);

fn all_there(drives: Vec<Given>) -> Result<Named, VolumeError> {
    let count = drives.len();
    let missing = |(i, drive): (usize, &Given)| {
        drive.device.as_ref().err().map(|why| format!("{} (drive {i} of {count}): {why}", drive.name))
    };
    let missing: Vec<String> = drives.iter().enumerate().filter_map(missing).collect();
    if !missing.is_empty() {
        return Err(VolumeError::DriveMissing(format!(
            "{}: bring it back, or restore the database from a backup",
            missing.join("; ")
        )));
    }
    let there = |drive: Given| (drive.name, drive.device.unwrap_or_else(|_| unreachable!("none is missing")));
    Ok(drives.into_iter().map(there).unzip())
}

fn find_all(names: &[String], devices: &[Arc<dyn Device>]) -> Result<Vec<Found>, VolumeError> {
    let find = |(name, device): (&String, &Arc<dyn Device>)| match records::find(&**device) {
        Ok(found) => Ok(found),
        Err(NotFound::Failed(e)) => Err(e.into()),
        Err(NotFound::Version(version)) => Err(newer(name, version)),
        Err(NotFound::None { blank }) => {
            let what = if blank { "is empty" } else { "holds something else, or its superblocks are damaged" };
            Err(VolumeError::Mismatch(format!("{name} is not of the array: it {what}")))
        }
    };
    names.iter().zip(devices).map(find).collect()
}

/// All are of one array, in their places.
fn same_array(names: &[String], found: &[Found]) -> Result<(), VolumeError> {
    let array = |found: &Found| found.sup.shape.array;
    let votes = |id: Id| found.iter().filter(|f| array(f) == id).count();
    let most = found.iter().map(array).max_by_key(|id| votes(*id)).expect("there is a drive");
    if let Some((name, found)) = names.iter().zip(found).find(|(_, found)| array(found) != most) {
        return Err(VolumeError::Mismatch(format!(
            "{name} is of another array ({}) than the other drives ({})",
            show(&found.sup.shape.array),
            show(&most)
        )));
    }
    if let Some((i, found)) = found.iter().enumerate().find(|(i, found)| found.sup.index != *i) {
        return Err(VolumeError::Mismatch(format!(
            "{} is drive {} of the array, and was given as drive {i}: swap the drives back, or their links",
            names[i], found.sup.index
        )));
    }
    let drives = found.iter().map(|found| found.sup.shape.drives.len()).max().expect("there is a drive");
    if drives != names.len() {
        let (given, last) = (names.len(), drives - 1);
        return Err(VolumeError::DriveMissing(format!(
            "the array has {drives} drives, and {given} are given: bring back what is missing, up to drive {last}"
        )));
    }
    Ok(())
}

/// All are of one generation, or of the last two if the newest is confirmed nowhere.
fn same_time(names: &[String], found: &[Found]) -> Result<(), VolumeError> {
    let newest = found.iter().max_by_key(|f| (f.generation.number, f.confirmed)).expect("there is a drive");
    let (number, tie) = (newest.generation.number, newest.generation.tie);
    let oldest = if newest.confirmed { number } else { number.saturating_sub(1) };
    for (name, found) in names.iter().zip(found) {
        let theirs = found.generation;
        if theirs.number < oldest {
            let damaged = if found.damaged { " (or its newest superblock is damaged)" } else { "" };
            return Err(VolumeError::Mismatch(format!(
                "{name} is older (generation {}) than the other drives ({number}){damaged}",
                theirs.number
            )));
        }
        if theirs.number == number && theirs.tie != tie {
            return Err(VolumeError::Mismatch(format!(
                "{name} and the other drives are of copies of the array that went different ways (generation \
                 {number})"
            )));
        }
    }
    Ok(())
}

/// The newest whole table.
fn newest(names: &[String], found: &[Found]) -> Result<Found, VolumeError> {
    let number = found.iter().map(|found| found.generation.number).max().expect("there is a drive");
    let newest = found.iter().filter(|found| found.generation.number == number);
    newest.clone().find(|found| found.map().is_some()).cloned().ok_or_else(|| {
        VolumeError::Mismatch(format!(
            "the table of the array is damaged on every drive that has the newest ({})",
            names.join(", ")
        ))
    })
}
