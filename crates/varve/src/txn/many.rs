//! Reading many keys at once: the pages that are not in memory are asked for together, then the keys are read one after
//! the other.
//!
//! Invariants: keys are visited in ascending order; no more leaves are asked for ahead than a scan may; each key is
//! read exactly as by itself, so a page that was asked for in vain costs nothing but its read.

use super::snapshot::Snapshot;
use super::transaction::Transaction;
use super::{Manager, OpenKeyspace};
use crate::error::Result;
use crate::index::Index;
use std::sync::Arc;

/// A value, as it is handed out.
type Value = Option<Vec<u8>>;

/// Asks for the pages of ascending keys, some keys ahead of who reads them one by one.
pub(super) struct Ahead {
    asked: usize,
    step: usize,
}

impl Ahead {
    /// For keys of that index.
    pub fn new(index: &Index) -> Ahead {
        Ahead { asked: 0, step: (index.most_asked_for() / 2).max(1) }
    }

    /// Called before key `at` of `len` is read; `key` gives the keys.
    pub fn reach<'k>(&mut self, index: &Index, at: usize, len: usize, key: impl Fn(usize) -> &'k [u8]) {
        if at + self.step <= self.asked || self.asked == len {
            return;
        }
        let until = (self.asked.max(at) + self.step).min(len);
        assert!(at < len && self.asked < until && until <= len, "pages are asked for once, in the order of their keys");
        index.ask_for((self.asked..until).map(key));
        self.asked = until;
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
