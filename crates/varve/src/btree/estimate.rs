//! How many rows and pages a tree has, about, from a few of its nodes.
//!
//! Level by level from the root down, up to [`SAMPLE`] nodes are looked at, spread evenly among the children of those
//! of the level above; their mean number of children says how many nodes the next level has. So the cost is a few dozen
//! pages, however large the tree is, and the answer is exact where no level has more nodes than are looked at.

use super::Tree;
use super::leaf::LeafView;
use super::node::Node;
use crate::error::{Error, Result};
use crate::rows::{self, Estimate, ValueRef, overflow};
use varve_volume::PageId;

/// Nodes of a level that are looked at.
const SAMPLE: usize = 48;

/// What the nodes of a level hold that were looked at.
#[derive(Default)]
struct Looked {
    nodes: u64,
    children: Vec<PageId>,
    rows: u64,
    value_pages: u64,
}

impl Tree {
    /// Rows and pages, about. Changes of the tree meanwhile show or do not.
    pub(crate) fn estimate(&self) -> Result<Estimate> {
        let mut ids = vec![self.root()];
        // Nodes of the level, and pages of all levels so far.
        let (mut nodes, mut pages) = (1.0, 0.0);
        let mut level = None;
        let left = self.core.nodes_left();
        loop {
            let mut looked = Looked::default();
            for id in std::mem::take(&mut ids) {
                match self.sample(id, &mut level, &mut looked) {
                    Ok(()) => looked.nodes += 1,
                    // Its place may hold something else by now: one less to judge by.
                    Err(Error::Corrupt(_) | Error::Volume(_)) if self.core.nodes_left() != left => {}
                    Err(_) if level.is_none() && self.root() != id => return self.estimate(),
                    Err(e) => return Err(e),
                }
            }
            if looked.nodes == 0 {
                return self.estimate();
            }
            let each = nodes / looked.nodes as f64;
            pages += nodes + each * looked.value_pages as f64;
            if looked.children.is_empty() {
                return Ok(Estimate { rows: (each * looked.rows as f64).round() as u64, pages: pages.round() as u64 });
            }
            assert_ne!(level, Some(0), "a leaf has no children");
            nodes = each * looked.children.len() as f64;
            level = level.map(|level| level - 1);
            ids = spread(&looked.children);
        }
    }

    /// Adds what a node holds; `level` is that of the node, or is told if nobody knows it yet.
    fn sample(&self, id: PageId, level: &mut Option<u8>, looked: &mut Looked) -> Result<()> {
        let page = self.core.pool.read(id).map_err(|e| self.name_keyspace(e))?;
        let node = self.node(id, page.bytes(), *level)?;
        *level = Some(node.level());
        if node.level() == 0 {
            looked.rows += node.count() as u64;
            looked.value_pages += self.value_pages(&node).map_err(|d| self.corrupt(id, d))?;
            return Ok(());
        }
        for i in 0..=node.count() {
            looked.children.push(self.child_at(id, &node, i)?);
        }
        Ok(())
    }

    /// Pages of the long values of a leaf.
    fn value_pages(&self, leaf: &Node<'_>) -> Result<u64, rows::Damage> {
        let mut pages = 0;
        for i in 0..leaf.count() {
            if let ValueRef::Overflow(long) = LeafView::new(*leaf, PageId(0)).value(i)? {
                pages += overflow::pages_for(&self.core, self.keyspace, long.len) as u64;
            }
        }
        Ok(pages)
    }
}

/// Some of `all`, spread evenly.
fn spread(all: &[PageId]) -> Vec<PageId> {
    let n = all.len().min(SAMPLE);
    debug_assert!(n > 0, "an inner node has children");
    (0..n).map(|i| all[i * all.len() / n]).collect()
}
