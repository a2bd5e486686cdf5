//! Pages of a store without a pool: for what works on a database that is not open.

use crate::error::{Error, Result};
use varve_device::AlignedBuf;
use varve_volume::{CostClass, KeyspaceId, PageId, PageIo, PageStore, PageUse, ReadWhy, VolumeError, WriteWhy, page};

/// A page, as long as it is whole; `None` when it was never written, is damaged, or lies past the end.
pub(super) fn read_page(store: &dyn PageStore, id: PageId) -> Result<Option<Vec<u8>>> {
    let mut bytes = AlignedBuf::new(store.page_size());
    match read_run(store, id, &mut bytes).remove(0) {
        Ok(_) => Ok(Some(bytes.to_vec())),
        Err(VolumeError::Damaged { .. } | VolumeError::OutOfRange { .. }) => Ok(None),
        Err(e) => Err(Error::from(e)),
    }
}

/// Reads the pages from `first` on into `into`, as many as fit; what became of each.
pub(super) fn read_run(store: &dyn PageStore, first: PageId, into: &mut [u8]) -> Vec<Result<CostClass, VolumeError>> {
    let pages = into.chunks_exact_mut(store.page_size()).zip(first.0..).map(|(page, id)| {
        // SAFETY: a page of `into`, which outlives the ticket; used by nobody else until it was waited for.
        unsafe { PageIo::read(PageId(id), ReadWhy::Prefetch, page.as_mut_ptr()) }
    });
    let mut ticket = store.submit(pages.collect());
    (0..ticket.len()).map(|i| ticket.wait(i)).collect()
}

/// Seals and writes pages; `pages` are few enough to be copied.
pub(super) fn write_pages(store: &dyn PageStore, pages: &[(PageId, &[u8])]) -> Result<()> {
    let size = store.page_size();
    let mut bytes = AlignedBuf::new(pages.len().max(1) * size);
    for ((id, from), to) in pages.iter().zip(bytes.chunks_mut(size)) {
        to.copy_from_slice(from);
        page::seal(to, *id);
    }
    let batch = pages.iter().zip(bytes.chunks(size)).map(|((id, _), at)| {
        // SAFETY: a sealed page of `bytes`, which outlives the ticket and does not change.
        unsafe { PageIo::write(*id, KeyspaceId(0), WriteWhy::Checkpoint, PageUse::default(), at.as_ptr(), None) }
    });
    Ok(store.submit(batch.collect()).wait_all()?)
}
