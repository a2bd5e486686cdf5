//! Devices of a point: a model by role, over a copy of a loaded image; and a wrapper that counts who writes.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use varve_device::{Device, DeviceError, DeviceInfo, DeviceStats, Io, ModelStats, Modelled, Op, Profile, Ticket};
use varve_rt::Local;

/// The calling thread is a client of the workload, not a service thread of the engine.
static CLIENT: Local<Cell<bool>> = Local::new(|| Cell::new(false));

/// Marks the calling thread as a client.
pub(super) fn mark_client() {
    CLIENT.with(|c| c.set(true));
}

/// A device that takes next to no time, to load a database on.
pub(super) fn instant() -> Profile {
    let text = "name = \"instant\"\n[fixed]\nread_random_ms = 1e-6\nread_sequential_ms = 1e-6\n\
                write_random_ms = 1e-6\nwrite_sequential_ms = 1e-6\nservers = 4096\n";
    Profile::parse(text, "instant").expect("the text is a constant")
}

/// Counts the writes that clients issue themselves.
pub(super) struct Watched {
    inner: Arc<dyn Modelled>,
    client_writes: AtomicU64,
}

impl Watched {
    pub fn new(inner: Arc<dyn Modelled>) -> Arc<Watched> {
        Arc::new(Watched { inner, client_writes: AtomicU64::new(0) })
    }

    /// Write requests by threads marked with [`mark_client`].
    pub fn client_writes(&self) -> u64 {
        self.client_writes.load(Relaxed)
    }

    /// What the model knows of itself.
    pub fn model(&self) -> ModelStats {
        self.inner.model_stats()
    }

    fn note<'a>(&self, mut batch: impl Iterator<Item = &'a Io>) {
        if CLIENT.with(Cell::get) {
            let writes = batch.by_ref().filter(|io| matches!(io.op, Op::Write { .. })).count();
            self.client_writes.fetch_add(writes as u64, Relaxed);
        }
    }
}

impl Device for Watched {
    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn set_len(&self, len: u64) -> Result<(), DeviceError> {
        self.inner.set_len(len)
    }

    fn submit(&self, batch: Vec<Io>) -> Ticket {
        self.note(batch.iter());
        self.inner.submit(batch)
    }

    fn run(&self, io: Io) -> Result<(), DeviceError> {
        self.note(std::iter::once(&io));
        self.inner.run(io)
    }

    fn stats(&self) -> DeviceStats {
        self.inner.stats()
    }
}
