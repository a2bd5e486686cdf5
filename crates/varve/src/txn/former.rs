//! Rows that left a keyspace all at once, in a tree of their own: snapshots older than that go on seeing them there.
//!
//! A snapshot S finds the rows of a key in the oldest former tree that covers the key and left after S; without one, in
//! the keyspace's index. Of the old values it takes those that ended by the time the tree left. Who reads asks here
//! after he has read the index: a tree is added before the latches are let go of under which it left.
//!
//! Invariants: the trees of a keyspace are in the order in which they left; one that a snapshot needs stays.

use super::key::{Bounds, KeyBuf, OwnedBounds, bound_owned};
use crate::index::Index;
use crate::rows::Span;
use std::ops::Bound;
use std::sync::Arc;
use varve_rt::Mutex;
use varve_rt::atomic::{AtomicU64, Ordering};
use varve_volume::{Lsn, PageId};

/// A tree that left its keyspace.
pub(crate) struct Former {
    /// End of the group with which it left.
    pub end: Lsn,
    /// The keys that it covers.
    pub span: Span,
    /// Its rows.
    pub index: Index,
}

impl Former {
    fn covers(&self, key: &[u8]) -> bool {
        *self.span.0 <= *key && self.span.1.as_deref().is_none_or(|high| key < high)
    }

    /// Whether it covers the keys just below `key` (none: the last keys there are).
    fn covers_below(&self, key: Option<&[u8]>) -> bool {
        let (low, high) = (&*self.span.0, self.span.1.as_deref());
        key.is_none_or(|key| low < key) && high.is_none_or(|high| key.is_some_and(|key| key <= high))
    }
}

/// What a part of a range is read from.
pub(super) struct Piece {
    /// None: the keyspace's index.
    pub former: Option<Arc<Former>>,
    /// The part, at the end of the range where the scan stands.
    pub part: OwnedBounds,
    /// What is left of the range beyond it.
    pub rest: Option<OwnedBounds>,
}

/// The former trees of a keyspace.
#[derive(Default)]
pub(super) struct Formers {
    /// Trees that ever left; says whether one did meanwhile.
    left: AtomicU64,
    there: Mutex<Vec<Arc<Former>>>,
}

impl Formers {
    /// Trees that have left so far.
    #[inline]
    pub fn left(&self) -> u64 {
        self.left.load(Ordering::Acquire)
    }

    /// A tree leaves; latched are the nodes that led to it.
    pub fn add(&self, former: Arc<Former>) {
        let mut there = self.there.lock();
        assert!(there.last().is_none_or(|last| last.end < former.end), "trees leave one after the other");
        there.push(former);
        self.left.fetch_add(1, Ordering::AcqRel);
    }

    /// No snapshot needs it any more.
    pub fn remove(&self, root: PageId) {
        let mut there = self.there.lock();
        let before = there.len();
        there.retain(|former| former.index.root() != root);
        assert!(there.len() + 1 >= before, "a root is of one tree");
    }

    /// Whether a snapshot as of `at` may have to look at one.
    pub fn any(&self, at: Lsn) -> bool {
        self.left() > 0 && self.there.lock().iter().any(|former| former.end > at)
    }

    /// Where a snapshot as of `at` finds a key; none: in the index.
    pub fn of(&self, at: Lsn, key: &[u8]) -> Option<Arc<Former>> {
        if self.left() == 0 {
            return None;
        }
        self.there.lock().iter().find(|former| former.end > at && former.covers(key)).cloned()
    }

    /// The part of a range that one source has, from its beginning, or from its end; none: all of it is the index's.
    pub fn piece(&self, at: Lsn, (low, high): Bounds<'_>, forward: bool) -> Option<Piece> {
        if self.left() == 0 {
            return None;
        }
        let there: Vec<_> = self.there.lock().iter().filter(|former| former.end > at).cloned().collect();
        if there.is_empty() {
            return None;
        }
        assert!(there.is_sorted_by_key(|former| former.end), "trees are in the order in which they left");
        let (first, past) = (from(low), to(high));
        let inside = |edge: &&[u8]| **edge > *first && past.as_deref().is_none_or(|past| *edge < past);
        let edges = there.iter().flat_map(|f| [Some(&*f.span.0), f.span.1.as_deref()]).flatten().filter(inside);
        let (former, edge) = if forward {
            (there.iter().find(|f| f.covers(&first)), edges.min())
        } else {
            (there.iter().find(|f| f.covers_below(past.as_deref())), edges.max())
        };
        let (below, above) = (edge.map(KeyBuf::new), edge.map(KeyBuf::new));
        let (low, high) = (bound_owned(low), bound_owned(high));
        let below = below.map_or(high.clone(), Bound::Excluded);
        let above = above.map_or(low.clone(), Bound::Included);
        let (part, rest) = if forward { ((low, below), (above, high)) } else { ((above, high), (low, below)) };
        Some(Piece { former: former.cloned(), part, rest: edge.map(|_| rest) })
    }
}

/// The first key at or above a lower bound.
fn from(low: Bound<&[u8]>) -> Vec<u8> {
    match low {
        Bound::Unbounded => Vec::new(),
        Bound::Included(key) => key.to_vec(),
        Bound::Excluded(key) => [key, &[0]].concat(),
    }
}

/// The first key beyond an upper bound.
fn to(high: Bound<&[u8]>) -> Option<Vec<u8>> {
    match high {
        Bound::Unbounded => None,
        Bound::Excluded(key) => Some(key.to_vec()),
        Bound::Included(key) => Some([key, &[0]].concat()),
    }
}
