//! Bulk load: a keyspace from rows in key order, at the speed of writing finished pages. New, or in the place of one
//! that is there until then.
//!
//! The keyspace is made hidden, its catalog entry marked as being dropped, and filled by its index's load, whose
//! pages go to the store without the log; then its entry is set, in one group. So it appears with all its rows or not
//! at all: after a crash the next open finishes the drop, and a load that is given up does so itself. Nobody else can
//! reach the tree meanwhile, so there are no locks, and no old values for snapshots: to a snapshot older than the entry
//! the keyspace does not exist.

use super::{Db, Inner, Keyspace};
use crate::error::Result;
use crate::index::{KeyspaceKind, Load};
use crate::txn::{OpenKeyspace, check_value};
use std::sync::Arc;
use varve_rt::{Cost, charge};
use varve_volume::KeyspaceId;

/// How full the leaves become: rows that come later find a little room.
const FILL: f64 = 0.95;

impl Db {
    /// Begins to load a new keyspace with rows in ascending key order, several times faster than transactions would.
    /// Counts as an open transaction until it is finished or dropped.
    ///
    /// # Errors
    /// `AlreadyExists` if there is a keyspace of that name; `Invalid` for a name that cannot be one.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("varve-doc-bulk-{}", std::process::id()));
    /// # let db = varve::Db::open_or_create(&dir, varve::Options::default())?;
    /// let mut load = db.bulk_load("squares")?;
    /// for n in 0..1000u32 {
    ///     load.push(&n.to_be_bytes(), &(n * n).to_le_bytes())?;
    /// }
    /// let squares = load.finish()?;
    /// assert_eq!(squares.get(&12u32.to_be_bytes())?, Some(144u32.to_le_bytes().to_vec()));
    /// # drop(squares); db.close()?; std::fs::remove_dir_all(dir).unwrap();
    /// # Ok::<(), varve::Error>(())
    /// ```
    pub fn bulk_load(&self, name: &str) -> Result<BulkLoad> {
        self.bulk_load_of(name, KeyspaceKind::Tree)
    }

    /// As [`Db::bulk_load`], into a keyspace of a kind.
    pub fn bulk_load_of(&self, name: &str, kind: KeyspaceKind) -> Result<BulkLoad> {
        kind.check()?;
        BulkLoad::begin(&self.inner, |db| db.make_hidden(name, kind).map(|shared| (shared, None)))
    }

    /// Begins to load rows in ascending key order in the place of a keyspace. That one stays as it is, and can be
    /// used, until [`BulkLoad::finish`]: then, in one step, its rows are gone and the new ones are there. The keyspace
    /// keeps its name, its kind and its options, and gets a new number. Old handles of it say `NoSuchKeyspace` from
    /// then on, as after [`Db::drop_keyspace`]; older snapshots go on reading through them what was there.
    /// Counts as an open transaction until it is finished or dropped.
    ///
    /// # Errors
    /// `NoSuchKeyspace`; `KeyspaceReadOnly`.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("varve-doc-replace-{}", std::process::id()));
    /// # let db = varve::Db::open_or_create(&dir, varve::Options::default())?;
    /// let prices = db.create_keyspace("prices")?;
    /// prices.put(b"tea", b"3")?;
    /// let mut load = db.bulk_replace("prices")?;
    /// load.push(b"coffee", b"4")?;
    /// load.push(b"tea", b"5")?;
    /// let prices = load.finish()?;
    /// assert_eq!(prices.get(b"tea")?.as_deref(), Some(&b"5"[..]));
    /// # drop(prices); db.close()?; std::fs::remove_dir_all(dir).unwrap();
    /// # Ok::<(), varve::Error>(())
    /// ```
    pub fn bulk_replace(&self, name: &str) -> Result<BulkLoad> {
        BulkLoad::begin(&self.inner, |db| db.make_hidden_for(name).map(|(shared, old)| (shared, Some(old))))
    }
}

/// A keyspace being filled with rows in ascending key order. Made by [`Db::bulk_load`] and [`Db::bulk_replace`].
///
/// [`BulkLoad::finish`] makes the keyspace and all rows appear at once, durably. Dropped without, nothing of it stays.
/// It uses some 4 MB of memory beside the cache, however much is loaded.
pub struct BulkLoad {
    // In this order: the drop can only be finished when nobody holds the keyspace any more.
    load: Option<Load>,
    shared: Option<Arc<OpenKeyspace>>,
    /// The keyspace in whose place it comes.
    replaces: Option<KeyspaceId>,
    db: Arc<Inner>,
    rows: u64,
}

impl BulkLoad {
    /// Begins to load a hidden keyspace, which `make` makes.
    fn begin(
        db: &Arc<Inner>,
        make: impl FnOnce(&Inner) -> Result<(Arc<OpenKeyspace>, Option<KeyspaceId>)>,
    ) -> Result<BulkLoad> {
        db.txns.live_for_write()?;
        let core = &db.core;
        // Pages that were freed of late cannot be used: rather than let the file grow for want of a checkpoint, make
        // one.
        if let Some(checkpointer) = &db.checkpointer
            && core.space.unripe() > core.space.usage().0 / 8
        {
            checkpointer.checkpoint()?;
        }
        let (shared, replaces) = make(db)?;
        let load = shared.index().load(FILL);
        db.txns.enter();
        Ok(BulkLoad { load: Some(load), shared: Some(shared), replaces, db: db.clone(), rows: 0 })
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
    /// `AlreadyExists` if a keyspace of that name was made meanwhile; of what is to be replaced, `NoSuchKeyspace` if it
    /// was dropped or renamed meanwhile, `KeyspaceReadOnly`; device errors. Nothing of the load stays then; only after
    /// `Poisoned` it is unknown whether it is there when the database is opened again.
    pub fn finish(mut self) -> Result<Keyspace> {
        self.db.txns.live()?;
        self.load.take().expect("there until it is finished or dropped").finish()?;
        let shared = self.shared.clone().expect("there until it is dropped");
        self.db.show(&shared, self.replaces)?;
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
