//! Our own trace format: versioned header, blocks of varint-coded differences, each compressed with zstd and under a
//! checksum, and an end block, so that a file cut short is noticed. The bytes are laid down in docs/format.md.
//!
//! Blocks stand for themselves: differences begin anew in each.

use super::binary::{u16_at, u32_at, u64_at};
use super::error::{Position, TraceError};
use super::{Record, Source};
use std::collections::BTreeMap;
use std::io::{self, Write};
use varve::buffer::{Changed, Flush, TraceEvent};
use varve_volume::{KeyspaceId, PageId, WriteWhy};

/// First bytes of a trace.
pub const MAGIC: [u8; 8] = *b"VRVTRACE";
/// Version written, and the newest that is read.
pub const VERSION: u16 = 2;
/// The first one: flushes have neither keyspace nor gross bytes.
const WITHOUT_KEYSPACES: u16 = 1;

const HEADER: usize = 32;
const BLOCK_HEADER: usize = 32;
const BLOCK: [u8; 4] = *b"blk1";
/// Records of a block when written, and bytes of one at most when read.
const BLOCK_RECORDS: u32 = 32 << 10;
const BLOCK_MOST: u32 = 4 << 20;
/// zstd's default level.
const LEVEL: i32 = 3;

/// Tags of records, and bits of a flush's.
const FLUSH: u8 = 5;
const KEYSPACE: u8 = 6;
const PAGES: u8 = 7;
const CHANGED: u8 = 0x20;
const NEW: u8 = 0x40;
const WHOLE: u8 = 0x80;
/// Longest name of a keyspace that is read, bytes.
const NAME: u64 = 1 << 16;

/// What a trace says of the database that it is of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct About {
    /// Pages of the database; 0: not known.
    pub pages: u64,
    /// Names of keyspaces.
    pub keyspaces: BTreeMap<KeyspaceId, String>,
}

fn put_varint(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut n = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        if shift == 63 && byte > 1 {
            return None;
        }
        n |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(n);
        }
    }
    None
}

fn zigzag(n: i64) -> u64 {
    ((n << 1) ^ (n >> 63)) as u64
}

fn unzigzag(n: u64) -> i64 {
    (n >> 1) as i64 ^ -((n & 1) as i64)
}

/// What differences are taken from.
#[derive(Default)]
struct Last {
    page: u64,
    time: u64,
}

/// Page and time of an event, as differences.
fn put_place(out: &mut Vec<u8>, last: &mut Last, page: PageId, time: u64) {
    let micros = time / 1000;
    put_varint(out, zigzag(page.0.wrapping_sub(last.page) as i64));
    put_varint(out, zigzag(micros.wrapping_sub(last.time) as i64));
    *last = Last { page: page.0, time: micros };
}

fn encode(out: &mut Vec<u8>, last: &mut Last, time: u64, event: TraceEvent) {
    let (tag, page) = match event {
        TraceEvent::Read(page) => (0, page),
        TraceEvent::Write(page) => (1, page),
        TraceEvent::Create(page) => (2, page),
        TraceEvent::Prefetch(page) => (3, page),
        TraceEvent::Discard(page) => (4, page),
        TraceEvent::Flush(flush) => return encode_flush(out, last, time, &flush),
    };
    out.push(tag);
    put_place(out, last, page, time);
}

fn encode_flush(out: &mut Vec<u8>, last: &mut Last, time: u64, flush: &Flush) {
    let bit = |on: bool, bit: u8| if on { bit } else { 0 };
    let bits = bit(flush.changed.is_some(), CHANGED) | bit(flush.new, NEW) | bit(flush.whole, WHOLE);
    out.push(FLUSH | (flush.why as u8) << 3 | bits);
    put_place(out, last, flush.page, time);
    put_varint(out, flush.keyspace.map_or(0, |id| u64::from(id.0) + 1));
    if let Some(Changed { net, gross }) = flush.changed {
        put_varint(out, net.into());
        put_varint(out, gross.map_or(0, |gross| u64::from(gross.saturating_sub(net)) + 1));
    }
}

/// What a record says.
enum Said {
    Event(Record),
    /// Of the database.
    Of,
}

fn decode(bytes: &mut &[u8], version: u16, last: &mut Last, about: &mut About) -> Option<Said> {
    let (&tag, rest) = bytes.split_first()?;
    *bytes = rest;
    if version > WITHOUT_KEYSPACES && matches!(tag, KEYSPACE | PAGES) {
        decode_about(bytes, tag, about)?;
        return Some(Said::Of);
    }
    let page = PageId(last.page.wrapping_add(unzigzag(take_varint(bytes)?) as u64));
    let micros = last.time.wrapping_add(unzigzag(take_varint(bytes)?) as u64);
    *last = Last { page: page.0, time: micros };
    let event = match tag {
        0 => TraceEvent::Read(page),
        1 => TraceEvent::Write(page),
        2 => TraceEvent::Create(page),
        3 => TraceEvent::Prefetch(page),
        4 => TraceEvent::Discard(page),
        _ => TraceEvent::Flush(decode_flush(bytes, version, tag, page)?),
    };
    Some(Said::Event(Record::Pool { time: micros.saturating_mul(1000), event }))
}

fn decode_flush(bytes: &mut &[u8], version: u16, tag: u8, page: PageId) -> Option<Flush> {
    let old = version == WITHOUT_KEYSPACES;
    if tag & 7 != FLUSH || old && tag & (NEW | WHOLE) != 0 {
        return None;
    }
    let why = *WriteWhy::ALL.get(usize::from(tag >> 3 & 3))?;
    let keyspace = match if old { 0 } else { take_varint(bytes)? } {
        0 => None,
        id => Some(KeyspaceId(u32::try_from(id - 1).ok()?)),
    };
    let mut number = || u32::try_from(take_varint(bytes)?).ok();
    let changed = match tag & CHANGED {
        0 => None,
        _ => {
            let net = number()?;
            let more = if old { None } else { number()?.checked_sub(1) };
            let gross = more.map_or(Some(None), |more| net.checked_add(more).map(Some))?;
            Some(Changed { net, gross })
        }
    };
    // Without a base the page was new to the pool: so it was understood before traces said it.
    let new = if old { changed.is_none() } else { tag & NEW != 0 };
    Some(Flush { page, why, keyspace, new, whole: tag & WHOLE != 0, changed })
}

fn decode_about(bytes: &mut &[u8], tag: u8, about: &mut About) -> Option<()> {
    let first = take_varint(bytes)?;
    if tag == PAGES {
        about.pages = first;
        return Some(());
    }
    let len = take_varint(bytes).filter(|len| *len <= NAME)? as usize;
    let (name, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    about.keyspaces.insert(KeyspaceId(u32::try_from(first).ok()?), std::str::from_utf8(name).ok()?.to_string());
    Some(())
}

/// Writes a trace.
pub struct Writer<W: Write> {
    out: W,
    block: Vec<u8>,
    in_block: u32,
    last: Last,
    total: u64,
}

impl<W: Write> Writer<W> {
    /// Begins a trace of pages of `page_size` bytes (0: not known).
    pub fn new(mut out: W, page_size: u32) -> io::Result<Writer<W>> {
        let mut header = Vec::with_capacity(HEADER);
        header.extend_from_slice(&MAGIC);
        header.extend_from_slice(&VERSION.to_le_bytes());
        header.extend_from_slice(&[0; 2]);
        header.extend_from_slice(&page_size.to_le_bytes());
        header.extend_from_slice(&varve_rt::unix_time().to_le_bytes());
        header.extend_from_slice(&[0; 4]);
        header.extend_from_slice(&crc32c::crc32c(&header).to_le_bytes());
        out.write_all(&header)?;
        Ok(Writer { out, block: Vec::new(), in_block: 0, last: Last::default(), total: 0 })
    }

    /// Adds what the trace is to say of its database: names, and pages if there are any.
    pub fn about(&mut self, about: &About) -> io::Result<()> {
        for (id, name) in &about.keyspaces {
            assert!(name.len() as u64 <= NAME, "names of keyspaces are short");
            self.block.push(KEYSPACE);
            put_varint(&mut self.block, id.0.into());
            put_varint(&mut self.block, name.len() as u64);
            self.block.extend_from_slice(name.as_bytes());
            self.record()?;
        }
        if about.pages > 0 {
            self.block.push(PAGES);
            put_varint(&mut self.block, about.pages);
            self.record()?;
        }
        Ok(())
    }

    fn record(&mut self) -> io::Result<()> {
        self.in_block += 1;
        self.total += 1;
        if self.in_block >= BLOCK_RECORDS { self.end_block() } else { Ok(()) }
    }

    /// Adds an event at a time (nanoseconds; kept to the microsecond).
    pub fn push(&mut self, time: u64, event: TraceEvent) -> io::Result<()> {
        encode(&mut self.block, &mut self.last, time, event);
        self.record()
    }

    /// Records so far.
    pub fn total(&self) -> u64 {
        self.total
    }

    fn end_block(&mut self) -> io::Result<()> {
        let body = if self.in_block == 0 { Vec::new() } else { zstd::bulk::compress(&self.block, LEVEL)? };
        let mut header = Vec::with_capacity(BLOCK_HEADER);
        header.extend_from_slice(&BLOCK);
        header.extend_from_slice(&(body.len() as u32).to_le_bytes());
        header.extend_from_slice(&(self.block.len() as u32).to_le_bytes());
        header.extend_from_slice(&self.in_block.to_le_bytes());
        header.extend_from_slice(&self.total.to_le_bytes());
        header.extend_from_slice(&crc32c::crc32c(&body).to_le_bytes());
        header.extend_from_slice(&crc32c::crc32c(&header).to_le_bytes());
        self.out.write_all(&header)?;
        self.out.write_all(&body)?;
        self.block.clear();
        (self.in_block, self.last) = (0, Last::default());
        Ok(())
    }

    /// Writes what is left and the end block. A trace without it counts as cut short.
    pub fn finish(mut self) -> io::Result<W> {
        if self.in_block > 0 {
            self.end_block()?;
        }
        self.end_block()?;
        self.out.flush()?;
        Ok(self.out)
    }
}

/// State of reading.
pub(super) struct Blocks {
    version: u16,
    page_size: u32,
    about: About,
    raw: Vec<u8>,
    at: usize,
    left: u32,
    last: Last,
    total: u64,
    block_at: u64,
    ended: bool,
}

impl Blocks {
    pub(super) fn begin(source: &mut Source) -> Result<Blocks, TraceError> {
        let mut header = [0; HEADER];
        let start = Position::Byte(0);
        if !source.fill(&mut header)? || header[..8] != MAGIC {
            return Err(source.damaged(start, "no header of this format".into()));
        }
        if u32_at(&header, 28) != crc32c::crc32c(&header[..28]) {
            return Err(source.damaged(start, "the header's checksum does not fit".into()));
        }
        let found = u16_at(&header, 8);
        if found > VERSION {
            return Err(TraceError::Newer { name: source.name.clone(), found, known: VERSION });
        }
        Ok(Blocks {
            version: found,
            page_size: u32_at(&header, 12),
            about: About::default(),
            raw: Vec::new(),
            at: 0,
            left: 0,
            last: Last::default(),
            total: 0,
            block_at: 0,
            ended: false,
        })
    }

    pub(super) fn page_size(&self) -> u32 {
        self.page_size
    }

    /// What was said of the database so far.
    pub(super) fn about(&self) -> &About {
        &self.about
    }

    pub(super) fn version(&self) -> u16 {
        self.version
    }

    pub(super) fn next(&mut self, source: &mut Source) -> Result<Option<Record>, TraceError> {
        loop {
            while self.left == 0 {
                if self.at < self.raw.len() {
                    return Err(self.damaged(source, "bytes after the last record of a block"));
                }
                if self.ended || !self.next_block(source)? {
                    return Ok(None);
                }
            }
            self.left -= 1;
            let mut rest = &self.raw[self.at..];
            let said = decode(&mut rest, self.version, &mut self.last, &mut self.about);
            self.at = self.raw.len() - rest.len();
            match said {
                Some(Said::Event(record)) => return Ok(Some(record)),
                Some(Said::Of) => {}
                None => return Err(self.damaged(source, "a record that cannot be decoded")),
            }
        }
    }

    fn damaged(&self, source: &Source, why: &str) -> TraceError {
        source.damaged(Position::Byte(self.block_at), format!("block with damage: {why}"))
    }

    /// False at the end block.
    fn next_block(&mut self, source: &mut Source) -> Result<bool, TraceError> {
        self.block_at = source.at();
        let mut header = [0; BLOCK_HEADER];
        if !source.fill(&mut header)? {
            let why = format!("the trace ends after {} records without its end block: it was cut short", self.total);
            return Err(source.damaged(Position::Byte(self.block_at), why));
        }
        if header[..4] != BLOCK || u32_at(&header, 28) != crc32c::crc32c(&header[..28]) {
            return Err(self.damaged(source, "the block header's checksum does not fit"));
        }
        let (packed, raw, records) = (u32_at(&header, 4), u32_at(&header, 8), u32_at(&header, 12));
        self.total += u64::from(records);
        if u64_at(&header, 16) != self.total {
            return Err(self.damaged(source, "records are missing before it"));
        }
        if packed > BLOCK_MOST || raw > BLOCK_MOST || records > raw {
            return Err(self.damaged(source, "sizes that no block has"));
        }
        if records == 0 {
            self.ended = true;
            return if source.fill(&mut [0])? {
                Err(self.damaged(source, "bytes after the end block"))
            } else {
                Ok(false)
            };
        }
        let mut body = vec![0; packed as usize];
        if !source.fill(&mut body)? || crc32c::crc32c(&body) != u32_at(&header, 24) {
            return Err(self.damaged(source, "the checksum does not fit"));
        }
        self.raw = zstd::bulk::decompress(&body, raw as usize)
            .ok()
            .filter(|bytes| bytes.len() == raw as usize)
            .ok_or_else(|| self.damaged(source, "the compressed data cannot be read"))?;
        (self.at, self.left, self.last) = (0, records, Last::default());
        Ok(true)
    }
}
