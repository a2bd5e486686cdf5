//! Redo records: how page changes travel in the log, and the one routine that replays them.
//!
//! Body of a log group: records one after another, each `tag u8` and
//! - `1` page operations: page varint, keyspace u32, previous LSN u64, bytes of operations u32, then operations;
//! - `2` page image: page varint, keyspace u32, hole start u16, hole end u16 (bytes in the hole are zero), page bytes
//!   without the hole;
//! - `3` extra: length varint, bytes (commit information and other records that are not page changes);
//! - `4` index: keyspace u32, length varint, bytes (what an index of that keyspace remembers without a page; its folder
//!   says what they are).
//!
//! An operation is `0` write: offset u16, length u16, bytes; or `1` shift: from u16, to u16, length u16 (a `memmove`
//! within the page). Invariant: operations never touch the page header; the LSN is stamped by whoever applies a whole
//! group.

use crate::error::{Error, Result};
use varve_volume::page::{self, HEADER};
use varve_volume::{KeyspaceId, Lsn, PageId};

const TAG_OPS: u8 = 1;
const TAG_IMAGE: u8 = 2;
const TAG_EXTRA: u8 = 3;
const TAG_INDEX: u8 = 4;
const OP_WRITE: u8 = 0;
const OP_SHIFT: u8 = 1;

/// Appends a write operation.
pub fn push_write(ops: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    debug_assert!(at + bytes.len() <= usize::from(u16::MAX), "a place in a page fits its field");
    ops.push(OP_WRITE);
    ops.extend_from_slice(&(at as u16).to_le_bytes());
    ops.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
    ops.extend_from_slice(bytes);
}

/// Appends a shift operation.
pub fn push_shift(ops: &mut Vec<u8>, from: usize, to: usize, len: usize) {
    debug_assert!(from.max(to) + len <= usize::from(u16::MAX), "a place in a page fits its field");
    ops.push(OP_SHIFT);
    for n in [from, to, len] {
        ops.extend_from_slice(&(n as u16).to_le_bytes());
    }
}

/// Appends a page's operations as a record.
pub fn push_ops_record(body: &mut Vec<u8>, page: PageId, keyspace: KeyspaceId, prev: Lsn, ops: &[u8]) {
    body.push(TAG_OPS);
    push_varint(body, page.0);
    body.extend_from_slice(&keyspace.0.to_le_bytes());
    body.extend_from_slice(&prev.to_le_bytes());
    body.extend_from_slice(&(ops.len() as u32).to_le_bytes());
    body.extend_from_slice(ops);
}

/// Appends a page's image as a record; the longest run of zeros that `hole` names is left out.
pub fn push_image_record(body: &mut Vec<u8>, page: PageId, bytes: &[u8], hole: std::ops::Range<usize>) {
    debug_assert!(hole.start <= hole.end && hole.end <= bytes.len());
    body.push(TAG_IMAGE);
    push_varint(body, page.0);
    body.extend_from_slice(&page::keyspace(bytes).0.to_le_bytes());
    body.extend_from_slice(&(hole.start as u16).to_le_bytes());
    body.extend_from_slice(&(hole.end as u16).to_le_bytes());
    body.extend_from_slice(&bytes[..hole.start]);
    body.extend_from_slice(&bytes[hole.end..]);
}

/// Appends a record that is not a page change. (Nothing writes such records yet; readers pass over them.)
#[cfg(test)]
pub fn push_extra(body: &mut Vec<u8>, bytes: &[u8]) {
    body.push(TAG_EXTRA);
    push_varint(body, bytes.len() as u64);
    body.extend_from_slice(bytes);
}

/// Appends a record of an index that is not a page change.
pub fn push_index_record(body: &mut Vec<u8>, keyspace: KeyspaceId, bytes: &[u8]) {
    body.push(TAG_INDEX);
    body.extend_from_slice(&keyspace.0.to_le_bytes());
    push_varint(body, bytes.len() as u64);
    body.extend_from_slice(bytes);
}

/// The zero bytes between the given limits of a page may be left out of its image: finds the longest run of zeros in
/// the page body.
///
/// Looks in steps of 32 bytes, so that it costs a fraction of the copy; short runs are not worth a hole.
pub fn zero_hole(bytes: &[u8]) -> std::ops::Range<usize> {
    let (mut best, mut start) = (0..0, None);
    let mut at = HEADER;
    while at + 32 <= bytes.len() {
        let zero = bytes[at..at + 32].iter().fold(0u8, |a, b| a | b) == 0;
        match (zero, start) {
            (true, None) => start = Some(at),
            (false, Some(s)) => {
                if at - s > best.len() {
                    best = s..at;
                }
                start = None;
            }
            _ => {}
        }
        at += 32;
    }
    if let Some(s) = start
        && at - s > best.len()
    {
        best = s..at;
    }
    // The hole's bounds are u16 in the record: a hole that ends past 65535 cannot occur with pages to 32 KB.
    best
}

/// One record of a decoded group.
#[derive(Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// Operations on a page whose LSN was `prev`.
    Ops {
        /// The page.
        page: PageId,
        /// Its keyspace.
        keyspace: KeyspaceId,
        /// The page's LSN before the group.
        prev: Lsn,
        /// Encoded operations.
        ops: &'a [u8],
    },
    /// The whole page.
    Image {
        /// The page.
        page: PageId,
        /// Its keyspace.
        keyspace: KeyspaceId,
        /// Bytes before the hole, and the hole.
        head: &'a [u8],
        /// Zero bytes between head and tail.
        hole: usize,
        /// Bytes after the hole.
        tail: &'a [u8],
    },
    /// Something that is not a page change.
    Extra(&'a [u8]),
    /// What an index remembers without a page.
    Index {
        /// The index's keyspace.
        keyspace: KeyspaceId,
        /// As the index wrote it.
        bytes: &'a [u8],
    },
}

/// Walks the records of a group's body.
pub struct Records<'a> {
    rest: &'a [u8],
    page_size: usize,
    lsn: Lsn,
}

/// Decodes a group's body; `lsn` (the group's start) names it in errors.
pub fn decode(body: &[u8], page_size: usize, lsn: Lsn) -> Records<'_> {
    Records { rest: body, page_size, lsn }
}

impl<'a> Records<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        if n > self.rest.len() {
            return Err(Error::corrupt_log(self.lsn, "a record runs past the end of its group"));
        }
        let (head, rest) = self.rest.split_at(n);
        self.rest = rest;
        Ok(head)
    }

    fn u16(&mut self) -> Result<usize> {
        Ok(u16::from_le_bytes(self.take(2)?.try_into().expect("two bytes")) as usize)
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.take(4)?.try_into().expect("four bytes")))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.take(8)?.try_into().expect("eight bytes")))
    }

    fn varint(&mut self) -> Result<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Error::corrupt_log(self.lsn, "a number runs past 64 bits"))
    }

    fn record(&mut self) -> Result<Record<'a>> {
        match self.take(1)?[0] {
            TAG_OPS => {
                let page = PageId(self.varint()?);
                let keyspace = KeyspaceId(self.u32()?);
                let prev = self.u64()?;
                let len = self.u32()? as usize;
                let ops = self.take(len)?;
                Ok(Record::Ops { page, keyspace, prev, ops })
            }
            TAG_IMAGE => {
                let page = PageId(self.varint()?);
                let keyspace = KeyspaceId(self.u32()?);
                let (start, end) = (self.u16()?, self.u16()?);
                if start > end || end > self.page_size {
                    return Err(Error::corrupt_log(
                        self.lsn,
                        format!("image of page {} has an impossible hole", page.0),
                    ));
                }
                let head = self.take(start)?;
                let tail = self.take(self.page_size - end)?;
                Ok(Record::Image { page, keyspace, head, hole: end - start, tail })
            }
            TAG_EXTRA => {
                let len = self.varint()? as usize;
                Ok(Record::Extra(self.take(len)?))
            }
            TAG_INDEX => {
                let keyspace = KeyspaceId(self.u32()?);
                let len = self.varint()? as usize;
                Ok(Record::Index { keyspace, bytes: self.take(len)? })
            }
            tag => Err(Error::corrupt_log(self.lsn, format!("unknown record tag {tag}"))),
        }
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>>;

    fn next(&mut self) -> Option<Result<Record<'a>>> {
        if self.rest.is_empty() {
            return None;
        }
        let record = self.record();
        if record.is_err() {
            self.rest = &[];
        }
        Some(record)
    }
}

/// Replays encoded operations on a page. `lsn` names the group in errors; the caller stamps the page afterwards.
pub fn apply_ops(bytes: &mut [u8], ops: &[u8], page: PageId, lsn: Lsn) -> Result<()> {
    let bad = |what: &str| Error::corrupt_log(lsn, format!("operation on page {}: {what}", page.0));
    let mut rest = ops;
    while let [op, tail @ ..] = rest {
        let n = |i: usize| -> Result<usize> {
            let b = tail.get(2 * i..2 * i + 2).ok_or_else(|| bad("cut short"))?;
            Ok(u16::from_le_bytes([b[0], b[1]]) as usize)
        };
        match *op {
            OP_WRITE => {
                let (at, len) = (n(0)?, n(1)?);
                let data = tail.get(4..4 + len).ok_or_else(|| bad("cut short"))?;
                let place =
                    bytes.get_mut(at..at + len).filter(|_| at >= HEADER).ok_or_else(|| bad("outside the page"))?;
                place.copy_from_slice(data);
                rest = &tail[4 + len..];
            }
            OP_SHIFT => {
                let (from, to, len) = (n(0)?, n(1)?, n(2)?);
                if from < HEADER || to < HEADER || from + len > bytes.len() || to + len > bytes.len() {
                    return Err(bad("outside the page"));
                }
                bytes.copy_within(from..from + len, to);
                rest = &tail[6..];
            }
            other => return Err(bad(&format!("unknown kind {other}"))),
        }
    }
    Ok(())
}

/// Writes a decoded image into a page's bytes. The caller stamps the page afterwards.
pub fn apply_image(bytes: &mut [u8], head: &[u8], hole: usize, tail: &[u8]) {
    bytes[..head.len()].copy_from_slice(head);
    bytes[head.len()..head.len() + hole].fill(0);
    bytes[head.len() + hole..].copy_from_slice(tail);
}

fn push_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIZE: usize = 4096;

    #[derive(Debug, Clone)]
    enum Edit {
        Write(usize, Vec<u8>),
        Shift(usize, usize, usize),
    }

    fn edits() -> impl Strategy<Value = Vec<Edit>> {
        let write =
            (HEADER..SIZE - 64, prop::collection::vec(any::<u8>(), 0..64)).prop_map(|(at, b)| Edit::Write(at, b));
        let shift = (HEADER..SIZE / 2, HEADER..SIZE / 2, 0..SIZE / 2).prop_map(|(f, t, n)| Edit::Shift(f, t, n));
        prop::collection::vec(prop_oneof![write, shift], 0..40)
    }

    proptest! {
        #[test]
        fn replayed_operations_give_the_same_page(edits in edits(), fill in any::<u8>()) {
            let before = vec![fill; SIZE];
            let (mut changed, mut ops) = (before.clone(), Vec::new());
            for edit in &edits {
                match edit {
                    Edit::Write(at, b) => { changed[*at..*at + b.len()].copy_from_slice(b); push_write(&mut ops, *at, b) }
                    Edit::Shift(f, t, n) => { changed.copy_within(*f..*f + *n, *t); push_shift(&mut ops, *f, *t, *n) }
                }
            }
            let mut body = Vec::new();
            push_extra(&mut body, b"who");
            push_ops_record(&mut body, PageId(300), KeyspaceId(7), 99, &ops);
            let records: Vec<_> = decode(&body, SIZE, 1).collect::<Result<_>>().unwrap();
            prop_assert_eq!(&records[0], &Record::Extra(b"who"));
            let Record::Ops { page, prev, ops, .. } = &records[1] else { panic!() };
            prop_assert_eq!((page.0, *prev), (300, 99));
            let mut replayed = before;
            apply_ops(&mut replayed, ops, *page, 1).unwrap();
            prop_assert_eq!(replayed, changed);
        }

        #[test]
        fn an_image_survives_with_its_hole_left_out(at in HEADER..SIZE, len in 0usize..2000) {
            let mut bytes: Vec<u8> = (0..SIZE).map(|i| (i % 251) as u8 | 1).collect();
            let end = (at + len).min(SIZE);
            bytes[at..end].fill(0);
            let mut body = Vec::new();
            push_image_record(&mut body, PageId(5), &bytes, zero_hole(&bytes));
            prop_assert!(body.len() <= SIZE + 64 - (end - at).saturating_sub(64));
            let record = decode(&body, SIZE, 1).next().unwrap().unwrap();
            let Record::Image { head, hole, tail, .. } = record else { panic!() };
            let mut out = vec![0xee; SIZE];
            apply_image(&mut out, head, hole, tail);
            prop_assert_eq!(out, bytes);
        }

        #[test]
        fn any_bytes_decode_or_fail_without_a_panic(body in prop::collection::vec(any::<u8>(), 0..300), mut page in Just(vec![0u8; SIZE])) {
            for record in decode(&body, SIZE, 1).flatten() {
                if let Record::Ops { ops, page: id, .. } = record {
                    let _ = apply_ops(&mut page, ops, id, 1);
                }
            }
            let _ = apply_ops(&mut page, &body, PageId(0), 1);
        }
    }
}
