//! Rows of a range, in pieces.

use crate::{Failure, Result, SharedTx};
use std::ops::Bound;
use varve::{KeyRange, Keyspace, Scan, Snapshot};

/// Rows of a transaction that the first piece has; each further one has twice as many, up to the most.
const FIRST_ROWS: usize = 16;
const MOST_ROWS: usize = 1024;
/// Bytes after which a piece ends.
const PIECE_BYTES: usize = 256 << 10;

/// A range of keys, and from which end.
#[derive(Debug, Clone)]
pub struct Span {
    /// The low end.
    pub from: Bound<Vec<u8>>,
    /// The high end.
    pub to: Bound<Vec<u8>>,
    /// From the high end down.
    pub reverse: bool,
}

impl Span {
    /// The keys that begin with a prefix.
    pub fn prefix(prefix: &[u8], reverse: bool) -> Span {
        let mut past = prefix.to_vec();
        while past.last() == Some(&u8::MAX) {
            past.pop();
        }
        let to = match past.last_mut() {
            Some(last) => {
                *last += 1;
                Bound::Excluded(past)
            }
            None => Bound::Unbounded,
        };
        Span { from: Bound::Included(prefix.to_vec()), to, reverse }
    }

    /// As the engine has it.
    pub fn range(&self) -> KeyRange<'_> {
        KeyRange::new(self.from.as_ref().map(Vec::as_slice), self.to.as_ref().map(Vec::as_slice))
    }
}

/// The rows of a range in order, of a snapshot or of a transaction. Of a transaction it sees what that wrote before the
/// piece was read that a row belongs to, so rows may be changed and deleted meanwhile.
pub enum Cursor {
    /// Of a snapshot, which stays open as long.
    Snapshot(Box<Scan<'static>>),
    /// Of a transaction.
    Transaction(TxRows),
}

/// What is left of the rows of a transaction.
pub struct TxRows {
    tx: SharedTx,
    keyspace: Keyspace,
    span: Span,
    piece: Vec<(Vec<u8>, Vec<u8>)>,
    /// The next row of the piece.
    next: usize,
    rows: usize,
    ended: bool,
}

impl Cursor {
    /// Over a snapshot.
    pub fn of_snapshot(snapshot: &Snapshot, keyspace: &Keyspace, span: &Span) -> Result<Cursor> {
        let scan = match span.reverse {
            false => snapshot.scan(keyspace, span.range()),
            true => snapshot.scan_rev(keyspace, span.range()),
        };
        Ok(Cursor::Snapshot(Box::new(scan?)))
    }

    /// Over a transaction.
    pub fn of_transaction(tx: &SharedTx, keyspace: &Keyspace, span: Span) -> Cursor {
        let (tx, keyspace) = (tx.clone(), keyspace.clone());
        let rows = FIRST_ROWS;
        Cursor::Transaction(TxRows { tx, keyspace, span, piece: Vec::new(), next: 0, rows, ended: false })
    }

    /// Lends the next row; none at the end, and after it.
    ///
    /// # Errors
    /// `SnapshotTooOld`, `Conflict`, `Closed`, those of devices.
    pub fn next_row(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        match self {
            Cursor::Snapshot(scan) => Ok(scan.next_row()?),
            Cursor::Transaction(rows) => rows.next_row(),
        }
    }
}

impl TxRows {
    fn next_row(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        if self.next == self.piece.len() && !self.ended {
            self.read()?;
        }
        let Some((key, value)) = self.piece.get(self.next) else { return Ok(None) };
        self.next += 1;
        Ok(Some((key, value)))
    }

    /// Reads the next piece.
    fn read(&mut self) -> Result<()> {
        let (keyspace, span, most, piece) = (&self.keyspace, &mut self.span, self.rows, &mut self.piece);
        piece.clear();
        self.next = 0;
        self.ended = true;
        let ended = self.tx.with(|tx| {
            let mut bytes = 0;
            let mut rows = match span.reverse {
                false => tx.scan(keyspace, span.range())?,
                true => tx.scan_rev(keyspace, span.range())?,
            };
            while piece.len() < most && bytes < PIECE_BYTES {
                let Some((key, value)) = rows.next_row()? else { return Ok::<_, Failure>(true) };
                bytes += key.len() + value.len();
                piece.push((key.to_vec(), value.to_vec()));
            }
            Ok(false)
        })?;
        if let (false, Some((last, _))) = (ended, piece.last()) {
            let end = if span.reverse { &mut span.to } else { &mut span.from };
            *end = Bound::Excluded(last.clone());
        }
        self.ended = ended;
        self.rows = (self.rows * 2).min(MOST_ROWS);
        Ok(())
    }
}
