//! Commits that were decided and applied in part (`txn::large`). Their stored writes go before what pages hold: all
//! that such a commit wrote stays locked until it is applied, so nobody wrote there later.
//!
//! That is so where all of the log could be read and no page is of another time. Otherwise the commit may have ended
//! long ago, and rows in pages may be newer than what it wrote: then the pages alone count.

use super::{Names, Rows, SalvageReport, View};
use crate::db::catalog::CATALOG;
use crate::error::Result;
use crate::rows::{NewValue, OverflowRef, ValueRef};
use crate::txn::Decoder;
use varve_rt::HashSet;
use varve_volume::KeyspaceId;

/// Takes the writes of a commit one by one.
type EachWrite<'a> = dyn FnMut(KeyspaceId, &[u8], Option<NewValue<'_>>) -> Result<()> + 'a;

/// Those whose writes are whole.
pub(super) struct Decided {
    commits: Vec<OverflowRef>,
    /// Keyspace and key of all that they wrote.
    paths: HashSet<Vec<u8>>,
}

fn path(keyspace: KeyspaceId, key: &[u8]) -> Vec<u8> {
    [&keyspace.0.to_be_bytes()[..], key].concat()
}

impl Decided {
    /// Whether one of them put or deleted a key.
    pub fn wrote(&self, keyspace: KeyspaceId, key: &[u8]) -> bool {
        !self.paths.is_empty() && self.paths.contains(&path(keyspace, key))
    }
}

impl View {
    /// The commits that the catalog names; those whose writes are whole, if all pages are `current`.
    pub(super) fn decided(&self, names: &Names, current: bool, report: &mut SalvageReport) -> Result<Decided> {
        let mut decided = Decided { commits: Vec::new(), paths: HashSet::default() };
        let mut lost = 0;
        for writes in names.unfinished.values() {
            let mut paths = Vec::new();
            let mut each = |keyspace, key: &[u8], _: Option<NewValue<'_>>| {
                paths.push(path(keyspace, key));
                Ok(())
            };
            if current && self.writes(writes, &mut each)? {
                decided.commits.push(*writes);
                decided.paths.extend(paths);
            } else {
                lost += 1;
            }
        }
        if lost > 0 {
            report.notes.push(format!(
                "commits that had been decided and were applied in part: {lost}, and what they wrote cannot be read, \
                 or not told from what was written later; some of their rows are here as they were before. If the \
                 database can still be opened, opening it finishes them"
            ));
        }
        report.finished = decided.commits.len() as u64;
        Ok(decided)
    }

    /// Hands the writes of a commit to `each`; whether all of them could be read.
    fn writes(&self, stored: &OverflowRef, each: &mut EachWrite<'_>) -> Result<bool> {
        let mut decoder = Decoder::default();
        let whole = self.parts(CATALOG, stored, &mut |part| {
            decoder.room().extend_from_slice(part);
            decoder.each(each)
        })?;
        Ok(whole && decoder.is_empty())
    }
}

impl Rows<'_> {
    /// Gives what those commits put.
    pub(super) fn of_decided(&mut self) -> Result<()> {
        let view = self.view;
        for stored in std::mem::take(&mut self.decided.commits) {
            view.writes(&stored, &mut |keyspace, key, value| {
                let (Some(name), Some(value)) = (self.names.of(keyspace), value) else { return Ok(()) };
                let value = match value {
                    NewValue::Bytes(bytes) => ValueRef::Inline(bytes),
                    NewValue::Stored(long) => ValueRef::Overflow(long),
                };
                self.give(&name, keyspace, key, value)
            })?;
        }
        Ok(())
    }
}
