//! The rows of a keyspace whose pages are read one by one, whatever became of its list of segments and their indexes:
//! for salvage.
//!
//! Data blocks are found by the index of their segment; where that is damaged, and in pages that no list names, by
//! their headers, whose checksums tell. What lies in blocks and what the log had is merged as a reader would: the
//! newest entry of a key stands, unless a younger deletion covers it. A block that is lost takes the newest entries of
//! its keys with it, so that older ones stand; who is told of the block is told that.
//!
//! Invariants: a block is read only when every bit of it agrees with its checksum; rows come in key order, each once.

use super::block::{Block, MAX_BLOCK, Place};
use super::pages::{KIND_SEGMENT, PageRuns, page_of};
use super::part::{self, Location, Part};
use super::ranges::{Fragments, RangeDelete};
use super::record::{self, Record};
use super::segment::{SegmentReader, deletes, is_trailer};
use super::{EntryKind, PageSource, Segment};
use crate::error::{Error, Result};
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use varve_volume::page::{self, HEADER};
use varve_volume::{KeyspaceId, Lsn, PageId};

/// A page, if it is whole.
pub(crate) type ReadPage<'a> = dyn Fn(PageId) -> Result<Option<Vec<u8>>> + Sync + 'a;

/// What is left of a keyspace.
#[derive(Default)]
pub(crate) struct Remains {
    pub keyspace: KeyspaceId,
    /// Bytes of a page that segments may use.
    pub usable: usize,
    pub segments: Vec<Segment>,
    /// Runs of pages of segments that nothing names any more.
    pub strays: PageRuns,
    /// Records of the log: start and end of their group, bytes.
    pub records: Vec<(Lsn, Lsn, Box<[u8]>)>,
}

/// A row's key and value, or the value's reference.
pub(crate) type EachRow<'a> = dyn FnMut(&[u8], &[u8]) -> Result<()> + 'a;

/// Hands each row to `each`, in key order, and what is lost, in words, to `lost`.
pub(crate) fn rows(
    remains: Remains,
    page: &ReadPage<'_>,
    lost: &mut dyn FnMut(String),
    each: &mut EachRow<'_>,
) -> Result<()> {
    assert!(remains.usable > part::HEAD, "a page has room for a header");
    let mut merged = Merged::default();
    let Remains { keyspace, usable, segments, strays, records } = remains;
    let pages = |segment: u64, runs: PageRuns| Pages { page, keyspace, usable, segment, runs };
    merged.log(records, lost)?;
    for segment in segments {
        let pages = pages(segment.id, segment.runs.clone());
        merged.segment(pages, segment, lost)?;
    }
    for run in cut(strays, page, usable)? {
        merged.stray(pages(0, vec![run]))?;
    }
    merged.rows(lost, each)
}

/// What is damaged, without the advice to salvage it.
fn words(e: Error) -> String {
    match e {
        Error::Corrupt(damage) => damage.to_string(),
        e => e.to_string(),
    }
}

/// Cuts runs of pages where segments end.
fn cut(runs: PageRuns, page: &ReadPage<'_>, usable: usize) -> Result<PageRuns> {
    let mut pieces = PageRuns::new();
    for (first, pages) in runs {
        let mut begin = first.0;
        for id in first.0..first.0 + pages {
            let ends = page(PageId(id))?.is_some_and(|bytes| is_trailer(&bytes[HEADER..HEADER + usable]));
            // Places in a piece are numbers of 32 bits.
            if ends || (id + 2 - begin) * usable as u64 > u32::MAX.into() || id + 1 == first.0 + pages {
                pieces.push((PageId(begin), id + 1 - begin));
                begin = id + 1;
            }
        }
    }
    assert!(pieces.iter().all(|(_, pages)| *pages > 0), "a piece has pages");
    Ok(pieces)
}

/// The pages of a segment, or of a stray run.
struct Pages<'a> {
    page: &'a ReadPage<'a>,
    keyspace: KeyspaceId,
    usable: usize,
    segment: u64,
    runs: PageRuns,
}

impl Pages<'_> {
    fn count(&self) -> u64 {
        self.runs.iter().map(|(_, pages)| pages).sum()
    }

    /// What a segment has in its `n`-th page, if that is whole.
    fn body(&self, n: u64) -> Result<Option<Vec<u8>>> {
        let Some((id, _)) = page_of(&self.runs, n) else { return Ok(None) };
        let mine = |bytes: &Vec<u8>| page::kind(bytes) == KIND_SEGMENT && page::keyspace(bytes) == self.keyspace;
        Ok((self.page)(id)?.filter(mine).map(|bytes| bytes[HEADER..HEADER + self.usable].to_vec()))
    }

    /// The bytes of a part as they are stored, if all their pages are whole.
    fn stored(&self, at: u64, len: usize) -> Result<Option<Vec<u8>>> {
        let (mut stored, mut n) = (Vec::new(), at / self.usable as u64);
        let mut start = (at % self.usable as u64) as usize;
        while stored.len() < len {
            let Some(body) = self.body(n)? else { return Ok(None) };
            stored.extend_from_slice(&body[start..self.usable.min(start + len - stored.len())]);
            (start, n) = (0, n + 1);
        }
        Ok(Some(stored))
    }

    /// A block, if it is whole and the one that is meant.
    fn block(&self, at: Location, part: Part) -> Result<Option<Vec<u8>>> {
        if at.len == 0 || at.len as usize > MAX_BLOCK + part::HEAD {
            return Ok(None);
        }
        let stored = self.stored(at.offset.into(), at.len as usize)?;
        let opened = stored.as_deref().and_then(|stored| part::open(stored, part, at.checksum, true).ok());
        Ok(opened.map(|bytes| bytes.into_owned()).filter(|b| Block::parse(b).and_then(|b| b.validate()).is_ok()))
    }

    /// The parts that are found by their headers, in their order.
    fn parts(&self) -> Result<Vec<(Part, Location)>> {
        let usable = self.usable as u64;
        // Places in a segment are numbers of 32 bits, whatever its list says of its pages.
        let count = self.count().min(u64::from(u32::MAX) / usable);
        let (mut found, mut at, all) = (Vec::new(), 0, count * usable);
        for n in 0..count {
            let (begin, end) = (n * usable, (n + 1) * usable);
            if at >= end {
                continue;
            }
            let Some(mut bytes) = self.body(n)? else { continue };
            // A header may go on in the next page.
            bytes.extend(self.body(n + 1)?.iter().flat_map(|next| &next[..part::HEAD - 1]));
            at = at.max(begin);
            while at < end {
                let head = bytes[(at - begin) as usize..].first_chunk().and_then(part::head);
                match head.filter(|(_, len, _)| at + *len as u64 <= all) {
                    Some((part, len, checksum)) if self.is_part(at, len, part, checksum)? => {
                        found.push((part, Location { offset: at as u32, len: len as u32, checksum }));
                        at += len as u64;
                    }
                    _ => at += 1,
                }
            }
        }
        Ok(found)
    }

    fn is_part(&self, at: u64, len: usize, part: Part, checksum: u32) -> Result<bool> {
        Ok(self.stored(at, len)?.is_some_and(|stored| part::open(&stored, part, checksum, true).is_ok()))
    }
}

impl PageSource for Pages<'_> {
    fn usable(&self) -> usize {
        self.usable
    }

    fn page(&self, n: u64, see: &mut dyn FnMut(&[u8])) -> Result<()> {
        let body = self.body(n)?.ok_or_else(|| self.corrupt(n, "it is not whole, or not a segment's"))?;
        see(&body);
        Ok(())
    }

    fn prefetch(&self, _: u64, _: u64) {}

    fn corrupt(&self, n: u64, what: &str) -> Error {
        let id = page_of(&self.runs, n).or(page_of(&self.runs, 0)).map_or(PageId(0), |(id, _)| id);
        Error::corrupt_page(id, Some(self.keyspace), format!("segment {}, page {n} of it: {what}", self.segment))
    }
}

/// An entry, taken out.
#[derive(PartialEq, Eq)]
struct Taken {
    key: Vec<u8>,
    commit: Lsn,
    kind: EntryKind,
    value: Vec<u8>,
}

/// Blocks whose entries ascend from the first to the last.
struct Run<'a> {
    pages: Pages<'a>,
    /// Knows the keys of a block that is lost.
    reader: Option<SegmentReader>,
    blocks: std::vec::IntoIter<Location>,
    bytes: Vec<u8>,
    place: Place,
    /// Commits that can be in it.
    commits: (Lsn, Lsn),
    /// Entries that it should have, and those that were read.
    entries: Option<u64>,
    read: u64,
}

impl<'a> Run<'a> {
    fn new(pages: Pages<'a>, blocks: Vec<Location>) -> Run<'a> {
        assert!(
            blocks.windows(2).all(|two| two[0].offset < two[1].offset),
            "blocks are read in their order, each once"
        );
        Run {
            pages,
            reader: None,
            blocks: blocks.into_iter(),
            bytes: Vec::new(),
            place: Place::default(),
            commits: (0, Lsn::MAX),
            entries: None,
            read: 0,
        }
    }

    /// The next entry that is whole.
    fn next(&mut self, lost: &mut dyn FnMut(String)) -> Result<Option<Taken>> {
        loop {
            if self.place.is_valid() {
                let block = Block::parse(&self.bytes).expect("it was validated when it was read");
                let entry = self.place.entry(&block);
                let (commit, kind) = (entry.commit, entry.kind);
                let taken = Taken { key: entry.key.to_vec(), commit, kind, value: entry.value.to_vec() };
                self.place.next(&block).expect("it was validated when it was read");
                self.read += 1;
                // (No commit has the number 0.)
                if commit > 0 && (self.commits.0..=self.commits.1).contains(&commit) {
                    return Ok(Some(taken));
                }
                continue;
            }
            let Some(at) = self.blocks.next() else { return Ok(None) };
            match self.pages.block(at, Part::Data)? {
                Some(bytes) => {
                    self.bytes = bytes;
                    let block = Block::parse(&self.bytes).expect("it was validated when it was read");
                    self.place.first(&block).expect("it was validated when it was read");
                }
                None => {
                    const WHY: crate::rows::Damage = crate::rows::Damage("it cannot be read");
                    if let Some(reader) = &self.reader {
                        lost(words(reader.damage(&self.pages, at, Part::Data, WHY)));
                    }
                }
            }
        }
    }
}

/// An entry that waits for its turn, and the run that it is of.
#[derive(PartialEq, Eq)]
struct Waiting(Taken, usize);

impl Ord for Waiting {
    fn cmp(&self, other: &Waiting) -> Ordering {
        let place = |w: &Waiting| (Reverse(w.0.commit), w.1);
        self.0.key.cmp(&other.0.key).then_with(|| place(self).cmp(&place(other)))
    }
}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Waiting) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// All that is left, to be read in order.
#[derive(Default)]
struct Merged<'a> {
    runs: Vec<Run<'a>>,
    /// Entries of the log, the last first.
    log: Vec<Taken>,
    deletes: Vec<RangeDelete>,
}

impl<'a> Merged<'a> {
    fn log(&mut self, records: Vec<(Lsn, Lsn, Box<[u8]>)>, lost: &mut dyn FnMut(String)) -> Result<()> {
        for (start, commit, bytes) in records {
            let read = match record::decode(&bytes, start) {
                // Of what is in segments too the same entries are read twice, and given once. But all may be of a
                // keyspace that had the number before.
                Ok(Record::Settled(Lsn::MAX)) => {
                    (self.log, self.deletes) = (Vec::new(), Vec::new());
                    Ok(())
                }
                Ok(Record::Settled(_)) => Ok(()),
                Ok(Record::Writes(entries)) => record::entries(entries, commit, &mut |entry| {
                    let (key, value) = (entry.key.to_vec(), entry.value.to_vec());
                    match entry.kind {
                        EntryKind::DeleteRange => self.deletes.push(RangeDelete { start: key, end: value, commit }),
                        kind => self.log.push(Taken { key, commit, kind, value }),
                    }
                    Ok(())
                }),
                Err(e) => Err(e),
            };
            read.unwrap_or_else(|e| lost(words(e)));
        }
        // Of what one commit wrote of a key the last stands.
        self.log.sort_by(|a, b| b.key.cmp(&a.key).then(a.commit.cmp(&b.commit)));
        Ok(())
    }

    fn segment(&mut self, pages: Pages<'a>, segment: Segment, lost: &mut dyn FnMut(String)) -> Result<()> {
        let meta = &segment.meta;
        let reader = SegmentReader::open(&pages, segment.id, meta.pages);
        let (mut blocks, mut whole) = (Vec::new(), reader.is_ok());
        match &reader {
            Ok(reader) => {
                let damaged = reader.blocks(&pages, &mut |at| blocks.push(at));
                whole &= damaged.is_empty();
                damaged.into_iter().for_each(|e| lost(words(e)));
                self.deletes.extend(reader.ranges().deletes());
            }
            Err(e) => lost(words(e.clone())),
        }
        if !whole {
            let known: Vec<Location> = std::mem::take(&mut blocks);
            let parts = pages.parts()?;
            let named =
                |at: &Location| known.iter().any(|k| u64::from(k.offset) < at.end() && u64::from(at.offset) < k.end());
            let data = parts.iter().filter(|(part, at)| *part == Part::Data && !named(at)).map(|(_, at)| *at);
            blocks = data.chain(known.iter().copied()).collect();
            if reader.is_err() && !self.ranges(&pages, &parts, meta.commits)? && meta.ranges > 0 {
                lost(format!(
                    "segment {}: {} deletions of ranges are lost, rows of theirs may come back",
                    segment.id, meta.ranges
                ));
            }
        }
        blocks.sort_by_key(|at| at.offset);
        blocks.dedup_by_key(|at| at.offset);
        let run =
            Run { reader: reader.ok(), commits: meta.commits, entries: Some(meta.entries), ..Run::new(pages, blocks) };
        self.runs.push(run);
        Ok(())
    }

    /// Takes the deletions of ranges among the parts that were found; whether there are any.
    fn ranges(&mut self, pages: &Pages<'_>, parts: &[(Part, Location)], commits: (Lsn, Lsn)) -> Result<bool> {
        let before = self.deletes.len();
        for (_, at) in parts.iter().filter(|(part, _)| *part == Part::Ranges) {
            let found = pages.block(*at, Part::Ranges)?.and_then(|bytes| deletes(&bytes).ok()).unwrap_or_default();
            self.deletes.extend(found.into_iter().filter(|d| (commits.0..=commits.1).contains(&d.commit)));
        }
        Ok(self.deletes.len() > before)
    }

    /// Takes what lies in pages that nothing names.
    fn stray(&mut self, pages: Pages<'a>) -> Result<()> {
        let parts = pages.parts()?;
        self.ranges(&pages, &parts, (0, Lsn::MAX))?;
        let blocks: Vec<Location> = parts.into_iter().filter(|(p, _)| *p == Part::Data).map(|(_, at)| at).collect();
        // What ascends is of one segment, or may be read as if it were.
        let mut last: Option<Vec<u8>> = None;
        let mut ascending: Vec<Vec<Location>> = Vec::new();
        for at in blocks {
            let Some(bytes) = pages.block(at, Part::Data)? else { continue };
            let (first, end) = ends(&bytes);
            match ascending.last_mut().filter(|_| last.as_ref().is_some_and(|last| *last < first)) {
                Some(run) => run.push(at),
                None => ascending.push(vec![at]),
            }
            last = Some(end);
        }
        for blocks in ascending {
            let Pages { page, keyspace, usable, segment, ref runs } = pages;
            self.runs.push(Run::new(Pages { page, keyspace, usable, segment, runs: runs.clone() }, blocks));
        }
        Ok(())
    }

    fn rows(mut self, lost: &mut dyn FnMut(String), each: &mut EachRow<'_>) -> Result<()> {
        let ranges = Fragments::new(std::mem::take(&mut self.deletes));
        let mut waiting = BinaryHeap::new();
        for i in 0..=self.runs.len() {
            waiting.extend(self.next(i, lost)?.map(Reverse));
        }
        let mut last: Option<Vec<u8>> = None;
        while let Some(Reverse(Waiting(taken, i))) = waiting.pop() {
            waiting.extend(self.next(i, lost)?.map(Reverse));
            if last.as_ref().is_some_and(|last| *last >= taken.key) {
                continue;
            }
            assert!(taken.commit > 0, "commits have numbers above 0");
            if matches!(taken.kind, EntryKind::Put) && ranges.covering(&taken.key, Lsn::MAX) < taken.commit {
                each(&taken.key, &taken.value)?;
            }
            last = Some(taken.key);
        }
        for run in &self.runs {
            if let Some(entries) = run.entries.filter(|entries| *entries != run.read) {
                let (id, lost_ones) = (run.pages.segment, entries.saturating_sub(run.read));
                lost(format!(
                    "segment {id}: {lost_ones} of {entries} entries are lost: of their keys, older values \
                    are given where there are some, and deleted ones may come back"
                ));
            }
        }
        Ok(())
    }

    /// The next entry of a run; of the log, if it is the one past the last.
    fn next(&mut self, i: usize, lost: &mut dyn FnMut(String)) -> Result<Option<Waiting>> {
        let taken = match self.runs.get_mut(i) {
            Some(run) => run.next(lost)?,
            None => self.log.pop(),
        };
        Ok(taken.map(|taken| Waiting(taken, i)))
    }
}

/// First and last key of a valid block.
fn ends(bytes: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let block = Block::parse(bytes).expect("it was validated when it was read");
    let mut place = Place::default();
    let mut key = |step: fn(&mut Place, &Block<'_>) -> std::result::Result<(), crate::rows::Damage>| {
        step(&mut place, &block).expect("it was validated when it was read");
        place.entry(&block).key.to_vec()
    };
    (key(Place::first), key(Place::last))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lsm::SegmentMeta;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    /// A list may be whole and say what no device has room for.
    #[test]
    fn the_work_for_a_segment_has_a_bound_whatever_its_list_says() {
        for (runs, most) in
            [(vec![(PageId(5), 1 << 60)], 1 << 23), (vec![(PageId(1), 3), (PageId(9), 1 << 33)], 1 << 23)]
        {
            let pages = runs.iter().map(|(_, pages)| pages).sum();
            let meta = SegmentMeta { pages, entries: 1, commits: (1, 2), ..SegmentMeta::default() };
            let segments = vec![Segment { id: 1, meta, runs }];
            let remains = Remains { keyspace: KeyspaceId(7), usable: 4000, segments, ..Remains::default() };
            let (asked, mut notes) = (AtomicU64::new(0), Vec::new());
            let page = |_: PageId| {
                assert!(asked.fetch_add(1, Relaxed) < most, "pages are asked for without end");
                Ok(None)
            };
            rows(remains, &page, &mut |what| notes.push(what), &mut |_, _| unreachable!("there is no row")).unwrap();
            assert!(notes.iter().any(|what| what.contains("1 of 1 entries")), "{notes:?}");
        }
    }
}
