//! Moving nodes to other pages, each move a log group of its own that leaves a sound tree. How a compaction empties the
//! end of the store.
//!
//! A node is copied to a page that nobody knows, its parent is made to name that page, and its old page is freed as
//! by a merge: who has it pinned finds a wiped page once he latches it, who found it by its number asks
//! [`Core::nodes_left`](crate::space::Core::nodes_left). Latches as in a division: the new page, parent, child.

use super::descend::Family;
use super::leaf::LeafView;
use super::node::{HEADER, LEFTMOST};
use super::{Tree, retire};
use crate::error::Result;
use crate::page::Group;
use crate::page::PageEdit;
use crate::rows::{FarValue, OverflowRef, ValueRef, overflow};
use crate::space::Core;
use crate::space::Reserved;
use crate::wal::GroupKind;
use varve_volume::{PageId, page};

impl Tree {
    /// Moves every node but the root that lies at or past `limit` to a free page before it, as long as there are any.
    /// Returns how many were moved.
    pub(crate) fn move_nodes(&self, limit: PageId) -> Result<u64> {
        let mut moved = 0;
        for level in 0..self.height()? {
            let mut at = Some(Vec::new());
            while let Some(from) = at {
                let (keys, next) = self.far_children(&from, level, limit)?;
                for key in keys {
                    if !self.core.space.has_free_before(self.keyspace, limit, 1) {
                        return Ok(moved);
                    }
                    moved += u64::from(self.move_node(&key, level, limit)?);
                }
                at = next;
            }
        }
        Ok(moved)
    }

    /// For each child at or past `limit` of the node above `level` that covers `at`, a key that the child covers; and
    /// where the next such node begins.
    fn far_children(&self, at: &[u8], level: u8, limit: PageId) -> Result<Found<Vec<u8>>> {
        let Some(parent) = self.inner_exclusive(at, level + 1)? else { return Ok((Vec::new(), None)) };
        let node = self.node(parent.id(), parent.bytes(), Some(level + 1))?;
        let mut far = Vec::new();
        for i in 0..=node.count() {
            let corrupt = |d| self.corrupt(parent.id(), d);
            if node.child(i).map_err(corrupt)? >= limit.0 {
                far.push(if i == 0 { node.low().to_vec() } else { node.key(i - 1).map_err(corrupt)? });
            }
        }
        node.high().map_or(Ok(()), |high| self.advances(parent.id(), at, high))?;
        Ok((far, node.high().map(<[u8]>::to_vec)))
    }

    /// Moves the node of `level` that covers `key`, if it lies at or past `limit` and there is a free page before that.
    fn move_node(&self, key: &[u8], level: u8, limit: PageId) -> Result<bool> {
        let core = &*self.core;
        let Some(reserved) = core.space.reserve_before(core, self.keyspace, limit) else { return Ok(false) };
        let id = reserved.ids()[0];
        let mut group = Group::begin(core, GroupKind::System, 5 * core.page_size())?;
        let fresh = core.pool.create(id, self.keyspace)?;
        let Some(Family { parent, child }) = self.family(key, level)? else { return Ok(false) };
        let old = child.id();
        if old < limit {
            return Ok(false);
        }
        assert!(id < limit, "a node moves to a page before the limit");
        self.node(old, child.bytes(), Some(level))?.validate().map_err(|d| self.corrupt(old, d))?;
        let at = {
            let above = self.node(parent.id(), parent.bytes(), Some(level + 1))?;
            above.validate().map_err(|d| self.corrupt(parent.id(), d))?;
            let corrupt = |d| self.corrupt(parent.id(), d);
            match above.child_for(key).map_err(corrupt)? {
                0 => LEFTMOST,
                i => above.cell_at(i - 1),
            }
        };
        let (child, up, new) = (group.add(child), group.add(parent), group.add_new(fresh));
        copy_node(core, &mut group, child, new);
        group.page(up).write(at, &id.0.to_le_bytes());
        self.finish_move(group, reserved, old)?;
        Ok(true)
    }

    /// Moves the root to the reserved page; `name` changes, in the same group, who names it.
    pub(crate) fn move_root<'c>(
        &'c self,
        mut group: Group<'c>,
        reserved: Reserved<'_>,
        name: impl FnOnce(&mut Group<'c>),
    ) -> Result<()> {
        let id = reserved.ids()[0];
        let fresh = self.core.pool.create(id, self.keyspace)?;
        let root = self.root_for_change()?;
        let old = root.id();
        assert_ne!(old, id, "a root moves to another page");
        name(&mut group);
        let (root, new) = (group.add(root), group.add_new(fresh));
        copy_node(&self.core, &mut group, root, new);
        // A thread that waits for the old page's latch looks again, and waits for the new one's.
        self.set_root(id);
        self.finish_move(group, reserved, old)
    }

    fn finish_move<'c>(&'c self, mut group: Group<'c>, reserved: Reserved<'_>, old: PageId) -> Result<()> {
        let core = &*self.core;
        core.space.apply(core, &mut group, reserved.ids(), &[old]);
        reserved.keep();
        group.commit()?;
        core.space.freed(&[old]);
        Ok(())
    }

    /// The long values of the leaf that covers `at` which have a page at or past `limit`, or may have one; and where
    /// the next leaf begins.
    pub(crate) fn far_values(&self, at: &[u8], limit: PageId) -> Result<Found<FarValue>> {
        let (long, next): (Vec<(Vec<u8>, OverflowRef)>, _) = {
            let page = self.leaf(at)?;
            let view = LeafView::new(self.node(page.id(), page.bytes(), Some(0))?, page.id());
            let corrupt = |d| self.corrupt(page.id(), d);
            let mut found = Vec::new();
            for i in 0..view.count() {
                if let ValueRef::Overflow(r) = view.value(i).map_err(corrupt)? {
                    found.push((view.key(i).map_err(corrupt)?, r));
                }
            }
            let high = self.node(page.id(), page.bytes(), Some(0))?.high();
            high.map_or(Ok(()), |high| self.advances(page.id(), at, high))?;
            (found, high.map(<[u8]>::to_vec))
        };
        let look = |(key, r): (Vec<u8>, OverflowRef)| {
            // A value that is replaced meanwhile cannot be followed: who moves it looks again, with a lock.
            let ids = overflow::pages(&self.core, self.keyspace, &r);
            let last = ids.ok().and_then(|ids| ids.into_iter().max()).unwrap_or(PageId(u64::MAX));
            (last >= limit).then(|| FarValue {
                key,
                pages: overflow::pages_for(&self.core, self.keyspace, r.len) as u64,
                last,
            })
        };
        Ok((long.into_iter().filter_map(look).collect(), next))
    }
}

/// What one node led to, and the key at which the next one begins.
type Found<T> = (Vec<T>, Option<Vec<u8>>);

/// Copies a node to a new page and wipes it.
fn copy_node<'c>(core: &'c Core, group: &mut Group<'c>, from: crate::page::PageNo, to: crate::page::PageNo) {
    let copy = group.bytes(from).to_vec();
    group.page(to).image(|b| {
        b[HEADER..].copy_from_slice(&copy[HEADER..]);
        page::set_kind(b, page::kind(&copy));
    });
    retire(core, &mut group.page(from));
}
