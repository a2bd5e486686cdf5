//! Transactions.

use crate::db::varve_db;
use crate::error::{run, varve_code, varve_error};
use crate::iter::{span, varve_range};
use crate::keyspace::varve_keyspace;
use crate::memory::{give, lent, put, put_bytes, put_if_asked, take_back, text, there, varve_bytes};
use std::ffi::{c_char, c_int, c_void};
use varve::{Db, Durability, Error, Keyspace, Savepoint, Transaction, TxOptions};
use varve_bindings::{Failure, Kept, Result, SharedTx};

/// An open transaction, serializable against all others. One thread at a time uses it; a second one gets VARVE_INVALID.
/// It may move from thread to thread.
pub struct varve_tx {
    pub(crate) tx: Kept<SharedTx>,
}

/// A state of a transaction, to return to. Valid until the transaction ends.
pub struct varve_savepoint {
    savepoint: Savepoint,
}

/// The options of a transaction, by the name of its durability.
///
/// # Safety
/// It is null, or text.
unsafe fn options(durability: *const c_char) -> Result<TxOptions> {
    if durability.is_null() {
        return Ok(TxOptions::default());
    }
    // SAFETY: as above.
    let name = unsafe { text(durability, "durability") }?;
    let durability: Durability =
        name.parse().map_err(|_| Failure::invalid(format!("durability {name:?}: choose sync, async or none")))?;
    Ok(TxOptions::durability(durability))
}

/// Begins a transaction. `durability` is "sync", "async", "none", or null: as the database was opened. End it with
/// varve_tx_commit(), and free it with varve_tx_free() in any case.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_begin(
    db: *const varve_db,
    durability: *const c_char,
    tx: *mut *mut varve_tx,
    error: *mut *mut varve_error,
) -> varve_code {
    // SAFETY: the caller gives null or what the header says.
    unsafe {
        run(error, || {
            let begun = there(db, "db")?.db.get()?.begin_with(options(durability)?)?;
            give(tx, "tx", varve_tx { tx: Kept::new(SharedTx::new(begun))? })
        })
    }
}

/// Does something with a transaction and a keyspace.
///
/// # Safety
/// They are null or there.
unsafe fn with<R>(
    tx: *const varve_tx,
    keyspace: *const varve_keyspace,
    f: impl FnOnce(&mut Transaction, &Keyspace) -> Result<R>,
) -> Result<R> {
    // SAFETY: as above.
    let (tx, keyspace) = unsafe { (there(tx, "tx")?.tx.get()?, there(keyspace, "keyspace")?.keyspace.get()?) };
    tx.with(|tx| f(tx, &keyspace.keyspace))
}

/// As varve_get(), with what the transaction wrote. Locks the key against writers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_tx_get(
    tx: *const varve_tx,
    keyspace: *const varve_keyspace,
    key: *const u8,
    key_len: usize,
    value: *mut varve_bytes,
    error: *mut *mut varve_error,
) -> varve_code {
    // SAFETY: the caller gives null or what the header says.
    unsafe {
        run(error, || {
            let key = lent(key, key_len, "key")?;
            let get = |tx: &mut Transaction, keyspace: &Keyspace| tx.get_with(keyspace, key, varve_bytes::of_option)?;
            put_bytes(value, "value", || with(tx, keyspace, get))
        })
    }
}

/// As varve_tx_get(), for a key that will be written: two transactions that read and then write it wait for each other
/// instead of one failing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_tx_get_for_update(
    tx: *const varve_tx,
    keyspace: *const varve_keyspace,
    key: *const u8,
    key_len: usize,
    value: *mut varve_bytes,
    error: *mut *mut varve_error,
) -> varve_code {
    // SAFETY: the caller gives null or what the header says.
    unsafe {
        run(error, || {
            let key = lent(key, key_len, "key")?;
            let get = |tx: &mut Transaction, keyspace: &Keyspace| {
                tx.get_for_update_with(keyspace, key, varve_bytes::of_option)?
            };
            put_bytes(value, "value", || with(tx, keyspace, get))
        })
    }
}

/// Sets the value of a key, of any length, when the transaction commits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_tx_put(
    tx: *const varve_tx,
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
            let (key, value) = (lent(key, key_len, "key")?, lent(value, value_len, "value")?);
            with(tx, keyspace, |tx, keyspace| Ok(tx.put(keyspace, key, value)?))
        })
    }
}

/// Removes a key, if it is there, when the transaction commits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_tx_delete(
    tx: *const varve_tx,
    keyspace: *const varve_keyspace,
    key: *const u8,
    key_len: usize,
    error: *mut *mut varve_error,
) -> varve_code {
    // SAFETY: the caller gives null or what the header says.
    unsafe {
        run(error, || {
            let key = lent(key, key_len, "key")?;
            with(tx, keyspace, |tx, keyspace| Ok(tx.delete(keyspace, key)?))
        })
    }
}

/// Removes every key of a range when the transaction commits; puts their number into `count`, unless that is null. A
/// null range has every key.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_tx_delete_range(
    tx: *const varve_tx,
    keyspace: *const varve_keyspace,
    range: *const varve_range,
    count: *mut u64,
    error: *mut *mut varve_error,
) -> varve_code {
    // SAFETY: the caller gives null or what the header says.
    unsafe {
        run(error, || {
            let span = span(range)?;
            let gone = with(tx, keyspace, |tx, keyspace| Ok(tx.delete_range(keyspace, span.range())?))?;
            put_if_asked(count, gone);
            Ok(())
        })
    }
}

/// Marks the present state, to return to it with varve_tx_rollback_to(). Free it with varve_savepoint_free().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_tx_savepoint(
    tx: *const varve_tx,
    savepoint: *mut *mut varve_savepoint,
    error: *mut *mut varve_error,
) -> varve_code {
    // SAFETY: the caller gives null or what the header says.
    unsafe {
        run(error, || {
            let marked = there(tx, "tx")?.tx.get()?.with(|tx| Ok(tx.savepoint()?))?;
            give(savepoint, "savepoint", varve_savepoint { savepoint: marked })
        })
    }
}

/// Undoes what was written since the savepoint, which can be used again. Locks stay.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_tx_rollback_to(
    tx: *const varve_tx,
    savepoint: *const varve_savepoint,
    error: *mut *mut varve_error,
) -> varve_code {
    // SAFETY: the caller gives null or what the header says.
    unsafe {
        run(error, || {
            let mark = there(savepoint, "savepoint")?.savepoint;
            there(tx, "tx")?.tx.get()?.with(|tx| Ok(tx.rollback_to(mark)?))
        })
    }
}

/// Frees a savepoint; the transaction goes on. Null is left alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_savepoint_free(savepoint: *mut varve_savepoint) {
    // SAFETY: the caller gives null or a savepoint that is not used any more.
    unsafe { take_back(savepoint) }
}

/// Makes the changes take effect, all of them or (with an error) none, and returns when they are as durable as asked
/// for. The transaction has ended then, in both cases: further calls get VARVE_CLOSED. After VARVE_POISONED and
/// VARVE_IO it is known when the database is opened again whether the changes are there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_tx_commit(tx: *const varve_tx, error: *mut *mut varve_error) -> varve_code {
    // SAFETY: the caller gives null or what the header says.
    unsafe { run(error, || Ok(there(tx, "tx")?.tx.get()?.end()?.commit()?)) }
}

/// As varve_tx_commit(), but returns as soon as the changes have taken effect. They survive a power cut when
/// varve_wait_durable() returns for `lsn`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_tx_commit_ticket(
    tx: *const varve_tx,
    lsn: *mut u64,
    error: *mut *mut varve_error,
) -> varve_code {
    // SAFETY: the caller gives null or what the header says.
    unsafe {
        run(error, || {
            if lsn.is_null() {
                return Err(Failure::invalid("lsn is a null pointer"));
            }
            put(lsn, "lsn", there(tx, "tx")?.tx.get()?.end()?.commit_ticket()?)
        })
    }
}

/// Ends the transaction without changing anything.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_tx_rollback(tx: *const varve_tx, error: *mut *mut varve_error) -> varve_code {
    // SAFETY: the caller gives null or what the header says.
    unsafe { run(error, || there(tx, "tx")?.tx.get()?.end().map(Transaction::rollback)) }
}

/// Frees a transaction; one that has not ended is rolled back, unless iterators over it are left: then with the last of
/// them. Null is left alone. Not for a transaction that varve_transact() lends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_tx_free(tx: *mut varve_tx) {
    // SAFETY: the caller gives null or a transaction that is not used any more.
    unsafe { take_back(tx) }
}

/// What varve_transact() runs. It returns 0 (VARVE_OK) to commit; the code of a call that failed, or any other number,
/// to roll back. The transaction belongs to varve_transact(): it is neither committed nor freed here, and not used
/// afterwards. The function must return: no longjmp and no C++ exception may leave it.
pub type varve_transact_fn = Option<unsafe extern "C" fn(tx: *mut varve_tx, arg: *mut c_void) -> c_int>;

/// Runs `function` in a transaction with `arg`, and commits it; runs it again, after a wait that grows, as long as
/// other transactions stand in the way. So `function` must not do anything outside the database that should not be done
/// twice. Returns the code of the commit, or the number that `function` returned to roll back: then there is no error
/// object but the one that `function` may have got itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_transact(
    db: *const varve_db,
    durability: *const c_char,
    function: varve_transact_fn,
    arg: *mut c_void,
    error: *mut *mut varve_error,
) -> c_int {
    let mut own = 0;
    // SAFETY: the caller gives null or what the header says.
    let code = unsafe {
        run(error, || {
            let (db, options) = (there(db, "db")?.db.get()?, options(durability)?);
            let function = function.ok_or_else(|| Failure::invalid("function is a null pointer"))?;
            own = transact(db, options, |tx| function(tx, arg))?;
            Ok(())
        })
    };
    if own == 0 { code as c_int } else { own }
}

/// What the closure of a transaction fails with.
enum Ended {
    Border(Failure),
    Own(c_int),
}

impl From<Error> for Ended {
    fn from(error: Error) -> Ended {
        Ended::Border(error.into())
    }
}

/// What the function returned at last.
fn transact(db: &Db, options: TxOptions, mut function: impl FnMut(*mut varve_tx) -> c_int) -> Result<c_int> {
    let done = db.try_transact(options, |tx| {
        SharedTx::lend(tx, |tx| {
            let mut tx = varve_tx { tx: Kept::new(tx.clone()).map_err(Ended::Border)? };
            match function(&mut tx) {
                0 => Ok(()),
                number => Err(Ended::Own(number)),
            }
        })
    });
    match done {
        Ok(()) => Ok(0),
        Err(Ended::Border(failure)) => Err(failure),
        Err(Ended::Own(number)) => Ok(number),
    }
}
