//! A page store in memory that asserts the whole contract, takes its time, and fails on demand.
//!
//! Data moves when a request completes, not when it is submitted, so that a buffer reused too early shows.

use super::Gate;
use std::sync::Arc;
use std::time::Duration;
use varve_device::{DeviceError, OpKind};
use varve_rt::atomic::{AtomicU64, Ordering::*};
use varve_rt::{HashMap, Instant, Mutex, Rng, in_simulation, now, sleep};
use varve_volume::{
    CostClass, KeyspaceId, PageCompletion, PageDamage, PageId, PageIo, PageStore, PageTicket, PageUse, VolumeError,
    VolumeStats, WriteWhy, page,
};

#[derive(Default)]
struct Page {
    bytes: Option<Vec<u8>>,
    reading: u32,
    writing: bool,
    /// Told by `dirtied` since the last write was submitted.
    dirtied: bool,
}

/// Requests in 1000 that fail; errors that may pass, and errors that stay.
#[derive(Default)]
pub struct Faults {
    pub read_eio: AtomicU64,
    pub write_retryable: AtomicU64,
    pub write_eio: AtomicU64,
}

pub struct CheckedStore {
    pages: Mutex<HashMap<u64, Page>>,
    count: u64,
    gate: Arc<Gate>,
    rng: Mutex<Rng>,
    pub faults: Faults,
    /// Longest time a request takes, in a simulation.
    pub latency: Duration,
    pub writes: AtomicU64,
}

pub const PAGE: usize = 4096;

impl CheckedStore {
    pub fn new(count: u64, gate: &Arc<Gate>, seed: u64) -> Arc<CheckedStore> {
        Arc::new(CheckedStore {
            pages: Mutex::new(HashMap::default()),
            count,
            gate: gate.clone(),
            rng: Mutex::new(Rng::from_seed(seed)),
            faults: Faults::default(),
            latency: Duration::from_micros(400),
            writes: AtomicU64::new(0),
        })
    }

    /// What is stored of a page.
    pub fn stored(&self, id: PageId) -> Option<Vec<u8>> {
        self.pages.lock().get(&id.0).and_then(|p| p.bytes.clone())
    }

    /// Flips a bit of a stored page.
    pub fn damage(&self, id: PageId, at: usize) {
        self.pages.lock().get_mut(&id.0).unwrap().bytes.as_mut().unwrap()[at] ^= 4;
    }

    fn begin(&self, io: &PageIo) {
        let mut pages = self.pages.lock();
        assert!(io.page().0 < self.count, "page {} is past the end", io.page());
        let page = pages.entry(io.page().0).or_default();
        match io {
            PageIo::Read(read) => {
                assert_eq!(read.buf() as usize % 4096, 0, "alignment");
                assert!(!page.writing, "page {} is read while its write is in flight", read.page);
                assert_eq!(page.reading, 0, "page {} is read twice at once", read.page);
                page.reading += 1;
            }
            PageIo::Write(write) => {
                assert_eq!(write.buf() as usize % 4096, 0, "alignment");
                assert!(!page.writing, "two writes of page {} in flight", write.page);
                assert_eq!(page.reading, 0, "page {} is written while it is read", write.page);
                assert!(page.dirtied, "page {} is written though nobody changed it", write.page);
                page.writing = true;
                // SAFETY: the buffer is valid until the request was waited for.
                let bytes = unsafe { std::slice::from_raw_parts(write.buf(), PAGE) };
                page::verify(bytes, write.page).expect("sealed");
                assert_eq!(page::keyspace(bytes), write.keyspace);
                let durable = varve::buffer::LogGate::durable_lsn(&*self.gate);
                let lsn = page::lsn(bytes);
                assert!(lsn <= durable, "page {} at LSN {lsn} is written, the log is durable to {durable}", write.page);
            }
        }
    }

    fn end(&self, io: &PageIo) -> Result<CostClass, VolumeError> {
        let fail = |per_mille: &AtomicU64| self.rng.lock().below(1000) < per_mille.load(Relaxed);
        let error = |op, errno, retryable| VolumeError::Page {
            page: io.page(),
            source: DeviceError::Io { op, device: "checked".into(), offset: 0, len: 0, errno, retryable },
        };
        let mut pages = self.pages.lock();
        let page = pages.get_mut(&io.page().0).expect("begun");
        match io {
            PageIo::Read(read) => {
                page.reading -= 1;
                if fail(&self.faults.read_eio) {
                    return Err(error(OpKind::Read, 5, false));
                }
                let damaged = |damage| VolumeError::Damaged { page: read.page, damage };
                let bytes = page.bytes.as_ref().ok_or(damaged(PageDamage::Unwritten))?;
                // SAFETY: the request is waited for just now.
                unsafe { read.fill(bytes) };
                page::verify(bytes, read.page).map_err(damaged)?;
                Ok(CostClass(0))
            }
            PageIo::Write(write) => {
                page.writing = false;
                if fail(&self.faults.write_retryable) {
                    return Err(error(OpKind::Write, 11, true));
                }
                if fail(&self.faults.write_eio) {
                    return Err(error(OpKind::Write, 5, false));
                }
                // SAFETY: as in `begin`.
                page.bytes = Some(unsafe { std::slice::from_raw_parts(write.buf(), PAGE) }.to_vec());
                self.writes.fetch_add(1, Relaxed);
                Ok(CostClass(if write.why == WriteWhy::Replacement { 1 } else { 0 }))
            }
        }
    }
}

struct Completion {
    store: Arc<CheckedStore>,
    requests: Vec<(Instant, PageIo)>,
}

impl PageCompletion for Completion {
    fn wait(&mut self, i: usize) -> Result<CostClass, VolumeError> {
        let (ready, io) = &self.requests[i];
        if in_simulation() {
            sleep(*ready - now());
        }
        self.store.end(io)
    }

    fn try_done(&mut self, i: usize) -> bool {
        self.requests[i].0 <= now()
    }

    fn abandon(&mut self) {}
}

/// The store as the pool sees it (a completion needs the `Arc`).
pub struct Shared(pub Arc<CheckedStore>);

impl PageStore for Shared {
    fn page_size(&self) -> usize {
        PAGE
    }

    fn pages(&self) -> u64 {
        self.0.count
    }

    fn grow(&self, _pages: u64) -> Result<(), VolumeError> {
        Ok(())
    }

    fn usable_bytes(&self, _keyspace: KeyspaceId) -> usize {
        PAGE - page::HEADER
    }

    fn submit(&self, batch: Vec<PageIo>) -> PageTicket {
        batch.iter().for_each(|io| self.0.begin(io));
        let longest = self.0.latency.as_nanos() as u64;
        let ready = || now() + Duration::from_nanos(1 + self.0.rng.lock().below(longest));
        let requests: Vec<_> = batch.into_iter().map(|io| (ready(), io)).collect();
        PageTicket::pending(requests.len(), Box::new(Completion { store: self.0.clone(), requests }))
    }

    fn evict_clean(&self, id: PageId, bytes: &[u8], _usage: PageUse) -> bool {
        let pages = self.0.pages.lock();
        let stored = pages.get(&id.0).and_then(|p| p.bytes.as_ref());
        let stored = stored.unwrap_or_else(|| panic!("page {id} is evicted as clean but was never stored"));
        assert_eq!(
            page::lsn(stored),
            page::lsn(bytes),
            "page {id} is evicted as clean at another LSN than it is stored"
        );
        assert!(
            stored[page::HEADER..] == bytes[page::HEADER..],
            "page {id} is evicted as clean but differs from what is stored"
        );
        self.0.rng.lock().below(2) == 0
    }

    fn dirtied(&self, id: PageId, _keyspace: KeyspaceId, _usage: PageUse) {
        self.0.pages.lock().entry(id.0).or_default().dirtied = true;
    }

    fn discard(&self, pages: &[PageId]) -> Result<(), VolumeError> {
        for id in pages {
            self.0.pages.lock().remove(&id.0);
        }
        Ok(())
    }

    fn drain_class_changes(&self, into: &mut Vec<(PageId, CostClass)>) {
        let mut rng = self.0.rng.lock();
        into.extend((0..4).map(|_| (PageId(rng.below(self.0.count)), CostClass(rng.below(2) as u8))));
    }

    fn sync(&self) -> Result<(), VolumeError> {
        Ok(())
    }

    fn stats(&self) -> VolumeStats {
        VolumeStats::default()
    }
}
