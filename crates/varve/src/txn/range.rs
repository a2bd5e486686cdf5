//! Ranges of keys as the public calls take them.

use super::key::{Bounds, next_key, shortened};
use std::borrow::Cow;
use std::ops::{Bound, Range, RangeBounds, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};
use std::rc::Rc;
use std::sync::Arc;

/// A range of keys: what every call takes that reads or deletes one. Made from any of Rust's ranges, or a pair of
/// bounds, over keys that are a [`RangeKey`] (references to byte strings, text and the like, and those that own their
/// bytes); from a reference to such a range, which stays the caller's; by [`KeyRange::prefix`]; and by [`KeyRange::of`]
/// from any other type that is a range of byte strings:
///
/// ```
/// use std::ops::Bound;
/// use varve::KeyRange;
/// let _: KeyRange = (..).into();
/// let _: KeyRange = (b"a"..b"m").into();
/// let _: KeyRange = ("order/".."order0").into();
/// let _: KeyRange = (String::from("a")..=String::from("m")).into();
/// let _: KeyRange = (7u64.to_be_bytes()..).into();
/// let _: KeyRange = (Bound::Excluded("a"), Bound::Unbounded).into();
/// let again = vec![1u8]..vec![9];
/// let _: KeyRange = (&again).into();
/// let _ = KeyRange::prefix(b"order/");
/// ```
///
/// Keys of a type of your own: have it be a [`RangeKey`], or write `&from..&to` if it is `AsRef<[u8]>`. A pair of
/// bounds without a key in it has no type of keys: write `..`.
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

/// A key as an end of a range. Every reference to what is `AsRef<[u8]>` is one. So are the types that own such bytes
/// (`Vec<u8>`, `String`, arrays, `Box`, `Rc` and `Arc` of slices and text, `Cow`). Types of your own can be one too:
///
/// ```
/// use std::borrow::Cow;
/// use varve::{KeyRange, RangeKey};
///
/// struct Day(u32);
///
/// impl RangeKey<'static> for Day {
///     fn into_bytes(self) -> Cow<'static, [u8]> {
///         Cow::Owned(self.0.to_be_bytes().to_vec())
///     }
/// }
///
/// assert_eq!(KeyRange::from(Day(3)..Day(5)), KeyRange::from([0, 0, 0, 3]..[0, 0, 0, 5]));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no end of a range of keys",
    note = "of what is `AsRef<[u8]>` a reference is one: `&from..&to`; of any range of such: `KeyRange::of(&range)`"
)]
pub trait RangeKey<'a> {
    /// Its bytes.
    fn into_bytes(self) -> Cow<'a, [u8]>;
}

impl<'a, K: AsRef<[u8]> + ?Sized> RangeKey<'a> for &'a K {
    fn into_bytes(self) -> Cow<'a, [u8]> {
        Cow::Borrowed(self.as_ref())
    }
}

impl<'a> RangeKey<'a> for Cow<'a, [u8]> {
    fn into_bytes(self) -> Cow<'a, [u8]> {
        self
    }
}

impl<'a> RangeKey<'a> for Cow<'a, str> {
    fn into_bytes(self) -> Cow<'a, [u8]> {
        match self {
            Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
            Cow::Owned(text) => Cow::Owned(text.into_bytes()),
        }
    }
}

/// Keys that own their bytes.
macro_rules! owned {
    ($([$($generic:tt)*] $key:ty, $bytes:expr;)*) => {$(
        impl<$($generic)*> RangeKey<'static> for $key {
            fn into_bytes(self) -> Cow<'static, [u8]> {
                let bytes: fn(Self) -> Vec<u8> = $bytes;
                Cow::Owned(bytes(self))
            }
        }
    )*};
}

owned! {
    [] Vec<u8>, |key| key;
    [] String, String::into_bytes;
    [const N: usize] [u8; N], |key| key.to_vec();
    [] Box<[u8]>, <[u8]>::into_vec;
    [] Box<str>, |key| key.into_string().into_bytes();
    [] Rc<[u8]>, |key| key.to_vec();
    [] Rc<str>, |key| key.as_bytes().to_vec();
    [] Arc<[u8]>, |key| key.to_vec();
    [] Arc<str>, |key| key.as_bytes().to_vec();
}

/// Ranges as they are, and references to them; how each is taken apart.
macro_rules! ranges {
    ($($range:ident, $ends:expr;)*) => {$(
        impl<'a, K: RangeKey<'a>> From<$range<K>> for KeyRange<'a> {
            fn from(range: $range<K>) -> Self {
                let ends: fn($range<K>) -> Pair<K> = $ends;
                let (from, to) = ends(range);
                KeyRange { from: from.map(K::into_bytes), to: to.map(K::into_bytes) }
            }
        }

        impl<'a, K: AsRef<[u8]>> From<&'a $range<K>> for KeyRange<'a> {
            fn from(range: &'a $range<K>) -> Self {
                KeyRange::of(range)
            }
        }
    )*};
}

/// A range by its two ends.
type Pair<K> = (Bound<K>, Bound<K>);

ranges! {
    Range, |range| (Bound::Included(range.start), Bound::Excluded(range.end));
    RangeInclusive, |range| {
        let (start, end) = range.into_inner();
        (Bound::Included(start), Bound::Included(end))
    };
    RangeFrom, |range| (Bound::Included(range.start), Bound::Unbounded);
    RangeTo, |range| (Bound::Unbounded, Bound::Excluded(range.end));
    RangeToInclusive, |range| (Bound::Unbounded, Bound::Included(range.end));
    Pair, |range| range;
}

impl<'a> From<&'a KeyRange<'_>> for KeyRange<'a> {
    fn from(range: &'a KeyRange<'_>) -> Self {
        let (from, to) = range.bounds();
        KeyRange::new(from, to)
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
            ((Box::<[u8]>::from(*a)..Box::from(*b)).into(), KeyRange::from(a..b)),
            ((Box::<str>::from("a")..Box::from("b")).into(), KeyRange::from(a..b)),
            ((Rc::<[u8]>::from(*a)..).into(), KeyRange::from(a..)),
            ((..=Rc::<str>::from("b")).into(), KeyRange::from(..=b)),
            ((Arc::<[u8]>::from(*a)..=Arc::from(*b)).into(), KeyRange::from(a..=b)),
            ((..Arc::<str>::from("b")).into(), KeyRange::from(..b)),
            ((Cow::from("a")..Cow::from(text(b))).into(), KeyRange::from(a..b)),
            ((Cow::from(&a[..])..Cow::from(b.to_vec())).into(), KeyRange::from(a..b)),
            (KeyRange::from(&(text(a)..text(b))).into_owned(), KeyRange::from(a..b)),
            (KeyRange::from(&(*a..=*b)).into_owned(), KeyRange::from(a..=b)),
            (KeyRange::from(&(a.to_vec()..)).into_owned(), KeyRange::from(a..)),
            (KeyRange::from(&(.."b")).into_owned(), KeyRange::from(..b)),
            (KeyRange::from(&(..=b)).into_owned(), KeyRange::from(..=b)),
            (KeyRange::from(&(Bound::Excluded(*a), Bound::Included(*b))).into_owned(), {
                KeyRange::from((Bound::Excluded(a), Bound::Included(b)))
            }),
            ((Bound::Unbounded, Bound::Excluded("b")).into(), KeyRange::from(..b)),
            (KeyRange::from(&KeyRange::from(a..b)).into_owned(), KeyRange::from(a..b)),
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
