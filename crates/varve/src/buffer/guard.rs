//! What users of the pool hold: latched pages and pins.
//!
//! Dropping a guard releases its latch and never waits. A thread must not latch a page that it has latched already, nor
//! take two latches against the order of `core.rs`.
//!
//! Invariants: a guard holds its frame's latch from when it is made until it is dropped, so the page in the frame stays
//! the same; a page that is stamped is dirty; each pin is counted in its frame until it is dropped.

use super::Pool;
use super::bytes::PageBytes;
use super::changes::Noted;
use super::frame::{DIRTY, Frame, KNOWN, NO_PAGE, REDIRTIED, STALE, UNCOMPARED, WRITING};
use super::instance::Instance;
use super::policy::Slot;
use super::trace::TraceEvent;
use crate::error::Result;
use std::sync::Arc;
use varve_device::Mistake;
use varve_rt::atomic::Ordering::*;
use varve_rt::{Cost, charge};
use varve_volume::{CostClass, Lsn, PageId, PageUse, WriteWhy, page};

/// What becomes of pages in the pool that were written past it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    /// They leave it.
    Nothing,
    /// They stay while an eighth of the frames is free: they will be read soon, and nothing else leaves for them.
    InFreeFrames,
}

/// A frame, by its place in the pool.
#[derive(Clone, Copy)]
pub(super) struct FrameRef<'a> {
    pub(super) pool: &'a Pool,
    pub(super) inst: &'a Instance,
    pub(super) slot: Slot,
}

impl<'a> FrameRef<'a> {
    #[inline]
    pub(super) fn frame(&self) -> &'a Frame {
        self.inst.frame(self.slot)
    }

    #[inline]
    pub(super) fn id(&self) -> PageId {
        PageId(self.frame().page.load(Relaxed))
    }

    /// The page's bytes.
    ///
    /// # Safety
    /// The caller holds the frame's latch, shared or exclusive, for as long as it uses the bytes.
    #[inline]
    pub(super) unsafe fn bytes(&self) -> &'a [u8] {
        // SAFETY: the arena has page_size bytes there, initialised (zeroed at allocation); nobody writes while the
        // latch is held by the caller.
        unsafe { std::slice::from_raw_parts(self.frame().data(), self.pool.page_size()) }
    }

    /// Runs `compare` unless it ran well since the page was read from the store. The caller holds the frame's latch.
    #[inline]
    fn compare_once(&self, compare: impl FnOnce() -> Result<()>) -> Result<()> {
        if !self.frame().is_compared() {
            compare()?;
            self.frame().state.fetch_and(!UNCOMPARED, AcqRel);
        }
        Ok(())
    }

    fn pin(&self) -> PagePin<'a> {
        debug_assert!(self.frame().page.load(Relaxed) != NO_PAGE, "who pins a page has one");
        self.frame().pin();
        PagePin(*self)
    }

    /// Latches the frame shared; the page in it may have become another one.
    #[inline]
    pub(super) fn read(self) -> PageRead<'a> {
        self.frame().latch.lock_shared();
        PageRead(self)
    }

    /// As [`FrameRef::read`], but gives up when the frame no longer holds `id`.
    #[inline]
    pub(super) fn read_while(self, id: PageId) -> Option<PageRead<'a>> {
        let frame = self.frame();
        frame.latch.lock_shared_while(|| frame.holds(id)).then(|| PageRead(self))
    }

    /// As [`FrameRef::lock`], but gives up when the frame no longer holds `id`.
    #[inline]
    pub(super) fn lock_while(self, id: PageId) -> Option<Exclusive<'a>> {
        let frame = self.frame();
        if frame.latch.lock_exclusive_while(|| frame.holds(id)) { Some(Exclusive(self)) } else { None }
    }

    /// As [`FrameRef::read`], without waiting.
    pub(super) fn try_read(self) -> Option<PageRead<'a>> {
        self.frame().latch.try_lock_shared().then(|| PageRead(self))
    }

    /// Latches the frame exclusively; the page in it may have become another one.
    #[inline]
    pub(super) fn lock(self) -> Exclusive<'a> {
        self.frame().latch.lock_exclusive();
        Exclusive(self)
    }

    /// As [`FrameRef::lock`], without waiting.
    pub(super) fn try_lock(self) -> Option<Exclusive<'a>> {
        if self.frame().latch.try_lock_exclusive() { Some(Exclusive(self)) } else { None }
    }

    /// Latches the frame exclusively if it can be taken away from its page now; no waiting.
    pub(super) fn try_claim(self) -> Option<Exclusive<'a>> {
        if self.frame().try_claim() { Some(Exclusive(self)) } else { None }
    }
}

/// A frame under its exclusive latch while the pool itself works on it. It is unlatched by [`Exclusive::unlatch`] only:
/// dropped by a panic or a power cut it stays latched, for nobody could trust what it holds.
#[must_use = "a frame dropped latched stays latched"]
pub(super) struct Exclusive<'a>(FrameRef<'a>);

impl<'a> Exclusive<'a> {
    pub(super) fn at(&self) -> FrameRef<'a> {
        self.0
    }

    pub(super) fn frame(&self) -> &'a Frame {
        self.0.frame()
    }

    /// The page's bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: self holds the exclusive latch, and gives no mutable access.
        unsafe { self.0.bytes() }
    }

    #[inline]
    pub(super) fn unlatch(self) {
        // SAFETY: self holds the exclusive latch and is gone.
        unsafe { self.frame().latch.unlock_exclusive() }
        std::mem::forget(self);
    }

    /// Hands the latch to a user of the pool.
    #[inline]
    pub(super) fn into_write(self, fresh: bool) -> PageWrite<'a> {
        let at = self.0;
        std::mem::forget(self);
        PageWrite { at, fresh }
    }

    /// Pins the page, then unlatches it.
    pub(super) fn into_pin(self) -> PagePin<'a> {
        let pin = self.0.pin();
        self.unlatch();
        pin
    }
}

/// Code with a latched frame unlatches it or hands it on. Only a panic drops it, in the middle of the work (it can
/// happen in the log, which is forced here): then nobody may wait for the latch for ever.
impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        let frame = self.frame();
        // Whether a page that was being loaded or evicted is in the frame is not known: it is loaded again, elsewhere.
        // A dirty one is in memory alone, and stays.
        if !frame.is(KNOWN | DIRTY) {
            frame.page.store(NO_PAGE, Release);
        }
        // SAFETY: self holds the exclusive latch and is gone.
        unsafe { frame.latch.unlock_exclusive() }
    }
}

/// A page under its shared latch.
pub struct PageRead<'a>(FrameRef<'a>);

/// A latched page, as who reached it through another page sees it.
pub(crate) trait Latched {
    /// The page's id.
    fn id(&self) -> PageId;
    /// The whole page, header included.
    fn bytes(&self) -> &[u8];
    /// Whether the page was compared with what refers to it since it was read from the store (or was made here).
    fn is_compared(&self) -> bool;
    /// Compares the page with what refers to it, unless that was done since it was read from the store.
    fn compare_once(&self, compare: impl FnOnce() -> Result<()>) -> Result<()>;
}

macro_rules! latched {
    ($guard:ident, $at:tt) => {
        impl Latched for $guard<'_> {
            #[inline]
            fn id(&self) -> PageId {
                self.$at.id()
            }

            #[inline]
            fn bytes(&self) -> &[u8] {
                self.bytes()
            }

            #[inline]
            fn is_compared(&self) -> bool {
                self.$at.frame().is_compared()
            }

            #[inline]
            fn compare_once(&self, compare: impl FnOnce() -> Result<()>) -> Result<()> {
                self.$at.compare_once(compare)
            }
        }
    };
}

latched!(PageRead, 0);
latched!(PageWrite, at);

/// A page under its exclusive latch.
pub struct PageWrite<'a> {
    at: FrameRef<'a>,
    /// Made by `create` and not dirty yet: dropped like this, it leaves the pool again.
    fresh: bool,
}

/// A pin that does not borrow the pool, for who needs a page as long as the pool itself.
pub(crate) struct KeptPage {
    pool: Arc<Pool>,
    id: PageId,
    slot: Slot,
}

/// A resident page that stays resident; no latch is held. It may be changed, freed, even become another page of the
/// same id meanwhile: who latches it validates what it finds.
pub struct PagePin<'a>(FrameRef<'a>);

impl<'a> PageRead<'a> {
    /// The whole page, header included.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: self holds the shared latch.
        unsafe { self.0.bytes() }
    }

    /// The page's id.
    #[inline]
    pub fn id(&self) -> PageId {
        self.0.id()
    }

    /// LSN of the page's last change.
    #[inline]
    pub fn lsn(&self) -> Lsn {
        page::lsn(self.bytes())
    }

    /// Whether the store has the page as it is here.
    pub(crate) fn is_stored(&self) -> bool {
        !self.0.frame().is(DIRTY | WRITING | STALE)
    }

    /// Keeps the page resident beyond the latch.
    pub fn pin(&self) -> PagePin<'a> {
        self.0.pin()
    }
}

impl Drop for PageRead<'_> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: self holds the shared latch.
        unsafe { self.0.frame().latch.unlock_shared() }
    }
}

impl<'a> PageWrite<'a> {
    /// The whole page, header included.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: self holds the exclusive latch.
        unsafe { self.at.bytes() }
    }

    /// The whole page for changing. The caller calls [`PageWrite::set_dirty`] before it changes the page, or at the
    /// latest while it still holds the latch. Only log groups and recovery do that.
    #[inline]
    pub fn bytes_mut(&mut self) -> PageBytes<'_> {
        if let Some(tracer) = &self.at.pool.tracer
            && !self.fresh
            && !self.at.frame().is(DIRTY | STALE)
        {
            tracer.changing(self.id(), self.bytes());
        }
        // SAFETY: self holds the exclusive latch and is borrowed mutably.
        unsafe { PageBytes::new(self.at.frame().words(self.at.pool.page_size()), self.noted()) }
    }

    /// The page's id.
    #[inline]
    pub fn id(&self) -> PageId {
        self.at.id()
    }

    /// LSN of the page's last change.
    #[inline]
    pub fn lsn(&self) -> Lsn {
        page::lsn(self.bytes())
    }

    /// Keeps the page resident beyond the latch.
    pub fn pin(&self) -> PagePin<'a> {
        self.at.pin()
    }

    /// Whether the page has changes that are not stored.
    pub fn is_dirty(&self) -> bool {
        self.at.frame().is(DIRTY)
    }

    /// The page is being changed by a group whose place in the log is not below `first_change`. Called before that
    /// place is reserved; does nothing but note the change when the page is dirty already.
    pub fn set_dirty(&self, first_change: Lsn) {
        let FrameRef { pool, inst, slot } = self.at;
        let old = self.at.frame().state.fetch_or(DIRTY | REDIRTIED, AcqRel);
        if old & STALE != 0 {
            self.at.frame().state.fetch_and(!STALE, AcqRel);
        }
        if old & DIRTY == 0 {
            inst.dirtied(&mut inst.lock(), slot, first_change);
            let keyspace = page::keyspace(self.bytes());
            pool.store().dirtied(self.id(), keyspace, self.at.frame().take_usage());
        }
    }

    pub(super) fn frame(&self) -> &'a Frame {
        self.at.frame()
    }

    /// Where changes of the page are noted, if the store has a use for them.
    #[inline]
    fn noted(&self) -> Option<Noted<'_>> {
        let noted = self.at.inst.changes.of(self.at.slot);
        noted.filter(|_| !self.at.pool.faults().has(Mistake::ChangesNotNoted))
    }

    /// The page is made anew: the store may have another one in its place, or none.
    pub(super) fn is_new(&self) {
        self.at.inst.changes.is_new(self.at.slot);
    }

    /// A page made anew that the store holds now, as `bytes`: it leaves the pool, or stays clean where it is kept or
    /// somebody looks for it already.
    pub(super) fn was_stored(mut self, bytes: &[u8], class: CostClass, keep: Keep) {
        assert!(self.fresh && !self.is_dirty(), "pages that were just made are stored past the log, no others");
        let FrameRef { pool, inst, slot } = self.at;
        let id = self.id();
        let kept = keep == Keep::InFreeFrames && inst.lock().has_free_frames();
        let freed = !kept && pool.forget_fresh(self.at);
        if freed {
            self.fresh = false;
            pool.store().evicted(id, page::keyspace(bytes), PageUse::default());
        } else {
            charge(Cost::CopyByte, bytes.len() as u64);
            // Still as a page made anew, which has nothing that was stored before.
            self.bytes_mut().write(0, bytes);
            self.fresh = false;
            self.at.frame().state.fetch_and(!STALE, AcqRel);
            inst.set_class(&mut inst.lock(), slot, class, Some(WriteWhy::Load), pool.counters());
        }
        drop(self);
        if freed {
            inst.frame_freed();
        }
    }

    /// Sets the LSN of the last change: the end of the group that made it.
    pub fn stamp(&mut self, lsn: Lsn) {
        assert!(self.is_dirty(), "page {} is stamped but not dirty", self.id());
        debug_assert!(lsn >= self.lsn(), "a page's LSN goes forwards");
        self.bytes_mut().header(|header| page::set_lsn(header, lsn));
    }
}

impl Drop for PageWrite<'_> {
    #[inline]
    fn drop(&mut self) {
        let frame = self.at.frame();
        let kind = page::kind(self.bytes());
        if frame.kind.load(Relaxed) != kind {
            frame.kind.store(kind, Relaxed);
        }
        let freed = self.fresh && !frame.is(DIRTY) && self.at.pool.forget_fresh(self.at);
        if self.fresh && !freed && !frame.is(DIRTY) {
            frame.state.fetch_or(STALE, AcqRel);
        }
        // SAFETY: self holds the exclusive latch.
        unsafe { frame.latch.unlock_exclusive() }
        if freed {
            self.at.inst.frame_freed();
        }
    }
}

impl<'a> PagePin<'a> {
    /// Latches the page shared.
    pub fn read(&self) -> PageRead<'a> {
        charge(Cost::PageAccess, 1);
        let at = self.0;
        let read = at.read();
        at.inst.hit(at.slot, at.id(), at.pool.counters());
        at.pool.trace(TraceEvent::Read(at.id()));
        read
    }

    /// Latches the page exclusively.
    pub fn write(&self) -> PageWrite<'a> {
        charge(Cost::PageAccess, 1);
        let at = self.0;
        let write = at.lock().into_write(false);
        at.inst.hit(at.slot, at.id(), at.pool.counters());
        at.pool.trace(TraceEvent::Write(at.id()));
        write
    }

    /// The page's id.
    pub fn id(&self) -> PageId {
        self.0.id()
    }

    /// The same pin for somebody who keeps the pool himself.
    pub(crate) fn keep(self, pool: &Arc<Pool>) -> KeptPage {
        assert!(std::ptr::eq(self.0.pool, Arc::as_ptr(pool)), "a page is kept in its own pool");
        self.0.frame().pin();
        KeptPage { pool: pool.clone(), id: self.id(), slot: self.0.slot }
    }
}

impl Drop for KeptPage {
    fn drop(&mut self) {
        let frame = self.pool.instance(self.id).frame(self.slot);
        assert!(frame.holds(self.id), "a page that is pinned keeps its frame");
        frame.unpin();
    }
}

impl Clone for PagePin<'_> {
    fn clone(&self) -> Self {
        self.0.pin()
    }
}

impl Drop for PagePin<'_> {
    fn drop(&mut self) {
        self.0.frame().unpin();
    }
}

impl std::fmt::Debug for PageRead<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PageRead({})", self.id())
    }
}

impl std::fmt::Debug for PageWrite<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PageWrite({})", self.id())
    }
}

impl std::fmt::Debug for PagePin<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PagePin({})", self.id())
    }
}
