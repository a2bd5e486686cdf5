//! Whether any range of a keyspace may hold a key, told without a lock: the common case is that none does.
//!
//! Ranges are counted by what their two ends have in common (as `range_index.rs` files them): in a small table by its hash, and by its
//! length. Changed under the list's mutex only; a range that is held is counted throughout, also while it is joined with another.

use crate::txn::key::Bounds;
use std::hash::{BuildHasher as _, Hasher};
use varve_rt::BuildHasher;
use varve_rt::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

const SLOTS: usize = 512;
/// Longer beginnings count by their first bytes.
const LONGEST: usize = 63;

pub(super) struct RangeFilter {
    /// Bit n: a range is counted whose beginning has n bytes.
    lengths: AtomicU64,
    of_length: [AtomicU32; LONGEST + 1],
    slots: Box<[AtomicU32; SLOTS]>,
}

/// Where a range is counted.
#[derive(Clone, Copy)]
pub(super) struct Place {
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
pub(super) fn place(range: Bounds<'_>) -> Place {
    let beginning = super::range_index::beginning(range);
    let beginning = &beginning[..beginning.len().min(LONGEST)];
    Place { length: beginning.len(), slot: slot(beginning) }
}

impl RangeFilter {
    pub fn new() -> RangeFilter {
        let zero = |_| AtomicU32::new(0);
        let (of_length, slots) = (std::array::from_fn(zero), Box::new(std::array::from_fn(zero)));
        RangeFilter { lengths: AtomicU64::new(0), of_length, slots }
    }

    pub fn add(&self, at: Place) {
        self.slots[at.slot].fetch_add(1, SeqCst);
        self.of_length[at.length].fetch_add(1, SeqCst);
        self.lengths.fetch_or(1 << at.length, SeqCst);
    }

    pub fn take_out(&self, at: Place) {
        if self.of_length[at.length].fetch_sub(1, SeqCst) == 1 {
            self.lengths.fetch_and(!(1 << at.length), SeqCst);
        }
        self.slots[at.slot].fetch_sub(1, SeqCst);
    }

    /// False: no counted range holds the key.
    pub fn may_hold(&self, key: &[u8]) -> bool {
        let mut lengths = self.lengths.load(SeqCst);
        while lengths != 0 {
            let length = lengths.trailing_zeros() as usize;
            if length > key.len() {
                return false;
            }
            if self.slots[slot(&key[..length])].load(SeqCst) > 0 {
                return true;
            }
            lengths &= lengths - 1;
        }
        false
    }
}
