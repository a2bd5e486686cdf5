//! Ranges of keys as the public calls take them.

use super::key::{Bounds, next_key, shortened};
use std::borrow::Cow;
use std::ops::{Bound, Range, RangeBounds, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

/// A range of keys. Made from Rust's ranges over byte strings, borrowed or owned, from a pair of bounds, by
/// [`KeyRange::of`] from anything that is a range, or by [`KeyRange::prefix`]:
///
/// ```
/// use varve::KeyRange;
/// let _: KeyRange = (..).into();
/// let _: KeyRange = (b"a"..b"m").into();
/// let _: KeyRange = ("order/".."order0").into();
/// let _: KeyRange = (String::from("a")..=String::from("m")).into();
/// let _: KeyRange = (7u64.to_be_bytes()..).into();
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

    /// The keys of any range over byte strings.
    pub fn of<K: AsRef<[u8]> + ?Sized + 'a>(range: &'a impl RangeBounds<K>) -> KeyRange<'a> {
        KeyRange::new(range.start_bound(), range.end_bound())
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

    /// The first of the keys that the range has of those of at most `max` bytes, and the first beyond them (none: there
    /// is none); `None` when it has no key.
    pub(crate) fn span(&self, max: usize) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
        let (low, high) = shortened(self.bounds(), max);
        let low = match low {
            Bound::Unbounded => Vec::new(),
            Bound::Included(key) => key.to_vec(),
            Bound::Excluded(key) => next_key(key, max)?,
        };
        let high = match high {
            Bound::Unbounded => None,
            Bound::Excluded(key) => Some(key.to_vec()),
            Bound::Included(key) => next_key(key, max),
        };
        high.as_ref().is_none_or(|high| low < *high).then_some((low, high))
    }

    /// The same range, which borrows nothing.
    pub fn into_owned(self) -> KeyRange<'static> {
        let owned = |bound: Bound<Cow<'a, [u8]>>| bound.map(|key| Cow::Owned(key.into_owned()));
        KeyRange { from: owned(self.from), to: owned(self.to) }
    }

    pub(crate) fn bounds(&self) -> Bounds<'_> {
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

/// Ranges over keys that belong to them.
macro_rules! owned {
    ($([$($generic:tt)*] $key:ty;)*) => {$(
        impl<$($generic)*> From<Range<$key>> for KeyRange<'static> {
            fn from(r: Range<$key>) -> Self {
                KeyRange::owned(Bound::Included(r.start), Bound::Excluded(r.end))
            }
        }

        impl<$($generic)*> From<RangeInclusive<$key>> for KeyRange<'static> {
            fn from(r: RangeInclusive<$key>) -> Self {
                let (start, end) = r.into_inner();
                KeyRange::owned(Bound::Included(start), Bound::Included(end))
            }
        }

        impl<$($generic)*> From<RangeFrom<$key>> for KeyRange<'static> {
            fn from(r: RangeFrom<$key>) -> Self {
                KeyRange::owned(Bound::Included(r.start), Bound::Unbounded)
            }
        }

        impl<$($generic)*> From<RangeTo<$key>> for KeyRange<'static> {
            fn from(r: RangeTo<$key>) -> Self {
                KeyRange::owned(Bound::Unbounded, Bound::Excluded(r.end))
            }
        }

        impl<$($generic)*> From<RangeToInclusive<$key>> for KeyRange<'static> {
            fn from(r: RangeToInclusive<$key>) -> Self {
                KeyRange::owned(Bound::Unbounded, Bound::Included(r.end))
            }
        }

        impl<$($generic)*> From<(Bound<$key>, Bound<$key>)> for KeyRange<'static> {
            fn from((from, to): (Bound<$key>, Bound<$key>)) -> Self {
                KeyRange::owned(from, to)
            }
        }
    )*};
}

owned! { [] Vec<u8>; [] String; [const N: usize] [u8; N]; }

impl KeyRange<'static> {
    fn owned<K: Into<Vec<u8>>>(from: Bound<K>, to: Bound<K>) -> Self {
        let owned = |bound: Bound<K>| bound.map(|key| Cow::Owned(key.into()));
        KeyRange { from: owned(from), to: owned(to) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::txn::key::contains;

    #[test]
    fn a_span_has_the_keys_of_its_range() {
        let mut keys: Vec<Vec<u8>> = vec![vec![]];
        for len in 1..=2 {
            let longer: Vec<_> = keys.iter().filter(|k| k.len() + 1 == len).cloned().collect();
            keys.extend(longer.iter().flat_map(|k| [0, 1, 254, 255].map(|b| [&k[..], &[b]].concat())));
        }
        let mut bounds: Vec<Bound<&[u8]>> = vec![Bound::Unbounded, Bound::Included(b"\x01\xff\xff")];
        bounds.extend(keys.iter().flat_map(|k| [Bound::Included(&k[..]), Bound::Excluded(&k[..])]));
        for (&low, &high) in bounds.iter().flat_map(|low| bounds.iter().map(move |high| (low, high))) {
            let span = KeyRange::from((low, high)).span(2);
            for key in &keys {
                let inside = span.as_ref().is_some_and(|(l, h)| l <= key && h.as_ref().is_none_or(|h| key < h));
                assert_eq!(inside, contains((low, high), key), "{key:?} in {low:?}, {high:?}: {span:?}");
            }
        }
    }

    #[test]
    fn ranges_of_owned_and_of_borrowed_keys_are_the_same() {
        let [a, b] = [b"a", b"b"];
        let text = |key: &[u8; 1]| String::from_utf8(key.to_vec()).expect("text");
        for (owned, borrowed) in [
            ((a.to_vec()..b.to_vec()).into(), KeyRange::from(a..b)),
            ((text(a)..=text(b)).into(), KeyRange::from(a..=b)),
            ((*a..).into(), KeyRange::from(a..)),
            ((..text(b)).into(), KeyRange::from(..b)),
            ((..=b.to_vec()).into(), KeyRange::from(..=b)),
            ((Bound::Excluded(*a), Bound::Unbounded).into(), KeyRange::from((Bound::Excluded(a), Bound::Unbounded))),
            (KeyRange::of(&(text(a)..text(b))).into_owned(), KeyRange::from(a..b)),
            (KeyRange::of(&("a"..)).into_owned(), KeyRange::from(a..)),
        ] {
            assert_eq!(owned, borrowed);
        }
    }

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
