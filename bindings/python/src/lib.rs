//! Varve for Python: the module `varve._varve`. The package around it (`python/varve`) has the exceptions, the types for
//! checkers and the documentation of the calls in `__init__.pyi`.
//!
//! Rules of every call:
//! - the GIL is released while the engine works, for any call may wait for a lock, the log or a device;
//! - what belongs to the engine is in a [`handles::Slot`], so that closing the database ends it, and a forked child
//!   neither uses nor drops it;
//! - long work looks for signals, so that Ctrl-C ends the call.
//!
//! Modules, from below: `error` · `convert` · `handles` · `patient` · `rows` · `keyspace` · `tx` · `db`.

mod convert;
mod db;
mod error;
mod handles;
mod keyspace;
mod patient;
mod rows;
mod tx;

use pyo3::prelude::*;

/// The native part of the package `varve`.
#[pymodule]
fn _varve(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<db::Db>()?;
    module.add_class::<keyspace::Keyspace>()?;
    module.add_class::<rows::Rows>()?;
    module.add_class::<tx::Transaction>()?;
    module.add_class::<tx::Savepoint>()?;
    module.add_class::<tx::Snapshot>()?;
    module.add_function(wrap_pyfunction!(db::open, module)?)
}
