//! Parts of a segment as they are stored: a header with a checksum, and the bytes, compressed or not.
//!
//! Layout: 0 u32 CRC-32C of what follows, 4 u8 which part it is, 5 u8 codec, 6 u16 0, 8 u32 bytes stored, 12 u32 bytes
//! uncompressed, 16 the bytes. Whoever refers to a part remembers the checksum too ([`Location`]): so a part of another
//! time or another place is told from the one that is meant by comparing four bytes.

use super::block::MAX_BLOCK;
use super::varint::{push_varint, varint};
use crate::rows::Damage;
use crate::zstandard;
use std::borrow::Cow;
use varve_rt::{Cost, charge};

/// Bytes of the header.
pub(crate) const HEAD: usize = 16;
const _: () = assert!(HEAD == 4 + 1 + 1 + 2 + 4 + 4, "the fields of a part's header");

/// What a part holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Part {
    /// Entries.
    Data = 1,
    /// Where data blocks lie.
    Index = 2,
    /// Where index blocks lie.
    Top = 3,
    /// Lines of the Bloom filter.
    Filter = 4,
    /// Deletions of ranges.
    Ranges = 5,
    /// What there is to know of the segment.
    Footer = 6,
}

impl Part {
    /// Its name in messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Part::Data => "data block",
            Part::Index => "index block",
            Part::Top => "top of the index",
            Part::Filter => "filter",
            Part::Ranges => "range deletions",
            Part::Footer => "footer",
        }
    }
}

/// How blocks are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Codec {
    /// Not at all.
    #[default]
    None = 0,
    /// LZ4's block format: fast.
    Lz4 = 1,
    /// Zstandard, level 1: smaller.
    Zstd = 2,
}

impl Codec {
    /// All of them, with their names.
    pub(crate) const ALL: [(&'static str, Codec); 3] =
        [("none", Codec::None), ("lz4", Codec::Lz4), ("zstd", Codec::Zstd)];

    /// The codec of this name.
    pub(crate) fn by_name(name: &str) -> Option<Codec> {
        Codec::ALL.iter().find(|(n, _)| *n == name).map(|(_, codec)| *codec)
    }

    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        Codec::ALL.iter().find(|(_, codec)| *codec == self).expect("all have names").0
    }

    fn compress(self, raw: &[u8]) -> Option<Vec<u8>> {
        if self == Codec::None {
            return None;
        }
        charge(Cost::CompressByte, raw.len() as u64);
        let stored = match self {
            Codec::None => return None,
            Codec::Lz4 => lz4_flex::block::compress(raw),
            // It fails for want of memory only; then the block stays as it is.
            Codec::Zstd => zstandard::compress(raw, 1)?,
        };
        // Less than an eighth is not worth the work of each reader.
        (stored.len() <= raw.len() - raw.len() / 8).then_some(stored)
    }

    fn decompress(code: u8, stored: &[u8], len: usize) -> Result<Cow<'_, [u8]>, Damage> {
        const BAD: Damage = Damage("does not unpack");
        let raw = match code {
            0 => return Ok(Cow::Borrowed(stored)),
            1 => lz4_flex::block::decompress(stored, len).map_err(|_| BAD)?,
            2 if !zstandard::PRESENT => return Err(Damage("needs varve built with its feature `zstd`")),
            2 => zstandard::decompress(stored, len).ok_or(BAD)?,
            _ => return Err(Damage("its codec is unknown")),
        };
        charge(Cost::DecompressByte, len as u64);
        if raw.len() == len { Ok(Cow::Owned(raw)) } else { Err(BAD) }
    }
}

/// Where a part lies in the bytes of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Location {
    /// First byte, counted from the beginning of the segment.
    pub offset: u32,
    /// Bytes, its header included; 0: there is none.
    pub len: u32,
    /// Its checksum.
    pub checksum: u32,
}

impl Location {
    /// Byte after its last.
    pub(crate) fn end(&self) -> u64 {
        u64::from(self.offset) + u64::from(self.len)
    }

    /// As stored.
    pub(crate) fn push(&self, to: &mut Vec<u8>) {
        push_varint(to, self.offset.into());
        push_varint(to, self.len.into());
        to.extend_from_slice(&self.checksum.to_le_bytes());
    }

    /// What [`push`](Location::push) wrote at `at`, which moves past it.
    pub(crate) fn read(bytes: &[u8], at: &mut usize) -> Option<Location> {
        let offset = u32::try_from(varint(bytes, at)?).ok()?;
        let len = u32::try_from(varint(bytes, at)?).ok()?;
        let checksum = u32::from_le_bytes(bytes.get(*at..*at + 4)?.try_into().expect("four bytes"));
        *at += 4;
        Some(Location { offset, len, checksum })
    }
}

/// Appends a part with these bytes; its length and checksum.
pub(crate) fn seal(to: &mut Vec<u8>, part: Part, codec: Codec, raw: &[u8]) -> (u32, u32) {
    assert!(raw.len() <= MAX_BLOCK, "a part this large cannot be read again");
    let compressed = codec.compress(raw);
    let code = if compressed.is_some() { codec as u8 } else { Codec::None as u8 };
    let body = compressed.as_deref().unwrap_or(raw);
    let start = to.len();
    to.extend_from_slice(&[0, 0, 0, 0, part as u8, code, 0, 0]);
    to.extend_from_slice(&(body.len() as u32).to_le_bytes());
    to.extend_from_slice(&(raw.len() as u32).to_le_bytes());
    to.extend_from_slice(body);
    let checksum = checksum(&to[start..]);
    to[start..start + 4].copy_from_slice(&checksum.to_le_bytes());
    ((HEAD + body.len()) as u32, checksum)
}

fn checksum(stored: &[u8]) -> u32 {
    charge(Cost::ChecksumByte, stored.len() as u64);
    crc32c::crc32c(&stored[4..])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// What a header says, if it can be one: part, bytes with the header, checksum.
pub(crate) fn head(stored: &[u8; HEAD]) -> Option<(Part, usize, u32)> {
    const ALL: [Part; 6] = [Part::Data, Part::Index, Part::Top, Part::Filter, Part::Ranges, Part::Footer];
    let part = *ALL.iter().find(|part| **part as u8 == stored[4])?;
    let (body, raw) = (u32_at(stored, 8) as usize, u32_at(stored, 12) as usize);
    let plausible = stored[5] <= Codec::Zstd as u8 && stored[6..8] == [0, 0] && body.max(raw) <= MAX_BLOCK;
    plausible.then(|| (part, HEAD + body, u32_at(stored, 0)))
}

/// The bytes of the part that is stored here, if it is the one that was meant. With `verify` every bit of it is
/// compared with its checksum; else the caller knows by other means that it is as it was written.
pub(crate) fn open(stored: &[u8], part: Part, expected: u32, verify: bool) -> Result<Cow<'_, [u8]>, Damage> {
    if stored.len() < HEAD {
        return Err(Damage("shorter than its header"));
    }
    if u32_at(stored, 0) != expected {
        return Err(Damage("not the one that was written here last"));
    }
    if verify && checksum(stored) != expected {
        return Err(Damage("checksum"));
    }
    let (body, raw) = (u32_at(stored, 8) as usize, u32_at(stored, 12) as usize);
    if stored[4] != part as u8 {
        return Err(Damage("another part"));
    }
    let plain = stored[5] == Codec::None as u8;
    if body != stored.len() - HEAD || raw > MAX_BLOCK || plain && raw != body {
        return Err(Damage("its lengths do not agree"));
    }
    Codec::decompress(stored[5], &stored[HEAD..], raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_in_comes_out_and_any_flipped_bit_is_seen() {
        let text = b"a sentence that is there again and again ".repeat(20);
        for (name, codec) in Codec::ALL {
            assert!(Codec::by_name(name) == Some(codec) && codec.name() == name);
            let mut stored = Vec::new();
            let (len, checksum) = seal(&mut stored, Part::Data, codec, &text);
            assert_eq!(len as usize, stored.len());
            assert_eq!(codec != Codec::None, stored.len() < text.len() / 4, "{name}: {len}");
            assert_eq!(&*open(&stored, Part::Data, checksum, true).expect("sound"), &text);
            assert_eq!(open(&stored, Part::Index, checksum, true), Err(Damage("another part")));
            for bit in 0..8 * stored.len() {
                let mut bytes = stored.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert!(open(&bytes, Part::Data, checksum, true).is_err(), "{name}: bit {bit}");
                // Unverified it may be other bytes, but no panic.
                let _ = open(&bytes, Part::Data, checksum, false);
            }
        }
    }

    #[test]
    fn what_does_not_shrink_is_kept_as_it_is() {
        let mut noise = vec![0; 500];
        varve_rt::Rng::from_seed(1).fill_bytes(&mut noise);
        for codec in [Codec::Lz4, Codec::Zstd] {
            let mut stored = Vec::new();
            let (len, checksum) = seal(&mut stored, Part::Data, codec, &noise);
            assert_eq!((len as usize, stored[5]), (HEAD + noise.len(), 0));
            assert!(matches!(open(&stored, Part::Data, checksum, true), Ok(Cow::Borrowed(_))));
        }
    }
}
