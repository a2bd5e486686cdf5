//! Arguments of the commands on keyspaces as a whole.

use super::Place;
use clap::Args;

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
