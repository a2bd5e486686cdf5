//! Arguments of `lab`.

use super::replay::Replay;
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// `lab`
#[derive(Debug, Args)]
pub struct Lab {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The lab's commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run experiments; exit status 1 if a check does not hold.
    Run(Run),
    /// List the experiments that come with the program.
    List(List),
    /// Print the tables of results, and write their reports, again.
    Report(Report),
    /// Write all results of a directory as one table for other tools, an Arrow file.
    Export(Export),
    /// Replay a trace through replacement policies: miss ratio by cache size.
    Replay(Box<Replay>),
}

/// `lab run`
#[derive(Debug, Args)]
pub struct Run {
    /// Experiment files, or names of those that come with the program.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<String>,
    /// Directory for results and reports.
    #[arg(long, value_name = "DIR", default_value = "lab-results")]
    pub out: PathBuf,
    /// The scaled-down set.
    #[arg(long)]
    pub quick: bool,
    /// Set any key of the experiment: a whole path such as run.seconds, or a name that only one key has.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Points at the same time; 0 is one per core.
    #[arg(long, default_value_t = 0)]
    pub jobs: usize,
    /// Run points again that have a result.
    #[arg(long)]
    pub fresh: bool,
    /// Instead: halve and double each number that is assumed, on the scaled-down set, and name those that move a check
    /// by more than 5 %.
    #[arg(long)]
    pub sensitivity: bool,
}

/// `lab list`
#[derive(Debug, Args)]
pub struct List {}

/// `lab report`
#[derive(Debug, Args)]
pub struct Report {
    /// Directory with results.
    pub dir: PathBuf,
}

/// `lab export`
#[derive(Debug, Args)]
pub struct Export {
    /// Directory with results.
    pub dir: PathBuf,
    /// File for the table, such as results.arrow; - for standard output.
    pub out: PathBuf,
}
