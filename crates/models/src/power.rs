//! Power that fails: for all devices of a machine at once, at a chosen operation or moment.
//!
//! Invariants: devices lose their power when it is on, and get it back when it is off; an order to cut is carried out
//! once; a cut is counted before any device knows of it.
//!
//! Lock order: `devices` before a device's own lock; the callback runs with no lock held.

use std::sync::{Arc, Weak};
use varve_rt::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use varve_rt::{Event, Mutex};

/// What a power cut did, for statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CutReport {
    /// Atomic units that had bytes which were not durable.
    pub units: u64,
    /// Of those, units that fell back to their durable bytes.
    pub lost: u64,
    /// Of those, units that kept a version other than the newest or the durable one.
    pub reordered: u64,
    /// Writes of which some units survived in their newest version and others did not.
    pub torn_writes: u64,
}

impl CutReport {
    /// Adds the cut of another device.
    pub fn add(&mut self, other: CutReport) {
        self.units += other.units;
        self.lost += other.lost;
        self.reordered += other.reordered;
        self.torn_writes += other.torn_writes;
    }
}

/// A device that can lose its power.
pub trait Powered: Send + Sync {
    /// Keeps requests submitted from now on in flight until the power is cut, so that they are caught half done.
    fn hold(&self);
    /// Cuts the power: what was not durable survives in part, chosen by `seed`. Requests answer `PowerLost` until
    /// [`Powered::restore_power`], those in flight too. Does nothing while the power is off.
    fn power_cut(&self, seed: u64) -> CutReport;
    /// Turns the power on again.
    fn restore_power(&self);
}

/// The power supply of a set of devices. Counts the operations of the [`crate::Faulty`] devices that it feeds, and cuts
/// the power of all at once, at the n-th operation or when told to.
pub struct PowerSupply {
    /// Not kept alive: a device that counts its own operations keeps its supply.
    devices: Mutex<Vec<Weak<dyn Powered>>>,
    ops: AtomicU64,
    /// Number of the operation that cuts the power; 0 = none.
    cut_at: AtomicU64,
    seed: AtomicU64,
    cuts: AtomicU64,
    on: AtomicBool,
    off: Event,
    callback: Mutex<Option<Callback>>,
    last: Mutex<CutReport>,
}

type Callback = Arc<dyn Fn() + Send + Sync>;

impl PowerSupply {
    /// A supply that is on and feeds nothing yet.
    pub fn new() -> Arc<PowerSupply> {
        Arc::new(PowerSupply {
            devices: Mutex::new(Vec::new()),
            ops: AtomicU64::new(0),
            cut_at: AtomicU64::new(0),
            seed: AtomicU64::new(0),
            cuts: AtomicU64::new(0),
            on: AtomicBool::new(true),
            off: Event::new(),
            callback: Mutex::new(None),
            last: Mutex::new(CutReport::default()),
        })
    }

    /// Feeds `device` from now on, for as long as it is there.
    pub fn attach(&self, device: Arc<dyn Powered>) {
        self.devices.lock().push(Arc::downgrade(&device));
    }

    /// Operations so far: requests of each kind, and changes of length.
    pub fn ops(&self) -> u64 {
        self.ops.load(SeqCst)
    }

    /// Cuts the power during operation number `n` (the first is 1), with `seed` choosing what survives. The operation
    /// is in flight when the power fails, so it happens, does not happen, or happens in part. An order that comes when
    /// operation `n` has already begun (others were faster) holds for the next one. 0 takes the order back.
    pub fn cut_at(&self, n: u64, seed: u64) {
        self.seed.store(seed, SeqCst);
        self.cut_at.store(n, SeqCst);
    }

    /// Whether the power is on.
    pub fn is_on(&self) -> bool {
        self.on.load(SeqCst)
    }

    /// Set while the power is off: what a test driver waits for.
    pub fn off(&self) -> &Event {
        &self.off
    }

    /// Power cuts so far.
    pub fn cuts(&self) -> u64 {
        self.cuts.load(SeqCst)
    }

    /// What the last cut did, over all devices.
    pub fn last_cut(&self) -> CutReport {
        *self.last.lock()
    }

    /// Calls `f` at every cut, in the thread that caused it, after the devices have lost their power.
    pub fn on_cut(&self, f: impl Fn() + Send + Sync + 'static) {
        *self.callback.lock() = Some(Arc::new(f));
    }

    /// Cuts the power now. Does nothing while it is off.
    pub fn cut(&self, seed: u64) -> CutReport {
        let mut sum = CutReport::default();
        {
            let devices = self.devices.lock();
            if !self.on.swap(false, SeqCst) {
                return sum;
            }
            self.cuts.fetch_add(1, SeqCst);
            for (i, device) in devices.iter().enumerate() {
                let cut = device.upgrade().map(|device| device.power_cut(seed.wrapping_add(i as u64)));
                cut.into_iter().for_each(|cut| sum.add(cut));
            }
        }
        assert!(sum.lost + sum.reordered <= sum.units, "what is lost was there: {sum:?}");
        *self.last.lock() = sum;
        self.off.set();
        let callback = self.callback.lock().clone();
        if let Some(callback) = callback {
            callback();
        }
        sum
    }

    /// Turns the power on again. Operations go on being counted from where they were.
    pub fn restore(&self) {
        let devices = self.devices.lock();
        devices.iter().filter_map(Weak::upgrade).for_each(|device| device.restore_power());
        self.off.reset();
        self.on.store(true, SeqCst);
    }

    /// Counts `n` operations; the seed of the power cut if one is due during one of them.
    pub(crate) fn tick(&self, n: u64) -> Option<u64> {
        let before = self.ops.fetch_add(n, SeqCst);
        let at = self.cut_at.load(SeqCst);
        let due = at != 0 && at <= before + n && self.is_on();
        // Of several that find it due, one cuts.
        let due = due && self.cut_at.compare_exchange(at, 0, SeqCst, SeqCst).is_ok();
        due.then(|| self.seed.load(SeqCst))
    }

    /// Makes the devices keep in flight what is submitted from now on, until the cut that must follow.
    pub(crate) fn hold(&self) {
        self.devices.lock().iter().filter_map(Weak::upgrade).for_each(|device| device.hold());
    }
}
