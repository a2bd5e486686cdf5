//! `Db::check`: every page, every index, every bit of the space map, against each other; the log and its superblocks.

use super::Inner;
use crate::error::{Error, Result};
use crate::report::CheckReport;
use crate::space::lost_writes::{self, LostWrites};
use crate::space::{Core, SPACE_KEYSPACE, SpaceWalk};
use crate::txn::OpenKeyspace;
use std::sync::Arc;

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

/// Before the keyspaces: pages that one of them gives up may become marks, while marks stay what they are.
fn check_marks(core: &Core, walk: &mut SpaceWalk, report: &mut CheckReport) {
    for map in (0..core.space.maps()).map(|map| core.space.map_page(map)) {
        let pages = match lost_writes::pages_of(&core.pool, &*core.store, map) {
            Ok(pages) => pages,
            Err(e) => {
                report.note(e, map, SPACE_KEYSPACE);
                walk.broken();
                continue;
            }
        };
        core.space.widen(walk);
        report.pages += pages.len() as u64;
        if let Some(twice) = pages.into_iter().find(|id| !walk.visit(*id)) {
            let what = "used twice, or not within the store";
            report.note(Error::corrupt_page(twice, Some(SPACE_KEYSPACE), what), map, SPACE_KEYSPACE);
            walk.broken();
        }
    }
}

/// Exact when nobody writes rows or frees dropped keyspaces; flushes and merges may go on.
fn check_keyspaces(core: &Core, keyspaces: &[Arc<OpenKeyspace>], walk: &mut SpaceWalk, report: &mut CheckReport) {
    // All lists as of one moment: pages that one of them gives up may be another's next.
    let held: Vec<_> = keyspaces.iter().map(|keyspace| keyspace.index().hold_list()).collect();
    core.space.widen(walk);
    let listed: Vec<_> = keyspaces.iter().map(|keyspace| keyspace.index().check_list(walk, report)).collect();
    drop(held);
    for (keyspace, listed) in keyspaces.iter().zip(&listed) {
        if keyspace.is_dropped() {
            keyspace.index().check_rest(listed.as_ref(), walk, report);
        } else {
            keyspace.index().check(listed.as_ref(), walk, report);
        }
        report.keyspaces += 1;
    }
}

pub(super) fn run(inner: &Arc<Inner>) -> Result<CheckReport> {
    let mut report = CheckReport::default();
    let core = &inner.core;
    let mut walk = core.space.begin_check();
    check_marks(core, &mut walk, &mut report);
    inner.registry.catalog().check(&mut walk, &mut report);
    report.keys = 0;
    let (_still, formers) = inner.registry.formers.hold();
    check_keyspaces(core, &inner.registry.all(), &mut walk, &mut report);
    let keys = report.keys;
    formers.iter().for_each(|former| former.check_rest(None, &mut walk, &mut report));
    report.keys = keys;
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
