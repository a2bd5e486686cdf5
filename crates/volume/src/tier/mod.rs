//! A fast device over a slow store: pages that deserve it have a copy, or their newest version, in a slot of the fast device.
//!
//! Every page has its home on the slow store. A read goes to the fast device if the map has the page there, else home. Pages are
//! offered when the pool evicts or cleans them; a [`manager`] decides. A clean page is copied into bounded staging memory and written
//! in the background: no read waits for a write to the fast device. A page whose newest version is on the fast device is copied home
//! before its slot is used for another.
//!
//! `docs/tier.md` explains the managers, the crash rules and what is measured; the formats are in `docs/format.md`.
//!
//! Lock order: `movers`, `maintenance` (one map or journal write at a time), `state`. No I/O under `state`.

mod admit;
mod background;
pub mod manager;
mod map;
mod options;
mod records;
mod recover;
mod requests;
mod slots;
mod stats;
#[cfg(test)]
mod tests;

pub use manager::{Alpha, Costs, ManagerOptions, Refusal};
pub use options::{MapRecovery, TierOptions};
pub use stats::{Counters, REFUSALS, TierStats};

use crate::{PageStore, VolumeError};
use admit::State;
use map::{Geometry, MapFile};
use std::sync::Arc;
use varve_device::Device;
use varve_rt::atomic::{AtomicBool, Ordering};
use varve_rt::{Event, JoinHandle, Mutex};

/// Where the map stands on the device.
struct Maintenance {
    sequence: u64,
    /// Blocks of the journal in use.
    journal_used: u32,
    /// Records of the slots that the journal holds.
    journaled: usize,
}

/// A slow store under a fast device.
pub struct Tier {
    slow: Arc<dyn PageStore>,
    fast: Arc<dyn Device>,
    geometry: Geometry,
    options: TierOptions,
    file: MapFile,
    state: Mutex<State>,
    maintenance: Mutex<Maintenance>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    stopping: AtomicBool,
    /// One copying home at a time.
    movers: Mutex<()>,
    /// Whether the manager takes pages when they are read.
    admit_on_read: bool,
    /// Work for the threads: pages to admit, slots to empty, a map to write.
    to_admit: Event,
    to_reclaim: Event,
    to_map: Event,
}

impl Tier {
    /// Makes an empty tier on `fast`, whatever was there before. `owner` ties it to a database.
    pub fn create(
        slow: Arc<dyn PageStore>,
        fast: Arc<dyn Device>,
        owner: [u8; 16],
        options: TierOptions,
    ) -> Result<Arc<Tier>, VolumeError> {
        options.validate()?;
        let geometry = geometry(&*slow, &*fast)?;
        let state = State::new(&options, geometry.slots as usize)?;
        let tier = Tier::assemble(slow, fast, owner, options, geometry, state, 0);
        tier.write_map()?;
        Ok(tier)
    }

    /// Opens what an earlier use left on `fast`: its pages are there again.
    pub fn open(
        slow: Arc<dyn PageStore>,
        fast: Arc<dyn Device>,
        owner: [u8; 16],
        options: TierOptions,
    ) -> Result<Arc<Tier>, VolumeError> {
        options.validate()?;
        let file = MapFile::new(fast.clone(), owner);
        let loaded = file.load()?;
        let geometry = loaded.superblock.geometry;
        if geometry.page_size as usize != slow.page_size() {
            let what = format!("its pages have {} bytes, the database's {}", geometry.page_size, slow.page_size());
            return Err(VolumeError::Tier { device: fast.info().name, what });
        }
        let mut state = State::new(&options, geometry.slots as usize)?;
        let (sequence, used) = (loaded.superblock.sequence, loaded.journal_used);
        let records = recover::run(&mut state, &*slow, &*fast, loaded, &options)?;
        let tier = Tier::assemble(slow, fast, owner, options, geometry, state, sequence);
        *tier.maintenance.lock() = Maintenance { sequence, journal_used: used, journaled: records };
        Ok(tier)
    }

    fn assemble(
        slow: Arc<dyn PageStore>,
        fast: Arc<dyn Device>,
        owner: [u8; 16],
        options: TierOptions,
        geometry: Geometry,
        state: State,
        sequence: u64,
    ) -> Arc<Tier> {
        Arc::new(Tier {
            admit_on_read: state.style.admit_on_read,
            movers: Mutex::new(()),
            slow,
            file: MapFile::new(fast.clone(), owner),
            fast,
            geometry,
            options,
            state: Mutex::new(state),
            maintenance: Mutex::new(Maintenance { sequence, journal_used: 0, journaled: 0 }),
            threads: Mutex::new(Vec::new()),
            stopping: AtomicBool::new(false),
            to_admit: Event::new(),
            to_reclaim: Event::new(),
            to_map: Event::new(),
        })
    }

    /// The device that holds the slots.
    pub fn fast(&self) -> &Arc<dyn Device> {
        &self.fast
    }

    /// The store that is every page's home.
    pub fn slow(&self) -> &Arc<dyn PageStore> {
        &self.slow
    }

    /// How it was configured.
    pub fn options(&self) -> &TierOptions {
        &self.options
    }

    /// Slots of the zone that a map leaves open for eviction.
    fn zone_slots(&self) -> usize {
        let all = self.geometry.slots as usize;
        match self.options.map_recovery {
            MapRecovery::Zone => ((all as f64 * self.options.zone) as usize).clamp(1, all),
            MapRecovery::Scan | MapRecovery::Log => all,
        }
    }

    /// Writes the map and begins a journal for it.
    pub(crate) fn write_map(&self) -> Result<(), VolumeError> {
        self.write_map_at(&mut self.maintenance.lock())
    }

    fn write_map_at(&self, at: &mut Maintenance) -> Result<(), VolumeError> {
        let (snapshot, flush) = {
            let mut state = self.state.lock();
            let state = &mut *state;
            let now = varve_rt::now().as_nanos();
            let manager = &mut state.manager;
            let snapshot = state.slots.begin_map(self.zone_slots(), &mut |page, newer| manager.rank(page, newer, now));
            (snapshot, state.slots.begin_flush())
        };
        let sequence = at.sequence + 1;
        let written = match self.options.broken_no_maps && at.sequence > 0 {
            true => Ok(0),
            false => self.file.write_map(&self.geometry, sequence, &snapshot),
        };
        let mut state = self.state.lock();
        state.slots.end_map(written.is_ok());
        let bytes = written?;
        state.slots.flushed(flush);
        state.counters.maps += 1;
        state.counters.map_bytes += bytes;
        drop(state);
        // No sync ran since the snapshot, so nothing that came after it was promised to be in the journal.
        *at = Maintenance { sequence, journal_used: 0, journaled: 0 };
        Ok(())
    }

    /// Makes everything that completed, and what the map must say of it, survive a power cut.
    fn sync_all(&self) -> Result<(), VolumeError> {
        if self.state.lock().style.home_at_sync {
            self.all_home()?;
        }
        let mut at = self.maintenance.lock();
        let (records, flush) = {
            let mut state = self.state.lock();
            let flush = state.slots.begin_flush();
            (state.slots.records()[at.journaled..].to_vec(), flush)
        };
        let room = self.geometry.journal_blocks() - at.journal_used;
        if self.options.broken_no_journal {
            varve_device::flush(&*self.fast)?;
        } else if MapFile::journal_need(records.len()) > room {
            self.write_map_at(&mut at)?;
        } else {
            at.journal_used = self.file.write_journal(&self.geometry, at.sequence, at.journal_used, &records)?;
            varve_device::flush(&*self.fast)?;
            at.journaled += records.len();
            let mut state = self.state.lock();
            state.slots.flushed(flush);
            state.counters.journal_records += records.len() as u64;
        }
        if at.journal_used * 4 > self.geometry.journal_blocks() * 3 {
            self.to_map.set();
        }
        drop(at);
        self.slow.sync()
    }

    /// What the tier did since it was opened, and what it holds.
    pub fn tier_stats(&self) -> TierStats {
        let state = self.state.lock();
        TierStats::new(&state, &self.options, self.fast.stats())
    }

    fn stopped(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
}

fn geometry(slow: &dyn PageStore, fast: &dyn Device) -> Result<Geometry, VolumeError> {
    Geometry::fit(fast.len(), slow.page_size() as u32).ok_or_else(|| VolumeError::Tier {
        device: fast.info().name,
        what: format!("{} bytes are too few for a tier of {}-byte pages: give it more", fast.len(), slow.page_size()),
    })
}
