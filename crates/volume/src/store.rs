//! The seam under the buffer pool: pages by id, in batches.
//!
//! Contract (asserted by `TestStore`): at most one write of a page is in flight; a page is not read while its write is
//! in flight; buffers are aligned to 4096 bytes and stay valid, unaliased (reads) or unchanged (writes), until the
//! request was waited for; written bytes are sealed for their page; a discarded page is written before it is read.

use crate::VolumeError;
use crate::ids::{KeyspaceId, PageId};
use std::sync::Arc;
use varve_device::{Hint, Stream, Words};
use varve_rt::atomic::AtomicU64;

/// Why a page is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReadWhy {
    /// A transaction waits for it.
    Demand,
    /// Read-ahead expects it to be asked for.
    Prefetch,
}

/// Why a page is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WriteWhy {
    /// Its frame is wanted for another page.
    Replacement,
    /// To bound the log that recovery must redo.
    Recoverability,
    /// A checkpoint asked for it.
    Checkpoint,
    /// It is new and whole, and the log does not hold it: of a bulk load or a long value.
    Load,
}

// Counters are kept by a reason's number.
const _: () = {
    let mut i = 0;
    while i < WriteWhy::ALL.len() {
        assert!(WriteWhy::ALL[i] as usize == i, "reasons are listed in the order of their numbers");
        i += 1;
    }
};

impl WriteWhy {
    /// All of them, in the order of their numbers.
    pub const ALL: [WriteWhy; 4] =
        [WriteWhy::Replacement, WriteWhy::Recoverability, WriteWhy::Checkpoint, WriteWhy::Load];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            WriteWhy::Replacement => "replacement",
            WriteWhy::Recoverability => "recoverability",
            WriteWhy::Checkpoint => "checkpoint",
            WriteWhy::Load => "load",
        }
    }
}

/// How a page was used since the last report; the frame holds the numbers, the store owns their meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageUse {
    /// References by the layers above.
    pub logical_reads: u32,
    /// Reads from the store that somebody waited for.
    pub demand_reads: u32,
    /// Writes to the store.
    pub writes: u32,
}

/// What a page costs to read again: 0 = from the only or the slow device, 1 = from a fast one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CostClass(pub u8);

/// A read of one page into `page_size` bytes of memory.
#[derive(Debug)]
pub struct PageRead {
    /// The page.
    pub page: PageId,
    /// Why it is read.
    pub why: ReadWhy,
    buf: *mut u8,
}

/// A write of one page, whole and sealed.
#[derive(Debug)]
pub struct PageWrite {
    /// The page.
    pub page: PageId,
    /// The keyspace that it belongs to.
    pub keyspace: KeyspaceId,
    /// Why it is written.
    pub why: WriteWhy,
    /// How it was used since the last report.
    pub usage: PageUse,
    /// Offsets of the bytes that changed since the page was last stored, in any order, if they are known and not more
    /// than [`PageStore::noted_changes`]. The page's checksum is not among them.
    pub changed: Option<Vec<u16>>,
    buf: *const u8,
}

// SAFETY: the buffer is the request's alone until it was waited for, from whichever thread (promised to
// `PageIo::read`).
unsafe impl Send for PageRead {}
// SAFETY: the buffer does not change until the request was waited for (promised to `PageIo::write`).
unsafe impl Send for PageWrite {}

impl PageWrite {
    /// What it belongs to, for the device: pages of a load by themselves, those of each keyspace that has a number, and
    /// the engine's own.
    pub fn stream(&self) -> Stream {
        match (self.why, self.keyspace) {
            (WriteWhy::Load, _) => Stream::BULK,
            (_, KeyspaceId(0 | u32::MAX)) => Stream::TREE,
            (_, KeyspaceId(number)) => Stream::of_keyspace(number - 1),
        }
    }
}

impl PageRead {
    /// Where the page goes: `page_size` bytes.
    pub fn buf(&self) -> *mut u8 {
        self.buf
    }

    /// The bytes that the page has: of use when a store is done with the request.
    ///
    /// # Safety
    /// The request was not waited for yet, but whoever fills its memory is done; a page of the store has `page_size`
    /// bytes.
    pub unsafe fn bytes(&self, page_size: usize) -> &[u8] {
        // SAFETY: promised to `PageIo::read`, and that nobody writes to them, by the caller.
        unsafe { std::slice::from_raw_parts(self.buf, page_size) }
    }

    /// The same request once more, for another store.
    ///
    /// # Safety
    /// As of [`PageIo::read`]: whoever had this request is done with its memory, or never gets it, and it is not waited
    /// for before the other one was.
    pub unsafe fn again(&self) -> PageIo {
        // SAFETY: promised by the caller.
        unsafe { PageIo::read(self.page, self.why, self.buf) }
    }

    /// Fills it with the page.
    ///
    /// # Safety
    /// The request was not waited for yet, and these are `page_size` bytes.
    pub unsafe fn fill(&self, page: &[u8]) {
        // SAFETY: promised to `PageIo::read`.
        unsafe { Words::new(self.buf, page.len()) }.store(0, page);
    }
}

impl PageWrite {
    /// The sealed bytes: `page_size` of them.
    pub fn buf(&self) -> *const u8 {
        self.buf
    }

    /// The sealed bytes.
    ///
    /// # Safety
    /// The request was not waited for yet; a page of the store has `page_size` bytes.
    pub unsafe fn bytes(&self, page_size: usize) -> &[u8] {
        // SAFETY: promised to `PageIo::write`: valid and unchanging until then.
        unsafe { std::slice::from_raw_parts(self.buf, page_size) }
    }

    /// The same request once more, for another store.
    ///
    /// # Safety
    /// This one is not waited for before the other one was.
    pub unsafe fn again(&self) -> PageIo {
        let PageWrite { page, keyspace, why, usage, buf, .. } = *self;
        // SAFETY: promised to `PageIo::write`; the bytes are only read, by either request.
        unsafe { PageIo::write(page, keyspace, why, usage, buf, self.changed.clone()) }
    }
}

/// One request to a page store.
#[derive(Debug)]
pub enum PageIo {
    /// Read a page; verified before the request completes.
    Read(PageRead),
    /// Write a page.
    Write(PageWrite),
}

impl PageIo {
    /// A read of `page` into `buf`.
    ///
    /// # Safety
    /// `buf` is initialised and valid for writes of the store's page size, aligned to 4096 bytes, and used by nobody
    /// else until the request was waited for, unless through [`Words`] and to read it.
    pub unsafe fn read(page: PageId, why: ReadWhy, buf: *mut u8) -> PageIo {
        PageIo::Read(PageRead { page, why, buf })
    }

    /// A write of `page` from `buf`, a staging copy sealed by [`crate::page::seal`].
    ///
    /// # Safety
    /// `buf` is valid for reads of the store's page size, aligned to 4096 bytes, and does not change until the request
    /// was waited for.
    pub unsafe fn write(
        page: PageId,
        keyspace: KeyspaceId,
        why: WriteWhy,
        usage: PageUse,
        buf: *const u8,
        changed: Option<Vec<u16>>,
    ) -> PageIo {
        PageIo::Write(PageWrite { page, keyspace, why, usage, changed, buf })
    }

    /// The page asked for.
    pub fn page(&self) -> PageId {
        match self {
            PageIo::Read(read) => read.page,
            PageIo::Write(write) => write.page,
        }
    }
}

/// How one batch of page requests completes; written by each store, called by [`PageTicket`] only.
pub trait PageCompletion: Send {
    /// Waits for request `i`. Called at most once for each `i`.
    fn wait(&mut self, i: usize) -> Result<CostClass, VolumeError>;
    /// Whether `wait(i)` would return at once (but for verifying). Never blocks.
    fn try_done(&mut self, i: usize) -> bool;
    /// The ticket is dropped with requests pending: no buffer is touched from now on.
    fn abandon(&mut self);
}

/// A submitted batch of page requests. Wait for each (or all) before dropping it and before touching the buffers; the
/// rules of [`varve_device::Ticket`] hold.
#[must_use = "requests must be waited for"]
pub struct PageTicket {
    results: Vec<Option<Result<CostClass, VolumeError>>>,
    source: Option<Box<dyn PageCompletion>>,
}

impl PageTicket {
    /// A ticket whose requests all completed at submission.
    pub fn ready(results: Vec<Result<CostClass, VolumeError>>) -> PageTicket {
        PageTicket { results: results.into_iter().map(Some).collect(), source: None }
    }

    /// A ticket of `len` requests that `source` completes.
    pub fn pending(len: usize, source: Box<dyn PageCompletion>) -> PageTicket {
        PageTicket { results: vec![None; len], source: Some(source) }
    }

    /// Number of requests.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.results.len()
    }

    /// Waits for request `i`: the cost class of the page from now on, or why it failed. Again the same when called
    /// again.
    pub fn wait(&mut self, i: usize) -> Result<CostClass, VolumeError> {
        if self.results[i].is_none() {
            let source = self.source.as_mut().expect("a pending request has a source");
            self.results[i] = Some(source.wait(i));
        }
        self.results[i].clone().expect("set above")
    }

    /// Whether `wait(i)` would return at once. The buffer may be touched after that `wait` only.
    pub fn try_done(&mut self, i: usize) -> bool {
        self.results[i].is_some() || self.source.as_mut().expect("a pending request has a source").try_done(i)
    }

    /// Waits for every request; returns the first error in batch order.
    pub fn wait_all(mut self) -> Result<(), VolumeError> {
        let mut first = Ok(());
        for i in 0..self.len() {
            let result = self.wait(i).map(|_| ());
            if first.is_ok() {
                first = result;
            }
        }
        debug_assert!(self.results.iter().all(Option::is_some), "nothing is pending any more");
        first
    }
}

impl Drop for PageTicket {
    fn drop(&mut self) {
        let pending = self.results.iter().filter(|r| r.is_none()).count();
        if pending == 0 {
            return;
        }
        if let Some(source) = self.source.as_mut() {
            source.abandon();
        }
        if !varve_rt::dying() && !std::thread::panicking() {
            panic!("a page ticket was dropped with {pending} pending requests: wait for each of them first");
        }
    }
}

/// Pages that are for some keyspaces alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Zone {
    /// Its name, for messages.
    pub name: String,
    /// The names of its keyspaces.
    pub keyspaces: Vec<String>,
    /// Its pages.
    pub pages: Vec<std::ops::Range<u64>>,
}

/// Totals of a store since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeStats {
    /// Pages read because somebody waited for them.
    pub demand_reads: u64,
    /// Pages read ahead.
    pub prefetch_reads: u64,
    /// Pages written for their frames.
    pub replacement_writes: u64,
    /// Pages written to bound the log.
    pub recoverability_writes: u64,
    /// Pages written for a checkpoint.
    pub checkpoint_writes: u64,
    /// New pages written without the log.
    pub load_writes: u64,
    /// Clean pages taken by `evict_clean`.
    pub clean_accepted: u64,
    /// Clean pages declined by `evict_clean`.
    pub clean_declined: u64,
    /// Pages discarded.
    pub discarded: u64,
    /// Calls of `sync`.
    pub syncs: u64,
    /// Reads that found a damaged page.
    pub damaged: u64,
    /// Requests that failed on the device.
    pub errors: u64,
}

/// Fixed-size pages by id.
pub trait PageStore: Send + Sync {
    /// Bytes of a page, header included; fixed at creation.
    fn page_size(&self) -> usize;

    /// Pages that the store has room for: ids 0 to `pages() - 1`.
    fn pages(&self) -> u64;

    /// Makes room for at least `pages` pages; new ones are unwritten. Durable when it returns. Never makes it shorter.
    fn grow(&self, pages: u64) -> Result<(), VolumeError>;

    /// Gives the pages from `pages` on back; nothing may be under way there. Not durable: after a power cut they may be
    /// there again, with what they held. What cannot be cut refuses.
    fn shrink(&self, pages: u64) -> Result<(), VolumeError> {
        let _ = pages;
        Err(VolumeError::Options("this kind of volume cannot be cut".into()))
    }

    /// Bytes after the header that the engine may use in a page of `keyspace`; fixed at creation.
    fn usable_bytes(&self, keyspace: KeyspaceId) -> usize;

    /// Which pages are for which keyspaces. The first zone is for those that none names; the zones follow each other
    /// from page 0 on, and have all pages that the store can hold. None: all pages are for everything.
    fn zones(&self) -> Vec<Zone> {
        Vec::new()
    }

    /// Which zones are so worn that nothing new should be written there, while what was accepted still can be: a bit
    /// for each of [`PageStore::zones`], which stays once it is set; the first if there are none. None: nothing wears.
    fn worn_zones(&self) -> Option<Arc<AtomicU64>> {
        None
    }

    /// How many changed bytes of a page the store wants to know of when it is written ([`PageWrite::changed`]); 0: it
    /// writes pages whole.
    fn noted_changes(&self) -> usize {
        0
    }

    /// Begins every request; they complete in any order. See the contract at the top of this file. A batch of one
    /// demand read may be executed before this returns.
    fn submit(&self, batch: Vec<PageIo>) -> PageTicket;

    /// A clean page leaves the pool: the store may copy `bytes` into its staging (true) or declines (false, counted).
    /// Never blocks.
    fn evict_clean(&self, page: PageId, bytes: &[u8], usage: PageUse) -> bool;

    /// A page leaves the pool right after it was written; nothing is offered. Never blocks.
    fn evicted(&self, _page: PageId, _keyspace: KeyspaceId, _usage: PageUse) {}

    /// A clean page in the pool is being changed: copies of it in the store are out of date. `usage` is what came
    /// before.
    fn dirtied(&self, page: PageId, keyspace: KeyspaceId, usage: PageUse);

    /// The pages were freed: their bytes need not be kept, and reading them before writing is an error of the caller.
    fn discard(&self, pages: &[PageId]) -> Result<(), VolumeError>;

    /// What a page that was never written will cost to read once it was: a guess, which costs speed only.
    fn class_of_new(&self) -> CostClass {
        CostClass::default()
    }

    /// Pages of the stretches, from page 0 on, that lie on one drive each and that hints are about; none if there are
    /// no such stretches.
    fn extent(&self) -> Option<u64> {
        None
    }

    /// Whether a page may lie at two places, as over a tier: what was freed is forgotten at one of them only when the
    /// store is told of it ([`PageStore::discard`]).
    fn has_two_places(&self) -> bool {
        false
    }

    /// What is known of the pages from the first up to the second. See [`Device::hint`](varve_device::Device::hint).
    fn hint(&self, _pages: (PageId, PageId), _hint: Hint) {}

    /// Adds the pages whose cost class changed since the last call; may be stale, which costs speed only.
    fn drain_class_changes(&self, into: &mut Vec<(PageId, CostClass)>);

    /// Every write that completed before this call, maps included, survives a power cut when it returns.
    fn sync(&self) -> Result<(), VolumeError>;

    /// Totals since the store was opened.
    fn stats(&self) -> VolumeStats;
}
