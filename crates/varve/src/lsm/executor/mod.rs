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

/// What is to be merged.
pub(crate) struct Task {
    /// Sorted runs, in any order; the segments of a run are disjoint and ascend.
    pub runs: Vec<Vec<Input>>,
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
    pub next_id: Box<dyn Fn() -> u64 + Send + Sync>,
    /// Bytes of an output, about.
    pub segment_bytes: u64,
    /// Usable bytes of a page.
    pub usable: usize,
}

/// Takes the outputs, one after the other.
pub(crate) trait Outputs: PageSink {
    /// The pages since the last call are this segment, whose number is `id`.
    fn done(&mut self, id: u64, meta: SegmentMeta) -> Result<()>;

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
    fn run(&self, task: Arc<Task>, outputs: &mut dyn Outputs) -> Result<()>;
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
    Done(u64, SegmentMeta),
}

impl Piece {
    fn put(self, outputs: &mut dyn Outputs) -> Result<()> {
        match self {
            Piece::Pages(bytes) => {
                let usable = outputs.usable();
                bytes.chunks(usable).try_for_each(|page| outputs.page(&mut |to| to.copy_from_slice(page)))
            }
            Piece::Done(id, meta) => outputs.done(id, meta),
        }
    }
}

#[cfg(test)]
mod tests;
