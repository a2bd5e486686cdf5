//! Checking a tree: every node, fence, level and overflow chain. Exact when nothing is being written; never panics on
//! damage.

use super::node::Node;
use super::{Tree, leaf};
use crate::error::{Damage, Error};
use crate::report::CheckReport;
use crate::rows::{self, OverflowRef, ValueRef, overflow};
use crate::space::SpaceWalk;
use varve_volume::PageId;

/// A node to be looked at, and what its parent says of it.
struct Task {
    id: PageId,
    level: Option<u8>,
    parent: Option<PageId>,
    low: Vec<u8>,
    high: Option<Vec<u8>>,
    /// Of a tree that is taken apart: the high fence may lie beyond its rows.
    edge: bool,
}

/// What a node led to.
#[derive(Default)]
struct Found {
    children: Vec<Task>,
    values: Vec<OverflowRef>,
    keys: u64,
}

impl Tree {
    /// Reads the whole tree: notes every page in `walk`, and every damage in `report`.
    pub(crate) fn check(&self, walk: &mut SpaceWalk, report: &mut CheckReport) {
        self.check_from_root(false, walk, report);
    }

    /// The same for a tree that may be dismantled by half.
    pub(crate) fn check_rest(&self, walk: &mut SpaceWalk, report: &mut CheckReport) {
        self.check_from_root(true, walk, report);
    }

    fn check_from_root(&self, edge: bool, walk: &mut SpaceWalk, report: &mut CheckReport) {
        let mut tasks = vec![Task { id: self.root(), level: None, parent: None, low: Vec::new(), high: None, edge }];
        while let Some(task) = tasks.pop() {
            if !walk.visit(task.id) {
                self.report(report, task.id, "used twice, or not within the store");
                walk.broken();
                continue;
            }
            report.pages += 1;
            match self.check_node(&task) {
                Ok(found) => {
                    report.keys += found.keys;
                    tasks.extend(found.children);
                    found.values.iter().for_each(|r| self.check_value(r, walk, report));
                }
                Err(e) => {
                    report.note(e, task.id, self.keyspace);
                    walk.broken();
                }
            }
        }
    }

    fn report(&self, report: &mut CheckReport, page: PageId, what: &str) {
        report.damages.push(Damage::Page { page, keyspace: Some(self.keyspace), what: what.into(), stored: None });
    }

    fn check_node(&self, task: &Task) -> Result<Found, Error> {
        let page = self.core.pool.read(task.id)?;
        let node = self.node(task.id, page.bytes(), task.level)?;
        node.validate().map_err(|d| self.corrupt(task.id, d))?;
        let (low, high) = match (task.edge, task.parent) {
            (false, _) => (&*task.low, task.high.as_deref()),
            // One that was detached has fences of its own.
            (true, None) => (node.low(), node.high()),
            (true, Some(_)) => (&*task.low, node.high()),
        };
        self.compare_fences(task.id, &node, low, high, task.parent)?;
        if node.end() != self.usable() + varve_volume::page::HEADER {
            return Err(self.corrupt(task.id, rows::Damage("the node's size is not the keyspace's")));
        }
        self.contents((task.id, task.edge), &node).map_err(|d| self.corrupt(task.id, d))
    }

    fn contents(&self, (id, edge): (PageId, bool), node: &Node<'_>) -> Result<Found, rows::Damage> {
        let mut found = Found::default();
        if node.level() == 0 {
            found.keys = node.count() as u64;
            for i in 0..node.count() {
                if let ValueRef::Overflow(r) = leaf::LeafView::new(*node, PageId(0)).value(i)? {
                    found.values.push(r);
                }
            }
            return Ok(found);
        }
        for i in 0..=node.count() {
            let low = if i == 0 { node.low().to_vec() } else { node.key(i - 1)? };
            let high = if i == node.count() { node.high().map(<[u8]>::to_vec) } else { Some(node.key(i)?) };
            let level = Some(node.level() - 1);
            let edge = edge && i == node.count();
            found.children.push(Task { id: PageId(node.child(i)?), level, parent: Some(id), low, high, edge });
        }
        Ok(found)
    }

    fn check_value(&self, r: &OverflowRef, walk: &mut SpaceWalk, report: &mut CheckReport) {
        let mut twice = None;
        let mut pages = 0;
        let result = overflow::walk(&self.core, self.keyspace, r, |id| {
            pages += 1;
            if !walk.visit(id) {
                twice = Some(id);
            }
        });
        report.pages += pages;
        if let Some(id) = twice {
            self.report(report, id, "used twice, or not within the store");
        }
        if let Err((id, e)) = result {
            report.note(e, id, self.keyspace);
            walk.broken();
        }
    }
}
