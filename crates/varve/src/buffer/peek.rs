//! Looking at a resident page without its latch.
//!
//! A descent through inner nodes, which hardly ever change, would else write to the cache lines of their latches, the
//! root's in every operation of every thread. What a [`PagePeek`] shows may be torn and means nothing until
//! [`PagePeek::is_valid`] has said that nobody held the latch exclusively meanwhile (optimistic lock coupling: Leis,
//! Haubenschild, Neumann, "Optimistic Lock Coupling", IEEE Data Engineering Bulletin 42(1), 2019).

use super::Pool;
use super::guard::FrameRef;
use super::trace::TraceEvent;
use std::sync::atomic::AtomicU64;
use varve_device::Words;
use varve_rt::{Cost, charge};
use varve_volume::PageId;

/// A page that may change, or become another one, while it is looked at.
#[derive(Clone, Copy)]
pub struct PagePeek<'a> {
    at: FrameRef<'a>,
    id: PageId,
    version: u32,
    words: Words<'a>,
}

impl Pool {
    /// Looks at a page without latching it. None when the page table's lookup without a lock does not find it, or while
    /// it is latched exclusively.
    #[inline]
    pub fn peek(&self, id: PageId) -> Option<PagePeek<'_>> {
        charge(Cost::PageAccess, 1);
        let inst = self.instance(id);
        let at = self.at(inst, inst.hint(id)?);
        let frame = at.frame();
        let version = frame.latch.version()?;
        frame.holds(id).then(|| PagePeek { at, id, version, words: frame.words(self.page_size()) })
    }
}

impl PagePeek<'_> {
    /// Whether all that was read through this so far is what the page held, at one moment since the peek began.
    #[inline]
    pub fn is_valid(&self) -> bool {
        self.at.frame().latch.is_still(self.version)
    }

    /// Whether the page was compared with what refers to it since it was read from the store. Counts if the peek is
    /// valid afterwards.
    #[inline]
    pub fn is_compared(&self) -> bool {
        self.at.frame().is_compared()
    }

    /// Records the access, as latching the page would have done. For a peek that was valid.
    #[inline]
    pub fn accessed(&self) {
        self.at.inst.hit(self.at.slot, self.id, self.at.pool.counters());
        self.at.pool.trace(TraceEvent::Read(self.id));
    }

    /// Bytes of the page, header included.
    #[inline]
    pub fn page_size(&self) -> usize {
        self.words.bytes()
    }

    /// Byte `at`, perhaps torn; zero beyond the page's end.
    #[inline]
    pub fn byte(&self, at: usize) -> u8 {
        self.words.byte(at)
    }

    /// The little-endian number in the eight bytes from `at` on, a multiple of eight; perhaps torn; zero beyond the
    /// page's end.
    #[inline]
    pub fn word(&self, at: usize) -> u64 {
        debug_assert!(at.is_multiple_of(8));
        self.words.word(at)
    }

    /// So many words from byte `at` on, a multiple of eight, each perhaps torn from the others; none when they are not
    /// all within the page.
    #[inline]
    pub fn words(&self, at: usize, words: usize) -> Option<&[AtomicU64]> {
        self.words.slice(at, words)
    }

    /// As [`PagePeek::word`], from any byte on.
    #[inline]
    pub fn unaligned_word(&self, at: usize) -> u64 {
        self.words.unaligned_word(at)
    }
}
