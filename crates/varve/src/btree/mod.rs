//! The B+-tree: the index of a keyspace.
//!
//! Nodes are pages (`node`, `edit`, `leaf`, `split`), changed only inside log groups. The root stays on its page but
//! when the database is compacted (`relocate`). Latches: a descent holds at most two nodes, parent before child; a
//! structure change (a division, a merge: a log group of its own each) latches the parent and then its children from
//! left to right, all exclusively; whoever holds a leaf asks for no inner node; space-map pages come last. No latch of
//! an inner node is held while a device works: a miss lets go of everything, loads the page, and descends again.
//!
//! Fences make each node self-describing: a leaf that was found without a latch (pinned) is validated by `leaf::covers`
//! once latched. A page that leaves the tree is wiped in the group that frees it, so that it no longer passes while it
//! is pinned. A page that was not pinned may come back in an old version; `Core::nodes_left` tells.
//!
//! Invariants: every change leaves a sound tree (`check`): nodes are sound by themselves (`node`), a child's fences are
//! the separators beside it in its parent, its level is one less. The address of the root changes under the latches of
//! the old and the new one.

mod ahead;
mod bulk;
pub(crate) mod check;
mod commit;
mod compare;
mod copy;
mod descend;
mod detach;
mod dismantle;
pub(crate) mod edit;
mod estimate;
mod fetch;
#[cfg(any(test, feature = "testing"))]
pub mod harness;
pub(crate) mod leaf;
mod merge;
pub(crate) mod node;
mod pages;
mod peek;
mod read;
mod relocate;
mod route;
mod salvage;
mod scan;
mod smo;
pub(crate) mod split;
#[cfg(test)]
mod tests_ahead;
#[cfg(test)]
mod tests_crash;
#[cfg(test)]
mod tests_node;
#[cfg(test)]
mod tests_peek;
#[cfg(test)]
mod tests_scratch;
#[cfg(test)]
mod tests_tree;

pub(crate) use ahead::ReadAhead;
pub(crate) use bulk::BulkLoad;
pub(crate) use commit::{LeafWrites, SingleLeaf};
pub(crate) use copy::LeafCopy;
pub(crate) use leaf::{CellValue, KIND_LEAF, LeafView};
pub(crate) use route::Route;
pub(crate) use salvage::salvage_leaf;

use crate::buffer::{PagePin, PageWrite};
use crate::error::{Error, Result};
use crate::page::{Group, PageEdit, PageMut};
use crate::rows::{Damage, Seen, Span, corrupt};
use crate::space::Core;
use std::sync::Arc;
use varve_rt::atomic::{AtomicU64, Ordering};
// A guess orders nothing.
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use varve_volume::page::{self, HEADER};
use varve_volume::{KeyspaceId, PageId};

/// No more slots of a leaf are asked for ahead.
const MANY_SLOTS: usize = 120;

/// A keyspace's tree. Cheap to make; holds no state of its own but its address, which all clones share.
#[derive(Clone)]
pub(crate) struct Tree {
    core: Arc<Core>,
    keyspace: KeyspaceId,
    /// Bytes of a page after its header that the tree may use.
    usable: usize,
    place: Arc<Place>,
    ends: Ends,
}

/// What all clones of a tree share.
struct Place {
    root: AtomicU64,
    /// Slots that a leaf has, about: those of one that was read or divided.
    slots: AtomicUsize,
}

/// The fences of a root.
#[derive(Clone)]
enum Ends {
    /// It covers all keys.
    None,
    /// Those of the rows that were detached from another tree.
    Of(Arc<Span>),
    /// Of such rows, but nobody knows which they were: those that the root has.
    Own,
}

impl Tree {
    /// The tree of `keyspace` whose root is page `root`. Reads nothing.
    pub(crate) fn open(core: Arc<Core>, keyspace: KeyspaceId, root: PageId) -> Tree {
        let usable = core.usable(keyspace);
        let place = Place { root: AtomicU64::new(root.0), slots: AtomicUsize::new(MANY_SLOTS) };
        Tree { core, keyspace, usable, place: Arc::new(place), ends: Ends::None }
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
        let end = HEADER + core.usable(keyspace);
        group.page(n).image(|b| split::init_leaf(b, b"", None, end));
        Ok(())
    }

    /// What it stands on.
    #[inline]
    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    /// The keyspace's id.
    pub(crate) fn keyspace(&self) -> KeyspaceId {
        self.keyspace
    }

    /// The root's page. It moves when the database is compacted; who latched it asks again.
    #[inline]
    pub(crate) fn root(&self) -> PageId {
        PageId(self.place.root.load(Ordering::Acquire))
    }

    /// The root is another page from now on; both are latched exclusively.
    fn set_root(&self, root: PageId) {
        self.place.root.store(root.0, Ordering::Release);
    }

    /// Remembers how many slots a leaf has, for those who ask the processor for the beginning of others.
    fn note_slots(&self, slots: usize) {
        self.place.slots.store(slots.min(MANY_SLOTS), Relaxed);
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
    /// The value of `key`, long ones included, as it is now.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.read(key, |value| value.map(<[u8]>::to_vec)).map(|(value, _)| value)
    }

    /// The leaf that covers `key`, pinned but not latched, after it was made to have room for `room` bytes of cells
    /// ([`leaf::cell_size`]) of keys like `key`. The caller latches it, then validates with [`leaf::covers`]
    /// and [`leaf::room_for`]. Divisions are groups of their own; no latch may be held.
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
                if !leaf::covers(page.bytes(), self.keyspace, key) {
                    return Err(self.astray(page.id()));
                }
            }
            self.make_room(key, room)?;
        }
    }

    /// Nodes that left their trees so far, for [`Tree::is_unchanged`].
    #[inline]
    pub(crate) fn moves(&self) -> u64 {
        self.core.nodes_left()
    }

    /// Whether a leaf is unchanged since it was seen, when `moves` nodes had left their trees.
    #[inline]
    pub(crate) fn is_unchanged(&self, seen: Seen, moves: u64) -> bool {
        let page = self.core.pool.read_resident(seen.page);
        page.is_some_and(|page| page.lsn() == seen.lsn && self.core.nodes_left() == moves)
    }

    /// A leaf was found for a key that it does not cover: nobody may look for a better one for ever.
    pub(crate) fn astray(&self, page: PageId) -> Error {
        self.corrupt(page, Damage("does not cover a key that its parents lead here"))
    }

    fn corrupt(&self, page: PageId, damage: Damage) -> Error {
        corrupt(page, self.keyspace, damage)
    }
}

/// Wipes a page that leaves the tree, so that nobody takes it for a node any more; for those who would meet its old
/// content, see [`Core::nodes_left`].
fn retire(core: &Core, page: &mut PageMut<'_>) {
    debug_assert_ne!(page::kind(page.bytes()), 0, "a node leaves its tree once");
    core.node_leaves();
    page.image(|b| {
        b[HEADER..].fill(0);
        page::set_kind(b, 0);
    });
}
