//! Searching inner nodes without their latches.
//!
//! The same search as [`Node::child_for`](super::node::Node::child_for) on bytes that may change meanwhile: every
//! access is range-checked, nothing panics or loops on torn bytes, and what comes out is believed only after
//! [`PagePeek::is_valid`]. Whatever is not as expected gives `None`: the latched descent finds out what it is, and
//! names damage.

use super::Tree;
use super::ahead::{Moment, ReadAhead, Siblings};
use super::leaf::KIND_INNER;
use super::node::*;
use crate::buffer::PagePeek;
use std::cmp::Ordering;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use varve_rt::{Cost, charge};
use varve_volume::{KeyspaceId, PageId, page};

/// The way to a leaf: to be latched, whereupon the way counts if [`Found::confirm`] says so.
pub(super) struct Found<'t> {
    pub leaf: PageId,
    /// Number of the parent's child that it is.
    number: usize,
    parent: PagePeek<'t>,
    /// Nodes above the parent, the last few of them.
    above: [Option<PagePeek<'t>>; 3],
}

impl Found<'_> {
    /// Notes the leaves after it for a scan; `before`: the tree before the way was looked for.
    pub fn note(&self, tree: &Tree, ahead: &mut ReadAhead, before: Moment) {
        let inner = Inner::new(&self.parent, tree.keyspace(), Some(1));
        let siblings = inner.map(|inner| PeekedSiblings { inner, number: self.number });
        ahead.note(siblings.as_ref(), before, tree.core().pool.scan_window());
        if !self.parent.is_valid() {
            // What was read may be torn.
            ahead.forget();
        }
    }

    /// Whether the leaf, which is latched now, is the right one. If so the nodes on the way are recorded as accessed:
    /// not before, as who gives up comes by again.
    #[inline]
    pub fn confirm(&self) -> bool {
        let valid = self.parent.is_valid();
        if valid {
            self.parent.accessed();
            self.above.iter().flatten().for_each(PagePeek::accessed);
        }
        valid
    }
}

impl Tree {
    /// The leaf of a key at or after the one that a way led to, where it has the same parent; found without a latch.
    #[inline]
    pub(super) fn beside(&self, way: Option<&Found<'_>>, key: &[u8]) -> Option<PageId> {
        let parent = &way?.parent;
        let inner = Inner::new(parent, self.keyspace(), Some(1))?;
        if !inner.is_below_end(key) {
            return None;
        }
        charge(Cost::NodeSearch, 1);
        let leaf = inner.child(inner.number_of(key)?);
        parent.is_valid().then_some(leaf)
    }

    /// The leaf that covers `key`, found without a latch. None when a page is missing or somebody is changing one: the
    /// latched descent waits for it.
    #[inline]
    pub(super) fn peek_leaf(&self, key: &[u8]) -> Option<Found<'_>> {
        let root = self.root();
        let mut node = self.core.pool.peek(root)?;
        if self.root() != root {
            return None;
        }
        let (mut expected, mut above, mut height) = (None, [None; 3], 0);
        loop {
            let inner = Inner::new(&node, self.keyspace(), expected)?;
            if !node.is_compared() {
                return None;
            }
            charge(Cost::NodeSearch, 1);
            let number = inner.number_of(key)?;
            let child = inner.child(number);
            if !node.is_valid() {
                return None;
            }
            let level = inner.level - 1;
            if level == 0 {
                return Some(Found { leaf: child, number, parent: node, above });
            }
            let next = self.core.pool.peek(child)?;
            // The child could have been divided, or freed, before it was looked at.
            if !node.is_valid() {
                return None;
            }
            above[height % above.len()] = Some(node);
            (node, expected, height) = (next, Some(level), height + 1);
        }
    }
}

/// The header of an inner node, perhaps torn.
struct Inner<'a, 't> {
    page: &'a PagePeek<'t>,
    level: u8,
    slots: &'a [AtomicU64],
    /// Where the prefix lies, its length, and how much of it the fences guarantee.
    prefix: (usize, usize),
    base: usize,
    /// Where the high fence lies, and its length or [`NO_HIGH`].
    high: (usize, usize),
}

/// The leaves after one, as its parent names them, perhaps torn.
struct PeekedSiblings<'a, 't> {
    inner: Inner<'a, 't>,
    number: usize,
}

impl Siblings for PeekedSiblings<'_, '_> {
    fn left(&self) -> usize {
        self.inner.slots.len().saturating_sub(self.number)
    }

    fn leaf(&self, step: usize) -> Option<PageId> {
        let slot = self.inner.slots.get(self.number + step - 1)?;
        Some(self.inner.page_at(Slot::of(slot).cell()))
    }

    fn end(&self) -> Option<Vec<u8>> {
        let (at, len) = self.inner.high;
        let there = len != NO_HIGH as usize && at + len <= self.inner.page.page_size();
        there.then(|| (at..at + len).map(|at| self.inner.page.byte(at)).collect())
    }
}

/// A slot: see [`SLOT`].
#[derive(Clone, Copy)]
struct Slot(u64);

/// A key without the node's prefix.
struct Suffix<'k> {
    bytes: &'k [u8],
    head: u32,
    /// The beginning of what is behind the head: see [`word`].
    tail: u64,
}

impl<'k> Suffix<'k> {
    #[inline]
    fn new(bytes: &'k [u8]) -> Suffix<'k> {
        Suffix { bytes, head: head(bytes), tail: word(tail(bytes)) }
    }
}

impl Slot {
    #[inline]
    fn of(word: &AtomicU64) -> Slot {
        Slot(u64::from_le(word.load(Relaxed)))
    }

    #[inline]
    fn head(self) -> u32 {
        self.0 as u32
    }

    #[inline]
    fn cell(self) -> usize {
        (self.0 >> 32) as usize & 0xFFFF
    }

    #[inline]
    fn key_len(self) -> usize {
        (self.0 >> 48) as usize
    }
}

impl<'a, 't> Inner<'a, 't> {
    /// None unless it looks like an inner node of the keyspace, of the level if one is expected.
    #[inline]
    fn new(page: &'a PagePeek<'t>, keyspace: KeyspaceId, expected: Option<u8>) -> Option<Inner<'a, 't>> {
        let mut h = [0; SLOTS];
        for (at, bytes) in h.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *bytes = page.word(8 * at).to_le_bytes();
        }
        let field = |at: usize| u16_at(&h, at) as usize;
        let (level, count, base) = (h[LEVEL], field(COUNT), field(BASE));
        let (prefix, high) = ((field(PREFIX), field(PREFIX + 2)), (field(HIGH), field(HIGH + 2)));
        let sound = page::kind(&h) == KIND_INNER
            && page::keyspace(&h) == keyspace
            && (1..=MAX_LEVEL).contains(&level)
            && expected.is_none_or(|l| l == level)
            && base <= prefix.1;
        let slots = page.words(SLOTS, count)?;
        sound.then_some(Inner { page, level, slots, prefix, base, high })
    }

    #[inline]
    fn slot(&self, i: usize) -> Slot {
        Slot::of(&self.slots[i])
    }

    /// Whether `key` lies below the node's high fence.
    #[inline]
    fn is_below_end(&self, key: &[u8]) -> bool {
        let (at, len) = self.high;
        if len == NO_HIGH as usize {
            return true;
        }
        let differs = (0..len.min(key.len())).find(|i| self.page.byte(at + i) != key[*i]);
        differs.map_or(key.len() < len, |i| key[i] < self.page.byte(at + i))
    }

    /// The child of a number.
    #[inline]
    fn child(&self, number: usize) -> PageId {
        self.page_at(if number == 0 { LEFTMOST } else { self.slot(number - 1).cell() })
    }

    /// The page that is named at byte `at`.
    #[inline]
    fn page_at(&self, at: usize) -> PageId {
        PageId(self.page.unaligned_word(at))
    }

    /// The number of the child that covers `key`, which the node covers. None for a key without the node's prefix:
    /// rare, and the other search has the rules for it.
    #[inline]
    fn number_of(&self, key: &[u8]) -> Option<usize> {
        let (at, len) = self.prefix;
        let suffix = key.get(len..)?;
        let unlike = |i: usize| self.page.byte(at + i) != key[i];
        if (self.base..len).any(unlike) {
            return None;
        }
        Some(self.keys_up_to(suffix))
    }

    /// How many of the node's keys are at or below the one of this suffix.
    #[inline]
    fn keys_up_to(&self, suffix: &[u8]) -> usize {
        let h = head(suffix);
        let at = self.lower_bound(h);
        match self.slots.get(at) {
            Some(slot) if Slot::of(slot).head() == h => self.keys_up_to_tie(at, &Suffix::new(suffix)),
            _ => at,
        }
    }

    /// The same when the slots from `at` on have the suffix's head.
    fn keys_up_to_tie(&self, mut at: usize, suffix: &Suffix<'_>) -> usize {
        let mut end = suffix.head.checked_add(1).map_or(self.slots.len(), |h| self.lower_bound(h));
        while at < end {
            let middle = at + (end - at) / 2;
            if self.compare(middle, suffix) == Ordering::Greater { end = middle } else { at = middle + 1 }
        }
        at
    }

    /// Compares slot `i`'s key with the one of this suffix.
    #[inline]
    fn compare(&self, i: usize, suffix: &Suffix<'_>) -> Ordering {
        let slot = self.slot(i);
        match slot.head().cmp(&suffix.head) {
            Ordering::Equal => {}
            order => return order,
        }
        let len = slot.key_len().saturating_sub(4);
        let start = self.tail_word(slot, 0) & first_bytes(len);
        let order = match start.cmp(&suffix.tail) {
            Ordering::Equal if len > 8 && suffix.bytes.len() > 12 => self.compare_rest(slot, len, tail(suffix.bytes)),
            order => order,
        };
        order.then(slot.key_len().cmp(&suffix.bytes.len()))
    }

    /// The eight bytes from byte `at` of the slot's tail on, as a number that compares as they do.
    #[inline]
    fn tail_word(&self, slot: Slot, at: usize) -> u64 {
        self.page.unaligned_word(slot.cell() + 8 + at).swap_bytes()
    }

    /// Compares tails whose first eight bytes are the same, as far as both go.
    fn compare_rest(&self, slot: Slot, len: usize, tail: &[u8]) -> Ordering {
        assert!(len > 8 && tail.len() > 8, "a rest is what both have beyond the first eight bytes");
        let both = len.min(tail.len());
        let differ = (8..both).step_by(8).map(|at| {
            let mask = first_bytes(both - at);
            (self.tail_word(slot, at) & mask).cmp(&(word(&tail[at..]) & mask))
        });
        differ.into_iter().find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
    }

    /// The first slot whose head is at least `h`. As [`Node`]'s, see there.
    #[inline]
    fn lower_bound(&self, h: u32) -> usize {
        let below = |slot: &AtomicU64| usize::from(Slot::of(slot).head() < h);
        let (mut slots, mut base) = (self.slots, 0);
        while slots.len() > 16 {
            let step = slots.len() / 8;
            let parts = (1..8).map(|k| below(&slots[k * step - 1])).sum::<usize>();
            base += parts * step;
            slots = if parts == 7 { &slots[7 * step..] } else { &slots[parts * step..(parts + 1) * step] };
        }
        base + slots.iter().map(below).sum::<usize>()
    }
}
