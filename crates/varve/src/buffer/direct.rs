//! New pages that go to the store straight away, finished, without ever being dirty.
//!
//! For as long as such a write is under way its pages are latched in frames, so that nobody reads what lies in the
//! store meanwhile (read-ahead may still ask for a page by what it was before it was freed). Afterwards a page leaves
//! the pool, and what is loaded takes the place of nothing that is cached, and touches no memory that was not in use
//! before; or it is kept, if whoever wrote it says so ([`Keep`]) and there are free frames.
//!
//! Invariants: a page is neither dirty nor being written when its direct write begins; it is sealed under its own id;
//! buffer and frames outlive the writes.

use super::Pool;
use super::frame::{DIRTY, WRITING};
use super::guard::{Keep, PageWrite};
use super::load::volume_error;
use crate::error::Result;
use varve_device::AlignedBuf;
use varve_rt::{Cost, charge};
use varve_volume::{CostClass, KeyspaceId, PageId, PageIo, PageTicket, PageUse, ReadWhy, VolumeError, WriteWhy, page};

/// Writes of new pages under way.
pub(crate) struct DirectWrite<'a> {
    // First: it is dropped before the memory that it reads.
    ticket: PageTicket,
    frames: Vec<PageWrite<'a>>,
    buf: AlignedBuf,
    keep: Keep,
    pool: &'a Pool,
}

impl Pool {
    /// Most pages of one direct write: they are latched together.
    pub(crate) fn direct_pages(&self) -> usize {
        (self.capacity_frames() / 32).clamp(1, ((1 << 20) / self.page_size()).max(1))
    }

    /// Begins to write free pages that the caller has set aside, sealed one behind the other at the beginning of `buf`.
    /// No latch may be held.
    ///
    /// Errors: the pool has no free frame.
    pub(crate) fn write_direct(
        &self,
        keyspace: KeyspaceId,
        pages: &[PageId],
        buf: AlignedBuf,
        keep: Keep,
    ) -> Result<DirectWrite<'_>> {
        assert!((1..=self.direct_pages()).contains(&pages.len()), "a direct write takes a bounded part of the frames");
        assert!(pages.len() * self.page_size() <= buf.len(), "the pages lie in the buffer");
        let frames = pages.iter().map(|id| self.latch_for_create(*id)).collect::<Result<Vec<_>>>()?;
        let size = self.page_size();
        for page in &frames {
            assert!(!page.frame().is(WRITING | DIRTY), "page {} is in use", page.id());
            // Copies from the page's earlier life are out of date.
            self.store().dirtied(page.id(), keyspace, page.frame().take_usage());
        }
        let request = |(i, id): (usize, &PageId)| {
            let bytes = &buf[i * size..][..size];
            assert_eq!(page::id(bytes), *id, "a page is written under the id that it is sealed with");
            // SAFETY: the buffer is the returned value's alone, aligned, and outlives the ticket there.
            unsafe { PageIo::write(*id, keyspace, WriteWhy::Load, PageUse::default(), bytes.as_ptr(), None) }
        };
        charge(Cost::IoSubmit, 1);
        let ticket = self.store().submit(pages.iter().enumerate().map(request).collect());
        assert_eq!(ticket.len(), pages.len(), "a store answers for every page that is written");
        self.counters.batch(pages.len());
        Ok(DirectWrite { ticket, frames, buf, keep, pool: self })
    }
}

impl Pool {
    /// Reads pages that no frame holds, one behind the other into the beginning of `buf`, past the pool. The caller
    /// wrote them the same way, and nobody else knows them. No latch may be held.
    pub(crate) fn read_direct(&self, pages: &[PageId], buf: &mut AlignedBuf) -> Result<()> {
        let size = self.page_size();
        assert!(!pages.is_empty() && pages.len() * size <= buf.len(), "the pages lie in the buffer");
        let at = buf.as_mut_ptr();
        // SAFETY: each request has a page of the buffer to itself, aligned; the buffer is borrowed until all of them
        // were waited for, below.
        let request = |(i, id): (usize, &PageId)| unsafe { PageIo::read(*id, ReadWhy::Demand, at.add(i * size)) };
        charge(Cost::IoSubmit, 1);
        let read = self.store().submit(pages.iter().enumerate().map(request).collect()).wait_all();
        charge(Cost::IoComplete, 1);
        read.map_err(volume_error)
    }
}

impl DirectWrite<'_> {
    /// Waits for the writes; gives the buffer back. On an error none of the pages is to be used.
    pub(crate) fn finish(self) -> (AlignedBuf, Result<()>) {
        let DirectWrite { mut ticket, frames, buf, keep, pool } = self;
        // All of them first: nobody may touch the buffer before.
        let results: Vec<Result<CostClass, VolumeError>> = (0..frames.len()).map(|i| ticket.wait(i)).collect();
        charge(Cost::IoComplete, 1);
        let size = pool.page_size();
        let mut done = Ok(());
        for (i, (page, result)) in frames.into_iter().zip(results).enumerate() {
            match result {
                Ok(class) => {
                    pool.counters.load_writes.inc();
                    page.was_stored(&buf[i * size..][..size], class, keep);
                }
                Err(e) => {
                    pool.counters.write_errors.inc();
                    done = Err(volume_error(e));
                }
            }
        }
        (buf, done)
    }
}
