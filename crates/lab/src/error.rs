//! The one error type of this crate. A workload cares about two questions: may the transaction be run again, and may
//! it have happened all the same. [`Error::retryable`] and [`Error::maybe_committed`] answer them; the rest is prose
//! for whoever reads the message.

/// What can go wrong while a workload runs over a store.
// (The tag takes a word, as that of `varve::Error`.)
#[derive(Debug, thiserror::Error)]
#[repr(u64)]
pub enum Error {
    /// The store gave up this transaction in favour of another. Nothing was changed.
    #[error("conflict with another transaction: {0}; nothing was changed, run the transaction again")]
    Conflict(String),
    /// A read-only transaction outlived the old versions it needs.
    #[error("snapshot too old: {0}; begin again, and keep read-only transactions shorter or the version store larger")]
    SnapshotTooOld(String),
    /// The store failed before the commit was attempted. Nothing was changed.
    #[error("the store failed: {0}")]
    Store(Box<dyn std::error::Error + Send + Sync>),
    /// The store failed while committing: the transaction may be found after a restart, or not.
    #[error("the commit failed and may or may not have taken effect: {0}; reopen the store and look")]
    CommitUnknown(Box<dyn std::error::Error + Send + Sync>),
    /// A row is not of the layout its table has.
    #[error("{table} row {key}: {why}; the row was not written by this workload, restore or reload it")]
    Row {
        /// Table (keyspace) of the row.
        table: &'static str,
        /// The key, readable.
        key: String,
        /// What does not fit.
        why: String,
    },
    /// A row that the workload relies on is absent.
    #[error("{table} has no row {key}, which the workload relies on; run its check, then reload the data")]
    Missing {
        /// Table (keyspace) of the row.
        table: &'static str,
        /// The key, readable.
        key: String,
    },
    /// An option has a value that cannot be used.
    #[error("option {name}: {why}")]
    Option {
        /// Name of the option.
        name: &'static str,
        /// What is wrong and what would be right.
        why: String,
    },
    /// A profile or experiment file says something that cannot be used.
    #[error("{file}{}: {key}: {why}", line.map(|l| format!(", line {l}")).unwrap_or_default())]
    File {
        /// The file.
        file: String,
        /// Its line, from 1.
        line: Option<usize>,
        /// The key.
        key: String,
        /// What is wrong and what is accepted.
        why: String,
    },
    /// The store holds no data of this workload, or data of another shape.
    #[error("the store is not loaded for this run: {0}; load it, or give the options it was loaded with")]
    NotLoaded(String),
    /// A device profile cannot be used.
    #[error("{0}")]
    Profile(String),
    /// A worker thread of the workload panicked.
    #[error("worker thread {0} panicked; its message is on stderr")]
    WorkerPanicked(String),
}

impl Error {
    /// Wraps an error of the store that happened before the commit.
    pub fn store(e: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        Error::Store(e.into())
    }

    /// Whether running the same transaction again from its beginning may succeed.
    pub fn retryable(&self) -> bool {
        matches!(self, Error::Conflict(_) | Error::SnapshotTooOld(_))
    }

    /// Whether the failed transaction may have taken effect.
    pub fn maybe_committed(&self) -> bool {
        matches!(self, Error::CommitUnknown(_))
    }
}

/// Refuses a file.
pub(crate) fn bad_file<T>(file: &str, line: Option<usize>, key: &str, why: String) -> Result<T> {
    Err(Error::File { file: file.into(), line, key: key.into(), why })
}

/// Result with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;
