//! `worker`

use crate::metrics::Address;
use clap::{Args, Subcommand};
use std::path::PathBuf;
use varve::KeyFiles;

/// `worker`
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true, arg_required_else_help = true)]
pub struct Worker {
    /// Another thing to do than to serve.
    #[command(subcommand)]
    pub command: Option<WorkerCommand>,
    /// Address to listen at, HOST:PORT, as in 127.0.0.1:7070, [::1]:7070 or, with keys, 0.0.0.0:7070; port 0 takes any
    /// that is free.
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
    /// Serve its metrics over HTTP at this address, HOST:PORT, to whoever can connect there; port 0 takes any that is
    /// free.
    #[arg(long, value_name = "HOST:PORT")]
    pub metrics: Option<Address>,
    /// Use the operating system's cache instead of O_DIRECT.
    #[arg(long)]
    pub buffered: bool,
    #[command(flatten)]
    pub keys: KeyArgs,
}

/// The keys of a connection with a worker; without them it is in the clear, and on this machine only.
#[derive(Debug, Args, Clone)]
pub struct KeyArgs {
    /// This side's private key, made by `varve worker keygen`: the connection is encrypted.
    #[arg(long, value_name = "FILE", requires = "peer", help_heading = "Keys of a worker's connection")]
    pub key: Option<PathBuf>,
    /// The certificate of the other side, which nobody else is taken for.
    #[arg(long, value_name = "CERT", requires = "key", help_heading = "Keys of a worker's connection")]
    pub peer: Option<PathBuf>,
}

impl KeyArgs {
    /// The files, if they were given.
    pub fn files(&self) -> Option<KeyFiles> {
        self.key.clone().zip(self.peer.clone()).map(|(key, peer)| KeyFiles { key, peer })
    }
}

/// What can be done besides.
#[derive(Debug, Subcommand)]
pub enum WorkerCommand {
    /// Show what a worker has and did.
    Status {
        /// Its address, HOST:PORT.
        address: String,
        #[command(flatten)]
        keys: KeyArgs,
    },
    /// Make a private key, FILE, and its certificate, FILE.cert, for one side of an encrypted connection.
    Keygen {
        /// Where to.
        file: PathBuf,
    },
}
