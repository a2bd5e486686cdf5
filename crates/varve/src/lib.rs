//! Varve is an embeddable, transactional key-value store: ordered keyspaces in B+-trees or LSM trees, serializable
//! transactions over any number of them, and a redo log, so that committed data survives any crash.
//!
//! ```
//! use varve::{Db, Options};
//!
//! # let dir = std::env::temp_dir().join(format!("varve-doc-front-{}", std::process::id()));
//! let db = Db::open_or_create(&dir, Options::default())?;
//! let accounts = db.keyspace_or_create("accounts")?;
//! accounts.put("alice", "10")?;
//!
//! // Runs again by itself when another transaction stands in the way.
//! db.transact(|tx| {
//!     let alice = tx.get_for_update(&accounts, "alice")?.unwrap_or_default();
//!     tx.put(&accounts, "bob", alice)?;
//!     tx.delete(&accounts, "alice")
//! })?; // durable when this returns
//!
//! for row in accounts.range("a".."c")? {
//!     let (name, balance) = row?;
//!     println!("{} {}", String::from_utf8_lossy(&name), String::from_utf8_lossy(&balance));
//! }
//! # drop(accounts);
//! db.close()?;
//! # std::fs::remove_dir_all(dir).unwrap();
//! # Ok::<(), varve::Error>(())
//! ```
//!
//! # What it has
//!
//! - Serializable transactions over any keyspaces, of any size; savepoints; deadlocks are found and reported as
//!   conflicts that can be retried. [`Snapshot`]s take no locks.
//! - Rows in order and from both ends, also within a transaction, prefixes, iterators that move to a key, range deletes
//!   without looking at the rows, queues, counters, batches, many keys at once, values longer than memory;
//!   [typed](TypedKeyspace) keys and values.
//! - B+-trees or, where rows are mostly written, LSM trees ([`KeyspaceKind`]), chosen for each keyspace.
//! - Pages on one device, on several ([`DriveLayout`]), on a fast device over a slow one, on native flash.
//! - Backups while it works, [`restore`], [`Db::check`], [`salvage`], [`Db::compact`], statistics and metrics.
//! - Databases [in memory](Db::in_memory) and [in files without a name](Db::temporary), for tests.
//!
//! # What it promises
//!
//! - **Committed data survives any crash**, and uncommitted data never appears. A commit returns when it is durable,
//!   unless it was asked to return earlier ([`Durability`]).
//! - **Transactions are serializable**, read-only ones included.
//! - **Damage is an error that names the page**; [`Options::detect_lost_writes`] finds lost writes too.
//! - **One limit for memory**: frames, tables, log buffers, locks, write sets and old values are within
//!   [`Options::cache_bytes`].
//! - **Recovery takes a bounded time** ([`Options::recovery_bound`]).
//!
//! # Limits
//!
//! - Linux; on macOS and the BSDs through plain files, slower and not tried yet. One process at a time has a database
//!   open to write, or several to read.
//! - Keys to 2 KB (1 KB with pages of 4 KB); values to [`MAX_VALUE`]. A value that is put into a tree by
//!   itself, outside of a transaction and not from a reader, must fit a quarter of the page frames (about a sixth of
//!   the cache); a value of an LSM keyspace a sixteenth of the cache.
//! - A snapshot that stays open while much is overwritten takes room on the data device, and becomes too old past a
//!   limit.
//! - Calls block the thread, but [`Keyspace::get_async`], [`Keyspace::multi_get_async`], the same of a [`Snapshot`] and
//!   a [`TypedKeyspace`], and [`Transaction::commit_async`], which give futures for any executor, and
//!   [`Transaction::commit_ticket`].
//! - In a fork of a process that has a database open, each call fails ([`Error::Forked`]), and no database can be
//!   opened: the child has none of the engine's threads. Handles can be dropped there. Fork first, or start a process
//!   anew.
//! - In the closures of `get_with` and `scan_with` calls of the database fail ([`Error::Reentrant`]): rows are lent
//!   under a latch, for which they could wait for ever.
//!
//! # Map
//!
//! | for | see |
//! |---|---|
//! | making, opening, closing | [`Db`], [`Options`], [`Layout`] |
//! | rows | [`Keyspace`], [`Keyspace::multi_get`], [`TypedKeyspace`], [`KeyRange`], [`Rows`], [`Scan`] |
//! | several writes as one | [`Db::transact`], [`Db::try_transact`], [`Transaction`], [`WriteBatch`] |
//! | reading as of one moment | [`Snapshot`] |
//! | much data | [`Db::bulk_load`], [`Db::bulk_replace`], [`Transaction::put_from`], [`Keyspace::scan_with`] |
//! | what went wrong | [`Error`], [`Error::is_retryable`], [`Damage`] |
//! | operating it | [`Db::backup`], [`Db::check`], [`Db::compact`], [`Db::stats`], [`metrics`] |
//!
//! The command `varve` does all of this from a shell.
//!
//! # Features of the crate
//!
//! None is on by default: what they add is heavy, or for few. A database that needs one which a build lacks is refused
//! with an error that names it ([`Error::NotBuilt`]); the command `varve` has all.
//!
//! | feature | adds | brings |
//! |---|---|---|
//! | `near` | pages that lie with a worker, which may merge too ([`Layout::remote`]) | `varve-wire`, `socket2` |
//! | `tls` | encrypted connections to workers on other machines; turns `near` on | `rustls`, `ring` (in C) |
//! | `zstd` | [`Compression::Zstd`] of LSM keyspaces, backups packed with it (else LZ4) | `zstd` (in C) |
//! | `serde` | `Json` values of typed keyspaces | `serde`, `serde_json` |
//! | `portable` | on Linux, files as on any other Unix: no io_uring, no direct I/O; for tests of that | |
//! | `testing`, `baselines`, `faults` | for the project's own tests and comparisons | |
//!
//! # Inside
//!
//! Layers, from above: `db` (the public API), `txn` (locks, snapshots, commit), `index` (kinds of index), `lsm`
//! (memtables and segments), `btree` (pages as trees), `rows` (what every index deals in; long values), `space` (which
//! pages are in use, pages that bypass the log, marks of lost writes), `page` (edits and the groups in which the log
//! has them), `wal` (the redo log) and `buffer` (frames).
//!
//! Modules, from below: `error role runs` · `budget buffer redo report zstandard` · `wal` · `page` · `space` · `rows` ·
//! `btree` · `lsm` · `index parsers` · `txn` · `db` · `metrics`.
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
mod zstandard;

#[cfg(feature = "testing")]
#[doc(hidden)]
pub use btree::harness as tree_harness;
#[cfg(feature = "baselines")]
pub use buffer::Baselines;
pub use buffer::policy::{ClassCosts, Gd2lOptions, History, LirsOptions, Lru2Options, MidpointOptions, PolicyOptions};
pub use buffer::{Changed, Flush, TraceEvent, TraceHandle, TraceSink, UPDATE_BOUNDS, UpdateSizes};
#[cfg(feature = "serde")]
pub use db::Json;
pub use db::{
    AsKey, BackupInfo, BackupOptions, BackupReport, BulkLoad, CompactReport, Compression, Db, Devices, DriveLayout,
    DrivePart, Durability, Durable, Figure, FlashDriver, FlashPart, Key, KeyFiles, Keyspace, KeyspaceInfo,
    KeyspaceKind, KeyspaceLeft, KeyspaceUpdates, LSM_OPTIONS, Layout, LsmLevel, LsmOptions, LsmStats, MAX_NAME,
    MIN_CACHE_BYTES, MergeBy, NEAR_OPTIONS, NearDecisions, NearOptions, NearStats, OPTIONS, OpenFlash, Options,
    POOL_OPTIONS, Packing, Pick, PoolOptions, Pressure, ReadFuture, RemotePart, RestoreOptions, RestoreReport, Rows,
    SalvageReport, SalvagedRow, Scan, SealReport, Snapshot, Stats, Transaction, TypedKeyspace, TypedRows, Value,
    WriteBatch, check_keyspace_name, exists, has_array, has_tier, is_left_over, restore, restore_on, salvage,
    salvage_on, salvage_with, tier_managers,
};
pub use error::{Damage, Error, ErrorKind, Result};
pub use lsm::near::{
    DecisionOptions, Fallbacks, Jobs, LinkUse, Load, Mode as MergeMode, Near, NotStarted, Progress, SideStats, Worker,
    WorkerOptions,
};
#[cfg(feature = "near")]
pub use lsm::near::{JobService, RemoteWorker, this_machine};
pub use page::PageChangeStats;
pub use report::{CheckReport, Unreadable};
pub use space::lost_writes::LostWriteStats;
pub use space::{ScratchStats, TrimStats};
pub use txn::{KeyRange, MAX_VALUE, RangeKey, Savepoint, TxOptions, TxnStats};
#[cfg(feature = "faults")]
#[doc(hidden)]
pub use varve_device::{Faults, Mistake, Place, Trap};
pub use varve_volume::array::{self, ArrayStats};
pub use varve_volume::flash;
pub use varve_volume::setting;
pub use varve_volume::tier::OPTIONS as TIER_OPTIONS;
pub use varve_volume::tier::{Alpha, Costs, ManagerOptions, MapRecovery, TierOptions, TierStats};
pub use varve_volume::{KeyspaceId, Lsn, PageId};
pub use wal::recovery::RecoveryReport;

/// The example of the page is compiled.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct ReadMe;

/// The example of the page is compiled.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/getting-started.md")]
struct GettingStartedPage;

/// The examples of the page are compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/embed.md")]
struct EmbedPage;

/// The example of the page is compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/native-flash.md")]
struct NativeFlashPage;
