//! `top`

use crate::metrics::Address;
use clap::Args;
use std::time::Duration;

/// `top`
#[derive(Debug, Args)]
pub struct Top {
    /// Where the process serves its metrics: http://HOST:PORT or HOST:PORT.
    pub address: Address,
    /// Seconds between two readings.
    #[arg(long = "every", value_name = "SECONDS", default_value = "1", value_parser = super::stat::seconds)]
    pub every: Duration,
    /// Print the view once, as text of 80 columns, after two readings: without a terminal, too.
    #[arg(long)]
    pub once: bool,
}
