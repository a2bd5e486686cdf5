//! Pages of a database on native flash: written whole, or appended to where few of their bytes changed.
//!
//! Invariants: a page is appended to only with all of its changes since it was stored; a page with bytes in the room of
//! delta records is not written.

use super::NativeFlash;
use crate::{
    Admin, CostClass, KeyspaceId, PageCompletion, PageId, PageIo, PageStore, PageTicket, PageUse, PageWrite, Single,
    VolumeError, VolumeStats, page,
};
use std::sync::Arc;
use varve_device::flash::RawTicket;
use varve_device::{Hint, OpKind};

/// See the module.
pub struct FlashStore {
    flash: Arc<NativeFlash>,
    single: Arc<Single>,
    /// Bytes at the end of a page that are kept for delta records.
    room: usize,
    /// Most changed bytes that a record takes.
    changes: usize,
}

impl Admin for FlashStore {
    fn start(&self) -> Result<(), VolumeError> {
        self.flash.is_whole();
        Ok(())
    }
}

impl FlashStore {
    /// The pages of `single`, which lie on `flash`. Refuses delta records on pages that are several of the flash's.
    pub fn new(flash: Arc<NativeFlash>, single: Arc<Single>) -> Result<Arc<FlashStore>, VolumeError> {
        let schemes = || flash.layout().regions.iter().map(|region| region.scheme());
        let (room, changes) = (schemes().map(|s| s.area()).max(), schemes().map(|s| s.most_changes()).max());
        let (room, changes) = (room.unwrap_or(0), changes.unwrap_or(0));
        if room > 0 && single.page_size() as u64 != flash.page {
            let n = schemes().map(|s| s.n).max().unwrap_or(0);
            return Err(VolumeError::Options(format!(
                "regions.n = {n} cannot be used: a database with pages of {} bytes, as the flash has them, or 0",
                flash.page
            )));
        }
        assert!(room < single.page_size() - page::HEADER, "a page has room for more than delta records");
        Ok(Arc::new(FlashStore { flash, single, room, changes }))
    }

    /// Begins to append a page's changes; none: it must be written whole.
    fn append(&self, write: &PageWrite) -> Option<RawTicket> {
        let changed = write.changed.as_ref()?;
        // SAFETY: the request was just submitted, for pages of this size.
        let bytes = unsafe { write.bytes(self.single.page_size()) };
        debug_assert!(page::is_sealed_for(bytes, write.page), "a page is sealed before it is written");
        self.flash.append(write.page.0, bytes, changed).inspect(|_| self.single.count_write(write.why))
    }

    /// Why a page cannot be written here: it comes from a database whose pages have no room for delta records.
    fn refusal(&self, io: &PageIo) -> Option<VolumeError> {
        let PageIo::Write(write) = io else { return None };
        let size = self.single.page_size();
        // SAFETY: as above.
        let bytes = unsafe { write.bytes(size) };
        let full = bytes[size - self.room..].iter().any(|byte| *byte != 0);
        full.then(|| {
            VolumeError::Options(format!(
                "page {} uses all of its bytes: it was made without room for delta records (regions.n = 0)",
                write.page.0
            ))
        })
    }
}

/// How a request is being served.
enum Way {
    Append(PageId, RawTicket),
    /// The request of this number among those that are written or read whole.
    Whole(usize),
    Refused(VolumeError),
}

struct Flight {
    flash: Arc<NativeFlash>,
    ways: Vec<Way>,
    whole: PageTicket,
}

impl PageCompletion for Flight {
    fn wait(&mut self, i: usize) -> Result<CostClass, VolumeError> {
        match &mut self.ways[i] {
            Way::Append(page, ticket) => {
                let request = (page.0 * self.flash.page, self.flash.page);
                let done = ticket.wait(0).map_err(|e| e.of_request(OpKind::Write, &self.flash.name, request));
                done.map(|()| CostClass(0)).map_err(|source| VolumeError::Page { page: *page, source })
            }
            Way::Whole(i) => self.whole.wait(*i),
            Way::Refused(e) => Err(e.clone()),
        }
    }

    fn try_done(&mut self, i: usize) -> bool {
        match &self.ways[i] {
            Way::Append(_, ticket) => ticket.try_done(0),
            Way::Whole(i) => self.whole.try_done(*i),
            Way::Refused(_) => true,
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
        self.single.usable_bytes(keyspace) - self.room
    }

    fn noted_changes(&self) -> usize {
        self.changes
    }

    fn submit(&self, batch: Vec<PageIo>) -> PageTicket {
        if self.room == 0 {
            return self.single.submit(batch);
        }
        let (mut ways, mut whole) = (Vec::with_capacity(batch.len()), Vec::new());
        for io in batch {
            let appended = if let PageIo::Write(write) = &io { self.append(write) } else { None };
            ways.push(match (appended, self.refusal(&io)) {
                (Some(ticket), _) => Way::Append(io.page(), ticket),
                (None, Some(e)) => Way::Refused(e),
                (None, None) => {
                    whole.push(io);
                    Way::Whole(whole.len() - 1)
                }
            });
        }
        let whole = self.single.submit(whole);
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
