//! Taking a range of keys out of a tree, whole subtrees at a time, whatever is in them.
//!
//! First nodes are divided until on every level below the root one begins at either end of the range
//! ([`Tree::align`], groups of their own). Then the range is a run of the root's children, and one group moves that run
//! to a page of its own: the root of a *detached tree*, which has the run's fences in place of none. In the tree an
//! empty leaf stays, below as many nodes with a single child as the root's level asks for; tidying merges them away.
//!
//! Nothing below the root is read or changed, so a leaf of the detached tree looks as it did before. Who found it by a
//! latched descent read it before the group; who knows it by its number alone asks
//! [`Core::nodes_left`](crate::space::Core::nodes_left). Nobody writes to it: the caller has the range locked.

use super::edit::{self, Shape};
use super::leaf::KIND_INNER;
use super::node::*;
use super::{Ends, Tree, split};
use crate::error::{Error, Result};
use crate::page::Group;
use crate::page::PageEdit;
use crate::rows::Span;
use crate::space::Core;
use std::sync::Arc;
use varve_volume::page;
use varve_volume::{KeyspaceId, PageId};

/// Divisions and merges that an alignment may be crossed by.
const ATTEMPTS: usize = 1000;
/// Leaves of one parent that are better emptied row by row.
const FEW: usize = 8;

impl Tree {
    /// A tree that was detached: its root has these fences.
    pub(crate) fn detached(core: Arc<Core>, keyspace: KeyspaceId, root: PageId, span: &Span) -> Tree {
        Tree { ends: Ends::Of(Arc::new(span.clone())), ..Tree::open(core, keyspace, root) }
    }

    /// One that was detached before the database was opened.
    pub(crate) fn found_detached(core: Arc<Core>, keyspace: KeyspaceId, root: PageId) -> Tree {
        Tree { ends: Ends::Own, ..Tree::open(core, keyspace, root) }
    }

    /// Whether the span has more leaves than it takes to be detached.
    pub(crate) fn is_large(&self, (low, high): &Span) -> Result<bool> {
        let Some(parent) = self.inner_exclusive(low, 1)? else { return Ok(false) };
        let node = self.node(parent.id(), parent.bytes(), Some(1))?;
        let corrupt = |d| self.corrupt(parent.id(), d);
        let first = node.child_for(low).map_err(corrupt)?;
        let last = match high {
            Some(high) if node.covers(high) => node.child_for(high).map_err(corrupt)?,
            _ if node.high().is_some() => return Ok(true),
            _ => node.count(),
        };
        Ok(last.saturating_sub(first) > FEW)
    }

    /// Level of the root.
    pub(crate) fn height(&self) -> Result<u8> {
        let root = self.root_for_change()?;
        Ok(self.node(root.id(), root.bytes(), None)?.level())
    }

    /// Divides nodes so that on each level below the root one begins at `key`. No latch may be held.
    pub(crate) fn align(&self, key: &[u8]) -> Result<()> {
        'attempts: for _ in 0..ATTEMPTS {
            for level in 0..=MAX_LEVEL {
                match self.begins_at(key, level)? {
                    // There is no level above.
                    None => return Ok(()),
                    Some(true) => {}
                    Some(false) => {
                        self.divide_exactly(key, level)?;
                        continue 'attempts;
                    }
                }
            }
        }
        Err(Error::Invalid("neighbouring rows changed all the time: delete the range again".into()))
    }

    /// Whether the node of `level` that covers `key` begins with it; none when it is the root.
    fn begins_at(&self, key: &[u8], level: u8) -> Result<Option<bool>> {
        let Some(family) = self.family(key, level)? else { return Ok(None) };
        let node = self.node(family.child.id(), family.child.bytes(), Some(level))?;
        Ok(Some(node.low() == key))
    }

    /// Moves the children of the root between the ends of the span, at which the tree was aligned, to the first of the
    /// pages, which is the root of the detached tree; the others are for what takes their place, one for each level.
    /// False when the tree is not aligned (any more), or the root of another level: nothing was changed.
    pub(crate) fn detach<'c>(&'c self, group: &mut Group<'c>, pages: &[PageId], (low, high): &Span) -> Result<bool> {
        let core = &*self.core;
        let mut fresh = Vec::with_capacity(pages.len());
        for id in pages {
            fresh.push(core.pool.create(*id, self.keyspace)?);
        }
        let root = self.root_for_change()?;
        let id = root.id();
        let copy = root.bytes().to_vec();
        let node = self.node(id, &copy, None)?;
        node.validate().map_err(|d| self.corrupt(id, d))?;
        let (level, end) = (node.level(), node.end());
        let all = low.is_empty() && high.is_none();
        if level == 0 || pages.len() != 1 + if all { 0 } else { usize::from(level) } {
            return Ok(false);
        }
        let Some((from, to)) = children(&node, low, high.as_deref()).map_err(|d| self.corrupt(id, d))? else {
            return Ok(false);
        };
        assert!(from <= to && to <= node.count(), "children of the node");
        let leftmost = node.child(from).map_err(|d| self.corrupt(id, d))?;
        let shape = Shape { level, low, high: high.as_deref(), leftmost, end };
        core.node_leaves();
        let mut fresh = fresh.into_iter();
        let top = group.add_new(fresh.next().expect("one page at least"));
        let mut built = Ok(());
        group.page(top).image(|b| {
            built = edit::build(b, &shape, &[(node, from..to)], None);
            page::set_kind(b, KIND_INNER);
        });
        built.expect("the node was validated, and a part of it fits");
        let up = group.add(root);
        if all {
            group.page(up).image(|b| split::init_leaf(b, b"", None, end));
            return Ok(true);
        }
        let mut below = 0;
        for (level, page) in fresh.enumerate() {
            let new = group.add_new(page);
            let shape = Shape { level: level as u8, leftmost: below, ..shape };
            below = group.id(new).0;
            group.page(new).image(|b| match level {
                0 => split::init_leaf(b, low, high.as_deref(), end),
                _ => {
                    edit::Builder::new(b, &shape, &low[..shape.base()]).finish();
                    page::set_kind(b, KIND_INNER);
                }
            });
        }
        for _ in from..to {
            edit::remove(&mut group.page(up), from).expect("the node was validated");
        }
        let at = match from {
            0 => LEFTMOST,
            i => Node::parse(group.bytes(up)).expect("it was sound").cell_at(i - 1),
        };
        group.page(up).write(at, &below.to_le_bytes());
        Ok(true)
    }
}

/// The first and the last child of a node between two keys; none when one of the keys lies within a child.
fn children(node: &Node<'_>, low: &[u8], high: Option<&[u8]>) -> Result<Option<(usize, usize)>, Damage> {
    let at = |key: &[u8]| node.search(key).map(|(slot, exists)| exists.then_some(slot));
    let from = if low.is_empty() { Some(0) } else { at(low)?.map(|slot| slot + 1) };
    let to = high.map_or(Ok(Some(node.count())), at)?;
    Ok(from.zip(to).filter(|(from, to)| from <= to))
}
