//! Tracing: what a pool tells a sink of its pages, for replay and for sizing.
//!
//! Off (no sink in the configuration) it costs one branch where an access is recorded. On, every access is told in the
//! order in which it happened, with the page's latch held. To know how many bytes a flush changes, the bytes of each
//! dirty page as they were stored last are kept (memory for one more copy of every dirty page).
//!
//! Invariant: the copy of a dirty page is what was stored last of it, or is being stored; clean pages have none once
//! they were told of.
//!
//! Lock order: latch, then the lock of the copies, which is a leaf; the sink is called with neither that nor an
//! instance lock held.

use std::sync::Arc;
use varve_rt::{HashMap, Mutex};
use varve_volume::{PageId, WriteWhy, page};

/// Something that happened to a page of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceEvent {
    /// It was latched for reading.
    Read(PageId),
    /// It was latched for writing.
    Write(PageId),
    /// It was made, and nothing read.
    Create(PageId),
    /// Read-ahead brought it.
    Prefetch(PageId),
    /// It was freed and left the pool.
    Discard(PageId),
    /// It is being written to the store.
    Flush {
        /// The page.
        page: PageId,
        /// Why.
        why: WriteWhy,
        /// Bytes behind the page header that differ from what was stored last, if that is known.
        changed: Option<u32>,
    },
}

/// Takes events. Called from any thread, with page latches held: must not use the pool, and should not wait.
pub trait TraceSink: Send + Sync {
    /// Something happened.
    fn event(&self, event: TraceEvent);
}

/// A sink in a configuration. Equal to itself only.
#[derive(Clone)]
pub struct TraceHandle(pub Arc<dyn TraceSink>);

impl PartialEq for TraceHandle {
    fn eq(&self, other: &TraceHandle) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl std::fmt::Debug for TraceHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TraceHandle")
    }
}

/// The pool's side.
pub(super) struct Tracer {
    sink: Arc<dyn TraceSink>,
    /// Dirty pages as they were stored last.
    stored: Mutex<HashMap<u64, Box<[u8]>>>,
}

impl Tracer {
    pub(super) fn new(handle: &TraceHandle) -> Tracer {
        Tracer { sink: handle.0.clone(), stored: Mutex::new(HashMap::default()) }
    }

    pub(super) fn event(&self, event: TraceEvent) {
        self.sink.event(event);
    }

    /// A clean page is about to be changed, perhaps; `bytes` is what is stored if nothing was taken down yet. Under its
    /// exclusive latch.
    pub(super) fn changing(&self, id: PageId, bytes: &[u8]) {
        self.stored.lock().entry(id.0).or_insert_with(|| bytes.into());
    }

    /// A page is copied for writing. Under its shared latch.
    pub(super) fn flush(&self, id: PageId, why: WriteWhy, bytes: &[u8]) {
        let before = self.stored.lock().insert(id.0, bytes.into());
        let changed = before.map(|before| {
            assert_eq!(before.len(), bytes.len(), "pages are of one size");
            let differ = |at: usize| before[at] != bytes[at];
            (page::HEADER..bytes.len()).filter(|at| differ(*at)).count() as u32
        });
        self.event(TraceEvent::Flush { page: id, why, changed });
    }

    /// What is in the pool of a page is of no interest any more: it is clean, or was given up.
    pub(super) fn forget(&self, id: PageId) {
        self.stored.lock().remove(&id.0);
    }
}
