//! What a page of a tree holds, by itself.

use super::leaf::LeafView;
use super::node::Node;
use crate::error::Result;
use crate::rows::PageRow;
use varve_volume::PageId;

/// Hands each row of a leaf to `each`; a leaf whose outline is damaged has none.
pub(crate) fn salvage_leaf(bytes: &[u8], each: &mut dyn FnMut(PageRow<'_>) -> Result<()>) -> Result<()> {
    let node = match Node::parse(bytes).and_then(|node| node.validate().map(|()| node)) {
        Ok(node) => node,
        Err(damage) => return each(Err(damage)),
    };
    let leaf = LeafView::new(node, PageId(0));
    for i in 0..node.count() {
        match (node.key(i), leaf.value(i)) {
            (Ok(key), Ok(value)) => each(Ok((&key, value)))?,
            (Err(damage), _) | (_, Err(damage)) => each(Err(damage))?,
        }
    }
    Ok(())
}
