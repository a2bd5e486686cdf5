//! The tier as a page store: where each request goes, and how it ends.
//!
//! Invariants: a page is read from and written to the slot that it has, or home; of a page that is on its way home no
//! other version goes there meanwhile; a slot has one write in flight, so that its versions have an order.

use super::Tier;
use super::admit::{HAS_DEVICE, Part, TierState};
use super::manager::{DirtyWrites, Offer, Place};
use super::slots::{Slot, SlotState};
use crate::{
    CostClass, KeyspaceId, Lsn, PageCompletion, PageId, PageIo, PageRead, PageStore, PageTicket, PageUse, PageWrite,
    ReadWhy, VolumeError, VolumeStats, page,
};
use std::sync::Arc;
use varve_device::{DeviceError, Hint, Io, Ticket};

/// Where one request of a batch went.
enum Route {
    /// From or to a slot; the index is that of the request to the fast device. `version` of the slot at its beginning.
    Fast { slot: Slot, index: usize, version: u32 },
    /// To the slow store.
    Slow { index: usize },
    /// To both.
    Both { slot: Slot, index: usize, slow: usize, version: u32 },
    /// Served from staging memory: the bytes are in the buffer already.
    Done,
}

/// The requests of a batch as they leave.
#[derive(Default)]
struct Outgoing {
    fast: Vec<Io>,
    slow: Vec<PageIo>,
}

enum FastTicket {
    Batch(Ticket),
    /// A single read, executed at submission.
    One(Result<(), DeviceError>),
}

struct Pending {
    tier: Arc<Tier>,
    requests: Vec<(PageIo, Route)>,
    fast: FastTicket,
    slow: PageTicket,
}

impl Part {
    fn fast_read(&self, slot: Slot, read: &PageRead) -> Io {
        // SAFETY: passed on from the caller of `PageIo::read`; the page ticket waits for it.
        unsafe { Io::read(self.at(slot), read.buf(), self.geometry.page_size as usize) }
    }

    fn fast_write(&self, slot: Slot, write: &PageWrite) -> Io {
        // SAFETY: passed on from the caller of `PageIo::write`; the page ticket waits for it.
        let io = unsafe { Io::write(self.at(slot), write.buf(), self.geometry.page_size as usize, false) };
        io.in_stream(write.stream())
    }
}

/// The requests of a batch while it is decided where they go, one after the other.
struct Routing<'a> {
    tier: &'a Tier,
    state: &'a mut TierState,
    out: &'a mut Outgoing,
    now: u64,
}

impl Routing<'_> {
    fn route(&mut self, io: &PageIo) -> Route {
        match io {
            PageIo::Read(read) => self.read(read),
            PageIo::Write(write) => self.write(write),
        }
    }

    fn read(&mut self, read: &PageRead) -> Route {
        let (state, now) = (&mut *self.state, self.now);
        let staged = state.staged.get(&read.page).and_then(|s| s.bytes.clone());
        if let Some(bytes) = staged {
            state.note_read(read.page, Place::Fast, read.why, now);
            state.counters.staged_reads += 1;
            assert_eq!(bytes.len(), self.tier.page_size);
            // SAFETY: the request was not waited for yet.
            unsafe { read.fill(&bytes) };
            return Route::Done;
        }
        match state.slots.find(read.page) {
            Some(slot) if matches!(state.slots.entry(slot).state, SlotState::Clean | SlotState::Newer) => {
                debug_assert!(state.slots.entry(slot).page == read.page, "a page is read from the slot that it has");
                state.note_read(read.page, Place::Fast, read.why, now);
                state.slots.begin(slot, None);
                self.out.fast.push(state.part.as_ref().expect(HAS_DEVICE).fast_read(slot, read));
                let version = state.slots.entry(slot).version;
                Route::Fast { slot, index: self.out.fast.len() - 1, version }
            }
            _ => {
                state.note_read(read.page, Place::Slow, read.why, now);
                // SAFETY: nobody else gets this one, and whoever waits for it waits for the other.
                self.out.slow.push(unsafe { read.again() });
                Route::Slow { index: self.out.slow.len() - 1 }
            }
        }
    }

    fn write(&mut self, write: &PageWrite) -> Route {
        let (state, now) = (&mut *self.state, self.now);
        state.counters.writes[write.why as usize] += 1;
        state.note_use(write.page, write.keyspace, write.usage.logical_reads, now);
        // SAFETY: the request was just submitted, for pages of this size.
        let lsn = page::lsn(unsafe { write.bytes(self.tier.page_size) });
        // A staged copy of an older version must not be written, nor read, any more.
        state.staged.remove(&write.page);
        if let Some(slot) = state.slots.find(write.page) {
            let entry = *state.slots.entry(slot);
            if entry.moving {
                // Its older version is on its way home, so the new one must not go there at the same time.
                return self.overwrite(slot, write, lsn);
            }
            if entry.writes > 0 {
                // Two writes of a slot at a time have no order.
                state.drop_slot(slot, false, now);
            }
        }
        match state.style.dirty {
            DirtyWrites::Home => {
                if let Some(slot) = state.slots.find(write.page) {
                    state.drop_slot(slot, false, now);
                }
                Route::Slow { index: self.home(write) }
            }
            DirtyWrites::Back => self.back(write, lsn),
            DirtyWrites::Through => self.through(write, lsn),
        }
    }

    /// Sends the page home; the index of the request.
    fn home(&mut self, write: &PageWrite) -> usize {
        self.state.counters.home_writes += 1;
        self.state.manager.wrote(write.page, Place::Slow, self.now);
        // SAFETY: whoever waits for this one waits for the other.
        self.out.slow.push(unsafe { write.again() });
        self.out.slow.len() - 1
    }

    fn back(&mut self, write: &PageWrite, lsn: Lsn) -> Route {
        let there = self.state.slots.find(write.page);
        if let Some(slot) = there
            && !self.state.style.append
            && !self.state.leaving
        {
            return self.overwrite(slot, write, lsn);
        }
        let offer = self.tier.offer_of(write.page, write.keyspace, true, false, self.now);
        match self.state.offer(offer, self.tier.page_size as u64) {
            Ok(slot) => {
                self.state.counters.dirty_admitted += 1;
                self.state.enter(slot, write.page, SlotState::Newer, lsn, self.now);
                self.slot_route(slot, write)
            }
            Err(_) => {
                if let Some(slot) = there {
                    self.state.drop_slot(slot, false, self.now);
                }
                Route::Slow { index: self.home(write) }
            }
        }
    }

    fn overwrite(&mut self, slot: Slot, write: &PageWrite, lsn: Lsn) -> Route {
        self.begin_overwrite(slot, SlotState::Newer, lsn);
        self.slot_route(slot, write)
    }

    fn begin_overwrite(&mut self, slot: Slot, state: SlotState, lsn: Lsn) {
        self.state.slots.set_state(slot, state);
        self.state.slots.begin(slot, Some(lsn));
        self.state.counters.overwrites += 1;
        self.state.counters.slot_bytes += self.tier.page_size as u64;
    }

    fn slot_route(&mut self, slot: Slot, write: &PageWrite) -> Route {
        self.state.manager.wrote(write.page, Place::Fast, self.now);
        self.state.rerank(slot, self.now);
        let (index, version) = self.fast(slot, write);
        Route::Fast { slot, index, version }
    }

    /// Sends the page to its slot; the index of the request, and the version that the slot has with it.
    fn fast(&mut self, slot: Slot, write: &PageWrite) -> (usize, u32) {
        let entry = self.state.slots.entry(slot);
        assert!(entry.page == write.page && entry.writes == 1, "a page is written to the slot that it has");
        let version = entry.version;
        self.out.fast.push(self.state.part.as_ref().expect(HAS_DEVICE).fast_write(slot, write));
        (self.out.fast.len() - 1, version)
    }

    fn through(&mut self, write: &PageWrite, lsn: Lsn) -> Route {
        let there = self.state.slots.find(write.page);
        if self.state.leaving
            && let Some(slot) = there
        {
            self.state.drop_slot(slot, false, self.now);
        }
        let slot = match there.filter(|_| !self.state.leaving) {
            Some(slot) => {
                self.begin_overwrite(slot, SlotState::Clean, lsn);
                Some(slot)
            }
            None => {
                let offer = self.tier.offer_of(write.page, write.keyspace, true, false, self.now);
                let slot = self.state.offer(offer, self.tier.page_size as u64).ok();
                slot.inspect(|&slot| {
                    self.state.counters.dirty_admitted += 1;
                    self.state.enter(slot, write.page, SlotState::Clean, lsn, self.now);
                })
            }
        };
        let slow = self.home(write);
        let Some(slot) = slot else { return Route::Slow { index: slow } };
        self.state.manager.wrote(write.page, Place::Fast, self.now);
        let (index, version) = self.fast(slot, write);
        Route::Both { slot, index, slow, version }
    }
}

impl Tier {
    pub(super) fn offer_of(&self, page: PageId, keyspace: KeyspaceId, dirty: bool, evicted: bool, now: u64) -> Offer {
        Offer { page, keyspace, dirty, evicted, lowest: None, now }
    }

    /// Wakes the threads that have something to do.
    pub(super) fn wake(&self, state: &TierState) {
        if state.needs_reclaim() {
            self.to_reclaim.set();
        }
        if state.needs_map(self.zone_slots(state.slots.len())) {
            self.to_map.set();
        }
    }

    /// Reads a page from its home and waits.
    pub(super) fn read_home(&self, read: &PageRead) -> Result<CostClass, VolumeError> {
        // SAFETY: the request to the fast device is over, and this one is when the first is waited for.
        let mut ticket = self.slow.submit(vec![unsafe { read.again() }]);
        let result = ticket.wait(0);
        ticket.wait_all()?;
        result
    }
}

impl Pending {
    fn wait_fast(&mut self, index: usize) -> Result<(), DeviceError> {
        match &mut self.fast {
            FastTicket::Batch(ticket) => ticket.wait(index),
            FastTicket::One(result) => result.clone(),
        }
    }

    /// A read of a slot ended: what it holds is the page, or home has it, or it is lost.
    fn end_fast_read(&self, read: &PageRead, slot: Slot, version: u32, done: Result<(), DeviceError>) -> Ended {
        let tier = &*self.tier;
        // SAFETY: the device is done with it, and the wait for it has not returned.
        let bytes = unsafe { read.bytes(tier.page_size) };
        let checked = match done {
            Ok(()) => page::verify(bytes, read.page).map_err(|damage| VolumeError::Damaged { page: read.page, damage }),
            Err(source) => Err(VolumeError::Page { page: read.page, source }),
        };
        let mut state = tier.state.lock();
        let entry = *state.slots.entry(slot);
        state.slots.end_read(slot);
        if !matches!(checked, Err(VolumeError::Page { .. })) {
            state.fast_worked();
        }
        let same = entry.version == version && entry.page == read.page;
        let error = match checked {
            Ok(()) if !same || page::lsn(bytes) >= entry.lsn => {
                if same {
                    state.slots.verified(slot, page::lsn(bytes));
                }
                return Ended::Here;
            }
            Ok(()) => VolumeError::Damaged {
                page: read.page,
                damage: crate::PageDamage::Older { found: page::lsn(bytes), expected: entry.lsn },
            },
            Err(e) => e,
        };
        match &error {
            VolumeError::Page { source, .. } => state.fast_failed(source),
            _ => state.counters.damaged += 1,
        }
        if !same {
            // It was taken out while we read, which it only is when home has the page.
            return Ended::Home { slot, version, least: 0, error };
        }
        match entry.state {
            SlotState::Clean => Ended::Home { slot, version, least: 0, error },
            SlotState::Newer => Ended::Home { slot, version, least: entry.lsn, error },
            _ => Ended::Failed(error),
        }
    }

    fn finish_read(
        &self,
        read: &PageRead,
        slot: Slot,
        version: u32,
        done: Result<(), DeviceError>,
    ) -> Result<CostClass, VolumeError> {
        let tier = &*self.tier;
        let (slot, version, least, error) = match self.end_fast_read(read, slot, version, done) {
            Ended::Here => return Ok(CostClass(1)),
            Ended::Failed(error) => return Err(error),
            Ended::Home { slot, version, least, error } => (slot, version, least, error),
        };
        let held = self.hold_back_mover(read.page, slot, version);
        let home = tier.read_home(read);
        // SAFETY: the slow store is done with it, and the wait for it has not returned.
        let found = home.as_ref().ok().map(|_| page::lsn(unsafe { read.bytes(tier.page_size) }));
        let mut state = tier.state.lock();
        if held && state.slots.same(slot, version) {
            state.slots.set_moving(slot, false);
        }
        if home.is_err() || found < Some(least) {
            state.counters.lost += 1;
            return Err(match home {
                _ if state.failed() => state.lost(),
                // Whether the page is lost nobody knows: home was not read.
                Err(failed @ VolumeError::Page { .. }) => failed,
                _ => error,
            });
        }
        state.counters.repaired += 1;
        if state.slots.same(slot, version) && state.slots.entry(slot).page == read.page {
            state.drop_slot(slot, false, varve_rt::now().as_nanos());
        }
        home
    }

    /// Waits until the page is not on its way home from its slot, and has it stay there: home is about to be read, and
    /// while an older version is being written there the slot must not be given up. Whether the slot still holds the
    /// page.
    fn hold_back_mover(&self, page: PageId, slot: Slot, version: u32) -> bool {
        let mut state = self.tier.state.lock();
        loop {
            let there = state.slots.same(slot, version) && state.slots.entry(slot).page == page;
            if !there || !state.slots.entry(slot).moving {
                if there {
                    state.slots.set_moving(slot, true);
                }
                return there;
            }
            drop(state);
            varve_rt::sleep(std::time::Duration::from_millis(1));
            state = self.tier.state.lock();
        }
    }

    /// A write to a slot ended. One that failed is done again, home.
    fn finish_write(
        &self,
        write: &PageWrite,
        slot: Slot,
        version: u32,
        done: Result<(), DeviceError>,
    ) -> Result<CostClass, VolumeError> {
        let tier = &*self.tier;
        let mut state = tier.state.lock();
        let Err(error) = done else {
            state.slots.end_write(slot, true);
            state.fast_worked();
            return Ok(CostClass(1));
        };
        state.fast_failed(&error);
        while state.slots.same(slot, version) && state.slots.entry(slot).moving {
            // An older version is being written home; ours must come after it. The write has not ended yet for the
            // slot, or the older version could be copied home once more, and the slot be taken for equal to home.
            drop(state);
            varve_rt::sleep(std::time::Duration::from_millis(1));
            state = tier.state.lock();
        }
        state.slots.end_write(slot, false);
        let now = varve_rt::now().as_nanos();
        if state.slots.same(slot, version) {
            state.drop_slot(slot, false, now);
        }
        if error == DeviceError::PowerLost {
            return Err(VolumeError::Page { page: write.page, source: error });
        }
        drop(state);
        // SAFETY: this one is over when the first is waited for.
        let mut ticket = tier.slow.submit(vec![unsafe { write.again() }]);
        let result = ticket.wait(0);
        ticket.wait_all()?;
        result
    }
}

/// How a read of a slot ended.
enum Ended {
    Here,
    /// Home must have it at this LSN at least.
    Home {
        slot: Slot,
        version: u32,
        least: Lsn,
        error: VolumeError,
    },
    Failed(VolumeError),
}

impl PageCompletion for Pending {
    fn wait(&mut self, i: usize) -> Result<CostClass, VolumeError> {
        match self.requests[i].1 {
            Route::Done => Ok(CostClass(1)),
            Route::Fast { slot, index, version } => {
                let done = self.wait_fast(index);
                match &self.requests[i].0 {
                    PageIo::Read(read) => self.finish_read(read, slot, version, done),
                    PageIo::Write(write) => self.finish_write(write, slot, version, done),
                }
            }
            Route::Slow { index } => {
                let class = self.slow.wait(index)?;
                let tier = &*self.tier;
                if let PageIo::Read(read) = &self.requests[i].0
                    && read.why == ReadWhy::Demand
                    && tier.admit_on_read
                {
                    // SAFETY: the slow store is done with it, and this wait has not returned.
                    let bytes = unsafe { read.bytes(tier.page_size) };
                    let taken = tier.admit_clean(read.page, bytes, false);
                    return Ok(if taken { CostClass(1) } else { class });
                }
                Ok(class)
            }
            Route::Both { slot, index, slow, version } => {
                let fast = self.wait_fast(index);
                let home = self.slow.wait(slow);
                let mut state = self.tier.state.lock();
                state.slots.end_write(slot, fast.is_ok());
                match &fast {
                    Ok(()) => state.fast_worked(),
                    Err(e) => state.fast_failed(e),
                }
                if (fast.is_err() || home.is_err()) && state.slots.same(slot, version) {
                    state.drop_slot(slot, false, varve_rt::now().as_nanos());
                }
                home.map(|class| if fast.is_ok() { CostClass(1) } else { class })
            }
        }
    }

    fn try_done(&mut self, i: usize) -> bool {
        let fast = |fast: &mut FastTicket, index| match fast {
            FastTicket::Batch(ticket) => ticket.try_done(index),
            FastTicket::One(_) => true,
        };
        match self.requests[i].1 {
            Route::Done => true,
            Route::Fast { index, .. } => fast(&mut self.fast, index),
            Route::Slow { index } => self.slow.try_done(index),
            Route::Both { index, slow, .. } => fast(&mut self.fast, index) && self.slow.try_done(slow),
        }
    }

    fn abandon(&mut self) {
        // Dropping the tickets of the two devices, right after this, does it.
    }
}

impl Tier {
    fn submit_batch(self: &Arc<Self>, batch: Vec<PageIo>) -> PageTicket {
        let single_read = matches!(&batch[..], [PageIo::Read(r)] if r.why == ReadWhy::Demand);
        let now = varve_rt::now().as_nanos();
        let mut out = Outgoing::default();
        let (routes, part): (Vec<Route>, _) = {
            let mut state = self.state.lock();
            let mut routing = Routing { tier: self, state: &mut state, out: &mut out, now };
            let routes = batch.iter().map(|io| routing.route(io)).collect();
            self.wake(&state);
            (routes, state.part.clone())
        };
        let Outgoing { mut fast, slow } = out;
        let at_home = slow.len();
        let slow = if slow.is_empty() { PageTicket::ready(Vec::new()) } else { self.slow.submit(slow) };
        assert_eq!(slow.len(), at_home, "home answers every request");
        let fast = match (fast.pop(), part) {
            // Somebody waits for a single read: executed here and now, which costs less than a batch.
            (Some(one), Some(part)) if single_read => FastTicket::One(part.device.run(one)),
            (Some(last), Some(part)) => {
                fast.push(last);
                FastTicket::Batch(part.device.submit(fast))
            }
            (last, _) => {
                assert!(last.is_none(), "{HAS_DEVICE}");
                FastTicket::Batch(Ticket::ready(Vec::new()))
            }
        };
        let requests: Vec<_> = batch.into_iter().zip(routes).collect();
        PageTicket::pending(requests.len(), Box::new(Pending { tier: self.clone(), requests, fast, slow }))
    }
}

/// The tier as the pool sees it.
impl PageStore for Arc<Tier> {
    fn page_size(&self) -> usize {
        self.slow.page_size()
    }

    fn pages(&self) -> u64 {
        self.slow.pages()
    }

    fn grow(&self, pages: u64) -> Result<(), VolumeError> {
        self.slow.grow(pages)
    }

    fn usable_bytes(&self, keyspace: KeyspaceId) -> usize {
        self.slow.usable_bytes(keyspace)
    }

    fn submit(&self, batch: Vec<PageIo>) -> PageTicket {
        self.submit_batch(batch)
    }

    fn evict_clean(&self, page: PageId, bytes: &[u8], usage: PageUse) -> bool {
        let now = varve_rt::now().as_nanos();
        let keyspace = page::keyspace(bytes);
        let offer = {
            let mut state = self.state.lock();
            state.note_use(page, keyspace, usage.logical_reads, now);
            let there = state.slots.find(page).is_some();
            state.counters.already_there += u64::from(there);
            !there && !state.style.admit_on_read
        };
        let taken = offer && self.admit_clean(page, bytes, true);
        self.state.lock().manager.evicted(page, now);
        taken
    }

    fn evicted(&self, page: PageId, keyspace: KeyspaceId, usage: PageUse) {
        let now = varve_rt::now().as_nanos();
        let mut state = self.state.lock();
        state.note_use(page, keyspace, usage.logical_reads, now);
        state.manager.evicted(page, now);
    }

    fn dirtied(&self, page: PageId, keyspace: KeyspaceId, usage: PageUse) {
        let (now, mut state) = (varve_rt::now().as_nanos(), self.state.lock());
        // What came before was use of the copy that goes now.
        state.note_use(page, keyspace, usage.logical_reads, now);
        state.dirtied(page, now);
    }

    fn discard(&self, pages: &[PageId]) -> Result<(), VolumeError> {
        let (now, mut state) = (varve_rt::now().as_nanos(), self.state.lock());
        pages.iter().for_each(|page| state.discard(*page, now));
        drop(state);
        self.slow.discard(pages)
    }

    fn class_of_new(&self) -> CostClass {
        if self.state.lock().room_for_any() { Place::Fast.class() } else { Place::Slow.class() }
    }

    fn extent(&self) -> Option<u64> {
        self.slow.extent()
    }

    fn has_two_places(&self) -> bool {
        true
    }

    fn hint(&self, pages: (PageId, PageId), hint: Hint) {
        self.slow.hint(pages, hint);
    }

    fn drain_class_changes(&self, into: &mut Vec<(PageId, CostClass)>) {
        let mut state = self.state.lock();
        // Writes may have told the pool something newer since: what is true now is never wrong.
        let changes = std::mem::take(&mut state.class_changes);
        // A page that lost its copy by a change gets another with its next write, where there is room for any.
        let room = state.room_for_any();
        let place = |page| if room { Place::Fast } else { state.slots.place(page) };
        into.extend(changes.into_iter().map(|(page, _)| (page, place(page).class())));
    }

    fn sync(&self) -> Result<(), VolumeError> {
        self.state.lock().counters.syncs += 1;
        self.sync_all()
    }

    fn stats(&self) -> VolumeStats {
        self.state.lock().counters.of_volume()
    }
}
