//! What is asked of an index beside its rows: bulk loads, checkpoints, checks, compaction, the end of a keyspace.

use super::{Index, KeyspaceKind};
use crate::btree::{self, Tree};
use crate::error::{Error, Result};
use crate::lsm::{self, Listed, LsmStats};
use crate::page::Group;
use crate::report::CheckReport;
use crate::rows::{Estimate, FarValue, Span, Write};
use crate::space::{Core, Reserved, SpaceWalk};
use std::sync::Arc;
use varve_rt::MutexGuard;
use varve_volume::{KeyspaceId, Lsn, PageId};

/// A load of ascending rows into an empty index.
pub(crate) enum Load {
    Tree(Box<btree::BulkLoad>),
    Lsm(Box<lsm::BulkLoad>),
}

impl Load {
    /// Takes the next row. Fails when its key is not above the one before; what was loaded before stays.
    pub fn push(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        match self {
            Load::Tree(load) => load.push(key, value),
            Load::Lsm(load) => load.push(key, value),
        }
    }

    /// Ends the load: every row is in a group of the log.
    pub fn finish(self) -> Result<()> {
        match self {
            Load::Tree(load) => load.finish(),
            Load::Lsm(load) => load.finish(),
        }
    }
}

/// Service.
impl Index {
    /// Begins a load. Pages are filled to `fill` (0.5 to 1.0).
    pub fn load(&self, fill: f64) -> Load {
        match self {
            Index::Tree(tree) => Load::Tree(Box::new(tree.bulk_load(fill))),
            Index::Lsm(lsm) => Load::Lsm(Box::new(lsm.bulk_load())),
        }
    }

    /// Where in the log the oldest change begins that is in memory alone, dirty pages apart; `None`: there is none.
    /// (All that a tree has is in pages, of which the pool knows.)
    pub fn oldest_lsn_needed(&self) -> Option<Lsn> {
        match self {
            Index::Tree(_) => None,
            Index::Lsm(lsm) => lsm.oldest_lsn_needed(),
        }
    }

    /// What it has counted beside its pages; nothing of a tree.
    pub fn lsm_stats(&self) -> Option<LsmStats> {
        match self {
            Index::Tree(_) => None,
            Index::Lsm(lsm) => Some(lsm.stats()),
        }
    }

    /// How many rows and pages it has, about; looks at a few dozen pages at most.
    pub fn estimate(&self) -> Result<Estimate> {
        match self {
            Index::Tree(tree) => tree.estimate(),
            Index::Lsm(lsm) => lsm.estimate(),
        }
    }

    /// What is written from here on is written so; nothing of a tree.
    pub fn set_kind(&self, kind: KeyspaceKind) {
        match (self, kind) {
            (Index::Lsm(lsm), KeyspaceKind::Lsm(options)) => lsm.set_options(options),
            _ => debug_assert!(self.kind() == kind, "what a keyspace is made of stays"),
        }
    }

    /// Merges what lies between two keys (both included) on a level into the next one, or from level to level down.
    pub fn merge_down(
        &self,
        level: Option<u8>,
        range: (Option<&[u8]>, Option<&[u8]>),
        ripen: &dyn Fn() -> Result<()>,
    ) -> Result<()> {
        match self {
            Index::Tree(_) => Err(Error::Invalid(
                "a tree has no levels to be merged; `varve compact DIR`, `Db::compact`, gives its space back".into(),
            )),
            Index::Lsm(lsm) => lsm.compact(level, range, ripen),
        }
    }

    /// Keeps the list of an LSM keyspace's segments as it is until the guard goes; a tree has none.
    pub fn hold_list(&self) -> Option<MutexGuard<'_, ()>> {
        match self {
            Index::Tree(_) => None,
            Index::Lsm(lsm) => Some(lsm.hold_list()),
        }
    }

    /// Checks the list, which is held, and notes its pages in `walk`. What it lists stays while the result is kept.
    pub fn check_list(&self, walk: &mut SpaceWalk, report: &mut CheckReport) -> Option<Listed> {
        match self {
            Index::Tree(_) => None,
            Index::Lsm(lsm) => Some(lsm.check_list(walk, report)),
        }
    }

    /// Reads all of it, or what was listed: notes every page in `walk`, and every damage in `report`.
    pub fn check(&self, listed: Option<&Listed>, walk: &mut SpaceWalk, report: &mut CheckReport) {
        match (self, listed) {
            (Index::Tree(tree), _) => tree.check(walk, report),
            (Index::Lsm(_), listed) => listed.expect("the list was checked").check(walk, report),
        }
    }

    /// Gives each page of an index that nothing changes to `each`; those of long values only with `values`, which costs
    /// reading all rows. True if it met long values.
    pub fn each_page(&self, values: bool, each: &mut dyn FnMut(PageId)) -> Result<bool> {
        match self {
            Index::Tree(tree) => tree.each_page(values, each),
            Index::Lsm(lsm) => lsm.each_page(each),
        }
    }

    /// Merges pages that are far from full, as far as they fit together. Returns how many went.
    pub fn merge_pages(&self) -> Result<u64> {
        match self {
            Index::Tree(tree) => tree.merge_all(),
            // Its compactions merge segments.
            Index::Lsm(_) => Ok(0),
        }
    }

    /// Moves the pages at or past `limit`, but for the root and long values, to free ones before it, as long as there
    /// are any. Returns how many were moved.
    pub fn move_pages(&self, limit: PageId) -> Result<u64> {
        match self {
            Index::Tree(tree) => tree.move_nodes(limit),
            Index::Lsm(lsm) => lsm.move_pages(limit),
        }
    }

    /// Moves the root to the reserved page; `name` changes, in the same group, who names it.
    pub fn move_root<'c>(
        &'c self,
        group: Group<'c>,
        reserved: Reserved<'_>,
        name: impl FnOnce(&mut Group<'c>),
    ) -> Result<()> {
        match self {
            Index::Tree(tree) => tree.move_root(group, reserved, name),
            Index::Lsm(lsm) => lsm.tree().move_root(group, reserved, name),
        }
    }

    /// Some of the long values from key `at` on which have a page at or past `limit`; and the key to go on with.
    pub fn far_values(&self, at: &[u8], limit: PageId) -> Result<(Vec<FarValue>, Option<Vec<u8>>)> {
        match self {
            Index::Tree(tree) => tree.far_values(at, limit),
            Index::Lsm(_) => Ok((Vec::new(), None)),
        }
    }

    /// Deletes all keys of a span, which are locked, with one word, in a group of its own: its end, of which `told` is
    /// told before anybody can see it. None: this kind cannot.
    pub fn delete_range(&self, span: &Span, told: impl FnOnce(Lsn)) -> Result<Option<Lsn>> {
        match self {
            Index::Tree(_) => Ok(None),
            Index::Lsm(lsm) => lsm.delete_range(span, told).map(Some),
        }
    }

    /// Whether the rows of a span are so many that they should leave the index together.
    pub fn is_large(&self, span: &Span) -> Result<bool> {
        match self {
            Index::Tree(tree) => tree.is_large(span),
            Index::Lsm(_) => Ok(false),
        }
    }

    /// Prepares both ends of a span, in groups of their own. No latch may be held.
    pub fn align(&self, (low, high): &Span) -> Result<()> {
        match self {
            Index::Tree(tree) => tree.align(low).and_then(|()| high.as_ref().map_or(Ok(()), |high| tree.align(high))),
            Index::Lsm(_) => Ok(()),
        }
    }

    /// Pages that it takes for the rows of a span to leave; none when they cannot.
    pub fn pages_to_detach(&self, (low, high): &Span) -> Result<Option<usize>> {
        match self {
            Index::Tree(tree) => {
                let level = usize::from(tree.height()?);
                let all = low.is_empty() && high.is_none();
                Ok((level > 0).then_some(if all { 1 } else { 1 + level }))
            }
            Index::Lsm(_) => Ok(None),
        }
    }

    /// Takes the rows of a span out, in the group, onto a root that is the first of these pages. False when nothing was
    /// changed, because the index is not prepared (any more).
    pub fn detach<'c>(&'c self, group: &mut Group<'c>, pages: &[PageId], span: &Span) -> Result<bool> {
        match self {
            Index::Tree(tree) => tree.detach(group, pages, span),
            Index::Lsm(_) => Ok(false),
        }
    }

    /// Whether a write could ever be made by itself: what a large commit has to know before it is decided.
    pub fn check_fits(&self, write: &Write<'_>) -> Result<()> {
        match self {
            Index::Tree(_) => Ok(()),
            Index::Lsm(lsm) => lsm.check_fits(write),
        }
    }

    /// Sees to it that there can be memory for a write that was decided when there was more.
    pub fn make_fit(&self, write: &Write<'_>) {
        match self {
            Index::Tree(_) => {}
            Index::Lsm(lsm) => lsm.make_fit(write),
        }
    }

    /// Rows of a keyspace that were taken out onto this root before the database was opened.
    pub fn found_former(core: &Arc<Core>, keyspace: KeyspaceId, root: PageId) -> Index {
        Index::Tree(Tree::found_detached(core.clone(), keyspace, root))
    }

    /// The rows of a span that were taken out onto this root.
    pub fn former(&self, core: &Arc<Core>, root: PageId, span: &Span) -> Index {
        match self {
            Index::Tree(tree) => Index::Tree(Tree::detached(core.clone(), tree.keyspace(), root, span)),
            Index::Lsm(_) => unreachable!("no rows leave an LSM keyspace together"),
        }
    }

    /// Frees every page but the root, in bounded groups, as long as `on` says so; true when that is done. Nobody uses
    /// it any more.
    pub fn dismantle(&self, on: &dyn Fn() -> bool) -> Result<bool> {
        match self {
            Index::Tree(tree) => tree.dismantle(on),
            Index::Lsm(lsm) => lsm.dismantle(on),
        }
    }

    /// As [`Index::check`], for one that may be dismantled by half.
    pub fn check_rest(&self, listed: Option<&Listed>, walk: &mut SpaceWalk, report: &mut CheckReport) {
        match self {
            Index::Tree(tree) => tree.check_rest(walk, report),
            Index::Lsm(_) => self.check(listed, walk, report),
        }
    }

    /// Frees the root of an index that was dismantled, in the group; returns its page.
    pub fn free_root<'c>(&'c self, group: &mut Group<'c>) -> Result<PageId> {
        match self {
            Index::Tree(tree) => tree.free_root(group),
            Index::Lsm(lsm) => lsm.tree().free_root(group),
        }
    }
}
