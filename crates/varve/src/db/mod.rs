//! The public API: databases and keyspaces. Transactions and snapshots are in `txn`.

mod backup;
mod bulk_load;
mod catalog;
mod check;
mod compact;
mod devices;
mod identity;
mod keyspaces;
mod lost_writes;
mod memory;
mod offline;
mod open;
mod options;
mod patch;
mod pool_options;
mod salvage;
mod services;
mod stats;
mod tier;

use crate::report::CheckReport;
pub use backup::{BackupInfo, BackupOptions, BackupReport, RestoreOptions, RestoreReport, restore, restore_on};
pub use bulk_load::BulkLoad;
pub use catalog::{KeyspaceKind, MAX_NAME};
pub use compact::CompactReport;
pub use devices::{Devices, exists, has_tier, is_left_over};
pub use keyspaces::{Keyspace, KeyspaceInfo};
pub use options::{Durability, Layout, MIN_CACHE_BYTES, Options};
pub use pool_options::PoolOptions;
pub use salvage::{SalvageReport, SalvagedRow, salvage, salvage_on};
pub use stats::{Figure, Stats};
pub use tier::tier_managers;

use crate::error::{Error, Result};
use crate::space::Core;
use crate::txn::Manager;
use crate::wal::checkpoint::Checkpointer;
use crate::wal::recovery::RecoveryReport;
use identity::Identity;
use keyspaces::Registry;
use services::Services;
use std::path::Path;
use std::sync::Arc;
use varve_rt::Mutex;
use varve_rt::atomic::{AtomicBool, Ordering};
use varve_volume::tier::Tier;

/// An open database. Cheap to clone; all clones are the same database. Close it with [`Db::close`].
///
/// A database that is merely dropped loses nothing either. The drop of its last handle (keyspaces, transactions and snapshots are handles
/// too) waits until everything that was acknowledged is durable, whatever its [`Durability`], and until the threads of the engine have
/// ended; then the directory is free. The next opening recovers what a close would have written. Only while a panic unwinds the thread, nothing is
/// waited for, as in a crash.
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

/// What all handles of a database share.
pub(crate) struct Inner {
    /// First: their drop needs what follows.
    services: Services,
    pub core: Arc<Core>,
    pub txns: Manager,
    pub registry: Registry,
    pub options: Options,
    checkpointer: Option<Arc<Checkpointer>>,
    devices: Devices,
    tier: Option<Arc<Tier>>,
    /// None: of an older release, and opened for reading only.
    identity: Option<Arc<Identity>>,
    recovery: RecoveryReport,
    opened: varve_rt::Instant,
    closed: AtomicBool,
    /// Held by who walks everything and must not have it move: a check, a compaction.
    walking: Mutex<()>,
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
        if exists(path.as_ref()) { Db::open(path, options) } else { Db::create(path, &Layout::default(), options) }
    }

    /// Opens a database that has no tier and makes one on `fast`: a block device, a file of `bytes`, or a directory for such a file.
    pub fn attach_tier(path: impl AsRef<Path>, fast: impl AsRef<Path>, bytes: u64, options: Options) -> Result<Db> {
        open::attach_dir(path.as_ref(), fast.as_ref(), bytes, options)
    }

    /// Takes the tier out of a database that is not open: every page goes home, then the fast device is not needed any more.
    pub fn detach_tier(path: impl AsRef<Path>, options: Options) -> Result<()> {
        open::detach_dir(path.as_ref(), options)
    }

    /// Copies home what only the fast device has; the pages keep their places there. Work that goes on may leave newer ones.
    pub fn flush_tier(&self) -> Result<()> {
        self.inner.live_for_write()?;
        let tier = self.inner.tier.as_ref().ok_or_else(|| Error::Invalid("the database has no tier".into()))?;
        tier::flush(tier)
    }

    /// What the tier's manager counted by group and page; nothing without a tier.
    pub fn tier_counted(&self) -> varve_volume::tier::manager::Counted {
        self.inner.tier.as_ref().map(|tier| tier.counted()).unwrap_or_default()
    }

    /// Makes the tier's fast part as large as fits `bytes`, while work goes on; a file grows or is cut. Returns slots before and after.
    pub fn resize_tier(&self, bytes: u64) -> Result<(u64, u64)> {
        self.inner.live_for_write()?;
        let tier = self.inner.tier.as_ref().ok_or_else(|| Error::Invalid("the database has no tier".into()))?;
        let resized = tier.resize(bytes)?;
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

    /// Ends background work, writes what is dirty, marks the database closed and lets go of its directory. Every handle gets
    /// [`Error::Closed`] from here on, also after an error: then the next opening recovers what could not be written.
    ///
    /// # Errors
    /// [`Error::Invalid`] while transactions or snapshots are open: nothing was done, and the database goes on.
    pub fn close(&self) -> Result<()> {
        open::close(&self.inner)
    }

    /// Makes everything durable that was acknowledged so far, whatever its [`Durability`]. Writes the log only: needs no checkpoint.
    pub fn sync(&self) -> Result<()> {
        self.inner.live()?;
        let log = &self.inner.core.log;
        log.wait_durable(log.end_lsn())
    }

    /// Writes every page that is dirty now and moves the redo point up, so that recovery has nothing older to redo.
    pub fn checkpoint(&self) -> Result<()> {
        self.inner.live_for_write()?;
        match &self.inner.checkpointer {
            Some(checkpointer) => checkpointer.checkpoint(),
            None => Err(Error::ReadOnly("a checkpoint writes".into())),
        }
    }

    /// Reads the whole database and reports every damage found: checksums, structure of each keyspace, free space.
    pub fn check(&self) -> Result<CheckReport> {
        self.inner.live()?;
        let _alone = self.inner.walking.lock();
        check::run(&self.inner)
    }

    /// Counters and sizes since the database was opened.
    pub fn stats(&self) -> Stats {
        stats::collect(&self.inner)
    }

    /// What the last open had to recover.
    pub fn recovery_report(&self) -> &RecoveryReport {
        &self.inner.recovery
    }
}

impl Inner {
    /// Fails when the database was closed.
    pub fn live(&self) -> Result<()> {
        if self.closed.load(Ordering::SeqCst) { Err(Error::Closed) } else { Ok(()) }
    }

    /// Begins work for which the database must stay open: a close is refused until what this returns is dropped.
    pub fn enter(&self) -> Result<Entered<'_>> {
        self.txns.enter();
        let entered = Entered(self);
        self.live()?;
        Ok(entered)
    }

    /// Fails when the database was closed or cannot be written.
    pub fn live_for_write(&self) -> Result<()> {
        self.live()?;
        if self.options.read_only {
            return Err(Error::ReadOnly(
                "the database was opened for reading only; open it again without read_only".into(),
            ));
        }
        Ok(())
    }
}

/// Keeps the database open while it is held.
pub(crate) struct Entered<'i>(&'i Inner);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.txns.leave();
    }
}

#[cfg(test)]
mod tests;
