//! Devices of a point: a model by role, over a copy of a loaded image; flash drives that several points begin with; and
//! a wrapper that counts who writes.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use varve_device::{Device, DeviceError, DeviceInfo, DeviceStats, Hint, Io, Op, Ticket};
use varve_models::flash::Drive;
use varve_models::{Build, ModelStats, Modelled, Profile, ProfileError};
use varve_rt::{Local, Mutex};

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

/// Drives that are kept for further points: data and log of three seeds, whose points come by turns, and two more.
const KEPT: usize = 8;

type Slot = Arc<Mutex<Option<Arc<Drive>>>>;

/// Flash drives, filled and aged once for all points that begin with the same; each point takes a copy, which shares
/// what neither changes. Used on OS threads only.
#[derive(Default)]
pub(super) struct Drives(Mutex<Vec<(String, Slot)>>);

impl Drives {
    /// The drive of a device that begins as `how` says with the contents that `contents` names; `None` if it is no
    /// flash drive. A point that wants one that is being made waits.
    pub fn get(&self, profile: &Profile, contents: &str, how: &Build) -> Result<Option<Arc<Drive>>, ProfileError> {
        if profile.flash.is_none() {
            return Ok(None);
        }
        let key = format!("{} {} {} {} {contents} {}", how.seed, how.len, how.aged, how.keep, profile.to_toml());
        let cell = {
            let mut kept = self.0.lock();
            match kept.iter().find(|(k, _)| *k == key) {
                Some((_, cell)) => cell.clone(),
                None => {
                    if kept.len() >= KEPT {
                        kept.remove(0);
                    }
                    let cell = Slot::default();
                    kept.push((key, cell.clone()));
                    cell
                }
            }
        };
        let mut drive = cell.lock();
        if drive.is_none() {
            *drive = profile.drive(how)?;
        }
        Ok(drive.clone())
    }
}

/// Counts the writes that clients issue themselves.
pub(super) struct Counted {
    inner: Arc<dyn Modelled>,
    /// What requests go to: the model, or what stands before it.
    way: Arc<dyn Device>,
    client_writes: AtomicU64,
}

impl Counted {
    pub fn new(inner: Arc<dyn Modelled>) -> Arc<Counted> {
        Counted::behind(inner.clone(), inner)
    }

    /// A model whose requests go through `way`.
    pub fn behind(inner: Arc<dyn Modelled>, way: Arc<dyn Device>) -> Arc<Counted> {
        Arc::new(Counted { inner, way, client_writes: AtomicU64::new(0) })
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

impl Device for Counted {
    fn info(&self) -> DeviceInfo {
        self.way.info()
    }

    fn len(&self) -> u64 {
        self.way.len()
    }

    fn set_len(&self, len: u64) -> Result<(), DeviceError> {
        self.way.set_len(len)
    }

    fn submit(&self, batch: Vec<Io>) -> Ticket {
        self.note(batch.iter());
        self.way.submit(batch)
    }

    fn run(&self, io: Io) -> Result<(), DeviceError> {
        self.note(std::iter::once(&io));
        self.way.run(io)
    }

    fn stats(&self) -> DeviceStats {
        self.inner.stats()
    }

    fn hint(&self, range: std::ops::Range<u64>, hint: Hint) {
        self.way.hint(range, hint);
    }
}
