//! Finding nodes from the root down: inner nodes without latches where that will do (`peek`), else by latch coupling.

use super::Tree;
use super::ahead::{LatchedSiblings, Moment, ReadAhead};
use super::leaf::{KIND_INNER, KIND_LEAF};
use super::node::*;
use crate::buffer::{Latched, PagePin, PageRead, PageWrite};
use crate::error::{Error, Result};
use varve_rt::{Cost, charge};
use varve_volume::{PageId, page};

/// Where a descent goes.
#[derive(Clone, Copy)]
pub(super) enum Target<'k> {
    /// To the node that covers the key.
    Key(&'k [u8]),
    /// To the node that covers the keys just below the key.
    Below(&'k [u8]),
    /// To the last node.
    Last,
}

impl Target<'_> {
    /// Number of the child to go to.
    #[inline]
    pub(super) fn child(&self, node: &Node<'_>) -> Result<usize, Damage> {
        match self {
            Target::Key(k) => node.child_for(k),
            Target::Below(k) => node.child_below(k),
            Target::Last => Ok(node.count()),
        }
    }
}

/// Pages that a descent had to load, pinned so that it finds them when it comes by again: the last few of them.
#[derive(Default)]
pub(super) struct Loaded<'t> {
    pins: [Option<PagePin<'t>>; 6],
    next: usize,
    /// A page that could not be loaded.
    failed: Option<PageId>,
}

impl<'t> Loaded<'t> {
    fn push(&mut self, pin: PagePin<'t>) {
        self.pins[self.next % self.pins.len()] = Some(pin);
        self.next += 1;
    }
}

/// An inner node and one of its children, both latched exclusively.
pub(super) struct Family<'t> {
    pub parent: PageWrite<'t>,
    pub child: PageWrite<'t>,
}

impl Tree {
    /// A latched page as a node of this tree; `level` when it is known.
    #[inline]
    pub(super) fn node<'a>(&self, id: PageId, bytes: &'a [u8], level: Option<u8>) -> Result<Node<'a>> {
        let node = Node::parse(bytes).map_err(|d| self.corrupt(id, d))?;
        let kind = if node.level() == 0 { KIND_LEAF } else { KIND_INNER };
        if page::kind(bytes) != kind || page::keyspace(bytes) != self.keyspace {
            return Err(self.not_ours(id, bytes));
        }
        if level.is_some_and(|l| l != node.level()) || node.level() > MAX_LEVEL {
            return Err(self.wrong_level(id, node.level(), level));
        }
        Ok(node)
    }

    /// The number of a node's child, and its page.
    #[inline]
    pub(super) fn child(&self, id: PageId, node: &Node<'_>, target: Target<'_>) -> Result<(usize, PageId)> {
        charge(Cost::NodeSearch, 1);
        let i = target.child(node).map_err(|d| self.corrupt(id, d))?;
        Ok((i, self.child_at(id, node, i)?))
    }

    /// The page of a node's child number `i`.
    #[inline]
    pub(super) fn child_at(&self, id: PageId, node: &Node<'_>, i: usize) -> Result<PageId> {
        let child = PageId(node.child(i).map_err(|d| self.corrupt(id, d))?);
        // A thread that latched it twice would wait for itself.
        if child == id { Err(self.corrupt(id, Damage("refers to itself"))) } else { Ok(child) }
    }

    /// Loads a page that a node refers to; no latch is held.
    #[cold]
    pub(super) fn load(&self, from: PageId, id: PageId) -> Result<PagePin<'_>> {
        if id.0 >= self.core.store.pages() {
            return Err(self.corrupt(from, Damage("refers to a page that does not exist")));
        }
        self.core.pool.load(id).map_err(|e| self.name_keyspace(e))
    }

    /// Loads a page that a node refers to, for a descent that is going to be repeated; no latch is held. What is wrong
    /// with the page counts only the second time: it may have moved since the node was looked at, and its place may
    /// hold nothing any more, or be gone.
    #[cold]
    pub(super) fn load_into<'t>(&'t self, loaded: &mut Loaded<'t>, from: PageId, id: PageId) -> Result<()> {
        match self.load(from, id) {
            Ok(pin) => loaded.push(pin),
            Err(Error::Corrupt(_) | Error::Volume(_)) if loaded.failed != Some(id) => loaded.failed = Some(id),
            Err(e) => return Err(e),
        }
        Ok(())
    }

    /// Adds the keyspace to an error that names a page only.
    pub(super) fn name_keyspace(&self, e: crate::error::Error) -> crate::error::Error {
        use crate::error::Damage;
        match e {
            Error::Corrupt(Damage::Page { page, keyspace: None, what, stored }) => {
                Error::Corrupt(Damage::Page { page, keyspace: Some(self.keyspace), what, stored })
            }
            e => e,
        }
    }

    /// The root, as `latch` latches it.
    #[inline]
    fn latch_root<G: Latched>(&self, latch: impl Fn(PageId) -> Result<G>) -> Result<G> {
        loop {
            let root = self.root();
            let page = latch(root);
            // It may have moved before it was latched.
            if self.root() == root {
                let page = page.map_err(|e| self.name_keyspace(e))?;
                page.compare_once(|| self.compare_root(root, page.bytes()))?;
                return Ok(page);
            }
        }
    }

    #[inline]
    fn root_shared(&self) -> Result<PageRead<'_>> {
        self.latch_root(|id| self.core.pool.read(id))
    }

    fn root_exclusive(&self) -> Result<PageWrite<'_>> {
        self.latch_root(|id| self.core.pool.write(id))
    }

    /// The leaf that covers `key`, latched shared.
    #[inline]
    pub(crate) fn leaf(&self, key: &[u8]) -> Result<PageRead<'_>> {
        self.leaf_at(Target::Key(key), None)
    }

    /// The leaf that covers `key`, latched shared, if that takes no wait; none: it does.
    pub(super) fn leaf_now(&self, key: &[u8]) -> Result<Option<PageRead<'_>>> {
        let Some(found) = self.peek_leaf(key) else { return self.root_now() };
        let page = self.core.pool.try_read_resident(found.leaf);
        Ok(page.filter(|page| page.is_compared() && found.confirm()))
    }

    /// The root, if it is a leaf; else as [`Tree::leaf_now`].
    fn root_now(&self) -> Result<Option<PageRead<'_>>> {
        let root = self.root();
        let Some(page) = self.core.pool.try_read_resident(root) else { return Ok(None) };
        if !page.is_compared() || self.root() != root {
            return Ok(None);
        }
        let is_leaf = self.node(root, page.bytes(), None)?.level() == 0;
        Ok(is_leaf.then_some(page))
    }

    /// The leaf at `target`, latched shared. With `ahead`, the leaves after it are noted there.
    #[inline]
    pub(super) fn leaf_at(&self, target: Target<'_>, mut ahead: Option<&mut ReadAhead>) -> Result<PageRead<'_>> {
        if let Target::Key(key) = target {
            if let Some(ahead) = ahead.as_deref_mut()
                && let Some(page) = self.following(key, ahead)
            {
                return Ok(page);
            }
            let before = if ahead.is_some() { self.moment() } else { Moment::default() };
            if let Some(found) = self.peek_leaf(key) {
                // Its slots, before its header says how many there are.
                self.expect(found.leaf);
                if let Some(page) = self.core.pool.read_resident(found.leaf)
                    && page.is_compared()
                    && found.confirm()
                {
                    self.node(page.id(), page.bytes(), Some(0))?;
                    if let Some(ahead) = ahead {
                        found.note(self, ahead, before);
                    }
                    return Ok(page);
                }
            }
        }
        self.latched_leaf_at(target, ahead)
    }

    /// The same, latching parent and child together from the root down: for what cannot be had without, and for who
    /// must wait.
    pub(super) fn latched_leaf_at(
        &self,
        target: Target<'_>,
        mut ahead: Option<&mut ReadAhead>,
    ) -> Result<PageRead<'_>> {
        let (mut loaded, mut noted) = (None, false);
        'restart: loop {
            let before = if ahead.is_some() { self.moment() } else { Moment::default() };
            let mut page = self.root_shared()?;
            let mut level = None;
            loop {
                let ((i, child), next) = {
                    let node = self.node(page.id(), page.bytes(), level)?;
                    if node.level() == 0 {
                        return Ok(page);
                    }
                    if node.level() == 1
                        && !std::mem::replace(&mut noted, true)
                        && let Some(ahead) = ahead.as_deref_mut()
                    {
                        let siblings = LatchedSiblings::of(&node, target);
                        ahead.note(siblings.as_ref(), before, self.core.pool.scan_window());
                    }
                    (self.child(page.id(), &node, target)?, node.level() - 1)
                };
                if next == 0 {
                    // Its slots, before its header says how many there are.
                    self.expect(child);
                }
                match self.core.pool.read_resident(child) {
                    Some(p) => {
                        self.compare(&page, i, &p)?;
                        page = p;
                    }
                    None => {
                        let from = page.id();
                        drop(page);
                        // The device reads those after it meanwhile.
                        if let Some(ahead) = ahead.as_deref_mut() {
                            self.hint(ahead);
                        }
                        self.load_into(loaded.get_or_insert_with(Loaded::default), from, child)?;
                        continue 'restart;
                    }
                }
                level = Some(next);
            }
        }
    }

    /// The leaf that covers `key`, latched exclusively.
    pub(super) fn leaf_exclusive(&self, key: &[u8]) -> Result<PageWrite<'_>> {
        if let Some(found) = self.peek_leaf(key)
            && let Some(page) = self.core.pool.write_resident(found.leaf)
            && page.is_compared()
            && found.confirm()
        {
            self.node(page.id(), page.bytes(), Some(0))?;
            return Ok(page);
        }
        let mut loaded = Loaded::default();
        loop {
            if let Some(page) = self.exclusive_at(Target::Key(key), 0, &mut loaded)? {
                return Ok(page);
            }
        }
    }

    /// The node of `level` at `target`, latched exclusively; none when something had to be loaded or the root changed
    /// its level: try again. A tree lower than `level` gives its root.
    fn exclusive_at<'t>(
        &'t self,
        target: Target<'_>,
        level: u8,
        loaded: &mut Loaded<'t>,
    ) -> Result<Option<PageWrite<'t>>> {
        let mut page = self.root_shared()?;
        let mut at = self.node(page.id(), page.bytes(), None)?.level();
        if at <= level {
            drop(page);
            let root = self.root_exclusive()?;
            let now = self.node(root.id(), root.bytes(), None)?.level();
            return Ok((now <= level).then_some(root));
        }
        loop {
            let ((i, child), next) = {
                let node = self.node(page.id(), page.bytes(), Some(at))?;
                (self.child(page.id(), &node, target)?, at - 1)
            };
            if next == level {
                if let Some(p) = self.core.pool.write_resident(child) {
                    self.compare(&page, i, &p)?;
                    self.node(p.id(), p.bytes(), Some(next))?;
                    return Ok(Some(p));
                }
            } else if let Some(p) = self.core.pool.read_resident(child) {
                self.compare(&page, i, &p)?;
                (page, at) = (p, next);
                continue;
            }
            let from = page.id();
            drop(page);
            self.load_into(loaded, from, child)?;
            return Ok(None);
        }
    }

    /// The node of `level` that covers `key` and its parent, both latched exclusively. None when the tree has no node
    /// above `level`.
    pub(super) fn family(&self, key: &[u8], level: u8) -> Result<Option<Family<'_>>> {
        let mut loaded = Loaded::default();
        loop {
            let Some(parent) = self.exclusive_at(Target::Key(key), level + 1, &mut loaded)? else { continue };
            let (i, child) = {
                let node = self.node(parent.id(), parent.bytes(), None)?;
                if node.level() <= level {
                    return Ok(None);
                }
                self.child(parent.id(), &node, Target::Key(key))?
            };
            match self.core.pool.write_resident(child) {
                Some(child) => {
                    self.compare(&parent, i, &child)?;
                    self.node(child.id(), child.bytes(), Some(level))?;
                    return Ok(Some(Family { parent, child }));
                }
                None => {
                    let from = parent.id();
                    drop(parent);
                    self.load_into(&mut loaded, from, child)?;
                }
            }
        }
    }

    /// The inner node of `level` at `target`, latched shared. None when the tree has no such level.
    pub(super) fn inner_shared(&self, target: Target<'_>, level: u8) -> Result<Option<PageRead<'_>>> {
        let mut loaded = Loaded::default();
        'restart: loop {
            let mut page = self.root_shared()?;
            let mut at = None;
            loop {
                let ((i, child), next) = {
                    let node = self.node(page.id(), page.bytes(), at)?;
                    if node.level() <= level {
                        let found = node.level() == level;
                        return Ok(found.then_some(page));
                    }
                    (self.child(page.id(), &node, target)?, node.level() - 1)
                };
                let Some(p) = self.core.pool.read_resident(child) else {
                    let from = page.id();
                    drop(page);
                    self.load_into(&mut loaded, from, child)?;
                    continue 'restart;
                };
                self.compare(&page, i, &p)?;
                (page, at) = (p, Some(next));
            }
        }
    }

    /// The inner node of `level` that covers `key`, latched exclusively. None when the tree has no such level.
    pub(super) fn inner_exclusive(&self, key: &[u8], level: u8) -> Result<Option<PageWrite<'_>>> {
        let mut loaded = Loaded::default();
        loop {
            if let Some(page) = self.exclusive_at(Target::Key(key), level, &mut loaded)? {
                let found = self.node(page.id(), page.bytes(), None)?.level();
                return Ok((found == level).then_some(page));
            }
        }
    }

    /// The root, latched exclusively.
    pub(super) fn root_for_change(&self) -> Result<PageWrite<'_>> {
        self.root_exclusive()
    }
}
