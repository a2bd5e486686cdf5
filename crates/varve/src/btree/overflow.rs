//! Overflow values: values too long for a leaf, in chains of pages.

use super::node::u64_at;
use varve_volume::PageId;

/// Where a long value lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OverflowRef {
    /// First page of the chain.
    pub head: PageId,
    /// Length of the value in bytes.
    pub len: u64,
    /// The value's id, carried by each of its pages: a reader without a latch sees by it that a page was reused.
    pub id: u64,
}

impl OverflowRef {
    /// Bytes of an encoded reference.
    pub(crate) const LEN: usize = 24;

    /// As stored in a leaf cell.
    pub(crate) fn encode(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[..8].copy_from_slice(&self.head.0.to_le_bytes());
        b[8..16].copy_from_slice(&self.len.to_le_bytes());
        b[16..].copy_from_slice(&self.id.to_le_bytes());
        b
    }

    /// None when the bytes are no reference.
    pub(crate) fn decode(b: &[u8]) -> Option<OverflowRef> {
        (b.len() == Self::LEN).then(|| OverflowRef { head: PageId(u64_at(b, 0)), len: u64_at(b, 8), id: u64_at(b, 16) })
    }
}
