//! Compaction: pages that are far from full are merged, what lies at the end of the store moves to free places before
//! it, then the store is cut.
//!
//! Pages of an index move by groups of their own (`btree::relocate`), roots together with the catalog's entry, long
//! values as if they were written again by a transaction, so that locks, snapshots and log see nothing new. Work goes
//! on meanwhile; what it puts at the end of the store stays there, and the store is cut behind it.

use super::catalog::CATALOG;
use super::{Db, Durability, Keyspace};
use crate::error::{Error, Result};
use crate::rows::{FarValue, overflow};
use crate::txn::{OpenKeyspace, TxOptions};
use std::sync::Arc;
use varve_volume::{Lsn, PageId};

/// Times that everything is gone through: what moved makes room for what did not fit before.
const PASSES: usize = 4;

/// Values up to this length are written again through the log, longer ones to ripe pages without it, if there are
/// enough.
const LOGGED: u64 = 1 << 20;

/// What [`Db::compact`] did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CompactReport {
    /// Pages of the data device before.
    pub pages_before: u64,
    /// Pages of it now.
    pub pages: u64,
    /// Pages that went because what they held fitted into their neighbours.
    pub merged: u64,
    /// Pages moved.
    pub moved: u64,
    /// Of the pages there are now, those that hold nothing.
    pub free: u64,
    /// Long values that stayed where they are because a snapshot was open, or because too little is free before them
    /// and they are too long for a transaction.
    pub values_left: u64,
}

pub(super) fn run(db: &Db) -> Result<CompactReport> {
    let inner = &db.inner;
    inner.txns.live_for_write()?;
    if let Some(why) = inner.volume.admin.why_uncut() {
        return Err(Error::Invalid(why.into()));
    }
    inner.core.space.check_wear(CATALOG)?;
    let _entered = inner.txns.stay()?;
    let _alone = inner.walking.lock();
    Compaction { db, report: CompactReport::default() }.run()
}

struct Compaction<'d> {
    db: &'d Db,
    report: CompactReport,
}

impl Compaction<'_> {
    fn run(mut self) -> Result<CompactReport> {
        let inner = &*self.db.inner;
        let core = &inner.core;
        let checkpointer = inner.checkpointer.as_ref().expect("a database that is written to has one");
        self.report.pages_before = core.store.pages();
        inner.registry.finish_drops(core)?;
        inner.registry.free_formers_now(core, &inner.txns)?;
        self.merge()?;
        for _ in 0..PASSES {
            let before = self.report.moved;
            self.report.values_left = 0;
            self.pass()?;
            if self.report.moved == before {
                break;
            }
        }
        inner.registry.finish_drops(core)?;
        if let Some(lost) = &core.lost_writes {
            // Marks go to ripe pages only, and what was freed just now ripens by a checkpoint.
            checkpointer.checkpoint()?;
            lost.cover(core, core.space.end_in_use())?;
        }
        // A backup under way reads pages that would be gone, and the maps that name them.
        let Some(_hold) = core.log.hold() else {
            return Err(Error::Invalid(
                "a backup is being made: pages were moved, but the file can be cut only after its end; compact again \
                then"
                    .into(),
            ));
        };
        for _ in 0..PASSES {
            // Flushes may want the store to grow, which waits for the cut: so they come before it. What is written
            // meanwhile to LSM keyspaces may pin the log once more.
            inner.indexes.write_older_than(Lsn::MAX)?;
            if let Some(lost) = &core.lost_writes {
                // Segments that lay there when marks were given may be merged by now.
                lost.leave(core, PageId(core.space.end_in_use()))?;
            }
            let mut pinned = false;
            let cut = checkpointer.with_checkpoint(|checkpoint| {
                core.space.cut(core.lost_writes.as_deref(), |maps| {
                    pinned = !checkpoint()?;
                    if pinned {
                        return Err(Error::Invalid("the log is pinned by what is in memory".into()));
                    }
                    inner.identity.iter().try_for_each(|identity| identity.maps_are_cut(maps))
                })
            });
            if !pinned {
                cut?;
                break;
            }
        }
        if let Some(lost) = &core.lost_writes {
            // Pages there that were given to somebody before the cut are marked again.
            lost.cover(core, core.space.end_in_use())?;
        }
        self.report.pages = core.store.pages();
        self.report.free = core.space.usage().1;
        Ok(self.report)
    }

    /// Merges half-empty pages of all that may change.
    fn merge(&mut self) -> Result<()> {
        let registry = &self.db.inner.registry;
        self.report.merged += registry.catalog().merge_all()?;
        for shared in registry.live().into_iter().filter(|shared| shared.check_changing().is_ok()) {
            self.report.merged += shared.index().merge_pages()?;
        }
        Ok(())
    }

    /// Moves what lies past the page before which all would fit of its kind, as far as there is room before that.
    fn pass(&mut self) -> Result<()> {
        let inner = &*self.db.inner;
        let space = &inner.core.space;
        let limit = space.packed_end(CATALOG);
        inner.core.lost_writes.as_ref().map_or(Ok(()), |lost| lost.leave(&inner.core, limit))?;
        self.report.moved += inner.registry.catalog().move_nodes(limit)?;
        // What nothing changes stays where it is: hints rest on that.
        for shared in inner.registry.live().into_iter().filter(|shared| shared.check_changing().is_ok()) {
            let limit = if space.has_zones() { space.packed_end(shared.id()) } else { limit };
            if shared.index().root() >= limit {
                self.report.moved += u64::from(inner.registry.move_root(&inner.core, &shared, limit)?);
            }
            self.report.moved += shared.index().move_pages(limit)?;
            match self.move_values(&shared, limit) {
                // Dropped meanwhile.
                Err(Error::NoSuchKeyspace(_) | Error::KeyspaceReadOnly(_) | Error::WornOut(_)) => {}
                result => result?,
            }
        }
        Ok(())
    }

    fn move_values(&mut self, shared: &Arc<OpenKeyspace>, limit: PageId) -> Result<()> {
        let keyspace = Keyspace { shared: shared.clone(), db: self.db.inner.clone() };
        let mut at = Some(Vec::new());
        while let Some(from) = at {
            let (values, next) = shared.index().far_values(&from, limit)?;
            for value in values {
                // Its new pages are the lowest that are free, and its old ones are free only after: it moves only if
                // that is to the front.
                if !self.db.inner.core.space.has_free_before(shared.id(), value.last, value.pages) {
                    continue;
                }
                if self.db.inner.txns.stats().snapshots > 0 {
                    self.report.values_left += 1;
                    continue;
                }
                match self.write_again(&keyspace, &value) {
                    Ok(Some(moved)) => self.report.moved += moved,
                    Ok(None) | Err(Error::TransactionTooLarge { .. } | Error::OverBudget { .. }) => {
                        self.report.values_left += 1
                    }
                    Err(e) => return Err(e),
                }
            }
            at = next;
        }
        Ok(())
    }

    /// Writes a value again, which takes the lowest free pages. Tells how many pages moved, none when the key is gone;
    /// `None` when there is no room for it before where it is.
    fn write_again(&self, keyspace: &Keyspace, value: &FarValue) -> Result<Option<u64>> {
        let core = &self.db.inner.core;
        let short = value.pages * core.page_size() as u64 <= LOGGED;
        let logged = short || !self.ripen(keyspace, value)?;
        // Through the log the value must fit in a transaction, for which it is read whole.
        if logged && !short && value.pages > core.pool.capacity_frames() as u64 / 4 {
            return Ok(None);
        }
        let again = self.db.transact_with(TxOptions::durability(Durability::None), |tx| {
            if !logged {
                return tx.tx.put_again(&keyspace.shared, &value.key);
            }
            let Some(bytes) = tx.get_for_update(keyspace, &value.key)? else { return Ok(false) };
            tx.put(keyspace, &value.key, &bytes).map(|()| true)
        })?;
        Ok(Some(if again { value.pages } else { 0 }))
    }

    /// Whether enough pages before a value are ripe to write it there; what was freed lately ripens by a checkpoint.
    fn ripen(&self, keyspace: &Keyspace, value: &FarValue) -> Result<bool> {
        let inner = &*self.db.inner;
        let wanted = value.pages + overflow::spare_pages(&inner.core) as u64;
        let (space, id) = (&inner.core.space, keyspace.shared.id());
        if space.has_free_before(id, value.last, wanted) && !space.has_ripe_before(id, value.last, wanted) {
            inner.checkpointer.as_ref().expect("a database that is written to has one").checkpoint()?;
        }
        Ok(space.has_ripe_before(id, value.last, wanted))
    }
}
