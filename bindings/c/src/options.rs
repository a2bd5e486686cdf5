//! Options by their names.

use crate::error::{run, varve_code, varve_error};
use crate::memory::{take_back, text};
use std::ffi::c_char;
use varve::Options;
use varve_bindings::Failure;

/// How a database is opened. One thread at a time.
pub struct varve_options {
    pub(crate) options: Options,
}

/// Options with their defaults; free them with varve_options_free(). One set may open any number of databases.
#[unsafe(no_mangle)]
pub extern "C" fn varve_options_new() -> *mut varve_options {
    Box::into_raw(Box::new(varve_options { options: Options::default() }))
}

/// Sets an option by its name, as `docs/options.md` lists them: "cache" to "64M", "durability" to "async",
/// "pool.replacement" to "2q". VARVE_INVALID for a name or a value that there is not; the error says what there is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_options_set(
    options: *mut varve_options,
    name: *const c_char,
    value: *const c_char,
    error: *mut *mut varve_error,
) -> varve_code {
    let call = || {
        // SAFETY: the caller gives null or options, and text.
        let (options, name, value) = unsafe { (options.as_mut(), text(name, "name")?, text(value, "value")?) };
        let options = options.ok_or_else(|| Failure::invalid("options is a null pointer"))?;
        Ok(options.options.set(name, value)?)
    };
    // SAFETY: the caller gives null or a place.
    unsafe { run(error, call) }
}

/// Frees options. Null is left alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_options_free(options: *mut varve_options) {
    // SAFETY: the caller gives null or options that are not used any more.
    unsafe { take_back(options) }
}
