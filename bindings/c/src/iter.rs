//! Iterators.

use crate::error::{run, varve_code, varve_error};
use crate::keyspace::varve_keyspace;
use crate::memory::{give, lent, lent_or_nothing, put, take_back, there, varve_slice};
use crate::snapshot::varve_snapshot;
use crate::tx::varve_tx;
use std::ops::Bound;
use varve_bindings::{Cursor, Failure, Kept, Result, Span};
use varve_rt::Mutex;

/// A range of keys. Zeroed, it has every key: `varve_range r = {0};`. Name what you need:
/// `(varve_range){ .from = key, .from_len = n, .reverse = true }`. It and its keys are only lent for the call.
#[repr(C)]
#[derive(Debug)]
pub struct varve_range {
    /// The lowest key, which belongs to the range; null with length 0: from the first one on.
    pub from: *const u8,
    /// Its length.
    pub from_len: usize,
    /// The highest key, which does not belong to the range; null with length 0: to the last one.
    pub to: *const u8,
    /// Its length.
    pub to_len: usize,
    /// The keys that begin with this, instead of from and to; null with length 0: no matter.
    pub prefix: *const u8,
    /// Its length.
    pub prefix_len: usize,
    /// The key `from` does not belong to the range.
    pub from_excluded: bool,
    /// The key `to` does belong to the range.
    pub to_included: bool,
    /// Descending.
    pub reverse: bool,
}

/// The range as the engine has it.
///
/// # Safety
/// It is null, or what the header says.
pub(crate) unsafe fn span(range: *const varve_range) -> Result<Span> {
    // SAFETY: as above.
    unsafe {
        let Some(range) = range.as_ref() else {
            return Ok(Span { from: Bound::Unbounded, to: Bound::Unbounded, reverse: false });
        };
        let from = lent_or_nothing(range.from, range.from_len, "from")?;
        let to = lent_or_nothing(range.to, range.to_len, "to")?;
        if !range.prefix.is_null() || range.prefix_len > 0 {
            if from.is_some() || to.is_some() {
                return Err(Failure::invalid("a range has a prefix, or from and to, not both"));
            }
            return Ok(Span::prefix(lent(range.prefix, range.prefix_len, "prefix")?, range.reverse));
        }
        let bound = |key: Option<&[u8]>, included: bool| match (key, included) {
            (None, _) => Bound::Unbounded,
            (Some(key), true) => Bound::Included(key.to_vec()),
            (Some(key), false) => Bound::Excluded(key.to_vec()),
        };
        let (from, to) = (bound(from, !range.from_excluded), bound(to, range.to_included));
        Ok(Span { from, to, reverse: range.reverse })
    }
}

/// Rows in order. One thread at a time uses it; a second one gets VARVE_INVALID. It keeps what it goes over open, the
/// database included: free iterators before varve_close().
pub struct varve_iter {
    rows: Kept<Mutex<Cursor>>,
}

/// Hands an iterator out.
///
/// # Safety
/// `iter` is null, or a place.
unsafe fn begin(iter: *mut *mut varve_iter, rows: Cursor) -> Result<()> {
    let rows = Kept::new(Mutex::new(rows))?;
    // SAFETY: as above.
    unsafe { give(iter, "iter", varve_iter { rows }) }
}

/// The rows of a range as of the moment of the call. A null range has every row. Free it with varve_iter_free().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_iter_open(
    keyspace: *const varve_keyspace,
    range: *const varve_range,
    iter: *mut *mut varve_iter,
    error: *mut *mut varve_error,
) -> varve_code {
    // SAFETY: the caller gives null or what the header says.
    unsafe {
        run(error, || {
            let keyspace = there(keyspace, "keyspace")?.keyspace.get()?;
            let snapshot = keyspace.db.snapshot()?;
            begin(iter, Cursor::of_snapshot(&snapshot, &keyspace.keyspace, &span(range)?)?)
        })
    }
}

/// As varve_iter_open(), as of the snapshot, which may be freed meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_snapshot_iter(
    snapshot: *const varve_snapshot,
    keyspace: *const varve_keyspace,
    range: *const varve_range,
    iter: *mut *mut varve_iter,
    error: *mut *mut varve_error,
) -> varve_code {
    // SAFETY: the caller gives null or what the header says.
    unsafe {
        run(error, || {
            let snapshot = there(snapshot, "snapshot")?.snapshot.get()?;
            let keyspace = there(keyspace, "keyspace")?.keyspace.get()?;
            begin(iter, Cursor::of_snapshot(snapshot, &keyspace.keyspace, &span(range)?)?)
        })
    }
}

/// As varve_iter_open(), with what the transaction wrote, and locked against other writers as far as it was read, and a
/// little beyond. The transaction may write meanwhile: some rows (up to 1024, or 256 KB) are read ahead and do not show
/// it. When the transaction ends, the iterator still has those, and then gets VARVE_CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_tx_iter(
    tx: *const varve_tx,
    keyspace: *const varve_keyspace,
    range: *const varve_range,
    iter: *mut *mut varve_iter,
    error: *mut *mut varve_error,
) -> varve_code {
    // SAFETY: the caller gives null or what the header says.
    unsafe {
        run(error, || {
            let tx = there(tx, "tx")?.tx.get()?;
            let keyspace = there(keyspace, "keyspace")?.keyspace.get()?;
            begin(iter, Cursor::of_transaction(tx, &keyspace.keyspace, span(range)?))
        })
    }
}

/// Lends the next row. Key and value are valid until the next call with this iterator. At the end, and after it, both
/// are nothing (null data), which is no failure:
/// `while (varve_iter_next(iter, &key, &value, &error) == VARVE_OK && key.data) ...`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_iter_next(
    iter: *const varve_iter,
    key: *mut varve_slice,
    value: *mut varve_slice,
    error: *mut *mut varve_error,
) -> varve_code {
    // SAFETY: the caller gives null or what the header says.
    unsafe {
        run(error, || {
            put(key, "key", varve_slice::NOTHING)?;
            put(value, "value", varve_slice::NOTHING)?;
            let rows = there(iter, "iter")?.rows.get()?;
            let mut rows = rows
                .try_lock()
                .ok_or_else(|| Failure::invalid("another thread is using this iterator: one thread at a time"))?;
            let Some((k, v)) = rows.next_row()? else { return Ok(()) };
            put(key, "key", varve_slice::of(k))?;
            put(value, "value", varve_slice::of(v))
        })
    }
}

/// Frees an iterator, at its end or before. Null is left alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_iter_free(iter: *mut varve_iter) {
    // SAFETY: the caller gives null or an iterator that is not used any more.
    unsafe { take_back(iter) }
}
