//! Reading ranges: one leaf at a time, either way, with read-ahead; counting.
//!
//! Invariants: a scan gets on with each leaf, whatever is damaged; no more leaves are asked for ahead than
//! [`Pool::scan_window`](crate::buffer::Pool::scan_window).

use super::Tree;
use super::copy::LeafCopy;
use super::descend::Target;
use super::leaf::LeafView;
use super::node::*;
use crate::error::Result;
use crate::rows::{BatchEnd, Direction, Seen, ValueRef};
use std::ops::{Bound, ControlFlow, Range};
use varve_rt::{Cost, charge};
use varve_volume::{Lsn, PageId, page};

/// Cells of a leaf that a scan asks the processor for in advance: they lie in the order of their insertion, which no
/// hardware foresees.
const CELLS_AHEAD: usize = 8;

/// What a scan remembers to read ahead: the leaves of a scan are asked for in growing numbers once it has read two of
/// them.
#[derive(Debug, Default)]
pub(crate) struct ReadAhead {
    leaves: u32,
    /// Leaves ahead that were asked for already.
    covered: usize,
    window: usize,
    ids: Vec<PageId>,
    /// The leaf after the one that the scan is at, where it is known.
    following: Option<PageId>,
    /// Where the leaves after those that the parent names begin (descending: end), and how many of them to ask for.
    beyond: Option<(Vec<u8>, usize)>,
}

impl ReadAhead {
    /// Leaves asked for ahead at first.
    const AT_FIRST: usize = 4;
    /// The leaf from which on leaves are asked for ahead, counted from one.
    const FIRST: u32 = 3;

    /// Whether the next leaf asks for none ahead: its parent need not be seen.
    pub(super) fn has_enough(&self) -> bool {
        self.leaves + 1 < Self::FIRST || self.covered.saturating_sub(1) * 2 > self.window
    }

    /// Called with each leaf whose parent was not seen; `following`: the leaf after it.
    pub(super) fn count(&mut self, following: Option<PageId>) {
        self.leaves += 1;
        self.covered = self.covered.saturating_sub(1);
        self.following = following;
    }

    /// Called with the parent of the leaf that the scan goes to; `most`: leaves that may be asked for ahead.
    pub(super) fn note(&mut self, parent: &Node<'_>, target: Target<'_>, most: usize) {
        self.leaves += 1;
        self.covered = self.covered.saturating_sub(1);
        self.ids.clear();
        (self.beyond, self.following) = (None, None);
        let Ok(at) = target.child(parent) else { return };
        let forward = matches!(target, Target::Key(_));
        let left = if forward { parent.count() - at } else { at };
        let child = |step: usize| parent.child(if forward { at + step } else { at - step }).map(PageId);
        self.following = if left > 0 { child(1).ok() } else { None };
        if self.leaves < Self::FIRST || self.covered * 2 > self.window {
            return;
        }
        self.window = (self.window * 2).max(Self::AT_FIRST).min(most);
        for step in self.covered + 1..=self.window.min(left) {
            let Ok(child) = child(step) else { return };
            self.ids.push(child);
        }
        let (known, end) = (left.max(self.covered), if forward { parent.high() } else { Some(parent.low()) });
        if let Some(end) = end.filter(|end| !end.is_empty() && self.window > known) {
            self.beyond = Some((end.to_vec(), known - left));
        }
        self.covered = self.covered.max(self.window.min(left));
        assert!(self.ids.len() <= self.window && self.window <= most, "no more than so many are asked for ahead");
    }
}

/// The slots of a leaf between two bounds.
fn slots(node: &Node<'_>, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Result<Range<usize>, Damage> {
    charge(Cost::NodeSearch, 2);
    let start = match from {
        Bound::Unbounded => 0,
        Bound::Included(k) => node.search(k)?.0,
        Bound::Excluded(k) => {
            let (at, found) = node.search(k)?;
            at + found as usize
        }
    };
    let end = match to {
        Bound::Unbounded => node.count(),
        // A bound at or beyond the high fence takes all: no search.
        Bound::Included(k) | Bound::Excluded(k) if node.high().is_some_and(|h| k >= h) => node.count(),
        Bound::Excluded(k) => node.search(k)?.0,
        Bound::Included(k) => {
            let (at, found) = node.search(k)?;
            at + found as usize
        }
    };
    assert!(start <= node.count() && end <= node.count(), "slots of the node");
    Ok(start..end.max(start))
}

/// Whether the range has keys at or after `key` (a leaf's high fence).
fn goes_on(key: &[u8], to: Bound<&[u8]>) -> bool {
    match to {
        Bound::Unbounded => true,
        Bound::Included(k) => k >= key,
        Bound::Excluded(k) => k > key,
    }
}

/// Whether the range has keys below `key` (a leaf's low fence).
fn goes_below(key: &[u8], from: Bound<&[u8]>) -> bool {
    match from {
        Bound::Unbounded => !key.is_empty(),
        Bound::Included(k) | Bound::Excluded(k) => k < key,
    }
}

impl Tree {
    /// Hands the entries of one leaf between two bounds to `f`, which must neither touch the pool nor wait: ascending,
    /// those of the leaf in which the range begins; or descending, those of the leaf in which it ends. A key is valid
    /// during its call only. Before each goes the leaf's LSN.
    pub(crate) fn read_leaf_batch(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        direction: Direction,
        ahead: &mut ReadAhead,
        mut f: impl FnMut(Lsn, &[u8], ValueRef<'_>) -> ControlFlow<()>,
    ) -> Result<BatchEnd> {
        self.with_first_leaf((from, to), direction, ahead, |node, id, slots| {
            let lsn = page::lsn(node.bytes());
            each(node, id, slots, direction, &mut |key, value| f(lsn, key, value))
        })
    }

    /// As [`Tree::read_leaf_batch`], but copies the page into `copy` where that can be done: for some entries, no more
    /// than `most`, with short values. Then `f` sees none.
    pub(crate) fn copy_leaf_batch(
        &self,
        range: (Bound<&[u8]>, Bound<&[u8]>),
        direction: Direction,
        ahead: &mut ReadAhead,
        (copy, most): (&mut LeafCopy, usize),
        mut f: impl FnMut(&[u8], ValueRef<'_>) -> ControlFlow<()>,
    ) -> Result<BatchEnd> {
        self.with_first_leaf(range, direction, ahead, |node, id, slots| {
            if copy.fill(node, &slots, direction, most)? {
                charge(Cost::LeafRow, slots.len() as u64);
                return Ok(ControlFlow::Continue(()));
            }
            each(node, id, slots, direction, &mut f)
        })
    }

    /// Hands the leaf in which a range begins (descending: ends), and the slots of those of its entries that are in the
    /// range, to `f`, which must neither touch the pool nor wait.
    fn with_first_leaf(
        &self,
        (from, to): (Bound<&[u8]>, Bound<&[u8]>),
        direction: Direction,
        ahead: &mut ReadAhead,
        f: impl FnOnce(&Node<'_>, PageId, Range<usize>) -> Result<ControlFlow<()>, Damage>,
    ) -> Result<BatchEnd> {
        let target = match (direction, from, to) {
            (Direction::Forward, Bound::Included(k) | Bound::Excluded(k), _) => Target::Key(k),
            (Direction::Forward, Bound::Unbounded, _) => Target::Key(b""),
            (Direction::Reverse, _, Bound::Included(k)) => Target::Key(k),
            (Direction::Reverse, _, Bound::Excluded(k)) => Target::Below(k),
            (Direction::Reverse, _, Bound::Unbounded) => Target::Last,
        };
        let end = {
            let page = self.leaf_at(target, Some(ahead))?;
            let node = self.node(page.id(), page.bytes(), Some(0))?;
            let edge = match direction {
                Direction::Forward => node.high().filter(|h| goes_on(h, to)),
                Direction::Reverse => Some(node.low()).filter(|l| goes_below(l, from)),
            };
            if let (Some(_), Some(next)) = (edge, ahead.following.take()) {
                self.expect_next(next);
            }
            let ended = slots(&node, from, to).and_then(|slots| f(&node, page.id(), slots));
            let broke = ended.map_err(|d| self.corrupt(page.id(), d))?.is_break();
            let next = edge.filter(|_| !broke).map(<[u8]>::to_vec);
            match (&next, target) {
                (Some(next), Target::Key(k)) if direction == Direction::Forward => self.advances(page.id(), k, next)?,
                (Some(next), Target::Below(k)) => self.advances(page.id(), next, k)?,
                _ => {}
            }
            BatchEnd { seen: Seen { page: page.id(), lsn: page.lsn() }, next }
        };
        self.ask_ahead(ahead, direction)?;
        Ok(end)
    }

    /// Asks for the leaves that a scan will come to; no latch is held. Those under the next parent are asked for too,
    /// which is read if need be: so a scan does not come to a halt with each parent.
    fn ask_ahead(&self, ahead: &mut ReadAhead, direction: Direction) -> Result<()> {
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

    #[cfg(any(test, feature = "testing"))]
    /// Number of keys between two bounds, as they are while each leaf is read.
    pub(crate) fn count(&self, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Result<u64> {
        let (mut sum, mut ahead) = (0, ReadAhead::default());
        let mut next: Option<Vec<u8>> = None;
        loop {
            let from = next.as_deref().map_or(from, Bound::Included);
            let start = match from {
                Bound::Included(k) | Bound::Excluded(k) => k,
                Bound::Unbounded => b"",
            };
            {
                let page = self.leaf_at(Target::Key(start), Some(&mut ahead))?;
                let node = self.node(page.id(), page.bytes(), Some(0))?;
                sum += slots(&node, from, to).map_err(|d| self.corrupt(page.id(), d))?.len() as u64;
                let high = node.high().filter(|h| goes_on(h, to));
                high.map_or(Ok(()), |high| self.advances(page.id(), start, high))?;
                next = high.map(<[u8]>::to_vec);
            }
            self.ask_ahead(&mut ahead, Direction::Forward)?;
            if next.is_none() {
                return Ok(sum);
            }
        }
    }
}

/// Hands the entries of the given slots to `f`.
fn each(
    node: &Node<'_>,
    id: PageId,
    slots: Range<usize>,
    direction: Direction,
    f: &mut impl FnMut(&[u8], ValueRef<'_>) -> ControlFlow<()>,
) -> Result<ControlFlow<()>, Damage> {
    let (view, prefix) = (LeafView::new(*node, id), node.prefix().len());
    let mut small = [0; 256];
    let mut large = Vec::new();
    let slot = |n: usize| if direction == Direction::Forward { slots.start + n } else { slots.end.wrapping_sub(1 + n) };
    let longest = slots.clone().map(|i| node.suffix_len(i)).max().unwrap_or(0);
    // The key is put together in one place: the prefix stays, what follows is overwritten (in steps of four bytes).
    let key: &mut [u8] = if prefix + longest + 4 <= small.len() {
        &mut small
    } else {
        large.resize(prefix + longest + 4, 0);
        &mut large
    };
    key[..prefix].copy_from_slice(node.prefix());
    (0..CELLS_AHEAD.min(slots.len())).for_each(|n| node.fetch_cell(slot(n)));
    for n in 0..slots.len() {
        if n + CELLS_AHEAD < slots.len() {
            node.fetch_cell(slot(n + CELLS_AHEAD));
        }
        charge(Cost::LeafRow, 1);
        let i = slot(n);
        let len = node.copy_suffix(i, &mut key[prefix..])?;
        if f(&key[..prefix + len], view.value(i)?).is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}
