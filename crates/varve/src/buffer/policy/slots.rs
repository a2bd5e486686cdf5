//! A value per slot, made when the slot is first written: a pool of many frames that holds few pages pays for few.
//!
//! Invariant: a slot that was not written has the default value. Nothing is allocated after `new`, which sets the room
//! aside; the system gives memory as it is written.

use super::Slot;
use std::ops::{Index, IndexMut};

/// See the module.
#[derive(Debug, Clone)]
pub(super) struct Slots<T> {
    made: Vec<T>,
    slots: usize,
    unwritten: T,
}

impl<T: Copy + Default> Slots<T> {
    /// Default values for slots `0..slots`.
    pub(super) fn new(slots: usize) -> Slots<T> {
        Slots { made: Vec::with_capacity(slots), slots, unwritten: T::default() }
    }

    /// How many slots there are.
    pub(super) fn slots(&self) -> usize {
        self.slots
    }

    /// The slots up to the last that was written, with their values.
    pub(super) fn written(&self) -> impl Iterator<Item = (Slot, &T)> {
        (0..).zip(&self.made)
    }

    #[cold]
    fn make(&mut self, slot: Slot) {
        assert!((slot as usize) < self.slots, "slot {slot} of {}", self.slots);
        self.made.resize(slot as usize + 1, T::default());
    }
}

impl<T: Copy + Default> Index<Slot> for Slots<T> {
    type Output = T;

    #[inline]
    fn index(&self, slot: Slot) -> &T {
        debug_assert!((slot as usize) < self.slots, "slot {slot} of {}", self.slots);
        self.made.get(slot as usize).unwrap_or(&self.unwritten)
    }
}

impl<T: Copy + Default> IndexMut<Slot> for Slots<T> {
    #[inline]
    fn index_mut(&mut self, slot: Slot) -> &mut T {
        if slot as usize >= self.made.len() {
            self.make(slot);
        }
        &mut self.made[slot as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_has_the_default_value_until_it_is_written() {
        let mut slots = Slots::<u64>::new(10);
        assert_eq!(slots[9], 0);
        slots[4] = 7;
        slots[2] += 3;
        assert_eq!((0..10).map(|slot| slots[slot]).collect::<Vec<_>>(), [0, 0, 3, 0, 7, 0, 0, 0, 0, 0]);
        assert_eq!(slots.made.len(), 5, "only what was written is made");
    }

    #[test]
    #[should_panic = "slot 10 of 10"]
    fn there_are_no_slots_behind_the_last() {
        Slots::<u64>::new(10)[10] = 1;
    }
}
