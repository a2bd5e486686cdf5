//! Replays writes on a region that is not there, with the translation layer that it would have: what is appended, what
//! is written out of place, what collection moves and erases.
//!
//! Pure: what comes out is a function of what goes in.

use super::counted::Counted;
use super::{Ageing, Written};
use std::sync::Arc;
use varve_device::flash::{CellMode, FlashError, Geometry};
use varve_ftl::{Appends, Ftl, FtlConfig, FtlStats, GcPolicy};
use varve_rt::Rng;

use super::super::delta::Scheme;

/// A region to replay on.
#[derive(Clone, Debug)]
pub(super) struct Region {
    /// Its part of the array.
    pub(super) geometry: Geometry,
    pub(super) mode: CellMode,
    pub(super) scheme: Scheme,
    pub(super) gc: GcPolicy,
    pub(super) merge: bool,
    /// Pages of the flash that hold data.
    pub(super) used: u64,
}

/// What was done in the part that counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Done {
    pub(super) appends: u64,
    /// Pages written whole, and of these the ones that made another copy worthless.
    pub(super) whole: u64,
    pub(super) invalidated: u64,
    pub(super) copies: u64,
    pub(super) erases: u64,
}

impl Done {
    pub(super) fn writes(&self) -> u64 {
        self.appends + self.whole
    }
}

/// Pages are moved with their records merged into them; nobody has their contents.
struct NoContents(usize);

impl Appends for NoContents {
    fn spare_bytes(&self) -> usize {
        self.0
    }

    fn merge(&self, page: &mut [u8], _: &[u8]) -> usize {
        page.len()
    }
}

impl Region {
    fn ftl(&self) -> Result<Ftl<Counted>, FlashError> {
        let array = Counted::new(self.geometry, self.mode);
        let n = self.scheme.n;
        let config = FtlConfig { gc: self.gc, append_slots: n, merge_appends: self.merge, ..FtlConfig::default() };
        // As many logical pages as hold data: what is logical and holds none is spare.
        let config = FtlConfig { logical_pages: Some(self.used), ..config };
        let mut ftl = Ftl::new(array, &config, None)?;
        if n > 0 {
            ftl.lays_out(Arc::new(NoContents(self.scheme.spare_bytes())));
        }
        Ok(ftl)
    }

    /// Fills the region, ages it, and replays the writes: as often as is asked for, of which the last time counts from
    /// write `from` on. `place`: the page of the flash of a page of the database, or none if it is not of this region.
    pub(super) fn replay<'w>(
        &self,
        writes: impl Iterator<Item = &'w Written> + Clone,
        from: usize,
        place: impl Fn(u64) -> Option<u64>,
        ageing: Ageing,
    ) -> Result<Done, FlashError> {
        let mut ftl = self.ftl()?;
        for page in 0..self.used {
            ftl.write(0, page, None)?;
        }
        let mut rng = Rng::from_seed(0xa6e);
        for _ in 0..(ageing.random * self.used as f64) as u64 {
            ftl.write(0, rng.below(self.used), None)?;
        }
        let (mut before, mut invalidated) = (ftl.stats(), 0);
        assert!(ageing.passes > 0, "the writes are replayed at least once");
        for pass in 1..=ageing.passes {
            let last = pass == ageing.passes;
            for (n, write) in writes.clone().enumerate() {
                if last && n == from {
                    (before, invalidated) = (ftl.stats(), 0);
                }
                let Some(page) = place(write.page) else { continue };
                assert!(page < self.used, "a page of the region");
                if !self.append(&mut ftl, page, write) {
                    invalidated += u64::from(ftl.is_mapped(page));
                    ftl.write(0, page, None)?;
                }
            }
        }
        Ok(done(&ftl.stats().since(&before), invalidated))
    }

    /// Appends what a write changed, if it can be appended.
    fn append(&self, ftl: &mut Ftl<Counted>, page: u64, write: &Written) -> bool {
        let Some(changed) = write.changed else { return false };
        if self.scheme.n == 0 || changed as usize > self.scheme.most_changes() || ftl.takes_append(page).is_none() {
            return false;
        }
        ftl.append(0, page, (0, &[]), (0, &[])).is_ok()
    }
}

fn done(stats: &FtlStats, invalidated: u64) -> Done {
    Done {
        appends: stats.host_appends,
        whole: stats.host_writes,
        invalidated,
        copies: stats.gc_copies,
        erases: stats.erases,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use varve_device::flash::LEAST_SPARE;

    fn geometry(blocks: u32) -> Geometry {
        Geometry {
            channels: 1,
            chips_per_channel: 1,
            planes: 1,
            blocks_per_plane: blocks,
            pages_per_block: 64,
            page_bytes: 4096,
            spare_bytes: 2 * LEAST_SPARE + 32,
        }
    }

    /// Uniform updates that are all eligible, two records, merged by FIFO collection: theory has .826 appends at a
    /// spare factor of .1.
    #[test]
    fn uniform_updates_are_appended_as_often_as_theory_says() {
        let mut rng = Rng::from_seed(3);
        let blocks = 400;
        let used = u64::from(blocks - 8) * 64 * 9 / 10;
        let write = |rng: &mut Rng| Written { page: rng.below(used), keyspace: crate::KeyspaceId(1), changed: Some(9) };
        let writes: Vec<Written> = (0..12 * used).map(|_| write(&mut rng)).collect();
        let (scheme, gc) = (Scheme { n: 2, m: 48 }, GcPolicy::Fifo);
        let region = Region { geometry: geometry(blocks), mode: CellMode::Slc, scheme, gc, merge: true, used };
        let ageing = Ageing { random: 1.0, passes: 1 };
        let done = region.replay(writes.iter(), writes.len() / 2, Some, ageing).unwrap();
        let share = done.appends as f64 / done.writes() as f64;
        assert!((share - 0.826).abs() < 0.015, "{share}: {done:?}");
        // Records that nobody may use: every write is one of a page.
        let whole = Region { scheme: Scheme { n: 2, m: 24 }, ..region };
        let done = whole.replay(writes.iter().take(1000), 0, Some, ageing).unwrap();
        assert_eq!((done.appends, done.whole, done.invalidated), (0, 1000, 1000), "nine bytes take 27 of a record");
    }
}
