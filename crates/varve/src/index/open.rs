//! The indexes of an open database, together.
//!
//! Invariant: an index is listed from before anything is written to it or redone in it until its pages are free.

use super::{FoundGroups, Index, KeyspaceKind, MergeBy, Moments, NearHost, NearStats};
use crate::error::{Error, Result};
use crate::lsm;
use crate::space::Core;
use crate::wal::checkpoint::LogNeeds;
use std::sync::Arc;
use varve_rt::Mutex;
use varve_volume::{KeyspaceId, Lsn};

/// The indexes of an open database, for its checkpoints, and what those of a kind share.
#[derive(Default)]
pub(crate) struct Indexes {
    /// Held for a moment; no other lock is taken under it.
    open: Mutex<Vec<Index>>,
    /// Somebody near the data can do parts of merges, whether or not it is asked to.
    worker: bool,
    pub(super) lsm: Arc<lsm::Services>,
}

impl Indexes {
    /// One more, before anything is written to it or redone in it.
    pub fn add(&self, index: &Index) {
        self.open.lock().push(index.clone());
    }

    /// One is gone, and its pages are free.
    pub fn remove(&self, keyspace: KeyspaceId) {
        self.open.lock().retain(|index| index.keyspace() != keyspace);
    }

    /// Nothing is written, in the background neither.
    pub fn set_read_only(&self) {
        self.lsm.set_read_only();
    }

    /// Of a database that has, or has not, somebody who does parts of merges near the data; `worker`: there is one, but
    /// it may be that nothing is merged.
    pub fn with_near(near: Option<NearHost>, worker: bool) -> Indexes {
        assert!(worker || near.is_none(), "who does something is there");
        let indexes = Indexes { worker, ..Indexes::default() };
        near.into_iter().for_each(|near| indexes.lsm.set_near(near));
        indexes
    }

    /// What that came to; none: nobody does.
    pub fn near_stats(&self) -> Option<NearStats> {
        self.lsm.near().map(|near| near.stats())
    }

    /// How a keyspace of this kind is to be merged, if that needs a worker and the database has none.
    pub fn without_worker(&self, kind: KeyspaceKind) -> Option<MergeBy> {
        kind.merges_near().filter(|_| !self.worker)
    }

    /// Fails for a kind of keyspace that needs a worker, where there is none.
    pub fn refuse_without_worker(&self, kind: KeyspaceKind) -> Result<()> {
        match kind.merges_near().filter(|_| self.lsm.near().is_none()) {
            None => Ok(()),
            Some(merge) => Err(Error::Invalid(format!(
                "merge={} needs a worker near the data, and the database has none: choose sequential or pcp",
                merge.name()
            ))),
        }
    }

    /// Recovery found what an index remembers without a page; `group` is start and end of its group in the log.
    pub fn replay(&self, group: (Lsn, Lsn), keyspace: KeyspaceId, bytes: &[u8]) -> Result<()> {
        self.lsm.replay(group, keyspace, bytes)
    }

    /// Takes what was replayed and no index has taken up, by the groups of the log that it was in.
    pub fn take_replayed(&self) -> FoundGroups {
        self.lsm.take_found()
    }

    /// The database is open: background work begins. `moments` knows which moments open snapshots are of.
    pub fn begin(&self, core: &Core, moments: Arc<dyn Moments>) -> Result<()> {
        self.lsm.set_moments(moments);
        // Of keyspaces that are gone.
        drop(self.take_replayed());
        self.start(core)
    }

    /// Starts what indexes need in the background, if there are such.
    pub fn start(&self, core: &Core) -> Result<()> {
        self.lsm.start(core.log.health())
    }

    /// Writes what is in memory alone into pages, and returns when nothing is left to be tidied in the background.
    pub fn wait_for_merges(&self) -> Result<()> {
        self.lsm.wait_for_merges()
    }

    /// Tells background threads to end; waits for none.
    pub fn end(&self) {
        self.lsm.end();
    }

    /// Ends background threads and waits for them.
    pub fn stop(&self) {
        self.lsm.stop();
    }

    /// Puts what is in memory alone, of changes before `lsn`, into pages.
    pub fn write_older_than(&self, lsn: Lsn) -> Result<()> {
        self.lsm.flush_older_than(lsn)
    }
}

impl LogNeeds for Indexes {
    fn settle(&self, t: Lsn) -> Result<()> {
        self.write_older_than(t)
    }

    fn oldest_lsn_needed(&self) -> Option<Lsn> {
        self.open.lock().iter().filter_map(Index::oldest_lsn_needed).min()
    }
}
