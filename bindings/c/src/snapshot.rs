//! Snapshots.

use crate::db::varve_db;
use crate::error::{run, varve_code, varve_error};
use crate::keyspace::varve_keyspace;
use crate::memory::{give, lent, put_bytes, take_back, there, varve_bytes};
use varve::Snapshot;
use varve_bindings::Kept;

/// A view of the whole database as of one moment, which takes no locks. Any number of threads may use it at once.
pub struct varve_snapshot {
    pub(crate) snapshot: Kept<Snapshot>,
}

/// Opens a snapshot of the present state. Free it with varve_snapshot_free() when it is not needed any more: open
/// snapshots make the database keep old values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_snapshot_open(
    db: *const varve_db,
    snapshot: *mut *mut varve_snapshot,
    error: *mut *mut varve_error,
) -> varve_code {
    // SAFETY: the caller gives null or what the header says.
    unsafe {
        run(error, || {
            let opened = Kept::new(there(db, "db")?.db.get()?.snapshot()?)?;
            give(snapshot, "snapshot", varve_snapshot { snapshot: opened })
        })
    }
}

/// As varve_get(), as of the snapshot.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_snapshot_get(
    snapshot: *const varve_snapshot,
    keyspace: *const varve_keyspace,
    key: *const u8,
    key_len: usize,
    value: *mut varve_bytes,
    error: *mut *mut varve_error,
) -> varve_code {
    // SAFETY: the caller gives null or what the header says.
    unsafe {
        run(error, || {
            let snapshot = there(snapshot, "snapshot")?.snapshot.get()?;
            let (keyspace, key) = (there(keyspace, "keyspace")?.keyspace.get()?, lent(key, key_len, "key")?);
            put_bytes(value, "value", || varve_bytes::of_option(snapshot.get(&keyspace.keyspace, key)?.as_deref()))
        })
    }
}

/// Frees a snapshot. Iterators over it go on. Null is left alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_snapshot_free(snapshot: *mut varve_snapshot) {
    // SAFETY: the caller gives null or a snapshot that is not used any more.
    unsafe { take_back(snapshot) }
}
