//! What a scan knows of the leaves that it will come to: which to ask the device for, and where the next ones are.
//!
//! Invariants: no more leaves are asked for ahead than [`Pool::scan_window`](crate::buffer::Pool::scan_window). The
//! leaves that follow are a hint: one counts once it is latched and covers the key at which the scan goes on, and if
//! its parent was looked at in the same tree and no node has left its tree since. (A snapshot reads by turns from a
//! keyspace's tree and from those of rows that were cut off it.)

use super::Tree;
use super::descend::Target;
use super::leaf;
use super::node::*;
use crate::buffer::{Latched, PageRead};
use crate::error::Result;
use crate::rows::Direction;
use varve_rt::{Cost, charge};
use varve_volume::PageId;

/// Leaves that are gone to without their parent, after it was looked at.
const MOST_FOLLOWING: usize = 8;

/// The leaves after one, in the direction of a scan, as far as they have its parent.
pub(super) trait Siblings {
    /// How many there are.
    fn left(&self) -> usize;

    /// The page of the one after so many steps, at least one.
    fn leaf(&self, step: usize) -> Option<PageId>;

    /// Where the leaves of the next parent begin (descending: end), if there is one.
    fn end(&self) -> Option<Vec<u8>>;
}

/// Those of a leaf whose parent is latched.
pub(super) struct LatchedSiblings<'n> {
    parent: &'n Node<'n>,
    /// Number of the leaf.
    at: usize,
    forward: bool,
}

impl<'n> LatchedSiblings<'n> {
    /// None where the parent is damaged: the descent will say so.
    pub(super) fn of(parent: &'n Node<'n>, target: Target<'_>) -> Option<LatchedSiblings<'n>> {
        let at = target.child(parent).ok()?;
        assert!(at <= parent.count(), "a child of the node");
        Some(LatchedSiblings { parent, at, forward: matches!(target, Target::Key(_)) })
    }
}

impl Siblings for LatchedSiblings<'_> {
    fn left(&self) -> usize {
        if self.forward { self.parent.count() - self.at } else { self.at }
    }

    fn leaf(&self, step: usize) -> Option<PageId> {
        assert!((1..=self.left()).contains(&step), "a sibling that there is");
        let at = if self.forward { self.at + step } else { self.at - step };
        self.parent.child(at).ok().map(PageId)
    }

    fn end(&self) -> Option<Vec<u8>> {
        let end = if self.forward { self.parent.high() } else { Some(self.parent.low()) };
        end.filter(|end| !end.is_empty()).map(<[u8]>::to_vec)
    }
}

/// What a scan remembers to read ahead: the leaves of a scan are asked for in growing numbers once it has read two of
/// them.
#[derive(Debug, Default)]
pub(crate) struct ReadAhead {
    leaves: u32,
    /// Leaves ahead that were asked for already.
    covered: usize,
    /// No leaf is left that was not.
    all: bool,
    window: usize,
    ids: Vec<PageId>,
    following: Following,
    /// Where the leaves after those that the parent names begin (descending: end), and how many of them to ask for.
    beyond: Option<(Vec<u8>, usize)>,
}

/// Leaves after the one that the scan is at, the nearest first.
#[derive(Debug, Default)]
struct Following {
    leaves: [PageId; MOST_FOLLOWING],
    next: usize,
    end: usize,
    of: Moment,
}

/// A tree before one of its nodes is looked at.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Moment {
    root: PageId,
    /// Nodes that had left their trees.
    moves: u64,
}

impl Following {
    fn next(&self) -> Option<PageId> {
        self.leaves[self.next..self.end].first().copied()
    }

    fn clear(&mut self) {
        (self.next, self.end) = (0, 0);
    }

    fn set(&mut self, leaves: impl Iterator<Item = PageId>, of: Moment) {
        self.clear();
        for leaf in leaves.take(MOST_FOLLOWING) {
            self.leaves[self.end] = leaf;
            self.end += 1;
        }
        assert!(self.end <= MOST_FOLLOWING, "no more are noted than there is room for");
        self.of = of;
    }
}

impl ReadAhead {
    /// Leaves asked for ahead at first.
    const AT_FIRST: usize = 4;
    /// The leaf from which on leaves are asked for ahead, counted from one.
    const FIRST: u32 = 3;

    /// Whether the next leaf asks for none ahead: its parent need not be seen.
    fn has_enough(&self) -> bool {
        self.leaves + 1 < Self::FIRST || self.all || self.covered.saturating_sub(1) * 2 > self.window
    }

    /// The leaf after the one that the scan is at, where it is known: a hint.
    #[inline]
    pub(super) fn next_leaf(&self) -> Option<PageId> {
        self.following.next()
    }

    /// Forgets what was noted last: the parent changed while it was looked at.
    pub(super) fn forget(&mut self) {
        self.following.clear();
        self.ids.clear();
        (self.beyond, self.all, self.covered) = (None, false, 0);
    }

    fn count(&mut self) {
        self.leaves += 1;
        self.covered = self.covered.saturating_sub(1);
    }

    /// Called with each leaf that a descent leads to. `before`: the tree before the descent; `most`: leaves that may be
    /// asked for ahead.
    pub(super) fn note(&mut self, siblings: Option<&impl Siblings>, before: Moment, most: usize) {
        self.count();
        self.ids.clear();
        self.beyond = None;
        self.following.clear();
        let Some(siblings) = siblings else { return };
        let left = siblings.left();
        // Most scans are short.
        let following = if self.leaves < Self::FIRST { 1 } else { MOST_FOLLOWING };
        self.following.set((1..=left.min(following)).map_while(|step| siblings.leaf(step)), before);
        if self.leaves < Self::FIRST || self.covered * 2 > self.window {
            return;
        }
        self.window = (self.window * 2).max(Self::AT_FIRST).min(most);
        for step in self.covered + 1..=self.window.min(left) {
            let Some(leaf) = siblings.leaf(step) else { return };
            self.ids.push(leaf);
        }
        let known = left.max(self.covered);
        let reaches = self.window > known;
        self.beyond = if reaches { siblings.end().map(|end| (end, known - left)) } else { None };
        self.all = reaches && self.beyond.is_none();
        self.covered = self.covered.max(self.window.min(left));
        assert!(self.ids.len() <= self.window && self.window <= most, "no more than so many are asked for ahead");
    }
}

impl Tree {
    #[inline]
    pub(super) fn moment(&self) -> Moment {
        let moves = self.core.nodes_left();
        Moment { root: self.root(), moves }
    }

    /// The leaf that follows, latched shared, if it is known, in memory, and covers the key at which the scan goes on.
    #[inline]
    pub(super) fn following(&self, key: &[u8], ahead: &mut ReadAhead) -> Option<PageRead<'_>> {
        if !ahead.has_enough() {
            return None;
        }
        let next = ahead.following.next()?;
        let page = self.core.pool.read_resident(next).filter(|page| {
            page.is_compared() && self.moment() == ahead.following.of && leaf::covers(page.bytes(), self.keyspace, key)
        });
        if page.is_none() {
            ahead.following.clear();
            return None;
        }
        assert!(ahead.following.next < ahead.following.end, "one was there");
        charge(Cost::NodeSearch, 1);
        ahead.count();
        ahead.following.next += 1;
        page
    }

    /// Asks for the leaves that a scan will come to; no latch is held. Those under the next parent are asked for too,
    /// which is read if need be: so a scan does not come to a halt with each parent.
    pub(super) fn ask_ahead(&self, ahead: &mut ReadAhead, direction: Direction) -> Result<()> {
        if ahead.ids.is_empty() && ahead.beyond.is_none() {
            return Ok(());
        }
        self.hint(ahead);
        let Some((end, asked)) = ahead.beyond.take() else { return Ok(()) };
        let target = if direction == Direction::Forward { Target::Key(&end) } else { Target::Below(&end) };
        let Some(parent) = self.inner_shared(target, 1)? else { return Ok(()) };
        {
            let node = self.node(parent.id(), parent.bytes(), Some(1))?;
            let (last, most) = (node.count(), ahead.window.saturating_sub(ahead.covered - asked));
            let of = |step: usize| if direction == Direction::Forward { step } else { last - step };
            for step in asked..most.min(last + 1) {
                ahead.ids.push(self.child_at(parent.id(), &node, of(step))?);
            }
        }
        drop(parent);
        assert!(ahead.ids.len() <= ahead.window, "no more than so many are asked for ahead");
        ahead.covered += ahead.ids.len();
        self.hint(ahead);
        Ok(())
    }

    /// Hands the leaves that were noted to the pool.
    pub(super) fn hint(&self, ahead: &mut ReadAhead) {
        let pages = self.core.store.pages();
        ahead.ids.retain(|id| id.0 < pages);
        self.core.pool.prefetch(&ahead.ids);
        ahead.ids.clear();
    }
}
