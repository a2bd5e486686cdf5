//! What a database is worth without some drives of its array: which keyspaces lie elsewhere as a whole.
//!
//! Pages are asked for by their numbers alone: of a tree the inner nodes are read, and a leaf is lost if its place is.
//!
//! Invariant: a keyspace is called whole only if the place of each of its pages is known.

use super::options::Options;
use super::{Db, open};
use crate::error::{Error, Result};
use std::path::Path;
use varve_volume::PageId;

/// What is left of a keyspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyspaceLeft {
    /// Its name.
    pub name: String,
    /// Pages of it that lie on drives that are missing; none: not known, since inner nodes are among them.
    pub lost: Option<u64>,
}

impl Db {
    /// What is left of each keyspace, of a database that was opened without some of its drives.
    pub fn keyspaces_left(&self) -> Result<Vec<KeyspaceLeft>> {
        self.inner.txns.live()?;
        let (Some(array), missing) = (&self.inner.devices.array, self.missing_drives()) else { return Ok(Vec::new()) };
        let (map, size) = (array.map(), self.inner.core.page_size() as u64);
        let is_lost = |id: PageId| {
            let there = (id.0 + 1) * size <= map.room();
            !there || map.pieces(id.0 * size, size).any(|piece| missing.contains(&piece.drive))
        };
        let of = |shared: std::sync::Arc<crate::txn::OpenKeyspace>| {
            let mut lost = 0;
            let walked = shared.index().each_page(false, &mut |id| lost += u64::from(is_lost(id)));
            KeyspaceLeft { name: shared.name().to_string(), lost: walked.is_ok().then_some(lost) }
        };
        Ok(self.inner.registry.live().into_iter().map(of).collect())
    }
}

/// To an opening that fails because a drive is missing, adds which keyspaces are whole, as far as that can be known.
pub(super) fn explain(dir: &Path, options: &Options, e: Error) -> Error {
    let Error::DriveMissing(what) = e else { return e };
    if options.without_drive {
        return Error::DriveMissing(what);
    }
    let options = Options { read_only: true, without_drive: true, ..options.clone() };
    let left = open::open_dir(dir, options).and_then(|db| {
        let left = db.keyspaces_left();
        db.close().and(left)
    });
    Error::DriveMissing(format!("{what}; {}", tell(left)))
}

fn tell(left: Result<Vec<KeyspaceLeft>>) -> String {
    let left = match left {
        Ok(left) => left,
        Err(e) => return format!("what it held cannot be known ({e})"),
    };
    let names = |of: &dyn Fn(&KeyspaceLeft) -> bool| {
        let names: Vec<&str> = left.iter().filter(|k| of(k)).map(|k| k.name.as_str()).collect();
        if names.is_empty() { "none".to_string() } else { names.join(", ") }
    };
    format!(
        "keyspaces with pages on it: {}; whole: {} (of long values nothing is known); `--without-drive` reads what is \
        left",
        names(&|k| k.lost != Some(0)),
        names(&|k| k.lost == Some(0))
    )
}
