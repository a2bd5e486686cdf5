//! One job, done on a device: its inputs are read, merged, and written to the pages that the host set aside.
//!
//! A page lies at its number times the page's size, as a volume of one device has it. Pages are sealed as the host's
//! store would: it reads them as its own.
//!
//! Invariant: nothing is written but to pages of the job's room, each once, in their order.

use super::decision::Mode;
use super::job::{Done, Job, Pages, Part, Runs};
use crate::error::{Error, Result};
use crate::lsm::executor::{Executor, Input, Outputs, Pcp, Sequential, Task, block_bytes};
use crate::lsm::merge::Below;
use crate::lsm::pages::{KIND_SEGMENT, WINDOW, Window, page_of};
use crate::lsm::segment::SegmentReader;
use crate::lsm::{PageSink, PageSource, Segment, SegmentMeta};
use std::sync::Arc;
use varve_device::{AlignedBuf, Device, Faults, Mistake, read_at, write_at};
use varve_rt::atomic::{AtomicBool, AtomicU64, Ordering};
use varve_rt::{Cost, Mutex, charge, now};
use varve_volume::page::{self, HEADER};
use varve_volume::{PageId, VolumeError};

/// A job that runs, as others see it. Lock order: `finished` is a leaf.
pub(super) struct Running {
    generation: u64,
    id: u64,
    /// Its answer is not wanted any more.
    pub cancelled: AtomicBool,
    finished: Mutex<Finished>,
}

/// What is written of a job.
#[derive(Default)]
struct Finished {
    /// As in [`Part`].
    segments: Vec<(Arc<Segment>, u32)>,
    next: Vec<u8>,
    /// Of the segments, so many are known to who asks.
    told: usize,
}

impl Running {
    /// A job of which nothing is done yet.
    pub(super) fn new(job: &Job) -> Running {
        let (generation, id) = (job.generation, job.id);
        Running { generation, id, cancelled: AtomicBool::new(false), finished: Mutex::default() }
    }

    /// What is finished of the job, if that is more than was told before.
    pub(super) fn news(&self) -> Option<Part> {
        let mut finished = self.finished.lock();
        if finished.told == finished.segments.len() {
            return None;
        }
        finished.told = finished.segments.len();
        let Running { generation, id, .. } = *self;
        Some(Part { generation, id, segments: finished.segments.clone(), next: finished.next.clone() })
    }
}

/// Does a job. `large` bytes and more make a value large; `share` is what the mode was decided by.
pub(super) fn run(
    device: &Arc<dyn Device>,
    job: &Job,
    (mode, share, large): (Mode, f64, usize),
    running: &Running,
    faults: &Faults,
) -> Result<Done> {
    let begun = now();
    let task = Arc::new(task(device, job, large)?);
    let request = job.request.max(block_bytes(&task.runs)).min(WINDOW.max(job.request));
    let mut outputs = Written::new(device, job, running, request);
    outputs.hasty = faults.has(Mistake::NearTakenUpUnseen);
    let tally = match mode {
        Mode::Linear => Sequential.run(task, &mut outputs),
        Mode::Pipeline => Pcp::new(job.request.max(64 << 10)).run(task, &mut outputs),
    }?;
    outputs.flush()?;
    if !faults.has(Mistake::NearUnsynced) {
        varve_device::flush(&**device)?;
    }
    let segments = outputs.done.into_iter().map(|(segment, _)| segment).collect();
    Ok(Done { segments, tally, mode, share, time: now().duration_since(begun) })
}

fn task(device: &Arc<dyn Device>, job: &Job, large: usize) -> Result<Task> {
    let input = |segment: &Arc<Segment>| {
        let window = Window::new(job.pages.size, job.request);
        let source = Source { device: device.clone(), pages: job.pages, segment: segment.clone(), window };
        let segment = &source.segment;
        let reader = SegmentReader::open(&source, segment.id, segment.meta.pages)?;
        Ok(Input { reader: Arc::new(reader), source: Arc::new(source) })
    };
    let run = |run: &Vec<Arc<Segment>>| run.iter().map(input).collect::<Result<Vec<_>>>();
    let next = AtomicU64::new(job.options.id);
    Ok(Task {
        runs: job.runs.iter().map(run).collect::<Result<_>>()?,
        range: job.range.clone(),
        moments: job.moments.clone(),
        below: Below(job.below.clone()),
        grandparents: job.grandparents.clone(),
        most_overlap: job.most_overlap,
        options: job.options.clone(),
        next_id: Arc::new(move || next.fetch_add(1, Ordering::Relaxed)),
        segment_bytes: job.segment_bytes,
        usable: job.pages.usable,
        large,
    })
}

/// The pages of a segment on a device.
struct Source {
    device: Arc<dyn Device>,
    pages: Pages,
    segment: Arc<Segment>,
    window: Window,
}

impl Source {
    fn place(&self, n: u64) -> Result<(PageId, u64)> {
        let found = page_of(&self.segment.runs, n);
        found.ok_or_else(|| self.corrupt(n, "the segment does not have so many pages"))
    }

    fn load(&self, id: PageId, into: &mut [u8]) -> Result<()> {
        let size = self.pages.size;
        read_at(&*self.device, id.0 * size as u64, into)?;
        for (i, one) in into.chunks(size).enumerate() {
            let page = PageId(id.0 + i as u64);
            page::verify(one, page).map_err(|damage| VolumeError::Damaged { page, damage })?;
        }
        Ok(())
    }

    fn body<'b>(&self, n: u64, bytes: &'b [u8]) -> Result<&'b [u8]> {
        if page::kind(bytes) != KIND_SEGMENT || page::keyspace(bytes) != self.pages.keyspace {
            return Err(self.corrupt(n, "it is not a page of a segment of this keyspace"));
        }
        Ok(&bytes[HEADER..HEADER + self.pages.usable])
    }
}

impl PageSource for Source {
    fn usable(&self) -> usize {
        self.pages.usable
    }

    fn page(&self, n: u64, see: &mut dyn FnMut(&[u8])) -> Result<()> {
        let load = |id, into: &mut [u8]| self.load(id, into);
        self.window.page(n, |n| self.place(n), load, |bytes| self.body(n, bytes).map(see))
    }

    fn prefetch(&self, n: u64, pages: u64) {
        self.window.want(n, pages);
    }

    fn corrupt(&self, n: u64, what: &str) -> Error {
        let runs = &self.segment.runs;
        let id = page_of(runs, n).or(page_of(runs, 0)).map_or(PageId(0), |(id, _)| id);
        let what = format!("segment {}, page {n} of it: {what}", self.segment.id);
        Error::corrupt_page(id, Some(self.pages.keyspace), what)
    }
}

/// Writes outputs to the pages that the host set aside, in their order.
struct Written<'j> {
    device: &'j dyn Device,
    job: &'j Job,
    running: &'j Running,
    /// Pages taken of the room.
    taken: u64,
    /// Pages that are not written yet, neighbours.
    buf: AlignedBuf,
    first: PageId,
    filled: usize,
    /// Of the segment that is being written.
    runs: Runs,
    /// Checksum of the page that was taken last.
    seal: u32,
    done: Vec<(Arc<Segment>, u32)>,
    /// The first key that is in none of them; none: there is no such key.
    next: Option<Vec<u8>>,
    /// A mistake: it tells of segments before they are written.
    hasty: bool,
}

impl<'j> Written<'j> {
    /// Writes so many bytes at a time, to the next page.
    fn new(device: &'j Arc<dyn Device>, job: &'j Job, running: &'j Running, request: usize) -> Written<'j> {
        let most = request.div_ceil(job.pages.size).max(1);
        Written {
            device: &**device,
            job,
            running,
            taken: 0,
            buf: AlignedBuf::new(most * job.pages.size),
            first: PageId(0),
            filled: 0,
            runs: Runs::new(),
            seal: 0,
            done: Vec::new(),
            next: None,
            hasty: false,
        }
    }

    /// All that is done may be told of.
    fn tell(&mut self) {
        if let Some(next) = self.next.take() {
            let mut finished = self.running.finished.lock();
            let known = finished.segments.len();
            finished.segments.extend_from_slice(&self.done[known..]);
            finished.next = next;
        }
    }

    fn flush(&mut self) -> Result<()> {
        let size = self.job.pages.size;
        if self.filled > 0 {
            charge(Cost::IoSubmit, 1);
            write_at(self.device, self.first.0 * size as u64, &self.buf[..self.filled * size], false)?;
            charge(Cost::IoComplete, 1);
            self.filled = 0;
        }
        // The pages of all that is done are written now.
        self.tell();
        Ok(())
    }
}

impl PageSink for Written<'_> {
    fn usable(&self) -> usize {
        self.job.pages.usable
    }

    fn page(&mut self, fill: &mut dyn FnMut(&mut [u8])) -> Result<()> {
        let Pages { size, usable, keyspace, floor } = self.job.pages;
        let Some((id, _)) = page_of(&self.job.room, self.taken) else {
            return Err(Error::NoSpace("the pages that the host set aside".into()));
        };
        if self.filled * size == self.buf.len() || self.first.0 + self.filled as u64 != id.0 {
            self.flush()?;
            self.first = id;
        }
        assert!(self.first.0 + self.filled as u64 == id.0, "pages of a request are neighbours");
        let bytes = &mut self.buf[self.filled * size..][..size];
        bytes.fill(0);
        page::set_keyspace(bytes, keyspace);
        page::set_kind(bytes, KIND_SEGMENT);
        fill(&mut bytes[HEADER..HEADER + usable]);
        page::set_lsn(bytes, floor);
        page::seal(bytes, id);
        self.seal = page::checksum(bytes);
        (self.filled, self.taken) = (self.filled + 1, self.taken + 1);
        match self.runs.last_mut() {
            Some((first, pages)) if first.0 + *pages == id.0 => *pages += 1,
            _ => self.runs.push((id, 1)),
        }
        Ok(())
    }
}

impl Outputs for Written<'_> {
    fn done(&mut self, id: u64, meta: SegmentMeta, next: Option<Vec<u8>>) -> Result<()> {
        let SegmentMeta { pages, .. } = meta;
        let runs = std::mem::take(&mut self.runs);
        assert_eq!(runs.iter().map(|(_, pages)| pages).sum::<u64>(), pages, "all its pages were taken");
        if id - self.job.options.id >= self.job.ids {
            return Err(Error::Invalid("a merge made more segments than it has numbers for".into()));
        }
        debug_assert!(self.done.last().is_none_or(|(last, _)| last.id < id), "segments are numbered in their order");
        self.done.push((Arc::new(Segment { id, meta, runs }), self.seal));
        self.next = next;
        if self.hasty {
            self.tell();
        }
        Ok(())
    }

    fn wait(&mut self) -> Result<()> {
        Ok(())
    }

    fn pause(&mut self) -> Result<()> {
        varve_rt::yield_now();
        if self.running.cancelled.load(Ordering::Acquire) { Err(Error::Closed) } else { Ok(()) }
    }
}
