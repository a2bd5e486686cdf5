//! What an identity page says, and its bytes (`docs/format.md`, "Identity pages").
//!
//! Invariant: what is written can be read; the lists keep the newest of what they had no more room for.

use super::{BLOCK, KIND_IDENTITY, show};
use crate::error::{Error, Result};
use crate::space::SPACE_KEYSPACE;
use crate::wal::{Gap, Generation};
use varve_device::AlignedBuf;
use varve_volume::page::{self, HEADER};
use varve_volume::{Lsn, PageId};

const UUID: usize = HEADER;
const GENERATION: usize = UUID + 16;
const BEFORE: usize = GENERATION + 16;
const CONFIRMED: usize = BEFORE + 16;
const MAPS: usize = CONFIRMED + 8;
const COUNTS: usize = MAPS + 8;
const LISTS: usize = COUNTS + 8;
/// Gaps that are listed at most.
pub(super) const GAPS: usize = 32;
/// Openings that are listed at most.
pub(super) const OPENINGS: usize = 128;
const ROW: usize = 16;
const _: () = assert!(GAPS <= u8::MAX as usize, "the number of gaps is one byte");
const _: () = assert!(OPENINGS <= u8::MAX as usize, "the number of openings is one byte");
// Room for delta records takes a quarter of a page at most.
const _: () = assert!(LISTS + (GAPS + OPENINGS) * ROW <= BLOCK / 4 * 3, "an identity fits the smallest page");

/// Below it are generations and positions in the log, as the log's superblock has them.
pub(super) const MOST: u64 = 1 << 62;
/// Below it are numbers of pages of the space map: none counts pages past the last number of one.
pub(super) const MOST_MAPS: u64 = 1 << 40;

/// An opening of the database for writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Opening {
    /// Where its groups begin in the log.
    pub start: Lsn,
    /// Of its generations: drawn anew by each opening.
    pub tie: u64,
}

impl Opening {
    /// As a backup notes it: never 0.
    pub fn short(&self) -> u32 {
        ((self.tie >> 32) as u32 ^ self.tie as u32).max(1)
    }
}

/// What an identity page says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub uuid: [u8; 16],
    pub generation: Generation,
    /// The generation before.
    pub before: Generation,
    /// The log's superblock says so too.
    pub confirmed: bool,
    /// The log was durable to here.
    pub durable: Lsn,
    /// Pages of the space map that were made by then; 0: not known.
    pub maps: u64,
    /// LSNs that the log left out, the oldest first.
    pub gaps: Vec<Gap>,
    /// The openings until now, the oldest first; empty: made by a release that did not list them.
    pub openings: Vec<Opening>,
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

fn put(bytes: &mut [u8], at: usize, pair: [u64; 2]) {
    bytes[at..at + 8].copy_from_slice(&pair[0].to_le_bytes());
    bytes[at + 8..at + ROW].copy_from_slice(&pair[1].to_le_bytes());
}

impl Record {
    pub fn encode(&self, id: PageId, page_size: usize) -> AlignedBuf {
        assert!(self.gaps.len() <= GAPS && self.openings.len() <= OPENINGS, "the lists keep what they have room for");
        let mut bytes = AlignedBuf::new(page_size);
        page::set_kind(&mut bytes, KIND_IDENTITY);
        page::set_keyspace(&mut bytes, SPACE_KEYSPACE);
        page::set_lsn(&mut bytes, self.durable);
        bytes[UUID..UUID + 16].copy_from_slice(&self.uuid);
        for (at, Generation { number, tie }) in [(GENERATION, self.generation), (BEFORE, self.before)] {
            put(&mut bytes, at, [number, tie]);
        }
        bytes[CONFIRMED] = self.confirmed.into();
        bytes[MAPS..MAPS + 8].copy_from_slice(&self.maps.to_le_bytes());
        (bytes[COUNTS], bytes[COUNTS + 1]) = (self.gaps.len() as u8, self.openings.len() as u8);
        let gaps = self.gaps.iter().map(|gap| [gap.end, gap.start]);
        let rows = gaps.chain(self.openings.iter().map(|opening| [opening.start, opening.tie]));
        for (i, row) in rows.enumerate() {
            put(&mut bytes, LISTS + i * ROW, row);
        }
        page::seal(&mut bytes, id);
        bytes
    }

    /// What a whole page says; `None`: it is a page of another kind, or says what no database comes to.
    pub fn decode(bytes: &[u8]) -> Option<Record> {
        let generation = |at: usize| Generation { number: long(bytes, at), tie: long(bytes, at + 8) };
        let numbers = [long(bytes, GENERATION), long(bytes, BEFORE), page::lsn(bytes)];
        let sane = numbers.iter().all(|n| *n < MOST) && long(bytes, MAPS) < MOST_MAPS;
        let (gaps, openings) = (usize::from(bytes[COUNTS]), usize::from(bytes[COUNTS + 1]));
        if !sane || page::kind(bytes) != KIND_IDENTITY || gaps > GAPS || openings > OPENINGS {
            return None;
        }
        let row = |i: usize| (long(bytes, LISTS + i * ROW), long(bytes, LISTS + i * ROW + 8));
        let gaps: Vec<Gap> = (0..gaps).map(row).map(|(end, start)| Gap { end, start }).collect();
        let openings: Vec<Opening> =
            (gaps.len()..gaps.len() + openings).map(row).map(|(start, tie)| Opening { start, tie }).collect();
        let rises = gaps.is_sorted_by_key(|gap| gap.end) && openings.is_sorted_by_key(|opening| opening.start);
        let bounded = gaps.iter().all(|gap| gap.end < gap.start && gap.start < MOST)
            && openings.iter().all(|opening| opening.start < MOST);
        (rises && bounded).then(|| Record {
            uuid: bytes[UUID..UUID + 16].try_into().expect("16 bytes"),
            generation: generation(GENERATION),
            before: generation(BEFORE),
            confirmed: bytes[CONFIRMED] == 1,
            durable: page::lsn(bytes),
            maps: long(bytes, MAPS),
            gaps,
            openings,
        })
    }

    /// The log goes on behind `gap`, in an opening with this tie. (One before that wrote nothing began there too.)
    pub fn opens(&mut self, gap: Gap, tie: u64) {
        self.openings.retain(|opening| opening.start <= gap.start);
        self.openings.push(Opening { start: gap.start, tie });
        self.openings.drain(..self.openings.len().saturating_sub(OPENINGS));
        self.gaps.retain(|earlier| earlier.end < gap.end);
        self.gaps.extend(gap.is_of_a_crash().then_some(gap));
        self.gaps.drain(..self.gaps.len().saturating_sub(GAPS));
        debug_assert!(self.gaps.is_sorted_by_key(|gap| gap.end), "gaps are in the order of the log");
        debug_assert!(self.openings.is_sorted_by_key(|opening| opening.start), "openings are in the order of the log");
    }

    /// The openings whose log may end at this position: the one that it lies in and any that begins right there.
    /// `None`: so long ago that nobody knows.
    pub fn openings_at(&self, lsn: Lsn) -> Option<&[Opening]> {
        let first = self.openings.partition_point(|opening| opening.start < lsn).checked_sub(1)?;
        let past = self.openings.partition_point(|opening| opening.start <= lsn);
        Some(&self.openings[first..past])
    }

    /// Whether a data device with this record belongs to a log of that identity and generation.
    pub fn judge(&self, (uuid, log): ([u8; 16], Generation)) -> Result<()> {
        let crash_between = !self.confirmed && self.before == log && self.generation.number == log.number + 1;
        if self.uuid == uuid && (self.generation == log || crash_between) {
            return Ok(());
        }
        let (data, number) = (self.generation.number, log.number);
        Err(Error::Mismatch(match (self.uuid == uuid, data.cmp(&number)) {
            (false, _) => {
                format!("`data` is of another database ({}) than the log ({})", show(&self.uuid), show(&uuid))
            }
            (_, std::cmp::Ordering::Less) => format!("`data` is older (generation {data}) than the log ({number})"),
            (_, std::cmp::Ordering::Greater) => format!("the log is older (generation {number}) than `data` ({data})"),
            (_, std::cmp::Ordering::Equal) => {
                format!("`data` and log are of copies of the database that went different ways (generation {data})")
            }
        }))
    }
}

impl std::fmt::Display for Record {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let how = if self.confirmed { "" } else { ", intended" };
        write!(f, "database {}, generation {}{how}", show(&self.uuid), self.generation.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wal::GAP;

    fn record() -> Record {
        let generation = Generation { number: 9, tie: 10 };
        let before = Generation { number: 8, tie: u64::MAX };
        let (gaps, openings) = (vec![Gap { end: 5000, start: 8192 }], vec![Opening { start: 8192, tie: u64::MAX }]);
        Record { uuid: [7; 16], generation, before, confirmed: true, durable: 4096, maps: 3, gaps, openings }
    }

    #[test]
    fn a_whole_page_with_numbers_that_no_database_comes_to_is_damage() {
        let read = |record: &Record| Record::decode(&record.encode(PageId(2), 4096));
        assert_eq!(read(&record()), Some(record()));
        let changes: [fn(&mut Record); 9] = [
            |record| record.generation.number = u64::MAX,
            |record| record.before.number = MOST,
            |record| record.durable = u64::MAX,
            |record| record.maps = u64::MAX,
            |record| record.maps = MOST_MAPS,
            |record| record.gaps[0].start = record.gaps[0].end,
            |record| record.gaps[0].start = MOST,
            |record| record.openings[0].start = MOST,
            |record| record.openings.push(Opening { start: 0, tie: 0 }),
        ];
        for (i, change) in changes.iter().enumerate() {
            let mut record = record();
            change(&mut record);
            assert_eq!(read(&record), None, "change {i}");
        }
    }

    #[test]
    fn the_newest_openings_and_gaps_are_kept() {
        let mut record = Record { gaps: Vec::new(), openings: Vec::new(), ..record() };
        for n in 1..=300 {
            // An opening that came to nothing, then one that did; each third one after a clean close.
            let end = n * 4 * GAP;
            let start = end + if n % 3 == 0 { 96 } else { GAP };
            (0..2).for_each(|half| record.opens(Gap { end, start }, 10 * n + half));
        }
        assert_eq!(Record::decode(&record.encode(PageId(2), 4096)), Some(record.clone()));
        assert!(record.gaps.len() == GAPS && record.openings.len() == OPENINGS);
        let ties = |lsn| {
            let openings = record.openings_at(lsn)?;
            Some(openings.iter().map(|opening| opening.tie).collect::<Vec<_>>())
        };
        assert_eq!(ties(300 * 4 * GAP), Some(vec![2991]), "the last wrote nothing before this");
        assert_eq!(ties(300 * 4 * GAP + 96), Some(vec![2991, 3000, 3001]), "nor does who began there need to have");
        assert_eq!(ties(300 * 4 * GAP + 97), Some(vec![3001]));
        assert_eq!(ties(GAP), None);
        assert!(record.gaps.iter().all(|gap| gap.start - gap.end == GAP));
    }
}
