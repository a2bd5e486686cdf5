//! Keyspaces that nothing changes: the mark in the catalog, and what the volume is told of their pages.
//!
//! Marking takes a lock on the whole keyspace, so every write is before the mark or refused. Then dirty pages are
//! written, and the extents that hold only pages of such keyspaces are sealed (`space/extents.rs`). The volume forgets
//! that; each opening for writing says it again.
//!
//! Invariant: a page is not sealed before it was written as it is; `walking` is held while pages are looked for.

use super::Inner;
use super::keyspaces::Registry;
use crate::error::{Error, Result};
use crate::space::Core;
use crate::space::extents::PageSet;
use crate::txn::{OpenKeyspace, Sealed, TxOptions};
use crate::wal::checkpoint::Checkpointer;
use std::sync::Arc;
use varve_rt::Mutex;

/// What [`Keyspace::set_read_only`](crate::Keyspace::set_read_only) found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SealReport {
    /// Pages of all keyspaces that are read-only now.
    pub pages: u64,
    /// Of those, pages in extents that they share with nobody else. None where the volume has no extents.
    pub sealed_pages: u64,
    /// Such extents.
    pub sealed_extents: u64,
}

impl Inner {
    pub(super) fn set_read_only(&self, shared: &Arc<OpenKeyspace>, on: bool) -> Result<SealReport> {
        self.txns.live_for_write()?;
        let _alone = self.walking.lock();
        let has_extents = self.core.store.extent().is_some();
        match (on, shared.sealed().is_some()) {
            (true, false) => self.seal(shared)?,
            (false, true) => self.registry.seal(&self.core, shared, None)?,
            _ => {}
        }
        if !has_extents {
            return Ok(SealReport::default());
        }
        if on {
            self.settle_sealed(shared)?;
        }
        seal_extents(&self.core, &self.registry)
    }

    /// No write comes after this; there may be long values.
    fn seal(&self, shared: &Arc<OpenKeyspace>) -> Result<()> {
        if shared.index().keeps_versions() {
            return Err(Error::Invalid(format!(
                "{} is an LSM keyspace, whose merges change its pages: only trees can be made read-only",
                shared.name()
            )));
        }
        self.txns.transact(&TxOptions::default(), |mut tx| {
            let locked = tx.lock_all(shared);
            let sealed = Some(Sealed { long_values: true });
            let sealed = locked.and_then(|()| self.registry.seal(&self.core, shared, sealed));
            (tx, sealed)
        })
    }

    /// Writes what is dirty, and notes whether there are long values.
    fn settle_sealed(&self, shared: &Arc<OpenKeyspace>) -> Result<()> {
        assert!(shared.sealed().is_some(), "nothing changes what is settled");
        self.checkpointer.as_ref().map_or(Ok(()), |checkpointer| checkpointer.checkpoint())?;
        let long_values = shared.index().each_page(true, &mut |_| ())?;
        self.registry.seal(&self.core, shared, Some(Sealed { long_values }))
    }
}

/// Tells the volume of an open database which pages nothing changes.
pub(super) struct Sealer {
    core: Arc<Core>,
    registry: Arc<Registry>,
    walking: Arc<Mutex<()>>,
    /// There are pages that recovery made anew: they are written first.
    checkpointer: Option<Arc<Checkpointer>>,
}

impl Sealer {
    /// For a database that is being opened; the checkpointer is given if there are pages that recovery made anew.
    pub fn new(
        (core, registry, walking): (&Arc<Core>, &Arc<Registry>, &Arc<Mutex<()>>),
        checkpointer: Option<&Arc<Checkpointer>>,
    ) -> Sealer {
        let (core, registry, walking) = (core.clone(), registry.clone(), walking.clone());
        Sealer { core, registry, walking, checkpointer: checkpointer.cloned() }
    }

    /// Seals the extents.
    pub fn seal(&self) -> Result<SealReport> {
        let _alone = self.walking.lock();
        if self.core.store.extent().is_none() || !self.registry.live().iter().any(|shared| shared.sealed().is_some()) {
            return Ok(SealReport::default());
        }
        self.checkpointer.as_ref().map_or(Ok(()), |checkpointer| checkpointer.checkpoint())?;
        seal_extents(&self.core, &self.registry)
    }
}

/// Tells the volume which extents nothing changes. Costs reading the inner nodes of the keyspaces that are read-only,
/// and the rows of those with long values. `walking` is held.
fn seal_extents(core: &Core, registry: &Registry) -> Result<SealReport> {
    let (mut set, mut pages) = (PageSet::default(), 0);
    for shared in registry.live() {
        let Some(sealed) = shared.sealed() else { continue };
        shared.index().each_page(sealed.long_values, &mut |id| {
            pages += 1;
            set.add(id);
        })?;
    }
    let (sealed_extents, sealed_pages) = core.space.seal_extents(&set);
    assert!(sealed_pages <= pages, "what is sealed is of a keyspace that is read-only");
    Ok(SealReport { pages, sealed_pages, sealed_extents })
}
