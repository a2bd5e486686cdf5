//! `Db::check`: every page, every tree, every bit of the space map, against each other; the log and its superblocks.

use super::Inner;
use super::catalog::{CATALOG, CATALOG_ROOT};
use crate::btree::Tree;
use crate::core::Core;
use crate::error::{Damage, Error, Result};
use crate::lost_writes::LostWrites;
use crate::space::SPACE_KEYSPACE;
use std::sync::Arc;
use varve_volume::{KeyspaceId, PageId};

/// What a check found.
#[derive(Debug, Clone, Default)]
pub struct CheckReport {
    /// Everything that is wrong, each naming its page and keyspace, or its place in the log. Empty when the database is sound.
    pub damages: Vec<Damage>,
    /// Pages that no device could read (or no frame was free for), so that nothing is known of them. Not damage: the error says
    /// what to do, and a later check may be able to read them.
    pub unreadable: Vec<Unreadable>,
    /// What is in order now and should be known all the same.
    pub warnings: Vec<String>,
    /// Pages read.
    pub pages: u64,
    /// Pages allocated to keyspaces, the catalog and the space map.
    pub allocated_pages: u64,
    /// Pages that hold nothing; their content is not checked.
    pub free_pages: u64,
    /// Keyspaces read, the catalog not counted.
    pub keyspaces: u64,
    /// Keys seen.
    pub keys: u64,
    /// Log groups read: those that a recovery would need.
    pub log_groups: u64,
}

impl CheckReport {
    /// Whether everything could be read, and nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.damages.is_empty() && self.unreadable.is_empty()
    }

    /// Takes down an error met at a page.
    pub(crate) fn note(&mut self, error: Error, page: PageId, keyspace: KeyspaceId) {
        match error {
            Error::Corrupt(Damage::Page { page, what, keyspace: known }) => {
                self.damages.push(Damage::Page { page, keyspace: known.or(Some(keyspace)), what });
            }
            Error::Corrupt(damage) => self.damages.push(damage),
            error => self.unreadable.push(Unreadable { page, keyspace, error }),
        }
    }
}

/// A page that could not be read.
#[derive(Debug, Clone)]
pub struct Unreadable {
    /// The page.
    pub page: PageId,
    /// The keyspace that it belongs to.
    pub keyspace: KeyspaceId,
    /// Why it could not be read.
    pub error: Error,
}

impl std::fmt::Display for Unreadable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "page {} ({}) could not be read: {}", self.page.0, crate::error::owner(self.keyspace), self.error)
    }
}

/// Notes the version of each page in use of which nothing is known: it was found to be sound.
fn mark_unknown(core: &Core, marks: &LostWrites, report: &mut CheckReport) -> Result<()> {
    for map in 0..core.space.maps() {
        for id in core.space.allocated(map)? {
            if core.space.is_fixed(id) || !marks.is_unknown(id) {
                continue;
            }
            match core.pool.read(id) {
                // What changed, or is being written, is known soon.
                Ok(page) if page.is_stored() => marks.checked(id, page.lsn()),
                Ok(_) => {}
                Err(e) => report.note(e, id, SPACE_KEYSPACE),
            }
        }
    }
    Ok(())
}

pub(super) fn run(inner: &Arc<Inner>) -> Result<CheckReport> {
    let mut report = CheckReport::default();
    let core = &inner.core;
    let mut walk = core.space.begin_check();
    Tree::open(core.clone(), CATALOG, CATALOG_ROOT).check(&mut walk, &mut report);
    report.keys = 0;
    for keyspace in inner.registry.all() {
        keyspace.tree.check(&mut walk, &mut report);
        report.keyspaces += 1;
    }
    for map in (0..core.space.maps()).map(|map| core.space.map_page(map)) {
        match crate::lost_writes::visit(&core.pool, &*core.store, map, &mut walk) {
            Ok(pages) => report.pages += pages,
            Err(e) => {
                report.note(e, map, SPACE_KEYSPACE);
                walk.broken();
            }
        }
    }
    core.space.finish_check(walk, &mut report);
    inner.identity.iter().for_each(|identity| identity.check(&mut report));
    if let Some(marks) = core.lost_writes.as_ref().filter(|_| report.is_clean() && !inner.options.read_only) {
        mark_unknown(core, marks, &mut report)?;
    }
    let log = core.log.check()?;
    report.log_groups = log.groups;
    report.damages.extend(log.damages);
    if log.mended > 0 {
        report.warnings.push(format!(
            "a damaged superblock was mended from its copy {} times in this database's life: look at the log's drive",
            log.mended
        ));
    }
    Ok(report)
}
