//! Reading ranges: one leaf at a time, either way, with read-ahead; counting.
//!
//! Invariants: a scan gets on with each leaf, whatever is damaged; no more leaves are asked for ahead than
//! [`Pool::scan_window`](crate::buffer::Pool::scan_window).

use super::Tree;
use super::ahead::ReadAhead;
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
const CELLS_AHEAD: usize = 16;

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
            if let (Some(_), Some(next)) = (edge, ahead.next_leaf()) {
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
