//! Errors as C sees them: a code that every call returns, and an object with the text for who asks for it. An object of
//! the call's own needs no state of the thread, survives the next call, and may be handed to another thread.

use crate::memory::take_back;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use varve_bindings::{Code, Failure, Result};

/// What came of a call. The numbers never change their meaning; new ones may be added, so treat one that you do not
/// know as a failure.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum varve_code {
    /// It was done.
    VARVE_OK = 0,
    /// Another transaction stood in the way: roll back and run the transaction again.
    VARVE_CONFLICT = 1,
    /// The thread would wait for its own transaction: make the change through that transaction.
    VARVE_DEADLOCK = 2,
    /// A lock was waited for longer than the option `lock_timeout`.
    VARVE_TIMEOUT = 3,
    /// The snapshot lost its old values: open a new one.
    VARVE_SNAPSHOT_TOO_OLD = 4,
    /// A key, a value or a transaction is too large.
    VARVE_TOO_LARGE = 5,
    /// There is no memory for it.
    VARVE_OUT_OF_MEMORY = 6,
    /// An argument, an option or a call that makes no sense here; null where there must be something.
    VARVE_INVALID = 7,
    /// No such keyspace or database. (A key that is not there is no error.)
    VARVE_NOT_FOUND = 8,
    /// There is one already.
    VARVE_EXISTS = 9,
    /// Another process, or another handle of this one, has the database open.
    VARVE_BUSY = 10,
    /// What was to be changed can only be read.
    VARVE_READ_ONLY = 11,
    /// The operating system does not permit it.
    VARVE_PERMISSION = 12,
    /// The database was closed, or the transaction has ended.
    VARVE_CLOSED = 13,
    /// Bytes on a device are not what was written there; the text names the page.
    VARVE_DAMAGED = 14,
    /// Written by a newer release.
    VARVE_VERSION = 15,
    /// Files that do not belong together.
    VARVE_MISMATCH = 16,
    /// A write that durability rests on failed: reads go on, writes are refused; open the database again.
    VARVE_POISONED = 17,
    /// A device is full.
    VARVE_NO_SPACE = 18,
    /// A device failed.
    VARVE_IO = 19,
    /// A device of the database is not at its place.
    VARVE_DEVICE_MISSING = 20,
    /// A backup cannot be made.
    VARVE_BACKUP = 21,
    /// The handle is of the process that this one was forked from, or a database was open there.
    VARVE_FORKED = 22,
    /// A fault of Varve's own: please report it. Close the database and open it again.
    VARVE_INTERNAL = 23,
}

impl From<Code> for varve_code {
    fn from(code: Code) -> varve_code {
        match code {
            Code::Conflict => varve_code::VARVE_CONFLICT,
            Code::Deadlock => varve_code::VARVE_DEADLOCK,
            Code::Timeout => varve_code::VARVE_TIMEOUT,
            Code::SnapshotTooOld => varve_code::VARVE_SNAPSHOT_TOO_OLD,
            Code::TooLarge => varve_code::VARVE_TOO_LARGE,
            Code::OutOfMemory => varve_code::VARVE_OUT_OF_MEMORY,
            Code::Invalid => varve_code::VARVE_INVALID,
            Code::NotFound => varve_code::VARVE_NOT_FOUND,
            Code::Exists => varve_code::VARVE_EXISTS,
            Code::Busy => varve_code::VARVE_BUSY,
            Code::ReadOnly => varve_code::VARVE_READ_ONLY,
            Code::Permission => varve_code::VARVE_PERMISSION,
            Code::Closed => varve_code::VARVE_CLOSED,
            Code::Damaged => varve_code::VARVE_DAMAGED,
            Code::Version => varve_code::VARVE_VERSION,
            Code::Mismatch => varve_code::VARVE_MISMATCH,
            Code::Poisoned => varve_code::VARVE_POISONED,
            Code::NoSpace => varve_code::VARVE_NO_SPACE,
            Code::Io => varve_code::VARVE_IO,
            Code::DeviceMissing => varve_code::VARVE_DEVICE_MISSING,
            Code::Backup => varve_code::VARVE_BACKUP,
            Code::Forked => varve_code::VARVE_FORKED,
            Code::Internal => varve_code::VARVE_INTERNAL,
        }
    }
}

/// Why a call failed. A function that can fail takes the address of a `varve_error *` as its last argument, which may
/// be null. When it fails it puts a new error there, which belongs to the caller: free it with varve_error_free(). When
/// it succeeds it leaves the place alone. An error is never changed, so any thread may read it.
pub struct varve_error {
    code: varve_code,
    message: CString,
    retryable: bool,
}

/// Its code, which is what the call returned. Of null: VARVE_OK.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_error_code(error: *const varve_error) -> varve_code {
    // SAFETY: the caller gives null or an error.
    unsafe { error.as_ref() }.map_or(varve_code::VARVE_OK, |error| error.code)
}

/// What happened, where, and what helps, in UTF-8. It lives as long as the error. Of null: the empty text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_error_message(error: *const varve_error) -> *const c_char {
    // SAFETY: the caller gives null or an error.
    unsafe { error.as_ref() }.map_or(c"".as_ptr(), |error| error.message.as_ptr())
}

/// Whether the same transaction, run again from its beginning, may succeed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_error_is_retryable(error: *const varve_error) -> bool {
    // SAFETY: the caller gives null or an error.
    unsafe { error.as_ref() }.is_some_and(|error| error.retryable)
}

/// Frees an error. Null is left alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_error_free(error: *mut varve_error) {
    // SAFETY: the caller gives null or an error that is not used any more.
    unsafe { take_back(error) }
}

/// The border: runs a call, and tells the caller what came of it. A panic is a failure like others.
///
/// # Safety
/// `error` is null, or there is room for a pointer.
pub(crate) unsafe fn run(error: *mut *mut varve_error, call: impl FnOnce() -> Result<()>) -> varve_code {
    let failure = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => return varve_code::VARVE_OK,
        Ok(Err(failure)) => failure,
        Err(panic) => Failure::panic(&*panic),
    };
    let code = failure.code.into();
    if !error.is_null() {
        let message = CString::new(failure.message.replace('\0', "\\0")).unwrap_or_default();
        let made = Box::new(varve_error { code, message, retryable: failure.retryable });
        // SAFETY: as above.
        unsafe { error.write(Box::into_raw(made)) };
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;
    use std::ptr::null_mut;

    #[test]
    fn a_panic_ends_at_the_border() {
        let mut error = null_mut();
        // SAFETY: the place is there.
        let code = unsafe { run(&mut error, || panic!("nothing {} here", "works")) };
        assert_eq!(code, varve_code::VARVE_INTERNAL);
        // SAFETY: the error was just made, and is freed once.
        unsafe {
            assert_eq!(varve_error_code(error), code);
            let text = CStr::from_ptr(varve_error_message(error)).to_str().expect("text");
            assert!(text.contains("nothing works here") && text.contains("report"), "{text}");
            varve_error_free(error);
            assert_eq!(run(null_mut(), || panic!("again")), code, "nobody need ask");
        }
    }
}
