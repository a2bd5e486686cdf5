//! The engine's errors: few kinds, each saying what the user can do about it.

use varve_device::{DeviceError, OpKind, reason};
use varve_volume::{KeyspaceId, Lsn, PageDamage, PageId, VolumeError};

/// The engine's result type.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong in the engine. [`Error::is_retryable`] tells whether the same transaction may succeed when run
/// again.
// The tag takes a word, here and in the errors within: with a byte, results are copied in words that overlap, and each
// such copy waits for the stores before it (about 6 % of a point read's time).
#[derive(Debug, Clone)]
#[non_exhaustive]
#[repr(u64)]
pub enum Error {
    /// Another transaction stands in the way: this one was chosen to give way.
    Conflict {
        /// Name (or number) of the keyspace in which the two transactions met.
        keyspace: String,
        /// How they met.
        reason: String,
    },
    /// The calling thread would wait for a transaction that it runs itself, in [`Db::transact`](crate::Db::transact),
    /// and so for ever. What was asked for was not done; transactions are as before.
    WouldDeadlock {
        /// Name of the keyspace.
        keyspace: String,
        /// The key, or the beginning of the range.
        key: String,
        /// Number of the transaction (or single operation) that asked for it; see
        /// [`Transaction::id`](crate::Transaction::id).
        asker: u64,
        /// Number of the one that has it.
        holder: u64,
    },
    /// The calling thread is in a closure that the database lends rows to
    /// ([`Keyspace::get_with`](crate::Keyspace::get_with), [`Keyspace::scan_with`](crate::Keyspace::scan_with) and
    /// their like), and so may hold what the call would wait for. What was asked for was not done.
    Reentrant,
    /// A lock was waited for longer than [`Options::lock_timeout`](crate::Options). The transaction is as before the
    /// call, its locks included.
    LockTimeout {
        /// Name of the keyspace.
        keyspace: String,
        /// The key, or the beginning of the range.
        key: String,
        /// Who has it, and what that one waits for.
        holder: String,
        /// Time waited.
        waited: std::time::Duration,
    },
    /// The snapshot's old values had to make room.
    SnapshotTooOld,
    /// The snapshot's old values were to be written to scratch pages, which failed. Nothing else is harmed.
    SnapshotLost(String),
    /// The transaction would not fit; nothing was changed.
    TransactionTooLarge {
        /// What ran out (pages of the pool, write set, log, locks).
        what: &'static str,
        /// Bytes needed.
        needed: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// A memory class of the budget is used up. Where others have the memory,
    /// [`Db::transact`](crate::Db::transact) waits a little and runs the transaction again.
    OverBudget {
        /// The class of the budget.
        class: &'static str,
        /// Bytes asked for.
        requested: u64,
        /// Bytes free in the class.
        available: u64,
    },
    /// The key is longer than this database's page size allows, and cannot be put. (Reading and deleting find no such
    /// key.)
    KeySize {
        /// Length given.
        len: usize,
        /// Longest allowed.
        max: usize,
    },
    /// The value is longer than the engine allows.
    ValueSize {
        /// Length given; of a value that is read from somewhere, as much as was read.
        len: u64,
        /// Longest allowed.
        max: u64,
    },
    /// An argument, an option or a call that does not make sense here.
    Invalid(String),
    /// No keyspace of that name.
    NoSuchKeyspace(String),
    /// The database directory or device holds no database.
    NoDatabase(String),
    /// The database's creation, or restoration, did not come to its end.
    Unfinished(String),
    /// Files of different databases, or of different times, are together.
    Mismatch(String),
    /// A database, or a keyspace of the name, is already there; says which.
    AlreadyExists(String),
    /// Another process has the database open.
    InUse(String),
    /// A write was asked of something opened for reading only.
    ReadOnly(String),
    /// The keyspace was made read-only.
    KeyspaceReadOnly(String),
    /// The flash that has the pages is worn out; says which region of it, and which keyspaces live there.
    WornOut(String),
    /// The database was closed.
    Closed,
    /// The database was opened by a process of which this one is a fork, or one was open when it was forked. The child
    /// of `fork` has none of the threads that make writes durable.
    Forked(&'static str),
    /// Bytes on a device are not what was written there.
    Corrupt(Damage),
    /// A format newer than this build, or not ours.
    Version {
        /// Which structure.
        what: &'static str,
        /// Version found.
        found: u32,
        /// Newest version understood.
        supported: u32,
    },
    /// The database uses something that this release does not know.
    UnknownFeature {
        /// The features, by name and number.
        names: String,
        /// Reading only goes without them.
        may_read: bool,
    },
    /// The database, or what is asked for, needs what this build was made without.
    NotBuilt {
        /// What needs it.
        what: String,
        /// The feature of the crate `varve`.
        feature: &'static str,
    },
    /// A write or flush that durability rests on failed earlier, or a thread of the engine panicked: durability can no
    /// longer be promised.
    Poisoned(String),
    /// A device is full.
    NoSpace(String),
    /// The operating system does not permit to open a file as it must be opened: its owner and mode forbid it, or what
    /// it is on was mounted for reading only.
    Permission(String),
    /// The operating system refused memory or a thread; nothing was changed.
    Resources(String),
    /// A device failed.
    Io(DeviceError),
    /// The fast device of a tier is not there.
    TierMissing(String),
    /// A drive of the array that holds the pages is not there.
    DriveMissing(String),
    /// A backup cannot be made or restored.
    Backup(String),
    /// What the caller gave to read a value from, or to write it to, failed.
    Stream(String),
    /// The volume failed.
    Volume(VolumeError),
}

const REENTRANT: &str = "the database was called within a closure that it lends rows to (`get_with`, `scan_with`): \
                         rows are lent under a latch, for which the call could wait for ever; copy out what is \
                         needed, and call after the closure has returned";
const SNAPSHOT_TOO_OLD: &str = "snapshot too old: its old values fit neither their share of the cache nor \
                                `snapshot_disk`; open a new snapshot, or raise one of them";

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::Conflict { keyspace, reason } => {
                write!(f, "conflict on a key of keyspace {keyspace}: {reason}; roll back and run the transaction again")
            }
            Error::WouldDeadlock { keyspace, key, asker, holder } => write!(
                f,
                "transaction {asker} would wait for ever: key {key} of keyspace {keyspace} is locked by transaction \
                 {holder}, which this same thread runs in `transact` and can end only after this call; do it within \
                 that transaction, or after its end"
            ),
            Error::Reentrant => f.write_str(REENTRANT),
            Error::LockTimeout { keyspace, key, holder, waited } => write!(
                f,
                "lock time-out: waited {waited:?} for key {key} of keyspace {keyspace}, held by {holder}; end that \
                 transaction (it may be one of this same thread), or raise lock_timeout"
            ),
            Error::SnapshotTooOld => f.write_str(SNAPSHOT_TOO_OLD),
            Error::SnapshotLost(what) => write!(
                f,
                "snapshot lost: its old values could not be written to scratch pages ({what}); open a new snapshot"
            ),
            Error::TransactionTooLarge { what, needed, limit } => {
                let raise = if *what == "log" { "log_max" } else { "the cache size" };
                write!(f, "transaction too large: needs {needed} bytes of {what}, the limit is {limit}; ")?;
                write!(f, "split it, or raise {raise}")
            }
            Error::OverBudget { class, requested, available } => write!(
                f,
                "memory budget exhausted for {class}: {requested} bytes asked, {available} free; end other \
                 transactions or raise the cache size"
            ),
            Error::KeySize { len, max } => {
                write!(f, "key of {len} bytes: this database takes keys of up to {max} bytes")
            }
            Error::ValueSize { max, .. } => {
                write!(f, "the value is longer than {max} bytes, the longest value that this keyspace takes")
            }
            Error::Invalid(what) => write!(f, "invalid: {what}"),
            Error::NoSuchKeyspace(what) => {
                write!(f, "no keyspace named {what:?}; create it first, or list the names with `info`")
            }
            Error::NoDatabase(what) => write!(f, "no database at {what}; create one first"),
            Error::Unfinished(what) => {
                write!(f, "no database at {what}: its creation did not finish; run the command that makes it again")
            }
            Error::Mismatch(what) => write!(
                f,
                "the files do not belong together: {what}; put all files of one time back, or restore a backup"
            ),
            Error::AlreadyExists(what) => write!(f, "{what}; open it, or choose another place or name"),
            Error::InUse(what) => write!(f, "the database {what}"),
            Error::ReadOnly(what) => write!(f, "read-only: {what}"),
            Error::KeyspaceReadOnly(what) => write!(
                f,
                "keyspace {what:?} is read-only; `varve read-only DB {what} --undo`, or \
                 `Keyspace::set_read_only(false)`, lets it be changed again"
            ),
            Error::WornOut(what) => write!(
                f,
                "{what}, is worn out and read-only: reads go on; `backup` the database and `restore` it onto other \
                 flash, a file or a drive"
            ),
            Error::Closed => write!(f, "the database is closed; open it again"),
            Error::Forked(advice) => write!(f, "this process is a fork of one that had a database open: {advice}"),
            Error::Corrupt(what @ Damage::Backup(_)) => write!(f, "{what}; use another copy"),
            Error::Corrupt(what) => {
                write!(f, "corruption: {what}; run `check` for the extent, restore a backup or use `salvage`")
            }
            Error::Version { what, found, supported } => write!(
                f,
                "{what}: format version {found} is not understood (this build reads up to {supported}); use a newer \
                 build"
            ),
            Error::UnknownFeature { names, may_read } => write!(
                f,
                "the database uses what this build does not know: {names}; use a newer build{}",
                if *may_read { ", or open it for reading only" } else { "" }
            ),
            Error::NotBuilt { what, feature } => {
                write!(f, "{what}: that needs varve built with its feature `{feature}`")
            }
            Error::Poisoned(what) => write!(
                f,
                "database is poisoned after a failure ({what}): reads go on, writes are refused; fix the cause and \
                 open again"
            ),
            Error::NoSpace(what) => write!(f, "no space left on {what}; free space or grow the device, then go on"),
            Error::Permission(what) => {
                write!(f, "no permission: {what}; see its owner and mode, and whether it is mounted for reading only")
            }
            Error::Resources(what) => write!(f, "{what}"),
            Error::Io(what) => write!(f, "device error: {what}"),
            Error::TierMissing(what) => write!(f, "the fast device of the database's tier is missing: {what}"),
            Error::DriveMissing(what) => write!(f, "a drive of the database's array is missing: {what}"),
            Error::Backup(what) => write!(f, "backup: {what}"),
            Error::Stream(what) => write!(f, "stream: {what}"),
            Error::Volume(what) => write!(f, "volume error: {what}"),
        }
    }
}

impl std::error::Error for Error {}

/// Keyspace in the header of the engine's own pages: space maps, marks, identity.
pub(crate) const SPACE_KEYSPACE: KeyspaceId = KeyspaceId(u32::MAX);

/// The owner of a page, in words: the engine's own pages bear the highest number.
pub(crate) fn owner(keyspace: KeyspaceId) -> String {
    match keyspace {
        SPACE_KEYSPACE => "of the engine itself".to_string(),
        KeyspaceId(number) => format!("keyspace {number}"),
    }
}

/// Where damage was found.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[repr(u64)]
pub enum Damage {
    /// A page.
    Page {
        /// The page.
        page: PageId,
        /// Its keyspace, where known.
        keyspace: Option<KeyspaceId>,
        /// What is wrong with it.
        what: String,
        /// What is wrong with its bytes, if it was the store that refused them.
        stored: Option<PageDamage>,
    },
    /// A place in the log.
    Log {
        /// Position in the log stream.
        lsn: Lsn,
        /// What is wrong there.
        what: String,
    },
    /// A superblock.
    Superblock(String),
    /// What holds the pages, as a whole: it was cut, or overwritten.
    Device(String),
    /// The file of a backup.
    Backup(String),
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Damage::Page { page, keyspace, what, .. } => {
                write!(f, "page {} ({}): {what}", page.0, keyspace.map_or("keyspace unknown".to_string(), owner))
            }
            Damage::Log { lsn, what } => write!(f, "log at LSN {lsn}: {what}"),
            Damage::Superblock(what) => write!(f, "superblock: {what}"),
            Damage::Device(what) => f.write_str(what),
            Damage::Backup(what) => write!(f, "backup: {what}"),
        }
    }
}

impl std::error::Error for Damage {}

/// Kinds of [`Error`]: what a program may do about it differs from kind to kind, not within one. Bindings to other
/// languages have a code or an exception for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Another transaction stood in the way: run it again.
    Conflict,
    /// The thread would wait for itself: for its own transaction, or for rows that it was lent.
    Deadlock,
    /// A lock was waited for too long.
    Timeout,
    /// The snapshot lost its old values: open a new one.
    SnapshotTooOld,
    /// A key, a value or a transaction is too large.
    TooLarge,
    /// There is no memory for it.
    OutOfMemory,
    /// An argument, an option or a call that makes no sense here.
    Invalid,
    /// No such keyspace or database.
    NotFound,
    /// There is one already.
    Exists,
    /// Another process has the database open.
    Busy,
    /// What was to be changed can only be read.
    ReadOnly,
    /// The operating system does not permit it.
    Permission,
    /// The database was closed.
    Closed,
    /// Bytes on a device are not what was written.
    Damaged,
    /// Written by a newer release, or by a build with a feature that this one lacks.
    Version,
    /// Files that do not belong together.
    Mismatch,
    /// Durability can no longer be promised: reads go on.
    Poisoned,
    /// A device is full.
    NoSpace,
    /// A device or stream failed.
    Io,
    /// A device of the database is not at its place.
    DeviceMissing,
    /// A backup cannot be made or restored.
    Backup,
    /// The process is a fork of one that had a database open.
    Forked,
}

impl Error {
    /// Which kind it is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Conflict { .. } => ErrorKind::Conflict,
            Error::WouldDeadlock { .. } | Error::Reentrant => ErrorKind::Deadlock,
            Error::LockTimeout { .. } => ErrorKind::Timeout,
            Error::SnapshotTooOld | Error::SnapshotLost(_) => ErrorKind::SnapshotTooOld,
            Error::TransactionTooLarge { .. } | Error::KeySize { .. } | Error::ValueSize { .. } => ErrorKind::TooLarge,
            Error::OverBudget { .. } | Error::Resources(_) => ErrorKind::OutOfMemory,
            Error::Invalid(_) | Error::Volume(VolumeError::Options(_)) => ErrorKind::Invalid,
            Error::NoSuchKeyspace(_) | Error::NoDatabase(_) | Error::Unfinished(_) => ErrorKind::NotFound,
            Error::AlreadyExists(_) => ErrorKind::Exists,
            Error::InUse(_) => ErrorKind::Busy,
            Error::ReadOnly(_) | Error::KeyspaceReadOnly(_) | Error::WornOut(_) => ErrorKind::ReadOnly,
            Error::Permission(_) => ErrorKind::Permission,
            Error::Closed => ErrorKind::Closed,
            Error::Corrupt(_) => ErrorKind::Damaged,
            Error::Version { .. } | Error::UnknownFeature { .. } | Error::NotBuilt { .. } => ErrorKind::Version,
            Error::Mismatch(_) => ErrorKind::Mismatch,
            Error::Poisoned(_) => ErrorKind::Poisoned,
            Error::NoSpace(_) => ErrorKind::NoSpace,
            Error::Io(_) | Error::Stream(_) | Error::Volume(_) => ErrorKind::Io,
            Error::TierMissing(_) | Error::DriveMissing(_) => ErrorKind::DeviceMissing,
            Error::Backup(_) => ErrorKind::Backup,
            Error::Forked(_) => ErrorKind::Forked,
        }
    }

    /// Whether running the same transaction again may succeed. Not said of [`Error::OverBudget`], which does not tell
    /// whether other transactions have the memory: [`Db::transact`](crate::Db::transact) finds out, and runs it again
    /// where they have.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Error::Conflict { .. } | Error::SnapshotTooOld | Error::SnapshotLost(_))
    }

    /// Shorthand for a place that holds a database already.
    pub(crate) fn holds_database(place: impl std::fmt::Display) -> Error {
        Error::AlreadyExists(format!("{place} already holds a database"))
    }

    /// Whether it holds up only the keyspace that it is of, where something could not be written for it: no room,
    /// damage, worn-out flash. All others go on.
    pub(crate) fn holds_up_a_part(&self) -> bool {
        matches!(self, Error::NoSpace(_) | Error::Corrupt(_) | Error::WornOut(_))
    }

    /// Shorthand for a keyspace that there is already.
    pub(crate) fn keyspace_exists(name: impl AsRef<str>) -> Error {
        Error::AlreadyExists(format!("there is a keyspace {:?} already", name.as_ref()))
    }

    /// Shorthand for damage of a page.
    pub fn corrupt_page(page: PageId, keyspace: Option<KeyspaceId>, what: impl Into<String>) -> Error {
        Error::Corrupt(Damage::Page { page, keyspace, what: what.into(), stored: None })
    }

    /// Shorthand for damage in the log.
    pub fn corrupt_log(lsn: Lsn, what: impl Into<String>) -> Error {
        Error::Corrupt(Damage::Log { lsn, what: what.into() })
    }
}

/// `EPERM`, `EACCES`, `EROFS`.
const NOT_PERMITTED: [i32; 3] = [1, 13, 30];

impl From<DeviceError> for Error {
    fn from(e: DeviceError) -> Error {
        match e {
            DeviceError::NoSpace { op, device, offset, len } => {
                Error::NoSpace(format!("{device} ({op} of {len} bytes at offset {offset})"))
            }
            DeviceError::Refused { why, .. } => Error::Poisoned(why.to_string()),
            DeviceError::Io { op: OpKind::Open, device, errno, .. } if NOT_PERMITTED.contains(&errno) => {
                Error::Permission(format!("{device} cannot be opened ({})", reason(errno)))
            }
            DeviceError::Resources { .. } => Error::Resources(e.to_string()),
            DeviceError::NoLock { .. } => Error::Invalid(e.to_string()),
            // Nobody reads where nothing was written: the file became shorter.
            DeviceError::OutOfRange { op: OpKind::Read, .. } => Error::Corrupt(Damage::Device(e.to_string())),
            _ => Error::Io(e),
        }
    }
}

impl From<VolumeError> for Error {
    fn from(e: VolumeError) -> Error {
        match e {
            VolumeError::Damaged { damage: PageDamage::NewerVersion { found }, .. } => {
                Error::Version { what: "page", found: found.into(), supported: varve_volume::page::VERSION.into() }
            }
            VolumeError::Damaged { page, damage } => {
                let what = damage.to_string();
                Error::Corrupt(Damage::Page { page, keyspace: None, what, stored: Some(damage) })
            }
            // Nobody asks for a page that never was: the device became shorter.
            VolumeError::OutOfRange { page, pages } => {
                Error::corrupt_page(page, None, format!("the data was cut: it ends after {pages} pages"))
            }
            VolumeError::TierWrecked { .. } => Error::Corrupt(Damage::Superblock(e.to_string())),
            VolumeError::Page {
                source:
                    source @ (DeviceError::NoSpace { .. }
                    | DeviceError::Refused { .. }
                    | DeviceError::OutOfRange { op: OpKind::Read, .. }),
                ..
            } => source.into(),
            VolumeError::Device(source) => source.into(),
            VolumeError::Invalid(what) => Error::Invalid(what),
            VolumeError::Missing(what) => Error::TierMissing(what),
            VolumeError::DriveMissing(what) => Error::DriveMissing(what),
            VolumeError::Mismatch(what) => Error::Mismatch(what),
            other => Error::Volume(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_may_not_be_opened_is_no_broken_drive() {
        let device = "db/lock".into();
        for errno in NOT_PERMITTED {
            let error = Error::from(DeviceError::from_errno(OpKind::Open, &device, 0, 0, errno));
            let text = error.to_string();
            assert!(matches!(error, Error::Permission(_)), "{text}");
            assert!(text.contains("db/lock") && !text.contains("device error") && !text.contains("errno"), "{text}");
            // While it is open, the drive is to be looked at.
            assert!(matches!(DeviceError::from_errno(OpKind::Write, &device, 0, 0, errno).into(), Error::Io(_)));
        }
    }
}
