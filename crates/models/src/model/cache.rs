//! The volatile write cache of a solid-state drive, as far as a power cut is concerned: completed writes, oldest first,
//! which leave for the media when newer ones need the room, or at a flush. It costs no time of its own: what a drive
//! takes for a write includes it.
//!
//! Invariants: `used` is the sum of the lengths of `writes`, and at most `size` between two calls; writes leave in the
//! order in which they came.

use super::{Arrival, Schedule};
use std::collections::VecDeque;
use varve_device::OpKind;
use varve_rt::Instant;

/// Completed writes that are not on media yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct WriteCache {
    /// Bytes it can hold; 0: there is none.
    size: u64,
    used: u64,
    writes: VecDeque<(u64, u64)>,
}

impl WriteCache {
    pub(crate) fn new(size: u64) -> WriteCache {
        WriteCache { size, ..WriteCache::default() }
    }

    pub(crate) fn exists(&self) -> bool {
        self.size > 0
    }

    /// Request `r` completes at `end`: a write that need not be durable enters the cache, a flush empties it.
    pub(crate) fn completed(&mut self, r: &Arrival, end: Instant, out: &mut Schedule) {
        out.done(r.id, end);
        match r.op {
            OpKind::Write if !r.durable => self.enter(r.id, r.len, end, out),
            OpKind::Flush => self.flush(),
            _ => {}
        }
    }

    /// Write `id` of `len` bytes enters when it completes at `at`.
    fn enter(&mut self, id: u64, len: u64, at: Instant, out: &mut Schedule) {
        if !self.exists() {
            return;
        }
        assert!(self.writes.back().is_none_or(|(last, _)| *last < id), "requests come in the order of their numbers");
        self.writes.push_back((id, len));
        self.used += len;
        while self.used > self.size {
            let (id, len) = self.writes.pop_front().expect("something is in it");
            self.used -= len;
            out.stored(id, at);
        }
        debug_assert_eq!(self.used, self.writes.iter().map(|(_, len)| len).sum::<u64>());
    }

    /// What is in it reaches the media by itself at a flush.
    pub(crate) fn flush(&mut self) {
        self.writes.clear();
        self.used = 0;
    }
}
