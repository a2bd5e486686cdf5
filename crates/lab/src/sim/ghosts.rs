//! Databases that are dropped without a close. What a directory's lock is for an opening, a [`Fence`] is here: the
//! next one waits until nobody has the devices of the one before, and nothing may be written once its last handle is
//! gone.

use std::sync::{Arc, Weak};
use std::time::Duration;
use varve_device::{Device, DeviceError, DeviceInfo, DeviceStats, Hint, Io, Op, Ticket};
use varve_rt::{Instant, Mutex, hardware_mutex};

/// Virtual time within which a dropped database lets its devices go.
const LIMIT: Duration = Duration::from_secs(120);

/// A request may be past the engine's own look, and not here yet, when the last handle goes: the thread may have lost
/// its core in between. (A destructor waits for nobody in a simulation.) A change of an array's drives is several
/// requests, one after the other, and is not left half done.
const UNDER_WAY: Duration = Duration::from_millis(100);

/// Stands around the devices of one opening.
struct Fence {
    /// When the last handle went.
    closed: Mutex<Option<Instant>>,
}

/// The fence of the newest opening, and what was written through a closed one.
pub(crate) struct Fences {
    newest: Mutex<Weak<Fence>>,
    written: Arc<Mutex<Option<String>>>,
}

/// Held by whoever has handles of a database; the last one that is dropped closes the fence.
#[derive(Clone)]
pub(crate) struct Holder(#[expect(dead_code, reason = "held for its drop")] Arc<Closer>);

struct Closer(Weak<Fence>);

impl Drop for Closer {
    fn drop(&mut self) {
        if let Some(fence) = self.0.upgrade().filter(|_| !varve_rt::dying()) {
            *fence.closed.lock() = Some(varve_rt::now());
        }
    }
}

impl Fences {
    pub(crate) fn new() -> Fences {
        Fences { newest: hardware_mutex(Weak::new()), written: Arc::new(hardware_mutex(None)) }
    }

    /// Puts a fence of its own around each opening's devices.
    pub(crate) fn around(&self, devices: Vec<Option<Arc<dyn Device>>>) -> Vec<Option<Arc<dyn Device>>> {
        let fence = Arc::new(Fence { closed: hardware_mutex(None) });
        *self.newest.lock() = Arc::downgrade(&fence);
        let around = |inner: Arc<dyn Device>| {
            Arc::new(Fenced { inner, fence: fence.clone(), written: self.written.clone() }) as Arc<dyn Device>
        };
        devices.into_iter().map(|device| device.map(around)).collect()
    }

    /// For those that have handles of the newest opening.
    pub(crate) fn holder(&self) -> Holder {
        Holder(Arc::new(Closer(self.newest.lock().clone())))
    }

    /// Waits until nobody has the devices of the newest opening; false: somebody keeps them.
    pub(crate) fn wait_alone(&self) -> bool {
        let began = varve_rt::now();
        loop {
            if self.newest.lock().strong_count() == 0 {
                return true;
            }
            if began.elapsed() > LIMIT {
                return false;
            }
            varve_rt::sleep(Duration::from_micros(50));
        }
    }

    /// The former owner of the devices has lost its power.
    pub(crate) fn forget(&self) {
        *self.newest.lock() = Weak::new();
    }

    /// What was written after the last handle was gone.
    pub(crate) fn written_after_the_end(&self) -> Option<String> {
        self.written.lock().take()
    }
}

/// A device within a fence.
struct Fenced {
    inner: Arc<dyn Device>,
    fence: Arc<Fence>,
    written: Arc<Mutex<Option<String>>>,
}

impl Fenced {
    fn note(&self, what: impl FnOnce() -> String) {
        if self.fence.closed.lock().is_some_and(|at| at.elapsed() > UNDER_WAY) {
            let who = varve_rt::current_name();
            self.written.lock().get_or_insert_with(|| format!("{} by thread {who}", what()));
        }
    }

    /// Requests that are submitted together count as one: the first that is no read.
    fn note_io(&self, batch: &[Io]) {
        if let Some(io) = batch.iter().find(|io| !matches!(io.op, Op::Read)) {
            self.note(|| format!("{} at {} of {}", io.op.kind(), io.offset, self.inner.info().name));
        }
    }
}

impl Device for Fenced {
    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn set_len(&self, len: u64) -> Result<(), DeviceError> {
        self.note(|| format!("a change of length to {len} of {}", self.inner.info().name));
        self.inner.set_len(len)
    }

    fn submit(&self, batch: Vec<Io>) -> Ticket {
        self.note_io(&batch);
        self.inner.submit(batch)
    }

    fn run(&self, io: Io) -> Result<(), DeviceError> {
        self.note_io(std::slice::from_ref(&io));
        self.inner.run(io)
    }

    fn stats(&self) -> DeviceStats {
        self.inner.stats()
    }

    fn hint(&self, range: std::ops::Range<u64>, hint: Hint) {
        self.inner.hint(range, hint);
    }
}
