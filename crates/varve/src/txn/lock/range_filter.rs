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
    fn any(&self, key: &[u8], passes: impl Fn(u64) -> bool) -> bool {
        let mut lengths = self.lengths.load(SeqCst);
        while lengths != 0 {
            let length = lengths.trailing_zeros() as usize;
            if length > key.len() {
                return false;
            }
            let ranges = self.slots[slot(&key[..length])].load(SeqCst);
            if ranges != 0 && passes(ranges) {
                return true;
            }
            lengths &= lengths - 1;
        }
        false
    }
}
