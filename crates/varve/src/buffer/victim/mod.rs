//! Victim strategies: what a miss does to get a frame, above all when the coldest pages are dirty.
//!
//! A strategy works on one instance through the operations that the pool offers its own modules: take a free frame,
//! evict a clean page found by the replacement policy, wake the cleaner, wait for a frame, write pages. It holds no
//! instance lock while it waits or writes. What it needs of the pool besides it declares ([`Needs`]): the pool reads
//! needs, never names.
//!
//! A new strategy is one file here, one line in `mod` and one in [`REGISTRY`].

mod clean_first;
mod spf;

use super::Pool;
use super::aside::AsideWrite;
#[cfg(feature = "baselines")]
use super::baselines;
use super::config::PoolConfig;
use super::guard::Exclusive;
use super::instance::Instance;
use crate::error::{Error, Result};
use varve_device::DeviceError;
use varve_volume::PageId;

/// A frame for a miss.
pub(super) struct Taken<'a> {
    /// The frame: empty, latched.
    pub(super) held: Exclusive<'a>,
    /// A write that the caller must submit, with its read if it makes one.
    pub(super) owed: Option<Owed<'a>>,
}

/// The write of a page that was set aside to make a frame free; it is marked as being written.
pub(super) struct Owed<'a> {
    pub(super) inst: &'a Instance,
    pub(super) write: AsideWrite,
}

impl<'a> From<Exclusive<'a>> for Taken<'a> {
    fn from(held: Exclusive<'a>) -> Taken<'a> {
        Taken { held, owed: None }
    }
}

/// How misses get frames.
pub(super) trait VictimStrategy: Send + Sync {
    /// An empty frame of `inst` for page `incoming`, latched. Fails when none can be had.
    fn take_frame<'a>(&self, pool: &'a Pool, inst: &'a Instance, incoming: PageId) -> Result<Taken<'a>>;
}

/// Nothing could be evicted or written for too long: since no page can be written, since what changed them cannot be
/// logged, or since all of them are in use.
pub(super) fn out_of_frames(pool: &Pool) -> Error {
    if varve_rt::dying() {
        return DeviceError::PowerLost.into();
    }
    let in_use = Error::OverBudget { class: "buffer pool frames", requested: pool.page_size() as u64, available: 0 };
    let log = || pool.log_has_failed().then(|| pool.log_failure());
    pool.passing_failure().or_else(log).unwrap_or(in_use)
}

/// What a strategy needs of the pool. The pool reads it when it is made and when its threads start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    /// A cleaner: the strategy waits for one and never writes a page while it runs.
    pub cleaner: bool,
    /// The list of the dirty pages that its searches pass, for a cleaner that takes them from there.
    pub passed: bool,
    /// A bounded scan pays again after each write that ended; else only after a cleaner's batch.
    pub scan_per_write: bool,
    /// Slots for pages set aside: `scan_depth` of them in each instance.
    pub asides: bool,
    /// Threads that write the pages set aside, as many as there are cleaners.
    pub drainer: bool,
    /// A thread that takes the ends of writes that were submitted together with a read.
    pub reaper: bool,
}

impl Needs {
    /// A scan that pays after each write, and nothing else.
    pub const LEAST: Needs =
        Needs { cleaner: false, passed: false, scan_per_write: true, asides: false, drainer: false, reaper: false };
}

/// A strategy: each file has its own.
pub struct VictimEntry {
    /// Name in configurations and statistics.
    pub name: &'static str,
    /// What it needs of the pool.
    pub needs: Needs,
    pub(super) make: fn(&PoolConfig) -> Box<dyn VictimStrategy>,
}

/// Every strategy there is.
pub const REGISTRY: &[VictimEntry] = &[
    spf::ENTRY,
    #[cfg(feature = "baselines")]
    baselines::spf56::ENTRY,
    #[cfg(feature = "baselines")]
    baselines::war::ENTRY,
    #[cfg(feature = "baselines")]
    baselines::rw::ENTRY,
    clean_first::ENTRY,
];

/// The strategy of that name.
pub fn find(name: &str) -> Option<&'static VictimEntry> {
    REGISTRY.iter().find(|e| e.name == name)
}
