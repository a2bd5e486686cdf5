//! Failures as exceptions: each code has a class of its name in `varve._errors`.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use varve_bindings::{Code, Failure};

/// The exception for a failure.
pub fn raised(py: Python<'_>, failure: &Failure) -> PyErr {
    let class = format!("{:?}", failure.code);
    let made = py.import("varve._errors").and_then(|module| {
        let error = module.getattr(class.as_str())?.call1((failure.message.as_str(),))?;
        error.setattr("retryable", failure.retryable)?;
        Ok(PyErr::from_value(error))
    });
    made.unwrap_or_else(|_| PyRuntimeError::new_err(failure.message.clone()))
}

/// Runs what the engine does, without the GIL. A panic becomes an exception.
pub fn without_gil<R: Send>(py: Python<'_>, f: impl FnOnce() -> varve_bindings::Result<R> + Send) -> PyResult<R> {
    let done = py.detach(|| {
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
        caught.unwrap_or_else(|panic| Err(Failure::panic(&*panic)))
    });
    done.map_err(|failure| raised(py, &failure))
}

/// A failure that is told by an exception at once.
pub fn invalid(py: Python<'_>, message: impl Into<String>) -> PyErr {
    raised(py, &Failure::new(Code::Invalid, message))
}
