//! A region: chips of the flash, with a map, garbage collection and space of their own.
//!
//! Invariant: the pages of a region are `first` and the `pages` that follow it, in pages of the flash.

use super::delta::{Found, Scheme};
use super::driver::Driver;
use super::layout::RegionConfig;
use crate::RegionReport;
use std::ops::Range;
use std::sync::Arc;
use varve_device::flash::{BlockInfo, Contents, FlashArray, FlashError, Page, RawFlash, RawIo, RawOp, RawTicket};
use varve_device::{Faults, Mistake};
use varve_ftl::{Appends, Capacity, Chips, Ftl, FtlConfig, FtlStats};
use varve_rt::Mutex;
use varve_rt::atomic::{AtomicU64, Ordering::SeqCst};

/// Page writes between two looks at how many blocks are left.
const LOOK: u64 = 64;
/// Erases of each block that a region keeps for what was accepted before it counts as worn out (assumed: what writes
/// each of its pages once more, at a write amplification of 5).
const KEPT_ERASES: u64 = 5;

/// Which zones are worn out: a bit for each, which stays.
#[derive(Clone, Default)]
pub(super) struct Worn {
    zones: Arc<AtomicU64>,
    bit: u64,
}

impl Worn {
    /// The same, for a region of this zone.
    pub(super) fn of_zone(zones: &Arc<AtomicU64>, zone: usize) -> Worn {
        assert!(zone < 64, "a superblock has no room for so many regions");
        Worn { zones: zones.clone(), bit: 1 << zone }
    }
}

/// A region, open.
pub(super) struct Region {
    pub(super) first: u64,
    pub(super) pages: u64,
    pub(super) scheme: Scheme,
    /// Told when it is worn out.
    worn: Worn,
    raw: Arc<dyn RawFlash>,
    /// Its blocks, in runs.
    blocks: Vec<Range<u32>>,
    /// What is to go wrong on purpose.
    faults: Faults,
    ftl: Mutex<Ftl<Chips<Driver>>>,
}

fn config(region: &RegionConfig) -> FtlConfig {
    let (gc, d, spare_factor, logical_pages) = (region.gc, region.d, region.spare_factor, region.pages);
    let (append_slots, merge_appends) = (region.n, region.merge);
    FtlConfig { gc, d, spare_factor, logical_pages, append_slots, merge_appends, ..FtlConfig::default() }
}

/// A page that is being read.
pub(super) struct Reading {
    pub(super) ticket: RawTicket,
    /// Of the flash.
    pub(super) page: u64,
    scheme: Scheme,
    /// Torn records are applied too, which is wrong.
    believe: bool,
    /// Where it is read from, if nobody knows how many delta records are there.
    pub(super) uncounted: Option<Page>,
}

impl Reading {
    /// Waits for the page, as it is with its delta records, and says what they are.
    pub(super) fn finish(&mut self, page: &mut [u8]) -> Result<Found, FlashError> {
        if self.scheme.n == 0 {
            self.ticket.read(0, page, &mut [])?;
            return Ok(Found::default());
        }
        let mut spare = vec![0; self.scheme.spare_bytes()];
        self.ticket.read(0, page, &mut spare)?;
        Ok(self.scheme.apply(page, &spare, self.believe))
    }
}

impl Appends for Scheme {
    fn spare_bytes(&self) -> usize {
        Scheme::spare_bytes(self)
    }

    fn merge(&self, page: &mut [u8], spare: &[u8]) -> usize {
        self.apply(page, spare, false);
        self.without_room(page).len()
    }
}

/// How a region lays out delta records, if its pages take some.
fn layout_of(of: &RegionConfig) -> Option<Arc<dyn Appends>> {
    (of.n > 0).then(|| Arc::new(of.scheme()) as Arc<dyn Appends>)
}

/// The region's chips as an array.
fn chips(raw: &Arc<dyn RawFlash>, region: &RegionConfig) -> Result<Chips<Driver>, FlashError> {
    config(region).validate()?;
    let spare = if region.n == 0 { 0 } else { region.scheme().spare_bytes() };
    let chips = Chips::new(Driver::new(raw.clone(), spare), &region.chips)?;
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
        let mut ftl = Ftl::new(chips, &config(of), None)?;
        layout_of(of).into_iter().for_each(|appends| ftl.lays_out(appends));
        Ok(Region::over(ftl, raw, of, first))
    }

    /// The region that its chips hold.
    pub(super) fn open(
        raw: &Arc<dyn RawFlash>,
        of: &RegionConfig,
        first: u64,
        faults: &Faults,
    ) -> Result<Region, FlashError> {
        let (ftl, _) = Ftl::open(chips(raw, of)?, &config(of), layout_of(of), faults, 0)?;
        Ok(Region { faults: faults.clone(), ..Region::over(ftl, raw, of, first) })
    }

    fn over(ftl: Ftl<Chips<Driver>>, raw: &Arc<dyn RawFlash>, of: &RegionConfig, first: u64) -> Region {
        assert_eq!(ftl.array().contents(), Contents::Full, "a region keeps what it is given");
        let per = raw.geometry().blocks_per_chip();
        Region {
            worn: Worn::default(),
            raw: raw.clone(),
            blocks: of.chips.iter().map(|chip| chip * per..(chip + 1) * per).collect(),
            first,
            pages: ftl.capacity().logical,
            scheme: of.scheme(),
            faults: Faults::default(),
            ftl: Mutex::new(ftl),
        }
    }

    /// Begins to read a page of the flash; none: it was never written, and is all zeros.
    pub(super) fn read(&self, page: u64, bytes: usize) -> Result<Option<Reading>, FlashError> {
        assert!((self.first..self.first + self.pages).contains(&page), "a page of the region");
        let mut ftl = self.ftl.lock();
        let lpn = page - self.first;
        let from = ftl.locate(lpn).filter(|_| ftl.appends_unknown(lpn));
        let there = ftl.read(0, lpn, bytes)?;
        let ticket = ftl.array_mut().array_mut().take_ticket();
        let (scheme, believe) = (self.scheme, self.faults.has(Mistake::FlashTornRecords));
        Ok(there.and(ticket).map(|ticket| Reading { ticket, page, scheme, believe, uncounted: from }))
    }

    /// What the delta records of a page turned out to be that was read from where nobody knew of them.
    pub(super) fn counted(&self, page: u64, from: Page, found: Found) {
        debug_assert!(found.used <= self.scheme.n, "a page has no more records than places for them");
        let used = if found.torn { self.scheme.n } else { found.used };
        self.ftl.lock().found_appends(page - self.first, from, used);
    }

    /// Begins to append the bytes at `changed` of a page of the flash to it; none: it must be written.
    pub(super) fn append(&self, page: u64, data: &[u8], changed: &[u16]) -> Option<RawTicket> {
        assert!((self.first..self.first + self.pages).contains(&page), "a page of the region");
        if self.scheme.n == 0 || changed.len() > self.scheme.most_changes() {
            return None;
        }
        let (mut ftl, lpn) = (self.ftl.lock(), page - self.first);
        let i = ftl.takes_append(lpn)?;
        let record = self.scheme.record(i, data, changed)?;
        let (bytes, spare) = (&record.data.1[..], &record.spare.1[..]);
        ftl.append(0, lpn, (record.data.0, bytes), (record.spare.0, spare)).ok()?;
        ftl.array_mut().array_mut().take_ticket()
    }

    /// Begins to write a page of the flash; done when it is programmed, with all that had to move for it on its way.
    pub(super) fn write(&self, page: u64, data: &[u8]) -> Result<RawTicket, FlashError> {
        assert!((self.first..self.first + self.pages).contains(&page), "a page of the region");
        let room = &data[self.scheme.without_room(data).len()..];
        if room.iter().any(|byte| *byte != 0) {
            let accepted = "0, for pages that use all of their bytes";
            return Err(FlashError::config("regions.n", self.scheme.n, accepted));
        }
        let mut ftl = self.ftl.lock();
        let written = ftl.write(0, page - self.first, Some(self.scheme.without_room(data)));
        let writes = ftl.stats().host_writes;
        if written.is_err() || writes.is_multiple_of(LOOK) {
            self.look(&ftl, writes.is_multiple_of((self.pages / 8).next_multiple_of(LOOK)));
        }
        written?;
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

    /// From here on it tells when it is worn out, and whether it is now.
    pub(super) fn tells(self, worn: Worn) -> Region {
        let region = Region { worn, ..self };
        region.look(&region.ftl.lock(), true);
        region
    }

    /// Tells if it is worn out: by its blocks that are left and, if asked, by their erases that are left.
    fn look(&self, ftl: &Ftl<Chips<Driver>>, erases: bool) {
        if ftl.is_worn_out() || erases && self.is_used_up() {
            self.worn.zones.fetch_or(self.worn.bit, SeqCst);
        }
    }

    /// Its blocks, as they are.
    fn blocks(&self) -> impl Iterator<Item = BlockInfo> + '_ {
        self.blocks.iter().cloned().flatten().map(|block| self.raw.block(block))
    }

    /// Whether its blocks have fewer erases left than what was accepted may need.
    fn is_used_up(&self) -> bool {
        let Some(most) = self.raw.endurance() else { return false };
        let (left, good) = self
            .blocks()
            .filter(|block| !block.bad)
            .fold((0, 0), |(left, good), block| (left + u64::from(most.saturating_sub(block.erases)), good + 1));
        left < KEPT_ERASES * good
    }

    /// What it did since it was opened, and what is left of it.
    pub(super) fn report(&self, (number, of): (usize, &RegionConfig)) -> RegionReport {
        let (stats, bad) = {
            let ftl = self.ftl.lock();
            (ftl.stats(), ftl.bad_blocks())
        };
        let moved = stats.gc_copies + stats.wear_copies + stats.disturb_copies;
        let (erases, count) = self.blocks().fold((0, 0), |(sum, n), block| (sum + u64::from(block.erases), n + 1));
        assert!(count > 0, "a region has blocks");
        RegionReport {
            name: if of.name.is_empty() { number.to_string() } else { of.name.clone() },
            keyspaces: of.keyspaces.clone(),
            scheme: self.scheme.to_string(),
            pages: self.pages,
            writes: stats.host_writes,
            appends: stats.host_appends,
            migrations: stats.gc_copies,
            programs: stats.host_programs + moved + stats.map_programs,
            erases: stats.erases,
            all_erases: erases,
            bad_blocks: bad.into(),
            life_used: self.raw.endurance().map(|most| erases as f64 / (f64::from(count) * f64::from(most))),
            worn_out: self.worn.zones.load(SeqCst) & self.worn.bit != 0,
        }
    }

    /// Its sizes, as they are now.
    pub(super) fn capacity(&self) -> Capacity {
        self.ftl.lock().capacity()
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
