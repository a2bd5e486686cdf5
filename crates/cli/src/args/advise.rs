//! Arguments of `advise`.

use super::{Open, tier};
use clap::{Args, Subcommand};
use std::path::PathBuf;
use varve::flash::advise::Goal;

/// `advise`
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Advise {
    /// One advisor by itself.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Directory of a database, which is opened, or a trace that was recorded of one.
    #[arg(required = true)]
    pub of: Option<PathBuf>,
    /// Array of flash for the flash advisor: a profile with [flash], by name or path.
    #[arg(long, value_name = "PROFILE")]
    pub flash: Option<String>,
    /// What native flash is to bring: life or throughput.
    #[arg(long, default_value = "life")]
    pub goal: Goal,
    /// Curves of the array's drives, in their order: files of `probe --save`, or profiles. Left out: those that were
    /// given before.
    #[arg(long, value_name = "A,B,..", value_delimiter = ',')]
    pub curves: Vec<String>,
    #[command(flatten)]
    pub open: Open,
    #[command(flatten)]
    pub tier: tier::TierOpen,
}

/// Advisors.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Which delta records pages should take on native flash, and which keyspaces should share a region.
    Flash(Flash),
}

/// `advise flash`
#[derive(Debug, Args)]
pub struct Flash {
    /// Trace of a database: of `varve trace record`, or `varve bench .. --trace`.
    pub trace: PathBuf,
    /// The array: a profile with [flash], by name or path.
    #[arg(long, value_name = "PROFILE")]
    pub flash: String,
    /// What it is to bring: life, or throughput.
    #[arg(long, default_value = "life")]
    pub goal: Goal,
    /// Write the regions that are advised to this file, for `varve create --layout`.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}
