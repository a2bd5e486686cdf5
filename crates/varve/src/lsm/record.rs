//! What the log holds of an LSM keyspace beside page changes: records of the group that also changes the pages.
//!
//! A record is a tag and
//! - `1` writes: entries to the record's end, each kind u8, length of the key varint, key, and but for deletions length
//!   of the value varint, value (of a deletion of a range: the key after its last). Their commit number is the end of
//!   the group;
//! - `2` settled: commit number u64. What earlier groups of the log wrote with commit numbers up to it is in segments,
//!   or was of a keyspace that is gone.
//!
//! Invariant: a record is decoded to its last byte, or is an error.

use super::{Entry, EntryKind};
use crate::error::{Error, Result};
use crate::rows::{NewValue, Write};
use varve_volume::Lsn;

const WRITES: u8 = 1;
const SETTLED: u8 = 2;

/// Most bytes that a write takes in a record.
pub(super) fn bytes_of(write: &Write<'_>) -> usize {
    21 + write.key.len() + value(write).len()
}

/// The value of a write; empty for a deletion.
pub(super) fn value<'a>(write: &Write<'a>) -> &'a [u8] {
    match write.value {
        None => &[],
        Some(NewValue::Bytes(bytes)) => bytes,
        Some(NewValue::Stored(_)) => unreachable!("an LSM keyspace has no values in pages of their own"),
    }
}

/// What a write does.
pub(super) fn kind(write: &Write<'_>) -> EntryKind {
    if write.value.is_some() { EntryKind::Put } else { EntryKind::Delete }
}

fn push_varint(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

/// The record of some writes.
pub(super) fn writes(writes: &[Write<'_>]) -> Vec<u8> {
    debug_assert!(!writes.is_empty(), "a record is of some writes");
    let mut out = Vec::with_capacity(1 + writes.iter().map(bytes_of).sum::<usize>());
    out.push(WRITES);
    for write in writes {
        out.push(kind(write) as u8);
        push_varint(&mut out, write.key.len() as u64);
        out.extend_from_slice(write.key);
        if write.value.is_some() {
            let value = value(write);
            push_varint(&mut out, value.len() as u64);
            out.extend_from_slice(value);
        }
    }
    out
}

/// The record of the deletion of all keys from `start` up to (not including) `end`.
pub(super) fn delete_range(start: &[u8], end: &[u8]) -> Vec<u8> {
    debug_assert!(start < end, "a range has keys");
    let mut out = vec![WRITES, EntryKind::DeleteRange as u8];
    for key in [start, end] {
        push_varint(&mut out, key.len() as u64);
        out.extend_from_slice(key);
    }
    out
}

/// The record that says what is in segments; `Lsn::MAX`: all that came before is of a keyspace that is gone.
pub(super) fn settled(commit: Lsn) -> Vec<u8> {
    debug_assert!(commit > 0, "something is settled");
    let mut out = vec![SETTLED];
    out.extend_from_slice(&commit.to_le_bytes());
    out
}

/// A record, read.
pub(super) enum Record<'a> {
    /// Entries, to be walked with [`entries`].
    Writes(&'a [u8]),
    Settled(Lsn),
}

/// Reads a record; `lsn` (the group's start) names it in errors.
pub(super) fn decode(bytes: &[u8], lsn: Lsn) -> Result<Record<'_>> {
    match bytes {
        [WRITES, entries @ ..] => Ok(Record::Writes(entries)),
        [SETTLED, commit @ ..] if commit.len() == 8 => {
            Ok(Record::Settled(Lsn::from_le_bytes(commit.try_into().expect("eight bytes"))))
        }
        _ => Err(damaged(lsn)),
    }
}

fn damaged(lsn: Lsn) -> Error {
    Error::corrupt_log(lsn, "a record of an LSM keyspace cannot be read")
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut n = 0;
    for shift in (0..64).step_by(7) {
        let byte = take(rest, 1)?[0];
        n |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(n);
        }
    }
    None
}

fn take<'a>(rest: &mut &'a [u8], n: usize) -> Option<&'a [u8]> {
    let (head, tail) = rest.split_at_checked(n)?;
    *rest = tail;
    Some(head)
}

fn entry<'a>(rest: &mut &'a [u8], commit: Lsn) -> Option<Entry<'a>> {
    let kind = EntryKind::from_code(take(rest, 1)?[0])?;
    let len = usize::try_from(varint(rest)?).ok()?;
    let key = take(rest, len)?;
    let value = match kind {
        EntryKind::Put | EntryKind::DeleteRange => {
            let len = usize::try_from(varint(rest)?).ok()?;
            take(rest, len)?
        }
        EntryKind::Delete => &[],
        EntryKind::Stored => return None,
    };
    if kind == EntryKind::DeleteRange && key >= value {
        return None;
    }
    Some(Entry { key, commit, kind, value })
}

/// Hands the entries of [`Record::Writes`] to `each`, with the commit number of their group.
pub(super) fn entries(mut rest: &[u8], commit: Lsn, each: &mut dyn FnMut(Entry<'_>) -> Result<()>) -> Result<()> {
    while !rest.is_empty() {
        each(entry(&mut rest, commit).ok_or_else(|| damaged(commit))?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn writes_survive_and_anything_else_is_an_error_or_read(
            rows in proptest::collection::vec((any::<Vec<u8>>(), any::<Option<Vec<u8>>>()), 1..20),
            at in any::<prop::sample::Index>(), bit in 0..8u32,
        ) {
            let of = |(key, value): &'_ (Vec<u8>, Option<Vec<u8>>)| (key.clone(), value.clone());
            let given: Vec<Write<'_>> = rows
                .iter()
                .map(|(key, value)| Write { key, value: value.as_deref().map(NewValue::Bytes), hint: None })
                .collect();
            let bytes = writes(&given);
            let Record::Writes(encoded) = decode(&bytes, 8).unwrap() else { panic!("writes") };
            let mut read = Vec::new();
            entries(encoded, 16, &mut |entry| {
                read.push((entry.key.to_vec(), (entry.kind == EntryKind::Put).then(|| entry.value.to_vec())));
                Ok(())
            })
            .unwrap();
            prop_assert_eq!(read, rows.iter().map(of).collect::<Vec<_>>());
            let mut damaged = bytes.clone();
            let at = at.index(damaged.len());
            damaged[at] ^= 1 << bit;
            if let Ok(Record::Writes(rest)) = decode(&damaged, 8) {
                let _ = entries(rest, 16, &mut |_| Ok(()));
            }
        }
    }

    #[test]
    fn a_deletion_of_a_range_survives_and_one_without_keys_is_refused() {
        let bytes = delete_range(b"", b"b");
        let Record::Writes(rest) = decode(&bytes, 8).unwrap() else { panic!("writes") };
        let mut read = Vec::new();
        entries(rest, 16, &mut |e| {
            read.push((e.key.to_vec(), e.kind, e.value.to_vec()));
            Ok(())
        })
        .unwrap();
        assert_eq!(read, [(vec![], EntryKind::DeleteRange, b"b".to_vec())]);
        let mut none = bytes;
        *none.last_mut().unwrap() = 0;
        none[4 - 1] = 0;
        assert!(entries(&none[1..4], 16, &mut |_| Ok(())).is_err());
    }

    #[test]
    fn what_is_settled_survives() {
        assert!(matches!(decode(&settled(77), 8), Ok(Record::Settled(77))));
        assert!(decode(&settled(77)[..8], 8).is_err());
        assert!(decode(&[], 8).is_err() && decode(&[9], 8).is_err());
    }
}
