//! The bytes of a backup: a header, frames, an end frame. `docs/format.md`, "Backups".
//!
//! Everything bears a checksum, frames also their number: a backup that was cut short, damaged or pieced together is
//! refused.

use crate::error::{Damage, Error, Result};
use crate::zstandard;
use std::io::{Read, Write};
use varve_volume::{Lsn, PageId};

const MAGIC: &[u8; 8] = b"VRVBACKU";
const FRAME_MAGIC: u32 = 0x3146_4256;
/// Version 2 says how many pages there were; in version 3 frames may be packed with LZ4.
const VERSION: u32 = 3;
const HEADER: usize = 96;
const FRAME: usize = 32;
const _: () = assert!(HEADER == 8 + 2 * 4 + 3 * 16 + 3 * 8 + 2 * 4, "the fields of a header, its checksum last");
const _: () = assert!(FRAME == 5 * 4 + 4 + 2 * 4, "five numbers, how it is packed, two checksums");
/// Most bytes of a frame's body, uncompressed.
pub(super) const MOST: usize = 64 << 20;

/// What a frame holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Pages: id (8 bytes), then the page.
    Pages = 1,
    /// A group of the log, or a part of one: start, end (8 bytes each), bytes of the whole body (8), then the part.
    Log = 2,
    /// Nothing follows: LSN of the end, pages, groups (8 bytes each).
    End = 3,
}

/// What a backup is of. Read from its beginning by [`BackupInfo::read`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupInfo {
    /// Identity of the database.
    pub database: [u8; 16],
    /// Identity of the backup.
    pub id: [u8; 16],
    /// The backup that this one goes on from; `None`: it is whole by itself.
    pub base: Option<[u8; 16]>,
    /// Bytes of a page.
    pub page_size: usize,
    /// Bytes at the end of each page that are left alone: room for delta records of native flash.
    pub room: usize,
    /// Position in the log at which the backup began.
    pub start: Lsn,
    /// When it began, nanoseconds since 1970-01-01 UTC.
    pub time: u64,
    /// Pages that the database had room for when it began; 0: made by a release that did not say.
    pub pages: u64,
    /// Which opening of the database it began in: drawn by each; 0: made by a release that did not say.
    pub opening: u32,
}

/// How a backup is packed. Its reader finds out by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// LZ4: fast.
    Lz4,
    /// Zstandard of this level, 1 (fast) to 19 (small).
    #[cfg(feature = "zstd")]
    Zstd(i32),
}

impl Default for Packing {
    /// The smallest that takes little time: Zstandard, level 1, in builds that have it.
    fn default() -> Packing {
        #[cfg(feature = "zstd")]
        return Packing::Zstd(1);
        #[cfg(not(feature = "zstd"))]
        return Packing::Lz4;
    }
}

/// Frames that are packed with zstd, and those with LZ4, say so.
const ZSTD: u8 = 0;
const LZ4: u8 = 1;

impl Packing {
    fn code(self) -> u8 {
        match self {
            Packing::Lz4 => LZ4,
            #[cfg(feature = "zstd")]
            Packing::Zstd(_) => ZSTD,
        }
    }

    /// Oldest version of the format that has it.
    fn version(self) -> u32 {
        if self.code() == LZ4 { VERSION } else { 2 }
    }

    fn pack(self, body: &[u8]) -> Option<Vec<u8>> {
        match self {
            Packing::Lz4 => Some(lz4_flex::block::compress(body)),
            #[cfg(feature = "zstd")]
            Packing::Zstd(level) => zstandard::compress(body, level),
        }
    }
}

/// Most bytes that a body of `MOST` bytes is stored as, whatever packs it.
const MOST_STORED: usize = MOST + MOST / 8;

pub(super) fn bad(what: impl std::fmt::Display) -> Error {
    Error::Backup(what.to_string())
}

/// The file is not what was written.
pub(super) fn damage(what: impl std::fmt::Display) -> Error {
    Error::Corrupt(Damage::Backup(what.to_string()))
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("N bytes")
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}

impl BackupInfo {
    /// Reads the header of a backup.
    ///
    /// # Errors
    /// `Backup` when it is none, or cannot be read; `Corrupt` when it is damaged; `Version`.
    pub fn read(from: &mut dyn Read) -> Result<BackupInfo> {
        let mut b = [0; HEADER];
        from.read_exact(&mut b)
            .map_err(|e| bad(format!("its header cannot be read ({e}); is it a whole backup file?")))?;
        if &b[..8] != MAGIC {
            return Err(bad("this is not a backup made by `varve backup`"));
        }
        if u32_at(&b, HEADER - 4) != crc32c::crc32c(&b[..HEADER - 4]) {
            return Err(damage("its header is damaged"));
        }
        let version = u32_at(&b, 8);
        if version > VERSION {
            return Err(Error::Version { what: "backup", found: version, supported: VERSION });
        }
        let (page_size, room) = (u32_at(&b, 12) as usize & 0xffff, u32_at(&b, 12) as usize >> 16);
        if !matches!(page_size, 4096 | 8192 | 16384 | 32768) {
            return Err(damage(format!("its pages have {page_size} bytes: its header is damaged")));
        }
        let base: [u8; 16] = array(&b, 48);
        Ok(BackupInfo {
            page_size,
            room,
            database: array(&b, 16),
            id: array(&b, 32),
            base: (base != [0; 16]).then_some(base),
            start: u64_at(&b, 64),
            time: u64_at(&b, 72),
            pages: if version >= 2 { u64_at(&b, 80) } else { 0 },
            opening: u32_at(&b, 88),
        })
    }

    fn encode(&self, version: u32) -> [u8; HEADER] {
        let mut b = [0; HEADER];
        b[..8].copy_from_slice(MAGIC);
        b[8..12].copy_from_slice(&version.to_le_bytes());
        b[12..16].copy_from_slice(&(self.page_size as u32 | (self.room as u32) << 16).to_le_bytes());
        b[16..32].copy_from_slice(&self.database);
        b[32..48].copy_from_slice(&self.id);
        b[48..64].copy_from_slice(&self.base.unwrap_or_default());
        b[64..72].copy_from_slice(&self.start.to_le_bytes());
        b[72..80].copy_from_slice(&self.time.to_le_bytes());
        b[80..88].copy_from_slice(&self.pages.to_le_bytes());
        b[88..92].copy_from_slice(&self.opening.to_le_bytes());
        let crc = crc32c::crc32c(&b[..HEADER - 4]);
        b[HEADER - 4..].copy_from_slice(&crc.to_le_bytes());
        b
    }
}

/// Writes a backup.
pub(super) struct Writer<'w> {
    to: &'w mut dyn Write,
    packing: Packing,
    frames: u32,
    /// Bytes written.
    pub written: u64,
    pages: Vec<u8>,
    log: Vec<u8>,
}

/// A frame is written when it has this many bytes.
const FULL: usize = 1 << 20;
const _: () = assert!(FULL + 32 + MOST / 2 <= MOST, "no frame becomes longer than a reader takes");

impl<'w> Writer<'w> {
    pub fn begin(to: &'w mut dyn Write, info: &BackupInfo, packing: Packing) -> Result<Writer<'w>> {
        let mut writer = Writer { to, packing, frames: 0, written: 0, pages: Vec::new(), log: Vec::new() };
        writer.put(&info.encode(packing.version()))?;
        Ok(writer)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.written += bytes.len() as u64;
        self.to.write_all(bytes).map_err(|e| bad(format!("it cannot be written: {e}; the file is of no use")))
    }

    fn frame(&mut self, kind: Kind, body: &[u8]) -> Result<()> {
        assert!(body.len() <= MOST, "a reader refuses longer ones");
        let stored =
            self.packing.pack(body).ok_or_else(|| bad("it cannot be compressed: there is no memory for it"))?;
        assert!(stored.len() <= MOST_STORED, "the reader takes it");
        let mut head = [0; FRAME];
        head[..4].copy_from_slice(&FRAME_MAGIC.to_le_bytes());
        head[4..8].copy_from_slice(&(kind as u32).to_le_bytes());
        head[8..12].copy_from_slice(&(stored.len() as u32).to_le_bytes());
        head[12..16].copy_from_slice(&(body.len() as u32).to_le_bytes());
        head[16..20].copy_from_slice(&self.frames.to_le_bytes());
        head[20] = self.packing.code();
        head[24..28].copy_from_slice(&crc32c::crc32c(&stored).to_le_bytes());
        let crc = crc32c::crc32c(&head[..28]);
        head[28..].copy_from_slice(&crc.to_le_bytes());
        self.put(&head)?;
        self.put(&stored)?;
        self.frames += 1;
        Ok(())
    }

    /// Takes a page, without writing: it may be latched. [`Writer::flush_if_full`] is to follow.
    pub fn page(&mut self, id: PageId, bytes: &[u8]) {
        let before = self.pages.len().checked_sub(8 + bytes.len()).map(|at| u64_at(&self.pages, at));
        let ascends = before.is_none_or(|before| before < id.0);
        assert!(ascends, "pages of a frame ascend: it has each once, as they are written in any order");
        self.pages.extend_from_slice(&id.0.to_le_bytes());
        self.pages.extend_from_slice(bytes);
    }

    /// Writes the pages taken when they fill a frame.
    pub fn flush_if_full(&mut self) -> Result<()> {
        if self.pages.len() >= FULL { self.flush_pages() } else { Ok(()) }
    }

    /// Writes the pages taken so far: those that are taken from here on come after them.
    pub fn flush_pages(&mut self) -> Result<()> {
        let pages = std::mem::take(&mut self.pages);
        if !pages.is_empty() {
            self.frame(Kind::Pages, &pages)?;
        }
        self.pages = pages;
        self.pages.clear();
        Ok(())
    }

    /// Takes a group of the log.
    pub fn group(&mut self, start: Lsn, end: Lsn, body: &[u8]) -> Result<()> {
        assert!(start <= end, "a group ends behind where it starts");
        let parts = body.chunks(MOST / 2).chain((body.is_empty()).then_some(&[][..]));
        for part in parts {
            for n in [start, end, body.len() as u64, part.len() as u64] {
                self.log.extend_from_slice(&n.to_le_bytes());
            }
            self.log.extend_from_slice(part);
            if self.log.len() >= FULL {
                self.flush_log()?;
            }
        }
        Ok(())
    }

    /// Pages go first: one that comes after a frame of the log was copied when all of that frame was done, and needs
    /// none of it.
    fn flush_log(&mut self) -> Result<()> {
        self.flush_pages()?;
        let log = std::mem::take(&mut self.log);
        if !log.is_empty() {
            self.frame(Kind::Log, &log)?;
        }
        self.log = log;
        self.log.clear();
        Ok(())
    }

    /// Everything was taken; the state is that of `end`.
    pub fn finish(mut self, end: Lsn, pages: u64, groups: u64) -> Result<u64> {
        self.flush_log()?;
        let body: Vec<u8> = [end, pages, groups].iter().flat_map(|n| n.to_le_bytes()).collect();
        self.frame(Kind::End, &body)?;
        self.to.flush().map_err(|e| bad(format!("it cannot be written: {e}; the file is of no use")))?;
        Ok(self.written)
    }
}

/// Reads a backup.
pub(super) struct Reader<'r> {
    from: &'r mut dyn Read,
    pub info: BackupInfo,
    frames: u32,
}

/// A frame of a backup.
pub(super) struct Frame {
    pub kind: Kind,
    pub body: Vec<u8>,
}

impl<'r> Reader<'r> {
    pub fn begin(from: &'r mut dyn Read) -> Result<Reader<'r>> {
        let info = BackupInfo::read(from)?;
        Ok(Reader { from, info, frames: 0 })
    }

    pub fn next_frame(&mut self) -> Result<Frame> {
        let number = self.frames;
        let cut = |e: std::io::Error| damage(format!("frame {number} cannot be read ({e}): the file was cut short"));
        let damaged = |what: &str| damage(format!("frame {number} {what}"));
        let mut head = [0; FRAME];
        self.from.read_exact(&mut head).map_err(cut)?;
        if u32_at(&head, 28) != crc32c::crc32c(&head[..28]) || u32_at(&head, 0) != FRAME_MAGIC {
            return Err(damaged("has a damaged header"));
        }
        if u32_at(&head, 16) != number {
            return Err(damaged(&format!("is number {}", u32_at(&head, 16))));
        }
        let kind = match u32_at(&head, 4) {
            1 => Kind::Pages,
            2 => Kind::Log,
            3 => Kind::End,
            other => return Err(damaged(&format!("is of unknown kind {other}"))),
        };
        let (stored_len, len) = (u32_at(&head, 8) as usize, u32_at(&head, 12) as usize);
        if len > MOST || stored_len > MOST_STORED {
            return Err(damaged("says that it is longer than frames are"));
        }
        let mut stored = Vec::new();
        Read::take(&mut *self.from, stored_len as u64).read_to_end(&mut stored).map_err(cut)?;
        if stored.len() < stored_len || u32_at(&head, 24) != crc32c::crc32c(&stored) {
            return Err(damaged("is damaged or cut short"));
        }
        let body = match head[20] {
            ZSTD => {
                zstandard::require("the backup is packed with zstd")?;
                zstandard::decompress(&stored, len)
            }
            LZ4 => lz4_flex::block::decompress(&stored, len).ok(),
            other => return Err(damaged(&format!("is packed in an unknown way, {other}"))),
        };
        let body = body.ok_or_else(|| damaged("does not unpack"))?;
        if body.len() != len {
            return Err(damaged("unpacks to another length"));
        }
        self.frames += 1;
        Ok(Frame { kind, body })
    }

    /// Nothing may follow the last frame: two backups in one file would be restored as the first alone.
    pub fn end(self) -> Result<()> {
        let mut more = [0];
        loop {
            match self.from.read(&mut more) {
                Ok(0) => return Ok(()),
                Ok(_) => return Err(bad("something follows its end; give each backup as a file of its own")),
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(damage(format!("what follows its end cannot be read ({e})"))),
            }
        }
    }
}

/// A group, or a part of one, in a log frame.
pub(super) struct Part<'f> {
    pub start: Lsn,
    pub end: Lsn,
    /// Bytes of the whole body.
    pub whole: u64,
    pub bytes: &'f [u8],
}

/// The parts of a log frame.
pub(super) fn parts(body: &[u8]) -> Result<Vec<Part<'_>>> {
    let short = || damage("a log frame does not hold what it says");
    let (mut rest, mut parts) = (body, Vec::new());
    while !rest.is_empty() {
        if rest.len() < 32 {
            return Err(short());
        }
        let (start, end, whole, len) = (u64_at(rest, 0), u64_at(rest, 8), u64_at(rest, 16), u64_at(rest, 24));
        let bytes = rest[32..].get(..len as usize).ok_or_else(short)?;
        parts.push(Part { start, end, whole, bytes });
        rest = &rest[32 + len as usize..];
    }
    Ok(parts)
}
