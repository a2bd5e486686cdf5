//! Accounting for every page: what a check came across, against the space map.

use super::{SPACE_KEYSPACE, Space, is_set};
use crate::error::{Damage, Error};
use crate::report::CheckReport;
use varve_rt::atomic::Ordering;
use varve_volume::PageId;

/// Which pages a check has come across.
pub(crate) struct SpaceWalk {
    seen: Vec<u64>,
    changes: u64,
    broken: bool,
}

impl SpaceWalk {
    /// Notes a page; false when it was seen before or does not exist.
    pub(crate) fn visit(&mut self, id: PageId) -> bool {
        let Some(word) = self.seen.get_mut((id.0 / 64) as usize) else { return false };
        let new = *word >> (id.0 % 64) & 1 == 0;
        *word |= 1 << (id.0 % 64);
        new
    }

    /// Something could not be read, so that what it refers to stays unseen.
    pub(crate) fn broken(&mut self) {
        self.broken = true;
    }
}

impl Space {
    /// Begins to account for every page. See [`Space::finish_check`].
    pub(crate) fn begin_check(&self) -> SpaceWalk {
        let (pages, maps, fixed) = {
            let state = self.state.lock();
            (state.pages, state.maps(), state.fixed.clone())
        };
        let mut walk = SpaceWalk {
            seen: vec![0; pages.div_ceil(64) as usize],
            changes: self.changes.load(Ordering::Acquire),
            broken: false,
        };
        (0..maps).for_each(|m| {
            walk.visit(PageId(m * self.span));
        });
        for id in fixed {
            walk.visit(id);
        }
        walk
    }

    /// Pages that the store has been given since the walk began count too.
    pub(crate) fn widen(&self, walk: &mut SpaceWalk) {
        let pages = self.state.lock().pages;
        walk.seen.resize(walk.seen.len().max(pages.div_ceil(64) as usize), 0);
    }

    /// Compares the pages seen with the space map: reports pages that are in use but not allocated, and, when every
    /// page could be read and nothing was allocated or freed meanwhile, pages that are allocated but not in use.
    pub(crate) fn finish_check(&self, walk: SpaceWalk, report: &mut CheckReport) {
        let (pages, maps) = {
            let state = self.state.lock();
            (state.pages, state.maps())
        };
        let (mut wrong, quiet) = (Vec::new(), || self.changes.load(Ordering::Acquire) == walk.changes);
        for map in 0..maps {
            let id = PageId(map * self.span);
            report.pages += 1;
            let page = match self.pool.read(id) {
                Ok(page) => page,
                Err(e) => {
                    report.note(e, id, SPACE_KEYSPACE);
                    continue;
                }
            };
            if let Err(Error::Corrupt(d)) = self.check_map(id, page.bytes()) {
                report.damages.push(d);
                continue;
            }
            let is_quiet = quiet();
            for p in id.0..pages.min(id.0 + self.span) {
                let allocated = is_set(page.bytes(), p - id.0);
                let seen = walk.seen.get(p as usize / 64).is_some_and(|w| w >> (p % 64) & 1 == 1);
                if allocated {
                    report.allocated_pages += 1
                } else {
                    report.free_pages += 1
                }
                match (allocated, seen) {
                    _ if !is_quiet => {}
                    (true, false) if !walk.broken => wrong.push((PageId(p), "allocated, but nothing uses it")),
                    (false, true) => wrong.push((PageId(p), "in use, but free in the space map")),
                    _ => {}
                }
            }
        }
        // Asked for after the last map: who changed one that was seen has counted.
        let is_quiet = quiet();
        let damage =
            |(page, what): (PageId, &str)| Damage::Page { page, keyspace: None, what: what.into(), stored: None };
        report.damages.extend(wrong.into_iter().filter(|_| is_quiet).map(damage));
    }
}
