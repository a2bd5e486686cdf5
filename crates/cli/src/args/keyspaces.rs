//! Arguments of the commands on keyspaces as a whole.

use super::{Hex, Place};
use clap::{Args, Subcommand};
use varve::{KeyspaceKind, LSM_OPTIONS, LsmOptions};

/// `clear`, `drop`
#[derive(Debug, Args)]
pub struct OneKeyspace {
    #[command(flatten)]
    pub place: Place,
    /// Keyspace.
    pub keyspace: String,
}

/// `rename`
#[derive(Debug, Args)]
pub struct Rename {
    #[command(flatten)]
    pub place: Place,
    /// Keyspace.
    pub keyspace: String,
    /// Its new name.
    pub name: String,
}

/// `compact`
#[derive(Debug, Args)]
pub struct Compact {
    #[command(flatten)]
    pub place: Place,
    /// Merge this LSM keyspace instead: what is in it goes down to its lowest level.
    #[arg(long, value_name = "NAME")]
    pub keyspace: Option<String>,
    /// Only from this level to the next: 0 to 5.
    #[arg(long, value_name = "N", requires = "keyspace")]
    pub level: Option<u8>,
    /// First key (inclusive).
    #[arg(long, requires = "keyspace", allow_negative_numbers = true)]
    pub from: Option<String>,
    /// End of the range (exclusive).
    #[arg(long, requires = "keyspace", allow_negative_numbers = true)]
    pub to: Option<String>,
    #[command(flatten)]
    pub hex: Hex,
}

/// `tree`, or `lsm` with options behind it.
pub fn kind(text: &str) -> Result<KeyspaceKind, String> {
    let (kind, settings) = text.split_once(',').unwrap_or((text, ""));
    match kind {
        "tree" if settings.is_empty() => Ok(KeyspaceKind::Tree),
        "tree" => Err("a tree has no options".into()),
        "lsm" => {
            let (mut options, mut named) = (LsmOptions::default(), Vec::new());
            for setting in settings.split(',').filter(|setting| !setting.is_empty()) {
                let (option, value) =
                    setting.split_once('=').ok_or_else(|| format!("{setting:?} is not of the form OPTION=VALUE"))?;
                options.set(option, value).map_err(|e| e.to_string())?;
                if named.contains(&option) {
                    return Err(format!("{option} is given twice"));
                }
                named.push(option);
            }
            options.validate().map_err(|e| e.to_string())?;
            Ok(KeyspaceKind::Lsm(options))
        }
        _ => Err(format!("no kind {kind:?}; there are tree and lsm")),
    }
}

/// A keyspace's kind, with the options that are not at their defaults, as [`kind`] takes it.
pub fn kind_text(kind: KeyspaceKind) -> String {
    match kind {
        KeyspaceKind::Tree => "tree".into(),
        KeyspaceKind::Lsm(options) => {
            let chosen = LSM_OPTIONS.text(&options);
            if chosen.is_empty() { "lsm".into() } else { format!("lsm,{chosen}") }
        }
    }
}

/// `keyspace`
#[derive(Debug, Args)]
pub struct Keyspace {
    #[command(subcommand)]
    pub command: KeyspaceCommand,
}

/// The commands on one keyspace.
#[derive(Debug, Subcommand)]
pub enum KeyspaceCommand {
    /// Make a keyspace: a tree, or an LSM keyspace with options.
    Create(CreateKeyspace),
    /// Change options of an LSM keyspace. Segments that are written from then on have them; what there is stays.
    Set(SetKeyspace),
    /// Show its kind, its options, and of an LSM keyspace its levels.
    Info(OneKeyspace),
}

/// `keyspace create`
#[derive(Debug, Args)]
pub struct CreateKeyspace {
    #[command(flatten)]
    pub place: Place,
    /// Its name.
    pub keyspace: String,
    /// What it is made of: tree, or lsm, with options behind it: lsm,compression=zstd (docs/lsm.md).
    #[arg(long, value_name = "KIND[,OPTION=VALUE]...", default_value = "tree", value_parser = kind)]
    pub kind: KeyspaceKind,
}

/// `keyspace set`
#[derive(Debug, Args)]
pub struct SetKeyspace {
    #[command(flatten)]
    pub place: Place,
    /// Keyspace.
    pub keyspace: String,
    /// What is to be changed.
    #[arg(required = true, value_name = "OPTION=VALUE")]
    pub options: Vec<String>,
}
