//! Rows gathered for one commit of a loader. Kept as bytes, so that a commit that the store refused can be repeated.

use std::ops::Range;

use crate::adapter::{Durability, End, Store, TxMode, Txn, transact};
use crate::error::Result;

/// Rows per commit: few enough for the locks and the write set of a small cache.
const ROWS: usize = 200;
/// Bytes per commit, one row more at most.
const BYTES: usize = 64 << 10;

/// A batch of rows; commits itself when it is full, without waiting for the medium.
pub(crate) struct Batch<'a, S: Store> {
    store: &'a S,
    rows: Vec<(S::Keyspace, Range<usize>, Range<usize>)>,
    bytes: Vec<u8>,
    unreported: u64,
    report: &'a mut dyn FnMut(u64),
}

impl<'a, S: Store> Batch<'a, S> {
    /// An empty batch; `report` is told the number of rows of each commit, rows without a value not counted.
    pub fn new(store: &'a S, report: &'a mut dyn FnMut(u64)) -> Self {
        Batch { store, rows: Vec::new(), bytes: Vec::new(), unreported: 0, report }
    }

    fn push(&mut self, part: &[u8]) -> Range<usize> {
        let from = self.bytes.len();
        self.bytes.extend_from_slice(part);
        from..self.bytes.len()
    }

    /// Adds a row.
    pub fn put(&mut self, ks: &S::Keyspace, key: &[u8], value: &[u8]) -> Result<()> {
        let row = (ks.clone(), self.push(key), self.push(value));
        self.rows.push(row);
        self.unreported += u64::from(!value.is_empty());
        if self.rows.len() >= ROWS || self.bytes.len() >= BYTES { self.flush() } else { Ok(()) }
    }

    /// Commits what was gathered.
    pub fn flush(&mut self) -> Result<()> {
        let (rows, bytes) = (&self.rows, &self.bytes);
        transact(self.store, TxMode::ReadWrite, Durability::None, |tx| {
            for (ks, key, value) in rows {
                tx.put(ks, &bytes[key.clone()], &bytes[value.clone()])?;
            }
            Ok(((), End::Commit))
        })?;
        self.rows.clear();
        self.bytes.clear();
        (self.report)(std::mem::take(&mut self.unreported));
        Ok(())
    }
}
