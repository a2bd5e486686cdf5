//! The parsers of bytes that come from devices, by themselves, for fuzzing: nothing may make them panic.

use crate::btree::edit::{Builder, Shape};
use crate::btree::node::Node;
use crate::error::Result;
use crate::lsm::block::{Block, BlockBuilder, Place};
use crate::lsm::part::{self, Codec, Location, Part};
use crate::lsm::ranges::{Fragments, RangeDelete};
use crate::lsm::segment::{Footer, SegmentCursor, SegmentOptions, SegmentReader, SegmentWriter, trailer_checksum};
use crate::lsm::{Entries, Entry, EntryKind, PageSink, PageSource, filter, list, near};
use crate::redo::{self, Record};
use std::sync::Arc;
use varve_volume::{KeyspaceId, PageId, page};

/// What a parser made of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Refused at first sight.
    Refused,
    /// Its outline is right, what is in it is not.
    Unsound,
    /// Accepted.
    Sound,
}

/// Looks at every part of a page as a node of a tree.
pub fn node(bytes: &[u8]) -> Verdict {
    let Ok(node) = Node::parse(bytes) else { return Verdict::Refused };
    // Whatever `parse` lets through can be asked anything.
    let mut cells = Ok(());
    for i in 0..node.count() {
        let cell = if node.level() == 0 { node.leaf_cell(i).map(drop) } else { node.child(i + 1).map(drop) };
        cells = cells.and(cell).and(node.key(i).map(drop));
    }
    let _ = (node.search(b"key"), node.child_for(b"key"), node.covers(b"key"));
    if node.validate().is_err() {
        return Verdict::Unsound;
    }
    cells.expect("a sound node has sound cells");
    let mut last: Option<Vec<u8>> = None;
    for i in 0..node.count() {
        let key = node.key(i).expect("sound");
        assert!(last.is_none_or(|last| last < key) && node.covers(&key), "keys ascend between the fences");
        assert_eq!(node.search(&key), Ok((i, true)), "every key is found");
        last = Some(key);
    }
    Verdict::Sound
}

/// A leaf and an inner node, sealed.
pub fn nodes(page_size: usize) -> Vec<Vec<u8>> {
    let made = |level: u8| {
        let mut bytes = vec![0; page_size];
        let shape =
            Shape { level, low: b"key 1", high: Some(b"key 9"), leftmost: u64::from(level) * 5, end: page_size };
        let mut builder = Builder::new(&mut bytes, &shape, b"key ");
        for n in 2u64..8 {
            let key = format!("key {n} with a tail");
            let value = [&5u16.to_le_bytes()[..], b"value"].concat();
            let payload = if level == 0 { value } else { n.to_le_bytes().to_vec() };
            builder.push(key.as_bytes(), &payload);
        }
        builder.finish();
        page::set_keyspace(&mut bytes, KeyspaceId(7));
        page::seal(&mut bytes, PageId(7));
        bytes
    };
    vec![made(0), made(1)]
}

/// Decodes the body of a log group and makes its changes to a page.
pub fn log_body(body: &[u8], page_size: usize) -> Verdict {
    let mut page = vec![0; page_size];
    let mut verdict = Verdict::Sound;
    for record in redo::decode(body, page_size, 1) {
        match record {
            Ok(Record::Ops { ops, page: id, .. }) if redo::apply_ops(&mut page, ops, id, 1).is_err() => {
                verdict = Verdict::Unsound;
            }
            Ok(Record::Image { head, hole, tail, .. }) => redo::apply_image(&mut page, head, hole, tail),
            Ok(_) => {}
            Err(_) => return Verdict::Refused,
        }
    }
    verdict
}

/// A body with changes of a page, and a whole one.
pub fn log_bodies(page_size: usize) -> Vec<Vec<u8>> {
    let (mut ops, mut body) = (Vec::new(), Vec::new());
    redo::push_write(&mut ops, 100, b"bytes");
    redo::push_shift(&mut ops, 200, 300, 50);
    redo::push_ops_record(&mut body, PageId(300), KeyspaceId(7), 99, &ops);
    let mut image = vec![0; page_size];
    image[..200].fill(3);
    redo::push_image_record(&mut body, PageId(5), &image, redo::zero_hole(&image));
    vec![body]
}

/// Walks over a block of entries both ways, and looks for keys in it; every one of a sound block must be found.
pub fn block(bytes: &[u8]) -> Verdict {
    let Ok(block) = Block::parse(bytes) else { return Verdict::Refused };
    let mut place = Place::default();
    let _ = (block.find(b"key", 5), place.seek(&block, b"key", 5), place.last(&block));
    for steps in 0..bytes.len() {
        if !place.is_valid() || place.prev(&block).is_err() {
            break;
        }
        assert!(steps + 1 < bytes.len(), "a walk has an end");
    }
    if block.validate().is_err() {
        return Verdict::Unsound;
    }
    place.first(&block).expect("sound");
    while place.is_valid() {
        let entry = place.entry(&block);
        let found = block.find(entry.key, entry.commit).expect("sound");
        assert_eq!(found, crate::lsm::block::Look::Found(entry), "every entry is found");
        place.next(&block).expect("sound");
    }
    Verdict::Sound
}

/// Blocks to begin with.
pub fn blocks() -> Vec<Vec<u8>> {
    let built = |n: u64| {
        let mut builder = BlockBuilder::default();
        for i in 0..n {
            let key = format!("key {:03}", i / 2);
            let kind = if i % 5 == 0 { EntryKind::Delete } else { EntryKind::Put };
            let value = if i % 5 == 0 { &b""[..] } else { b"a value" };
            builder.add(&Entry { key: key.as_bytes(), commit: 1000 - i, kind, value });
        }
        builder.finish().to_vec()
    };
    vec![built(1), built(40)]
}

/// The value of an index entry, and the bytes of a part.
pub fn location(bytes: &[u8]) -> Verdict {
    let mut at = 0;
    let Some(location) = Location::read(bytes, &mut at) else { return Verdict::Refused };
    let mut again = Vec::new();
    location.push(&mut again);
    assert_eq!(Location::read(&again, &mut 0), Some(location), "it comes back");
    let stored = &bytes[at..];
    let checksum = stored.get(..4).map_or(0, |c| u32::from_le_bytes(c.try_into().expect("four bytes")));
    match part::open(stored, Part::Index, checksum, false) {
        Ok(raw) => block(&raw),
        Err(_) => Verdict::Unsound,
    }
}

/// Index entries, each with a part after it.
pub fn locations() -> Vec<Vec<u8>> {
    let one = |codec| {
        let mut bytes = Vec::new();
        Location { offset: 70_000, len: 4000, checksum: 12 }.push(&mut bytes);
        part::seal(&mut bytes, Part::Index, codec, &blocks()[1]);
        bytes
    };
    Codec::ALL.map(|(_, codec)| one(codec)).to_vec()
}

/// A footer.
pub fn footer(bytes: &[u8]) -> Verdict {
    match Footer::decode(bytes, 9) {
        Ok(footer) => {
            let again = Footer::decode(&footer.encode(), 9);
            assert!(again.is_ok_and(|again| again == footer), "it comes back");
            Verdict::Sound
        }
        Err(damage) if damage.0.contains("cannot be") => Verdict::Unsound,
        Err(_) => Verdict::Refused,
    }
}

/// Pages of a segment, in memory.
struct Pages {
    usable: usize,
    bytes: Vec<u8>,
}

impl PageSink for Pages {
    fn usable(&self) -> usize {
        self.usable
    }

    fn page(&mut self, fill: &mut dyn FnMut(&mut [u8])) -> Result<()> {
        let start = self.bytes.len();
        self.bytes.resize(start + self.usable, 0);
        fill(&mut self.bytes[start..]);
        Ok(())
    }
}

impl PageSource for Pages {
    fn usable(&self) -> usize {
        self.usable
    }

    fn page(&self, n: u64, see: &mut dyn FnMut(&[u8])) -> Result<()> {
        see(&self.bytes[n as usize * self.usable..][..self.usable]);
        Ok(())
    }

    fn prefetch(&self, _: u64, _: u64) {}

    fn corrupt(&self, n: u64, what: &str) -> crate::Error {
        crate::Error::corrupt_page(PageId(n), None, what)
    }
}

/// A whole segment of pages with so many usable bytes, whose checksums are right: opened, asked, walked, checked.
pub fn segment(bytes: &[u8], usable: usize) -> Verdict {
    let pages = Pages { usable, bytes: bytes[..bytes.len() / usable * usable].to_vec() };
    let source = Arc::new(pages);
    let reader = match SegmentReader::open(&*source, 5, (bytes.len() / usable) as u64) {
        Ok(reader) => Arc::new(reader),
        Err(_) => return Verdict::Refused,
    };
    let _ = reader.find(&*source, b"key 004", 900, |entry| entry.commit);
    let _ = (reader.may_have(&*source, filter::hash(b"key 004")), reader.may_have_prefix(&*source, b"key"));
    reader.ranges().covering(b"key 004", 900);
    walk_over(SegmentCursor::new(reader.clone(), source.clone()), bytes.len());
    // Each entry of the index may name the same block.
    walk_over(SegmentCursor::of_checked_pages(reader.clone(), source.clone()), bytes.len() * bytes.len());
    if reader.check(&*source).is_ok() { Verdict::Sound } else { Verdict::Unsound }
}

/// Goes over a segment both ways, and comes to an end before so many steps.
fn walk_over(mut cursor: SegmentCursor, most: usize) {
    for back in [false, true] {
        let mut moved = if back { cursor.last() } else { cursor.first() };
        for steps in 0..=most {
            if moved.is_err() || cursor.entry().is_none() {
                break;
            }
            assert!(steps < most, "a walk has an end");
            moved = if back { cursor.prev() } else { cursor.next() };
        }
    }
}

/// Segments to begin with.
pub fn segments(usable: usize) -> Vec<Vec<u8>> {
    let made = |codec| {
        let options = SegmentOptions { id: 5, block_bytes: usable, codec, bits_per_key: 10, prefix: 3 };
        let (mut sink, mut writer) = (Pages { usable, bytes: Vec::new() }, SegmentWriter::new(options, usable));
        for n in 0..60u64 {
            let key = format!("key {n:03}");
            let entry = Entry { key: key.as_bytes(), commit: n, kind: EntryKind::Put, value: b"some value" };
            writer.add(&entry, &mut sink).expect("memory");
        }
        let range = RangeDelete { start: b"key 010".to_vec(), end: b"key 020".to_vec(), commit: 99 };
        writer.add_ranges(&Fragments::new([range]));
        writer.finish(&mut sink).expect("memory");
        sink.bytes
    };
    Codec::ALL.map(|(_, codec)| made(codec)).to_vec()
}

/// Puts the checksums of a segment's trailer and footer right, as far as they are found.
pub fn seal_segment(bytes: &mut [u8], usable: usize) {
    let end = bytes.len() / usable * usable;
    let Some(at) = end.checked_sub(32) else { return };
    let u32_at = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let (offset, len) = (u32_at(bytes, at + 16) as usize, u32_at(bytes, at + 20) as usize);
    let footer = offset.checked_add(len).filter(|end| len >= part::HEAD && *end <= at);
    if let Some(footer) = footer.map(|end| offset..end) {
        let checksum = crc32c::crc32c(&bytes[footer.start + 4..footer.end]).to_le_bytes();
        bytes[footer.start..footer.start + 4].copy_from_slice(&checksum);
        bytes[at + 24..at + 28].copy_from_slice(&checksum);
    }
    let checksum = trailer_checksum(&bytes[at..at + 32]).to_le_bytes();
    bytes[at + 28..at + 32].copy_from_slice(&checksum);
}

/// Footers to begin with.
pub fn footers() -> Vec<Vec<u8>> {
    let footer = |open_end| Footer {
        id: 5,
        meta: crate::lsm::SegmentMeta {
            pages: 9,
            smallest: (*b"key 000").into(),
            largest: (*b"key 900").into(),
            open_end,
            entries: 300,
            deletions: 30,
            ranges: 2,
            bytes: 30_000,
            commits: (7, 70_000),
        },
        data: 30_000,
        blocks: 8,
        filter: filter::Shape::new(300, 10),
        filter_at: 32_000,
        filter_checksums: vec![77],
        prefix: 4,
        top: Location { offset: 31_000, len: 100, checksum: 5 },
        ranges: Location { offset: 32_400, len: 50, checksum: 6 },
    };
    vec![footer(false).encode(), footer(true).encode()]
}

/// The value of a row of the list of segments.
pub fn listed(bytes: &[u8]) -> Verdict {
    let key = [&5u64.to_be_bytes()[..], &[0, 0]].concat();
    match list::segments(&[(key, bytes.to_vec())], KeyspaceId(7), PageId(9)) {
        Ok(found) => {
            let (level, segment) = &found[0];
            let again = list::segments(&list::rows(segment, *level, 100), KeyspaceId(7), PageId(9));
            assert!(again.is_ok_and(|again| again == found), "it comes back");
            Verdict::Sound
        }
        Err(e) => {
            assert!(e.to_string().contains("page 9"), "{e}");
            if bytes.len() > 20 { Verdict::Unsound } else { Verdict::Refused }
        }
    }
}

/// The body of a job for a worker near the data, or of its answer, under a right head.
pub fn near_message(is_job: bool, body: &[u8]) -> Verdict {
    let kind = if is_job { near::Kind::Job } else { near::Kind::Answer };
    let body = &body[..body.len().min(1 << 20)];
    let bytes = near::seal(kind, body);
    let again = match is_job {
        true => near::Job::decode(&bytes).ok().and_then(|job| job.encode()),
        false => near::Answer::decode(&bytes).ok().map(|answer| answer.encode()),
    };
    // The same as a part of an answer, which has less in it.
    let part = near::seal(near::Kind::Part, body);
    if let Some(part) = near::Part::decode(&part).ok().filter(|_| !is_job) {
        assert_eq!(near::Part::decode(&part.encode()), Ok(part), "it comes back");
    }
    let Some(again) = again else { return if body.len() > 9 { Verdict::Unsound } else { Verdict::Refused } };
    // Numbers may be written in more bytes than they need.
    match is_job {
        true => assert_eq!(near::Job::decode(&again), near::Job::decode(&bytes), "it comes back"),
        false => assert_eq!(near::Answer::decode(&again), near::Answer::decode(&bytes), "it comes back"),
    }
    Verdict::Sound
}

/// Bodies to begin with: whether each is a job.
pub fn near_messages() -> Vec<(bool, Vec<u8>)> {
    const HEAD: usize = 16;
    let (job, answers, _) = near::examples();
    let answers = answers.iter().map(|answer| (false, answer.encode()));
    let all = job.encode().into_iter().map(|job| (true, job)).chain(answers);
    all.map(|(is_job, bytes)| (is_job, bytes[HEAD..].to_vec())).collect()
}

/// Rows of the list of segments to begin with.
pub fn lists() -> Vec<Vec<u8>> {
    let one = |runs: u64| {
        let meta = crate::lsm::SegmentMeta {
            pages: 4 * runs,
            smallest: (*b"key 000").into(),
            largest: (*b"key 900").into(),
            entries: 300,
            deletions: 30,
            bytes: 30_000,
            commits: (7, 70_000),
            ..crate::lsm::SegmentMeta::default()
        };
        let runs = (0..runs).map(|n| (PageId(100 * n), 4)).collect();
        let mut rows = list::rows(&crate::lsm::Segment { id: 5, meta, runs }, 2, 1000);
        rows.remove(0).1
    };
    vec![one(1), one(9)]
}
