//! A region: chips of the flash, with a map, garbage collection and space of their own.
//!
//! Invariant: the pages of a region are `first` and the `pages` that follow it, in pages of the flash.

use super::driver::Driver;
use super::layout::RegionConfig;
use std::sync::Arc;
use varve_device::Faults;
use varve_device::flash::{Contents, FlashArray, FlashError, RawFlash, RawIo, RawOp, RawTicket};
use varve_ftl::{Chips, Ftl, FtlConfig, FtlStats};
use varve_rt::Mutex;

/// A region, open.
pub(super) struct Region {
    pub(super) first: u64,
    pub(super) pages: u64,
    ftl: Mutex<Ftl<Chips<Driver>>>,
}

fn config(region: &RegionConfig) -> FtlConfig {
    let (gc, d, spare_factor, logical_pages) = (region.gc, region.d, region.spare_factor, region.pages);
    FtlConfig { gc, d, spare_factor, logical_pages, ..FtlConfig::default() }
}

/// The region's chips as an array.
fn chips(raw: &Arc<dyn RawFlash>, region: &RegionConfig) -> Result<Chips<Driver>, FlashError> {
    config(region).validate()?;
    let chips = Chips::new(Driver::new(raw.clone()), &region.chips)?;
    let mode = chips.mode(0);
    if mode != region.mode {
        let accepted = format!("{mode}: so the chips {:?} are used", region.chips);
        return Err(FlashError::config("regions.mode", region.mode, accepted));
    }
    Ok(chips)
}

/// Erases what the chips hold, and waits until that is done.
fn erase(raw: &Arc<dyn RawFlash>, region: &RegionConfig) -> Result<(), FlashError> {
    let per = raw.geometry().blocks_per_chip();
    let mut tickets = Vec::new();
    for block in region.chips.iter().flat_map(|chip| chip * per..(chip + 1) * per) {
        let info = raw.block(block);
        if !info.bad && (info.next > 0 || info.torn) {
            let ticket = raw.submit(&[RawIo { op: RawOp::Erase { block }, after: 0 }]);
            match ticket.given(0) {
                // It is bad from now on.
                Err(FlashError::WornOut { .. } | FlashError::EraseFailed { .. }) => {}
                given => given.map(|_| tickets.push(ticket))?,
            }
        }
    }
    tickets.iter_mut().try_for_each(|ticket| ticket.wait(0))
}

impl Region {
    /// An empty region, whatever its chips held.
    pub(super) fn create(raw: &Arc<dyn RawFlash>, of: &RegionConfig, first: u64) -> Result<Region, FlashError> {
        let chips = chips(raw, of)?;
        erase(raw, of)?;
        let ftl = Ftl::new(chips, &config(of), None)?;
        Ok(Region::over(ftl, first))
    }

    /// The region that its chips hold.
    pub(super) fn open(
        raw: &Arc<dyn RawFlash>,
        of: &RegionConfig,
        first: u64,
        faults: &Faults,
    ) -> Result<Region, FlashError> {
        let (ftl, _) = Ftl::open(chips(raw, of)?, &config(of), faults, 0)?;
        Ok(Region::over(ftl, first))
    }

    fn over(ftl: Ftl<Chips<Driver>>, first: u64) -> Region {
        assert_eq!(ftl.array().contents(), Contents::Full, "a region keeps what it is given");
        Region { first, pages: ftl.capacity().logical, ftl: Mutex::new(ftl) }
    }

    /// Begins to read a page of the flash; none: it was never written, and is all zeros.
    pub(super) fn read(&self, page: u64, bytes: usize) -> Result<Option<RawTicket>, FlashError> {
        assert!((self.first..self.first + self.pages).contains(&page), "a page of the region");
        let mut ftl = self.ftl.lock();
        let there = ftl.read(0, page - self.first, bytes)?;
        let ticket = ftl.array_mut().array_mut().take_ticket();
        Ok(there.and(ticket))
    }

    /// Begins to write a page of the flash; done when it is programmed, with all that had to move for it on its way.
    pub(super) fn write(&self, page: u64, data: &[u8]) -> Result<RawTicket, FlashError> {
        assert!((self.first..self.first + self.pages).contains(&page), "a page of the region");
        let mut ftl = self.ftl.lock();
        ftl.write(0, page - self.first, Some(data))?;
        let ticket = ftl.array_mut().array_mut().take_ticket();
        Ok(ticket.expect("a page that is written is programmed last"))
    }

    /// Forgets pages of the flash.
    pub(super) fn trim(&self, page: u64, count: u64) -> Result<(), FlashError> {
        assert!(page >= self.first && page + count <= self.first + self.pages, "pages of the region");
        self.ftl.lock().trim(page - self.first, count)
    }

    /// The page of the flash after the last one that has been written; none: none has.
    pub(super) fn end(&self) -> Option<u64> {
        Some(self.ftl.lock().end()).filter(|end| *end > 0).map(|end| self.first + end)
    }

    /// Whether a page of the flash has been written.
    pub(super) fn is_written(&self, page: u64) -> bool {
        self.ftl.lock().is_mapped(page - self.first)
    }

    /// The mark at which what was forgotten stays so after a power cut.
    pub(super) fn settle(&self) -> Result<u64, FlashError> {
        self.ftl.lock().settle(0)
    }

    /// What it did since it was opened.
    pub(super) fn stats(&self) -> FtlStats {
        self.ftl.lock().stats()
    }

    /// Walks over the map and what hangs on it; panics where it does not hold together.
    pub(super) fn verify(&self) {
        self.ftl.lock().verify();
    }
}
