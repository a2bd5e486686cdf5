//! Memory that crosses the border: pointers to check, bytes to hand out.

use std::alloc::Layout;
use std::ffi::{CStr, c_char};
use std::ptr::{null, null_mut};
use varve_bindings::{Code, Failure, Result};

/// Bytes that the library allocated. They belong to the caller, who frees them with varve_bytes_free(). After the last
/// byte there is a zero byte that `len` does not count, so text can be used as a C string.
#[repr(C)]
#[derive(Debug)]
pub struct varve_bytes {
    /// The bytes; null: there is nothing (no such key). An empty value is not null.
    pub data: *mut u8,
    /// How many.
    pub len: usize,
}

/// Bytes that the library lends: valid as long as the function says that lent them. Never to be freed.
#[repr(C)]
#[derive(Debug)]
pub struct varve_slice {
    /// The bytes; null: there is nothing.
    pub data: *const u8,
    /// How many.
    pub len: usize,
}

impl varve_bytes {
    pub(crate) const NOTHING: varve_bytes = varve_bytes { data: null_mut(), len: 0 };

    /// A copy.
    pub(crate) fn of(bytes: &[u8]) -> Result<varve_bytes> {
        let len = bytes.len();
        let refused = || Failure::new(Code::OutOfMemory, format!("no memory for {len} bytes"));
        let layout = layout(len).ok_or_else(refused)?;
        // SAFETY: the layout has a byte at least.
        let data = unsafe { std::alloc::alloc(layout) };
        if data.is_null() {
            return Err(refused());
        }
        // SAFETY: there is room for the bytes and one more, in memory that nobody else has.
        unsafe {
            data.copy_from_nonoverlapping(bytes.as_ptr(), len);
            data.add(len).write(0);
        }
        Ok(varve_bytes { data, len })
    }

    /// A copy, or nothing.
    pub(crate) fn of_option(bytes: Option<&[u8]>) -> Result<varve_bytes> {
        bytes.map_or(Ok(varve_bytes::NOTHING), varve_bytes::of)
    }
}

impl varve_slice {
    pub(crate) const NOTHING: varve_slice = varve_slice { data: null(), len: 0 };

    pub(crate) fn of(bytes: &[u8]) -> varve_slice {
        varve_slice { data: bytes.as_ptr(), len: bytes.len() }
    }
}

/// Of so many bytes and the zero byte.
fn layout(len: usize) -> Option<Layout> {
    Layout::array::<u8>(len.checked_add(1)?).ok()
}

/// Frees bytes that the library allocated, and sets them to nothing: to free them twice through the same variable does
/// nothing. Null, and bytes that are nothing, are left alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_bytes_free(bytes: *mut varve_bytes) {
    // SAFETY: the caller gives null or a valid place.
    let Some(bytes) = (unsafe { bytes.as_mut() }) else { return };
    let varve_bytes { data, len } = std::mem::replace(bytes, varve_bytes::NOTHING);
    if let (false, Some(layout)) = (data.is_null(), layout(len)) {
        // SAFETY: it was allocated with this layout, by `of`, and is given back once.
        unsafe { std::alloc::dealloc(data, layout) };
    }
}

/// What a pointer of the caller points to.
///
/// # Safety
/// It is null, or points to what lives as long as the call.
pub(crate) unsafe fn there<'a, T>(pointer: *const T, what: &str) -> Result<&'a T> {
    // SAFETY: as above.
    unsafe { pointer.as_ref() }.ok_or_else(|| null_pointer(what))
}

/// A place of the caller's to put something; it is overwritten, not dropped.
///
/// # Safety
/// It is null, or there is room for a `T`.
pub(crate) unsafe fn put<T>(place: *mut T, what: &str, value: T) -> Result<()> {
    match place.is_null() {
        true => Err(null_pointer(what)),
        false => {
            // SAFETY: as above.
            unsafe { place.write(value) };
            Ok(())
        }
    }
}

/// Asks for bytes, and puts a copy of them into a place of the caller's; no place: asks for none.
///
/// # Safety
/// As for [`put`].
pub(crate) unsafe fn put_bytes(
    place: *mut varve_bytes,
    what: &str,
    bytes: impl FnOnce() -> Result<varve_bytes>,
) -> Result<()> {
    if place.is_null() {
        return Err(null_pointer(what));
    }
    // SAFETY: as above.
    unsafe { put(place, what, bytes()?) }
}

/// A place that the caller may leave out.
///
/// # Safety
/// As for [`put`].
pub(crate) unsafe fn put_if_asked<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: as above.
        unsafe { place.write(value) };
    }
}

/// Gives a handle away.
///
/// # Safety
/// As for [`put`].
pub(crate) unsafe fn give<T>(place: *mut *mut T, what: &str, handle: T) -> Result<()> {
    let handle = Box::into_raw(Box::new(handle));
    // SAFETY: as above.
    let put = unsafe { put(place, what, handle) };
    if put.is_err() {
        // SAFETY: it was just made, and nobody else has it.
        drop(unsafe { Box::from_raw(handle) });
    }
    put
}

/// Takes a handle back, and drops it.
///
/// # Safety
/// It is null, or was given away once, and is not used afterwards.
pub(crate) unsafe fn take_back<T>(handle: *mut T) {
    if !handle.is_null() {
        // SAFETY: as above.
        let handle = unsafe { Box::from_raw(handle) };
        // A drop that panics has no one to tell; what it had is leaked.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(handle)));
    }
}

/// Bytes that the caller lends for the call.
///
/// # Safety
/// `data` is null, or has `len` bytes that do not change during the call.
pub(crate) unsafe fn lent<'a>(data: *const u8, len: usize, what: &str) -> Result<&'a [u8]> {
    match (data.is_null(), len) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(null_pointer(what)),
        (false, len) if len > isize::MAX as usize => Err(Failure::invalid(format!("{what}: {len} bytes"))),
        // SAFETY: as above.
        (false, len) => Ok(unsafe { std::slice::from_raw_parts(data, len) }),
    }
}

/// As [`lent`]; null is nothing.
///
/// # Safety
/// As for [`lent`].
pub(crate) unsafe fn lent_or_nothing<'a>(data: *const u8, len: usize, what: &str) -> Result<Option<&'a [u8]>> {
    match data.is_null() && len == 0 {
        true => Ok(None),
        // SAFETY: as above.
        false => unsafe { lent(data, len, what) }.map(Some),
    }
}

/// Text that the caller lends for the call.
///
/// # Safety
/// It is null, or ends with a zero byte.
pub(crate) unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<&'a str> {
    if text.is_null() {
        return Err(null_pointer(what));
    }
    // SAFETY: as above.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Failure::invalid(format!("{what} is not UTF-8: {}", text.to_string_lossy())))
}

fn null_pointer(what: &str) -> Failure {
    Failure::invalid(format!("{what} is a null pointer"))
}
