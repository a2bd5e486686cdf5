//! `stat`

use super::{Open, tier};
use clap::Args;
use std::time::Duration;
use varve::flash::advise::Goal;

/// `stat`
#[derive(Debug, Args)]
pub struct Stat {
    /// Directory of the database, which is opened; or http://HOST:PORT of a process that has it open and serves its
    /// metrics.
    pub place: String,
    /// Print what happened in each interval of so many seconds, until interrupted: rates of the most telling figures,
    /// or with --json how much each counter rose and where each gauge is, an object per line.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, conflicts_with = "prometheus")]
    pub watch: Option<Duration>,
    /// End after so many intervals.
    #[arg(long, requires = "watch", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Print the metrics in the text format of Prometheus, once.
    #[arg(long)]
    pub prometheus: bool,
    /// Print how much updates of pages change, by keyspace: what a process that works with the database counted
    /// (with --set update_sizes=true, or on native flash).
    #[arg(long, conflicts_with_all = ["watch", "prometheus"])]
    pub updates: bool,
    /// Print what the flash advisor says of the pages that a process at work with the database wrote lately (with --set
    /// update_sizes=true), for this array: the name of a built-in profile with [flash].
    #[arg(long, value_name = "PROFILE", conflicts_with_all = ["watch", "prometheus", "updates"])]
    pub advise: Option<String>,
    /// What native flash is to bring: life or throughput.
    #[arg(long, default_value = "life", requires = "advise")]
    pub goal: Goal,
    #[command(flatten)]
    pub open: Open,
    #[command(flatten)]
    pub tier: tier::TierOpen,
}

/// A number of seconds, 0.1 to a day.
pub fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(s) if (0.1..=86_400.0).contains(&s) => Ok(Duration::from_secs_f64(s)),
        _ => Err("give a number of seconds, 0.1 to 86400".into()),
    }
}
