//! Creating, checking, counting the pages of, moving and clearing an LSM keyspace.

use super::index::{Lsm, View};
use super::install::Change;
use super::record;
use super::segments::OpenSegment;
use crate::btree::Tree;
use crate::budget::Class;
use crate::error::{Damage, Result};
use crate::page::Group;
use crate::report::CheckReport;
use crate::rows::Direction;
use crate::space::{Core, SpaceWalk};
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use varve_rt::MutexGuard;
use varve_volume::{KeyspaceId, Lsn, PageId};

/// Segments that are dropped in one group when a keyspace is cleared.
const TOGETHER: usize = 16;
/// Longest value: a block of a segment has to hold it.
pub(super) const LONGEST_VALUE: u64 = 32 << 20;

impl Lsm {
    /// Makes an empty keyspace whose list of segments has a reserved page as its root, inside `group`, which also marks
    /// the page as allocated.
    pub(crate) fn create<'c>(core: &'c Core, group: &mut Group<'c>, keyspace: KeyspaceId, root: PageId) -> Result<()> {
        Tree::create_root(core, group, keyspace, root)?;
        // The number may have been that of a keyspace that is gone, of which the log still has records.
        group.record(keyspace, &record::settled(Lsn::MAX));
        Ok(())
    }

    /// Longest value, in bytes: half of what memtables may take, and no more than a block of a segment can hold.
    pub(crate) fn max_value(&self) -> u64 {
        (self.0.core.budget.limit(Class::Memtables) / 2).min(LONGEST_VALUE)
    }

    /// Keeps the list of segments as it is until the guard goes.
    pub(crate) fn hold_list(&self) -> MutexGuard<'_, ()> {
        self.0.flushing.lock()
    }

    /// Checks the list, which somebody holds, and notes its pages in `walk`. What it lists now stays where it is for as
    /// long as the result is kept: then it is all of one moment, whatever is merged meanwhile.
    pub(crate) fn check_list(&self, walk: &mut SpaceWalk, report: &mut CheckReport) -> Listed {
        debug_assert!(self.0.flushing.try_lock().is_none(), "the list is held");
        let keys = report.keys;
        self.0.tree.check(walk, report);
        report.keys = keys;
        Listed { lsm: self.clone(), view: self.0.view() }
    }
}

/// What was listed when the list was checked.
pub(crate) struct Listed {
    lsm: Lsm,
    view: Arc<View>,
}

impl Listed {
    /// Reads all segments: notes their pages in `walk`, and every damage in `report`.
    pub(crate) fn check(&self, walk: &mut SpaceWalk, report: &mut CheckReport) {
        let before = report.damages.len();
        debug_assert!(self.view.segments.all().all(|open| open.segment.meta.pages > 0), "a segment has pages");
        for open in self.view.segments.all() {
            self.check_segment(open, walk, report);
        }
        if report.damages.len() > before {
            return;
        }
        match self.lsm.count() {
            Ok(rows) => report.keys += rows,
            Err(e) => report.note(e, self.lsm.0.tree.root(), self.lsm.keyspace()),
        }
    }

    fn check_segment(&self, open: &OpenSegment, walk: &mut SpaceWalk, report: &mut CheckReport) {
        let first = open.segment.runs.first().map_or(PageId(0), |(first, _)| *first);
        for page in open.page_ids() {
            report.pages += 1;
            if !walk.visit(page) {
                let what = format!("segment {}: used twice, or not within the store", open.segment.id);
                let keyspace = Some(self.lsm.keyspace());
                report.damages.push(Damage::Page { page, keyspace, what, stored: None });
                walk.broken();
            }
        }
        if let Err(e) = open.check() {
            report.note(e, first, self.lsm.keyspace());
        }
    }
}

impl Lsm {
    /// Rows as of now.
    fn count(&self) -> Result<u64> {
        let (mut rows, mut state, mut from) = (0, super::ScanState::default(), Some(Vec::new()));
        while let Some(low) = from {
            let range = (Bound::Included(&low[..]), Bound::Unbounded);
            let end = self.read_batch(range, (Direction::Forward, Lsn::MAX), &mut state, |_, _, _| {
                rows += 1;
                ControlFlow::Continue(())
            })?;
            from = end.next;
        }
        Ok(rows)
    }

    /// Gives each page to `each`. False: there are no long values in pages of their own.
    pub(crate) fn each_page(&self, each: &mut dyn FnMut(PageId)) -> Result<bool> {
        let _one = self.0.flushing.lock();
        self.0.tree.each_page(true, each)?;
        self.0.view().segments.all().for_each(|open| open.page_ids().for_each(&mut *each));
        Ok(false)
    }

    /// Moves the pages of the list at or past `limit`, but for its root, to free ones before it, as long as there are
    /// any. Returns how many were moved.
    pub(crate) fn move_pages(&self, limit: PageId) -> Result<u64> {
        self.0.tree.move_nodes(limit)
    }

    /// Frees every page but the root of the list, in bounded groups, as long as `on` says so; true when that is done.
    /// Nobody uses it any more.
    pub(crate) fn dismantle(&self, on: &dyn Fn() -> bool) -> Result<bool> {
        let _one = self.0.flushing.lock();
        self.0.forget();
        debug_assert!(self.oldest_lsn_needed().is_none(), "what is forgotten needs no log");
        loop {
            let dropped: Vec<Arc<OpenSegment>> = self.0.view().segments.all().take(TOGETHER).cloned().collect();
            assert!(dropped.len() <= TOGETHER, "groups are bounded");
            if !on() {
                return Ok(false);
            }
            if dropped.is_empty() {
                // To one node: an opening reads the list, and could not read one that is taken apart by half.
                self.0.tree.merge_all()?;
                return self.0.tree.dismantle(on);
            }
            self.0.install(Change { dropped, ..Change::default() })?;
        }
    }
}
