//! The indexes of an open database, together.
//!
//! Invariant: an index is listed from before anything is written to it or redone in it until its pages are free.

use super::{Index, Moments};
use crate::error::Result;
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

    /// Recovery found what an index remembers without a page; `group` is start and end of its group in the log.
    pub fn replay(&self, group: (Lsn, Lsn), keyspace: KeyspaceId, bytes: &[u8]) -> Result<()> {
        self.lsm.replay(group, keyspace, bytes)
    }

    /// The database is open: background work begins. `moments` knows which moments open snapshots are of.
    pub fn begin(&self, core: &Core, moments: Arc<dyn Moments>) -> Result<()> {
        self.lsm.set_moments(moments);
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
