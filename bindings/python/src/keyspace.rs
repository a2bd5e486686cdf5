//! Keyspaces as mappings: of the database itself, of a transaction, of a snapshot.

use crate::convert::{bytes, span};
use crate::error::{invalid, raised, without_gil};
use crate::handles::{Opened, Slot, TxSlot};
use crate::patient::patiently;
use crate::rows::{Rows, Yields};
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PySlice};
use std::sync::Arc;
use varve::{Transaction, TxOptions};
use varve_bindings::{Code, Cursor, Failure, Kept, Result, Span};

/// Values longer than this are put by a transaction, which takes any; a single put has a limit by the cache.
const LONG: usize = 256 << 10;

/// As of what a keyspace is read, and what its writes belong to.
#[derive(Clone)]
pub enum View {
    /// The present; each write is a transaction of its own.
    Live,
    Transaction(Arc<TxSlot>),
    Snapshot(Arc<Slot<varve::Snapshot>>),
}

/// A keyspace as a mapping of bytes to bytes, in the order of keys.
#[pyclass(frozen, module = "varve", mapping)]
pub struct Keyspace {
    opened: Arc<Opened>,
    keyspace: Kept<varve::Keyspace>,
    view: View,
}

type Row = (Vec<u8>, Vec<u8>);

impl Keyspace {
    pub fn new(opened: &Arc<Opened>, keyspace: varve::Keyspace, view: View) -> Result<Keyspace> {
        Ok(Keyspace { opened: opened.clone(), keyspace: Kept::new(keyspace)?, view })
    }

    /// The same keyspace in another view.
    pub fn seen_by(&self, opened: &Arc<Opened>, view: View) -> Result<Keyspace> {
        if !Arc::ptr_eq(opened, &self.opened) {
            return Err(Failure::invalid("this keyspace belongs to another database"));
        }
        Keyspace::new(opened, self.keyspace.get()?.clone(), view)
    }

    /// Reads a value.
    fn read(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let keyspace = self.keyspace.get()?;
        match &self.view {
            View::Live => Ok(keyspace.get(key)?),
            View::Transaction(tx) => tx.get()?.with(|tx| Ok(tx.get(keyspace, key)?)),
            View::Snapshot(snapshot) => snapshot.with(|snapshot| Ok(snapshot.get(keyspace, key)?)),
        }
    }

    /// Does something in the view's transaction, or in one of its own that is repeated on conflicts.
    fn write<R>(&self, mut f: impl FnMut(&mut Transaction, &varve::Keyspace) -> varve::Result<R>) -> Result<R> {
        let keyspace = self.keyspace.get()?;
        match &self.view {
            View::Live => Ok(self.opened.db()?.transact(|tx| f(tx, keyspace))?),
            View::Transaction(tx) => tx.get()?.with(|tx| Ok(f(tx, keyspace)?)),
            View::Snapshot(_) => Err(Failure::new(Code::ReadOnly, "a snapshot can only be read")),
        }
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        match &self.view {
            View::Live if value.len() <= LONG => Ok(self.keyspace.get()?.put(key, value)?),
            _ => self.write(|tx, keyspace| tx.put(keyspace, key, value)),
        }
    }

    fn cursor(&self, span: Span) -> Result<Cursor> {
        let keyspace = self.keyspace.get()?;
        match &self.view {
            View::Live => Cursor::of_snapshot(&self.opened.db()?.snapshot()?, keyspace, &span),
            View::Transaction(tx) => Ok(Cursor::of_transaction(tx.get()?, keyspace, span)),
            View::Snapshot(snapshot) => snapshot.with(|snapshot| Cursor::of_snapshot(snapshot, keyspace, &span)),
        }
    }

    fn rows(&self, py: Python<'_>, span: Span, yields: Yields) -> PyResult<Rows> {
        let cursor = without_gil(py, || self.opened.note(Slot::new(self.cursor(span)?)?))?;
        Ok(Rows::new(cursor, yields))
    }

    /// The first row of a range.
    fn end(&self, py: Python<'_>, reverse: bool) -> PyResult<Option<Row>> {
        let span = all(reverse);
        without_gil(py, || {
            let mut cursor = self.cursor(span)?;
            Ok(cursor.next_row()?.map(|(key, value)| (key.to_vec(), value.to_vec())))
        })
    }

    /// Removes the row at an end.
    fn pop_end(&self, py: Python<'_>, reverse: bool) -> PyResult<Option<Row>> {
        without_gil(py, || {
            self.write(|tx, keyspace| {
                let mut rows = if reverse { tx.scan_rev(keyspace, ..)? } else { tx.scan(keyspace, ..)? };
                let row = rows.next().transpose()?;
                drop(rows);
                if let Some((key, _)) = &row {
                    tx.delete(keyspace, key)?;
                }
                Ok(row)
            })
        })
    }
}

fn all(reverse: bool) -> Span {
    Span { from: std::ops::Bound::Unbounded, to: std::ops::Bound::Unbounded, reverse }
}

fn row<'py>(py: Python<'py>, row: Option<Row>) -> Option<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
    row.map(|(key, value)| (PyBytes::new(py, &key), PyBytes::new(py, &value)))
}

fn missing(key: &Bound<'_, PyAny>) -> PyErr {
    PyKeyError::new_err(key.clone().unbind())
}

#[pymethods]
impl Keyspace {
    #[getter]
    fn name(&self, py: Python<'_>) -> PyResult<String> {
        self.keyspace.get().map(|keyspace| keyspace.name().to_string()).map_err(|failure| raised(py, &failure))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let of = match &self.view {
            View::Live => "",
            View::Transaction(_) => " of a transaction",
            View::Snapshot(_) => " of a snapshot",
        };
        Ok(format!("<varve.Keyspace {:?}{of}>", self.name(py)?))
    }

    fn __getitem__<'py>(&self, py: Python<'py>, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        if let Ok(slice) = key.cast::<PySlice>() {
            let [start, stop, step] = ["start", "stop", "step"].map(|name| slice.getattr(name));
            if !step?.is_none() {
                return Err(invalid(py, "a range of keys has no step"));
            }
            let (start, stop) = (start?, stop?);
            let some = |bound: Bound<'py, PyAny>| (!bound.is_none()).then_some(bound);
            let span = span(some(start).as_ref(), some(stop).as_ref(), false)?;
            return Ok(Bound::new(py, self.rows(py, span, Yields::Items)?)?.into_any());
        }
        let bytes = bytes(key)?;
        let value = without_gil(py, || self.read(&bytes))?;
        value.map(|value| PyBytes::new(py, &value).into_any()).ok_or_else(|| missing(key))
    }

    #[pyo3(signature = (key, default=None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let key = bytes(key)?;
        let value = without_gil(py, || self.read(&key))?;
        Ok(value.map(|value| PyBytes::new(py, &value).into_any()).or(default))
    }

    fn get_for_update<'py>(&self, py: Python<'py>, key: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let View::Transaction(tx) = &self.view else {
            return Err(invalid(py, "only a transaction can lock a key: use tx[keyspace].get_for_update(key)"));
        };
        let key = bytes(key)?;
        let get = || tx.get()?.with(|tx| Ok(tx.get_for_update(self.keyspace.get()?, &key)?));
        Ok(without_gil(py, get)?.map(|value| PyBytes::new(py, &value)))
    }

    fn multi_get<'py>(&self, py: Python<'py>, keys: &Bound<'py, PyAny>) -> PyResult<Vec<Option<Bound<'py, PyBytes>>>> {
        let keys = keys.try_iter()?.map(|key| bytes(&key?)).collect::<PyResult<Vec<_>>>()?;
        let values = without_gil(py, || {
            let keyspace = self.keyspace.get()?;
            match &self.view {
                View::Live => Ok(keyspace.multi_get(&keys)?),
                View::Transaction(tx) => tx.get()?.with(|tx| Ok(tx.multi_get(keyspace, &keys)?)),
                View::Snapshot(snapshot) => snapshot.with(|snapshot| Ok(snapshot.multi_get(keyspace, &keys)?)),
            }
        })?;
        Ok(values.into_iter().map(|value| value.map(|value| PyBytes::new(py, &value))).collect())
    }

    fn __setitem__(&self, py: Python<'_>, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let (key, value) = (bytes(key)?, bytes(value)?);
        without_gil(py, || self.put(&key, &value))
    }

    fn __delitem__(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<()> {
        match self.delete(py, key)? {
            true => Ok(()),
            false => Err(missing(key)),
        }
    }

    fn delete(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let key = bytes(key)?;
        without_gil(py, || match &self.view {
            View::Live => Ok(self.keyspace.get()?.delete(&key)?),
            _ => self.write(|tx, keyspace| {
                let there = tx.get_for_update_with(keyspace, &key, |value| value.is_some())?;
                if there {
                    tx.delete(keyspace, &key)?;
                }
                Ok(there)
            }),
        })
    }

    fn __contains__(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let key = bytes(key)?;
        without_gil(py, || {
            let keyspace = self.keyspace.get()?;
            match &self.view {
                View::Live => Ok(keyspace.contains(&key)?),
                View::Transaction(tx) => tx.get()?.with(|tx| Ok(tx.contains(keyspace, &key)?)),
                View::Snapshot(snapshot) => snapshot.with(|snapshot| Ok(snapshot.contains(keyspace, &key)?)),
            }
        })
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let keyspace = self.keyspace.get().map_err(|failure| raised(py, &failure))?.clone();
        let count = match &self.view {
            View::Transaction(tx) => without_gil(py, || tx.get()?.with(|tx| Ok(tx.count(&keyspace, ..)?)))?,
            View::Live => patiently(py, &self.opened, move |_| Ok(keyspace.len()?))?,
            View::Snapshot(snapshot) => {
                let snapshot = without_gil(py, || snapshot.with(|snapshot| Ok(snapshot.clone())))?;
                patiently(py, &self.opened, move |_| Ok(snapshot.count(&keyspace, ..)?))?
            }
        };
        Ok(usize::try_from(count)?)
    }

    fn __bool__(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.end(py, false)?.is_some())
    }

    fn __iter__(&self, py: Python<'_>) -> PyResult<Rows> {
        self.rows(py, all(false), Yields::Keys)
    }

    fn __reversed__(&self, py: Python<'_>) -> PyResult<Rows> {
        self.rows(py, all(true), Yields::Keys)
    }

    #[pyo3(signature = (*, reverse=false))]
    fn keys(&self, py: Python<'_>, reverse: bool) -> PyResult<Rows> {
        self.rows(py, all(reverse), Yields::Keys)
    }

    #[pyo3(signature = (*, reverse=false))]
    fn values(&self, py: Python<'_>, reverse: bool) -> PyResult<Rows> {
        self.rows(py, all(reverse), Yields::Values)
    }

    #[pyo3(signature = (*, reverse=false))]
    fn items(&self, py: Python<'_>, reverse: bool) -> PyResult<Rows> {
        self.rows(py, all(reverse), Yields::Items)
    }

    #[pyo3(signature = (start=None, stop=None, *, reverse=false))]
    fn range(
        &self,
        py: Python<'_>,
        start: Option<&Bound<'_, PyAny>>,
        stop: Option<&Bound<'_, PyAny>>,
        reverse: bool,
    ) -> PyResult<Rows> {
        self.rows(py, span(start, stop, reverse)?, Yields::Items)
    }

    #[pyo3(signature = (prefix, *, reverse=false))]
    fn prefix(&self, py: Python<'_>, prefix: &Bound<'_, PyAny>, reverse: bool) -> PyResult<Rows> {
        self.rows(py, Span::prefix(&bytes(prefix)?, reverse), Yields::Items)
    }

    fn first<'py>(&self, py: Python<'py>) -> PyResult<Option<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)>> {
        Ok(row(py, self.end(py, false)?))
    }

    fn last<'py>(&self, py: Python<'py>) -> PyResult<Option<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)>> {
        Ok(row(py, self.end(py, true)?))
    }

    fn pop_first<'py>(&self, py: Python<'py>) -> PyResult<Option<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)>> {
        Ok(row(py, self.pop_end(py, false)?))
    }

    fn pop_last<'py>(&self, py: Python<'py>) -> PyResult<Option<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)>> {
        Ok(row(py, self.pop_end(py, true)?))
    }

    fn popitem<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
        row(py, self.pop_end(py, true)?).ok_or_else(|| PyKeyError::new_err("the keyspace is empty"))
    }

    #[pyo3(signature = (key, *default))]
    fn pop<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        default: &Bound<'py, pyo3::types::PyTuple>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let bytes = bytes(key)?;
        let value = without_gil(py, || {
            self.write(|tx, keyspace| {
                let value = tx.get_for_update(keyspace, &bytes)?;
                if value.is_some() {
                    tx.delete(keyspace, &bytes)?;
                }
                Ok(value)
            })
        })?;
        match value {
            Some(value) => Ok(PyBytes::new(py, &value).into_any()),
            None => default.get_item(0).map_err(|_| missing(key)),
        }
    }

    fn setdefault<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        default: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (key, default) = (bytes(key)?, bytes(default)?);
        let value = without_gil(py, || {
            self.write(|tx, keyspace| match tx.get_for_update(keyspace, &key)? {
                Some(value) => Ok(value),
                None => tx.put(keyspace, &key, &default).map(|()| default.clone()),
            })
        })?;
        Ok(PyBytes::new(py, &value))
    }

    fn insert_if_absent(&self, py: Python<'_>, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<bool> {
        let (key, value) = (bytes(key)?, bytes(value)?);
        without_gil(py, || {
            self.write(|tx, keyspace| {
                let there = tx.get_for_update_with(keyspace, &key, |value| value.is_some())?;
                if !there {
                    tx.put(keyspace, &key, &value)?;
                }
                Ok(!there)
            })
        })
    }

    fn compare_and_swap(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        old: Option<&Bound<'_, PyAny>>,
        new: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<bool> {
        let key = bytes(key)?;
        let (old, new) = (old.map(bytes).transpose()?, new.map(bytes).transpose()?);
        without_gil(py, || {
            self.write(|tx, keyspace| {
                if tx.get_for_update(keyspace, &key)? != old {
                    return Ok(false);
                }
                match &new {
                    Some(new) => tx.put(keyspace, &key, new)?,
                    None => tx.delete(keyspace, &key)?,
                }
                Ok(true)
            })
        })
    }

    #[pyo3(signature = (other=None, **more))]
    fn update(
        &self,
        py: Python<'_>,
        other: Option<&Bound<'_, PyAny>>,
        more: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<()> {
        let mut writes: Vec<Row> = Vec::new();
        let mut take = |pairs: Bound<'_, PyAny>| -> PyResult<()> {
            for pair in pairs.try_iter()? {
                let (key, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = pair?.extract()?;
                writes.push((bytes(&key)?, bytes(&value)?));
            }
            Ok(())
        };
        if let Some(other) = other {
            take(if other.hasattr("items")? { other.call_method0("items")? } else { other.clone() })?;
        }
        if let Some(more) = more {
            take(more.call_method0("items")?)?;
        }
        without_gil(py, || {
            self.write(|tx, keyspace| writes.iter().try_for_each(|(key, value)| tx.put(keyspace, key, value)))
        })
    }

    #[pyo3(signature = (start=None, stop=None))]
    fn delete_range(
        &self,
        py: Python<'_>,
        start: Option<&Bound<'_, PyAny>>,
        stop: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let span = span(start, stop, false)?;
        without_gil(py, || match &self.view {
            View::Live => Ok(self.keyspace.get()?.delete_range(span.range())?),
            _ => self.write(|tx, keyspace| tx.delete_range(keyspace, span.range()).map(drop)),
        })
    }

    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        self.delete_range(py, None, None)
    }
}

/// The options of a transaction.
pub fn tx_options(py: Python<'_>, durability: Option<&str>) -> PyResult<TxOptions> {
    let Some(name) = durability else { return Ok(TxOptions::default()) };
    match name.parse() {
        Ok(durability) => Ok(TxOptions::durability(durability)),
        Err(_) => Err(invalid(py, format!("durability {name:?}: choose sync, async or none"))),
    }
}
