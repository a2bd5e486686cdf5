//! The bytes that an array keeps on each of its drives. `docs/format.md` has the layout.
//!
//! Every block says of which array it is and what its place is, and has a checksum. The superblock says what the array
//! is made of, and of which generation its map is; the journal behind it has the changes since.
//!
//! Invariant: what is encoded can be decoded.

use super::map::{Entry, Place};
use super::slots::Layout;

/// Bytes of a block.
pub(super) const BLOCK: usize = 4096;
/// Version of this format.
pub(super) const VERSION: u32 = 1;
const MAGIC: u32 = 0xA55A_77A9;

const HEADER: usize = 40;
const ENTRY: usize = 24;
/// Entries of a block of the map.
pub(super) const ENTRIES: usize = (BLOCK - HEADER) / ENTRY;
/// Where a change has its entries.
const CHANGED: usize = 80;
/// Entries of a change.
pub(super) const CHANGES: usize = (BLOCK - CHANGED) / ENTRY;
/// Where the superblock has its drives, and bytes of each.
const DRIVES: usize = 152;
const DRIVE: usize = 40;
/// Where a change has the slot that is touched.
const TOUCHED: usize = CHANGED + CHANGES * ENTRY;
/// No second place.
const NOWHERE: u16 = u16::MAX;

const _: () = assert!(DRIVES + super::MOST_DRIVES * DRIVE <= BLOCK && HEADER + ENTRIES * ENTRY <= BLOCK);
const _: () = assert!(TOUCHED + 8 <= BLOCK);

/// What a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Super = 1,
    Map = 2,
    Change = 3,
    Confirmed = 4,
}

pub(super) type Id = [u8; 16];

/// Which state of the array it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Generation {
    /// Counts changes of the map, openings for writing and checkpoints of the database.
    pub number: u64,
    /// Tells copies that went different ways apart.
    pub tie: u64,
}

/// One of an array's drives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct DriveRecord {
    pub id: Id,
    pub slots: u32,
    /// Slots from here on were never written.
    pub blank_from: u32,
    pub share: f64,
}

/// What does not change but when drives come and go.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Shape {
    pub array: Id,
    pub layout: Layout,
    pub extent: u64,
    pub data_at: u64,
    /// Blocks of one map, and of one journal.
    pub map_blocks: u32,
    pub journal_blocks: u32,
    pub drives: Vec<DriveRecord>,
}

/// What changes with the table, but for the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    /// Bytes of the array.
    pub len: u64,
    /// Bytes of the extents from here on read as zeros.
    pub zero_from: u64,
    /// Extents.
    pub extents: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Super {
    /// Counts the maps of this drive.
    pub sequence: u64,
    /// Which of the drives this is.
    pub index: usize,
    pub shape: Shape,
    pub generation: Generation,
    pub sizes: Sizes,
}

/// A change of the table: entries from `first` on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub generation: Generation,
    pub sizes: Sizes,
    pub first: u32,
    pub entries: Vec<Entry>,
    /// A slot that is about to be written though no extent has it: from now on it is not blank.
    pub touched: Option<Place>,
}

fn put(block: &mut [u8], at: usize, bytes: &[u8]) {
    block[at..at + bytes.len()].copy_from_slice(bytes);
}

fn put_longs(block: &mut [u8], at: usize, longs: &[u64]) {
    longs.iter().enumerate().for_each(|(i, n)| put(block, at + 8 * i, &n.to_le_bytes()));
}

fn long(block: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(block[at..at + 8].try_into().expect("8 bytes"))
}

fn word(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(block[at..at + 4].try_into().expect("4 bytes"))
}

fn half(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(block[at..at + 2].try_into().expect("2 bytes"))
}

fn id(block: &[u8], at: usize) -> Id {
    block[at..at + 16].try_into().expect("16 bytes")
}

/// Header: crc 0, magic 4, version 8, kind 12, sequence 16, index 24, count 28, first 8 bytes of the array's id 32.
fn seal(block: &mut [u8], kind: Kind, (sequence, index): (u64, u32), count: u32, array: &Id) {
    assert_eq!(block.len(), BLOCK);
    for (at, n) in [(4, MAGIC), (8, VERSION), (12, kind as u32), (24, index), (28, count)] {
        put(block, at, &n.to_le_bytes());
    }
    put_longs(block, 16, &[sequence]);
    put(block, 32, &array[..8]);
    let crc = crc32c::crc32c(&block[4..]);
    put(block, 0, &crc.to_le_bytes());
}

fn is_whole(block: &[u8]) -> bool {
    word(block, 0) == crc32c::crc32c(&block[4..BLOCK]) && word(block, 4) == MAGIC
}

/// Number of items in a block, if it is what is expected.
fn open(block: &[u8], kind: Kind, at: (u64, u32), array: &Id, most: usize) -> Option<usize> {
    let count = word(block, 28) as usize;
    let named = word(block, 12) == kind as u32 && (long(block, 16), word(block, 24)) == at;
    let good = is_whole(block) && word(block, 8) == VERSION && named && block[32..40] == array[..8] && count <= most;
    good.then_some(count)
}

/// The version of a superblock of another release.
pub(super) fn other_version(block: &[u8]) -> Option<u32> {
    let version = word(block, 8);
    (is_whole(block) && version != VERSION).then_some(version)
}

fn put_entry(block: &mut [u8], at: usize, entry: &Entry) {
    put(block, at, &entry.place.drive.to_le_bytes());
    put(block, at + 4, &entry.place.slot.to_le_bytes());
    put(block, at + 8, &NOWHERE.to_le_bytes());
    put(block, at + 16, &entry.column.to_le_bytes());
    put(block, at + 18, &entry.width.to_le_bytes());
}

/// An entry of this release: with one place.
fn entry_at(block: &[u8], at: usize) -> Option<Entry> {
    let place = Place { drive: half(block, at), slot: word(block, at + 4) };
    (half(block, at + 8) == NOWHERE).then(|| Entry { place, column: half(block, at + 16), width: half(block, at + 18) })
}

fn put_generation(block: &mut [u8], at: usize, Generation { number, tie }: Generation) {
    put_longs(block, at, &[number, tie]);
}

fn generation_at(block: &[u8], at: usize) -> Generation {
    Generation { number: long(block, at), tie: long(block, at + 8) }
}

/// A block of the map: number `index` of them.
pub(super) fn encode_map(sequence: u64, index: u32, array: &Id, entries: &[Entry]) -> Vec<u8> {
    assert!(entries.len() <= ENTRIES, "a block of the map has room for its entries");
    let mut block = vec![0; BLOCK];
    entries.iter().enumerate().for_each(|(i, entry)| put_entry(&mut block, HEADER + i * ENTRY, entry));
    seal(&mut block, Kind::Map, (sequence, index), entries.len() as u32, array);
    debug_assert!(decode_map(&block, sequence, index, array).is_some(), "a map that is written can be read");
    block
}

pub(super) fn decode_map(block: &[u8], sequence: u64, index: u32, array: &Id) -> Option<Vec<Entry>> {
    let count = open(block, Kind::Map, (sequence, index), array, ENTRIES)?;
    (0..count).map(|i| entry_at(block, HEADER + i * ENTRY)).collect()
}

impl Change {
    /// The change as block `index` of a journal.
    pub fn encode(&self, sequence: u64, index: u32, array: &Id) -> Vec<u8> {
        assert!(self.entries.len() <= CHANGES, "a change that does not fit its block is a new map");
        let mut block = vec![0; BLOCK];
        put_generation(&mut block, 40, self.generation);
        put_longs(&mut block, 56, &[self.sizes.len, self.sizes.zero_from]);
        put(&mut block, 72, &self.sizes.extents.to_le_bytes());
        put(&mut block, 76, &self.first.to_le_bytes());
        put(&mut block, TOUCHED, &self.touched.map_or(NOWHERE, |place| place.drive).to_le_bytes());
        put(&mut block, TOUCHED + 4, &self.touched.map_or(0, |place| place.slot).to_le_bytes());
        self.entries.iter().enumerate().for_each(|(i, entry)| put_entry(&mut block, CHANGED + i * ENTRY, entry));
        seal(&mut block, Kind::Change, (sequence, index), self.entries.len() as u32, array);
        debug_assert!(Change::decode(&block, sequence, index, array).is_some(), "a change that is written can be read");
        block
    }

    pub fn decode(block: &[u8], sequence: u64, index: u32, array: &Id) -> Option<Change> {
        let count = open(block, Kind::Change, (sequence, index), array, CHANGES)?;
        let sizes = Sizes { len: long(block, 56), zero_from: long(block, 64), extents: word(block, 72) };
        let entries = (0..count).map(|i| entry_at(block, CHANGED + i * ENTRY)).collect::<Option<_>>()?;
        let touched = Place { drive: half(block, TOUCHED), slot: word(block, TOUCHED + 4) };
        let touched = (touched.drive != NOWHERE).then_some(touched);
        let generation = Some(generation_at(block, 40)).filter(|generation| generation.number < MOST)?;
        Some(Change { generation, sizes, first: word(block, 76), entries, touched })
    }
}

/// All drives bear this generation.
pub(super) fn encode_confirmed(generation: Generation, sequence: u64, index: u32, array: &Id) -> Vec<u8> {
    let mut block = vec![0; BLOCK];
    put_generation(&mut block, 40, generation);
    seal(&mut block, Kind::Confirmed, (sequence, index), 0, array);
    block
}

pub(super) fn decode_confirmed(block: &[u8], sequence: u64, index: u32, array: &Id) -> Option<Generation> {
    open(block, Kind::Confirmed, (sequence, index), array, 0)?;
    Some(generation_at(block, 40))
}

fn layout_number(layout: &Layout) -> u32 {
    match layout {
        Layout::Stripe { .. } => 1,
        Layout::Proportional { .. } => 2,
        Layout::Rodi { .. } => 3,
    }
}

impl Super {
    /// The superblock as its block.
    pub fn encode(&self) -> Vec<u8> {
        let (mut block, shape) = (vec![0; BLOCK], &self.shape);
        put(&mut block, 40, &shape.array);
        put(&mut block, 56, &shape.drives[self.index].id);
        put(&mut block, 72, &(self.index as u16).to_le_bytes());
        put(&mut block, 74, &(shape.drives.len() as u16).to_le_bytes());
        put(&mut block, 76, &layout_number(&shape.layout).to_le_bytes());
        put_longs(&mut block, 80, &[shape.layout.unit(shape.extent), shape.extent, shape.data_at]);
        put(&mut block, 104, &shape.map_blocks.to_le_bytes());
        put(&mut block, 108, &shape.journal_blocks.to_le_bytes());
        put(&mut block, 112, &self.sizes.extents.to_le_bytes());
        put_generation(&mut block, 120, self.generation);
        put_longs(&mut block, 136, &[self.sizes.len, self.sizes.zero_from]);
        for (i, drive) in shape.drives.iter().enumerate() {
            let at = DRIVES + i * DRIVE;
            put(&mut block, at, &drive.id);
            put(&mut block, at + 16, &drive.slots.to_le_bytes());
            put(&mut block, at + 20, &drive.blank_from.to_le_bytes());
            put(&mut block, at + 24, &drive.share.to_le_bytes());
        }
        seal(&mut block, Kind::Super, (self.sequence, 0), 0, &shape.array);
        debug_assert_eq!(Super::decode(&block).as_ref(), Some(self), "a superblock that is written can be read");
        block
    }

    /// What a block says that may be a superblock of this release.
    pub fn decode(block: &[u8]) -> Option<Super> {
        let (array, sequence) = (id(block, 40), long(block, 16));
        open(block, Kind::Super, (sequence, 0), &array, 0)?;
        let (index, count) = (usize::from(half(block, 72)), usize::from(half(block, 74)));
        if index >= count || count > super::MOST_DRIVES {
            return None;
        }
        let drives = (0..count).map(|i| drive_at(block, DRIVES + i * DRIVE)).collect::<Vec<_>>();
        let shares = drives.iter().map(|drive| drive.share).collect();
        let layout = match word(block, 76) {
            1 => Layout::Stripe { unit: long(block, 80) },
            2 => Layout::Proportional { shares },
            3 => Layout::Rodi { shares },
            _ => return None,
        };
        let (map_blocks, journal_blocks) = (word(block, 104), word(block, 108));
        let (extent, data_at) = (long(block, 88), long(block, 96));
        let shape = Shape { array, layout, extent, data_at, map_blocks, journal_blocks, drives };
        let sizes = Sizes { len: long(block, 136), zero_from: long(block, 144), extents: word(block, 112) };
        let known = Super { sequence, index, shape, generation: generation_at(block, 120), sizes };
        (id(block, 56) == known.shape.drives[index].id && known.is_sane()).then_some(known)
    }

    fn is_sane(&self) -> bool {
        let (shape, extents) = (&self.shape, u64::from(self.sizes.extents));
        let slots: u64 = shape.drives.iter().map(|drive| u64::from(drive.slots)).sum();
        super::check_layout(shape.extent, &shape.layout, shape.drives.len()).is_ok()
            && (LEAST_JOURNAL..=MOST_JOURNAL).contains(&shape.journal_blocks)
            && shape.map_room() >= self.sizes.extents as usize
            && (shape.tables_end()..MOST).contains(&shape.data_at)
            // An extent has a slot of its own, and the map room for one of each: so memory is not asked for a table
            // that no drive has room for, nor for slots of a drive that cannot be looked at.
            && extents <= slots
            && slots <= (shape.map_room() as u64).min(u32::MAX.into())
            && self.sequence < MOST
            && self.generation.number < MOST
            && shape.drives.iter().all(|drive| drive.blank_from <= drive.slots)
    }
}

fn drive_at(block: &[u8], at: usize) -> DriveRecord {
    let share = f64::from_le_bytes(block[at + 24..at + 32].try_into().expect("8 bytes"));
    DriveRecord { id: id(block, at), slots: word(block, at + 16), blank_from: word(block, at + 20), share }
}

/// Below it are all positions and numbers that count on: what exceeds it is damage, and would overflow further on.
const MOST: u64 = 1 << 62;
const _: () = assert!(MOST as u128 + ((u32::MAX as u128) << 26) < u64::MAX as u128, "slots end before the last byte");

/// Fewest blocks of a journal: a change and its confirmation.
const LEAST_JOURNAL: u32 = 2;
const _: () = assert!(DRIVES == 136 + 16 && CHANGED == 76 + 4 && HEADER == 32 + 8, "tables begin behind the fields");
/// Most blocks of a journal, which is read as a whole.
const MOST_JOURNAL: u32 = 1 << 12;
const _: () =
    assert!(LEAST_JOURNAL <= super::records::JOURNAL_BLOCKS && super::records::JOURNAL_BLOCKS <= MOST_JOURNAL);

impl Shape {
    /// Extents that a map has room for.
    pub fn map_room(&self) -> usize {
        self.map_blocks as usize * ENTRIES
    }

    /// Byte of the superblock of that sequence; there are two.
    pub fn super_at(sequence: u64) -> u64 {
        (sequence % 2) * BLOCK as u64
    }

    /// Byte of the map of that sequence.
    pub fn map_at(&self, sequence: u64) -> u64 {
        (2 + (sequence % 2) * u64::from(self.map_blocks)) * BLOCK as u64
    }

    /// Byte of the journal of that sequence.
    pub fn journal_at(&self, sequence: u64) -> u64 {
        let blocks = 2 + 2 * u64::from(self.map_blocks) + (sequence % 2) * u64::from(self.journal_blocks);
        blocks * BLOCK as u64
    }

    /// Byte at which the tables end.
    pub fn tables_end(&self) -> u64 {
        (2 + 2 * (u64::from(self.map_blocks) + u64::from(self.journal_blocks))) * BLOCK as u64
    }
}
