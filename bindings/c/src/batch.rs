//! Writes that are made together.

use crate::db::varve_db;
use crate::error::{run, varve_code, varve_error};
use crate::keyspace::varve_keyspace;
use crate::memory::{give, lent, take_back, there};
use varve::WriteBatch;
use varve_bindings::{Failure, Kept, Result};
use varve_rt::Mutex;

/// Writes to any keyspaces of one database, put together first and then made by varve_write(), all of them or none. One
/// thread at a time.
pub struct varve_batch {
    batch: Kept<Mutex<WriteBatch>>,
}

/// An empty batch. Free it with varve_batch_free().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_batch_new(batch: *mut *mut varve_batch, error: *mut *mut varve_error) -> varve_code {
    // SAFETY: the caller gives null or what the header says.
    unsafe {
        run(error, || {
            let new = Kept::new(Mutex::new(WriteBatch::new()))?;
            give(batch, "batch", varve_batch { batch: new })
        })
    }
}

/// Does something with a batch.
///
/// # Safety
/// It is null, or there.
unsafe fn with<R>(batch: *const varve_batch, f: impl FnOnce(&mut WriteBatch) -> Result<R>) -> Result<R> {
    // SAFETY: as above.
    let batch = unsafe { there(batch, "batch") }?.batch.get()?;
    let mut batch =
        batch.try_lock().ok_or_else(|| Failure::invalid("another thread is using this batch: one thread at a time"))?;
    f(&mut batch)
}

/// Adds: set the value of a key. Key and value are copied. Of several writes of one key the last one counts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_batch_put(
    batch: *const varve_batch,
    keyspace: *const varve_keyspace,
    key: *const u8,
    key_len: usize,
    value: *const u8,
    value_len: usize,
    error: *mut *mut varve_error,
) -> varve_code {
    // SAFETY: the caller gives null or what the header says.
    unsafe {
        run(error, || {
            let keyspace = there(keyspace, "keyspace")?.keyspace.get()?;
            let (key, value) = (lent(key, key_len, "key")?, lent(value, value_len, "value")?);
            with(batch, |batch| {
                batch.put(&keyspace.keyspace, key, value);
                Ok(())
            })
        })
    }
}

/// Adds: remove a key if it is there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_batch_delete(
    batch: *const varve_batch,
    keyspace: *const varve_keyspace,
    key: *const u8,
    key_len: usize,
    error: *mut *mut varve_error,
) -> varve_code {
    // SAFETY: the caller gives null or what the header says.
    unsafe {
        run(error, || {
            let keyspace = there(keyspace, "keyspace")?.keyspace.get()?;
            let key = lent(key, key_len, "key")?;
            with(batch, |batch| {
                batch.delete(&keyspace.keyspace, key);
                Ok(())
            })
        })
    }
}

/// Forgets all writes, to be filled again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_batch_clear(batch: *const varve_batch, error: *mut *mut varve_error) -> varve_code {
    // SAFETY: the caller gives null or what the header says.
    unsafe {
        run(error, || {
            with(batch, |batch| {
                batch.clear();
                Ok(())
            })
        })
    }
}

/// Makes the writes of a batch, all of them or none, with the database's default durability. The batch stays as it is:
/// clear it to use it for others.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_write(
    db: *const varve_db,
    batch: *const varve_batch,
    error: *mut *mut varve_error,
) -> varve_code {
    // SAFETY: the caller gives null or what the header says.
    unsafe {
        run(error, || {
            let db = there(db, "db")?.db.get()?;
            with(batch, |batch| Ok(db.write(batch)?))
        })
    }
}

/// Frees a batch. Null is left alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_batch_free(batch: *mut varve_batch) {
    // SAFETY: the caller gives null or a batch that is not used any more.
    unsafe { take_back(batch) }
}
