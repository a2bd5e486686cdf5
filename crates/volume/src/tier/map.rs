//! The tier's own blocks on the fast device: superblocks, maps, journals, statistics. `docs/format.md` has the layout.
//!
//! ```text
//! block 0, 1      superblocks; the valid one of higher sequence counts
//! map 0, map 1    the map of an even or odd sequence: 4 KiB blocks of entries, then blocks of records
//! journal 0, 1    records since that map, a run of blocks, each written once
//! statistics      what is remembered of pages; each block is good by itself
//! slots           pages
//! ```
//! All blocks are 4 KiB and checksummed; a block that belongs to another sequence is as good as absent. No block of
//! these is ever a whole page.

use super::layout::{
    BLOCK, ENTRIES, ENTRY, Geometry, HEADER, Kind, Life, MEMORIES, MEMORY, RECORD, RECORDS, Super, decode_super,
    encode_super, open, other_version, put, seal, u32_at, u64_at,
};
use super::manager::Memory;
use super::records::{MapEntry, Record, Snapshot};
use super::slots::Slot;
use crate::admin::Stamp;
use crate::{KeyspaceId, PageId, VolumeError, page};
use std::sync::Arc;
use varve_device::{AlignedBuf, Device, DeviceKind, Io, read_at, write_at};

const NO_PAGE: u64 = (1 << 60) - 1;
const SCAN: u64 = 1 << 62;
const NEWER: u64 = 1 << 61;

const _: () = assert!(NO_PAGE & SCAN == 0 && NO_PAGE & NEWER == 0 && SCAN & NEWER == 0);
const _: () = assert!(ENTRY == 8 + 8 && RECORD == 4 + 4 + 8 + 8 && MEMORY == 8 + 4 + 5 * 4);

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
    /// The stamp that counts.
    pub stamp: Stamp,
}

fn encode_entry(e: &MapEntry, at: &mut [u8]) {
    let page = e.page.map_or(NO_PAGE, |p| p.0);
    assert!(e.page.is_none_or(|p| p.0 < NO_PAGE), "a page's number has room beside the flags");
    assert!(!e.newer || e.page.is_some(), "what is newer than home is a page");
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
        newer: word & NEWER != 0 && page != NO_PAGE,
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
    if slot >= slots || page.0 >= NO_PAGE {
        return None;
    }
    Some(match u32_at(at, 0) {
        1 => Record::Freed { slot, page, lsn },
        2 => Record::Newer { slot, page, lsn },
        3 => Record::Clean { slot, page, lsn },
        _ => return None,
    })
}

fn encode_memory(m: &Memory, at: &mut [u8]) {
    put(at, 0, &m.page.0.to_le_bytes());
    put(at, 8, &m.keyspace.0.to_le_bytes());
    for (i, word) in m.words.iter().enumerate() {
        put(at, 12 + 4 * i, &word.to_le_bytes());
    }
}

fn decode_memory(at: &[u8]) -> Memory {
    let words = std::array::from_fn(|i| u32_at(at, 12 + 4 * i));
    Memory { page: PageId(u64_at(at, 0)), keyspace: KeyspaceId(u32_at(at, 8)), words }
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
    assert!(offset.is_multiple_of(BLOCK as u64) && bytes.len().is_multiple_of(BLOCK), "whole blocks are written");
    let mut buf = AlignedBuf::new(bytes.len().max(BLOCK));
    buf[..bytes.len()].copy_from_slice(bytes);
    let ios = (0..bytes.len()).step_by(1 << 20).map(|at| {
        let len = (bytes.len() - at).min(1 << 20);
        // SAFETY: `buf` outlives the batch, which is waited for below, and nobody changes it.
        unsafe { Io::write(offset + at as u64, buf.as_ptr().add(at), len, durable) }
    });
    Ok(device.submit(ios.collect()).wait_all()?)
}

/// The identity of the database whose tier a device holds, if it holds one in use.
pub fn owner(device: &dyn Device) -> Result<Option<[u8; 16]>, VolumeError> {
    if device.len() < 2 * BLOCK as u64 {
        return Ok(None);
    }
    let mut head = AlignedBuf::new(2 * BLOCK);
    read_at(device, 0, &mut head)?;
    let newest = head.chunks(BLOCK).filter_map(decode_super).max_by_key(|s| s.sequence);
    Ok(newest.filter(|superblock| !superblock.detached).map(|superblock| superblock.owner))
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

    /// What ties it to its database.
    pub fn owner(&self) -> [u8; 16] {
        self.owner
    }

    /// Writes a map, then the superblock that makes it count; its journal is empty. All durable when it returns; what
    /// it replaces stays valid until then. Returns the bytes written.
    pub fn write_map(
        &self,
        geometry: &Geometry,
        sequence: u64,
        map: &Snapshot,
        (life, stamp): (Life, Stamp),
    ) -> Result<u64, VolumeError> {
        assert_eq!(map.entries.len(), geometry.slots as usize, "a map has an entry for each slot");
        assert!(map.records.iter().all(|record| record.slot() < geometry.slots));
        let whole = (Kind::Entries, ENTRIES, ENTRY);
        let mut bytes = blocks_of(&map.entries, whole, (sequence, 0), &self.owner, encode_entry);
        let entry_blocks = (bytes.len() / BLOCK) as u32;
        let records = (Kind::MapRecords, RECORDS, RECORD);
        bytes.extend(blocks_of(&map.records, records, (sequence, entry_blocks), &self.owner, encode_record));
        assert!(bytes.len() / BLOCK <= geometry.map_blocks() as usize, "a map has room for two records a slot");
        write_run(&*self.device, geometry.map_at(sequence), &bytes, false)?;
        varve_device::flush(&*self.device)?;
        let blocks = (entry_blocks, (bytes.len() / BLOCK) as u32 - entry_blocks);
        let superblock =
            Super { sequence, owner: self.owner, geometry: *geometry, blocks, detached: false, life, stamp };
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
        self.write_journal_of(geometry, sequence, used, records, encode_record)
    }

    /// Appends a stamp, likewise.
    pub fn write_stamp(&self, geometry: &Geometry, sequence: u64, used: u32, stamp: Stamp) -> Result<u32, VolumeError> {
        self.write_journal_of(geometry, sequence, used, &[stamp], Stamp::encode)
    }

    fn write_journal_of<T>(
        &self,
        geometry: &Geometry,
        sequence: u64,
        used: u32,
        records: &[T],
        encode: fn(&T, &mut [u8]),
    ) -> Result<u32, VolumeError> {
        let journal = (Kind::Journal, RECORDS, RECORD);
        let bytes = blocks_of(records, journal, (sequence, used), &self.owner, encode);
        let blocks = (bytes.len() / BLOCK) as u32;
        assert!(used + blocks <= geometry.journal_blocks(), "the caller looked whether they fit");
        if blocks > 0 {
            let at = geometry.journal_at(sequence) + u64::from(used) * BLOCK as u64;
            write_run(&*self.device, at, &bytes, false)?;
        }
        Ok(used + blocks)
    }

    /// Makes the device ready for an empty tier, whatever was there before: no superblock, no journal, and nothing in
    /// any slot that recovery could take for a page of this tier.
    pub fn prepare(&self, geometry: &Geometry) -> Result<(), VolumeError> {
        write_run(&*self.device, 0, &[0; 2 * BLOCK], false)?;
        varve_device::flush(&*self.device)?;
        let len = self.device.len();
        let cut = self.device.info().kind == DeviceKind::File
            && self.device.set_len(2 * BLOCK as u64).and_then(|()| self.device.set_len(len)).is_ok();
        if !cut {
            self.zero(geometry.journals())?;
            self.blank(geometry, 0)?;
            varve_device::flush(&*self.device)?;
        }
        Ok(())
    }

    /// Makes the place of another layout ready: its tables, if they are elsewhere than the present ones, and the slots
    /// that it adds. Not durable before a flush.
    pub fn prepare_resized(&self, now: &Geometry, next: &Geometry) -> Result<(), VolumeError> {
        assert!(next.spares_tables_of(now), "the tables that count stay whole until others do");
        if now.tables() != next.tables() {
            self.zero(next.tables())?;
        }
        self.blank(next, now.slots)
    }

    fn zero(&self, (from, bytes): (u64, u64)) -> Result<(), VolumeError> {
        let zeros = vec![0; 1 << 20];
        for at in (0..bytes).step_by(zeros.len()) {
            let len = (bytes - at).min(zeros.len() as u64) as usize;
            write_run(&*self.device, from + at, &zeros[..len], false)?;
        }
        Ok(())
    }

    /// Overwrites what looks like a page in the slots from `first` on. The slots of former tables hold none.
    fn blank(&self, geometry: &Geometry, first: Slot) -> Result<(), VolumeError> {
        const BATCH: usize = 64;
        let mut heads = AlignedBuf::new(BATCH * BLOCK);
        let slots: Vec<Slot> = (first..geometry.slots).collect();
        for batch in slots.chunks(BATCH) {
            let base = heads.as_mut_ptr();
            let reads = batch.iter().enumerate().map(|(i, &slot)| {
                // SAFETY: the parts of `heads` do not overlap and are waited for below.
                unsafe { Io::read(geometry.slot(slot), base.add(i * BLOCK), BLOCK) }
            });
            self.device.submit(reads.collect()).wait_all()?;
            for (&slot, head) in batch.iter().zip(heads.chunks(BLOCK)) {
                if page::claims(head) {
                    write_at(&*self.device, geometry.slot(slot), &[0; BLOCK], false)?;
                }
            }
        }
        Ok(())
    }

    /// Says durably that the device is given up: every page is at home.
    pub fn write_detached(
        &self,
        geometry: &Geometry,
        sequence: u64,
        (life, stamp): (Life, Stamp),
    ) -> Result<(), VolumeError> {
        let superblock =
            Super { sequence, owner: self.owner, geometry: *geometry, blocks: (0, 0), detached: true, life, stamp };
        write_run(&*self.device, (sequence % 2) * BLOCK as u64, &encode_super(&superblock), false)?;
        Ok(varve_device::flush(&*self.device)?)
    }

    /// Writes what is remembered of pages, as much as there is room for. It may be torn by a power cut: every block is
    /// good by itself. `tag` says what sort of memories they are. Returns the bytes written.
    pub fn write_memories(&self, geometry: &Geometry, tag: u64, memories: &[Memory]) -> Result<u64, VolumeError> {
        let room = geometry.memory_blocks() as usize * MEMORIES;
        let kept = &memories[..memories.len().min(room)];
        let kind = (Kind::Memory, MEMORIES, MEMORY);
        let mut bytes = blocks_of(kept, kind, (tag, 0), &self.owner, encode_memory);
        if kept.len() < room && kept.len().is_multiple_of(MEMORIES) {
            // A block that is not full ends the run: what lies behind is older.
            let mut last = vec![0; BLOCK];
            seal(&mut last, Kind::Memory, tag, (bytes.len() / BLOCK) as u32, 0, &self.owner);
            bytes.extend(last);
        }
        assert!(
            bytes.len() / BLOCK <= geometry.memory_blocks() as usize,
            "no more is remembered than there is room for"
        );
        write_run(&*self.device, geometry.memory_at(), &bytes, false)?;
        Ok(bytes.len() as u64)
    }

    /// What is remembered of pages, as far as it can be read.
    pub fn load_memories(&self, geometry: &Geometry, tag: u64) -> Result<Vec<Memory>, VolumeError> {
        const RUN: u32 = 256;
        let mut memories = Vec::new();
        for first in (0..geometry.memory_blocks()).step_by(RUN as usize) {
            let blocks = RUN.min(geometry.memory_blocks() - first);
            let buf = self.read_run(geometry.memory_at() + u64::from(first) * BLOCK as u64, blocks)?;
            for (i, block) in buf.chunks(BLOCK).take(blocks as usize).enumerate() {
                let found = open(block, Kind::Memory, tag, first + i as u32, &self.owner, MEMORIES);
                let count = found.unwrap_or(MEMORIES);
                if found.is_some() {
                    memories.extend(block[HEADER..].chunks(MEMORY).take(count).map(decode_memory));
                }
                if count < MEMORIES {
                    return Ok(memories);
                }
            }
        }
        Ok(memories)
    }

    /// Blocks that so many records take.
    pub fn journal_need(records: usize) -> u32 {
        records.div_ceil(RECORDS) as u32
    }

    /// Reads what there is; an error when no superblock is whole or it is somebody else's.
    pub fn load(&self) -> Result<Loaded, VolumeError> {
        let name = self.device.info().name;
        let broken = |what: &str| VolumeError::Tier { device: name.clone(), what: what.to_string() };
        let wrecked = |what: &str| VolumeError::TierWrecked { device: name.clone(), what: what.to_string() };
        let mut head = AlignedBuf::new(2 * BLOCK);
        if self.device.len() < head.len() as u64 {
            return Err(wrecked("it ends before its superblocks do: it was emptied or cut"));
        }
        read_at(&*self.device, 0, &mut head)?;
        let found = head.chunks(BLOCK).filter_map(decode_super).max_by_key(|s| s.sequence);
        let superblock = found.ok_or_else(|| match head.chunks(BLOCK).find_map(other_version) {
            Some(v) => broken(&format!("its format version is {v}: use the release that wrote it to detach it first")),
            None => wrecked("neither of its superblocks is whole: it was overwritten"),
        })?;
        if superblock.owner != self.owner {
            return Err(broken("it belongs to another database: attach the device that was created with this one"));
        }
        if superblock.detached {
            let stamp = superblock.stamp;
            return Ok(Loaded { superblock, map: None, journal: Vec::new(), journal_used: 0, stamp });
        }
        if superblock.geometry.end() > self.device.len() {
            return Err(wrecked("it is shorter than its superblock says: was it cut?"));
        }
        let map = self.load_map(&superblock)?;
        let mut loaded = Loaded { superblock, map, journal: Vec::new(), journal_used: 0, stamp: superblock.stamp };
        self.load_journal(&mut loaded)?;
        Ok(loaded)
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

    fn load_journal(&self, loaded: &mut Loaded) -> Result<(), VolumeError> {
        let Super { sequence, geometry, .. } = loaded.superblock;
        let buf = self.read_run(geometry.journal_at(sequence), geometry.journal_blocks())?;
        for block in buf.chunks(BLOCK) {
            let index = loaded.journal_used;
            let Some(count) = open(block, Kind::Journal, sequence, index, &self.owner, RECORDS) else { break };
            let found = || block[HEADER..HEADER + count * RECORD].chunks(RECORD);
            loaded.journal.extend(found().filter_map(|r| decode_record(r, geometry.slots)));
            loaded.stamp = found().filter_map(Stamp::decode).next_back().unwrap_or(loaded.stamp);
            loaded.journal_used += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use varve_models::MemDevice;

    fn file(slots: u32) -> (Arc<dyn Device>, MapFile, Geometry) {
        let geometry = Geometry::of(slots, 4096);
        let device: Arc<dyn Device> = MemDevice::new(geometry.end());
        (device.clone(), MapFile::new(device, [7; 16]), geometry)
    }

    fn snapshot(slots: u32, salt: u64) -> Snapshot {
        let entry = |n: u64| MapEntry {
            page: (!n.is_multiple_of(3)).then_some(PageId(n + salt)),
            lsn: n * 8,
            newer: n.is_multiple_of(2) && !n.is_multiple_of(3),
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
            file.write_map(&geometry, sequence, &snapshot(1000, sequence), Default::default()).unwrap();
        }
        file.write_journal(&geometry, 4, 0, &[newer]).unwrap();
        file.write_journal(&geometry, 4, 1, &[newer, Record::Clean { slot: 4, page: PageId(1), lsn: 2 }]).unwrap();
        let loaded = file.load().unwrap();
        assert_eq!(loaded.superblock.sequence, 4);
        assert_eq!(loaded.map, Some(snapshot(1000, 4)));
        assert_eq!((loaded.journal.len(), loaded.journal_used), (3, 2));
    }

    #[test]
    fn what_no_map_could_hold_is_not_taken_from_one() {
        let (_, file, geometry) = file(64);
        file.write_map(&geometry, 1, &snapshot(64, 1), Default::default()).unwrap();
        let newer = |slot, page| Record::Newer { slot, page: PageId(page), lsn: 77 };
        let records = [newer(3, NO_PAGE - 1), newer(3, NO_PAGE), newer(3, u64::MAX), newer(64, 5)];
        file.write_journal(&geometry, 1, 0, &records).unwrap();
        let loaded = file.load().unwrap();
        assert_eq!(loaded.journal, records[..1]);
        let mut map = loaded.map.unwrap();
        let mut nothing = [0; ENTRY];
        put(&mut nothing, 0, &(NO_PAGE | NEWER).to_le_bytes());
        map.entries[0] = decode_entry(&nothing);
        map.records = loaded.journal;
        file.write_map(&geometry, 2, &map, Default::default()).expect("what was read can be written");
    }

    #[test]
    fn damage_is_found_and_older_blocks_are_not_taken_for_newer() {
        let (device, file, geometry) = file(1000);
        let record = Record::Freed { slot: 1, page: PageId(1), lsn: 1 };
        file.write_map(&geometry, 1, &snapshot(1000, 1), Default::default()).unwrap();
        file.write_journal(&geometry, 1, 0, &vec![record; 500]).unwrap();
        file.write_map(&geometry, 3, &snapshot(1000, 3), Default::default()).unwrap();
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
        file.write_map(&geometry, 1, &snapshot(64, 1), Default::default()).unwrap();
        let e = MapFile::new(device, [8; 16]).load().err().expect("not ours").to_string();
        assert!(e.contains("another database"), "{e}");
    }
}
