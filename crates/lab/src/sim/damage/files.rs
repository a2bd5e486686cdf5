//! The files of a database as memory devices, and copies of them.

use std::sync::Arc;
use varve::Devices;
use varve_device::Device;
use varve_models::{FaultPlan, Faulty, MemDevice, MemOptions, PowerSupply};

/// A file of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum File {
    Data,
    Log,
    Fast,
}

impl File {
    pub(super) const ALL: [File; 3] = [File::Data, File::Log, File::Fast];

    pub(super) fn name(self) -> &'static str {
        match self {
            File::Data => "data",
            File::Log => "log",
            File::Fast => "fast",
        }
    }

    /// The device's name in messages: no other word is like it.
    pub(super) fn device(self) -> &'static str {
        match self {
            File::Data => "sim/data",
            File::Log => "sim/log",
            File::Fast => "sim/fast",
        }
    }
}

/// The files at one moment, or in use.
#[derive(Clone)]
pub(super) struct Files {
    data: Arc<MemDevice>,
    log: Arc<MemDevice>,
    fast: Option<Arc<MemDevice>>,
}

impl Files {
    /// New and empty.
    pub(super) fn new(tier: bool, seed: u64) -> Files {
        let device = |file: File| {
            let options = MemOptions { name: file.device().into(), seed: seed ^ file as u64, ..MemOptions::default() };
            MemDevice::with(0, options)
        };
        Files { data: device(File::Data), log: device(File::Log), fast: tier.then(|| device(File::Fast)) }
    }

    pub(super) fn get(&self, file: File) -> Option<&Arc<MemDevice>> {
        match file {
            File::Data => Some(&self.data),
            File::Log => Some(&self.log),
            File::Fast => self.fast.as_ref(),
        }
    }

    /// A copy of all of them, which shares their bytes until either is written.
    pub(super) fn copy(&self) -> Files {
        Files {
            data: self.data.clone_image(),
            log: self.log.clone_image(),
            fast: self.fast.as_ref().map(|fast| fast.clone_image()),
        }
    }

    /// Puts `other`'s file in the place of ours.
    pub(super) fn swap(&mut self, file: File, other: &Files) {
        let theirs = other.get(file).expect("both have a tier, or none has").clone_image();
        match file {
            File::Data => self.data = theirs,
            File::Log => self.log = theirs,
            File::Fast => self.fast = Some(theirs),
        }
    }

    /// The bytes of a range; zeros behind the end.
    pub(super) fn bytes(&self, file: File, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        if let Some(device) = self.get(file) {
            device.peek(offset, &mut bytes);
        }
        bytes
    }

    pub(super) fn len(&self, file: File) -> u64 {
        self.get(file).map_or(0, |device| device.len())
    }

    /// Whether a file has the same bytes in both.
    pub(super) fn same(&self, file: File, other: &Files) -> bool {
        let len = self.len(file);
        let step = 64 << 10;
        let equal = |at: u64| self.bytes(file, at, step) == other.bytes(file, at, step);
        len == other.len(file) && (0..len).step_by(step).all(equal)
    }

    /// The devices as the engine gets them, on one power supply that is counted and can be cut.
    pub(super) fn devices(&self, supply: &Arc<PowerSupply>) -> Devices {
        let powered = |device: &Arc<MemDevice>| -> Arc<dyn Device> {
            supply.attach(device.clone());
            Faulty::powered(device.clone(), FaultPlan::new(0), supply.clone())
        };
        let devices = Devices::new(powered(&self.data), powered(&self.log));
        self.fast.iter().fold(devices, |devices, fast| devices.with("fast", powered(fast)))
    }
}
