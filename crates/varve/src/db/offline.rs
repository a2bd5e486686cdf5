//! Pages of a store without a pool: for what works on a database that is not open.

use crate::error::{Error, Result};
use varve_device::AlignedBuf;
use varve_volume::{KeyspaceId, PageId, PageStore, PageUse, ReadWhy, VolumeError, WriteWhy, page, read_pages};

/// A page, as long as it is whole; `None` when it was never written, is damaged, or lies past the end.
pub(super) fn read_page(store: &dyn PageStore, id: PageId) -> Result<Option<Vec<u8>>> {
    let mut bytes = AlignedBuf::new(store.page_size());
    match read_pages(store, id, ReadWhy::Prefetch, &mut bytes).remove(0) {
        Ok(_) => Ok(Some(bytes.to_vec())),
        Err(VolumeError::Damaged { .. } | VolumeError::OutOfRange { .. }) => Ok(None),
        Err(e) => Err(Error::from(e)),
    }
}

/// Seals and writes pages; `pages` are few enough to be copied.
pub(super) fn write_pages(store: &dyn PageStore, pages: &[(PageId, &[u8])]) -> Result<()> {
    let size = store.page_size();
    let mut bytes = AlignedBuf::new(pages.len().max(1) * size);
    for ((id, from), to) in pages.iter().zip(bytes.chunks_mut(size)) {
        to.copy_from_slice(from);
        page::seal(to, *id);
    }
    let sealed: Vec<_> = pages.iter().zip(bytes.chunks(size)).map(|((id, _), bytes)| (*id, bytes)).collect();
    Ok(varve_volume::write_pages(store, &sealed, (KeyspaceId(0), WriteWhy::Checkpoint, PageUse::default()))?)
}
