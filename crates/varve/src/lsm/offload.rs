//! Merges in two parts, one of which a worker near the data does (`near`).
//!
//! Invariant: the parts have no key in common and together all keys; what a worker did is listed only after the host
//! has looked at it, and else the host has done it itself. What a worker had finished when it was lost nobody made
//! durable: the host syncs first and looks afterwards, at every byte, so that what it sees is what stays.

use super::executor::{Executor, Outputs as _, Pcp, Sequential, Span, Task};
use super::index::Lsm;
use super::merges::{Output, QUEUE};
use super::near::{Fallback, Host, Job, Mode, Offer, Pages, Part, ShareRule};
use super::pages::{PageRuns, PastPool, Place, Sink};
use super::picker::Plan;
use super::segment::SegmentReader;
use super::{Segment, version};
use crate::error::Result;
use crate::space::direct::{self, DirectPages};
use std::sync::Arc;
use std::time::Duration;
use varve_device::Mistake;
use varve_rt::now;
use varve_volume::PageId;

/// The host looks after what is more urgent so often while it waits for the worker.
const STEP: Duration = Duration::from_millis(10);

/// What merging a range made.
pub(super) struct Made {
    pub segments: Vec<(u8, Segment)>,
    pub pages: Vec<DirectPages>,
}

impl Lsm {
    /// Merges with the worker's help; none when the thread is to end.
    pub(super) fn merge_near(
        &self,
        task: &Task,
        plan: &Plan,
        (host, (rule, mode)): (&Host, (ShareRule, Option<Mode>)),
    ) -> Result<Option<Made>> {
        let (shared, page_bytes) = (&*self.0, self.0.core.page_size() as u64);
        assert_eq!(task.range, Span::default(), "a whole merge is divided");
        let mut parts = host.divide(rule, plan, plan.input_bytes(&shared.shape()));
        assert!(parts.host.is_some() || parts.device.is_some(), "each key is merged by somebody");
        if let (Some(host), Some(device)) = (&parts.host, &parts.device) {
            assert!(host.to.is_some() && host.to == device.from, "the parts have no key in common");
        }
        let offer = match &parts.device {
            Some(range) => Some(self.offer(task, plan, range, (host, mode))?),
            None => None,
        };
        if shared.core.faults().has(Mistake::NearOverlap) {
            parts.host.iter_mut().for_each(|range| range.to = None);
        }
        let mut made = Made { segments: Vec::new(), pages: Vec::new() };
        if let Some(range) = parts.host {
            let part = self.merge_here(task, range, plan, (host, mode));
            if let (Some(Ok(_)), true) = (&offer, !matches!(part, Ok(Some(_)))) {
                let Some(Ok(offer)) = offer else { unreachable!("seen above") };
                host.give_up(offer);
                return part;
            }
            let Some(part) = part? else { return Ok(None) };
            made.add(part);
        }
        let theirs = match offer {
            None => return Ok(Some(made)),
            Some(Ok(offer)) => self.collect(offer, plan, host)?,
            Some(Err(why)) => Collected::Here(why, None),
        };
        match theirs {
            Collected::Stop => return Ok(None),
            Collected::Done(part) => made.add(part),
            Collected::Here(why, finished) => {
                host.note_fallback(&why);
                let mut range = parts.device.expect("an offer has a range");
                if let Some((part, next)) = finished {
                    host.note_resumed(
                        part.pages.iter().map(DirectPages::written_len).sum::<usize>() as u64 * page_bytes,
                    );
                    made.add(part);
                    range.from = Some(next);
                }
                let Some(part) = self.merge_here(task, range, plan, (host, mode))? else { return Ok(None) };
                made.add(part);
            }
        }
        Ok(Some(made))
    }

    /// Does a range on this host.
    fn merge_here(
        &self,
        task: &Task,
        range: Span,
        plan: &Plan,
        (host, mode): (&Host, Option<Mode>),
    ) -> Result<Option<Made>> {
        let shared = &*self.0;
        let inputs = plan.inputs.iter().chain(&plan.next).filter(|segment| range.meets(&segment.meta));
        let (mode, large) = host.mode(mode, inputs.map(|segment| (segment.meta.entries, segment.meta.bytes)));
        let sink = Sink::inline(&shared.core, shared.keyspace, self.request(task)).kept_in_free_frames();
        let mut out = Output::new(shared, plan.level as u8 + 1, sink);
        let (begun, task) = (now(), Arc::new(Task { range, large, ..task.clone() }));
        let done = match mode {
            Mode::Linear => Sequential.run(task, &mut out),
            Mode::Pipeline => Pcp::new(QUEUE).run(task, &mut out),
        };
        let tally = match done {
            Err(_) if out.ended => return Ok(None),
            done => done?,
        };
        out.wait()?;
        let took = now().duration_since(begun);
        assert!(out.flushes <= took, "flushes came in between");
        host.note_host(&tally, mode, took - out.flushes);
        Ok(Some(Made { segments: out.done, pages: vec![out.sink.into_pages()] }))
    }

    /// Sets pages aside and gives the worker a range.
    fn offer(
        &self,
        task: &Task,
        plan: &Plan,
        range: &Span,
        (host, mode): (&Host, Option<Mode>),
    ) -> Result<std::result::Result<Offer, Fallback>> {
        let shared = &*self.0;
        let core = &shared.core;
        let wanted = |segments: &[Arc<Segment>]| -> Vec<Arc<Segment>> {
            segments.iter().filter(|segment| range.meets(&segment.meta)).cloned().collect()
        };
        let upper: Vec<Vec<Arc<Segment>>> = match plan.level {
            0 => plan.inputs.chunks(1).map(wanted).collect(),
            _ => vec![wanted(&plan.inputs)],
        };
        let runs: Vec<_> = upper.into_iter().chain([wanted(&plan.next)]).filter(|run| !run.is_empty()).collect();
        let pages: u64 = runs.iter().map(|run| version::pages(run)).sum();
        let grandparents = wanted(&plan.grandparents);
        let outputs = 2 + 2 * pages * core.page_size() as u64 / task.segment_bytes + grandparents.len() as u64;
        // Packed anew, what comes out may be a little more than what went in.
        let room = pages + pages / 16 + 8 * outputs;
        let set_aside = DirectPages::for_others(core, shared.keyspace, room as usize)?;
        let (generation, id) = host.next_job();
        let mut options = task.options.clone();
        options.id = shared.next_ids(outputs);
        let job = Job {
            generation,
            id,
            pages: Pages {
                size: core.page_size(),
                usable: task.usable,
                keyspace: shared.keyspace,
                // After the number of backups was asked for: see `space/direct.rs`.
                floor: set_aside.lsn(),
            },
            runs,
            range: range.clone(),
            moments: task.moments.clone(),
            below: task.below.0.iter().map(|level| wanted(level)).collect(),
            grandparents,
            most_overlap: task.most_overlap,
            options,
            ids: outputs,
            segment_bytes: task.segment_bytes,
            room: runs_of(set_aside.set_aside()),
            request: shared.options().blocks as usize,
            how: host.how(mode),
        };
        Ok(host.offer(job, set_aside))
    }

    /// Waits for the worker, and looks at what it did.
    fn collect(&self, mut offer: Offer, plan: &Plan, host: &Host) -> Result<Collected> {
        let shared = &*self.0;
        let begun = now();
        let ended = loop {
            if let Some(ended) = host.wait(&mut offer, STEP) {
                break ended;
            }
            match shared.services.between_batches() {
                Ok(Some(_)) => {}
                stopped => {
                    host.give_up(offer);
                    return stopped.map(|_| Collected::Stop);
                }
            }
        };
        host.note_wait(now().duration_since(begun));
        let done = match ended {
            Ok(done) => done,
            Err(why) => {
                // Only an answer to this very job says that it ended.
                if matches!(why, Fallback::Late | Fallback::Garbage(_)) {
                    host.give_up(offer);
                    return Ok(Collected::Here(why, None));
                }
                return Ok(Collected::Here(why, self.take_up(offer, plan)?));
            }
        };
        let Offer { job, mut pages, since, .. } = offer;
        if let Err(what) = self.look_at(&job, &done.segments, &mut pages) {
            host.give_up(Offer { job, pages, since, until: begun, part: None });
            return Ok(Collected::Here(Fallback::Garbage(what), None));
        }
        pages.finish()?;
        host.note_device(&done, begun.duration_since(since));
        let level = plan.level as u8 + 1;
        let segments = done.segments.into_iter().map(|segment| (level, own(segment))).collect();
        Ok(Collected::Done(Made { segments, pages: vec![pages] }))
    }

    /// What is finished of a job that has ended without an answer, and the key to go on from; none: nothing that could
    /// be used. An error: what was written cannot be made durable.
    fn take_up(&self, offer: Offer, plan: &Plan) -> Result<Option<(Made, Vec<u8>)>> {
        let (core, level) = (&self.0.core, plan.level as u8 + 1);
        let Offer { job, mut pages, part: Some(Part { segments, next, .. }), .. } = offer else { return Ok(None) };
        let (segments, seals): (Vec<_>, Vec<_>) = segments.into_iter().unzip();
        if check(&job, &segments).is_err() || !follows(&job, &segments, &next) {
            return Ok(None);
        }
        let used: u64 = segments.iter().map(|segment| segment.meta.pages).sum();
        pages.were_filled(used as usize, job.pages.floor);
        let unlooked = core.faults().has(Mistake::NearTakenUpUnseen);
        if !unlooked {
            direct::sync(core)?;
        }
        let mut outputs = segments.iter().zip(seals).filter(|_| !unlooked);
        // What was not written, or is damaged, is merged again.
        if outputs.any(|(segment, seal)| self.look_at_output(segment, Some(seal)).is_err()) {
            return Ok(None);
        }
        pages.finish()?;
        let segments = segments.into_iter().map(|segment| (level, own(segment))).collect();
        Ok(Some((Made { segments, pages: vec![pages] }, next)))
    }

    /// Looks at what the worker did: what it says, and what is on the pages.
    fn look_at(
        &self,
        job: &Job,
        segments: &[Arc<Segment>],
        pages: &mut DirectPages,
    ) -> std::result::Result<(), String> {
        let believed = self.0.core.faults().has(Mistake::NearAnyAnswer);
        if !believed {
            check(job, segments).map_err(|what| format!("the worker's answer: {what}"))?;
        }
        let used: u64 = segments.iter().map(|segment| segment.meta.pages).sum();
        pages.were_filled(used as usize, job.pages.floor);
        let mut outputs = segments.iter().filter(|_| !believed);
        outputs.try_for_each(|s| self.look_at_output(s, None)).map_err(|e| format!("what the worker wrote: {e}"))
    }

    /// Compares what the worker says of a segment with what the segment says of itself; with the checksum of its last
    /// page, if that is given, and then with all of it.
    fn look_at_output(&self, segment: &Segment, seal: Option<u32>) -> Result<()> {
        let shared = &*self.0;
        let (core, runs) = (shared.core.clone(), segment.runs.clone());
        let place = Arc::new(Place { core, keyspace: shared.keyspace, segment: segment.id, runs });
        let request = if seal.is_some() { QUEUE } else { shared.core.page_size() };
        let source = PastPool::new(&place, request);
        let last = segment.meta.pages.saturating_sub(1);
        if let Some(seal) = seal
            && place.seal(last)? != seal
        {
            return Err(super::PageSource::corrupt(&source, last, "the worker wrote another page there"));
        }
        let reader = SegmentReader::open(&source, segment.id, segment.meta.pages)?;
        if reader.footer().meta == segment.meta {
            return if seal.is_some() { reader.check(&source) } else { Ok(()) };
        }
        Err(super::PageSource::corrupt(&source, last, "the worker says other things of it"))
    }
}

/// What became of an offer.
enum Collected {
    Done(Made),
    /// The host has to do it; what was finished, and the key from which on the rest is.
    Here(Fallback, Option<(Made, Vec<u8>)>),
    /// The thread is to end.
    Stop,
}

impl Made {
    fn add(&mut self, other: Made) {
        self.segments.extend(other.segments);
        self.pages.extend(other.pages);
    }
}

/// The same as a value of its own.
fn own(segment: Arc<Segment>) -> Segment {
    let Segment { id, ref meta, ref runs } = *segment;
    Segment { id, meta: meta.clone(), runs: runs.clone() }
}

/// Runs of neighbours.
fn runs_of(pages: impl Iterator<Item = PageId>) -> PageRuns {
    let mut runs = PageRuns::new();
    for id in pages {
        match runs.last_mut() {
            Some((first, n)) if first.0 + *n == id.0 => *n += 1,
            _ => runs.push((id, 1)),
        }
    }
    assert!(super::list::are_disjoint(&runs), "a worker gets each page once");
    runs
}

/// Whether a key can be the first that is in none of the segments, which were checked.
fn follows(job: &Job, segments: &[Arc<Segment>], next: &[u8]) -> bool {
    let all_before = segments.last().is_some_and(|last| last.meta.compare(next).is_lt());
    all_before && !job.range.is_after(next) && !job.range.is_before(next)
}

/// Whether segments can be what the job asked for: their numbers, pages and keys.
fn check(job: &Job, segments: &[Arc<Segment>]) -> std::result::Result<(), String> {
    let mut room = job.room.iter().flat_map(|(first, n)| (first.0..first.0 + n).map(PageId));
    let mut before: Option<&Segment> = None;
    let commits = job.runs.iter().flatten().map(|input| input.meta.commits);
    let commits = commits.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))).unwrap_or_default();
    for segment in segments {
        let meta = &segment.meta;
        if segment.id < job.options.id || segment.id - job.options.id >= job.ids {
            return Err(format!("segment {} has a number that was not for it", segment.id));
        }
        if !segment
            .runs
            .iter()
            .flat_map(|(first, n)| (first.0..first.0 + n).map(PageId))
            .all(|p| room.next() == Some(p))
        {
            return Err(format!("segment {} is not on the pages that were set aside", segment.id));
        }
        let past = match (&job.range.to, meta.open_end) {
            (Some(to), true) => *meta.largest > **to,
            (to, _) => to.as_ref().is_some_and(|to| *meta.largest >= **to),
        };
        if job.range.is_after(&meta.smallest) || past {
            return Err(format!("segment {} has keys out of its range", segment.id));
        }
        let follows = before.is_none_or(|before| {
            let touches = before.meta.open_end && before.meta.largest == meta.smallest;
            before.id < segment.id && (before.meta.largest < meta.smallest || touches)
        });
        if !follows || meta.commits.0 < commits.0 || meta.commits.1 > commits.1 {
            return Err(format!("segment {} does not follow the one before", segment.id));
        }
        before = Some(segment);
    }
    Ok(())
}
