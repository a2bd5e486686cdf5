//! What the extents of an array are used for: requests since it was opened, and whether somebody said that nothing
//! changes them.
//!
//! Counts are relaxed atomics: a request adds to two of them, and nothing is ordered by them. They stay when the table
//! changes, also those of an extent that moved.
//!
//! Invariants: counts only rise; an extent that is written is sealed no more.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use varve_device::{Hint, Op};
use varve_rt::Instant;

/// Extents whose counters lie together.
const CHUNK: usize = 64;

/// Counters of one extent.
#[derive(Default)]
struct Counters {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    write_bytes: AtomicU64,
    /// When the last write began; 0: there was none.
    last_write: AtomicU64,
    sealed: AtomicBool,
}

/// What was asked of an extent since the array was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Requests that read of it.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Requests that wrote to it.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// When the last write began, nanoseconds of the clock of [`varve_rt::now`].
    pub last_write: Option<u64>,
    /// Somebody said that nothing changes it, and nothing has since.
    pub sealed: bool,
}

impl Counters {
    fn read_out(&self) -> Used {
        let last = self.last_write.load(Relaxed);
        Used {
            reads: self.reads.load(Relaxed),
            read_bytes: self.read_bytes.load(Relaxed),
            writes: self.writes.load(Relaxed),
            write_bytes: self.write_bytes.load(Relaxed),
            last_write: (last > 0).then_some(last),
            sealed: self.sealed.load(Relaxed),
        }
    }

    fn read(&self, bytes: u64) {
        self.reads.fetch_add(1, Relaxed);
        self.read_bytes.fetch_add(bytes, Relaxed);
    }

    fn write(&self, bytes: u64, now: u64) {
        self.writes.fetch_add(1, Relaxed);
        self.write_bytes.fetch_add(bytes, Relaxed);
        self.last_write.fetch_max(now.max(1), Relaxed);
        if self.sealed.load(Relaxed) {
            self.sealed.store(false, Relaxed);
        }
    }
}

/// Counters of all extents.
#[derive(Clone, Default)]
pub(super) struct Uses(Vec<Arc<[Counters; CHUNK]>>);

impl Uses {
    /// The same, with counters for so many extents at least.
    pub fn with_room(mut self, extents: usize) -> Uses {
        let chunk = || Arc::new(std::array::from_fn(|_| Counters::default()));
        self.0.resize_with(extents.div_ceil(CHUNK).max(self.0.len()), chunk);
        assert!(self.0.len() * CHUNK >= extents, "each extent has its counters");
        self
    }

    fn of(&self, extent: usize) -> &Counters {
        &self.0[extent / CHUNK][extent % CHUNK]
    }

    /// A request for bytes `from` to `to` of the array, of which an extent has `extent`.
    pub fn count(&self, op: Op, (from, to): (u64, u64), extent: u64, now: Instant) {
        debug_assert!(from <= to && extent > 0, "a request has a beginning and an end");
        let mut at = from;
        while at < to {
            let index = at / extent;
            let end = to.min((index + 1) * extent);
            let counters = self.of(index as usize);
            match op {
                Op::Read => counters.read(end - at),
                Op::Write { .. } => counters.write(end - at, now.as_nanos()),
                Op::Flush | Op::Trim => {}
            }
            at = end;
        }
    }

    /// Takes a hint for a range of bytes; sealed are the extents that lie in it as a whole.
    pub fn hint(&self, range: &Range<u64>, extent: u64, hint: Hint) {
        assert!(range.start <= range.end, "a range ends where it begins, or later");
        let (first, end) = match hint {
            Hint::Sealed => (range.start.div_ceil(extent), range.end / extent),
            Hint::Changing => (range.start / extent, range.end.div_ceil(extent)),
            Hint::Identity => return,
        };
        let known = (self.0.len() * CHUNK) as u64;
        for index in first..end.min(known) {
            self.of(index as usize).sealed.store(hint == Hint::Sealed, Relaxed);
        }
    }

    /// What was asked of each of the first extents.
    pub fn read_out(&self, extents: usize) -> Vec<Used> {
        (0..extents).map(|extent| self.of(extent).read_out()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_where_they_go_and_a_write_breaks_the_seal() {
        let uses = Uses::default().with_room(3);
        let at = varve_rt::now();
        uses.hint(&(50..300), 100, Hint::Sealed);
        let sealed = |uses: &Uses| uses.read_out(3).iter().map(|used| used.sealed).collect::<Vec<_>>();
        assert_eq!(sealed(&uses), [false, true, true], "half an extent is not sealed");
        uses.count(Op::Read, (50, 250), 100, at);
        uses.count(Op::Write { durable: false }, (199, 200), 100, at);
        assert_eq!(sealed(&uses), [false, false, true]);
        let used = uses.read_out(3);
        assert_eq!(used.iter().map(|u| (u.reads, u.read_bytes)).collect::<Vec<_>>(), [(1, 50), (1, 100), (1, 50)]);
        assert_eq!(used.iter().map(|u| (u.writes, u.write_bytes)).collect::<Vec<_>>(), [(0, 0), (1, 1), (0, 0)]);
        assert_eq!(used.iter().map(|u| u.last_write.is_some()).collect::<Vec<_>>(), [false, true, false]);
        // What grows keeps its counts; a hint for a part says that anybody may write.
        let uses = uses.clone().with_room(200);
        uses.hint(&(299..300), 100, Hint::Changing);
        assert_eq!(sealed(&uses), [false, false, false]);
        assert_eq!(uses.read_out(200)[1].reads, 1);
    }
}
