//! Arguments of `trace`.

use super::Workload;
use super::replay::Input;
use clap::{Args, Subcommand};
use std::path::{Path, PathBuf};

/// `trace`
#[derive(Debug, Args)]
pub struct Trace {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What is done with traces.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Record the page references and flushes of a workload.
    Record(Box<Record>),
    /// Show what a trace holds.
    Info(Input),
    /// Write any trace in our compact format.
    Convert(Convert),
    /// Write any trace as a table for other tools, an Arrow file.
    Export(Export),
}

/// `trace record`
#[derive(Debug, Args)]
pub struct Record {
    /// File for the trace.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// What to run, with its options as for `bench`.
    #[command(subcommand)]
    pub workload: Workload,
}

impl Workload {
    /// Where the run is to be recorded, if it is.
    pub fn trace(&self) -> Option<&Path> {
        match self {
            Workload::Tpcc(a) => a.run.base.trace.as_deref(),
            Workload::Ycsb(a) => a.run.base.trace.as_deref(),
            Workload::Dbbench(a) => a.base.trace.as_deref(),
            Workload::Iomix(_) => None,
        }
    }
}

/// `trace convert`
#[derive(Debug, Args)]
pub struct Convert {
    #[command(flatten)]
    pub input: Input,
    /// File for the result; - for standard output.
    pub out: PathBuf,
}

/// `trace export`
#[derive(Debug, Args)]
pub struct Export {
    #[command(flatten)]
    pub input: Input,
    /// File for the table, such as trace.arrow; - for standard output.
    pub out: PathBuf,
}
