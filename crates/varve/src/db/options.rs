//! What a user can choose: the layout when a database is created, and options each time it is opened.

use super::pool_options::PoolOptions;
use crate::buffer::TraceHandle;
use crate::buffer::policy::PolicyOptions;
use crate::error::{Error, Result};
use crate::txn::Durability;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use varve_device::Trap;
use varve_volume::Broken;
use varve_volume::tier::TierOptions;

/// What is fixed when a database is created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of a page: 4096, 8192 or 16384.
    pub page_size: usize,
    /// Bytes of log preallocated at creation; the log grows up to [`Options::log_max_bytes`] when a workload needs it.
    pub log_bytes: u64,
    /// Directory for the log, when it shall be on a device of its own; a link to it is left in the database directory.
    pub log_dir: Option<PathBuf>,
    /// Where the pages are, when not in the database directory: a directory, a file, or a block device.
    pub data: Option<PathBuf>,
    /// A fast device for a tier: a directory, a file, or a block device.
    pub fast: Option<PathBuf>,
    /// Bytes of the fast device, if it is a file; ignored when it is longer already.
    pub fast_bytes: u64,
    /// Take `data` and `fast` even if a database owns them; what they hold is lost.
    pub overwrite: bool,
}

impl Default for Layout {
    fn default() -> Layout {
        let (log_dir, data, fast) = (None, None, None);
        Layout { page_size: 8192, log_bytes: 64 << 20, log_dir, data, fast, fast_bytes: 0, overwrite: false }
    }
}

impl Layout {
    pub(crate) fn validate(&self) -> Result<()> {
        if ![4096, 8192, 16384].contains(&self.page_size) {
            return Err(Error::Invalid(format!("page size {}: choose 4096, 8192 or 16384", self.page_size)));
        }
        if self.log_bytes < 1 << 20 {
            return Err(Error::Invalid(format!("log of {} bytes: at least 1 MiB is needed", self.log_bytes)));
        }
        Ok(())
    }
}

/// How a database is opened.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Memory for everything: frames, page table, log buffers, locks, write sets, versions. Bytes.
    pub cache_bytes: u64,
    /// Open without writing a byte. Needs a database that was closed cleanly.
    pub read_only: bool,
    /// What `commit` waits for unless a transaction says otherwise.
    pub durability: Durability,
    /// Longest time before an `Async` commit is durable. The log is written at half of it: a log device whose writes
    /// take more than a quarter of it can be late.
    pub async_delay: Duration,
    /// Longest wait for a lock; then the call fails with [`Error::LockTimeout`] and names who holds the lock. Deadlocks
    /// among transactions are found at once; this ends waits that nobody can see the end of: a thread with two
    /// transactions of [`Db::begin`](crate::Db::begin), or one that was left open. `None`: without end.
    pub lock_timeout: Option<Duration>,
    /// Redo work that a crash may leave behind, as time at the replay rate measured at the last recovery.
    pub recovery_bound: Duration,
    /// Size to which the log may grow, bytes.
    pub log_max_bytes: u64,
    /// Pool instances; 0 chooses by memory and cores.
    pub pool_instances: usize,
    /// Replacement policy, by its registered name; empty: the one of the pool's preset.
    pub replacement: String,
    /// Options of the replacement policies; each takes what concerns it.
    pub policy: PolicyOptions,
    /// Who is told of every page access and flush; none: nobody.
    pub trace: Option<TraceHandle>,
    /// Background page writers.
    pub cleaners: bool,
    /// How the pool finds frames and writes pages.
    pub pool: PoolOptions,
    /// The tier, where the database has one.
    pub tier: TierOptions,
    /// Go on without the tier's fast device if nothing is lost with it; the database has no tier from then on.
    pub without_tier: bool,
    /// Make a tier on the fast device of a database that has none.
    pub attach_tier: bool,
    /// Bypass the operating system's cache where the file system allows.
    pub direct_io: bool,
    /// Whether the data device is told, after each checkpoint, which pages hold nothing any more. `None`: where it
    /// takes that without being asked (models of flash and other drives, memory), not in files. `Some(true)`: files
    /// too, of which runs of 64 KiB and more are given back (holes are punched). `Some(false)`: never.
    pub trim: Option<bool>,
    /// Whether the database remembers the version of each page that was written last, so that a lost or misplaced write
    /// is found even where the old version fits (`docs/lost-writes.md`). `None`: as it was before; a new one does not.
    pub detect_lost_writes: Option<bool>,
    /// Frames of the pool, for simulations that want fewer than any cache has; 0: what the cache holds.
    #[doc(hidden)]
    pub pool_frames: usize,
    /// A mistake to build in, for the crash simulation's own tests.
    #[doc(hidden)]
    pub broken: Broken,
    /// Where to panic, for the crash simulation.
    #[doc(hidden)]
    pub trap: Option<Arc<Trap>>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            cache_bytes: 256 << 20,
            read_only: false,
            durability: Durability::Sync,
            async_delay: Duration::from_millis(100),
            lock_timeout: Some(Duration::from_secs(10)),
            recovery_bound: Duration::from_secs(10),
            log_max_bytes: 4 << 30,
            pool_instances: 0,
            replacement: String::new(),
            policy: PolicyOptions::default(),
            trace: None,
            cleaners: true,
            pool: PoolOptions::default(),
            tier: TierOptions::default(),
            without_tier: false,
            attach_tier: false,
            direct_io: true,
            trim: None,
            detect_lost_writes: None,
            pool_frames: 0,
            broken: Broken::default(),
            trap: None,
        }
    }
}

/// Least memory a database can be opened with, bytes.
pub const MIN_CACHE_BYTES: u64 = 1 << 20;

impl Options {
    /// These options with another cache size in MiB.
    pub fn cache_mb(mut self, mb: u64) -> Options {
        self.cache_bytes = mb << 20;
        self
    }

    pub(crate) fn validate(&self) -> Result<()> {
        if self.cache_bytes < MIN_CACHE_BYTES {
            return Err(Error::Invalid(format!(
                "cache of {} bytes: at least {} are needed",
                self.cache_bytes, MIN_CACHE_BYTES
            )));
        }
        super::memory::check(self.cache_bytes)?;
        self.pool.validate()?;
        self.tier.validate()?;
        if self.recovery_bound.is_zero() {
            return Err(Error::Invalid(
                "recovery bound of zero: a checkpoint would never end; use at least 1 s".into(),
            ));
        }
        Ok(())
    }
}
