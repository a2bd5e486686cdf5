//! Working: blocks are checked, unpacked, merged; what is kept is packed into new segments.

use super::read::{Batch, Fetched};
use super::{BATCH, Piece, Span, Tally, Task};
use crate::error::{Error, Result};
use crate::lsm::block::{Block, Frame, Place};
use crate::lsm::merge::{Heap, Retention};
use crate::lsm::part::{self, Location, Part};
use crate::lsm::ranges::Fragments;
use crate::lsm::segment::{SegmentOptions, SegmentWriter};
use crate::lsm::{Entry, EntryKind, PageSink, order};
use crate::rows::Damage;
use std::collections::VecDeque;
use varve_rt::{Cost, charge};
use varve_volume::Lsn;

/// Where the next batch comes from; none: that was the last.
type Next<'n> = &'n mut dyn FnMut() -> Result<Option<Batch>>;
/// Where pieces go.
type Emit<'e> = &'e mut dyn FnMut(Piece) -> Result<()>;

/// A sorted run, as far as it was read.
#[derive(Default)]
struct Feed {
    waiting: VecDeque<Fetched>,
    bytes: Vec<u8>,
    frame: Frame,
    place: Place,
    /// Where the block lies: which input of the run, and its place there.
    from: (usize, Location),
    /// It has passed the range.
    past: bool,
}

impl Feed {
    fn block(&self) -> Block<'_> {
        Block::again(&self.bytes, self.frame)
    }

    fn entry(&self) -> Option<Entry<'_>> {
        self.is_valid().then(|| self.place.entry(&self.block()))
    }

    fn is_valid(&self) -> bool {
        self.place.is_valid() && !self.past
    }

    /// Stands in a new block, at its first entry of the range.
    fn enter(&mut self, raw: &[u8], range: &Span, from: (usize, Location)) -> Result<(), Damage> {
        self.from = from;
        self.bytes.clear();
        self.bytes.extend_from_slice(raw);
        let block = Block::parse(raw)?;
        self.frame = block.frame();
        match &range.from {
            Some(from) => self.place.seek(&block, from, Lsn::MAX)?,
            None => self.place.first(&block)?,
        }
        self.end_at(range);
        Ok(())
    }

    /// Notes whether it has passed the range.
    fn end_at(&mut self, range: &Span) {
        let past = range.to.is_some() && self.entry().is_some_and(|entry| range.is_before(entry.key));
        if past {
            self.past = true;
            self.waiting.clear();
        }
    }
}

/// Pages of outputs that were not sent on yet.
struct Buffer {
    usable: usize,
    bytes: Vec<u8>,
}

impl PageSink for Buffer {
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

struct Work<'t> {
    task: &'t Task,
    feeds: Vec<Feed>,
    heap: Heap,
    retention: Retention,
    /// Range deletions that are kept.
    ranges: Fragments,
    writer: Option<(u64, SegmentWriter)>,
    buffer: Buffer,
    /// First key of the next output's range deletions.
    from: Option<Vec<u8>>,
    /// Grandparents that the output has passed, and their pages.
    passed: usize,
    overlap: u64,
    tally: Tally,
}

/// Does the work of a merge.
pub(super) fn run(task: &Task, next: Next<'_>, emit: Emit<'_>) -> Result<Tally> {
    let ranges = Fragments::union(task.runs.iter().flatten().map(|input| input.reader.ranges()));
    let ranges = ranges.clipped(task.range.from.as_deref(), task.range.to.as_deref());
    let mut written = 0;
    let emit: Emit<'_> = &mut |piece: Piece| {
        if let Piece::Pages(bytes) = &piece {
            written += bytes.len() as u64;
        }
        emit(piece)
    };
    let retention = Retention::new(task.moments.clone(), task.below.clone(), ranges);
    let mut work = Work {
        feeds: task.runs.iter().map(|_| Feed::default()).collect(),
        heap: Heap::default(),
        ranges: retention.ranges(),
        retention,
        writer: None,
        buffer: Buffer { usable: task.usable, bytes: Vec::new() },
        from: None,
        passed: 0,
        overlap: 0,
        tally: Tally::default(),
        task,
    };
    let mut more = true;
    for run in 0..work.feeds.len() {
        work.refill(run, &mut more, next)?;
    }
    let feeds = &work.feeds;
    let standing = (0..feeds.len()).filter(|run| feeds[*run].entry().is_some());
    work.heap = Heap::new(standing, |a, b| is_before(feeds, a, b));
    while let Some(run) = work.heap.top() {
        work.take(run, emit)?;
        work.advance(run, &mut more, next)?;
    }
    let tally = work.end(emit)?;
    Ok(Tally { written, ..tally })
}

fn is_before(feeds: &[Feed], a: usize, b: usize) -> bool {
    let (Some(one), Some(other)) = (feeds[a].entry(), feeds[b].entry()) else { return false };
    order((one.key, one.commit), (other.key, other.commit)).then(a.cmp(&b)).is_lt()
}

impl Work<'_> {
    /// The next block of a run, which has been read or will be; at the end of the run it stands nowhere.
    fn refill(&mut self, run: usize, more: &mut bool, next: Next<'_>) -> Result<()> {
        while !self.feeds[run].is_valid() && !self.feeds[run].past {
            while self.feeds[run].waiting.is_empty() && *more {
                let batch = next()?;
                *more = batch.is_some();
                for block in batch.into_iter().flatten() {
                    self.tally.read += block.stored.len() as u64;
                    self.feeds[block.run].waiting.push_back(block);
                }
            }
            let feed = &mut self.feeds[run];
            let Some(fetched) = feed.waiting.pop_front() else { return Ok(()) };
            let raw = part::open(&fetched.stored, Part::Data, fetched.at.checksum, true);
            let from = (fetched.input, fetched.at);
            let entered = raw.and_then(|raw| feed.enter(&raw, &self.task.range, from));
            entered.map_err(|damage| self.damage(run, from, damage))?;
        }
        Ok(())
    }

    /// Damage of a block of a run.
    fn damage(&self, run: usize, (input, at): (usize, Location), damage: Damage) -> Error {
        let input = &self.task.runs[run][input];
        input.reader.damage(&*input.source, at, Part::Data, damage)
    }

    fn advance(&mut self, run: usize, more: &mut bool, next: Next<'_>) -> Result<()> {
        let feed = &mut self.feeds[run];
        let Feed { bytes, frame, place, from, .. } = feed;
        let from = *from;
        if let Err(damage) = place.next(&Block::again(bytes, *frame)) {
            return Err(self.damage(run, from, damage));
        }
        feed.end_at(&self.task.range);
        self.refill(run, more, next)?;
        let feeds = &self.feeds;
        match feeds[run].entry() {
            Some(_) => self.heap.moved(|a, b| is_before(feeds, a, b)),
            None => self.heap.pop(|a, b| is_before(feeds, a, b)),
        }
        Ok(())
    }

    /// Takes the entry at which the run stands.
    fn take(&mut self, run: usize, emit: Emit<'_>) -> Result<()> {
        let block = self.feeds[run].block();
        let entry = self.feeds[run].place.entry(&block);
        charge(Cost::MergePair, 1);
        charge(Cost::MergeByte, (entry.key.len() + entry.value.len()) as u64);
        debug_assert!(!self.task.range.is_after(entry.key) && !self.task.range.is_before(entry.key), "of the range");
        self.tally.pairs += 1;
        self.tally.large += u64::from(entry.value.len() > self.task.large);
        if entry.kind == EntryKind::DeleteRange {
            return Err(self.damage(run, self.feeds[run].from, Damage("a deletion of a range among the entries")));
        }
        // The block's checksum was right: what is not in order was written so.
        match self.retention.keeps(&entry) {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(damage) => return Err(self.damage(run, self.feeds[run].from, damage)),
        }
        let (key, task) = (entry.key, self.task);
        while let Some(segment) = task.grandparents.get(self.passed).filter(|s| s.meta.compare(key).is_lt()) {
            self.overlap += segment.meta.pages;
            self.passed += 1;
        }
        // A key's versions stay together.
        let ends = self.writer.as_ref().is_some_and(|(_, writer)| {
            writer.largest() != key && (writer.bytes() >= task.segment_bytes || self.overlap > task.most_overlap)
        });
        if ends {
            let key = key.to_vec();
            let ranges = self.ranges.clipped(self.from.as_deref(), Some(&key));
            finish(&mut self.writer, &mut self.buffer, (&ranges, Some(&key)), emit)?;
            (self.from, self.overlap) = (Some(key), 0);
        }
        let (_, writer) = self.writer.get_or_insert_with(|| new_writer(task));
        if writer.entries() == 0 {
            self.overlap = 0;
        }
        writer.add(&entry, &mut self.buffer)?;
        if self.buffer.bytes.len() >= BATCH {
            emit(Piece::Pages(std::mem::take(&mut self.buffer.bytes)))
        } else {
            Ok(())
        }
    }

    fn end(mut self, emit: Emit<'_>) -> Result<Tally> {
        let ranges = self.ranges.clipped(self.from.as_deref(), None);
        if self.writer.is_none() && !ranges.is_empty() {
            self.writer = Some(new_writer(self.task));
        }
        finish(&mut self.writer, &mut self.buffer, (&ranges, None), emit)?;
        Ok(self.tally)
    }
}

fn new_writer(task: &Task) -> (u64, SegmentWriter) {
    let id = (task.next_id)();
    (id, SegmentWriter::new(SegmentOptions { id, ..task.options.clone() }, task.usable))
}

/// Ends the output, if there is one; the one after it begins with the key `next`.
fn finish(
    writer: &mut Option<(u64, SegmentWriter)>,
    buffer: &mut Buffer,
    (ranges, next): (&Fragments, Option<&[u8]>),
    emit: Emit<'_>,
) -> Result<()> {
    let Some((id, mut writer)) = writer.take() else { return Ok(()) };
    writer.add_ranges(ranges);
    let meta = writer.finish(buffer)?;
    if !buffer.bytes.is_empty() {
        emit(Piece::Pages(std::mem::take(&mut buffer.bytes)))?;
    }
    emit(Piece::Done(id, meta, next.map(<[u8]>::to_vec)))
}
