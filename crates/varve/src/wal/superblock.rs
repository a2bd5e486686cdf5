//! The two superblocks at the start of the log device: identity of the database, redo point, ring table, runs.
//!
//! They are copies of each other. A change is written to one, and when that is durable to the other: a torn write
//! leaves a whole copy, and as nothing rests on a change before both have it, damage of one copy loses nothing.
//! Invariants: the first write goes to the slot that does not hold the newest valid superblock; what is written is what
//! a reader takes for sound. Layout: `docs/format.md`, "Superblocks". The rows of the decision table in `docs/wal.md`
//! appear here as `S1`..`S8`.

use super::features::{Features, IDENTITY, MAP_COUNT, NAMES, ROOM, SEGMENT_SIZES};
use super::format::{BLOCK, GROUP_HEADER, GroupHeader, block_ceil, block_floor, salt};
use super::generation::Generation;
use super::ring::{MAX_SEGMENTS, MAX_SIZED, RING_START, Ring, Segment};
use crate::error::{Damage, Error, Result};
use varve_device::{AlignedBuf, Device, read_at, write_at};
use varve_volume::{Lsn, PageId};

/// Newest superblock format understood, and the one that is written. Version 1 has no features.
pub const VERSION: u32 = 2;
/// Most runs between two completed checkpoints.
pub const MAX_RUNS: usize = 32;
/// Below it are all positions and sequence numbers: what exceeds it is damage, and would overflow further on.
const MOST: u64 = 1 << 62;
/// Most bytes of [`DbHeader::options`].
pub const MAX_OPTIONS: usize = 512;

const SIZE: usize = BLOCK as usize;
const MAGIC: &[u8; 8] = b"VARVELOG";
const CLEAN: u32 = 1;
const CREATING: u32 = 2;
const _: () = assert!(CLEAN & CREATING == 0, "a flag has a bit of its own");

// The longest superblock: fixed fields, runs, options, the ring's table, names of features, checksum.
const _: () = assert!(168 + 24 * MAX_RUNS + MAX_OPTIONS + 2 * MAX_SEGMENTS + 8 + NAMES + 4 <= SIZE);

/// What a log without the feature `log-segment-sizes` is made with by default: it shrinks to no less.
const EQUAL_LEAST: u64 = 64 << 20;

/// What identifies a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DbHeader {
    /// Identity; must differ between databases.
    pub uuid: [u8; 16],
    /// Bytes of a page.
    pub page_size: u32,
    /// Bytes at the end of each page that are left alone.
    pub room: u16,
    /// When it was created, nanoseconds since 1970-01-01 UTC.
    pub created: u64,
    /// Options of the upper layers, not looked into; see [`crate::wal::Log::set_options`]. At most `MAX_OPTIONS`
    /// bytes.
    pub options: Vec<u8>,
}

impl DbHeader {
    /// Whether both are of one database; a crash may come between a change of the options in one superblock and in the
    /// other.
    fn is_of(&self, other: &DbHeader) -> bool {
        self.page_size == other.page_size && self.uuid == other.uuid && self.created == other.created
    }
}

/// One opening of the database for writing, as the log sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Number in every group header of the run.
    pub number: u32,
    /// Where its groups begin.
    pub start: Lsn,
    /// Where the groups of the run before it end.
    pub prev_end: Lsn,
}

/// A superblock's content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// Counts superblock writes.
    pub sequence: u64,
    /// Fixed at creation.
    pub header: DbHeader,
    /// What the database uses that not every release knows.
    pub features: Features,
    /// Opening or checkpoint that wrote it.
    pub generation: Generation,
    /// Pages of the data device that bear identity and generation.
    pub identity: Option<[PageId; 2]>,
    /// Damaged copies that openings mended, and that no check has told of.
    pub mended: u64,
    /// The database is being created: there is none yet.
    pub creating: bool,
    /// Closed cleanly: nothing to redo, and the log ends at `end`.
    pub clean: bool,
    /// Where redo begins.
    pub redo: Lsn,
    /// A position up to which the log is known to be durable; the exact end when `clean`.
    pub end: Lsn,
    /// Redo bytes replayed per second at the last recovery, 0 when unknown.
    pub replay_rate: u64,
    /// The ring's table.
    pub ring: Ring,
    /// Runs whose groups may be at or after `redo`, oldest first; never empty.
    pub runs: Vec<Run>,
}

/// A superblock as read from its slot.
enum Found {
    Valid(Box<Superblock>),
    Blank,
    Damaged(String),
    Newer(u32),
}

/// What is new about a log that is made.
#[derive(Debug, Clone, Default)]
pub struct Birth {
    /// The database is not finished with it: [`super::Log::finish_creation`] says when.
    pub creating: bool,
    /// The data device bears this generation already.
    pub generation: Generation,
    /// On these pages.
    pub identity: Option<[PageId; 2]>,
}

/// What identifies the database of a log, whatever its state; nothing is written.
pub fn read_header(dev: &dyn Device) -> Result<DbHeader> {
    Ok(load(dev)?.sb.header)
}

/// The identity that a database gets which is being created.
pub fn creation(dev: &dyn Device) -> Option<[u8; 16]> {
    let mut buf = AlignedBuf::new(2 * SIZE);
    read_at(dev, 0, &mut buf).ok()?;
    let marks = [&buf[..SIZE], &buf[SIZE..]].map(Superblock::decode);
    marks.into_iter().find_map(|slot| match slot {
        Found::Valid(sb) if sb.creating => Some(sb.header.uuid),
        _ => None,
    })
}

/// What [`load`] found.
pub struct Loaded {
    /// The newest valid superblock.
    pub sb: Superblock,
    /// The slot it came from.
    pub slot: usize,
    /// What is wrong with the other one, if anything: a torn write or damage.
    pub other: Option<String>,
}

impl Superblock {
    /// The first superblock of a log that begins at `first`.
    pub fn new(header: DbHeader, ring: Ring, first: Lsn, birth: Birth) -> Superblock {
        let mut features = Features::default();
        features.set(&IDENTITY, birth.identity.is_some());
        features.set(&MAP_COUNT, birth.identity.is_some());
        features.set(&ROOM, header.room > 0);
        let mut sb = Superblock {
            sequence: 1,
            header,
            features,
            generation: birth.generation,
            identity: birth.identity,
            mended: 0,
            creating: birth.creating,
            clean: false,
            redo: first,
            end: first,
            replay_rate: 0,
            ring: ring.clone(),
            runs: vec![Run { number: 1, start: first, prev_end: first }],
        };
        sb.set_ring(ring);
        sb
    }

    /// The block's bytes.
    pub fn encode(&self) -> AlignedBuf {
        let mut out = Vec::with_capacity(SIZE);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        let flags = if self.clean { CLEAN } else { 0 } | if self.creating { CREATING } else { 0 };
        out.extend_from_slice(&flags.to_le_bytes());
        out.extend_from_slice(&self.sequence.to_le_bytes());
        out.extend_from_slice(&self.header.uuid);
        out.extend_from_slice(&(self.header.page_size | u32::from(self.header.room) << 16).to_le_bytes());
        out.extend_from_slice(&(self.header.options.len() as u32).to_le_bytes());
        let (ring, sized) = (&self.ring, self.features.has(&SEGMENT_SIZES));
        for n in [self.header.created, self.redo, self.end, self.replay_rate, ring.unit, ring.base / ring.unit] {
            out.extend_from_slice(&n.to_le_bytes());
        }
        out.extend_from_slice(&(ring.segments.len() as u32).to_le_bytes());
        out.extend_from_slice(&(self.runs.len() as u32).to_le_bytes());
        let [first, second] = self.identity.map_or([0; 2], |pages| pages.map(|page| page.0));
        let Generation { number, tie } = self.generation;
        for n in self.features.words().into_iter().chain([number, tie, first, second, self.mended]) {
            out.extend_from_slice(&n.to_le_bytes());
        }
        for run in &self.runs {
            out.extend_from_slice(&run.start.to_le_bytes());
            out.extend_from_slice(&run.prev_end.to_le_bytes());
            out.extend_from_slice(&u64::from(run.number).to_le_bytes());
        }
        out.extend_from_slice(&self.header.options);
        for segment in &ring.segments {
            let (at, len) = (segment.at / ring.unit, segment.len / ring.unit);
            let fits = at.max(len) <= if sized { u64::from(u32::MAX) } else { u64::from(u16::MAX) };
            assert!(fits, "a segment's place and length fit their fields");
            match sized {
                true => [at as u32, len as u32].iter().for_each(|n| out.extend_from_slice(&n.to_le_bytes())),
                false => out.extend_from_slice(&(at as u16).to_le_bytes()),
            }
        }
        if sized {
            out.extend_from_slice(&ring.least.to_le_bytes());
        }
        out.extend_from_slice(&self.features.encode_names());
        assert!(out.len() <= SIZE - 4, "a superblock fits its block");
        let mut buf = AlignedBuf::new(SIZE);
        buf[..out.len()].copy_from_slice(&out);
        let crc = crc32c::crc32c(&buf[..SIZE - 4]);
        buf[SIZE - 4..].copy_from_slice(&crc.to_le_bytes());
        buf
    }

    fn decode(b: &[u8]) -> Found {
        if b.iter().all(|&x| x == 0) {
            return Found::Blank;
        }
        let mut at = Cursor { b, at: 0 };
        if at.take(8) != Some(MAGIC.as_slice()) {
            return Found::Damaged("not a superblock (wrong magic)".into());
        }
        if b[SIZE - 4..] != crc32c::crc32c(&b[..SIZE - 4]).to_le_bytes() {
            return Found::Damaged("checksum mismatch".into());
        }
        let version = match at.u32() {
            Some(version @ 1..=VERSION) => version,
            Some(version) if version > VERSION => return Found::Newer(version),
            version => return Found::Damaged(format!("format version {version:?}")),
        };
        match Superblock::fields(&mut at, version) {
            Some(sb) if sb.makes_sense() => Found::Valid(Box::new(sb)),
            _ => Found::Damaged("fields out of range".into()),
        }
    }

    fn fields(at: &mut Cursor<'_>, version: u32) -> Option<Superblock> {
        let flags = at.u32()?;
        let sequence = at.u64()?;
        let uuid = at.take(16)?.try_into().ok()?;
        let (page_size, room) = (at.u16()?.into(), at.u16()?);
        let options = at.u32()? as usize;
        let (created, redo, end, replay_rate) = (at.u64()?, at.u64()?, at.u64()?, at.u64()?);
        let (unit, base) = (at.u64()?, at.u64()?);
        let (segments, runs) = (at.u32()? as usize, at.u32()? as usize);
        if options > MAX_OPTIONS || segments > MAX_SEGMENTS || runs > MAX_RUNS {
            return None;
        }
        let mut later = [0; 8];
        if version > 1 {
            later = at.longs()?;
        }
        let run = |at: &mut Cursor<'_>| {
            Some(Run { start: at.u64()?, prev_end: at.u64()?, number: at.u64()?.try_into().ok()? })
        };
        let runs = (0..runs).map(|_| run(at)).collect::<Option<Vec<Run>>>()?;
        let options = at.take(options)?.to_vec();
        let [compatible, read_only, incompatible, number, tie, first, second, mended] = later;
        let ring = ring(at, (unit, base, segments), incompatible >> SEGMENT_SIZES.bit & 1 == 1)?;
        let features = Features::decode([compatible, read_only, incompatible], || {
            let len = at.take(1)?[0];
            at.take(len.into())
        })?;
        Some(Superblock {
            sequence,
            header: DbHeader { uuid, page_size, room, created, options },
            features,
            generation: Generation { number, tie },
            identity: (second != 0).then_some([PageId(first), PageId(second)]),
            mended,
            creating: flags & CREATING != 0,
            clean: flags & CLEAN != 0,
            redo,
            end,
            replay_rate,
            ring,
            runs,
        })
    }

    fn makes_sense(&self) -> bool {
        let positions =
            [self.redo, self.end].into_iter().chain(self.runs.iter().flat_map(|run| [run.start, run.prev_end]));
        self.ring.is_valid()
            && matches!(self.header.page_size, 4096 | 8192 | 16384 | 32768)
            && u32::from(self.header.room) <= self.header.page_size / 4
            && positions.max().is_some_and(|most| most < MOST)
            && self.sequence < MOST
            && self.generation.number < MOST
            && self.identity.is_none_or(|pages| pages[0] != pages[1] && pages.iter().all(|page| page.0 < MOST))
            && self.runs.iter().all(|run| run.number < u32::MAX)
            && !self.runs.is_empty()
            && self.runs.iter().map(|run| u128::from(run.gap())).sum::<u128>() < u128::from(MOST)
            && self.runs.is_sorted_by(|a, b| a.start <= b.start && a.number < b.number)
            && (!self.clean || self.clean_end_fits())
    }

    /// A clean close makes redo begin at the end, past where its run began.
    fn clean_end_fits(&self) -> bool {
        self.redo <= self.end && self.runs.last().is_some_and(|run| run.start <= block_ceil(self.end))
    }

    /// Puts another ring in place of the table, and says with a feature whether earlier releases know such tables.
    pub fn set_ring(&mut self, mut ring: Ring) {
        if ring.segments.len() > MAX_SIZED {
            ring.least = ring.capacity().min(EQUAL_LEAST);
        }
        let plain = ring.is_equal() && ring.least == ring.capacity().min(EQUAL_LEAST);
        self.features.set(&SEGMENT_SIZES, !plain);
        self.ring = ring;
    }

    /// Drops runs that lie wholly before the redo point.
    pub fn prune_runs(&mut self) {
        assert!(!self.runs.is_empty(), "a log has a run");
        while self.runs.len() > 1 && self.runs[1].start <= block_floor(self.redo) {
            self.runs.remove(0);
        }
        self.note_gaps();
    }
}

/// The ring's table: unit, number of the unit at which the first segment begins, and how many segments follow.
fn ring(at: &mut Cursor<'_>, (unit, base, count): (u64, u64, usize), sized: bool) -> Option<Ring> {
    let segment = |at: &mut Cursor<'_>| {
        let (begin, len) = if sized { (at.u32()?, at.u32()?) } else { (at.u16()?.into(), 1) };
        Some(Segment { at: unit.checked_mul(begin.into())?, len: unit.checked_mul(len.into())? })
    };
    let segments = (0..count).map(|_| segment(at)).collect::<Option<Vec<_>>>()?;
    let base = base.checked_mul(unit)?;
    let least = if sized { at.u64()? } else { unit.checked_mul(count as u64)?.min(EQUAL_LEAST) };
    Some(Ring { unit, base, segments, least })
}

/// Reads both superblocks and chooses.
pub fn load(dev: &dyn Device) -> Result<Loaded> {
    if dev.len() < 2 * BLOCK {
        return Err(Error::NoDatabase(dev.info().name.to_string()));
    }
    let mut buf = AlignedBuf::new(2 * SIZE);
    read_at(dev, 0, &mut buf)?;
    let slots = [Superblock::decode(&buf[..SIZE]), Superblock::decode(&buf[SIZE..])];
    // S5: a newer format in either slot is never overruled by an older one.
    for slot in &slots {
        if let Found::Newer(found) = slot {
            return Err(Error::Version { what: "superblock", found: *found, supported: VERSION });
        }
    }
    let damaged = |what: String| Err(Error::Corrupt(Damage::Superblock(what)));
    let loaded = |sb: Superblock, slot, other| match sb.creating {
        true => unfinished(dev),
        false => Ok(Loaded { sb, slot, other }),
    };
    match slots {
        // S8: a creation began over whatever was there before.
        [Found::Valid(a), Found::Valid(b)] if !a.header.is_of(&b.header) && (a.creating || b.creating) => {
            unfinished(dev)
        }
        // S6: not of one database, or not copies of each other.
        [Found::Valid(a), Found::Valid(b)] if !a.header.is_of(&b.header) || (a.sequence == b.sequence && a != b) => {
            damaged(format!("S6: the two are not of one database (sequences {} and {})", a.sequence, b.sequence))
        }
        // S1: both valid: the newer one.
        [Found::Valid(a), Found::Valid(b)] if a.sequence >= b.sequence => loaded(*a, 0, None),
        [Found::Valid(_), Found::Valid(b)] => loaded(*b, 1, None),
        // S2: one valid.
        [Found::Valid(a), other] => loaded(*a, 0, Some(other.describe())),
        [other, Found::Valid(b)] => loaded(*b, 1, Some(other.describe())),
        // S3: never written.
        [Found::Blank, Found::Blank] => Err(Error::NoDatabase(dev.info().name.to_string())),
        // S4: nothing to go by.
        [a, b] => damaged(format!("S4: both are unusable (first: {}; second: {})", a.describe(), b.describe())),
    }
}

fn unfinished(dev: &dyn Device) -> Result<Loaded> {
    Err(Error::Unfinished(dev.info().name.to_string()))
}

/// A clean superblock is believed only if nothing of a later run is in the log (`S7`): looked at are the block where
/// the next run would begin, and the first block of each segment. (An unclean one is followed by a search of all
/// blocks, row `L10`.)
pub fn refuse_later_run(dev: &dyn Device, sb: &Superblock) -> Result<()> {
    if !sb.clean {
        return Ok(());
    }
    let known = sb.runs.last().expect("never empty").number;
    let next = sb.ring.locate(block_ceil(sb.end)).0;
    let segments = sb.ring.segments.iter().map(|segment| RING_START + segment.at);
    let mut block = AlignedBuf::new(SIZE);
    for at in std::iter::once(next).chain(segments) {
        read_at(dev, at, &mut block)?;
        let head = block[..GROUP_HEADER].try_into().expect("a block has room for it");
        if let Some(group) = GroupHeader::decode_any(head, salt(&sb.header.uuid)).filter(|group| group.run > known) {
            return Err(Error::Corrupt(Damage::Superblock(format!(
                "S7: it says that run {known} closed the database at LSN {}, but run {} wrote at LSN {}: a newer one is lost",
                sb.end, group.run, group.lsn
            ))));
        }
    }
    Ok(())
}

impl Found {
    fn describe(&self) -> String {
        match self {
            Found::Valid(_) => "valid".into(),
            Found::Blank => "blank".into(),
            Found::Damaged(what) => what.clone(),
            Found::Newer(v) => format!("format version {v}"),
        }
    }
}

/// Writes a superblock to slot `first`, then to the other one; returns when both are durable (or, when `durable` is
/// false, merely written).
pub fn store(dev: &dyn Device, first: usize, sb: &Superblock, durable: bool) -> Result<()> {
    store_one(dev, first, sb, durable)?;
    store_one(dev, 1 - first, sb, durable)
}

/// Writes a superblock to one slot.
pub fn store_one(dev: &dyn Device, slot: usize, sb: &Superblock, durable: bool) -> Result<()> {
    assert!(slot < 2, "there are two superblocks");
    assert!((1..=MAX_RUNS).contains(&sb.runs.len()), "a superblock has room for {MAX_RUNS} runs");
    assert!(sb.ring.is_valid(), "a ring that is noted is one that is believed when it is read");
    assert!(sb.runs.is_sorted_by(|a, b| a.start <= b.start && a.number < b.number), "runs follow each other");
    assert!(sb.makes_sense(), "what is written is what a reader takes for sound");
    Ok(write_at(dev, slot as u64 * BLOCK, &sb.encode(), durable)?)
}

struct Cursor<'a> {
    b: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let bytes = self.b.get(self.at..self.at.checked_add(n)?)?;
        self.at += n;
        Some(bytes)
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes(self.take(2)?.try_into().ok()?))
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn longs<const N: usize>(&mut self) -> Option<[u64; N]> {
        let mut longs = [0; N];
        for long in &mut longs {
            *long = self.u64()?;
        }
        Some(longs)
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sound() -> Superblock {
        let header = DbHeader { uuid: [7; 16], page_size: 8192, room: 96, created: 0, options: vec![1, 2, 3] };
        let generation = Generation { number: 9, tie: 10 };
        let birth = Birth { creating: false, generation, identity: Some([PageId(2), PageId(3)]) };
        Superblock { mended: 1, ..Superblock::new(header, Ring::new(1 << 20, 4), 0, birth) }
    }

    #[test]
    fn numbers_that_no_log_reaches_are_damage() {
        let sound = sound();
        assert!(matches!(Superblock::decode(&sound.encode()), Found::Valid(sb) if *sb == sound));
        let changes: [fn(&mut Superblock); 10] = [
            |sb| sb.redo = u64::MAX - 1,
            |sb| sb.end = MOST,
            |sb| sb.runs[0].start = u64::MAX,
            |sb| sb.runs[0].prev_end = u64::MAX,
            |sb| sb.runs[0].number = u32::MAX,
            |sb| sb.sequence = u64::MAX,
            |sb| sb.generation.number = u64::MAX,
            |sb| sb.header.page_size = 0,
            |sb| sb.header.page_size = 5000,
            |sb| sb.header.room = 8192,
        ];
        for (i, change) in changes.iter().enumerate() {
            let mut sb = sound.clone();
            change(&mut sb);
            assert!(matches!(Superblock::decode(&sb.encode()), Found::Damaged(_)), "change {i}");
        }
    }

    #[test]
    fn the_longest_superblock_fits_its_block() {
        let mut sb = sound();
        sb.header.options = vec![5; MAX_OPTIONS];
        sb.set_ring(Ring::new(1 << 20, MAX_SEGMENTS));
        sb.runs = (0..MAX_RUNS as u32).map(|number| Run { number, start: 0, prev_end: 0 }).collect();
        sb.clean = true;
        let stays = |sb: &Superblock| matches!(Superblock::decode(&sb.encode()), Found::Valid(read) if *read == *sb);
        assert!(stays(&sb) && !sb.features.has(&SEGMENT_SIZES), "as earlier releases wrote it");
        sb.set_ring(Ring::new(1 << 20, 1).grown(0, &[2 << 20; MAX_SIZED - 1]).unwrap());
        assert!(stays(&sb) && sb.features.has(&SEGMENT_SIZES));
    }

    /// Format version 1, as earlier releases wrote it.
    #[test]
    fn superblocks_of_version_1_are_read() {
        let new = Superblock { features: Features::default(), ..sound() };
        let bytes = new.encode();
        let mut old = AlignedBuf::new(SIZE);
        old[..104].copy_from_slice(&bytes[..104]);
        old[8] = 1;
        let rest = SIZE - 4 - 168;
        old[104..104 + rest].copy_from_slice(&bytes[168..168 + rest]);
        let crc = crc32c::crc32c(&old[..SIZE - 4]);
        old[SIZE - 4..].copy_from_slice(&crc.to_le_bytes());
        let none = Superblock { generation: Generation::default(), identity: None, mended: 0, ..new };
        assert!(matches!(Superblock::decode(&old), Found::Valid(sb) if *sb == none));
    }
}
