//! A page store whose reads and writes somebody is told of as they complete: who remembers what was written last.

use crate::{
    CostClass, KeyspaceId, Lsn, PageCompletion, PageId, PageIo, PageStore, PageTicket, PageUse, VolumeError,
    VolumeStats, Zone, page,
};
use std::sync::Arc;
use varve_device::Hint;
use varve_rt::atomic::AtomicU64;

/// Is told. Called by the thread that waits for the request, before its wait returns.
pub trait PageWatch: Send + Sync {
    /// A page was read, whole, as it was changed last at `lsn`; an error takes the place of the result.
    fn read(&self, page: PageId, lsn: Lsn) -> Result<(), VolumeError>;

    /// A page was written, as it was changed last at `lsn`.
    fn written(&self, page: PageId, lsn: Lsn);

    /// In place of the store's sync, which it calls.
    fn sync(&self) -> Result<(), VolumeError>;
}

/// See the module.
pub struct WatchedStore {
    store: Arc<dyn PageStore>,
    watch: Arc<dyn PageWatch>,
}

impl WatchedStore {
    /// `store`, watched.
    pub fn new(store: Arc<dyn PageStore>, watch: Arc<dyn PageWatch>) -> Arc<WatchedStore> {
        Arc::new(WatchedStore { store, watch })
    }
}

/// One request.
struct Seen {
    page: PageId,
    /// The page's memory.
    address: usize,
    is_write: bool,
}

struct Flight {
    inner: PageTicket,
    seen: Vec<Seen>,
    watch: Arc<dyn PageWatch>,
}

impl PageCompletion for Flight {
    fn wait(&mut self, i: usize) -> Result<CostClass, VolumeError> {
        let class = self.inner.wait(i)?;
        let Seen { page, address, is_write } = self.seen[i];
        // SAFETY: the request's buffer holds a page, is valid until this wait returns, and the store below is done with
        // it.
        let header = unsafe { std::slice::from_raw_parts(address as *const u8, page::HEADER) };
        let lsn = page::lsn(header);
        if is_write {
            self.watch.written(page, lsn);
        } else {
            self.watch.read(page, lsn)?;
        }
        Ok(class)
    }

    fn try_done(&mut self, i: usize) -> bool {
        self.inner.try_done(i)
    }

    fn abandon(&mut self) {}
}

impl PageStore for WatchedStore {
    fn page_size(&self) -> usize {
        self.store.page_size()
    }

    fn pages(&self) -> u64 {
        self.store.pages()
    }

    fn grow(&self, pages: u64) -> Result<(), VolumeError> {
        self.store.grow(pages)
    }

    fn shrink(&self, pages: u64) -> Result<(), VolumeError> {
        self.store.shrink(pages)
    }

    fn usable_bytes(&self, keyspace: KeyspaceId) -> usize {
        self.store.usable_bytes(keyspace)
    }

    fn zones(&self) -> Vec<Zone> {
        self.store.zones()
    }

    fn worn_zones(&self) -> Option<Arc<AtomicU64>> {
        self.store.worn_zones()
    }

    fn noted_changes(&self) -> usize {
        self.store.noted_changes()
    }

    fn submit(&self, batch: Vec<PageIo>) -> PageTicket {
        let seen: Vec<Seen> = batch
            .iter()
            .map(|io| match io {
                PageIo::Read(read) => Seen { page: read.page, address: read.buf() as usize, is_write: false },
                PageIo::Write(write) => Seen { page: write.page, address: write.buf() as usize, is_write: true },
            })
            .collect();
        let inner = self.store.submit(batch);
        assert_eq!(inner.len(), seen.len(), "a store answers every request");
        PageTicket::pending(seen.len(), Box::new(Flight { inner, seen, watch: self.watch.clone() }))
    }

    fn evict_clean(&self, page: PageId, bytes: &[u8], usage: PageUse) -> bool {
        self.store.evict_clean(page, bytes, usage)
    }

    fn evicted(&self, page: PageId, keyspace: KeyspaceId, usage: PageUse) {
        self.store.evicted(page, keyspace, usage);
    }

    fn dirtied(&self, page: PageId, keyspace: KeyspaceId, usage: PageUse) {
        self.store.dirtied(page, keyspace, usage);
    }

    fn discard(&self, pages: &[PageId]) -> Result<(), VolumeError> {
        self.store.discard(pages)
    }

    fn class_of_new(&self) -> CostClass {
        self.store.class_of_new()
    }

    fn extent(&self) -> Option<u64> {
        self.store.extent()
    }

    fn has_two_places(&self) -> bool {
        self.store.has_two_places()
    }

    fn hint(&self, pages: (PageId, PageId), hint: Hint) {
        self.store.hint(pages, hint);
    }

    fn drain_class_changes(&self, into: &mut Vec<(PageId, CostClass)>) {
        self.store.drain_class_changes(into);
    }

    fn sync(&self) -> Result<(), VolumeError> {
        self.watch.sync()
    }

    fn stats(&self) -> VolumeStats {
        self.store.stats()
    }
}
