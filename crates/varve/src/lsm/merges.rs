//! Merges of segments: the planner says which, the result takes their place on the next level.
//!
//! Flushes go first: between batches of entries the thread that merges flushes what is due. A merge works on segments
//! that nobody changes; only its end, the new list, is made under `flushing`.
//!
//! Invariants: no user key is in two outputs of a merge; its inputs are listed until its outputs are.

use super::executor::{self, Input, Outputs, Span, Task};
use super::index::{Lsm, Shared};
use super::install::Change;
use super::merge::Below;
use super::near::merges_near;
use super::offload::Made;
use super::pages::{PastPool, Sink};
use super::picker::{GRANDPARENTS, Leveled, Plan, Reason};
use super::segments::{OpenSegment, Segments};
use super::services::due_bytes;
use super::{PageSink, Segment, SegmentMeta};
use crate::error::{Error, Result};
use std::sync::Arc;
use std::time::Duration;
use varve_rt::atomic::Ordering;

/// Bytes of each queue of a pipelined merge, and at most of a write.
pub(super) const QUEUE: usize = 256 << 10;

/// Segments are not made smaller than this for the sake of little memory, bytes.
const LEAST_SEGMENT: u64 = 64 << 10;

impl Shared {
    /// The sizes of the levels. Where memory for memtables is scarce, flushes are small, and each merge of a few of
    /// them would write a whole segment of the usual size anew: segments are no larger than memtables then.
    pub fn shape(&self) -> Leveled {
        let options = self.options();
        let (shape, due) = (options.shape(self.core.page_size() as u64), due_bytes(&options, &self.core.budget));
        Leveled { segment_bytes: shape.segment_bytes.min(due.max(LEAST_SEGMENT)), ..shape }
    }

    /// From here on flushes go to level 0; the segments of which one is to be merged.
    fn merge_begins(&self) -> Arc<Segments> {
        let _one = self.flushing.lock();
        let before = self.merging.swap(true, Ordering::SeqCst);
        assert!(!before, "one thread merges");
        self.view().segments.clone()
    }
}

impl Lsm {
    /// Does one merge if there is one to be done, or makes room for it; whether there was.
    pub(crate) fn merge_some(&self) -> Result<bool> {
        let shared = &*self.0;
        let segments = shared.merge_begins();
        let next = shared.next_merge(&shared.shape(), &segments.version());
        let merged = next.as_ref().map(|(plan, _)| self.merge_plan(&segments, plan));
        let merging = shared.merging.swap(false, Ordering::SeqCst);
        assert!(merging, "a merge that ends has begun");
        let (Some((_, asked)), Some(merged)) = (next, merged) else { return Ok(false) };
        let merged = match merged {
            // What was deleted makes room. Who asked for the merge waits until it was tried again.
            Err(full @ Error::NoSpace(_)) => match self.drop_hidden() {
                Ok(true) => return Ok(true),
                dropped => dropped.and(Err(full)),
            },
            merged => merged,
        };
        if let (Err(error), None) = (&merged, &asked) {
            shared.asked.fail(error);
            shared.services.something_ended();
        }
        // What was not done, because the thread is to end or the keyspace is gone, stays asked for.
        if let Some(asked) = asked.filter(|_| !matches!(merged, Ok(false))) {
            shared.asked.done(&asked, merged.as_ref().map(|_| ()).map_err(Clone::clone));
            shared.services.something_ended();
        }
        merged
    }

    fn merge_plan(&self, segments: &Segments, plan: &Plan) -> Result<bool> {
        let shared = &*self.0;
        let open = |wanted: &Vec<Arc<Segment>>| -> Vec<Arc<OpenSegment>> {
            segments.all().filter(|open| wanted.iter().any(|one| one.id == open.segment.id)).cloned().collect()
        };
        let dropped = [open(&plan.inputs), open(&plan.next)].concat();
        assert_eq!(dropped.len(), plan.inputs.len() + plan.next.len(), "what is planned is listed");
        let (began, moves) = (varve_rt::now(), plan.is_move(&shared.shape()));
        let change = if moves {
            Some(Change { moved: vec![(plan.level as u8 + 1, dropped[0].clone())], ..Change::default() })
        } else {
            self.merge(plan, segments, dropped)?
        };
        let Some(change) = change else { return Ok(false) };
        let _one = shared.flushing.lock();
        let view = shared.view();
        let listed = |open: &Arc<OpenSegment>| view.segments.all().any(|other| Arc::ptr_eq(open, other));
        // The keyspace may have been dropped meanwhile.
        if !change.dropped.iter().chain(change.moved.iter().map(|(_, open)| open)).all(listed) {
            return Ok(false);
        }
        drop(view);
        let pages = |open: &Arc<OpenSegment>| open.segment.meta.pages;
        let read = change.dropped.iter().map(pages).sum::<u64>() * shared.core.page_size() as u64;
        let written: u64 = change.added.iter().map(|(_, segment)| segment.meta.pages).sum();
        let written = written * shared.core.page_size() as u64;
        shared.install(change)?;
        if moves {
            shared.counters.moved();
        } else {
            let took = varve_rt::now() - began;
            shared.counters.merged(plan.level + 1, (read, written), took, plan.reason == Reason::Seek);
            shared.pressure.merged(read + written, took);
        }
        shared.picker.lock().installed(&shared.view().segments.version());
        Ok(true)
    }
}

impl Lsm {
    /// Writes what a merge comes to; none when the thread is to end.
    fn merge(&self, plan: &Plan, segments: &Segments, dropped: Vec<Arc<OpenSegment>>) -> Result<Option<Change>> {
        let (shared, level) = (&*self.0, plan.level + 1);
        let shape = shared.shape();
        let below = segments.version().levels.into_iter().skip(level + 1).collect();
        let ids = self.clone();
        let task = Task {
            runs: runs(plan, &dropped, shared.options().blocks as usize)?,
            range: Span::default(),
            moments: shared.services.moments(),
            below: Below(below),
            grandparents: plan.grandparents.clone(),
            most_overlap: GRANDPARENTS * shape.segment_bytes / shape.page_bytes,
            options: shared.segment_options(0),
            next_id: Arc::new(move || ids.0.next_id()),
            segment_bytes: shape.segment_bytes,
            usable: shared.core.usable(shared.keyspace),
            large: usize::MAX,
        };
        // Asked once: the option may be changed at any time.
        let near = merges_near(shared.options().merge).zip(shared.services.near());
        let made = match near.filter(|(_, host)| host.is_attached()) {
            Some((how, host)) => self.merge_near(&task, plan, (&host, how))?,
            None => self.merge_local(task, level as u8)?,
        };
        let Some(Made { segments: added, pages }) = made else { return Ok(None) };
        Ok(Some(Change { added, pages, dropped, ..Change::default() }))
    }

    /// Bytes that are written at a time: a block, or what the keyspace's options say if that is more.
    pub(super) fn request(&self, task: &Task) -> usize {
        let blocks = (self.0.options().blocks as usize).max(executor::block_bytes(&task.runs));
        blocks.next_multiple_of(self.0.core.page_size()).min(QUEUE)
    }

    /// Merges on this thread and those that the executor begins.
    fn merge_local(&self, task: Task, level: u8) -> Result<Option<Made>> {
        let shared = &*self.0;
        let sink = Sink::inline(&shared.core, shared.keyspace, self.request(&task)).kept_in_free_frames();
        let mut out = Output::new(shared, level, sink);
        let executor = executor::by_name(shared.options().merge.local(), QUEUE).expect("every option has one");
        match executor.run(Arc::new(task), &mut out) {
            Err(_) if out.ended => return Ok(None),
            result => result?,
        };
        Ok(Some(Made { segments: out.done, pages: vec![out.sink.into_pages()] }))
    }
}

/// The sorted runs that a plan merges: segments of level 0 one by one, those of a level below together.
fn runs(plan: &Plan, open: &[Arc<OpenSegment>], request: usize) -> Result<Vec<Vec<Input>>> {
    let input = |segment: &Arc<Segment>| {
        let open = open.iter().find(|open| open.segment.id == segment.id).expect("what is planned is listed");
        Ok(Input { reader: open.reader()?, source: Arc::new(PastPool::new(&open.place, request)) })
    };
    let run = |segments: &[Arc<Segment>]| segments.iter().map(input).collect::<Result<Vec<_>>>();
    let upper: Vec<&[Arc<Segment>]> = match plan.level {
        0 => plan.inputs.chunks(1).collect(),
        _ => vec![&plan.inputs[..]],
    };
    upper.into_iter().chain([&plan.next[..]]).filter(|segments| !segments.is_empty()).map(run).collect()
}

/// Takes the segments that a merge writes, one after the other.
pub(super) struct Output<'a> {
    shared: &'a Shared,
    level: u8,
    pub sink: Sink,
    pub done: Vec<(u8, Segment)>,
    /// The thread is to end.
    pub ended: bool,
    /// Time of flushes, which are more urgent.
    pub flushes: Duration,
}

impl<'a> Output<'a> {
    /// Segments go to this level.
    pub fn new(shared: &'a Shared, level: u8, sink: Sink) -> Output<'a> {
        Output { shared, level, sink, done: Vec::new(), ended: false, flushes: Duration::ZERO }
    }
}

impl PageSink for Output<'_> {
    fn usable(&self) -> usize {
        self.sink.usable()
    }

    fn page(&mut self, fill: &mut dyn FnMut(&mut [u8])) -> Result<()> {
        self.sink.page(fill)
    }
}

impl Outputs for Output<'_> {
    fn done(&mut self, id: u64, meta: SegmentMeta, _: Option<Vec<u8>>) -> Result<()> {
        let segment = Segment { id, meta, runs: self.sink.take_runs() };
        let ascends = |last: &Segment| last.meta.compare(&segment.meta.smallest).is_lt();
        assert!(self.done.last().is_none_or(|(_, last)| ascends(last)), "keys ascend");
        self.done.push((self.level, segment));
        Ok(())
    }

    fn wait(&mut self) -> Result<()> {
        // The sink writes on this thread: what it was given whole batches of is written.
        Ok(())
    }

    fn pause(&mut self) -> Result<()> {
        match self.shared.services.between_batches()? {
            Some(took) => self.flushes += took,
            None => self.ended = true,
        }
        if self.ended { Err(Error::Closed) } else { Ok(()) }
    }
}
