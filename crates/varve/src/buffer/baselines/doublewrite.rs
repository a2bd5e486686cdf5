//! Doublewrite, as InnoDB does it: pages are written to an area of their own first, which is synced, then to their
//! places, which are synced too. The area has one place for batches, of [`BATCH`] slots in a row, and [`SINGLE`] for
//! single-page flushes.
//!
//! It is there to compare with: the log's page images make torn pages whole, so recovery never looks at the area, and
//! what the area holds after a power cut is of no concern. Its pages are free pages of the space that nobody else is
//! given while the database is open.
//!
//! Invariants: a place is one writer's from its copies to the sync of the pages themselves. Its lock is held for the
//! bookkeeping alone; who waits for a place may hold staging buffers, which whoever has the place does not need.

use crate::buffer::Pool;
use crate::buffer::aside::AsideWrite;
use crate::buffer::instance::Instance;
use crate::buffer::load::volume_error;
use crate::buffer::writer::{Outcome, Staged, Writer, is_retryable};
use varve_device::AlignedBuf;
use varve_rt::{Condvar, Cost, Mutex, charge};
use varve_volume::{PageId, PageIo, PageUse, VolumeError, WriteWhy, page};

/// Slots of the place for batches.
pub(in crate::buffer) const BATCH: usize = 120;
/// Places for single pages.
const SINGLE: usize = 8;
/// Pages of the area.
pub(crate) const AREA: usize = BATCH + SINGLE;

#[derive(Default)]
struct Area {
    /// The area; none: not there (yet).
    ids: Vec<PageId>,
    batch_taken: bool,
    /// Free places for single pages.
    singles: Vec<usize>,
}

#[derive(Default)]
pub(in crate::buffer) struct Doublewrite {
    state: Mutex<Area>,
    released: Condvar,
}

/// A place of the area.
struct AreaPart {
    ids: Vec<PageId>,
    single: Option<usize>,
}

impl Doublewrite {
    /// A place for so many pages; waits for one. None: there is no area.
    fn take(&self, pages: usize) -> Option<AreaPart> {
        assert!(pages <= BATCH, "a batch fits the area");
        let mut state = self.state.lock();
        loop {
            if state.ids.is_empty() {
                return None;
            }
            if pages == 1
                && let Some(n) = state.singles.pop()
            {
                return Some(AreaPart { ids: vec![state.ids[BATCH + n]], single: Some(n) });
            }
            if pages > 1 && !state.batch_taken {
                state.batch_taken = true;
                return Some(AreaPart { ids: state.ids[..pages].to_vec(), single: None });
            }
            if varve_rt::dying() {
                return None;
            }
            self.released.wait(&mut state);
        }
    }

    /// The pages themselves are safe.
    fn give(&self, place: AreaPart) {
        let mut state = self.state.lock();
        match place.single {
            Some(n) => {
                assert!(state.singles.len() < SINGLE, "a place that is given back was taken");
                debug_assert!(!state.singles.contains(&n), "a place is given back once");
                state.singles.push(n);
            }
            None => {
                assert!(state.batch_taken, "the place for batches was taken");
                state.batch_taken = false;
            }
        }
        drop(state);
        self.released.notify_all();
    }
}

impl AreaPart {
    /// Writes copies of pages here, one after the other, and makes them safe. Each is sealed under its slot's own id;
    /// it keeps its LSN, so that a recovery which still has records of that page, from before it was free, leaves it
    /// alone.
    fn copy<'a>(
        &self,
        pool: &Pool,
        pages: impl ExactSizeIterator<Item = &'a AlignedBuf>,
        why: WriteWhy,
    ) -> Result<(), VolumeError> {
        let count = pages.len();
        assert_eq!(count, self.ids.len(), "a place has a slot for each page");
        charge(Cost::IoSubmit, count as u64);
        charge(Cost::CopyByte, (count * pool.page_size()) as u64);
        let copy = |(id, page): (&PageId, &AlignedBuf)| {
            let mut copy = AlignedBuf::new(page.len());
            copy.copy_from_slice(page);
            page::seal(&mut copy, *id);
            copy
        };
        let copies: Vec<AlignedBuf> = self.ids.iter().zip(pages).map(copy).collect();
        let request = |(id, copy): (&PageId, &AlignedBuf)| {
            // SAFETY: the copies are page_size long and aligned, and live and rest until the requests were waited for
            // below.
            unsafe { PageIo::write(*id, page::keyspace(copy), why, PageUse::default(), copy.as_ptr(), None) }
        };
        let mut ticket = pool.store().submit(self.ids.iter().zip(&copies).map(request).collect());
        let results: Vec<_> = (0..count).map(|i| ticket.wait(i)).collect();
        charge(Cost::IoComplete, count as u64);
        pool.counters.doublewritten.add(count as u64);
        results.into_iter().try_for_each(|result| result.map(drop))?;
        pool.store().sync()
    }
}

impl Pool {
    /// As [`Pool::send_asides`], each batch to the area first.
    pub(in crate::buffer) fn send_asides_twice(
        &self,
        inst: &Instance,
        writes: &[AsideWrite],
        why: WriteWhy,
        outcome: &mut Outcome,
    ) {
        for chunk in writes.chunks(BATCH) {
            let place = self.doublewrite.take(chunk.len());
            let copies = chunk.iter().map(|w| &*w.buf);
            match place.as_ref().map_or(Ok(()), |place| place.copy(self, copies, why)) {
                Ok(()) => self.send_asides(inst, chunk, why, outcome),
                Err(e) => self.asides_ended(inst, chunk, vec![Err(e); chunk.len()], why, outcome),
            }
            if let Some(place) = place {
                self.sync_store(outcome);
                self.doublewrite.give(place);
            }
        }
    }

    /// Gives the pool the pages of the doublewrite area, in ascending order; pages are written twice from now on.
    pub(crate) fn set_doublewrite_area(&self, ids: Vec<PageId>) {
        assert!(ids.len() == AREA && ids.is_sorted(), "the area has a page for each slot, in ascending order");
        let mut state = self.doublewrite.state.lock();
        state.singles = (0..SINGLE).rev().collect();
        state.ids = ids;
    }
}

impl<'a> Writer<'a> {
    /// Writes covered pages to the area and then to their places, each of the two followed by a sync, batch by batch.
    pub(in crate::buffer) fn submit_twice(&mut self, mut pages: Vec<Staged<'a>>) {
        while !pages.is_empty() {
            let rest = pages.split_off(pages.len().min(BATCH));
            self.send_twice(pages);
            pages = rest;
        }
    }

    fn send_twice(&mut self, pages: Vec<Staged<'a>>) {
        let pool = self.pool;
        let Some(place) = pool.doublewrite.take(pages.len()) else { return self.send(pages) };
        match place.copy(pool, pages.iter().map(|p| &p.copy.buf), self.why) {
            Ok(()) => {
                self.send(pages);
                self.complete_all();
                pool.sync_store(&mut self.outcome);
            }
            Err(e) => {
                pool.counters.write_errors.inc();
                let retryable = is_retryable(&e);
                pages.into_iter().for_each(|page| self.abandon(page));
                self.outcome.note(pool, volume_error(e), retryable);
            }
        }
        pool.doublewrite.give(place);
    }
}
