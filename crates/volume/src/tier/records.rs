//! What the map and the journal on the fast device are made of, and what recovery makes of them.

use super::slots::Slot;
use crate::{Lsn, PageId};

/// Something that recovery must know of a slot beyond the last map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// `page` in `slot` is not to be used up to this LSN.
    Freed { slot: Slot, page: PageId, lsn: Lsn },
    /// `slot` holds `page` at this LSN, newer than its home.
    Newer { slot: Slot, page: PageId, lsn: Lsn },
    /// `slot` holds `page` at this LSN, equal to its home. Written with `map_recovery = log` only.
    Clean { slot: Slot, page: PageId, lsn: Lsn },
}

impl Record {
    /// The slot concerned.
    pub fn slot(&self) -> Slot {
        match *self {
            Record::Freed { slot, .. } | Record::Newer { slot, .. } | Record::Clean { slot, .. } => slot,
        }
    }
}

/// A slot of the map as it goes to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapEntry {
    /// The page, if the slot holds a current version.
    pub page: Option<PageId>,
    /// LSN of the version.
    pub lsn: Lsn,
    /// Newer than home.
    pub newer: bool,
    /// In the scan list.
    pub scan: bool,
}

/// The map as it goes to the device.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// One entry a slot.
    pub entries: Vec<MapEntry>,
    /// Records that still hold.
    pub records: Vec<Record>,
}

impl Snapshot {
    /// The same for another number of slots: those that go hold nothing, new ones are free.
    pub fn resized(mut self, slots: usize) -> Snapshot {
        // A map that is kept as a log has no scan list.
        let scan = self.entries.is_empty() || self.entries.iter().any(|e| e.scan);
        let free = MapEntry { page: None, lsn: 0, newer: false, scan };
        assert!(self.entries.iter().skip(slots).all(|e| e.page.is_none()), "slots that go are empty");
        self.entries.resize(slots, free);
        self.records.retain(|record| (record.slot() as usize) < slots);
        self
    }
}

/// A current version that recovery found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Where.
    pub slot: Slot,
    /// The page.
    pub page: PageId,
    /// LSN of the version.
    pub lsn: Lsn,
    /// Newer than home, or not known to be equal to it.
    pub newer: bool,
    /// The slot was read and holds just that.
    pub verified: bool,
}
