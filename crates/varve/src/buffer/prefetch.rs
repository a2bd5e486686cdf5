//! Read-ahead: hints from above and runs of misses become batches of reads by a background thread.
//!
//! The thread takes only frames that cost nothing (free ones and clean victims), holds each page's exclusive latch until its read
//! ended, and keeps two batches in flight. A hint is dropped (and counted) when the queue is full or no frame is clean. Without
//! the thread (before [`Pool::start`]) every hint is dropped.

use super::Pool;
use super::config::ReadAhead;
use super::policy::{Ask, Load, Slot};
use std::sync::{Arc, Weak};
use varve_rt::atomic::{AtomicBool, Ordering::*};
use varve_rt::channel::{Receiver, Sender, bounded};
use varve_rt::{JoinHandle, Mutex};
use varve_volume::{PageId, PageIo, PageTicket, ReadWhy};

/// Runs of misses followed at a time.
const STREAMS: usize = 16;

/// A run of misses on ascending neighbours.
#[derive(Clone, Copy, Default)]
struct Stream {
    /// The miss that would continue the run.
    next: u64,
    length: u32,
    /// First page that read-ahead has not been asked for.
    asked: u64,
}

struct Detector {
    streams: [Stream; STREAMS],
    /// The stream to be given up next.
    oldest: usize,
}

pub(super) struct Prefetcher {
    hints: Mutex<Option<Sender<PageId>>>,
    running: AtomicBool,
    detector: Mutex<Detector>,
    linear: bool,
}

impl Prefetcher {
    pub(super) fn new(config: &ReadAhead) -> Prefetcher {
        Prefetcher {
            hints: Mutex::new(None),
            running: AtomicBool::new(false),
            detector: Mutex::new(Detector { streams: [Stream::default(); STREAMS], oldest: 0 }),
            linear: config.linear_threshold > 0,
        }
    }

    /// Takes no more hints; the thread ends when it has worked off those it has.
    pub(super) fn close(&self) {
        self.running.store(false, Release);
        self.hints.lock().take();
    }
}

impl Detector {
    /// A miss on `page`: the pages to read ahead, if it continues a long enough run.
    fn miss(&mut self, page: u64, config: &ReadAhead) -> Option<std::ops::Range<u64>> {
        let window = u64::from(config.window);
        // Read-ahead swallows misses, so a run goes on at any page up to where it was asked to read.
        let continues = |s: &Stream| s.length > 0 && page >= s.next && page <= s.asked.max(s.next);
        let Some(stream) = self.streams.iter_mut().find(|s| continues(s)) else {
            self.streams[self.oldest] = Stream { next: page + 1, length: 1, asked: page + 1 };
            self.oldest = (self.oldest + 1) % STREAMS;
            return None;
        };
        stream.length += 1;
        stream.next = page + 1;
        if stream.length < config.linear_threshold {
            stream.asked = page + 1;
            return None;
        }
        let from = stream.asked.max(page + 1);
        stream.asked = page + 1 + window;
        (from < stream.asked).then_some(from..stream.asked)
    }
}

/// A batch of reads under way: the frames are latched.
struct Reading {
    ticket: PageTicket,
    pages: Vec<(PageId, Slot)>,
}

impl Pool {
    /// Asks for pages to be read ahead; never waits. Those resident, and those that do not fit the queue, are left out.
    pub fn prefetch(&self, ids: &[PageId]) {
        if !self.prefetcher.running.load(Acquire) {
            self.counters.prefetch_dropped.add(ids.len() as u64);
            return;
        }
        let hints = self.prefetcher.hints.lock();
        let Some(hints) = hints.as_ref() else { return };
        for &id in ids {
            if self.instance(id).hint(id).is_none() && hints.try_send(id).is_err() {
                self.counters.prefetch_dropped.inc();
            }
        }
    }

    /// Linear read-ahead: called for each miss.
    pub(super) fn note_miss(&self, id: PageId) {
        if !self.prefetcher.linear || !self.prefetcher.running.load(Relaxed) {
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

    pub(super) fn start_prefetcher(self: &Arc<Self>) -> Option<JoinHandle<()>> {
        let (tx, rx) = bounded(self.config().read_ahead.queue);
        *self.prefetcher.hints.lock() = Some(tx);
        self.prefetcher.running.store(true, Release);
        let (pool, batch) = (Arc::downgrade(self), self.config().read_ahead.batch);
        Some(varve_rt::spawn_daemon("read-ahead", move || run(&pool, &rx, batch)))
    }

    /// Begins the reads of those pages that are not resident and for which there is a frame.
    fn begin_prefetch(&self, ids: &[PageId]) -> Option<Reading> {
        let mut pages = Vec::new();
        for &id in ids {
            if let Some(slot) = self.frame_for_prefetch(id) {
                pages.push((id, slot));
            }
        }
        if pages.is_empty() {
            return None;
        }
        let request = |&(id, slot): &(PageId, Slot)| {
            // SAFETY: the frame is latched exclusively until `end_prefetch` has waited for the read.
            unsafe { PageIo::read(id, ReadWhy::Prefetch, self.instance(id).frame(slot).data()) }
        };
        let ticket = self.store().submit(pages.iter().map(request).collect());
        self.counters.prefetch_batches.inc();
        Some(Reading { ticket, pages })
    }

    fn frame_for_prefetch(&self, id: PageId) -> Option<Slot> {
        let inst = self.instance(id);
        {
            let _lists = inst.lock();
            if inst.table.find(&inst.frames, id).is_some() {
                return None;
            }
        }
        let ask = Ask { depth: 100, resume: false, incoming: Some(id) };
        let Some(slot) = self.pop_free(inst).or_else(|| self.evict_clean(inst, ask)) else {
            self.counters.prefetch_dropped.inc();
            return None;
        };
        self.publish(inst, slot, id).then_some(slot)
    }

    fn end_prefetch(&self, reading: Reading) {
        let Reading { mut ticket, pages } = reading;
        for (i, (id, slot)) in pages.into_iter().enumerate() {
            let inst = self.instance(id);
            match ticket.wait(i) {
                Ok(class) => {
                    self.finish_load(inst, slot, id, Load::Prefetch, class);
                    // SAFETY: latched by `frame_for_prefetch`.
                    unsafe { inst.frame(slot).latch.unlock_exclusive() };
                }
                // Whoever needs the page will meet the error.
                Err(_) => self.abandon_load(inst, slot),
            }
        }
    }
}

fn run(pool: &Weak<Pool>, hints: &Receiver<PageId>, batch: usize) {
    let mut ids = Vec::with_capacity(batch);
    while let Ok(first) = hints.recv() {
        let Some(pool) = pool.upgrade() else { return };
        let mut reading = None;
        let mut next = Some(first);
        loop {
            ids.clear();
            ids.extend(next.take());
            while ids.len() < batch
                && let Ok(id) = hints.try_recv()
            {
                ids.push(id);
            }
            let begun = pool.begin_prefetch(&ids);
            if let Some(reading) = std::mem::replace(&mut reading, begun) {
                pool.end_prefetch(reading);
            }
            if reading.is_none() && ids.is_empty() {
                break;
            }
        }
    }
}
