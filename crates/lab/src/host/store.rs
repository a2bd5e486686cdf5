//! A page store that does nothing: every request is done at once, reads leave the frame as it is.

use std::sync::Arc;
use varve_volume::{
    CostClass, KeyspaceId, PageId, PageIo, PageStore, PageTicket, PageUse, VolumeError, VolumeStats, page,
};

pub(super) struct NullStore {
    pages: u64,
}

impl NullStore {
    pub fn new(pages: u64) -> Arc<NullStore> {
        Arc::new(NullStore { pages })
    }
}

impl PageStore for NullStore {
    fn page_size(&self) -> usize {
        4096
    }
    fn pages(&self) -> u64 {
        self.pages
    }
    fn grow(&self, _: u64) -> Result<(), VolumeError> {
        Ok(())
    }
    fn usable_bytes(&self, _: KeyspaceId) -> usize {
        4096 - page::HEADER
    }
    fn submit(&self, batch: Vec<PageIo>) -> PageTicket {
        PageTicket::ready(batch.iter().map(|_| Ok(CostClass::default())).collect())
    }
    fn evict_clean(&self, _: PageId, _: &[u8], _: PageUse) -> bool {
        false
    }
    fn dirtied(&self, _: PageId, _: KeyspaceId, _: PageUse) {}
    fn discard(&self, _: &[PageId]) -> Result<(), VolumeError> {
        Ok(())
    }
    fn drain_class_changes(&self, _: &mut Vec<(PageId, CostClass)>) {}
    fn sync(&self) -> Result<(), VolumeError> {
        Ok(())
    }
    fn stats(&self) -> VolumeStats {
        VolumeStats::default()
    }
}
