//! Keyspaces.

use crate::db::varve_db;
use crate::error::{run, varve_code, varve_error};
use crate::iter::{span, varve_range};
use crate::memory::{
    give, lent, lent_or_nothing, put, put_bytes, put_if_asked, take_back, text, there, varve_bytes, varve_bytes_free,
};
use std::ffi::c_char;
use varve::{Db, Keyspace, KeyspaceKind, LsmOptions};
use varve_bindings::{Failure, Kept, Result};

/// A keyspace: an ordered map of its own within the database's transactions. Any number of threads may use it at once.
/// Its calls that write are transactions of their own: within a transaction use the calls that take a `varve_tx`.
pub struct varve_keyspace {
    pub(crate) keyspace: Kept<Handle>,
}

/// What the handle keeps alive.
pub(crate) struct Handle {
    pub keyspace: Keyspace,
    pub db: Db,
}

/// Makes a keyspace handle.
///
/// # Safety
/// `db` is null or a database, `name` null or text, `keyspace` null or a place.
unsafe fn open(
    db: *const varve_db,
    name: *const c_char,
    keyspace: *mut *mut varve_keyspace,
    open: impl FnOnce(&Db, &str) -> Result<Keyspace>,
) -> Result<()> {
    // SAFETY: as above.
    unsafe {
        let (db, name) = (there(db, "db")?.db.get()?, text(name, "name")?);
        let opened = Kept::new(Handle { keyspace: open(db, name)?, db: db.clone() })?;
        give(keyspace, "keyspace", varve_keyspace { keyspace: opened })
    }
}

/// The kind of keyspace that a text means.
fn kind(text: &str) -> Result<KeyspaceKind> {
    let (kind, options) = text.split_once(':').unwrap_or((text, ""));
    match (kind, options) {
        ("tree", "") => Ok(KeyspaceKind::Tree),
        ("lsm", list) => {
            let mut options = LsmOptions::default();
            for pair in list.split(',').filter(|pair| !pair.is_empty()) {
                let (name, value) = pair.split_once('=').ok_or_else(|| {
                    Failure::invalid(format!("{pair:?} is no option of an LSM keyspace: write NAME=VALUE"))
                })?;
                options.set(name.trim(), value.trim())?;
            }
            Ok(KeyspaceKind::Lsm(options))
        }
        _ => Err(Failure::invalid(format!("no keyspace can be of kind {text:?}: tree, lsm or lsm:NAME=VALUE,.."))),
    }
}

/// Opens a keyspace by its name. VARVE_NOT_FOUND when there is none. Free the handle with varve_keyspace_free().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_keyspace_open(
    db: *const varve_db,
    name: *const c_char,
    keyspace: *mut *mut varve_keyspace,
    error: *mut *mut varve_error,
) -> varve_code {
    // SAFETY: the caller gives null or what the header says.
    unsafe { run(error, || open(db, name, keyspace, |db, name| Ok(db.keyspace(name)?))) }
}

/// Makes a keyspace, durably. VARVE_EXISTS when there is one of that name. `kind` is null or "tree" for a B+-tree;
/// "lsm", or "lsm:NAME=VALUE,.." with options (docs/lsm.md), for what is mostly written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_keyspace_create(
    db: *const varve_db,
    name: *const c_char,
    kind_or_null: *const c_char,
    keyspace: *mut *mut varve_keyspace,
    error: *mut *mut varve_error,
) -> varve_code {
    // SAFETY: the caller gives null or what the header says.
    unsafe {
        run(error, || {
            let kind = if kind_or_null.is_null() { KeyspaceKind::Tree } else { kind(text(kind_or_null, "kind")?)? };
            open(db, name, keyspace, |db, name| Ok(db.create_keyspace_of(name, kind)?))
        })
    }
}

/// Opens a keyspace by its name, or makes it: a B+-tree.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_keyspace_open_or_create(
    db: *const varve_db,
    name: *const c_char,
    keyspace: *mut *mut varve_keyspace,
    error: *mut *mut varve_error,
) -> varve_code {
    // SAFETY: the caller gives null or what the header says.
    unsafe { run(error, || open(db, name, keyspace, |db, name| Ok(db.keyspace_or_create(name)?))) }
}

/// Frees a handle; the keyspace stays. Null is left alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_keyspace_free(keyspace: *mut varve_keyspace) {
    // SAFETY: the caller gives null or a handle that is not used any more.
    unsafe { take_back(keyspace) }
}

/// Drops a keyspace and everything in it, durably. VARVE_NOT_FOUND when there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_keyspace_drop(
    db: *const varve_db,
    name: *const c_char,
    error: *mut *mut varve_error,
) -> varve_code {
    // SAFETY: the caller gives null or what the header says.
    unsafe { run(error, || Ok(there(db, "db")?.db.get()?.drop_keyspace(text(name, "name")?)?)) }
}

/// Gives a keyspace another name, durably. Handles go on with it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_keyspace_rename(
    db: *const varve_db,
    from: *const c_char,
    to: *const c_char,
    error: *mut *mut varve_error,
) -> varve_code {
    // SAFETY: the caller gives null or what the header says.
    unsafe { run(error, || Ok(there(db, "db")?.db.get()?.rename_keyspace(text(from, "from")?, text(to, "to")?)?)) }
}

/// The names of all keyspaces, ascending, each followed by a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_keyspaces(
    db: *const varve_db,
    names: *mut varve_bytes,
    error: *mut *mut varve_error,
) -> varve_code {
    // SAFETY: the caller gives null or what the header says.
    unsafe {
        run(error, || {
            let infos = there(db, "db")?.db.get()?.keyspaces()?;
            let all: String = infos.iter().map(|info| format!("{}\0", info.name)).collect();
            put_bytes(names, "names", || varve_bytes::of(all.as_bytes()))
        })
    }
}

/// The value of a key, as last committed; nothing (null data) when there is no such key, which is no failure. Free it
/// with varve_bytes_free().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_get(
    keyspace: *const varve_keyspace,
    key: *const u8,
    key_len: usize,
    value: *mut varve_bytes,
    error: *mut *mut varve_error,
) -> varve_code {
    // SAFETY: the caller gives null or what the header says.
    unsafe {
        run(error, || {
            let (keyspace, key) = (there(keyspace, "keyspace")?.keyspace.get()?, lent(key, key_len, "key")?);
            put_bytes(value, "value", || keyspace.keyspace.get_with(key, varve_bytes::of_option)?)
        })
    }
}

/// Sets the value of a key, with the database's default durability. VARVE_TOO_LARGE for a key of more than 2 KB (1 KB
/// with pages of 4 KB), and for a value of more than a quarter of the cache: put such a one in a transaction.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_put(
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
            Ok(there(keyspace, "keyspace")?.keyspace.get()?.keyspace.put(key, value)?)
        })
    }
}

/// Removes a key. Puts into `existed`, unless that is null, whether it was there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_delete(
    keyspace: *const varve_keyspace,
    key: *const u8,
    key_len: usize,
    existed: *mut bool,
    error: *mut *mut varve_error,
) -> varve_code {
    // SAFETY: the caller gives null or what the header says.
    unsafe {
        run(error, || {
            let (keyspace, key) = (there(keyspace, "keyspace")?.keyspace.get()?, lent(key, key_len, "key")?);
            put_if_asked(existed, keyspace.keyspace.delete(key)?);
            Ok(())
        })
    }
}

/// Removes every key of a range, whatever their number, as one change. A null range has every key.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_delete_range(
    keyspace: *const varve_keyspace,
    range: *const varve_range,
    error: *mut *mut varve_error,
) -> varve_code {
    // SAFETY: the caller gives null or what the header says.
    unsafe {
        run(error, || {
            let (keyspace, span) = (there(keyspace, "keyspace")?.keyspace.get()?, span(range)?);
            Ok(keyspace.keyspace.delete_range(span.range())?)
        })
    }
}

/// Whether a key is there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_contains(
    keyspace: *const varve_keyspace,
    key: *const u8,
    key_len: usize,
    found: *mut bool,
    error: *mut *mut varve_error,
) -> varve_code {
    // SAFETY: the caller gives null or what the header says.
    unsafe {
        run(error, || {
            let (keyspace, key) = (there(keyspace, "keyspace")?.keyspace.get()?, lent(key, key_len, "key")?);
            put(found, "found", keyspace.keyspace.contains(key)?)
        })
    }
}

/// Sets the value of a key unless it is there; puts into `inserted`, unless that is null, whether it did.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_insert_if_absent(
    keyspace: *const varve_keyspace,
    key: *const u8,
    key_len: usize,
    value: *const u8,
    value_len: usize,
    inserted: *mut bool,
    error: *mut *mut varve_error,
) -> varve_code {
    // SAFETY: the caller gives null or what the header says.
    unsafe {
        run(error, || {
            let (key, value) = (lent(key, key_len, "key")?, lent(value, value_len, "value")?);
            let did = there(keyspace, "keyspace")?.keyspace.get()?.keyspace.insert_if_absent(key, value)?;
            put_if_asked(inserted, did);
            Ok(())
        })
    }
}

/// Sets a key from the value `from` to the value `to`. A null pointer with length 0 means that the key is not there, as
/// `from`, or is to be removed, as `to`. Puts into `swapped` whether the key had the value `from`; if not, nothing was
/// changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_compare_and_swap(
    keyspace: *const varve_keyspace,
    key: *const u8,
    key_len: usize,
    from: *const u8,
    from_len: usize,
    to: *const u8,
    to_len: usize,
    swapped: *mut bool,
    error: *mut *mut varve_error,
) -> varve_code {
    // SAFETY: the caller gives null or what the header says.
    unsafe {
        run(error, || {
            let (keyspace, key) = (there(keyspace, "keyspace")?.keyspace.get()?, lent(key, key_len, "key")?);
            let (from, to) = (lent_or_nothing(from, from_len, "from")?, lent_or_nothing(to, to_len, "to")?);
            if swapped.is_null() {
                return Err(Failure::invalid("swapped is a null pointer"));
            }
            put(swapped, "swapped", keyspace.keyspace.compare_and_swap(key, from, to)?.is_ok())
        })
    }
}

/// Removes the row with the lowest key and gives it to the caller: key and value are to be freed with
/// varve_bytes_free(). Nothing (null data) when there is no row. As a queue: each row goes to one caller.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_pop_first(
    keyspace: *const varve_keyspace,
    key: *mut varve_bytes,
    value: *mut varve_bytes,
    error: *mut *mut varve_error,
) -> varve_code {
    // SAFETY: the caller gives null or what the header says.
    unsafe { run(error, || pop(keyspace, key, value, Keyspace::pop_first)) }
}

/// As varve_pop_first(), the row with the highest key.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_pop_last(
    keyspace: *const varve_keyspace,
    key: *mut varve_bytes,
    value: *mut varve_bytes,
    error: *mut *mut varve_error,
) -> varve_code {
    // SAFETY: the caller gives null or what the header says.
    unsafe { run(error, || pop(keyspace, key, value, Keyspace::pop_last)) }
}

type Row = (Vec<u8>, Vec<u8>);

/// Removes a row, and gives it.
///
/// # Safety
/// The pointers are null, a keyspace and places.
unsafe fn pop(
    keyspace: *const varve_keyspace,
    key: *mut varve_bytes,
    value: *mut varve_bytes,
    pop: fn(&Keyspace) -> varve::Result<Option<Row>>,
) -> Result<()> {
    if key.is_null() || value.is_null() {
        return Err(Failure::invalid("key or value is a null pointer"));
    }
    // SAFETY: as above.
    unsafe {
        let row = pop(&there(keyspace, "keyspace")?.keyspace.get()?.keyspace)?;
        let (k, v) = row.as_ref().map(|(key, value)| (&key[..], &value[..])).unzip();
        let mut copy = varve_bytes::of_option(k)?;
        match varve_bytes::of_option(v) {
            Ok(v) => put(value, "value", v)?,
            Err(failure) => {
                varve_bytes_free(&mut copy);
                return Err(failure);
            }
        }
        put(key, "key", copy)
    }
}

/// The number of rows at this moment. Counts them: reads every key, but no long value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn varve_len(
    keyspace: *const varve_keyspace,
    len: *mut u64,
    error: *mut *mut varve_error,
) -> varve_code {
    // SAFETY: the caller gives null or what the header says.
    unsafe { run(error, || put(len, "len", there(keyspace, "keyspace")?.keyspace.get()?.keyspace.len()?)) }
}
