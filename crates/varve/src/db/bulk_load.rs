//! Bulk load: a new keyspace from rows in key order, at the speed of writing finished pages.
//!
//! The keyspace is made hidden, its catalog entry marked as being dropped, and filled by its index's load, whose
//! pages go to the store without the log; then its entry is set, in one group. So it appears with all its rows or not
//! at all: after a crash the next open finishes the drop, and a load that is given up does so itself. Nobody else can
//! reach the tree meanwhile, so there are no locks, and no old values for snapshots: to a snapshot older than the entry
//! the keyspace does not exist.

use super::{Inner, Keyspace};
use crate::error::Result;
use crate::index::{KeyspaceKind, Load};
use crate::txn::{OpenKeyspace, check_value};
use std::sync::Arc;
use varve_rt::{Cost, charge};

/// How full the leaves become: rows that come later find a little room.
const FILL: f64 = 0.95;

/// A new keyspace being filled with rows in ascending key order. Made by [`Db::bulk_load`](crate::Db::bulk_load).
///
/// [`BulkLoad::finish`] makes the keyspace and all rows appear at once, durably. Dropped without, nothing of it stays.
/// It uses some 4 MB of memory beside the cache, however much is loaded.
pub struct BulkLoad {
    // In this order: the drop can only be finished when nobody holds the keyspace any more.
    load: Option<Load>,
    shared: Option<Arc<OpenKeyspace>>,
    db: Arc<Inner>,
    rows: u64,
}

impl BulkLoad {
    /// Begins to load a keyspace of this name.
    pub(super) fn begin(db: &Arc<Inner>, name: &str, kind: KeyspaceKind) -> Result<BulkLoad> {
        db.txns.live_for_write()?;
        let core = &db.core;
        // Pages that were freed of late cannot be used: rather than let the file grow for want of a checkpoint, make
        // one.
        if let Some(checkpointer) = &db.checkpointer
            && core.space.unripe() > core.space.usage().0 / 8
        {
            checkpointer.checkpoint()?;
        }
        let shared = db.make_hidden(name, kind)?;
        let load = shared.index().load(FILL);
        db.txns.enter();
        Ok(BulkLoad { load: Some(load), shared: Some(shared), db: db.clone(), rows: 0 })
    }

    fn load(&mut self) -> &mut Load {
        self.load.as_mut().expect("there until it is finished or dropped")
    }

    /// Takes the next row.
    ///
    /// # Errors
    /// `Invalid` when the key is not above the one before; `KeySize`, `ValueSize`: the row is not taken, and the load
    /// can go on. After a device error, or `Closed`, it cannot.
    pub fn push(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.db.txns.live()?;
        check_value(value)?;
        charge(Cost::TxnCall, 1);
        self.load().push(key, value)?;
        self.rows += 1;
        Ok(())
    }

    /// Rows taken so far.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Makes the keyspace appear with its rows; returns when that is durable.
    ///
    /// # Errors
    /// `AlreadyExists` if a keyspace of that name was made meanwhile; device errors. Nothing of the load stays then;
    /// only after `Poisoned` it is unknown whether it is there when the database is opened again.
    pub fn finish(mut self) -> Result<Keyspace> {
        self.db.txns.live()?;
        self.load.take().expect("there until it is finished or dropped").finish()?;
        let shared = self.shared.clone().expect("there until it is dropped");
        self.db.show(&shared)?;
        Ok(Keyspace { shared, db: self.db.clone() })
    }
}

impl Drop for BulkLoad {
    fn drop(&mut self) {
        if varve_rt::dying() {
            return;
        }
        self.load = None;
        self.shared = None;
        if self.db.txns.live().is_ok() {
            // What cannot be given back now is given back when the database is closed or opened.
            let _ = self.db.registry.finish_drops(&self.db.core);
        }
        self.db.txns.leave();
    }
}

impl std::fmt::Debug for BulkLoad {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BulkLoad").field("rows", &self.rows).finish_non_exhaustive()
    }
}
