//! Bytes of jobs and answers: a head with a checksum, then numbers of seven bits a byte and byte strings.
//!
//! Head: 0 magic `VRVN`, 4 u16 version (1), 6 u16 kind (1 job, 2 answer, 3 part), 8 u32 bytes of the body, 12 u32
//! CRC-32C of bytes 4 to 12 and of the body. All little endian. The body follows, and nothing after it.
//!
//! Invariant: reading takes no more memory than the bytes have, whatever they say.

use crate::lsm::varint::{push_varint, varint};

const MAGIC: &[u8; 4] = b"VRVN";
const VERSION: u16 = 1;
/// Bytes of the head.
pub(crate) const HEAD: usize = 16;
/// Longest body.
pub(crate) const MOST: usize = 16 << 20;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Kind {
    Job = 1,
    Answer = 2,
    Part = 3,
}

fn checksum(head: &[u8], body: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&head[4..12]), body)
}

/// A message of this body.
pub(crate) fn seal(kind: Kind, body: &[u8]) -> Vec<u8> {
    assert!(body.len() <= MOST, "whoever makes a message keeps it short");
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&(kind as u16).to_le_bytes());
    out.extend_from_slice(&(body.len() as u32).to_le_bytes());
    let sum = checksum(&out, body);
    out.extend_from_slice(&sum.to_le_bytes());
    out.extend_from_slice(body);
    out
}

/// The body of a message, or what is wrong with it.
pub(super) fn open(kind: Kind, bytes: &[u8]) -> Result<&[u8], &'static str> {
    let Some((head, body)) = bytes.split_at_checked(HEAD) else { return Err("it is cut short") };
    let u16_at = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
    let u32_at = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    if &head[..4] != MAGIC {
        return Err("it is no message about a merge");
    }
    if u16_at(4) != VERSION {
        return Err("it is of another version: host and worker need the same release");
    }
    if body.len() > MOST || u32_at(8) as usize != body.len() {
        return Err("its length is wrong");
    }
    if u32_at(12) != checksum(head, body) {
        return Err("its checksum is wrong");
    }
    if u16_at(6) != kind as u16 { Err("it is of another kind") } else { Ok(body) }
}

/// Puts a body together.
#[derive(Default)]
pub(super) struct Writer(pub Vec<u8>);

impl Writer {
    pub fn n(&mut self, n: u64) -> &mut Writer {
        push_varint(&mut self.0, n);
        self
    }

    pub fn float(&mut self, x: f64) -> &mut Writer {
        self.0.extend_from_slice(&x.to_le_bytes());
        self
    }

    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Writer {
        self.n(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }

    pub fn option(&mut self, bytes: Option<&[u8]>) -> &mut Writer {
        self.n(bytes.is_some().into());
        bytes.map(|bytes| self.bytes(bytes));
        self
    }

    pub fn list<T>(&mut self, items: &[T], mut one: impl FnMut(&mut Writer, &T)) -> &mut Writer {
        self.n(items.len() as u64);
        items.iter().for_each(|item| one(self, item));
        self
    }
}

/// Takes a body apart; `None` where it ends too early or says what cannot be.
pub(super) struct Reader<'b> {
    bytes: &'b [u8],
    at: usize,
}

impl<'b> Reader<'b> {
    pub fn new(bytes: &'b [u8]) -> Reader<'b> {
        Reader { bytes, at: 0 }
    }

    pub fn n(&mut self) -> Option<u64> {
        varint(self.bytes, &mut self.at)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.n()?.try_into().ok()
    }

    pub fn size(&mut self) -> Option<usize> {
        self.n()?.try_into().ok()
    }

    pub fn is(&mut self) -> Option<bool> {
        match self.n()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    fn take(&mut self, len: usize) -> Option<&'b [u8]> {
        let taken = self.bytes.get(self.at..self.at.checked_add(len)?)?;
        self.at += len;
        Some(taken)
    }

    /// A number that is finite and not below zero.
    pub fn float(&mut self) -> Option<f64> {
        let x = f64::from_le_bytes(self.take(8)?.try_into().ok()?);
        (x.is_finite() && x >= 0.0).then_some(x)
    }

    pub fn bytes(&mut self) -> Option<&'b [u8]> {
        let len = self.size()?;
        self.take(len)
    }

    pub fn option(&mut self) -> Option<Option<Vec<u8>>> {
        Some(if self.is()? { Some(self.bytes()?.to_vec()) } else { None })
    }

    pub fn list<T>(&mut self, mut one: impl FnMut(&mut Reader<'b>) -> Option<T>) -> Option<Vec<T>> {
        let n = self.size()?;
        // Each item takes a byte at least.
        if n > self.bytes.len() - self.at {
            return None;
        }
        let mut items = Vec::new();
        for _ in 0..n {
            items.push(one(self)?);
        }
        Some(items)
    }

    pub fn is_at_end(&self) -> bool {
        self.at == self.bytes.len()
    }
}
