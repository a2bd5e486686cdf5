//! The reader: what a segment says of a key, and its parts for a walk.

use super::footer::{self, Footer, TRAILER};
use super::writer::lines_per_page;
use crate::error::Result;
use crate::lsm::block::{Block, Look, MAX_BLOCK, Place};
use crate::lsm::filter::{self, LINE};
use crate::lsm::part::{self, Location, Part};
use crate::lsm::ranges::{Fragments, RangeDelete};
use crate::lsm::{Entry, EntryKind, PageSource};
use crate::rows::Damage;
use std::borrow::Cow;
use varve_volume::Lsn;

type Checked<T> = std::result::Result<T, Damage>;

/// A segment that was opened: what stays in memory of it. Each call is given where its pages come from.
#[derive(Debug)]
pub(crate) struct SegmentReader {
    footer: Footer,
    usable: usize,
    top: Vec<u8>,
    ranges: Fragments,
}

impl SegmentReader {
    /// Opens segment `id`, which has so many pages.
    pub(crate) fn open(source: &dyn PageSource, id: u64, pages: u64) -> Result<SegmentReader> {
        let usable = source.usable();
        let last = pages.checked_sub(1).ok_or_else(|| source.corrupt(0, "a segment without pages"))?;
        let mut trailer = [0; TRAILER];
        source.page(last, &mut |bytes| trailer.copy_from_slice(&bytes[usable - TRAILER..]))?;
        let (at, counted) = footer::read_trailer(&trailer).map_err(|damage| source.corrupt(last, damage.0))?;
        if u64::from(counted) != pages {
            return Err(source.corrupt(last, "segment trailer: another number of pages"));
        }
        let mut reader = SegmentReader {
            footer: Footer { meta: crate::lsm::SegmentMeta { pages, ..Default::default() }, ..Footer::default() },
            usable,
            top: Vec::new(),
            ranges: Fragments::default(),
        };
        reader.footer = reader.with_part(source, at, Part::Footer, true, |bytes| Footer::decode(bytes, pages))?;
        if reader.footer.id != id {
            return Err(source.corrupt(last, &format!("footer: it is of segment {}, not {id}", reader.footer.id)));
        }
        if reader.footer.filter_checksums.len()
            != (reader.footer.filter.lines as usize).div_ceil(lines_per_page(usable))
        {
            let damage = Damage("its filter has another number of parts");
            return Err(reader.damage(source, at, Part::Footer, damage));
        }
        if reader.footer.top.len > 0 {
            reader.top = reader.with_part(source, reader.footer.top, Part::Top, true, whole_block)?;
        }
        if reader.footer.ranges.len > 0 {
            reader.ranges = reader.with_part(source, reader.footer.ranges, Part::Ranges, true, fragments)?;
        }
        Ok(reader)
    }

    /// What its writer said of it.
    pub(crate) fn footer(&self) -> &Footer {
        &self.footer
    }

    /// The ranges that it deletes.
    pub(crate) fn ranges(&self) -> &Fragments {
        &self.ranges
    }

    /// The top of the index; none: there are no entries.
    pub(super) fn top(&self) -> Option<Block<'_>> {
        (!self.top.is_empty()).then(|| Block::parse(&self.top).expect("it was checked when it was read"))
    }

    /// Whether the filter lets the hash of a key ([`filter::hash`]) pass; else no entry of the key is here.
    pub(crate) fn may_have(&self, source: &dyn PageSource, hash: u64) -> Result<bool> {
        let shape = self.footer.filter;
        if shape.lines == 0 {
            return Ok(true);
        }
        let (line, per_page) = (shape.line(hash) as usize, lines_per_page(self.usable));
        let number = line / per_page;
        let lines = per_page.min(shape.lines as usize - number * per_page);
        self.with_part(source, self.filter_part(number, lines), Part::Filter, false, |bytes| {
            let line = bytes.chunks_exact(LINE).nth(line % per_page);
            Ok(shape.may_have(line.ok_or(Damage("it has fewer lines than it should"))?, hash))
        })
    }

    /// Where the part of the filter with this number is, which has so many lines.
    fn filter_part(&self, number: usize, lines: usize) -> Location {
        let offset = self.footer.filter_at + (number * self.usable) as u64;
        let (offset, len) = (u32::try_from(offset).unwrap_or(u32::MAX), (part::HEAD + lines * LINE) as u32);
        Location { offset, len, checksum: self.footer.filter_checksums[number] }
    }

    /// Whether keys that begin so may be here. False only if the filter has the beginnings of keys, of this length.
    pub(crate) fn may_have_prefix(&self, source: &dyn PageSource, prefix: &[u8]) -> Result<bool> {
        let known = !prefix.is_empty() && self.footer.prefix == prefix.len() as u64;
        if known { self.may_have(source, filter::prefix_hash(prefix)) } else { Ok(true) }
    }

    /// Shows the newest entry of `key` up to the commit `as_of`, if there is one. Deletions of ranges and the filter
    /// are the caller's business.
    pub(crate) fn find<R>(
        &self,
        source: &dyn PageSource,
        key: &[u8],
        as_of: Lsn,
        see: impl FnOnce(Entry<'_>) -> R,
    ) -> Result<Option<R>> {
        let Some(top) = self.top() else { return Ok(None) };
        let index = top.value_from(key, as_of).and_then(location).map_err(|d| self.top_damage(source, d))?;
        let Some(index) = index else { return Ok(None) };
        let data = self.with_part(source, index, Part::Index, false, |bytes| {
            Block::parse(bytes)?.value_from(key, as_of).and_then(location)
        })?;
        let Some(data) = data else { return Ok(None) };
        self.with_part(source, data, Part::Data, false, |bytes| match Block::parse(bytes)?.find(key, as_of)? {
            Look::Found(entry) => Ok(Some(see(entry))),
            Look::Absent | Look::Past => Ok(None),
        })
    }

    fn top_damage(&self, source: &dyn PageSource, damage: Damage) -> crate::error::Error {
        self.damage(source, self.footer.top, Part::Top, damage)
    }

    /// Gives the bytes of a part to `use_it`. With `verify` they are compared with their checksum; without, it is left
    /// to the pages' own checksums to find wrong bits. Those say nothing of a page that is of another time: a part in
    /// several pages is compared always, of one in a single page its checksum is at the right place.
    pub(super) fn with_part<R>(
        &self,
        source: &dyn PageSource,
        at: Location,
        part: Part,
        verify: bool,
        use_it: impl FnOnce(&[u8]) -> Checked<R>,
    ) -> Result<R> {
        let usable = self.usable as u64;
        let all = self.footer.meta.pages * usable;
        if at.len == 0 || at.end() > all || at.len as usize > MAX_BLOCK + part::HEAD {
            return Err(self.damage(source, Location::default(), part, Damage("it would lie outside of the segment")));
        }
        let (first, last) = (u64::from(at.offset) / usable, (at.end() - 1) / usable);
        let start = (u64::from(at.offset) % usable) as usize;
        let verify = verify || first != last;
        let opened = |stored: &[u8]| use_it(&part::open(stored, part, at.checksum, verify)?);
        let found = if first == last {
            let (mut opened, mut found) = (Some(opened), None);
            source.page(first, &mut |bytes| {
                found = opened.take().map(|opened| opened(&bytes[start..start + at.len as usize]));
            })?;
            found.expect("a source shows the page, or fails")
        } else {
            opened(&self.gathered(source, at, first..=last)?)
        };
        found.map_err(|damage| self.damage(source, at, part, damage))
    }

    /// The stored bytes of a data block, not compared with anything yet.
    pub(crate) fn stored(&self, source: &dyn PageSource, at: Location) -> Result<Vec<u8>> {
        let usable = self.usable as u64;
        if at.len == 0 || at.end() > self.footer.data {
            return Err(self.damage(
                source,
                Location::default(),
                Part::Index,
                Damage("it names bytes that are no data"),
            ));
        }
        self.gathered(source, at, u64::from(at.offset) / usable..=(at.end() - 1) / usable)
    }

    /// The stored bytes of a part that lies in several pages.
    fn gathered(&self, source: &dyn PageSource, at: Location, pages: std::ops::RangeInclusive<u64>) -> Result<Vec<u8>> {
        let mut stored = Vec::with_capacity(at.len as usize);
        // The first one is read right away.
        source.prefetch(pages.start() + 1, pages.end() - pages.start());
        let mut start = at.offset as usize % self.usable;
        for page in pages {
            let left = at.len as usize - stored.len();
            source.page(page, &mut |bytes| {
                stored.extend_from_slice(&bytes[start..self.usable.min(start + left)]);
            })?;
            start = 0;
        }
        Ok(stored)
    }

    /// An error that names the part, its place and, of a data block, the keys that were in it.
    pub(crate) fn damage(&self, source: &dyn PageSource, at: Location, part: Part, damage: Damage) -> crate::Error {
        let keys = if part == Part::Data { self.keys_of(source, at) } else { String::new() };
        let what = format!("{} of segment {} at byte {}{keys}: {}", part.name(), self.footer.id, at.offset, damage.0);
        source.corrupt(u64::from(at.offset) / self.usable as u64, &what)
    }

    /// The keys of a data block, in words, from the separators around it.
    fn keys_of(&self, source: &dyn PageSource, at: Location) -> String {
        let mut after = self.footer.meta.smallest.to_vec();
        let mut found = None;
        let _ = self.for_each_block(source, &mut |location, separator| {
            if location == at && found.is_none() {
                found = Some((after.clone(), separator.to_vec()));
            }
            after = separator.to_vec();
        });
        let shown = |key: &[u8]| String::from_utf8_lossy(key).escape_debug().take(64).collect::<String>();
        found.map_or(String::new(), |(from, to)| format!(" (keys from \"{}\" to \"{}\")", shown(&from), shown(&to)))
    }

    /// Tells of each data block where it is and the key of its separator, in key order.
    pub(crate) fn for_each_block(&self, source: &dyn PageSource, tell: &mut dyn FnMut(Location, &[u8])) -> Result<()> {
        let mut indexes = Vec::new();
        if let Some(top) = self.top() {
            walk(&top, &mut |at, _| indexes.push(at)).map_err(|d| self.top_damage(source, d))?;
        }
        for at in indexes {
            self.with_part(source, at, Part::Index, true, |bytes| walk(&Block::parse(bytes)?, tell))?;
        }
        Ok(())
    }

    /// Tells of the data blocks of each index block that is whole, in key order; what is wrong with the others.
    pub(crate) fn blocks(&self, source: &dyn PageSource, tell: &mut dyn FnMut(Location)) -> Vec<crate::Error> {
        let (mut indexes, mut damaged) = (Vec::new(), Vec::new());
        if let Some(Err(damage)) = self.top().map(|top| walk(&top, &mut |at, _| indexes.push(at))) {
            damaged.push(self.top_damage(source, damage));
        }
        for at in indexes {
            let mut blocks = Vec::new();
            let walked = self.with_part(source, at, Part::Index, true, |bytes| {
                walk(&Block::parse(bytes)?, &mut |at, _| blocks.push(at))
            });
            match walked {
                Ok(()) => blocks.into_iter().for_each(&mut *tell),
                Err(e) => damaged.push(e),
            }
        }
        damaged
    }

    /// Reads all of it and compares every checksum, count and bound.
    pub(crate) fn check(&self, source: &dyn PageSource) -> Result<()> {
        let mut blocks = Vec::new();
        self.for_each_block(source, &mut |at, _| blocks.push(at))?;
        let (mut entries, mut deletions) = (0, 0);
        for at in &blocks {
            self.with_part(source, *at, Part::Data, true, |bytes| {
                let block = Block::parse(bytes)?;
                block.validate()?;
                let mut place = Place::default();
                place.first(&block)?;
                while place.is_valid() {
                    let entry = place.entry(&block);
                    entries += 1;
                    deletions += u64::from(entry.kind == EntryKind::Delete);
                    if *entry.key < *self.footer.meta.smallest || *entry.key > *self.footer.meta.largest {
                        return Err(Damage("a key outside of the segment's bounds"));
                    }
                    place.next(&block)?;
                }
                Ok(())
            })?;
        }
        let meta = &self.footer.meta;
        if (entries, deletions, blocks.len() as u64) != (meta.entries, meta.deletions, self.footer.blocks) {
            let at = Location::default();
            return Err(self.damage(source, at, Part::Footer, Damage("it counts other entries than there are")));
        }
        self.check_filter(source)
    }

    fn check_filter(&self, source: &dyn PageSource) -> Result<()> {
        let mut left = self.footer.filter.lines as usize;
        for number in 0..self.footer.filter_checksums.len() {
            let lines = left.min(lines_per_page(self.usable));
            self.with_part(source, self.filter_part(number, lines), Part::Filter, true, |_| Ok(()))?;
            left -= lines;
        }
        Ok(())
    }
}

/// Tells of each entry of an index block.
fn walk(block: &Block<'_>, tell: &mut dyn FnMut(Location, &[u8])) -> Checked<()> {
    let mut place = Place::default();
    place.first(block)?;
    while place.is_valid() {
        let entry = place.entry(block);
        let at = location(Some(entry.value))?.expect("it was given");
        tell(at, entry.key);
        place.next(block)?;
    }
    Ok(())
}

/// The location in the value of an index entry.
pub(super) fn location(value: Option<&[u8]>) -> Checked<Option<Location>> {
    const BAD: Damage = Damage("an index entry that says no place");
    value.map(|value| Location::read(value, &mut 0).filter(|at| at.len > 0).ok_or(BAD)).transpose()
}

fn whole_block(bytes: &[u8]) -> Checked<Vec<u8>> {
    Block::parse(bytes)?.validate()?;
    Ok(Cow::Borrowed(bytes).into_owned())
}

fn fragments(bytes: &[u8]) -> Checked<Fragments> {
    Fragments::from_deletes(deletes(bytes)?).ok_or(Damage("they overlap"))
}

/// The deletions of ranges in a block of them.
pub(crate) fn deletes(bytes: &[u8]) -> Checked<Vec<RangeDelete>> {
    let block = Block::parse(bytes)?;
    block.validate()?;
    let mut deletes = Vec::new();
    let mut place = Place::default();
    place.first(&block)?;
    while place.is_valid() {
        let entry = place.entry(&block);
        let (start, end) = (entry.key.to_vec(), entry.value.to_vec());
        deletes.push(RangeDelete { start, end, commit: entry.commit });
        place.next(&block)?;
    }
    Ok(deletes)
}
