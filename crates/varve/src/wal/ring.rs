//! Where the bytes of the log stream lie on the device: a ring of segments that grows and shrinks.
//!
//! One lap of the stream fills the segments in their order; the next lap overwrites them. A ring that grows gets fresh
//! segments behind the newest byte that it can hold now, so no live byte moves; the larger it is the longer they are,
//! so a small log is a small file and a large one has a short table. A ring that shrinks gives up segments at the
//! device's end in which nothing live lies.
//!
//! Invariants: the segments cover the device without gap or overlap; every position that was live before a ring grew or
//! shrank lies where it lay; a ring that grew gives room for as many bytes more.

use super::format::BLOCK;
use varve_volume::Lsn;

/// Bytes before the first segment: two superblocks.
pub const RING_START: u64 = 2 * BLOCK;
/// Most segments of a ring whose segments are all as long (the table must fit a superblock).
pub const MAX_SEGMENTS: usize = 1024;
/// Most segments of a ring of other segments, whose table has four times as much for each.
pub const MAX_SIZED: usize = MAX_SEGMENTS / 4;
/// Of what a ring with segments of its own sizes holds when it has grown, the part that a new segment is.
const PART: u64 = 16;
/// A ring of equal segments that could list this many keeps to them when it grows.
const EQUAL: u64 = 512;

const _: () = assert!(RING_START.is_multiple_of(BLOCK) && MAX_SEGMENTS <= u16::MAX as usize + 1);

/// A part of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Where it begins, bytes after the superblocks.
    pub at: u64,
    /// Its length in bytes.
    pub len: u64,
}

/// The ring's map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ring {
    /// What every length and place is a multiple of: a multiple of the block.
    pub unit: u64,
    /// A position, a multiple of the unit, that lies at the beginning of the first segment.
    pub base: Lsn,
    /// Segments in ring order.
    pub segments: Vec<Segment>,
    /// Bytes below which it does not shrink.
    pub least: u64,
}

impl Ring {
    /// A new ring of `count` segments of a unit each, below which it does not shrink.
    pub fn new(unit: u64, count: usize) -> Ring {
        assert!(unit >= BLOCK && unit.is_multiple_of(BLOCK), "segments are whole blocks");
        assert!((1..=MAX_SEGMENTS).contains(&count), "a ring has 1 to {MAX_SEGMENTS} segments");
        let segments = (0..count as u64).map(|i| Segment { at: i * unit, len: unit }).collect();
        Ring { unit, base: 0, segments, least: count as u64 * unit }
    }

    /// Bytes that the ring holds.
    pub fn capacity(&self) -> u64 {
        self.segments.iter().map(|s| s.len).sum()
    }

    /// Bytes of the longest segment.
    pub fn longest_segment(&self) -> u64 {
        self.segments.iter().map(|s| s.len).max().expect("a ring has a segment")
    }

    /// Bytes that the device must have.
    pub fn device_len(&self) -> u64 {
        RING_START + self.capacity()
    }

    /// Whether every segment is a unit: earlier releases know such rings only.
    pub fn is_equal(&self) -> bool {
        self.segments.iter().all(|s| s.len == self.unit && s.at.is_multiple_of(self.unit))
    }

    /// The segment of a position, by its place in the order, and how far into it the position lies.
    fn find(&self, lsn: Lsn) -> (usize, u64) {
        let lap = i128::from(self.capacity());
        let mut within = (i128::from(lsn) - i128::from(self.base)).rem_euclid(lap) as u64;
        for (i, segment) in self.segments.iter().enumerate() {
            if within < segment.len {
                return (i, within);
            }
            within -= segment.len;
        }
        unreachable!("a position within a lap lies in one of its segments")
    }

    /// First LSN past what may be written while everything from `redo` on is needed.
    pub fn limit(&self, redo: Lsn) -> Lsn {
        redo - self.find(redo).1.min(redo) + self.capacity()
    }

    /// Device offset of a position, and how many bytes from there on are contiguous.
    pub fn locate(&self, lsn: Lsn) -> (u64, u64) {
        let (i, within) = self.find(lsn);
        let segment = self.segments[i];
        (RING_START + segment.at + within, segment.len - within)
    }

    /// The pieces of `[start, end)` on the device, in order: `(LSN, device offset, bytes)`.
    pub fn pieces(&self, start: Lsn, end: Lsn) -> Vec<(Lsn, u64, u64)> {
        assert!(start <= end && end - start <= self.capacity(), "a range is no longer than the ring");
        let mut pieces: Vec<(Lsn, u64, u64)> = Vec::with_capacity(1);
        let mut at = start;
        while at < end {
            let (offset, room) = self.locate(at);
            let len = room.min(end - at);
            match pieces.last_mut() {
                Some(last) if last.1 + last.2 == offset => last.2 += len,
                _ => pieces.push((at, offset, len)),
            }
            at += len;
        }
        debug_assert_eq!(pieces.iter().map(|piece| piece.2).sum::<u64>(), end - start, "the pieces are the range");
        pieces
    }

    /// Lengths of the segments that a ring gets when it must grow by `least` bytes, and to no more than `most` in all
    /// (past which it grows by what it must); by at most `step`, or a sixteenth of what it holds.
    pub fn more(&self, least: u64, most: u64, step: u64) -> Vec<u64> {
        let (have, up) = (self.capacity(), |n: u64| n.next_multiple_of(self.unit));
        let equal = self.is_equal() && (self.unit * EQUAL >= most || self.segments.len() > MAX_SIZED - PART as usize);
        let room = (most.saturating_sub(have) / self.unit * self.unit).max(up(least));
        let wanted = if equal { have / 2 } else { have.min(step.max(have / PART)) };
        let more = up(wanted).clamp(up(least), room).max(self.unit);
        let each = if equal { self.unit } else { up((have + more) / PART) };
        let mut lens = vec![each; (more / each) as usize];
        lens.extend(Some(more % each).filter(|rest| *rest > 0));
        assert!(lens.iter().sum::<u64>() >= least, "a ring grows by what it must");
        lens
    }

    /// The ring with more segments of these lengths, while everything from `redo` on is needed. `None` when the table
    /// would be too long.
    pub fn grown(&self, redo: Lsn, lens: &[u64]) -> Option<Ring> {
        assert!(!lens.is_empty(), "a ring grows by a segment at least");
        let (first, within) = self.find(redo);
        let mut at = self.capacity();
        let mut segments = Vec::with_capacity(self.segments.len() + lens.len());
        for &len in lens {
            assert!(len > 0 && len.is_multiple_of(self.unit), "segments are whole units");
            segments.push(Segment { at, len });
            at += len;
        }
        segments.extend_from_slice(&self.segments[first..]);
        segments.extend_from_slice(&self.segments[..first]);
        let base = redo - within.min(redo) + self.capacity();
        let grown = Ring { base, segments, ..*self };
        if !grown.fits_table() {
            return None;
        }
        debug_assert!(grown.is_valid(), "a grown ring covers the device");
        assert_eq!(grown.locate(redo), self.locate(redo), "what is live does not move");
        assert_eq!(grown.limit(redo) - self.limit(redo), lens.iter().sum::<u64>());
        Some(grown)
    }

    /// The ring without segments at the device's end, as short as it may be with at least `target` bytes, while
    /// everything from `from` up to `to` stays where it is. `None` when there is nothing to give up.
    pub fn shrunk(&self, (from, to): (Lsn, Lsn), target: u64) -> Option<Ring> {
        assert!(from <= to && to - from <= self.capacity(), "what is live fits the ring");
        let (first, within) = self.find(from);
        let base = from.checked_sub(within)?;
        let mut order = self.segments[first..].to_vec();
        order.extend_from_slice(&self.segments[..first]);
        let ends = order.iter().scan(base, |end, s| {
            *end += s.len;
            Some(*end)
        });
        let live = 1 + ends.take_while(|end| *end < to).count();
        let free = order.split_off(live);
        let stays = order.iter().map(|s| s.at + s.len).max().unwrap_or(0);
        order.extend(Ring::first(free, |end| end < stays || end < target));
        let shrunk = Ring { base, segments: order, ..*self };
        if shrunk.segments.len() == self.segments.len() {
            return None;
        }
        assert!(shrunk.capacity() < self.capacity() && shrunk.limit(from) >= to, "it is shorter, and has what is live");
        debug_assert!(shrunk.is_valid(), "a ring that shrank covers the device");
        assert_eq!(shrunk.locate(from), self.locate(from), "what is live does not move");
        Some(shrunk)
    }

    /// The ring of the device's first segments, with at least `target` bytes, in which nothing is live: the stream goes
    /// on at `end`. `None` when there is nothing to give up.
    pub fn emptied(&self, end: Lsn, target: u64) -> Option<Ring> {
        let segments: Vec<Segment> = Ring::first(self.segments.clone(), |at| at < target.max(1)).collect();
        assert!(!segments.is_empty(), "a ring keeps a segment");
        let base = end / self.unit * self.unit;
        let emptied = Ring { base, segments, ..*self };
        debug_assert!(emptied.is_valid(), "the device's first segments are a ring");
        (emptied.segments.len() < self.segments.len()).then_some(emptied)
    }

    /// The segments that begin where `wanted`, in the order of the device.
    fn first(mut segments: Vec<Segment>, wanted: impl Fn(u64) -> bool) -> impl Iterator<Item = Segment> {
        segments.sort_unstable_by_key(|s| s.at);
        segments.into_iter().filter(move |s| wanted(s.at))
    }

    /// Whether a superblock has room for the table.
    fn fits_table(&self) -> bool {
        let most = if self.is_equal() { MAX_SEGMENTS } else { MAX_SIZED };
        (1..=most).contains(&self.segments.len())
    }

    /// Whether the table makes sense: used on what was read from a device.
    pub fn is_valid(&self) -> bool {
        let whole = self.unit >= BLOCK && self.unit.is_multiple_of(BLOCK) && self.unit < 1 << 40;
        if !whole || !self.base.is_multiple_of(self.unit) || !self.fits_table() {
            return false;
        }
        let mut order = self.segments.clone();
        order.sort_unstable_by_key(|s| s.at);
        let mut end = 0u64;
        order.iter().all(|s| {
            let follows = s.at == end && s.len > 0 && s.len < 1 << 50 && s.len.is_multiple_of(self.unit);
            end = end.saturating_add(s.len);
            follows
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STEP: u64 = 64 << 20;

    /// Where every block between two positions lies.
    fn places(ring: &Ring, from: Lsn, to: Lsn) -> Vec<u64> {
        (from / BLOCK..to / BLOCK).map(|block| ring.locate(block * BLOCK).0).collect()
    }

    proptest! {
        #[test]
        fn growing_and_shrinking_move_no_live_block(
            first in 1usize..6,
            steps in prop::collection::vec((0u64..9, 0u64..12, prop::collection::vec(1u64..4, 0..4), 0u64..20), 1..16),
        ) {
            let mut ring = Ring::new(BLOCK, first);
            let mut redo = 7 * BLOCK;
            for (advance, live, lens, target) in steps {
                redo += advance * BLOCK;
                let lens: Vec<u64> = lens.iter().map(|n| n * BLOCK).collect();
                let next = if lens.is_empty() {
                    let end = (redo + live * BLOCK).min(ring.limit(redo));
                    let Some(shrunk) = ring.shrunk((redo, end), target * BLOCK) else { continue };
                    prop_assert_eq!(places(&ring, redo, end), places(&shrunk, redo, end));
                    prop_assert!(shrunk.capacity() < ring.capacity() && shrunk.limit(redo) >= end);
                    shrunk
                } else {
                    let grown = ring.grown(redo, &lens).unwrap();
                    prop_assert_eq!(grown.limit(redo), ring.limit(redo) + lens.iter().sum::<u64>());
                    let end = ring.limit(redo);
                    prop_assert_eq!(places(&ring, redo, end), places(&grown, redo, end));
                    grown
                };
                prop_assert!(next.is_valid());
                let mut lap = places(&next, redo, redo + next.capacity());
                lap.sort_unstable();
                lap.dedup();
                prop_assert_eq!(lap.len() as u64 * BLOCK, next.capacity(), "two positions of a lap at one place");
                ring = next;
            }
        }
    }

    #[test]
    fn pieces_cover_the_range_in_order() {
        let ring = Ring::new(2 * BLOCK, 3);
        let pieces = ring.pieces(5 * BLOCK, 8 * BLOCK);
        assert_eq!(pieces, [(5 * BLOCK, RING_START + 5 * BLOCK, BLOCK), (6 * BLOCK, RING_START, 2 * BLOCK)]);
    }

    #[test]
    fn a_small_ring_doubles_and_its_table_stays_short() {
        let (mut ring, mut redo, most) = (Ring::new(64 << 10, 16), 0, 64u64 << 30);
        while ring.capacity() < most {
            let before = ring.capacity();
            let lens = ring.more(1, most, STEP);
            redo += 3 * ring.unit;
            ring = ring.grown(redo, &lens).expect("the table has room");
            let grew = ring.capacity() - before;
            assert!(
                grew == before || grew == STEP || grew == most - before || grew.abs_diff(before / PART) <= ring.unit
            );
            let longest = ring.segments.iter().map(|s| s.len).max().unwrap();
            assert!(longest <= ring.capacity() / 8 || before <= 2 << 20, "{longest} of {}", ring.capacity());
        }
        assert!(ring.segments.len() <= MAX_SIZED, "{} segments", ring.segments.len());
    }

    #[test]
    fn equal_segments_stay_equal_where_a_table_can_list_them() {
        let ring = Ring::new(8 << 20, 8);
        assert_eq!(ring.more(1, 4 << 30, STEP), [8 << 20; 4]);
        let grown = ring.grown(100 << 20, &[8 << 20; 4]).unwrap();
        assert!(grown.is_equal());
        assert!(Ring::new(4096, 200).more(1, 1 << 40, STEP).iter().all(|len| *len > 4096));
        assert_eq!(ring.more(1, 64 << 20, STEP), [8 << 20], "what must be is given past the most");
    }

    #[test]
    fn an_emptied_ring_keeps_the_devices_first_segments() {
        let ring = Ring::new(BLOCK, 4).grown(9 * BLOCK, &[2 * BLOCK; 3]).unwrap();
        let small = ring.emptied(77 * BLOCK, 3 * BLOCK).unwrap();
        assert_eq!((small.capacity(), small.locate(77 * BLOCK).0), (3 * BLOCK, RING_START));
        assert!(small.is_valid() && small.is_equal());
        assert_eq!(small.emptied(80 * BLOCK, 3 * BLOCK), None);
    }
}
