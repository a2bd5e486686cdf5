//! The page header: the first 32 bytes of every page, little endian.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 4 | CRC-32C of bytes 4 to the end of the page |
//! | 4 | 2 | magic `0x5641` |
//! | 6 | 1 | format version, 2; 1 is read too: the same, without the runs of overflow pages |
//! | 7 | 1 | page type; its meaning belongs to the engine, 0 = free or unwritten |
//! | 8 | 8 | page id |
//! | 16 | 8 | LSN of the last change |
//! | 24 | 4 | keyspace id |
//! | 28 | 4 | reserved, 0 |
//!
//! Checksum, magic, version and id are written by [`seal`] in the staging copy, just before the page goes to a store;
//! type, LSN and keyspace belong to whoever changes the page.

use crate::{KeyspaceId, Lsn, PageDamage, PageId};
use varve_rt::{Cost, charge};

/// Bytes of the header.
pub const HEADER: usize = 32;
/// Magic of a page.
pub const MAGIC: u16 = 0x5641;
/// Format version written by this release.
pub const VERSION: u8 = 2;

const CHECKSUM: usize = 0;
const MAGIC_AT: usize = 4;
const VERSION_AT: usize = 6;
const KIND: usize = 7;
const ID: usize = 8;
const LSN: usize = 16;
const KEYSPACE: usize = 24;
const RESERVED: usize = 28;

const _: () = assert!(MAGIC_AT == CHECKSUM + 4 && VERSION_AT == MAGIC_AT + 2 && KIND == VERSION_AT + 1);
const _: () = assert!(ID == KIND + 1 && LSN == ID + 8 && KEYSPACE == LSN + 8 && RESERVED == KEYSPACE + 4);
const _: () = assert!(RESERVED + 4 == HEADER && HEADER.is_multiple_of(8));

fn get<const N: usize>(page: &[u8], at: usize) -> [u8; N] {
    page[at..at + N].try_into().expect("N bytes")
}

/// LSN of the last change.
pub fn lsn(page: &[u8]) -> Lsn {
    u64::from_le_bytes(get(page, LSN))
}

/// Sets the LSN of the last change.
pub fn set_lsn(page: &mut [u8], lsn: Lsn) {
    page[LSN..LSN + 8].copy_from_slice(&lsn.to_le_bytes());
}

/// Id that the page carries; set by [`seal`].
pub fn id(page: &[u8]) -> PageId {
    PageId(u64::from_le_bytes(get(page, ID)))
}

/// Whether bytes begin as a page does; says nothing about the rest.
pub fn claims(bytes: &[u8]) -> bool {
    u16::from_le_bytes(get(bytes, MAGIC_AT)) == MAGIC
}

/// Page type; 0 = free or unwritten.
pub fn kind(page: &[u8]) -> u8 {
    page[KIND]
}

/// Sets the page type.
pub fn set_kind(page: &mut [u8], kind: u8) {
    page[KIND] = kind;
}

/// Keyspace that the page belongs to.
pub fn keyspace(page: &[u8]) -> KeyspaceId {
    KeyspaceId(u32::from_le_bytes(get(page, KEYSPACE)))
}

/// Sets the keyspace that the page belongs to.
pub fn set_keyspace(page: &mut [u8], keyspace: KeyspaceId) {
    page[KEYSPACE..KEYSPACE + 4].copy_from_slice(&keyspace.0.to_le_bytes());
}

/// Makes the page ready to be stored: sets magic, version and id, then the checksum over everything else.
pub fn seal(page: &mut [u8], id: PageId) {
    assert!(page.len() > HEADER, "a page is more than its header");
    page[MAGIC_AT..MAGIC_AT + 2].copy_from_slice(&MAGIC.to_le_bytes());
    page[VERSION_AT] = VERSION;
    page[ID..ID + 8].copy_from_slice(&id.0.to_le_bytes());
    page[RESERVED..RESERVED + 4].fill(0);
    charge(Cost::ChecksumByte, page.len() as u64);
    let checksum = crc32c::crc32c(&page[MAGIC_AT..]);
    page[CHECKSUM..CHECKSUM + 4].copy_from_slice(&checksum.to_le_bytes());
}

/// The checksum that [`seal`] set.
pub fn checksum(page: &[u8]) -> u32 {
    u32::from_le_bytes(get(page, CHECKSUM))
}

/// Whether [`seal`] would change nothing of the page but its checksum.
pub fn is_sealed_for(page: &[u8], id: PageId) -> bool {
    let (magic, version) = (u16::from_le_bytes(get(page, MAGIC_AT)), page[VERSION_AT]);
    magic == MAGIC && version == VERSION && self::id(page) == id && page[RESERVED..RESERVED + 4] == [0; 4]
}

/// Whether `page` is page `id` as it was sealed.
pub fn verify(page: &[u8], id: PageId) -> Result<(), PageDamage> {
    let found = checksum(page);
    charge(Cost::ChecksumByte, page.len() as u64);
    let computed = crc32c::crc32c(&page[MAGIC_AT..]);
    if found != computed {
        let unwritten = page.iter().all(|&b| b == 0);
        return Err(if unwritten { PageDamage::Unwritten } else { PageDamage::Checksum { found, computed } });
    }
    let magic = u16::from_le_bytes(get(page, MAGIC_AT));
    if magic != MAGIC {
        return Err(PageDamage::WrongMagic { found: magic });
    }
    if page[VERSION_AT] > VERSION {
        return Err(PageDamage::NewerVersion { found: page[VERSION_AT] });
    }
    let found = self::id(page);
    if found != id { Err(PageDamage::WrongId { found }) } else { Ok(()) }
}
