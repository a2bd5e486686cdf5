//! Where marks lie: each space-map page may name an *index* page, which is changed by log groups and names the two
//! places of each mark page of the pages that the map covers. Mark pages themselves are written without the log.
//! Layout: `docs/format.md`.
//!
//! Invariants: a block has both of its pages, or none; nothing is written over the page that was synced last; a page is
//! named by an index only once it is whole on media.

use super::{LostWrites, OURS, UNKNOWN, begin};
use crate::buffer::Pool;
use crate::error::{Error, Result};
use crate::page::PageEdit;
use crate::page::{Group, PageNo};
use crate::space::Core;
use crate::space::{KIND_SPACE, Reserved, SPACE_KEYSPACE};
use crate::wal::GroupKind;
use std::collections::{BTreeMap, BTreeSet};
use varve_device::{AlignedBuf, Mistake};
use varve_rt::atomic::Ordering;
use varve_volume::page::{self, HEADER};
use varve_volume::{
    Lsn, PageId, PageStore, PageUse, PageWatch, ReadWhy, VolumeError, WriteWhy, read_pages, write_pages,
};

/// Page type of an index page.
const KIND_INDEX: u8 = 6;
/// Page type of a mark page.
const KIND_MARKS: u8 = 7;

/// In an index: the space-map page that names it, then the places.
const ENTRIES: usize = HEADER + 8;
/// Bytes of a place: both pages and the serial number.
const ENTRY: usize = 24;

/// What is added to the sequence where a copy could not be read: more writes than there ever are.
const UNREAD: u64 = 1 << 40;

/// In a mark page: number of the block, sequence, serial number, identity, then the marks.
const MARKS: usize = HEADER + 32;

const _: () = assert!(ENTRY == 3 * size_of::<u64>() && ENTRIES.is_multiple_of(8) && MARKS.is_multiple_of(8));

/// Marks that a page holds.
pub(super) fn marks_per_page(store: &dyn PageStore) -> u64 {
    let usable = store.usable_bytes(SPACE_KEYSPACE).min(store.page_size() - HEADER);
    ((usable + HEADER - MARKS) / 2) as u64
}

/// What one of the two pages of a block holds.
struct Copy {
    sequence: u64,
    /// Which of the two it is.
    at: usize,
    marks: Box<[u16]>,
}

/// The two pages of a block of marks.
pub(super) struct MarkPages {
    pages: [PageId; 2],
    /// LSN at which the block got its pages: what lies in them from before bears another one.
    serial: Lsn,
    /// Of the newest version written or found.
    pub sequence: u64,
    /// Which of the two was synced last.
    synced: usize,
    /// Whether they were looked at: `sequence` and `synced` mean something.
    known: bool,
}

impl MarkPages {
    fn new(pages: [PageId; 2], serial: Lsn, known: bool) -> MarkPages {
        MarkPages { pages, serial, sequence: 0, synced: 0, known }
    }

    fn encode(&self) -> [u8; ENTRY] {
        let mut bytes = [0; ENTRY];
        for (at, n) in [self.pages[0].0, self.pages[1].0, self.serial].into_iter().enumerate() {
            bytes[8 * at..8 * at + 8].copy_from_slice(&n.to_le_bytes());
        }
        bytes
    }

    /// None where there is no place.
    fn decode(bytes: &[u8]) -> Option<MarkPages> {
        let n = |i: usize| u64_at(bytes, 8 * i);
        (n(0) != 0).then(|| MarkPages::new([PageId(n(0)), PageId(n(1))], n(2), false))
    }

    /// The marks of block `n`, of the newer whole one of the two pages; unknown ones if neither is, and if one cannot
    /// be read: it may be the newer one.
    pub fn read(&mut self, map: &LostWrites, n: u64) -> Box<[u16]> {
        self.look(map, n).unwrap_or_else(|_| map.unknown())
    }

    /// The same; an error if one of the pages cannot be read.
    fn look(&mut self, map: &LostWrites, n: u64) -> Result<Box<[u16]>, VolumeError> {
        let mut newest = Copy { sequence: 0, at: 0, marks: map.unknown() };
        for at in 0..self.pages.len() {
            let found = self.read_copy(map, n, at)?;
            newest = found.into_iter().chain([newest]).max_by_key(|copy| copy.sequence).expect("at least one");
        }
        if !self.known {
            (self.sequence, self.synced, self.known) = (newest.sequence, newest.at, true);
        }
        // A write of the marks themselves may be lost: then nothing is known.
        Ok(if newest.sequence == self.sequence { newest.marks } else { map.unknown() })
    }

    /// One of the two pages, if it is whole and of this block.
    fn read_copy(&self, map: &LostWrites, n: u64, at: usize) -> Result<Option<Copy>, VolumeError> {
        let (id, mut buf) = (self.pages[at], AlignedBuf::new(map.store.page_size()));
        if id.0 >= map.store.pages() {
            return Ok(None);
        }
        match read_pages(&*map.store, id, ReadWhy::Demand, &mut buf).swap_remove(0) {
            Ok(_) => {}
            // Torn, as the power went while it was written.
            Err(VolumeError::Damaged { .. }) => return Ok(None),
            Err(e) => return Err(e),
        }
        let head = [0, 16, 24].map(|field| u64_at(&buf, HEADER + field));
        if page::kind(&buf) != KIND_MARKS || head != [n, self.serial, map.identity] {
            return Ok(None);
        }
        let marks = buf[MARKS..][..2 * map.per_block as usize].as_chunks::<2>().0;
        let marks = marks.iter().map(|mark| u16::from_le_bytes(*mark)).collect();
        Ok(Some(Copy { sequence: u64_at(&buf, HEADER + 8), at, marks }))
    }

    /// Whether nobody knows which of the two pages is the newer one, since one cannot be read: if the power went while
    /// the newer one is overwritten, the older one would be believed.
    pub fn is_doubtful(&mut self, map: &LostWrites, n: u64) -> bool {
        !self.known && self.look(map, n).is_err()
    }

    /// The marks are not believed just now, so that it does not matter which of the pages is the newer one: the next
    /// write goes to one that cannot be read, with a number above whatever the two hold.
    pub fn end_doubt(&mut self, map: &LostWrites, n: u64) {
        let readable = (0..self.pages.len()).find_map(|at| self.read_copy(map, n, at).ok().map(|copy| (at, copy)));
        let (synced, copy) = readable.unwrap_or((0, None));
        self.sequence = copy.map_or(0, |copy| copy.sequence) + UNREAD;
        (self.synced, self.known) = (synced, true);
    }

    /// Writes the marks of block `n` over those that were not synced last.
    pub fn write(&mut self, map: &LostWrites, n: u64, marks: &[u16]) -> Result<(), VolumeError> {
        if !self.known {
            self.look(map, n)?;
        }
        self.write_to(map, n, marks, 1 - self.synced)
    }

    fn write_to(&mut self, map: &LostWrites, n: u64, marks: &[u16], copy: usize) -> Result<(), VolumeError> {
        assert_eq!(marks.len() as u64, map.per_block, "a mark page holds the marks of a block");
        assert!(self.known, "nobody writes over a mark page before he knows which one was synced last");
        let mut buf = AlignedBuf::new(map.store.page_size());
        begin(&mut buf, KIND_MARKS, self.serial);
        for (at, field) in [n, self.sequence + 1, self.serial, map.identity].into_iter().enumerate() {
            buf[HEADER + 8 * at..][..8].copy_from_slice(&field.to_le_bytes());
        }
        for (to, mark) in buf[MARKS..].as_chunks_mut::<2>().0.iter_mut().zip(marks) {
            *to = mark.to_le_bytes();
        }
        page::seal(&mut buf, self.pages[copy]);
        let how = (SPACE_KEYSPACE, WriteWhy::Checkpoint, PageUse::default());
        write_pages(&*map.store, &[(self.pages[copy], &buf[..])], how)?;
        self.sequence += 1;
        Ok(())
    }

    /// The version of this sequence was synced; false when a newer one was written since.
    pub fn synced(&mut self, sequence: u64) -> bool {
        assert!(self.known, "what was synced was written by who knew its place");
        let is_last = self.sequence == sequence;
        if is_last {
            self.synced = 1 - self.synced;
        }
        is_last
    }
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// A block that is getting pages.
struct Addition<'s> {
    n: u64,
    reserved: Reserved<'s>,
    place: MarkPages,
}

impl LostWrites {
    /// Where block `n` stands in its index, and the number of the space map that names that.
    fn entry_of(&self, n: u64) -> (u64, usize) {
        (n / self.per_span, ENTRIES + ENTRY * (n % self.per_span) as usize)
    }

    /// Recovery has replayed the log into the pool: finds the places. What is found in the store is made durable first,
    /// as it will be overwritten by turns.
    pub(crate) fn locate(&self, pool: &Pool, read_only: bool) -> Result<()> {
        if self.located.load(Ordering::Acquire) {
            return Ok(());
        }
        if !read_only {
            self.store.sync()?;
        }
        let (mut ours, mut maps) = (Vec::new(), Vec::new());
        let spans = self.store.pages().div_ceil(self.span);
        for map in 0..spans {
            let space = PageId(map * self.span);
            let Some(index) = named_index(pool, space)? else { continue };
            maps.extend([space, index]);
            let page = pool.read(index)?;
            check_index(index, page.bytes(), space.0)?;
            for (n, entry) in (map * self.per_span..).zip(entries(page.bytes(), self.per_span)) {
                if let Some(place) = MarkPages::decode(entry) {
                    ours.extend(place.pages);
                    self.shard(n).lock().places.insert(n, place);
                }
            }
        }
        for shard in &self.shards {
            let shard = &mut *shard.lock();
            shard.located = true;
            let early: BTreeMap<PageId, u16> = std::mem::take(&mut shard.early).into_iter().collect();
            for (page, mark) in early.into_iter().filter(|_| !self.log.faults().has(Mistake::MarksOfRecoveryLost)) {
                let (n, at) = self.block_of(page);
                let block = self.block(shard, n);
                (block.marks[at], block.dirty) = (mark, true);
            }
        }
        ours.into_iter().for_each(|page| self.set(page, OURS, false));
        self.located.store(true, Ordering::Release);
        maps.into_iter().try_for_each(|page| self.compare_late(pool, page))
    }

    /// Compares a page that was read before the marks were there.
    fn compare_late(&self, pool: &Pool, id: PageId) -> Result<()> {
        let page = pool.read(id)?;
        if page.is_stored() {
            self.read(id, page.lsn()).map_err(Error::from)?;
        }
        Ok(())
    }

    /// Gives mark pages to every block of the first `pages` pages that has none, as far as the space map reaches: after
    /// a crash the store may be longer, and the map follows when it grows next. No latch may be held.
    pub(crate) fn cover(&self, core: &Core, pages: u64) -> Result<()> {
        // The thread that is adding, or the next one, comes to what was added meanwhile.
        let Some(_adding) = self.adding.try_lock() else { return Ok(()) };
        let pages = pages.min(core.space.maps() * self.span);
        let Some(last) = pages.checked_sub(1) else { return Ok(()) };
        let missing: Vec<u64> =
            (0..=self.block_of(PageId(last)).0).filter(|n| !self.shard(*n).lock().places.contains_key(n)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let additions = missing.into_iter().map(|n| self.prepare(core, n)).collect::<Result<Vec<_>>>()?;
        // They are whole before anything names them.
        self.store.sync()?;
        additions.into_iter().try_for_each(|addition| self.add(core, addition))
    }

    /// Sets pages aside for a block, and writes them: nothing is known.
    fn prepare<'s>(&self, core: &'s Core, n: u64) -> Result<Addition<'s>> {
        let reserved = core.space.reserve_past_pool(core, 2)?;
        let pages = [reserved.ids()[0], reserved.ids()[1]];
        assert_ne!(pages[0], pages[1], "the copies of a mark page lie in two places");
        let mut place = MarkPages::new(pages, core.log.end_lsn(), true);
        for (copy, id) in pages.into_iter().enumerate() {
            self.set(id, OURS, false);
            place.write_to(self, n, &self.unknown(), copy)?;
        }
        place.synced = 1;
        Ok(Addition { n, reserved, place })
    }

    /// Names a block's pages in its index, which is made if there is none.
    fn add(&self, core: &Core, Addition { n, reserved, place }: Addition<'_>) -> Result<()> {
        let (map, at) = self.entry_of(n);
        let space = PageId(map * self.span);
        let named = named_index(&core.pool, space)?;
        let more = if named.is_none() { Some(core.space.reserve(core, SPACE_KEYSPACE, 1)?) } else { None };
        let mut group = Group::begin(core, GroupKind::System, 4 * core.page_size())?;
        let mut ids = reserved.ids().to_vec();
        let index = match (&more, named) {
            (Some(more), _) => {
                ids.push(more.ids()[0]);
                let fresh = core.pool.create(more.ids()[0], SPACE_KEYSPACE)?;
                let index = group.add_new(fresh);
                group.page(index).image(|b| {
                    begin(b, KIND_INDEX, 0);
                    b[HEADER..ENTRIES].copy_from_slice(&space.0.to_le_bytes());
                });
                index
            }
            (None, named) => group.add(core.pool.write(named.expect("made only if there is none"))?),
        };
        group.page(index).write(at, &place.encode());
        let name = more.as_ref().map(|more| (map, more.ids()[0]));
        core.space.apply_naming(core, &mut group, &ids, &[], name);
        reserved.keep();
        more.into_iter().for_each(Reserved::keep);
        group.commit()?;
        let before = self.shard(n).lock().places.insert(n, place);
        assert!(before.is_none(), "a block gets its pages once");
        Ok(())
    }

    /// Takes the mark pages away that lie at or past `limit`, or are for pages there; [`LostWrites::cover`] gives
    /// others to those that are still wanted. What they said stays in memory until then.
    pub(crate) fn leave(&self, core: &Core, limit: PageId) -> Result<()> {
        let _adding = self.adding.lock();
        for map in 0..core.space.maps() {
            let Some(index) = named_index(&core.pool, PageId(map * self.span))? else { continue };
            let far = |n: &u64| {
                let shard = self.shard(*n).lock();
                let first = map * self.span + (n % self.per_span) * self.per_block;
                shard
                    .places
                    .get(n)
                    .is_some_and(|p| index >= limit || first >= limit.0 || p.pages.iter().any(|id| *id >= limit))
            };
            let blocks: BTreeSet<u64> = (map * self.per_span..(map + 1) * self.per_span).filter(far).collect();
            if blocks.is_empty() {
                continue;
            }
            // While they are named, what they say is believed when the database is opened: they are kept up to date
            // until then, and nobody else gets the pages before they have left.
            let pages = unname(core, map, index, self.per_span, |n| blocks.contains(&(map * self.per_span + n)))?;
            blocks.iter().for_each(|n| self.forget_place(*n));
            core.space.freed(&pages);
        }
        Ok(())
    }

    /// Called with the page behind which the store may be cut at the earliest: a map page that names mark pages stays,
    /// or these would be in use for ever. No block gets mark pages meanwhile. `last`: the last map page.
    pub(crate) fn while_placed<R>(&self, last: PageId, cut: impl FnOnce(PageId) -> R) -> R {
        let adding = self.adding.try_lock();
        let map = self.shards.iter().filter_map(|shard| shard.lock().places.keys().max().map(|n| n / self.per_span));
        let end = adding.as_ref().map(|_| PageId(map.max().unwrap_or(0) * self.span));
        cut(PageId(end.unwrap_or(last).0 + 1))
    }

    /// The block has no pages any more: what is known stays in memory.
    fn forget_place(&self, n: u64) {
        let place = {
            let shard = &mut *self.shard(n).lock();
            self.block(shard, n).dirty = true;
            shard.unsynced.remove(&n);
            shard.places.remove(&n)
        };
        place.into_iter().flat_map(|p| p.pages).for_each(|page| self.set(page, UNKNOWN, false));
    }
}

/// Takes the mark pages of the entries for which `wanted` says so out of the index, and the index away when it names
/// none after that. The pages that this frees; nobody is given them before [`crate::space::Space::freed`].
fn unname(core: &Core, map: u64, index: PageId, per_span: u64, wanted: impl Fn(u64) -> bool) -> Result<Vec<PageId>> {
    let mut group = Group::begin(core, GroupKind::System, 4 * core.page_size())?;
    let page = group.add(core.pool.write(index)?);
    let (mut ids, mut left) = (Vec::new(), false);
    for n in 0..per_span {
        let at = ENTRIES + ENTRY * n as usize;
        let Some(place) = MarkPages::decode(&group.bytes(page)[at..at + ENTRY]) else { continue };
        if !wanted(n) {
            left = true;
            continue;
        }
        ids.extend(place.pages);
        group.page(page).write(at, &[0; ENTRY]);
    }
    if !left {
        ids.push(index);
        wipe(&mut group, page);
    }
    ids.sort_unstable();
    core.space.apply_naming(core, &mut group, &[], &ids, (!left).then_some((map, PageId(0))));
    group.commit()?;
    Ok(ids)
}

fn wipe(group: &mut Group<'_>, page: PageNo) {
    group.page(page).image(|b| {
        b[HEADER..].fill(0);
        page::set_kind(b, 0);
    });
}

/// Frees all mark pages of a database that does not use them (any more): it was restored, or the option was switched
/// off.
pub(crate) fn remove(core: &Core) -> Result<()> {
    let (span, per_block) = (crate::space::span(&*core.store), marks_per_page(&*core.store));
    for map in 0..core.space.maps() {
        if let Some(index) = named_index(&core.pool, PageId(map * span))? {
            check_index(index, core.pool.read(index)?.bytes(), map * span)?;
            let pages = unname(core, map, index, span.div_ceil(per_block), |_| true)?;
            core.space.freed(&pages);
        }
    }
    Ok(())
}

/// The pages of index and marks that a space-map page leads to.
pub(crate) fn pages_of(pool: &Pool, store: &dyn PageStore, map: PageId) -> Result<Vec<PageId>> {
    let Some(index) = named_index(pool, map)? else { return Ok(Vec::new()) };
    let per_span = crate::space::span(store).div_ceil(marks_per_page(store));
    let page = pool.read(index)?;
    check_index(index, page.bytes(), map.0)?;
    let marks = entries(page.bytes(), per_span).filter_map(MarkPages::decode).flat_map(|place| place.pages);
    Ok(std::iter::once(index).chain(marks).collect())
}

fn entries(index: &[u8], per_span: u64) -> impl Iterator<Item = &[u8]> {
    index[ENTRIES..].chunks_exact(ENTRY).take(per_span as usize)
}

fn check_index(id: PageId, bytes: &[u8], map: u64) -> Result<()> {
    if page::kind(bytes) != KIND_INDEX || u64_at(bytes, HEADER) != map {
        return Err(Error::corrupt_page(id, Some(SPACE_KEYSPACE), "not the index of mark pages that belongs here"));
    }
    Ok(())
}

/// The index that a space-map page names; none where there is no such map either.
fn named_index(pool: &Pool, map: PageId) -> Result<Option<PageId>> {
    let page = match pool.read(map) {
        Ok(page) => page,
        // The space manager says what it is.
        Err(Error::Corrupt(_)) => return Ok(None),
        Err(e) => return Err(e),
    };
    let index = u64_at(page.bytes(), crate::space::INDEX);
    Ok((page::kind(page.bytes()) == KIND_SPACE && index != 0).then_some(PageId(index)))
}
