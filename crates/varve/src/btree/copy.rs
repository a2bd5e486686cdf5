//! The rows of a leaf as a copy of its page: the page is copied at once, each row is taken out when it is asked for.
//!
//! Invariants: each row was looked at when the copy was made, so its cell lies within the page; its value is short.

use super::node::{Damage, Node, SLOT, SLOTS, row_at};
use crate::rows::Direction;
use std::ops::Range;

/// A page is copied for so many rows at least.
const FEWEST: usize = 4;

/// Rows copied out of a leaf.
#[derive(Default)]
pub(crate) struct LeafCopy {
    page: Vec<u8>,
    slots: Range<usize>,
    reverse: bool,
    /// Length of what all keys begin with.
    prefix: usize,
    /// Where keys are put together: what all begin with stays.
    key: Vec<u8>,
}

impl LeafCopy {
    /// Copies the rows of some slots: if they are some, but no more than `most`, and all their values are short. Else
    /// it is left empty, and `false` returned.
    pub(super) fn fill(
        &mut self,
        node: &Node<'_>,
        slots: &Range<usize>,
        direction: Direction,
        most: usize,
    ) -> Result<bool, Damage> {
        self.clear();
        if !(FEWEST..=most).contains(&slots.len()) {
            return Ok(false);
        }
        self.page.clear();
        self.page.extend_from_slice(node.bytes());
        let copy = Node::parse(&self.page)?;
        let (mut longest, prefix) = (0, copy.prefix());
        for i in slots.clone() {
            if copy.leaf_cell(i)?.overflow {
                return Ok(false);
            }
            longest = longest.max(copy.suffix_len(i));
        }
        self.key.clear();
        self.key.extend_from_slice(prefix);
        // Keys are put together in steps of four bytes.
        self.key.resize(prefix.len() + longest + 4, 0);
        self.prefix = prefix.len();
        self.reverse = direction == Direction::Reverse;
        assert!(SLOTS + SLOT * slots.end <= self.page.len(), "the slots are the page's");
        self.slots = slots.clone();
        Ok(true)
    }

    /// Forgets the rows.
    pub fn clear(&mut self) {
        self.slots = 0..0;
    }

    /// How many rows there are.
    #[inline]
    pub fn rows(&self) -> usize {
        self.slots.len()
    }

    /// Bytes copied.
    pub fn bytes(&self) -> usize {
        if self.slots.is_empty() { 0 } else { self.page.len() }
    }

    /// Row `n` in the direction of the scan.
    #[inline]
    pub fn row(&mut self, n: usize) -> (&[u8], &[u8]) {
        assert!(n < self.slots.len(), "there is such a row");
        let slot = if self.reverse { self.slots.end - 1 - n } else { self.slots.start + n };
        let (len, value) = row_at(&self.page, slot, &mut self.key[self.prefix..]);
        (&self.key[..self.prefix + len], value)
    }
}
