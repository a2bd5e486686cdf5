//! Rows of the tree that lists a keyspace's segments.
//!
//! Key: number of the segment u64 big endian, number of the part u16 big endian. The parts of a segment's row, one
//! after the other: version u8 (1), level u8, open end u8, then varints: pages, entries, deletions, ranges, bytes,
//! first and last commit number, number of runs, and of each run its first page and its pages; then smallest and
//! largest key, each after its length. (`SegmentMeta` says what they are.)
//!
//! Invariants: a row is read to its last byte, or is an error; what was read can be worked with: there is such a level,
//! there are numbers above that of the segment and of its pages, no page is named twice, and sums of what segments
//! count do not overflow.

use super::varint::{push_varint, varint};
use super::{LAST_LEVEL, Segment, SegmentMeta};
use crate::error::{Error, Result};
use varve_volume::{KeyspaceId, Lsn, PageId};

const VERSION: u8 = 1;
/// Bytes of a row's key.
pub(super) const KEY: usize = 10;
/// Below it are numbers of pages, and what a segment counts: no device has room for more.
const MOST: u64 = 1 << 48;
/// Most pages of a segment: its trailer counts them in 32 bits.
const MOST_PAGES: u64 = u32::MAX as u64;
/// Below it are commit numbers, which are positions in the log.
const MOST_LSN: Lsn = 1 << 62;

fn key(segment: u64, part: u16) -> Vec<u8> {
    let mut key = segment.to_be_bytes().to_vec();
    key.extend_from_slice(&part.to_be_bytes());
    key
}

/// A segment's row, in one piece.
pub(crate) fn encode(segment: &Segment, level: u8) -> Vec<u8> {
    let meta = &segment.meta;
    debug_assert_eq!(segment.runs.iter().map(|(_, n)| n).sum::<u64>(), meta.pages, "runs are of all pages");
    let mut to = vec![VERSION, level, meta.open_end.into()];
    let numbers = [meta.pages, meta.entries, meta.deletions, meta.ranges, meta.bytes, meta.commits.0, meta.commits.1];
    numbers.into_iter().chain([segment.runs.len() as u64]).for_each(|n| push_varint(&mut to, n));
    for (first, pages) in &segment.runs {
        push_varint(&mut to, first.0);
        push_varint(&mut to, *pages);
    }
    for bound in [&meta.smallest, &meta.largest] {
        push_varint(&mut to, bound.len() as u64);
        to.extend_from_slice(bound);
    }
    to
}

/// What [`encode`] wrote; none when it did not.
pub(crate) fn decode(id: u64, bytes: &[u8]) -> Option<(u8, Segment)> {
    let [VERSION, level, open_end @ (0 | 1), ..] = *bytes else { return None };
    let at = &mut 3;
    let mut numbers = [0; 8];
    for n in &mut numbers {
        *n = varint(bytes, at)?;
    }
    let [pages, entries, deletions, ranges, size, first, last, count] = numbers;
    let mut runs = Vec::new();
    for _ in 0..count {
        runs.push((PageId(varint(bytes, at)?), varint(bytes, at)?));
    }
    let mut bound = || {
        let len = usize::try_from(varint(bytes, at)?).ok()?;
        let bound = bytes.get(*at..at.checked_add(len)?)?;
        *at += len;
        Some(Box::from(bound))
    };
    let (smallest, largest): (Box<[u8]>, Box<[u8]>) = (bound()?, bound()?);
    let sum = runs.iter().try_fold(0u64, |sum, (_, pages)| sum.checked_add(*pages))?;
    let commits = (first, last);
    let open_end = open_end == 1;
    let meta = SegmentMeta { pages, smallest, largest, open_end, entries, deletions, ranges, bytes: size, commits };
    let counts = (1..=MOST_PAGES).contains(&pages) && deletions <= entries && entries.max(ranges).max(size) < MOST;
    let bounds = meta.smallest < meta.largest || meta.smallest == meta.largest && !open_end;
    let plausible = sum == pages && counts && bounds && first <= last && last < MOST_LSN;
    (*at == bytes.len() && plausible).then_some((level, Segment { id, meta, runs }))
}

/// Whether runs have pages, which devices could have, and none in common.
pub(super) fn are_disjoint(runs: &[(PageId, u64)]) -> bool {
    let mut sorted: Vec<(u64, u64)> = runs.iter().map(|(first, pages)| (first.0, *pages)).collect();
    sorted.sort_unstable();
    sorted.iter().all(|(first, pages)| *first < MOST && (1..MOST - first).contains(pages))
        && sorted.is_sorted_by(|(first, pages), (next, _)| first + pages <= *next)
}

/// What cannot be of a segment that was read, if anything.
fn fault(level: u8, segment: &Segment) -> Option<String> {
    if level > LAST_LEVEL {
        return Some(format!("segment {} is on level {level}, the last is {LAST_LEVEL}", segment.id));
    }
    if segment.id == u64::MAX {
        return Some(format!("segment {} has the last number there is", segment.id));
    }
    let what = "has a run without pages, runs with pages in common, or pages past the last there can be";
    (!are_disjoint(&segment.runs)).then(|| format!("segment {} {what}", segment.id))
}

/// Fails if a segment could not be listed: what it was merged from had numbers that cannot be.
pub(super) fn check(segment: &Segment, level: u8, keyspace: KeyspaceId, root: PageId) -> Result<()> {
    let read = decode(segment.id, &encode(segment, level)).is_some_and(|(at, read)| at == level && read == *segment);
    if read && fault(level, segment).is_none() {
        return Ok(());
    }
    let what = format!("segment {} cannot be listed: what it was made of is damaged", segment.id);
    Err(Error::corrupt_page(segment.runs.first().map_or(root, |run| run.0), Some(keyspace), what))
}

/// The rows of a segment on a level; no value is longer than `most`.
pub(crate) fn rows(segment: &Segment, level: u8, most: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    debug_assert!(fault(level, segment).is_none(), "what is listed can be read again");
    let bytes = encode(segment, level);
    assert!(bytes.len() / most < usize::from(u16::MAX), "the parts of a row have numbers");
    let parts = bytes.chunks(most).enumerate();
    parts.map(|(n, part)| (key(segment.id, n as u16), part.to_vec())).collect()
}

/// The segments that these rows (in the order of their keys) are of, each with its level.
pub(crate) fn segments(rows: &[(Vec<u8>, Vec<u8>)], keyspace: KeyspaceId, root: PageId) -> Result<Vec<(u8, Segment)>> {
    let bad = |what: String| Error::corrupt_page(root, Some(keyspace), format!("list of segments: {what}"));
    let mut found = Vec::new();
    if let Some((key, _)) = rows.iter().find(|(key, _)| key.len() != KEY) {
        return Err(bad(format!("key {key:02x?} is not {KEY} bytes")));
    }
    for of_one in rows.chunk_by(|(a, _), (b, _)| a[..8] == b[..8]) {
        let id = u64::from_be_bytes(of_one[0].0[..8].try_into().expect("eight bytes"));
        let whole = of_one.iter().enumerate().all(|(n, (key, _))| key[8..] == (n as u16).to_be_bytes());
        let bytes: Vec<u8> = of_one.iter().flat_map(|(_, part)| part).copied().collect();
        let Some((level, segment)) = decode(id, &bytes).filter(|_| whole) else {
            return Err(bad(format!("the row of segment {id} cannot be read")));
        };
        if let Some(what) = fault(level, &segment) {
            return Err(bad(what));
        }
        found.push((level, segment));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(runs: u64, key: usize) -> Segment {
        let meta = SegmentMeta {
            pages: 3 * runs,
            smallest: vec![1; key].into(),
            largest: vec![2; key].into(),
            open_end: false,
            entries: 100,
            deletions: 7,
            ranges: 0,
            bytes: 1 << 40,
            commits: (5, 500),
        };
        Segment { id: 77, meta, runs: (0..runs).map(|n| (PageId(n << 30), 3)).collect() }
    }

    #[test]
    fn rows_survive_in_parts_and_damage_is_an_error() {
        for (runs, key, most) in [(1, 0, 4000), (300, 2048, 500), (2, 5, 1)] {
            let segment = segment(runs, key);
            let rows = rows(&segment, 6, most);
            assert!(rows.iter().all(|(_, part)| part.len() <= most));
            let read = |rows: &[(Vec<u8>, Vec<u8>)]| segments(rows, KeyspaceId(3), PageId(9));
            assert_eq!(read(&rows).unwrap(), [(6, segment)]);
            let mut less = rows.clone();
            less.pop();
            assert!(read(&less).is_err() == (rows.len() > 1), "a part less");
            let mut other = rows.clone();
            other.last_mut().unwrap().1.push(0);
            assert!(read(&other).unwrap_err().to_string().contains("segment 77"));
            let mut short = rows;
            short[0].0.pop();
            assert!(read(&short).is_err());
        }
    }

    #[test]
    fn a_row_that_can_be_read_and_says_what_cannot_be_is_an_error_that_names_it() {
        let read = |segment: &Segment, level| {
            let row = (key(segment.id, 0), encode(segment, level));
            segments(&[row], KeyspaceId(3), PageId(9)).map_err(|e| e.to_string())
        };
        let good = segment(2, 5);
        assert_eq!(read(&good, LAST_LEVEL), Ok(vec![(LAST_LEVEL, segment(2, 5))]));
        let numbered = Segment { id: u64::MAX, ..segment(2, 5) };
        let with = |runs: &[(u64, u64)]| {
            let runs: Vec<_> = runs.iter().map(|(first, pages)| (PageId(*first), *pages)).collect();
            let pages = runs.iter().map(|(_, pages)| pages).sum();
            Segment { id: 77, meta: SegmentMeta { pages, ..good.meta.clone() }, runs }
        };
        let (far, empty) = (with(&[(1, 3), (u64::MAX - 2, 2)]), with(&[(1, 3), (9, 0)]));
        let (within, across) = (with(&[(1, 9), (4, 1)]), with(&[(20, 9), (7, 14)]));
        assert!(read(&with(&[(20, 9), (7, 13), (4, 3)]), 6).is_ok(), "runs in any order may touch");
        let (long, none) = (with(&[(1, 1 << 60)]), with(&[]));
        let more = |change: fn(&mut SegmentMeta)| {
            let mut other = segment(2, 5);
            change(&mut other.meta);
            other
        };
        let counts = [
            more(|meta| meta.deletions = meta.entries + 1),
            more(|meta| meta.entries = u64::MAX),
            more(|meta| meta.bytes = u64::MAX),
            more(|meta| meta.commits.1 = u64::MAX),
            more(|meta| (meta.largest, meta.open_end) = (meta.smallest.clone(), true)),
        ];
        let wrong = [
            (&good, 7, "level 7"),
            (&good, 255, "level 255"),
            (&numbered, 6, "number"),
            (&far, 6, "past the last"),
            (&empty, 6, "without pages"),
            (&within, 6, "in common"),
            (&across, 6, "in common"),
            (&long, 6, "cannot be read"),
            (&none, 6, "cannot be read"),
        ];
        let listed = |segment: &Segment| check(segment, 6, KeyspaceId(3), PageId(9)).map_err(|e| e.to_string());
        assert_eq!(listed(&good), Ok(()));
        assert!(counts.iter().chain([&within, &numbered]).all(|s| listed(s).is_err_and(|e| e.contains("damaged"))));
        let wrong = wrong.into_iter().chain(counts.iter().map(|segment| (segment, 6, "cannot be read")));
        for (segment, level, said) in wrong {
            let e = read(segment, level).unwrap_err();
            let named = ["page 9".into(), format!("segment {}", segment.id), said.into()];
            assert!(named.iter().all(|name: &String| e.contains(name)), "{e}");
        }
    }
}
