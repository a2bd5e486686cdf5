//! Several sorted sources as one, and what of them somebody can still see.

use super::ranges::Fragments;
use super::{Entries, Entry, EntryKind, Segment, order};
use crate::error::Result;
use crate::rows::Damage;
use std::cmp::Ordering;
use std::sync::Arc;
use varve_volume::Lsn;

/// A heap of sources, by number: the one that comes first is on top.
///
/// It knows nothing of what the sources hold; each call says which of two comes first. The source on top mostly stays
/// there when it moves on, so the one that comes after it is remembered: one comparison says so.
#[derive(Default, Debug)]
pub(crate) struct Heap {
    order: Vec<usize>,
    /// Where in the order the second is; 0: it is not known.
    second: usize,
}

impl Heap {
    /// Of these sources.
    pub(crate) fn new(sources: impl IntoIterator<Item = usize>, before: impl Fn(usize, usize) -> bool) -> Heap {
        let mut heap = Heap { order: sources.into_iter().collect(), second: 0 };
        (0..heap.order.len() / 2).rev().for_each(|at| heap.sift(at, &before));
        heap
    }

    /// The source that comes first.
    #[inline]
    pub(crate) fn top(&self) -> Option<usize> {
        self.order.first().copied()
    }

    /// The source on top has moved on.
    #[inline]
    pub(crate) fn moved(&mut self, before: impl Fn(usize, usize) -> bool) {
        if self.order.len() < 2 {
            return;
        }
        if self.second == 0 {
            let right = self.order.len() > 2 && before(self.order[2], self.order[1]);
            self.second = if right { 2 } else { 1 };
        }
        debug_assert!(self.order[1..].iter().all(|other| !before(*other, self.order[self.second])), "it is the second");
        if before(self.order[self.second], self.order[0]) {
            self.sift(0, &before);
        }
    }

    /// The source on top has come to its end.
    pub(crate) fn pop(&mut self, before: impl Fn(usize, usize) -> bool) {
        assert!(!self.order.is_empty(), "a source that ends was on top");
        self.order.swap_remove(0);
        self.sift(0, &before);
    }

    fn sift(&mut self, mut at: usize, before: &impl Fn(usize, usize) -> bool) {
        self.second = 0;
        loop {
            let mut first = at;
            for child in [2 * at + 1, 2 * at + 2] {
                if child < self.order.len() && before(self.order[child], self.order[first]) {
                    first = child;
                }
            }
            if first == at {
                return;
            }
            self.order.swap(at, first);
            at = first;
        }
    }
}

/// A walk over several walks as one, either way. Of equal places (there should be none) the earlier source comes first.
pub(crate) struct Merging<S> {
    sources: Vec<S>,
    heap: Heap,
    reverse: bool,
}

fn place<S: Entries>(source: &S) -> Option<(&[u8], Lsn)> {
    source.entry().map(|entry| (entry.key, entry.commit))
}

impl<S: Entries> Merging<S> {
    /// A walk that stands nowhere yet.
    pub(crate) fn new(sources: Vec<S>) -> Merging<S> {
        Merging { sources, heap: Heap::default(), reverse: false }
    }

    fn is_before(sources: &[S], reverse: bool, a: usize, b: usize) -> bool {
        let (Some(one), Some(other)) = (place(&sources[a]), place(&sources[b])) else { return false };
        let order = order(one, other).then(a.cmp(&b));
        if reverse { order.is_gt() } else { order.is_lt() }
    }

    /// All sources stand where they should: orders them.
    fn arrange(&mut self, reverse: bool) {
        self.reverse = reverse;
        let sources = &self.sources;
        let standing = (0..sources.len()).filter(|i| sources[*i].entry().is_some());
        self.heap = Heap::new(standing, |a, b| Self::is_before(sources, reverse, a, b));
    }

    fn each(&mut self, reverse: bool, go: impl FnMut(&mut S) -> Result<()>) -> Result<()> {
        self.heap = Heap::default();
        self.sources.iter_mut().try_for_each(go)?;
        self.arrange(reverse);
        Ok(())
    }

    fn advance(&mut self, reverse: bool) -> Result<()> {
        let top = self.heap.top().expect("it stands at an entry");
        if self.reverse != reverse {
            self.turn(top, reverse)?;
        }
        self.move_top(|top| if reverse { top.prev() } else { top.next() })
    }

    /// The source that has the entry where the walk stands.
    pub(crate) fn top(&self) -> Option<&S> {
        self.heap.top().map(|top| &self.sources[top])
    }

    /// Moves that source as `go` does: in the way of the walk, past where it stands.
    #[inline]
    pub(crate) fn move_top<R>(&mut self, go: impl FnOnce(&mut S) -> Result<R>) -> Result<R> {
        let top = self.heap.top().expect("it stands at an entry");
        let result = go(&mut self.sources[top])?;
        let (sources, reverse) = (&self.sources, self.reverse);
        let before = |a, b| Self::is_before(sources, reverse, a, b);
        if sources[top].entry().is_none() {
            self.heap.pop(before)
        } else {
            self.heap.moved(before)
        }
        Ok(result)
    }

    /// The walk turns round: the other sources go to the far side of where it stands.
    fn turn(&mut self, top: usize, reverse: bool) -> Result<()> {
        let (key, commit) = place(&self.sources[top]).map(|(key, commit)| (key.to_vec(), commit)).expect("it stands");
        for (i, source) in self.sources.iter_mut().enumerate().filter(|(i, _)| *i != top) {
            if reverse { source.seek_before(&key, commit) } else { source.seek(&key, commit) }?;
            debug_assert!(place(source) != Some((&key, commit)), "source {i} has the same entry as source {top}");
        }
        self.arrange(reverse);
        assert_eq!(self.heap.top(), Some(top), "it still stands where it stood");
        Ok(())
    }
}

impl<S: Entries> Entries for Merging<S> {
    fn entry(&self) -> Option<Entry<'_>> {
        self.sources[self.heap.top()?].entry()
    }

    fn seek(&mut self, key: &[u8], commit: Lsn) -> Result<()> {
        self.each(false, |source| source.seek(key, commit))
    }

    fn seek_before(&mut self, key: &[u8], commit: Lsn) -> Result<()> {
        self.each(true, |source| source.seek_before(key, commit))
    }

    fn first(&mut self) -> Result<()> {
        self.each(false, S::first)
    }

    fn last(&mut self) -> Result<()> {
        self.each(true, S::last)
    }

    fn next(&mut self) -> Result<()> {
        self.advance(false)
    }

    fn prev(&mut self) -> Result<()> {
        self.advance(true)
    }
}

/// Where older entries of a key may be: segments of the levels below those that are merged.
#[derive(Clone, Debug, Default)]
pub(crate) struct Below(pub Vec<Vec<Arc<Segment>>>);

impl Below {
    /// Whether one of them may hold the key.
    pub(crate) fn may_hold(&self, key: &[u8]) -> bool {
        self.0.iter().any(|level| {
            let at = level.partition_point(|segment| segment.meta.compare(key).is_lt());
            level.get(at).is_some_and(|segment| segment.meta.compare(key).is_eq())
        })
    }

    /// Whether they are all empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(Vec::is_empty)
    }
}

/// Says which entries of a merge are kept; it is asked about each, in internal order.
///
/// The open moments cut time into *stripes*: of the entries of a key in one stripe only the newest can be seen, by the
/// stripe's moment (or now). A deletion in the oldest stripe hides nothing when no older entry of the key is below.
pub(crate) struct Retention {
    moments: Vec<Lsn>,
    below: Below,
    ranges: Fragments,
    /// Key, commit number and stripe of the entry before; at first what is before all entries.
    key: Vec<u8>,
    commit: Lsn,
    stripe: usize,
}

impl Retention {
    /// `moments` ascend; `ranges` are all range deletions of what is merged.
    pub(crate) fn new(moments: Vec<Lsn>, below: Below, ranges: Fragments) -> Retention {
        assert!(moments.is_sorted(), "moments ascend");
        Retention { moments, below, ranges, key: Vec::new(), commit: Lsn::MAX, stripe: usize::MAX }
    }

    /// The range deletions that are kept.
    pub(crate) fn ranges(&self) -> Fragments {
        self.ranges.kept(&self.moments, self.below.is_empty())
    }

    /// Whether the next entry is kept; damage, if it does not come after the one before.
    pub(crate) fn keeps(&mut self, entry: &Entry<'_>) -> Result<bool, Damage> {
        let by_key = (*self.key).cmp(entry.key);
        if by_key.then(entry.commit.cmp(&self.commit)).is_ge() {
            return Err(Damage("entries do not ascend"));
        }
        let stripe = self.moments.partition_point(|moment| *moment < entry.commit);
        let seen_newer = by_key.is_eq() && stripe == self.stripe;
        (self.commit, self.stripe) = (entry.commit, stripe);
        if seen_newer {
            return Ok(false);
        }
        if by_key.is_lt() {
            self.key.clear();
            self.key.extend_from_slice(entry.key);
        }
        if self.ranges.hide(entry.key, entry.commit, &self.moments) {
            return Ok(false);
        }
        let hides_nothing = entry.kind == EntryKind::Delete && stripe == 0 && !self.below.may_hold(entry.key);
        Ok(!hides_nothing)
    }
}

impl super::SegmentMeta {
    /// Whether the segment's keys are all below (less), all above (greater), or may be (equal) the key.
    pub(crate) fn compare(&self, key: &[u8]) -> Ordering {
        if *key < *self.smallest {
            Ordering::Greater
        } else if *key > *self.largest || self.open_end && *key == *self.largest {
            Ordering::Less
        } else {
            Ordering::Equal
        }
    }

    /// Whether the segment may have keys from `from` to `to`, both included; none: no bound.
    pub(crate) fn overlaps(&self, from: Option<&[u8]>, to: Option<&[u8]>) -> bool {
        from.is_none_or(|from| self.compare(from).is_ge()) && to.is_none_or(|to| self.compare(to).is_le())
    }
}

#[cfg(test)]
#[path = "tests_merge.rs"]
mod tests;
