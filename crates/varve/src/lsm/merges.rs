//! Merges of segments: the planner says which, the result takes their place on the next level.
//!
//! Flushes go first: between batches of entries the thread that merges flushes what is due. A merge works on segments
//! that nobody changes; only its end, the new list, is made under `flushing`.
//!
//! Invariants: no user key is in two outputs of a merge; its inputs are listed until its outputs are.

use super::index::{Lsm, Shared};
use super::install::Change;
use super::merge::{Below, Merging, Retention};
use super::pages::Sink;
use super::picker::{Leveled, Plan};
use super::ranges::Fragments;
use super::segment::{SegmentCursor, SegmentWriter};
use super::segments::{OpenSegment, Segments};
use super::{Entries, Segment};
use crate::error::Result;
use std::sync::Arc;
use varve_rt::{Cost, charge};

/// Entries between two looks at whether something is to be flushed.
const LOOK: u64 = 512;

impl Shared {
    /// The sizes of the levels.
    pub fn shape(&self) -> Leveled {
        Leveled::new(self.options.segment_bytes, self.core.page_size() as u64)
    }
}

impl Lsm {
    /// Does one merge if there is one to be done; whether there was.
    pub(crate) fn merge_some(&self) -> Result<bool> {
        let shared = &*self.0;
        let segments = shared.view().segments.clone();
        let Some(plan) = shared.picker.lock().pick(&shared.shape(), &segments.version()) else { return Ok(false) };
        let open = |wanted: &Vec<Arc<Segment>>| -> Vec<Arc<OpenSegment>> {
            segments.all().filter(|open| wanted.iter().any(|one| one.id == open.segment.id)).cloned().collect()
        };
        let dropped = [open(&plan.inputs), open(&plan.next)].concat();
        assert_eq!(dropped.len(), plan.inputs.len() + plan.next.len(), "what is planned is listed");
        let change = if plan.is_move(&shared.shape()) {
            Some(Change { moved: vec![(plan.level as u8 + 1, dropped[0].clone())], ..Change::default() })
        } else {
            shared.merge(&plan, &segments, dropped)?
        };
        drop(segments);
        let Some(change) = change else { return Ok(false) };
        let _one = shared.flushing.lock();
        let view = shared.view();
        let listed = |open: &Arc<OpenSegment>| view.segments.all().any(|other| Arc::ptr_eq(open, other));
        // The keyspace may have been dropped meanwhile.
        if !change.dropped.iter().chain(change.moved.iter().map(|(_, open)| open)).all(listed) {
            return Ok(false);
        }
        drop(view);
        shared.install(change)?;
        shared.picker.lock().installed(&shared.view().segments.version());
        Ok(true)
    }
}

impl Shared {
    /// Writes what a merge comes to; none when the thread is to end.
    fn merge(&self, plan: &Plan, segments: &Segments, dropped: Vec<Arc<OpenSegment>>) -> Result<Option<Change>> {
        let level = plan.level + 1;
        let walks: Vec<SegmentCursor> = dropped.iter().map(|open| open.walk_past_pool()).collect::<Result<_>>()?;
        let below = segments.version().levels.into_iter().skip(level + 1).collect();
        let mut retention = Retention::new(self.services.moments(), Below(below), Fragments::default());
        let mut walk = Merging::new(walks);
        let mut out = Output { shared: self, level: level as u8, sink: self.sink(), writer: None, done: Vec::new() };
        let (mut key, mut entries) = (Vec::new(), 0u64);
        walk.first()?;
        while let Some(entry) = walk.entry() {
            charge(Cost::MergePair, 1);
            charge(Cost::MergeByte, (entry.key.len() + entry.value.len()) as u64);
            if entry.key != key {
                key.clear();
                key.extend_from_slice(entry.key);
                out.end_if_full()?;
            }
            if retention.keeps(&entry) {
                let (writer, sink) = out.writer();
                writer.add(&entry, sink)?;
            }
            walk.next()?;
            entries += 1;
            if entries.is_multiple_of(LOOK) && !self.services.between_batches()? {
                return Ok(None);
            }
        }
        out.end()?;
        let (added, pages) = (out.done, Some(out.sink.into_pages()));
        Ok(Some(Change { added, pages, dropped, ..Change::default() }))
    }

    fn sink(&self) -> Sink {
        Sink::new(&self.core, self.keyspace)
    }
}

/// Segments being written, one after the other.
struct Output<'a> {
    shared: &'a Shared,
    level: u8,
    sink: Sink,
    /// With the number of its segment.
    writer: Option<(u64, SegmentWriter)>,
    done: Vec<(u8, Segment)>,
}

impl Output<'_> {
    /// The segment that is being written; begins one if there is none.
    fn writer(&mut self) -> (&mut SegmentWriter, &mut Sink) {
        let shared = self.shared;
        let (_, writer) = self.writer.get_or_insert_with(|| {
            let id = shared.next_id();
            (id, SegmentWriter::new(shared.segment_options(id), shared.core.usable(shared.keyspace)))
        });
        (writer, &mut self.sink)
    }

    /// Between two keys: ends the segment if it is large enough.
    fn end_if_full(&mut self) -> Result<()> {
        let most = self.shared.options.segment_bytes;
        if self.writer.as_ref().is_some_and(|(_, writer)| writer.bytes() >= most) { self.end() } else { Ok(()) }
    }

    fn end(&mut self) -> Result<()> {
        let Some((id, writer)) = self.writer.take() else { return Ok(()) };
        let meta = writer.finish(&mut self.sink)?;
        let segment = Segment { id, meta, runs: self.sink.take_runs() };
        assert!(self.done.last().is_none_or(|(_, last)| last.meta.largest < segment.meta.smallest), "keys ascend");
        self.done.push((self.level, segment));
        Ok(())
    }
}
