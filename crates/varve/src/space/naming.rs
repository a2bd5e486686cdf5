//! Space-map pages name the index of the mark pages of what they cover (`lost_writes`).

use super::Core;
use super::{INDEX, Space};
use crate::page::Group;
use crate::page::PageEdit;
use std::collections::BTreeSet;
use varve_volume::PageId;

impl Space {
    /// As [`Space::apply`]; map page `index.0` names `index.1` as its index of mark pages from now on.
    pub(crate) fn apply_naming<'c>(
        &self,
        core: &'c Core,
        group: &mut Group<'c>,
        alloc: &[PageId],
        free: &[PageId],
        index: Option<(u64, PageId)>,
    ) {
        let mut maps: BTreeSet<u64> = alloc.iter().chain(free).map(|id| id.0 / self.span).collect();
        maps.extend(index.map(|(map, _)| map));
        // In their order, before any is looked for again.
        for map in maps {
            self.map_in(core, group, map);
        }
        if let Some((map, id)) = index {
            let page = self.map_in(core, group, map);
            group.page(page).write(INDEX, &id.0.to_le_bytes());
        }
        self.apply(core, group, alloc, free);
    }
}
