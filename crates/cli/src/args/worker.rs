//! `worker`

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// `worker`
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true, arg_required_else_help = true)]
pub struct Worker {
    /// Another thing to do than to serve.
    #[command(subcommand)]
    pub command: Option<WorkerCommand>,
    /// Address to listen at, HOST:PORT, of this machine only: 127.0.0.1:7070 or [::1]:7070; port 0 takes any that is
    /// free.
    #[arg(long, value_name = "HOST:PORT", required = true)]
    pub listen: Option<String>,
    /// The device that it owns: a block device, a file (made if there is none), or a folder for one.
    #[arg(long, value_name = "PATH", required = true)]
    pub data: Option<PathBuf>,
    /// Memory for requests and merges, MiB.
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = clap::value_parser!(u64).range(16..=1 << 20))]
    pub memory_mb: u64,
    /// Merges at a time; 0: it serves blocks only.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(0..=64))]
    pub jobs: u64,
    /// Use the operating system's cache instead of O_DIRECT.
    #[arg(long)]
    pub buffered: bool,
}

/// What can be done besides.
#[derive(Debug, Subcommand)]
pub enum WorkerCommand {
    /// Show what a worker has and did.
    Status {
        /// Its address, HOST:PORT.
        address: String,
    },
}
