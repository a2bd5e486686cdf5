//! Failures as other languages see them: a code and a text.

use varve::{Error, ErrorKind};

/// The result of a call.
pub type Result<T> = std::result::Result<T, Failure>;

/// What kind of failure it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// Another transaction stood in the way: roll back and run the transaction again.
    Conflict,
    /// The thread would wait for its own transaction: make the change through that transaction.
    Deadlock,
    /// A lock was waited for longer than the option `lock_timeout`.
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
    /// The database was closed, or the transaction has ended.
    Closed,
    /// Bytes on a device are not what was written.
    Damaged,
    /// Written by a newer release.
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
    /// The handle is of the process that this one was forked from.
    Forked,
    /// A fault of Varve's own: please report it. The database should be closed and opened again.
    Internal,
}

impl From<ErrorKind> for Code {
    fn from(kind: ErrorKind) -> Code {
        match kind {
            ErrorKind::Conflict => Code::Conflict,
            ErrorKind::Deadlock => Code::Deadlock,
            ErrorKind::Timeout => Code::Timeout,
            ErrorKind::SnapshotTooOld => Code::SnapshotTooOld,
            ErrorKind::TooLarge => Code::TooLarge,
            ErrorKind::OutOfMemory => Code::OutOfMemory,
            ErrorKind::Invalid => Code::Invalid,
            ErrorKind::NotFound => Code::NotFound,
            ErrorKind::Exists => Code::Exists,
            ErrorKind::Busy => Code::Busy,
            ErrorKind::ReadOnly => Code::ReadOnly,
            ErrorKind::Permission => Code::Permission,
            ErrorKind::Closed => Code::Closed,
            ErrorKind::Damaged => Code::Damaged,
            ErrorKind::Version => Code::Version,
            ErrorKind::Mismatch => Code::Mismatch,
            ErrorKind::Poisoned => Code::Poisoned,
            ErrorKind::NoSpace => Code::NoSpace,
            ErrorKind::Io => Code::Io,
            ErrorKind::DeviceMissing => Code::DeviceMissing,
            ErrorKind::Backup => Code::Backup,
            ErrorKind::Forked => Code::Forked,
            // A kind that is newer than the bindings.
            _ => Code::Internal,
        }
    }
}

/// What went wrong.
#[derive(Debug, Clone)]
pub struct Failure {
    /// Its kind.
    pub code: Code,
    /// What happened, where, and what helps.
    pub message: String,
    /// Whether the same transaction may succeed when it is run again.
    pub retryable: bool,
}

impl Failure {
    /// One that no repetition helps against.
    pub fn new(code: Code, message: impl Into<String>) -> Failure {
        Failure { code, message: message.into(), retryable: false }
    }

    /// A call that makes no sense.
    pub fn invalid(message: impl Into<String>) -> Failure {
        Failure::new(Code::Invalid, message)
    }

    /// The transaction was committed or rolled back before.
    pub fn ended() -> Failure {
        Failure::new(Code::Closed, "the transaction has ended: begin another one")
    }

    /// A panic of the engine or of the bindings, by what it carried.
    pub fn panic(what: &(dyn std::any::Any + Send)) -> Failure {
        let text = what.downcast_ref::<&str>().copied().or(what.downcast_ref::<String>().map(String::as_str));
        let text = text.unwrap_or("no text");
        Failure::new(Code::Internal, format!("internal error, please report it: {text}; open the database again"))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let (code, retryable) = (error.kind().into(), error.is_retryable());
        Failure { code, message: error.to_string(), retryable }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}
