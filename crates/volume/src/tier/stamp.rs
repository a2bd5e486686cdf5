//! The stamp of the database on its fast device: of which moment of the database the device is.
//!
//! The superblock has the stamp that was there when its map was written. A stamp that came since is a record of the
//! journal; the last one counts. What a stamp means is up to the database.

use super::layout::{RECORD, put, u32_at, u64_at};
use super::{Tier, layout};
use crate::VolumeError;
use crate::admin::Stamp;

/// Kind of the journal's record that is a stamp.
const STAMP: u32 = 4;
const _: () = assert!(STAMP > 3, "a stamp is a record of a kind of its own");

impl Stamp {
    /// The stamp as a record of the journal.
    pub(super) fn encode(&self, at: &mut [u8]) {
        put(at, 0, &STAMP.to_le_bytes());
        put(at, 8, &self.number.to_le_bytes());
        put(at, 16, &self.tie.to_le_bytes());
    }

    /// The stamp that a record of the journal is, if it is one.
    pub(super) fn decode(at: &[u8]) -> Option<Stamp> {
        debug_assert_eq!(at.len(), RECORD);
        (u32_at(at, 0) == STAMP).then(|| Stamp { number: u64_at(at, 8), tie: u64_at(at, 16) })
    }
}

impl Tier {
    /// The stamp that the fast device bears; none: it never got one, or there is no fast device.
    pub fn stamped(&self) -> Option<Stamp> {
        Some(self.maintenance.lock().stamp).filter(|stamp| stamp.number > 0)
    }

    /// Stamps the fast device; durable when it returns. A device that is not there or was forsaken gets none: what it
    /// holds is not used.
    pub fn stamp(&self, stamp: Stamp) -> Result<(), VolumeError> {
        let mut at = self.maintenance.lock();
        let Some(part) = self.part().filter(|_| !self.forsaken()) else { return Ok(()) };
        if at.stamp == stamp {
            return Ok(());
        }
        at.stamp = stamp;
        let done = if at.journal_used < part.geometry.journal_blocks() {
            self.on_fast(|| {
                let used = part.file.write_stamp(&part.geometry, at.sequence, at.journal_used, stamp)?;
                varve_device::flush(&*part.device)?;
                Ok(used)
            })
            .map(|used| {
                at.journal_used = used;
                self.state.lock().counters.journal_bytes += layout::BLOCK as u64;
            })
        } else {
            self.write_map_at(&mut at)
        };
        done.or_else(|e| if self.forsaken() { Ok(()) } else { Err(e) })
    }
}
