//! What is known of the bytes that say what a device belongs to (`Hint::Identity`): by them a worker that comes back
//! with another device, another database's or an older copy is told from the one that went.
//!
//! Invariant: what is remembered of a range is what it held when it was last read or written; of a write that may have
//! been done or not nothing is remembered.

use std::ops::Range;

/// Ranges of a device, and the checksums of what they hold.
#[derive(Default)]
pub(crate) struct Marks(Vec<(Range<u64>, Option<u32>)>);

fn meet(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

impl Marks {
    /// One more range.
    pub fn add(&mut self, range: Range<u64>) {
        if !range.is_empty() && self.0.iter().all(|(mark, _)| *mark != range) {
            self.0.push((range, None));
        }
    }

    /// These bytes lie at `offset`.
    pub fn holds(&mut self, offset: u64, bytes: &[u8]) {
        let range = offset..offset + bytes.len() as u64;
        for (mark, known) in self.0.iter_mut().filter(|(mark, _)| meet(mark, &range)) {
            let inside = range.start <= mark.start && mark.end <= range.end;
            let of = |mark: &Range<u64>| {
                crc32c::crc32c(&bytes[(mark.start - offset) as usize..][..(mark.end - mark.start) as usize])
            };
            *known = inside.then(|| of(mark));
        }
    }

    /// What the range holds from now on is not known.
    pub fn forget(&mut self, range: Range<u64>) {
        self.0.iter_mut().filter(|(mark, _)| meet(mark, &range)).for_each(|(_, known)| *known = None);
    }

    /// What is known, to be compared.
    pub fn known(&self) -> Vec<Range<u64>> {
        self.0.iter().filter(|(_, known)| known.is_some()).map(|(mark, _)| mark.clone()).collect()
    }

    /// Whether this range holds other bytes than is known of it.
    pub fn denies(&self, range: &Range<u64>, bytes: &[u8]) -> bool {
        let known = self.0.iter().find(|(mark, _)| mark == range).and_then(|(_, known)| *known);
        known.is_some_and(|known| known != crc32c::crc32c(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_last_read_or_written_is_what_has_to_be_there() {
        let mut marks = Marks::default();
        marks.add(8..16);
        marks.add(8..16);
        marks.add(16..24);
        assert!(marks.known().is_empty() && !marks.denies(&(8..16), &[7; 8]));
        marks.holds(0, &[1; 20]);
        assert_eq!(marks.known(), vec![8..16; 1], "of the other a part was seen");
        assert!(marks.denies(&(8..16), &[7; 8]) && !marks.denies(&(8..16), &[1; 8]));
        marks.forget(15..16);
        assert!(!marks.denies(&(8..16), &[7; 8]), "a write is under way");
        marks.holds(8, &[7; 8]);
        marks.holds(24, &[3; 8]);
        assert!(marks.denies(&(8..16), &[1; 8]) && !marks.denies(&(8..16), &[7; 8]));
        assert_eq!(marks.known(), vec![8..16; 1]);
    }
}
