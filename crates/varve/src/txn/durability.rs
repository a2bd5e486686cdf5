//! What a commit waits for.

use crate::error::{Error, Result};
use varve_volume::setting::Plain;

/// When a commit counts as done. What is not durable yet is lost when the process is killed, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum Durability {
    /// When it would survive a power cut. The default.
    #[default]
    Sync,
    /// At once; it survives a power cut after at most [`Options::async_delay`](crate::Options::async_delay).
    Async,
    /// At once; it survives a power cut when something else made the log durable.
    None,
}

impl std::fmt::Display for Durability {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Durability::Sync => "sync",
            Durability::Async => "async",
            Durability::None => "none",
        })
    }
}

impl Plain for Durability {}

impl std::str::FromStr for Durability {
    type Err = Error;

    fn from_str(s: &str) -> Result<Durability> {
        match s {
            "sync" => Ok(Durability::Sync),
            "async" => Ok(Durability::Async),
            "none" => Ok(Durability::None),
            other => Err(Error::Invalid(format!("durability {other:?}: choose sync, async or none"))),
        }
    }
}
