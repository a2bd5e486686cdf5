//! Changes of the list of segments: one log group lists new segments, takes old ones off the list, marks the pages of
//! both in the space map, and says what of the log is settled by it.
//!
//! The pages of new segments are written and synced before the group that links them (`space/direct.rs`), so after a
//! crash a segment is listed and whole, or its pages are free. The pages of old ones are free from the group on, but
//! nobody is given them before the group is durable and the last reader that may look there is gone.
//!
//! Invariants: a memtable leaves the view when the group that lists its segment is durable, not before: until then the
//! log is what has its entries. `flushing` is held by who changes the list.

use super::Segment;
use super::index::Shared;
use super::list;
use super::record;
use super::segments::{OpenSegment, Segments};
use crate::btree::LeafWrites;
use crate::error::Result;
use crate::page::Group;
use crate::rows::{NewValue, Write};
use crate::space::HeldPages;
use crate::space::direct::{self, DirectPages};
use crate::wal::GroupKind;
use std::sync::Arc;
use varve_device::Mistake;
use varve_volume::{Lsn, PageId};

/// A change of the list.
#[derive(Default)]
pub(super) struct Change {
    /// New segments with their levels, and the pages of all of them.
    pub added: Vec<(u8, Segment)>,
    pub pages: Vec<DirectPages>,
    pub dropped: Vec<Arc<OpenSegment>>,
    /// Segments that go to another level as they are.
    pub moved: Vec<(u8, Arc<OpenSegment>)>,
    /// The frozen memtable is in the new segments: its greatest commit number.
    pub settled: Option<Lsn>,
}

impl Shared {
    /// Makes the change, durably, and shows it to readers. `flushing` is held.
    pub fn install(&self, mut change: Change) -> Result<()> {
        debug_assert!(self.flushing.is_locked(), "who changes the list of segments is the only one");
        let core = &*self.core;
        let most = self.tree.max_inline(list::KEY);
        let mut rows: Vec<(Vec<u8>, Option<Vec<u8>>)> = Vec::new();
        for (level, segment) in &change.added {
            list::check(segment, *level, self.keyspace, self.tree.root())?;
            rows.extend(list::rows(segment, *level, most).into_iter().map(|(key, value)| (key, Some(value))));
        }
        for (level, open) in &change.moved {
            let moved = list::rows(&open.segment, *level, most);
            rows.extend(moved.into_iter().map(|(key, value)| (key, Some(value))));
        }
        let view = self.view();
        for open in &change.dropped {
            let level = view.segments.levels.iter().position(|level| level.iter().any(|o| Arc::ptr_eq(o, open)));
            let level = level.expect("a segment is dropped that is listed") as u8;
            rows.extend(list::rows(&open.segment, level, most).into_iter().map(|(key, _)| (key, None)));
        }
        rows.sort();
        assert!(rows.windows(2).all(|two| two[0].0 < two[1].0), "a segment is listed or dropped, once");
        let writes: Vec<Write<'_>> = rows
            .iter()
            .map(|(key, value)| Write { key, value: value.as_deref().map(NewValue::Bytes), hint: None })
            .collect();
        let mut to_link: Vec<&mut DirectPages> = change.pages.iter_mut().collect();
        let linking = direct::link(core, &mut to_link)?;
        let alloc: Vec<PageId> = change.pages.iter().flat_map(|pages| pages.written()).collect();
        let free: Vec<PageId> = change.dropped.iter().flat_map(|open| open.page_ids()).collect();
        assert_eq!(
            alloc.len() as u64,
            change.added.iter().map(|(_, s)| s.meta.pages).sum::<u64>(),
            "pages are of segments"
        );
        let end = self.change_list(&writes, (&alloc, &free), change.settled)?;
        if let Some(linking) = &linking {
            change.pages.iter_mut().for_each(|pages| linking.linked_all(pages));
        }
        drop(linking);
        for open in &change.dropped {
            let pages: Vec<PageId> = open.page_ids().collect();
            if core.faults().has(Mistake::SegmentPagesEarly) {
                core.space.give_back(&core.log, &pages);
            } else {
                open.drop_when_unused(HeldPages::of_segment(&self.core, &pages));
            }
        }
        let open = |(level, segment)| (level, OpenSegment::new(&self.core, self.keyspace, segment));
        let mut added: Vec<_> = std::mem::take(&mut change.added).into_iter().map(open).collect();
        added.append(&mut change.moved);
        // Whoever may be given freed pages writes them at once: after a crash the list must not name them any more. And
        // redo may not pass over a memtable before.
        core.log.wait_durable(end)?;
        core.space.segments_listed(alloc.iter().copied());
        let segments: Arc<Segments> = Arc::new(view.segments.changed(&added, &change.dropped));
        self.pressure.changed(&self.shape(), &segments.version());
        self.set_segments(segments, change.settled.is_some());
        drop((view, change));
        core.space.free_let_go();
        if let Some(write) = writes.first() {
            // What stays untidy costs space only.
            let _ = self.tree.tidy(write.key);
        }
        Ok(())
    }

    /// One group: rows of the list, pages of the space map, what of the log is settled. Returns its end.
    fn change_list(
        &self,
        writes: &[Write<'_>],
        (alloc, free): (&[PageId], &[PageId]),
        settled: Option<Lsn>,
    ) -> Result<Lsn> {
        let core = &*self.core;
        loop {
            let mut parts: Vec<LeafWrites<'_>> = Vec::new();
            let mut at = 0;
            while at < writes.len() {
                let part = self.tree.plan(&writes[at..], at, [None; 2])?;
                at += part.len();
                parts.push(part);
            }
            let maps = (alloc.len() + free.len()).min(core.space.maps() as usize);
            let bytes = (parts.len() + maps) * (core.page_size() + 64) + 64;
            let mut group = Group::begin(core, GroupKind::System, bytes)?;
            let mut latched = parts.windows(2).all(|two| !two[1].is_with(&two[0]));
            for part in &mut parts {
                latched = latched && part.latch(&mut Vec::new())?;
            }
            if !latched {
                continue;
            }
            // From here on nothing fails.
            parts.iter_mut().for_each(|part| part.join(&mut group));
            for part in &parts {
                part.change(&mut group, &[]);
            }
            if let Some(commit) = settled {
                group.record(self.keyspace, &record::settled(commit));
            }
            core.space.apply(core, &mut group, alloc, free);
            return group.commit();
        }
    }
}
