//! Bytes of the log: group headers and padding marks (`docs/format.md`, "Log").
//!
//! Invariants: every group begins at a multiple of [`ALIGN`] and its header carries its own absolute LSN and the run
//! (opening of the database) that wrote it, so neither the bytes of an earlier lap of the ring nor those that a crashed
//! run left past its end can be taken for live ones. Header checksums are seeded with the database's identity.

use varve_volume::Lsn;

/// Bytes of a log block: the unit of log writes. A block is written once per lap.
pub const BLOCK: u64 = 4096;
/// Groups begin at multiples of this many bytes.
pub const ALIGN: u64 = 8;
/// Bytes of a group's header.
pub const GROUP_HEADER: usize = 40;
/// The first LSN of a new log; 0 stands for "never changed".
pub const FIRST_LSN: Lsn = BLOCK;
/// Bytes of the mark at the start of padding.
pub const PAD_MARK: usize = 8;

const _: () = assert!(BLOCK.is_power_of_two() && BLOCK.is_multiple_of(ALIGN) && FIRST_LSN.is_multiple_of(BLOCK));
// Padding begins where a group could: its mark fits the smallest rest of a block.
const _: () = assert!(PAD_MARK as u64 <= ALIGN);

// The checksum is the last field of a header, and what it covers comes before it.
const _: () = assert!(36 + size_of::<u32>() == GROUP_HEADER);
const GROUP_MAGIC: u32 = u32::from_le_bytes(*b"VGRP");
const PAD_MAGIC: u32 = u32::from_le_bytes(*b"VPAD");
const GROUP_VERSION: u8 = 1;
// A reader tells a group from padding by the first word.
const _: () = assert!(GROUP_MAGIC != PAD_MAGIC && GROUP_MAGIC != 0 && PAD_MAGIC != 0);

/// What a group is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GroupKind {
    /// The engine's own housekeeping: splits, merges, allocation, catalog.
    System,
    /// A transaction's commit.
    Commit,
}

impl GroupKind {
    fn code(self) -> u8 {
        match self {
            GroupKind::System => 1,
            GroupKind::Commit => 2,
        }
    }

    fn from_code(code: u8) -> Option<GroupKind> {
        match code {
            1 => Some(GroupKind::System),
            2 => Some(GroupKind::Commit),
            _ => None,
        }
    }
}

/// Rounds down to a block boundary.
pub fn block_floor(lsn: Lsn) -> Lsn {
    lsn & !(BLOCK - 1)
}

/// Rounds up to a block boundary.
pub fn block_ceil(lsn: Lsn) -> Lsn {
    block_floor(lsn + BLOCK - 1)
}

/// Bytes that a group with a body of `body` bytes takes in the log stream.
pub fn group_size(body: usize) -> u64 {
    (GROUP_HEADER as u64 + body as u64).next_multiple_of(ALIGN)
}

/// Seed of the header checksums of one database.
pub fn salt(uuid: &[u8; 16]) -> u32 {
    crc32c::crc32c(uuid)
}

/// A group's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupHeader {
    /// What the group is.
    pub kind: GroupKind,
    /// Where it begins.
    pub lsn: Lsn,
    /// The durable LSN when it was appended: everything below was on media.
    pub durable: Lsn,
    /// Bytes of the body.
    pub body_len: u32,
    /// The run that wrote it.
    pub run: u32,
    /// CRC-32C of the body.
    pub body_crc: u32,
}

impl GroupHeader {
    /// End of the group: the LSN of the pages it changed.
    pub fn end(&self) -> Lsn {
        self.lsn + group_size(self.body_len as usize)
    }

    /// The header's bytes.
    pub fn encode(&self, salt: u32) -> [u8; GROUP_HEADER] {
        assert!(self.lsn.is_multiple_of(ALIGN), "a group begins at a multiple of {ALIGN}");
        let mut b = [0u8; GROUP_HEADER];
        b[0..4].copy_from_slice(&GROUP_MAGIC.to_le_bytes());
        b[4] = self.kind.code();
        b[5] = GROUP_VERSION;
        b[8..16].copy_from_slice(&self.lsn.to_le_bytes());
        b[16..24].copy_from_slice(&self.durable.to_le_bytes());
        b[24..28].copy_from_slice(&self.body_len.to_le_bytes());
        b[28..32].copy_from_slice(&self.run.to_le_bytes());
        b[32..36].copy_from_slice(&self.body_crc.to_le_bytes());
        let crc = crc32c::crc32c_append(salt, &b[..36]);
        b[36..40].copy_from_slice(&crc.to_le_bytes());
        b
    }

    /// Reads a header that must be the one of position `lsn`; `None` when the bytes are anything else.
    pub fn decode(b: &[u8; GROUP_HEADER], salt: u32, lsn: Lsn) -> Option<GroupHeader> {
        GroupHeader::decode_any(b, salt).filter(|header| header.lsn == lsn)
    }

    /// Reads a header of any position.
    pub fn decode_any(b: &[u8; GROUP_HEADER], salt: u32) -> Option<GroupHeader> {
        let crc = u32::from_le_bytes(b[36..40].try_into().ok()?);
        if word(b, 0) != GROUP_MAGIC || b[5] != GROUP_VERSION || crc != crc32c::crc32c_append(salt, &b[..36]) {
            return None;
        }
        let header = GroupHeader {
            kind: GroupKind::from_code(b[4])?,
            lsn: long(b, 8),
            durable: long(b, 16),
            body_len: word(b, 24),
            run: word(b, 28),
            body_crc: word(b, 32),
        };
        (header.durable <= header.lsn).then_some(header)
    }
}

/// Whether these may be the first bytes of a group's header.
pub fn is_group(bytes: &[u8]) -> bool {
    bytes.starts_with(&GROUP_MAGIC.to_le_bytes())
}

/// The mark that fills the rest of a block from `lsn` on; zeros follow it.
pub fn pad_mark(salt: u32, run: u32, lsn: Lsn) -> [u8; PAD_MARK] {
    let mut b = [0u8; PAD_MARK];
    b[..4].copy_from_slice(&PAD_MAGIC.to_le_bytes());
    b[4..].copy_from_slice(&pad_crc(salt, run, lsn).to_le_bytes());
    b
}

/// Whether `b` is the padding mark of position `lsn`.
pub fn is_pad(b: &[u8; PAD_MARK], salt: u32, run: u32, lsn: Lsn) -> bool {
    *b == pad_mark(salt, run, lsn)
}

fn pad_crc(salt: u32, run: u32, lsn: Lsn) -> u32 {
    let crc = crc32c::crc32c_append(salt, &lsn.to_le_bytes());
    crc32c::crc32c_append(crc, &run.to_le_bytes())
}

fn word(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

fn long(b: &[u8], at: usize) -> u64 {
    u64::from(word(b, at)) | u64::from(word(b, at + 4)) << 32
}
