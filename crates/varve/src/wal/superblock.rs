//! The two superblocks at the start of the log device: identity of the database, redo point, ring table, runs.
//!
//! They are written in turn, each with a higher sequence number, so that a torn write leaves the other. Invariant: a write
//! goes to the slot that does not hold the newest valid superblock. Layout: `docs/format.md`, "Superblock". The rows of the
//! decision table in `docs/wal.md` appear here as `S1`..`S6`.

use super::format::{BLOCK, block_floor};
use super::ring::{MAX_SEGMENTS, Ring};
use crate::error::{Damage, Error, Result};
use varve_device::{AlignedBuf, Device, read_at, write_at};
use varve_volume::Lsn;

/// Newest superblock format understood.
pub const VERSION: u32 = 1;
/// Most runs between two completed checkpoints.
pub const MAX_RUNS: usize = 32;
/// Below it are all positions and sequence numbers: what exceeds it is damage, and would overflow further on.
const MOST: u64 = 1 << 62;
/// Most bytes of [`DbHeader::options`].
pub const MAX_OPTIONS: usize = 512;

const SIZE: usize = BLOCK as usize;
const MAGIC: &[u8; 8] = b"VARVELOG";
const CLEAN: u32 = 1;

/// What identifies a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DbHeader {
    /// Identity; must differ between databases.
    pub uuid: [u8; 16],
    /// Bytes of a page.
    pub page_size: u32,
    /// When it was created, nanoseconds since 1970-01-01 UTC.
    pub created: u64,
    /// Options of the upper layers, not looked into; see [`crate::wal::Log::set_options`]. At most [`MAX_OPTIONS`] bytes.
    pub options: Vec<u8>,
}

impl DbHeader {
    /// Whether both are of one database; a crash may come between a change of the options in one superblock and in the other.
    fn is_of(&self, other: &DbHeader) -> bool {
        (self.uuid, self.page_size, self.created) == (other.uuid, other.page_size, other.created)
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
enum Slot {
    Valid(Box<Superblock>),
    Blank,
    Damaged(String),
    Newer(u32),
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
    /// The block's bytes.
    pub fn encode(&self) -> AlignedBuf {
        let mut out = Vec::with_capacity(SIZE);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&(if self.clean { CLEAN } else { 0 }).to_le_bytes());
        out.extend_from_slice(&self.sequence.to_le_bytes());
        out.extend_from_slice(&self.header.uuid);
        out.extend_from_slice(&self.header.page_size.to_le_bytes());
        out.extend_from_slice(&(self.header.options.len() as u32).to_le_bytes());
        for n in [self.header.created, self.redo, self.end, self.replay_rate, self.ring.segment, self.ring.base] {
            out.extend_from_slice(&n.to_le_bytes());
        }
        out.extend_from_slice(&(self.ring.order.len() as u32).to_le_bytes());
        out.extend_from_slice(&(self.runs.len() as u32).to_le_bytes());
        for run in &self.runs {
            out.extend_from_slice(&run.start.to_le_bytes());
            out.extend_from_slice(&run.prev_end.to_le_bytes());
            out.extend_from_slice(&u64::from(run.number).to_le_bytes());
        }
        out.extend_from_slice(&self.header.options);
        for slot in &self.ring.order {
            out.extend_from_slice(&slot.to_le_bytes());
        }
        assert!(out.len() <= SIZE - 4, "a superblock fits its block");
        let mut buf = AlignedBuf::new(SIZE);
        buf[..out.len()].copy_from_slice(&out);
        let crc = crc32c::crc32c(&buf[..SIZE - 4]);
        buf[SIZE - 4..].copy_from_slice(&crc.to_le_bytes());
        buf
    }

    fn decode(b: &[u8]) -> Slot {
        if b.iter().all(|&x| x == 0) {
            return Slot::Blank;
        }
        let mut at = Cursor { b, at: 0 };
        if at.take(8) != Some(MAGIC.as_slice()) {
            return Slot::Damaged("not a superblock (wrong magic)".into());
        }
        if b[SIZE - 4..] != crc32c::crc32c(&b[..SIZE - 4]).to_le_bytes() {
            return Slot::Damaged("checksum mismatch".into());
        }
        match at.u32() {
            Some(VERSION) => {}
            Some(version) if version > VERSION => return Slot::Newer(version),
            version => return Slot::Damaged(format!("format version {version:?}")),
        }
        match Superblock::fields(&mut at) {
            Some(sb) if sb.makes_sense() => Slot::Valid(Box::new(sb)),
            _ => Slot::Damaged("fields out of range".into()),
        }
    }

    fn fields(at: &mut Cursor<'_>) -> Option<Superblock> {
        let clean = at.u32()? & CLEAN != 0;
        let sequence = at.u64()?;
        let uuid = at.take(16)?.try_into().ok()?;
        let page_size = at.u32()?;
        let options = at.u32()? as usize;
        let (created, redo, end, replay_rate) = (at.u64()?, at.u64()?, at.u64()?, at.u64()?);
        let (segment, base) = (at.u64()?, at.u64()?);
        let (slots, runs) = (at.u32()? as usize, at.u32()? as usize);
        if options > MAX_OPTIONS || slots > MAX_SEGMENTS || runs > MAX_RUNS {
            return None;
        }
        let run = |at: &mut Cursor<'_>| {
            Some(Run { start: at.u64()?, prev_end: at.u64()?, number: at.u64()?.try_into().ok()? })
        };
        let runs = (0..runs).map(|_| run(at)).collect::<Option<Vec<Run>>>()?;
        let options = at.take(options)?.to_vec();
        let order = (0..slots).map(|_| at.u16()).collect::<Option<Vec<u16>>>()?;
        let header = DbHeader { uuid, page_size, created, options };
        let ring = Ring { segment, base, order };
        Some(Superblock { sequence, header, clean, redo, end, replay_rate, ring, runs })
    }

    fn makes_sense(&self) -> bool {
        let positions =
            [self.redo, self.end].into_iter().chain(self.runs.iter().flat_map(|run| [run.start, run.prev_end]));
        self.ring.is_valid()
            && positions.max().is_some_and(|most| most < MOST)
            && self.sequence < MOST
            && self.runs.iter().all(|run| run.number < u32::MAX)
            && !self.runs.is_empty()
            && self.runs.is_sorted_by(|a, b| a.start <= b.start && a.number < b.number)
    }

    /// Drops runs that lie wholly before the redo point.
    pub fn prune_runs(&mut self) {
        while self.runs.len() > 1 && self.runs[1].start <= block_floor(self.redo) {
            self.runs.remove(0);
        }
    }
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
        if let Slot::Newer(found) = slot {
            return Err(Error::Version { what: "superblock", found: *found, supported: VERSION });
        }
    }
    let damaged = |what: String| Err(Error::Corrupt(Damage::Superblock(what)));
    match slots {
        // S1: both valid: the newer one; S6: not of one database.
        [Slot::Valid(a), Slot::Valid(b)] if !a.header.is_of(&b.header) || a.sequence == b.sequence => {
            damaged(format!("S6: the two are not of one database (sequences {} and {})", a.sequence, b.sequence))
        }
        [Slot::Valid(a), Slot::Valid(b)] => {
            let (sb, slot) = if a.sequence > b.sequence { (*a, 0) } else { (*b, 1) };
            Ok(Loaded { sb, slot, other: None })
        }
        // S2: one valid.
        [Slot::Valid(a), other] => Ok(Loaded { sb: *a, slot: 0, other: Some(other.describe()) }),
        [other, Slot::Valid(b)] => Ok(Loaded { sb: *b, slot: 1, other: Some(other.describe()) }),
        // S3: never written.
        [Slot::Blank, Slot::Blank] => Err(Error::NoDatabase(dev.info().name.to_string())),
        // S4: nothing to go by.
        [a, b] => damaged(format!("S4: both are unusable (first: {}; second: {})", a.describe(), b.describe())),
    }
}

impl Slot {
    fn describe(&self) -> String {
        match self {
            Slot::Valid(_) => "valid".into(),
            Slot::Blank => "blank".into(),
            Slot::Damaged(what) => what.clone(),
            Slot::Newer(v) => format!("format version {v}"),
        }
    }
}

/// Writes a superblock to a slot; returns when it is durable (or, when `durable` is false, merely written).
pub fn store(dev: &dyn Device, slot: usize, sb: &Superblock, durable: bool) -> Result<()> {
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

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_no_log_reaches_are_damage() {
        let header = DbHeader { uuid: [7; 16], page_size: 8192, created: 0, options: Vec::new() };
        let runs = vec![Run { number: 1, start: 0, prev_end: 0 }];
        let ring = Ring::new(1 << 20, 4);
        let sound = Superblock { sequence: 1, header, clean: false, redo: 0, end: 0, replay_rate: 0, ring, runs };
        assert!(matches!(Superblock::decode(&sound.encode()), Slot::Valid(sb) if *sb == sound));
        let changes: [fn(&mut Superblock); 6] = [
            |sb| sb.redo = u64::MAX - 1,
            |sb| sb.end = MOST,
            |sb| sb.runs[0].start = u64::MAX,
            |sb| sb.runs[0].prev_end = u64::MAX,
            |sb| sb.runs[0].number = u32::MAX,
            |sb| sb.sequence = u64::MAX,
        ];
        for (i, change) in changes.iter().enumerate() {
            let mut sb = sound.clone();
            change(&mut sb);
            assert!(matches!(Superblock::decode(&sb.encode()), Slot::Damaged(_)), "change {i}");
        }
    }
}
