//! Taking a tree apart that nobody uses any more: a dropped keyspace's, or one that was detached.
//!
//! From the right to the left, in groups of bounded size: the last leaves of the last node of level 1 go, with them
//! that node when it has no child left, and so on upwards; the one node that stays is changed. Long values go before
//! their leaf. A crash leaves a smaller tree of the same shape, but that the nodes at its right edge end before their
//! high fence; so it goes on where it was. Pages are freed as they are: nobody comes to them any more, and who knows
//! one by its number asks [`Core::nodes_left`](crate::space::Core::nodes_left).

use super::leaf::LeafView;
use super::{Tree, edit, leaf, split};
use crate::error::Result;
use crate::page::Group;
use crate::page::PageEdit;
use crate::rows::{OverflowRef, ValueRef, overflow};
use crate::wal::GroupKind;
use varve_volume::PageId;

/// Leaves freed in one group at most.
const LEAVES: usize = 256;
/// Overflow pages freed in one group at most, unless a single value has more.
const PAGES: usize = 1024;

/// An inner node at the right edge, and its number of slots.
struct Edge {
    id: PageId,
    count: usize,
}

impl Tree {
    /// Frees every page but the root, which is an empty leaf at the end; goes on as long as `on` says so. True when it
    /// is done.
    pub(crate) fn dismantle(&self, on: &dyn Fn() -> bool) -> Result<bool> {
        self.core.node_leaves();
        while on() {
            if self.dismantle_some()? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Frees the root page of a tree that was dismantled, inside `group`; the caller marks the page (which is returned)
    /// as free with `Space::apply`, and calls `Space::freed` after the commit.
    pub(crate) fn free_root<'c>(&'c self, group: &mut Group<'c>) -> Result<PageId> {
        let root = self.root_for_change()?;
        let id = root.id();
        let n = group.add(root);
        super::retire(&self.core, &mut group.page(n));
        Ok(id)
    }

    fn dismantle_some(&self) -> Result<bool> {
        let (edges, leaves) = self.right_edge()?;
        if edges.is_empty() {
            let root = self.root();
            return if self.free_values(root)? { Ok(false) } else { self.empty_root(Vec::new()).map(|()| true) };
        }
        self.core.pool.prefetch(&leaves);
        for id in leaves.iter().rev() {
            if self.free_values(*id)? {
                return Ok(false);
            }
        }
        let (mut gone, mut freed) = (leaves.len(), leaves);
        for edge in edges.iter().rev() {
            if gone <= edge.count {
                self.shorten(edge, gone, &freed)?;
                return Ok(false);
            }
            freed.push(edge.id);
            gone = 1;
        }
        // The root's turn: it stays, and nothing is below it any more.
        let root = freed.pop();
        assert_eq!(root, Some(self.root()), "the edge begins at the root");
        self.empty_root(freed).map(|()| false)
    }

    /// The inner nodes at the right edge from the root down, and the last leaves of the last of them.
    fn right_edge(&self) -> Result<(Vec<Edge>, Vec<PageId>)> {
        let (mut edges, mut id, mut level) = (Vec::new(), self.root(), None);
        loop {
            let page = self.core.pool.read(id).map_err(|e| self.name_keyspace(e))?;
            let node = self.node(id, page.bytes(), level)?;
            node.validate().map_err(|d| self.corrupt(id, d))?;
            if node.level() == 0 {
                return Ok((edges, Vec::new()));
            }
            let count = node.count();
            edges.push(Edge { id, count });
            if node.level() == 1 {
                let first = (count + 1).saturating_sub(LEAVES);
                let leaves = (first..=count).map(|i| self.child_at(id, &node, i)).collect::<Result<Vec<_>>>()?;
                return Ok((edges, leaves));
            }
            let next = self.child_at(id, &node, count)?;
            level = Some(node.level() - 1);
            drop(page);
            id = next;
        }
    }

    /// Frees the pages of some long values of a leaf; false when it has none.
    fn free_values(&self, id: PageId) -> Result<bool> {
        let core = &*self.core;
        let (mut keys, mut free): (Vec<Vec<u8>>, Vec<PageId>) = (Vec::new(), Vec::new());
        for (key, r) in self.long_values(id)? {
            let pages = overflow::pages(core, self.keyspace, &r)?;
            if !keys.is_empty() && free.len() + pages.len() > PAGES {
                break;
            }
            keys.push(key);
            free.extend(pages);
        }
        if keys.is_empty() {
            return Ok(false);
        }
        let mut group = self.begin(free.len())?;
        let leaf = core.pool.write(id).map_err(|e| self.name_keyspace(e))?;
        self.node(id, leaf.bytes(), Some(0))?.validate().map_err(|d| self.corrupt(id, d))?;
        let n = group.add(leaf);
        for key in &keys {
            leaf::remove(&mut group.page(n), key).expect("the leaf was validated");
        }
        self.free(group, &free)?;
        Ok(true)
    }

    /// The long values of a leaf.
    fn long_values(&self, id: PageId) -> Result<Vec<(Vec<u8>, OverflowRef)>> {
        let page = self.core.pool.read(id).map_err(|e| self.name_keyspace(e))?;
        let view = LeafView::new(self.node(id, page.bytes(), Some(0))?, id);
        let mut found = Vec::new();
        for i in 0..view.count() {
            if let ValueRef::Overflow(r) = view.value(i).map_err(|d| self.corrupt(id, d))? {
                found.push((view.key(i).map_err(|d| self.corrupt(id, d))?, r));
            }
        }
        Ok(found)
    }

    /// Removes the last `gone` children of an inner node, which keeps some.
    fn shorten(&self, edge: &Edge, gone: usize, freed: &[PageId]) -> Result<()> {
        let mut group = self.begin(freed.len())?;
        let page = self.core.pool.write(edge.id).map_err(|e| self.name_keyspace(e))?;
        assert!(gone > 0 && gone <= edge.count, "some children go, the leftmost stays");
        let node = self.node(edge.id, page.bytes(), None)?;
        node.validate().map_err(|d| self.corrupt(edge.id, d))?;
        assert_eq!(node.count(), edge.count, "nobody else changes the tree");
        let n = group.add(page);
        for i in 0..gone {
            edit::remove(&mut group.page(n), edge.count - 1 - i).expect("the node was validated");
        }
        self.free(group, freed)
    }

    /// Makes the root an empty leaf.
    fn empty_root(&self, freed: Vec<PageId>) -> Result<()> {
        let mut group = self.begin(freed.len())?;
        let root = self.root_for_change()?;
        let copy = root.bytes().to_vec();
        let node = self.node(root.id(), &copy, None)?;
        let n = group.add(root);
        group.page(n).image(|b| split::init_leaf(b, node.low(), node.high(), node.end()));
        self.free(group, &freed)
    }

    fn begin(&self, freed: usize) -> Result<Group<'_>> {
        let core = &*self.core;
        let maps = freed.min(core.space.maps() as usize);
        Group::begin(core, GroupKind::System, (2 + maps) * (core.page_size() + 64))
    }

    fn free<'c>(&'c self, mut group: Group<'c>, freed: &[PageId]) -> Result<()> {
        let core = &*self.core;
        core.space.apply(core, &mut group, &[], freed);
        group.commit()?;
        core.space.freed(freed);
        Ok(())
    }
}
