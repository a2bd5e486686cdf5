//! Emptying a tree in bounded log groups, each of which leaves a sound tree.

use super::edit::{self, PageEdit, Shape};
use super::leaf::{LeafView, ValueRef};
use super::node::*;
use super::{OverflowRef, Tree, leaf, overflow, retire, split};
use crate::buffer::PagePin;
use crate::error::Result;
use crate::group::Group;
use crate::wal::GroupKind;
use varve_volume::PageId;

/// Overflow pages freed in one group at most, unless a single value has more.
const PAGES: usize = 1024;

impl Tree {
    /// Removes everything: what remains is an empty root. Nobody may write to the keyspace meanwhile. A crash leaves a sound tree with less in it.
    pub(crate) fn clear(&self) -> Result<()> {
        loop {
            self.clear_values()?;
            if !self.clear_leaves()? {
                return Ok(());
            }
            self.tidy(b"")?;
        }
    }

    /// Frees the root page of a tree that was cleared, inside `group`; the caller marks the page (which is returned) as free with `Space::apply`, and calls
    /// `Space::freed` after the commit.
    pub(crate) fn free_root<'c>(&'c self, group: &mut Group<'c>) -> Result<PageId> {
        let root = self.root_for_change()?;
        let n = group.add(root);
        retire(&mut group.page(n));
        Ok(self.root)
    }

    /// Removes the entries with overflow values from the first leaf, and frees their pages.
    fn clear_values(&self) -> Result<()> {
        let core = &*self.core;
        loop {
            let (mut keys, mut free): (Vec<Vec<u8>>, Vec<PageId>) = (Vec::new(), Vec::new());
            for (key, r) in self.long_values(b"")? {
                let pages = overflow::pages(core, self.keyspace, &r)?;
                if !keys.is_empty() && free.len() + pages.len() > PAGES {
                    break;
                }
                keys.push(key);
                free.extend(pages);
            }
            if keys.is_empty() {
                return Ok(());
            }
            let mut group = Group::begin(core, GroupKind::System, 2 * core.page_size() + 8 * free.len())?;
            let leaf = self.leaf_exclusive(b"")?;
            self.node(leaf.id(), leaf.bytes(), Some(0))?.validate().map_err(|d| self.corrupt(leaf.id(), d))?;
            let n = group.add(leaf);
            for key in &keys {
                leaf::remove(&mut group.page(n), key).expect("the leaf was validated");
            }
            core.space.apply(core, &mut group, &[], &free);
            group.commit()?;
            core.space.freed(&free);
        }
    }

    /// The overflow values of the leaf that covers `key`.
    fn long_values(&self, key: &[u8]) -> Result<Vec<(Vec<u8>, OverflowRef)>> {
        let page = self.leaf(key)?;
        let view = LeafView::new(self.node(page.id(), page.bytes(), Some(0))?, page.id());
        let mut found = Vec::new();
        for i in 0..view.count() {
            if let ValueRef::Overflow(r) = view.value(i).map_err(|d| self.corrupt(page.id(), d))? {
                found.push((view.key(i).map_err(|d| self.corrupt(page.id(), d))?, r));
            }
        }
        Ok(found)
    }

    /// Empties the first leaf, frees those after it under the same parent that have no overflow values, and lets the first one cover them all. False when the
    /// tree is a single empty leaf.
    fn clear_leaves(&self) -> Result<bool> {
        let core = &*self.core;
        let most = (core.pool.capacity_frames() / 4).clamp(1, 64);
        let pins = self.first_leaves(most)?;
        let mut group = Group::begin(core, GroupKind::System, (3 + pins.len() / 8) * core.page_size())?;
        let Some(parent) = self.inner_exclusive(b"", 1)? else { return self.clear_root_leaf(group) };
        let mut leaves = Vec::new();
        let (mut high, shape_low, end);
        {
            let node = self.node(parent.id(), parent.bytes(), Some(1))?;
            node.validate().map_err(|d| self.corrupt(parent.id(), d))?;
            (high, shape_low, end) = (None, node.low().to_vec(), node.end());
            for i in 0..=node.count().min(most) {
                let id = PageId(node.child(i).map_err(|d| self.corrupt(parent.id(), d))?);
                let Some(page) = core.pool.write_resident(id) else { break };
                let leaf = self.node(id, page.bytes(), Some(0))?;
                leaf.validate().map_err(|d| self.corrupt(id, d))?;
                if i > 0 && has_long_values(&leaf).map_err(|d| self.corrupt(id, d))? {
                    break;
                }
                high = leaf.high().map(<[u8]>::to_vec);
                leaves.push(page);
            }
        }
        if leaves.is_empty() {
            return Ok(true); // evicted meanwhile: again
        }
        let freed: Vec<PageId> = leaves.iter().skip(1).map(|p| p.id()).collect();
        let up = group.add(parent);
        for _ in &freed {
            edit::remove(&mut group.page(up), 0).expect("the node was validated");
        }
        for (i, leaf) in leaves.into_iter().enumerate() {
            let n = group.add(leaf);
            if i == 0 {
                group.page(n).image(|b| split::init_leaf(b, &shape_low, high.as_deref(), end));
            } else {
                retire(&mut group.page(n));
            }
        }
        core.space.apply(core, &mut group, &[], &freed);
        group.commit()?;
        drop(pins);
        core.space.freed(&freed);
        Ok(true)
    }

    /// Empties a root that is a leaf. False when it was empty.
    fn clear_root_leaf<'c>(&'c self, mut group: Group<'c>) -> Result<bool> {
        let root = self.root_for_change()?;
        let (count, end, level) = {
            let node = self.node(self.root, root.bytes(), None)?;
            (node.count(), node.end(), node.level())
        };
        if count == 0 && level == 0 {
            return Ok(false);
        }
        if level > 0 {
            return Ok(true);
        }
        let n = group.add(root);
        let shape = Shape { level: 0, low: b"", high: None, leftmost: 0, end };
        group.page(n).image(|b| edit::Builder::new(b, &shape, b"").finish());
        group.commit()?;
        Ok(true)
    }

    /// Loads and pins the first leaves under the first node of level 1.
    fn first_leaves(&self, most: usize) -> Result<Vec<PagePin<'_>>> {
        let mut ids = Vec::new();
        {
            let Some(parent) = self.inner_exclusive(b"", 1)? else { return Ok(Vec::new()) };
            let node = self.node(parent.id(), parent.bytes(), Some(1))?;
            for i in 0..=node.count().min(most) {
                ids.push(PageId(node.child(i).map_err(|d| self.corrupt(parent.id(), d))?));
            }
        }
        self.core.pool.prefetch(&ids);
        ids.into_iter().map(|id| self.load(self.root, id)).collect()
    }
}

fn has_long_values(leaf: &Node<'_>) -> Result<bool, Damage> {
    for i in 0..leaf.count() {
        if leaf.leaf_cell(i)?.overflow {
            return Ok(true);
        }
    }
    Ok(false)
}
