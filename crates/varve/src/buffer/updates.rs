//! Sizes of page updates, by keyspace, and the latest flushes: what the flash advisor goes by.
//!
//! There only where somebody compares or notes what changes: a trace, native flash with delta records, or
//! `Options::update_sizes`.
//!
//! Invariants: an update is in one class of sizes, or among those of which only is known that they were larger; no more
//! flushes are kept than there is memory for.
//!
//! Lock order: the lock is a leaf; taken once for each page that is written.

use super::Pool;
use super::trace::{Changed, Flush};
use std::collections::{BTreeMap, VecDeque};
use varve_rt::Mutex;
use varve_volume::{KeyspaceId, PageId, WriteWhy, page};

/// Upper ends of the classes of sizes, bytes; what is larger has a class of its own. 16, 22, 42 and 52 are those of the
/// published distributions (Hardock et al., SIGMOD 2017).
pub const UPDATE_BOUNDS: [u32; 14] = [4, 8, 12, 16, 22, 32, 42, 52, 64, 85, 128, 200, 341, 1024];
const CLASSES: usize = UPDATE_BOUNDS.len() + 1;
const _: () = {
    let mut at = 1;
    while at < UPDATE_BOUNDS.len() {
        assert!(UPDATE_BOUNDS[at - 1] < UPDATE_BOUNDS[at], "each size is of one class");
        at += 1;
    }
};

/// Writes of the pages of a keyspace, and how much they changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UpdateSizes {
    /// Pages written that were made here and not read back since.
    pub new: u64,
    /// Other pages written: updates of what is stored.
    pub updates: u64,
    /// Of the updates, those of which it is known only that they changed more than was noted.
    pub more: u64,
    /// Updates by the bytes that changed behind the page header; classes as in [`UPDATE_BOUNDS`].
    pub net: [u64; CLASSES],
    /// The same with the header's bytes, but for the checksum.
    pub gross: [u64; CLASSES],
    /// Bytes that changed in all of these, behind the header and with it.
    pub bytes: (u64, u64),
}

fn class(bytes: u32) -> usize {
    UPDATE_BOUNDS.partition_point(|bound| *bound < bytes)
}

impl UpdateSizes {
    /// Takes a flush in.
    pub fn add(&mut self, flush: &Flush) {
        if flush.new {
            self.new += 1;
            return;
        }
        self.updates += 1;
        let Some(changed) = flush.changed else {
            self.more += 1;
            return;
        };
        let gross = changed.gross.unwrap_or(changed.net);
        assert!(gross >= changed.net, "what changed behind the header is part of what changed");
        self.net[class(changed.net)] += 1;
        self.gross[class(gross)] += 1;
        self.bytes = (self.bytes.0 + u64::from(changed.net), self.bytes.1 + u64::from(gross));
    }

    /// Updates within each of [`UPDATE_BOUNDS`], net and gross, and then all of them: a cumulative distribution.
    pub fn within(&self) -> Vec<(Option<u32>, u64, u64)> {
        let (mut net, mut gross) = (0, 0);
        assert!(self.more <= self.updates, "an update of unknown size is one");
        let mut rows: Vec<(Option<u32>, u64, u64)> = Vec::with_capacity(CLASSES);
        for (at, bound) in UPDATE_BOUNDS.iter().enumerate() {
            (net, gross) = (net + self.net[at], gross + self.gross[at]);
            rows.push((Some(*bound), net, gross));
        }
        assert!(gross <= self.updates, "each update is in one class");
        rows.push((None, self.updates, self.updates));
        rows
    }

    /// Both together.
    pub fn plus(&self, other: &UpdateSizes) -> UpdateSizes {
        let mut sum = *self;
        (sum.new, sum.updates, sum.more) = (sum.new + other.new, sum.updates + other.updates, sum.more + other.more);
        for (mine, theirs) in [(&mut sum.net, &other.net), (&mut sum.gross, &other.gross)] {
            mine.iter_mut().zip(theirs).for_each(|(a, b)| *a += b);
        }
        sum.bytes = (sum.bytes.0 + other.bytes.0, sum.bytes.1 + other.bytes.1);
        sum
    }
}

/// What is kept of a pool.
pub(super) struct Updates {
    /// Latest flushes kept.
    keep: usize,
    book: Mutex<Book>,
}

#[derive(Default)]
struct Book {
    sizes: BTreeMap<KeyspaceId, UpdateSizes>,
    latest: VecDeque<Flush>,
}

impl Updates {
    pub(super) fn new(keep: usize) -> Updates {
        assert!(keep <= 1 << 24, "flushes that are kept take memory");
        let latest = VecDeque::with_capacity(keep);
        Updates { keep, book: Mutex::new(Book { sizes: BTreeMap::new(), latest }) }
    }

    pub(super) fn add(&self, flush: Flush) {
        let keyspace = flush.keyspace.expect("a pool knows whose its pages are");
        let mut book = self.book.lock();
        book.sizes.entry(keyspace).or_default().add(&flush);
        if self.keep > 0 {
            if book.latest.len() == self.keep {
                book.latest.pop_front();
            }
            book.latest.push_back(flush);
            debug_assert!(book.latest.len() <= self.keep, "no more are kept than there is memory for");
        }
    }

    pub(super) fn sizes(&self) -> Vec<(KeyspaceId, UpdateSizes)> {
        self.book.lock().sizes.iter().map(|(id, sizes)| (*id, *sizes)).collect()
    }

    pub(super) fn latest(&self) -> Vec<Flush> {
        self.book.lock().latest.iter().copied().collect()
    }
}

impl Pool {
    /// A page is copied for writing, under its shared latch; `changed`: the offsets that were noted.
    pub(super) fn note_flush(&self, id: PageId, why: WriteWhy, bytes: &[u8], changed: Option<&[u16]>) {
        let Some(updates) = &self.updates else { return };
        let new = !page::is_sealed_for(bytes, id);
        updates.add(match &self.tracer {
            Some(tracer) => tracer.flush(id, why, bytes, (new, false)),
            None => {
                let net = |at: &[u16]| at.iter().filter(|at| usize::from(**at) >= page::HEADER).count() as u32;
                let changed = changed.map(|at| Changed { net: net(at), gross: Some(at.len() as u32) });
                let keyspace = Some(page::keyspace(bytes));
                Flush { page: id, why, keyspace, new, whole: false, changed: changed.filter(|_| !new) }
            }
        });
    }

    /// A page that was set aside, and is in no frame, is written.
    pub(super) fn note_flush_aside(&self, id: PageId, why: WriteWhy, bytes: &[u8]) {
        let Some(updates) = &self.updates else { return };
        updates.add(match &self.tracer {
            Some(tracer) => {
                let flush = tracer.flush(id, why, bytes, (false, true));
                // What it will be compared with is what is read again.
                tracer.forget(id);
                flush
            }
            None => {
                let keyspace = Some(page::keyspace(bytes));
                Flush { page: id, why, keyspace, new: false, whole: true, changed: None }
            }
        });
    }

    /// Sizes of updates by keyspace, where they are counted.
    pub fn update_sizes(&self) -> Vec<(KeyspaceId, UpdateSizes)> {
        self.updates.as_ref().map_or_else(Vec::new, |updates| updates.sizes())
    }

    /// The latest flushes, where they are kept ([`PoolConfig::kept_flushes`]).
    pub fn latest_flushes(&self) -> Vec<Flush> {
        self.updates.as_ref().map_or_else(Vec::new, |updates| updates.latest())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flush(page: u64, new: bool, changed: Option<(u32, u32)>) -> Flush {
        let changed = changed.map(|(net, gross)| Changed { net, gross: Some(gross) });
        let keyspace = Some(KeyspaceId(7));
        Flush { page: PageId(page), why: WriteWhy::Checkpoint, keyspace, new, whole: false, changed }
    }

    #[test]
    fn updates_are_in_one_class_each_and_the_latest_are_kept() {
        let updates = Updates::new(2);
        for (page, new, changed) in
            [(1, true, None), (2, false, Some((3, 16))), (3, false, Some((17, 5000))), (4, false, None)]
        {
            updates.add(flush(page, new, changed));
        }
        let [(KeyspaceId(7), sizes)] = updates.sizes()[..] else { panic!("one keyspace") };
        assert_eq!((sizes.new, sizes.updates, sizes.more, sizes.bytes), (1, 3, 1, (20, 5016)));
        let within = sizes.within();
        assert_eq!((within[0], within[3], within[4]), ((Some(4), 1, 0), (Some(16), 1, 1), (Some(22), 2, 1)));
        assert_eq!((within[13], within[14]), ((Some(1024), 2, 1), (None, 3, 3)));
        assert_eq!(updates.latest().iter().map(|f| f.page.0).collect::<Vec<_>>(), [3, 4]);
    }
}
