//! Whether any range of a keyspace may hold a key, told without a lock: the common cases are that none does, and that
//! the only one is the asker's own (who reads a range and then changes its keys).
//!
//! Ranges are counted by what their two ends have in common (as `range_index.rs` files them): in a small table by its
//! hash, and by its length. Beside its count a place of the table has the sum of the owners, which names the owner of a
//! single range. Invariants: each place counts the ranges filed there, and a bit of `lengths` says whether there are
//! any of that length. Changed under the list's mutex only; a range that is held is counted throughout, also while it
//! is joined with another.

use super::wait::OwnerId;
use crate::txn::key::Bounds;
use std::hash::{BuildHasher as _, Hasher};
use varve_rt::BuildHasher;
use varve_rt::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

const SLOTS: usize = 2048;
/// Low bits of a place in the table that count; above them is the sum of the owners, as far as it fits.
const COUNT_BITS: u32 = 24;
/// Longer beginnings count by their first bytes.
const LONGEST: usize = 63;

const _: () = assert!(LONGEST < u64::BITS as usize, "a bit for each length");

pub(super) struct RangeFilter {
    /// Bit n: a range is counted whose beginning has n bytes.
    lengths: AtomicU64,
    of_length: [AtomicU32; LONGEST + 1],
    slots: Box<[AtomicU64; SLOTS]>,
}

/// Where a range is counted.
#[derive(Clone, Copy)]
pub(super) struct FilterPlace {
    length: usize,
    slot: usize,
}

fn slot(beginning: &[u8]) -> usize {
    let mut hasher = BuildHasher.build_hasher();
    hasher.write(beginning);
    hasher.write_u8(beginning.len() as u8);
    hasher.finish() as usize % SLOTS
}

/// Where `range` is counted.
pub(super) fn place(range: Bounds<'_>) -> FilterPlace {
    let beginning = super::range_index::beginning(range);
    let beginning = &beginning[..beginning.len().min(LONGEST)];
    FilterPlace { length: beginning.len(), slot: slot(beginning) }
}

/// What a range of this owner adds to its place. Owners alike in the bits that are kept are 2^40 transactions apart.
fn mark(owner: OwnerId) -> u64 {
    owner << COUNT_BITS | 1
}

impl RangeFilter {
    pub fn new() -> RangeFilter {
        let of_length = std::array::from_fn(|_| AtomicU32::new(0));
        let slots = Box::new(std::array::from_fn(|_| AtomicU64::new(0)));
        RangeFilter { lengths: AtomicU64::new(0), of_length, slots }
    }

    pub fn add(&self, at: FilterPlace, owner: OwnerId) {
        self.slots[at.slot].fetch_add(mark(owner), SeqCst);
        self.of_length[at.length].fetch_add(1, SeqCst);
        self.lengths.fetch_or(1 << at.length, SeqCst);
    }

    pub fn take_out(&self, at: FilterPlace, owner: OwnerId) {
        let before = self.of_length[at.length].fetch_sub(1, SeqCst);
        assert!(before > 0, "a range that is taken out was counted");
        if before == 1 {
            self.lengths.fetch_and(!(1 << at.length), SeqCst);
        }
        let before = self.slots[at.slot].fetch_sub(mark(owner), SeqCst);
        assert!(before & ((1 << COUNT_BITS) - 1) > 0, "a range that is taken out was counted");
    }

    /// False: no counted range holds the key.
    pub fn may_hold(&self, key: &[u8]) -> bool {
        self.any(key, |_| true)
    }

    /// False: no counted range of another owner holds the key.
    pub fn may_hold_beside(&self, owner: OwnerId, key: &[u8]) -> bool {
        self.any(key, |ranges| ranges != mark(owner))
    }

    /// Whether a place where a range that holds the key would be counted has some, and passes.
    ///
    /// From the longest beginnings to the shortest, and the lengths are read anew at each step: a range that is joined
    /// with another is counted at its new place, whose beginning is as long or shorter, before it is taken out of the
    /// old one. So whoever comes too late for the old place comes in time for the new one.
    fn any(&self, key: &[u8], passes: impl Fn(u64) -> bool) -> bool {
        let mut allowed = u64::MAX >> (LONGEST - key.len().min(LONGEST));
        loop {
            let lengths = self.lengths.load(SeqCst) & allowed;
            if lengths == 0 {
                return false;
            }
            let length = LONGEST - lengths.leading_zeros() as usize;
            let ranges = self.slots[slot(&key[..length])].load(SeqCst);
            if ranges != 0 && passes(ranges) {
                return true;
            }
            allowed = (1 << length) - 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::ops::Bound::{Excluded, Included};

    fn between(low: &[u8], high: &[u8]) -> FilterPlace {
        place((Included(low), Excluded(high)))
    }

    /// A range is seen while it is joined with its neighbour, which counts it under a shorter beginning: whichever
    /// places were looked at before.
    #[test]
    fn a_range_is_seen_while_it_is_joined() {
        let (alone, joined) = (between(b"k000451", b"k000458"), between(b"k000451", b"k000463"));
        let longest = place((Included(b"k000455".as_slice()), Included(b"k000455".as_slice())));
        // Where the asker has a range of its own, at which it passes by while the other range is joined.
        for own in [between(b"k000", b"k001"), longest] {
            let (filter, passed) = (RangeFilter::new(), Cell::new(0));
            filter.add(own, 2);
            filter.add(alone, 1);
            let seen = filter.any(b"k000455", |ranges| {
                if ranges == mark(2) {
                    passed.set(passed.get() + 1);
                    filter.add(joined, 1);
                    filter.take_out(alone, 1);
                }
                ranges != mark(2)
            });
            assert!(seen, "a range that is held was not seen");
            assert!(passed.get() <= 1);
        }
    }

    #[test]
    fn keys_beside_the_ranges_are_free() {
        let filter = RangeFilter::new();
        filter.add(between(b"k000451", b"k000458"), 1);
        assert!(filter.may_hold(b"k000455") && filter.may_hold_beside(2, b"k000455"));
        assert!(!filter.may_hold_beside(1, b"k000455"), "its own range alone");
        for free in [&b"k000465"[..], b"k0004", b"", b"m"] {
            assert!(!filter.may_hold(free));
        }
        filter.add(place((Included(&b"m"[..]), std::ops::Bound::Unbounded)), 1);
        assert!(filter.may_hold(b"") && filter.may_hold(&[b'z'; 100]), "a range without an end counts for all");
        filter.take_out(between(b"k000451", b"k000458"), 1);
        filter.take_out(place((Included(&b"m"[..]), std::ops::Bound::Unbounded)), 1);
        assert!(!filter.may_hold(b"k000455"));
    }
}
