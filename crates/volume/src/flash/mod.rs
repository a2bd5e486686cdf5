//! Native flash: the pages of a database on raw flash, which it maps, collects and wears itself. See
//! `docs/native-flash.md`.
//!
//! [`NativeFlash`] is a [`Device`] over [`RawFlash`]: its bytes are the logical pages of its regions, one region after
//! the other. A write goes to a new place, so it happens as a whole or not at all for each page of the flash.
//!
//! Invariants: the length is at most the capacity, and a multiple of the flash's page; a request completes when its
//! pages are programmed, so what is complete survives a power cut; the map follows the order of submission.
//!
//! Lock order: a region's lock, under which nothing waits; two regions are never locked at once.

pub mod advise;
mod delta;
mod driver;
mod flight;
mod layout;
mod region;
mod store;
#[cfg(test)]
mod tests;

pub use delta::Scheme;
pub use layout::{FlashLayout, RegionConfig};
pub(crate) use store::FlashStore;

use crate::{RegionReport, VolumeError, Zone};
use flight::{Flight, Part, Slot};
use region::{Region, Worn};
use std::sync::Arc;
use varve_device::flash::{FlashError, Geometry, RawFlash, RawTicket};
use varve_device::{
    AlignedBuf, Capabilities, Counters, Device, DeviceError, DeviceInfo, DeviceKind, DeviceStats, Faults, Io, Op,
    OpKind, Ticket,
};
use varve_ftl::{Capacity, FtlStats};
use varve_rt::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

/// Raw flash with regions.
pub struct NativeFlash {
    name: Arc<str>,
    raw: Arc<dyn RawFlash>,
    /// Bytes of a page of the flash.
    page: u64,
    regions: Arc<[Region]>,
    layout: FlashLayout,
    /// Bytes in use: what the database's space manager made of it.
    len: AtomicU64,
    /// Whether what a power cut interrupted has been made good: from then on no delta record may be torn.
    whole: Arc<AtomicBool>,
    /// Which of [`NativeFlash::zones`] are worn out, a bit for each.
    worn: Arc<AtomicU64>,
    counters: Arc<Counters>,
}

/// The region of a page of the flash.
fn region_of(regions: &[Region], page: u64) -> &Region {
    let after = regions.partition_point(|region| region.first <= page);
    let region = &regions[after - 1];
    assert!(page < region.first + region.pages, "a page that there is is a region's");
    region
}

fn of_flash(e: FlashError) -> VolumeError {
    match e {
        FlashError::PowerLost => DeviceError::PowerLost.into(),
        e => VolumeError::Options(e.to_string()),
    }
}

impl NativeFlash {
    /// Regions on flash that nothing is kept of.
    pub fn create(raw: Arc<dyn RawFlash>, layout: &FlashLayout) -> Result<Arc<NativeFlash>, VolumeError> {
        NativeFlash::with(raw, layout, Region::create)
    }

    /// The regions that are on the flash; the layout is the one that was made ([`NativeFlash::layout`]).
    pub fn open(
        raw: Arc<dyn RawFlash>,
        layout: &FlashLayout,
        faults: &Faults,
    ) -> Result<Arc<NativeFlash>, VolumeError> {
        let flash = NativeFlash::with(raw, layout, |raw, of, first| Region::open(raw, of, first, faults))?;
        let end = flash.regions.iter().rev().find_map(Region::end).unwrap_or(0);
        flash.len.store(end * flash.page, SeqCst);
        Ok(flash)
    }

    fn with(
        raw: Arc<dyn RawFlash>,
        layout: &FlashLayout,
        region: impl Fn(&Arc<dyn RawFlash>, &RegionConfig, u64) -> Result<Region, FlashError>,
    ) -> Result<Arc<NativeFlash>, VolumeError> {
        layout.validate(&raw.geometry(), raw.nop())?;
        let (mut regions, mut layout, mut first) = (Vec::new(), layout.clone(), 0);
        let (worn, mut named) = (Arc::default(), 0);
        for of in &mut layout.regions {
            // As `zones` has them.
            named += usize::from(!of.keyspaces.is_empty());
            let zone = if of.keyspaces.is_empty() { 0 } else { named };
            let made = region(&raw, of, first).map_err(of_flash)?.tells(Worn::of_zone(&worn, zone));
            of.pages = Some(made.pages);
            first += made.pages;
            regions.push(made);
        }
        let page = u64::from(raw.geometry().page_bytes);
        let (name, len, regions) = (raw.name(), AtomicU64::new(first * page), regions.into());
        let (whole, counters) = (Arc::default(), Arc::default());
        Ok(Arc::new(NativeFlash { name, raw, page, regions, layout, len, whole, worn, counters }))
    }

    /// The regions, as they were made.
    pub fn layout(&self) -> &FlashLayout {
        &self.layout
    }

    /// Bytes of a page of the flash, spare area apart.
    pub fn page_bytes(&self) -> u64 {
        self.page
    }

    /// The shape of the flash.
    pub fn geometry(&self) -> Geometry {
        self.raw.geometry()
    }

    /// Bytes at the end of a page that its regions keep for delta records.
    pub fn room(&self) -> usize {
        self.layout.regions.iter().map(|region| region.scheme().area()).max().unwrap_or(0)
    }

    /// Bytes that it can hold.
    pub fn capacity(&self) -> u64 {
        self.regions.last().map_or(0, |last| last.first + last.pages) * self.page
    }

    /// The regions that have keyspaces of their own, in pages of `page_size` bytes; before them the others together.
    pub(crate) fn zones(&self, page_size: u64) -> Vec<Zone> {
        let configs = &self.layout.regions;
        // A page is of the region that has its first byte.
        let place = |page: u64| (page * self.page).div_ceil(page_size);
        let pages = |region: &Region| place(region.first)..place(region.first + region.pages);
        let mut zones = vec![Zone::default()];
        for (config, region) in configs.iter().zip(&*self.regions) {
            if config.keyspaces.is_empty() {
                let both = [&zones[0].name[..], &config.name].map(str::to_string);
                zones[0].name = both.into_iter().filter(|name| !name.is_empty()).collect::<Vec<_>>().join(", ");
                zones[0].pages.push(pages(region));
            } else {
                let (name, keyspaces) = (config.name.clone(), config.keyspaces.clone());
                zones.push(Zone { name, keyspaces, pages: vec![pages(region)] });
            }
        }
        // The last page may lack its end.
        let end = self.capacity() / page_size;
        assert!(!zones[0].pages.is_empty(), "one region at least is for those that none names");
        zones.iter_mut().flat_map(|zone| &mut zone.pages).for_each(|run| run.end = run.end.min(end));
        zones
    }

    /// Which of [`NativeFlash::zones`] are worn out: a bit for each.
    pub(crate) fn worn_zones(&self) -> Arc<AtomicU64> {
        self.worn.clone()
    }

    /// What each region did since it was opened.
    pub fn region_stats(&self) -> Vec<FtlStats> {
        self.regions.iter().map(Region::stats).collect()
    }

    /// What each region did since it was opened, and what is left of it.
    pub fn reports(&self) -> Vec<RegionReport> {
        let regions = self.layout.regions.iter().zip(&*self.regions).enumerate();
        regions.map(|(number, (of, region))| region.report((number, of))).collect()
    }

    /// Of each region: its logical pages, and the physical ones that it can use for them.
    pub fn region_capacity(&self) -> Vec<Capacity> {
        self.regions.iter().map(Region::capacity).collect()
    }

    /// Checks the map of each region and what hangs on it, for tests; panics where it does not hold together.
    pub fn verify(&self) {
        self.regions.iter().for_each(Region::verify);
    }

    /// The database has redone what a power cut interrupted.
    pub(crate) fn is_whole(&self) {
        self.whole.store(true, SeqCst);
    }

    /// Begins to append the bytes at `changed` of a page of the flash to it; none: it must be written whole.
    fn append(&self, page: u64, data: &[u8], changed: &[u16]) -> Option<RawTicket> {
        assert_eq!(data.len() as u64, self.page, "a page of the flash");
        self.region(page).append(page, data, changed)
    }

    /// The region of a page of the flash.
    fn region(&self, page: u64) -> &Region {
        region_of(&self.regions, page)
    }

    /// Begins one request; what has to be waited for.
    fn begin(&self, io: &Io) -> Result<Vec<Part>, FlashError> {
        let pages = io.offset / self.page..(io.offset + io.len() as u64) / self.page;
        match io.op {
            Op::Read => pages.map(|page| Ok(self.region(page).read(page, self.page as usize)?.into())).collect(),
            Op::Write { .. } => {
                let part = |(page, data): (u64, &[u8])| Ok(self.region(page).write(page, data)?.into());
                let parts = pages.zip(flight::written(io).chunks(self.page as usize)).map(part);
                // Chips keep what is programmed; what stands for chips is told to.
                let fence = matches!(io.op, Op::Write { durable: true }).then(|| Ok(Part::from(self.raw.fence(0))));
                parts.chain(fence).collect()
            }
            Op::Trim => {
                // An opening finds the length by the last page: that one becomes zeros, at no moment forgotten.
                let last = (self.len() / self.page).saturating_sub(1);
                let end = if pages.end > last { last.max(pages.start) } else { pages.end };
                self.trim(pages.start, end)?;
                let zeros = vec![0; self.page as usize];
                (end..pages.end).map(|page| Ok(self.region(page).write(page, &zeros)?.into())).collect()
            }
            Op::Flush => {
                // What was written is programmed; only what was forgotten has to be noted.
                let marks = self.regions.iter().map(Region::settle).collect::<Result<Vec<_>, _>>()?;
                let last = marks.into_iter().max().unwrap_or(0);
                Ok(vec![Part::from(self.raw.fence(last))])
            }
        }
    }

    fn trim(&self, mut page: u64, end: u64) -> Result<(), FlashError> {
        while page < end {
            let region = self.region(page);
            let stop = end.min(region.first + region.pages);
            region.trim(page, stop - page)?;
            page = stop;
        }
        Ok(())
    }

    /// Makes an opening find this length.
    fn note_end(&self, len: u64) -> Result<(), DeviceError> {
        let Some(last) = (len / self.page).checked_sub(1) else { return Ok(()) };
        if self.region(last).is_written(last) {
            return Ok(());
        }
        varve_device::write_at(self, last * self.page, &AlignedBuf::new(self.page as usize), true)
    }

    fn start(&self, io: Io) -> Slot {
        let started = varve_rt::now();
        let checked = varve_device::check(&io, &self.name, self.page as u32, self.len());
        let begun = checked.and_then(|()| {
            if matches!(io.op, Op::Write { durable: true }) {
                self.counters.durable_write();
            }
            self.begin(&io).map_err(|e| e.of_request(io.op.kind(), &self.name, (io.offset, io.len() as u64)))
        });
        Slot { io, begun, started }
    }
}

impl Device for NativeFlash {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: self.name.clone(),
            kind: DeviceKind::Flash,
            block: self.page as u32,
            atomic_write_unit: self.page as u32,
            queue_depth: (4 * self.geometry().chips()).clamp(32, 1024),
            direct: true,
            access: "native flash".into(),
            fallback: None,
            capabilities: Capabilities { trim: true, extent: 0 },
        }
    }

    fn len(&self) -> u64 {
        self.len.load(SeqCst)
    }

    /// Anything up to the capacity, which is the length of flash that is new. What is cut off is forgotten. An opening
    /// finds the length by the last page that was written, so the last page there is is written, as zeros.
    fn set_len(&self, len: u64) -> Result<(), DeviceError> {
        let len = len.next_multiple_of(self.page);
        if len > self.capacity() {
            return Err(DeviceError::NoSpace { op: OpKind::SetLen, device: self.name.clone(), offset: 0, len });
        }
        let old = self.len.swap(len, SeqCst);
        self.note_end(len).inspect_err(|_| self.len.store(old, SeqCst))?;
        if len >= old {
            return Ok(());
        }
        let err = |e: FlashError| e.of_request(OpKind::SetLen, &self.name, (len, old - len));
        self.trim(len / self.page, old / self.page).map_err(err)?;
        varve_device::flush(self)
    }

    fn submit(&self, batch: Vec<Io>) -> Ticket {
        assert!(self.len() <= self.capacity(), "what is in use fits");
        let slots: Vec<Slot> = batch.into_iter().map(|io| self.start(io)).collect();
        let (name, counters, page) = (self.name.clone(), self.counters.clone(), self.page as usize);
        let (regions, whole) = (self.regions.clone(), self.whole.clone());
        Ticket::pending(slots.len(), Box::new(Flight { name, counters, page, regions, whole, slots }))
    }

    fn stats(&self) -> DeviceStats {
        self.counters.snapshot()
    }

    fn life_used(&self) -> Option<f64> {
        self.raw.life_used()
    }
}
