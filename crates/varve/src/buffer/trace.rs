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
use varve_volume::{KeyspaceId, PageId, WriteWhy, page};

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
    Flush(Flush),
}

/// A write of a page to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flush {
    /// The page.
    pub page: PageId,
    /// Why.
    pub why: WriteWhy,
    /// Whose it is; none: an old trace does not say.
    pub keyspace: Option<KeyspaceId>,
    /// The page was made here and not read back since: no update of what is stored.
    pub new: bool,
    /// Nobody keeps a list of what changed, whatever it is: the page can be written whole only.
    pub whole: bool,
    /// What differs from what was stored last, if that is known.
    pub changed: Option<Changed>,
}

/// Bytes of a page that differ from what was stored last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Changed {
    /// Behind the page header.
    pub net: u32,
    /// Of the header too, but for the checksum; none: an old trace does not say.
    pub gross: Option<u32>,
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

/// Bytes of the page's checksum, which comes first and is no changed byte.
const CHECKSUM: usize = 4;

fn changed(before: &[u8], now: &[u8]) -> Changed {
    assert_eq!(before.len(), now.len(), "pages are of one size");
    let differ = |from: usize| before[from..].iter().zip(&now[from..]).filter(|(a, b)| a != b).count() as u32;
    Changed { net: differ(page::HEADER), gross: Some(differ(CHECKSUM)) }
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

    /// A page is copied for writing. Under its shared latch. `new`: see [`Flush`].
    pub(super) fn flush(&self, id: PageId, why: WriteWhy, bytes: &[u8], (new, whole): (bool, bool)) -> Flush {
        let before = self.stored.lock().insert(id.0, bytes.into());
        let new = new || before.is_none();
        let changed = before.map(|before| changed(&before, bytes));
        let flush = Flush { page: id, why, keyspace: Some(page::keyspace(bytes)), new, whole, changed };
        self.event(TraceEvent::Flush(flush));
        flush
    }

    /// What is in the pool of a page is of no interest any more: it is clean, or was given up.
    pub(super) fn forget(&self, id: PageId) {
        self.stored.lock().remove(&id.0);
    }
}
