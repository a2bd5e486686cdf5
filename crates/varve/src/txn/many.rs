//! Reading many keys at once: the pages that are not in memory are asked for together, then the keys are read one after
//! the other.
//!
//! Invariants: keys are visited in ascending order; no more leaves are asked for ahead than a scan may; each key is
//! read exactly as by itself, so a page that was asked for in vain costs nothing but its read.

use super::snapshot::Snapshot;
use super::transaction::Transaction;
use super::{Manager, OpenKeyspace};
use crate::error::Result;
use crate::index::{Index, Route};
use crate::rows::Hint;
use std::sync::Arc;

/// A value, as it is handed out.
type Value = Option<Vec<u8>>;

/// Asks for the pages of ascending keys, some keys ahead of who reads or writes them one by one.
pub(super) struct Ahead {
    step: usize,
    /// Where the keys are that were asked for last, and the ones before: the number of the first, and the way.
    routes: [(usize, Route); 2],
    /// How many keys were asked for.
    asked: usize,
}

impl Ahead {
    /// For keys of that index.
    pub fn new(index: &Index) -> Ahead {
        Ahead { step: (index.most_asked_for() / 2).max(1), routes: Default::default(), asked: 0 }
    }

    /// Called before key `at` of `len` is read; `key` gives the keys.
    pub fn reach<'k>(&mut self, index: &Index, at: usize, len: usize, key: impl Fn(usize) -> &'k [u8]) {
        if at + self.step <= self.asked || self.asked == len {
            return;
        }
        let from = self.asked.max(at);
        let until = (from + self.step).min(len);
        assert!(at < len && self.asked < until && until <= len, "pages are asked for once, in the order of their keys");
        let keys: Vec<&[u8]> = (from..until).map(key).collect();
        self.routes.swap(0, 1);
        self.routes[0] = (from, index.ask_for(&keys));
        self.asked = until;
    }

    /// Where key `at`, which was reached, was found. The leaf after it comes nearer meanwhile.
    pub fn hint(&self, index: &Index, at: usize) -> Option<Hint> {
        let (from, route) = self.routes.iter().find(|(from, _)| at >= *from)?;
        if let Some(next) = route.next(at - from) {
            index.expect(next);
        }
        route.hint(at - from)
    }
}

/// Reads keys by `read`, in ascending order, and returns what it gave in theirs.
fn each<'k>(index: &Index, keys: &[&'k [u8]], mut read: impl FnMut(&'k [u8]) -> Result<Value>) -> Result<Vec<Value>> {
    let mut order: Vec<usize> = (0..keys.len()).collect();
    order.sort_unstable_by_key(|i| keys[*i]);
    debug_assert!(order.is_sorted_by_key(|i| keys[*i]), "keys are visited in ascending order");
    let mut values = vec![None; keys.len()];
    let mut ahead = Ahead::new(index);
    for (at, i) in order.iter().enumerate() {
        ahead.reach(index, at, order.len(), |at| keys[order[at]]);
        values[*i] = read(keys[*i])?;
    }
    Ok(values)
}

impl Manager {
    /// The values of many keys, each as last committed.
    pub fn multi_get(&self, keyspace: &OpenKeyspace, keys: &[&[u8]]) -> Result<Vec<Value>> {
        self.live_in(keyspace)?;
        each(keyspace.index(), keys, |key| self.get_with(keyspace, key, |value| value.map(<[u8]>::to_vec)))
    }
}

impl Snapshot {
    /// The values of many keys.
    pub fn multi_get(&self, keyspace: &OpenKeyspace, keys: &[&[u8]]) -> Result<Vec<Value>> {
        self.check(keyspace)?;
        each(keyspace.index(), keys, |key| self.get_with(keyspace, key, |value| value.map(<[u8]>::to_vec)))
    }
}

impl Transaction {
    /// The values of many keys, each locked for reading.
    pub fn multi_get(&mut self, keyspace: &Arc<OpenKeyspace>, keys: &[&[u8]]) -> Result<Vec<Value>> {
        self.check(keyspace)?;
        each(keyspace.index(), keys, |key| self.get_with(keyspace, key, |value| value.map(<[u8]>::to_vec)))
    }
}
