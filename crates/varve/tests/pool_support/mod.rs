//! What the pool's tests share: a log gate that checks the write-ahead rule's inputs, pages that check themselves.
#![allow(dead_code)] // each test file uses its part

pub mod store;

use std::sync::Arc;
use varve::Result;
use varve::buffer::{LogAge, LogGate, Pool, PoolConfig};
use varve_device::{Faults, Health};
use varve_models::MemDevice;
use varve_rt::atomic::{AtomicBool, AtomicU64, Ordering::*};
use varve_volume::page::HEADER;
use varve_volume::{KeyspaceId, Lsn, PageId, PageStore, Single, page};

/// A log that is a counter: each change takes some bytes; forcing makes a prefix durable.
pub struct Gate {
    end: AtomicU64,
    durable: AtomicU64,
    /// Forcing fails from now on.
    pub poisoned: AtomicBool,
    health: Arc<Health>,
}

impl Gate {
    pub fn new() -> Arc<Gate> {
        Gate::with(Faults::default())
    }

    /// Of a database in which something is to go wrong.
    pub fn with(faults: Faults) -> Arc<Gate> {
        let (end, durable) = (AtomicU64::new(8192), AtomicU64::new(8192));
        Arc::new(Gate { end, durable, poisoned: AtomicBool::new(false), health: Health::with(faults) })
    }

    pub fn end(&self) -> Lsn {
        self.end.load(SeqCst)
    }

    /// Appends a group; its end.
    pub fn append(&self) -> Lsn {
        self.end.fetch_add(100, SeqCst) + 100
    }
}

impl LogGate for Gate {
    fn durable_lsn(&self) -> Lsn {
        self.durable.load(SeqCst)
    }

    fn force(&self, lsn: Lsn) -> Result<()> {
        assert!(lsn <= self.end(), "forced past the end of the log");
        if self.poisoned.load(SeqCst) {
            return Err(varve::Error::Poisoned("for a test".into()));
        }
        self.durable.fetch_max(lsn, SeqCst);
        Ok(())
    }

    fn age(&self) -> LogAge {
        LogAge { bytes_since_redo: self.end() % 1_000_000, capacity: 1_000_000 }
    }

    fn health(&self) -> Arc<Health> {
        self.health.clone()
    }
}

pub fn single(pages: u64) -> Arc<dyn PageStore> {
    Single::new(MemDevice::new(pages * 4096), 4096).unwrap()
}

/// A pool whose background threads do not run yet.
pub fn pool_of(config: PoolConfig, store: Arc<dyn PageStore>, gate: &Arc<Gate>) -> Arc<Pool> {
    Pool::new(config, store, gate.clone()).unwrap()
}

/// Stores `v` all over the page, so that a mixture of two versions shows.
pub fn set(bytes: &mut [u8], v: u64) {
    for word in bytes[HEADER..].chunks_exact_mut(8) {
        word.copy_from_slice(&v.to_le_bytes());
    }
}

/// The page's number; panics when the page is a mixture.
pub fn value(bytes: &[u8]) -> u64 {
    let v = u64::from_le_bytes(bytes[HEADER..HEADER + 8].try_into().unwrap());
    for word in bytes[HEADER..].chunks_exact(8) {
        assert_eq!(u64::from_le_bytes(word.try_into().unwrap()), v, "a mixture of two versions");
    }
    v
}

/// Makes page `p` with the number `v`.
pub fn format(pool: &Pool, gate: &Gate, p: u64, v: u64) {
    let mut page = pool.create(PageId(p), KeyspaceId(1)).unwrap();
    page.set_dirty(gate.end());
    page.bytes_mut().header(|header| page::set_kind(header, 1 + (p % 3) as u8));
    page.bytes_mut().rewrite(|bytes| set(bytes, v));
    page.stamp(gate.append());
}

/// Changes the number of page `p`.
pub fn change(pool: &Pool, gate: &Gate, p: u64, f: impl FnOnce(u64) -> u64) -> Result<()> {
    let mut page = pool.write(PageId(p))?;
    let v = f(value(page.bytes()));
    page.set_dirty(gate.end());
    page.bytes_mut().rewrite(|bytes| set(bytes, v));
    page.stamp(gate.append());
    Ok(())
}
