//! Emptying a tree in bounded log groups, each of which leaves a sound tree.

use super::edit::{self, Shape};
use super::leaf::LeafView;
use super::node::*;
use super::{Tree, leaf, retire, split};
use crate::buffer::{PagePin, PageWrite};
use crate::error::Result;
use crate::page::Group;
use crate::page::PageEdit;
use crate::rows::{OverflowRef, ValueRef, overflow};
use crate::wal::GroupKind;
// A counter orders nothing.
use std::sync::atomic::Ordering::Relaxed;
use varve_volume::PageId;

/// Overflow pages freed in one group at most, unless a single value has more.
const PAGES: usize = 1024;

/// What a step of clearing came to.
enum Step {
    /// The tree is a single empty leaf.
    Done,
    /// Something was emptied or freed: look there again.
    Changed,
    /// The leaf is empty and the one after it cannot be freed yet; that one begins here, if there is one.
    Stuck(Option<Vec<u8>>),
}

impl Tree {
    /// Removes everything: what remains is an empty root. Nobody may write to the keyspace meanwhile. A crash leaves a
    /// sound tree with less in it.
    ///
    /// Goes from left to right. An empty node joins its right neighbour only if that one still fits with the shorter
    /// prefix of the two, so a full neighbour stays at first; the walk then empties that one too, and once nodes on
    /// both sides are small they join. So a walk that changed something is followed by another one from the left, until
    /// one empty leaf is left.
    pub(crate) fn clear(&self) -> Result<()> {
        let merges = || self.core.counters.merges.load(Relaxed);
        let (mut at, mut changed, mut before) = (Vec::new(), false, merges());
        loop {
            self.clear_values(&at)?;
            let step = self.clear_leaves(&at)?;
            self.tidy(&at)?;
            match step {
                Step::Done => return Ok(()),
                Step::Changed => changed = true,
                Step::Stuck(Some(next)) => {
                    self.advances(self.root(), &at, &next)?;
                    at = next;
                }
                Step::Stuck(None) if changed || merges() > before => {
                    (changed, before) = (false, merges());
                    at.clear();
                }
                Step::Stuck(None) => return Err(self.corrupt(self.root(), Damage("empty nodes that do not join"))),
            }
        }
    }

    /// Frees the root page of a tree that was cleared, inside `group`; the caller marks the page (which is returned) as
    /// free with `Space::apply`, and calls `Space::freed` after the commit.
    pub(crate) fn free_root<'c>(&'c self, group: &mut Group<'c>) -> Result<PageId> {
        let root = self.root_for_change()?;
        let id = root.id();
        let n = group.add(root);
        retire(&self.core, &mut group.page(n));
        Ok(id)
    }

    /// Removes the entries with overflow values from the leaf that covers `at`, and frees their pages.
    fn clear_values(&self, at: &[u8]) -> Result<()> {
        let core = &*self.core;
        loop {
            let (mut keys, mut free): (Vec<Vec<u8>>, Vec<PageId>) = (Vec::new(), Vec::new());
            for (key, r) in self.long_values(at)? {
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
            let leaf = self.leaf_exclusive(at)?;
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

    /// Empties the leaf that covers `at`, frees those after it under the same parent that have no overflow values, and
    /// lets the first one cover them all.
    fn clear_leaves(&self, at: &[u8]) -> Result<Step> {
        let core = &*self.core;
        let most = (core.pool.capacity_frames() / 4).clamp(1, 64);
        let pins = self.leaves_from(at, most)?;
        let mut group = Group::begin(core, GroupKind::System, (3 + pins.len() / 8) * core.page_size())?;
        let Some(parent) = self.inner_exclusive(at, 1)? else { return self.clear_root_leaf(group) };
        let mut leaves = Vec::new();
        let (first, mut empty, mut low, mut high, end);
        {
            let node = self.node(parent.id(), parent.bytes(), Some(1))?;
            node.validate().map_err(|d| self.corrupt(parent.id(), d))?;
            first = node.child_for(at).map_err(|d| self.corrupt(parent.id(), d))?;
            (empty, low, high, end) = (false, Vec::new(), None, node.end());
            for i in first..=node.count().min(first + most) {
                let id = self.child_at(parent.id(), &node, i)?;
                if leaves.iter().any(|leaf: &PageWrite<'_>| leaf.id() == id) {
                    return Err(self.corrupt(parent.id(), Damage("refers to a page twice")));
                }
                let Some(page) = core.pool.write_resident(id) else { break };
                self.compare(&parent, i, &page)?;
                let leaf = self.node(id, page.bytes(), Some(0))?;
                leaf.validate().map_err(|d| self.corrupt(id, d))?;
                if i == first {
                    (empty, low) = (leaf.count() == 0, leaf.low().to_vec());
                } else if has_long_values(&leaf).map_err(|d| self.corrupt(id, d))? {
                    break;
                }
                high = leaf.high().map(<[u8]>::to_vec);
                leaves.push(page);
            }
        }
        match leaves.len() {
            0 => return Ok(Step::Changed), // evicted meanwhile: again
            1 if empty => return Ok(Step::Stuck(high)),
            _ => {}
        }
        let freed: Vec<PageId> = leaves.iter().skip(1).map(|p| p.id()).collect();
        let up = group.add(parent);
        for _ in &freed {
            edit::remove(&mut group.page(up), first).expect("the node was validated");
        }
        for (i, leaf) in leaves.into_iter().enumerate() {
            let n = group.add(leaf);
            if i == 0 {
                group.page(n).image(|b| split::init_leaf(b, &low, high.as_deref(), end));
            } else {
                retire(core, &mut group.page(n));
            }
        }
        core.space.apply(core, &mut group, &[], &freed);
        group.commit()?;
        drop(pins);
        core.space.freed(&freed);
        Ok(Step::Changed)
    }

    /// Empties a root that is a leaf.
    fn clear_root_leaf<'c>(&'c self, mut group: Group<'c>) -> Result<Step> {
        let root = self.root_for_change()?;
        let (count, end, level) = {
            let node = self.node(root.id(), root.bytes(), None)?;
            (node.count(), node.end(), node.level())
        };
        if count == 0 && level == 0 {
            return Ok(Step::Done);
        }
        if level > 0 {
            return Ok(Step::Changed);
        }
        let n = group.add(root);
        let shape = Shape { level: 0, low: b"", high: None, leftmost: 0, end };
        group.page(n).image(|b| edit::Builder::new(b, &shape, b"").finish());
        group.commit()?;
        Ok(Step::Changed)
    }

    /// Loads and pins the leaf that covers `at` and some that follow it under the same parent.
    fn leaves_from(&self, at: &[u8], most: usize) -> Result<Vec<PagePin<'_>>> {
        let mut ids = Vec::new();
        {
            let Some(parent) = self.inner_exclusive(at, 1)? else { return Ok(Vec::new()) };
            let node = self.node(parent.id(), parent.bytes(), Some(1))?;
            let first = node.child_for(at).map_err(|d| self.corrupt(parent.id(), d))?;
            for i in first..=node.count().min(first + most) {
                ids.push(self.child_at(parent.id(), &node, i)?);
            }
        }
        self.core.pool.prefetch(&ids);
        ids.into_iter().map(|id| self.load(self.root(), id)).collect()
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
