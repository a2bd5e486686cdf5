//! Which bytes of a page differ from what is stored of it, as far as the store has a use for that: native flash appends
//! small changes to a page instead of writing it anew.
//!
//! For each frame the offsets of changed bytes, up to as many as a delta record takes; a page with more of them is
//! written whole. A byte that changes again counts once, one that changes back counts too. The page's checksum is no
//! changed byte.
//!
//! Invariants
//! - What is noted of a frame covers every byte in which its page differs from the copy that was written last, or that
//!   was read; where that is not known it is [`MANY`].
//! - Offsets are noted under the frame's exclusive latch, and taken by who marked the frame as being written. So nobody
//!   orders these words but the latch.

use super::policy::Slot;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use varve_rt::atomic::{AtomicBool, Ordering::SeqCst};

/// More changes than are noted, or unknown ones.
const MANY: u16 = u16::MAX;
/// Bytes of the page's checksum, which comes first.
const CHECKSUM: usize = 4;

/// Of all frames of an instance.
pub(super) struct Changes {
    /// Offsets that are noted of a frame; 0: the store has no use for them.
    most: usize,
    /// For each frame their number, then the offsets.
    words: Box<[AtomicU16]>,
    /// A write of the frame failed: what is stored is not known.
    lost: Box<[AtomicBool]>,
}

/// Those of one frame, while its page is changed.
#[derive(Clone, Copy)]
pub(super) struct Noted<'a> {
    words: &'a [AtomicU16],
}

impl Changes {
    pub(super) fn new(frames: usize, most: usize) -> Changes {
        assert!(most < usize::from(MANY), "a page has fewer bytes");
        let noted = if most == 0 { 0 } else { frames };
        let words = (0..noted * (1 + most)).map(|_| AtomicU16::new(MANY)).collect();
        Changes { most, words, lost: (0..noted).map(|_| AtomicBool::new(false)).collect() }
    }

    /// Bytes that are kept for each frame.
    pub(super) fn bytes_per_frame(most: usize) -> usize {
        if most == 0 { 0 } else { (1 + most) * size_of::<AtomicU16>() + size_of::<AtomicBool>() }
    }

    /// The place of a frame's changes; none: nothing is noted.
    #[inline]
    pub(super) fn of(&self, slot: Slot) -> Option<Noted<'_>> {
        if self.most == 0 {
            return None;
        }
        let first = slot as usize * (1 + self.most);
        Some(Noted { words: &self.words[first..first + 1 + self.most] })
    }

    /// The page in the frame is what the store has.
    pub(super) fn is_stored(&self, slot: Slot) {
        if let Some(noted) = self.of(slot) {
            self.lost[slot as usize].store(false, SeqCst);
            noted.words[0].store(0, Relaxed);
        }
    }

    /// What the store has of the page is not known, or nothing.
    pub(super) fn is_new(&self, slot: Slot) {
        if let Some(noted) = self.of(slot) {
            noted.many();
        }
    }

    /// A write of the page failed, whoever changes it meanwhile.
    pub(super) fn is_lost(&self, slot: Slot) {
        if let Some(lost) = self.lost.get(slot as usize) {
            lost.store(true, SeqCst);
        }
    }

    /// Takes what changed since the page was stored, which is being done now; none: too much, or it is not known.
    pub(super) fn take(&self, slot: Slot) -> Option<Vec<u16>> {
        let noted = self.of(slot)?;
        let count = noted.words[0].swap(0, Relaxed);
        if self.lost[slot as usize].swap(false, SeqCst) || count == MANY {
            return None;
        }
        let count = usize::from(count);
        assert!(count <= self.most, "a frame has room for the changes that are counted");
        Some(noted.words[1..=count].iter().map(|word| word.load(Relaxed)).collect())
    }
}

impl Noted<'_> {
    /// More has changed than is noted, or nobody knows what.
    pub(super) fn many(&self) {
        self.words[0].store(MANY, Relaxed);
    }

    /// Bytes from `at` on are overwritten.
    pub(super) fn overwritten(&self, at: usize, old: &[u8], new: &[u8]) {
        debug_assert_eq!(old.len(), new.len(), "bytes take the place of as many");
        debug_assert!(at + new.len() <= usize::from(MANY), "an offset within a page fits its word");
        for (i, (old, new)) in old.iter().zip(new).enumerate() {
            if old != new && !self.note(at + i) {
                return;
            }
        }
    }

    /// Notes a byte; whether there is room for more.
    fn note(&self, at: usize) -> bool {
        let count = self.words[0].load(Relaxed);
        if count == MANY {
            return false;
        }
        if at < CHECKSUM {
            return true;
        }
        let (at, noted) = (at as u16, &self.words[1..]);
        if noted[..usize::from(count)].iter().any(|word| word.load(Relaxed) == at) {
            return true;
        }
        let Some(place) = noted.get(usize::from(count)) else {
            self.many();
            return false;
        };
        place.store(at, Relaxed);
        self.words[0].store(count + 1, Relaxed);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_noted_once_up_to_a_number_of_them() {
        let changes = Changes::new(3, 4);
        assert_eq!(changes.take(1), None, "of a frame that nothing was read into");
        changes.is_stored(1);
        let noted = changes.of(1).unwrap();
        noted.overwritten(100, b"abcd", b"abXY");
        noted.overwritten(102, b"XY", b"ZY");
        noted.overwritten(0, &[1, 2, 3, 4, 5], &[9, 9, 9, 9, 9]);
        assert_eq!(changes.take(1), Some(vec![102, 103, 4]), "without the checksum");
        assert_eq!(changes.take(1), Some(vec![]), "since then nothing");
        noted.overwritten(200, b"12345", b"abcde");
        assert_eq!(changes.take(1), None, "five are too many");
        noted.overwritten(300, b"1", b"2");
        changes.is_lost(1);
        assert_eq!((changes.take(1), changes.take(1)), (None, Some(vec![])), "a write failed, another one went well");
        changes.is_new(1);
        noted.overwritten(300, b"1", b"2");
        assert_eq!(changes.take(1), None, "of a new page everything is new");
        assert!(Changes::new(3, 0).of(2).is_none(), "without a use for it nothing is noted");
    }
}
