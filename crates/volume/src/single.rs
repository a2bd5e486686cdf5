//! Pages on one device: page `p` lives at byte `p * page_size`.
//!
//! Invariants: a page is written under the id that it was sealed with; a request of the device stands for one page, for
//! a run of new neighbours from one piece of memory, or for a run of neighbours that are read ahead; the device grows
//! and shrinks at one caller's wish at a time.

use crate::{
    Admin, CostClass, KeyspaceId, PageCompletion, PageId, PageIo, PageStore, PageTicket, PageUse, ReadWhy, VolumeError,
    VolumeStats, WriteWhy, page,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use varve_device::{AlignedBuf, Device, DeviceError, Hint, Io, Op, Ticket, Words};
use varve_rt::Mutex;

/// Totals; they order nothing, so plain relaxed atomics are right.
#[derive(Default)]
struct Totals {
    reads: [AtomicU64; 2],
    writes: [AtomicU64; WriteWhy::ALL.len()],
    declined: AtomicU64,
    discarded: AtomicU64,
    syncs: AtomicU64,
    damaged: AtomicU64,
    errors: AtomicU64,
}

/// A page store over one device. Ignores what a store of one device has no use for (usage, changed ranges, clean
/// pages).
///
/// The device may hold more than a whole number of pages; the rest is not used.
pub struct Single {
    device: Arc<dyn Device>,
    page_size: usize,
    /// Bytes at the end of a page that the engine leaves alone.
    room: usize,
    /// Held while the device grows, so that two growers do not shrink each other's work.
    growing: Mutex<()>,
    totals: Arc<Totals>,
    pieces: Arc<Pieces>,
}

/// Memory for long reads, kept for the next ones.
#[derive(Default)]
struct Pieces(Mutex<Vec<AlignedBuf>>);

impl Pieces {
    /// Pieces that are kept; what is read ahead at a time hardly takes more.
    const KEPT: usize = 4;

    fn take(&self, len: usize) -> AlignedBuf {
        let mut kept = self.0.lock();
        let fits = kept.iter().position(|piece| piece.len() >= len);
        let piece = fits.map(|i| kept.swap_remove(i)).unwrap_or_else(|| AlignedBuf::new(len));
        assert!(piece.len() >= len, "a long read has room for all of it");
        piece
    }

    fn give_back(&self, piece: AlignedBuf) {
        let mut kept = self.0.lock();
        if kept.len() < Self::KEPT {
            kept.push(piece);
        }
    }
}

/// There is nothing to do for one device.
impl Admin for Single {}

/// An offset past the end of any device.
const NOWHERE: u64 = 1 << 62;
const _: () = assert!(NOWHERE.is_multiple_of(32768), "what lies nowhere is out of range, and not misaligned");

impl Single {
    /// Pages of `page_size` bytes over `device`, as many as it has room for.
    pub fn new(device: Arc<dyn Device>, page_size: usize) -> Result<Arc<Single>, VolumeError> {
        Single::with_room(device, page_size, 0)
    }

    /// The same, where the engine leaves the last `room` bytes of each page alone.
    pub fn with_room(device: Arc<dyn Device>, page_size: usize, room: usize) -> Result<Arc<Single>, VolumeError> {
        let block = device.info().block as usize;
        let supported = matches!(page_size, 4096 | 8192 | 16384 | 32768) && page_size.is_multiple_of(block);
        if !supported {
            return Err(VolumeError::PageSize { size: page_size });
        }
        if room > page_size / 4 {
            return Err(VolumeError::Options(format!("a page keeps {room} bytes free: at most a quarter of it")));
        }
        Ok(Arc::new(Single {
            device,
            page_size,
            room,
            growing: Mutex::new(()),
            totals: Arc::default(),
            pieces: Arc::default(),
        }))
    }

    /// The device under the pages.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// A page that no device could hold lies past the end of all.
    fn offset(&self, page: PageId) -> u64 {
        page.0.checked_mul(self.page_size as u64).unwrap_or(NOWHERE)
    }

    /// Counts a page that is written past the device's own writes.
    pub(crate) fn count_write(&self, why: WriteWhy) {
        self.totals.writes[why as usize].fetch_add(1, Relaxed);
    }

    fn device_io(&self, io: &PageIo) -> Io {
        match io {
            PageIo::Read(read) => {
                self.totals.reads[usize::from(read.why == ReadWhy::Prefetch)].fetch_add(1, Relaxed);
                // SAFETY: passed on from the caller of `PageIo::read`; the page ticket waits for the device's ticket.
                unsafe { Io::read(self.offset(read.page), read.buf(), self.page_size) }
            }
            PageIo::Write(write) => {
                self.count_write(write.why);
                // SAFETY: the request was just submitted, for pages of this size.
                let bytes = unsafe { write.bytes(self.page_size) };
                assert_eq!(page::id(bytes), write.page, "a page is sealed under its own id before it is written");
                // SAFETY: as above; the page ticket waits for the device's ticket.
                unsafe { Io::write(self.offset(write.page), write.buf(), self.page_size, false) }
                    .in_stream(write.stream())
            }
        }
    }
}

/// Most bytes that one request of the device writes.
const MOST_BYTES: usize = 1 << 20;

/// Most bytes that one request of the device reads ahead. With some of them in flight devices are busy; what is wanted
/// first is there sooner than in one piece.
const MOST_AHEAD: usize = 256 << 10;

/// The stretches of a batch that are one request of the device each, numbered: new pages that are neighbours, from
/// memory in one piece; neighbours that are read ahead; and single requests.
fn runs(batch: &[PageIo], page_size: usize) -> impl Iterator<Item = (u32, &[PageIo])> {
    let mut len = 0;
    let goes_on = move |a: &PageIo, b: &PageIo| {
        len += page_size;
        let follows = a.page().0 + 1 == b.page().0
            && match (a, b) {
                // Only of these it is no accident where the buffers lie.
                (PageIo::Write(a), PageIo::Write(b)) => {
                    let loads = a.why == WriteWhy::Load && b.why == WriteWhy::Load;
                    a.buf().wrapping_add(page_size) == b.buf() && loads && len < MOST_BYTES
                }
                // Nobody waits for the first of them alone.
                (PageIo::Read(a), PageIo::Read(b)) => {
                    a.why == ReadWhy::Prefetch && b.why == ReadWhy::Prefetch && len < MOST_AHEAD
                }
                _ => false,
            };
        if !follows {
            len = 0;
        }
        follows
    };
    batch.chunk_by(goes_on).enumerate().map(|(i, run)| (i as u32, run))
}

impl Single {
    /// Submits a batch; the pieces of memory to which its long reads go, by their run.
    fn submit_runs(&self, batch: &[PageIo]) -> (Ticket, Vec<(u32, AlignedBuf)>) {
        let mut pieces: Vec<(u32, AlignedBuf)> = Vec::new();
        let one = |(number, run): (u32, &[PageIo])| {
            let first = run.iter().map(|io| self.device_io(io)).reduce(|first, _| first).expect("a run is not empty");
            let len = run.len() * self.page_size;
            if run.len() == 1 {
                return first;
            }
            if first.op == Op::Read {
                assert!(len <= MOST_AHEAD);
                let mut piece = self.pieces.take(len);
                // SAFETY: the piece is kept beside the ticket, which goes before it, and is looked at only when the
                // device was waited for.
                let io = unsafe { Io::read(first.offset, piece.as_mut_ptr(), len) };
                pieces.push((number, piece));
                return io;
            }
            assert!(len <= MOST_BYTES && matches!(first.op, Op::Write { .. }));
            // SAFETY: the run's buffers follow one another, and their callers promised the same of each.
            unsafe { Io::write(first.offset, first.buf.as_ptr(), len, false) }.in_stream(first.stream)
        };
        let ios: Vec<Io> = runs(batch, self.page_size).map(one).collect();
        (self.device.submit(ios), pieces)
    }
}

/// The device's side of a batch.
enum Under {
    /// In flight, or done at submission.
    Ticket(Ticket),
    /// One request that was executed already.
    Done(Result<(), DeviceError>),
}

struct Pending {
    /// Goes first: what is in flight uses the pieces.
    under: Under,
    /// What long reads fill, by their run, in this order.
    pieces: Vec<(u32, AlignedBuf)>,
    kept: Arc<Pieces>,
    ios: Vec<PageIo>,
    /// Which request of the device has each of them.
    runs: Vec<u32>,
    page_size: usize,
    totals: Arc<Totals>,
    pages: u64,
    /// Requests that nobody waited for yet.
    left: usize,
}

impl Pending {
    /// Hands request `i` its part of the long read that it was made in, which the device has finished.
    fn fill(&self, i: usize) {
        let (run, PageIo::Read(read)) = (self.runs[i], &self.ios[i]) else { return };
        let Ok(at) = self.pieces.binary_search_by_key(&run, |(number, _)| *number) else { return };
        let first = self.runs.partition_point(|r| *r < run);
        let part = &self.pieces[at].1[(i - first) * self.page_size..][..self.page_size];
        // SAFETY: promised to `PageIo::read`: the memory is the request's alone until this wait has returned.
        unsafe { Words::new(read.buf(), self.page_size) }.store(0, part);
    }
}

impl Drop for Pending {
    /// Memory whose requests all ended serves the next ones; other memory waits for the device, as the ticket does.
    fn drop(&mut self) {
        if self.left == 0 {
            self.pieces.drain(..).for_each(|(_, piece)| self.kept.give_back(piece));
        }
    }
}

impl PageCompletion for Pending {
    fn wait(&mut self, i: usize) -> Result<CostClass, VolumeError> {
        let id = self.ios[i].page();
        let done = match &mut self.under {
            Under::Ticket(ticket) => ticket.wait(self.runs[i] as usize),
            Under::Done(result) => result.clone(),
        };
        assert!(self.left > 0, "a request is waited for once");
        self.left -= 1;
        if let Err(source) = done {
            self.totals.errors.fetch_add(1, Relaxed);
            return Err(match source {
                DeviceError::OutOfRange { .. } if id.0 >= self.pages => {
                    VolumeError::OutOfRange { page: id, pages: self.pages }
                }
                source => VolumeError::Page { page: id, source },
            });
        }
        self.fill(i);
        if let PageIo::Read(read) = &self.ios[i] {
            // SAFETY: the device was waited for above, and this wait has not returned.
            let bytes = unsafe { read.bytes(self.page_size) };
            if let Err(damage) = page::verify(bytes, id) {
                self.totals.damaged.fetch_add(1, Relaxed);
                return Err(VolumeError::Damaged { page: id, damage });
            }
        }
        Ok(CostClass(0))
    }

    fn try_done(&mut self, i: usize) -> bool {
        match &mut self.under {
            Under::Ticket(ticket) => ticket.try_done(self.runs[i] as usize),
            Under::Done(_) => true,
        }
    }

    fn abandon(&mut self) {
        // Dropping the device's ticket, right after this, does it.
    }
}

impl PageStore for Single {
    fn page_size(&self) -> usize {
        self.page_size
    }

    fn pages(&self) -> u64 {
        self.device.len() / self.page_size as u64
    }

    fn grow(&self, pages: u64) -> Result<(), VolumeError> {
        let _guard = self.growing.lock();
        if pages > self.pages() {
            self.device.set_len(pages * self.page_size as u64)?;
            assert!(self.pages() >= pages, "a device that grew has the room");
        }
        Ok(())
    }

    fn shrink(&self, pages: u64) -> Result<(), VolumeError> {
        let _guard = self.growing.lock();
        if pages < self.pages() {
            self.device.set_len(pages * self.page_size as u64)?;
        }
        Ok(())
    }

    fn usable_bytes(&self, _keyspace: KeyspaceId) -> usize {
        self.page_size - page::HEADER - self.room
    }

    fn submit(&self, batch: Vec<PageIo>) -> PageTicket {
        // Somebody waits for a single demand read, so it is executed here and now, which costs less than a batch.
        let (under, pieces) = match &batch[..] {
            [one @ PageIo::Read(read)] if read.why == ReadWhy::Demand => {
                (Under::Done(self.device.run(self.device_io(one))), Vec::new())
            }
            _ => {
                let (ticket, pieces) = self.submit_runs(&batch);
                (Under::Ticket(ticket), pieces)
            }
        };
        let (page_size, totals, pages) = (self.page_size, self.totals.clone(), self.pages());
        let runs: Vec<u32> = runs(&batch, page_size).flat_map(|(i, run)| run.iter().map(move |_| i)).collect();
        assert_eq!(runs.len(), batch.len(), "every request is in one run");
        if let Under::Ticket(ticket) = &under {
            let last = runs.last().map_or(0, |last| *last as usize + 1);
            assert_eq!(ticket.len(), last, "every run is one request of the device");
        }
        let (left, kept) = (batch.len(), self.pieces.clone());
        let pending = Pending { under, pieces, kept, ios: batch, runs, page_size, totals, pages, left };
        PageTicket::pending(left, Box::new(pending))
    }

    fn evict_clean(&self, _page: PageId, _bytes: &[u8], _usage: PageUse) -> bool {
        self.totals.declined.fetch_add(1, Relaxed);
        false
    }

    fn dirtied(&self, _page: PageId, _keyspace: KeyspaceId, _usage: PageUse) {}

    fn discard(&self, pages: &[PageId]) -> Result<(), VolumeError> {
        let mut sorted: Vec<u64> = pages.iter().map(|p| p.0).collect();
        sorted.sort_unstable();
        sorted.dedup();
        self.totals.discarded.fetch_add(sorted.len() as u64, Relaxed);
        let runs = sorted.chunk_by(|a, b| a + 1 == *b);
        let trim = |run: &[u64]| Io::trim(self.offset(PageId(run[0])), run.len() * self.page_size);
        Ok(self.device.submit(runs.map(trim).collect()).wait_all()?)
    }

    fn extent(&self) -> Option<u64> {
        let (extent, page) = (self.device.info().capabilities.extent, self.page_size as u64);
        (extent >= page && extent.is_multiple_of(page)).then(|| extent / page)
    }

    fn hint(&self, pages: (PageId, PageId), hint: Hint) {
        debug_assert!(pages.0 <= pages.1, "a range ends where it begins, or later");
        self.device.hint(self.offset(pages.0)..self.offset(pages.1), hint);
    }

    fn drain_class_changes(&self, _into: &mut Vec<(PageId, CostClass)>) {}

    fn sync(&self) -> Result<(), VolumeError> {
        self.totals.syncs.fetch_add(1, Relaxed);
        Ok(varve_device::flush(&*self.device)?)
    }

    fn stats(&self) -> VolumeStats {
        let t = &*self.totals;
        VolumeStats {
            demand_reads: t.reads[0].load(Relaxed),
            prefetch_reads: t.reads[1].load(Relaxed),
            replacement_writes: t.writes[0].load(Relaxed),
            recoverability_writes: t.writes[1].load(Relaxed),
            checkpoint_writes: t.writes[2].load(Relaxed),
            load_writes: t.writes[3].load(Relaxed),
            clean_accepted: 0,
            clean_declined: t.declined.load(Relaxed),
            discarded: t.discarded.load(Relaxed),
            syncs: t.syncs.load(Relaxed),
            damaged: t.damaged.load(Relaxed),
            errors: t.errors.load(Relaxed),
        }
    }
}
