//! Varve: an embeddable transactional storage engine for layered storage.
//!
//! Layers, from above: [`db`] (the public API), `txn` (locks, snapshots, commit), `index` (kinds of
//! index), `lsm` (memtables and segments), `btree` (pages as trees), `rows` (what every index deals in; long values),
//! `space` (which pages are in use, pages that bypass the log, marks of lost writes), `page` (edits and the groups in
//! which the log has them), `wal` (the redo log) and `buffer` (frames).
//!
//! Modules, from below: `error role runs` · `budget buffer redo report` · `wal` · `page` · `space` · `rows` ·
//! `btree` · `lsm` · `index parsers` · `txn` · `db` · `metrics`.
#![doc = include_str!("../../../README.md")]
#![warn(missing_docs)]

pub mod budget;
#[doc(hidden)]
pub mod buffer;
pub mod db;
pub mod error;
pub mod metrics;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod parsers;

pub(crate) mod btree;
pub(crate) mod index;
#[cfg_attr(not(test), expect(dead_code, reason = "some parts are looked at by their tests alone"))]
pub(crate) mod lsm;
pub(crate) mod page;
pub(crate) mod redo;
mod report;
#[doc(hidden)]
pub mod role;
pub(crate) mod rows;
mod runs;
pub(crate) mod space;
pub(crate) mod txn;
#[doc(hidden)]
pub mod wal;

#[cfg(feature = "testing")]
#[doc(hidden)]
pub use btree::harness as tree_harness;
#[cfg(feature = "baselines")]
pub use buffer::Baselines;
pub use buffer::policy::{ClassCosts, Gd2lOptions, History, LirsOptions, Lru2Options, MidpointOptions, PolicyOptions};
pub use buffer::{Changed, Flush, TraceEvent, TraceHandle, TraceSink, UPDATE_BOUNDS, UpdateSizes};
pub use db::{
    BackupInfo, BackupOptions, BackupReport, BulkLoad, CompactReport, Compression, Db, Devices, DriveLayout, DrivePart,
    Durability, Figure, FlashDriver, FlashPart, Keyspace, KeyspaceInfo, KeyspaceKind, KeyspaceLeft, KeyspaceUpdates,
    LSM_OPTIONS, Layout, LsmLevel, LsmOptions, LsmStats, MAX_NAME, MIN_CACHE_BYTES, MergeBy, NearOptions, NearStats,
    OPTIONS, OpenFlash, Options, POOL_OPTIONS, Pick, PoolOptions, Pressure, RemotePart, RestoreOptions, RestoreReport,
    Rows, SalvageReport, SalvagedRow, Scan, SealReport, Snapshot, Stats, Transaction, WriteBatch, check_keyspace_name,
    exists, has_tier, is_left_over, restore, restore_on, salvage, salvage_on, tier_managers,
};
pub use error::{Damage, Error, Result};
pub use lsm::near::{
    DecisionOptions, Fallbacks, JobService, Jobs, Load, Mode as MergeMode, Near, NotStarted, Progress, RemoteWorker,
    SideStats, Worker, WorkerOptions,
};
pub use page::PageChangeStats;
pub use report::{CheckReport, Unreadable};
pub use space::lost_writes::LostWriteStats;
pub use space::{ScratchStats, TrimStats};
pub use txn::{KeyRange, MAX_VALUE, Savepoint, TxOptions, TxnStats};
#[cfg(feature = "faults")]
#[doc(hidden)]
pub use varve_device::{Faults, Mistake, Place, Trap};
pub use varve_volume::array::{self, ArrayStats};
pub use varve_volume::flash;
pub use varve_volume::setting;
pub use varve_volume::tier::OPTIONS as TIER_OPTIONS;
pub use varve_volume::tier::{Alpha, Costs, ManagerOptions, MapRecovery, TierOptions, TierStats};
pub use varve_volume::{KeyspaceId, Lsn, PageId};
pub use varve_wire::KeyFiles;
pub use wal::recovery::RecoveryReport;

/// The example of the page is compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/native-flash.md")]
struct NativeFlashPage;
