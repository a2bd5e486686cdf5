//! Databases.

use crate::error::{run, varve_code, varve_error};
use crate::memory::{give, put_bytes, take_back, text, there, varve_bytes};
use crate::options::varve_options;
use std::ffi::c_char;
use std::fs::File;
use std::io::Write;
use varve::{BackupOptions, Db, Layout, Options};
use varve_bindings::{Code, Failure, Kept, Result};

/// An open database. Any number of threads may use it at once.
pub struct varve_db {
    pub(crate) db: Kept<Db>,
}

/// Makes a database handle from what opens it.
///
/// # Safety
/// `options` are null or there; `db` is null or a place.
unsafe fn open(
    options: *const varve_options,
    db: *mut *mut varve_db,
    open: impl FnOnce(Options) -> Result<Db>,
) -> Result<()> {
    if db.is_null() {
        return Err(Failure::invalid("db is a null pointer"));
    }
    // SAFETY: as above.
    let options = unsafe { options.as_ref() }.map_or_else(Options::default, |options| options.options.clone());
    let opened = Kept::make(|| open(options))?;
    // SAFETY: as above.
    unsafe { give(db, "db", varve_db { db: opened }) }
}

/// Opens the database in a directory, or creates one there. `options` may be null: the defaults; they stay the
/// caller's. VARVE_BUSY when it is open already, here or in another process. The handle put into `db` is freed with
/// varve_db_free(), after everything else that was made with it or before: what is left keeps the database open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_open_or_create(
    path: *const c_char,
    options: *const varve_options,
    db: *mut *mut varve_db,
    error: *mut *mut varve_error,
) -> varve_code {
    // SAFETY: the caller gives null or what the header says.
    unsafe {
        run(error, || {
            let path = text(path, "path")?;
            open(options, db, |options| Ok(Db::open_or_create(path, options)?))
        })
    }
}

/// As varve_open_or_create(), but VARVE_NOT_FOUND when there is no database.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_open(
    path: *const c_char,
    options: *const varve_options,
    db: *mut *mut varve_db,
    error: *mut *mut varve_error,
) -> varve_code {
    // SAFETY: the caller gives null or what the header says.
    unsafe {
        run(error, || {
            let path = text(path, "path")?;
            open(options, db, |options| Ok(Db::open(path, options)?))
        })
    }
}

/// As varve_open_or_create(), but VARVE_EXISTS when there is a database.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_create(
    path: *const c_char,
    options: *const varve_options,
    db: *mut *mut varve_db,
    error: *mut *mut varve_error,
) -> varve_code {
    // SAFETY: the caller gives null or what the header says.
    unsafe {
        run(error, || {
            let path = text(path, "path")?;
            open(options, db, |options| Ok(Db::create(path, &Layout::default(), options)?))
        })
    }
}

/// A new database in memory, which goes with its last handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_in_memory(
    options: *const varve_options,
    db: *mut *mut varve_db,
    error: *mut *mut varve_error,
) -> varve_code {
    // SAFETY: the caller gives null or what the header says.
    unsafe { run(error, || open(options, db, |options| Ok(Db::in_memory(options)?))) }
}

/// Writes what is dirty, marks the database closed and lets go of its directory. Every handle made with it gets
/// VARVE_CLOSED from here on, and is still to be freed, `db` too. VARVE_INVALID while transactions, snapshots or
/// iterators are open: nothing was done, the database goes on. VARVE_CLOSED when it was closed before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_close(db: *const varve_db, error: *mut *mut varve_error) -> varve_code {
    // SAFETY: the caller gives null or what the header says.
    unsafe { run(error, || Ok(there(db, "db")?.db.get()?.close()?)) }
}

/// Frees a handle. When it is the last one of a database that was not closed, it waits until everything that was
/// acknowledged is durable; nothing is lost, but the next opening has to recover. Null is left alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_db_free(db: *mut varve_db) {
    // SAFETY: the caller gives null or a handle that is not used any more.
    unsafe { take_back(db) }
}

/// Makes everything durable that was acknowledged so far, whatever its durability.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_sync(db: *const varve_db, error: *mut *mut varve_error) -> varve_code {
    // SAFETY: the caller gives null or what the header says.
    unsafe { run(error, || Ok(there(db, "db")?.db.get()?.sync()?)) }
}

/// Returns when everything up to a place in the log is durable, as varve_tx_commit_ticket() gives it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_wait_durable(db: *const varve_db, lsn: u64, error: *mut *mut varve_error) -> varve_code {
    // SAFETY: the caller gives null or what the header says.
    unsafe { run(error, || Ok(there(db, "db")?.db.get()?.wait_durable(lsn)?)) }
}

/// Writes every page that is dirty now, so that recovery has nothing older to redo.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_checkpoint(db: *const varve_db, error: *mut *mut varve_error) -> varve_code {
    // SAFETY: the caller gives null or what the header says.
    unsafe { run(error, || Ok(there(db, "db")?.db.get()?.checkpoint()?)) }
}

/// Reads the whole database. VARVE_DAMAGED when something is wrong with it: the error names every page concerned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_check(db: *const varve_db, error: *mut *mut varve_error) -> varve_code {
    let call = || {
        // SAFETY: the caller gives null or what the header says.
        let report = unsafe { there(db, "db") }?.db.get()?.check()?;
        if report.is_clean() {
            return Ok(());
        }
        let damages = report.damages.iter().map(ToString::to_string);
        let unreadable = report.unreadable.iter().map(ToString::to_string);
        let all: Vec<String> = damages.chain(unreadable).collect();
        Err(Failure::new(Code::Damaged, all.join("\n")))
    };
    // SAFETY: the caller gives null or a place.
    unsafe { run(error, call) }
}

/// Writes a backup to a new file while the database is in use. VARVE_EXISTS when the file is there. `varve restore`
/// makes a database of it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_backup(
    db: *const varve_db,
    path: *const c_char,
    error: *mut *mut varve_error,
) -> varve_code {
    let call = || {
        // SAFETY: the caller gives null or what the header says.
        let (db, path) = unsafe { (there(db, "db")?.db.get()?, text(path, "path")?) };
        let failed = |e: std::io::Error| {
            let code = match e.kind() {
                std::io::ErrorKind::AlreadyExists => Code::Exists,
                std::io::ErrorKind::NotFound => Code::NotFound,
                std::io::ErrorKind::PermissionDenied => Code::Permission,
                std::io::ErrorKind::StorageFull => Code::NoSpace,
                _ => Code::Io,
            };
            Failure::new(code, format!("{path}: {e}"))
        };
        let mut file = File::create_new(path).map_err(failed)?;
        db.backup(&mut file, BackupOptions::default())?;
        file.flush().and_then(|()| file.sync_all()).map_err(failed)
    };
    // SAFETY: the caller gives null or a place.
    unsafe { run(error, call) }
}

/// Counters and sizes since the opening, as text in the format of Prometheus.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_metrics(
    db: *const varve_db,
    text: *mut varve_bytes,
    error: *mut *mut varve_error,
) -> varve_code {
    // SAFETY: the caller gives null or what the header says.
    unsafe {
        run(error, || {
            let stats = there(db, "db")?.db.get()?.stats().prometheus();
            put_bytes(text, "text", || varve_bytes::of(stats.as_bytes()))
        })
    }
}

/// The release of the library, "1.2.3".
#[unsafe(no_mangle)]
pub extern "C" fn varve_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}
