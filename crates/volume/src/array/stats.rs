//! What an array is made of and what its drives did, for people and for metrics.

use super::Array;
use std::sync::Arc;
use varve_device::{Device, DeviceStats};

/// One drive.
#[derive(Clone, Debug)]
pub struct DriveStats {
    /// Its number. Those of drives that were taken away are left out.
    pub number: usize,
    /// Its name.
    pub name: String,
    /// Bytes of it.
    pub bytes: u64,
    /// Extents that it has room for.
    pub slots: u32,
    /// Extents that lie on it, or left it a moment ago.
    pub used: u32,
    /// Its share of new extents, relative to those of the others; of a stripe, 1.
    pub share: f64,
    /// Requests since it was opened, those for the array's own tables included.
    pub device: DeviceStats,
    /// How requests are executed.
    pub access: String,
}

/// The whole array.
#[derive(Clone, Debug)]
pub struct ArrayStats {
    /// `stripe`, `proportional` or `rodi`.
    pub layout: &'static str,
    /// Bytes of an extent.
    pub extent: u64,
    /// Bytes that go to one drive before the next has its turn.
    pub unit: u64,
    /// Bytes of the array.
    pub bytes: u64,
    /// Bytes that all slots together have room for.
    pub room: u64,
    /// Extents that nothing changes: whoever wrote them said so.
    pub sealed: usize,
    /// Counts changes of the map and checkpoints; 0: it has nothing on its drives.
    pub generation: u64,
    /// The drives, in order.
    pub drives: Vec<DriveStats>,
}

impl Array {
    /// The figures of now.
    pub fn array_stats(&self) -> ArrayStats {
        let (view, usage) = (self.view(), self.usage());
        let shares = view.layout.shares(view.members.len());
        let each = view.devices().into_iter().zip(usage).zip(shares).enumerate();
        let drive = |(number, ((device, (used, slots)), share)): (usize, ((Arc<dyn Device>, _), _))| {
            let info = device.info();
            let (name, bytes, device) = (info.name.to_string(), device.len(), device.stats());
            DriveStats { number, name, bytes, slots, used, share, device, access: info.access }
        };
        let drives: Vec<DriveStats> = each.map(drive).filter(|drive| drive.slots > 0).collect();
        ArrayStats {
            layout: view.layout.name(),
            extent: view.map.extent,
            unit: view.map.unit,
            bytes: view.map.len,
            room: drives.iter().map(|drive| u64::from(drive.slots)).sum::<u64>() * view.map.extent,
            sealed: self.used().iter().filter(|used| used.sealed).count(),
            generation: self.identity().map_or(0, |(_, generation)| generation),
            drives,
        }
    }
}
