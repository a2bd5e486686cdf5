//! Giving space back: merges of neighbours and removal of a level at the root. Each is a system group of its own that
//! leaves a sound tree.

use super::descend::{Loaded, Target};
use super::edit;
use super::leaf::is_underfull;
use super::node::*;
use super::split;
use super::{Tree, retire};
use crate::buffer::PageWrite;
use crate::error::Result;
use crate::page::Counters;
use crate::page::Group;
use crate::page::PageEdit;
use crate::wal::GroupKind;
use varve_volume::page::{self, HEADER};

/// What an attempt at a merge came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// Two nodes became one: the parent may be worth a merge now, or this node another.
    Merged,
    /// The node is not underfull, or its neighbours are too full.
    Nothing,
    /// The node is its parent's only child: the parent must be merged first.
    Alone,
    /// The node is the root.
    Root,
}

/// Which nodes are merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    /// Those under a quarter full.
    Underfull,
    /// All that fit into one with their neighbour.
    Any,
}

/// Two neighbours and their parent, latched exclusively, parent first, then left to right.
struct Pair<'t> {
    parent: PageWrite<'t>,
    left: PageWrite<'t>,
    right: PageWrite<'t>,
    /// Slot of the parent that refers to the right one.
    slot: usize,
}

/// What was found in place of a pair.
enum Latched<'t> {
    Pair(Pair<'t>),
    Not(Outcome),
}

impl Tree {
    /// Merges the leaf around `key` with a neighbour if it is underfull and one has room, and so on upwards; takes
    /// levels without a separator off the root. To be called after a commit whose changes said
    /// [`super::Change::underfull`]; no latch may be held.
    pub(crate) fn tidy(&self, key: &[u8]) -> Result<()> {
        while self.tidy_pass(key)? {}
        Ok(())
    }

    /// Merges neighbours throughout the tree wherever two fit into one node, leaves first; takes levels without a
    /// separator off the root. Each merge is a group of its own, and others go on meanwhile. Returns how many there
    /// were.
    pub(crate) fn merge_all(&self) -> Result<u64> {
        let mut merged = 0;
        for level in 0..MAX_LEVEL {
            let (here, is_root) = self.merge_level(level)?;
            merged += here;
            if is_root {
                break;
            }
        }
        self.lower_root()?;
        Ok(merged)
    }

    /// Merges the nodes of a level, from the lowest keys to the highest, each with those after it under the same
    /// parent. How many merges there were, and whether the level is the root's, which has no neighbours.
    fn merge_level(&self, level: u8) -> Result<(u64, bool)> {
        let (mut merged, mut at) = (0, Vec::new());
        loop {
            match self.merge_with(&at, level, false, Which::Any)? {
                Some(Outcome::Merged) => {
                    merged += 1;
                    continue;
                }
                Some(Outcome::Root) => return Ok((merged, true)),
                _ => {}
            }
            // The node's high fence, which its parent knows, is where the next one begins.
            let next = {
                let Some(parent) = self.inner_shared(Target::Key(&at), level + 1)? else { return Ok((merged, true)) };
                let node = self.node(parent.id(), parent.bytes(), Some(level + 1))?;
                let corrupt = |d| self.corrupt(parent.id(), d);
                let i = node.child_for(&at).map_err(corrupt)?;
                let next = match i < node.count() {
                    true => Some(node.key(i).map_err(corrupt)?),
                    false => node.high().map(<[u8]>::to_vec),
                };
                next.as_ref().map_or(Ok(()), |next| self.advances(parent.id(), &at, next))?;
                next
            };
            let Some(next) = next else { return Ok((merged, false)) };
            at = next;
        }
    }

    /// One pass from the leaf upwards. True when a node that had no neighbour may have got one.
    fn tidy_pass(&self, key: &[u8]) -> Result<bool> {
        let mut alone = false;
        for level in 0..=MAX_LEVEL {
            let mut merged = false;
            loop {
                match self.merge(key, level)? {
                    Outcome::Merged if alone => return Ok(true),
                    Outcome::Merged => merged = true,
                    Outcome::Alone => {
                        alone = true;
                        break;
                    }
                    Outcome::Nothing if merged => break,
                    Outcome::Nothing => return Ok(false),
                    Outcome::Root => {
                        self.lower_root()?;
                        return Ok(false);
                    }
                }
            }
        }
        Ok(false)
    }

    /// Merges the node of `level` around `key` with a neighbour.
    fn merge(&self, key: &[u8], level: u8) -> Result<Outcome> {
        for with_left in [false, true] {
            match self.merge_with(key, level, with_left, Which::Underfull)? {
                Some(outcome) => return Ok(outcome),
                None => continue,
            }
        }
        Ok(Outcome::Nothing)
    }

    /// Merges with the left or the right neighbour; none when the two do not fit one node or there is no such
    /// neighbour.
    fn merge_with(&self, key: &[u8], level: u8, with_left: bool, which: Which) -> Result<Option<Outcome>> {
        let core = &*self.core;
        let mut group = Group::begin(core, GroupKind::System, 4 * core.page_size())?;
        let Pair { parent, left, right, slot } = match self.pair(key, level, with_left)? {
            Latched::Pair(pair) => pair,
            Latched::Not(outcome) => return Ok(if outcome == Outcome::Nothing { None } else { Some(outcome) }),
        };
        let (l, r) =
            (self.node(left.id(), left.bytes(), Some(level))?, self.node(right.id(), right.bytes(), Some(level))?);
        if which == Which::Underfull && !is_underfull(if with_left { &r } else { &l }) {
            return Ok(Some(Outcome::Nothing));
        }
        l.validate().map_err(|d| self.corrupt(left.id(), d))?;
        r.validate().map_err(|d| self.corrupt(right.id(), d))?;
        self.node(parent.id(), parent.bytes(), None)?.validate().map_err(|d| self.corrupt(parent.id(), d))?;
        if !split::can_join(&l, &r).map_err(|d| self.corrupt(right.id(), d))? {
            return Ok(None);
        }
        let freed = right.id();
        assert!(freed != left.id() && freed != parent.id(), "three nodes");
        let copy = right.bytes().to_vec();
        let right_node = Node::parse(&copy).map_err(|d| self.corrupt(freed, d))?;
        let (up, left, right) = (group.add(parent), group.add(left), group.add(right));
        split::join(&mut group.page(left), &right_node)
            .and_then(|()| edit::remove(&mut group.page(up), slot))
            .expect("the nodes were validated and fit");
        retire(core, &mut group.page(right));
        core.space.apply(core, &mut group, &[], &[freed]);
        group.commit()?;
        Counters::add(&core.counters.merges, 1);
        core.space.freed(&[freed]);
        Ok(Some(Outcome::Merged))
    }

    /// Latches the node of `level` around `key`, its left or right neighbour, and their parent.
    fn pair(&self, key: &[u8], level: u8, with_left: bool) -> Result<Latched<'_>> {
        let mut loaded = Loaded::default();
        loop {
            let Some(parent) = self.inner_exclusive(key, level + 1)? else { return Ok(Latched::Not(Outcome::Root)) };
            let (ids, slot) = {
                let node = self.node(parent.id(), parent.bytes(), Some(level + 1))?;
                if node.count() == 0 {
                    return Ok(Latched::Not(Outcome::Alone));
                }
                let at = node.child_for(key).map_err(|d| self.corrupt(parent.id(), d))?;
                let first = match with_left {
                    true if at > 0 => at - 1,
                    false if at < node.count() => at,
                    _ => return Ok(Latched::Not(Outcome::Nothing)),
                };
                let child = |i| self.child_at(parent.id(), &node, i);
                ([child(first)?, child(first + 1)?], first)
            };
            let left = self.core.pool.write_resident(ids[0]);
            let right = if left.is_some() && ids[0] != ids[1] { self.core.pool.write_resident(ids[1]) } else { None };
            match (left, right) {
                (Some(left), Some(right)) => {
                    self.compare(&parent, slot, &left)?;
                    self.compare(&parent, slot + 1, &right)?;
                    return Ok(Latched::Pair(Pair { parent, left, right, slot }));
                }
                (left, _) => {
                    let from = parent.id();
                    if ids[0] == ids[1] {
                        return Err(self.corrupt(from, Damage("refers to a page twice")));
                    }
                    let missing = ids[left.is_some() as usize];
                    drop((left, parent));
                    self.load_into(&mut loaded, from, missing)?;
                }
            }
        }
    }

    /// Takes a level off a root that has a single child.
    fn lower_root(&self) -> Result<()> {
        let core = &*self.core;
        let mut loaded = Loaded::default();
        loop {
            let mut group = Group::begin(core, GroupKind::System, 4 * core.page_size())?;
            let root = self.root_for_change()?;
            let (child, level) = {
                let node = self.node(root.id(), root.bytes(), None)?;
                if node.level() == 0 || node.count() > 0 {
                    return Ok(());
                }
                (self.child_at(root.id(), &node, 0)?, node.level())
            };
            let Some(page) = core.pool.write_resident(child) else {
                let from = root.id();
                drop(root);
                drop(group);
                self.load_into(&mut loaded, from, child)?;
                continue;
            };
            let node = self.node(child, page.bytes(), Some(level - 1))?;
            node.validate().map_err(|d| self.corrupt(child, d))?;
            self.compare_fences(child, &node, b"", None, Some(root.id()))?;
            let copy = page.bytes().to_vec();
            let (root, child_no) = (group.add(root), group.add(page));
            group.page(root).image(|b| {
                b[HEADER..].copy_from_slice(&copy[HEADER..]);
                page::set_kind(b, page::kind(&copy));
            });
            retire(core, &mut group.page(child_no));
            core.space.apply(core, &mut group, &[], &[child]);
            group.commit()?;
            Counters::add(&core.counters.merges, 1);
            loaded = Loaded::default();
            core.space.freed(&[child]);
        }
    }
}
