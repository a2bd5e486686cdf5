//! The command line, whole: one struct per command.

pub mod advise;
pub mod array;
pub mod crash;
pub mod demo;
pub mod flash;
pub mod keyspaces;
pub mod lab;
pub mod replay;
pub mod rescue;
pub mod shell;
pub mod stat;
pub mod tier;
pub mod top;
pub mod trace;
pub mod worker;

pub use crash::{IndexKind, LayoutChoice, LayoutKind, Sim, Torture};

use crate::metrics::Address;
use crate::table_args::{Given, Pool, Tier};
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;
use varve::{Durability, Layout, Options};

/// Varve: a transactional storage engine for layered storage.
#[derive(Debug, Parser)]
#[command(name = "varve", version, arg_required_else_help = true, after_help = EXIT_CODES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Print results as JSON (one object, or one per line for streams).
    #[arg(long, global = true)]
    pub json: bool,
    /// No progress bars.
    #[arg(long, short, global = true)]
    pub quiet: bool,
}

const EXIT_CODES: &str = "\
Exit status: 0 done; 1 failed; 2 wrong arguments or input; 3 damage or inconsistency was found; 4 no such key, \
keyspace or database; 5 the database is in use; 6 it is there already; 7 no permission, or read-only.";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// See it at work: a small shop, what it does, and what other caches would do for it, as a page with pictures.
    Demo(demo::Demo),
    /// Create a database in a directory.
    Create(Create),
    /// Show a database's layout and keyspaces.
    Info(Place),
    /// Print a key's value.
    Get(Get),
    /// Write a key.
    Put(Put),
    /// Remove a key, or all keys of a range.
    Delete(Delete),
    /// Remove all keys of a keyspace.
    Clear(keyspaces::OneKeyspace),
    /// Drop a keyspace and everything in it.
    Drop(keyspaces::OneKeyspace),
    /// Give a keyspace another name.
    Rename(keyspaces::Rename),
    /// Make a keyspace of a kind, show or change its options.
    Keyspace(keyspaces::Keyspace),
    /// Print a range of keys and values.
    Scan(Scan),
    /// Type commands on a database, or give them from a pipe.
    Shell(shell::Shell),
    /// Load CSV or JSON lines from standard input.
    Load(Load),
    /// Write all rows as JSON lines, in a form that `load` reads. What rows do not say of keyspaces goes to stderr.
    Dump(Dump),
    /// Read the whole database and report any damage.
    Check(Place),
    /// Move what lies at the end of the data file to free places before it, and give the end back; or, with a keyspace,
    /// merge the levels of an LSM keyspace.
    Compact(keyspaces::Compact),
    /// Make a keyspace read-only: writes, range deletes and its drop are refused from then on.
    ReadOnly(array::ReadOnly),
    /// Write a backup of a database to a file, whole or of what changed since another.
    Backup(rescue::Backup),
    /// Make a database from a backup.
    Restore(rescue::Restore),
    /// Get the rows out of a damaged database that `check` or opening refuses.
    Salvage(rescue::Salvage),
    /// Show counters, sizes and memory of a database, once or over time; metrics for Prometheus.
    Stat(stat::Stat),
    /// Watch a process that serves its metrics, live: `top HOST:PORT` next to `bench --metrics HOST:PORT`.
    Top(top::Top),
    /// The tier, a fast device over a slow one: watch it, change it, take it away, add one.
    Tier(tier::Tier),
    /// The array, several drives as one: watch it, plan and move its extents, add, drain and replace drives.
    Array(array::Array),
    /// Serve a device, and merges on it, to a database elsewhere; show how such a worker is.
    Worker(worker::Worker),
    /// Run a workload and print its figures.
    Bench(Box<Bench>),
    /// Measure a device: a directory's, or a device profile's model.
    Probe(crate::probe::Probe),
    /// Kill a writing process again and again and look for lost commits.
    Torture(Torture),
    /// Simulate power cuts and device faults, reproducibly from seeds.
    Sim(Sim),
    /// The lab: experiments on modelled devices in virtual time, replay of traces.
    Lab(lab::Lab),
    /// Record, show and convert traces.
    Trace(trace::Trace),
    /// Advice: what, why, the predicted figure, and the command that does it.
    Advise(Box<advise::Advise>),
    /// Print a completion script for a shell.
    Completions {
        /// Which shell.
        shell: clap_complete::Shell,
    },
    /// Write manual pages, one per command.
    Man {
        /// Directory to write them to.
        dir: PathBuf,
    },
    /// The torture's child process.
    #[command(hide = true)]
    TortureChild,
    /// The simulation's second process.
    #[command(hide = true)]
    SimChild,
}

/// Which database, and how it is opened.
#[derive(Debug, Args)]
pub struct Place {
    /// Directory of the database.
    pub dir: PathBuf,
    #[command(flatten)]
    pub open: Open,
    #[command(flatten)]
    pub tier: tier::TierOpen,
}

/// How a database is opened.
#[derive(Debug, Args, Clone)]
pub struct Open {
    /// Memory for everything, MiB [default: a quarter of the memory that the process may have].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub cache_mb: Option<u64>,
    /// MiB to which the log may grow [default: 4096].
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 28))]
    pub log_max_mb: Option<u64>,
    /// Use the operating system's cache instead of O_DIRECT.
    #[arg(long)]
    pub buffered: bool,
    /// Give the space of pages that hold nothing any more back to the file system after each checkpoint.
    #[arg(long)]
    pub trim: bool,
    /// Begin or end to remember the version of each page that was written last: then a lost write is found wherever it
    /// is.
    #[arg(long, value_name = "on|off")]
    pub detect_lost_writes: Option<Switch>,
    /// Any option of the engine by its name, as often as needed: `--set async_delay=20ms --set pool.replacement=2q`
    /// (docs/options.md).
    #[arg(long, value_name = "NAME=VALUE", value_parser = setting)]
    pub set: Vec<(String, String)>,
}

/// One option by its name.
fn setting(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("give NAME=VALUE")?;
    Options::default().set(name, value).map_err(|e| e.to_string())?;
    Ok((name.into(), value.into()))
}

/// On or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    On,
    Off,
}

impl Open {
    /// The engine's options.
    pub fn options(&self) -> Options {
        let trim = self.trim.then_some(true);
        let detect_lost_writes = self.detect_lost_writes.map(|switch| switch == Switch::On);
        let defaults = Options::default();
        self.over(Options {
            cache_bytes: self.cache_mb.map_or(defaults.cache_bytes, |mib| mib << 20),
            log_max_bytes: self.log_max_mb.map_or(defaults.log_max_bytes, |mib| mib << 20),
            direct_io: !self.buffered,
            trim,
            detect_lost_writes,
            ..defaults
        })
    }

    /// `options` with what is set by name.
    pub fn over(&self, mut options: Options) -> Options {
        for (name, value) in &self.set {
            options.set(name, value).expect("checked as it was given");
        }
        options
    }
}

/// `create`
#[derive(Debug, Args)]
pub struct Create {
    /// Directory to make the database in.
    pub dir: PathBuf,
    #[command(flatten)]
    pub layout: LayoutArgs,
    /// Keyspaces to make at once: a name, or NAME=lsm for an LSM keyspace, with options behind it:
    /// NAME=lsm,compression=zstd,memtable=128M (docs/lsm.md).
    #[arg(long = "keyspace", value_name = "NAME[=KIND[,OPTION=VALUE]...]")]
    pub keyspaces: Vec<String>,
    /// Remember the version of each page that was written last: then a lost write is found wherever it is.
    #[arg(long)]
    pub detect_lost_writes: bool,
    #[command(flatten)]
    pub tier: Given<Tier>,
}

/// What is fixed at creation.
#[derive(Debug, Args, Clone)]
pub struct LayoutArgs {
    /// Bytes of a page.
    /// [default: 8192; on native flash a page of that, if it has 4096]
    #[arg(long, value_parser = page_size)]
    pub page_size: Option<usize>,
    /// MiB of log preallocated. The log grows as it is needed, and shrinks to this again.
    #[arg(long, default_value_t = Layout::default().log_bytes >> 20, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub log_mb: u64,
    /// Directory for the log, to put it on a device of its own.
    #[arg(long, value_name = "DIR")]
    pub log_dir: Option<PathBuf>,
    #[command(flatten)]
    pub devices: tier::TierDevices,
    #[command(flatten)]
    pub array: array::ArrayArgs,
    #[command(flatten)]
    pub flash: flash::FlashArgs,
}

impl LayoutArgs {
    /// The engine's layout, but for a tier.
    pub fn layout(&self) -> Layout {
        let (log_bytes, log_dir) = (self.log_mb << 20, self.log_dir.clone());
        let page_size = self.page_size.unwrap_or(Layout::default().page_size);
        Layout { page_size, log_bytes, log_dir, ..Layout::default() }
    }
}

fn page_size(s: &str) -> Result<usize, String> {
    match s {
        "4096" | "4k" | "4K" => Ok(4096),
        "8192" | "8k" | "8K" => Ok(8192),
        "16384" | "16k" | "16K" => Ok(16384),
        _ => Err("choose 4096, 8192 or 16384".into()),
    }
}

/// How keys and values are written on the command line.
#[derive(Debug, Args, Clone, Copy)]
pub struct Hex {
    /// Keys and values are given, and printed, as hexadecimal digits.
    #[arg(long)]
    pub hex: bool,
}

/// `get`
#[derive(Debug, Args)]
pub struct Get {
    #[command(flatten)]
    pub place: Place,
    /// Keyspace.
    pub keyspace: String,
    /// Key.
    #[arg(allow_negative_numbers = true)]
    pub key: String,
    /// The value as it is, without a newline behind it.
    #[arg(long)]
    pub raw: bool,
    #[command(flatten)]
    pub hex: Hex,
}

/// `put`
#[derive(Debug, Args)]
pub struct Put {
    #[command(flatten)]
    pub place: Place,
    /// Keyspace; made if there is none of that name.
    pub keyspace: String,
    /// Key.
    #[arg(allow_negative_numbers = true)]
    pub key: String,
    /// Value; read from standard input when left out. Up to 1 GiB; in an LSM keyspace up to 32 MiB, and half of what
    /// memtables may take.
    #[arg(allow_negative_numbers = true)]
    pub value: Option<String>,
    #[command(flatten)]
    pub hex: Hex,
}

/// `delete`
#[derive(Debug, Args)]
pub struct Delete {
    #[command(flatten)]
    pub place: Place,
    /// Keyspace.
    pub keyspace: String,
    /// Key.
    #[arg(required_unless_present_any = ["prefix", "range"], allow_negative_numbers = true)]
    pub key: Option<String>,
    /// All keys that begin so.
    #[arg(long, conflicts_with = "key", allow_negative_numbers = true)]
    pub prefix: Option<String>,
    /// All keys from the first on, below the second.
    #[arg(long, num_args = 2, value_names = ["FROM", "TO"], conflicts_with_all = ["key", "prefix"])]
    #[arg(allow_negative_numbers = true)]
    pub range: Option<Vec<String>>,
    #[command(flatten)]
    pub hex: Hex,
}

/// `scan`
#[derive(Debug, Args)]
pub struct Scan {
    #[command(flatten)]
    pub place: Place,
    /// Keyspace.
    pub keyspace: String,
    /// First key (inclusive).
    #[arg(long, allow_negative_numbers = true)]
    pub from: Option<String>,
    /// End of the range (exclusive).
    #[arg(long, allow_negative_numbers = true)]
    pub to: Option<String>,
    /// Only keys that begin so.
    #[arg(long, conflicts_with_all = ["from", "to"], allow_negative_numbers = true)]
    pub prefix: Option<String>,
    /// From the last key to the first.
    #[arg(long)]
    pub reverse: bool,
    /// At most this many.
    #[arg(long)]
    pub limit: Option<u64>,
    /// Print only how many there are.
    #[arg(long)]
    pub count: bool,
    #[command(flatten)]
    pub hex: Hex,
}

/// Input formats of `load`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LoadFormat {
    /// `{"keyspace": .., "key": .., "value": ..}` per line; `key_hex` and `value_hex` for bytes that are not text.
    Jsonl,
    /// Two columns: key, value.
    Csv,
}

/// `load`
#[derive(Debug, Args)]
pub struct Load {
    #[command(flatten)]
    pub place: Place,
    /// Make the database if there is none: the directory must be empty, or not there.
    #[arg(long)]
    pub create: bool,
    /// Keyspace for rows that name none; made if there is none of that name.
    #[arg(long, default_value = "default")]
    pub keyspace: String,
    /// Format of the input.
    #[arg(long, value_enum, default_value_t = LoadFormat::Jsonl)]
    pub format: LoadFormat,
    /// The first CSV line names the columns: key and value, in either order.
    #[arg(long)]
    pub header: bool,
    /// Leave out so many rows of the input: those that an earlier `load` said are in.
    #[arg(long, value_name = "ROWS", default_value_t = 0)]
    pub skip: u64,
    /// Rows per transaction. (Rows in key order into a keyspace without rows are not loaded by transactions: they
    /// appear together, at the end.)
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    pub batch: u64,
    #[command(flatten)]
    pub hex: Hex,
}

/// `dump`
#[derive(Debug, Args)]
pub struct Dump {
    #[command(flatten)]
    pub place: Place,
    /// Only these keyspaces.
    #[arg(long = "keyspace", value_name = "NAME")]
    pub keyspaces: Vec<String>,
}

/// `bench`
#[derive(Debug, Args)]
pub struct Bench {
    /// Which workload.
    #[command(subcommand)]
    pub workload: Workload,
}

/// The workloads.
#[derive(Debug, Subcommand)]
pub enum Workload {
    /// TPC-C: order entry, five transactions over nine tables.
    Tpcc(Tpcc),
    /// YCSB: key-value workloads A to F.
    Ycsb(Ycsb),
    /// The benchmarks of LevelDB's and RocksDB's db_bench, by their names.
    Dbbench(Dbbench),
    /// An Iometer-like load on a directory's device, or on a device profile's model.
    Iomix(crate::probe::IoMix),
}

/// Longest run, in seconds.
const YEAR: u64 = 366 * 86_400;

/// What every workload takes that is run for a time.
#[derive(Debug, Args)]
pub struct Run {
    /// Client threads.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub threads: u64,
    /// Length of the measured run.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=YEAR))]
    pub seconds: u64,
    /// Seconds before measuring begins.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(..=YEAR))]
    pub warmup: u64,
    /// sync, async or none.
    #[arg(long, default_value = "sync")]
    pub durability: Durability,
    /// Seed of the clients' choices.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    #[command(flatten)]
    pub base: Base,
}

/// The database that a workload runs on.
#[derive(Debug, Args)]
pub struct Base {
    /// Directory of the database: none or an empty one, where it is created and loaded, or that of an earlier
    /// benchmark.
    #[arg(long, default_value = "varve-bench")]
    pub dir: PathBuf,
    /// What keyspaces are made of that are loaded: tree, or lsm, with options behind it: lsm,compression=zstd
    /// (docs/lsm.md).
    #[arg(long, value_name = "KIND[,OPTION=VALUE]...", default_value = "tree", value_parser = keyspaces::kind)]
    pub kind: varve::KeyspaceKind,
    /// Record every page reference and flush of the run to this file, for `lab replay`.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Serve the database's metrics at http://HOST:PORT/metrics until the end; port 0 takes any that is free.
    #[arg(long, value_name = "HOST:PORT")]
    pub metrics: Option<Address>,
    #[command(flatten)]
    pub open: Open,
    #[command(flatten)]
    pub pool: Given<Pool>,
    #[command(flatten)]
    pub layout: LayoutArgs,
    #[command(flatten)]
    pub tier: Given<Tier>,
}

/// `bench tpcc`
#[derive(Debug, Args)]
pub struct Tpcc {
    #[command(flatten)]
    pub run: Run,
    /// Warehouses (about 100 MB each).
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub warehouses: u32,
    /// Keying and think times of the specification.
    #[arg(long)]
    pub think: bool,
    /// The read-only variant: updates become reads, inserts and deletes are left out.
    #[arg(long)]
    pub read_only: bool,
    /// Only check the twelve consistency conditions of a loaded database.
    #[arg(long)]
    pub check_only: bool,
    /// Do not check consistency after the run.
    #[arg(long)]
    pub no_check: bool,
}

/// Spread of requests over records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Distribution {
    /// A few records, scattered over all, are asked for often.
    Zipfian,
    /// The records inserted last are asked for most.
    Latest,
    /// All the same.
    Uniform,
}

/// `bench ycsb`
#[derive(Debug, Args)]
pub struct Ycsb {
    #[command(flatten)]
    pub run: Run,
    /// a, b, c, d, e or f.
    #[arg(long, default_value = "a")]
    pub workload: String,
    /// Records loaded.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000_000))]
    pub records: u64,
    /// Fields of a record.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub fields: u32,
    /// Bytes of a field.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub field_bytes: u32,
    /// Longest scan, records.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub max_scan: u32,
    /// Updates write one random field instead of the whole record.
    #[arg(long)]
    pub one_field: bool,
    /// Do not check the records after the run.
    #[arg(long)]
    pub no_check: bool,
    /// Which records are asked for; each workload has its own default.
    #[arg(long, value_enum)]
    pub distribution: Option<Distribution>,
}

/// `bench dbbench`
#[derive(Debug, Args)]
pub struct Dbbench {
    #[command(flatten)]
    pub base: Base,
    /// What is run, one after the other. Those that fill begin with an empty keyspace.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "fillseq,fillrandom,overwrite,readrandom,readseq,readreverse,seekrandom,compact"
    )]
    pub benchmarks: Vec<String>,
    /// Entries: keys are numbers below this, and each thread writes as many.
    #[arg(long, default_value_t = 1_000_000)]
    pub num: u64,
    /// Look-ups, seeks and rows of walks of each thread [default: as many as --num].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub reads: Option<u64>,
    /// Seconds that each benchmark runs, whatever --num and --reads are; 0: until they are done.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=YEAR))]
    pub duration: u64,
    /// Client threads. (readwhilewriting has one more, which writes.)
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub threads: u64,
    /// Bytes of a key.
    #[arg(long, default_value_t = 16)]
    pub key_size: u32,
    /// Bytes of a value.
    #[arg(long, default_value_t = 100)]
    pub value_size: u32,
    /// Entries of a transaction.
    #[arg(long, default_value_t = 1)]
    pub batch_size: u32,
    /// What values compress to, as a share.
    #[arg(long, default_value_t = 0.5)]
    pub compression_ratio: f64,
    /// Rows that seekrandom reads after the first.
    #[arg(long, default_value_t = 0)]
    pub seek_nexts: u32,
    /// sync, async or none. (db_bench does not wait for the disk either, unless it is told to.)
    #[arg(long, default_value = "none")]
    pub durability: Durability,
    /// Seed of keys and values.
    #[arg(long, default_value_t = 301)]
    pub seed: u64,
    /// Print percentiles of the response times below each line.
    #[arg(long)]
    pub histogram: bool,
}
