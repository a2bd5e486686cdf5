//! Writing pages: the only way from a frame to the store.
//!
//! A [`Writer`] copies each page under its shared latch into a staging buffer, unlatches, seals the copy, forces the
//! log to the newest LSN of the batch, submits, and goes on with the next batch while several are in flight. A page is
//! clean after its write only if nobody changed it since the copy. Every page between copy and end of write has
//! `WRITING` set, which keeps a second write of it, and its eviction, away.
//!
//! A writer blocks on a page's latch only while nothing of it is staged or in flight: whoever holds that latch may be
//! waiting for a frame that only this writer's writes can make free.
//!
//! Invariants: what is submitted is sealed under its own id, and covered by the log; a page bears `WRITING` from its
//! copy to the end of its write, once; a buffer is untouched from submission until all of its batch was waited for.

use super::Pool;
use super::frame::{DIRTY, WRITING};
use super::guard::{FrameRef, PageRead};
use super::instance::Instance;
use super::load::volume_error;
use super::policy::Slot;
use crate::error::{Error, Result};
use crate::role::{self, Role};
use std::collections::VecDeque;
use std::time::Duration;
use varve_device::{AlignedBuf, Mistake};
use varve_rt::atomic::Ordering::*;
use varve_rt::{Cost, charge};
use varve_volume::{CostClass, KeyspaceId, Lsn, PageId, PageIo, PageTicket, PageUse, VolumeError, WriteWhy, page};

/// Batches of one writer in flight.
const BATCHES_IN_FLIGHT: usize = 4;

/// Dirty pages looked at under one hold of an instance's lock.
const CHUNK: usize = 128;

/// Ends of writes taken note of under one hold of an instance's lock.
const ENDS: usize = 32;

/// How often a checkpoint tries a page again whose write failed in a way that may pass.
const RETRIES: u32 = 8;

/// A page copied, not yet written.
pub(super) struct Staged<'a> {
    pub(super) copy: Copied<'a>,
    id: PageId,
    lsn: Lsn,
    keyspace: KeyspaceId,
    usage: PageUse,
    /// Offsets of the bytes that changed since the page was stored, if they are known and few.
    changed: Option<Vec<u16>>,
}

/// A frame that bears `WRITING`, and the copy of its page.
pub(super) struct Copied<'a> {
    at: FrameRef<'a>,
    pub(super) buf: AlignedBuf,
}

impl<'a> Copied<'a> {
    /// Gives the buffer back; who calls this takes the mark off the frame.
    fn into_frame(mut self) -> FrameRef<'a> {
        self.at.pool.staging.give(std::mem::replace(&mut self.buf, AlignedBuf::new(0)));
        self.at
    }

    fn unmark(at: FrameRef<'a>) {
        at.inst.changes.is_lost(at.slot);
        {
            let _lists = at.inst.lock();
            at.frame().unmark_writing();
        }
        at.inst.wake_all();
    }
}

impl Drop for Copied<'_> {
    /// Left by a panic: nobody else may wait for the end of this write, nor for its buffer.
    fn drop(&mut self) {
        if !self.buf.is_empty() && varve_rt::panicking() {
            self.at.pool.staging.give(std::mem::replace(&mut self.buf, AlignedBuf::new(0)));
            Copied::unmark(self.at);
        }
    }
}

/// A page whose write ended well.
struct Written<'a> {
    at: FrameRef<'a>,
    id: PageId,
    lsn: Lsn,
    keyspace: KeyspaceId,
    class: CostClass,
}

/// Submitted pages. The ticket is dropped before the buffers.
struct InFlight<'a> {
    ticket: PageTicket,
    pages: Vec<Staged<'a>>,
}

/// What to do with a page whose latch is not free.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum IfLatched {
    Skip,
    Wait,
}

/// Writes pages in batches.
pub(super) struct Writer<'a> {
    pub(super) pool: &'a Pool,
    pub(super) why: WriteWhy,
    /// Evict each page as its write ends well.
    evict: bool,
    /// Pages of a batch.
    batch: usize,
    /// Batches that may be in flight.
    depth: usize,
    in_flight: VecDeque<InFlight<'a>>,
    staged: Vec<Staged<'a>>,
    pub(super) outcome: Outcome,
}

/// What a writer did.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Pages written.
    pub(super) written: usize,
    /// Pages that could not be written.
    pub(super) failed: usize,
    /// Pages left alone because the log will never cover their changes.
    pub(super) uncovered: usize,
    /// The worst error: one that will not pass, if there was any.
    pub(super) error: Option<Error>,
    /// Whether every error may pass.
    pub(super) retryable: bool,
}

impl Outcome {
    /// Notes a failed write, and tells the pool when trying again will not help.
    pub(super) fn note(&mut self, pool: &Pool, e: Error, retryable: bool) {
        if retryable {
            pool.writes_fail(&e);
        } else {
            pool.fail(&e);
        }
        if self.error.is_none() || (self.retryable && !retryable) {
            self.error = Some(e);
        }
        self.retryable &= retryable;
    }

    pub(super) fn plus(&mut self, other: Outcome) {
        self.written += other.written;
        self.failed += other.failed;
        self.uncovered += other.uncovered;
        if self.error.is_none() || (self.retryable && !other.retryable) {
            self.error = other.error.or(self.error.take());
        }
        self.retryable &= other.retryable;
    }
}

impl<'a> Writer<'a> {
    pub(super) fn new(pool: &'a Pool, why: WriteWhy) -> Writer<'a> {
        let outcome = Outcome { retryable: true, ..Outcome::default() };
        let (evict, batch, depth) = (why == WriteWhy::Replacement, pool.config().batch_pages(), BATCHES_IN_FLIGHT);
        Writer { pool, why, evict, batch, depth, in_flight: VecDeque::new(), staged: Vec::new(), outcome }
    }

    /// A writer of replacement writes whose pages stay, clean, and which waits for none of its batches before the end
    /// (but for want of staging buffers).
    pub(super) fn keeping(pool: &'a Pool) -> Writer<'a> {
        Writer { evict: false, depth: usize::MAX, ..Writer::new(pool, WriteWhy::Replacement) }
    }

    /// A writer that ends the write of a page before it begins the next.
    pub(super) fn one_by_one(pool: &'a Pool, why: WriteWhy) -> Writer<'a> {
        Writer { batch: 1, depth: 1, ..Writer::new(pool, why) }
    }

    /// Writes pages of an instance, those with the oldest changes first, at most so many.
    pub(super) fn write_oldest(mut self, inst: &'a Instance, most: usize) -> Outcome {
        let oldest: Vec<Slot> = inst.lock().dirty.iter().take(most).map(|d| d.1).collect();
        for slot in oldest {
            self.add(inst, slot, IfLatched::Skip);
        }
        self.finish()
    }

    /// Copies the page in a frame for writing, and submits when a batch is full. False when there was nothing to write:
    /// clean, written by somebody else right now, or (with [`IfLatched::Skip`]) latched.
    pub(super) fn add(&mut self, inst: &'a Instance, slot: Slot, latch: IfLatched) -> bool {
        let buf = self.buffer();
        let at = self.pool.at(inst, slot);
        let page = match (at.try_read(), latch) {
            (Some(page), _) => page,
            (None, IfLatched::Skip) => {
                self.pool.staging.give(buf);
                return false;
            }
            (None, IfLatched::Wait) => {
                self.drain();
                assert!(self.staged.is_empty() && self.in_flight.is_empty(), "who waits for a latch writes nothing");
                at.read()
            }
        };
        let copied = self.copy(at, &page, buf);
        drop(page);
        let mut staged = match copied {
            Ok(staged) => staged,
            Err(buf) => {
                self.pool.staging.give(buf);
                return false;
            }
        };
        if !page::is_sealed_for(&staged.copy.buf, staged.id) {
            staged.changed = None;
        }
        page::seal(&mut staged.copy.buf, staged.id);
        self.staged.push(staged);
        if self.staged.len() >= self.batch {
            self.submit();
        }
        true
    }

    /// A staging buffer; completes own writes to get one, waits for others' only when holding none.
    fn buffer(&mut self) -> AlignedBuf {
        loop {
            if let Some(buf) = self.pool.staging.try_take() {
                return buf;
            }
            if self.staged.is_empty() && self.in_flight.is_empty() {
                return self.pool.staging.take();
            }
            self.submit();
            self.complete_oldest();
        }
    }

    /// Copies a latched page, if it is to be written.
    fn copy(&mut self, at: FrameRef<'a>, page: &PageRead<'a>, mut buf: AlignedBuf) -> Result<Staged<'a>, AlignedBuf> {
        let frame = at.frame();
        let bytes = page.bytes();
        if frame.is(DIRTY) && self.pool.never_covered(page::lsn(bytes)) {
            self.outcome.uncovered += 1;
            return Err(buf);
        }
        if !frame.begin_write() {
            return Err(buf);
        }
        charge(Cost::CopyByte, bytes.len() as u64);
        buf.copy_from_slice(bytes);
        frame.count_write();
        let (lsn, keyspace, usage) = (page::lsn(&buf), page::keyspace(&buf), frame.take_usage());
        let changed = at.inst.changes.take(at.slot);
        self.pool.note_flush(at.id(), self.why, &buf, changed.as_deref());
        let changed = changed.filter(|changed| changed.len() <= self.pool.store().noted_changes());
        Ok(Staged { copy: Copied { at, buf }, id: at.id(), lsn, keyspace, usage, changed })
    }

    /// Forces the log as far as the staged pages need it, then begins their writes.
    pub(super) fn submit(&mut self) {
        let mut pages = std::mem::take(&mut self.staged);
        let newest = pages.iter().map(|p| p.lsn).max().unwrap_or(0);
        let pool = self.pool;
        // When the log fails, what it does cover may still be written.
        let durable = pool.cover(newest);
        for page in pages.extract_if(.., |p| p.lsn > durable) {
            self.outcome.uncovered += 1;
            self.abandon(page);
        }
        if pages.is_empty() {
            return;
        }
        #[cfg(feature = "baselines")]
        if pool.config().baselines.doublewrite {
            return self.submit_twice(pages);
        }
        self.send(pages);
    }

    /// Submits the writes of covered pages.
    pub(super) fn send(&mut self, pages: Vec<Staged<'a>>) {
        let why = self.why;
        for page in &pages {
            assert!(self.pool.covers(page.lsn), "a page is written only when the log is durable to it");
            assert_eq!(page::id(&page.copy.buf), page.id, "a page is written under the id that it is sealed with");
        }
        assert!(pages.len() <= self.batch, "a batch has no more pages than it may");
        let request = |p: &Staged<'_>| {
            // SAFETY: the staging buffer is the writer's alone, page_size long and aligned; it is not touched before
            // the request was waited for in `complete_oldest`.
            unsafe { PageIo::write(p.id, p.keyspace, why, p.usage, p.copy.buf.as_ptr(), p.changed.clone()) }
        };
        charge(Cost::IoSubmit, pages.len() as u64);
        let ticket = self.pool.store().submit(pages.iter().map(request).collect());
        assert_eq!(ticket.len(), pages.len(), "a store answers for every page that is written");
        self.pool.counters.batch(pages.len());
        self.in_flight.push_back(InFlight { ticket, pages });
        if self.in_flight.len() >= self.depth {
            self.complete_oldest();
        }
    }

    /// Waits for the oldest batch in flight.
    fn complete_oldest(&mut self) {
        let Some(InFlight { mut ticket, pages }) = self.in_flight.pop_front() else { return };
        // The results first: nobody may touch the buffers before all of them are in.
        let results: Vec<_> = (0..pages.len()).map(|i| ticket.wait(i)).collect();
        charge(Cost::IoComplete, pages.len() as u64);
        let mut well: Vec<Written<'a>> = Vec::with_capacity(pages.len());
        for (page, result) in pages.into_iter().zip(results) {
            match result {
                Ok(class) => {
                    let Staged { copy, id, lsn, keyspace, .. } = page;
                    let at = copy.into_frame();
                    well.push(Written { at, id, lsn, keyspace, class });
                }
                Err(e) => {
                    self.pool.counters.write_errors.inc();
                    let retryable = is_retryable(&e);
                    self.abandon(page);
                    self.outcome.note(self.pool, volume_error(e), retryable);
                }
            }
        }
        well.chunk_by(|a, b| std::ptr::eq(a.at.inst, b.at.inst))
            .flat_map(|pages| pages.chunks(ENDS))
            .for_each(|pages| self.written(pages));
    }

    /// Takes note of writes that ended well, all of one instance.
    fn written(&mut self, pages: &[Written<'a>]) {
        let (pool, inst) = (self.pool, pages[0].at.inst);
        debug_assert!(pages.iter().all(|page| std::ptr::eq(page.at.inst, inst)), "the pages are of one instance");
        self.outcome.written += pages.len();
        pool.writes_succeed();
        pool.counters.writes(self.why).add(pages.len() as u64);
        let (mut clean, mut claimed) = (Vec::with_capacity(pages.len()), Vec::new());
        {
            let mut lists = inst.lock();
            for page in pages {
                let (slot, frame) = (page.at.slot, page.at.frame());
                debug_assert!(frame.is(WRITING) && frame.holds(page.id), "a page that is written keeps its frame");
                pool.counters.kind(frame.kind.load(Relaxed)).written.inc();
                let is_clean = inst.written(&mut lists, slot, page.lsn, self.why);
                inst.set_class(&mut lists, slot, page.class, Some(self.why), &pool.counters);
                if !is_clean && pool.faults().has(Mistake::ChangeDuringWrite) {
                    inst.undirty(&mut lists, slot);
                } else if !is_clean {
                    pool.counters.redirtied.inc();
                    continue;
                }
                clean.push(page.id);
                if self.evict
                    && let Some(held) = inst.claim(pool, &mut lists, slot)
                {
                    claimed.push((page, held));
                }
            }
        }
        for (page, held) in &claimed {
            pool.counters.kind(held.frame().kind.load(Relaxed)).evicted_dirty.inc();
            // Under the latch, so that nobody can load the page again before the store knows that it left.
            pool.store().evicted(page.id, page.keyspace, held.frame().take_usage());
        }
        if !claimed.is_empty() {
            let mut lists = inst.lock();
            for (page, held) in claimed {
                inst.withdraw(&mut lists, page.at.slot);
                inst.put_free(&mut lists, page.at.slot);
                held.unlatch();
            }
        }
        if let Some(tracer) = &pool.tracer {
            clean.iter().for_each(|id| tracer.forget(*id));
        }
        inst.writes_ended(clean.len());
    }

    /// The page was not written: it stays dirty.
    pub(super) fn abandon(&mut self, page: Staged<'a>) {
        self.outcome.failed += 1;
        Copied::unmark(page.copy.into_frame());
    }

    /// Submits what is staged and waits for everything in flight.
    fn drain(&mut self) {
        self.submit();
        self.complete_all();
    }

    /// Waits for everything in flight.
    pub(super) fn complete_all(&mut self) {
        while !self.in_flight.is_empty() {
            self.complete_oldest();
        }
    }

    /// Ends the work.
    pub(super) fn finish(mut self) -> Outcome {
        self.drain();
        if self.outcome.written > 0 && self.why != WriteWhy::Checkpoint {
            self.pool.sync_written(&mut self.outcome);
        }
        self.outcome
    }
}

pub(super) fn is_retryable(e: &VolumeError) -> bool {
    match e {
        VolumeError::Page { source, .. } => source.is_retryable(),
        VolumeError::Device(e) => e.is_retryable(),
        _ => false,
    }
}

impl Pool {
    /// Makes what was written durable at once, where the configuration wants that.
    pub(super) fn sync_written(&self, outcome: &mut Outcome) {
        if self.config().syncs_batches() {
            self.sync_store(outcome);
        }
    }

    pub(super) fn sync_store(&self, outcome: &mut Outcome) {
        self.counters.write_syncs.inc();
        if let Err(e) = self.store().sync() {
            let retryable = is_retryable(&e);
            outcome.note(self, volume_error(e), retryable);
        }
    }

    /// Writes every page whose first change that is not stored lies below `t`; all of them are stored (not yet synced)
    /// when it returns well. No latch may be held. Fails when a page cannot be written; what failed stays dirty.
    pub fn flush_older_than(&self, t: Lsn, why: WriteWhy) -> Result<()> {
        // Whichever thread asks: these are not the writes of a miss.
        role::with(Role::Checkpointer, || self.flush_all_below(t, why))
    }

    fn flush_all_below(&self, t: Lsn, why: WriteWhy) -> Result<()> {
        let mut tries = 0;
        loop {
            if let Some(e) = self.failure() {
                return Err(e);
            }
            let mut outcome = self.flush_once(t, why);
            for inst in self.instances() {
                outcome.plus(self.drain_aside(inst, t, why));
            }
            if let Some(e) = outcome.error {
                if !outcome.retryable || tries == RETRIES || varve_rt::dying() {
                    return Err(e);
                }
                tries += 1;
                varve_rt::sleep(Duration::from_millis(1 << tries));
            }
            if self.instances().iter().all(|inst| inst.oldest_dirty().is_none_or(|o| o >= t)) {
                return Ok(());
            }
            if outcome.written == 0 && !self.wait_for_writes_of_others(t) && outcome.uncovered > 0 {
                return Err(self.log_failure());
            }
        }
    }

    /// Waits a while for one write, by somebody else, of a page older than `t`; false when there is none.
    fn wait_for_writes_of_others(&self, t: Lsn) -> bool {
        self.instances().iter().any(|inst| {
            let mut lists = inst.lock();
            let found =
                lists.asides.writing(t) || lists.dirty.range(..(t, 0)).any(|&(_, slot)| inst.frame(slot).is(WRITING));
            if found {
                // Its end is announced under this lock.
                inst.wait_for_write(&mut lists, Duration::from_millis(100));
            }
            found
        })
    }

    /// One round over the dirty pages older than `t`, oldest first within each instance.
    fn flush_once(&self, t: Lsn, why: WriteWhy) -> Outcome {
        let mut writer = Writer::new(self, why);
        for inst in self.instances() {
            let mut from = (0, 0);
            loop {
                let chunk: Vec<(Lsn, Slot)> = inst.lock().dirty.range(from..(t, 0)).take(CHUNK).copied().collect();
                let Some(&(lsn, slot)) = chunk.last() else { break };
                from = (lsn, slot + 1);
                for (_, slot) in chunk {
                    if !inst.frame(slot).is(WRITING) {
                        writer.add(inst, slot, IfLatched::Wait);
                    }
                }
            }
        }
        writer.finish()
    }

    /// Writes at most `limit` of an instance's oldest dirty pages; returns how many.
    pub(super) fn flush_oldest(&self, inst: &Instance, limit: usize, why: WriteWhy) -> Outcome {
        Writer::new(self, why).write_oldest(inst, limit)
    }

    /// The coldest dirty pages of an instance that could be written now, at most so many.
    pub(super) fn coldest_dirty(&self, inst: &Instance, most: usize) -> Vec<Slot> {
        let (mut found, mut seen) = (Vec::new(), 0);
        inst.lock().policy.coldest(usize::MAX, &mut |slot| {
            seen += 1;
            charge(Cost::ListScan, 1);
            if inst.frame(slot).flushable() {
                found.push(slot);
            }
            found.len() < most
        });
        self.counters.scanned.add(seen);
        found
    }

    /// Writes the coldest dirty page of an instance that can be written now (vanilla's single-page flush), and with
    /// `free` frees its frame as the write ends. True when a page was written; an error when one could not be.
    pub(super) fn flush_single(&self, inst: &Instance, free: bool) -> Result<bool> {
        // After a failure of the log most dirty pages may be beyond help: look at all of them.
        let enough = if self.never_covered(Lsn::MAX - 1) { usize::MAX } else { 8 };
        let candidates = self.coldest_dirty(inst, enough);
        let mut uncovered = 0;
        for slot in candidates {
            let mut writer = match free {
                true => Writer::new(self, WriteWhy::Replacement),
                false => Writer::keeping(self),
            };
            let added = writer.add(inst, slot, IfLatched::Skip);
            let outcome = writer.finish();
            uncovered += outcome.uncovered;
            if !added || outcome.uncovered > 0 {
                continue;
            }
            self.counters.single_page_flushes.inc();
            match outcome.error {
                None => return Ok(true),
                Some(e) if !outcome.retryable => return Err(e),
                Some(_) => {}
            }
        }
        if uncovered > 0 { Err(self.log_failure()) } else { Ok(false) }
    }
}
