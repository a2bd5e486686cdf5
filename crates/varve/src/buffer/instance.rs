//! One instance of the pool: its frames, its page table, and its lists under one lock.
//!
//! Lock order: a frame's latch comes before the instance's lock. Under the lock latches are only tried, no device or
//! log is waited for, and no other lock is taken.
//!
//! Invariants, under the lock
//! - A frame that nobody has latched is on the free list or retired, once, and empty, or its page is in the table and
//!   known to the policy.
//! - Frames are retired while there are more than `allowed`, and used again when more are.
//! - `dirty` has the slot of each dirty page, with its first change as `first` has it; a page that is just becoming
//!   dirty, under its exclusive latch, is still to come.
//! - A page that is taken out of its frame is clean, not being written, not pinned, and out of the policy.

use super::Pool;
use super::aside::Asides;
use super::changes::Changes;
use super::config::{HIT_STRIPES, PoolConfig};
use super::frame::{DIRTY, FREE, Frame, Frames, KNOWN, MISSED, NO_PAGE, PREFETCHED, REDIRTIED, UNCOMPARED, WRITING};
use super::guard::Exclusive;
use super::hits::{HitBuffers, Pushed};
use super::lock::Locked;
use super::policy::{self, Ask, Load, Replacement, Slot, Unlink};
use super::stats::{Counters, KINDS};
use super::table::PageTable;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use varve_device::DeviceError;
use varve_rt::atomic::Ordering::*;
use varve_rt::{Condvar, Cost, Event, Mutex, charge};
use varve_volume::{CostClass, Lsn, PageId, WriteWhy};

/// Pages that the clean-first pointer moves on over at most, after an eviction.
const EAGER: usize = 32;

/// What the instance's lock protects.
pub(super) struct Lists {
    pub(super) free: Vec<Slot>,
    /// Frames that hold pages or are on the free list. More of them are made as they are first needed.
    in_use: usize,
    /// Frames that may be in use.
    allowed: usize,
    /// Frames that were made and are out of use: empty, their memory given back.
    retired: Vec<Slot>,
    pub(super) policy: Box<dyn Replacement>,
    /// Dirty pages by their first-change LSN.
    pub(super) dirty: BTreeSet<(Lsn, Slot)>,
    /// First-change LSN of each dirty slot.
    pub(super) first: Vec<Lsn>,
    /// The next bounded scan for a victim is worth while (cleared by one that found nothing, set by a cleaner's batch,
    /// by pages set aside, or by every write completed).
    pub(super) scan_pays: bool,
    /// Pages that left their frames before they were written.
    pub(super) asides: Asides,
    /// Dirty pages that the clean-first pointer has passed since the cleaner was last called for them, or, with the
    /// parallel list, took them; in this order, some more than once.
    pub(super) passed: Vec<Slot>,
    /// A cleaner's batch is being put together, and how many have ended (`fixed56`).
    #[cfg(feature = "baselines")]
    pub(super) batch: (bool, u64),
}

pub(super) struct Instance {
    /// Address of the first frame's page; those of the others follow.
    pages: usize,
    pub(super) frames: Frames,
    pub(super) table: PageTable,
    lists: Mutex<Lists>,
    hits: HitBuffers,
    /// A frame became free, or a page clean.
    frames_cv: Condvar,
    /// A write ended.
    writes_cv: Condvar,
    /// Wakes this instance's cleaner.
    pub(super) cleaner: Arc<Event>,
    /// Wakes who writes its pages to the slow of two devices, if that is a thread of its own.
    pub(super) slow_cleaner: Arc<Event>,
    /// Wakes who writes this instance's pages that were set aside.
    pub(super) drainer: Arc<Event>,
    /// The pool's.
    counters: Arc<Counters>,
    /// See [`super::victim::Needs::scan_per_write`].
    scan_per_write: bool,
    /// See [`PoolConfig::lists_passed`].
    pub(super) lists_passed: bool,
    /// What changed of each frame's page since it was stored.
    pub(super) changes: Changes,
}

impl Lists {
    /// Free frames.
    pub(super) fn free_frames(&self) -> usize {
        self.free.len() + self.to_come()
    }

    /// Whether so many frames are free, an eighth, that nobody will have to wait for one soon.
    pub(super) fn has_free_frames(&self) -> bool {
        8 * self.free_frames() >= self.allowed
    }

    /// Frames that may still be made, or be used again.
    fn to_come(&self) -> usize {
        self.allowed.saturating_sub(self.in_use)
    }
}

impl Instance {
    /// An instance of so many frames over pages from `pages` on, with what wakes its cleaners and its drainer.
    pub(super) fn new(
        config: &PoolConfig,
        [cleaner, slow_cleaner, drainer]: [Arc<Event>; 3],
        counters: Arc<Counters>,
        (count, pages): (usize, *mut u8),
    ) -> Result<Instance, DeviceError> {
        let frames = Frames::new(count, pages, config.page_size)?;
        let entry = policy::find(config.replacement).expect("the configuration was validated");
        let lists = Lists {
            free: Vec::new(),
            in_use: 0,
            allowed: count,
            retired: Vec::new(),
            policy: (entry.make)(count, &config.policy),
            dirty: BTreeSet::new(),
            first: vec![0; count],
            scan_pays: true,
            asides: Asides::new(config.aside_slots()),
            passed: Vec::new(),
            #[cfg(feature = "baselines")]
            batch: (false, 0),
        };
        // On a host whose work takes time the lock is taken as seldom as on a real one.
        let at_once = varve_rt::in_simulation() && !varve_rt::costs_modelled();
        let (stripes, entries) = if at_once { (1, 1) } else { (HIT_STRIPES, config.hit_buffer) };
        Ok(Instance {
            pages: pages.addr(),
            table: PageTable::new(count),
            frames,
            lists: Mutex::new(lists),
            hits: HitBuffers::new(stripes, entries),
            frames_cv: Condvar::new(),
            writes_cv: Condvar::new(),
            cleaner,
            slow_cleaner,
            drainer,
            counters,
            scan_per_write: config.victim_needs().scan_per_write,
            lists_passed: config.lists_passed(),
            changes: Changes::new(count, config.noted_changes),
        })
    }

    pub(super) fn lock(&self) -> Locked<'_> {
        Locked::lock(&self.lists, &self.counters)
    }

    pub(super) fn try_lock(&self) -> Option<Locked<'_>> {
        Locked::try_lock(&self.lists, &self.counters)
    }

    pub(super) fn wake_cleaner(&self) {
        if !self.cleaner.is_set() {
            self.cleaner.set();
        }
    }

    pub(super) fn wake_slow_cleaner(&self) {
        if !self.slow_cleaner.is_set() {
            self.slow_cleaner.set();
        }
    }

    /// Smallest first-change LSN of the instance's dirty pages.
    pub(super) fn oldest_dirty(&self) -> Option<Lsn> {
        let lists = self.lock();
        lists.dirty.first().map(|d| d.0).into_iter().chain(lists.asides.oldest()).min()
    }

    /// Dirty pages, in frames and set aside.
    pub(super) fn dirty_pages(&self) -> usize {
        let lists = self.lock();
        lists.dirty.len() + lists.asides.len()
    }

    /// Whether a bounded scan for a clean page is worth while.
    pub(super) fn scan_pays(&self) -> bool {
        self.lock().scan_pays
    }

    /// A bounded scan found nothing: the next is worth while after a write ended.
    pub(super) fn scan_failed(&self) {
        self.lock().scan_pays = false;
    }

    /// Where a slot's page lies, without a look at its frame.
    #[inline]
    pub(super) fn address(&self, slot: Slot, page_size: usize) -> usize {
        self.pages + slot as usize * page_size
    }

    #[inline]
    pub(super) fn frame(&self, slot: Slot) -> &Frame {
        &self.frames[slot as usize]
    }

    /// The frame of `id` without any lock: a hint, see [`PageTable`].
    #[inline]
    pub(super) fn hint(&self, id: PageId) -> Option<Slot> {
        self.table.hint(&self.frames, id)
    }

    /// The frame of `id`: looked up without a lock first, and exactly before it is said that there is none. The frame
    /// may be given to another page before the caller has its latch.
    #[inline]
    pub(super) fn find(&self, id: PageId) -> Option<Slot> {
        self.hint(id).or_else(|| self.find_locked(id))
    }

    #[cold]
    fn find_locked(&self, id: PageId) -> Option<Slot> {
        let _lists = self.lock();
        self.table.find(&self.frames, id)
    }

    /// Records an access of a latched page.
    #[inline]
    pub(super) fn hit(&self, slot: Slot, id: PageId, stats: &Counters) {
        if self.hits.push(slot, id) == Pushed::Full {
            self.hits_full(stats);
        }
    }

    #[cold]
    fn hits_full(&self, stats: &Counters) {
        if let Some(mut lists) = self.try_lock() {
            self.drain_hits(&mut lists, stats);
        }
    }

    /// Tells the policy of every gathered hit.
    pub(super) fn drain_hits(&self, lists: &mut Lists, stats: &Counters) {
        let mut now = None;
        let mut hits = [0u64; KINDS];
        let lost = self.hits.drain(|slot, page| {
            charge(Cost::HitRecord, 1);
            let frame = self.frame(slot);
            // The frame may have got another page, or none that the policy knows, since.
            let state = frame.state.load(Acquire);
            if frame.page.load(Acquire) as u32 != page || state & KNOWN == 0 {
                return;
            }
            let now = *now.get_or_insert_with(|| varve_rt::now().as_nanos());
            frame.count_logical();
            if state & MISSED != 0 {
                frame.state.fetch_and(!MISSED, AcqRel);
                return;
            }
            let kind = KINDS.min(frame.kind.load(Relaxed) as usize + 1) - 1;
            hits[kind] += 1;
            if state & PREFETCHED != 0 && frame.state.fetch_and(!PREFETCHED, AcqRel) & PREFETCHED != 0 {
                stats.kinds[kind].prefetch_used.inc();
            }
            lists.policy.hit(slot, now);
        });
        for (kind, n) in hits.iter().enumerate().filter(|(_, n)| **n > 0) {
            stats.kinds[kind].hits.add(*n);
        }
        if lost > 0 {
            stats.hits_dropped.add(lost);
        }
    }

    /// Gives an empty, unlatched frame back.
    pub(super) fn free(&self, slot: Slot) {
        assert_eq!(self.frame(slot).page.load(Acquire), NO_PAGE, "a frame that is free is empty");
        self.put_free(&mut self.lock(), slot);
        self.frame_freed();
    }

    /// Puts an empty frame on the free list; or retires it, if there are too many.
    pub(super) fn put_free(&self, lists: &mut Lists, slot: Slot) {
        let before = self.frame(slot).state.fetch_or(FREE, AcqRel);
        assert!(before & FREE == 0, "no frame is free twice");
        lists.free.push(slot);
        self.retire_free(lists);
    }

    /// Takes frames off the free list that are too many.
    fn retire_free(&self, lists: &mut Lists) {
        while lists.in_use > lists.allowed {
            let Some(slot) = lists.free.pop() else { return };
            lists.retired.push(slot);
            lists.in_use -= 1;
        }
    }

    /// From now on so many frames may be in use; those that are too many are retired as they become free.
    pub(super) fn allow(&self, frames: usize) {
        assert!(
            (1..=self.frames.most()).contains(&frames),
            "an instance has a frame, and no more than it was made for"
        );
        let mut lists = self.lock();
        lists.allowed = frames;
        self.retire_free(&mut lists);
        drop(lists);
        self.wake_all();
    }

    /// Whether more frames are in use than may be.
    pub(super) fn has_too_many(&self) -> bool {
        let lists = self.lock();
        lists.in_use > lists.allowed
    }

    /// Gives the memory of retired frames back to the system. Meanwhile none of them is used again.
    pub(super) fn release_retired(&self, pool: &Pool) {
        let mut slots = std::mem::take(&mut self.lock().retired);
        slots.sort_unstable();
        for run in slots.chunk_by(|a, b| a + 1 == *b) {
            // Latched: who looks at their bytes without a latch finds out that he has seen nothing.
            let held: Vec<_> = run.iter().map(|slot| pool.at(self, *slot).lock()).collect();
            self.frames.forget(run[0] as usize, run.len());
            held.into_iter().for_each(Exclusive::unlatch);
        }
        self.lock().retired.extend(slots);
        self.wake_all();
    }

    /// Takes a frame off the free list.
    pub(super) fn take_free(&self, lists: &mut Lists) -> Option<Slot> {
        let slot = lists.free.pop().or_else(|| self.make_frames(lists))?;
        let before = self.frame(slot).state.fetch_and(!FREE, AcqRel);
        assert!(before == FREE, "a frame on the free list is free, and nothing else");
        assert!(lists.in_use <= lists.allowed, "frames that are too many are retired when they become free");
        Some(slot)
    }

    /// Takes a frame that was retired, or makes some more and takes the first of them; none when as many are in use as
    /// may be.
    fn make_frames(&self, lists: &mut Lists) -> Option<Slot> {
        let room = lists.to_come();
        if let Some(slot) = (room > 0).then(|| lists.retired.pop()).flatten() {
            lists.in_use += 1;
            return Some(slot);
        }
        let more = self.frames.make(room, FREE);
        lists.in_use += more.len();
        lists.free.extend(more.rev().map(|i| i as Slot));
        lists.free.pop()
    }

    /// A frame was put on the free list.
    pub(super) fn frame_freed(&self) {
        self.frames_freed(1);
    }

    /// So many frames were put on the free list (or pages became clean, or slots empty): one waiter is woken for each.
    pub(super) fn frames_freed(&self, count: usize) {
        (0..count).for_each(|_| self.frames_cv.notify_one());
    }

    /// Waits until a frame may have become available, at most `limit`. While writes fail, each of them wakes
    /// everybody: then it sleeps, so that those who wait do not keep each other awake.
    pub(super) fn wait_for_frame(&self, pool: &Pool, limit: Duration) {
        if pool.writes_are_refused() {
            return varve_rt::sleep(limit);
        }
        let mut lists = self.lock();
        if lists.free_frames() == 0 && !lists.scan_pays {
            self.wait_for_slot(&mut lists, limit);
        }
    }

    /// Waits until a frame, or a slot for a page set aside, may have become free, at most `limit`.
    pub(super) fn wait_for_slot(&self, lists: &mut Locked<'_>, limit: Duration) {
        lists.wait_for(&self.frames_cv, limit);
    }

    /// Waits until some write of this instance ended, at most `limit`.
    pub(super) fn wait_for_write(&self, lists: &mut Locked<'_>, limit: Duration) {
        lists.wait_for(&self.writes_cv, limit);
    }

    /// Writes ended, and `clean` pages are clean by them or gone: wakes who waits for writes, and one who waits for a
    /// frame for each page.
    pub(super) fn writes_ended(&self, clean: usize) {
        self.writes_cv.notify_all();
        self.frames_freed(clean);
    }

    /// A batch ended, or writes failed: everybody who waits looks again.
    pub(super) fn wake_all(&self) {
        self.writes_cv.notify_all();
        self.frames_cv.notify_all();
    }

    /// Makes an exclusively latched empty frame the one of `id`, unless another frame has become that; then false.
    pub(super) fn publish(&self, lists: &mut Lists, slot: Slot, id: PageId) -> bool {
        charge(Cost::ListMove, 1);
        let _ = lists;
        if self.table.find(&self.frames, id).is_some() {
            return false;
        }
        let frame = self.frame(slot);
        assert_eq!(frame.page.load(Acquire), NO_PAGE, "a page gets an empty frame");
        assert_eq!(frame.pins.load(Acquire), 0, "nobody has an empty frame pinned");
        let before = frame.state.swap(UNCOMPARED, AcqRel);
        assert_eq!(before, 0, "a frame that gets a page has no state left of another");
        frame.page.store(id.0, Release);
        self.table.insert(&self.frames, id, slot);
        true
    }

    /// Tells the policy of a page that came into an exclusively latched, published frame.
    pub(super) fn loaded(&self, lists: &mut Lists, slot: Slot, id: PageId, how: Load, class: CostClass) {
        charge(Cost::ListMove, 1);
        let frame = self.frame(slot);
        frame.class.store(class.0, Relaxed);
        let known = if how == Load::Prefetch { PREFETCHED | KNOWN } else { KNOWN };
        let before = frame.state.fetch_or(known, AcqRel);
        assert!(before & KNOWN == 0 && frame.holds(id), "the policy is told once of a page, which its frame bears");
        let known = lists.policy.len();
        lists.policy.load(slot, id, how, class, varve_rt::now().as_nanos());
        debug_assert_eq!(lists.policy.len(), known + 1, "the policy has a page more in its lists");
    }

    /// Takes the page out of an exclusively latched frame that the policy does not know (any more).
    pub(super) fn withdraw(&self, lists: &mut Lists, slot: Slot) {
        charge(Cost::ListMove, 1);
        let _ = lists;
        let frame = self.frame(slot);
        assert!(!frame.is(DIRTY | WRITING | KNOWN), "a page that leaves is clean, and out of the policy");
        assert_eq!(frame.pins.load(Acquire), 0, "a page that is pinned keeps its frame");
        let id = PageId(frame.page.load(Acquire));
        self.table.remove(&self.frames, id, slot);
        frame.page.store(NO_PAGE, Release);
        frame.state.store(0, Release);
        frame.take_usage();
    }

    /// Unlinks a page from the policy.
    pub(super) fn unlink(&self, lists: &mut Lists, slot: Slot, how: Unlink) {
        charge(Cost::ListMove, 1);
        let before = self.frame(slot).state.fetch_and(!KNOWN, AcqRel);
        assert!(before & KNOWN != 0, "the policy gives up a page that it knows");
        let known = lists.policy.len();
        lists.policy.unlink(slot, how);
        debug_assert_eq!(lists.policy.len() + 1, known, "the policy has a page less in its lists");
    }

    /// Finds a victim, latches its frame and unlinks it from the policy; the page is still in the table.
    pub(super) fn claim_victim<'a>(&'a self, pool: &'a Pool, lists: &mut Lists, ask: Ask) -> Option<Exclusive<'a>> {
        self.drain_hits(lists, pool.counters());
        let mut claimed = None;
        let (mut looked, sweeps) = (0, ask.resume && ask.cold_only);
        let mut passed = std::mem::take(&mut lists.passed);
        let pass = |passed: &mut Vec<Slot>, slot| {
            if passed.len() < self.frames.most() && self.frame(slot).flushable() {
                passed.push(slot);
            }
        };
        let slot = lists.policy.victim(ask, &mut |slot| {
            looked += 1;
            charge(Cost::ListScan, 1);
            claimed = pool.at(self, slot).try_claim();
            if sweeps && claimed.is_none() {
                pass(&mut passed, slot);
            }
            claimed.is_some()
        });
        pool.counters.scanned.add(looked);
        assert_eq!(slot, claimed.as_ref().map(|held| held.at().slot), "the policy's victim is the page that was taken");
        if let Some(slot) = slot {
            self.unlink(lists, slot, Unlink::Evicted);
        }
        if sweeps && slot.is_some() {
            // On to the next clean page, so that the next miss finds it there.
            lists.policy.advance(EAGER, &mut |slot| {
                charge(Cost::ListScan, 1);
                pass(&mut passed, slot);
                self.frame(slot).evictable()
            });
        }
        lists.passed = passed;
        claimed
    }

    /// Latches a frame and unlinks its page from the policy as a victim, if that page may be evicted now.
    pub(super) fn claim<'a>(&'a self, pool: &'a Pool, lists: &mut Lists, slot: Slot) -> Option<Exclusive<'a>> {
        if !self.frame(slot).is(KNOWN) {
            return None;
        }
        let held = pool.at(self, slot).try_claim()?;
        self.unlink(lists, slot, Unlink::Evicted);
        Some(held)
    }

    /// The store told the cost class of a resident page; `wrote` if it did so as the result of a write.
    pub(super) fn set_class(
        &self,
        lists: &mut Lists,
        slot: Slot,
        class: CostClass,
        wrote: Option<WriteWhy>,
        stats: &Counters,
    ) {
        let frame = self.frame(slot);
        if !frame.is(KNOWN) || frame.class.swap(class.0, Relaxed) == class.0 {
            return;
        }
        stats.class_changes.inc();
        lists.policy.class_changed(slot, class, wrote, varve_rt::now().as_nanos());
    }

    /// The page in a frame became dirty.
    pub(super) fn dirtied(&self, lists: &mut Lists, slot: Slot, first: Lsn) {
        charge(Cost::ListMove, 1);
        assert!(self.frame(slot).is(DIRTY), "who lists a page as dirty has made it so");
        lists.first[slot as usize] = first;
        let new = lists.dirty.insert((first, slot));
        assert!(new, "slot {slot} was dirty already");
        lists.policy.dirtied(slot, varve_rt::now().as_nanos());
    }

    /// A write of the page in a frame, of its state at `lsn`, ended well. True when the page is clean now.
    pub(super) fn written(&self, lists: &mut Lists, slot: Slot, lsn: Lsn, why: WriteWhy) -> bool {
        charge(Cost::ListMove, 1);
        let frame = self.frame(slot);
        let clean = frame.end_write();
        let first = lists.first[slot as usize];
        // A page that was discarded while its write was in flight is clean already.
        if lists.dirty.remove(&(first, slot)) {
            if clean {
                lists.policy.cleaned(slot, why, varve_rt::now().as_nanos());
            } else {
                // The first change that this write does not cover came after the page had this LSN.
                let first = first.max(lsn);
                lists.first[slot as usize] = first;
                lists.dirty.insert((first, slot));
            }
        }
        lists.scan_pays |= self.scan_per_write;
        clean
    }

    /// Forgets the changes of a page. Under its exclusive latch.
    pub(super) fn undirty(&self, lists: &mut Lists, slot: Slot) {
        let frame = self.frame(slot);
        if frame.state.fetch_and(!(DIRTY | REDIRTIED), AcqRel) & DIRTY != 0 {
            let removed = lists.dirty.remove(&(lists.first[slot as usize], slot));
            assert!(removed, "a dirty page is on the dirty list");
            lists.policy.cleaned(slot, WriteWhy::Recoverability, varve_rt::now().as_nanos());
        }
    }

    /// See [`crate::buffer::Pool::check_quiescent`].
    pub(super) fn check_quiescent(&self, pool: &Pool) {
        let lists = self.lock();
        lists.policy.check();
        lists.asides.check_quiescent();
        let mut resident = 0;
        let mut dirty = 0;
        for (slot, frame) in self.frames.iter().enumerate() {
            let slot = slot as Slot;
            let id = frame.page.load(Acquire);
            assert!(id == NO_PAGE || lists.asides.state(PageId(id)).is_none(), "page {id} is in a frame and aside");
            assert_eq!(frame.pins.load(Acquire), 0, "page {id} is pinned");
            assert!(!frame.is(WRITING), "page {id} is being written");
            pool.at(self, slot).try_lock().unwrap_or_else(|| panic!("page {id} is latched")).unlatch();
            if id == NO_PAGE {
                let out_of_use = lists.free.contains(&slot) ^ lists.retired.contains(&slot);
                assert!(out_of_use, "an empty frame is not on the free list, nor retired");
                assert!(!frame.is(DIRTY | KNOWN), "an empty frame is dirty or known to the policy");
                continue;
            }
            resident += 1;
            assert!(frame.is(KNOWN), "page {id} is unknown to the policy");
            assert_eq!(self.table.find(&self.frames, PageId(id)), Some(slot), "page {id} in the table");
            let listed = lists.dirty.contains(&(lists.first[slot as usize], slot));
            assert_eq!(frame.is(DIRTY), listed, "page {id}: dirty state and dirty list");
            dirty += usize::from(listed);
        }
        assert_eq!(lists.policy.len(), resident, "pages known to the policy");
        assert_eq!(lists.dirty.len(), dirty, "pages on the dirty list");
        assert_eq!(lists.free.len() + resident, lists.in_use, "free and resident frames");
        assert_eq!(lists.in_use + lists.retired.len(), self.frames.len(), "frames in use, and retired");
        assert!(lists.in_use <= lists.allowed, "no more frames are in use than may be");
    }
}
