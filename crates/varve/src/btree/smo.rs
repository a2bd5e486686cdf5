//! Making room: divisions of nodes and growth of the root. Each is a system group of its own that leaves a sound tree.
//!
//! The order in each: reserve the page and make sure of log space, create the new page, latch parent then node, check
//! everything that can be wrong, change, mark the page in the space map, commit. Nobody can be waiting for the new
//! page, so holding its latch first is no danger.

use super::Tree;
use super::descend::Family;
use super::edit::{self, Shape};
use super::leaf::KIND_INNER;
use super::node::*;
use super::split::{self, Plan};
use crate::error::{Error, Result};
use crate::page::Counters;
use crate::page::Group;
use crate::page::PageEdit;
use crate::wal::GroupKind;
use varve_volume::page::{self, HEADER};

/// Why a node is divided.
#[derive(Clone, Copy)]
enum Want<'k> {
    /// So many bytes of cells are to be added.
    Room(usize),
    /// A cell of so many bytes does not fit, and the ones below the boundary would: they should get a leaf of their
    /// own, or what is left of the one that there is.
    Boundary(usize, &'k [u8]),
    /// The right node should begin with this key.
    Exact(&'k [u8]),
}

/// What is to be done with a node.
enum Decision {
    Nothing,
    Divide(Plan),
    /// Nothing that could be divided is in it.
    Impossible,
}

/// Bytes that a separator takes in an inner node at most.
fn separator_size(key: &[u8]) -> usize {
    SLOT + 8 + key.len()
}

impl Tree {
    /// Divides the leaf that covers `key` unless it has the room.
    pub(super) fn make_room(&self, key: &[u8], room: usize) -> Result<()> {
        self.divide(key, 0, Want::Room(room))
    }

    /// Divides the node of level 1 that covers `key` unless it has the room for a separator like it.
    pub(super) fn make_parent_room(&self, key: &[u8], room: usize) -> Result<()> {
        self.divide(key, 1, Want::Room(room))
    }

    /// Divides the leaf that covers `key` at `boundary`, which it covers too; a leaf that is more than half full as if
    /// room was wanted for `key`.
    pub(super) fn divide_at(&self, key: &[u8], size: usize, boundary: &[u8]) -> Result<()> {
        self.divide(key, 0, Want::Boundary(size, boundary))
    }

    /// Divides the node of `level` that covers `key` at `key`, or first where that makes it small enough. In an inner
    /// node `key` is a separator; else nothing is done.
    pub(super) fn divide_exactly(&self, key: &[u8], level: u8) -> Result<()> {
        self.divide(key, level, Want::Exact(key))
    }

    /// Divides the node of `level` that covers `key`, or prepares that by dividing its parent or growing the root: the
    /// caller looks again.
    fn divide(&self, key: &[u8], level: u8, want: Want<'_>) -> Result<()> {
        let core = &*self.core;
        let reserved = core.space.reserve(core, self.keyspace, 1)?;
        let id = reserved.ids()[0];
        let mut group = Group::begin(core, GroupKind::System, 4 * core.page_size())?;
        let fresh = core.pool.create(id, self.keyspace)?;
        let Some(Family { parent, child }) = self.family(key, level)? else {
            drop((fresh, group, reserved));
            return self.grow_root(level);
        };
        let node = self.node(child.id(), child.bytes(), Some(level))?;
        if level == 0 {
            self.note_slots(node.count());
        }
        let plan = match decide(&node, key, want).map_err(|d| self.corrupt(child.id(), d))? {
            Decision::Nothing => return Ok(()),
            Decision::Divide(plan) => plan,
            Decision::Impossible => {
                return Err(Error::Invalid("more room is asked of one leaf than any leaf can have".into()));
            }
        };
        let above = self.node(parent.id(), parent.bytes(), Some(level + 1))?;
        let size = separator_size(&plan.separator);
        if above.room_for(&plan.separator) < size {
            drop((fresh, group, reserved, parent, child));
            return self.divide(&plan.separator, level + 1, Want::Room(size));
        }
        if above.gap() < size || !plan.separator.starts_with(above.prefix()) {
            // It will be rebuilt.
            above.validate().map_err(|d| self.corrupt(parent.id(), d))?;
        }
        let (slot, exists) = above.search(&plan.separator).map_err(|d| self.corrupt(parent.id(), d))?;
        if exists {
            return Err(self.corrupt(parent.id(), Damage("has the separator of two of its children already")));
        }
        let kind = page::kind(child.bytes());
        let (left, up, right) = (group.add(child), group.add(parent), group.add_new(fresh));
        let copy = group.bytes(left).to_vec();
        let old = Node::parse(&copy).map_err(|d| self.corrupt(group.id(left), d))?;
        let mut done = Ok(());
        group.page(right).image(|b| {
            done = split::fill_right(b, &old, &plan);
            page::set_kind(b, kind);
        });
        done.and_then(|()| split::cut_left(&mut group.page(left), &plan))
            .and_then(|()| edit::insert(&mut group.page(up), &plan.separator, slot, [&id.0.to_le_bytes(), &[]]))
            .expect("the nodes were validated and the plan is feasible");
        let meet = || {
            let (left, right) = (Node::parse(group.bytes(left))?, Node::parse(group.bytes(right))?);
            Ok::<_, Damage>(left.high() == Some(&plan.separator[..]) && right.low() == &plan.separator[..])
        };
        debug_assert_eq!(meet(), Ok(true), "both halves end at the separator that their parent has");
        core.space.apply(core, &mut group, &[id], &[]);
        reserved.keep();
        group.commit()?;
        Counters::add(&core.counters.splits, 1);
        Ok(())
    }

    /// Puts a level above the root if it is still of `level`: its contents move to a new page, which becomes its only
    /// child.
    pub(super) fn grow_root(&self, level: u8) -> Result<()> {
        let core = &*self.core;
        let reserved = core.space.reserve(core, self.keyspace, 1)?;
        let id = reserved.ids()[0];
        let mut group = Group::begin(core, GroupKind::System, 4 * core.page_size())?;
        let fresh = core.pool.create(id, self.keyspace)?;
        let root = self.root_for_change()?;
        let node = self.node(root.id(), root.bytes(), None)?;
        if node.level() != level {
            return Ok(());
        }
        node.validate().map_err(|d| self.corrupt(root.id(), d))?;
        if level >= MAX_LEVEL {
            return Err(self.corrupt(root.id(), Damage("the tree is higher than any tree can be")));
        }
        let shape = Shape { level: level + 1, low: b"", high: None, leftmost: id.0, end: node.end() };
        let (root, child) = (group.add(root), group.add_new(fresh));
        let copy = group.bytes(root).to_vec();
        group.page(child).image(|b| {
            b[HEADER..].copy_from_slice(&copy[HEADER..]);
            page::set_kind(b, page::kind(&copy));
        });
        group.page(root).image(|b| {
            edit::Builder::new(b, &shape, b"").finish();
            page::set_kind(b, KIND_INNER);
        });
        core.space.apply(core, &mut group, &[id], &[]);
        reserved.keep();
        group.commit()?;
        Counters::add(&core.counters.splits, 1);
        Ok(())
    }
}

/// How to divide a node, after looking at all of it that is going to be moved.
fn decide(node: &Node<'_>, key: &[u8], want: Want<'_>) -> Result<Decision, Damage> {
    let room = match want {
        Want::Room(room) | Want::Boundary(room, _) => room,
        Want::Exact(key) => return decide_exactly(node, key),
    };
    if matches!(want, Want::Room(_)) && node.room_for(key) >= room {
        return Ok(Decision::Nothing);
    }
    if let Some(end) = end_of_append(node, key, want)?
        && let Some(plan) = split::plan_append(node, &end, room)?
    {
        return Ok(Decision::Divide(plan));
    }
    node.validate()?;
    if let Want::Boundary(_, boundary) = want
        && node.used() * 2 <= edit::shape_of(node).capacity()
    {
        if node.low() == boundary || !node.covers(boundary) {
            return Ok(Decision::Nothing);
        }
        return Ok(split::plan_boundary(node, boundary)?.map_or(Decision::Nothing, Decision::Divide));
    }
    let plan = if node.level() == 0 { split::plan_leaf(node, key, room)? } else { split::plan_inner(node, key)? };
    Ok(match (plan, want) {
        (Some(plan), _) => Decision::Divide(plan),
        (None, Want::Room(_)) => Decision::Impossible,
        (None, Want::Boundary(..) | Want::Exact(_)) => Decision::Nothing,
    })
}

/// Where a leaf that takes rows behind all others should end.
fn end_of_append(node: &Node<'_>, key: &[u8], want: Want<'_>) -> Result<Option<Vec<u8>>, Damage> {
    let count = node.count();
    Ok(match want {
        Want::Boundary(_, boundary) => Some(boundary.to_vec()),
        Want::Room(_) if node.level() == 0 && count > 0 && node.search(key)? == (count, false) => {
            let last = node.key(count - 1)?;
            (last[..] < *key).then(|| split::separator(&last, key))
        }
        Want::Room(_) | Want::Exact(_) => None,
    })
}

/// How to divide a node at `key`; in two steps if its halves do not fit with that fence.
fn decide_exactly(node: &Node<'_>, key: &[u8]) -> Result<Decision, Damage> {
    node.validate()?;
    if node.low() == key || !node.covers(key) {
        return Ok(Decision::Nothing);
    }
    if node.level() > 0 && !node.search(key)?.1 {
        return Ok(Decision::Nothing);
    }
    let plan = match split::plan_boundary(node, key)? {
        None if node.level() == 0 => split::plan_leaf(node, key, 0)?,
        None => split::plan_inner(node, key)?,
        exact => exact,
    };
    Ok(plan.map_or(Decision::Impossible, Decision::Divide))
}
