//! Pages read and written by a caller that waits, without a pool.

use crate::{CostClass, KeyspaceId, PageId, PageIo, PageStore, PageUse, ReadWhy, VolumeError, WriteWhy};

/// What requests need of their memory.
const ALIGNMENT: usize = 4096;

fn assert_aligned(page: &[u8], page_size: usize) {
    assert_eq!(page.len(), page_size, "bytes of a page");
    assert!(page.as_ptr().addr().is_multiple_of(ALIGNMENT), "memory of requests is aligned to {ALIGNMENT} bytes");
}

/// Reads the pages from `first` on into `into`, as many as fit, in one batch; what became of each.
///
/// # Panics
/// If `into` is not aligned to 4096 bytes.
pub fn read_pages(
    store: &dyn PageStore,
    first: PageId,
    why: ReadWhy,
    into: &mut [u8],
) -> Vec<Result<CostClass, VolumeError>> {
    let size = store.page_size();
    assert!(into.len().is_multiple_of(size), "whole pages are read");
    let pages = into.chunks_exact_mut(size).zip(first.0..).map(|(page, id)| {
        assert_aligned(page, size);
        // SAFETY: an aligned page of `into`, which outlives the ticket; used by nobody else until it was waited for
        // below.
        unsafe { PageIo::read(PageId(id), why, page.as_mut_ptr()) }
    });
    let mut ticket = store.submit(pages.collect());
    (0..ticket.len()).map(|i| ticket.wait(i)).collect()
}

/// Writes sealed pages of a keyspace in one batch; the first error in their order.
///
/// # Panics
/// If the bytes of a page are not aligned to 4096.
pub fn write_pages(
    store: &dyn PageStore,
    pages: &[(PageId, &[u8])],
    (keyspace, why, usage): (KeyspaceId, WriteWhy, PageUse),
) -> Result<(), VolumeError> {
    let batch = pages.iter().map(|(id, bytes)| {
        assert_aligned(bytes, store.page_size());
        // SAFETY: an aligned page, borrowed, hence unchanged, until the ticket was waited for below.
        unsafe { PageIo::write(*id, keyspace, why, usage, bytes.as_ptr(), None) }
    });
    store.submit(batch.collect()).wait_all()
}
