//! The footer: what there is to know of a segment, and where its parts are; and the trailer, which says where the
//! footer is.

use crate::lsm::SegmentMeta;
use crate::lsm::filter::Shape;
use crate::lsm::part::Location;
use crate::lsm::varint::{push_varint, varint};
use crate::rows::Damage;

/// Bytes of the trailer.
pub(crate) const TRAILER: usize = 32;
const MAGIC: &[u8; 8] = b"VRVSEGMT";
const _: () = assert!(TRAILER == MAGIC.len() + 6 * 4, "a trailer has its mark and six numbers");
/// In version 1 the trailer's checksum stands as it is.
const VERSION: u32 = 2;

/// What a footer says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Footer {
    /// Number of the segment in its keyspace.
    pub id: u64,
    pub meta: SegmentMeta,
    /// Bytes of data blocks, from the segment's beginning; index blocks follow.
    pub data: u64,
    /// Data blocks.
    pub blocks: u64,
    pub filter: Shape,
    /// Where the filter begins: at the beginning of a page, as each of its parts.
    pub filter_at: u64,
    /// The checksum of each part of the filter.
    pub filter_checksums: Vec<u32>,
    /// Bytes of the beginnings of keys that are in the filter too; 0: none are.
    pub prefix: u64,
    pub top: Location,
    pub ranges: Location,
}

impl Footer {
    /// As stored.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut to = Vec::new();
        let meta = &self.meta;
        let numbers = [
            self.id,
            meta.entries,
            meta.deletions,
            meta.ranges,
            meta.bytes,
            meta.commits.0,
            meta.commits.1,
            self.data,
            self.blocks,
            self.filter.lines.into(),
            self.filter.probes.into(),
            self.filter_at,
            self.prefix,
        ];
        numbers.into_iter().for_each(|n| push_varint(&mut to, n));
        self.top.push(&mut to);
        self.ranges.push(&mut to);
        push_varint(&mut to, meta.open_end.into());
        for key in [&meta.smallest, &meta.largest] {
            push_varint(&mut to, key.len() as u64);
            to.extend_from_slice(key);
        }
        push_varint(&mut to, self.filter_checksums.len() as u64);
        self.filter_checksums.iter().for_each(|checksum| to.extend_from_slice(&checksum.to_le_bytes()));
        to
    }

    /// What [`encode`](Footer::encode) wrote. Bytes after it are of a later release, and are passed over.
    pub(crate) fn decode(bytes: &[u8], pages: u64) -> Result<Footer, Damage> {
        Footer::read(bytes, pages).ok_or(Damage("its numbers do not fit"))?.plausible()
    }

    fn read(bytes: &[u8], pages: u64) -> Option<Footer> {
        let at = &mut 0;
        let mut numbers = [0; 13];
        for n in &mut numbers {
            *n = varint(bytes, at)?;
        }
        let [id, entries, deletions, ranges, size, first, last, data, blocks, lines, probes, filter_at, prefix] =
            numbers;
        let (top, ranges_at) = (Location::read(bytes, at)?, Location::read(bytes, at)?);
        let open_end = varint(bytes, at)? != 0;
        let mut key = || {
            let len = usize::try_from(varint(bytes, at)?).ok()?;
            let key = bytes.get(*at..(*at).checked_add(len)?)?;
            *at += len;
            Some(key.into())
        };
        let (smallest, largest) = (key()?, key()?);
        let count = usize::try_from(varint(bytes, at)?).ok()?;
        let checksums = bytes.get(*at..(*at).checked_add(count.checked_mul(4)?)?)?.chunks(4);
        let filter_checksums = checksums.map(|c| u32::from_le_bytes(c.try_into().expect("four bytes"))).collect();
        let meta = SegmentMeta {
            pages,
            smallest,
            largest,
            open_end,
            entries,
            deletions,
            ranges,
            bytes: size,
            commits: (first, last),
        };
        let filter = Shape { lines: u32::try_from(lines).ok()?, probes: u8::try_from(probes).ok()? };
        Some(Footer { id, meta, data, blocks, filter, filter_at, filter_checksums, prefix, top, ranges: ranges_at })
    }

    fn plausible(self) -> Result<Footer, Damage> {
        let meta = &self.meta;
        let bounds = meta.smallest < meta.largest || meta.smallest == meta.largest && !meta.open_end;
        let counts = meta.deletions <= meta.entries
            && self.blocks <= meta.entries
            && meta.entries.checked_add(meta.ranges).is_some_and(|all| all > 0);
        let filter = self.filter.lines == 0 || self.filter.probes > 0 && self.filter_at < u32::MAX.into();
        if bounds && counts && filter && meta.commits.0 <= meta.commits.1 {
            Ok(self)
        } else {
            Err(Damage("what it says of the segment cannot be"))
        }
    }
}

/// The checksum of a trailer, masked. A CRC-32C that follows the bytes that it is of makes the CRC-32C of any longer
/// text the same, whatever these bytes are. The trailer ends its page: unmasked, the page's checksum would not tell the
/// end of one segment from that of another, and a page torn there would count as whole. (LevelDB masks the checksums
/// in its log by the same function, for the same reason.)
pub(crate) fn checksum(trailer: &[u8]) -> u32 {
    assert_eq!(trailer.len(), TRAILER, "a trailer has its length");
    let crc = crc32c::crc32c(&trailer[..TRAILER - 4]);
    if number(trailer, 0) < 2 { crc } else { crc.rotate_right(15).wrapping_add(0xa282_ead8) }
}

/// The `i`-th number of a trailer.
fn number(trailer: &[u8], i: usize) -> u32 {
    u32::from_le_bytes(trailer[8 + 4 * i..12 + 4 * i].try_into().expect("four bytes"))
}

/// The trailer of a segment of so many pages.
pub(crate) fn trailer(footer: Location, pages: u32) -> [u8; TRAILER] {
    let mut bytes = [0; TRAILER];
    bytes[..8].copy_from_slice(MAGIC);
    for (i, n) in [VERSION, pages, footer.offset, footer.len, footer.checksum].into_iter().enumerate() {
        bytes[8 + 4 * i..12 + 4 * i].copy_from_slice(&n.to_le_bytes());
    }
    let checksum = checksum(&bytes);
    bytes[TRAILER - 4..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// Whether a segment ends with this page, given what may be used of it.
pub(crate) fn is_trailer(body: &[u8]) -> bool {
    body.len() >= TRAILER && read_trailer(&body[body.len() - TRAILER..]).is_ok()
}

/// Where the footer is, and how many pages there are, as the trailer says.
pub(crate) fn read_trailer(bytes: &[u8]) -> Result<(Location, u32), Damage> {
    let n = |i: usize| number(bytes, i);
    if bytes.len() != TRAILER || &bytes[..8] != MAGIC {
        return Err(Damage("segment trailer: not one"));
    }
    if checksum(bytes) != n(5) {
        return Err(Damage("segment trailer: checksum"));
    }
    if n(0) > VERSION {
        return Err(Damage("segment trailer: a format newer than this build; use a newer one"));
    }
    Ok((Location { offset: n(2), len: n(3), checksum: n(4) }, n(1)))
}
