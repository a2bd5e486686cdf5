//! What a database's superblock says of its tier.
//!
//! Invariant: that pages may be newer on the fast device than home is noted durably before the first page is written
//! there alone, and taken back only after all pages are home. A fast device that failed and held copies only is noted
//! as forsaken before anything is promised without it: the next opening makes a new tier on it. Layout:
//! `docs/format.md`.

use super::Tier;

/// First byte of a record.
const TIER: u8 = 1;
/// First byte of the record of a tier that is to be made anew. (To earlier releases there is no tier then, which is
/// safe.)
const FORSAKEN: u8 = 2;
/// Flags of a record.
const BACK: u8 = 1;
const STAMPED: u8 = 2;
const _: () = assert!(TIER != FORSAKEN && BACK & STAMPED == 0, "a kind has its number, a mark its bit");
/// Length of a record: kind, flags, slots, newer pages.
const LENGTH: usize = 18;
const _: () = assert!(LENGTH == 1 + 1 + 8 + 8);
/// Number of newer pages when nobody knows it: after a crash.
const UNKNOWN: u64 = u64::MAX;

/// The record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Record {
    /// Pages on the fast device may be newer than home.
    pub back: bool,
    /// The fast device bears a generation; not yet in databases of older releases.
    pub stamped: bool,
    /// What the fast device holds is not to be used again.
    pub forsaken: bool,
    /// Slots of the fast device.
    pub slots: u64,
    /// Pages newer than home at the last clean close.
    pub newer: u64,
}

impl Record {
    /// None: there is no tier.
    pub fn decode(bytes: &[u8]) -> Option<Record> {
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        (bytes.len() >= LENGTH && matches!(bytes[0], TIER | FORSAKEN)).then(|| Record {
            back: bytes[1] & BACK != 0,
            stamped: bytes[1] & STAMPED != 0,
            forsaken: bytes[0] == FORSAKEN,
            slots: number(2),
            newer: number(10),
        })
    }

    pub fn encode(self) -> Vec<u8> {
        let flags = if self.back { BACK } else { 0 } | if self.stamped { STAMPED } else { 0 };
        let mut bytes = vec![if self.forsaken { FORSAKEN } else { TIER }, flags];
        bytes.extend_from_slice(&self.slots.to_le_bytes());
        bytes.extend_from_slice(&self.newer.to_le_bytes());
        assert_eq!(Record::decode(&bytes), Some(self), "a record that is written can be read");
        bytes
    }

    /// Of an open tier.
    pub fn of(tier: &Tier, back: bool, stamped: bool) -> Record {
        let newer = if back { UNKNOWN } else { 0 };
        Record { back, stamped, forsaken: tier.forsaken(), slots: tier.tier_stats().slots, newer }
    }

    /// Of a tier that was closed: how many pages only the fast device has.
    pub fn closed(tier: &Tier, back: bool) -> Record {
        Record { newer: tier.tier_stats().newer, ..Record::of(tier, back, true) }
    }

    /// Pages may be newer on the fast device than anywhere else: not if there were none at the last clean close, or
    /// never.
    pub fn only_there(&self) -> bool {
        self.back && self.newer != 0
    }

    /// How many those are, in words.
    pub fn count(&self) -> String {
        match self.newer {
            UNKNOWN => format!("up to {} pages", self.slots),
            n => format!("{n} pages (of {} slots, at the last clean close)", self.slots),
        }
    }
}
