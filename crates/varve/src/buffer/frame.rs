//! Frames: the memory of pages, their latches and their state words.
//!
//! Invariants
//! - Frames, latches and the arena live as long as the pool; they are never freed or moved.
//! - The bytes of a frame are read under its latch (shared or exclusive) and written under its exclusive latch only; a
//!   read in flight counts as holding the exclusive latch. `peek` alone reads them without, and believes nothing before
//!   it has asked the latch; because of it they are written as [`Words`] only.
//! - `page` changes under the exclusive latch *and* the instance's lock. While a frame is latched or pinned by anybody
//!   else it does not change.
//! - `pins` rises under the latch (or by cloning a pin) and falls at any time. A thread that holds the exclusive latch
//!   and sees no pins may take the frame away.
//! - `DIRTY` is set under the exclusive latch; `WRITING` under the shared one; both fall under the instance's lock.

use super::sequence::Sequence;
use std::alloc::{Layout, alloc, alloc_zeroed, dealloc};
use std::ops::{Deref, Range};
use std::ptr::NonNull;
use std::time::Duration;
use varve_device::{DeviceError, Words};
use varve_rt::RwLock;
use varve_rt::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use varve_volume::{PageId, PageUse};

/// Page id of an empty frame.
pub(super) const NO_PAGE: u64 = u64::MAX;

/// The page has changes that no completed write covers.
pub(super) const DIRTY: u32 = 1;
/// A write of the page is in flight.
pub(super) const WRITING: u32 = 2;
/// Changed since the copy in flight was made.
pub(super) const REDIRTIED: u32 = 4;
/// Loaded by read-ahead and not accessed yet.
pub(super) const PREFETCHED: u32 = 8;
/// The replacement policy has the page in its lists. Changes under the instance's lock only.
pub(super) const KNOWN: u32 = 16;
/// Loaded on demand; the access that it was loaded for has not been recorded and is no hit.
pub(super) const MISSED: u32 = 32;
/// Not dirty, but not what is stored either: freed while in use, or created and not changed. Not to be offered to the
/// store.
pub(super) const STALE: u32 = 64;
/// Came from the store, and nobody has compared it yet with what refers to it. A hint for the layers above: the pool
/// itself ignores it.
pub(super) const UNCOMPARED: u32 = 128;

/// Empty, and on the free list. Changes under the instance's lock only.
pub(super) const FREE: u32 = 256;

const STATES: [u32; 9] = [DIRTY, WRITING, REDIRTIED, PREFETCHED, KNOWN, MISSED, STALE, UNCOMPARED, FREE];
// A bit for each state, and no other bits.
const _: () = assert!({
    let (mut all, mut i) = (0, 0);
    while i < STATES.len() {
        all ^= STATES[i];
        i += 1;
    }
    all == (1 << STATES.len()) - 1
});

/// How long the first wait for a latch lasts before a look at what it protects.
const PATIENCE: Duration = Duration::from_micros(200);
/// The longest such wait: each lasts twice as long as the one before.
const MOST_PATIENCE: Duration = Duration::from_millis(50);

#[cold]
fn patiently(still: impl Fn() -> bool, lock_for: impl Fn(Duration) -> bool) -> bool {
    let mut time = PATIENCE;
    loop {
        if lock_for(time) {
            return true;
        }
        if !still() {
            return false;
        }
        time = (time * 2).min(MOST_PATIENCE);
    }
}

/// Begins to load `bytes` bytes at an address into the processor's cache: a hint. The bytes are not read.
#[inline(always)]
pub(super) fn fetch(address: usize, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for at in (0..bytes).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing that the program could observe and faults on no address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::without_provenance(address + at)) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (address, bytes);
}

/// A shared/exclusive latch without data of its own. It counts its exclusive holders, so that what it protects may also
/// be read without it and believed afterwards, if nobody was there meanwhile (a sequence lock).
pub(super) struct Latch {
    lock: RwLock<()>,
    writers: Sequence,
}

impl Latch {
    fn new() -> Latch {
        Latch { lock: RwLock::new(()), writers: Sequence::new() }
    }

    /// What to compare with in [`Latch::is_still`] after reading without the latch; none while it is held exclusively.
    #[inline]
    pub(super) fn version(&self) -> Option<u32> {
        self.writers.read()
    }

    /// Whether nothing that was read since [`Latch::version`] can have been written since.
    #[inline]
    pub(super) fn is_still(&self, version: u32) -> bool {
        self.writers.is_still(version)
    }

    #[inline]
    pub(super) fn lock_shared(&self) {
        std::mem::forget(self.lock.read());
    }

    #[inline]
    pub(super) fn lock_exclusive(&self) {
        std::mem::forget(self.lock.write());
        self.writers.enter();
    }

    /// As [`Latch::lock_shared`], but gives up (false) when, after a while, `still` no longer holds.
    #[inline]
    pub(super) fn lock_shared_while(&self, still: impl Fn() -> bool) -> bool {
        self.try_lock_shared() || patiently(still, |time| self.lock.try_read_for(time).map(std::mem::forget).is_some())
    }

    /// As [`Latch::lock_exclusive`], but gives up (false) when, after a while, `still` no longer holds.
    #[inline]
    pub(super) fn lock_exclusive_while(&self, still: impl Fn() -> bool) -> bool {
        self.try_lock_exclusive() || {
            let locked = patiently(still, |time| self.lock.try_write_for(time).map(std::mem::forget).is_some());
            if locked {
                self.writers.enter();
            }
            locked
        }
    }

    #[inline]
    pub(super) fn try_lock_shared(&self) -> bool {
        self.lock.try_read().map(std::mem::forget).is_some()
    }

    #[inline]
    pub(super) fn try_lock_exclusive(&self) -> bool {
        let locked = self.lock.try_write().map(std::mem::forget).is_some();
        if locked {
            self.writers.enter();
        }
        locked
    }

    /// # Safety
    /// The caller holds the latch shared and gives it up.
    #[inline]
    pub(super) unsafe fn unlock_shared(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.lock.force_unlock_read() }
    }

    /// # Safety
    /// The caller holds the latch exclusively and gives it up.
    #[inline]
    pub(super) unsafe fn unlock_exclusive(&self) {
        self.writers.leave();
        // SAFETY: the caller's promise.
        unsafe { self.lock.force_unlock_write() }
    }
}

/// One frame: everything a hit touches lies in one cache line.
#[repr(align(64))]
pub(super) struct Frame {
    pub(super) latch: Latch,
    /// `DIRTY`, `WRITING`, ...
    pub(super) state: AtomicU32,
    /// Id of the page held, or [`NO_PAGE`].
    pub(super) page: AtomicU64,
    /// The next link of the page table's chain: see [`super::table`].
    pub(super) next: AtomicU32,
    pub(super) pins: AtomicU32,
    data: *mut u8,
    /// Page type byte, for statistics.
    pub(super) kind: AtomicU8,
    /// Cost class as last told by the store.
    pub(super) class: AtomicU8,
    logical_reads: AtomicU32,
    demand_reads: AtomicU32,
    writes: AtomicU32,
}

const _: () = assert!(size_of::<Frame>() == 64, "a frame takes one cache line");

// SAFETY: `data` points into the arena, which outlives the frame; access to its bytes follows the latch (see the
// invariants).
unsafe impl Send for Frame {}
// SAFETY: as above.
unsafe impl Sync for Frame {}

impl Frame {
    pub(super) fn new(data: *mut u8) -> Frame {
        Frame {
            latch: Latch::new(),
            state: AtomicU32::new(0),
            page: AtomicU64::new(NO_PAGE),
            next: AtomicU32::new(0),
            pins: AtomicU32::new(0),
            data,
            kind: AtomicU8::new(0),
            class: AtomicU8::new(0),
            logical_reads: AtomicU32::new(0),
            demand_reads: AtomicU32::new(0),
            writes: AtomicU32::new(0),
        }
    }

    /// Where the page's bytes are.
    #[inline]
    pub(super) fn data(&self) -> *mut u8 {
        self.data
    }

    /// The page's bytes, `page_size` of them: to be read by anybody (and believed if the latch says so), changed under
    /// the exclusive latch.
    #[inline]
    pub(super) fn words(&self, page_size: usize) -> Words<'_> {
        // SAFETY: the arena has initialised bytes there for as long as the pool lives, aligned, of whole words
        // (`PoolConfig::validate`). The holder of the exclusive latch changes them through `Words`; plain reads
        // happen under a latch, when nobody changes anything.
        unsafe { Words::new(self.data, page_size) }
    }

    #[inline]
    pub(super) fn holds(&self, id: PageId) -> bool {
        self.page.load(Acquire) == id.0
    }

    pub(super) fn is(&self, bits: u32) -> bool {
        self.state.load(Acquire) & bits != 0
    }

    /// Whether the page was made here, or compared since it was read. Asked with the latch held or within a peek: the
    /// bit is set under the exclusive latch.
    #[inline]
    pub(super) fn is_compared(&self) -> bool {
        self.state.load(Relaxed) & UNCOMPARED == 0
    }

    /// Whether the page could be taken away if the latch is free: clean, no write in flight, no pins.
    pub(super) fn evictable(&self) -> bool {
        self.pins.load(Acquire) == 0 && !self.is(DIRTY | WRITING)
    }

    /// Whether a replacement write may be tried: dirty, none in flight, no pins.
    pub(super) fn flushable(&self) -> bool {
        self.pins.load(Acquire) == 0 && self.state.load(Acquire) & (DIRTY | WRITING) == DIRTY
    }

    /// One more pin. Under the latch, or by who holds a pin.
    #[inline]
    pub(super) fn pin(&self) {
        let before = self.pins.fetch_add(1, AcqRel);
        assert!(before < u32::MAX, "pins are counted");
    }

    /// One pin less.
    #[inline]
    pub(super) fn unpin(&self) {
        let before = self.pins.fetch_sub(1, AcqRel);
        assert!(before > 0, "a pin is given up once");
    }

    /// A write ended that left the page as dirty as it was. Under the instance's lock.
    pub(super) fn unmark_writing(&self) {
        let before = self.state.fetch_and(!WRITING, AcqRel);
        assert!(before & WRITING != 0, "a write ends once");
    }

    /// Takes the exclusive latch if the frame can be taken away from its page now; no waiting.
    pub(super) fn try_claim(&self) -> bool {
        if !self.evictable() || !self.latch.try_lock_exclusive() {
            return false;
        }
        if self.evictable() {
            return true;
        }
        // SAFETY: locked just above.
        unsafe { self.latch.unlock_exclusive() };
        false
    }

    /// Marks the page as about to be written: `DIRTY` without `WRITING` becomes both. Under the shared latch.
    pub(super) fn begin_write(&self) -> bool {
        let claim = |s: u32| (s & DIRTY != 0 && s & WRITING == 0).then_some((s | WRITING) & !REDIRTIED);
        self.state.fetch_update(AcqRel, Acquire, claim).is_ok()
    }

    /// A write ended well: true when the page is clean now, false when it changed meanwhile. Under the instance's lock.
    pub(super) fn end_write(&self) -> bool {
        let end = |s: u32| Some(if s & REDIRTIED != 0 { s & !WRITING } else { s & !(WRITING | DIRTY) });
        let old = self.state.fetch_update(AcqRel, Acquire, end).expect("always some");
        assert!(old & WRITING != 0, "a write ends once");
        assert!(old & (DIRTY | REDIRTIED) != REDIRTIED, "a page that changed again is dirty");
        old & REDIRTIED == 0
    }

    /// Counts an access. Under the instance's lock; a report taken at the same moment may miss it.
    pub(super) fn count_logical(&self) {
        self.logical_reads.store(self.logical_reads.load(Relaxed) + 1, Relaxed);
    }

    pub(super) fn count_demand(&self) {
        self.demand_reads.fetch_add(1, Relaxed);
    }

    pub(super) fn count_write(&self) {
        self.writes.fetch_add(1, Relaxed);
    }

    /// The use of the page since the last call.
    pub(super) fn take_usage(&self) -> PageUse {
        PageUse {
            logical_reads: self.logical_reads.swap(0, Relaxed),
            demand_reads: self.demand_reads.swap(0, Relaxed),
            writes: self.writes.swap(0, Relaxed),
        }
    }
}

/// The frames of an instance, made in their order as they are first needed: a large pool costs neither time nor memory
/// before it is used. As a slice they are those that were made.
pub(super) struct Frames {
    start: NonNull<Frame>,
    /// Frames that there may be.
    most: usize,
    made: AtomicUsize,
    /// The first frame's page; those of the others follow.
    pages: *mut u8,
    page_size: usize,
}

// SAFETY: it owns its frames, which may be sent; `pages` is only handed to them.
unsafe impl Send for Frames {}
// SAFETY: frames that were made do not move and are shared like those of a slice; `made` says which they are.
unsafe impl Sync for Frames {}

impl Frames {
    /// Frames made at a time.
    const CHUNK: usize = 256;

    /// Room for so many frames over pages that lie one after the other.
    pub(super) fn new(most: usize, pages: *mut u8, page_size: usize) -> Result<Frames, DeviceError> {
        assert!(most > 0, "an instance has a frame");
        let refused = || DeviceError::no_memory((most * size_of::<Frame>()) as u64, "the frames of the buffer pool");
        let layout = Layout::array::<Frame>(most).map_err(|_| refused())?;
        // SAFETY: the layout's size is not zero.
        let start = NonNull::new(unsafe { alloc(layout) }.cast::<Frame>()).ok_or_else(refused)?;
        varve_device::prefer_huge_pages(start.as_ptr(), layout.size());
        Ok(Frames { start, most, made: AtomicUsize::new(0), pages, page_size })
    }

    /// Frames that there may be.
    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// Makes some more frames, at most `room`, in the given state. Under the instance's lock. Which; none when all are
    /// made.
    pub(super) fn make(&self, room: usize, state: u32) -> Range<usize> {
        let made = self.made.load(Relaxed);
        let more = made..(made + Self::CHUNK.min(room)).min(self.most);
        for i in more.clone() {
            let frame = Frame::new(self.pages.wrapping_add(i * self.page_size));
            frame.state.store(state, Relaxed);
            // SAFETY: the allocation has room for `most` frames; nobody refers to this one before `made` says so.
            unsafe { self.start.add(i).write(frame) };
        }
        assert!(more.end <= self.most, "no more frames are made than there may be");
        self.made.store(more.end, Release);
        more
    }

    /// Gives the memory of the pages of some neighbouring frames back to the system. The caller has them latched
    /// exclusively, and they are empty.
    pub(super) fn forget(&self, first: usize, count: usize) {
        let some = &self[first..first + count];
        assert!(some.iter().all(|frame| frame.page.load(Acquire) == NO_PAGE), "frames that are forgotten are empty");
        // SAFETY: the pages of neighbouring frames are neighbours; nobody reads or writes those of empty frames but who
        // has them latched, or believes what he read without a latch.
        unsafe { varve_device::forget_memory(some[0].data(), count * self.page_size) }
    }
}

impl Deref for Frames {
    type Target = [Frame];

    #[inline]
    fn deref(&self) -> &[Frame] {
        // SAFETY: as many frames were made, and stay where they are until all of them go.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.made.load(Acquire)) }
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        let made = std::ptr::slice_from_raw_parts_mut(self.start.as_ptr(), self.made.load(Acquire));
        // SAFETY: these frames were made, nobody refers to them any more, and the layout is that of `new`.
        unsafe {
            std::ptr::drop_in_place(made);
            dealloc(self.start.as_ptr().cast(), Layout::array::<Frame>(self.most).expect("as in `new`"));
        }
    }
}

/// The memory of all frames: one allocation, aligned to 4096 bytes, zeroed, touched only when used.
pub(super) struct Arena {
    raw: *mut u8,
    layout: Layout,
    base: *mut u8,
}

// SAFETY: the arena only owns the memory; who may touch which part is the frames' business.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    const ALIGN: usize = 4096;

    pub(super) fn new(bytes: usize) -> Result<Arena, DeviceError> {
        // Asked for with a small alignment and aligned by hand: that way the zeros come from fresh pages of the system
        // and nothing is touched.
        let refused = || DeviceError::no_memory(bytes as u64, "the frames of the buffer pool");
        let layout = Layout::from_size_align(bytes.saturating_add(Self::ALIGN), 16).map_err(|_| refused())?;
        // SAFETY: the layout's size is not zero.
        let raw = unsafe { alloc_zeroed(layout) };
        if raw.is_null() {
            return Err(refused());
        }
        varve_device::prefer_huge_pages(raw, layout.size());
        let base = raw.wrapping_add(raw.align_offset(Self::ALIGN));
        assert!(base.addr().is_multiple_of(Self::ALIGN), "frames are aligned for direct I/O");
        Ok(Arena { raw, layout, base })
    }

    /// Address of byte `at`.
    pub(super) fn at(&self, at: usize) -> *mut u8 {
        assert!(at < self.layout.size() - Self::ALIGN, "frames lie within the arena");
        self.base.wrapping_add(at)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout; the frames that point into it go with the pool.
        unsafe { dealloc(self.raw, self.layout) }
    }
}
