//! Pages set aside: dirty pages that left their frames before they were written, for victim strategies that need it
//! ([`Needs::asides`]): a temporary write buffer, or staged victims whose writes have begun.
//!
//! [`Needs::asides`]: super::victim::Needs::asides
//!
//! Each instance has a bounded number of slots with a hash of their own, all under the instance's lock. A page is in a
//! frame or in a slot, never in both, but for one case: a page asked for again while its slot is being written is
//! copied into a frame (*adopted*); the frame bears `WRITING` until the slot's write ends, which then counts as a write
//! of the frame.
//!
//! Invariants
//! - `by_page` has the slots that are not adopted; `dirty` has the same slots, by the page's first-change LSN, so that
//!   the oldest change of an instance is found over frames and slots.
//! - The bytes of a slot change only while it is not `writing`; its write shares them and reads them without the lock.
//! - While `draining` nobody copies pages aside to be drained; no drain begins while a copier runs, as both are done
//!   under the lock.

use super::Pool;
use super::frame::{DIRTY, REDIRTIED, WRITING};
use super::guard::{Exclusive, FrameRef};
use super::instance::{Instance, Lists};
use super::load::volume_error;
use super::policy::{Load, Slot, Unlink};
use super::writer::{Outcome, is_retryable};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use varve_device::{AlignedBuf, Mistake};
use varve_rt::atomic::Ordering::*;
use varve_rt::{Cost, HashMap, charge};
use varve_volume::{CostClass, KeyspaceId, Lsn, PageId, PageIo, PageUse, VolumeError, WriteWhy, page};

/// Index of a slot within its instance.
pub(super) type AsideSlot = u32;

/// Slots sealed, or their writes' ends taken note of, under one hold of the instance's lock.
const SEAL: usize = 32;

/// A page outside the frames.
struct Aside {
    /// Shared with its write while there is one.
    buf: Arc<AlignedBuf>,
    id: PageId,
    first: Lsn,
    lsn: Lsn,
    class: CostClass,
    kind: u8,
    usage: PageUse,
    writing: bool,
    adopted: Option<Slot>,
}

/// The slots of one instance.
pub(super) struct Asides {
    slots: Vec<Aside>,
    free: Vec<AsideSlot>,
    by_page: HashMap<PageId, AsideSlot>,
    dirty: BTreeSet<(Lsn, AsideSlot)>,
    limit: usize,
    draining: bool,
}

/// A slot's write, to be submitted.
pub(super) struct AsideWrite {
    pub(super) slot: AsideSlot,
    id: PageId,
    keyspace: KeyspaceId,
    usage: PageUse,
    pub(super) buf: Arc<AlignedBuf>,
}

impl AsideWrite {
    /// The request for the store.
    pub(super) fn request(&self, pool: &Pool, why: WriteWhy) -> PageIo {
        assert!(pool.covers(page::lsn(&self.buf)), "a page is written only when the log is durable to it");
        pool.note_flush_aside(self.id, why, &self.buf);
        // SAFETY: the buffer is page_size long and aligned; it lives as long as `self`, which its owner keeps until the
        // request was waited for, and does not change while it is shared.
        unsafe { PageIo::write(self.id, self.keyspace, why, self.usage, self.buf.as_ptr(), None) }
    }
}

impl Asides {
    pub(super) fn new(limit: usize) -> Asides {
        Asides {
            slots: Vec::new(),
            free: Vec::new(),
            by_page: HashMap::default(),
            dirty: BTreeSet::new(),
            limit,
            draining: false,
        }
    }

    /// Pages that could be set aside now.
    pub(super) fn room(&self) -> usize {
        assert!(
            self.slots.len() <= self.limit && self.free.len() <= self.slots.len(),
            "free slots are among those made"
        );
        self.limit - self.slots.len() + self.free.len()
    }

    /// Pages held that no frame has.
    pub(super) fn len(&self) -> usize {
        self.by_page.len()
    }

    /// Whether a drain is under way.
    pub(super) fn draining(&self) -> bool {
        self.draining
    }

    /// Smallest first-change LSN of the pages held.
    pub(super) fn oldest(&self) -> Option<Lsn> {
        self.dirty.first().map(|d| d.0)
    }

    /// Whether a page whose first change lies below `t` is being written.
    pub(super) fn writing(&self, t: Lsn) -> bool {
        self.dirty.range(..(t, 0)).any(|d| self.slots[d.1 as usize].writing)
    }

    /// Whether a page is held, and if so whether it is being written.
    pub(super) fn state(&self, id: PageId) -> Option<bool> {
        self.by_page.get(&id).map(|slot| self.slots[*slot as usize].writing)
    }

    /// Gives a page up that is held and not being written.
    pub(super) fn forget(&mut self, id: PageId) {
        if let Some(slot) = self.take_out(id) {
            assert!(!self.slots[slot as usize].writing, "a page that is being written is not given up");
            self.free.push(slot);
        }
    }

    /// A free slot, made if need be. There must be room.
    fn empty(&mut self, page_size: usize) -> AsideSlot {
        if let Some(slot) = self.free.pop() {
            return slot;
        }
        assert!(self.slots.len() < self.limit, "no slot is free");
        self.slots.push(Aside {
            buf: Arc::new(AlignedBuf::new(page_size)),
            id: PageId(0),
            first: 0,
            lsn: 0,
            class: CostClass::default(),
            kind: 0,
            usage: PageUse::default(),
            writing: false,
            adopted: None,
        });
        self.slots.len() as AsideSlot - 1
    }

    /// Takes a page out of the hash and the dirty list; its slot stays occupied.
    fn take_out(&mut self, id: PageId) -> Option<AsideSlot> {
        let slot = self.by_page.remove(&id)?;
        let removed = self.dirty.remove(&(self.slots[slot as usize].first, slot));
        assert!(removed, "a page set aside is on the dirty list");
        assert_eq!(self.by_page.len(), self.dirty.len(), "the pages set aside are those on the dirty list");
        Some(slot)
    }

    /// Seals a slot's page and marks it as being written, unless it is already or the log is not durable to it.
    fn begin_write(&mut self, slot: AsideSlot, durable: Lsn) -> Option<AsideWrite> {
        let aside = &mut self.slots[slot as usize];
        // The slot may have been given back, or to another page, since it was chosen.
        let held = self.by_page.get(&aside.id) == Some(&slot);
        if !held || aside.writing || aside.lsn > durable {
            return None;
        }
        assert!(aside.adopted.is_none(), "a page that a frame has taken over is written by that frame");
        let bytes: &mut AlignedBuf = Arc::make_mut(&mut aside.buf);
        page::seal(bytes, aside.id);
        aside.writing = true;
        let (keyspace, usage) = (page::keyspace(&aside.buf), std::mem::take(&mut aside.usage));
        Some(AsideWrite { slot, id: aside.id, keyspace, usage, buf: aside.buf.clone() })
    }

    /// Asserts the invariants while nothing is being written. For tests.
    pub(super) fn check_quiescent(&self) {
        assert!(!self.draining, "a drain is under way");
        assert_eq!(self.by_page.len(), self.dirty.len(), "pages aside and their dirty list");
        assert_eq!(self.by_page.len() + self.free.len(), self.slots.len(), "slots aside");
        for (id, slot) in &self.by_page {
            let aside = &self.slots[*slot as usize];
            assert!(aside.id == *id && !aside.writing && aside.adopted.is_none(), "slot of page {id}");
            assert!(self.dirty.contains(&(aside.first, *slot)), "page {id} aside is not on the dirty list");
        }
    }
}

impl<'a> FrameRef<'a> {
    /// Latches the frame exclusively if its page is dirty and could be set aside now; no waiting.
    pub(super) fn try_claim_dirty(self) -> Option<Exclusive<'a>> {
        if !self.frame().flushable() {
            return None;
        }
        let held = self.try_lock()?;
        if held.frame().flushable() {
            return Some(held);
        }
        held.unlatch();
        None
    }
}

impl Instance {
    /// Moves the dirty page of an exclusively latched frame into a slot; the frame is empty then. There must be room.
    pub(super) fn set_aside(
        &self,
        lists: &mut Lists,
        held: &Exclusive<'_>,
        stats: &super::stats::Counters,
    ) -> AsideSlot {
        let FrameRef { slot: frame_slot, .. } = held.at();
        let frame = held.frame();
        let bytes = held.bytes();
        let asides = &mut lists.asides;
        let slot = asides.empty(bytes.len());
        let first = lists.first[frame_slot as usize];
        let aside = &mut asides.slots[slot as usize];
        Arc::make_mut(&mut aside.buf).copy_from_slice(bytes);
        charge(Cost::CopyByte, bytes.len() as u64);
        (aside.id, aside.first, aside.lsn) = (held.at().id(), first, page::lsn(bytes));
        (aside.class, aside.kind) = (CostClass(frame.class.load(Relaxed)), frame.kind.load(Relaxed));
        frame.count_write();
        aside.usage = frame.take_usage();
        assert!(!aside.writing && aside.adopted.is_none(), "a slot that is free is nobody's");
        let before = asides.by_page.insert(aside.id, slot);
        assert!(before.is_none(), "a page is set aside once");
        let new = asides.dirty.insert((first, slot));
        assert!(new, "a slot is on the dirty list once");
        stats.kind(aside.kind).evicted_dirty.inc();
        stats.set_aside.inc();
        let removed = lists.dirty.remove(&(first, frame_slot));
        assert!(removed, "a dirty page is on the dirty list");
        frame.state.fetch_and(!(DIRTY | REDIRTIED), AcqRel);
        self.unlink(lists, frame_slot, Unlink::Evicted);
        self.withdraw(lists, frame_slot);
        // The cold end is another now.
        lists.scan_pays = true;
        slot
    }

    /// Marks a slot just filled as being written at once. The log must be durable to `durable`.
    pub(super) fn begin_aside(&self, lists: &mut Lists, slot: AsideSlot, durable: Lsn) -> Option<AsideWrite> {
        lists.asides.begin_write(slot, durable)
    }

    /// The frame was just published for a page: if the page lies in a slot it comes back, dirty; true then. `fresh`:
    /// what the slot holds is given up, as the page is being made anew.
    pub(super) fn readmit(
        &self,
        lists: &mut Lists,
        held: &Exclusive<'_>,
        fresh: bool,
        stats: &super::stats::Counters,
    ) -> bool {
        if lists.asides.by_page.is_empty() {
            return false;
        }
        let FrameRef { slot: frame_slot, .. } = held.at();
        let frame = held.frame();
        let Some(slot) = lists.asides.take_out(held.at().id()) else { return false };
        let aside = &mut lists.asides.slots[slot as usize];
        let (first, class, kind) = (aside.first, aside.class, aside.kind);
        assert!(aside.id == held.at().id() && aside.adopted.is_none(), "a page comes back to one frame, its own");
        if aside.writing {
            aside.adopted = Some(frame_slot);
            frame.state.fetch_or(WRITING, AcqRel);
        } else {
            lists.asides.free.push(slot);
        }
        if fresh {
            return false;
        }
        self.changes.is_new(frame_slot);
        let aside = &lists.asides.slots[slot as usize];
        frame.words(aside.buf.len()).store(0, &aside.buf);
        charge(Cost::CopyByte, aside.buf.len() as u64);
        frame.kind.store(kind, Relaxed);
        frame.state.fetch_or(DIRTY, AcqRel);
        stats.readmitted.inc();
        stats.kind(kind).hits.inc();
        self.loaded(lists, frame_slot, held.at().id(), Load::Demand, class);
        self.dirtied(lists, frame_slot, first);
        true
    }

    /// The write of a slot ended, well or not. Returns the page if it has left the pool with that.
    pub(super) fn aside_written(
        &self,
        lists: &mut Lists,
        slot: AsideSlot,
        well: bool,
        why: WriteWhy,
    ) -> Option<(PageId, KeyspaceId)> {
        let aside = &mut lists.asides.slots[slot as usize];
        assert!(aside.writing, "a write ends once");
        aside.writing = false;
        let (id, lsn) = (aside.id, aside.lsn);
        match aside.adopted.take() {
            Some(frame_slot) => {
                if well {
                    self.written(lists, frame_slot, lsn, why);
                } else {
                    self.frame(frame_slot).unmark_writing();
                }
                lists.asides.free.push(slot);
                None
            }
            None if well => {
                let keyspace = page::keyspace(&aside.buf);
                let left = lists.asides.take_out(id);
                assert_eq!(left, Some(slot), "a page that is written stays in its slot until the write ends");
                lists.asides.free.push(slot);
                Some((id, keyspace))
            }
            None => None,
        }
    }
}

impl Pool {
    /// Writes the pages set aside whose first change lies below `below`, in one batch, the log forced first.
    pub(super) fn drain_aside(&self, inst: &Instance, below: Lsn, why: WriteWhy) -> Outcome {
        let mut outcome = Outcome { retryable: true, ..Outcome::default() };
        let (slots, newest) = {
            let mut lists = inst.lock();
            if lists.asides.len() == 0 {
                return outcome;
            }
            if lists.asides.draining {
                inst.wait_for_write(&mut lists, Duration::from_millis(100));
                return outcome;
            }
            let asides = &mut lists.asides;
            let idle = |slot: &AsideSlot| !asides.slots[*slot as usize].writing;
            let slots: Vec<AsideSlot> = asides.dirty.range(..(below, 0)).map(|d| d.1).filter(idle).collect();
            let Some(newest) = slots.iter().map(|s| asides.slots[*s as usize].lsn).max() else { return outcome };
            asides.draining = true;
            (slots, newest)
        };
        let durable = self.cover(newest);
        let mut writes = Vec::with_capacity(slots.len());
        for chunk in slots.chunks(SEAL) {
            let mut lists = inst.lock();
            for slot in chunk {
                let aside = &lists.asides.slots[*slot as usize];
                outcome.uncovered += usize::from(aside.lsn > durable);
                writes.extend(lists.asides.begin_write(*slot, durable));
            }
        }
        self.write_asides(inst, &writes, why, &mut outcome);
        if !writes.is_empty() && why != WriteWhy::Checkpoint {
            self.sync_written(&mut outcome);
        }
        let was_draining = std::mem::replace(&mut inst.lock().asides.draining, false);
        assert!(was_draining, "one drains at a time");
        // A copier for each empty slot: the first copies, the others find the frames that it emptied.
        inst.writes_ended(outcome.written);
        outcome
    }

    fn write_asides(&self, inst: &Instance, writes: &[AsideWrite], why: WriteWhy, outcome: &mut Outcome) {
        #[cfg(feature = "baselines")]
        if self.config().baselines.doublewrite {
            return self.send_asides_twice(inst, writes, why, outcome);
        }
        self.send_asides(inst, writes, why, outcome);
    }

    /// Submits the writes of slots in one batch and waits for their ends.
    pub(super) fn send_asides(&self, inst: &Instance, writes: &[AsideWrite], why: WriteWhy, outcome: &mut Outcome) {
        if writes.is_empty() {
            return;
        }
        charge(Cost::IoSubmit, writes.len() as u64);
        let mut ticket = self.store().submit(writes.iter().map(|w| w.request(self, why)).collect());
        assert_eq!(ticket.len(), writes.len(), "a store answers for every page that is written");
        self.counters.batch(writes.len());
        let results = (0..writes.len()).map(|i| ticket.wait(i)).collect();
        drop(ticket);
        self.asides_ended(inst, writes, results, why, outcome);
    }

    /// Takes note of the ends of a batch, a part of it under each hold of the instance's lock.
    pub(super) fn asides_ended(
        &self,
        inst: &Instance,
        writes: &[AsideWrite],
        results: Vec<Result<CostClass, VolumeError>>,
        why: WriteWhy,
        outcome: &mut Outcome,
    ) {
        charge(Cost::IoComplete, writes.len() as u64);
        let mut ends: Vec<_> = writes.iter().map(|w| w.slot).zip(results).collect();
        while !ends.is_empty() {
            self.end_asides(inst, ends.drain(..SEAL.min(ends.len())), why, outcome);
        }
    }

    /// Takes note of the ends of slots' writes.
    pub(super) fn end_asides(
        &self,
        inst: &Instance,
        ends: impl Iterator<Item = (AsideSlot, Result<CostClass, VolumeError>)>,
        why: WriteWhy,
        outcome: &mut Outcome,
    ) {
        let mut errors = Vec::new();
        let mut lists = inst.lock();
        for (slot, result) in ends {
            if let Some((id, keyspace)) = inst.aside_written(&mut lists, slot, result.is_ok(), why) {
                // Under the lock, so that nobody can load or discard the page before the store knows that it left.
                self.store().evicted(id, keyspace, PageUse::default());
            }
            match result {
                Ok(_) => {
                    outcome.written += 1;
                    self.writes_succeed();
                    self.counters.writes(why).inc();
                }
                Err(e) => errors.push(e),
            }
        }
        drop(lists);
        inst.writes_ended(0);
        for e in errors {
            self.counters.write_errors.inc();
            outcome.failed += 1;
            let retryable = is_retryable(&e);
            outcome.note(self, volume_error(e), retryable);
        }
    }

    /// Whether the log is durable to `lsn`: a page with that LSN may be written.
    pub(super) fn covers(&self, lsn: Lsn) -> bool {
        lsn <= self.gate().durable_lsn() || self.faults().has(Mistake::PageBeforeLog)
    }

    /// Forces the log to `lsn` if need be; how far pages may be written now.
    pub(super) fn cover(&self, lsn: Lsn) -> Lsn {
        if self.faults().has(Mistake::PageBeforeLog) {
            return Lsn::MAX;
        }
        if lsn > self.gate().durable_lsn() {
            self.counters.log_forces.inc();
            if let Err(e) = self.gate().force(lsn) {
                self.log_failed(&e);
            }
        }
        self.gate().durable_lsn()
    }
}
