//! The disk's volatile write cache: writes by place, and which of them a flush waits for.
//!
//! Invariants: `outstanding` holds the numbers of the writes in `by_place` and of the one being stored; `used` is the
//! sum of their lengths, and at most the size unless there is one alone; a flush waits for a write that is outstanding.

use crate::model::Arrival;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use varve_device::OpKind;
use varve_rt::Instant;

/// A cached write on its way to the media.
#[derive(Clone, Debug)]
pub(super) struct Cached {
    /// Requests that this write brings to the media: itself, and earlier ones of the same place and length.
    pub(super) ids: Vec<u64>,
    pub(super) len: u64,
    /// When the newest of them is in the cache.
    pub(super) ready: Instant,
}

#[derive(Debug, Default)]
pub(super) struct DiskCache {
    size: u64,
    used: u64,
    by_place: BTreeMap<u64, Vec<Cached>>,
    outstanding: BTreeSet<u64>,
    /// Writes that wait for room.
    pub(super) stalled: VecDeque<Arrival>,
    /// Flushes, each with the number of the last write it covers.
    flushes: Vec<(u64, u64)>,
}

impl DiskCache {
    pub(super) fn new(size: u64) -> DiskCache {
        DiskCache { size, ..DiskCache::default() }
    }

    pub(super) fn exists(&self) -> bool {
        self.size > 0
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_place.is_empty()
    }

    /// More than three quarters full, or somebody waits for it: it is to be emptied like any other request.
    pub(super) fn pressing(&self) -> bool {
        self.used * 4 > self.size * 3 || !self.flushes.is_empty() || !self.stalled.is_empty()
    }

    /// Whether a write of `len` bytes has room. One larger than the cache has when the cache is empty.
    pub(super) fn has_room(&self, len: u64) -> bool {
        self.used == 0 || self.used + len <= self.size
    }

    pub(super) fn enter(&mut self, r: &Arrival, ready: Instant) {
        assert!(self.has_room(r.len), "a write enters where there is room");
        let new = self.outstanding.insert(r.id);
        assert!(new, "a write enters once");
        let here = self.by_place.entry(r.offset).or_default();
        match here.iter_mut().find(|c| c.len == r.len) {
            Some(same) => {
                same.ids.push(r.id);
                same.ready = ready;
            }
            None => {
                here.push(Cached { ids: vec![r.id], len: r.len, ready });
                self.used += r.len;
            }
        }
    }

    /// Whether a read is served whole from one cached write.
    pub(super) fn holds(&self, offset: u64, len: u64) -> bool {
        let below = self.by_place.range(..=offset).next_back();
        below.is_some_and(|(at, writes)| writes.iter().any(|w| at + w.len >= offset + len))
    }

    /// Takes out the write to store next: the first from `from` on, around the end of the disk (C-LOOK).
    pub(super) fn take(&mut self, from: u64) -> Option<(u64, Cached)> {
        let place = *self.by_place.range(from..).next().or_else(|| self.by_place.iter().next())?.0;
        let here = self.by_place.get_mut(&place)?;
        let cached = here.remove(0);
        if here.is_empty() {
            self.by_place.remove(&place);
        }
        Some((place, cached))
    }

    /// A write taken out has been stored.
    pub(super) fn stored(&mut self, cached: &Cached) {
        assert!(self.used >= cached.len, "what is stored was counted");
        self.used -= cached.len;
        for id in &cached.ids {
            let removed = self.outstanding.remove(id);
            assert!(removed, "a write is stored once");
        }
    }

    /// A flush waits for the writes that are inside now; false: there is nothing to wait for.
    pub(super) fn flush(&mut self, r: &Arrival) -> bool {
        debug_assert_eq!(r.op, OpKind::Flush);
        let last = self.outstanding.last().copied();
        last.is_some_and(|last| {
            self.flushes.push((r.id, last));
            true
        })
    }

    /// Flushes that wait for nothing any more.
    pub(super) fn flushed(&mut self) -> Vec<u64> {
        let oldest = self.outstanding.first().copied().unwrap_or(u64::MAX);
        let (done, rest) = self.flushes.drain(..).partition(|(_, last)| oldest > *last);
        self.flushes = rest;
        done.into_iter().map(|(id, _): (u64, u64)| id).collect()
    }

    pub(super) fn someone_waits(&self) -> bool {
        !self.flushes.is_empty() || !self.stalled.is_empty()
    }
}
