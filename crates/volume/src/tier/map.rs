//! The tier's own blocks on the fast device: superblocks, maps, journals. `docs/format.md` has the layout.
//!
//! ```text
//! block 0, 1      superblocks; the valid one of higher sequence counts
//! map 0, map 1    the map of an even or odd sequence: 4 KiB blocks of entries, then blocks of records
//! journal 0, 1    records since that map, a run of blocks, each written once
//! slots           pages
//! ```
//! All blocks are 4 KiB and checksummed; a block that belongs to another sequence is as good as absent.

use super::records::{MapEntry, Record, Snapshot};
use super::slots::Slot;
use crate::{PageId, VolumeError};
use std::sync::Arc;
use varve_device::{AlignedBuf, Device, Io, read_at};

/// Bytes of a block.
pub const BLOCK: usize = 4096;
/// Version of this format.
pub const VERSION: u32 = 1;

const HEADER: usize = 40;
const ENTRY: usize = 16;
const RECORD: usize = 24;
const ENTRIES: usize = (BLOCK - HEADER) / ENTRY;
const RECORDS: usize = (BLOCK - HEADER) / RECORD;

const NO_PAGE: u64 = (1 << 60) - 1;
const SCAN: u64 = 1 << 62;
const NEWER: u64 = 1 << 61;

/// What a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Super = 1,
    Entries = 2,
    MapRecords = 3,
    Journal = 4,
}

const MAGIC: u32 = 0x7EA5_17EB;

/// Where things are on the fast device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of a page.
    pub page_size: u32,
    /// Slots.
    pub slots: u32,
    /// Blocks of one map.
    map_blocks: u32,
    /// Blocks of one journal.
    journal_blocks: u32,
    /// Byte at which the slots begin.
    slots_at: u64,
}

impl Geometry {
    /// The best use of `bytes` of device, or `None` when not even eight slots find room.
    pub fn fit(bytes: u64, page_size: u32) -> Option<Geometry> {
        let (mut fits, mut too_many) = (0, (bytes / u64::from(page_size)).min(u64::from(u32::MAX - 1)) as u32 + 1);
        while too_many - fits > 1 {
            let slots = fits + (too_many - fits) / 2;
            match Geometry::of(slots, page_size).end() <= bytes {
                true => fits = slots,
                false => too_many = slots,
            }
        }
        (fits >= 8).then(|| Geometry::of(fits, page_size))
    }

    /// Room for `slots` slots.
    pub fn of(slots: u32, page_size: u32) -> Geometry {
        // A map holds every entry and, at worst, a record a slot; a journal as many records as a map can take over.
        let entry_blocks = (slots as usize).div_ceil(ENTRIES);
        let record_blocks = (2 * slots as usize).div_ceil(RECORDS).max(8);
        let map_blocks = (entry_blocks + record_blocks) as u32;
        let journal_blocks = (slots as usize / 4).div_ceil(RECORDS).max(64) as u32;
        let before = (2 + 2 * u64::from(map_blocks) + 2 * u64::from(journal_blocks)) * BLOCK as u64;
        let slots_at = before.next_multiple_of(u64::from(page_size));
        Geometry { page_size, slots, map_blocks, journal_blocks, slots_at }
    }

    /// Bytes of device needed.
    pub fn end(&self) -> u64 {
        self.slots_at + u64::from(self.slots) * u64::from(self.page_size)
    }

    /// Byte of a slot.
    pub fn slot(&self, slot: Slot) -> u64 {
        self.slots_at + u64::from(slot) * u64::from(self.page_size)
    }

    fn map_at(&self, sequence: u64) -> u64 {
        (2 + (sequence % 2) * u64::from(self.map_blocks)) * BLOCK as u64
    }

    fn journal_at(&self, sequence: u64) -> u64 {
        (2 + 2 * u64::from(self.map_blocks) + (sequence % 2) * u64::from(self.journal_blocks)) * BLOCK as u64
    }

    /// Blocks of a journal.
    pub fn journal_blocks(&self) -> u32 {
        self.journal_blocks
    }
}

/// What a superblock says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Super {
    /// Counts maps.
    pub sequence: u64,
    /// The database that the tier belongs to.
    pub owner: [u8; 16],
    /// Layout.
    pub geometry: Geometry,
    /// Blocks of entries and of records in the map.
    pub blocks: (u32, u32),
}

/// What a fast device holds.
pub struct Loaded {
    /// The superblock that counts.
    pub superblock: Super,
    /// The map, unless it is damaged.
    pub map: Option<Snapshot>,
    /// Records of the journal.
    pub journal: Vec<Record>,
    /// Blocks of the journal in use.
    pub journal_used: u32,
}

fn put(block: &mut [u8], at: usize, bytes: &[u8]) {
    block[at..at + bytes.len()].copy_from_slice(bytes);
}

fn u64_at(block: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(block[at..at + 8].try_into().expect("8 bytes"))
}

fn u32_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(block[at..at + 4].try_into().expect("4 bytes"))
}

/// Header: crc 0, magic 4, version 8, kind 12, sequence 16, index 24, count 28, owner's first 8 bytes 32.
fn seal(block: &mut [u8], kind: Kind, sequence: u64, index: u32, count: u32, owner: &[u8; 16]) {
    put(block, 4, &MAGIC.to_le_bytes());
    put(block, 8, &VERSION.to_le_bytes());
    put(block, 12, &(kind as u32).to_le_bytes());
    put(block, 16, &sequence.to_le_bytes());
    put(block, 24, &index.to_le_bytes());
    put(block, 28, &count.to_le_bytes());
    put(block, 32, &owner[..8]);
    let crc = crc32c::crc32c(&block[4..BLOCK]);
    put(block, 0, &crc.to_le_bytes());
}

/// Number of items in a block, if it is what is expected.
fn open(block: &[u8], kind: Kind, sequence: u64, index: u32, owner: &[u8; 16], most: usize) -> Option<usize> {
    let count = u32_at(block, 28) as usize;
    let good = u32_at(block, 0) == crc32c::crc32c(&block[4..BLOCK])
        && u32_at(block, 4) == MAGIC
        && u32_at(block, 12) == kind as u32
        && u64_at(block, 16) == sequence
        && u32_at(block, 24) == index
        && block[32..40] == owner[..8]
        && count <= most;
    good.then_some(count)
}

fn encode_entry(e: &MapEntry, at: &mut [u8]) {
    let page = e.page.map_or(NO_PAGE, |p| p.0);
    let flags = if e.scan { SCAN } else { 0 } | if e.newer { NEWER } else { 0 };
    put(at, 0, &(page | flags).to_le_bytes());
    put(at, 8, &e.lsn.to_le_bytes());
}

fn decode_entry(at: &[u8]) -> MapEntry {
    let word = u64_at(at, 0);
    let page = word & NO_PAGE;
    MapEntry {
        page: (page != NO_PAGE).then_some(PageId(page)),
        lsn: u64_at(at, 8),
        newer: word & NEWER != 0,
        scan: word & SCAN != 0,
    }
}

fn encode_record(record: &Record, at: &mut [u8]) {
    let (kind, slot, page, lsn) = match *record {
        Record::Freed { slot, page, lsn } => (1u32, slot, page, lsn),
        Record::Newer { slot, page, lsn } => (2, slot, page, lsn),
        Record::Clean { slot, page, lsn } => (3, slot, page, lsn),
    };
    put(at, 0, &kind.to_le_bytes());
    put(at, 4, &slot.to_le_bytes());
    put(at, 8, &page.0.to_le_bytes());
    put(at, 16, &lsn.to_le_bytes());
}

fn decode_record(at: &[u8], slots: u32) -> Option<Record> {
    let (slot, page, lsn) = (u32_at(at, 4), PageId(u64_at(at, 8)), u64_at(at, 16));
    if slot >= slots {
        return None;
    }
    Some(match u32_at(at, 0) {
        1 => Record::Freed { slot, page, lsn },
        2 => Record::Newer { slot, page, lsn },
        3 => Record::Clean { slot, page, lsn },
        _ => return None,
    })
}

/// Items in blocks: `count` of them fit one.
fn blocks_of<T>(
    items: &[T],
    (kind, per, size): (Kind, usize, usize),
    (sequence, first): (u64, u32),
    owner: &[u8; 16],
    encode: fn(&T, &mut [u8]),
) -> Vec<u8> {
    let mut out = vec![0; items.len().div_ceil(per) * BLOCK];
    for (i, (chunk, block)) in items.chunks(per).zip(out.chunks_mut(BLOCK)).enumerate() {
        for (j, item) in chunk.iter().enumerate() {
            encode(item, &mut block[HEADER + j * size..HEADER + (j + 1) * size]);
        }
        seal(block, kind, sequence, first + i as u32, chunk.len() as u32, owner);
    }
    out
}

/// Writes runs of blocks in requests of at most 1 MiB, and waits.
fn write_run(device: &dyn Device, offset: u64, bytes: &[u8], durable: bool) -> Result<(), VolumeError> {
    let mut buf = AlignedBuf::new(bytes.len().max(BLOCK));
    buf[..bytes.len()].copy_from_slice(bytes);
    let ios = (0..bytes.len()).step_by(1 << 20).map(|at| {
        let len = (bytes.len() - at).min(1 << 20);
        // SAFETY: `buf` outlives the batch, which is waited for below, and nobody changes it.
        unsafe { Io::write(offset + at as u64, buf.as_ptr().add(at), len, durable) }
    });
    Ok(device.submit(ios.collect()).wait_all()?)
}

/// The blocks of the fast device, as something to read and write.
pub struct MapFile {
    device: Arc<dyn Device>,
    owner: [u8; 16],
}

impl MapFile {
    /// The blocks of the tier that belongs to `owner`.
    pub fn new(device: Arc<dyn Device>, owner: [u8; 16]) -> MapFile {
        MapFile { device, owner }
    }

    /// Writes a map, then the superblock that makes it count; its journal is empty. All durable when it returns; what it replaces
    /// stays valid until then. Returns the bytes written.
    pub fn write_map(&self, geometry: &Geometry, sequence: u64, map: &Snapshot) -> Result<u64, VolumeError> {
        let whole = (Kind::Entries, ENTRIES, ENTRY);
        let mut bytes = blocks_of(&map.entries, whole, (sequence, 0), &self.owner, encode_entry);
        let entry_blocks = (bytes.len() / BLOCK) as u32;
        let records = (Kind::MapRecords, RECORDS, RECORD);
        bytes.extend(blocks_of(&map.records, records, (sequence, entry_blocks), &self.owner, encode_record));
        assert!(bytes.len() / BLOCK <= geometry.map_blocks as usize, "a map has room for two records a slot");
        write_run(&*self.device, geometry.map_at(sequence), &bytes, false)?;
        varve_device::flush(&*self.device)?;
        let blocks = (entry_blocks, (bytes.len() / BLOCK) as u32 - entry_blocks);
        let superblock = Super { sequence, owner: self.owner, geometry: *geometry, blocks };
        write_run(&*self.device, (sequence % 2) * BLOCK as u64, &encode_super(&superblock), false)?;
        varve_device::flush(&*self.device)?;
        Ok((bytes.len() + BLOCK) as u64)
    }

    /// Appends records to the journal at block `used`; not durable before a flush. The blocks in use from then on.
    pub fn write_journal(
        &self,
        geometry: &Geometry,
        sequence: u64,
        used: u32,
        records: &[Record],
    ) -> Result<u32, VolumeError> {
        let journal = (Kind::Journal, RECORDS, RECORD);
        let bytes = blocks_of(records, journal, (sequence, used), &self.owner, encode_record);
        let blocks = (bytes.len() / BLOCK) as u32;
        assert!(used + blocks <= geometry.journal_blocks, "the caller looked whether they fit");
        if blocks > 0 {
            let at = geometry.journal_at(sequence) + u64::from(used) * BLOCK as u64;
            write_run(&*self.device, at, &bytes, false)?;
        }
        Ok(used + blocks)
    }

    /// Blocks that so many records take.
    pub fn journal_need(records: usize) -> u32 {
        records.div_ceil(RECORDS) as u32
    }

    /// Reads what there is; an error when no superblock is whole or it is somebody else's.
    pub fn load(&self) -> Result<Loaded, VolumeError> {
        let name = self.device.info().name;
        let broken = |what: &str| VolumeError::Tier { device: name.clone(), what: what.to_string() };
        let mut head = AlignedBuf::new(2 * BLOCK);
        read_at(&*self.device, 0, &mut head)?;
        let found = head.chunks(BLOCK).filter_map(decode_super).max_by_key(|s| s.sequence);
        let superblock = found.ok_or_else(|| broken("neither of its superblocks is whole"))?;
        if superblock.owner != self.owner {
            return Err(broken("it belongs to another database: attach the device that was created with this one"));
        }
        if superblock.geometry.end() > self.device.len() {
            return Err(broken("it is shorter than its superblock says: was it cut?"));
        }
        let map = self.load_map(&superblock)?;
        let (journal, journal_used) = self.load_journal(&superblock)?;
        Ok(Loaded { superblock, map, journal, journal_used })
    }

    fn read_run(&self, offset: u64, blocks: u32) -> Result<AlignedBuf, VolumeError> {
        let mut buf = AlignedBuf::new((blocks.max(1) as usize) * BLOCK);
        if blocks > 0 {
            let len = buf.len();
            let base = buf.as_mut_ptr();
            let ios = (0..len).step_by(1 << 20).map(|at| {
                // SAFETY: `buf` outlives the batch, waited for below; the parts do not overlap.
                unsafe { Io::read(offset + at as u64, base.add(at), (len - at).min(1 << 20)) }
            });
            self.device.submit(ios.collect()).wait_all()?;
        }
        Ok(buf)
    }

    fn load_map(&self, superblock: &Super) -> Result<Option<Snapshot>, VolumeError> {
        let Super { sequence, geometry, blocks, .. } = superblock;
        let buf = self.read_run(geometry.map_at(*sequence), blocks.0 + blocks.1)?;
        let mut snapshot = Snapshot::default();
        for (i, block) in buf.chunks(BLOCK).take((blocks.0 + blocks.1) as usize).enumerate() {
            let entries = (i as u32) < blocks.0;
            let (kind, most) = if entries { (Kind::Entries, ENTRIES) } else { (Kind::MapRecords, RECORDS) };
            let Some(count) = open(block, kind, *sequence, i as u32, &self.owner, most) else { return Ok(None) };
            if entries {
                snapshot.entries.extend(block[HEADER..].chunks(ENTRY).take(count).map(decode_entry));
            } else {
                let records = block[HEADER..].chunks(RECORD).take(count);
                snapshot.records.extend(records.filter_map(|r| decode_record(r, geometry.slots)));
            }
        }
        Ok((snapshot.entries.len() == geometry.slots as usize).then_some(snapshot))
    }

    fn load_journal(&self, superblock: &Super) -> Result<(Vec<Record>, u32), VolumeError> {
        let Super { sequence, geometry, .. } = superblock;
        let buf = self.read_run(geometry.journal_at(*sequence), geometry.journal_blocks)?;
        let mut records = Vec::new();
        for (i, block) in buf.chunks(BLOCK).enumerate() {
            let Some(count) = open(block, Kind::Journal, *sequence, i as u32, &self.owner, RECORDS) else {
                return Ok((records, i as u32));
            };
            let found = block[HEADER..].chunks(RECORD).take(count);
            records.extend(found.filter_map(|r| decode_record(r, geometry.slots)));
        }
        Ok((records, geometry.journal_blocks))
    }
}

fn encode_super(s: &Super) -> Vec<u8> {
    let mut block = vec![0; BLOCK];
    let g = &s.geometry;
    put(&mut block, 40, &s.owner);
    for (i, n) in [g.page_size, g.slots, g.map_blocks, g.journal_blocks, s.blocks.0, s.blocks.1].iter().enumerate() {
        put(&mut block, 56 + 4 * i, &n.to_le_bytes());
    }
    put(&mut block, 80, &g.slots_at.to_le_bytes());
    seal(&mut block, Kind::Super, s.sequence, 0, 0, &s.owner);
    block
}

fn decode_super(block: &[u8]) -> Option<Super> {
    let owner: [u8; 16] = block[40..56].try_into().expect("16 bytes");
    let sequence = u64_at(block, 16);
    open(block, Kind::Super, sequence, 0, &owner, 0)?;
    let n = |i: usize| u32_at(block, 56 + 4 * i);
    let geometry =
        Geometry { page_size: n(0), slots: n(1), map_blocks: n(2), journal_blocks: n(3), slots_at: u64_at(block, 80) };
    let page_size = matches!(geometry.page_size, 4096 | 8192 | 16384 | 32768);
    let sane = page_size && geometry == Geometry::of(geometry.slots, geometry.page_size) && n(4) + n(5) <= n(2);
    (sane && u32_at(block, 8) <= VERSION).then_some(Super { sequence, owner, geometry, blocks: (n(4), n(5)) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use varve_device::{MemDevice, write_at};

    fn file(slots: u32) -> (Arc<dyn Device>, MapFile, Geometry) {
        let geometry = Geometry::of(slots, 4096);
        let device: Arc<dyn Device> = MemDevice::new(geometry.end());
        (device.clone(), MapFile::new(device, [7; 16]), geometry)
    }

    fn snapshot(slots: u32, salt: u64) -> Snapshot {
        let entry = |n: u64| MapEntry {
            page: (!n.is_multiple_of(3)).then_some(PageId(n + salt)),
            lsn: n * 8,
            newer: n.is_multiple_of(2),
            scan: n.is_multiple_of(5),
        };
        let freed = |n: u32| Record::Freed { slot: n, page: PageId(n.into()), lsn: 5 };
        Snapshot { entries: (0..u64::from(slots)).map(entry).collect(), records: (0..slots / 2).map(freed).collect() }
    }

    #[test]
    fn the_newest_map_and_its_journal_come_back() {
        let (_, file, geometry) = file(1000);
        let newer = Record::Newer { slot: 3, page: PageId(9), lsn: 77 };
        for sequence in 1..5 {
            file.write_map(&geometry, sequence, &snapshot(1000, sequence)).unwrap();
        }
        file.write_journal(&geometry, 4, 0, &[newer]).unwrap();
        file.write_journal(&geometry, 4, 1, &[newer, Record::Clean { slot: 4, page: PageId(1), lsn: 2 }]).unwrap();
        let loaded = file.load().unwrap();
        assert_eq!(loaded.superblock.sequence, 4);
        assert_eq!(loaded.map, Some(snapshot(1000, 4)));
        assert_eq!((loaded.journal.len(), loaded.journal_used), (3, 2));
    }

    #[test]
    fn damage_is_found_and_older_blocks_are_not_taken_for_newer() {
        let (device, file, geometry) = file(1000);
        let record = Record::Freed { slot: 1, page: PageId(1), lsn: 1 };
        file.write_map(&geometry, 1, &snapshot(1000, 1)).unwrap();
        file.write_journal(&geometry, 1, 0, &vec![record; 500]).unwrap();
        file.write_map(&geometry, 3, &snapshot(1000, 3)).unwrap();
        assert!(file.load().unwrap().journal.is_empty(), "the journal is another map's");
        let at = geometry.map_at(3) + BLOCK as u64;
        write_at(&*device, at, &[0; BLOCK], false).unwrap();
        assert_eq!(file.load().unwrap().map, None, "a damaged map is not used");
        write_at(&*device, BLOCK as u64, &[1; BLOCK], false).unwrap();
        let e = file.load().err().expect("no superblock is left").to_string();
        assert!(e.contains("superblock"), "{e}");
    }

    #[test]
    fn another_databases_tier_is_refused() {
        let (device, file, geometry) = file(64);
        file.write_map(&geometry, 1, &snapshot(64, 1)).unwrap();
        let e = MapFile::new(device, [8; 16]).load().err().expect("not ours").to_string();
        assert!(e.contains("another database"), "{e}");
    }

    #[test]
    fn slots_fill_the_device() {
        for bytes in [1u64 << 20, 10 << 20, (1 << 30) + 12345] {
            for page_size in [4096, 16384] {
                let g = Geometry::fit(bytes, page_size).unwrap();
                assert!(g.end() <= bytes && g.end() + 4 * u64::from(page_size) + 64 * 4096 > bytes, "{g:?}");
            }
        }
        assert_eq!(Geometry::fit(100_000, 16384), None);
    }
}
