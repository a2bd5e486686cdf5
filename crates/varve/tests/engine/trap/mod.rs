//! A device that has its user panic.
#![allow(dead_code, reason = "each test uses a part")]

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use varve_device::{Device, DeviceError, DeviceInfo, DeviceStats, Io, Op, Ticket};
use varve_models::MemDevice;

/// A device whose user panics at a write.
pub struct Trap {
    pub inner: Arc<MemDevice>,
    /// Writes until then.
    pub left: AtomicI64,
    /// Only in threads whose name begins so.
    whose: &'static str,
}

impl Trap {
    pub fn new(whose: &'static str) -> Arc<Trap> {
        Trap::over(MemDevice::new(0), whose)
    }

    /// Over this memory; an empty name: in every thread.
    pub fn over(inner: Arc<MemDevice>, whose: &'static str) -> Arc<Trap> {
        Arc::new(Trap { inner, left: AtomicI64::new(i64::MAX), whose })
    }

    /// The write after so many panics.
    pub fn arm(&self, writes: i64) {
        self.left.store(writes, Ordering::SeqCst);
    }

    pub fn sprung(&self) -> bool {
        self.left.load(Ordering::SeqCst) < 0
    }
}

impl Device for Trap {
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
        let writes = batch.iter().any(|io| matches!(io.op, Op::Write { .. }));
        let whose = writes && varve_rt::current_name().starts_with(self.whose);
        if whose && self.left.fetch_sub(1, Ordering::SeqCst) == 0 {
            // By then others wait for what the thread does.
            varve_rt::sleep(Duration::from_millis(50));
            panic!("made to panic");
        }
        self.inner.submit(batch)
    }
    fn stats(&self) -> DeviceStats {
        self.inner.stats()
    }
}
