//! Zones: which pages are for which keyspaces, where the store has regions for some of them.
//!
//! Zone 0 is for all keyspaces that no region names, and for what the database needs besides (catalog, space map,
//! identity). A store without regions has no other. Which zone a keyspace is of its name decides.
//!
//! Invariant: the stretches follow each other from page 0 on, and each is of one zone.

use crate::error::Error;
use varve_volume::{PageStore, Zone};

/// Which pages are for which keyspaces. See the module.
pub(crate) struct Zones {
    /// The first page of each stretch, and its zone.
    stretches: Vec<(u64, usize)>,
    /// Past the last page that there can be.
    end: u64,
    zones: Vec<Zone>,
}

impl Zones {
    /// All pages are for everything.
    pub(super) fn one() -> Zones {
        Zones { stretches: vec![(0, 0)], end: u64::MAX, zones: vec![Zone::default()] }
    }

    /// Those of a store.
    pub(super) fn of(store: &dyn PageStore) -> Zones {
        let zones = store.zones();
        let mut stretches: Vec<(u64, u64, usize)> = Vec::new();
        for (number, zone) in zones.iter().enumerate() {
            stretches.extend(zone.pages.iter().filter(|run| !run.is_empty()).map(|run| (run.start, run.end, number)));
        }
        stretches.sort_unstable();
        let Some(last) = stretches.last() else { return Zones::one() };
        let whole = stretches[0].0 == 0 && stretches.windows(2).all(|two| two[0].1 == two[1].0);
        assert!(whole, "zones follow each other from the first page on");
        let end = last.1;
        Zones { stretches: stretches.into_iter().map(|(first, _, zone)| (first, zone)).collect(), end, zones }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.zones.len()
    }

    /// The zone of the keyspace of this name.
    pub(super) fn of_name(&self, name: &str) -> usize {
        self.zones.iter().position(|zone| zone.keyspaces.iter().any(|k| k == name)).unwrap_or(0)
    }

    /// The zone of a page.
    pub(super) fn of_page(&self, page: u64) -> usize {
        let at = self.stretches.partition_point(|(first, _)| *first <= page);
        debug_assert!(at > 0, "the first stretch begins with page 0");
        self.stretches[at - 1].1
    }

    /// The stretches of a zone from page `from` on: first page and end of each.
    fn runs(&self, zone: usize, from: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        debug_assert!(zone < self.zones.len(), "a zone that there is");
        let at = self.stretches.partition_point(|(first, _)| *first <= from) - 1;
        let ends = self.stretches[at + 1..].iter().map(|(first, _)| *first).chain([self.end]);
        let runs = self.stretches[at..].iter().zip(ends).filter(move |((_, of), _)| *of == zone);
        runs.map(move |((first, _), end)| ((*first).max(from), end)).filter(|(first, end)| first < end)
    }

    /// Which of the pages from 64 x `word` on are of a zone.
    pub(super) fn mask(&self, zone: usize, word: usize) -> u64 {
        if self.zones.len() == 1 {
            return u64::MAX;
        }
        let first = word as u64 * 64;
        let below = |n: u64| if n < 64 { (1 << n) - 1 } else { u64::MAX };
        let runs = self.runs(zone, first).take_while(|(from, _)| *from < first + 64);
        runs.fold(0, |mask, (from, end)| mask | below(end - first) & !below(from - first))
    }

    /// Past the `n`-th page of a zone from page `from` on; none: it has not so many.
    pub(super) fn reach(&self, zone: usize, from: u64, mut n: u64) -> Option<u64> {
        for (first, end) in self.runs(zone, from) {
            if end - first >= n {
                return Some(first + n);
            }
            n -= end - first;
        }
        None
    }

    /// Past the last page of a zone.
    pub(super) fn end_of(&self, zone: usize) -> u64 {
        self.runs(zone, 0).last().map_or(0, |(_, end)| end)
    }

    /// Pages of a zone before page `end`.
    pub(super) fn pages_before(&self, zone: usize, end: u64) -> u64 {
        self.runs(zone, 0).map(|(first, stop)| stop.min(end).saturating_sub(first)).sum()
    }

    /// Each of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Zone> {
        self.zones.iter()
    }

    /// A zone, and who lives there.
    fn describe(&self, zone: usize) -> String {
        let Zone { name, keyspaces, .. } = &self.zones[zone];
        let whose = match keyspaces.is_empty() {
            _ if self.len() == 1 => "where all keyspaces live".to_string(),
            true => "where the keyspaces live that no region names".to_string(),
            false => format!("where the keyspaces {} live", keyspaces.join(", ")),
        };
        if name.is_empty() {
            return format!("the flash, {whose}");
        }
        format!("region {name:?} of the flash, {whose}")
    }

    /// A zone has no page left.
    pub(super) fn full(&self, zone: usize) -> Error {
        Error::NoSpace(self.describe(zone))
    }

    /// A zone is worn out.
    pub(super) fn worn_out(&self, zone: usize) -> Error {
        Error::WornOut(self.describe(zone))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> Zones {
        let zone =
            |names: &[&str]| Zone { keyspaces: names.iter().map(|n| n.to_string()).collect(), ..Zone::default() };
        let stretches = vec![(0, 1), (70, 0), (100, 2), (200, 0)];
        Zones { stretches, end: 300, zones: vec![zone(&[]), zone(&["a", "b"]), zone(&["c"])] }
    }

    #[test]
    fn pages_are_of_the_zone_that_has_their_stretch() {
        let zones = two();
        let of: Vec<usize> = [0, 69, 70, 99, 100, 199, 200, 299].iter().map(|page| zones.of_page(*page)).collect();
        assert_eq!(of, [1, 1, 0, 0, 2, 2, 0, 0]);
        assert_eq!((zones.of_name("b"), zones.of_name("c"), zones.of_name("d")), (1, 2, 0));
        for zone in 0..3 {
            for word in 0..6 {
                let expected = (0..64).filter(|bit| {
                    let page = word as u64 * 64 + bit;
                    page < 300 && zones.of_page(page) == zone
                });
                let expected = expected.fold(0, |mask, bit| mask | 1_u64 << bit);
                assert_eq!(zones.mask(zone, word), expected, "zone {zone}, word {word}");
            }
        }
    }

    #[test]
    fn a_zone_reaches_as_far_as_it_has_pages() {
        let zones = two();
        assert_eq!(
            (zones.reach(0, 0, 30), zones.reach(0, 0, 31), zones.reach(0, 80, 20)),
            (Some(100), Some(201), Some(100))
        );
        assert_eq!((zones.reach(0, 0, 130), zones.reach(0, 0, 131), zones.reach(1, 70, 1)), (Some(300), None, None));
        assert_eq!((zones.end_of(0), zones.end_of(1), zones.end_of(2)), (300, 70, 200));
        assert_eq!((zones.pages_before(0, 250), zones.pages_before(2, 150)), (80, 50));
        assert!(zones.full(1).to_string().contains("keyspaces a, b"));
    }
}
