//! The writer: entries in their order go in, whole pages come out.

use super::footer::{self, Footer, TRAILER};
use crate::error::Result;
use crate::lsm::block::BlockBuilder;
use crate::lsm::filter::{LINE, Shape, hash, prefix_hash};
use crate::lsm::part::{self, Codec, Location, Part};
use crate::lsm::ranges::{Fragments, RangeDelete};
use crate::lsm::{Entry, EntryKind, PageSink, SegmentMeta};
use varve_rt::{Cost, charge};
use varve_volume::Lsn;

/// How a segment is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SegmentOptions {
    /// Number of the segment in its keyspace.
    pub id: u64,
    /// Bytes of a data block, to the nearest page; of compressed ones, before they are compressed.
    pub block_bytes: usize,
    pub codec: Codec,
    /// Bits of the filter for each key; 0: no filter.
    pub bits_per_key: u32,
    /// Bytes of the beginnings of keys that go into the filter as well; 0: none.
    pub prefix: usize,
}

/// A segment being written.
pub(crate) struct SegmentWriter {
    options: SegmentOptions,
    usable: usize,
    /// Bytes of the stream that did not go to the sink yet, and where the first of them lies in it.
    out: Vec<u8>,
    flushed: u64,
    data: BlockBuilder,
    /// Bytes that the data block shall have.
    goal: usize,
    /// A finished data block and its last entry; its separator depends on the key to come.
    pending: Option<(Location, Separator)>,
    last_commit: Lsn,
    index: BlockBuilder,
    index_last: Separator,
    /// Index blocks, and the last separator of each.
    indexes: Vec<(Vec<u8>, Separator)>,
    hashes: Vec<u64>,
    last_prefix: Option<Vec<u8>>,
    ranges: Fragments,
    blocks: u64,
    meta: SegmentMeta,
}

/// A block ends with its page where that leaves no more than this part of the block empty: room for reads, since who
/// looks up a row of a block in two pages reads both.
const LITTLE: usize = 8;

/// Where a block ends: the place, as (key, commit), of its last entry, or one after it and before the next block.
type Separator = (Vec<u8>, Lsn);

/// A short separator between a block's last entry and the key that comes next.
fn separator(last: Separator, next: &[u8]) -> Separator {
    let common = last.0.iter().zip(next).take_while(|(a, b)| a == b).count();
    match (last.0.get(common), next.get(common)) {
        (Some(a), Some(b)) if a + 1 < *b => ([&last.0[..common], &[a + 1]].concat(), 0),
        _ => last,
    }
}

impl SegmentWriter {
    /// A segment whose pages have `usable` bytes.
    pub(crate) fn new(options: SegmentOptions, usable: usize) -> SegmentWriter {
        assert!(usable >= 2 * (part::HEAD + LINE) + TRAILER, "a page holds a line of the filter");
        let mut writer = SegmentWriter {
            options,
            usable,
            out: Vec::new(),
            flushed: 0,
            data: BlockBuilder::default(),
            goal: 0,
            pending: None,
            last_commit: 0,
            index: BlockBuilder::default(),
            index_last: Separator::default(),
            indexes: Vec::new(),
            hashes: Vec::new(),
            last_prefix: None,
            ranges: Fragments::default(),
            blocks: 0,
            meta: SegmentMeta { commits: (u64::MAX, 0), ..SegmentMeta::default() },
        };
        writer.goal = writer.next_goal();
        writer
    }

    fn at(&self) -> u64 {
        self.flushed + self.out.len() as u64
    }

    /// Bytes of the stream so far, those of the block being filled included: about how large the segment is.
    pub(crate) fn bytes(&self) -> u64 {
        self.at() + self.data.len() as u64
    }

    /// Entries so far.
    pub(crate) fn entries(&self) -> u64 {
        self.meta.entries
    }

    /// The key that was added last.
    pub(crate) fn largest(&self) -> &[u8] {
        &self.meta.largest
    }

    /// Bytes of the next data block: up to the end of a page, where blocks are not compressed.
    fn next_goal(&self) -> usize {
        let pages = ((self.options.block_bytes + self.usable / 2) / self.usable).max(1);
        let rest = pages * self.usable - self.used();
        let plain = if 2 * rest < self.options.block_bytes { rest + self.usable } else { rest };
        if self.options.codec == Codec::None { plain - part::HEAD } else { self.options.block_bytes }
    }

    /// Takes the next entry; full pages go to the sink.
    pub(crate) fn add(&mut self, entry: &Entry<'_>, sink: &mut dyn PageSink) -> Result<()> {
        assert!(entry.kind != EntryKind::DeleteRange, "deletions of ranges have a part of their own");
        charge(Cost::CopyByte, (entry.key.len() + entry.value.len()) as u64);
        if self.data.entries() > 0 && self.data.len_with(entry) > self.goal {
            // A block ends where its page does if little is lost; else this entry is in it too, and it goes on in the
            // next page.
            if self.goal.saturating_sub(self.data.len()) <= self.little() {
                self.end_block(sink)?;
            }
            self.take(entry);
            if self.data.len() > self.goal {
                self.end_block(sink)?;
            }
        } else {
            self.take(entry);
        }
        Ok(())
    }

    fn take(&mut self, entry: &Entry<'_>) {
        debug_assert!(
            self.meta.entries == 0
                || crate::lsm::order((&self.meta.largest, self.last_commit), (entry.key, entry.commit)).is_lt(),
            "entries ascend, also from block to block"
        );
        let new_key = self.meta.entries == 0 || *self.meta.largest != *entry.key;
        if let Some((location, last)) = self.pending.take() {
            self.index_block(location, &separator(last, entry.key));
        }
        if new_key {
            self.note_key(entry.key);
        }
        self.data.add(entry);
        self.last_commit = entry.commit;
        let meta = &mut self.meta;
        meta.entries += 1;
        meta.deletions += u64::from(entry.kind == EntryKind::Delete);
        meta.bytes += (entry.key.len() + entry.value.len()) as u64;
        meta.commits = (meta.commits.0.min(entry.commit), meta.commits.1.max(entry.commit));
    }

    fn note_key(&mut self, key: &[u8]) {
        if self.meta.entries == 0 {
            self.meta.smallest = key.into();
        }
        self.meta.largest = key.into();
        if self.options.bits_per_key == 0 {
            return;
        }
        self.hashes.push(hash(key));
        if let Some(prefix) = key.get(..self.options.prefix).filter(|prefix| !prefix.is_empty())
            && self.last_prefix.as_deref() != Some(prefix)
        {
            self.hashes.push(prefix_hash(prefix));
            self.last_prefix = Some(prefix.to_vec());
        }
    }

    /// Adds deletions of ranges; they may lie outside of the keys that there are entries of.
    pub(crate) fn add_ranges(&mut self, ranges: &Fragments) {
        self.ranges = Fragments::union([&self.ranges, ranges]);
    }

    fn append(&mut self, part: Part, codec: Codec, raw: &[u8]) -> Location {
        let offset = u32::try_from(self.at()).expect("a segment has less than 4 GB");
        let (len, checksum) = part::seal(&mut self.out, part, codec, raw);
        Location { offset, len, checksum }
    }

    fn end_block(&mut self, sink: &mut dyn PageSink) -> Result<()> {
        let mut builder = std::mem::take(&mut self.data);
        let last = (builder.last_key().to_vec(), self.last_commit);
        let location = self.append(Part::Data, self.options.codec, builder.finish());
        builder.clear();
        self.data = builder;
        self.pending = Some((location, last));
        self.blocks += 1;
        self.end_page_if_little_is_lost();
        self.goal = self.next_goal();
        self.flush(sink)
    }

    /// Bytes of the stream in its last page.
    fn used(&self) -> usize {
        (self.at() % self.usable as u64) as usize
    }

    /// Bytes at the end of a page that may be left empty for a block to end there.
    fn little(&self) -> usize {
        debug_assert!(self.used() < self.usable, "a page that is full has gone on");
        self.options.block_bytes.min(self.usable) / LITTLE
    }

    fn end_page_if_little_is_lost(&mut self) {
        let rest = self.usable - self.used();
        if rest <= self.little() {
            self.end_page();
        }
    }

    fn end_page(&mut self) {
        let used = self.used();
        if used > 0 {
            self.out.resize(self.out.len() + self.usable - used, 0);
        }
    }

    fn index_block(&mut self, location: Location, (key, commit): &Separator) {
        let mut value = Vec::new();
        location.push(&mut value);
        let entry = Entry { key, commit: *commit, kind: EntryKind::Put, value: &value };
        if self.index.entries() > 0 && self.index.len_with(&entry) + part::HEAD > self.usable {
            self.end_index();
        }
        self.index.add(&entry);
        self.index_last = (key.clone(), *commit);
    }

    fn end_index(&mut self) {
        let block = self.index.finish().to_vec();
        self.index.clear();
        self.indexes.push((block, std::mem::take(&mut self.index_last)));
    }

    /// Sends the pages that are full to the sink.
    fn flush(&mut self, sink: &mut dyn PageSink) -> Result<()> {
        let full = self.out.len() / self.usable * self.usable;
        for page in self.out[..full].chunks(self.usable) {
            sink.page(&mut |bytes| bytes.copy_from_slice(page))?;
        }
        self.out.drain(..full);
        self.flushed += full as u64;
        Ok(())
    }

    /// Writes what is left; what there is to know of the segment, which has an entry or a deletion of a range.
    pub(crate) fn finish(mut self, sink: &mut dyn PageSink) -> Result<SegmentMeta> {
        assert!(self.meta.entries > 0 || !self.ranges.is_empty(), "a segment has something in it");
        if self.data.entries() > 0 {
            self.end_block(sink)?;
        }
        if let Some((location, last)) = self.pending.take() {
            self.index_block(location, &last);
            self.end_index();
        }
        let data = self.at();
        let top = self.write_index(sink)?;
        let (filter, filter_at, filter_checksums) = self.write_filter(sink)?;
        let ranges = self.write_ranges();
        let footer = Footer {
            id: self.options.id,
            meta: self.meta.clone(),
            data,
            blocks: self.blocks,
            filter,
            filter_at,
            filter_checksums,
            prefix: self.options.prefix as u64,
            top,
            ranges,
        };
        self.write_footer(&footer);
        self.flush(sink)?;
        assert!(self.out.is_empty(), "a segment is whole pages");
        self.meta.pages = self.flushed / self.usable as u64;
        Ok(self.meta)
    }

    fn write_index(&mut self, sink: &mut dyn PageSink) -> Result<Location> {
        let mut top = BlockBuilder::default();
        for (block, (key, commit)) in std::mem::take(&mut self.indexes) {
            if self.used() + part::HEAD + block.len() > self.usable {
                self.end_page();
            }
            let mut value = Vec::new();
            self.append(Part::Index, Codec::None, &block).push(&mut value);
            top.add(&Entry { key: &key, commit, kind: EntryKind::Put, value: &value });
            self.flush(sink)?;
        }
        if top.entries() == 0 {
            return Ok(Location::default());
        }
        Ok(self.append(Part::Top, Codec::None, top.finish()))
    }

    fn write_filter(&mut self, sink: &mut dyn PageSink) -> Result<(Shape, u64, Vec<u32>)> {
        let shape = Shape::new(self.hashes.len() as u64, self.options.bits_per_key);
        if shape.lines == 0 {
            return Ok((shape, 0, Vec::new()));
        }
        self.end_page();
        let at = self.at();
        let mut checksums = Vec::new();
        let lines = shape.build(&std::mem::take(&mut self.hashes));
        for part in lines.chunks(lines_per_page(self.usable) * LINE) {
            self.end_page();
            checksums.push(self.append(Part::Filter, Codec::None, part).checksum);
            self.flush(sink)?;
        }
        Ok((shape, at, checksums))
    }

    fn write_ranges(&mut self) -> Location {
        let ranges = std::mem::take(&mut self.ranges);
        let (Some(first), Some(last)) = (ranges.list().first(), ranges.list().last()) else {
            return Location::default();
        };
        let meta = &mut self.meta;
        if meta.entries == 0 || *first.start < *meta.smallest {
            meta.smallest = first.start.as_slice().into();
        }
        if meta.entries == 0 || *last.end > *meta.largest {
            meta.largest = last.end.as_slice().into();
            meta.open_end = true;
        }
        let mut block = BlockBuilder::default();
        for RangeDelete { start, end, commit } in ranges.deletes() {
            block.add(&Entry { key: &start, commit, kind: EntryKind::DeleteRange, value: &end });
            meta.ranges += 1;
            meta.commits = (meta.commits.0.min(commit), meta.commits.1.max(commit));
        }
        self.append(Part::Ranges, Codec::None, block.finish())
    }

    fn write_footer(&mut self, footer: &Footer) {
        let encoded = footer.encode();
        debug_assert!(Footer::decode(&encoded, footer.meta.pages).is_ok(), "a footer that is written can be read");
        let location = self.append(Part::Footer, Codec::None, &encoded);
        if self.used() == 0 || self.used() + TRAILER > self.usable {
            self.end_page();
        }
        let rest = self.usable - self.used();
        self.out.resize(self.out.len() + rest - TRAILER, 0);
        let pages = (self.at() + TRAILER as u64) / self.usable as u64;
        let pages = u32::try_from(pages).expect("a segment has less than 4 GB");
        self.out.extend_from_slice(&footer::trailer(location, pages));
        assert_eq!(self.used(), 0, "the trailer ends the last page");
    }
}

/// Lines of the filter in a page.
pub(crate) fn lines_per_page(usable: usize) -> usize {
    (usable - part::HEAD) / LINE
}
