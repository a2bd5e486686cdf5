//! Where things are on the fast device, and the superblock that says so. `docs/format.md` has the layout.
//!
//! The slots begin at a fixed byte, so that a change of their number moves none. The tables (maps, journals,
//! statistics) lie before the slots at first; when more slots need larger tables, these go behind the last slot. A
//! layout never overlaps the tables of the one that it replaces, but where it uses them as they are.
//!
//! Invariants: every layout that is chosen is [`sane`](Geometry::sane), so that what a superblock says of it is
//! believed when it is read; it ends within the device; no slot moves.

use super::slots::Slot;
use crate::admin::Stamp;

/// Bytes of a block.
pub const BLOCK: usize = 4096;
/// Version of this format.
pub const VERSION: u32 = 2;

pub(super) const HEADER: usize = 40;
pub(super) const ENTRY: usize = 16;
pub(super) const RECORD: usize = 24;
/// Bytes of what is remembered of a page.
pub(super) const MEMORY: usize = 32;
pub(super) const ENTRIES: usize = (BLOCK - HEADER) / ENTRY;
pub(super) const RECORDS: usize = (BLOCK - HEADER) / RECORD;
pub(super) const MEMORIES: usize = (BLOCK - HEADER) / MEMORY;

const _: () = assert!(HEADER == 32 + 8, "the header ends with 8 bytes of the owner");
const _: () = assert!(HEADER + ENTRIES * ENTRY <= BLOCK && HEADER + RECORDS * RECORD <= BLOCK);
const _: () = assert!(HEADER + MEMORIES * MEMORY <= BLOCK && BLOCK.is_multiple_of(varve_device::BLOCK));

/// What a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Super = 1,
    Entries = 2,
    MapRecords = 3,
    Journal = 4,
    Memory = 5,
}

const MAGIC: u32 = 0x7EA5_17EB;

/// Below it are all positions and sequence numbers: what exceeds it is damage, and would overflow further on.
const MOST: u64 = 1 << 62;
const _: () = assert!(MOST as u128 + ((u32::MAX as u128) << 15) < u64::MAX as u128, "slots end before the last byte");

/// Fewest slots of a tier.
const LEAST: u32 = 8;
const _: () = assert!(
    u32::MAX as usize / ENTRIES + 2 * (u32::MAX as usize) / RECORDS + 2 <= u32::MAX as usize,
    "the blocks of the largest map are counted with 32 bits"
);

/// Where things are on the fast device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of a page.
    pub page_size: u32,
    /// Slots.
    pub slots: u32,
    /// Room of the tables.
    tables: Tables,
    /// Byte at which the tables begin.
    tables_at: u64,
    /// Byte at which the slots begin.
    slots_at: u64,
}

/// Blocks of each table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tables {
    /// Of one map.
    map: u32,
    /// Of one journal.
    journal: u32,
    /// Of the statistics.
    memory: u32,
}

impl Tables {
    fn of(slots: u32) -> Tables {
        // A map holds every entry and, at worst, two records a slot; a journal a record for every fourth slot.
        let slots = slots as usize;
        let records = (2 * slots).div_ceil(RECORDS).max(8);
        Tables {
            map: (slots.div_ceil(ENTRIES) + records) as u32,
            journal: (slots / 4).div_ceil(RECORDS).max(64) as u32,
            memory: (2 * slots).div_ceil(MEMORIES) as u32,
        }
    }

    fn bytes(self) -> u64 {
        (2 * u64::from(self.map) + 2 * u64::from(self.journal) + u64::from(self.memory)) * BLOCK as u64
    }

    fn hold(self, other: Tables) -> bool {
        self.map >= other.map && self.journal >= other.journal && self.memory >= other.memory
    }
}

/// The largest number of slots up to `most` for which `fits`, if there is one that makes a tier.
fn largest(most: u64, fits: impl Fn(u32) -> bool) -> Option<u32> {
    let (mut good, mut bad) = (0, most.min(u64::from(u32::MAX - 1)) as u32 + 1);
    while bad - good > 1 {
        let slots = good + (bad - good) / 2;
        if fits(slots) { good = slots } else { bad = slots }
    }
    (good >= LEAST).then_some(good)
}

impl Geometry {
    /// The best use of `bytes` of device, or `None` when not even eight slots find room.
    pub fn fit(bytes: u64, page_size: u32) -> Option<Geometry> {
        let slots = largest(bytes / u64::from(page_size), |slots| Geometry::of(slots, page_size).end() <= bytes)?;
        let fitting = Geometry::of(slots, page_size);
        assert!(fitting.sane() && fitting.end() <= bytes, "{fitting:?} in {bytes} bytes");
        Some(fitting)
    }

    /// Room for `slots` slots.
    pub fn of(slots: u32, page_size: u32) -> Geometry {
        let (tables, tables_at) = (Tables::of(slots), 2 * BLOCK as u64);
        let slots_at = (tables_at + tables.bytes()).next_multiple_of(u64::from(page_size));
        Geometry { page_size, slots, tables, tables_at, slots_at }
    }

    /// The best use of `bytes` of device that leaves every slot that stays where it is, and the present tables whole
    /// while new ones are written; `None` when not even eight slots find room.
    pub fn resized(&self, bytes: u64) -> Option<Geometry> {
        let next = self.best_of(bytes)?;
        assert!(next.sane() && next.end() <= bytes && next.slots_at == self.slots_at, "{next:?} in {bytes} bytes");
        assert!(next.spares_tables_of(self), "{next:?} over the tables of {self:?}");
        Some(next)
    }

    /// Whether the tables are those of the other layout, or nowhere near them.
    pub(super) fn spares_tables_of(&self, other: &Geometry) -> bool {
        let ((a, b), (c, d)) = (self.tables(), other.tables());
        (a, b) == (c, d) || a + b <= c || c + d <= a
    }

    fn best_of(&self, bytes: u64) -> Option<Geometry> {
        let tables_end = self.tables_at + self.tables.bytes();
        let page = u64::from(self.page_size);
        let most = bytes.saturating_sub(self.slots_at) / page;
        if tables_end <= self.slots_at {
            // Before the slots: as they are, if they are large enough.
            let slots = largest(most, |slots| self.tables.hold(Tables::of(slots)));
            let kept = slots.map(|slots| Geometry { slots, ..*self });
            if kept.is_some_and(|g| u64::from(g.slots) == most) {
                return kept;
            }
            return self.tables_behind(bytes, self.end()).max_by_slots(kept);
        }
        let behind = if bytes > tables_end {
            self.tables_behind(bytes, tables_end)
        } else {
            // The new tables end before the present ones.
            self.tables_behind(bytes.min(self.tables_at), 0)
        };
        let kept = (bytes >= tables_end).then_some(*self);
        behind.max_by_slots(kept).max_by_slots(self.tables_before(most))
    }

    /// Tables before the slots again, as large as there is room.
    fn tables_before(&self, most: u64) -> Option<Geometry> {
        let first = 2 * BLOCK as u64;
        let room = largest(u64::from(u32::MAX), |slots| first + Tables::of(slots).bytes() <= self.slots_at)?;
        let slots = most.min(u64::from(room)) as u32;
        (slots >= LEAST).then(|| Geometry { slots, tables: Tables::of(room), tables_at: first, ..*self })
    }

    /// Tables behind the last slot, from byte `from` on at the earliest.
    fn tables_behind(&self, bytes: u64, from: u64) -> Option<Geometry> {
        let of = |slots: u32| {
            let behind = self.slot(slots).max(from).next_multiple_of(BLOCK as u64);
            Geometry { slots, tables: Tables::of(slots), tables_at: behind, ..*self }
        };
        let most = bytes.saturating_sub(self.slots_at) / u64::from(self.page_size);
        largest(most, |slots| of(slots).end() <= bytes).map(of)
    }

    /// Bytes of device needed.
    pub fn end(&self) -> u64 {
        self.slot(self.slots).max(self.tables_at + self.tables.bytes())
    }

    /// Byte of a slot.
    pub fn slot(&self, slot: Slot) -> u64 {
        self.slots_at + u64::from(slot) * u64::from(self.page_size)
    }

    /// First byte and number of bytes of all tables.
    pub fn tables(&self) -> (u64, u64) {
        (self.tables_at, self.tables.bytes())
    }

    /// First byte and number of bytes of both journals.
    pub fn journals(&self) -> (u64, u64) {
        (self.journal_at(0), 2 * u64::from(self.tables.journal) * BLOCK as u64)
    }

    /// Byte of the map of that sequence.
    pub fn map_at(&self, sequence: u64) -> u64 {
        self.tables_at + (sequence % 2) * u64::from(self.tables.map) * BLOCK as u64
    }

    /// Byte of the journal of that sequence.
    pub fn journal_at(&self, sequence: u64) -> u64 {
        let blocks = 2 * u64::from(self.tables.map) + (sequence % 2) * u64::from(self.tables.journal);
        self.tables_at + blocks * BLOCK as u64
    }

    /// Byte of the statistics.
    pub fn memory_at(&self) -> u64 {
        self.tables_at + 2 * (u64::from(self.tables.map) + u64::from(self.tables.journal)) * BLOCK as u64
    }

    /// Blocks of one map.
    pub fn map_blocks(&self) -> u32 {
        self.tables.map
    }

    /// Blocks of a journal.
    pub fn journal_blocks(&self) -> u32 {
        self.tables.journal
    }

    /// Records that a journal has room for.
    pub fn journal_records(&self) -> usize {
        self.tables.journal as usize * RECORDS
    }

    /// Blocks of the statistics.
    pub fn memory_blocks(&self) -> u32 {
        self.tables.memory
    }

    /// Whether a superblock may say so.
    fn sane(&self) -> bool {
        let (start, end) = (self.tables_at, self.tables_at.saturating_add(self.tables.bytes()));
        // Beyond it nothing can be reckoned with; no device has so many bytes.
        end.max(self.slots_at) < MOST
            && matches!(self.page_size, 4096 | 8192 | 16384 | 32768)
            && self.slots >= LEAST
            && self.tables.hold(Tables::of(self.slots))
            && start >= 2 * BLOCK as u64
            && self.slots_at >= 2 * BLOCK as u64
            && start.is_multiple_of(BLOCK as u64)
            && self.slots_at.is_multiple_of(u64::from(self.page_size))
            && (end <= self.slots_at || start >= self.slot(self.slots))
    }
}

trait Larger {
    fn max_by_slots(self, other: Option<Geometry>) -> Option<Geometry>;
}

impl Larger for Option<Geometry> {
    fn max_by_slots(self, other: Option<Geometry>) -> Option<Geometry> {
        match (self, other) {
            (Some(a), Some(b)) if a.slots > b.slots => Some(a),
            (a, b) => b.or(a),
        }
    }
}

/// What the tier has done over its life, as its newest map knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Life {
    /// When it was created, seconds since 1970.
    pub created: u64,
    /// Bytes written to the fast device since.
    pub written: u64,
    /// The day (since 1970) of the write budget, and the bytes of it that are spent.
    pub day: u64,
    /// Bytes admitted on that day.
    pub spent: u64,
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
    /// Everything went home and the device was given up.
    pub detached: bool,
    /// Wear so far.
    pub life: Life,
    /// The database's stamp when the map was written.
    pub stamp: Stamp,
}

pub(super) fn put(block: &mut [u8], at: usize, bytes: &[u8]) {
    block[at..at + bytes.len()].copy_from_slice(bytes);
}

pub(super) fn u64_at(block: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(block[at..at + 8].try_into().expect("8 bytes"))
}

pub(super) fn u32_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(block[at..at + 4].try_into().expect("4 bytes"))
}

/// Header: crc 0, magic 4, version 8, kind 12, sequence 16, index 24, count 28, owner's first 8 bytes 32.
pub(super) fn seal(block: &mut [u8], kind: Kind, sequence: u64, index: u32, count: u32, owner: &[u8; 16]) {
    assert_eq!(block.len(), BLOCK);
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
pub(super) fn open(
    block: &[u8],
    kind: Kind,
    sequence: u64,
    index: u32,
    owner: &[u8; 16],
    most: usize,
) -> Option<usize> {
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

/// The superblock as its block.
pub(super) fn encode_super(s: &Super) -> Vec<u8> {
    let mut block = vec![0; BLOCK];
    let (g, t) = (&s.geometry, s.geometry.tables);
    put(&mut block, 40, &s.owner);
    let words = [g.page_size, g.slots, t.map, t.journal, t.memory, s.blocks.0, s.blocks.1, u32::from(s.detached)];
    for (i, n) in words.iter().enumerate() {
        put(&mut block, 56 + 4 * i, &n.to_le_bytes());
    }
    let (Life { created, written, day, spent }, Stamp { number, tie }) = (s.life, s.stamp);
    for (i, n) in [g.tables_at, g.slots_at, created, written, day, spent, number, tie].iter().enumerate() {
        put(&mut block, 88 + 8 * i, &n.to_le_bytes());
    }
    seal(&mut block, Kind::Super, s.sequence, 0, 0, &s.owner);
    assert_eq!(decode_super(&block).as_ref(), Some(s), "a superblock that is written can be read");
    block
}

/// What a block says that may be a superblock of this release's format.
pub(super) fn decode_super(block: &[u8]) -> Option<Super> {
    let owner: [u8; 16] = block[40..56].try_into().expect("16 bytes");
    let sequence = u64_at(block, 16);
    open(block, Kind::Super, sequence, 0, &owner, 0)?;
    let n = |i: usize| u32_at(block, 56 + 4 * i);
    let l = |i: usize| u64_at(block, 88 + 8 * i);
    let tables = Tables { map: n(2), journal: n(3), memory: n(4) };
    let geometry = Geometry { page_size: n(0), slots: n(1), tables, tables_at: l(0), slots_at: l(1) };
    let life = Life { created: l(2), written: l(3), day: l(4), spent: l(5) };
    let stamp = Stamp { number: l(6), tie: l(7) };
    let sane =
        geometry.sane() && sequence < MOST && n(5).checked_add(n(6))? <= tables.map && u32_at(block, 8) == VERSION;
    sane.then_some(Super { sequence, owner, geometry, blocks: (n(5), n(6)), detached: n(7) != 0, life, stamp })
}

/// The version that a superblock of another release has.
pub(super) fn other_version(block: &[u8]) -> Option<u32> {
    let version = u32_at(block, 8);
    let whole = u32_at(block, 0) == crc32c::crc32c(&block[4..BLOCK]) && u32_at(block, 4) == MAGIC;
    (whole && version != VERSION).then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_fill_the_device() {
        for bytes in [1u64 << 20, 10 << 20, (1 << 30) + 12345] {
            for page_size in [4096, 16384] {
                let g = Geometry::fit(bytes, page_size).unwrap();
                assert!(
                    g.sane() && g.end() <= bytes && g.end() + 4 * u64::from(page_size) + 64 * 4096 > bytes,
                    "{g:?}"
                );
            }
        }
        assert_eq!(Geometry::fit(100_000, 16384), None);
    }

    #[test]
    fn a_superblock_that_says_what_cannot_be_is_none() {
        let geometry = Geometry::fit(4 << 20, 4096).unwrap();
        let sup = Super {
            sequence: 5,
            owner: [7; 16],
            geometry,
            blocks: (1, 1),
            detached: false,
            life: Life::default(),
            stamp: Stamp::default(),
        };
        let good = encode_super(&sup);
        let with = |at: usize, n: u64| {
            let mut block = good.clone();
            put(&mut block, at, &n.to_le_bytes());
            let crc = crc32c::crc32c(&block[4..]);
            put(&mut block, 0, &crc.to_le_bytes());
            decode_super(&block)
        };
        let (sequence, tables_at, slots_at) = (16, 88, 96);
        assert_eq!(with(slots_at, geometry.slots_at), Some(sup));
        for (at, n) in [(sequence, u64::MAX), (tables_at, !0xfff), (slots_at, !0xfff), (slots_at, 1 << 63)] {
            assert_eq!(with(at, n).map(|sup| sup.geometry.end()), None, "{n:#x} at byte {at}");
        }
    }

    #[test]
    fn a_layout_grows_and_shrinks_around_its_tables() {
        let overlap = |a: (u64, u64), b: (u64, u64)| a.0 < b.0 + b.1 && b.0 < a.0 + a.1;
        for page_size in [4096, 16384] {
            let mut g = Geometry::fit(4 << 20, page_size).unwrap();
            for mib in [8u64, 64, 65, 300, 299, 100, 40, 41, 6, 4, 512, 3, 2] {
                let next = g.resized(mib << 20).unwrap();
                assert!(next.sane() && next.end() <= mib << 20, "{next:?}");
                assert_eq!(next.slots_at, g.slots_at, "no slot moves");
                assert!(next.tables() == g.tables() || !overlap(next.tables(), g.tables()), "{g:?} {next:?}");
                let room = (mib << 20) / u64::from(page_size);
                assert!(u64::from(next.slots) > room / 4, "most of the {room} pages are slots: {next:?}");
                g = next;
            }
        }
    }
}
