//! Pages of segments: written as direct pages, read through the buffer pool or past it.
//!
//! Invariant: the `n`-th page that a sink took is the `n`-th of the segment's runs.

use super::{PageSink, PageSource};
use crate::error::{Error, Result};
use crate::space::Core;
use crate::space::direct::DirectPages;
use std::sync::Arc;
use varve_device::AlignedBuf;
use varve_rt::{Cost, Mutex, charge};
use varve_volume::page::{self, HEADER};
use varve_volume::{KeyspaceId, PageId, ReadWhy};

/// Page type of a page of a segment.
pub(crate) const KIND_SEGMENT: u8 = 9;

/// Bytes that are read at a time from one segment, where nobody says otherwise.
pub(super) const WINDOW: usize = 256 << 10;

/// Runs of pages: the first of each, and how many.
pub(super) type PageRuns = Vec<(PageId, u64)>;

/// The `n`-th page of some runs, and how many follow it in its run, itself included.
pub(super) fn page_of(runs: &[(PageId, u64)], n: u64) -> Option<(PageId, u64)> {
    let mut before = 0;
    for &(first, pages) in runs {
        if n < before + pages {
            return Some((PageId(first.0 + n - before), before + pages - n));
        }
        before += pages;
    }
    None
}

/// Takes pages of segments, one segment after the other.
pub(super) struct Sink {
    pages: DirectPages,
    usable: usize,
    page_size: usize,
    runs: PageRuns,
}

impl Sink {
    pub fn new(core: &Arc<Core>, keyspace: KeyspaceId) -> Sink {
        let pages = DirectPages::new(core, keyspace).in_extents();
        Sink { pages, usable: core.usable(keyspace), page_size: core.page_size(), runs: Vec::new() }
    }

    /// The same; pages are written by whoever hands them over, so many bytes at a time.
    pub fn inline(core: &Arc<Core>, keyspace: KeyspaceId, bytes: usize) -> Sink {
        let mut sink = Sink::new(core, keyspace);
        sink.pages = sink.pages.written_inline(bytes);
        sink
    }

    /// The pages taken since this was asked last: those of a segment that is complete.
    pub fn take_runs(&mut self) -> PageRuns {
        std::mem::take(&mut self.runs)
    }

    /// All pages taken, to be linked.
    pub fn into_pages(self) -> DirectPages {
        self.pages
    }
}

impl PageSink for Sink {
    fn usable(&self) -> usize {
        self.usable
    }

    fn page(&mut self, fill: &mut dyn FnMut(&mut [u8])) -> Result<()> {
        let end = HEADER + self.usable;
        assert!(end <= self.page_size, "what may be used lies in the page");
        let id = self.pages.fill(|bytes| {
            bytes[HEADER..].fill(0);
            page::set_kind(bytes, KIND_SEGMENT);
            fill(&mut bytes[HEADER..end]);
        })?;
        match self.runs.last_mut() {
            Some((first, pages)) if first.0 + *pages == id.0 => *pages += 1,
            _ => self.runs.push((id, 1)),
        }
        Ok(())
    }
}

/// Where the pages of a segment lie.
pub(super) struct Place {
    pub core: Arc<Core>,
    pub keyspace: KeyspaceId,
    pub segment: u64,
    pub runs: PageRuns,
}

impl Place {
    fn page(&self, n: u64) -> Result<(PageId, u64)> {
        page_of(&self.runs, n).ok_or_else(|| self.corrupt(n, "the segment does not have so many pages"))
    }

    fn corrupt(&self, n: u64, what: &str) -> Error {
        // Named by the first page if there is no such page.
        let id = page_of(&self.runs, n).or(page_of(&self.runs, 0)).map_or(PageId(0), |(id, _)| id);
        Error::corrupt_page(id, Some(self.keyspace), format!("segment {}, page {n} of it: {what}", self.segment))
    }

    /// What the engine above the store wrote into a page.
    fn body<'b>(&self, n: u64, bytes: &'b [u8]) -> Result<&'b [u8]> {
        if page::kind(bytes) != KIND_SEGMENT || page::keyspace(bytes) != self.keyspace {
            return Err(self.corrupt(n, "it is not a page of a segment of this keyspace"));
        }
        Ok(&bytes[HEADER..HEADER + self.core.usable(self.keyspace)])
    }
}

/// The pages of a segment through the buffer pool.
pub(super) struct Pooled(pub Arc<Place>);

impl PageSource for Pooled {
    fn usable(&self) -> usize {
        self.0.core.usable(self.0.keyspace)
    }

    fn page(&self, n: u64, see: &mut dyn FnMut(&[u8])) -> Result<()> {
        let page = self.0.core.pool.read(self.0.page(n)?.0)?;
        see(self.0.body(n, page.bytes())?);
        Ok(())
    }

    fn prefetch(&self, n: u64, pages: u64) {
        let ids: Vec<PageId> = (n..n + pages).map_while(|n| page_of(&self.0.runs, n)).map(|(id, _)| id).collect();
        self.0.core.pool.prefetch(&ids);
    }

    fn corrupt(&self, n: u64, what: &str) -> Error {
        self.0.corrupt(n, what)
    }
}

/// Pages read together.
#[derive(Default)]
struct Read {
    first: u64,
    pages: u64,
    bytes: Option<AlignedBuf>,
    /// Pages before this one are wanted together.
    until: u64,
}

/// The pages of a segment past the buffer pool, in long requests: for who reads all of it once.
pub(super) struct PastPool {
    place: Arc<Place>,
    /// Bytes of a request.
    request: usize,
    read: Mutex<Read>,
}

impl PastPool {
    /// Reads so many bytes at a time, and a page at least.
    pub fn new(place: &Arc<Place>, request: usize) -> PastPool {
        PastPool { place: place.clone(), request, read: Mutex::default() }
    }

    /// Reads pages from `n` on.
    fn read(&self, read: &mut Read, n: u64) -> Result<()> {
        let size = self.place.core.page_size();
        let (id, run) = self.place.page(n)?;
        let pages = run.min(together(self.request, size, read.until.saturating_sub(n)));
        assert!(pages > 0, "a page that there is is in a run");
        let room = pages as usize * size;
        let bytes = read.bytes.take().filter(|bytes| bytes.len() >= room);
        let mut bytes = bytes.unwrap_or_else(|| AlignedBuf::new(room));
        let into = &mut bytes[..pages as usize * size];
        charge(Cost::IoSubmit, 1);
        let done = varve_volume::read_pages(&*self.place.core.store, id, ReadWhy::Prefetch, into);
        charge(Cost::IoComplete, 1);
        (read.first, read.pages, read.bytes) = (n, 0, Some(bytes));
        for result in done {
            result?;
        }
        read.pages = pages;
        Ok(())
    }
}

impl PageSource for PastPool {
    fn usable(&self) -> usize {
        self.place.core.usable(self.place.keyspace)
    }

    fn page(&self, n: u64, see: &mut dyn FnMut(&[u8])) -> Result<()> {
        let mut read = self.read.lock();
        if !(read.first..read.first + read.pages).contains(&n) {
            self.read(&mut read, n)?;
        }
        let size = self.place.core.page_size();
        let at = (n - read.first) as usize * size;
        let bytes = &read.bytes.as_ref().expect("it was read")[at..at + size];
        see(self.place.body(n, bytes)?);
        Ok(())
    }

    fn prefetch(&self, n: u64, pages: u64) {
        self.read.lock().until = n + pages;
    }

    fn corrupt(&self, n: u64, what: &str) -> Error {
        self.place.corrupt(n, what)
    }
}

/// Pages of a request of about so many bytes; `wanted` pages are wanted together.
pub(super) fn together(request: usize, page_size: usize, wanted: u64) -> u64 {
    let most = WINDOW / page_size;
    ((request / page_size) as u64).max(wanted).clamp(1, most.max(1) as u64)
}
