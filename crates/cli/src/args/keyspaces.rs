//! Arguments of the commands on keyspaces as a whole.

use super::Place;
use clap::Args;
use varve::{KeyspaceKind, LsmOptions};

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

/// `tree`, or `lsm` with options behind it.
pub fn kind(text: &str) -> Result<KeyspaceKind, String> {
    let (kind, settings) = text.split_once(',').unwrap_or((text, ""));
    match kind {
        "tree" if settings.is_empty() => Ok(KeyspaceKind::Tree),
        "tree" => Err("a tree has no options".into()),
        "lsm" => {
            let mut options = LsmOptions::default();
            for setting in settings.split(',').filter(|setting| !setting.is_empty()) {
                let (option, value) =
                    setting.split_once('=').ok_or_else(|| format!("{setting:?} is not of the form OPTION=VALUE"))?;
                options.set(option, value).map_err(|e| e.to_string())?;
            }
            options.validate().map_err(|e| e.to_string())?;
            Ok(KeyspaceKind::Lsm(options))
        }
        _ => Err(format!("no kind {kind:?}; there are tree and lsm")),
    }
}
