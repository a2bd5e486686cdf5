//! The part of WiredTiger's C interface that is used here, as `wiredtiger.h` of version 3.2.1 (Debian 12) has it.
//!
//! An object of WiredTiger is a structure that begins with its functions. The fields are in the order of the header;
//! those that nobody calls are kept as places only. A structure may be longer than what is declared: WiredTiger makes
//! them all.

use std::ffi::{c_char, c_int, c_void};

/// A function that is not called.
type Unused = *const c_void;
/// A function of a cursor alone.
pub type OfCursor = unsafe extern "C" fn(*mut Cursor) -> c_int;
/// A function of a session and a configuration.
pub type OfSession = unsafe extern "C" fn(*mut Session, *const c_char) -> c_int;

/// No such key, or no further one.
pub const NOT_FOUND: c_int = -31803;
/// The transaction has to be rolled back; run it again.
pub const ROLLBACK: c_int = -31800;

/// Bytes of a key or value, and what the library keeps beside them.
#[repr(C)]
pub struct Item {
    pub data: *const c_void,
    pub size: usize,
    mem: *mut c_void,
    memsize: usize,
    flags: u32,
}

impl Item {
    /// Stands for `bytes`, which have to outlive its use.
    pub fn of(bytes: &[u8]) -> Item {
        Item { data: bytes.as_ptr().cast(), size: bytes.len(), mem: std::ptr::null_mut(), memsize: 0, flags: 0 }
    }
}

/// `WT_CURSOR`.
#[repr(C)]
pub struct Cursor {
    _session_uri_formats: [Unused; 4],
    pub get_key: unsafe extern "C" fn(*mut Cursor, ...) -> c_int,
    pub get_value: unsafe extern "C" fn(*mut Cursor, ...) -> c_int,
    pub set_key: unsafe extern "C" fn(*mut Cursor, ...),
    pub set_value: unsafe extern "C" fn(*mut Cursor, ...),
    _compare_equals: [Unused; 2],
    pub next: OfCursor,
    pub prev: OfCursor,
    pub reset: OfCursor,
    pub search: OfCursor,
    pub search_near: unsafe extern "C" fn(*mut Cursor, *mut c_int) -> c_int,
    pub insert: OfCursor,
    _modify_update: [Unused; 2],
    pub remove: OfCursor,
    _reserve: Unused,
    pub close: OfCursor,
}

/// `WT_SESSION`.
#[repr(C)]
pub struct Session {
    _connection_private_close_reconfigure_strerror: [Unused; 5],
    pub open_cursor:
        unsafe extern "C" fn(*mut Session, *const c_char, *mut Cursor, *const c_char, *mut *mut Cursor) -> c_int,
    _alter: Unused,
    pub create: unsafe extern "C" fn(*mut Session, *const c_char, *const c_char) -> c_int,
    /// import, compact, drop, join, log_flush, log_printf, rebalance, rename, reset, salvage, truncate, upgrade, verify
    _import_to_verify: [Unused; 13],
    pub begin_transaction: OfSession,
    pub commit_transaction: OfSession,
    _prepare_transaction: Unused,
    pub rollback_transaction: OfSession,
    _timestamp_transaction_query_timestamp: [Unused; 2],
    pub checkpoint: OfSession,
}

/// `WT_CONNECTION`.
#[repr(C)]
pub struct Connection {
    _async_flush_async_new_op: [Unused; 2],
    pub close: unsafe extern "C" fn(*mut Connection, *const c_char) -> c_int,
    /// debug_info, reconfigure, get_home, configure_method, is_new
    _debug_info_to_is_new: [Unused; 5],
    pub open_session: unsafe extern "C" fn(*mut Connection, *mut c_void, *const c_char, *mut *mut Session) -> c_int,
}

#[link(name = "wiredtiger")]
unsafe extern "C" {
    pub fn wiredtiger_open(
        home: *const c_char,
        handler: *mut c_void,
        config: *const c_char,
        connection: *mut *mut Connection,
    ) -> c_int;
    pub fn wiredtiger_strerror(error: c_int) -> *const c_char;
    pub fn wiredtiger_version(major: *mut c_int, minor: *mut c_int, patch: *mut c_int) -> *const c_char;
}
