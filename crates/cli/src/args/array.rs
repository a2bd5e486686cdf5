//! Arguments that concern an array: its drives and layout, and the commands on it.

use super::Place;
use super::tier::FastPart;
use crate::text::size;
use clap::{Args, Subcommand, ValueEnum};

/// How extents are laid over the drives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ArrayLayout {
    /// RAID 0: a unit to each drive in turn.
    Stripe,
    /// Whole extents, to each drive by its share.
    Proportional,
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

/// `array`
#[derive(Debug, Args)]
pub struct Array {
    /// What to do.
    #[command(subcommand)]
    pub command: ArrayCommand,
}

/// The commands on an array.
#[derive(Debug, Subcommand)]
pub enum ArrayCommand {
    /// Show the drives: what lies on each, and what it did since the database was opened.
    Stat(Place),
}
