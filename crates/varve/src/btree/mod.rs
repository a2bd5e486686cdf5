//! The B+-tree: the index of a keyspace.
//!
//! Nodes are pages (`node`, `edit`, `leaf`, `split`), changed only inside log groups. The root stays on its page but when the database is compacted (`relocate`). Latches: a descent holds at most two nodes,
//! parent before child; a structure change (a division, a merge: a log group of its own each) latches the parent and then its children from left to right,
//! all exclusively; whoever holds a leaf asks for no inner node; space-map pages come last. No latch of an inner node is held while a device works: a miss
//! lets go of everything, loads the page, and descends again.
//!
//! Fences make each node self-describing: a leaf that was found without a latch (pinned) is validated by `leaf::covers` once latched. A page that leaves the
//! tree is wiped in the group that frees it, so that it no longer passes while it is pinned; one that was not pinned may come back as it was of old,
//! which `Core::nodes_left` tells.

mod bulk;
pub(crate) mod check;
mod clear;
mod compare;
mod descend;
pub(crate) mod edit;
mod fetch;
#[cfg(any(test, feature = "testing"))]
pub mod harness;
pub(crate) mod leaf;
mod merge;
pub(crate) mod node;
pub(crate) mod overflow;
mod peek;
mod relocate;
mod scan;
mod smo;
pub(crate) mod split;
#[cfg(test)]
mod tests_crash;
#[cfg(test)]
mod tests_node;
#[cfg(test)]
mod tests_peek;
#[cfg(test)]
mod tests_tree;

pub(crate) use bulk::BulkLoad;
pub(crate) use leaf::{CellValue, LeafView, ValueRef};
pub(crate) use overflow::OverflowRef;
pub(crate) use relocate::FarValue;
pub(crate) use scan::{Direction, ReadAhead};

use crate::buffer::{PagePin, PageWrite};
use crate::error::{Error, Result};
use crate::page::{Group, PageEdit, PageMut};
use crate::space::Core;
use node::Damage;
use std::sync::Arc;
use varve_rt::atomic::{AtomicU64, Ordering};
use varve_volume::page::{self, HEADER};
use varve_volume::{KeyspaceId, PageId};

/// A keyspace's tree. Cheap to make; holds no state of its own but its address, which all clones share.
#[derive(Clone)]
pub(crate) struct Tree {
    core: Arc<Core>,
    keyspace: KeyspaceId,
    /// Bytes of a page after its header that the tree may use.
    usable: usize,
    root: Arc<AtomicU64>,
}

impl Tree {
    /// The tree of `keyspace` whose root is page `root`. Reads nothing.
    pub(crate) fn open(core: Arc<Core>, keyspace: KeyspaceId, root: PageId) -> Tree {
        let usable = usable(&core, keyspace);
        Tree { core, keyspace, usable, root: Arc::new(AtomicU64::new(root.0)) }
    }

    /// Makes a reserved page the root of an empty tree, inside `group`, which also marks the page as allocated.
    pub(crate) fn create_root<'c>(
        core: &'c Core,
        group: &mut Group<'c>,
        keyspace: KeyspaceId,
        root: PageId,
    ) -> Result<()> {
        let page = core.pool.create(root, keyspace)?;
        let n = group.add_new(page);
        let end = HEADER + usable(core, keyspace);
        group.page(n).image(|b| split::init_leaf(b, b"", None, end));
        Ok(())
    }

    /// The keyspace's id.
    pub(crate) fn keyspace(&self) -> KeyspaceId {
        self.keyspace
    }

    /// The root's page. It moves when the database is compacted; who latched it asks again.
    #[inline]
    pub(crate) fn root(&self) -> PageId {
        PageId(self.root.load(Ordering::Acquire))
    }

    /// The root is another page from now on; both are latched exclusively.
    fn set_root(&self, root: PageId) {
        self.root.store(root.0, Ordering::Release);
    }

    /// Bytes of a page after its header that the tree may use.
    pub(crate) fn usable(&self) -> usize {
        self.usable
    }

    /// Longest key, in bytes.
    pub(crate) fn max_key(&self) -> usize {
        leaf::max_key(self.usable())
    }

    /// Longest value kept in a leaf with a key of `key` bytes; longer ones go to overflow pages.
    pub(crate) fn max_inline(&self, key: usize) -> usize {
        leaf::max_inline(self.usable(), key)
    }

    /// The leaf that covers `key`, under its shared latch, during `f`. `f` must not touch the pool or wait.
    #[inline]
    pub(crate) fn with_leaf<R>(&self, key: &[u8], f: impl FnOnce(LeafView<'_>) -> R) -> Result<R> {
        let page = self.leaf(key)?;
        let node = node::Node::parse(page.bytes()).map_err(|d| self.corrupt(page.id(), d))?;
        Ok(f(LeafView::found(node, page.id(), key)))
    }

    #[cfg(any(test, feature = "testing"))]
    /// The value of `key`, overflow pages included, as it is now. Nobody may free the value meanwhile (a lock on the key is held).
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        enum Found {
            Nothing,
            Value(Vec<u8>),
            Long(OverflowRef),
        }
        let mut failed: Option<(OverflowRef, Error)> = None;
        loop {
            let found = self.with_leaf(key, |leaf| {
                Ok::<_, Error>(match leaf.find(key).map_err(|d| self.corrupt(leaf.id(), d))? {
                    None => Found::Nothing,
                    Some(ValueRef::Inline(v)) => Found::Value(v.to_vec()),
                    Some(ValueRef::Overflow(r)) => Found::Long(r),
                })
            })??;
            let long = match found {
                Found::Nothing => return Ok(None),
                Found::Value(v) => return Ok(Some(v)),
                Found::Long(r) => r,
            };
            // A value that was replaced under a reader without a lock fails to read: whether it is that shows the leaf.
            match failed {
                Some((r, e)) if r == long => return Err(e),
                _ => {}
            }
            let mut value = Vec::new();
            match overflow::read(&self.core, self.keyspace, &long, 0..long.len, &mut value) {
                Ok(()) => return Ok(Some(value)),
                Err(e) => failed = Some((long, e)),
            }
        }
    }

    /// The leaf that covers `key`, pinned but not latched, after it was made to have room for `room` bytes of cells ([`leaf::cell_size`]) of keys like
    /// `key`. Whoever latches it validates with [`leaf::covers`] and [`leaf::room_for`]. Divisions are groups of their own; no latch may be held.
    ///
    /// Errors: [`Error::Invalid`] when no leaf can have that much room.
    pub(crate) fn leaf_for_write(&self, key: &[u8], room: usize) -> Result<PagePin<'_>> {
        loop {
            {
                let page = self.leaf(key)?;
                if leaf::room_for(page.bytes(), key) >= room {
                    return Ok(page.pin());
                }
            }
            self.make_room(key, room)?;
        }
    }

    /// As [`Tree::leaf_for_write`], latched exclusively.
    pub(crate) fn write_leaf(&self, key: &[u8], room: usize) -> Result<PageWrite<'_>> {
        loop {
            {
                let page = self.leaf_exclusive(key)?;
                if leaf::room_for(page.bytes(), key) >= room {
                    return Ok(page);
                }
            }
            self.make_room(key, room)?;
        }
    }

    /// The leaf for the first of several writes (key and cell size, ascending), and how many of them it takes: those it covers and has room for. At least
    /// the first one. Divides the leaf when that would let it take more of what it covers.
    pub(crate) fn leaf_for_writes<K: AsRef<[u8]>>(&self, writes: &[(K, usize)]) -> Result<(PagePin<'_>, usize)> {
        let first = writes[0].0.as_ref();
        let mut divided = false;
        loop {
            let (fits, covered) = {
                let page = self.leaf(first)?;
                let node = node::Node::parse(page.bytes()).map_err(|d| self.corrupt(page.id(), d))?;
                let covered = writes.partition_point(|w| node.covers(w.0.as_ref()));
                let (mut sum, mut least) = (0, usize::MAX);
                let fits = writes[..covered].iter().take_while(|w| {
                    (sum, least) = (sum + w.1, least.min(node.room_for(w.0.as_ref())));
                    sum <= least
                });
                let fits = fits.count();
                if fits > 0 && (fits == covered || divided) {
                    return Ok((page.pin(), fits));
                }
                (fits, covered)
            };
            debug_assert!(fits < covered);
            if fits == 0 {
                self.make_room(first, writes[0].1)?;
            } else {
                // What fits stays; the rest gets leaves of its own.
                let (next, size) = (writes[fits].0.as_ref(), writes[fits].1);
                self.divide_at(next, size, &split::separator(writes[fits - 1].0.as_ref(), next))?;
                divided = true;
            }
        }
    }

    fn corrupt(&self, page: PageId, damage: Damage) -> Error {
        Error::corrupt_page(page, Some(self.keyspace), damage.0)
    }
}

/// Turns damage of a page into an error.
pub(crate) fn corrupt(page: PageId, keyspace: KeyspaceId, damage: Damage) -> Error {
    Error::corrupt_page(page, Some(keyspace), damage.0)
}

fn usable(core: &Core, keyspace: KeyspaceId) -> usize {
    core.store.usable_bytes(keyspace).min(core.page_size() - HEADER)
}

/// Wipes a page that leaves the tree, so that nobody takes it for a node any more; for those who would meet its old content, see [`Core::nodes_left`].
fn retire(core: &Core, page: &mut PageMut<'_>) {
    core.node_leaves();
    page.image(|b| {
        b[HEADER..].fill(0);
        page::set_kind(b, 0);
    });
}
