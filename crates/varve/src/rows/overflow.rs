//! Overflow values: values too long for a leaf, in chains of pages.
//!
//! Layout of an overflow page after the page header: 0 u64 value id, 8 u32 number of the page in its chain, 12 u16
//! bytes of the value in this page, 14 u16 *run*, 16 eight u64: the next eight pages of the chain, 80 the bytes. After
//! the eighth the chain goes on with its neighbours, as many as the run says. (What is named beyond the chain's end is
//! anything.) A reader reads ahead what it sees; whoever frees a chain reads one page for each stretch.
//!
//! Chains are read without a latch on the leaf. Each page carries the value's id (the log's end when the value was
//! written: a page freed and used again has a greater one), its number and its keyspace, so that a page that was reused
//! meanwhile is told from the value's own.
//!
//! Invariants: a value has as many pages as its length needs, at least one, all but the last full; a reader goes on in
//! its range with each page.

use super::{Damage, corrupt, u16_at, u64_at};
use crate::buffer::PageRead;
use crate::error::{Error, Result};
use crate::page::PageEdit;
use crate::page::{Group, PageNo};
use crate::space::Core;
use crate::space::direct::DirectPages;
use std::ops::Range;
use varve_device::Mistake;
use varve_volume::page::{self, HEADER};
use varve_volume::{KeyspaceId, PageId};

/// Page type of an overflow page.
pub(crate) const KIND_OVERFLOW: u8 = 4;

const ID: usize = HEADER;
const NUMBER: usize = HEADER + 8;
const LENGTH: usize = HEADER + 12;
const RUN: usize = HEADER + 14;
const NEXT: usize = HEADER + 16;
/// Pages ahead that a page names, without its run.
const AHEAD: usize = 8;
const DATA: usize = NEXT + 8 * AHEAD;

const _: () = assert!(NUMBER == ID + 8 && LENGTH == NUMBER + 4 && RUN == LENGTH + 2 && NEXT == RUN + 2);
const _: () = assert!(DATA - HEADER == 80 && OverflowRef::LEN == 8 + 8 + 8, "as `docs/format.md` has it");

/// Where a long value lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OverflowRef {
    /// First page of the chain.
    pub head: PageId,
    /// Length of the value in bytes.
    pub len: u64,
    /// The value's id, carried by each of its pages.
    pub id: u64,
}

impl OverflowRef {
    /// Bytes of an encoded reference.
    pub(crate) const LEN: usize = 24;

    /// As stored in a leaf cell.
    pub(crate) fn encode(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[..8].copy_from_slice(&self.head.0.to_le_bytes());
        b[8..16].copy_from_slice(&self.len.to_le_bytes());
        b[16..].copy_from_slice(&self.id.to_le_bytes());
        b
    }

    /// None when the bytes are no reference.
    pub(crate) fn decode(b: &[u8]) -> Option<OverflowRef> {
        (b.len() == Self::LEN).then(|| OverflowRef { head: PageId(u64_at(b, 0)), len: u64_at(b, 8), id: u64_at(b, 16) })
    }
}

/// Bytes of a value in one page of which `usable` bytes may be used after the header.
pub(crate) fn room(usable: usize) -> usize {
    usable + HEADER - DATA
}

/// Bytes of a value in one page.
fn capacity(core: &Core, keyspace: KeyspaceId) -> usize {
    room(core.usable(keyspace))
}

/// Pages that a value of `len` bytes takes.
pub(crate) fn pages_for(core: &Core, keyspace: KeyspaceId, len: u64) -> usize {
    (len.div_ceil(capacity(core, keyspace) as u64) as usize).max(1)
}

/// Takes the reserved pages of a value (as many as [`pages_for`] says) into `group`, not changed yet: what can fail of
/// writing the value. Every page stays latched until the group's commit, and is logged whole: the length of values is
/// bounded by what a group may hold.
pub(crate) fn place<'c>(
    core: &'c Core,
    group: &mut Group<'c>,
    keyspace: KeyspaceId,
    pages: &[PageId],
) -> Result<Vec<PageNo>> {
    pages.iter().map(|id| Ok(group.add_new(core.pool.create(*id, keyspace)?))).collect()
}

/// Writes a value into pages that were [`place`]d; the group also marks them as allocated.
pub(crate) fn fill_placed(
    core: &Core,
    group: &mut Group<'_>,
    keyspace: KeyspaceId,
    value: &[u8],
    pages: &[PageId],
    placed: &[PageNo],
) -> OverflowRef {
    let r = OverflowRef { head: pages[0], len: value.len() as u64, id: core.log.end_lsn() };
    let room = capacity(core, keyspace);
    assert_eq!((pages.len(), placed.len()), (pages_for(core, keyspace, r.len), pages.len()));
    for (i, n) in placed.iter().enumerate() {
        let part = &value[(i * room).min(value.len())..((i + 1) * room).min(value.len())];
        // A page just made is zero beyond what is written.
        let mut page = group.page(*n);
        page.set_kind(KIND_OVERFLOW);
        page.write(HEADER, &head(r.id, i, part.len(), &pages[i + 1..]));
        page.write(DATA, part);
    }
    r
}

/// Pages after it that a direct page names: more are not asked for ahead.
fn named_ahead(core: &Core) -> usize {
    AHEAD.max(core.pool.read_ahead_pages())
}

/// Pages that [`write_direct`] sets aside at most beyond those of the value.
pub(crate) fn spare_pages(core: &Core) -> usize {
    let ahead = named_ahead(core);
    ahead + core.pool.direct_pages().max(ahead + 1)
}

/// Writes a value to direct pages. `read` puts its next bytes into what it is given and says how many they are; none:
/// that was all.
pub(crate) fn write_direct(
    core: &Core,
    pages: &mut DirectPages,
    keyspace: KeyspaceId,
    mut read: impl FnMut(&mut [u8]) -> Result<usize>,
) -> Result<OverflowRef> {
    let mut r = OverflowRef { head: pages.next(0)?, len: 0, id: core.log.end_lsn() };
    let (mut part, mut rest) = (vec![0; capacity(core, keyspace)], Vec::new());
    let ahead = named_ahead(core);
    for number in 0.. {
        let mut len = 0;
        while len < part.len() {
            match read(&mut part[len..])? {
                0 => break,
                n => len += n,
            }
            assert!(len <= part.len(), "no more is read than was asked for");
        }
        if len == 0 && number > 0 {
            break;
        }
        pages.next(ahead)?;
        rest.clear();
        rest.extend(pages.set_aside().skip(1).take(ahead));
        let head = head(r.id, number, len, &rest);
        pages.fill(|b| {
            page::set_kind(b, KIND_OVERFLOW);
            b[HEADER..DATA].copy_from_slice(&head);
            b[DATA..DATA + len].copy_from_slice(&part[..len]);
            b[DATA + len..].fill(0);
        })?;
        r.len += len as u64;
        if len < part.len() {
            break;
        }
    }
    Ok(r)
}

/// What comes before the value in page `number` of a chain, which has `len` bytes of it; `rest` are the pages after it.
fn head(id: u64, number: usize, len: usize, rest: &[PageId]) -> [u8; DATA - HEADER] {
    assert!(len <= usize::from(u16::MAX), "a page's part of a value");
    let (named, beyond) = rest.split_at(rest.len().min(AHEAD));
    let follows = |(i, page): &(usize, &PageId)| page.0 == named[AHEAD - 1].0 + 1 + *i as u64;
    let run = beyond.iter().enumerate().take(u16::MAX.into()).take_while(follows).count();
    let mut b = [0; DATA - HEADER];
    let mut put = |at: usize, bytes: &[u8]| b[at - HEADER..at - HEADER + bytes.len()].copy_from_slice(bytes);
    put(ID, &id.to_le_bytes());
    put(NUMBER, &(number as u32).to_le_bytes());
    put(LENGTH, &(len as u16).to_le_bytes());
    put(RUN, &(run as u16).to_le_bytes());
    named.iter().zip((NEXT..).step_by(8)).for_each(|(next, at)| put(at, &next.0.to_le_bytes()));
    b
}

/// Page `number` of a value, under its shared latch, checked to be that.
fn open<'c>(core: &'c Core, keyspace: KeyspaceId, r: &OverflowRef, id: PageId, number: usize) -> Result<PageRead<'c>> {
    if id.0 >= core.store.pages() {
        return Err(corrupt(r.head, keyspace, Damage("overflow chain leads to a page that does not exist")));
    }
    let page = core.pool.read(id)?;
    if part(page.bytes(), keyspace, r, number, capacity(core, keyspace)).is_some() {
        Ok(page)
    } else {
        Err(corrupt(id, keyspace, Damage("not the page of the overflow value that belongs here")))
    }
}

/// The bytes of a value in page `number` of its chain, and the page after it; `None` when the page is not that.
pub(crate) fn part<'b>(
    b: &'b [u8],
    keyspace: KeyspaceId,
    r: &OverflowRef,
    number: usize,
    room: usize,
) -> Option<(&'b [u8], PageId)> {
    let expected = (r.len - (number * room) as u64).min(room as u64);
    let right = page::kind(b) == KIND_OVERFLOW
        && page::keyspace(b) == keyspace
        && u64_at(b, ID) == r.id
        && b[NUMBER..NUMBER + 4] == (number as u32).to_le_bytes()
        && u64::from(u16_at(b, LENGTH)) == expected;
    right.then(|| (&b[DATA..DATA + expected as usize], PageId(u64_at(b, NEXT))))
}

/// The pages of a chain that one of them names.
struct Ahead {
    named: [u64; AHEAD],
    /// How many there are.
    len: usize,
}

impl Ahead {
    /// What page `number` says of a chain of `pages`.
    fn of(bytes: &[u8], number: usize, pages: usize) -> Ahead {
        debug_assert!(number < pages, "the pages of a value are numbered from 0 on");
        let named = std::array::from_fn(|i| u64_at(bytes, NEXT + 8 * i));
        Ahead { named, len: (AHEAD + usize::from(u16_at(bytes, RUN))).min(pages - 1 - number) }
    }

    /// The page so many pages after the one next to the page that names them. It may lie beyond the store.
    fn page(&self, i: usize) -> PageId {
        let near = i.min(AHEAD - 1);
        PageId(self.named[near].saturating_add((i - near) as u64))
    }

    fn iter(&self) -> impl Iterator<Item = PageId> {
        (0..self.len).map(|i| self.page(i))
    }
}

/// Reads a part of a value, page by page. No latch may be held when it is used.
///
/// An error of kind [`Error::Corrupt`] may also mean that the value was freed meanwhile: a reader that holds no lock on
/// the key looks whether the leaf still has the same reference.
pub(crate) struct Reader {
    value: OverflowRef,
    range: Range<u64>,
    /// The next page, and its number.
    at: (PageId, usize),
    /// Pages asked for ahead of reading them.
    asked: usize,
}

impl Reader {
    /// Will read bytes `range` of a value.
    pub(crate) fn new(core: &Core, keyspace: KeyspaceId, value: OverflowRef, range: Range<u64>) -> Result<Reader> {
        // A damaged length must not make us ask for memory that the value cannot have.
        if value.len > core.store.pages().saturating_mul(capacity(core, keyspace) as u64) {
            return Err(corrupt(value.head, keyspace, Damage("overflow value is longer than the store")));
        }
        let range = range.start.min(value.len)..range.end.min(value.len);
        Ok(Reader { value, range, at: (value.head, 0), asked: 0 })
    }

    /// Bytes still to be read.
    pub(crate) fn left(&self) -> u64 {
        self.range.end.saturating_sub(self.range.start)
    }

    /// Appends what the next page has of the range to `into`.
    pub(crate) fn step(&mut self, core: &Core, keyspace: KeyspaceId, into: &mut Vec<u8>) -> Result<()> {
        assert!(self.left() > 0, "there is something left to read");
        let room = capacity(core, keyspace) as u64;
        let (pages, last) = (pages_for(core, keyspace, self.value.len), ((self.range.end - 1) / room) as usize);
        let (id, number) = self.at;
        let ahead = {
            let page = open(core, keyspace, &self.value, id, number)?;
            let start = number as u64 * room;
            let (from, to) = (self.range.start.max(start), self.range.end.min(start + room));
            if from < to {
                into.extend_from_slice(&page.bytes()[DATA + (from - start) as usize..DATA + (to - start) as usize]);
                self.range.start = to;
            }
            if number >= last {
                return Ok(());
            }
            Ahead::of(page.bytes(), number, pages)
        };
        // Pages that lie before the range are passed over.
        let first = (self.range.start / room) as usize;
        let step = first.saturating_sub(number).clamp(1, ahead.len);
        assert!(number + step <= last, "the next page is one of the range's");
        self.at = (ahead.page(step - 1), number + step);
        // Asked for before those asked for last are used up.
        let most = core.pool.read_ahead_pages();
        let (asked, known) = (self.asked.max(number), (number + ahead.len.min(most)).min(last));
        if known > asked && (known == last || known >= asked + most.min(ahead.len).div_ceil(2)) {
            let wanted = (asked..known).map(|i| ahead.page(i - number)).filter(|page| page.0 < core.store.pages());
            core.pool.prefetch(&wanted.collect::<Vec<_>>());
            self.asked = known;
        }
        Ok(())
    }
}

/// Appends bytes `range` of a value to `into`. See [`Reader`].
pub(crate) fn read(
    core: &Core,
    keyspace: KeyspaceId,
    r: &OverflowRef,
    range: Range<u64>,
    into: &mut Vec<u8>,
) -> Result<()> {
    let mut reader = Reader::new(core, keyspace, *r, range)?;
    into.reserve(reader.left() as usize);
    while reader.left() > 0 {
        reader.step(core, keyspace, into)?;
    }
    Ok(())
}

/// Every page of a value, to be freed. No latch may be held.
pub(crate) fn pages(core: &Core, keyspace: KeyspaceId, r: &OverflowRef) -> Result<Vec<PageId>> {
    if core.faults().has(Mistake::LongValueLeaks) {
        return Ok(Vec::new());
    }
    if r.len > core.store.pages().saturating_mul(capacity(core, keyspace) as u64) {
        return Err(corrupt(r.head, keyspace, Damage("overflow value is longer than the store")));
    }
    let count = pages_for(core, keyspace, r.len);
    let mut ids = vec![r.head];
    while ids.len() < count {
        let number = ids.len() - 1;
        let page = open(core, keyspace, r, ids[number], number)?;
        ids.extend(Ahead::of(page.bytes(), number, count).iter());
    }
    if ids.iter().any(|id| id.0 >= core.store.pages()) {
        return Err(corrupt(r.head, keyspace, Damage("overflow chain leads to a page that does not exist")));
    }
    Ok(ids)
}

/// Reads a whole chain for a check; hands each page to `visit`.
pub(crate) fn walk(
    core: &Core,
    keyspace: KeyspaceId,
    r: &OverflowRef,
    mut visit: impl FnMut(PageId),
) -> Result<(), (PageId, Error)> {
    let ids = pages(core, keyspace, r).map_err(|e| (r.head, e))?;
    for (number, id) in ids.iter().enumerate() {
        visit(*id);
        let page = open(core, keyspace, r, *id, number).map_err(|e| (*id, e))?;
        let ahead = Ahead::of(page.bytes(), number, ids.len());
        if !ahead.iter().eq(ids[number + 1..].iter().copied().take(ahead.len)) {
            return Err((*id, corrupt(*id, keyspace, Damage("overflow pages disagree about their chain"))));
        }
    }
    Ok(())
}
