//! A page store for tests that asserts every call of the contract, over any other store.
//!
//! It keeps its own copy of what was written to, or read from, each page, and panics with a reason when its user or the
//! store below breaks the contract. Make a new one after a (simulated) crash: what survived is not what was written.
//!
//! Invariant: the copy of a page is what a read of it must return, once no write of it is under way.
//!
//! Lock order: `state` only, never held while the store below, or the log rule, is called.

use crate::{
    CostClass, KeyspaceId, Lsn, PageCompletion, PageId, PageIo, PageStore, PageTicket, PageUse, Single, VolumeError,
    VolumeStats, page,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use varve_models::MemDevice;
use varve_rt::Mutex;

/// Asked at each write: whether the log is durable to the page's LSN.
type LogRule = Arc<dyn Fn(PageId, Lsn) -> bool + Send + Sync>;

/// A page store that asserts that it is used as the contract says (see `docs/volume.md`).
pub struct TestStore {
    inner: Arc<dyn PageStore>,
    state: Arc<Mutex<State>>,
    log_rule: Mutex<Option<LogRule>>,
}

#[derive(Default)]
struct State {
    pages: BTreeMap<PageId, Known>,
    /// Memory in flight: address to (end, page).
    memory: BTreeMap<usize, (usize, PageId)>,
}

/// What is known of a page.
#[derive(Default)]
struct Known {
    /// As last written or read, whole; unknown after a failed write.
    bytes: Option<Box<[u8]>>,
    /// LSN of the last write.
    lsn: Lsn,
    discarded: bool,
    writing: bool,
    reading: u32,
}

/// One request in flight.
struct Seen {
    page: PageId,
    address: usize,
    /// A write's bytes at submission.
    write: Option<Box<[u8]>>,
    done: bool,
}

impl TestStore {
    /// `pages` unwritten pages of `page_size` bytes in memory.
    pub fn new(page_size: usize, pages: u64) -> Arc<TestStore> {
        let device = MemDevice::new(pages * page_size as u64);
        TestStore::over(Single::new(device, page_size).expect("a supported page size"))
    }

    /// Asserts the contract between a user and `inner`.
    pub fn over(inner: Arc<dyn PageStore>) -> Arc<TestStore> {
        Arc::new(TestStore { inner, state: Arc::default(), log_rule: Mutex::new(None) })
    }

    /// Asks `durable(page, lsn)` at each write and asserts that it says yes: no page is written before its log.
    pub fn set_log_rule(&self, durable: impl Fn(PageId, Lsn) -> bool + Send + Sync + 'static) {
        *self.log_rule.lock() = Some(Arc::new(durable));
    }

    /// Asserts that nothing is in flight: at the end of a test.
    pub fn assert_idle(&self) {
        let state = self.state.lock();
        let busy: Vec<_> = state.memory.values().map(|(_, page)| page.0).collect();
        assert!(busy.is_empty(), "pages {busy:?} are still in flight");
    }

    /// Checks one request and notes it as in flight.
    fn admit(&self, io: &PageIo) -> Seen {
        let size = self.page_size();
        let page = io.page();
        let (address, write) = match io {
            PageIo::Read(read) => (read.buf() as usize, None),
            PageIo::Write(write) => {
                // SAFETY: the caller of `PageIo::write` promised `page_size` valid, unchanging bytes.
                let bytes = unsafe { std::slice::from_raw_parts(write.buf(), size) };
                self.check_sealed(page, bytes);
                let changed = write.changed.as_deref();
                changed.iter().for_each(|changed| check_offsets(page, changed, size));
                (write.buf() as usize, Some((bytes, changed)))
            }
        };
        assert!(address.is_multiple_of(4096), "page {page}: the buffer at {address:#x} is not aligned to 4096 bytes");
        let mut state = self.state.lock();
        state.take_memory(address, size, page);
        let known = state.pages.entry(page).or_default();
        assert!(!known.writing, "page {page} is used while a write of it is in flight: wait for that first");
        match write {
            None => {
                assert!(!known.discarded, "page {page} is read after it was discarded and before it was written");
                known.reading += 1;
            }
            Some((bytes, changed)) => {
                assert_eq!(known.reading, 0, "page {page} is written while a read of it is in flight");
                known.check_write(page, bytes, changed);
                known.writing = true;
            }
        }
        Seen { page, address, write: write.map(|(bytes, _)| bytes.into()), done: false }
    }

    fn check_sealed(&self, id: PageId, bytes: &[u8]) {
        if let Err(damage) = page::verify(bytes, id) {
            panic!("page {id} is written without being sealed: {damage}");
        }
        let rule = self.log_rule.lock().clone();
        let lsn = page::lsn(bytes);
        assert!(rule.is_none_or(|durable| durable(id, lsn)), "page {id} is written before its log, LSN {lsn}");
    }
}

fn check_offsets(page: PageId, changed: &[u16], size: usize) {
    for at in changed {
        assert!((4..size).contains(&usize::from(*at)), "page {page}: changed byte {at} is the checksum's, or outside");
    }
    let mut sorted = changed.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(sorted.len(), changed.len(), "page {page}: a changed byte is told of twice, in {changed:?}");
}

impl Known {
    fn check_write(&self, page: PageId, bytes: &[u8], changed: Option<&[u16]>) {
        let lsn = page::lsn(bytes);
        assert!(lsn >= self.lsn, "page {page} goes back from LSN {} to {lsn}", self.lsn);
        let Some(changed) = changed else { return };
        let old = self.bytes.as_ref().unwrap_or_else(|| panic!("page {page} was never stored, so all of it changed"));
        for (i, (a, b)) in old.iter().zip(bytes).enumerate().skip(4) {
            let told = a == b || changed.contains(&(i as u16));
            assert!(told, "page {page}: byte {i} changed but is not among {changed:?}");
        }
    }
}

impl State {
    fn take_memory(&mut self, address: usize, size: usize, page: PageId) {
        let before = self.memory.range(..address + size).next_back();
        if let Some((_, (end, other))) = before {
            assert!(*end <= address, "pages {page} and {other} use the same memory while in flight");
        }
        self.memory.insert(address, (address + size, page));
    }

    /// A request is no longer in flight.
    fn release(&mut self, seen: &mut Seen) -> &mut Known {
        assert!(!seen.done, "a request ends once");
        seen.done = true;
        self.memory.remove(&seen.address);
        let known = self.pages.entry(seen.page).or_default();
        if seen.write.is_some() {
            known.writing = false;
        } else {
            known.reading -= 1;
        }
        known
    }
}

struct Flight {
    inner: PageTicket,
    seen: Vec<Seen>,
    page_size: usize,
    state: Arc<Mutex<State>>,
}

impl PageCompletion for Flight {
    fn wait(&mut self, i: usize) -> Result<CostClass, VolumeError> {
        let result = self.inner.wait(i);
        let seen = &mut self.seen[i];
        // SAFETY: the buffer is valid until this wait returns, and the store below is done with it.
        let now = unsafe { std::slice::from_raw_parts(seen.address as *const u8, self.page_size) };
        let mut state = self.state.lock();
        let page = seen.page;
        let known = state.release(seen);
        if let Some(written) = seen.write.take() {
            assert!(*now == *written, "page {page}: its staging copy changed while the write was in flight");
            known.lsn = page::lsn(&written);
            known.discarded = false;
            known.bytes = result.is_ok().then_some(written);
        } else if result.is_ok() {
            let same = known.bytes.as_deref().is_none_or(|bytes| bytes == now);
            assert!(same, "page {page}: the store returned other bytes than were written");
            known.bytes = Some(now.into());
            known.lsn = page::lsn(now);
        }
        result
    }

    fn try_done(&mut self, i: usize) -> bool {
        self.inner.try_done(i)
    }

    fn abandon(&mut self) {
        let mut state = self.state.lock();
        for seen in self.seen.iter_mut().filter(|s| !s.done) {
            state.release(seen).bytes = None;
        }
    }
}

impl PageStore for TestStore {
    fn page_size(&self) -> usize {
        self.inner.page_size()
    }

    fn pages(&self) -> u64 {
        self.inner.pages()
    }

    fn grow(&self, pages: u64) -> Result<(), VolumeError> {
        let before = self.pages();
        self.inner.grow(pages)?;
        assert!(self.pages() >= pages.max(before), "a store that grew has room for what was asked, and never shrinks");
        Ok(())
    }

    fn usable_bytes(&self, keyspace: KeyspaceId) -> usize {
        let usable = self.inner.usable_bytes(keyspace);
        assert!(usable <= self.page_size() - page::HEADER, "{usable} bytes do not fit a page");
        usable
    }

    fn zones(&self) -> Vec<crate::Zone> {
        self.inner.zones()
    }

    fn worn_zones(&self) -> Option<Arc<varve_rt::atomic::AtomicU64>> {
        self.inner.worn_zones()
    }

    fn submit(&self, batch: Vec<PageIo>) -> PageTicket {
        let seen = batch.iter().map(|io| self.admit(io)).collect();
        let inner = self.inner.submit(batch);
        let (page_size, state) = (self.page_size(), self.state.clone());
        PageTicket::pending(inner.len(), Box::new(Flight { inner, seen, page_size, state }))
    }

    fn evict_clean(&self, page: PageId, bytes: &[u8], usage: PageUse) -> bool {
        assert_eq!(bytes.len(), self.page_size(), "page {page} is whole");
        {
            let state = self.state.lock();
            let known = state.pages.get(&page).filter(|k| !k.discarded);
            let known = known.unwrap_or_else(|| panic!("page {page} leaves the pool clean but was never stored"));
            assert!(!known.writing, "page {page} leaves the pool while a write of it is in flight");
            // Checksum, magic, version and id are in the stored copy only.
            const OWN: usize = 16;
            let same = known.bytes.as_ref().is_none_or(|stored| stored[OWN..] == bytes[OWN..]);
            assert!(same, "page {page} leaves the pool as clean but differs from what was stored");
        }
        self.inner.evict_clean(page, bytes, usage)
    }

    fn evicted(&self, page: PageId, keyspace: KeyspaceId, usage: PageUse) {
        {
            let state = self.state.lock();
            let known = state.pages.get(&page).filter(|k| !k.discarded);
            let known = known.unwrap_or_else(|| panic!("page {page} leaves the pool but was never stored"));
            assert!(!known.writing, "page {page} leaves the pool while a write of it is in flight");
        }
        self.inner.evicted(page, keyspace, usage);
    }

    fn dirtied(&self, page: PageId, keyspace: KeyspaceId, usage: PageUse) {
        assert!(page.0 < self.pages(), "page {page} is changed but the store has {} pages", self.pages());
        self.inner.dirtied(page, keyspace, usage);
    }

    fn discard(&self, pages: &[PageId]) -> Result<(), VolumeError> {
        {
            let mut state = self.state.lock();
            for &page in pages {
                let known = state.pages.entry(page).or_default();
                assert!(!known.writing && known.reading == 0, "page {page} is discarded while in flight");
                *known = Known { lsn: known.lsn, discarded: true, ..Known::default() };
            }
        }
        self.inner.discard(pages)
    }

    fn drain_class_changes(&self, into: &mut Vec<(PageId, CostClass)>) {
        let before = into.len();
        self.inner.drain_class_changes(into);
        let pages = self.pages();
        assert!(into[before..].iter().all(|(page, _)| page.0 < pages), "class changes name pages of the store");
    }

    fn sync(&self) -> Result<(), VolumeError> {
        self.inner.sync()
    }

    fn stats(&self) -> VolumeStats {
        self.inner.stats()
    }
}
