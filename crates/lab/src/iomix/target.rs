//! What a load is put on: the blocks of a device, or the pages of a volume.

use crate::error::{Error, Result};
use std::sync::Arc;
use varve_device::{Device, Io};
use varve_rt::{Condvar, HashSet, Mutex};
use varve_volume::{KeyspaceId, PageId, PageStore, PageUse, ReadWhy, WriteWhy, page};

/// Bytes at offsets, read and written by callers that wait.
pub trait Target: Send + Sync {
    /// Requests are multiples of so many bytes, and lie at multiples of their size.
    fn unit(&self) -> u64;

    /// Bytes there are.
    fn capacity(&self) -> u64;

    /// Fills `into` from `offset` on.
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<()>;

    /// Writes `from`, which may be changed to make it fit to be stored.
    fn write(&self, offset: u64, from: &mut [u8]) -> Result<()>;

    /// What was written survives a power cut when it returns.
    fn flush(&self) -> Result<()>;
}

impl Target for dyn Device {
    fn unit(&self) -> u64 {
        self.info().block.into()
    }

    fn capacity(&self) -> u64 {
        self.len()
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        varve_device::read_at(self, offset, into).map_err(Error::store)
    }

    fn write(&self, offset: u64, from: &mut [u8]) -> Result<()> {
        varve_device::write_at(self, offset, from, false).map_err(Error::store)
    }

    fn flush(&self) -> Result<()> {
        self.run(Io::flush()).map_err(Error::store)
    }
}

/// The keyspace of the pages: costs and groups of a tier are kept by keyspace.
const KEYSPACE: KeyspaceId = KeyspaceId(1);

/// The pages of a volume, sealed when they are written and verified when they are read. There is no pool between: a
/// page that was read leaves memory at once, as one that was written does, and a tier is offered both.
pub struct Pages {
    store: Arc<dyn PageStore>,
    /// Pages that a request under way reads or writes: a store takes one request for a page at a time.
    busy: Mutex<HashSet<u64>>,
    free: Condvar,
}

/// The pages of one request, nobody else's until it is dropped.
struct Held<'p> {
    pages: &'p Pages,
    first: u64,
    count: u64,
}

impl Pages {
    /// The pages of `store`, grown to `bytes` bytes.
    pub fn new(store: Arc<dyn PageStore>, bytes: u64) -> Result<Arc<Pages>> {
        store.grow(bytes / store.page_size() as u64).map_err(Error::store)?;
        Ok(Arc::new(Pages { store, busy: Mutex::new(HashSet::default()), free: Condvar::new() }))
    }

    fn hold(&self, offset: u64, bytes: usize) -> Held<'_> {
        let size = self.store.page_size() as u64;
        let (first, count) = (offset / size, bytes as u64 / size);
        let mut busy = self.busy.lock();
        while (first..first + count).any(|page| busy.contains(&page)) {
            self.free.wait(&mut busy);
        }
        busy.extend(first..first + count);
        Held { pages: self, first, count }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut busy = self.pages.busy.lock();
        (self.first..self.first + self.count).for_each(|page| _ = busy.remove(&page));
        drop(busy);
        self.pages.free.notify_all();
    }
}

impl Target for Pages {
    fn unit(&self) -> u64 {
        self.store.page_size() as u64
    }

    fn capacity(&self) -> u64 {
        self.store.pages() * self.unit()
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let held = self.hold(offset, into.len());
        let done = varve_volume::read_pages(&*self.store, PageId(held.first), ReadWhy::Demand, into);
        done.into_iter().collect::<std::result::Result<Vec<_>, _>>().map_err(Error::store)?;
        let usage = PageUse { logical_reads: 1, demand_reads: 1, writes: 0 };
        for (bytes, id) in into.chunks_exact(self.store.page_size()).zip(held.first..) {
            self.store.evict_clean(PageId(id), bytes, usage);
        }
        Ok(())
    }

    fn write(&self, offset: u64, from: &mut [u8]) -> Result<()> {
        let held = self.hold(offset, from.len());
        let size = self.store.page_size();
        for (bytes, id) in from.chunks_exact_mut(size).zip(held.first..) {
            page::set_kind(bytes, 1);
            page::set_keyspace(bytes, KEYSPACE);
            page::seal(bytes, PageId(id));
            self.store.dirtied(PageId(id), KEYSPACE, PageUse::default());
        }
        let usage = PageUse { logical_reads: 1, demand_reads: 0, writes: 1 };
        let sealed: Vec<_> = from.chunks_exact(size).zip(held.first..).map(|(bytes, id)| (PageId(id), bytes)).collect();
        varve_volume::write_pages(&*self.store, &sealed, (KEYSPACE, WriteWhy::Replacement, usage))
            .map_err(Error::store)?;
        for (id, _) in sealed {
            self.store.evicted(id, KEYSPACE, PageUse::default());
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.store.sync().map_err(Error::store)
    }
}
