//! Which pages a tree has, without reading those whose numbers say enough: the leaves, unless there are long values.
//!
//! Nothing changes the tree meanwhile.

use super::{Tree, leaf};
use crate::error::Result;
use crate::rows::{OverflowRef, ValueRef, overflow};
use varve_volume::PageId;

impl Tree {
    /// Gives each page of the tree to `each`; those of long values only with `leaves`, which has all leaves read. True
    /// if there are long values.
    pub(crate) fn each_page(&self, leaves: bool, each: &mut dyn FnMut(PageId)) -> Result<bool> {
        let (mut inner, mut has_long) = (vec![self.root()], false);
        while let Some(id) = inner.pop() {
            each(id);
            let (level, children, values) = self.refers_to(id)?;
            has_long |= !values.is_empty();
            for value in values {
                overflow::walk(&self.core, self.keyspace, &value, &mut *each).map_err(|(_, e)| e)?;
            }
            if level > 1 || leaves {
                inner.extend(children);
            } else {
                children.into_iter().for_each(&mut *each);
            }
        }
        Ok(has_long)
    }

    /// What a node refers to: its level, its children, its long values.
    fn refers_to(&self, id: PageId) -> Result<(u8, Vec<PageId>, Vec<OverflowRef>)> {
        let page = self.core.pool.read(id)?;
        let node = self.node(id, page.bytes(), None)?;
        node.validate().map_err(|d| self.corrupt(id, d))?;
        let corrupt = |d| self.corrupt(id, d);
        if node.level() > 0 {
            let children = (0..=node.count()).map(|i| node.child(i).map(PageId));
            return Ok((node.level(), children.collect::<std::result::Result<_, _>>().map_err(corrupt)?, Vec::new()));
        }
        let mut values = Vec::new();
        for i in 0..node.count() {
            if let ValueRef::Overflow(value) = leaf::LeafView::new(node, id).value(i).map_err(corrupt)? {
                values.push(value);
            }
        }
        Ok((0, Vec::new(), values))
    }
}
