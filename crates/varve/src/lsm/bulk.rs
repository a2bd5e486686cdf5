//! Bulk load: ascending rows become segments of the last level, which are listed some at a time.
//!
//! The keyspace is hidden while it is loaded, so nobody reads, writes, flushes or merges it.
//!
//! Invariant: keys ascend from row to row; segments are listed in the order of their keys.

use super::index::{Lsm, Shared};
use super::install::Change;
use super::pages::Sink;
use super::segment::SegmentWriter;
use super::{Entry, EntryKind, LAST_LEVEL, Segment};
use crate::error::{Error, Result};
use crate::role::{self, Role};
use std::sync::Arc;
use varve_volume::Lsn;

/// Segments that are written before they are listed.
const UNLISTED: usize = 16;

/// A load of ascending rows into an empty keyspace.
pub(crate) struct BulkLoad {
    shared: Arc<Shared>,
    /// The commit number of all rows.
    commit: Lsn,
    sink: Sink,
    writer: Option<SegmentWriter>,
    /// Number of the segment that is being written.
    id: u64,
    /// Bytes at which a segment ends.
    most: u64,
    last: Option<Vec<u8>>,
    done: Vec<(u8, Segment)>,
}

impl Lsm {
    /// Begins a load.
    pub(crate) fn bulk_load(&self) -> BulkLoad {
        let shared = self.0.clone();
        let commit = shared.core.log.end_lsn();
        let sink = Sink::new(&shared.core, shared.keyspace);
        let most = shared.shape().segment_bytes;
        BulkLoad { shared, commit, sink, writer: None, id: 0, most, last: None, done: Vec::new() }
    }
}

impl BulkLoad {
    /// Takes the next row. Fails when its key is not above the one before, or key or value are too long; what was
    /// loaded before stays.
    pub(crate) fn push(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let (max, longest) = (self.shared.tree.max_key(), Lsm(self.shared.clone()).max_value());
        if key.len() > max {
            return Err(Error::KeySize { len: key.len(), max });
        }
        if value.len() as u64 > longest {
            return Err(Error::ValueSize { len: value.len() as u64, max: longest });
        }
        if self.last.as_deref().is_some_and(|last| last >= key) {
            return Err(Error::Invalid("a bulk load needs keys in ascending order, each once".into()));
        }
        if self.writer.as_ref().is_some_and(|writer| writer.bytes() >= self.most) {
            self.close()?;
        }
        let usable = self.shared.core.usable(self.shared.keyspace);
        let writer = match &mut self.writer {
            Some(writer) => writer,
            None => {
                self.id = self.shared.next_id();
                let options = self.shared.segment_options(self.id);
                self.writer.insert(SegmentWriter::new(options, usable))
            }
        };
        writer.add(&Entry { key, commit: self.commit, kind: EntryKind::Put, value }, &mut self.sink)?;
        let last = self.last.get_or_insert_default();
        last.clear();
        last.extend_from_slice(key);
        Ok(())
    }

    /// Ends the segment that is being written.
    fn close(&mut self) -> Result<()> {
        let Some(writer) = self.writer.take() else { return Ok(()) };
        let meta = writer.finish(&mut self.sink)?;
        let segment = Segment { id: self.id, meta, runs: self.sink.take_runs() };
        assert!(self.done.last().is_none_or(|(_, last)| last.meta.largest < segment.meta.smallest), "keys ascend");
        self.done.push((LAST_LEVEL, segment));
        if self.done.len() >= UNLISTED { self.list() } else { Ok(()) }
    }

    /// Lists the segments that are complete.
    fn list(&mut self) -> Result<()> {
        if self.done.is_empty() {
            return Ok(());
        }
        let empty = Sink::new(&self.shared.core, self.shared.keyspace);
        let pages = vec![std::mem::replace(&mut self.sink, empty).into_pages()];
        assert!(self.writer.is_none(), "segments are listed when they are complete");
        let _one = self.shared.flushing.lock();
        self.shared.note_newest(self.commit);
        let change = Change { added: std::mem::take(&mut self.done), pages, ..Change::default() };
        // As in flushes: who holds the pages that are linked does not wait for room in the log.
        role::with(Role::Merger, || self.shared.install(change))
    }

    /// Ends the load: every row is in a segment that is listed, and shows to who reads now.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.close()?;
        self.list()?;
        // Reads are as of the horizon, and no commit has moved it to the load's own number.
        let core = &self.shared.core;
        core.horizon.wait(&core.log, self.commit);
        assert!(core.horizon.reached() >= self.commit || varve_rt::dying(), "what was loaded shows");
        Ok(())
    }
}
