//! What every kind of index deals in: keys with values, short or long, and writes of them.
//!
//! A short value lies with its key, in whatever way the index has. A long one lies in a chain of pages of its own
//! (`overflow`), and the index holds a reference to it; so readers, the version store and commits need not know the
//! kind.

pub(crate) mod overflow;

pub(crate) use overflow::OverflowRef;

use crate::error::Error;
use varve_volume::{KeyspaceId, Lsn, PageId};

/// What is wrong with the content of a page; the caller adds page and keyspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Damage(pub(crate) &'static str);

/// Turns damage of a page into an error.
pub(crate) fn corrupt(page: PageId, keyspace: KeyspaceId, damage: Damage) -> Error {
    Error::corrupt_page(page, Some(keyspace), damage.0)
}

#[inline]
pub(crate) fn u16_at(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([b[at], b[at + 1]])
}

#[inline]
pub(crate) fn u64_at(b: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(b[at..at + 8].try_into().expect("eight bytes"))
}

/// A value found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValueRef<'a> {
    /// The value itself.
    Inline(&'a [u8]),
    /// Where the value lies.
    Overflow(OverflowRef),
}

impl ValueRef<'_> {
    #[cfg(any(test, feature = "testing"))]
    /// The value's length in bytes.
    pub(crate) fn len(&self) -> u64 {
        match self {
            ValueRef::Inline(v) => v.len() as u64,
            ValueRef::Overflow(r) => r.len,
        }
    }
}

/// A value taken out of where it was found; a long one stays where it lies.
pub(crate) enum Copied {
    Bytes(Box<[u8]>),
    Long(OverflowRef),
}

impl Copied {
    pub fn as_ref(&self) -> ValueRef<'_> {
        match self {
            Copied::Bytes(bytes) => ValueRef::Inline(bytes),
            Copied::Long(reference) => ValueRef::Overflow(*reference),
        }
    }
}

impl From<ValueRef<'_>> for Copied {
    fn from(value: ValueRef<'_>) -> Copied {
        match value {
            ValueRef::Inline(bytes) => Copied::Bytes(bytes.into()),
            ValueRef::Overflow(reference) => Copied::Long(reference),
        }
    }
}

/// Keys from the first on, below the second (none: to the end).
pub(crate) type Span = (Vec<u8>, Option<Vec<u8>>);

/// The way a scan goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// Ascending.
    Forward,
    /// Descending.
    Reverse,
}

/// A page from which rows were read, and the LSN of its last change then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub page: PageId,
    pub lsn: Lsn,
}

/// Where a batch of a scan ended.
#[derive(Clone, Debug)]
pub(crate) struct BatchEnd {
    /// What was read.
    pub seen: Seen,
    /// Where the scan goes on: forward with `from = Included(next)`, in reverse with `to = Excluded(next)`. None at the
    /// end of the range, or when the reader broke off.
    pub next: Option<Vec<u8>>,
}

/// What an index holds, about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Estimate {
    pub rows: u64,
    /// Pages of nodes, long values and segments.
    pub pages: u64,
}

/// The page that covered a key when a transaction read it, for a commit that writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hint {
    pub page: PageId,
    /// [`Kernel::nodes_left`](crate::page::Kernel::nodes_left) before the page was found.
    pub left: u64,
    /// LSN of the page then: as long as it is the same, the page covers the key. `Lsn::MAX`: nobody looked at it.
    pub lsn: Lsn,
}

/// A value that a commit writes.
#[derive(Clone, Copy)]
pub(crate) enum NewValue<'a> {
    Bytes(&'a [u8]),
    /// In pages that the commit links.
    Stored(OverflowRef),
}

/// One write of a commit. Those to one keyspace are in key order.
pub(crate) struct Write<'a> {
    pub key: &'a [u8],
    /// `None`: delete.
    pub value: Option<NewValue<'a>>,
    pub hint: Option<Hint>,
}

/// Long values that writes (by their place in the commit) replace, or that they write.
pub(crate) type LongValues = Vec<(usize, OverflowRef)>;

/// A row of a page by itself, or what is wrong with the page.
pub(crate) type PageRow<'a> = std::result::Result<(&'a [u8], ValueRef<'a>), Damage>;

/// A long value that is to move.
pub(crate) struct FarValue {
    pub key: Vec<u8>,
    /// How many pages it has.
    pub pages: u64,
    /// The last of them in the store, or later.
    pub last: PageId,
}

/// What came of latching what one write of a short value, or one deletion, changes: the short way.
pub(crate) enum Single<P, T> {
    /// It is latched and takes the write; `T`: what the caller made of the value that is replaced.
    Ready(P, T),
    /// The key that is to be removed is not there, as of this LSN.
    Nothing(Lsn),
    /// A long value is involved: the write takes the long way.
    Long,
}
