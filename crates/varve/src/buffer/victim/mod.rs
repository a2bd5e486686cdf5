//! Victim strategies: what a miss does to get a frame, above all when the coldest pages are dirty.
//!
//! A strategy works on one instance through the operations that the pool offers its own modules: take a free frame, evict a clean
//! page found by the replacement policy, wake the cleaner, wait for a frame, write pages. It holds no instance lock while it waits or
//! writes. A new strategy is one file here, one line in `mod` and one in [`REGISTRY`].

mod clean_first;
mod spf;

use super::Pool;
use super::config::PoolConfig;
use super::guard::Exclusive;
use super::instance::Instance;
use crate::error::Result;
use varve_volume::PageId;

/// How misses get frames.
pub(super) trait VictimStrategy: Send + Sync {
    /// An empty frame of `inst` for page `incoming`, latched. Fails when none can be had.
    fn take_frame<'a>(&self, pool: &'a Pool, inst: &'a Instance, incoming: PageId) -> Result<Exclusive<'a>>;
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
    Entry { name: "clean-first", make: |_| Box::new(clean_first::CleanFirst) },
];

/// The strategy of that name.
pub fn find(name: &str) -> Option<&'static Entry> {
    REGISTRY.iter().find(|e| e.name == name)
}
