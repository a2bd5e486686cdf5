//! What can be wrong with a trace file.

use std::path::PathBuf;

/// Where in the (uncompressed) input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Position {
    /// Line, counted from 1.
    Line(u64),
    /// Byte, counted from 0.
    Byte(u64),
}

impl std::fmt::Display for Position {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Position::Line(n) => write!(f, "line {n}"),
            Position::Byte(n) => write!(f, "byte {n}"),
        }
    }
}

/// Errors of reading and writing traces.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The operating system said so.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What happened.
        source: std::io::Error,
    },
    /// The content is not what the format says.
    #[error("{name}, {at}: {why} (read as {format}; if it is another format say so with --format)")]
    Damaged {
        /// The file.
        name: String,
        /// Format it was read as.
        format: &'static str,
        /// Where.
        at: Position,
        /// What is wrong there.
        why: String,
    },
    /// No format fits.
    #[error("{name}: no known trace format fits its first bytes ({why}); name it with --format: {}", super::Format::NAMES.join(", "))]
    Unknown {
        /// The file.
        name: String,
        /// What was looked at.
        why: String,
    },
    /// Our own format, written by a later version.
    #[error("{name}: trace format version {found}; this program reads up to {known}: use a newer one")]
    Newer {
        /// The file.
        name: String,
        /// Version found.
        found: u16,
        /// Newest version known.
        known: u16,
    },
    /// An option makes no sense for this trace.
    #[error("{0}")]
    Option(String),
}
