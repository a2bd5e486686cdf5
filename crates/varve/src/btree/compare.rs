//! Comparing a node with what its parent says of it, when it has come from the store.
//!
//! A checksum says that a page is what somebody wrote, not that it is what was written there last: a write may be lost,
//! or go astray. A child's fences are the separators to both sides of it in its parent, its level is one less, its
//! keyspace the same. A frame remembers that its page was not compared since it was read ([`Latched`]); the first
//! descent that comes to it holds its parent's latch and compares. Descents that hold no parent's latch (`peek`), and
//! who knows a leaf by its number alone, pass such pages to the descent that does. So a hit costs a look at a bit
//! beside the latch.
//!
//! An old version with the same fences is not found like this.

use super::node::{Damage, Node};
use super::{Ends, Tree};
use crate::buffer::Latched;
use crate::error::{Error, Result};
use varve_device::Mistake;
use varve_volume::{PageId, page};

/// Bytes of a key that a message shows.
const SHOWN: usize = 40;

impl Tree {
    /// Compares child number `i` of a latched node, itself latched, unless that was done since it was read.
    #[inline]
    pub(super) fn compare(&self, parent: &impl Latched, i: usize, child: &impl Latched) -> Result<()> {
        child.compare_once(|| self.compare_child((parent.id(), parent.bytes()), i, child.id(), child.bytes()))
    }

    #[cold]
    fn compare_child(&self, (from, parent): (PageId, &[u8]), i: usize, id: PageId, bytes: &[u8]) -> Result<()> {
        if self.core.faults().has(Mistake::FencesNotCompared) {
            return Ok(());
        }
        let above = Node::parse(parent).map_err(|d| self.corrupt(from, d))?;
        let node = self.node(id, bytes, Some(above.level().saturating_sub(1)))?;
        let key = |i: usize| above.key(i).map_err(|d| self.corrupt(from, d));
        let low = if i == 0 { above.low().to_vec() } else { key(i - 1)? };
        let high = if i == above.count() { above.high().map(<[u8]>::to_vec) } else { Some(key(i)?) };
        self.compare_fences(id, &node, &low, high.as_deref(), Some(from))?;
        if node.level() > 0 {
            // Descents rely on the order of its keys for getting on. (Those of leaves are looked at by a check.)
            return node.validate().map_err(|d| self.corrupt(id, d));
        }
        self.note_slots(node.count());
        Ok(())
    }

    /// The root has no bounds, unless it was detached, and any level.
    #[cold]
    pub(super) fn compare_root(&self, id: PageId, bytes: &[u8]) -> Result<()> {
        let node = self.node(id, bytes, None)?;
        let (low, high) = match &self.ends {
            Ends::None => (&b""[..], None),
            Ends::Of(span) => (&span.0[..], span.1.as_deref()),
            Ends::Own => (node.low(), node.high()),
        };
        self.compare_fences(id, &node, low, high, None)?;
        if node.level() > 0 { node.validate().map_err(|d| self.corrupt(id, d)) } else { Ok(()) }
    }

    /// Compares a node's fences with those that page `parent` says it has; none: it is the root.
    pub(super) fn compare_fences(
        &self,
        id: PageId,
        node: &Node<'_>,
        low: &[u8],
        high: Option<&[u8]>,
        parent: Option<PageId>,
    ) -> Result<()> {
        if node.low() == low && node.high() == high {
            return Ok(());
        }
        let what = format!(
            "fences do not agree with the parent: it covers {}, {} says {}; one of them is an old version, or belongs elsewhere",
            range(node.low(), node.high()),
            parent.map_or("a root".to_string(), |p| format!("page {}", p.0)),
            range(low, high)
        );
        Err(Error::corrupt_page(id, Some(self.keyspace), what))
    }

    /// A page that is no node of this tree.
    #[cold]
    pub(super) fn not_ours(&self, id: PageId, bytes: &[u8]) -> Error {
        let (kind, of) = (page::kind(bytes), page::keyspace(bytes).0);
        let what =
            format!("expected a node of keyspace {}, found a page of type {kind} of keyspace {of}", self.keyspace.0);
        Error::corrupt_page(id, Some(self.keyspace), what)
    }

    /// A node that is higher or lower in the tree than it should be.
    #[cold]
    pub(super) fn wrong_level(&self, id: PageId, found: u8, expected: Option<u8>) -> Error {
        let what = match expected {
            Some(expected) => format!("a node of level {found}, expected one of level {expected}"),
            None => format!("a node of level {found}: no tree is that high"),
        };
        Error::corrupt_page(id, Some(self.keyspace), what)
    }

    /// A walk over the leaves goes on at `next`, which must lie beyond `from`: no damage makes it endless.
    #[inline]
    pub(super) fn advances(&self, id: PageId, from: &[u8], next: &[u8]) -> Result<()> {
        if next > from { Ok(()) } else { Err(self.corrupt(id, Damage("does not cover the key that led to it"))) }
    }
}

/// Two fences for a message.
fn range(low: &[u8], high: Option<&[u8]>) -> String {
    let key = |key: &[u8]| match key.len() {
        0..=SHOWN => format!("\"{}\"", key.escape_ascii()),
        len => format!("\"{}\".. ({len} bytes)", key[..SHOWN].escape_ascii()),
    };
    format!("{} to {}", key(low), high.map_or("the end".into(), key))
}
