//! What users of the pool hold: latched pages and pins.
//!
//! Dropping a guard releases its latch and never waits. A thread must not latch a page that it has latched already, nor take
//! two latches against the order of `core.rs`.

use super::Pool;
use super::frame::{DIRTY, Frame, REDIRTIED, STALE};
use super::instance::Instance;
use super::policy::Slot;
use varve_rt::atomic::Ordering::*;
use varve_volume::{Lsn, PageId, page};

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
        // SAFETY: the arena has page_size bytes there, initialised (zeroed at allocation); nobody writes while the latch is
        // held by the caller.
        unsafe { std::slice::from_raw_parts(self.frame().data(), self.pool.page_size()) }
    }

    fn pin(&self) -> PagePin<'a> {
        self.frame().pins.fetch_add(1, AcqRel);
        PagePin(*self)
    }
}

/// A page under its shared latch.
pub struct PageRead<'a>(FrameRef<'a>);

/// A page under its exclusive latch.
pub struct PageWrite<'a> {
    at: FrameRef<'a>,
    /// Made by `create` and not dirty yet: dropped like this, it leaves the pool again.
    fresh: bool,
}

/// A resident page that stays resident; no latch is held. It may be changed, freed, even become another page of the same id
/// meanwhile: who latches it validates what it finds.
pub struct PagePin<'a>(FrameRef<'a>);

impl<'a> PageRead<'a> {
    /// Wraps a shared latch that the caller holds.
    #[inline]
    pub(super) fn held(at: FrameRef<'a>) -> PageRead<'a> {
        PageRead(at)
    }

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
    /// Wraps an exclusive latch that the caller holds.
    #[inline]
    pub(super) fn held(at: FrameRef<'a>, fresh: bool) -> PageWrite<'a> {
        PageWrite { at, fresh }
    }

    /// The whole page, header included.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: self holds the exclusive latch.
        unsafe { self.at.bytes() }
    }

    /// The whole page for changing. Whoever changes it calls [`PageWrite::set_dirty`] before, or at the latest while still
    /// holding the latch. Only log groups and recovery do that.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: self holds the exclusive latch, and `&mut self` makes this the only slice.
        unsafe { std::slice::from_raw_parts_mut(self.at.frame().data(), self.at.pool.page_size()) }
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

    /// The page is being changed by a group whose place in the log is not below `first_change`. Called before that place is
    /// reserved; does nothing but note the change when the page is dirty already.
    pub fn set_dirty(&self, first_change: Lsn) {
        let FrameRef { pool, inst, slot } = self.at;
        let old = self.at.frame().state.fetch_or(DIRTY | REDIRTIED, AcqRel);
        if old & STALE != 0 {
            self.at.frame().state.fetch_and(!STALE, AcqRel);
        }
        if old & DIRTY == 0 {
            inst.dirtied(&mut inst.lock(), slot, first_change);
            pool.store().dirtied(self.id());
        }
    }

    /// Sets the LSN of the last change: the end of the group that made it.
    pub fn stamp(&mut self, lsn: Lsn) {
        debug_assert!(self.is_dirty(), "page {} is stamped but not dirty", self.id());
        page::set_lsn(self.bytes_mut(), lsn);
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
        if self.fresh && !frame.is(DIRTY) {
            if self.at.pool.forget_fresh(self.at) {
                return;
            }
            frame.state.fetch_or(STALE, AcqRel);
        }
        // SAFETY: self holds the exclusive latch.
        unsafe { frame.latch.unlock_exclusive() }
    }
}

impl<'a> PagePin<'a> {
    /// Wraps a pin that the caller holds.
    pub(super) fn held(at: FrameRef<'a>) -> PagePin<'a> {
        PagePin(at)
    }

    /// Latches the page shared.
    pub fn read(&self) -> PageRead<'a> {
        let at = self.0;
        at.frame().latch.lock_shared();
        at.inst.hit(at.slot, at.id(), at.pool.counters());
        PageRead(at)
    }

    /// Latches the page exclusively.
    pub fn write(&self) -> PageWrite<'a> {
        let at = self.0;
        at.frame().latch.lock_exclusive();
        at.inst.hit(at.slot, at.id(), at.pool.counters());
        PageWrite::held(at, false)
    }

    /// The page's id.
    pub fn id(&self) -> PageId {
        self.0.id()
    }
}

impl Clone for PagePin<'_> {
    fn clone(&self) -> Self {
        self.0.pin()
    }
}

impl Drop for PagePin<'_> {
    fn drop(&mut self) {
        let before = self.0.frame().pins.fetch_sub(1, AcqRel);
        debug_assert!(before > 0, "unbalanced pin");
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
