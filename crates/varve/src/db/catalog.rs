//! The catalog: which keyspaces exist. A B+-tree of its own, rooted at page 1, keyspace 0.
//!
//! Key: the keyspace's number, u32 big endian. Value, little endian: version u8, kind u8, state u8, marks u8, u32
//! reserved, root page u64, then the name in UTF-8. Kind 0 is a tree, kind 1 an LSM keyspace; the entry of the latter
//! has version 2, and before the name the length of its options u16 and the options (`lsm/options.rs`). State 1 marks a
//! keyspace whose pages are being freed; the next open goes on with that. Of the marks, bit 0 says that the keyspace
//! is read-only, bit 1 that it had long values when it became so. Every change of the catalog is one entry in one log
//! group.
//!
//! Rows that left a keyspace all at once have an entry too, until their pages are free: key, the keyspace's number and
//! the root page of their tree, u64 big endian; value, version u8 and 7 reserved bytes. The next open goes on freeing
//! them.

use crate::error::{Error, Result};
use crate::index::{KeyspaceKind, LsmOptions};
use crate::txn::Sealed;
use varve_volume::{KeyspaceId, PageId};

/// Keyspace of the catalog tree itself.
pub(crate) const CATALOG: KeyspaceId = KeyspaceId(0);
/// Root of the catalog tree.
pub(crate) const CATALOG_ROOT: PageId = PageId(1);
/// Longest name of a keyspace, bytes.
pub const MAX_NAME: usize = 255;

/// Newest version, and that of an entry without options.
const VERSION: u8 = 2;
const VERSION_TREE: u8 = 1;
const KIND_TREE: u8 = 0;
const KIND_LSM: u8 = 1;
const FIXED: usize = 16;
const _: () = assert!(FIXED == 4 + 4 + 8, "four bytes, four reserved, and the root");
const _: () = assert!(READ_ONLY & LONG_VALUES == 0, "a mark is a bit of its own");
const READ_ONLY: u8 = 1;
const LONG_VALUES: u8 = 2;

/// A catalog entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub kind: KeyspaceKind,
    pub id: KeyspaceId,
    pub root: PageId,
    pub name: String,
    /// Its pages are being freed.
    pub dropping: bool,
    /// Nothing changes it.
    pub read_only: Option<Sealed>,
}

/// Catalog key of a keyspace.
pub(crate) fn key(id: KeyspaceId) -> [u8; 4] {
    id.0.to_be_bytes()
}

/// Catalog key of a tree that left a keyspace.
pub(crate) fn former_key(id: KeyspaceId, root: PageId) -> [u8; 12] {
    let mut key = [0; 12];
    key[..4].copy_from_slice(&id.0.to_be_bytes());
    key[4..].copy_from_slice(&root.0.to_be_bytes());
    key
}

/// Its value.
pub(crate) const FORMER: [u8; 8] = [VERSION, 0, 0, 0, 0, 0, 0, 0];

/// What an entry of the catalog tells of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Record {
    Keyspace(Entry),
    /// Rows that left a keyspace, by the root of their tree.
    Former(KeyspaceId, PageId),
}

impl Record {
    /// Reads an entry of either kind.
    pub fn decode(key: &[u8], value: &[u8]) -> Result<Record> {
        let Ok(former) = <[u8; 12]>::try_from(key) else { return Entry::decode(key, value).map(Record::Keyspace) };
        let (id, root) = (&former[..4], &former[4..]);
        let id = KeyspaceId(u32::from_be_bytes(id.try_into().expect("four bytes")));
        let root = PageId(u64::from_be_bytes(root.try_into().expect("eight bytes")));
        match value {
            [version, ..] if *version > VERSION => {
                Err(Error::Version { what: "catalog entry", found: (*version).into(), supported: VERSION.into() })
            }
            value if value == FORMER => Ok(Record::Former(id, root)),
            _ => {
                let what = format!("catalog entry {key:02x?}: {} bytes, not those of rows that left", value.len());
                Err(Error::corrupt_page(CATALOG_ROOT, Some(CATALOG), what))
            }
        }
    }
}

impl Entry {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; FIXED];
        (out[0], out[1]) = match self.kind {
            KeyspaceKind::Tree => (VERSION_TREE, KIND_TREE),
            KeyspaceKind::Lsm(_) => (VERSION, KIND_LSM),
        };
        out[2] = u8::from(self.dropping);
        out[3] = self.read_only.map_or(0, |sealed| READ_ONLY | if sealed.long_values { LONG_VALUES } else { 0 });
        out[8..16].copy_from_slice(&self.root.0.to_le_bytes());
        if let KeyspaceKind::Lsm(options) = &self.kind {
            let options = options.encode();
            out.extend_from_slice(&(options.len() as u16).to_le_bytes());
            out.extend_from_slice(&options);
        }
        out.extend_from_slice(self.name.as_bytes());
        debug_assert!(Entry::decode(&key(self.id), &out).is_ok(), "an entry that is written can be read");
        out
    }

    pub fn decode(key: &[u8], value: &[u8]) -> Result<Entry> {
        let bad = |what: String| {
            Error::corrupt_page(CATALOG_ROOT, Some(CATALOG), format!("catalog entry {key:02x?}: {what}"))
        };
        let id = key.try_into().map(u32::from_be_bytes).map_err(|_| bad("its key is not four bytes".into()))?;
        if value.len() < FIXED {
            return Err(bad(format!("{} bytes, at least {FIXED} expected", value.len())));
        }
        if value[0] > VERSION {
            return Err(Error::Version { what: "catalog entry", found: value[0].into(), supported: VERSION.into() });
        }
        let (kind, name) = match value[1] {
            KIND_TREE => (KeyspaceKind::Tree, &value[FIXED..]),
            KIND_LSM => {
                let options = value[FIXED..].split_at_checked(2).and_then(|(len, rest)| {
                    rest.split_at_checked(usize::from(u16::from_le_bytes(len.try_into().expect("two bytes"))))
                });
                let Some((options, name)) = options else { return Err(bad("its options are cut short".into())) };
                (KeyspaceKind::Lsm(LsmOptions::decode(options).map_err(bad)?), name)
            }
            other => return Err(bad(format!("unknown kind {other}"))),
        };
        let root = u64::from_le_bytes(value[8..16].try_into().expect("eight bytes"));
        let name = std::str::from_utf8(name).map_err(|_| bad("its name is not UTF-8".into()))?.to_string();
        let sealed = Sealed { long_values: value[3] & LONG_VALUES != 0 };
        let read_only = (value[3] & READ_ONLY != 0).then_some(sealed);
        Ok(Entry { kind, id: KeyspaceId(id), root: PageId(root), name, dropping: value[2] == 1, read_only })
    }
}

/// Fails for a name that no keyspace may have: one that could not be typed, or told apart from others.
///
/// # Errors
/// `Invalid`, with what a name may be.
pub fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > MAX_NAME || name.chars().any(char::is_control) {
        return Err(Error::Invalid(format!(
            "keyspace name {name:?}: use 1 to {MAX_NAME} bytes of UTF-8 without control characters"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_survive_encoding_and_damage_is_an_error() {
        let entry = Entry {
            kind: KeyspaceKind::Tree,
            id: KeyspaceId(7),
            root: PageId(1 << 40),
            name: "größe".into(),
            dropping: true,
            read_only: None,
        };
        let bytes = entry.encode();
        assert_eq!(bytes[3], 0, "as releases wrote it that knew of no marks");
        for read_only in [None, Some(Sealed { long_values: false }), Some(Sealed { long_values: true })] {
            let entry = Entry { read_only, ..entry.clone() };
            assert_eq!(Entry::decode(&key(entry.id), &entry.encode()).unwrap(), entry);
        }
        assert!(Entry::decode(&key(entry.id), &bytes[..15]).is_err());
        assert!(Entry::decode(b"longer", &bytes).is_err());
        assert!(Entry::decode(&key(entry.id), &[9; 16]).is_err());
        assert!(Entry::decode(&key(entry.id), &[1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).is_err());
    }

    #[test]
    fn entries_of_rows_that_left_survive_encoding_and_damage_is_an_error() {
        let (id, root) = (KeyspaceId(7), PageId(1 << 40));
        let key = former_key(id, root);
        assert_eq!(Record::decode(&key, &FORMER).unwrap(), Record::Former(id, root));
        assert!(super::key(id)[..] < key[..] && key[..] < super::key(KeyspaceId(8))[..], "behind their keyspace");
        for damaged in [&FORMER[..7], &[9; 8], &[1, 1, 0, 0, 0, 0, 0, 0], &[]] {
            assert!(Record::decode(&key, damaged).is_err(), "{damaged:?}");
        }
    }

    #[test]
    fn names_are_checked() {
        assert!(check_name("stock").is_ok());
        for bad in ["", "a\0b", "tab\t", &"x".repeat(256)] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
    }
}
