//! What a user can choose: the layout when a database is created, and options each time it is opened. [`OPTIONS`] has
//! a line for each option that text can set.

use super::flash::{FlashDriver, FlashPart};
use super::memory::Cache;
use super::near_options::{self, NearDecisions};
use super::pool_options::{self, PoolOptions};
use super::remote::KeyFiles;
use crate::buffer::policy::PolicyOptions;
use crate::buffer::{Flush, TraceHandle};
use crate::error::{Error, Result};
use crate::txn::Durability;
use std::path::PathBuf;
use std::time::Duration;
use varve_device::Faults;
use varve_volume::array::{KeeperOptions, Layout as ArrayLayout};
use varve_volume::setting::{Accepts, Setting, Table};
use varve_volume::tier::{self, TierOptions};

/// What is fixed when a database is created.
#[derive(Debug, Clone, PartialEq)]
pub struct Layout {
    /// Bytes of a page: 4096, 8192 or 16384.
    pub page_size: usize,
    /// Bytes of log preallocated at creation. The log grows up to [`Options::log_max_bytes`] when a workload needs it,
    /// and shrinks to this again when it does not: at closing, and after [`Options::log_idle_checkpoints`].
    pub log_bytes: u64,
    /// Directory for the log, when it shall be on a device of its own; a link to it is left in the database directory.
    pub log_dir: Option<PathBuf>,
    /// Where the pages are, when not in the database directory: a directory, a file, or a block device.
    pub data: Option<PathBuf>,
    /// The pages lie with a worker instead of `data` (`docs/near.md`): needs the feature `near`.
    pub remote: Option<RemotePart>,
    /// A fast device for a tier: a directory, a file, or a block device.
    pub fast: Option<PathBuf>,
    /// Bytes of the fast device, if it is a file; ignored when it is longer already.
    pub fast_bytes: u64,
    /// Several drives for the pages instead of `data`.
    pub array: Option<DriveLayout>,
    /// Native flash for the pages instead of `data`.
    pub flash: Option<FlashPart>,
    /// Take `data`, `fast` and drives even if a database owns them; what they hold is lost.
    pub overwrite: bool,
}

impl Default for Layout {
    fn default() -> Layout {
        let (log_dir, data, remote, fast, array, flash) = (None, None, None, None, None, None);
        let (page_size, log_bytes) = (8192, 1 << 20);
        Layout { page_size, log_bytes, log_dir, data, remote, fast, fast_bytes: 0, array, flash, overwrite: false }
    }
}

/// A worker that has the pages (`docs/near.md`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemotePart {
    /// Its address, `HOST:PORT`; without keys one of this machine.
    pub address: String,
    /// Where this side's key and the worker's certificate are, if the connection is encrypted: needs the feature `tls`.
    /// The database's directory remembers the paths, not what is there: the files are read at each opening.
    pub keys: Option<KeyFiles>,
}

impl From<&str> for RemotePart {
    /// The worker at an address of this machine, in the clear.
    fn from(address: &str) -> RemotePart {
        RemotePart { address: address.into(), keys: None }
    }
}

/// Drives that hold the pages together (`docs/array.md`).
#[derive(Debug, Clone, PartialEq)]
pub struct DriveLayout {
    /// The drives, two or more.
    pub drives: Vec<DrivePart>,
    /// Bytes of an extent, 2 to 64 MiB.
    pub extent: u64,
    /// How extents are laid over the drives.
    pub layout: ArrayLayout,
}

/// A drive of an array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrivePart {
    /// A directory, a file, or a block device.
    pub path: PathBuf,
    /// Bytes of it, if it is a file; ignored when it is longer already. 0: what it has.
    pub bytes: u64,
}

impl Layout {
    pub(crate) fn validate(&self, options: &Options) -> Result<()> {
        if ![4096, 8192, 16384].contains(&self.page_size) {
            return Err(Error::Invalid(format!("page size {}: choose 4096, 8192 or 16384", self.page_size)));
        }
        if self.log_bytes < MIN_LOG_BYTES {
            return Err(Error::Invalid(format!("log of {} bytes: at least 1 MiB is needed", self.log_bytes)));
        }
        if self.remote.is_some() && (self.data.is_some() || self.array.is_some() || self.flash.is_some()) {
            return Err(Error::Invalid(
                "a worker has all pages: give no data device, drives or flash beside it".into(),
            ));
        }
        if self.log_bytes > options.log_max_bytes {
            let (first, most) = (self.log_bytes, options.log_max_bytes);
            return Err(Error::Invalid(format!(
                "log of {first} bytes, which may grow to {most} at most: make it smaller, or give a larger log_max"
            )));
        }
        Ok(())
    }
}

/// How a database is opened. Fields can be set one by one, by methods, and by name ([`Options::set`]).
///
/// ```
/// use std::time::Duration;
/// use varve::{Db, Options};
///
/// let options = Options::default().cache_mb(64).lock_timeout(Some(Duration::from_secs(1))).log_max_mb(256);
/// let db = Db::temporary(options)?;
/// assert_eq!(db.stats().cache_bytes, 64 << 20);
/// # db.close()?;
/// # Ok::<(), varve::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Memory for everything: frames, page table, log buffers, locks, write sets, versions. Bytes; 0, the default: a
    /// quarter of the memory that the process may have, by its control group, `ulimit -v` or the machine (in a
    /// simulation 256 MiB). [`Stats::cache_bytes`](crate::Stats::cache_bytes) says what that came to. It is reserved,
    /// and taken as it is needed.
    pub cache_bytes: u64,
    /// Open without writing a byte. Needs a database that was closed cleanly. Default: no.
    pub read_only: bool,
    /// What `commit` waits for unless a transaction says otherwise. Default: [`Durability::Sync`].
    pub durability: Durability,
    /// Longest time before an `Async` commit is durable. The log is written at half of it: a log device whose writes
    /// take more than a quarter of it can be late. Default: 100 ms.
    pub async_delay: Duration,
    /// Longest wait for a lock; then the call fails with [`Error::LockTimeout`] and names who holds the lock. Deadlocks
    /// among transactions are found at once; this ends waits that nobody can see the end of: a thread with two
    /// transactions of [`Db::begin`](crate::Db::begin), or one that was left open. `None`: without end.
    /// Default: 10 s.
    pub lock_timeout: Option<Duration>,
    /// Redo work that a crash may leave behind, as time at the replay rate measured at the last recovery.
    /// Default: 10 s.
    pub recovery_bound: Duration,
    /// Size to which the log may grow, bytes; 1 MiB at least. A log that is larger already shrinks in time. Default: 4
    /// GiB.
    pub log_max_bytes: u64,
    /// Checkpoints in a row that need less than a quarter of the log, after which it shrinks. Default: 10.
    pub log_idle_checkpoints: u32,
    /// Options of the replacement policies; each takes what concerns it.
    pub policy: PolicyOptions,
    /// Listener that is told of every page access and flush.
    pub trace: Option<TraceHandle>,
    /// Most bytes of scratch pages that hold old values for open snapshots. `None`: a quarter of the database, at least
    /// 1 GiB. With 0 old values are in memory alone.
    pub snapshot_disk_bytes: Option<u64>,
    /// Background page writers. Default: yes.
    pub cleaners: bool,
    /// How the pool finds frames and writes pages.
    pub pool: PoolOptions,
    /// The tier, where the database has one.
    pub tier: TierOptions,
    /// Go on without the tier's fast device if nothing is lost with it; the database has no tier from then on.
    pub without_tier: bool,
    /// How the array's extents are watched and moved, where the database has an array.
    pub array: KeeperOptions,
    /// How both sides of merges decide, where the database's directory names a worker.
    pub near: NearDecisions,
    /// What opens the native flash, where the pages of a directory's database lie on some.
    pub flash: Option<FlashDriver>,
    /// Open for reading though drives of the array are missing: what lies on them cannot be read.
    pub without_drive: bool,
    /// Make a tier on the fast device of a database that has none.
    pub attach_tier: bool,
    /// Bypass the operating system's cache where the file system allows. Default: yes.
    pub direct_io: bool,
    /// Whether the data device is told, after each checkpoint, which pages hold nothing any more. `None`: where it
    /// takes that without being asked (models of flash and other drives, memory), not in files. `Some(true)`: files
    /// too, of which runs of 64 KiB and more are given back (holes are punched). `Some(false)`: never.
    pub trim: Option<bool>,
    /// Whether the database remembers the version of each page that was written last, so that a lost or misplaced write
    /// is found even where the old version fits (`docs/lost-writes.md`). `None`: as it was before; a new one does not.
    pub detect_lost_writes: Option<bool>,
    /// The first change of a page after each checkpoint is logged as the whole page, which makes good a write that a
    /// power cut tore. Default: yes. Native flash whose pages are as large as the database's tears none, and may do
    /// without: less log is written. Elsewhere an opening without is refused. A backup under way, and
    /// `detect_lost_writes`, need images: with them they are logged in any case.
    pub page_images: bool,
    /// Sizes of page updates are counted for each keyspace, and the latest flushes kept, for the flash advisor
    /// (`docs/advise.md`). Costs 275 bytes for each frame, a sixty-fourth of the cache, and a little work when a page
    /// changes.
    pub update_sizes: bool,
    /// Frames of the pool, for simulations that want fewer than any cache has; 0: what the cache holds.
    #[doc(hidden)]
    pub pool_frames: usize,
    /// What is to go wrong on purpose, for the crash simulation.
    #[cfg(feature = "faults")]
    #[doc(hidden)]
    pub faults: Faults,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            cache_bytes: 0,
            read_only: false,
            durability: Durability::Sync,
            async_delay: Duration::from_millis(100),
            lock_timeout: Some(Duration::from_secs(10)),
            recovery_bound: Duration::from_secs(10),
            log_max_bytes: 4 << 30,
            log_idle_checkpoints: 10,
            snapshot_disk_bytes: None,
            policy: PolicyOptions::default(),
            trace: None,
            cleaners: true,
            pool: PoolOptions::default(),
            tier: TierOptions::default(),
            without_tier: false,
            array: KeeperOptions::default(),
            near: NearDecisions::default(),
            flash: None,
            without_drive: false,
            attach_tier: false,
            direct_io: true,
            trim: None,
            detect_lost_writes: None,
            page_images: true,
            update_sizes: false,
            pool_frames: 0,
            #[cfg(feature = "faults")]
            faults: Faults::default(),
        }
    }
}

/// Least bytes of a log.
pub const MIN_LOG_BYTES: u64 = 1 << 20;

/// Changed bytes noted of each page with `update_sizes`: those of the largest delta record that the advisor considers,
/// a tenth of 4 KB.
const NOTED_BYTES: usize = 136;

/// The longest time that an option takes.
const LONGEST: Duration = Duration::from_secs(1 << 32);

type Line = Setting<Options>;

/// The options of a database; those of its pool, tier and worker have tables of their own.
pub const OPTIONS: Table<Options> = Table {
    of: "database",
    settings: &[
        Line::new(
            "cache",
            Accepts::Bytes(0..=u64::MAX),
            "Memory for everything: frames, page table, log buffers, locks, write sets, versions; 1 MiB at least. 0: a quarter of the memory that the process may have.",
            |o| &mut o.cache_bytes,
        ),
        Line::new(
            "read_only",
            Accepts::Flag,
            "Open without writing a byte. Needs a database that was closed cleanly.",
            |o| &mut o.read_only,
        ),
        Line::new(
            "durability",
            Accepts::Name(|| vec!["sync", "async", "none"]),
            "What a commit waits for: that it survives a power cut, that it will after `async_delay`, or nothing.",
            |o| &mut o.durability,
        ),
        Line::new(
            "async_delay",
            Accepts::Time(Duration::ZERO..=LONGEST),
            "Longest time before an async commit is durable. The log is written at half of it.",
            |o| &mut o.async_delay,
        ),
        Line::new(
            "lock_timeout",
            Accepts::Time(Duration::ZERO..=LONGEST),
            "Longest wait for a lock; then the call fails and names who holds the lock.",
            |o| &mut o.lock_timeout,
        )
        .or_none("without end"),
        Line::new(
            "recovery_bound",
            Accepts::Time(Duration::from_micros(1)..=LONGEST),
            "Redo work that a crash may leave behind, as time at the rate measured at the last recovery.",
            |o| &mut o.recovery_bound,
        ),
        Line::new(
            "log_max",
            Accepts::Bytes(MIN_LOG_BYTES..=1 << 48),
            "Size to which the log may grow. One that is larger already shrinks in time.",
            |o| &mut o.log_max_bytes,
        ),
        Line::new(
            "log_idle_checkpoints",
            Accepts::Number(1..=1 << 20, "checkpoints"),
            "Checkpoints in a row that need less than a quarter of the log, after which it shrinks.",
            |o| &mut o.log_idle_checkpoints,
        ),
        Line::new(
            "snapshot_disk",
            Accepts::Bytes(0..=u64::MAX),
            "Most bytes of scratch pages on the data device that hold old values for open snapshots.",
            |o| &mut o.snapshot_disk_bytes,
        )
        .or_none("a quarter of the database, at least 1 GiB"),
        Line::new("cleaners", Accepts::Flag, "Pages are written in the background.", |o| &mut o.cleaners),
        Line::new(
            "direct_io",
            Accepts::Flag,
            "Bypass the operating system's cache where the file system allows.",
            |o| &mut o.direct_io,
        ),
        Line::new(
            "trim",
            Accepts::Flag,
            "After each checkpoint the data device is told which pages hold nothing any more.",
            |o| &mut o.trim,
        )
        .or_none("where the device takes it unasked, not in files"),
        Line::new(
            "detect_lost_writes",
            Accepts::Flag,
            "Remember the version of each page that was written last (docs/lost-writes.md).",
            |o| &mut o.detect_lost_writes,
        )
        .or_none("as it was before; a new database does not"),
        Line::new(
            "page_images",
            Accepts::Flag,
            "Log pages whole at their first change after a checkpoint (docs/wal.md).",
            |o| &mut o.page_images,
        ),
        Line::new(
            "update_sizes",
            Accepts::Flag,
            "Count how much page updates change, and keep the latest flushes, for the flash advisor (docs/advise.md).",
            |o| &mut o.update_sizes,
        ),
        Line::new(
            "array_rate",
            Accepts::Bytes(64 << 10..=1 << 40),
            "Most bytes that are copied in a second when extents of an array move.",
            |o| &mut o.array.rate,
        ),
        Line::new(
            "array_window",
            Accepts::Time(Duration::ZERO..=LONGEST),
            "Within this time no plan moves an extent twice.",
            |o| &mut o.array.window,
        ),
        Line::new(
            "array_replan",
            Accepts::Time(Duration::from_secs(1)..=LONGEST),
            "How often an array is planned and its extents moved unasked, once it is known what the drives give.",
            |o| &mut o.array.replan,
        )
        .or_none("never"),
        Line::new(
            "array_look",
            Accepts::Time(Duration::from_millis(1)..=Duration::from_secs(3600)),
            "How often what extents are used for is looked at: many times in their half-life.",
            |o| &mut o.array.look,
        ),
        Line::new(
            "array_least_gain",
            Accepts::Real(0.0..=10.0, "a share of the throughput"),
            "The least gain for which extents move.",
            |o| &mut o.array.least_gain,
        ),
        Line::new(
            "array_quiet",
            Accepts::Real(0.0..=1e9, "seconds"),
            "An extent without a write for so long may count as only read.",
            |o| &mut o.array.rules.quiet,
        ),
        Line::new(
            "array_half_life",
            Accepts::Real(1e-3..=1e9, "seconds"),
            "Counts of an extent's requests halve in this time.",
            |o| &mut o.array.rules.half_life,
        ),
        Line::new(
            "array_reads",
            Accepts::Real(0.0..=1e9, "reads in a second"),
            "Reads from which on an extent that is not written counts as read-only.",
            |o| &mut o.array.rules.reads_per_s,
        ),
    ],
};

/// How the page of options begins.
const MANUAL: &str = "\
# Options

How a database is opened. In a program, set the fields of `varve::Options`, or any option by its name and text:
`options.set(\"pool.replacement\", \"2q\")`. On the command line `--set NAME=VALUE` sets any of them, as often as you
like; those that are chosen often have arguments of their own (`--help`). Each may differ from opening to opening.

This page is made from the tables of the program.
";

impl Options {
    /// With a cache of so many MiB, which is the memory for everything; 0, the default: a quarter of the memory that
    /// the process may have.
    pub fn cache_mb(self, mb: u64) -> Options {
        Options { cache_bytes: mb << 20, ..self }
    }

    /// Opened for reading only, or not, the default.
    pub fn read_only(self, read_only: bool) -> Options {
        Options { read_only, ..self }
    }

    /// What commits wait for; the default: [`Durability::Sync`], that they survive a power cut.
    pub fn durability(self, durability: Durability) -> Options {
        Options { durability, ..self }
    }

    /// Longest time before an `Async` commit is durable; the default: 100 ms.
    pub fn async_delay(self, async_delay: Duration) -> Options {
        Options { async_delay, ..self }
    }

    /// Longest wait for a lock, `None` without end; the default: 10 s.
    pub fn lock_timeout(self, lock_timeout: Option<Duration>) -> Options {
        Options { lock_timeout, ..self }
    }

    /// Redo work that a crash may leave behind, as time; the default: 10 s.
    pub fn recovery_bound(self, recovery_bound: Duration) -> Options {
        Options { recovery_bound, ..self }
    }

    /// MiB to which the log may grow; the default: 4096.
    pub fn log_max_mb(self, mb: u64) -> Options {
        Options { log_max_bytes: mb << 20, ..self }
    }

    /// Most MiB of old values on the data device for open snapshots; the default: a quarter of the database, at least
    /// 1024.
    pub fn snapshot_disk_mb(self, mb: u64) -> Options {
        Options { snapshot_disk_bytes: Some(mb << 20), ..self }
    }

    /// Whether the version of each page that was written last is remembered; the default: as it was, and not in a new
    /// database.
    pub fn detect_lost_writes(self, on: bool) -> Options {
        Options { detect_lost_writes: Some(on), ..self }
    }

    /// Whether pages are logged whole at their first change after a checkpoint; the default: yes.
    pub fn page_images(self, on: bool) -> Options {
        Options { page_images: on, ..self }
    }

    /// Whether the operating system's cache is bypassed where that can be; the default: yes.
    pub fn direct_io(self, on: bool) -> Options {
        Options { direct_io: on, ..self }
    }

    /// Sets one option by its name; those of pool, tier and worker as `pool.NAME`, `tier.NAME` and `near.NAME`. The
    /// error of a wrong name or value says what is accepted. `docs/options.md` lists them.
    ///
    /// ```
    /// # fn main() -> varve::Result<()> {
    /// let mut options = varve::Options::default();
    /// options.set("cache", "1G")?;
    /// options.set("async_delay", "20ms")?;
    /// options.set("pool.replacement", "2q")?;
    /// let error = options.set("lock_timeout", "soon").unwrap_err().to_string();
    /// assert!(error.contains("a time with us, ms, s or min"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let set = match name.split_once('.') {
            Some(("pool", name)) => pool_options::OPTIONS.set(&mut self.pool, name, value),
            Some(("tier", name)) => tier::OPTIONS.set(&mut self.tier, name, value),
            Some(("near", name)) => near_options::OPTIONS.set(&mut self.near, name, value),
            _ => OPTIONS.set(self, name, value).map_err(|e| {
                match name.contains('.') || ["pool", "tier", "near"].contains(&name) {
                    true => format!("{e}; and pool.NAME, tier.NAME, near.NAME"),
                    false => e,
                }
            }),
        };
        set.map_err(Error::Invalid)
    }

    /// Every option that [`Options::set`] takes, as tables in Markdown.
    #[doc(hidden)]
    pub fn manual() -> String {
        let parts = [
            (
                "Database",
                "Fields of `Options` are named alike: sizes end in `_bytes`, `array_*` are in `Options::array`.",
                OPTIONS.markdown(),
            ),
            (
                "Buffer pool",
                "`pool.NAME`: fields of `PoolOptions`. [How the pool works](buffer.md).",
                pool_options::OPTIONS.markdown(),
            ),
            ("Tier", "`tier.NAME`: fields of `TierOptions`. [How a tier works](tier.md).", tier::OPTIONS.markdown()),
            (
                "Worker",
                "`near.NAME`: fields of `NearDecisions`, for `merge=copro+`. [What they mean](near.md#how-the-sides-decide).",
                near_options::OPTIONS.markdown(),
            ),
        ];
        let parts: Vec<String> =
            parts.iter().map(|(title, how, table)| format!("## {title}\n\n{how}\n\n{table}")).collect();
        format!("{MANUAL}\n{}", parts.join("\n"))
    }

    #[cfg(feature = "faults")]
    pub(crate) fn faults(&self) -> Faults {
        self.faults.clone()
    }

    /// None, in a build that can be told of none.
    #[cfg(not(feature = "faults"))]
    pub(crate) fn faults(&self) -> Faults {
        Faults::default()
    }

    /// Changed bytes that are noted of each page, and latest flushes that are kept, if the flash advisor is to know.
    pub(crate) fn update_notes(&self) -> (usize, usize) {
        if !self.update_sizes {
            return (0, 0);
        }
        let kept = self.cache_bytes / 64 / size_of::<Flush>() as u64;
        (NOTED_BYTES, kept.clamp(4096, 1 << 20) as usize)
    }

    pub(crate) fn validate(&self) -> Result<()> {
        OPTIONS.check(self).map_err(Error::Invalid)?;
        Cache::of(self.cache_bytes)?;
        self.pool.validate()?;
        self.tier.validate()?;
        self.near.validate()?;
        if self.without_drive && !self.read_only {
            return Err(Error::Invalid(
                "without a drive a database is only read (`read_only`): to write, bring the drive back".into(),
            ));
        }
        Ok(())
    }
}
