//! Sorted runs of writes on scratch pages: what an open transaction writes and memory has no room for.
//!
//! A *path* is a keyspace's number, four bytes big endian, and a key: paths are in the order in which a commit makes
//! its writes. A run has the versions of each path behind each other, the newest first. A version's *mark* is the
//! newest savepoint there was when it was written, 0 for none: a rollback to a savepoint takes back all versions with
//! that mark or a greater one, which then are there and not *visible*.
//!
//! Runs are of levels: [`FAN`] of one level are merged into one of the next, so that there are few, and each write is
//! copied a few times however many there are. An index in memory names the first path of every block of a run; blocks
//! grow with the run, so that the index does not.
//!
//! Invariants: of two runs the later one in the list is the newer; a path's versions lie in one block; a run's marks
//! lie below its limit or are not visible.

use super::key::{Bounds, KeyBuf};
use super::stream::{Stored, store_bytes};
use super::write_set::{Value, Write};
use crate::error::{Error, Result};
use crate::rows::{NewValue, OverflowRef};
use crate::space::Core;
use crate::space::scratch::{Reader, Scratch, Writer};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use varve_volume::KeyspaceId;

/// Runs of one level that are merged (assumed: few enough to read side by side, many enough to copy seldom).
const FAN: usize = 8;
/// Smallest block, bytes (assumed: some pages).
const BLOCK: u64 = 16 << 10;
/// Bytes of memory that a run is counted with beside its index and its list of pages.
const RUN: u64 = 1024;
/// Bytes read at a time by each reader of a merge.
const AHEAD: usize = 64 << 10;

/// Values longer than this get pages of their own when they are spilled.
const LONGEST: usize = 64 << 10;

const DELETE: u8 = 0;
const BYTES: u8 = 1;
const STORED: u8 = 2;
/// Beside the tag: a mark follows.
const MARKED: u8 = 0x80;
const _: () = assert!((DELETE | BYTES | STORED) & MARKED == 0, "the bit beside a tag is no part of it");

/// The path of a key.
pub(super) fn path(keyspace: KeyspaceId, key: &[u8]) -> KeyBuf {
    debug_assert!(key.len() + 4 <= usize::from(u16::MAX), "a path's length has two bytes");
    KeyBuf::new(&[&keyspace.0.to_be_bytes()[..], key].concat())
}

/// Keyspace and key of a path.
pub(super) fn parts(path: &[u8]) -> (KeyspaceId, &[u8]) {
    let (id, key) = path.split_first_chunk().expect("a path begins with a keyspace");
    (KeyspaceId(u32::from_be_bytes(*id)), key)
}

/// A write as it lies in a run.
#[derive(Default, Clone)]
pub(super) struct Version {
    pub path: Vec<u8>,
    mark: u64,
    tag: u8,
    /// The value; of one that is stored its place in the list.
    value: Vec<u8>,
}

impl Version {
    /// Bytes that [`Version::encode`] makes of it.
    pub fn len(&self) -> usize {
        let mark = if self.mark > 0 { size_of::<u64>() } else { 0 };
        size_of::<u16>() + 1 + mark + self.path.len() + self.value.len()
    }

    /// Bytes that it needs room for, roughly: none to delete.
    pub fn value_len(&self) -> usize {
        if self.tag == DELETE { 0 } else { self.path.len() + self.value.len() }
    }

    pub fn keyspace(&self) -> KeyspaceId {
        parts(&self.path).0
    }

    /// The value as a commit writes it; of one that is stored the reference is here.
    pub fn new_value(&self) -> Result<Option<NewValue<'_>>> {
        match self.tag {
            DELETE => Ok(None),
            BYTES => Ok(Some(NewValue::Bytes(&self.value))),
            _ => OverflowRef::decode(&self.value).map(|r| Some(NewValue::Stored(r))).ok_or_else(unreadable),
        }
    }

    pub fn encode(&self, into: &mut Vec<u8>) {
        into.clear();
        into.extend_from_slice(&(self.path.len() as u16).to_le_bytes());
        if self.mark > 0 {
            into.push(self.tag | MARKED);
            into.extend_from_slice(&self.mark.to_le_bytes());
        } else {
            into.push(self.tag);
        }
        into.extend_from_slice(&self.path);
        into.extend_from_slice(&self.value);
    }

    /// Takes what was encoded; none when it is something else.
    pub fn decode(&mut self, mut record: &[u8]) -> Option<()> {
        let length = usize::from(u16::from_le_bytes(*record.split_off(..2)?.first_chunk()?));
        let tag = *record.split_off_first()?;
        self.mark = match tag & MARKED {
            0 => 0,
            _ => u64::from_le_bytes(*record.split_off(..8)?.first_chunk()?),
        };
        self.tag = tag & !MARKED;
        self.path.clear();
        self.path.extend_from_slice(record.split_off(..length).filter(|path| path.len() >= 4)?);
        self.value.clear();
        self.value.extend_from_slice(record);
        Some(())
    }
}

fn unreadable() -> Error {
    Error::Invalid("a record of a spilled write cannot be read".into())
}

/// A sorted run.
struct Run {
    scratch: Scratch,
    /// The first path of each block and its place, the first block's too.
    index: Vec<(KeyBuf, u64)>,
    last: KeyBuf,
    /// Versions with marks from here on are not visible.
    limit: u64,
    least_mark: u64,
    level: u32,
    versions: u64,
    memory: u64,
}

/// Writes a run; paths come in order.
struct RunWriter {
    scratch: Writer,
    index: Vec<(KeyBuf, u64)>,
    /// Bytes of the index, and most of them.
    memory: (u64, u64),
    /// Bytes after which a block may begin.
    block: u64,
    last: Vec<u8>,
    least_mark: u64,
    versions: u64,
    record: Vec<u8>,
}

impl RunWriter {
    fn new(core: &Arc<Core>, most_index: u64) -> RunWriter {
        let (scratch, index, memory) = (Writer::new(core), Vec::new(), (0, most_index));
        let (last, record) = (Vec::new(), Vec::new());
        RunWriter { scratch, index, memory, block: BLOCK, last, least_mark: u64::MAX, versions: 0, record }
    }

    fn push(&mut self, version: &Version) -> Result<()> {
        debug_assert!(self.last <= version.path, "paths come in order");
        version.encode(&mut self.record);
        let place = self.scratch.append(&self.record)?;
        let begins = self.index.last().is_none_or(|(_, block)| place >= block + self.block);
        if self.versions == 0 || begins && self.last != version.path {
            self.add_block(&version.path, place);
        }
        self.last.clone_from(&version.path);
        self.least_mark = self.least_mark.min(version.mark);
        self.versions += 1;
        Ok(())
    }

    fn add_block(&mut self, path: &[u8], place: u64) {
        let bytes = |path: &[u8]| (size_of::<(KeyBuf, u64)>() + KeyBuf::heap_bytes_of(path)) as u64;
        self.index.push((KeyBuf::new(path), place));
        self.memory.0 += bytes(path);
        while self.memory.0 > self.memory.1 && self.index.len() > 1 {
            let mut n = 0;
            self.index.retain(|_| {
                n += 1;
                n % 2 == 1
            });
            self.block *= 2;
            self.memory.0 = self.index.iter().map(|(path, _)| bytes(path)).sum();
        }
    }

    fn finish(self, level: u32) -> Result<Run> {
        assert!(self.versions > 0 && !self.index.is_empty(), "a run has something in it");
        let scratch = self.scratch.finish()?;
        let memory = RUN + self.memory.0 + scratch.memory() as u64;
        let (index, last, versions) = (self.index, KeyBuf::new(&self.last), self.versions);
        Ok(Run { scratch, index, last, limit: u64::MAX, least_mark: self.least_mark, level, versions, memory })
    }
}

impl Run {
    /// The first block in which a path could be; none when it lies outside of the run.
    fn block_of(&self, path: &[u8]) -> Option<usize> {
        let block = self.index.partition_point(|(first, _)| **first <= *path);
        if *path > *self.last { None } else { block.checked_sub(1) }
    }

    fn source(&self, block: usize, ahead: usize) -> Source<'_> {
        Source { run: self, reader: self.scratch.reader_from(self.index[block].1, ahead), next: None }
    }

    /// The newest visible version of a path.
    fn find(&self, path: &[u8]) -> Result<Option<Version>> {
        let Some(block) = self.block_of(path) else { return Ok(None) };
        let mut source = self.source(block, AHEAD);
        while let Some(version) = source.advance()? {
            if *version.path >= *path {
                return Ok(source.next.take().filter(|version| *version.path == *path));
            }
        }
        Ok(None)
    }
}

/// The visible versions of a run, in order.
struct Source<'r> {
    run: &'r Run,
    reader: Reader<'r>,
    next: Option<Version>,
}

impl Source<'_> {
    /// Goes to the next version.
    fn advance(&mut self) -> Result<Option<&Version>> {
        let mut version = self.next.take().unwrap_or_default();
        while let Some((_, record)) = self.reader.next()? {
            if version.decode(record).is_none() {
                return Err(unreadable());
            }
            if version.mark < self.run.limit {
                self.next = Some(version);
                return Ok(self.next.as_ref());
            }
        }
        Ok(None)
    }
}

/// The versions of several runs: ascending paths, of each path the newest first.
struct Merge<'r> {
    /// Older runs first.
    sources: Vec<Source<'r>>,
    taken: Version,
}

impl<'r> Merge<'r> {
    fn new(runs: &'r [Run]) -> Result<Merge<'r>> {
        let mut sources: Vec<Source<'r>> = runs.iter().map(|run| run.source(0, AHEAD)).collect();
        for source in &mut sources {
            source.advance()?;
        }
        Ok(Merge { sources, taken: Version::default() })
    }

    fn next(&mut self) -> Result<Option<&Version>> {
        let mut first: Option<(usize, &Version)> = None;
        for (at, source) in self.sources.iter().enumerate() {
            // Of one path the later run comes first: it is newer.
            if let Some(version) = &source.next
                && first.is_none_or(|(_, other)| version.path <= other.path)
            {
                first = Some((at, version));
            }
        }
        let Some((at, _)) = first else { return Ok(None) };
        let next = self.sources[at].next.as_mut().expect("seen above");
        std::mem::swap(next, &mut self.taken);
        self.sources[at].advance()?;
        Ok(Some(&self.taken))
    }
}

/// What of a range was looked at.
pub(super) struct Window {
    /// The newest visible writes there.
    pub writes: BTreeMap<KeyBuf, Write>,
    /// Where it ends before the range does: going up, before this key; going down, with it.
    pub cut: Option<KeyBuf>,
}

/// The number of a version's value that was written ahead.
fn number(version: &Version) -> Option<usize> {
    version.value.first_chunk().map(|n| u32::from_le_bytes(*n) as usize)
}

/// The runs of a write set, older ones first.
pub(super) struct Spill {
    core: Arc<Core>,
    runs: Vec<Run>,
    /// Values that were written ahead, by the numbers that versions have for them; none: no version has it any more.
    stored: Vec<Option<Arc<Stored>>>,
    /// Most bytes of a run's index.
    most_index: u64,
}

impl Spill {
    /// None; their indexes will take up to `most_index` bytes each.
    pub fn new(core: &Arc<Core>, most_index: u64) -> Spill {
        Spill { core: core.clone(), runs: Vec::new(), stored: Vec::new(), most_index }
    }

    /// The core that its pages are in.
    #[inline]
    pub fn core(&self) -> &Arc<Core> {
        &self.core
    }

    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Versions, some of which may not be visible.
    pub fn len(&self) -> u64 {
        self.runs.iter().map(|run| run.versions).sum()
    }

    /// Bytes of memory that they take.
    pub fn memory(&self) -> u64 {
        let stored: u64 = self.stored.iter().flatten().map(|s| 2048 + s.memory as u64).sum();
        self.runs.iter().map(|run| run.memory).sum::<u64>() + stored
    }

    /// One run of all, for a commit: of each path the newest. Values that were written ahead for others are given up.
    pub fn merge_all(&mut self, most_index: u64) -> Result<()> {
        let merged = self.merge(0, u32::MAX, most_index, &[])?;
        if !self.stored.is_empty() {
            self.give_up_but(&merged)?;
        }
        self.runs = vec![merged];
        Ok(())
    }

    /// Gives up the values that no version of a run has.
    fn give_up_but(&mut self, run: &Run) -> Result<()> {
        let mut wanted = vec![false; self.stored.len()];
        let mut versions = run.source(0, AHEAD);
        assert!(!wanted.is_empty(), "there are values to be looked for");
        while let Some(version) = versions.advance()? {
            debug_assert!(matches!(version.tag, DELETE | BYTES | STORED), "a version is of a kind");
            if version.tag == STORED {
                *number(version).and_then(|n| wanted.get_mut(n)).ok_or_else(unreadable)? = true;
            }
        }
        self.stored.iter_mut().zip(wanted).filter(|(_, wanted)| !wanted).for_each(|(stored, _)| *stored = None);
        Ok(())
    }

    /// The value that was written ahead for a version.
    fn stored_of(&self, version: &Version) -> Option<&Arc<Stored>> {
        debug_assert_eq!(version.tag, STORED, "the value of another is with it");
        self.stored.get(number(version)?)?.as_ref()
    }

    /// Makes a run of writes, which come by path, the newest of each first, with their marks. `marks`: the savepoints
    /// there are. `apart`: whether a keyspace has pages of their own for long values.
    pub fn add<'w>(
        &mut self,
        writes: impl Iterator<Item = (KeyBuf, u64, &'w Write)>,
        marks: &[u64],
        apart: impl Fn(KeyspaceId) -> bool,
    ) -> Result<()> {
        let mut writer = RunWriter::new(&self.core, self.most_index);
        let mut version = Version::default();
        let stored = self.stored.len();
        // The smallest piece of a commit has one value, on a page more than it would fill without their headers, a leaf
        // for it, and one of the catalog.
        let pages = self.core.pool.pin_limit().saturating_sub(3);
        let longest = LONGEST.min(pages * self.core.page_size());
        for (path, mark, write) in writes {
            version.path.clear();
            version.path.extend_from_slice(&path);
            version.mark = mark;
            version.value.clear();
            match write {
                None => version.tag = DELETE,
                // A piece of a commit takes some pages of values, not all there may be.
                Some(Value::Bytes(bytes)) if bytes.len() > longest && apart(parts(&path).0) => {
                    let value = store_bytes(&self.core, parts(&path).0, bytes);
                    let value = value.inspect_err(|_| self.stored.truncate(stored))?;
                    version.tag = STORED;
                    version.value.extend_from_slice(&(self.stored.len() as u32).to_le_bytes());
                    self.stored.push(Some(value));
                }
                Some(Value::Bytes(bytes)) => {
                    version.tag = BYTES;
                    version.value.extend_from_slice(bytes);
                }
                Some(Value::Stored(value)) => {
                    version.tag = STORED;
                    version.value.extend_from_slice(&(self.stored.len() as u32).to_le_bytes());
                    self.stored.push(Some(value.clone()));
                }
            }
            writer.push(&version).inspect_err(|_| self.stored.truncate(stored))?;
        }
        let run = writer.finish(0).inspect_err(|_| self.stored.truncate(stored))?;
        self.runs.push(run);
        self.merge_levels(marks)
    }

    /// Merges runs where there are many of one level.
    fn merge_levels(&mut self, marks: &[u64]) -> Result<()> {
        loop {
            let level = self.runs.last().expect("one was added").level;
            let first = self.runs.iter().rposition(|run| run.level != level).map_or(0, |at| at + 1);
            if self.runs.len() - first < FAN {
                return Ok(());
            }
            let merged = self.merge(first, level + 1, self.most_index, marks)?;
            self.runs.truncate(first);
            self.runs.push(merged);
        }
    }

    /// One run of those from `first` on, without what nobody goes back to.
    fn merge(&self, first: usize, level: u32, most_index: u64, marks: &[u64]) -> Result<Run> {
        assert!(first < self.runs.len(), "there is something to merge");
        let mut merge = Merge::new(&self.runs[first..])?;
        let mut writer = RunWriter::new(&self.core, most_index);
        let mut kept = u64::MAX;
        while let Some(version) = merge.next()? {
            let newer = writer.versions > 0 && writer.last == version.path;
            // Some savepoint came between this version and the newer one.
            let wanted = || marks.iter().any(|&mark| version.mark < mark && mark <= kept);
            if !newer || wanted() {
                kept = version.mark;
                writer.push(version)?;
            }
        }
        writer.finish(level)
    }

    /// Everything before a savepoint comes back.
    pub fn roll_back(&mut self, mark: u64) {
        assert!(mark > 0, "a savepoint has a number");
        self.runs.iter_mut().for_each(|run| run.limit = run.limit.min(mark));
        self.runs.retain(|run| run.least_mark < run.limit);
    }

    pub fn clear(&mut self) {
        self.runs.clear();
        self.stored.clear();
    }

    fn write_of(&self, version: Version) -> Result<Write> {
        match version.tag {
            DELETE => Ok(None),
            BYTES => Ok(Some(Value::Bytes(version.value.into()))),
            _ => {
                let stored = self.stored_of(&version).ok_or_else(unreadable)?;
                Ok(Some(Value::Stored(stored.clone())))
            }
        }
    }

    /// The newest visible write of a key.
    pub fn get(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<Write>> {
        let path = path(keyspace, key);
        for run in self.runs.iter().rev() {
            if let Some(version) = run.find(&path)? {
                return self.write_of(version).map(Some);
            }
        }
        Ok(None)
    }

    /// Whether there may be writes to a keyspace.
    pub fn touches(&self, keyspace: KeyspaceId) -> bool {
        let id = keyspace.0.to_be_bytes();
        self.runs.iter().any(|run| run.index[0].0[..4] <= id[..] && run.last[..4] >= id[..])
    }

    /// The writes at one end of a range: a block or so of each run.
    pub fn window(&self, keyspace: KeyspaceId, range: Bounds<'_>, forward: bool) -> Result<Window> {
        let low = match range.0 {
            Bound::Unbounded => Bound::Included(path(keyspace, &[])),
            bound => bound.map(|key| path(keyspace, key)),
        };
        let high = match range.1 {
            Bound::Unbounded => match keyspace.0.checked_add(1) {
                Some(next) => Bound::Excluded(path(KeyspaceId(next), &[])),
                None => Bound::Unbounded,
            },
            bound => bound.map(|key| path(keyspace, key)),
        };
        let (low, high) = (low.as_ref().map(|p| &**p), high.as_ref().map(|p| &**p));
        let cut = self.cut(low, high, forward);
        debug_assert!(cut.as_ref().is_none_or(|cut| parts(cut).0 == keyspace), "a cut lies within the range");
        let (from, to) = match (&cut, forward) {
            (None, _) => (low, high),
            (Some(cut), true) => (low, Bound::Excluded(&**cut)),
            (Some(cut), false) => (Bound::Included(&**cut), high),
        };
        let mut writes = BTreeMap::new();
        for run in &self.runs {
            self.collect(run, (from, to), &mut writes)?;
        }
        Ok(Window { writes, cut: cut.map(|cut| KeyBuf::new(parts(&cut).1)) })
    }

    /// The end of the shortest block at the lower or upper end of a range of paths, if that lies within.
    fn cut(&self, low: Bound<&[u8]>, high: Bound<&[u8]>, forward: bool) -> Option<KeyBuf> {
        let above = |path: &[u8]| match low {
            Bound::Included(low) | Bound::Excluded(low) => path > low,
            Bound::Unbounded => true,
        };
        let below = |path: &[u8]| match high {
            Bound::Included(high) | Bound::Excluded(high) => path < high,
            Bound::Unbounded => true,
        };
        let within = |path: &&KeyBuf| above(path) && below(path);
        if forward {
            let first = |run: &'_ Run| -> Option<KeyBuf> {
                let at = run.index.partition_point(|(path, _)| !above(path));
                run.index.get(at).map(|(path, _)| path).filter(within).cloned()
            };
            self.runs.iter().filter_map(first).min()
        } else {
            let last = |run: &'_ Run| -> Option<KeyBuf> {
                let at = run.index.partition_point(|(path, _)| below(path)).checked_sub(1)?;
                Some(&run.index[at].0).filter(within).cloned()
            };
            self.runs.iter().filter_map(last).max()
        }
    }

    /// Puts the newest visible writes of a run that lie within a range of paths in the place of older ones.
    fn collect(&self, run: &Run, range: Bounds<'_>, into: &mut BTreeMap<KeyBuf, Write>) -> Result<()> {
        let block = match range.0 {
            Bound::Included(low) | Bound::Excluded(low) if *low > *run.last => return Ok(()),
            Bound::Included(low) | Bound::Excluded(low) => run.block_of(low).unwrap_or(0),
            Bound::Unbounded => 0,
        };
        let mut source = run.source(block, AHEAD);
        let mut last: Vec<u8> = Vec::new();
        while let Some(version) = source.advance()? {
            let above = super::key::contains((Bound::Unbounded, range.1), &version.path);
            if !above {
                break;
            }
            if *version.path == *last || !super::key::contains(range, &version.path) {
                continue;
            }
            last.clone_from(&version.path);
            into.insert(KeyBuf::new(parts(&version.path).1), self.write_of(version.clone())?);
        }
        Ok(())
    }
}

/// A write set as one run, each path once.
pub(super) struct Merged(Spill);

/// Its versions, in order.
pub(super) struct Versions<'m>(Source<'m>);

impl Versions<'_> {
    pub fn next(&mut self) -> Result<Option<&Version>> {
        self.0.advance()
    }
}

impl Merged {
    pub fn new(spill: Spill) -> Merged {
        assert_eq!(spill.runs.len(), 1, "all runs were merged");
        Merged(spill)
    }

    pub fn spill(&self) -> &Spill {
        &self.0
    }

    /// The values that were written ahead.
    pub fn stored(&self) -> impl Iterator<Item = &Arc<Stored>> {
        self.0.stored.iter().flatten()
    }

    pub fn versions(&self) -> Versions<'_> {
        Versions(self.0.runs[0].source(0, AHEAD))
    }

    /// The write as it is stored for good: without a mark, and with the place of a value that was written ahead.
    pub fn durable(&self, version: &Version) -> Result<Version> {
        let mut version = Version { mark: 0, ..version.clone() };
        if version.tag == STORED {
            let stored = self.0.stored_of(&version).ok_or_else(unreadable)?;
            version.value = stored.reference.encode().to_vec();
        }
        Ok(version)
    }
}
