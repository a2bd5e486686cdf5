//! What a check found.

use crate::error::{Damage, Error};
use varve_volume::{KeyspaceId, PageId};

/// What a check found.
#[derive(Debug, Clone, Default)]
pub struct CheckReport {
    /// Everything that is wrong, each naming its page and keyspace, or its place in the log. Empty when the database
    /// is sound.
    pub damages: Vec<Damage>,
    /// Pages that no device could read (or no frame was free for), so that nothing is known of them. Not damage: the
    /// error says what to do, and a later check may be able to read them.
    pub unreadable: Vec<Unreadable>,
    /// What is in order now and should be known all the same.
    pub warnings: Vec<String>,
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
    /// Log groups read: those that a recovery would need.
    pub log_groups: u64,
}

impl CheckReport {
    /// Whether everything could be read, and nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.damages.is_empty() && self.unreadable.is_empty()
    }

    /// Takes down an error met at a page.
    pub(crate) fn note(&mut self, error: Error, page: PageId, keyspace: KeyspaceId) {
        match error {
            Error::Corrupt(Damage::Page { page, what, keyspace: known, stored }) => {
                self.damages.push(Damage::Page { page, keyspace: known.or(Some(keyspace)), what, stored });
            }
            Error::Corrupt(damage) => self.damages.push(damage),
            error => self.unreadable.push(Unreadable { page, keyspace, error }),
        }
    }
}

/// A page that could not be read.
#[derive(Debug, Clone)]
pub struct Unreadable {
    /// The page.
    pub page: PageId,
    /// The keyspace that it belongs to.
    pub keyspace: KeyspaceId,
    /// Why it could not be read.
    pub error: Error,
}

impl std::fmt::Display for Unreadable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "page {} ({}) could not be read: {}", self.page.0, crate::error::owner(self.keyspace), self.error)
    }
}
