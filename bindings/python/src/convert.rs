//! Keys, values and options from Python.

use crate::error::invalid;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyByteArray, PyBytes, PyFloat, PyInt, PyMemoryView, PyString};
use std::ops::Bound as End;
use varve_bindings::Span;

/// The bytes of a key or value: bytes as they are, text as UTF-8. They are copied, for they are used without the GIL.
pub fn bytes(what: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    if let Ok(bytes) = what.cast::<PyBytes>() {
        return Ok(bytes.as_bytes().to_vec());
    }
    if let Ok(text) = what.cast::<PyString>() {
        return Ok(text.to_cow()?.into_owned().into_bytes());
    }
    if let Ok(bytes) = what.cast::<PyByteArray>() {
        return Ok(bytes.to_vec());
    }
    let view = PyMemoryView::from(what).map_err(|_| {
        let name = what.get_type().name().map_or_else(|_| "this".into(), |name| name.to_string());
        PyTypeError::new_err(format!("a key or value is bytes, or text, not {name}"))
    })?;
    Ok(view.call_method0("tobytes")?.cast::<PyBytes>()?.as_bytes().to_vec())
}

/// A range of keys.
pub fn span(start: Option<&Bound<'_, PyAny>>, stop: Option<&Bound<'_, PyAny>>, reverse: bool) -> PyResult<Span> {
    let from = start.map(bytes).transpose()?.map_or(End::Unbounded, End::Included);
    let to = stop.map(bytes).transpose()?.map_or(End::Unbounded, End::Excluded);
    Ok(Span { from, to, reverse })
}

/// The text of an option's value, as the table of options takes it.
pub fn option(name: &str, value: &Bound<'_, PyAny>) -> PyResult<String> {
    if value.is_none() {
        return Ok("none".into());
    }
    if let Ok(flag) = value.cast::<PyBool>() {
        return Ok(flag.is_true().to_string());
    }
    if value.is_instance_of::<PyInt>() || value.is_instance_of::<PyFloat>() || value.is_instance_of::<PyString>() {
        return Ok(value.str()?.to_string());
    }
    Err(invalid(value.py(), format!("option {name}: give text, a number, True, False or None")))
}
