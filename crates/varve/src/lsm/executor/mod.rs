//! Executors of merges: how reading, working and writing are put together.
//!
//! A merge reads the data blocks of its inputs in the order in which it needs them, in *batches*; checks, unpacks and
//! merges them, keeps what somebody can still see, packs it again; and writes *pieces*: pages of the new segments, and
//! what there is to know of each at its end. [`read`] and [`work`] are these stages. An executor is who calls whom, and
//! on which thread. Every executor leaves the same rows.

mod pcp;
mod read;
mod sequential;
pub(crate) mod split;
mod work;

pub(crate) use pcp::Pcp;
pub(crate) use sequential::Sequential;

use super::merge::Below;
use super::segment::{SegmentOptions, SegmentReader};
use super::{PageSink, PageSource, Segment, SegmentMeta};
use crate::error::Result;
use std::sync::Arc;
use varve_volume::Lsn;

/// Bytes of a batch, and of a piece, about.
pub(crate) const BATCH: usize = 64 << 10;

/// A segment that goes in.
#[derive(Clone)]
pub(crate) struct Input {
    pub reader: Arc<SegmentReader>,
    /// Its pages, past the pool.
    pub source: Arc<dyn PageSource>,
}

/// Keys from one (included; none: from the first) to another (not included; none: to the last).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    pub from: Option<Vec<u8>>,
    pub to: Option<Vec<u8>>,
}

impl Span {
    /// Whether a key lies before the range.
    pub(crate) fn is_after(&self, key: &[u8]) -> bool {
        self.from.as_deref().is_some_and(|from| key < from)
    }

    /// Whether a key lies past the range.
    pub(crate) fn is_before(&self, key: &[u8]) -> bool {
        self.to.as_deref().is_some_and(|to| key >= to)
    }

    /// Whether a segment may have keys of the range.
    pub(crate) fn meets(&self, meta: &SegmentMeta) -> bool {
        let ends_before = self.from.as_deref().is_some_and(|from| meta.compare(from).is_lt());
        !ends_before && !self.is_before(&meta.smallest)
    }
}

/// What is to be merged.
#[derive(Clone)]
pub(crate) struct Task {
    /// Sorted runs, in any order; the segments of a run are disjoint and ascend.
    pub runs: Vec<Vec<Input>>,
    /// Of their keys, these. All versions of a key are in a range or out of it.
    pub range: Span,
    /// The moments of open snapshots, ascending.
    pub moments: Vec<Lsn>,
    /// The levels below the outputs.
    pub below: Below,
    /// Segments of the level after the outputs' one, in key order; an output ends before it overlaps more pages of
    /// them than `most_overlap`.
    pub grandparents: Vec<Arc<Segment>>,
    pub most_overlap: u64,
    /// How outputs are written; their numbers come from `next_id`.
    pub options: SegmentOptions,
    pub next_id: Arc<dyn Fn() -> u64 + Send + Sync>,
    /// Bytes of an output, about.
    pub segment_bytes: u64,
    /// Usable bytes of a page.
    pub usable: usize,
    /// A value of more bytes is large, for who counts those.
    pub large: usize,
}

/// Bytes of the largest blocks of some inputs, as they are on average in each: what a request should have at least.
pub(crate) fn block_bytes(runs: &[Vec<Input>]) -> usize {
    let footers = runs.iter().flatten().map(|input| input.reader.footer());
    footers.map(|footer| footer.data.div_ceil(footer.blocks.max(1)) as usize).max().unwrap_or(0)
}

/// What a merge was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Pairs that went in.
    pub pairs: u64,
    /// Those of them with large values.
    pub large: u64,
    /// Bytes of data blocks read, as they are stored.
    pub read: u64,
    /// Bytes of pages written.
    pub written: u64,
}

/// Takes the outputs, one after the other.
pub(crate) trait Outputs: PageSink {
    /// The pages since the last call are this segment, whose number is `id`. With the outputs before it has all keys of
    /// the task before `next`, and none from there on; without that it is the last one.
    fn done(&mut self, id: u64, meta: SegmentMeta, next: Option<Vec<u8>>) -> Result<()>;

    /// Waits until the pages taken so far are written.
    fn wait(&mut self) -> Result<()>;

    /// Called between pieces: what is more urgent may be done here. An error gives the merge up.
    fn pause(&mut self) -> Result<()>;
}

/// A way to do a merge.
pub(crate) trait Executor: Send + Sync {
    /// Its name in options and reports.
    fn name(&self) -> &'static str;

    /// Does the merge. When it fails, what the outputs took is to be thrown away.
    fn run(&self, task: Arc<Task>, outputs: &mut dyn Outputs) -> Result<Tally>;
}

/// The executor of this name, with queues of so many bytes where it has any.
pub(crate) fn by_name(name: &str, queue_bytes: usize) -> Option<Box<dyn Executor>> {
    match name {
        "sequential" => Some(Box::new(Sequential)),
        "pcp" => Some(Box::new(Pcp::new(queue_bytes))),
        _ => None,
    }
}

/// Names of the executors.
pub(crate) const NAMES: &[&str] = &["sequential", "pcp"];

/// Some pages of an output, or its end.
enum Piece {
    Pages(Vec<u8>),
    Done(u64, SegmentMeta, Option<Vec<u8>>),
}

impl Piece {
    fn put(self, outputs: &mut dyn Outputs) -> Result<()> {
        match self {
            Piece::Pages(bytes) => {
                let usable = outputs.usable();
                bytes.chunks(usable).try_for_each(|page| outputs.page(&mut |to| to.copy_from_slice(page)))
            }
            Piece::Done(id, meta, next) => outputs.done(id, meta, next),
        }
    }
}

#[cfg(test)]
mod tests;
