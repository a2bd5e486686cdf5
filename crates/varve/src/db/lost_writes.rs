//! Switching `detect_lost_writes` on and off while a database is opened.
//!
//! The feature bit says whether the marks are exact. It falls before anything is written without them, and rises once
//! there are none from before.

use super::options::Options;
use crate::error::{Error, Result};
use crate::space::Core;
use crate::space::lost_writes::{LostWrites, remove};
use crate::wal::{LOST_WRITES, Log};
use std::sync::Arc;
use varve_volume::PageStore;

/// The marks of a database that is being opened.
pub(super) struct Marks {
    /// None: it is to have none.
    pub map: Option<Arc<LostWrites>>,
    /// There are marks, and they are exact.
    had: bool,
}

impl Marks {
    /// Looks what the database has and what is wanted; before anything is written.
    pub fn choose(log: &Arc<Log>, store: &Arc<dyn PageStore>, options: &Options) -> Result<Marks> {
        let had = log.features().has(&LOST_WRITES);
        if options.read_only && options.detect_lost_writes.is_some() {
            return Err(Error::ReadOnly("detect_lost_writes is switched when opening for writing".into()));
        }
        let wanted = options.detect_lost_writes.unwrap_or(had);
        if had && !wanted {
            log.set_feature(&LOST_WRITES, false)?;
        }
        let map = wanted.then(|| LostWrites::new(store.clone(), log.clone(), options.cache_bytes));
        Ok(Marks { map, had: had && wanted })
    }

    /// The marks that there are already.
    pub fn found(&self) -> Option<Arc<LostWrites>> {
        self.map.clone().filter(|_| self.had)
    }

    /// Recovery is through, and the space manager there.
    pub fn begin(&self, core: &Core, read_only: bool) -> Result<()> {
        if !self.had && !read_only {
            remove(core)?;
        }
        let Some(map) = &self.map else { return Ok(()) };
        if !self.had {
            core.log.set_feature(&LOST_WRITES, true)?;
        }
        map.locate(&core.pool, read_only)?;
        if read_only { Ok(()) } else { map.cover(core, core.store.pages()) }
    }
}
