//! A sequence lock's count: tells a reader without a lock whether somebody was writing meanwhile.
//! (`tests/latch_loom.rs` compiles this file against loom's atomics.)
//!
//! Invariants: odd while somebody writes, who holds a lock of its own kind; each writer adds two. The orders:
//! - [`Sequence::leave`] releases and [`Sequence::read`] acquires: a reader sees all that earlier writers stored.
//! - The fences of [`Sequence::enter`] and [`Sequence::is_still`] pair: a reader that sees one store of a later writer
//!   sees his odd count afterwards.
//!
//! The data in between is loaded and stored by relaxed atomics. A reader would have to sleep through 2^31 writers to be
//! misled.

use super::atomic::{AtomicU32, Ordering::*, fence};

pub(super) struct Sequence(AtomicU32);

impl Sequence {
    pub(super) fn new() -> Sequence {
        Sequence(AtomicU32::new(0))
    }

    /// The writer is alone now and has not stored anything yet.
    #[inline]
    pub(super) fn enter(&self) {
        let count = self.0.load(Relaxed);
        assert!(count.is_multiple_of(2), "one writes at a time");
        self.0.store(count.wrapping_add(1), Relaxed);
        fence(Release);
    }

    /// The writer has stored everything and is still alone.
    #[inline]
    pub(super) fn leave(&self) {
        let count = self.0.load(Relaxed);
        assert!(!count.is_multiple_of(2), "who leaves was writing");
        self.0.store(count.wrapping_add(1), Release);
    }

    /// What to compare with in [`Sequence::is_still`] after reading; none while somebody writes.
    #[inline]
    pub(super) fn read(&self) -> Option<u32> {
        let count = self.0.load(Acquire);
        count.is_multiple_of(2).then_some(count)
    }

    /// Whether nothing that was loaded since [`Sequence::read`] can have been stored since.
    #[inline]
    pub(super) fn is_still(&self, count: u32) -> bool {
        fence(Acquire);
        self.0.load(Relaxed) == count
    }
}
