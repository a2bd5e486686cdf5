//! The way to the leaves of many ascending keys: from parent to parent, instead of from the root for each key.
//!
//! Invariants: a route names a leaf for each of its keys, or none. It is a hint: a leaf that was found without its
//! latch counts once it is latched and covers the key, and no node has left its tree meanwhile.

use super::Tree;
use super::descend::Target;
use super::node::{SLOT, SLOTS};
use crate::error::Result;
use crate::rows::Hint;
use std::sync::atomic::Ordering::Relaxed;
use varve_volume::page::HEADER;
use varve_volume::{Lsn, PageId};

/// Bytes at its end with the fences, if they are short.
const FENCES: usize = 64;

/// Where the leaves of ascending keys were found.
#[derive(Debug, Default)]
pub(crate) struct Route {
    /// Nodes that had left their trees before the first was found.
    left: u64,
    /// The leaf of each key; none where the root is the leaf, or something is wrong on the way.
    leaves: Vec<Option<PageId>>,
}

impl Route {
    /// Where key number `at` was found.
    #[inline]
    pub(crate) fn hint(&self, at: usize) -> Option<Hint> {
        let page = (*self.leaves.get(at)?)?;
        Some(Hint { page, left: self.left, lsn: Lsn::MAX })
    }

    /// The leaf after that of key number `at`, if the next key has another one.
    #[inline]
    pub(crate) fn next(&self, at: usize) -> Option<PageId> {
        let next = (*self.leaves.get(at + 1)?)?;
        (self.leaves[at] != Some(next)).then_some(next)
    }
}

impl Tree {
    /// Finds the leaves of ascending keys and asks for those that are not in memory. What is wrong on the way is met
    /// by who goes to the keys.
    pub(crate) fn ask_for(&self, keys: &[&[u8]]) -> Route {
        debug_assert!(keys.is_sorted(), "keys are visited in ascending order");
        let route = Route { left: self.core.nodes_left(), leaves: self.leaves_of(keys) };
        assert_eq!(route.leaves.len(), keys.len(), "a route has a place for each key");
        let pages = self.core.store.pages();
        let mut asked: Vec<PageId> = route.leaves.iter().flatten().copied().filter(|id| id.0 < pages).collect();
        asked.dedup();
        self.core.pool.prefetch(&asked);
        route
    }

    fn leaves_of(&self, keys: &[&[u8]]) -> Vec<Option<PageId>> {
        let mut leaves = Vec::with_capacity(keys.len());
        let mut way = None;
        for (at, key) in keys.iter().enumerate() {
            if let Some(leaf) = self.beside(way.as_ref(), key) {
                leaves.push(Some(leaf));
                continue;
            }
            way = self.peek_leaf(key);
            let Some(found) = &way else {
                leaves.push(self.leaf_id(key).ok().flatten());
                continue;
            };
            // Nobody looks at the nodes above again: that is the access.
            found.confirm();
            let leaf = found.leaf;
            // A run of rows that belong behind all others is in one leaf to the end.
            let last = keys[keys.len() - 1];
            if self.beside(way.as_ref(), last) == Some(leaf) {
                leaves.resize(keys.len(), Some(leaf));
                return leaves;
            }
            debug_assert_eq!(leaves.len(), at, "one leaf for each key so far");
            leaves.push(Some(leaf));
        }
        leaves
    }

    /// The leaf that covers a key, which is not looked at; none where the root is the leaf.
    fn leaf_id(&self, key: &[u8]) -> Result<Option<PageId>> {
        let Some(parent) = self.inner_shared(Target::Key(key), 1)? else { return Ok(None) };
        let node = self.node(parent.id(), parent.bytes(), Some(1))?;
        self.child(parent.id(), &node, Target::Key(key)).map(|(_, leaf)| Some(leaf))
    }

    /// Begins to load what a search in a leaf will touch into the processor's cache.
    #[inline]
    pub(super) fn expect(&self, leaf: PageId) {
        let slots = self.place.slots.load(Relaxed);
        self.core.pool.expect_bytes(leaf, 0..SLOTS + SLOT * slots);
    }

    /// The same for who will also ask whether the leaf covers the key.
    #[inline]
    pub(crate) fn expect_whole(&self, leaf: PageId) {
        self.expect(leaf);
        let end = HEADER + self.usable();
        self.core.pool.expect_bytes(leaf, end - FENCES..end);
    }

    /// The same for a leaf that is gone to when another one has been read.
    #[inline]
    pub(super) fn expect_next(&self, leaf: PageId) {
        self.core.pool.expect_frame(leaf);
        self.expect_whole(leaf);
    }

    /// How many leaves may be asked for at a time.
    pub(crate) fn most_asked_for(&self) -> usize {
        self.core.pool.scan_window()
    }
}
