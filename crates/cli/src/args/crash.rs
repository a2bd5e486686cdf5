//! Arguments of the commands that make databases crash: `sim`, `torture`.

use super::Open;
use crate::table_args::{Given, Pool};
use clap::{Args, ValueEnum};
use std::path::PathBuf;
use varve_lab::sim::State;

/// What a database's pages lie on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LayoutKind {
    /// One device.
    Single,
    /// A fast device over a slow one.
    Tier,
    /// Several drives as one device.
    Array,
    /// Native flash: modelled chips that the volume drives itself.
    Flash,
    /// A device at another machine, whose worker merges too; some keyspaces, or all, are LSM keyspaces.
    Near,
}

/// The layout of databases that are made to crash.
#[derive(Debug, Args, Clone)]
pub struct LayoutChoice {
    /// What the pages lie on.
    #[arg(long, value_enum, default_value_t = LayoutKind::Single)]
    pub layout: LayoutKind,
    /// Which pages the fast device of a tier gets: a manager's name, or all for one after the other [default: all].
    #[arg(long, value_name = "NAME", value_parser = manager)]
    pub manager: Option<String>,
}

fn manager(s: &str) -> Result<String, String> {
    let names = varve::tier_managers();
    if s == "all" || names.contains(&s) { Ok(s.into()) } else { Err(format!("choose all, {}", names.join(", "))) }
}

/// `torture`
#[derive(Debug, Args)]
pub struct Torture {
    /// Directory of the database: none, an empty one, or that of an earlier torture.
    #[arg(long, default_value = "varve-torture")]
    pub dir: PathBuf,
    /// Kills.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Client threads of the child.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub threads: u32,
    /// Seed.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Instead: one kill under full load with this many MiB of log behind it, then time the open.
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub big_log: Option<u64>,
    #[command(flatten)]
    pub open: Open,
    #[command(flatten)]
    pub pool: Given<Pool>,
    #[command(flatten)]
    pub layout: LayoutChoice,
    /// Directory of a tier's fast device [default: DIR.fast].
    #[arg(long, value_name = "DIR")]
    pub fast_dir: Option<PathBuf>,
    /// What the keyspaces of a new database are made of.
    #[arg(long, value_enum, default_value_t = IndexKind::Tree, conflicts_with = "big_log")]
    pub kind: IndexKind,
    /// Pages and merges with a worker, a process of its own (over the file DIR.worker), which is killed too.
    #[arg(long, conflicts_with_all = ["big_log", "kind"])]
    pub worker: bool,
}

fn state(s: &str) -> Result<State, String> {
    let names = || State::ALL.map(State::name).join(", ");
    State::ALL.into_iter().find(|state| state.name() == s).ok_or_else(|| format!("choose {}", names()))
}

/// `sim`
#[derive(Debug, Args)]
pub struct Sim {
    /// Seeds to run.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    pub seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 1)]
    pub first_seed: u64,
    /// Run just this seed.
    #[arg(long, conflicts_with_all = ["seeds", "first_seed"])]
    pub seed: Option<u64>,
    /// Print the events of the run.
    #[arg(long, requires = "seed", conflicts_with_all = ["seeds", "first_seed"])]
    pub trace: bool,
    /// Cut a fixed workload at each device operation in turn.
    #[arg(long)]
    pub every_write: bool,
    /// Instead: damage the files of databases in so many ways, one at a time, in each state, and look what is made of
    /// it.
    #[arg(long, value_name = "N", conflicts_with_all = ["seeds", "first_seed", "every_write", "once"],
        value_parser = clap::value_parser!(u64).range(1..))]
    pub damage: Option<u64>,
    /// Damage databases of this state only: closed, crashed, or recovering (crashed, and once more inside recovery).
    #[arg(long, value_parser = state, requires = "damage")]
    pub state: Option<State>,
    /// Do just this one of the damages.
    #[arg(long, value_name = "K", requires = "state")]
    pub damage_only: Option<u64>,
    /// The damaged databases remember which version of each page was written last.
    #[arg(long, requires = "damage")]
    pub detect_lost_writes: bool,
    /// Seeds, or damages, in parallel; 0 is one per core.
    #[arg(long, default_value_t = 0)]
    pub jobs: usize,
    /// Skip the second run of each seed in another process.
    #[arg(long)]
    pub once: bool,
    /// Deliberate fault in the engine, to see it caught.
    #[arg(long, hide = true)]
    pub broken: Option<String>,
    #[command(flatten)]
    pub pool: Given<Pool>,
    #[command(flatten)]
    pub layout: LayoutChoice,
    /// What keyspaces are made of: trees, or some of them, or all, LSM keyspaces.
    #[arg(long, value_enum, default_value_t = IndexKind::Tree, conflicts_with = "damage")]
    pub kind: IndexKind,
}

/// What a keyspace is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum IndexKind {
    /// A B+-tree.
    Tree,
    /// A log-structured merge tree.
    Lsm,
}
