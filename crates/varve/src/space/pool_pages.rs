//! The buffer pool and the page store as checkpoints and recovery see them.
//!
//! Invariant: a page is among those that were redone from before its first record is replayed.

use super::extents::PageSet;
use super::lost_writes::LostWrites;
use crate::buffer::Pool;
use crate::error::{Error, Result};
use crate::wal::checkpoint::CheckpointPages;
use crate::wal::recovery::{Change, ReplayPages};
use std::sync::Arc;
use varve_rt::Mutex;
use varve_volume::{KeyspaceId, Lsn, PageId, PageStore, WriteWhy};

/// See the module.
pub(crate) struct PoolPages {
    pub(crate) pool: Arc<Pool>,
    pub(crate) store: Arc<dyn PageStore>,
    /// The marks, where the database has had some.
    marks: Option<Arc<LostWrites>>,
    /// Pages that were replayed.
    redone: Mutex<PageSet>,
}

impl PoolPages {
    /// The pages of `pool`, which keeps them in `store`.
    pub(crate) fn new(pool: Arc<Pool>, store: Arc<dyn PageStore>, marks: Option<Arc<LostWrites>>) -> Arc<PoolPages> {
        Arc::new(PoolPages { pool, store, marks, redone: Mutex::default() })
    }
}

impl PoolPages {
    /// The pages of which the log that was replayed has records.
    pub(crate) fn take_redone(&self) -> PageSet {
        std::mem::take(&mut self.redone.lock())
    }
}

impl CheckpointPages for PoolPages {
    fn flush_older_than(&self, t: Lsn) -> Result<()> {
        self.pool.flush_older_than(t, WriteWhy::Checkpoint)
    }

    fn oldest_dirty(&self) -> Option<Lsn> {
        self.pool.oldest_dirty()
    }

    fn sync(&self) -> Result<()> {
        self.store.sync().map_err(Error::from)
    }
}

impl ReplayPages for PoolPages {
    fn page_size(&self) -> usize {
        self.store.page_size()
    }

    fn prefetch(&self, pages: &[PageId]) {
        self.pool.prefetch(pages);
    }

    fn change(&self, id: PageId, fresh: Option<KeyspaceId>, first_change: Lsn, change: &mut Change<'_>) -> Result<()> {
        self.redone.lock().add(id);
        let mut page = match fresh {
            Some(keyspace) => self.pool.create(id, keyspace)?,
            None => self.pool.write(id)?,
        };
        // A copy: what fails half way leaves the page as it was.
        let mut bytes = page.bytes().to_vec();
        if let Some(lsn) = change(&mut bytes)? {
            assert!(first_change < lsn, "the first change that is missing lies before the page's new LSN");
            page.set_dirty(first_change);
            page.bytes_mut().write(0, &bytes);
            page.stamp(lsn);
        }
        Ok(())
    }

    fn write_back(&self) -> Result<()> {
        self.flush_older_than(Lsn::MAX)?;
        // Redo is going to begin later: the marks of what was written have to be there by then.
        self.marks.as_ref().map_or(Ok(()), |marks| marks.locate(&self.pool, false))?;
        self.sync()
    }
}
