//! Loading: every balance is zero, and there is no history. As in TPC-C, `tpcb_meta` holds `loading` before the first
//! row and `loaded` after the last.

use std::sync::Arc;

use super::{Scale, TELLERS, Tables, balance_row, branch_key, member_key};
use crate::adapter::{Durability, End, Store, TxMode, Txn, transact};
use crate::batch::Batch;
use crate::error::{Error, Result};

/// What the loader writes down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Loaded {
    /// Layout of rows and keys; this build reads and writes 1.
    pub version: u32,
    /// Size of the database.
    pub scale: Scale,
}

/// Layout that this build reads and writes.
const VERSION: u32 = 1;

/// Reads what the loader wrote down: `None` if the store holds no completely loaded data of this workload.
pub fn loaded<S: Store>(store: &S) -> Result<Option<Loaded>> {
    read_meta(store, b"loaded")
}

fn read_meta<S: Store>(store: &S, name: &[u8]) -> Result<Option<Loaded>> {
    let Some(meta) = store.find_keyspace("tpcb_meta")? else { return Ok(None) };
    let bytes = transact(store, TxMode::ReadOnly, Durability::Sync, |tx| {
        Ok((tx.get(&meta, name, |v| v.map(<[u8]>::to_vec))?, End::Commit))
    })?;
    let Some(bytes) = bytes else { return Ok(None) };
    let note: Loaded = serde_json::from_slice(&bytes).map_err(|e| Error::Row {
        table: "tpcb_meta",
        key: String::from_utf8_lossy(name).into_owned(),
        why: e.to_string(),
    })?;
    if note.version != VERSION {
        let why = format!("its TPC-B data has layout {}, this build knows {VERSION}", note.version);
        return Err(Error::NotLoaded(why));
    }
    note.scale.validate()?;
    Ok(Some(note))
}

fn write_meta<S: Store>(store: &S, name: &[u8], note: &Loaded, how: Durability) -> Result<()> {
    let meta = store.keyspace("tpcb_meta")?;
    let bytes = serde_json::to_vec(note).expect("plain data");
    transact(store, TxMode::ReadWrite, how, |tx| Ok((tx.put(&meta, name, &bytes)?, End::Commit)))
}

/// Loads branches, tellers and accounts, in the order of their keys. A load that was cut short is repeated over itself.
///
/// Errors: the scale is not possible, the store holds data of another scale, or the store failed.
pub fn load<S: Store>(store: &Arc<S>, scale: Scale) -> Result<Loaded> {
    scale.validate()?;
    let note = Loaded { version: VERSION, scale };
    if let Some(earlier) = read_meta(&**store, b"loading")?
        && earlier != note
    {
        return Err(Error::NotLoaded(format!("it holds TPC-B data of {:?}, not of {scale:?}", earlier.scale)));
    }
    write_meta(&**store, b"loading", &note, Durability::None)?;
    let tables = Tables::open(&**store)?;
    let mut report = |_| ();
    let mut batch = Batch::new(&**store, &mut report);
    let row = balance_row(0);
    for branch in 0..scale.branches {
        batch.put(&tables.branches, &branch_key(branch), &row)?;
        (0..TELLERS).try_for_each(|n| batch.put(&tables.tellers, &member_key(branch, n), &row))?;
        (0..scale.accounts).try_for_each(|n| batch.put(&tables.accounts, &member_key(branch, n), &row))?;
    }
    batch.flush()?;
    write_meta(&**store, b"loaded", &note, Durability::Sync)?;
    Ok(note)
}
