//! Read-ahead: hints from above and patterns of misses become batches of reads by a background thread.
//!
//! *Linear*: a run of misses on ascending neighbours makes it read a window ahead of the run. *Random*: so many misses
//! within one extent of 64 pages, in any order, make it read the rest of the extent. Both are after InnoDB's.
//!
//! The thread takes only frames that cost nothing (free ones and clean victims), holds each page's exclusive latch
//! until its read ended, and keeps as many pages in flight as it may. Each batch is in the order of page ids, so that
//! the store can make one long read of neighbours. A hint is dropped (and counted) when the queue is full or no frame
//! is clean. Without the thread (before [`Pool::start`]) every hint is dropped.
//!
//! Invariants: one thread takes the hints; a frame being read is latched exclusively until its read was waited for; no
//! more pages are in flight than [`ReadAhead::in_flight`].

use super::Pool;
use super::config::ReadAhead;
use super::guard::Exclusive;
use super::load::volume_error;
use super::policy::{Ask, Load};
use crate::error::Result;
use crate::role::{self, Role};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Weak};
use varve_rt::atomic::{AtomicBool, Ordering::*};
use varve_rt::channel::{Receiver, Sender, bounded};
use varve_rt::{JoinHandle, Mutex};
use varve_volume::{PageId, PageIo, PageTicket, ReadWhy};

/// Runs of misses, and extents, followed at a time.
const STREAMS: usize = 16;

/// Pages of an extent.
const EXTENT: u64 = 64;

/// A run of misses on ascending neighbours.
#[derive(Clone, Copy, Default)]
struct Stream {
    /// The miss that would continue the run.
    next: u64,
    length: u32,
    /// First page that read-ahead has not been asked for.
    asked: u64,
}

/// Misses within one extent.
#[derive(Clone, Copy, Default)]
struct Extent {
    number: u64,
    misses: u32,
}

#[derive(Default)]
struct Detector {
    streams: [Stream; STREAMS],
    extents: [Extent; STREAMS],
    /// The stream, and the extent, to be given up next.
    oldest: (usize, usize),
}

pub(super) struct Prefetcher {
    hints: Mutex<Option<Sender<Vec<PageId>>>>,
    running: AtomicBool,
    detector: Mutex<Detector>,
    detects: bool,
}

impl Prefetcher {
    pub(super) fn new(config: &ReadAhead) -> Prefetcher {
        Prefetcher {
            hints: Mutex::new(None),
            running: AtomicBool::new(false),
            detector: Mutex::new(Detector::default()),
            detects: config.linear_threshold > 0 || config.random_threshold > 0,
        }
    }

    /// Takes no more hints; the thread ends when it has worked off those it has.
    pub(super) fn close(&self) {
        self.running.store(false, Release);
        self.hints.lock().take();
    }
}

impl Detector {
    /// A miss on `page`: the pages to read ahead, if it completes a pattern.
    fn miss(&mut self, page: u64, config: &ReadAhead) -> Option<Range<u64>> {
        let linear = (config.linear_threshold > 0).then(|| self.linear(page, config)).flatten();
        let random = (config.random_threshold > 0).then(|| self.random(page, config)).flatten();
        linear.or(random)
    }

    fn linear(&mut self, page: u64, config: &ReadAhead) -> Option<Range<u64>> {
        // Read-ahead swallows misses, so a run goes on at any page up to where it was asked to read.
        let continues = |s: &Stream| s.length > 0 && page >= s.next && page <= s.asked.max(s.next);
        let Some(stream) = self.streams.iter_mut().find(|s| continues(s)) else {
            self.streams[self.oldest.0] = Stream { next: page + 1, length: 1, asked: page + 1 };
            self.oldest.0 = (self.oldest.0 + 1) % STREAMS;
            return None;
        };
        stream.length += 1;
        stream.next = page + 1;
        let from = stream.asked.max(page + 1);
        if stream.length < config.linear_threshold {
            return None;
        }
        stream.asked = page + 1 + u64::from(config.window);
        (from < stream.asked).then_some(from..stream.asked)
    }

    fn random(&mut self, page: u64, config: &ReadAhead) -> Option<Range<u64>> {
        let number = page / EXTENT;
        let Some(extent) = self.extents.iter_mut().find(|e| e.number == number && e.misses > 0) else {
            self.extents[self.oldest.1] = Extent { number, misses: 1 };
            self.oldest.1 = (self.oldest.1 + 1) % STREAMS;
            return None;
        };
        extent.misses += 1;
        (extent.misses == config.random_threshold).then(|| number * EXTENT..(number + 1) * EXTENT)
    }
}

/// A batch of reads under way: the frames are latched.
struct Reading<'a> {
    ticket: PageTicket,
    frames: Vec<Exclusive<'a>>,
}

impl Pool {
    /// Asks for pages to be read ahead; never waits. Those resident, and those that do not fit the queue, are left out.
    pub fn prefetch(&self, ids: &[PageId]) {
        if !self.prefetcher.running.load(Acquire) || !self.config().read_ahead.hints {
            self.counters.prefetch_dropped.add(ids.len() as u64);
            return;
        }
        let missing: Vec<PageId> = ids.iter().copied().filter(|id| self.instance(*id).hint(*id).is_none()).collect();
        if missing.is_empty() {
            return;
        }
        let (count, hints) = (missing.len() as u64, self.prefetcher.hints.lock());
        let Some(hints) = hints.as_ref() else { return };
        if hints.try_send(missing).is_err() {
            self.counters.prefetch_dropped.add(count);
        }
    }

    /// How many pages a reader of a long value asks for ahead.
    pub(crate) fn read_ahead_pages(&self) -> usize {
        (self.config().read_ahead.window as usize).min(self.capacity_frames() / 16)
    }

    /// How many leaves a scan that goes on and on asks for ahead: a sixteenth of the pool at most.
    pub(crate) fn scan_window(&self) -> usize {
        (self.config().read_ahead.scan_window as usize).min(self.capacity_frames() / 16).max(1)
    }

    /// Called for each miss.
    pub(super) fn note_miss(&self, id: PageId) {
        if !self.prefetcher.detects || !self.prefetcher.running.load(Relaxed) {
            return;
        }
        let Some(mut detector) = self.prefetcher.detector.try_lock() else { return };
        let ahead = detector.miss(id.0, &self.config().read_ahead);
        drop(detector);
        if let Some(range) = ahead {
            let end = range.end.min(self.store().pages());
            let ids: Vec<PageId> = (range.start..end).map(PageId).collect();
            self.prefetch(&ids);
        }
    }

    pub(super) fn start_prefetcher(self: &Arc<Self>) -> Result<JoinHandle<()>> {
        let (tx, rx) = bounded(self.config().read_ahead.queue);
        let before = self.prefetcher.hints.lock().replace(tx);
        assert!(before.is_none(), "one thread reads ahead");
        self.prefetcher.running.store(true, Release);
        let (pool, limits) = (Arc::downgrade(self), self.config().read_ahead.clone());
        Ok(self.gate().health().spawn("read-ahead", move || run(&pool, &rx, &limits))?)
    }

    /// Begins the reads of those pages that are not resident and for which there is a frame.
    fn begin_prefetch<'a>(&'a self, ids: &[PageId]) -> Option<Reading<'a>> {
        let frames: Vec<_> = ids.iter().filter_map(|id| self.frame_for_prefetch(*id)).collect();
        if frames.is_empty() {
            return None;
        }
        let request = |held: &Exclusive<'_>| {
            // SAFETY: the frame stays latched exclusively until `end_prefetch` has waited for the read.
            unsafe { PageIo::read(held.at().id(), ReadWhy::Prefetch, held.frame().data()) }
        };
        let ticket = self.store().submit(frames.iter().map(request).collect());
        assert_eq!(ticket.len(), frames.len(), "a store answers for every page that is read");
        self.counters.prefetch_batches.inc();
        Some(Reading { ticket, frames })
    }

    fn frame_for_prefetch(&self, id: PageId) -> Option<Exclusive<'_>> {
        let inst = self.instance(id);
        if inst.find(id).is_some() {
            return None;
        }
        let ask = Ask { depth: 100, resume: false, cold_only: false, incoming: Some(id) };
        let held = self.pop_free(inst).or_else(|| self.evict_clean(inst, ask));
        if held.is_none() {
            self.counters.prefetch_dropped.inc();
        }
        let (held, served) = self.publish(held?, id, false)?;
        if served {
            held.unlatch();
            return None;
        }
        Some(held)
    }

    fn end_prefetch(&self, reading: Reading<'_>) {
        let Reading { mut ticket, frames } = reading;
        for (i, held) in frames.into_iter().enumerate() {
            match ticket.wait(i).map_err(volume_error).and_then(|class| self.vet(&held).map(|()| class)) {
                Ok(class) => {
                    self.finish_load(&held, Load::Prefetch, class);
                    held.unlatch();
                }
                // The thread that needs the page meets the error.
                Err(_) => self.abandon_load(held),
            }
        }
    }
}

/// The hints that the thread has taken and not begun to read yet, in the order in which they will be needed.
struct Taken<'h> {
    hints: &'h Receiver<Vec<PageId>>,
    list: std::vec::IntoIter<PageId>,
}

impl Taken<'_> {
    /// The next pages to be read, at most so many, in the order of their ids; nothing when no hint waits.
    fn next(&mut self, most: usize) -> Vec<PageId> {
        if self.list.len() == 0
            && let Ok(list) = self.hints.try_recv()
        {
            self.list = list.into_iter();
        }
        assert!(most > 0, "who asks has room for a page");
        let mut ids: Vec<PageId> = self.list.by_ref().take(most).collect();
        ids.sort_unstable();
        ids
    }
}

fn run(pool: &Weak<Pool>, hints: &Receiver<Vec<PageId>>, limits: &ReadAhead) {
    role::set(Role::ReadAhead);
    while let Ok(list) = hints.recv() {
        let Some(pool) = pool.upgrade() else { return };
        let mut taken = Taken { hints, list: list.into_iter() };
        let (mut under_way, mut pages) = (VecDeque::<Reading<'_>>::new(), 0);
        loop {
            let room = limits.in_flight - pages;
            // Not a few pages at a time: they would be short reads.
            let ids = if room * 4 >= limits.batch { taken.next(room.min(limits.batch)) } else { Vec::new() };
            if let Some(reading) = pool.begin_prefetch(&ids) {
                pages += reading.frames.len();
                under_way.push_back(reading);
            }
            assert!(pages <= limits.in_flight, "no more is read ahead at a time than may be");
            if !ids.is_empty() {
                continue;
            }
            let Some(reading) = under_way.pop_front() else { break };
            pages -= reading.frames.len();
            pool.end_prefetch(reading);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::PoolConfig;

    fn ahead(linear: u32, random: u32, misses: &[u64]) -> Vec<(u64, u64)> {
        let defaults = PoolConfig::new(4096, 64).read_ahead;
        let config = ReadAhead { linear_threshold: linear, window: 8, random_threshold: random, ..defaults };
        let mut detector = Detector::default();
        misses.iter().filter_map(|p| detector.miss(*p, &config)).map(|r| (r.start, r.end)).collect()
    }

    #[test]
    fn a_run_reads_ahead_and_goes_on_where_its_window_ends() {
        assert_eq!(ahead(3, 0, &[10, 11]), []);
        assert_eq!(ahead(3, 0, &[10, 11, 12]), [(13, 21)]);
        assert_eq!(ahead(3, 0, &[10, 11, 12, 21]), [(13, 21), (22, 30)]);
        // A page of the window that was not read in time does not ask for the same pages again.
        assert_eq!(ahead(3, 0, &[10, 11, 12, 14]), [(13, 21), (21, 23)]);
        assert_eq!(ahead(3, 0, &[10, 50, 11, 51, 12, 52]), [(13, 21), (53, 61)], "two runs at once");
        assert_eq!(ahead(3, 0, &[12, 11, 10, 9]), []);
        assert_eq!(ahead(0, 0, &[10, 11, 12, 13]), [], "off");
    }

    #[test]
    fn enough_misses_in_an_extent_read_the_rest() {
        assert_eq!(ahead(0, 3, &[130, 70, 190, 150]), [(128, 192)]);
        assert_eq!(ahead(0, 3, &[130, 150, 190, 131, 132]), [(128, 192)], "once");
        assert_eq!(ahead(0, 3, &[0, 64, 128, 192]), []);
    }
}
