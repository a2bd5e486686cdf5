//! What of a version's segments lies where.

use super::{Segment, Version};
use std::sync::Arc;

impl Version {
    /// The segments of a level; none, if it has none.
    pub(crate) fn level(&self, level: usize) -> &[Arc<Segment>] {
        self.levels.get(level).map_or(&[], |level| level)
    }

    /// Segments of a level that may have keys from `from` to `to`, both included; none: no bound.
    pub(crate) fn overlapping(&self, level: usize, from: Option<&[u8]>, to: Option<&[u8]>) -> Vec<Arc<Segment>> {
        let overlaps = |segment: &&Arc<Segment>| segment.meta.overlaps(from, to);
        self.level(level).iter().filter(overlaps).cloned().collect()
    }

    /// Pages of a level.
    pub(crate) fn pages(&self, level: usize) -> u64 {
        pages(self.level(level))
    }

    /// Number of the last level that has segments.
    pub(crate) fn last_level(&self) -> Option<usize> {
        self.levels.iter().rposition(|level| !level.is_empty())
    }
}

/// Pages of some segments.
pub(crate) fn pages(segments: &[Arc<Segment>]) -> u64 {
    segments.iter().map(|segment| segment.meta.pages).sum()
}

/// The smallest and the largest key of some segments; an end of a range deletion counts as a key. None: there are none.
pub(crate) fn bounds(segments: &[Arc<Segment>]) -> Option<(&[u8], &[u8])> {
    let smallest = segments.iter().map(|segment| &*segment.meta.smallest).min()?;
    let largest = segments.iter().map(|segment| &*segment.meta.largest).max()?;
    Some((smallest, largest))
}
