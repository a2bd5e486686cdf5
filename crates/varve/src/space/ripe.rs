//! Ripe pages: free pages of which redo knows nothing.
//!
//! A page that was freed is *ripe* when a checkpoint that began after its group was in the log is complete: from then
//! on redo begins later than the group, so nothing ever reads what the page held, a crash cannot bring it back, and
//! no record of it is replayed. The store may be told that it is free (`trim.rs`), and it may be written without the
//! log (`direct.rs`, `lost_writes`). A backup that is being made replays from its own beginning, so nothing ripens
//! for direct writes while there is one. After a crash those are ripe of which the log that was replayed has no record.
//!
//! The pages of a *segment* of an LSM keyspace may be written for another segment as soon as they are free, without a
//! checkpoint and also while a backup is being made ([`PastLog::Segment`]):
//!
//! 1. No record changes such a page, from the redo point or the beginning of a backup on. It was ripe when it was set
//!    aside; as a part of the segment it was written past the log and never changed. (That it is linked and freed
//!    stands in pages of the space map and of the list of segments.)
//! 2. It is free only when the group that dropped the segment is durable, so no crash lists the segment again, and when
//!    nobody has a list with it any more, so nobody reads it (`held.rs`).
//! 3. So recovery leaves the page as it is on the device, until the first record of a new use, which is an image. If it
//!    ends with the page in a segment, the link of that segment is durable, and its pages were before that; they were
//!    not written since, by 2.
//! 4. A backup has of a page what it holds when it is copied. If the state that it restores has the page in a segment,
//!    either that was linked before the backup began: then the page is as it was all the time, by 2. Or it was linked
//!    meanwhile: then it is copied once more after that (`direct.rs`). If a tree has the page, and has not had it since
//!    before the backup began, the log that is copied has it whole.
//! 5. An LSN tells the versions of a page apart (to a tier's map, to marks of lost writes). A page of a segment bears
//!    the end of the durable log at the time (`direct.rs`), which lies behind the group that dropped the segment
//!    before. Other direct pages bear the image floor, which only a checkpoint moves: they get no page before one.
//!
//! Over a tier they too wait for a checkpoint, after which the store is told that the page is free: before that it may
//! be on its way from one device to the other ([`PageStore::has_two_places`](varve_volume::PageStore::has_two_places)).
//!
//! `tests_ripe.rs` tries every order of uses, checkpoints, crashes and backups of one page.
//!
//! Invariants: any other page that is freed is unripe from before it may be given out; it ripens only when a checkpoint
//! that began after that is complete.

use super::Core;
use super::allocation::Allocation;
use super::extents::PageSet;
use super::{Reserved, SPACE_KEYSPACE, Space};
use crate::error::Result;
use crate::wal::Log;
use crate::wal::checkpoint::AfterCheckpoint;
use std::sync::Arc;
use varve_rt::Mutex;
use varve_volume::{KeyspaceId, PageId};

/// Free pages that are not ripe, of all pages, for which a checkpoint is made rather than the store made longer, and
/// the least bytes of them.
const UNRIPE_PART: u64 = 4;
const WORTH_A_CHECKPOINT: u64 = 16 << 20;

/// Whose pages are written past the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum PastLog {
    /// Of a segment of an LSM keyspace: they never change.
    Segment,
    /// Others: ripe ones only.
    Other,
}

/// Which of the free pages are not ripe.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Unripe {
    /// A bit per page: freed since the newest checkpoint began.
    newer: Vec<u64>,
    /// A bit per page: freed before it began, and it is not complete.
    older: Vec<u64>,
    /// Of these, a bit per page: a segment had it.
    of_segments: Vec<u64>,
    /// Everything below, where it is not known what the log that was replayed has records of; and whether the newest
    /// checkpoint began after that.
    below: u64,
    seen: bool,
}

impl Unripe {
    /// No page below `pages` is ripe before the first checkpoint.
    pub(super) fn all_below(pages: u64) -> Unripe {
        Unripe { below: pages, ..Unripe::default() }
    }

    /// These are not ripe before the first checkpoint: the log that was replayed has records of them.
    pub(super) fn redone(pages: PageSet) -> Unripe {
        Unripe { newer: pages.into_words(), ..Unripe::default() }
    }

    /// The pages were freed by a group that is in the log.
    pub(super) fn freed(&mut self, ids: &[PageId]) {
        for id in ids {
            set(&mut self.newer, *id);
            if let Some(word) = self.of_segments.get_mut(id.0 as usize / 64) {
                *word &= !(1 << (id.0 % 64));
            }
        }
    }

    /// The same of pages of a segment; they are given out when the group is durable.
    pub(super) fn freed_of_segment(&mut self, ids: &[PageId]) {
        for id in ids {
            set(&mut self.newer, *id);
            set(&mut self.of_segments, *id);
        }
    }

    pub(super) fn checkpoint_begins(&mut self) {
        self.seen = true;
        if self.older.is_empty() {
            std::mem::swap(&mut self.older, &mut self.newer);
            return;
        }
        let newer = std::mem::take(&mut self.newer);
        self.older.resize(self.older.len().max(newer.len()), 0);
        self.older.iter_mut().zip(&newer).for_each(|(older, newer)| *older |= newer);
        debug_assert!(self.newer.is_empty(), "what is freed from here on is newer than the checkpoint");
    }

    pub(super) fn checkpoint_completed(&mut self) {
        assert!(self.seen, "a checkpoint that is complete has begun");
        self.older.clear();
        if self.seen {
            self.below = 0;
        }
    }

    /// The unripe ones of 64 pages.
    pub(super) fn word(&self, i: usize) -> u64 {
        let at = |bits: &[u64]| bits.get(i).copied().unwrap_or(0);
        let below = match self.below.saturating_sub(i as u64 * 64) {
            n @ 0..64 => (1 << n) - 1,
            _ => u64::MAX,
        };
        at(&self.newer) | at(&self.older) | below
    }

    /// Those of 64 pages that may not be written past the log.
    pub(super) fn word_for(&self, i: usize, whose: PastLog) -> u64 {
        match whose {
            PastLog::Segment => self.word(i) & !self.of_segments.get(i).copied().unwrap_or(0),
            PastLog::Other => self.word(i),
        }
    }
}

fn set(bits: &mut Vec<u64>, id: PageId) {
    let word = id.0 as usize / 64;
    if word >= bits.len() {
        bits.resize(word + 1, 0);
    }
    bits[word] |= 1 << (id.0 % 64);
}

impl Allocation {
    /// Takes the lowest `n` pages of a zone that are free and may be written past the log; none when there are fewer.
    fn take_ripe(&mut self, zone: usize, n: usize, whose: PastLog) -> Option<Vec<PageId>> {
        let mut ids = Vec::with_capacity(n);
        for i in self.hints[zone]..self.taken.len() {
            let mut free = !(self.taken[i] | self.unripe.word_for(i, whose)) & self.zones.mask(zone, i);
            while free != 0 && ids.len() < n {
                ids.push(PageId(i as u64 * 64 + u64::from(free.trailing_zeros())));
                free &= free - 1;
            }
            if ids.len() == n {
                for id in &ids {
                    self.taken[id.0 as usize / 64] |= 1 << (id.0 % 64);
                }
                debug_assert!(ids.is_sorted_by(|a, b| a < b), "pages are taken in ascending order");
                self.count_taken(&ids);
                return Some(ids);
            }
        }
        None
    }
}

impl Space {
    /// Sets `n` free and ripe pages of a keyspace aside, in ascending order, growing the store when there are too few.
    /// No latch may be held. What is not used is given back with [`Space::give_back`].
    ///
    /// Errors: the store cannot grow; the log is poisoned.
    pub(crate) fn reserve_ripe(
        &self,
        core: &Core,
        keyspace: KeyspaceId,
        n: usize,
        whose: PastLog,
    ) -> Result<Vec<PageId>> {
        let whose = self.allowed(whose);
        self.free_let_go();
        for attempt in 0.. {
            let (zone, free) = {
                let mut state = self.state.lock();
                self.release_unpinned(&mut state);
                let zone = state.zone_of(keyspace);
                if let Some(ids) = state.take_ripe(zone, n, whose) {
                    return Ok(ids);
                }
                (zone, state.free_in(zone))
            };
            if attempt == 0 {
                // Pages that the store is being told of are free in a moment.
                drop(self.trimming.lock());
            } else {
                self.ask_to_ripen(core, free);
                self.grow(core, zone, free + n as u64)?;
            }
        }
        unreachable!("the loop ends by returning")
    }

    /// Where a page may lie at two places all are like others.
    pub(super) fn allowed(&self, whose: PastLog) -> PastLog {
        if self.store.has_two_places() { PastLog::Other } else { whose }
    }

    /// Asks for a checkpoint if a good part of the store, `free` pages, is free and only has to ripen: who merges and
    /// loads would make it ever longer.
    fn ask_to_ripen(&self, core: &Core, free: u64) {
        let bytes = free * self.store.page_size() as u64;
        if bytes >= WORTH_A_CHECKPOINT && free >= self.store.pages() / UNRIPE_PART {
            core.log.ask_for_checkpoint();
        }
    }

    /// Sets `n` pages aside that will be written past the pool and the log. Redo knows nothing of them, so no crash
    /// brings back what they held, and the pool has nothing of their former life that it could still write, or give
    /// to the fast device of a tier. No latch may be held.
    ///
    /// Errors: as [`Space::reserve_ripe`].
    pub(crate) fn reserve_past_pool<'s>(&'s self, core: &'s Core, n: usize) -> Result<Reserved<'s>> {
        let ids = self.reserve_ripe(core, SPACE_KEYSPACE, n, PastLog::Other)?;
        for id in &ids {
            self.pool.discard(*id);
        }
        Ok(Reserved { space: self, log: &core.log, ids })
    }

    /// Pages that were set aside are free again, unless the log was poisoned by a group that links them.
    pub(crate) fn give_back(&self, log: &Log, ids: &[PageId]) {
        if !ids.is_empty() && log.poisoned().is_none() {
            self.state.lock().release(ids);
        }
    }

    /// Free pages that are not ripe.
    pub(crate) fn unripe(&self) -> u64 {
        let state = self.state.lock();
        let words = state.taken.iter().enumerate();
        words.map(|(i, taken)| u64::from((!taken & state.unripe.word(i)).count_ones())).sum()
    }
}

/// Takes note of what each checkpoint makes ripe, and has it trimmed, in the thread that made the checkpoint.
pub(crate) struct Ripening {
    core: Arc<Core>,
    /// Pages of the shortest run that the store is told of, if it is told at all.
    trims: Option<usize>,
    /// Freed before the running checkpoint, or one that failed, began.
    ripe: Mutex<Vec<PageId>>,
}

impl Ripening {
    pub(crate) fn new(core: Arc<Core>, trims: Option<usize>) -> Ripening {
        Ripening { core, trims, ripe: Mutex::new(Vec::new()) }
    }
}

impl AfterCheckpoint for Ripening {
    fn begins(&self) {
        let space = &self.core.space;
        space.state.lock().unripe.checkpoint_begins();
        if self.trims.is_some() {
            let freed = space.take_untrimmed();
            self.ripe.lock().extend(freed);
        }
    }

    fn completed(&self) {
        let space = &self.core.space;
        if !self.core.log.is_held() {
            space.state.lock().unripe.checkpoint_completed();
        }
        if let Some(least) = self.trims {
            let ripe = std::mem::take(&mut *self.ripe.lock());
            space.trim(ripe, least);
        }
    }
}
