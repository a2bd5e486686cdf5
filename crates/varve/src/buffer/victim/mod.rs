//! Victim strategies: what a miss does to get a frame, above all when the coldest pages are dirty.
//!
//! A strategy works on one instance through the operations that the pool offers its own modules: take a free frame, evict a clean
//! page found by the replacement policy, wake the cleaner, wait for a frame, write pages. It holds no instance lock while it waits or
//! writes. A new strategy is one file here, one line in `mod` and one in [`REGISTRY`].

mod clean_first;
mod rw;
mod spf;
mod spf56;
mod war;

use super::Pool;
use super::aside::AsideWrite;
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

/// Nothing could be evicted or written for too long: since no page can be written, or since all of them are in use.
fn out_of_frames(pool: &Pool) -> Error {
    if varve_rt::dying() {
        return DeviceError::PowerLost.into();
    }
    let in_use = Error::OverBudget { class: "buffer pool frames", requested: pool.page_size() as u64, available: 0 };
    pool.passing_failure().unwrap_or(in_use)
}

/// One line per strategy.
pub struct Entry {
    /// Name in configurations and statistics.
    pub name: &'static str,
    pub(super) make: fn(&PoolConfig) -> Box<dyn VictimStrategy>,
}

/// Every strategy there is.
pub const REGISTRY: &[Entry] = &[
    Entry { name: "spf", make: |_| Box::new(spf::SinglePageFlush) },
    Entry { name: "spf56", make: |_| Box::new(spf56::SinglePageFlush56) },
    Entry { name: "war", make: |_| Box::new(war::WriteAfterRead) },
    Entry { name: "rw", make: |_| Box::new(rw::ReadWrite) },
    Entry { name: "clean-first", make: |c| Box::new(clean_first::CleanFirst::new(c)) },
];

/// The strategy of that name.
pub fn find(name: &str) -> Option<&'static Entry> {
    REGISTRY.iter().find(|e| e.name == name)
}
