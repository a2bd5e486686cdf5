//! What slots hold on the device besides what they should, and what is recorded of that until a map says it.
//!
//! Both tables are bounded. A map has room for two records a slot: a slot that may hold two versions which do not count
//! is not given away, nor its page asked to leave it, before a flush has made the newest certain. One whose writes
//! failed, which no flush can make certain, waits for the next opening, which looks into it. What was recorded since
//! the newest map is dropped beyond a bound; then the next sync writes a map.
//!
//! Invariants: a request that ends has begun; a flush that ended has begun; the records are no more than their bound.

use super::{Slot, SlotEntry, SlotState, Slots};
use crate::tier::records::Record;
use crate::{Lsn, PageId};

/// Versions that a map can say of a slot that are not to be used.
pub(super) const MOST_STALE: usize = 2;

/// Records beyond one a slot that are kept: more than any journal has room for.
const MORE_RECORDS: usize = 1 << 14;

/// What a freed or re-used slot may still hold on the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stale {
    pub page: PageId,
    pub lsn: Lsn,
    /// The flush before which the slot's new content was written, if it was.
    pub rewritten: Option<u64>,
}

impl Slots {
    /// Whether a map could not name what the slot may hold if it got another page.
    pub(super) fn is_crowded(&self, slot: Slot) -> bool {
        let occupied = self.entries[slot as usize].state != SlotState::Free;
        self.stale.get(&slot).map_or(0, Vec::len) + usize::from(occupied) >= MOST_STALE
    }

    fn record(&mut self, record: Record) {
        if self.records.len() < self.entries.len() + MORE_RECORDS {
            self.records.push(record);
        } else {
            self.unsaid = true;
        }
    }

    /// Whether [`Slots::records`] do not tell everything that happened since the newest map.
    pub fn unsaid(&self) -> bool {
        self.unsaid || self.unsaid_before
    }

    /// Recovery shall not use what the slot holds; says up to which LSN that is.
    pub(super) fn record_freed(&mut self, slot: Slot) -> Lsn {
        let SlotEntry { page, lsn, writing, unverified, .. } = self.entries[slot as usize];
        // A slot that was not looked into may have been overwritten in place before the crash, up to any LSN.
        let lsn = if unverified { Lsn::MAX } else { lsn.max(writing) };
        if lsn > 0 {
            self.record(Record::Freed { slot, page, lsn });
        }
        lsn
    }

    /// A request to the slot begins; a write says which LSN it writes.
    pub fn begin(&mut self, slot: Slot, write: Option<Lsn>) {
        let entry = &mut self.entries[slot as usize];
        assert!(
            entry.io < u16::MAX && (write.is_none() || entry.state != SlotState::Free),
            "requests go to occupied slots"
        );
        entry.io += 1;
        if let Some(lsn) = write {
            assert_eq!(entry.writes, 0, "two writes of a slot at a time have no order");
            entry.writes += 1;
            entry.writing = lsn;
            self.unflushed.insert(slot, u64::MAX);
        }
    }

    /// A read of the slot ended.
    pub fn end_read(&mut self, slot: Slot) {
        let entry = &mut self.entries[slot as usize];
        assert!(entry.io > u16::from(entry.writes), "a read that ends has begun");
        entry.io -= 1;
        self.release_if_idle(slot);
    }

    /// A write to the slot ended, well or not.
    pub fn end_write(&mut self, slot: Slot, well: bool) {
        let flushes = self.flushes;
        let entry = &mut self.entries[slot as usize];
        assert!(entry.writes > 0 && entry.io > 0, "a write that ends has begun");
        entry.io -= 1;
        entry.writes -= 1;
        let lsn = entry.writing;
        if entry.writes == 0 {
            if well {
                entry.writing = 0;
            }
            self.unflushed.insert(slot, flushes);
        }
        let (page, state) = (entry.page, entry.state);
        if well && let Some(stale) = self.stale.get_mut(&slot) {
            // The last of a free slot is what was just written.
            let overwritten = stale.len() - usize::from(state == SlotState::Free);
            // The first write over it counts: once that was flushed, it is gone.
            stale[..overwritten].iter_mut().for_each(|s| _ = s.rewritten.get_or_insert(flushes));
        }
        if well && state != SlotState::Free {
            entry.lsn = lsn;
            entry.unverified = false;
            match state {
                SlotState::Newer => self.record(Record::Newer { slot, page, lsn }),
                SlotState::Clean if self.log_everything => self.record(Record::Clean { slot, page, lsn }),
                SlotState::Dead | SlotState::Invalid => _ = self.record_freed(slot),
                _ => {}
            }
        }
        self.release_if_idle(slot);
    }

    /// A write to a slot taken for it alone never began.
    pub fn call_off(&mut self, slot: Slot) {
        let entry = &mut self.entries[slot as usize];
        let (page, lsn) = (entry.page, std::mem::take(&mut entry.writing));
        assert!(entry.writes == 1 && entry.lsn == 0, "nothing was written there since the page got the slot");
        (entry.io, entry.writes) = (entry.io - 1, 0);
        if entry.state == SlotState::Free
            && let Some(stale) = self.stale.get_mut(&slot)
            && stale.pop_if(|s| (s.page, s.lsn) == (page, lsn)).is_some()
        {
            self.left_over -= 1;
        }
        self.release_if_idle(slot);
    }

    /// Number that a flush which begins now has; writes completed so far are covered by it.
    pub fn begin_flush(&mut self) -> u64 {
        self.flushes += 1;
        self.flushes
    }

    /// Flush number `n` ended well.
    pub fn flushed(&mut self, n: u64) {
        assert!(n <= self.flushes, "a flush that ended has begun");
        self.unflushed.retain(|_, covered_after| *covered_after >= n);
        let mut eased = Vec::new();
        self.stale.retain(|&slot, stale| {
            let before = stale.len();
            stale.retain(|s| s.rewritten.is_none_or(|covered_after| covered_after >= n));
            eased.extend((stale.len() < before).then_some(slot));
            !stale.is_empty()
        });
        self.left_over = self.stale.values().map(Vec::len).sum();
        for slot in eased {
            let entry = &self.entries[slot as usize];
            if entry.state != SlotState::Free && self.usable(slot) {
                self.zone.insert((entry.rank, slot));
            }
        }
        for slot in std::mem::take(&mut self.blocked) {
            self.release(slot);
        }
    }

    /// Versions that slots may still hold besides what they should, which a map must name. Each flush forgets those
    /// that were overwritten before it.
    pub fn left_over(&self) -> usize {
        self.left_over
    }

    /// The records since the newest map, which the journal of that map must hold after a sync.
    pub fn records(&self) -> &[Record] {
        &self.records
    }
}
