//! The bytes of a page under its exclusive latch, for changing.
//!
//! Somebody may look at them without a latch meanwhile (`peek`), so they are stored by [`Words`], and nobody ever has a
//! `&mut [u8]` of a frame.

use super::changes::Noted;
use varve_device::Words;
use varve_volume::page::HEADER;

/// See the module. Offsets count from the start of the page.
pub struct PageBytes<'a> {
    words: Words<'a>,
    /// Takes note of what changes, if the store has a use for it.
    noted: Option<Noted<'a>>,
}

impl<'a> PageBytes<'a> {
    /// # Safety
    /// The caller holds the page's latch exclusively for the lifetime, and nothing else reads or changes the page
    /// through it.
    #[inline]
    pub(super) unsafe fn new(words: Words<'a>, noted: Option<Noted<'a>>) -> PageBytes<'a> {
        PageBytes { words, noted }
    }

    /// The page as it is now.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: initialised bytes; only self changes them, and not while this is borrowed.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr(), self.words.bytes()) }
    }

    /// Overwrites the bytes from `at` on.
    #[inline]
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        if let Some(noted) = self.noted {
            noted.overwritten(at, &self.bytes()[at..at + bytes.len()], bytes);
        }
        self.words.store(at, bytes);
    }

    /// Moves `len` bytes from one place to another; they may overlap.
    #[inline]
    pub fn shift(&mut self, from: usize, to: usize, len: usize) {
        if let Some(noted) = self.noted {
            let bytes = self.bytes();
            noted.overwritten(to, &bytes[to..to + len], &bytes[from..from + len]);
        }
        self.words.shift(from, to, len);
    }

    /// Overwrites the page by zeros.
    pub fn clear(&mut self) {
        if let Some(noted) = self.noted {
            noted.many();
        }
        self.words.clear(0..self.words.bytes());
    }

    /// Changes fields of the page's header.
    #[inline]
    pub fn header(&mut self, f: impl FnOnce(&mut [u8; HEADER])) {
        let mut header = *self.bytes().first_chunk().expect("a page has a header");
        f(&mut header);
        self.write(0, &header);
    }

    /// Changes the page freely: a copy is changed and put in its place.
    pub fn rewrite<R>(&mut self, f: impl FnOnce(&mut [u8]) -> R) -> R {
        let mut copy = self.bytes().to_vec();
        let result = f(&mut copy);
        self.write(0, &copy);
        result
    }
}
