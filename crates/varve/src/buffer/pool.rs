//! The pool itself: making it, finding resident pages, and the small operations. Misses are in `load.rs`, writes in
//! `writer.rs`.
//!
//! Invariants: a page belongs to one instance, by its id; a pool that was poisoned by a write stays so, with the first
//! cause; `has_passing` says whether there is a `passing` failure, or is about to.

#[cfg(feature = "baselines")]
use super::baselines::Doublewrite;
use super::cleaner::{Cleaners, Reaper};
use super::config::PoolConfig;
use super::frame::{self, Arena, DIRTY, STALE, UNCOMPARED, WRITING};
use super::guard::{Exclusive, FrameRef, PagePin, PageRead, PageWrite};
use super::instance::Instance;
use super::pins::{PinRoom, pinnable};
use super::policy::{Slot, Turnover, Unlink};
use super::prefetch::Prefetcher;
use super::staging::Staging;
use super::stats::{Counters, PoolStats};
use super::table;
use super::trace::{TraceEvent, Tracer};
use super::updates::Updates;
use super::victim::{self, VictimStrategy};
use crate::error::{Error, Result};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use varve_device::{DeviceError, Faults, Health};
use varve_rt::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use varve_rt::{Cost, Event, Instant, Mutex, charge};
use varve_volume::{KeyspaceId, Lsn, PageId, PageStore, page};

/// A store that refuses writes for so long is not waited for.
const REFUSED: Duration = Duration::from_secs(1);

/// How much log a crash would have to redo now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogAge {
    /// Bytes of log since the redo point.
    pub bytes_since_redo: u64,
    /// Bytes that the log may hold, or that recovery may take, whichever is less.
    pub capacity: u64,
}

/// What the pool needs of the log.
pub trait LogGate: Send + Sync {
    /// The log is durable up to this LSN.
    fn durable_lsn(&self) -> Lsn;
    /// Makes the log durable up to `lsn`; waits for it.
    fn force(&self, lsn: Lsn) -> Result<()>;
    /// End of the log, where it is known: no page in the store was changed later than that.
    fn end_lsn(&self) -> Lsn {
        Lsn::MAX
    }
    /// Two positions of the log around this LSN, between which it has none: no page in the store has it. `None`: it may
    /// be one of the log's.
    fn gap_at(&self, _lsn: Lsn) -> Option<(Lsn, Lsn)> {
        None
    }
    /// Age of the log, for adaptive cleaning.
    fn age(&self) -> LogAge;
    /// Of the database: poisoned when a page could not be written and trying again will not help, or when a thread of
    /// the pool panics.
    fn health(&self) -> Arc<Health> {
        Health::new()
    }
}

/// The buffer pool. Shared as an `Arc`; every operation may be called from any thread.
pub struct Pool {
    config: PoolConfig,
    pub(super) reaper: Arc<Reaper>,
    instances: Box<[Instance]>,
    store: Arc<dyn PageStore>,
    gate: Arc<dyn LogGate>,
    faults: Faults,
    pub(super) victim: Box<dyn VictimStrategy>,
    pub(super) staging: Staging,
    #[cfg(feature = "baselines")]
    pub(super) doublewrite: Doublewrite,
    pub(super) counters: Arc<Counters>,
    pub(super) cleaners: Cleaners,
    pub(super) prefetcher: Prefetcher,
    pub(super) pin_room: PinRoom,
    /// Frames that may be in use now.
    pub(super) frames: AtomicUsize,
    /// Held by who changes that.
    pub(super) resizing: Mutex<()>,
    /// Boxed: it is there only in pools that are traced.
    pub(super) tracer: Option<Box<Tracer>>,
    /// The same.
    pub(super) updates: Option<Box<Updates>>,
    /// The page write error that poisoned the pool.
    failed: Mutex<Option<Error>>,
    /// The newest page write error that may pass, and since when all writes fail, until one succeeds.
    passing: Mutex<Option<(Error, Instant)>>,
    /// There is one.
    has_passing: AtomicBool,
    /// The log cannot be forced any more, and why: only pages that it covers already can be written.
    log_failed: AtomicBool,
    log_failure: Mutex<Option<Error>>,
    // Last: the frames point into it.
    _arena: Arena,
}

impl Pool {
    /// A pool over `store`. Its memory is reserved now and touched as it is used. Nothing runs in the background before
    /// [`Pool::start`].
    pub fn new(config: PoolConfig, store: Arc<dyn PageStore>, gate: Arc<dyn LogGate>) -> Result<Arc<Pool>> {
        config.validate().map_err(Error::Invalid)?;
        if store.page_size() != config.page_size {
            let (pool, store) = (config.page_size, store.page_size());
            return Err(Error::Invalid(format!(
                "buffer pool: page_size is {pool}, the store's pages have {store} bytes"
            )));
        }
        let pages = config.frames * config.page_size;
        let arena = Arena::new(pages)?;
        // Everything else is made in many pieces: here all of it is there, or refused.
        let rest = config.memory_bytes().saturating_sub(pages);
        if Vec::<u8>::new().try_reserve_exact(rest).is_err() {
            return Err(DeviceError::no_memory(rest as u64, "the tables of the buffer pool").into());
        }
        let n = config.instances;
        assert!(n > 0 && config.frames >= n, "each instance has a frame");
        let bound = |i: usize| i * config.frames / n;
        // The instances of one background thread share what wakes it.
        let wakes = |part: Range<usize>| vec![[(); 3].map(|()| Arc::new(Event::new())); part.len()];
        let wakes: Vec<_> = config.parts().flat_map(wakes).collect();
        let counters = Arc::new(Counters::default());
        let instance = |i: usize| {
            let frames = (bound(i + 1) - bound(i), arena.at(bound(i) * config.page_size));
            Instance::new(&config, wakes[i].clone(), counters.clone(), frames)
        };
        let instances = (0..n).map(instance).collect::<std::result::Result<_, _>>()?;
        let victim = (victim::find(config.victim).expect("validated").make)(&config);
        Ok(Arc::new(Pool {
            reaper: Arc::new(Reaper::new()),
            instances,
            store,
            faults: gate.health().faults().clone(),
            gate,
            victim,
            #[cfg(feature = "baselines")]
            doublewrite: Doublewrite::default(),
            staging: Staging::new(config.staging_pages, config.page_size),
            counters,
            cleaners: Cleaners::new(),
            prefetcher: Prefetcher::new(&config.read_ahead),
            pin_room: PinRoom::new(pinnable(config.frames, n)),
            frames: AtomicUsize::new(config.frames),
            resizing: Mutex::new(()),
            tracer: config.trace.as_ref().map(|handle| Box::new(Tracer::new(handle))),
            updates: config.counts_updates().then(|| Box::new(Updates::new(config.kept_flushes))),
            failed: Mutex::new(None),
            passing: Mutex::new(None),
            has_passing: AtomicBool::new(false),
            log_failed: AtomicBool::new(false),
            log_failure: Mutex::new(None),
            config,
            _arena: arena,
        }))
    }

    /// The configuration.
    pub fn config(&self) -> &PoolConfig {
        &self.config
    }

    /// Bytes of a page, header included.
    #[inline]
    pub fn page_size(&self) -> usize {
        self.config.page_size
    }

    #[inline]
    pub(super) fn store(&self) -> &dyn PageStore {
        &*self.store
    }

    pub(super) fn gate(&self) -> &dyn LogGate {
        &*self.gate
    }

    /// What is to go wrong in this database.
    pub(super) fn faults(&self) -> &Faults {
        &self.faults
    }

    #[inline]
    pub(super) fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(super) fn instances(&self) -> &[Instance] {
        &self.instances
    }

    #[inline]
    pub(super) fn instance(&self, id: PageId) -> &Instance {
        if self.instances.len() == 1 {
            return &self.instances[0];
        }
        let high = table::hash(id) >> 32;
        &self.instances[((high * self.instances.len() as u64) >> 32) as usize]
    }

    pub(super) fn at<'a>(&'a self, inst: &'a Instance, slot: Slot) -> FrameRef<'a> {
        FrameRef { pool: self, inst, slot }
    }

    /// Latches the page shared if it is resident. Waits for the latch only (which may be that of its read under way).
    #[inline]
    pub fn read_resident(&self, id: PageId) -> Option<PageRead<'_>> {
        charge(Cost::PageAccess, 1);
        let inst = self.instance(id);
        while let Some(slot) = inst.find(id) {
            // While we wait the frame may be given to another page, even to one above those that the caller has
            // latched: to wait for that could be to wait for ourselves.
            let Some(read) = self.at(inst, slot).read_while(id) else { continue };
            if inst.frame(slot).holds(id) {
                inst.hit(slot, id, &self.counters);
                self.trace(TraceEvent::Read(id));
                return Some(read);
            }
        }
        None
    }

    /// Latches the page shared if it is resident and its latch is free. Waits for nothing.
    pub fn try_read_resident(&self, id: PageId) -> Option<PageRead<'_>> {
        charge(Cost::PageAccess, 1);
        let inst = self.instance(id);
        let slot = inst.find(id)?;
        let read = self.at(inst, slot).try_read().filter(|_| inst.frame(slot).holds(id))?;
        inst.hit(slot, id, &self.counters);
        self.trace(TraceEvent::Read(id));
        Some(read)
    }

    /// Begins to load a part of the page into the processor's cache, if the page table's first look finds it: while the
    /// frame's latch is taken it comes in. A hint without any effect on results.
    #[inline]
    pub fn expect_bytes(&self, id: PageId, part: Range<usize>) {
        let inst = self.instance(id);
        if let Some(slot) = inst.table.first(id) {
            frame::fetch(inst.address(slot, self.page_size()) + part.start, part.len());
        }
    }

    /// The same for the page's frame, its latch among it.
    #[inline]
    pub fn expect_frame(&self, id: PageId) {
        let inst = self.instance(id);
        if let Some(slot) = inst.table.first(id) {
            frame::fetch(std::ptr::from_ref(inst.frame(slot)).addr(), size_of::<frame::Frame>());
        }
    }

    /// Latches the page exclusively if it is resident. Waits for the latch only.
    #[inline]
    pub fn write_resident(&self, id: PageId) -> Option<PageWrite<'_>> {
        let held = self.latch_resident(id)?;
        held.at().inst.hit(held.at().slot, id, &self.counters);
        self.trace(TraceEvent::Write(id));
        Some(held.into_write(false))
    }

    /// Tells the trace, if there is one.
    #[inline]
    pub(super) fn trace(&self, event: TraceEvent) {
        if let Some(tracer) = &self.tracer {
            tracer.event(event);
        }
    }

    /// Takes the exclusive latch of a resident page.
    fn latch_resident(&self, id: PageId) -> Option<Exclusive<'_>> {
        charge(Cost::PageAccess, 1);
        let inst = self.instance(id);
        while let Some(slot) = inst.find(id) {
            // See `read_resident`.
            let Some(held) = self.at(inst, slot).lock_while(id) else { continue };
            if held.frame().holds(id) {
                return Some(held);
            }
            held.unlatch();
        }
        None
    }

    /// Latches the page shared, loading it first if need be. Not to be called with an inner node's latch held.
    ///
    /// Errors: damage of the page, the device's errors, and the lack of a frame when everything is pinned or
    /// unwritable.
    #[inline]
    pub fn read(&self, id: PageId) -> Result<PageRead<'_>> {
        match self.read_resident(id) {
            Some(page) => Ok(page),
            None => Ok(self.load(id)?.read()),
        }
    }

    /// Latches the page exclusively, loading it first if need be. Not to be called with an inner node's latch held.
    #[inline]
    pub fn write(&self, id: PageId) -> Result<PageWrite<'_>> {
        match self.write_resident(id) {
            Some(page) => Ok(page),
            None => Ok(self.load(id)?.write()),
        }
    }

    /// Makes the page resident and pins it; no latch is held on return.
    pub fn load(&self, id: PageId) -> Result<PagePin<'_>> {
        loop {
            if let Some(page) = self.read_resident(id) {
                return Ok(page.pin());
            }
            if let Some(pin) = self.fault(id)? {
                return Ok(pin);
            }
        }
    }

    /// The page is freed: drops its frame, dirty or not, without writing. A pinned page stays resident until it is
    /// unpinned and evicted, but is no longer dirty. Waits for the page's latch and for a write of it under way, so
    /// that afterwards the store may be told that the page is free. True when somebody still has it pinned.
    pub fn discard(&self, id: PageId) -> bool {
        while let Some(held) = self.latch_resident(id) {
            let FrameRef { inst, slot, .. } = held.at();
            let frame = held.frame();
            let mut lists = inst.lock();
            inst.undirty(&mut lists, slot);
            frame.state.fetch_or(STALE, AcqRel);
            if frame.is(WRITING) {
                held.unlatch();
                inst.wait_for_write(&mut lists, Duration::from_millis(100));
                continue;
            }
            self.counters.discarded.inc();
            let gone = frame.pins.load(Acquire) == 0;
            if gone {
                inst.unlink(&mut lists, slot, Unlink::Discarded);
                inst.withdraw(&mut lists, slot);
            }
            drop(lists);
            if let Some(tracer) = &self.tracer {
                tracer.forget(id);
                if gone {
                    tracer.event(TraceEvent::Discard(id));
                }
            }
            held.unlatch();
            if gone {
                inst.free(slot);
            }
            return !gone;
        }
        self.forget_aside(id);
        false
    }

    /// Gives a page up that was set aside; waits for a write of it under way.
    fn forget_aside(&self, id: PageId) {
        let inst = self.instance(id);
        let mut lists = inst.lock();
        while let Some(writing) = lists.asides.state(id) {
            if !writing {
                lists.asides.forget(id);
                self.counters.discarded.inc();
                return;
            }
            inst.wait_for_write(&mut lists, Duration::from_millis(100));
        }
    }

    /// Whether somebody has the page pinned.
    pub fn is_pinned(&self, id: PageId) -> bool {
        let inst = self.instance(id);
        inst.find(id).is_some_and(|slot| {
            let frame = inst.frame(slot);
            frame.pins.load(Acquire) > 0 && frame.holds(id)
        })
    }

    /// A page made by `create` is dropped before any change, still latched: takes it out again, unless it is in use.
    /// Its frame is on the free list then. Never waits, as it is called by a destructor.
    pub(super) fn forget_fresh(&self, at: FrameRef<'_>) -> bool {
        let FrameRef { inst, slot, .. } = at;
        let frame = at.frame();
        let Some(mut lists) = inst.try_lock() else { return false };
        if frame.pins.load(Acquire) != 0 || frame.is(WRITING | DIRTY) {
            return false;
        }
        let id = at.id();
        inst.unlink(&mut lists, slot, Unlink::Discarded);
        inst.withdraw(&mut lists, slot);
        inst.put_free(&mut lists, slot);
        drop(lists);
        self.trace(TraceEvent::Discard(id));
        true
    }

    /// A zeroed page that need not be read, latched exclusively: of a new page, or in place of a damaged or stale one.
    /// Its header bears the keyspace; type and contents are the caller's. Dropped before [`PageWrite::set_dirty`], it
    /// leaves the pool.
    ///
    /// May have to wait for a frame, so it is called before other latches are taken where possible.
    pub fn create(&self, id: PageId, keyspace: KeyspaceId) -> Result<PageWrite<'_>> {
        let mut page = self.latch_for_create(id)?;
        let mut bytes = page.bytes_mut();
        bytes.clear();
        bytes.header(|header| page::set_keyspace(header, keyspace));
        Ok(page)
    }

    pub(super) fn latch_for_create(&self, id: PageId) -> Result<PageWrite<'_>> {
        let page = self.latch_frame_for_create(id)?;
        page.is_new();
        page.frame().state.fetch_and(!UNCOMPARED, AcqRel);
        Ok(page)
    }

    fn latch_frame_for_create(&self, id: PageId) -> Result<PageWrite<'_>> {
        loop {
            if let Some(held) = self.latch_resident(id) {
                let FrameRef { inst, slot, .. } = held.at();
                inst.hit(slot, id, &self.counters);
                self.trace(TraceEvent::Write(id));
                if held.frame().is(DIRTY) {
                    // What was there before is given up, as by `discard`.
                    inst.undirty(&mut inst.lock(), slot);
                }
                return Ok(held.into_write(true));
            }
            if let Some(page) = self.empty_page(id)? {
                charge(Cost::CopyByte, self.page_size() as u64);
                self.counters.kind(0).created.inc();
                self.trace(TraceEvent::Create(id));
                return Ok(page);
            }
        }
    }

    /// Smallest first-change LSN over the dirty pages: a lower bound of what any of them lacks in the store.
    pub fn oldest_dirty(&self) -> Option<Lsn> {
        self.instances.iter().filter_map(Instance::oldest_dirty).min()
    }

    /// Number of dirty pages.
    pub fn dirty_pages(&self) -> usize {
        self.instances.iter().map(Instance::dirty_pages).sum()
    }

    /// Number of frames that may be in use now; [`Pool::config`] has how many there are at most.
    pub fn capacity_frames(&self) -> usize {
        self.frames.load(Acquire)
    }

    /// What the pool did so far, and how full it is. Drains the hit buffers, so that every hit is counted.
    pub fn stats(&self) -> PoolStats {
        let (mut free, mut dirty, mut aside) = (0, 0, 0);
        let mut turnover = Turnover::default();
        for inst in &self.instances {
            let mut lists = inst.lock();
            inst.drain_hits(&mut lists, &self.counters);
            free += lists.free_frames() as u64;
            dirty += (lists.dirty.len() + lists.asides.len()) as u64;
            aside += lists.asides.len() as u64;
            turnover.plus(&lists.policy.turnover());
        }
        let cleaners = self.config.parts().count() as u64;
        PoolStats {
            frames: self.capacity_frames() as u64,
            free,
            dirty,
            aside,
            turnover,
            cleaners,
            ..self.counters.get()
        }
    }

    /// The error that poisoned the pool, if a page could not be written for good.
    pub fn failure(&self) -> Option<Error> {
        self.failed.lock().clone()
    }

    /// Remembers a page write error that will not go away and tells the log.
    pub(super) fn fail(&self, error: &Error) {
        let first = {
            let mut failed = self.failed.lock();
            failed.is_none() && failed.replace(error.clone()).is_none()
        };
        if first {
            self.gate.health().poison(&error.to_string());
        }
    }

    /// Remembers a page write error that may pass.
    pub(super) fn writes_fail(&self, error: &Error) {
        let mut passing = self.passing.lock();
        let since = passing.as_ref().map_or_else(varve_rt::now, |(_, since)| *since);
        *passing = Some((error.clone(), since));
        self.has_passing.store(true, Release);
    }

    /// A page was written: what failed before has passed.
    pub(super) fn writes_succeed(&self) {
        if self.has_passing.load(Relaxed) && self.has_passing.swap(false, AcqRel) {
            *self.passing.lock() = None;
        }
    }

    /// Why pages are not written now, if the store fails all of them.
    pub(super) fn passing_failure(&self) -> Option<Error> {
        self.passing().map(|(error, _)| error)
    }

    fn passing(&self) -> Option<(Error, Instant)> {
        if self.has_passing.load(Acquire) { self.passing.lock().clone() } else { None }
    }

    /// Whether the last page write failed.
    pub(super) fn writes_are_refused(&self) -> bool {
        self.has_passing.load(Relaxed)
    }

    /// Whether who has waited for a frame since `began` should give up: after [`PoolConfig::frame_timeout`], or after
    /// a second when the store has refused every write of it, or the log has failed.
    pub(super) fn waited_enough(&self, began: Instant) -> bool {
        let waited = began.elapsed();
        let refused = || self.log_has_failed() || self.passing().is_some_and(|(_, since)| since.elapsed() > REFUSED);
        varve_rt::dying() || waited > self.config.frame_timeout || waited > REFUSED && refused()
    }

    /// Remembers that the log cannot be forced any more.
    pub(super) fn log_failed(&self, error: &Error) {
        self.log_failure.lock().get_or_insert_with(|| error.clone());
        self.log_failed.store(true, Release);
    }

    pub(super) fn log_has_failed(&self) -> bool {
        self.log_failed.load(Acquire)
    }

    /// Why pages with newer changes cannot be written.
    pub(super) fn log_failure(&self) -> Error {
        let known = self.log_failure.lock().clone();
        known.unwrap_or_else(|| Error::Poisoned("a change could not be logged".into()))
    }

    /// Whether the log will never be durable to `lsn`: it failed before, or the change has no place in it (`Lsn::MAX`).
    pub(super) fn never_covered(&self, lsn: Lsn) -> bool {
        lsn == Lsn::MAX || (self.log_has_failed() && lsn > self.gate.durable_lsn())
    }

    /// Asserts everything that must hold while nobody uses the pool: no latch, no pin, no write under way, lists and
    /// table agreeing with the frames. For tests.
    #[doc(hidden)]
    pub fn check_quiescent(&self) {
        for inst in &self.instances {
            inst.check_quiescent(self);
        }
    }
}

impl Drop for Pool {
    /// The background threads hold the pool weakly and find it gone; nothing is written and nobody is waited for.
    fn drop(&mut self) {
        self.cleaners.end(&self.instances);
        self.reaper.wake.set();
    }
}
