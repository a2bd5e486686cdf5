//! Staging buffers: aligned copies of pages on their way to the store. A bounded number, made as they are first needed.
//!
//! Deadlock rule: a writer waits for a buffer only while it holds none (neither staged nor in flight).
//!
//! Invariants: buffers that are free, out, and not made yet are as many as configured; each has the size of a page.

use varve_device::AlignedBuf;
use varve_rt::{Condvar, Mutex};

struct Inner {
    free: Vec<AlignedBuf>,
    /// Buffers that may still be made.
    unmade: usize,
}

pub(super) struct Staging {
    inner: Mutex<Inner>,
    returned: Condvar,
    buffers: usize,
    page_size: usize,
}

impl Staging {
    pub(super) fn new(buffers: usize, page_size: usize) -> Staging {
        let inner = Inner { free: Vec::with_capacity(buffers), unmade: buffers };
        assert!(buffers > 0, "who waits for a buffer gets one");
        Staging { inner: Mutex::new(inner), returned: Condvar::new(), buffers, page_size }
    }

    /// A buffer, if one is free.
    pub(super) fn try_take(&self) -> Option<AlignedBuf> {
        self.take_from(&mut self.inner.lock())
    }

    /// A buffer; waits for one. See the deadlock rule above.
    pub(super) fn take(&self) -> AlignedBuf {
        let mut inner = self.inner.lock();
        loop {
            if let Some(buf) = self.take_from(&mut inner) {
                return buf;
            }
            self.returned.wait(&mut inner);
        }
    }

    fn take_from(&self, inner: &mut Inner) -> Option<AlignedBuf> {
        if let Some(buf) = inner.free.pop() {
            return Some(buf);
        }
        inner.unmade = inner.unmade.checked_sub(1)?;
        Some(AlignedBuf::new(self.page_size))
    }

    /// Gives a buffer back.
    pub(super) fn give(&self, buf: AlignedBuf) {
        assert_eq!(buf.len(), self.page_size, "a staging buffer holds a page");
        {
            let mut inner = self.inner.lock();
            assert!(inner.free.len() + inner.unmade < self.buffers, "a buffer that is given back was taken");
            inner.free.push(buf);
        }
        self.returned.notify_one();
    }
}
