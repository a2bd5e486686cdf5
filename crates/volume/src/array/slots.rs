//! Which slots of the drives are free, and which of them new extents get.
//!
//! Invariants: a slot is taken or free, never both; a slot that is `blank` was never taken.

use super::map::{Entry, Map, Place};
use std::collections::BTreeSet;

/// How new extents are laid over the drives.
#[derive(Clone, Debug, PartialEq)]
pub enum Layout {
    /// RAID 0: every extent is part of a set over all drives that have room.
    Stripe {
        /// Bytes that go to one drive before the next has its turn, 64 KiB to 8 MiB; divides the extent.
        unit: u64,
    },
    /// Each extent is on one drive, and the drives have extents by their shares.
    Proportional {
        /// One number for each drive, such as its measured speed; what counts is their ratio.
        shares: Vec<f64>,
    },
    /// Each extent is where a map has it. New ones come to the drives by their shares.
    Rodi {
        /// As in `Proportional`; zero for a drive that gets no new extents as long as others have room.
        shares: Vec<f64>,
    },
}

impl Layout {
    /// Name for options and messages.
    pub fn name(&self) -> &'static str {
        match self {
            Layout::Stripe { .. } => "stripe",
            Layout::Proportional { .. } => "proportional",
            Layout::Rodi { .. } => "rodi",
        }
    }

    /// Bytes that go to one drive before the next has its turn: of an extent in one piece, all.
    pub fn unit(&self, extent: u64) -> u64 {
        match self {
            Layout::Stripe { unit } => *unit,
            Layout::Proportional { .. } | Layout::Rodi { .. } => extent,
        }
    }

    /// The same with other shares; a stripe has none.
    pub(super) fn with_shares(&self, shares: Vec<f64>) -> Layout {
        match self {
            Layout::Stripe { unit } => Layout::Stripe { unit: *unit },
            Layout::Proportional { .. } => Layout::Proportional { shares },
            Layout::Rodi { .. } => Layout::Rodi { shares },
        }
    }

    /// The shares of so many drives; of a stripe, equal ones.
    pub(super) fn shares(&self, drives: usize) -> Vec<f64> {
        match self {
            Layout::Stripe { .. } => vec![1.0; drives],
            Layout::Proportional { shares } | Layout::Rodi { shares } => shares.clone(),
        }
    }
}

/// The slots of one drive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DriveSlots {
    /// Slots that there are.
    pub count: u32,
    /// Slots from here on were never taken.
    next: u32,
    /// Free slots before `next`.
    free: BTreeSet<u32>,
    /// Slots from here on read as zeros unless taken.
    pub blank_from: u32,
    /// None of them is given out.
    closed: bool,
}

impl DriveSlots {
    fn free(&self) -> u32 {
        assert!(self.next <= self.count, "what was taken is a slot");
        self.count - self.next + self.free.len() as u32
    }

    fn used(&self) -> u32 {
        self.count - self.free()
    }

    fn take_lowest(&mut self) -> Option<u32> {
        if self.closed {
            return None;
        }
        if let Some(slot) = self.free.pop_first() {
            assert!(slot < self.next, "what is free again was taken once");
            return Some(slot);
        }
        let slot = (self.next < self.count).then_some(self.next)?;
        self.next += 1;
        Some(slot)
    }

    fn take(&mut self, slot: u32) -> bool {
        if slot >= self.count {
            return false;
        }
        while self.next <= slot {
            self.free.insert(self.next);
            self.next += 1;
        }
        self.free.remove(&slot)
    }
}

/// The slots of all drives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Slots(Vec<DriveSlots>);

/// An extent that was given a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    pub entry: Entry,
    /// The slot reads as zeros.
    pub blank: bool,
}

impl Slots {
    /// All free. For each drive, how many there are, and from which on they read as zeros.
    pub fn new(drives: &[(u32, u32)]) -> Slots {
        let drive = |&(count, blank_from): &(u32, u32)| {
            assert!(blank_from <= count, "blank slots are slots");
            DriveSlots { count, next: 0, free: BTreeSet::new(), blank_from, closed: false }
        };
        Slots(drives.iter().map(drive).collect())
    }

    /// Those that a map uses are taken. Panics if the map has one twice.
    pub fn with(mut self, map: &Map) -> Slots {
        for entry in &map.entries {
            assert!(self.take(entry.place), "a map that was checked has each slot once");
        }
        self
    }

    /// How many each drive has.
    pub fn counts(&self) -> Vec<u32> {
        self.0.iter().map(|drive| drive.count).collect()
    }

    /// How many of each drive are taken.
    pub fn used(&self) -> Vec<u32> {
        self.0.iter().map(DriveSlots::used).collect()
    }

    /// From which on each drive's slots are blank.
    #[cfg(test)]
    pub fn blank_from(&self) -> Vec<u32> {
        self.0.iter().map(|drive| drive.blank_from).collect()
    }

    /// A drive comes, with so many slots of which those from `blank_from` on read as zeros, or goes, and has none.
    pub fn set_drive(&mut self, number: usize, count: u32, blank_from: u32) {
        assert!(blank_from <= count, "blank slots are slots");
        let slots = DriveSlots { count, next: 0, free: BTreeSet::new(), blank_from, closed: false };
        if number == self.0.len() {
            self.0.push(slots);
            return;
        }
        assert!(number < self.0.len(), "numbers of drives have no gaps");
        assert_eq!(self.0[number].used(), 0, "a drive that goes has no extents");
        self.0[number] = slots;
    }

    /// No slot of a drive is given out, or they are again.
    pub fn close(&mut self, drive: usize, closed: bool) {
        self.0[drive].closed = closed;
    }

    /// Takes this slot; false if it is not free.
    pub fn take(&mut self, place: Place) -> bool {
        let drive = &mut self.0[usize::from(place.drive)];
        let taken = drive.take(place.slot);
        if taken {
            drive.blank_from = drive.blank_from.max(place.slot + 1);
        }
        taken
    }

    /// Gives a slot back.
    pub fn give_back(&mut self, place: Place) {
        let drive = &mut self.0[usize::from(place.drive)];
        assert!(place.slot < drive.next && drive.free.insert(place.slot), "a slot that is given back was taken");
    }

    /// A free slot of this drive, taken.
    pub fn take_on(&mut self, drive: u16) -> Option<Place> {
        let slots = &mut self.0[usize::from(drive)];
        let slot = slots.take_lowest()?;
        slots.blank_from = slots.blank_from.max(slot + 1);
        Some(Place { drive, slot })
    }

    /// Slots for at least `extents` new extents; `None`, and nothing taken, if there is no room.
    pub fn place(&mut self, extents: usize, layout: &Layout) -> Option<Vec<Taken>> {
        let (before, mut taken) = (self.clone(), Vec::new());
        while taken.len() < extents {
            let places = match layout {
                Layout::Stripe { .. } => self.stripe(),
                Layout::Proportional { shares } | Layout::Rodi { shares } => {
                    self.by_shares(shares).into_iter().collect()
                }
            };
            if places.is_empty() {
                *self = before;
                return None;
            }
            taken.extend(Entry::set(&places).map(|entry| self.taken(entry)));
        }
        Some(taken)
    }

    fn taken(&mut self, entry: Entry) -> Taken {
        let drive = &mut self.0[usize::from(entry.place.drive)];
        let blank = entry.place.slot >= drive.blank_from;
        drive.blank_from = drive.blank_from.max(entry.place.slot + 1);
        Taken { entry, blank }
    }

    /// A slot of each drive that has one.
    fn stripe(&mut self) -> Vec<Place> {
        let each = self.0.iter_mut().zip(0..);
        each.filter_map(|(drive, i)| Some(Place { drive: i, slot: drive.take_lowest()? })).collect()
    }

    /// A slot of the drive that is furthest behind its share.
    fn by_shares(&mut self, shares: &[f64]) -> Option<Place> {
        assert_eq!(shares.len(), self.0.len(), "every drive has a share");
        let load = |i: usize| (f64::from(self.0[i].used()) + 1.0) / shares[i];
        assert!(shares.iter().all(|share| *share >= 0.0), "a share is a part");
        let least = (0..shares.len())
            .filter(|i| self.0[*i].free() > 0 && !self.0[*i].closed)
            .min_by(|a, b| load(*a).total_cmp(&load(*b)))?;
        let slot = self.0[least].take_lowest()?;
        Some(Place { drive: least as u16, slot })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drives(taken: &[Taken]) -> Vec<u16> {
        taken.iter().map(|t| t.entry.place.drive).collect()
    }

    #[test]
    fn sets_are_over_all_drives_that_have_room() {
        let mut slots = Slots::new(&[(2, 0), (3, 0), (1, 0)]);
        let stripe = Layout::Stripe { unit: 1 << 20 };
        let taken = slots.place(6, &stripe).unwrap();
        assert_eq!(drives(&taken), [0, 1, 2, 0, 1, 1]);
        let widths: Vec<u16> = taken.iter().map(|t| t.entry.width).collect();
        assert_eq!(widths, [3, 3, 3, 2, 2, 1]);
        assert_eq!(slots.used(), [2, 3, 1]);
        assert_eq!(slots.place(1, &stripe), None);
    }

    #[test]
    fn shares_decide_who_gets_how_many() {
        let mut slots = Slots::new(&[(100, 0), (100, 0), (100, 0)]);
        let layout = Layout::Proportional { shares: vec![300.0, 100.0, 200.0] };
        for at in (6..=150).step_by(6) {
            slots.place(6, &layout).unwrap();
            assert_eq!(slots.used(), [at / 2, at / 6, at / 3], "at every time, not in the end only");
        }
        assert_eq!(slots.place(151, &layout), None);
        assert_eq!(slots.used(), [75, 25, 50], "what fails takes nothing");
        // A drive that is full leaves the rest to the others; one without a share gets what nobody else can take.
        assert!(slots.place(120, &layout).is_some());
        let mut slots = Slots::new(&[(4, 0), (4, 0)]);
        let taken = slots.place(6, &Layout::Rodi { shares: vec![0.0, 1.0] }).unwrap();
        assert_eq!(drives(&taken), [1, 1, 1, 1, 0, 0]);
    }

    #[test]
    fn slots_are_blank_until_they_were_taken() {
        let mut slots = Slots::new(&[(4, 1)]);
        let layout = Layout::Proportional { shares: vec![1.0] };
        let blank = |taken: Vec<Taken>| taken.iter().map(|t| (t.entry.place.slot, t.blank)).collect::<Vec<_>>();
        assert_eq!(blank(slots.place(2, &layout).unwrap()), [(0, false), (1, true)]);
        slots.give_back(Place { drive: 0, slot: 1 });
        assert_eq!(blank(slots.place(2, &layout).unwrap()), [(1, false), (2, true)]);
        assert!(!slots.take(Place { drive: 0, slot: 2 }) && slots.take(Place { drive: 0, slot: 3 }));
        assert!(!slots.take(Place { drive: 0, slot: 4 }));
        assert_eq!(slots.blank_from(), [4]);
    }
}
