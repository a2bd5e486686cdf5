//! Work that takes long, and Ctrl-C.

use crate::error::without_gil;
use crate::handles::Opened;
use pyo3::prelude::*;
use std::sync::Arc;
use std::time::Duration;
use varve_bindings::{Code, Failure, Result};

/// How often a call that takes long looks for signals.
const LOOK: Duration = Duration::from_millis(50);

/// Does something that takes long on a thread of its own, and looks for signals meanwhile. When one raises an exception
/// the work goes on by itself, and what it comes to is dropped.
pub fn patiently<R: Send + 'static>(
    py: Python<'_>,
    opened: &Arc<Opened>,
    f: impl FnOnce(&varve::Db) -> Result<R> + Send + 'static,
) -> PyResult<R> {
    let ended = Arc::new(varve_rt::Event::new());
    let (here, theirs, opened) = (opened, ended.clone(), opened.clone());
    let work = move || {
        /// Set also when the work panics.
        struct Ended(Arc<varve_rt::Event>);
        impl Drop for Ended {
            fn drop(&mut self) {
                self.0.set();
            }
        }
        let _ended = Ended(theirs);
        f(opened.db()?)
    };
    let thread = without_gil(py, || {
        here.db()?; // not begun in a child of the process that opened it
        varve_rt::try_spawn("varve-python", work).map_err(|e| Failure::new(Code::OutOfMemory, e.to_string()))
    })?;
    while py.detach(|| ended.wait_for(LOOK)) {
        py.check_signals()?;
    }
    without_gil(py, || thread.join().map_err(|panic| Failure::new(Code::Internal, panic.to_string()))?)
}
