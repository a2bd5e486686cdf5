//! Databases.

use crate::convert::option;
use crate::error::{invalid, raised, without_gil};
use crate::handles::{Opened, Slot, TxSlot};
use crate::keyspace::{Keyspace, View, tx_options};
use crate::patient::patiently;
use crate::tx::{Snapshot, Transaction};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use varve::{BackupOptions, KeyspaceKind, LsmOptions, Options};
use varve_bindings::{Code, Failure, Result, SharedTx};

/// An open database.
#[pyclass(frozen, module = "varve")]
pub struct Db {
    opened: Arc<Opened>,
}

/// Opens a database.
#[pyfunction]
#[pyo3(signature = (path=None, *, create=true, **options))]
pub fn open(py: Python<'_>, path: Option<PathBuf>, create: bool, options: Option<&Bound<'_, PyDict>>) -> PyResult<Db> {
    let mut chosen = Options::default();
    for (name, value) in options.into_iter().flatten() {
        let name: String = name.extract()?;
        let text = option(&name, &value)?;
        chosen.set(&name, &text).map_err(|error| raised(py, &error.into()))?;
    }
    let opened = without_gil(py, || {
        Opened::new(|| {
            Ok(match (&path, create) {
                (None, _) => varve::Db::in_memory(chosen)?,
                (Some(path), true) => varve::Db::open_or_create(path, chosen)?,
                (Some(path), false) => varve::Db::open(path, chosen)?,
            })
        })
    })?;
    Ok(Db { opened: Arc::new(opened) })
}

impl Db {
    fn handle(&self, keyspace: varve::Keyspace) -> Result<Keyspace> {
        Keyspace::new(&self.opened, keyspace, View::Live)
    }
}

/// What a function that runs in a transaction ends with.
enum Ended {
    Engine(Failure),
    Python(PyErr),
}

impl From<varve::Error> for Ended {
    fn from(error: varve::Error) -> Ended {
        Ended::Engine(error.into())
    }
}

#[pymethods]
impl Db {
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
        without_gil(py, || self.opened.close())
    }

    #[pyo3(signature = (name, *, create=true, kind="tree", **options))]
    fn keyspace(
        &self,
        py: Python<'_>,
        name: &str,
        create: bool,
        kind: &str,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Keyspace> {
        let mut lsm = LsmOptions::default();
        for (name, value) in options.into_iter().flatten() {
            let name: String = name.extract()?;
            if kind != "lsm" {
                return Err(invalid(py, format!("a keyspace of kind {kind:?} has no option {name:?}")));
            }
            lsm.set(&name.replace('_', "-"), &option(&name, &value)?).map_err(|error| raised(py, &error.into()))?;
        }
        let kind = match kind {
            "tree" => KeyspaceKind::Tree,
            "lsm" => KeyspaceKind::Lsm(lsm),
            _ => return Err(invalid(py, format!("no keyspace can be of kind {kind:?}: tree, lsm"))),
        };
        without_gil(py, || {
            let db = self.opened.db()?;
            let keyspace = match db.keyspace(name) {
                Err(varve::Error::NoSuchKeyspace(_)) if create => db.keyspace_or_create_of(name, kind)?,
                found => found?,
            };
            self.handle(keyspace)
        })
    }

    fn keyspaces(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        without_gil(py, || Ok(self.opened.db()?.keyspaces()?.into_iter().map(|info| info.name).collect()))
    }

    fn drop_keyspace(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        without_gil(py, || Ok(self.opened.db()?.drop_keyspace(name)?))
    }

    fn rename_keyspace(&self, py: Python<'_>, old: &str, new: &str) -> PyResult<()> {
        without_gil(py, || Ok(self.opened.db()?.rename_keyspace(old, new)?))
    }

    #[pyo3(signature = (*, durability=None))]
    fn transaction(&self, py: Python<'_>, durability: Option<&str>) -> PyResult<Transaction> {
        let options = tx_options(py, durability)?;
        let tx = without_gil(py, || {
            let tx = SharedTx::new(self.opened.db()?.begin_with(options)?);
            self.opened.note(TxSlot::new(tx)?)
        })?;
        Ok(Transaction { opened: self.opened.clone(), tx })
    }

    #[pyo3(signature = (function, *, durability=None, retries=1000))]
    fn transact(
        &self,
        py: Python<'_>,
        function: Py<PyAny>,
        durability: Option<&str>,
        retries: u32,
    ) -> PyResult<Py<PyAny>> {
        let options = varve::TxOptions { retries, ..tx_options(py, durability)? };
        let db = self.opened.db().map_err(|failure| raised(py, &failure))?;
        let run = |tx: &mut varve::Transaction| {
            SharedTx::lend(tx, |tx| {
                let tx = Arc::new(TxSlot::new(tx.clone()).map_err(Ended::Engine)?);
                Python::attach(|py| {
                    py.check_signals()?;
                    function.call1(py, (Transaction { opened: self.opened.clone(), tx },))
                })
                .map_err(Ended::Python)
            })
        };
        let done = py.detach(|| {
            let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| db.try_transact(options, run)));
            caught.unwrap_or_else(|panic| Err(Ended::Engine(Failure::panic(&*panic))))
        });
        done.map_err(|ended| match ended {
            Ended::Engine(failure) => raised(py, &failure),
            Ended::Python(error) => error,
        })
    }

    fn snapshot(&self, py: Python<'_>) -> PyResult<Snapshot> {
        let snapshot = without_gil(py, || self.opened.note(Slot::new(self.opened.db()?.snapshot()?)?))?;
        Ok(Snapshot { opened: self.opened.clone(), snapshot })
    }

    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        without_gil(py, || Ok(self.opened.db()?.sync()?))
    }

    fn checkpoint(&self, py: Python<'_>) -> PyResult<()> {
        patiently(py, &self.opened, |db| Ok(db.checkpoint()?))
    }

    fn check(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        patiently(py, &self.opened, |db| {
            let report = db.check()?;
            let damages = report.damages.iter().map(ToString::to_string);
            Ok(damages.chain(report.unreadable.iter().map(ToString::to_string)).collect())
        })
    }

    fn backup(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        patiently(py, &self.opened, move |db| {
            let failed = |e: std::io::Error| {
                let code = match e.kind() {
                    std::io::ErrorKind::AlreadyExists => Code::Exists,
                    std::io::ErrorKind::PermissionDenied => Code::Permission,
                    std::io::ErrorKind::StorageFull => Code::NoSpace,
                    _ => Code::Io,
                };
                Failure::new(code, format!("{}: {e}", path.display()))
            };
            let mut file = File::create_new(&path).map_err(failed)?;
            db.backup(&mut file, BackupOptions::default())?;
            file.flush().and_then(|()| file.sync_all()).map_err(failed)
        })
    }

    fn metrics(&self, py: Python<'_>) -> PyResult<String> {
        without_gil(py, || {
            let db = self.opened.db()?;
            db.keyspaces()?; // refused once it is closed
            Ok(db.stats().prometheus())
        })
    }
}
