//! Recording a running engine: a sink for the buffer pool's events that writes our compact format.
//!
//! Events come from any thread, with a page's latch held; they are taken down in memory under a lock and handed to a
//! writer thread in chunks, so nobody waits for the file unless it falls far behind. Lock order: the lock is a leaf.

use super::compact::{About, Writer};
use std::fs::File;
use std::io::{self, BufWriter};
use std::path::Path;
use std::sync::Arc;
use varve::Db;
use varve::buffer::{TraceEvent, TraceHandle, TraceSink};
use varve_rt::atomic::{AtomicBool, Ordering};
use varve_rt::channel::{self, Sender};
use varve_rt::{Instant, JoinHandle, Mutex};

/// Events handed over at once, and chunks that may wait for the writer.
const CHUNK: usize = 8192;
const WAITING: usize = 64;

type Chunk = Vec<(u64, TraceEvent)>;

#[derive(Default)]
struct Open {
    chunk: Chunk,
    /// There while recording.
    to_writer: Option<Sender<Chunk>>,
    about: Arc<Mutex<About>>,
    began: Option<Instant>,
}

/// Writes what the pool does to a file, from [`Recorder::start`] to [`Recorder::finish`]; at other times it listens to
/// nothing.
#[derive(Default)]
pub struct Recorder {
    on: AtomicBool,
    open: Mutex<Open>,
    writer: Mutex<Option<JoinHandle<io::Result<u64>>>>,
}

impl Recorder {
    /// A recorder that does not record yet.
    pub fn new() -> Arc<Recorder> {
        Arc::new(Recorder::default())
    }

    /// For a database's options.
    pub fn handle(self: &Arc<Self>) -> TraceHandle {
        TraceHandle(self.clone())
    }

    /// Begins to record to a new file; `page_size` in bytes. Panics when it records already.
    pub fn start(&self, path: &Path, page_size: u32) -> io::Result<()> {
        let mut thread = self.writer.lock();
        assert!(thread.is_none(), "the recorder is in use");
        let mut writer = Writer::new(BufWriter::with_capacity(1 << 20, File::create(path)?), page_size)?;
        let (to_writer, chunks) = channel::bounded::<Chunk>(WAITING);
        let about = Arc::new(Mutex::new(About::default()));
        let of_database = about.clone();
        *thread = Some(varve_rt::spawn("trace-writer", move || {
            while let Ok(chunk) = chunks.recv() {
                for (time, event) in chunk {
                    writer.push(time, event)?;
                }
            }
            let total = writer.total();
            writer.about(&of_database.lock())?;
            writer.finish()?.into_inner()?.sync_all()?;
            Ok(total)
        }));
        let (chunk, to_writer, began) = (Vec::with_capacity(CHUNK), Some(to_writer), Some(varve_rt::now()));
        *self.open.lock() = Open { chunk, to_writer, about, began };
        self.on.store(true, Ordering::Release);
        Ok(())
    }

    /// What the trace says of its database: its pages, the names of its keyspaces. To be told before it is finished.
    pub fn about(&self, db: &Db) {
        let about = About { pages: db.stats().pages, keyspaces: db.keyspace_names() };
        *self.open.lock().about.lock() = about;
    }

    /// Ends recording and completes the file; the number of events in it, 0 when nothing was recorded.
    pub fn finish(&self) -> io::Result<u64> {
        self.on.store(false, Ordering::Release);
        {
            let mut open = self.open.lock();
            let last = std::mem::take(&mut open.chunk);
            if let Some(to_writer) = open.to_writer.take() {
                // A writer that failed is gone, and says why below.
                let _ = to_writer.send(last);
            }
        }
        let Some(thread) = self.writer.lock().take() else { return Ok(0) };
        thread.join().map_err(|panicked| io::Error::other(panicked.to_string()))?
    }
}

impl TraceSink for Recorder {
    fn event(&self, event: TraceEvent) {
        if !self.on.load(Ordering::Acquire) {
            return;
        }
        let mut open = self.open.lock();
        let Some(began) = open.began.filter(|_| open.to_writer.is_some()) else { return };
        let time = began.elapsed().as_nanos() as u64;
        open.chunk.push((time, event));
        if open.chunk.len() >= CHUNK {
            let full = std::mem::replace(&mut open.chunk, Vec::with_capacity(CHUNK));
            if let Some(to_writer) = &open.to_writer
                && to_writer.send(full).is_err()
            {
                open.to_writer = None;
            }
        }
    }
}
