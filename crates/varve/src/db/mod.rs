//! The public API, thin: every call of a type in one file (`Db` here), over what does the work.
//!
//! Invariant: one walk over the whole database at a time (check, compaction); backups have their own rules (`backup`).

mod advise;
mod arrays;
mod backup;
mod batch;
mod bulk_load;
mod catalog;
mod check;
mod compact;
mod devices;
mod drives;
mod durable;
mod flash;
mod formers;
mod identity;
mod keyspace;
mod keyspaces;
mod loaded;
mod lost_writes;
mod memory;
mod missing;
mod near_options;
mod offline;
mod open;
mod options;
mod patch;
mod pool_options;
mod private;
mod read_only;
mod reads;
mod remote;
mod rows;
mod salvage;
mod scan;
mod services;
mod snapshot;
mod stats;
mod transaction;
mod typed;
mod typed_rows;
mod volume;

use crate::report::CheckReport;
pub use backup::{
    BackupInfo, BackupOptions, BackupReport, Packing, RestoreOptions, RestoreReport, restore, restore_on,
};
pub use batch::WriteBatch;
pub use bulk_load::BulkLoad;
pub use catalog::{MAX_NAME, check_name as check_keyspace_name};
pub use compact::CompactReport;
pub use devices::{Devices, exists, has_array, has_tier, is_left_over};
pub use durable::Durable;
pub use flash::{FlashDriver, FlashPart, OpenFlash};
pub use keyspace::Keyspace;
pub use keyspaces::KeyspaceInfo;
pub use memory::MIN_CACHE_BYTES;
pub use missing::KeyspaceLeft;
pub use near_options::{NearDecisions, OPTIONS as NEAR_OPTIONS};
pub use options::{DriveLayout, DrivePart, Layout, OPTIONS, Options, RemotePart};
pub use pool_options::{OPTIONS as POOL_OPTIONS, PoolOptions};
pub use read_only::SealReport;
pub use reads::ReadFuture;
pub use remote::KeyFiles;
pub use rows::Rows;
pub use salvage::{SalvageReport, SalvagedRow, salvage, salvage_on, salvage_with};
pub use scan::Scan;
pub use snapshot::Snapshot;
pub use stats::{Figure, KeyspaceUpdates, Stats};
pub use transaction::Transaction;
#[cfg(feature = "serde")]
pub use typed::Json;
pub use typed::{AsKey, Key, TypedKeyspace, Value};
pub use typed_rows::TypedRows;
pub use volume::tier_managers;

pub use crate::index::{
    Compression, KeyspaceKind, LSM_OPTIONS, LsmLevel, LsmOptions, LsmStats, MergeBy, MergeMode, NearOptions, NearStats,
    Pick, Pressure, SideStats,
};
pub use crate::txn::Durability;

use crate::buffer::Flush;
use crate::error::{Error, Result};
use crate::index::Indexes;
use crate::space::Core;
use crate::txn::{self, Manager, OpenKeyspace, Readers, TxOptions};
use crate::wal::checkpoint::Checkpointer;
use crate::wal::recovery::RecoveryReport;
use arrays::ArrayService;
use formers::Reclaimer;
use identity::Identity;
use keyspaces::Registry;
use memory::Cache;
use services::Services;
use std::collections::BTreeMap;
use std::io::Write;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use varve_rt::atomic::AtomicU64;
use varve_rt::{Kept, Mutex};
use varve_volume::plan::Volume;
use varve_volume::{KeyspaceId, Lsn};

/// An open database. Cheap to clone; all clones are the same database. Close it with [`Db::close`].
///
/// A database that is merely dropped loses nothing either. The drop of its last handle (keyspaces, transactions and
/// snapshots are handles too) waits until everything that was acknowledged is durable, whatever its [`Durability`], and
/// until the threads of the engine have ended; then the directory is free. The next opening recovers what a close would
/// have written. Only while a panic unwinds the thread, nothing is waited for, as in a crash.
///
/// ```
/// # fn main() -> varve::Result<()> {
/// # let dir = std::env::temp_dir().join(format!("varve-doc-{}", std::process::id()));
/// # let _ = std::fs::remove_dir_all(&dir);
/// use varve::{Db, Options};
///
/// let db = Db::open_or_create(&dir, Options::default())?;
/// let accounts = db.keyspace_or_create("accounts")?;
/// accounts.put(b"alice", b"10")?;
/// db.transact(|tx| {
///     let alice = tx.get(&accounts, b"alice")?.expect("put above");
///     tx.put(&accounts, b"bob", &alice)?;
///     tx.delete(&accounts, b"alice")
/// })?;
/// assert_eq!(accounts.get(b"bob")?.as_deref(), Some(&b"10"[..]));
/// db.close()?;
/// # let _ = std::fs::remove_dir_all(&dir);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Db {
    pub(crate) inner: Arc<Inner>,
}

impl std::fmt::Debug for Db {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Db").field("durable_lsn", &self.durable_lsn()).finish_non_exhaustive()
    }
}

/// What all handles of a database share. A fork of the process that opened it drops nothing of it: neither files nor
/// locks are touched there.
pub(crate) struct Inner(Kept<Opened>);

impl Inner {
    fn new(opened: Opened) -> Inner {
        Inner(Kept::new(opened))
    }
}

impl Deref for Inner {
    type Target = Opened;

    #[inline]
    fn deref(&self) -> &Opened {
        &self.0
    }
}

/// An open database.
pub(crate) struct Opened {
    /// First: their drop needs what follows.
    services: Services,
    pub core: Arc<Core>,
    pub txns: Arc<Manager>,
    pub registry: Arc<Registry>,
    indexes: Arc<Indexes>,
    pub options: Options,
    /// The most memory that it takes, and where that comes from.
    cache: Cache,
    /// Memory that it takes at most now, bytes.
    cache_now: AtomicU64,
    checkpointer: Option<Arc<Checkpointer>>,
    devices: Devices,
    volume: Volume,
    /// None: of an older release, and opened for reading only.
    identity: Option<Arc<Identity>>,
    recovery: RecoveryReport,
    opened: varve_rt::Instant,
    /// Held by who walks everything and must not have it move: a check, a compaction.
    walking: Arc<Mutex<()>>,
    reclaimer: Arc<Reclaimer>,
    readers: Arc<Readers>,
    array: Option<Arc<ArrayService>>,
}

impl Db {
    /// Creates a database in a directory that holds none. The directory is made if need be.
    pub fn create(path: impl AsRef<Path>, layout: &Layout, options: Options) -> Result<Db> {
        open::create_dir(path.as_ref(), layout, options)
    }

    /// Opens the database in a directory, recovering it first if it was not closed.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Db> {
        open::open_dir(path.as_ref(), options)
    }

    /// Opens the database in a directory, or creates one there with the default layout.
    pub fn open_or_create(path: impl AsRef<Path>, options: Options) -> Result<Db> {
        Db::open_or_create_with(path, &Layout::default(), options)
    }

    /// As [`Db::open_or_create`]; one that has to be created is of that layout. One that is there keeps its own.
    pub fn open_or_create_with(path: impl AsRef<Path>, layout: &Layout, options: Options) -> Result<Db> {
        if exists(path.as_ref()) { Db::open(path, options) } else { Db::create(path, layout, options) }
    }

    /// Opens a database that has no tier and makes one on `fast`: a block device, a file of `bytes`, or a directory for
    /// such a file.
    pub fn attach_tier(path: impl AsRef<Path>, fast: impl AsRef<Path>, bytes: u64, options: Options) -> Result<Db> {
        open::attach_dir(path.as_ref(), fast.as_ref(), bytes, options)
    }

    /// Takes the tier out of a database that is not open: every page goes home, then the fast device is not needed any
    /// more.
    pub fn detach_tier(path: impl AsRef<Path>, options: Options) -> Result<()> {
        open::detach_dir(path.as_ref(), options)
    }

    /// The array that the pages lie on, drive by drive; none: they lie on one device.
    pub fn array_stats(&self) -> Option<varve_volume::array::ArrayStats> {
        self.inner.devices.array.as_ref().map(|array| array.array_stats())
    }

    /// Copies home what only the fast device has; the pages keep their places there. Work that goes on may leave newer
    /// ones.
    pub fn flush_tier(&self) -> Result<()> {
        self.inner.txns.live_for_write()?;
        Ok(self.inner.volume.admin.all_home()?)
    }

    /// What the tier's manager counted by group and page; nothing without a tier.
    pub fn tier_counted(&self) -> varve_volume::Counted {
        self.inner.volume.admin.counted()
    }

    /// Makes the tier's fast part as large as fits `bytes`, while work goes on; a file grows or is cut. Returns slots
    /// before and after.
    pub fn resize_tier(&self, bytes: u64) -> Result<(u64, u64)> {
        self.inner.txns.live_for_write()?;
        let resized = self.inner.volume.admin.resize(bytes)?;
        Ok((resized.before, resized.after))
    }

    /// Creates a database on devices: modelled ones, wrapped ones, or files opened by the caller.
    pub fn create_on(devices: Devices, layout: &Layout, options: Options) -> Result<Db> {
        open::create_on(devices, layout, options, None)
    }

    /// Opens the database on devices, recovering it first if it was not closed.
    pub fn open_on(devices: Devices, options: Options) -> Result<Db> {
        open::open_on(devices, options, None)
    }

    /// Opens a keyspace by name.
    pub fn keyspace(&self, name: &str) -> Result<Keyspace> {
        self.inner.txns.live()?;
        let found = self.inner.registry.find(name);
        found.map(|shared| self.handle(shared)).ok_or_else(|| Error::NoSuchKeyspace(name.to_string()))
    }

    /// Makes a keyspace, durably. Fails with [`Error::AlreadyExists`] if there is one of that name.
    pub fn create_keyspace(&self, name: &str) -> Result<Keyspace> {
        self.create_keyspace_of(name, KeyspaceKind::Tree)
    }

    /// As [`Db::create_keyspace`], of a kind.
    pub fn create_keyspace_of(&self, name: &str, kind: KeyspaceKind) -> Result<Keyspace> {
        kind.check()?;
        match self.inner.make_keyspace(name, kind)? {
            (shared, true) => Ok(self.handle(shared)),
            (_, false) => Err(Error::keyspace_exists(name)),
        }
    }

    /// Opens a keyspace by name, making it if there is none.
    pub fn keyspace_or_create(&self, name: &str) -> Result<Keyspace> {
        self.inner.txns.live()?;
        if let Some(shared) = self.inner.registry.find(name) {
            return Ok(self.handle(shared));
        }
        let (shared, _) = self.inner.make_keyspace(name, KeyspaceKind::Tree)?;
        Ok(self.handle(shared))
    }

    /// As [`Db::keyspace_or_create`]; one that has to be made is of a kind.
    pub fn keyspace_or_create_of(&self, name: &str, kind: KeyspaceKind) -> Result<Keyspace> {
        kind.check()?;
        let (shared, _) = self.inner.make_keyspace(name, kind)?;
        Ok(self.handle(shared))
    }

    /// All keyspaces, by name.
    pub fn keyspaces(&self) -> Result<Vec<KeyspaceInfo>> {
        self.inner.txns.live()?;
        Ok(self.inner.registry.infos())
    }

    /// Drops a keyspace and everything in it, durably. Snapshots that were opened before go on reading it, through
    /// handles that are still about; everything else fails with [`Error::NoSuchKeyspace`] from here on. Its pages
    /// become free when the last handle is gone (at the latest when the database is opened again).
    pub fn drop_keyspace(&self, name: &str) -> Result<()> {
        self.inner.txns.live_for_write()?;
        self.inner.registry.drop_keyspace(&self.inner.core, name)
    }

    /// Gives a keyspace another name, durably. Handles of it, transactions and snapshots go on with it.
    ///
    /// # Errors
    /// `NoSuchKeyspace`; `AlreadyExists` if there is a keyspace of the new name; `Invalid` for a name that cannot be
    /// one.
    pub fn rename_keyspace(&self, from: &str, to: &str) -> Result<()> {
        self.inner.txns.live_for_write()?;
        self.inner.registry.rename(&self.inner.core, from, to)
    }

    fn handle(&self, shared: Arc<OpenKeyspace>) -> Keyspace {
        Keyspace { shared, db: self.inner.clone() }
    }

    /// Begins a transaction with default options.
    pub fn begin(&self) -> Result<Transaction> {
        self.begin_with(TxOptions::default())
    }

    /// Begins a transaction.
    pub fn begin_with(&self, options: TxOptions) -> Result<Transaction> {
        let tx = txn::Transaction::begin(&self.inner.txns, &options, None)?;
        Ok(Transaction { tx, _db: self.inner.clone() })
    }

    /// Runs `f` in a transaction and commits it; runs it again, after a wait that grows, as long as it fails with an
    /// error that [`crate::Error::is_retryable`], or with `OverBudget` for want of memory that other transactions hold.
    /// A transaction that is repeated keeps its age, so it gives way less and less often. `f` must not do anything
    /// outside the database that should not be done twice.
    ///
    /// # Errors
    /// Any other error of `f` or of the commit, `OverBudget` where the transaction needs too much by itself; the
    /// transaction then changed nothing. The conflict, or `OverBudget`, itself after [`TxOptions::retries`]
    /// repetitions. Within `f` whatever would wait for this very transaction (a single operation
    /// on a key that it has locked, another transaction) fails with `WouldDeadlock`.
    pub fn transact<T>(&self, f: impl FnMut(&mut Transaction) -> Result<T>) -> Result<T> {
        self.transact_with(TxOptions::default(), f)
    }

    /// As [`Db::transact`], with options.
    pub fn transact_with<T>(&self, options: TxOptions, f: impl FnMut(&mut Transaction) -> Result<T>) -> Result<T> {
        self.inner.transact(options, f)
    }

    /// As [`Db::transact_with`], for a closure that fails with errors of its own: `?` on them and on Varve's works in
    /// it. Its own error ends the transaction, which then changed nothing. But where the transaction had to give way,
    /// or was refused memory that others hold, that counts as the reason, and `f` runs again.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("varve-doc-try-{}", std::process::id()));
    /// # let db = varve::Db::open_or_create(&dir, varve::Options::default().cache_mb(8))?;
    /// # let stock = db.keyspace_or_create("stock")?;
    /// let taken = db.try_transact(Default::default(), |tx| -> Result<u32, Box<dyn std::error::Error>> {
    ///     let left: u32 = String::from_utf8(tx.get(&stock, "nails")?.unwrap_or_default())?.parse()?;
    ///     tx.put(&stock, "nails", (left - 1).to_string())?;
    ///     Ok(1)
    /// });
    /// assert_eq!(taken.unwrap_err().to_string(), "cannot parse integer from empty string");
    /// # drop(stock); db.close()?; std::fs::remove_dir_all(dir).unwrap();
    /// # Ok::<(), varve::Error>(())
    /// ```
    pub fn try_transact<T, E: From<Error>>(
        &self,
        options: TxOptions,
        mut f: impl FnMut(&mut Transaction) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        let mut own = None;
        let result = self.inner.transact(options, |tx| {
            own = None;
            f(tx).map_err(|error| {
                own = Some(error);
                // Stands for it, unless the transaction had to give way: then that is the error.
                let failed = || Error::Invalid("the closure failed".into());
                tx.tx.refused().cloned().unwrap_or_else(failed)
            })
        });
        match (result, own) {
            (Err(Error::Invalid(_) | Error::OverBudget { .. }), Some(own)) => Err(own),
            (result, _) => Ok(result?),
        }
    }

    /// Makes the writes of a batch, all of them or none, with the database's default durability.
    ///
    /// # Errors
    /// Those of [`Db::transact`].
    pub fn write(&self, batch: &WriteBatch) -> Result<()> {
        self.transact(|tx| {
            batch.writes.iter().try_for_each(|(keyspace, key, value)| match value {
                Some(value) => tx.put(keyspace, key, value),
                None => tx.delete(keyspace, key),
            })
        })
    }

    /// Opens a snapshot of the present state.
    pub fn snapshot(&self) -> Result<Snapshot> {
        self.inner.snapshot()
    }

    /// Ends background work, writes what is dirty, marks the database closed and lets go of its directory. Every handle
    /// gets [`Error::Closed`] from here on, also after an error: then the next opening recovers what could not be
    /// written. Where a full device has no room for what LSM keyspaces hold in memory, that stays in the log, and is no
    /// error.
    ///
    /// # Errors
    /// [`Error::Invalid`] while transactions or snapshots are open: nothing was done, and the database goes on.
    pub fn close(&self) -> Result<()> {
        open::close(&self.inner)
    }

    /// Makes everything durable that was acknowledged so far, whatever its [`Durability`]. Writes the log only: needs
    /// no checkpoint.
    pub fn sync(&self) -> Result<()> {
        self.inner.txns.live()?;
        let log = &self.inner.core.log;
        log.wait_durable(log.end_lsn())
    }

    /// Returns when everything up to a place in the log is durable: a commit's, as
    /// [`Transaction::commit_ticket`] gives it. Writes the log if nobody else does.
    ///
    /// # Errors
    /// `Invalid` for a place past the end of the log; `Poisoned` when the log cannot be written.
    pub fn wait_durable(&self, lsn: Lsn) -> Result<()> {
        self.inner.txns.live()?;
        self.inner.core.log.wait_durable(lsn)?;
        assert!(self.durable_lsn() >= lsn, "that was waited for");
        Ok(())
    }

    /// The place in the log up to which everything is durable.
    pub fn durable_lsn(&self) -> Lsn {
        self.inner.core.log.durable_lsn()
    }

    /// Whether all of the data that is in use is there. A database whose `data` was cut can still be opened to be read
    /// only; [`Db::check`] names what is gone.
    ///
    /// # Errors
    /// `Mismatch` if the data ends before a page that is in use.
    pub fn check_length(&self) -> Result<()> {
        self.inner.txns.live()?;
        self.inner.core.space.refuse_cut()
    }

    /// Flushes the memtables of LSM keyspaces and returns when none of their levels is over its limit, if nobody writes
    /// meanwhile.
    ///
    /// # Errors
    /// What flushes and merges fail with: a full disk.
    pub fn wait_for_merges(&self) -> Result<()> {
        self.inner.txns.live_for_write()?;
        self.inner.indexes.wait_for_merges()
    }

    /// Writes every page that is dirty now and moves the redo point up, so that recovery has nothing older to redo.
    pub fn checkpoint(&self) -> Result<()> {
        self.inner.txns.live_for_write()?;
        match &self.inner.checkpointer {
            Some(checkpointer) => {
                let memory = open::write_memory(&self.inner, checkpointer);
                // All else is written also where one keyspace has no room, or is damaged.
                checkpointer.checkpoint().and(memory)
            }
            None => Err(Error::ReadOnly("a checkpoint writes".into())),
        }
    }

    /// Writes a backup to `to` while the database is in use. It restores the state of a moment between call and return:
    /// commits acknowledged before the call are in it. Takes about 4 MB of memory beside the cache; never makes writers
    /// wait.
    ///
    /// ```
    /// # fn main() -> varve::Result<()> {
    /// # let dir = std::env::temp_dir().join(format!("varve-backup-doc-{}", std::process::id()));
    /// # let _ = std::fs::remove_dir_all(&dir);
    /// use varve::{BackupOptions, Db, Options, RestoreOptions};
    ///
    /// let db = Db::open_or_create(dir.join("a"), Options::default())?;
    /// db.keyspace_or_create("accounts")?.put(b"alice", b"10")?;
    /// let mut file = Vec::new();
    /// db.backup(&mut file, BackupOptions::default())?;
    ///
    /// varve::restore(dir.join("b"), &mut [&mut &file[..]], &RestoreOptions::default())?;
    /// let copy = Db::open(dir.join("b"), Options::default())?;
    /// assert_eq!(copy.keyspace("accounts")?.get(b"alice")?.as_deref(), Some(&b"10"[..]));
    /// # let _ = std::fs::remove_dir_all(&dir);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// `Backup` when `since` is of another database, when another backup is being made, or when `to` fails; `Corrupt`
    /// for a damaged page; also when the log could not be kept for it any longer, because writers outran it or the
    /// database was closed. What was written is of no use then.
    pub fn backup(&self, to: &mut dyn Write, options: BackupOptions<'_>) -> Result<BackupReport> {
        self.inner.txns.live()?;
        backup::make(&self.inner, to, options)
    }

    /// Moves what lies at the end of the data device to free pages before it and gives the end back. Transactions and
    /// snapshots go on meanwhile. A crash at any time leaves a sound database, of which the rest can be compacted
    /// again. Values on pages of their own are written again, so they are left alone while a snapshot is open, which
    /// would have to keep them.
    ///
    /// # Errors
    /// [`Error::Invalid`] on a tier, and while a backup is made; what else writing and checkpoints can fail with.
    pub fn compact(&self) -> Result<CompactReport> {
        compact::run(self)
    }

    /// Reads the whole database and reports every damage found: checksums, structure of each keyspace, free space.
    pub fn check(&self) -> Result<CheckReport> {
        self.inner.txns.live()?;
        let _alone = self.inner.walking.lock();
        check::run(&self.inner)
    }

    /// Takes so much memory at most from now on, while work goes on: as much as it was opened with, or less. 0: as much
    /// as it was opened with. What there is less comes from the page frames; their memory goes back to the system. A
    /// cache that is to grow is opened with the most that it may have, which is not taken before it is needed, and made
    /// smaller at once. Waits until pages that have no place any more are written.
    ///
    /// # Errors
    /// `Invalid` says between what sizes it may be; those of page writes, and `OverBudget` where all pages are in use:
    /// then it is as large as before, or a part of the way there.
    pub fn set_cache_bytes(&self, bytes: u64) -> Result<()> {
        memory::resize(&self.inner, bytes)
    }

    /// What the buffer pool was made with, name by name: what preset, cache size and options came to.
    pub fn pool_settings(&self) -> Vec<(&'static str, String)> {
        self.inner.core.pool.config().settings()
    }

    /// Counters and sizes since the database was opened.
    pub fn stats(&self) -> Stats {
        stats::collect(&self.inner)
    }

    /// Names of keyspaces by number: those in use, and what the engine keeps for itself, in parentheses.
    pub fn keyspace_names(&self) -> BTreeMap<KeyspaceId, String> {
        stats::names(&self.inner)
    }

    /// The latest page writes, with `update_sizes`: what the flash advisor goes by.
    pub fn latest_flushes(&self) -> Vec<Flush> {
        self.inner.core.pool.latest_flushes()
    }

    /// What the last open had to recover.
    pub fn recovery_report(&self) -> &RecoveryReport {
        &self.inner.recovery
    }

    /// What merges near the data came to since the database was opened; none: it has no worker.
    pub fn near_stats(&self) -> Option<NearStats> {
        self.inner.indexes.near_stats()
    }
}

impl Inner {
    fn transact<T>(
        self: &Arc<Self>,
        options: TxOptions,
        mut f: impl FnMut(&mut Transaction) -> Result<T>,
    ) -> Result<T> {
        self.txns.transact(&options, |tx| {
            let mut transaction = Transaction { tx, _db: self.clone() };
            let result = f(&mut transaction);
            (transaction.tx, result)
        })
    }

    fn snapshot(self: &Arc<Self>) -> Result<Snapshot> {
        let snapshot = Arc::new(txn::Snapshot::open(&self.txns)?);
        Ok(Snapshot { snapshot, db: self.clone() })
    }
}

#[cfg(test)]
mod tests;
