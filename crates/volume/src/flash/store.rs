//! Pages of a database on native flash: written whole, or appended to where few of their bytes changed.
//!
//! Invariant: a page is appended to only with all of its changes since it was stored.

use super::NativeFlash;
use crate::{
    Admin, CostClass, KeyspaceId, PageCompletion, PageId, PageIo, PageStore, PageTicket, PageUse, PageWrite, Report,
    Single, VolumeError, VolumeStats, Zone, page,
};
use std::sync::Arc;
use varve_device::flash::RawTicket;
use varve_device::{Hint, OpKind};
use varve_rt::Instant;
use varve_rt::atomic::AtomicU64;

/// See the module.
pub struct FlashStore {
    flash: Arc<NativeFlash>,
    single: Arc<Single>,
    /// Most changed bytes that a record takes.
    changes: usize,
}

impl Admin for FlashStore {
    fn report(&self) -> Report {
        Report { regions: self.flash.reports(), ..Report::default() }
    }

    fn start(&self) -> Result<(), VolumeError> {
        self.flash.is_whole();
        Ok(())
    }
}

impl FlashStore {
    /// The pages of `single`, which lie on `flash`. Refuses delta records on pages that are several of the flash's, or
    /// that leave too little room for them.
    pub fn new(flash: Arc<NativeFlash>, single: Arc<Single>) -> Result<Arc<FlashStore>, VolumeError> {
        let schemes = || flash.layout().regions.iter().map(|region| region.scheme());
        let (n, changes) = (schemes().map(|s| s.n).max(), schemes().map(|s| s.most_changes()).max());
        let (n, changes) = (n.unwrap_or(0), changes.unwrap_or(0));
        let refuse = |what: String| Err(VolumeError::Options(format!("regions.n = {n} cannot be used: {what}")));
        if n > 0 && single.page_size() as u64 != flash.page {
            return refuse(format!("a database with pages of {} bytes, as the flash has them, or 0", flash.page));
        }
        let left = single.page_size() - page::HEADER - single.usable_bytes(KeyspaceId(0));
        if flash.room() > left {
            return refuse(format!("the pages of this database leave {left} bytes free for records: fewer, or 0"));
        }
        Ok(Arc::new(FlashStore { flash, single, changes }))
    }

    /// Begins to append a page's changes; none: it must be written whole.
    fn append(&self, write: &PageWrite) -> Option<RawTicket> {
        let changed = write.changed.as_ref()?;
        // SAFETY: the request was just submitted, for pages of this size.
        let bytes = unsafe { write.bytes(self.single.page_size()) };
        debug_assert!(page::is_sealed_for(bytes, write.page), "a page is sealed before it is written");
        self.flash.append(write.page.0, bytes, changed).inspect(|_| self.single.count_write(write.why))
    }
}

/// How a request is being served.
enum Way {
    Append(PageId, RawTicket, Instant),
    /// The request of this number among those that are written or read whole.
    Whole(usize),
}

struct Flight {
    flash: Arc<NativeFlash>,
    ways: Vec<Way>,
    whole: PageTicket,
}

impl PageCompletion for Flight {
    fn wait(&mut self, i: usize) -> Result<CostClass, VolumeError> {
        match &mut self.ways[i] {
            Way::Append(page, ticket, started) => {
                let request = (page.0 * self.flash.page, self.flash.page);
                let done = ticket.wait(0).map_err(|e| e.of_request(OpKind::Write, &self.flash.name, request));
                // The device below does not see it: it is counted here, as the write of a record.
                let (bytes, nanos) = (self.flash.region(page.0).scheme.m, started.elapsed().as_nanos() as u64);
                debug_assert!(bytes > 0, "a record is of a region that takes some");
                self.flash.counters.finished(OpKind::Write, u64::from(bytes), nanos, done.is_ok());
                done.map(|()| CostClass(0)).map_err(|source| VolumeError::Page { page: *page, source })
            }
            Way::Whole(i) => self.whole.wait(*i),
        }
    }

    fn try_done(&mut self, i: usize) -> bool {
        match &self.ways[i] {
            Way::Append(_, ticket, _) => ticket.try_done(0),
            Way::Whole(i) => self.whole.try_done(*i),
        }
    }

    fn abandon(&mut self) {
        // The tickets below are dropped right after this.
    }
}

impl PageStore for FlashStore {
    fn page_size(&self) -> usize {
        self.single.page_size()
    }

    fn pages(&self) -> u64 {
        self.single.pages()
    }

    fn grow(&self, pages: u64) -> Result<(), VolumeError> {
        self.single.grow(pages)
    }

    fn shrink(&self, pages: u64) -> Result<(), VolumeError> {
        self.single.shrink(pages)
    }

    fn usable_bytes(&self, keyspace: KeyspaceId) -> usize {
        self.single.usable_bytes(keyspace)
    }

    fn zones(&self) -> Vec<Zone> {
        self.flash.zones(self.single.page_size() as u64)
    }

    fn worn_zones(&self) -> Option<Arc<AtomicU64>> {
        Some(self.flash.worn_zones())
    }

    fn noted_changes(&self) -> usize {
        self.changes
    }

    fn submit(&self, batch: Vec<PageIo>) -> PageTicket {
        if self.changes == 0 {
            return self.single.submit(batch);
        }
        let (mut ways, mut whole) = (Vec::with_capacity(batch.len()), Vec::new());
        for io in batch {
            let appended = if let PageIo::Write(write) = &io { self.append(write) } else { None };
            ways.push(match appended {
                Some(ticket) => Way::Append(io.page(), ticket, varve_rt::now()),
                None => {
                    whole.push(io);
                    Way::Whole(whole.len() - 1)
                }
            });
        }
        let whole = self.single.submit(whole);
        let appended = ways.iter().filter(|way| matches!(way, Way::Append(..))).count();
        assert_eq!(appended + whole.len(), ways.len(), "every request goes one way");
        PageTicket::pending(ways.len(), Box::new(Flight { flash: self.flash.clone(), ways, whole }))
    }

    fn evict_clean(&self, page: PageId, bytes: &[u8], usage: PageUse) -> bool {
        self.single.evict_clean(page, bytes, usage)
    }

    fn dirtied(&self, page: PageId, keyspace: KeyspaceId, usage: PageUse) {
        self.single.dirtied(page, keyspace, usage);
    }

    fn discard(&self, pages: &[PageId]) -> Result<(), VolumeError> {
        self.single.discard(pages)
    }

    fn extent(&self) -> Option<u64> {
        self.single.extent()
    }

    fn hint(&self, pages: (PageId, PageId), hint: Hint) {
        self.single.hint(pages, hint);
    }

    fn drain_class_changes(&self, into: &mut Vec<(PageId, CostClass)>) {
        self.single.drain_class_changes(into);
    }

    fn sync(&self) -> Result<(), VolumeError> {
        self.single.sync()
    }

    fn stats(&self) -> VolumeStats {
        self.single.stats()
    }
}
