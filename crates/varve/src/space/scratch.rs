//! Scratch: records that need more room than there is memory, on pages of the data volume that belong to nobody
//! durable.
//!
//! The pages are set aside in memory, written past the log and never linked: no log record and no bit of the map says
//! that they are in use, so after a crash they are free. They are direct pages (`direct.rs`) that nobody ever links, so
//! what is said there of pages used again and of backups holds for them.
//!
//! Records are appended by a [`Writer`], one behind the other over the pages. [`Writer::finish`] makes a [`Scratch`] of
//! them, which is only read: at a place, or in order. Dropped, either gives its pages back.
//!
//! Layout of a scratch page after the page header: 0 u64 number of the scratch, 8 u64 number of the page in it, 16 the
//! records. A record: u32 its length + 1, then its bytes, which may go on in the next page. The length lies within a
//! page; 0 in its place, or less than four bytes, say that the rest of the page is empty.
//!
//! Reads go past the pool, and verify the checksum and that the page is this scratch's: what was there before, or was
//! lost on its way to the device, is an error that names the page.
//!
//! Invariants: a scratch page has the type [`KIND_SCRATCH`] and belongs to no keyspace; the number of a scratch is
//! never used twice, since the numbers of each opening begin at the time of it, in nanoseconds.

use super::direct::DirectPages;
use super::{Core, SPACE_KEYSPACE};
use crate::error::{Error, Result};
use std::sync::Arc;
use varve_device::AlignedBuf;
use varve_rt::atomic::{AtomicU64, Ordering::Relaxed};
use varve_volume::PageId;
use varve_volume::page::{self, HEADER};

/// Page type of a scratch page.
pub(crate) const KIND_SCRATCH: u8 = 8;

const ID: usize = HEADER;
const NUMBER: usize = HEADER + 8;
const DATA: usize = HEADER + 16;
/// Bytes of a record's length.
const LENGTH: usize = 4;
/// Most bytes that are written, and read ahead by a reader, at a time.
const BATCH_BYTES: usize = 128 * 1024;

const _: () = assert!(NUMBER == ID + 8 && DATA == NUMBER + 8, "as `docs/format.md` has it");

/// What scratch pages did since the database was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScratchStats {
    /// Pages in use now.
    pub pages: u64,
    /// Most pages ever in use.
    pub peak: u64,
    /// Pages written.
    pub written: u64,
    /// Pages read.
    pub read: u64,
}

/// Counters of [`ScratchStats`].
#[derive(Default)]
pub(super) struct Counters {
    made: AtomicU64,
    pages: AtomicU64,
    peak: AtomicU64,
    written: AtomicU64,
    read: AtomicU64,
}

impl Counters {
    /// Those of a database that is being opened.
    pub(super) fn begun() -> Counters {
        Counters { made: AtomicU64::new(varve_rt::unix_time()), ..Counters::default() }
    }
}

impl super::Space {
    /// What scratch pages did so far.
    pub(crate) fn scratch_stats(&self) -> ScratchStats {
        let c = &self.scratch;
        let get = |n: &AtomicU64| n.load(Relaxed);
        ScratchStats { pages: get(&c.pages), peak: get(&c.peak), written: get(&c.written), read: get(&c.read) }
    }
}

/// Bytes of a scratch that lie in one page.
fn room(core: &Core) -> usize {
    core.usable(SPACE_KEYSPACE) + HEADER - DATA
}

/// Pages with records; counted while they are in use.
struct Pages {
    core: Arc<Core>,
    direct: DirectPages,
    id: u64,
    counted: u64,
}

impl Pages {
    fn count(&mut self) {
        self.counted += 1;
        let c = &self.core.space.scratch;
        let now = c.pages.fetch_add(1, Relaxed) + 1;
        c.peak.fetch_max(now, Relaxed);
        c.written.fetch_add(1, Relaxed);
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let before = self.core.space.scratch.pages.fetch_sub(self.counted, Relaxed);
        assert!(before >= self.counted, "scratch pages that go were counted");
    }
}

/// Appends records to new scratch pages.
pub(crate) struct Writer {
    pages: Pages,
    /// Bytes for the page that is not filled yet.
    tail: Vec<u8>,
    /// Place of the first byte of `tail`.
    base: u64,
    room: usize,
}

impl Writer {
    /// Nothing so far. Takes no page before there is one to fill, and buffers of at most 256 KB.
    pub(crate) fn new(core: &Arc<Core>) -> Writer {
        let direct = DirectPages::new(core, SPACE_KEYSPACE).written_inline(BATCH_BYTES);
        let id = core.space.scratch.made.fetch_add(1, Relaxed) + 1;
        assert!(id > 0, "a scratch has a number");
        let pages = Pages { core: core.clone(), direct, id, counted: 0 };
        Writer { pages, tail: Vec::new(), base: 0, room: room(core) }
    }

    /// Appends a record, and gives its place, greater than those of all before. No latch may be held.
    ///
    /// Errors: the device is full (`NoSpace`) or failed. The writer is of no use any more then; dropped, it gives its
    /// pages back.
    pub(crate) fn append(&mut self, record: &[u8]) -> Result<u64> {
        if self.room - self.tail.len() < LENGTH {
            self.end_page()?;
        }
        let place = self.end();
        let length = u32::try_from(record.len()).ok().and_then(|len| len.checked_add(1));
        let Some(length) = length else {
            return Err(Error::Invalid(format!("a record of {} bytes is too long for scratch pages", record.len())));
        };
        self.tail.extend_from_slice(&length.to_le_bytes());
        let mut rest = record;
        loop {
            let (part, more) = rest.split_at(rest.len().min(self.room - self.tail.len()));
            self.tail.extend_from_slice(part);
            rest = more;
            if rest.is_empty() {
                return Ok(place);
            }
            self.end_page()?;
        }
    }

    /// Past the last record.
    pub(crate) fn end(&self) -> u64 {
        self.base + self.tail.len() as u64
    }

    /// Fills a page with what there is for it.
    fn end_page(&mut self) -> Result<()> {
        assert!(self.tail.len() <= self.room, "what is for a page fits");
        let (id, number) = (self.pages.id, self.base / self.room as u64);
        let tail = &self.tail;
        self.pages.direct.fill(|bytes| {
            page::set_kind(bytes, KIND_SCRATCH);
            bytes[ID..NUMBER].copy_from_slice(&id.to_le_bytes());
            bytes[NUMBER..DATA].copy_from_slice(&number.to_le_bytes());
            bytes[DATA..][..tail.len()].copy_from_slice(tail);
            bytes[DATA + tail.len()..].fill(0);
        })?;
        self.pages.count();
        self.tail.clear();
        self.base += self.room as u64;
        Ok(())
    }

    /// No more records come: all are written, and can be read. (They need not survive a power cut.) Errors as for
    /// [`Writer::append`].
    pub(crate) fn finish(mut self) -> Result<Scratch> {
        assert!(self.base.is_multiple_of(self.room as u64), "pages are filled one after the other");
        if !self.tail.is_empty() {
            self.end_page()?;
        }
        self.pages.direct.finish()?;
        Ok(Scratch { room: self.room, pages: self.pages })
    }
}

/// Records on scratch pages; dropped, the pages are free. Read by any number of threads.
pub(crate) struct Scratch {
    pages: Pages,
    room: usize,
}

impl Scratch {
    /// Pages that it has.
    pub(crate) fn pages(&self) -> usize {
        self.pages.direct.written_len()
    }

    /// Their ids, in order.
    #[cfg(test)]
    pub(crate) fn page_ids(&self) -> impl Iterator<Item = PageId> + '_ {
        self.pages.direct.written_from(0)
    }

    /// Bytes of memory that it takes beside itself.
    pub(crate) fn memory(&self) -> usize {
        self.pages.direct.memory()
    }

    /// Replaces what is in `into` by the record at a place that [`Writer::append`] gave. Reads the pages on which it
    /// lies.
    #[cfg_attr(not(test), allow(dead_code, reason = "for old values, which are read one at a time"))]
    pub(crate) fn read(&self, place: u64, into: &mut Vec<u8>) -> Result<()> {
        let mut reader = self.reader_from(place, 1);
        match reader.next()? {
            Some((_, record)) => {
                into.clear();
                into.extend_from_slice(record);
                Ok(())
            }
            None => Err(Error::Invalid(format!("no record of the scratch lies at {place}"))),
        }
    }

    /// The records in order from a place on, read `bytes` at a time (at least a page, at most 128 KB).
    pub(crate) fn reader_from(&self, place: u64, bytes: usize) -> Reader<'_> {
        debug_assert!(place <= (self.pages() * self.room) as u64, "a record lies within its scratch");
        let ahead = (bytes.min(BATCH_BYTES) / self.pages.core.page_size()).max(1);
        Reader { scratch: self, at: place, ahead, buf: None, first: 0, loaded: 0, record: Vec::new() }
    }

    /// Reads neighbouring pages, from number `first` on, into `buf`; how many.
    fn load(&self, first: usize, most: usize, buf: &mut AlignedBuf) -> Result<usize> {
        let core = &self.pages.core;
        let size = core.page_size();
        let ids: Vec<PageId> = self.pages.direct.written_from(first).take(most).collect();
        assert!(ids.len() * size <= buf.len(), "the pages lie in the buffer");
        core.pool.read_direct(&ids, buf)?;
        core.space.scratch.read.fetch_add(ids.len() as u64, Relaxed);
        for (i, id) in ids.iter().enumerate() {
            self.check(*id, (first + i) as u64, &buf[i * size..][..size])?;
        }
        Ok(ids.len())
    }

    /// Whether the page is the one of this number. (Its checksum was verified by the store.)
    fn check(&self, id: PageId, number: u64, bytes: &[u8]) -> Result<()> {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        if page::kind(bytes) == KIND_SCRATCH && word(ID) == self.pages.id && word(NUMBER) == number {
            return Ok(());
        }
        Err(Error::corrupt_page(
            id,
            Some(SPACE_KEYSPACE),
            "not the scratch page that was written there: a write was lost",
        ))
    }
}

/// Reads records in order.
pub(crate) struct Reader<'s> {
    scratch: &'s Scratch,
    at: u64,
    /// Pages that are read at a time.
    ahead: usize,
    buf: Option<AlignedBuf>,
    /// Number of the first page in `buf`, and how many there are.
    first: usize,
    loaded: usize,
    record: Vec<u8>,
}

impl Reader<'_> {
    /// The bytes from a place to the end of its page; none past the last page.
    fn rest_of_page(&mut self, at: u64) -> Result<Option<&[u8]>> {
        let (number, within) = ((at / self.scratch.room as u64) as usize, (at % self.scratch.room as u64) as usize);
        if number >= self.scratch.pages() {
            return Ok(None);
        }
        let size = self.scratch.pages.core.page_size();
        if !(self.first..self.first + self.loaded).contains(&number) {
            let buf = self.buf.get_or_insert_with(|| AlignedBuf::new(self.ahead * size));
            self.loaded = 0;
            self.loaded = self.scratch.load(number, self.ahead, buf)?;
            self.first = number;
        }
        let buf = self.buf.as_ref().expect("loaded above");
        Ok(Some(&buf[(number - self.first) * size..][DATA + within..DATA + self.scratch.room]))
    }

    /// Lends the next record with its place; none behind the last.
    #[allow(clippy::should_implement_trait)] // An iterator cannot lend.
    pub(crate) fn next(&mut self) -> Result<Option<(u64, &[u8])>> {
        let room = self.scratch.room as u64;
        let (place, length) = loop {
            let at = self.at;
            let Some(rest) = self.rest_of_page(at)? else { return Ok(None) };
            match rest.first_chunk::<LENGTH>().map(|length| u32::from_le_bytes(*length)) {
                Some(length) if length > 0 => break (at, length as usize - 1),
                _ => self.at = (at / room + 1) * room,
            }
        };
        let mut record = std::mem::take(&mut self.record);
        record.clear();
        self.at = place + LENGTH as u64;
        while record.len() < length {
            let at = self.at;
            let Some(rest) = self.rest_of_page(at)? else {
                return Err(Error::Invalid(format!("the scratch ends within the record at {place}")));
            };
            let part = &rest[..rest.len().min(length - record.len())];
            record.extend_from_slice(part);
            self.at += part.len() as u64;
        }
        self.record = record;
        Ok(Some((place, &self.record)))
    }
}
