//! Where each byte of an array lies: pure arithmetic over a table of extents.
//!
//! The array's bytes are cut into *extents* of one size; a drive's room is cut into *slots* of the same size. The table
//! has one entry for each extent, in order: the slot that it has, and its position in a *stripe set*. A set of width w
//! is w extents that follow each other, on w slots: the set's bytes go to its columns in turn, a unit at a time, as in
//! RAID 0. An extent that lies in one piece is a set of width one. So one table says what every layout needs, also
//! while extents are moved one after the other from one layout to another.
//!
//! Invariant: no two entries have the same slot; the columns of a set are 0, 1, .. w-1 in order.

use std::ops::Range;

/// A slot of a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// Number of the drive, from 0.
    pub drive: u16,
    /// Number of the slot on it, from 0.
    pub slot: u32,
}

/// One extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The slot that it has.
    pub place: Place,
    /// Which column of its set it is.
    pub column: u16,
    /// Columns of its set.
    pub width: u16,
}

impl Entry {
    /// An extent in one piece.
    pub fn whole(place: Place) -> Entry {
        Entry { place, column: 0, width: 1 }
    }

    /// The set of these slots, one column each.
    pub fn set(places: &[Place]) -> impl Iterator<Item = Entry> + '_ {
        let width = u16::try_from(places.len()).expect("drives are counted in 16 bits");
        places.iter().zip(0..).map(move |(place, column)| Entry { place: *place, column, width })
    }
}

/// Bytes that lie together on one drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Which drive.
    pub drive: usize,
    /// First byte on it.
    pub at: u64,
    /// Bytes.
    pub len: u64,
}

/// The table of an array, as it is at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Map {
    /// Bytes of an extent.
    pub extent: u64,
    /// Bytes that go to one column of a set before the next has its turn; divides the extent.
    pub unit: u64,
    /// Byte of each drive at which its slots begin.
    pub data_at: u64,
    /// Bytes of the array that are used; extents may have room for more.
    pub len: u64,
    /// The extents.
    pub entries: Vec<Entry>,
}

impl Map {
    /// Bytes that the extents have room for.
    pub fn room(&self) -> u64 {
        self.entries.len() as u64 * self.extent
    }

    /// The extents of the set that extent `index` is of.
    pub fn set_of(&self, index: usize) -> Range<usize> {
        let entry = self.entries[index];
        assert!(entry.column < entry.width, "a column is one of its set");
        let first = index - usize::from(entry.column);
        first..first + usize::from(entry.width)
    }

    /// First byte of a slot on its drive.
    pub fn slot_at(&self, slot: u32) -> u64 {
        self.data_at + u64::from(slot) * self.extent
    }

    /// The piece at the beginning of a range that lies within the extents.
    fn first_piece(&self, offset: u64, len: u64) -> Piece {
        let index = (offset / self.extent) as usize;
        let entry = self.entries[index];
        let (place, within, run) = match entry.width {
            1 => (entry.place, offset % self.extent, self.extent - offset % self.extent),
            width => {
                let first = index - usize::from(entry.column);
                let inside = offset - first as u64 * self.extent;
                let (chunk, rest) = (inside / self.unit, inside % self.unit);
                let (row, column) = (chunk / u64::from(width), chunk % u64::from(width));
                (self.entries[first + column as usize].place, row * self.unit + rest, self.unit - rest)
            }
        };
        debug_assert!(within < self.extent, "a byte lies within its slot");
        Piece { drive: place.drive.into(), at: self.slot_at(place.slot) + within, len: len.min(run) }
    }

    /// The pieces of a range, in order; neighbours on a drive that follow each other are one.
    pub fn pieces(&self, offset: u64, len: u64) -> Pieces<'_> {
        assert!(offset + len <= self.room(), "a range lies within the extents");
        Pieces { map: self, at: offset, end: offset + len }
    }

    /// The byte of the array that lies at this byte of a drive, if one does. Looks through the whole table.
    pub fn logical(&self, drive: usize, at: u64) -> Option<u64> {
        let slot = at.checked_sub(self.data_at)? / self.extent;
        let here = |e: &Entry| usize::from(e.place.drive) == drive && u64::from(e.place.slot) == slot;
        let index = self.entries.iter().position(here)?;
        let (entry, within) = (self.entries[index], (at - self.data_at) % self.extent);
        let first = (index - usize::from(entry.column)) as u64 * self.extent;
        let (row, rest) = (within / self.unit, within % self.unit);
        let chunk = row * u64::from(entry.width) + u64::from(entry.column);
        Some(if entry.width == 1 { first + within } else { first + chunk * self.unit + rest })
    }

    /// What is wrong with the table, if anything: see the module's invariant. `slots` has the number of each drive.
    pub fn fault(&self, slots: &[u32]) -> Option<String> {
        let mut owners: varve_rt::HashMap<Place, usize> = varve_rt::HashMap::default();
        let mut column = 0;
        for (index, entry) in self.entries.iter().enumerate() {
            let Place { drive, slot } = entry.place;
            if slots.get(usize::from(drive)).is_none_or(|count| slot >= *count) {
                return Some(format!("extent {index} is at slot {slot} of drive {drive}, which there is not"));
            }
            if let Some(other) = owners.insert(entry.place, index) {
                return Some(format!("extents {other} and {index} are both at slot {slot} of drive {drive}"));
            }
            let goes_on = column == 0 || self.entries[index - 1].width == entry.width;
            if entry.column != column || column >= entry.width || !goes_on {
                return Some(format!("extent {index} is column {} of {}", entry.column, entry.width));
            }
            column = if column + 1 == entry.width { 0 } else { column + 1 };
        }
        let room = self.room();
        (column != 0)
            .then(|| "the last set is not whole".into())
            .or((self.len > room).then(|| format!("{} bytes are in extents for {room}", self.len)))
    }
}

/// See [`Map::pieces`].
pub struct Pieces<'m> {
    map: &'m Map,
    at: u64,
    end: u64,
}

impl Iterator for Pieces<'_> {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        if self.at == self.end {
            return None;
        }
        let mut piece = self.map.first_piece(self.at, self.end - self.at);
        self.at += piece.len;
        while self.at < self.end {
            let next = self.map.first_piece(self.at, self.end - self.at);
            if next.drive != piece.drive || next.at != piece.at + piece.len {
                break;
            }
            piece.len += next.len;
            self.at += next.len;
        }
        assert!(piece.len > 0 && self.at <= self.end, "pieces are parts of the range");
        Some(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KIB: u64 = 1 << 10;

    /// Where every unit of the array lies, laid out one after the other as one would by hand.
    fn laid_out(map: &Map) -> Vec<(usize, u64)> {
        let (mut units, per_slot) = (Vec::new(), map.extent / map.unit);
        let mut rest = &map.entries[..];
        while let Some(first) = rest.first() {
            let (set, others) = rest.split_at(first.width.into());
            for row in 0..per_slot {
                // A set of width one has its rows one after the other, as all have.
                units.extend(set.iter().map(|e| {
                    let at = map.data_at + u64::from(e.place.slot) * map.extent + row * map.unit;
                    (usize::from(e.place.drive), at)
                }));
            }
            rest = others;
        }
        units
    }

    prop_compose! {
        fn maps()(
            drives in 1u16..5,
            per_unit in 1u64..5,
            unit in 1u64..4,
            data_at in 0u64..3,
            widths in prop::collection::vec(1usize..5, 1..6),
            shuffle in any::<u64>(),
        ) -> Map {
            let mut places: Vec<Place> =
                (0..drives).flat_map(|drive| (0..25).map(move |slot| Place { drive, slot })).collect();
            varve_rt::Rng::from_seed(shuffle).shuffle(&mut places);
            let mut places = places.into_iter();
            let sets = widths.into_iter().map(|width| places.by_ref().take(width).collect::<Vec<_>>());
            let entries: Vec<Entry> = sets.flat_map(|set| Entry::set(&set).collect::<Vec<_>>()).collect();
            let (unit, extent) = (unit * 4 * KIB, unit * per_unit * 4 * KIB);
            let len = entries.len() as u64 * extent;
            Map { extent, unit, data_at: data_at * 4 * KIB, len, entries }
        }
    }

    proptest! {
        #[test]
        fn every_byte_lies_where_it_would_be_laid_by_hand(map in maps(), from in any::<u64>(), len in any::<u64>()) {
            prop_assert_eq!(map.fault(&[25; 5]), None);
            let units = laid_out(&map);
            let from = from % map.len;
            let len = len % (map.len - from) + 1;
            let (mut at, mut before) = (from, None);
            for piece in map.pieces(from, len) {
                prop_assert!(piece.len > 0);
                prop_assert!(before != Some((piece.drive, piece.at)), "neighbours are one piece");
                for byte in (at..at + piece.len).step_by(KIB as usize) {
                    let (drive, start) = units[(byte / map.unit) as usize];
                    let there = piece.at + (byte - at);
                    prop_assert_eq!((drive, start + byte % map.unit), (piece.drive, there));
                    prop_assert_eq!(map.logical(drive, there), Some(byte));
                }
                at += piece.len;
                before = Some((piece.drive, piece.at + piece.len));
            }
            prop_assert_eq!(at, from + len);
        }

        #[test]
        fn a_table_that_is_wrong_is_told_of(map in maps(), which in any::<prop::sample::Index>()) {
            let index = which.index(map.entries.len());
            let mut twice = map.clone();
            twice.entries.push(Entry::whole(map.entries[index].place));
            prop_assert!(twice.fault(&[25; 5]).is_some_and(|why| why.contains("both")));
            let mut cut = map.clone();
            cut.entries.remove(index);
            cut.len = 0;
            prop_assert_eq!(cut.fault(&[25; 5]).is_some(), map.entries[index].width > 1);
            let mut nowhere = map.clone();
            nowhere.entries[index].place.slot = 25;
            prop_assert!(nowhere.fault(&[25; 5]).is_some_and(|why| why.contains("there is not")));
        }
    }

    #[test]
    fn what_lies_on_no_extent_belongs_to_none() {
        let places = [Place { drive: 1, slot: 2 }];
        let entries = places.map(Entry::whole).to_vec();
        let map = Map { extent: 8 * KIB, unit: 4 * KIB, data_at: 4 * KIB, len: 8 * KIB, entries };
        assert_eq!(map.logical(1, 0), None);
        assert_eq!(map.logical(0, 20 * KIB), None);
        assert_eq!(map.logical(1, 28 * KIB), None);
        assert_eq!(map.logical(1, 20 * KIB + 5), Some(5));
    }
}
