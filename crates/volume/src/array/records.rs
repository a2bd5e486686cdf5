//! What an array notes on its drives, and how it is found there again.
//!
//! All drives have the whole map. A change goes to all of them with a new generation, a block of the journal each (or a
//! new map, when the journal is full or the change is large); when all have it, each notes that the generation is
//! *confirmed*; only then does the change count. So drives are at most one generation apart, and only as long as nobody
//! has confirmed the newer one; whatever else is found is of another time.
//!
//! Invariants: a change is durable on all drives before one of them says so, and that before the change counts; maps
//! take turns, so the newest whole one is never written over; after a change that failed there is no other.

use super::format::{self, BLOCK, CHANGES, Change, ENTRIES, Generation, Shape, Sizes, Super};
use super::map::{Entry, Map, Place};
use std::ops::Range;
use std::sync::Arc;
use varve_device::{AlignedBuf, Device, DeviceError, Io, read_at};

/// Blocks of a journal (assumed): 31 changes between two maps.
pub(super) const JOURNAL_BLOCKS: u32 = 64;

/// Blocks of a map that are read at a time: 1 MiB.
const MAP_PIECE: usize = 256;

/// What is written on the drives of an open array.
pub(super) struct Records {
    pub shape: Shape,
    pub generation: Generation,
    /// For each drive the sequence of its map, and the blocks of its journal that are used.
    at: Vec<(u64, u32)>,
    /// Why nothing can be noted any more.
    failed: Option<DeviceError>,
}

/// What is on one drive.
#[derive(Clone)]
pub(super) struct Found {
    pub sup: Super,
    /// The newest generation, with all changes since the map.
    pub generation: Generation,
    pub confirmed: bool,
    pub sizes: Sizes,
    /// The table, if the drive's copy is whole.
    pub entries: Option<Vec<Entry>>,
    /// One of the superblocks is not whole.
    pub damaged: bool,
    used: u32,
}

/// Blocks for each of the drives, written at once; durable when this returns.
fn write_all(drives: &[Arc<dyn Device>], blocks: &[(usize, u64, AlignedBuf)]) -> Result<(), DeviceError> {
    let write = |(drive, at, bytes): &(usize, u64, AlignedBuf)| {
        // SAFETY: the bytes outlive the tickets, which are waited for below.
        drives[*drive].submit(vec![unsafe { Io::write(*at, bytes.as_ptr(), bytes.len(), true) }])
    };
    let tickets: Vec<_> = blocks.iter().map(write).collect();
    tickets.into_iter().map(|ticket| ticket.wait_all()).fold(Ok(()), Result::and)
}

/// Makes both superblocks of drives unreadable that may be those of another array.
fn blank_supers(drives: &[Arc<dyn Device>]) -> Result<(), DeviceError> {
    let blank = |drive| (drive, 0, AlignedBuf::new(2 * BLOCK));
    write_all(drives, &(0..drives.len()).map(blank).collect::<Vec<_>>())
}

fn next(generation: Generation) -> Generation {
    Generation { number: generation.number + 1, tie: varve_rt::rng().next_u64() }
}

impl Records {
    /// Notes a new array on its drives, whatever they held.
    pub fn create(drives: &[Arc<dyn Device>], shape: Shape) -> Result<Records, DeviceError> {
        blank_supers(drives)?;
        let at = vec![(0, shape.journal_blocks); drives.len()];
        let mut records = Records { shape, generation: Generation { number: 0, tie: 0 }, at, failed: None };
        let none = Sizes { len: 0, zero_from: 0, extents: 0 };
        records.change(drives, none, (&[], 0..0), None)?;
        Ok(records)
    }

    /// What goes on from what was found on all drives, which belong together; none where a place is vacant. The drives
    /// are brought to one generation, then to the next one.
    pub fn go_on(drives: &[Arc<dyn Device>], found: &[Option<Found>], newest: &Found) -> Result<Records, DeviceError> {
        let at = found.iter().map(|found| found.as_ref().map_or((0, 0), |found| (found.sup.sequence, found.used)));
        let (shape, generation, at) = (newest.sup.shape.clone(), newest.generation, at.collect());
        let mut records = Records { shape, generation, at, failed: None };
        let entries = newest.entries.as_deref().expect("the newest has its table");
        let there = |drive: &usize| found[*drive].as_ref();
        // Nor is there room for a confirmation in a journal that somebody else filled.
        let full = |found: &Found| found.used >= newest.sup.shape.journal_blocks;
        let behind = |drive: &usize| there(drive).is_some_and(|f| f.generation != newest.generation || full(f));
        let behind: Vec<usize> = (0..drives.len()).filter(behind).collect();
        records.write_maps(drives, &behind, newest.sizes, entries)?;
        let unconfirmed = |i: &usize| there(i).is_some_and(|found| behind.contains(i) || !found.confirmed);
        records.confirm(drives, &(0..drives.len()).filter(unconfirmed).collect::<Vec<_>>())?;
        // A fresh map each: what an opening finds is not long.
        records.at.iter_mut().for_each(|(_, used)| *used = newest.sup.shape.journal_blocks);
        records.change(drives, newest.sizes, (entries, 0..0), None)?;
        Ok(records)
    }

    /// Notes that the entries of a range were changed and that these are the sizes, and that a slot is blank no longer;
    /// it counts when this returns.
    pub fn commit(
        &mut self,
        drives: &[Arc<dyn Device>],
        (map, zero_from): (&Map, u64),
        changed: Range<usize>,
        touched: Option<Place>,
    ) -> Result<(), DeviceError> {
        if let Some(e) = &self.failed {
            return Err(e.clone());
        }
        let sizes = Sizes { len: map.len, zero_from, extents: map.entries.len() as u32 };
        assert!(changed.end <= map.entries.len(), "what changed is there");
        let Shape { extent, data_at, .. } = self.shape;
        assert!((map.extent, map.data_at) == (extent, data_at), "the extents lie as the superblock says");
        let done = self.change(drives, sizes, (&map.entries, changed), touched);
        // Some drives may have it: another change could contradict it.
        done.inspect_err(|e| self.failed = Some(e.clone()))
    }

    fn change(
        &mut self,
        drives: &[Arc<dyn Device>],
        sizes: Sizes,
        (entries, changed): (&[Entry], Range<usize>),
        touched: Option<Place>,
    ) -> Result<(), DeviceError> {
        assert!(changed.end <= entries.len(), "what changed is in the table");
        assert!(sizes.extents as usize == entries.len(), "the table has every extent");
        self.generation = next(self.generation);
        for place in entries[changed.clone()].iter().map(|entry| entry.place).chain(touched) {
            let blank_from = &mut self.shape.drives[usize::from(place.drive)].blank_from;
            *blank_from = (*blank_from).max(place.slot + 1);
        }
        let all = self.live();
        assert_eq!(drives.len(), self.shape.drives.len(), "every drive has its place");
        // Room for the confirmation too.
        let room = all.iter().all(|drive| self.at[*drive].1 + 2 <= self.shape.journal_blocks);
        if room && changed.len() <= CHANGES {
            let first = changed.start as u32;
            let (generation, entries) = (self.generation, entries[changed].to_vec());
            let change = Change { generation, sizes, first, entries, touched };
            self.append(drives, &all, |sequence, index, array| change.encode(sequence, index, array))?;
        } else {
            self.write_maps(drives, &all, sizes, entries)?;
        }
        self.confirm(drives, &all)
    }

    /// A drive that was of this array before has blocks that could be taken for those to come.
    fn blank_journals(&self, drives: &[Arc<dyn Device>], drive: usize) -> Result<(), DeviceError> {
        let blank = |sequence| {
            let bytes = self.shape.journal_blocks as usize * BLOCK;
            (drive, self.shape.journal_at(sequence), AlignedBuf::new(bytes))
        };
        write_all(drives, &[blank(0), blank(1)])
    }

    /// The drives that there are: places may be vacant.
    fn live(&self) -> Vec<usize> {
        let slots = self.shape.drives.iter().map(|drive| drive.slots);
        slots.enumerate().filter(|(_, slots)| *slots > 0).map(|(drive, _)| drive).collect()
    }

    /// Why nothing can be noted any more, if so.
    pub fn failure(&self) -> Option<&DeviceError> {
        self.failed.as_ref()
    }

    /// Notes that the array is made of something else, its table as it is. A drive that is new knows all before any of
    /// the others hears of it; if it fails, nothing has changed.
    pub fn reshape(
        &mut self,
        drives: &[Arc<dyn Device>],
        shape: Shape,
        (map, zero_from): (&Map, u64),
        new: Option<usize>,
    ) -> Result<(), DeviceError> {
        if let Some(e) = &self.failed {
            return Err(e.clone());
        }
        assert!(new.is_none_or(|new| shape.drives[new].slots > 0), "a drive that comes has slots");
        let sizes = Sizes { len: map.len, zero_from, extents: map.entries.len() as u32 };
        let before = (std::mem::replace(&mut self.shape, shape), self.generation, self.at.clone());
        self.generation = next(self.generation);
        self.at.resize(self.shape.drives.len(), (0, 0));
        if let Some(new) = new {
            self.at[new] = (0, 0);
            let blank = blank_supers(&drives[new..=new]).and_then(|()| self.blank_journals(drives, new));
            if let Err(e) = blank.and_then(|()| self.write_maps(drives, &[new], sizes, &map.entries)) {
                (self.shape, self.generation, self.at) = before;
                return Err(e);
            }
        }
        let all = self.live();
        let others: Vec<usize> = all.iter().copied().filter(|drive| Some(*drive) != new).collect();
        let done = self.write_maps(drives, &others, sizes, &map.entries).and_then(|()| self.confirm(drives, &all));
        done.inspect_err(|e| self.failed = Some(e.clone()))
    }

    fn confirm(&mut self, drives: &[Arc<dyn Device>], which: &[usize]) -> Result<(), DeviceError> {
        let generation = self.generation;
        let confirmed = |sequence, index, array: &_| format::encode_confirmed(generation, sequence, index, array);
        self.append(drives, which, confirmed)
    }

    /// A block for the journals of these drives.
    fn append(
        &mut self,
        drives: &[Arc<dyn Device>],
        which: &[usize],
        encode: impl Fn(u64, u32, &format::Id) -> Vec<u8>,
    ) -> Result<(), DeviceError> {
        let block = |&drive: &usize| {
            let (sequence, used) = self.at[drive];
            assert!(used < self.shape.journal_blocks, "a journal has room for what is appended");
            let at = self.shape.journal_at(sequence) + u64::from(used) * BLOCK as u64;
            (drive, at, AlignedBuf::copy_padded(&encode(sequence, used, &self.shape.array), BLOCK))
        };
        write_all(drives, &which.iter().map(block).collect::<Vec<_>>())?;
        which.iter().for_each(|&drive| self.at[drive].1 += 1);
        Ok(())
    }

    /// A new map for each of these drives, then the superblock that names it.
    fn write_maps(
        &mut self,
        drives: &[Arc<dyn Device>],
        which: &[usize],
        sizes: Sizes,
        entries: &[Entry],
    ) -> Result<(), DeviceError> {
        assert!(entries.len() <= self.shape.map_room(), "an array does not outgrow its map");
        let array = self.shape.array;
        let map = |&drive: &usize| {
            let sequence = self.at[drive].0 + 1;
            let each = entries.chunks(ENTRIES).zip(0..);
            let bytes: Vec<u8> = each.flat_map(|(some, i)| format::encode_map(sequence, i, &array, some)).collect();
            (drive, self.shape.map_at(sequence), AlignedBuf::copy_padded(&bytes, BLOCK))
        };
        let maps: Vec<_> = which.iter().map(map).filter(|(_, _, bytes)| !bytes.is_empty()).collect();
        write_all(drives, &maps)?;
        let sup = |&drive: &usize| {
            let (sequence, shape) = (self.at[drive].0 + 1, self.shape.clone());
            let sup = Super { sequence, index: drive, shape, generation: self.generation, sizes };
            (drive, Shape::super_at(sequence), AlignedBuf::copy_padded(&sup.encode(), BLOCK))
        };
        write_all(drives, &which.iter().map(sup).collect::<Vec<_>>())?;
        which.iter().for_each(|&drive| self.at[drive] = (self.at[drive].0 + 1, 0));
        Ok(())
    }
}

/// Why there is no array on a drive.
pub(super) enum NotFound {
    /// Nothing of an array; `blank`: nothing but zeros.
    None { blank: bool },
    /// Of a release with this version of the format.
    Version(u32),
    /// The drive failed.
    Failed(DeviceError),
}

impl From<DeviceError> for NotFound {
    fn from(e: DeviceError) -> NotFound {
        NotFound::Failed(e)
    }
}

/// Looks for an array on a drive.
pub(super) fn find(drive: &dyn Device) -> Result<Found, NotFound> {
    if drive.len() < 2 * BLOCK as u64 {
        return Err(NotFound::None { blank: true });
    }
    let mut blocks = AlignedBuf::new(2 * BLOCK);
    read_at(drive, 0, &mut blocks)?;
    let supers: Vec<Super> = blocks.chunks(BLOCK).filter_map(Super::decode).collect();
    let damaged = blocks.chunks(BLOCK).any(|b| Super::decode(b).is_none() && b.iter().any(|byte| *byte != 0));
    let Some(sup) = supers.into_iter().max_by_key(|sup| sup.sequence) else {
        let version = blocks.chunks(BLOCK).find_map(format::other_version);
        let blank = blocks.iter().all(|byte| *byte == 0);
        return Err(version.map_or(NotFound::None { blank }, NotFound::Version));
    };
    if drive.len() < sup.shape.tables_end() {
        return Err(NotFound::None { blank: false });
    }
    let entries = read_map(drive, &sup)?;
    let (generation, sizes) = (sup.generation, sup.sizes);
    let mut found = Found { sup, generation, confirmed: false, sizes, entries, damaged, used: 0 };
    replay(drive, &mut found)?;
    Ok(found)
}

/// The map's entries, none if it is damaged. It is read piece by piece, so that memory is asked only for what is there.
fn read_map(drive: &dyn Device, sup: &Super) -> Result<Option<Vec<Entry>>, DeviceError> {
    let (count, array) = (sup.sizes.extents as usize, sup.shape.array);
    let (all, mut entries) = (count.div_ceil(ENTRIES), Vec::new());
    for first in (0..all).step_by(MAP_PIECE) {
        let mut bytes = AlignedBuf::new(MAP_PIECE.min(all - first) * BLOCK);
        read_at(drive, sup.shape.map_at(sup.sequence) + (first * BLOCK) as u64, &mut bytes)?;
        for (block, index) in bytes.chunks(BLOCK).zip(first as u32..) {
            match format::decode_map(block, sup.sequence, index, &array) {
                Some(some) => entries.extend(some),
                None => return Ok(None),
            }
        }
    }
    Ok((entries.len() == count).then_some(entries))
}

/// Adds what the journal says.
fn replay(drive: &dyn Device, found: &mut Found) -> Result<(), DeviceError> {
    let (sequence, array) = (found.sup.sequence, found.sup.shape.array);
    let mut journal = AlignedBuf::new(found.sup.shape.journal_blocks as usize * BLOCK);
    read_at(drive, found.sup.shape.journal_at(sequence), &mut journal)?;
    for (block, index) in journal.chunks(BLOCK).zip(0..) {
        if let Some(change) = Change::decode(block, sequence, index, &array) {
            found.apply(change);
        } else if format::decode_confirmed(block, sequence, index, &array) == Some(found.generation) {
            found.confirmed = true;
        } else {
            break;
        }
        found.used += 1;
    }
    assert!(found.used <= found.sup.shape.journal_blocks, "a journal ends where its room does");
    Ok(())
}

impl Found {
    fn apply(&mut self, change: Change) {
        (self.generation, self.sizes, self.confirmed) = (change.generation, change.sizes, false);
        for place in change.entries.iter().map(|entry| entry.place).chain(change.touched) {
            if let Some(drive) = self.sup.shape.drives.get_mut(usize::from(place.drive)) {
                // (A slot that there is not is found by [`Map::fault`].)
                drive.blank_from = drive.blank_from.max(place.slot.saturating_add(1)).min(drive.slots);
            }
        }
        let Some(entries) = &mut self.entries else { return };
        let (first, extents) = (change.first as usize, change.sizes.extents as usize);
        if first > entries.len() || extents > self.sup.shape.map_room() {
            self.entries = None;
            return;
        }
        let behind = entries.split_off((first + change.entries.len()).min(entries.len()));
        entries.truncate(first);
        entries.extend(change.entries.into_iter().chain(behind));
        entries.truncate(extents);
        if entries.len() != extents {
            self.entries = None;
        }
    }

    /// The table as a map, if it is whole and sound.
    pub fn map(&self) -> Option<Map> {
        let Shape { extent, data_at, ref layout, ref drives, .. } = self.sup.shape;
        let (unit, len, entries) = (layout.unit(extent), self.sizes.len, self.entries.clone()?);
        let slots: Vec<u32> = drives.iter().map(|drive| drive.slots).collect();
        let map = Map { extent, unit, data_at, len, entries };
        let zeros = (map.len..=map.room()).contains(&self.sizes.zero_from);
        (zeros && map.fault(&slots).is_none()).then_some(map)
    }
}
