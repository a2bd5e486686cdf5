//! Arguments that concern an array: its drives and layout, and the commands on it.

use super::tier::{FastPart, TierOpen};
use super::{Open, Place};
use crate::text::size;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

/// How extents are laid over the drives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ArrayLayout {
    /// RAID 0: a unit to each drive in turn.
    Stripe,
    /// Whole extents, to each drive by its share.
    Proportional,
    /// The same, to be moved by plans: what is only read to drives that only read (`varve array plan`).
    Rodi,
}

/// The drives of a new database.
#[derive(Debug, Args, Clone)]
pub struct ArrayArgs {
    /// A drive of an array for the pages; give two or more. A file, a folder for one, or a block device. Only of a
    /// block device, or a file that is there, may the size be left out.
    #[arg(long = "drive", value_name = "PATH[:SIZE]", help_heading = "Array", conflicts_with = "slow")]
    pub drives: Vec<FastPart>,
    /// How the drives share the pages [default: stripe].
    #[arg(long, value_enum, help_heading = "Array", requires = "drives")]
    pub array: Option<ArrayLayout>,
    /// Bytes of an extent, 2M to 64M [default: 8M].
    #[arg(long, value_name = "BYTES", value_parser = size, help_heading = "Array", requires = "drives")]
    pub extent: Option<u64>,
    /// Bytes of a stripe that go to one drive before the next has its turn, 64K to 8M [default: 1M].
    #[arg(long, value_name = "BYTES", value_parser = size, help_heading = "Array", requires = "drives")]
    pub unit: Option<u64>,
    /// What each drive gets of the extents, such as the MB/s that `varve probe` measures: one number for each drive.
    #[arg(long, value_name = "N,N,..", value_delimiter = ',', help_heading = "Array", requires = "drives")]
    pub shares: Vec<f64>,
}

/// `read-only`
#[derive(Debug, Args)]
pub struct ReadOnly {
    #[command(flatten)]
    pub place: Place,
    /// Name of the keyspace.
    pub keyspace: String,
    /// Let it be changed again.
    #[arg(long)]
    pub undo: bool,
}

/// `array`
#[derive(Debug, Args)]
pub struct Array {
    /// What to do.
    #[command(subcommand)]
    pub command: ArrayCommand,
}

/// The commands on an array. But for `pause` and `plan --trace`, each opens the database by itself, so no other process
/// may have it open; a program that has it open does the same by calls of `varve::Db`.
#[derive(Debug, Subcommand)]
pub enum ArrayCommand {
    /// Show the drives: what lies on each, and what it did since the database was opened.
    Stat(Place),
    /// Say where the extents should lie, and what that brings: of a database, by what was asked of it lately, or of a
    /// trace, without one.
    Plan(Box<Plan>),
    /// Plan, and move the extents; the database is open to this command alone until all have moved. Killed, it loses
    /// nothing: run it again.
    Apply(Apply),
    /// Have an `apply`, `drain` or `replace` that runs in another process move nothing for now.
    Pause(Pause),
    /// Change settings that stay with the database, and give the curves of its drives.
    Set(Box<Set>),
    /// Take a drive in.
    Add(Add),
    /// Move all extents of a drive to the others, and go without it. Killed, it loses nothing: run it again.
    Drain(Drain),
    /// Take a drive in, and move all extents of another one there. Killed, it loses nothing: drain the old one then.
    Replace(Replace),
}

/// `array plan`
#[derive(Debug, Args)]
pub struct Plan {
    /// Directory of the database.
    #[arg(required_unless_present = "trace", conflicts_with_all = ["trace", "drives"])]
    pub dir: Option<PathBuf>,
    /// What the drives give, in their order: files of `varve probe --save`, or names of profiles [default: what `array
    /// set` was given].
    #[arg(long, value_delimiter = ',', value_name = "FILE,..")]
    pub curves: Vec<String>,
    /// Drives of an array that is not there: files of `varve probe --save`, or names of profiles.
    #[arg(long, value_delimiter = ',', value_name = "FILE,..", requires = "trace")]
    pub drives: Vec<String>,
    /// A trace of requests to a block device; what it reads and never writes counts as only read.
    #[arg(long, value_name = "FILE", requires = "drives")]
    pub trace: Option<PathBuf>,
    /// Bytes of an extent, with --trace [default: 8M].
    #[arg(long, value_name = "BYTES", value_parser = size, requires = "trace")]
    pub extent: Option<u64>,
    #[command(flatten)]
    pub open: Open,
    #[command(flatten)]
    pub tier: TierOpen,
}

/// `array apply`
#[derive(Debug, Args)]
pub struct Apply {
    #[command(flatten)]
    pub place: Place,
    /// As for `array plan`.
    #[arg(long, value_delimiter = ',', value_name = "FILE,..")]
    pub curves: Vec<String>,
}

/// `array pause`
#[derive(Debug, Args)]
pub struct Pause {
    /// Directory of the database; another process may have it open.
    pub dir: PathBuf,
    /// Go on.
    #[arg(long)]
    pub resume: bool,
}

/// `array set`
#[derive(Debug, Args)]
pub struct Set {
    #[command(flatten)]
    pub place: Place,
    /// What the drives give, in their order: files of `varve probe --save`, or names of profiles.
    #[arg(long, value_delimiter = ',', value_name = "FILE,..")]
    pub curves: Vec<String>,
    /// Most bytes that are copied in a second, such as 50M.
    #[arg(long, value_name = "SIZE")]
    pub rate: Option<String>,
    /// Within this time no plan moves an extent twice, such as 10min.
    #[arg(long, value_name = "TIME")]
    pub window: Option<String>,
    /// How often a plan is made and applied unasked while a command has the database open, such as 10min, or none.
    #[arg(long, value_name = "TIME")]
    pub replan: Option<String>,
    /// The least gain for which extents move, as a share of the throughput.
    #[arg(long, value_name = "N")]
    pub least_gain: Option<String>,
    /// Seconds without a write after which an extent may count as only read.
    #[arg(long, value_name = "N")]
    pub quiet_for: Option<String>,
    /// Seconds in which counts of requests halve.
    #[arg(long, value_name = "N")]
    pub half_life: Option<String>,
}

/// `array add`
#[derive(Debug, Args)]
pub struct Add {
    #[command(flatten)]
    pub place: Place,
    /// A file, a folder for one, or a block device.
    #[arg(value_name = "PATH[:SIZE]")]
    pub drive: FastPart,
    /// Its share of new extents, beside those of the others [default: their mean].
    #[arg(long, value_name = "N")]
    pub share: Option<f64>,
    /// What it gives: a file of `varve probe --save`, or the name of a profile.
    #[arg(long, value_name = "FILE")]
    pub curve: Option<String>,
    /// Measure what it gives, for half a minute or so, in the folder where it is.
    #[arg(long, conflicts_with = "curve")]
    pub measure: bool,
    /// Take it even if it holds something already: that is lost.
    #[arg(long)]
    pub overwrite: bool,
}

/// `array drain`
#[derive(Debug, Args)]
pub struct Drain {
    #[command(flatten)]
    pub place: Place,
    /// Number of the drive.
    pub drive: usize,
}

/// `array replace`
#[derive(Debug, Args)]
pub struct Replace {
    #[command(flatten)]
    pub place: Place,
    /// Number of the drive that goes.
    pub drive: usize,
    /// The drive that comes: a file, a folder for one, or a block device.
    #[arg(value_name = "PATH[:SIZE]")]
    pub by: FastPart,
    /// What it gives: a file of `varve probe --save`, or the name of a profile.
    #[arg(long, value_name = "FILE")]
    pub curve: Option<String>,
    /// Take it even if it holds something already: that is lost.
    #[arg(long)]
    pub overwrite: bool,
}
