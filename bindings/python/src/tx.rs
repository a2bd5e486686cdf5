//! Transactions and snapshots.

use crate::error::{raised, without_gil};
use crate::handles::{Ends, Opened, Slot, TxSlot};
use crate::keyspace::{Keyspace, View};
use pyo3::prelude::*;
use std::sync::Arc;
use varve_bindings::{Code, Failure};

/// An open transaction. As a context it commits at the end, and rolls back when an exception leaves it.
#[pyclass(frozen, module = "varve")]
pub struct Transaction {
    pub opened: Arc<Opened>,
    pub tx: Arc<TxSlot>,
}

/// A state of a transaction.
#[pyclass(frozen, module = "varve")]
pub struct Savepoint(varve::Savepoint);

#[pymethods]
impl Transaction {
    fn __getitem__(&self, py: Python<'_>, keyspace: &Keyspace) -> PyResult<Keyspace> {
        let view = View::Transaction(self.tx.clone());
        keyspace.seen_by(&self.opened, view).map_err(|failure| raised(py, &failure))
    }

    fn __enter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        let commits = kind.is_none();
        without_gil(py, || match self.tx.get()?.end() {
            Ok(tx) if commits => Ok(tx.commit()?),
            Ok(tx) => {
                tx.rollback();
                Ok(())
            }
            // It was ended within.
            Err(Failure { code: Code::Closed, .. }) => Ok(()),
            Err(failure) => Err(failure),
        })?;
        Ok(false)
    }

    fn commit(&self, py: Python<'_>) -> PyResult<()> {
        without_gil(py, || Ok(self.tx.get()?.end()?.commit()?))
    }

    fn rollback(&self, py: Python<'_>) -> PyResult<()> {
        without_gil(py, || self.tx.end())
    }

    fn savepoint(&self, py: Python<'_>) -> PyResult<Savepoint> {
        without_gil(py, || self.tx.get()?.with(|tx| Ok(Savepoint(tx.savepoint()?))))
    }

    fn rollback_to(&self, py: Python<'_>, savepoint: &Savepoint) -> PyResult<()> {
        without_gil(py, || self.tx.get()?.with(|tx| Ok(tx.rollback_to(savepoint.0)?)))
    }
}

/// A view of the whole database as of one moment.
#[pyclass(frozen, module = "varve")]
pub struct Snapshot {
    pub opened: Arc<Opened>,
    pub snapshot: Arc<Slot<varve::Snapshot>>,
}

#[pymethods]
impl Snapshot {
    fn __getitem__(&self, py: Python<'_>, keyspace: &Keyspace) -> PyResult<Keyspace> {
        let view = View::Snapshot(self.snapshot.clone());
        keyspace.seen_by(&self.opened, view).map_err(|failure| raised(py, &failure))
    }

    fn __enter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        self.close(py)?;
        Ok(false)
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        without_gil(py, || self.snapshot.end())
    }
}
