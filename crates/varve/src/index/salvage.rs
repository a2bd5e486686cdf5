//! Rows of pages by themselves, whatever became of the index that they are of.

use crate::btree;
use crate::error::Result;
pub(crate) use crate::lsm::list::segments as listed;
pub(crate) use crate::lsm::salvage::{Remains, rows as remaining};
use crate::rows::PageRow;
use varve_volume::page;

/// Whether a page is one of a segment.
pub(crate) fn is_segment(bytes: &[u8]) -> bool {
    page::kind(bytes) == crate::lsm::KIND_SEGMENT
}

/// Whether a page is of a kind that holds rows.
pub(crate) fn has_rows(bytes: &[u8]) -> bool {
    page::kind(bytes) == btree::KIND_LEAF
}

/// Hands each row of a page that has some, and each damage, to `each`.
pub(crate) fn rows(bytes: &[u8], each: &mut dyn FnMut(PageRow<'_>) -> Result<()>) -> Result<()> {
    match page::kind(bytes) {
        btree::KIND_LEAF => btree::salvage_leaf(bytes, each),
        _ => Ok(()),
    }
}
