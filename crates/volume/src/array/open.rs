//! Arrays that are found again: made on drives, and opened from them.
//!
//! Invariant: an array is opened only from all of its drives, each in its place and of the same moment.

use super::absent::Absent;
use super::flight::Member;
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
/// Fewest extents that a drive has room for beside its tables.
pub(super) const LEAST_EXTENTS: u64 = 4;

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

pub(super) fn new_id() -> Id {
    let mut id = [0; 16];
    varve_rt::rng().fill_bytes(&mut id);
    id
}

fn show(id: &Id) -> String {
    id[..4].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Where slots begin when a map is to have room for four times the extents of drives of these lengths, and the map's
/// blocks.
fn tables(lens: &[u64], extent: u64) -> (u64, u32) {
    let extents: u64 = lens.iter().map(|len| len / extent).sum();
    let map_blocks = (ROOM * extents).max(LEAST_ROOM).div_ceil(ENTRIES as u64) as u32;
    let blocks = 2 + 2 * (u64::from(map_blocks) + u64::from(JOURNAL_BLOCKS));
    ((blocks * super::format::BLOCK as u64).next_multiple_of(ALIGN), map_blocks)
}

/// Bytes that a drive must have at least whose slots begin at `data_at`.
pub(super) fn least(extent: u64, data_at: u64) -> u64 {
    data_at + LEAST_EXTENTS * extent
}

/// Refuses drives without room for four extents beside the tables; says how many bytes are enough.
fn check_room(drives: &[NewDrive], extent: u64) -> Result<(), VolumeError> {
    let mut lens: Vec<u64> = drives.iter().map(|drive| drive.device.len()).collect();
    let has = lens.clone();
    let small = |lens: &[u64]| {
        let enough = least(extent, tables(lens, extent).0);
        lens.iter().any(|len| *len < enough).then_some(enough)
    };
    // Larger drives have larger tables.
    while let Some(enough) = small(&lens) {
        lens.iter_mut().for_each(|len| *len = enough.max(*len));
    }
    let Some(n) = (0..has.len()).find(|n| has[*n] < lens[*n]) else { return Ok(()) };
    assert!(lens[n] >= LEAST_EXTENTS * extent, "tables take room too");
    let (name, len, least) = (drives[n].device.info().name, has[n], lens[n]);
    Err(invalid(format!(
        "{name} has {len} bytes, less than four extents and the array's tables: give it {least} bytes or more, or \
        choose smaller extents"
    )))
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
        check_room(&drives, extent)?;
        let lens: Vec<u64> = drives.iter().map(|drive| drive.device.len()).collect();
        let (data_at, map_blocks) = tables(&lens, extent);
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
        assert!(shape.tables_end() <= shape.data_at, "extents lie behind the tables");
        let records = Records::create(&devices, shape)?;
        distinct(&devices, &records)?;
        let map = super::Map { extent, unit: records.shape.layout.unit(extent), data_at, len: 0, entries: Vec::new() };
        let slots = slots_of(&records.shape);
        let members = devices.into_iter().map(Member::new).collect();
        Ok(Array::assembled(members, records.shape.layout.clone(), (map, 0), slots, Some(records)))
    }

    /// Opens the array that is on these drives, in their order. What a crash left between two of them is put right.
    /// What is given in a vacant place, or past the last drive, is left of a change that was cut short, and not looked
    /// at.
    ///
    /// # Errors
    /// [`VolumeError::DriveMissing`] and [`VolumeError::Mismatch`] name the drives that are missing, foreign, swapped,
    /// cut or of another time, and say what to do.
    pub fn open(drives: Vec<Given>, how: OpenHow) -> Result<Arc<Array>, VolumeError> {
        assert!(how != OpenHow::Without, "who goes without a drive says so to `open_without`");
        Ok(Array::open_as(drives, how)?.0)
    }

    /// Opens the array for reading though drives are missing: requests to those fail. Returns their numbers too.
    ///
    /// # Errors
    /// As for [`Array::open`], but for drives that are missing, unless all are.
    pub fn open_without(drives: Vec<Given>) -> Result<(Arc<Array>, Vec<usize>), VolumeError> {
        Array::open_as(drives, OpenHow::Without)
    }

    fn open_as(drives: Vec<Given>, how: OpenHow) -> Result<(Arc<Array>, Vec<usize>), VolumeError> {
        let looked = drives.into_iter().map(Looked::at).collect::<Result<Vec<_>, _>>()?;
        let (members, missing) = members(looked, how)?;
        same_array(&members)?;
        same_time(&members)?;
        let newest = newest(&members)?;
        let shape = newest.sup.shape.clone();
        members.iter().try_for_each(|member| is_whole(member, &shape))?;
        let map = newest.map().expect("the newest is sound");
        let zero_from = newest.sizes.zero_from;
        let slots = slots_of(&shape).with(&map);
        let absent = |number: usize| Absent::in_place_of(&format!("drive {number} of the array"));
        let mut devices: Vec<Arc<dyn Device>> = (0..shape.drives.len()).map(absent).collect();
        let mut found: Vec<Option<Found>> = vec![None; devices.len()];
        for member in members {
            devices[member.number] = member.device;
            found[member.number] = Some(member.found);
        }
        let records = match how {
            OpenHow::Writing => Some(Records::go_on(&devices, &found, &newest)?),
            OpenHow::Reading | OpenHow::Without => None,
        };
        let member = |(device, found): (_, &Option<Found>)| match found {
            Some(_) => Member::new(device),
            None => Member::absent(device),
        };
        let members = devices.into_iter().zip(&found).map(member).collect();
        Ok((Array::assembled(members, shape.layout.clone(), (map, zero_from), slots, records), missing))
    }
}

/// How an array is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenHow {
    /// Its drives bear a new generation.
    Writing,
    /// Nothing is written.
    Reading,
    /// Nothing is written, and drives may be missing.
    Without,
}

/// A drive, and what is on it, or what is wrong with that.
type Bears = (Arc<dyn Device>, Result<Found, VolumeError>);

/// A drive that was given, and what is on it.
struct Looked {
    name: String,
    device: Result<Bears, String>,
}

impl Looked {
    fn at(Given { name, device }: Given) -> Result<Looked, VolumeError> {
        let device = match device {
            Err(why) => Err(why),
            Ok(device) => {
                let found = find(&name, &*device);
                if let Err(e @ VolumeError::Device(_)) = found {
                    return Err(e);
                }
                Ok((device, found))
            }
        };
        Ok(Looked { name, device })
    }

    fn found(&self) -> Option<&Found> {
        self.device.as_ref().ok()?.1.as_ref().ok()
    }
}

/// A drive in its place.
struct Present {
    number: usize,
    name: String,
    device: Arc<dyn Device>,
    found: Found,
}

/// What is on a drive, or what is wrong with it.
fn find(name: &str, device: &dyn Device) -> Result<Found, VolumeError> {
    records::find(device).map_err(|why| match why {
        NotFound::Failed(e) => e.into(),
        NotFound::Version(version) => newer(name, version),
        NotFound::None { blank } => {
            let what = if blank { "is empty" } else { "holds something else, or its superblocks are damaged" };
            VolumeError::Mismatch(format!(
                "{name} is not of the array: it {what}; `--without-drive` reads what the other drives hold"
            ))
        }
    })
}

/// The places that are not vacant, by what most of the drives say that is newest; all, if none says anything.
fn places(looked: &[Looked]) -> Vec<usize> {
    let found = || looked.iter().filter_map(Looked::found);
    let votes = |id: &Id| found().filter(|f| f.sup.shape.array == *id).count();
    let most = found().map(|f| f.sup.shape.array).max_by_key(votes);
    let of_it = found().filter(|f| Some(f.sup.shape.array) == most);
    match of_it.max_by_key(|f| (f.generation.number, f.confirmed)) {
        None => (0..looked.len()).collect(),
        Some(lead) => {
            let slots = lead.sup.shape.drives.iter().map(|drive| drive.slots);
            slots.enumerate().filter(|(_, slots)| *slots > 0).map(|(number, _)| number).collect()
        }
    }
}

/// The drives of the array, each in its place, and the places of those that are missing.
fn members(looked: Vec<Looked>, how: OpenHow) -> Result<(Vec<Present>, Vec<usize>), VolumeError> {
    let (places, given) = (places(&looked), looked.len());
    let count = places.len();
    let (mut present, mut missing, mut told) = (Vec::new(), Vec::new(), Vec::new());
    let beyond: Vec<usize> = places.iter().copied().filter(|number| *number >= given).collect();
    for (number, Looked { name, device }) in looked.into_iter().enumerate().filter(|(n, _)| places.contains(n)) {
        match device {
            // What is not of the array has nothing of it.
            Ok((_, Err(VolumeError::Mismatch(why)))) if how == OpenHow::Without => {
                told.push(why);
                missing.push(number);
            }
            Ok((device, found)) => present.push(Present { number, name, device, found: found? }),
            Err(why) => {
                told.push(format!("{name} (drive {number} of {count}): {why}"));
                missing.push(number);
            }
        }
    }
    if let Some(last) = beyond.last() {
        told.push(format!("the array has {count} drives, and {given} are given, up to drive {last} is missing"));
        missing.extend(beyond);
    }
    assert_eq!(present.len() + missing.len(), count, "a drive is there, or it is missing");
    if missing.is_empty() || (how == OpenHow::Without && !present.is_empty()) {
        return Ok((present, missing));
    }
    Err(VolumeError::DriveMissing(format!("{}: bring it back, or restore the database from a backup", told.join("; "))))
}

/// Fails if a drive has fewer bytes than are in use.
fn is_whole(member: &Present, shape: &Shape) -> Result<(), VolumeError> {
    let needed = shape.data_at + u64::from(shape.drives[member.number].slots) * shape.extent;
    let (name, len) = (&member.name, member.device.len());
    if len >= needed {
        return Ok(());
    }
    Err(VolumeError::Mismatch(format!("{name} has {len} bytes, and {needed} are in use: it was cut")))
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

/// All are of one array, in their places.
fn same_array(members: &[Present]) -> Result<(), VolumeError> {
    let array = |member: &Present| member.found.sup.shape.array;
    let votes = |id: Id| members.iter().filter(|member| array(member) == id).count();
    let most = members.iter().map(array).max_by_key(|id| votes(*id)).expect("there is a drive");
    if let Some(member) = members.iter().find(|member| array(member) != most) {
        return Err(VolumeError::Mismatch(format!(
            "{} is of another array ({}) than the other drives ({})",
            member.name,
            show(&array(member)),
            show(&most)
        )));
    }
    match members.iter().find(|member| member.found.sup.index != member.number) {
        None => Ok(()),
        Some(Present { number, name, found, .. }) => Err(VolumeError::Mismatch(format!(
            "{name} is drive {} of the array, and was given as drive {number}: swap the drives back, or their links",
            found.sup.index
        ))),
    }
}

/// All are of one generation, or of the last two if the newest is confirmed nowhere.
fn same_time(members: &[Present]) -> Result<(), VolumeError> {
    let found = members.iter().map(|member| &member.found);
    let newest = found.max_by_key(|f| (f.generation.number, f.confirmed)).expect("there is a drive");
    let (number, tie) = (newest.generation.number, newest.generation.tie);
    let oldest = if newest.confirmed { number } else { number.saturating_sub(1) };
    for Present { name, found, .. } in members {
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
fn newest(members: &[Present]) -> Result<Found, VolumeError> {
    let number = members.iter().map(|m| m.found.generation.number).max().expect("there is a drive");
    let mut newest = members.iter().map(|m| &m.found).filter(|found| found.generation.number == number);
    newest.find(|found| found.map().is_some()).cloned().ok_or_else(|| {
        let names: Vec<&str> = members.iter().map(|member| member.name.as_str()).collect();
        VolumeError::Mismatch(format!(
            "the table of the array is damaged on every drive that has the newest ({})",
            names.join(", ")
        ))
    })
}
