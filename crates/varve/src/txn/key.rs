//! Keys owned by the transaction layer: short ones in place, long ones on the heap.
//!
//! Invariant: the order of `KeyBuf` is the order of its bytes, so ordered maps can be searched with plain slices.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::ops::{Bound, Deref};

const INLINE: usize = 30;

const _: () = assert!(INLINE <= u8::MAX as usize && size_of::<KeyBuf>() == INLINE + 2, "no byte is lost");

/// An owned key.
#[derive(Clone)]
pub(crate) enum KeyBuf {
    /// Up to [`INLINE`] bytes.
    Inline { len: u8, bytes: [u8; INLINE] },
    /// Longer keys.
    Heap(Box<[u8]>),
}

impl KeyBuf {
    /// Copies `key`.
    #[inline]
    pub fn new(key: &[u8]) -> KeyBuf {
        if key.len() <= INLINE {
            let mut bytes = [0; INLINE];
            bytes[..key.len()].copy_from_slice(key);
            KeyBuf::Inline { len: key.len() as u8, bytes }
        } else {
            KeyBuf::Heap(key.into())
        }
    }

    /// Bytes on the heap beside the value itself.
    #[inline]
    pub fn heap_bytes(&self) -> usize {
        KeyBuf::heap_bytes_of(self)
    }

    /// Bytes that a copy of `key` takes on the heap.
    #[inline]
    pub fn heap_bytes_of(key: &[u8]) -> usize {
        if key.len() <= INLINE { 0 } else { key.len() }
    }
}

impl Deref for KeyBuf {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            KeyBuf::Inline { len, bytes } => &bytes[..usize::from(*len)],
            KeyBuf::Heap(bytes) => bytes,
        }
    }
}

impl Borrow<[u8]> for KeyBuf {
    #[inline]
    fn borrow(&self) -> &[u8] {
        self
    }
}

impl PartialEq for KeyBuf {
    #[inline]
    fn eq(&self, other: &KeyBuf) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for KeyBuf {}

impl PartialOrd for KeyBuf {
    fn partial_cmp(&self, other: &KeyBuf) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for KeyBuf {
    /// Short keys are compared by words: what is behind a key's end is zero, so only the length tells a key from the
    /// same with zeros behind it.
    #[inline]
    fn cmp(&self, other: &KeyBuf) -> Ordering {
        let (KeyBuf::Inline { len, bytes }, KeyBuf::Inline { len: other_len, bytes: others }) = (self, other) else {
            return (**self).cmp(&**other);
        };
        for at in WORDS {
            let (word, other) = (word(bytes, at), word(others, at));
            if word != other {
                return word.cmp(&other);
            }
        }
        len.cmp(other_len)
    }
}

/// Where the words of a short key begin; together they are all of it.
const WORDS: [usize; 4] = [0, 8, 16, INLINE - 8];
const _: () = assert!(WORDS[3] + 8 == INLINE && WORDS[3] <= WORDS[2] + 8, "the words are all of a key's room");

/// A word of a short key, the first byte foremost.
#[inline]
fn word(bytes: &[u8; INLINE], at: usize) -> u64 {
    u64::from_be_bytes(*bytes[at..].first_chunk().expect("a word lies within the key's room"))
}

impl fmt::Debug for KeyBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", show(self))
    }
}

/// A key for messages: text where it is printable, else hexadecimal, cut at 64 bytes.
pub(crate) fn show(key: &[u8]) -> String {
    let cut = &key[..key.len().min(64)];
    let more = if cut.len() < key.len() { ".." } else { "" };
    if !cut.is_empty() && cut.iter().all(|b| b.is_ascii_graphic() || *b == b' ') {
        return format!("\"{}\"{more}", String::from_utf8_lossy(cut));
    }
    let hex: String = cut.iter().map(|b| format!("{b:02x}")).collect();
    format!("0x{hex}{more}")
}

/// A range of keys as two bounds.
pub(crate) type Bounds<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);
/// An owned range of keys.
pub(crate) type OwnedBounds = (Bound<KeyBuf>, Bound<KeyBuf>);

/// A bound of a slice.
pub(crate) fn bound_ref(bound: &Bound<KeyBuf>) -> Bound<&[u8]> {
    match bound {
        Bound::Included(key) => Bound::Included(key),
        Bound::Excluded(key) => Bound::Excluded(key),
        Bound::Unbounded => Bound::Unbounded,
    }
}

/// Copies a bound.
pub(crate) fn bound_owned(bound: Bound<&[u8]>) -> Bound<KeyBuf> {
    bound.map(KeyBuf::new)
}

/// Orders two bounds as lower ends of a range.
pub(crate) fn cmp_low(a: Bound<&[u8]>, b: Bound<&[u8]>) -> Ordering {
    match (a, b) {
        (Bound::Unbounded, Bound::Unbounded) => Ordering::Equal,
        (Bound::Unbounded, _) => Ordering::Less,
        (_, Bound::Unbounded) => Ordering::Greater,
        (Bound::Included(x), Bound::Included(y)) | (Bound::Excluded(x), Bound::Excluded(y)) => x.cmp(y),
        (Bound::Included(x), Bound::Excluded(y)) => x.cmp(y).then(Ordering::Less),
        (Bound::Excluded(x), Bound::Included(y)) => x.cmp(y).then(Ordering::Greater),
    }
}

/// Orders two bounds as upper ends of a range.
pub(crate) fn cmp_high(a: Bound<&[u8]>, b: Bound<&[u8]>) -> Ordering {
    match (a, b) {
        (Bound::Unbounded, Bound::Unbounded) => Ordering::Equal,
        (Bound::Unbounded, _) => Ordering::Greater,
        (_, Bound::Unbounded) => Ordering::Less,
        (Bound::Included(x), Bound::Included(y)) | (Bound::Excluded(x), Bound::Excluded(y)) => x.cmp(y),
        (Bound::Included(x), Bound::Excluded(y)) => x.cmp(y).then(Ordering::Greater),
        (Bound::Excluded(x), Bound::Included(y)) => x.cmp(y).then(Ordering::Less),
    }
}

/// Whether the range that begins at `low` and ends at `high` can hold a key. (Ranges that hold none of the keys there
/// are, such as those between two adjacent byte strings, count as able.)
pub(crate) fn is_possible(low: Bound<&[u8]>, high: Bound<&[u8]>) -> bool {
    match (low, high) {
        (Bound::Unbounded, Bound::Excluded(h)) => !h.is_empty(),
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => true,
        (Bound::Included(l), Bound::Included(h)) => l <= h,
        (Bound::Included(l), Bound::Excluded(h))
        | (Bound::Excluded(l), Bound::Included(h))
        | (Bound::Excluded(l), Bound::Excluded(h)) => l < h,
    }
}

/// The same range of keys of at most `max` bytes, by bounds that are no longer either.
pub(crate) fn shortened((low, high): Bounds<'_>, max: usize) -> Bounds<'_> {
    // No key lies between a longer bound and its beginning.
    let is_long = |k: &[u8]| k.len() > max;
    (
        match low {
            Bound::Included(k) | Bound::Excluded(k) if is_long(k) => Bound::Excluded(&k[..max]),
            low => low,
        },
        match high {
            Bound::Included(k) | Bound::Excluded(k) if is_long(k) => Bound::Included(&k[..max]),
            high => high,
        },
    )
}

/// The key that follows `key` among those of at most `max` bytes, which it has itself.
pub(crate) fn next_key(key: &[u8], max: usize) -> Option<Vec<u8>> {
    assert!(key.len() <= max, "a key among these");
    let mut next = key.to_vec();
    if key.len() < max {
        next.push(0);
        debug_assert!(*next > *key, "the next key comes behind it");
        return Some(next);
    }
    while next.last() == Some(&u8::MAX) {
        next.pop();
    }
    *next.last_mut()? += 1;
    Some(next)
}

/// Whether `key` lies in the range.
pub(crate) fn contains(range: Bounds<'_>, key: &[u8]) -> bool {
    let above = match range.0 {
        Bound::Included(l) => key >= l,
        Bound::Excluded(l) => key > l,
        Bound::Unbounded => true,
    };
    above
        && match range.1 {
            Bound::Included(h) => key <= h,
            Bound::Excluded(h) => key < h,
            Bound::Unbounded => true,
        }
}

/// Whether two ranges share a possible key.
pub(crate) fn overlap(a: Bounds<'_>, b: Bounds<'_>) -> bool {
    let low = if cmp_low(a.0, b.0).is_ge() { a.0 } else { b.0 };
    let high = if cmp_high(a.1, b.1).is_le() { a.1 } else { b.1 };
    is_possible(low, high)
}

/// Whether `inner` lies within `outer`.
pub(crate) fn within(inner: Bounds<'_>, outer: Bounds<'_>) -> bool {
    cmp_low(outer.0, inner.0).is_le() && cmp_high(inner.1, outer.1).is_le()
}

#[cfg(test)]
mod tests {
    use super::*;
    use Bound::*;

    #[test]
    fn keys_order_like_their_bytes_at_every_length() {
        // Also with zeros at the end, as short keys have them behind their end, and with one byte that is another.
        let mut keys: Vec<Vec<u8>> = (0..40).flat_map(|n| [0, 7, 255].map(|byte| vec![byte; n])).collect();
        for at in 0..35 {
            keys.extend([0, 6, 8, 128].map(|byte| [vec![7; at], vec![byte], vec![7; 34 - at]].concat()));
            keys.push([vec![7; at], vec![0; 2]].concat());
        }
        for a in &keys {
            for b in &keys {
                let (short, other) = (KeyBuf::new(a), KeyBuf::new(b));
                assert_eq!(short.cmp(&other), a.cmp(b), "{a:?} and {b:?}");
                assert_eq!(short == other, a == b, "{a:?} and {b:?}");
            }
            assert_eq!(&*KeyBuf::new(a), a.as_slice());
        }
    }

    #[test]
    fn a_shortened_range_has_the_same_short_keys() {
        let mut keys: Vec<Vec<u8>> = vec![vec![]];
        for len in 1..=3 {
            let longer: Vec<_> = keys.iter().filter(|k| k.len() + 1 == len).cloned().collect();
            keys.extend(longer.iter().flat_map(|k| (0..3).map(|b| [&k[..], &[b]].concat())));
        }
        let bounds: Vec<Bound<&[u8]>> =
            keys.iter().flat_map(|k| [Included(&k[..]), Excluded(&k[..])]).chain([Unbounded]).collect();
        for (&low, &high) in bounds.iter().flat_map(|low| bounds.iter().map(move |high| (low, high))) {
            let short = shortened((low, high), 2);
            for key in keys.iter().filter(|k| k.len() <= 2) {
                assert_eq!(contains(short, key), contains((low, high), key), "{key:?} in {low:?}, {high:?}");
            }
        }
    }

    #[test]
    fn overlap_and_within_agree_with_enumeration() {
        let points: Vec<Vec<u8>> = (0..6u8).map(|n| vec![n]).collect();
        let mut bounds: Vec<Bound<&[u8]>> = vec![Unbounded];
        for p in [&points[1], &points[3]] {
            bounds.extend([Included(p.as_slice()), Excluded(p.as_slice())]);
        }
        // Between any two of the byte strings above lies one of these.
        let probes: Vec<Vec<u8>> = (0..6u8).flat_map(|n| [vec![n], vec![n, 0, 1]]).collect();
        let ranges: Vec<Bounds> = bounds.iter().flat_map(|&l| bounds.iter().map(move |&h| (l, h))).collect();
        for &a in &ranges {
            for &b in &ranges {
                let both = probes.iter().any(|k| contains(a, k) && contains(b, k));
                assert_eq!(overlap(a, b), both, "{a:?} {b:?}");
                if within(a, b) {
                    assert!(probes.iter().all(|k| !contains(a, k) || contains(b, k)), "{a:?} {b:?}");
                }
            }
        }
    }
}
