//! A tier's fast device that fails under a database: what was promised holds over a power cut, and a device of copies
//! costs no more than those.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use varve::{Db, Devices, Durability, Error, Keyspace, Layout, Options, TierOptions};
use varve_device::{Device, DeviceError, DeviceInfo, DeviceStats, Io, OpKind, Ticket};
use varve_models::{MemDevice, Powered};
use varve_rt::Rng;

/// A fast device of which everything fails, or once the flush that follows a superblock.
struct Fast {
    inner: Arc<MemDevice>,
    dead: AtomicBool,
    armed: AtomicBool,
    superblock: AtomicBool,
}

impl Fast {
    fn new() -> Arc<Fast> {
        let no = || AtomicBool::new(false);
        Arc::new(Fast { inner: MemDevice::new(2 << 20), dead: no(), armed: no(), superblock: no() })
    }

    fn fails(&self, batch: &[Io]) -> bool {
        if batch.iter().any(|io| io.op.kind() == OpKind::Write && io.offset < 8192) {
            self.superblock.store(true, Ordering::SeqCst);
        }
        let flushes = batch.iter().any(|io| io.op.kind() == OpKind::Flush);
        let after_superblock = flushes && self.superblock.swap(false, Ordering::SeqCst);
        self.dead.load(Ordering::SeqCst) || after_superblock && self.armed.swap(false, Ordering::SeqCst)
    }
}

impl Device for Fast {
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
        if self.fails(&batch) {
            let device = self.info().name;
            let error = DeviceError::Io { op: OpKind::Flush, device, offset: 0, len: 0, errno: 5, retryable: false };
            return Ticket::ready(batch.iter().map(|_| Err(error.clone())).collect());
        }
        self.inner.submit(batch)
    }
    fn stats(&self) -> DeviceStats {
        self.inner.stats()
    }
}

const KEYS: u64 = 6_000;

fn options(manager: &str) -> Options {
    let tier = TierOptions { manager: manager.into(), ..TierOptions::default() };
    Options { cache_bytes: 1 << 20, tier, ..Options::default() }
}

fn value(key: u64, version: u64) -> Vec<u8> {
    let mut bytes = [key.to_le_bytes(), version.to_le_bytes()].concat();
    bytes.resize(300, key as u8);
    bytes
}

/// A database on a tier, and the versions of its rows.
struct Rig {
    fast: Arc<Fast>,
    data: Arc<MemDevice>,
    log: Arc<MemDevice>,
    db: Db,
    rows: Keyspace,
    versions: Vec<u64>,
    /// Rows whose last change failed: it may be there or not.
    unsure: Vec<u64>,
    rng: Rng,
}

impl Rig {
    fn new(manager: &str, seed: u64) -> Rig {
        let (fast, data, log) = (Fast::new(), MemDevice::new(0), MemDevice::new(0));
        let devices = Devices::new(data.clone(), log.clone()).with("fast", fast.clone());
        let layout = Layout { page_size: 4096, log_bytes: 2 << 20, ..Layout::default() };
        let db = Db::create_on(devices, &layout, options(manager)).unwrap();
        let rows = db.create_keyspace("rows").unwrap();
        for n in 0..KEYS {
            rows.put_with(&n.to_be_bytes(), &value(n, 0), Durability::None).unwrap();
        }
        let (versions, rng) = (vec![0; KEYS as usize], Rng::from_seed(seed));
        Rig { fast, data, log, db, rows, versions, unsure: Vec::new(), rng }
    }

    /// Reads rows and changes some, a few far more than the others, until a change fails.
    fn work(&mut self, uses: u64, durability: Durability) -> varve::Result<()> {
        for n in 0..uses {
            let key = if self.rng.one_in(3) { self.rng.below(KEYS) } else { self.rng.below(KEYS / 8) };
            if n % 3 > 0 {
                assert!(self.rows.get(&key.to_be_bytes()).unwrap().is_some(), "reads go on");
                continue;
            }
            let version = self.versions[key as usize] + 1;
            let put = self.rows.put_with(&key.to_be_bytes(), &value(key, version), durability);
            put.inspect_err(|_| self.unsure.push(key))?;
            self.versions[key as usize] = version;
        }
        Ok(())
    }

    /// The power goes; keys whose version is not the one that was promised, nor the next of a change that failed.
    fn wrong_after_a_cut(self, manager: &str) -> Vec<u64> {
        let Rig { fast, data, log, versions, unsure, db, rows, .. } = self;
        [&data, &log, &fast.inner].iter().for_each(|device| _ = device.power_cut(7));
        drop((db, rows));
        [&data, &log, &fast.inner].iter().for_each(|device| device.restore_power());
        let devices = Devices::new(data.clone_image(), log.clone_image());
        let devices = devices.with("fast", fast.inner.clone_image());
        let db = Db::open_on(devices, options(manager)).unwrap();
        assert!(db.check().unwrap().is_clean());
        let rows = db.keyspace("rows").unwrap();
        let is = |n: u64| {
            let (now, version) = (rows.get(&n.to_be_bytes()).unwrap(), versions[n as usize]);
            now == Some(value(n, version)) || unsure.contains(&n) && now == Some(value(n, version + 1))
        };
        (0..KEYS).filter(|n| !is(*n)).collect()
    }
}

#[test]
fn a_failed_flush_of_a_map_poisons_the_database_unless_it_maps_copies() {
    for manager in ["cac", "cw", "lru2"] {
        for seed in 1..=3 {
            let mut rig = Rig::new(manager, seed);
            rig.work(6_000, Durability::None).unwrap();
            rig.db.checkpoint().unwrap();
            rig.fast.armed.store(true, Ordering::SeqCst);
            for _ in 0..200 {
                if !rig.fast.armed.load(Ordering::SeqCst) {
                    break;
                }
                // (What is not in the log when the database is poisoned is not acknowledged either.)
                let _ = rig.work(30, Durability::Sync);
                let _ = rig.db.flush_tier();
                let _ = rig.db.resize_tier(if rig.rng.one_in(2) { 2 << 20 } else { 3 << 19 });
            }
            assert!(!rig.fast.armed.load(Ordering::SeqCst), "a map was written");
            let went_on = rig.work(300, Durability::Sync);
            let checkpoint = rig.db.checkpoint();
            if manager == "cw" {
                went_on.and(checkpoint).unwrap();
            } else {
                assert!(matches!(checkpoint, Err(Error::Poisoned(why)) if why.contains("the tier")), "{went_on:?}");
                assert!(went_on.is_err());
            }
            assert_eq!(rig.wrong_after_a_cut(manager), [0; 0], "{manager}, seed {seed}");
        }
    }
}

#[test]
fn a_fast_device_of_copies_that_dies_costs_no_more_than_those() {
    for manager in ["cw", "dw", "tac"] {
        let mut rig = Rig::new(manager, 1);
        rig.work(6_000, Durability::None).unwrap();
        rig.db.checkpoint().unwrap();
        rig.fast.dead.store(true, Ordering::SeqCst);
        // As much as fills the log several times over: checkpoints go on.
        rig.work(60_000, Durability::None).unwrap();
        rig.db.checkpoint().unwrap();
        assert_eq!(rig.db.stats().tier.unwrap().counters.lost, 0);
        assert!(rig.db.check().unwrap().is_clean());
        rig.work(300, Durability::Sync).unwrap();
        // It is there again after the cut, with copies that are out of date.
        rig.fast.dead.store(false, Ordering::SeqCst);
        assert_eq!(rig.wrong_after_a_cut(manager), [0; 0], "{manager}");
    }
}
