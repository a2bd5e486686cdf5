//! Ranges of keys as the public calls take them.

use super::key::Bounds;
use std::borrow::Cow;
use std::ops::{Bound, Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

/// A range of keys. Made from Rust's ranges over byte strings, from a pair of bounds, or by [`KeyRange::prefix`]:
///
/// ```
/// use varve::KeyRange;
/// let _: KeyRange = (..).into();
/// let _: KeyRange = (b"a"..b"m").into();
/// let _: KeyRange = ("order/".."order0").into();
/// let _ = KeyRange::prefix(b"order/");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRange<'a> {
    from: Bound<Cow<'a, [u8]>>,
    to: Bound<Cow<'a, [u8]>>,
}

fn borrowed<K: AsRef<[u8]> + ?Sized>(bound: Bound<&K>) -> Bound<Cow<'_, [u8]>> {
    bound.map(|key| Cow::Borrowed(key.as_ref()))
}

impl<'a> KeyRange<'a> {
    /// All keys between two bounds.
    pub fn new<K: AsRef<[u8]> + ?Sized>(from: Bound<&'a K>, to: Bound<&'a K>) -> KeyRange<'a> {
        KeyRange { from: borrowed(from), to: borrowed(to) }
    }

    /// All keys that begin with `prefix`.
    pub fn prefix<K: AsRef<[u8]> + ?Sized>(prefix: &'a K) -> KeyRange<'a> {
        let prefix = prefix.as_ref();
        let mut past = prefix.to_vec();
        while past.last() == Some(&u8::MAX) {
            past.pop();
        }
        let to = match past.last_mut() {
            Some(last) => {
                *last += 1;
                Bound::Excluded(Cow::Owned(past))
            }
            None => Bound::Unbounded,
        };
        KeyRange { from: Bound::Included(Cow::Borrowed(prefix)), to }
    }

    pub(super) fn bounds(&self) -> Bounds<'_> {
        (self.from.as_ref().map(|k| &**k), self.to.as_ref().map(|k| &**k))
    }
}

impl From<RangeFull> for KeyRange<'static> {
    fn from(_: RangeFull) -> Self {
        KeyRange { from: Bound::Unbounded, to: Bound::Unbounded }
    }
}

impl<'a, K: AsRef<[u8]> + ?Sized> From<Range<&'a K>> for KeyRange<'a> {
    fn from(r: Range<&'a K>) -> Self {
        KeyRange::new(Bound::Included(r.start), Bound::Excluded(r.end))
    }
}

impl<'a, K: AsRef<[u8]> + ?Sized> From<RangeInclusive<&'a K>> for KeyRange<'a> {
    fn from(r: RangeInclusive<&'a K>) -> Self {
        let (start, end) = r.into_inner();
        KeyRange::new(Bound::Included(start), Bound::Included(end))
    }
}

impl<'a, K: AsRef<[u8]> + ?Sized> From<RangeFrom<&'a K>> for KeyRange<'a> {
    fn from(r: RangeFrom<&'a K>) -> Self {
        KeyRange::new(Bound::Included(r.start), Bound::Unbounded)
    }
}

impl<'a, K: AsRef<[u8]> + ?Sized> From<RangeTo<&'a K>> for KeyRange<'a> {
    fn from(r: RangeTo<&'a K>) -> Self {
        KeyRange::new(Bound::Unbounded, Bound::Excluded(r.end))
    }
}

impl<'a, K: AsRef<[u8]> + ?Sized> From<RangeToInclusive<&'a K>> for KeyRange<'a> {
    fn from(r: RangeToInclusive<&'a K>) -> Self {
        KeyRange::new(Bound::Unbounded, Bound::Included(r.end))
    }
}

impl<'a, K: AsRef<[u8]> + ?Sized> From<(Bound<&'a K>, Bound<&'a K>)> for KeyRange<'a> {
    fn from((from, to): (Bound<&'a K>, Bound<&'a K>)) -> Self {
        KeyRange::new(from, to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::txn::key::contains;

    #[test]
    fn a_prefix_covers_what_begins_with_it() {
        for (prefix, inside, outside) in [
            (&b"ab"[..], vec![&b"ab"[..], b"ab\xff\xff"], vec![&b"aa\xff"[..], b"ac"]),
            (b"a\xff", vec![b"a\xff", b"a\xff\xff"], vec![b"a\xfe", b"b"]),
            (b"\xff", vec![b"\xff", b"\xff\xff"], vec![b"\xfe"]),
            (b"", vec![b"a", b"\xff"], vec![]),
        ] {
            let range = KeyRange::prefix(prefix);
            assert!(inside.iter().all(|k| contains(range.bounds(), k)), "{prefix:?}");
            assert!(!outside.iter().any(|k| contains(range.bounds(), k)), "{prefix:?}");
        }
    }
}
