//! Ghosts: pages that left and are remembered, in the order in which they did, each with one number of the policy's.
//!
//! A map from page to node and a list over the nodes; every operation is O(1). Nodes are allocated as they are first
//! needed and kept. The front is the page remembered last. How many are kept is the policy's business
//! ([`Ghosts::trim`]): it trims when a page is *loaded*, after looking that page up, so that the eviction that made
//! room for it cannot push it out.
//!
//! Invariants: map and list have the same pages; a node is in the list or free.

use super::list::{List, NIL};
use varve_rt::HashMap;
use varve_volume::PageId;

/// Pages remembered.
#[derive(Debug, Default)]
pub struct Ghosts {
    at: HashMap<u64, u32>,
    nodes: Vec<(PageId, u64)>,
    free: Vec<u32>,
    order: List,
}

impl Ghosts {
    /// Bytes per ghost, for the memory budget: node, links, its share of the map, and what growing by doubling leaves
    /// unused.
    pub const BYTES: usize = 3 * (16 + List::BYTES_PER_SLOT) / 2 + 2 * 17;

    /// Pages remembered.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Remembers `page` as the newest; one that is remembered already is moved there.
    pub fn push(&mut self, page: PageId, value: u64) {
        self.remove(page);
        let node = self.free.pop().unwrap_or_else(|| {
            self.nodes.push((page, value));
            self.order.grow((self.nodes.len()).next_power_of_two());
            self.nodes.len() as u32 - 1
        });
        self.nodes[node as usize] = (page, value);
        self.order.push_front(node);
        self.at.insert(page.0, node);
        assert_eq!(self.at.len(), self.order.len(), "a page is remembered once");
    }

    /// What is remembered of `page`.
    pub fn get_mut(&mut self, page: PageId) -> Option<&mut u64> {
        let node = *self.at.get(&page.0)?;
        Some(&mut self.nodes[node as usize].1)
    }

    /// Whether `page` is remembered.
    pub fn contains(&self, page: PageId) -> bool {
        self.at.contains_key(&page.0)
    }

    /// Forgets `page`; what was remembered of it.
    pub fn remove(&mut self, page: PageId) -> Option<u64> {
        let node = self.at.remove(&page.0)?;
        self.order.remove(node);
        self.free.push(node);
        debug_assert!(self.free.len() + self.order.len() == self.nodes.len(), "a node is in the list or free");
        Some(self.nodes[node as usize].1)
    }

    /// Forgets the oldest.
    pub fn pop_oldest(&mut self) -> Option<PageId> {
        let node = self.order.back();
        if node == NIL {
            return None;
        }
        let page = self.nodes[node as usize].0;
        self.remove(page);
        Some(page)
    }

    /// Forgets the oldest until at most `limit` are left.
    pub fn trim(&mut self, limit: usize) {
        while self.len() > limit {
            self.pop_oldest();
        }
    }

    /// Asserts that map and list agree. For tests.
    pub fn check(&self) {
        self.order.check();
        assert_eq!(self.at.len(), self.order.len(), "ghosts by page and in order");
        for node in self.order.iter() {
            assert_eq!(self.at.get(&self.nodes[node as usize].0.0), Some(&node), "a ghost's node");
        }
    }
}
