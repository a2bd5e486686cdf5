//! Iterators over rows.

use crate::error::without_gil;
use crate::handles::Slot;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use std::collections::VecDeque;
use std::sync::Arc;
use varve_bindings::Cursor;
use varve_rt::Mutex;

/// What an iterator yields.
#[derive(Clone, Copy)]
pub enum Yields {
    Keys,
    Values,
    Items,
}

/// Rows of the first piece that is read without the GIL; each further one has twice as many, up to the most.
const FIRST: usize = 16;
const MOST: usize = 1024;
/// Bytes after which a piece ends.
const PIECE_BYTES: usize = 1 << 20;

/// Keys, values or rows in order. Between pieces it looks for signals.
#[pyclass(frozen, module = "varve")]
pub struct Rows {
    cursor: Arc<Slot<Cursor>>,
    yields: Yields,
    piece: Mutex<Piece>,
}

struct Piece {
    rows: VecDeque<(Vec<u8>, Vec<u8>)>,
    most: usize,
    ended: bool,
}

impl Rows {
    pub fn new(cursor: Arc<Slot<Cursor>>, yields: Yields) -> Rows {
        let piece = Mutex::new(Piece { rows: VecDeque::new(), most: FIRST, ended: false });
        Rows { cursor, yields, piece }
    }

    /// The next row. Two threads that share the iterator get each row once.
    fn row(&self, py: Python<'_>) -> PyResult<Option<(Vec<u8>, Vec<u8>)>> {
        // Not waited for with the GIL: who has the piece may need it.
        if let Some(mut piece) = self.piece.try_lock() {
            match piece.rows.pop_front() {
                None if piece.ended => return Ok(None),
                None => {}
                row => return Ok(row),
            }
        }
        py.check_signals()?;
        without_gil(py, || {
            let mut piece = self.piece.lock();
            if piece.rows.is_empty() && !piece.ended {
                let read = self.cursor.with(|cursor| read(cursor, &mut piece));
                piece.ended |= read.is_err();
                read?;
            }
            Ok(piece.rows.pop_front())
        })
    }
}

/// Reads the next piece.
fn read(cursor: &mut Cursor, piece: &mut Piece) -> varve_bindings::Result<()> {
    let mut bytes = 0;
    while piece.rows.len() < piece.most && bytes < PIECE_BYTES {
        let Some((key, value)) = cursor.next_row()? else {
            piece.ended = true;
            break;
        };
        bytes += key.len() + value.len();
        piece.rows.push_back((key.to_vec(), value.to_vec()));
    }
    piece.most = (piece.most * 2).min(MOST);
    Ok(())
}

#[pymethods]
impl Rows {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some((key, value)) = self.row(py)? else { return Ok(None) };
        Ok(Some(match self.yields {
            Yields::Keys => PyBytes::new(py, &key).into_any(),
            Yields::Values => PyBytes::new(py, &value).into_any(),
            Yields::Items => PyTuple::new(py, [PyBytes::new(py, &key), PyBytes::new(py, &value)])?.into_any(),
        }))
    }

    /// Lets go of the snapshot, before the end.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        without_gil(py, || {
            let mut piece = self.piece.lock();
            (piece.ended, piece.rows) = (true, VecDeque::new());
            drop(self.cursor.take()?);
            Ok(())
        })
    }
}
