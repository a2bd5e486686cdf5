//! The buffer pool: pages of a [`PageStore`] in frames of memory.
//!
//! A page is found without a lock, used under its latch, and kept while latched or pinned. Misses load it, cleaners
//! write what changed, and a replacement policy says which page gives its frame up. Three choices are independent and
//! each is one file: the policy ([`policy`]), what a miss does about dirty victims (`victim`), and who cleans
//! (`cleaner`).
//!
//! Invariants
//! - A page is written only when the log is durable to the LSN of the copy that is written (by whichever path).
//! - At most one write per page is in flight; a page stays resident, or set aside, until its write ended, so a read
//!   never overtakes it.
//! - A page set aside (`aside`) is in no frame, or its frame counts as being written; it is found there before the
//!   store is asked.
//! - A page that is latched, pinned, dirty or being written is never evicted.
//! - No instance lock is held while a device or the log is waited for.
//!
//! Lock order: a page's latch, then an instance's lock; under that lock latches are only tried. The staging pool's lock
//! and the log gate are taken with neither held. A thread that loads a page holds its exclusive latch meanwhile, and
//! no other lock.

#[cfg_attr(not(feature = "baselines"), expect(dead_code, reason = "needed by baselines alone"))]
mod aside;
#[cfg(feature = "baselines")]
mod baselines;
mod bytes;
mod changes;
pub mod cleaner;
mod config;
mod direct;
mod frame;
mod guard;
mod hits;
mod instance;
mod load;
mod lock;
mod peek;
mod pins;
pub mod policy;
mod pool;
mod prefetch;
mod resize;
mod sequence;
mod settings;
mod staging;
mod stats;
mod table;
mod trace;
mod updates;
pub mod victim;
mod writer;

#[cfg(feature = "baselines")]
pub use baselines::Baselines;
#[cfg(feature = "baselines")]
pub(crate) use baselines::DOUBLEWRITE_PAGES;
pub use bytes::PageBytes;
pub use config::{CleanerConfig, PRESETS, PoolConfig, Preset, ReadAhead};
pub(crate) use guard::{Keep, KeptPage, Latched};
pub use guard::{PagePin, PageRead, PageWrite};
pub(crate) use load::READ_RETRIES;
pub use peek::PagePeek;
pub use pool::{LogAge, LogGate, Pool};
pub use stats::{BATCH_SIZES, KINDS, KindStats, PoolStats};
pub use trace::{Changed, Flush, TraceEvent, TraceHandle, TraceSink};
pub use updates::{UPDATE_BOUNDS, UpdateSizes};

use varve_rt::atomic;
#[allow(unused_imports)] // for the documentation above
use varve_volume::PageStore;
