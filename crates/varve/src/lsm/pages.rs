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
        let pages = DirectPages::new(core, keyspace).of_segment().in_extents();
        Sink { pages, usable: core.usable(keyspace), page_size: core.page_size(), runs: Vec::new() }
    }

    /// The same; pages are written by whoever hands them over, so many bytes at a time.
    pub fn inline(core: &Arc<Core>, keyspace: KeyspaceId, bytes: usize) -> Sink {
        let mut sink = Sink::new(core, keyspace);
        sink.pages = sink.pages.written_inline(bytes);
        sink
    }

    /// The same; pages stay in the pool while frames are free: what is flushed and merged goes on being read.
    pub fn kept_in_free_frames(mut self) -> Sink {
        self.pages = self.pages.kept_in_free_frames();
        self
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
        debug_assert!(super::list::are_disjoint(&self.runs), "a segment gets each page once");
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

    /// The checksum of page `n` as it is on the device.
    pub(super) fn seal(&self, n: u64) -> Result<u32> {
        let mut bytes = AlignedBuf::new(self.core.page_size());
        let read = varve_volume::read_pages(&*self.core.store, self.page(n)?.0, ReadWhy::Prefetch, &mut bytes);
        read.into_iter().try_for_each(|page| page.map(drop))?;
        Ok(page::checksum(&bytes))
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

/// Pages of a segment that are read together, in long requests: for who reads all of it once.
pub(super) struct Window {
    page_size: usize,
    /// Bytes of a request.
    request: usize,
    read: Mutex<Read>,
}

#[derive(Default)]
struct Read {
    first: u64,
    pages: u64,
    bytes: Option<AlignedBuf>,
    /// Pages before this one are wanted together.
    until: u64,
}

impl Window {
    /// Reads so many bytes at a time, and a page at least.
    pub fn new(page_size: usize, request: usize) -> Window {
        Window { page_size, request, read: Mutex::default() }
    }

    /// The `pages` pages from `n` on are wanted together.
    pub fn want(&self, n: u64, pages: u64) {
        self.read.lock().until = n + pages;
    }

    /// Shows page `n`. If it was not read yet, `place` says where it is and how many of its run follow, itself
    /// included, and `load` fills a buffer with pages from there on.
    pub fn page(
        &self,
        n: u64,
        place: impl FnOnce(u64) -> Result<(PageId, u64)>,
        load: impl FnOnce(PageId, &mut [u8]) -> Result<()>,
        see: impl FnOnce(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let (read, size) = (&mut *self.read.lock(), self.page_size);
        if !(read.first..read.first + read.pages).contains(&n) {
            let (id, run) = place(n)?;
            let pages = run.min(together(self.request, size, read.until.saturating_sub(n)));
            assert!(pages > 0, "a page that there is is in a run");
            let room = pages as usize * size;
            (read.first, read.pages) = (n, 0);
            if read.bytes.as_ref().is_none_or(|bytes| bytes.len() < room) {
                read.bytes = Some(AlignedBuf::new(room));
            }
            let bytes = read.bytes.as_mut().expect("put there above");
            charge(Cost::IoSubmit, 1);
            let loaded = load(id, &mut bytes[..room]);
            charge(Cost::IoComplete, 1);
            loaded?;
            read.pages = pages;
        }
        let at = (n - read.first) as usize * size;
        see(&read.bytes.as_ref().expect("it was read")[at..at + size])
    }
}

/// The pages of a segment past the buffer pool.
pub(super) struct PastPool {
    place: Arc<Place>,
    window: Window,
}

impl PastPool {
    /// Reads so many bytes at a time, and a page at least.
    pub fn new(place: &Arc<Place>, request: usize) -> PastPool {
        PastPool { place: place.clone(), window: Window::new(place.core.page_size(), request) }
    }
}

impl PageSource for PastPool {
    fn usable(&self) -> usize {
        self.place.core.usable(self.place.keyspace)
    }

    fn page(&self, n: u64, see: &mut dyn FnMut(&[u8])) -> Result<()> {
        let place = &*self.place;
        let load = |id, into: &mut [u8]| {
            let done = varve_volume::read_pages(&*place.core.store, id, ReadWhy::Prefetch, into);
            done.into_iter().try_for_each(|page| page.map(drop).map_err(Error::from))
        };
        self.window.page(n, |n| place.page(n), load, |bytes| place.body(n, bytes).map(see))
    }

    fn prefetch(&self, n: u64, pages: u64) {
        self.window.want(n, pages);
    }

    fn corrupt(&self, n: u64, what: &str) -> Error {
        self.place.corrupt(n, what)
    }
}

/// Pages of a request of about so many bytes; `wanted` pages are wanted together.
fn together(request: usize, page_size: usize, wanted: u64) -> u64 {
    let most = WINDOW / page_size;
    ((request / page_size) as u64).max(wanted).clamp(1, most.max(1) as u64)
}
