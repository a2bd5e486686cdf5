//! Where the bytes of the log stream lie on the device: a ring of segments that can grow.
//!
//! The stream is cut into segments of equal length; segment `k` lies in slot `order[(k - base) mod n]`. Growing inserts
//! fresh slots behind the newest segment that the ring can hold now, so no live segment moves.
//!
//! Invariants: `order` names each slot once; a ring that grew gives room for as many bytes more, and every position
//! that was live lies where it lay.

use super::format::BLOCK;
use varve_volume::Lsn;

/// Bytes before the first slot: two superblocks.
pub const RING_START: u64 = 2 * BLOCK;
/// Most segments of a ring (the table must fit a superblock).
pub const MAX_SEGMENTS: usize = 1024;

const _: () = assert!(RING_START.is_multiple_of(BLOCK) && MAX_SEGMENTS <= u16::MAX as usize + 1);

/// The ring's map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ring {
    /// Bytes of a segment, a multiple of the block.
    pub segment: u64,
    /// Segment number that lies in `order[0]`.
    pub base: u64,
    /// Slots in ring order: a permutation of `0..order.len()`.
    pub order: Vec<u16>,
}

impl Ring {
    /// A new ring of `slots` segments.
    pub fn new(segment: u64, slots: usize) -> Ring {
        assert!(segment >= BLOCK && segment.is_multiple_of(BLOCK), "segments are whole blocks");
        assert!((1..=MAX_SEGMENTS).contains(&slots), "a ring has 1 to {MAX_SEGMENTS} segments");
        Ring { segment, base: 0, order: (0..slots as u16).collect() }
    }

    /// Bytes that the ring holds.
    pub fn capacity(&self) -> u64 {
        self.segment * self.order.len() as u64
    }

    /// Bytes that the device must have.
    pub fn device_len(&self) -> u64 {
        RING_START + self.capacity()
    }

    /// First LSN past what may be written while everything from `redo` on is needed.
    pub fn limit(&self, redo: Lsn) -> Lsn {
        redo / self.segment * self.segment + self.capacity()
    }

    /// Device offset of a position, and how many bytes from there on are contiguous.
    pub fn locate(&self, lsn: Lsn) -> (u64, u64) {
        let n = self.order.len() as i128;
        let (k, within) = (lsn / self.segment, lsn % self.segment);
        let i = (i128::from(k) - i128::from(self.base)).rem_euclid(n) as usize;
        debug_assert!((self.order[i] as usize) < self.order.len(), "a segment lies in a slot that there is");
        (RING_START + u64::from(self.order[i]) * self.segment + within, self.segment - within)
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
        pieces
    }

    /// The ring with `more` slots, while everything from `redo` on is needed. `None` when the table would be too long.
    pub fn grown(&self, redo: Lsn, more: usize) -> Option<Ring> {
        assert!(more > 0, "a ring grows by a segment at least");
        let n = self.order.len();
        if n + more > MAX_SEGMENTS {
            return None;
        }
        let newest = redo / self.segment + n as u64 - 1;
        let p = (i128::from(newest) - i128::from(self.base)).rem_euclid(n as i128) as usize;
        let mut order: Vec<u16> = (n as u16..(n + more) as u16).collect();
        order.extend_from_slice(&self.order[p + 1..]);
        order.extend_from_slice(&self.order[..=p]);
        let grown = Ring { segment: self.segment, base: newest + 1, order };
        debug_assert!(grown.is_valid(), "a grown ring names each slot once");
        assert_eq!(grown.locate(redo), self.locate(redo), "what is live does not move");
        assert_eq!(grown.limit(redo) - self.limit(redo), more as u64 * self.segment);
        Some(grown)
    }

    /// Whether the table makes sense: used on what was read from a device.
    pub fn is_valid(&self) -> bool {
        let mut seen = vec![false; self.order.len()];
        let whole = self.segment >= BLOCK && self.segment.is_multiple_of(BLOCK) && self.segment < 1 << 40;
        whole
            && (1..=MAX_SEGMENTS).contains(&self.order.len())
            && self.order.iter().all(|&s| seen.get_mut(s as usize).is_some_and(|s| !std::mem::replace(s, true)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn growing_moves_no_live_segment(first in 1usize..6, steps in prop::collection::vec((0u64..9, 1usize..4), 1..12)) {
            let mut ring = Ring::new(BLOCK, first);
            let mut redo = 7 * BLOCK;
            for (advance, more) in steps {
                redo += advance * BLOCK;
                let grown = ring.grown(redo, more).unwrap();
                prop_assert!(grown.is_valid());
                prop_assert_eq!(grown.limit(redo), ring.limit(redo) + more as u64 * BLOCK);
                for k in 0..ring.order.len() as u64 {
                    prop_assert_eq!(ring.locate(redo + k * BLOCK), grown.locate(redo + k * BLOCK));
                }
                let mut places: Vec<u64> = (0..grown.order.len() as u64).map(|k| grown.locate(redo + k * BLOCK).0).collect();
                places.sort_unstable();
                places.dedup();
                prop_assert_eq!(places.len(), grown.order.len(), "two live segments in one slot");
                ring = grown;
            }
        }
    }

    #[test]
    fn pieces_cover_the_range_in_order() {
        let ring = Ring::new(2 * BLOCK, 3);
        let pieces = ring.pieces(5 * BLOCK, 8 * BLOCK);
        assert_eq!(pieces, [(5 * BLOCK, RING_START + 5 * BLOCK, BLOCK), (6 * BLOCK, RING_START, 2 * BLOCK)]);
    }
}
