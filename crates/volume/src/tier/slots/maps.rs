//! The slots as a map sees them: what goes into one, what a written one makes usable, what recovery takes in; and their
//! number.
//!
//! Invariants: one map is written at a time; until it is there only slots of both scan lists are given away.

use super::{EMPTY, Rank, Ranker, Slot, SlotEntry, SlotState, Slots, Stale};
use crate::Lsn;
use crate::tier::records::{Found, MapEntry, Record, Snapshot};

impl Slots {
    /// The map to be written, with a zone of `k` slots; until [`Slots::end_map`] only slots of both scan lists are
    /// given away.
    pub fn begin_map(&mut self, k: usize, ranker: Ranker<'_>) -> Snapshot {
        assert!(self.scan_next.is_none(), "one map is written at a time");
        let mut next: Vec<bool> = self.entries.iter().map(|e| e.state == SlotState::Free || e.writes > 0).collect();
        for slot in self.stale.keys().chain(self.unflushed.keys()) {
            next[*slot as usize] = true;
        }
        // Ranks may have moved since they were set: look at twice as many as are wanted.
        let candidates: Vec<Slot> = self.ranked.iter().take(2 * k).map(|&(_, slot)| slot).collect();
        for slot in candidates {
            let entry = self.entries[slot as usize];
            if entry.state != SlotState::Dead {
                let rank = ranker(entry.page, entry.state == SlotState::Newer);
                self.set_rank(slot, rank);
            }
        }
        // What was in the zone before and is not among the lowest any more leaves it: a slot that got a better page
        // stays out of reach.
        let (mut in_zone, mut bound) = (0, Rank(f64::INFINITY));
        for &(rank, slot) in &self.ranked {
            in_zone += usize::from(!next[slot as usize]);
            next[slot as usize] = true;
            if in_zone >= k {
                bound = rank;
                break;
            }
        }
        let snapshot = self.snapshot(&next);
        self.snapshot_at = self.records.len();
        self.unsaid_before |= std::mem::take(&mut self.unsaid);
        (self.given_away, self.taken, self.bound) = (0, 0, bound);
        self.scan_next = Some(next);
        self.rebuild();
        snapshot
    }

    fn snapshot(&self, scan: &[bool]) -> Snapshot {
        let entry = |(at, e): (usize, &SlotEntry)| {
            let held = matches!(e.state, SlotState::Clean | SlotState::Newer) && e.lsn > 0;
            MapEntry {
                page: held.then_some(e.page),
                lsn: if held { e.lsn } else { 0 },
                newer: held && e.state == SlotState::Newer,
                // A log says of each slot what it holds: none is looked into.
                scan: scan[at] && !self.log_everything,
            }
        };
        let freed = |(&slot, stale): (&Slot, &Vec<Stale>)| -> Vec<Record> {
            stale.iter().map(|s| Record::Freed { slot, page: s.page, lsn: s.lsn }).collect()
        };
        let mut records: Vec<Record> = self.stale.iter().flat_map(freed).collect();
        // Versions that are out of date but kept must not be found again either.
        for (at, e) in self.entries.iter().enumerate() {
            let lsn = if e.unverified { Lsn::MAX } else { e.lsn.max(e.writing) };
            if matches!(e.state, SlotState::Dead | SlotState::Invalid) && lsn > 0 {
                records.push(Record::Freed { slot: at as Slot, page: e.page, lsn });
            }
        }
        records.sort_by_key(Record::slot);
        debug_assert!(records.len() <= 2 * self.entries.len(), "a map has room for two records a slot");
        Snapshot { entries: self.entries.iter().enumerate().map(entry).collect(), records }
    }

    /// The map begun last is on the device, or (`false`) is not and the one before still holds. Records that went into
    /// the map are gone from [`Slots::records`].
    pub fn end_map(&mut self, written: bool) {
        let next = self.scan_next.take().expect("a map was begun");
        if written {
            self.scan = next;
            assert!(self.snapshot_at <= self.records.len(), "what went into the map was not forgotten meanwhile");
            self.records.drain(..self.snapshot_at);
            self.unsaid_before = false;
        }
        self.rebuild();
    }

    /// Sorts free and occupied slots anew after the scan list changed.
    fn rebuild(&mut self) {
        let lists = [&mut self.free, &mut self.parked, &mut self.blocked, &mut self.retired];
        let mut free: Vec<Slot> = lists.into_iter().flat_map(std::mem::take).collect();
        free.sort_unstable_by(|a, b| b.cmp(a));
        for slot in free {
            self.release(slot);
        }
        self.zone = self.ranked.iter().filter(|(_, slot)| self.usable(*slot)).copied().collect();
    }

    /// Takes in what recovery found: the scan list of the map on the device, the records that its journal holds,
    /// current versions, and what free slots may still hold. Replaces whatever was here.
    pub fn recover(
        &mut self,
        scan: Vec<bool>,
        records: Vec<Record>,
        found: Vec<Found>,
        stale: &[Record],
        ranker: Ranker<'_>,
    ) {
        assert!(self.occupied == 0 && scan.len() == self.len(), "recovery comes first");
        assert!(self.stale.is_empty() && self.records.is_empty(), "nothing was recorded before a recovery");
        self.scan = scan;
        for record in stale {
            if let Record::Freed { slot, page, lsn } = *record {
                self.stale.entry(slot).or_default().push(Stale { page, lsn, rewritten: None });
                self.left_over += 1;
            }
        }
        for f in found {
            let state = if f.newer { SlotState::Newer } else { SlotState::Clean };
            let rank = ranker(f.page, f.newer);
            self.occupy(f.slot, f.page, state, rank);
            let entry = &mut self.entries[f.slot as usize];
            entry.lsn = f.lsn;
            entry.unverified = !f.verified;
        }
        self.records = records;
        self.free = (0..self.len() as Slot).filter(|&s| self.entry(s).state == SlotState::Free).collect();
        [&mut self.parked, &mut self.blocked, &mut self.retired].into_iter().for_each(Vec::clear);
        self.rebuild();
    }

    /// From now on slots from `limit` on are not given away; [`Slots::len`] for none.
    pub fn close(&mut self, limit: usize) {
        let limit = limit as Slot;
        let open = self.limit.min(self.entries.len() as Slot);
        self.limit = if limit as usize >= self.entries.len() { Slot::MAX } else { limit };
        self.rebuild();
        for slot in open..limit {
            // Closed before, open again.
            if self.entry(slot).state == SlotState::Free && self.entry(slot).io == 0 {
                self.release(slot);
            }
        }
    }

    /// Slots from `first` on that are in use: occupied, or with requests in flight.
    pub fn in_use(&self, first: Slot) -> Vec<Slot> {
        let used = |slot: &Slot| self.entry(*slot).state != SlotState::Free || self.entry(*slot).io > 0;
        (first..self.entries.len() as Slot).filter(used).collect()
    }

    /// Changes the number of slots, after a map of as many is on the device. Slots that go are closed, empty and idle;
    /// new ones are free and in the scan list.
    pub fn set_len(&mut self, slots: usize) {
        let gone =
            self.entries.drain(slots.min(self.entries.len())..).filter(|e| e.state != SlotState::Free || e.io > 0);
        assert_eq!(gone.count(), 0, "slots that go are empty and idle");
        let before = self.entries.len();
        self.scan.resize(slots, true);
        self.stale.retain(|slot, _| (*slot as usize) < slots);
        self.left_over = self.stale.values().map(Vec::len).sum();
        self.unflushed.retain(|slot, _| (*slot as usize) < slots);
        self.records.retain(|record| (record.slot() as usize) < slots);
        for list in [&mut self.free, &mut self.parked, &mut self.blocked, &mut self.retired] {
            list.retain(|slot| (*slot as usize) < slots);
        }
        // A page in flight must not take a new slot for the one that had its number before.
        let first = SlotEntry { version: self.flushes as u32, ..EMPTY };
        self.entries.resize(slots, first);
        self.limit = Slot::MAX;
        let mut new: Vec<Slot> = (before as Slot..slots as Slot).collect();
        new.reverse();
        self.parked.extend(new);
        self.rebuild();
    }

    /// Versions of slots begin here, so that they differ from those of slots of the same number before.
    pub fn with_versions_from(mut self, version: u32) -> Slots {
        assert!(self.occupied == 0 && self.map.is_empty(), "versions begin with empty slots");
        self.entries.iter_mut().for_each(|e| e.version = version);
        self
    }
}
