//! Arguments of `demo`.

use clap::Args;
use std::path::PathBuf;

/// `demo`
#[derive(Debug, Args)]
pub struct Demo {
    /// The page to write.
    #[arg(long, value_name = "FILE", default_value = "varve-demo.html")]
    pub out: PathBuf,
    /// Keep the database and the recorded accesses; says where they are.
    #[arg(long)]
    pub keep: bool,
    /// Customers of the shop; everything else grows with them.
    #[arg(long, value_name = "N", default_value_t = 30_000)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub customers: u32,
}
