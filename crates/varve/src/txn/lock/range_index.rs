//! Which requests of an interval list can have anything to do with a key or a range, without looking at all of them.
//!
//! A range is filed under what its two ends have in common. Every key of it begins with that, so a key can only lie in
//! ranges filed under one of its own beginnings, and two ranges can only meet if one is filed under a beginning of the
//! other's. Ranges of one place (a district's orders) lie together and apart from the others'.
//!
//! Invariants: a ticket is filed once; a beginning has tickets, and `lengths` counts the beginnings.

use crate::txn::key::{Bounds, KeyBuf};
use std::collections::BTreeMap;
use std::ops::Bound;

#[derive(Default)]
pub(super) struct RangeIndex {
    /// Tickets by common beginning.
    filed: BTreeMap<KeyBuf, Vec<u64>>,
    /// Beginnings in use, by length.
    lengths: BTreeMap<usize, usize>,
}

/// What all keys of the range begin with.
pub(super) fn beginning<'k>(range: Bounds<'k>) -> &'k [u8] {
    let (Bound::Included(low) | Bound::Excluded(low)) = range.0 else { return &[] };
    let (Bound::Included(high) | Bound::Excluded(high)) = range.1 else { return &[] };
    let common = low.iter().zip(high).take_while(|(l, h)| l == h).count();
    &low[..common]
}

impl RangeIndex {
    pub fn insert(&mut self, range: Bounds<'_>, ticket: u64) {
        let at = beginning(range);
        let tickets = match self.filed.get_mut(at) {
            Some(tickets) => tickets,
            None => {
                *self.lengths.entry(at.len()).or_default() += 1;
                self.filed.entry(KeyBuf::new(at)).or_default()
            }
        };
        tickets.push(ticket);
    }

    pub fn remove(&mut self, range: Bounds<'_>, ticket: u64) {
        let at = beginning(range);
        let tickets = self.filed.get_mut(at).expect("it was inserted");
        let before = tickets.len();
        tickets.retain(|&t| t != ticket);
        assert_eq!(tickets.len() + 1, before, "a ticket is filed once");
        if tickets.is_empty() {
            self.filed.remove(at);
            let count = self.lengths.get_mut(&at.len()).expect("counted when it was inserted");
            *count -= 1;
            if *count == 0 {
                self.lengths.remove(&at.len());
            }
        }
    }

    /// Every ticket whose range may meet `range`, each once, in no order.
    pub fn near(&self, range: Bounds<'_>) -> impl Iterator<Item = u64> {
        let at = beginning(range);
        let above = self.lengths.range(..at.len()).filter_map(|(&len, _)| self.filed.get(&at[..len]));
        let from = (Bound::Included(at), Bound::Unbounded);
        let below = self.filed.range::<[u8], _>(from).take_while(|(key, _)| key.starts_with(at)).map(|(_, t)| t);
        above.chain(below).flatten().copied()
    }

    /// The same of one key.
    pub fn near_key(&self, key: &[u8]) -> impl Iterator<Item = u64> {
        self.lengths.range(..=key.len()).filter_map(|(&len, _)| self.filed.get(&key[..len])).flatten().copied()
    }
}
