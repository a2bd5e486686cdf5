//! `Db::check`: every page, every tree, every bit of the space map, against each other.

use crate::error::Damage;

/// What a check found.
#[derive(Debug, Clone, Default)]
pub struct CheckReport {
    /// Everything that is wrong, each naming its page and keyspace. Empty when the database is sound.
    pub damages: Vec<Damage>,
    /// Pages read.
    pub pages: u64,
    /// Pages allocated to keyspaces, the catalog and the space map.
    pub allocated_pages: u64,
    /// Pages that hold nothing; their content is not checked.
    pub free_pages: u64,
    /// Keyspaces read, the catalog not counted.
    pub keyspaces: u64,
    /// Keys seen.
    pub keys: u64,
}

impl CheckReport {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.damages.is_empty()
    }
}
