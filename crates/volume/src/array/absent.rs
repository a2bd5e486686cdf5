//! In the place of a drive that an array goes without: one that was taken away, or that could not be found when the
//! array was opened for reading.
//!
//! Invariant: every request fails, and the error names the drive.

use std::sync::Arc;
use varve_device::{BLOCK, Capabilities, Device, DeviceError, DeviceInfo, DeviceKind, DeviceStats, Io, Ticket};

/// See the module.
pub(super) struct Absent {
    name: Arc<str>,
}

impl Absent {
    /// In the place of the drive of this name.
    pub fn in_place_of(name: &str) -> Arc<dyn Device> {
        assert!(!name.is_empty(), "a message names the drive");
        Arc::new(Absent { name: format!("{name}, which is missing").into() })
    }

    fn refused(&self, io: &Io) -> DeviceError {
        // What the system says of a drive that was pulled out.
        const ENODEV: i32 = 19;
        let (op, device, offset, len) = (io.op.kind(), self.name.clone(), io.offset, io.len() as u64);
        DeviceError::Io { op, device, offset, len, errno: ENODEV, retryable: false }
    }
}

impl Device for Absent {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: self.name.clone(),
            kind: DeviceKind::File,
            block: BLOCK as u32,
            atomic_write_unit: BLOCK as u32,
            queue_depth: 1,
            direct: true,
            access: "missing".into(),
            fallback: None,
            capabilities: Capabilities::default(),
        }
    }

    fn len(&self) -> u64 {
        0
    }

    fn set_len(&self, _len: u64) -> Result<(), DeviceError> {
        Err(DeviceError::Unsupported { device: self.name.clone(), what: "change its length" })
    }

    fn submit(&self, batch: Vec<Io>) -> Ticket {
        Ticket::ready(batch.iter().map(|io| Err(self.refused(io))).collect())
    }

    fn stats(&self) -> DeviceStats {
        DeviceStats::default()
    }
}
