//! How many locks become few: ranges that cover them all, and little between them.
//!
//! Pure: ranges in, ranges out.

use crate::txn::key::{OwnedBounds, bound_ref, cmp_high, cmp_low};
use std::ops::Bound;

/// Ranges of which each covers neighbours among `ranges`, at most `most` of them, that leave the widest gaps open; and
/// how many of the given ones each covers. Gaps are measured by the first sixteen bytes in which keys differ.
pub(super) fn cover(mut ranges: Vec<OwnedBounds>, most: usize) -> Vec<(OwnedBounds, usize)> {
    assert!(most > 0, "something covers what there is");
    let given = ranges.len();
    ranges.sort_by(|a, b| cmp_low(bound_ref(&a.0), bound_ref(&b.0)));
    let skip = common(&ranges);
    // The gap before each range but the first, behind all that came before.
    let (mut gaps, mut end): (Vec<(u128, usize)>, u128) = (Vec::new(), 0);
    for (at, range) in ranges.iter().enumerate() {
        if at > 0 {
            gaps.push((number(&range.0, skip, 0).saturating_sub(end), at));
        }
        end = end.max(number(&range.1, skip, u128::MAX));
    }
    // The widest first; of equal ones the first.
    gaps.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    let mut cuts: Vec<usize> = gaps.into_iter().take(most - 1).map(|gap| gap.1).collect();
    cuts.sort_unstable();
    let mut cuts = cuts.into_iter().peekable();
    let mut all: Vec<(OwnedBounds, usize)> = Vec::new();
    for (at, range) in ranges.into_iter().enumerate() {
        let cut = cuts.next_if_eq(&at).is_some();
        match all.last_mut().filter(|_| !cut) {
            None => all.push((range, 1)),
            Some(((_, high), n)) => {
                *n += 1;
                if cmp_high(bound_ref(&range.1), bound_ref(high)).is_gt() {
                    *high = range.1;
                }
            }
        }
    }
    debug_assert_eq!(all.iter().map(|cover| cover.1).sum::<usize>(), given, "each is covered once");
    debug_assert!(all.len() <= most, "no more than was asked for");
    all
}

/// Bytes with which all ends begin.
fn common(ranges: &[OwnedBounds]) -> usize {
    let key = |bound: &Bound<_>| match bound {
        Bound::Included(key) | Bound::Excluded(key) => Some(crate::txn::key::KeyBuf::clone(key)),
        Bound::Unbounded => None,
    };
    let mut ends = ranges.iter().flat_map(|range| [key(&range.0), key(&range.1)]);
    let Some(Some(first)) = ends.next() else { return 0 };
    let same = |other: Option<crate::txn::key::KeyBuf>| {
        other.map_or(0, |other| first.iter().zip(other.iter()).take_while(|(a, b)| a == b).count())
    };
    ends.map(same).min().unwrap_or(0)
}

/// The place of an end among the keys that begin as all do.
fn number(bound: &Bound<crate::txn::key::KeyBuf>, skip: usize, unbounded: u128) -> u128 {
    let (Bound::Included(key) | Bound::Excluded(key)) = bound else { return unbounded };
    let mut bytes = [0; 16];
    let rest = &key[skip.min(key.len())..];
    let n = rest.len().min(16);
    bytes[..n].copy_from_slice(&rest[..n]);
    u128::from_be_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::txn::key::{KeyBuf, contains};
    use varve_rt::Rng;

    fn point(key: &[u8]) -> OwnedBounds {
        (Bound::Included(KeyBuf::new(key)), Bound::Included(KeyBuf::new(key)))
    }

    #[test]
    fn neighbours_are_covered_and_wide_gaps_stay_open() {
        let keys = [&b"row0001"[..], b"row0002", b"row0003", b"row5000", b"row5001", b"total"];
        let covers = cover(keys.iter().map(|key| point(key)).collect(), 3);
        let shown: Vec<_> = covers.iter().map(|((low, high), n)| (low.clone(), high.clone(), *n)).collect();
        let inc = |key: &[u8]| Bound::Included(KeyBuf::new(key));
        let wanted = [(b"row0001", b"row0003", 3), (b"row5000", b"row5001", 2)];
        for (i, (low, high, n)) in wanted.into_iter().enumerate() {
            assert_eq!(shown[i], (inc(low), inc(high), n));
        }
        assert_eq!(shown[2], (inc(b"total"), inc(b"total"), 1));
    }

    #[test]
    fn all_is_covered_by_as_few_as_asked_for() {
        let mut rng = Rng::from_seed(5);
        for _ in 0..200 {
            let n = 1 + rng.below(60) as usize;
            let keys: Vec<Vec<u8>> = (0..n).map(|_| (0..rng.below(20)).map(|_| rng.below(4) as u8).collect()).collect();
            let mut ranges: Vec<OwnedBounds> = keys.iter().map(|key| point(key)).collect();
            if rng.below(4) == 0 {
                ranges.push((Bound::Unbounded, Bound::Excluded(KeyBuf::new(&[1]))));
            }
            let most = 1 + rng.below(10) as usize;
            let covers = cover(ranges.clone(), most);
            assert!(covers.len() <= most && covers.iter().map(|c| c.1).sum::<usize>() == ranges.len());
            for key in &keys {
                let inside = |(low, high): &OwnedBounds| contains((bound_ref(low), bound_ref(high)), key);
                assert!(covers.iter().any(|(range, _)| inside(range)), "{key:?} is not covered");
            }
        }
    }
}
