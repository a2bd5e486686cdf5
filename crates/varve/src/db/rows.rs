//! The rows of a range from both its ends.

use super::{Keyspace, Scan, Snapshot};
use crate::error::Result;
use crate::txn::KeyRange;
use std::ops::Bound;

/// A row: its key and its value.
type Row = (Vec<u8>, Vec<u8>);

/// The rows of a range as of one moment, from both its ends: `next` takes the lowest that is left, `next_back` the
/// highest. Made by [`Keyspace::iter`], [`Snapshot::iter`] and their like. An error ends it.
///
/// ```
/// # let dir = std::env::temp_dir().join(format!("varve-doc-rows-{}", std::process::id()));
/// # let db = varve::Db::open_or_create(&dir, varve::Options::default().cache_mb(8))?;
/// let days = db.keyspace_or_create("days")?;
/// for (key, value) in [("1 mon", "work"), ("2 tue", "work"), ("6 sat", "rest")] {
///     days.put(key, value)?;
/// }
/// let mut rows = days.iter()?;
/// assert_eq!(rows.next_back().transpose()?, Some((b"6 sat".to_vec(), b"rest".to_vec())));
/// assert_eq!(rows.next().transpose()?, Some((b"1 mon".to_vec(), b"work".to_vec())));
/// assert_eq!(days.range("2".."6")?.rev().count(), 1);
/// assert_eq!(days.prefix("6")?.count(), 1);
/// # drop((rows, days)); db.close()?; std::fs::remove_dir_all(dir).unwrap();
/// # Ok::<(), varve::Error>(())
/// ```
pub struct Rows {
    snapshot: Snapshot,
    keyspace: Keyspace,
    range: KeyRange<'static>,
    /// From the low end, from the high end: begun when they are asked for.
    front: Option<Scan<'static>>,
    back: Option<Scan<'static>>,
    /// The last key that came from the low end, and from the high end.
    low: Option<Vec<u8>>,
    high: Option<Vec<u8>>,
    ended: bool,
}

impl std::fmt::Debug for Rows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rows").field("keyspace", &self.keyspace.name()).field("range", &self.range).finish()
    }
}

impl Rows {
    pub(super) fn new(snapshot: Snapshot, keyspace: Keyspace, range: KeyRange<'static>) -> Rows {
        let (front, back, low, high) = (None, None, None, None);
        Rows { snapshot, keyspace, range, front, back, low, high, ended: false }
    }

    /// The lowest row that is left.
    fn lowest(&mut self) -> Result<Option<Row>> {
        if self.front.is_none() {
            let to = self.high.as_deref().map_or(self.range.bounds().1, Bound::Excluded);
            let range = KeyRange::new(self.range.bounds().0, to);
            self.front = Some(self.snapshot.scan(&self.keyspace, range)?);
        }
        let Some(row) = self.front.as_mut().and_then(Scan::next).transpose()? else { return Ok(None) };
        if self.high.as_ref().is_some_and(|high| row.0 >= *high) {
            return Ok(None);
        }
        assert!(self.low.as_ref().is_none_or(|low| *low < row.0), "from the low end rows ascend");
        self.low.get_or_insert_default().clone_from(&row.0);
        Ok(Some(row))
    }

    /// The highest row that is left.
    fn highest(&mut self) -> Result<Option<Row>> {
        if self.back.is_none() {
            let from = self.low.as_deref().map_or(self.range.bounds().0, Bound::Excluded);
            let range = KeyRange::new(from, self.range.bounds().1);
            self.back = Some(self.snapshot.scan_rev(&self.keyspace, range)?);
        }
        let Some(row) = self.back.as_mut().and_then(Scan::next).transpose()? else { return Ok(None) };
        if self.low.as_ref().is_some_and(|low| row.0 <= *low) {
            return Ok(None);
        }
        assert!(self.high.as_ref().is_none_or(|high| row.0 < *high), "from the high end rows descend");
        self.high.get_or_insert_default().clone_from(&row.0);
        Ok(Some(row))
    }

    /// Hands a row on; nothing comes after the end, or after an error.
    fn given(&mut self, row: Result<Option<Row>>) -> Option<Result<Row>> {
        assert!(!self.ended, "nobody asks after the end");
        self.ended = !matches!(row, Ok(Some(_)));
        row.transpose()
    }
}

impl Iterator for Rows {
    type Item = Result<Row>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let row = self.lowest();
        self.given(row)
    }
}

impl DoubleEndedIterator for Rows {
    fn next_back(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let row = self.highest();
        self.given(row)
    }
}

impl std::iter::FusedIterator for Rows {}
