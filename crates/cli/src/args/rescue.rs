//! Arguments of the commands that keep data safe: backup, restore, salvage.

use super::Place;
use super::flash::FlashArgs;
use clap::Args;
use std::path::PathBuf;

/// `backup`
#[derive(Debug, Args)]
pub struct Backup {
    #[command(flatten)]
    pub place: Place,
    /// File to write; `-` for standard output. It appears when it is whole.
    pub file: PathBuf,
    /// Only what changed since this backup was begun; to restore, give both.
    #[arg(long, value_name = "BACKUP")]
    pub since: Option<PathBuf>,
    /// Compression, 1 (fast) to 19 (small).
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(i32).range(1..=19))]
    pub level: i32,
}

/// `restore`
#[derive(Debug, Args)]
pub struct Restore {
    /// Directory to make the database in.
    pub dir: PathBuf,
    /// A whole backup, then the incremental ones that go on from it, in order; `-` for standard input.
    #[arg(required = true, value_name = "BACKUP")]
    pub files: Vec<PathBuf>,
    /// MiB of log preallocated. The log grows as it is needed, and shrinks to this again.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub log_mb: u64,
    /// Directory for the log, to put it on a device of its own.
    #[arg(long, value_name = "DIR")]
    pub log_dir: Option<PathBuf>,
    #[command(flatten)]
    pub flash: FlashArgs,
    /// Use flash that holds something already: it is lost.
    #[arg(long, requires = "flash", help_heading = "Native flash")]
    pub overwrite: bool,
}

/// `salvage`
#[derive(Debug, Args)]
pub struct Salvage {
    /// Directory of the damaged database. Nothing is written to it.
    pub dir: PathBuf,
    /// File for the rows, as JSON lines that `load` reads; standard output if not given.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}
