//! Arguments that concern a tier: its devices and settings, what opening commands take, and the commands on it.

use super::worker::KeyArgs;
use super::{Open, Place};
use crate::table_args::{self, Given};
use crate::text::size;
use clap::{Args, Subcommand};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// A fast device as given: `PATH` or `PATH:SIZE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FastPart {
    /// A file, a folder for one, or a block device.
    pub path: PathBuf,
    /// Bytes to use of it.
    pub bytes: Option<u64>,
}

impl FromStr for FastPart {
    type Err = String;

    /// What follows the last colon is the size if it reads as one; names of devices may have colons.
    fn from_str(text: &str) -> Result<FastPart, String> {
        match text.rsplit_once(':').map(|(path, bytes)| (path, size(bytes))) {
            Some((path, Ok(bytes))) if !path.is_empty() => Ok(FastPart { path: path.into(), bytes: Some(bytes) }),
            Some((path, Err(why))) if looks_like_size(&text[path.len() + 1..]) && !Path::new(text).exists() => Err(why),
            _ if text.is_empty() => Err("give a path, and a size after a colon".into()),
            _ => Ok(FastPart { path: text.into(), bytes: None }),
        }
    }
}

/// Whether somebody who wrote this meant a size.
fn looks_like_size(text: &str) -> bool {
    let digits = text.trim_end_matches(|c: char| "kKmMgGtT".contains(c));
    digits.len() + 1 >= text.len() && !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())
}

fn manager(text: &str) -> Result<String, String> {
    let names = varve::tier_managers();
    if names.contains(&text) { Ok(text.into()) } else { Err(format!("choose {}", names.join(", "))) }
}

/// The devices of a new database.
#[derive(Debug, Args, Clone)]
pub struct TierDevices {
    /// Home of the pages: a file, a folder for one, or a block device [default: a file in the database's directory].
    #[arg(long, value_name = "PATH", help_heading = "Tier")]
    pub slow: Option<PathBuf>,
    /// Home of the pages: `remote:HOST:PORT`, a worker there (docs/near.md), or a path, as --slow.
    #[arg(long, value_name = "PATH|remote:HOST:PORT", conflicts_with_all = ["slow", "drives"])]
    pub data: Option<String>,
    #[command(flatten)]
    pub keys: KeyArgs,
    /// Fast device over it: a file, a folder for one, or a block device. Only of a block device, or a file that is
    /// there, may the size be left out.
    #[arg(long, value_name = "PATH[:SIZE]", help_heading = "Tier")]
    pub fast: Option<FastPart>,
    /// Use files and block devices that hold something already: it is lost.
    #[arg(long, help_heading = "Tier")]
    pub overwrite: bool,
}

/// What commands that open a database take.
#[derive(Debug, Args, Clone)]
pub struct TierOpen {
    /// Manager of the tier for this time, instead of the database's own (`varve tier set` changes that).
    #[arg(long, value_name = "NAME", value_parser = manager, help_heading = "Tier")]
    pub manager: Option<String>,
    /// Open without the tier's fast device, where nothing is lost with it. Commands that write end the tier by that.
    #[arg(long, help_heading = "Tier", conflicts_with = "manager")]
    pub without_tier: bool,
    /// Read what does not lie on drives of the array that are missing. Nothing can be written.
    #[arg(long, help_heading = "Array")]
    pub without_drive: bool,
}

/// `tier`
#[derive(Debug, Args)]
pub struct Tier {
    /// What to do.
    #[command(subcommand)]
    pub command: TierCommand,
}

/// The commands on a tier.
#[derive(Debug, Subcommand)]
pub enum TierCommand {
    /// Show what the fast device holds, what it did, and how it wears.
    Stat(Place),
    /// Make the fast part larger or smaller.
    Resize(Resize),
    /// Copy home what only the fast device has.
    Flush(Place),
    /// Change the manager and other settings.
    Set(Set),
    /// Copy everything home and give the fast device up; a file is removed.
    Detach(Detach),
    /// Put a fast device to use for a database that has none.
    Attach(Attach),
}

/// `tier resize`
#[derive(Debug, Args)]
pub struct Resize {
    #[command(flatten)]
    pub place: Place,
    /// New size of the fast part: bytes, or with K, M, G or T.
    #[arg(value_parser = size)]
    pub size: u64,
}

/// `tier set`
#[derive(Debug, Args)]
pub struct Set {
    /// Directory of the database.
    pub dir: PathBuf,
    #[command(flatten)]
    pub open: Open,
    #[command(flatten)]
    pub tier: Given<table_args::Tier>,
}

/// `tier detach`
#[derive(Debug, Args)]
pub struct Detach {
    /// Directory of the database.
    pub dir: PathBuf,
    /// The fast device is lost: go on without it, where nothing is lost with it.
    #[arg(long)]
    pub without_tier: bool,
    #[command(flatten)]
    pub open: Open,
}

/// `tier attach`
#[derive(Debug, Args)]
pub struct Attach {
    /// Directory of the database.
    pub dir: PathBuf,
    /// A file, a folder for one, or a block device, and the bytes to use of it.
    #[arg(value_name = "PATH[:SIZE]")]
    pub fast: FastPart,
    /// Use a file or block device that holds something already: it is lost.
    #[arg(long)]
    pub overwrite: bool,
    #[command(flatten)]
    pub open: Open,
    #[command(flatten)]
    pub tier: Given<table_args::Tier>,
}
