//! A fast device over a slow store: pages that deserve it have a copy, or their newest version, in a slot of the fast
//! device.
//!
//! Every page has its home on the slow store. A read goes to the fast device if the map has the page there, else home.
//! Pages are offered when the pool evicts or cleans them; a [`manager`] decides. A clean page is copied into bounded
//! staging memory and written in the background: no read waits for a write to the fast device. A page whose newest
//! version is on the fast device is copied home before its slot is used for another.
//!
//! `docs/tier.md` explains the managers, the crash rules and what is measured; the formats are in `docs/format.md`.
//!
//! Invariants: a page has its newest version in the slot that the map names, or at home; a slot whose version is newer
//! than home is given up only when home has it durably; maps are numbered in order, and the superblock names one that
//! is whole; what a sync promised is in the map, the journal, or at home.
//!
//! Lock order: `changing` (one change of the fast device at a time), `movers`, `maintenance` (one map or journal write
//! at a time), the promises of [`fault`], `state`. No I/O under `state`.

mod admission;
mod admit;
mod background;
mod change;
mod fault;
mod layout;
pub mod manager;
mod map;
mod options;
mod record;
mod records;
mod recover;
mod requests;
mod slots;
mod stamp;
mod stats;
#[cfg(test)]
mod tests;
mod volume;

pub use crate::report::{Counters, Recovery, Resized, TierStats};
pub use fault::Keeper;
pub use manager::{Alpha, Costs, ManagerOptions, Place, Refusal};
pub use map::owner;
pub use options::{MapRecovery, OPTIONS, TierOptions};
pub use stats::REFUSALS;
pub use volume::TierVolume;
pub(crate) use volume::is_record;

use crate::admin::Stamp;
use crate::{Counted, PageId, PageStore, VolumeError};
use admit::{Part, TierState};
use fault::{Promises, Standing};
use manager::DirtyWrites;
use map::MapFile;
use std::sync::Arc;
use varve_device::{Device, Health, Mistake};
use varve_rt::atomic::{AtomicBool, Ordering};
use varve_rt::{Event, Instant, JoinHandle, Mutex};

/// Where the map stands on the device.
struct Maintenance {
    sequence: u64,
    /// Blocks of the journal in use.
    journal_used: u32,
    /// Records of the slots that the journal holds.
    journaled: usize,
    /// Map and journal do not tell everything: the next sync writes a map.
    renew: bool,
    /// What the database stamped the device with last.
    stamp: Stamp,
}

impl Maintenance {
    /// A map was written, and its journal is empty.
    fn begun(sequence: u64, stamp: Stamp) -> Maintenance {
        Maintenance { sequence, journal_used: 0, journaled: 0, renew: false, stamp }
    }
}

/// A slow store under a fast device.
pub struct Tier {
    slow: Arc<dyn PageStore>,
    /// Bytes of a page.
    page_size: usize,
    options: TierOptions,
    state: Mutex<TierState>,
    maintenance: Mutex<Maintenance>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    stopping: AtomicBool,
    promises: Promises,
    /// One change of the fast device at a time.
    changing: Mutex<()>,
    /// One copying home at a time.
    movers: Mutex<()>,
    /// When what the manager knows was saved last.
    remembered: Mutex<Instant>,
    /// When the fast device was asked for its wear last, and what it said.
    life_asked: Mutex<Option<(Instant, Option<f64>)>>,
    /// Whether the manager takes pages when they are read.
    admit_on_read: bool,
    /// Poisoned when something fails on which promises rest. Of its own until [`Tier::belongs_to`].
    health: Mutex<Arc<Health>>,
    /// Work for the threads: pages to admit, slots to empty, a map to write.
    to_admit: Event,
    to_reclaim: Event,
    to_map: Event,
}

impl Tier {
    /// Makes an empty tier on `fast`, whatever was there before. `owner` ties the two together: the identity of the
    /// database, or better a new one each time that a fast device is put to use.
    pub fn create(
        slow: Arc<dyn PageStore>,
        fast: Arc<dyn Device>,
        owner: [u8; 16],
        options: TierOptions,
    ) -> Result<Arc<Tier>, VolumeError> {
        let tier = Tier::without(slow, options)?;
        tier.attach(fast, owner)?;
        Ok(tier)
    }

    /// Opens what an earlier use left on `fast`: its pages are there again. A device that was detached is not used: the
    /// tier is open without it.
    pub fn open(
        slow: Arc<dyn PageStore>,
        fast: Arc<dyn Device>,
        owner: [u8; 16],
        options: TierOptions,
    ) -> Result<Arc<Tier>, VolumeError> {
        let tier = Tier::look(slow, fast, owner, options)?;
        tier.begin_writing()?;
        Ok(tier)
    }

    /// The same, and writes nothing: to read from it alone, or until [`Tier::begin_writing`].
    fn look(
        slow: Arc<dyn PageStore>,
        fast: Arc<dyn Device>,
        owner: [u8; 16],
        options: TierOptions,
    ) -> Result<Arc<Tier>, VolumeError> {
        let began = varve_rt::now();
        let tier = Tier::without(slow, options)?;
        let file = MapFile::new(fast.clone(), owner);
        let loaded = file.load()?;
        let at = loaded.superblock;
        if at.detached {
            return Ok(tier);
        }
        if at.geometry.page_size as usize != tier.page_size {
            let what = format!("its pages have {} bytes, the database's {}", at.geometry.page_size, tier.page_size);
            return Err(VolumeError::Tier { device: fast.info().name, what });
        }
        let (used, stamp) = (loaded.journal_used, loaded.stamp);
        // What the manager knew is of use only: without it the pages earn their ranks anew.
        let memories = file.load_memories(&at.geometry, tier.memory_tag()).unwrap_or_default();
        let mut state = TierState::new(&tier.options, at.geometry.slots as usize)?;
        let (records, renew) = recover::run(&mut state, &*tier.slow, &*fast, loaded, &memories, &tier.options)?;
        state.recovery.seconds = began.elapsed().as_secs_f64();
        state.life = at.life;
        state.part = Some(Arc::new(Part { device: fast, geometry: at.geometry, file }));
        *tier.state.lock() = state;
        *tier.maintenance.lock() =
            Maintenance { sequence: at.sequence, journal_used: used, journaled: records, renew, stamp };
        Ok(tier)
    }

    /// A tier without a fast device: every page is read and written at home until one is attached. Only for a database
    /// whose pages are all at home ([`TierOptions::survives_loss`], or a device that was detached).
    pub fn without(slow: Arc<dyn PageStore>, options: TierOptions) -> Result<Arc<Tier>, VolumeError> {
        options.validate()?;
        let state = TierState::new(&options, 0)?;
        Ok(Arc::new(Tier {
            admit_on_read: state.style.admit_on_read,
            health: Mutex::new(Health::new()),
            page_size: slow.page_size(),
            slow,
            options,
            state: Mutex::new(state),
            maintenance: Mutex::new(Maintenance::begun(0, Stamp::default())),
            threads: Mutex::new(Vec::new()),
            stopping: AtomicBool::new(false),
            promises: Promises::default(),
            changing: Mutex::new(()),
            movers: Mutex::new(()),
            remembered: Mutex::new(varve_rt::now()),
            life_asked: Mutex::new(None),
            to_admit: Event::new(),
            to_reclaim: Event::new(),
            to_map: Event::new(),
        }))
    }

    /// The tier is part of a database: it poisons that when something fails on which the database's promises rest.
    pub fn belongs_to(&self, health: &Arc<Health>) {
        *self.health.lock() = health.clone();
    }

    /// Whether this mistake is to be made.
    fn makes(&self, mistake: Mistake) -> bool {
        self.health.lock().faults().has(mistake)
    }

    /// What it poisons.
    pub fn health(&self) -> Arc<Health> {
        self.health.lock().clone()
    }

    /// The device that holds the slots, if there is one.
    pub fn fast(&self) -> Option<Arc<dyn Device>> {
        self.state.lock().part.as_ref().map(|part| part.device.clone())
    }

    /// The store that is every page's home.
    pub fn slow(&self) -> &Arc<dyn PageStore> {
        &self.slow
    }

    /// How it was configured.
    pub fn options(&self) -> &TierOptions {
        &self.options
    }

    /// Bytes that the manager may need for pages which are neither in the pool nor on the fast device (the out-queue of
    /// `cac` and `cc`): to be taken from the pool, so that managers are compared at equal memory.
    pub fn outqueue_memory(&self) -> usize {
        self.state.lock().manager.outqueue_memory()
    }

    /// What the manager counted by group and page.
    pub fn counted(&self) -> Counted {
        self.state.lock().manager.counted()
    }

    /// Where the page would be read from now.
    pub fn place(&self, page: PageId) -> Place {
        self.state.lock().slots.place(page)
    }

    fn part(&self) -> Option<Arc<Part>> {
        self.state.lock().part.clone()
    }

    /// The kind of what the manager remembers.
    fn memory_tag(&self) -> u64 {
        u64::from(crc32c::crc32c(self.options.manager.as_bytes()))
    }

    /// Slots of the zone that a map leaves open for eviction, of so many.
    fn zone_slots(&self, all: usize) -> usize {
        match self.options.map_recovery {
            MapRecovery::Zone => ((all as f64 * self.options.zone) as usize).clamp(1, all.max(1)),
            MapRecovery::Scan | MapRecovery::Log => all,
        }
    }

    /// Writes the map and begins a journal for it.
    pub(crate) fn write_map(&self) -> Result<(), VolumeError> {
        self.write_map_at(&mut self.maintenance.lock())
    }

    /// Writes the map at a clean close: the next opening then knows of every page whether it is newer than home, and
    /// need not take for newer what it cannot tell.
    pub fn save_map(&self) -> Result<(), VolumeError> {
        self.write_map()
    }

    fn write_map_at(&self, at: &mut Maintenance) -> Result<(), VolumeError> {
        let Some(part) = self.part().filter(|_| !self.forsaken()) else { return Ok(()) };
        self.write_map_for(at, &part)?;
        Ok(())
    }

    /// Writes the map for `part`: the present one, or its device with another number of slots. The slots become as
    /// many.
    fn write_map_for(&self, at: &mut Maintenance, part: &Arc<Part>) -> Result<(), VolumeError> {
        let slots = part.geometry.slots as usize;
        let (snapshot, flush, life) = {
            let mut state = self.state.lock();
            let state = &mut *state;
            let now = varve_rt::now().as_nanos();
            let (manager, zone) = (&mut state.manager, self.zone_slots(slots));
            let snapshot = state.slots.begin_map(zone, &mut |page, newer| manager.rank(page, newer, now));
            (snapshot.resized(slots), state.slots.begin_flush(), state.life())
        };
        let sequence = at.sequence + 1;
        let written = match self.makes(Mistake::TierNoMaps) {
            true => Ok(0),
            false => self.on_fast(|| part.file.write_map(&part.geometry, sequence, &snapshot, (life, at.stamp))),
        };
        let mut state = self.state.lock();
        state.slots.end_map(written.is_ok());
        let bytes = written?;
        state.slots.flushed(flush);
        if slots != state.slots.len() {
            state.slots.set_len(slots);
        }
        if !state.part.as_ref().is_some_and(|now| Arc::ptr_eq(now, part)) {
            state.part = Some(part.clone());
            state.resized();
        }
        state.counters.maps += 1;
        state.counters.map_bytes += bytes;
        drop(state);
        // No sync ran since the snapshot, so nothing that came after it was promised to be in the journal.
        *at = Maintenance::begun(sequence, at.stamp);
        Ok(())
    }

    /// Makes everything that completed, and what the map must say of it, survive a power cut.
    fn sync_all(&self) -> Result<(), VolumeError> {
        if self.home_comes_first() {
            self.bring_home()?;
        }
        let mut at = self.maintenance.lock();
        if let Some(part) = self.part().filter(|_| !self.forsaken())
            && let Err(e) = self.sync_fast(&mut at, &part)
            && !self.forsaken()
        {
            return Err(e);
        }
        drop(at);
        self.note_forsaken()?;
        self.sync_home()
    }

    /// Whether a sync may not rest on what the fast device alone has.
    fn home_comes_first(&self) -> bool {
        let state = self.state.lock();
        // Where every page is written home, recovery may still have found one of which it could not tell.
        state.style.home_at_sync || state.style.dirty != DirtyWrites::Back && state.slots.newer() > 0
    }

    fn sync_fast(&self, at: &mut Maintenance, part: &Arc<Part>) -> Result<(), VolumeError> {
        let (records, flush, unsaid) = {
            let mut state = self.state.lock();
            let flush = state.slots.begin_flush();
            assert!(at.journaled <= state.slots.records().len(), "what the journal holds is among the records");
            (state.slots.records()[at.journaled..].to_vec(), flush, state.slots.unsaid())
        };
        assert!(at.journal_used <= part.geometry.journal_blocks(), "a journal is within its blocks");
        let room = part.geometry.journal_blocks() - at.journal_used;
        if self.makes(Mistake::TierNoJournal) {
            self.flush_fast(part)?;
        } else if at.renew || unsaid || MapFile::journal_need(records.len()) > room {
            self.write_map_at(at)?;
        } else {
            let used = self.on_fast(|| {
                let used = part.file.write_journal(&part.geometry, at.sequence, at.journal_used, &records)?;
                self.flush_part(part)?;
                Ok(used)
            })?;
            let blocks = used - at.journal_used;
            assert!(used >= at.journal_used, "a journal grows until its map is replaced");
            at.journal_used = used;
            at.journaled += records.len();
            let mut state = self.state.lock();
            state.slots.flushed(flush);
            state.counters.journal_records += records.len() as u64;
            state.counters.journal_bytes += u64::from(blocks) * layout::BLOCK as u64;
        }
        if at.journal_used * 4 > part.geometry.journal_blocks() * 3 {
            self.to_map.set();
        }
        Ok(())
    }

    fn flush_fast(&self, part: &Part) -> Result<(), VolumeError> {
        self.on_fast(|| self.flush_part(part))
    }

    /// To be called within [`Tier::on_fast`].
    fn flush_part(&self, part: &Part) -> Result<(), VolumeError> {
        match varve_device::flush(&*part.device) {
            Err(_) if self.makes(Mistake::TierFailedFlushBelieved) => Ok(()),
            flushed => Ok(flushed?),
        }
    }

    /// Saves what the manager knows of pages, so that the tier is warm when it is opened again.
    fn remember(&self) -> Result<(), VolumeError> {
        let usable = self.state.lock().standing == Standing::Good;
        let Some(part) = self.part().filter(|_| usable) else { return Ok(()) };
        let mut memories = self.state.lock().manager.remember(varve_rt::now().as_nanos());
        memories.sort_unstable_by_key(|(order, m)| (*order, m.page));
        let memories: Vec<_> = memories.into_iter().map(|(_, m)| m).collect();
        // The tables stay where they are meanwhile.
        let _at = self.maintenance.lock();
        let now = self.part();
        let Some(part) = now.filter(|now| Arc::ptr_eq(now, &part)) else { return Ok(()) };
        let bytes = part.file.write_memories(&part.geometry, self.memory_tag(), &memories)?;
        self.flush_fast(&part)?;
        let mut state = self.state.lock();
        state.counters.memories += 1;
        state.counters.memory_bytes += bytes;
        Ok(())
    }

    /// What the tier did since it was opened, and what it holds.
    pub fn tier_stats(&self) -> TierStats {
        let stats = stats::stats(&self.state.lock(), &self.options);
        TierStats { slow: self.slow.stats(), life_used: self.life_used(), ..stats }
    }

    /// What the fast device says of its life; it is asked now and then only.
    fn life_used(&self) -> Option<f64> {
        const FRESH: f64 = 600.0;
        let fast = self.fast()?;
        let mut asked = self.life_asked.lock();
        match *asked {
            Some((at, used)) if at.elapsed().as_secs_f64() < FRESH => used,
            _ => {
                let used = fast.life_used();
                *asked = Some((varve_rt::now(), used));
                used
            }
        }
    }

    /// Checks every invariant of what is in memory, for tests; panics where one does not hold.
    pub fn verify(&self) {
        self.state.lock().check();
    }

    fn stopped(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
}
