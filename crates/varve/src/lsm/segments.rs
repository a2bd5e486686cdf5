//! The segments of a keyspace at a moment, opened when they are first needed.
//!
//! Invariants: level 0 has the newest segment first; the segments of every other level ascend and are disjoint; a
//! segment that was dropped keeps its pages from use for as long as a list has it.

use super::list;
use super::pages::{PastPool, Place, Pooled, WINDOW};
use super::segment::{SegmentCursor, SegmentReader};
use super::stats::Looked;
use super::{Entries, Entry, EntryKind, Segment, Version, filter};
use crate::btree::{ReadAhead, Tree};
use crate::error::{Error, Result};
use crate::rows::{Direction, ValueRef};
use crate::space::{Core, HeldPages};
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use varve_rt::Mutex;
use varve_volume::{KeyspaceId, Lsn, PageId};

/// A segment of an open database.
pub(super) struct OpenSegment {
    pub segment: Arc<Segment>,
    pub place: Arc<Place>,
    pooled: Arc<Pooled>,
    reader: Mutex<Option<Arc<SegmentReader>>>,
    /// Its pages, once it was dropped; free when the last list that has it is gone.
    held: Mutex<Option<HeldPages>>,
}

impl OpenSegment {
    pub fn new(core: &Arc<Core>, keyspace: KeyspaceId, segment: Segment) -> Arc<OpenSegment> {
        let runs = segment.runs.clone();
        let place = Arc::new(Place { core: core.clone(), keyspace, segment: segment.id, runs });
        let (pooled, segment) = (Arc::new(Pooled(place.clone())), Arc::new(segment));
        Arc::new(OpenSegment { segment, place, pooled, reader: Mutex::default(), held: Mutex::default() })
    }

    /// What stays in memory of it; read when it is asked for first.
    pub fn reader(&self) -> Result<Arc<SegmentReader>> {
        let mut reader = self.reader.lock();
        if let Some(reader) = &*reader {
            return Ok(reader.clone());
        }
        assert!(self.segment.meta.pages > 0, "a segment has pages");
        let opened = SegmentReader::open(&*self.pooled, self.segment.id, self.segment.meta.pages)?;
        Ok(reader.insert(Arc::new(opened)).clone())
    }

    /// Its pages.
    pub fn page_ids(&self) -> impl Iterator<Item = PageId> + '_ {
        self.segment.runs.iter().flat_map(|(first, pages)| (first.0..first.0 + pages).map(PageId))
    }

    /// It is dropped by a group that is in the log, which freed its pages.
    pub fn drop_when_unused(&self, pages: HeldPages) {
        debug_assert!(pages.memory() > 0, "a segment has pages");
        let before = self.held.lock().replace(pages);
        assert!(before.is_none(), "a segment is dropped once");
    }

    /// A walk over it through the pool.
    pub fn walk(&self) -> Result<SegmentCursor> {
        Ok(SegmentCursor::of_checked_pages(self.reader()?, self.pooled.clone()))
    }

    /// Reads all of it and compares it with what it says of itself.
    pub fn check(&self) -> Result<()> {
        self.reader()?.check(&PastPool::new(&self.place, WINDOW))
    }

    /// Whether it may say something of a key.
    fn covers(&self, key: &[u8]) -> bool {
        self.segment.meta.compare(key).is_eq()
    }

    /// The newest commit up to `at` of it that deleted a range with `key`; 0: none did.
    fn deleted(&self, key: &[u8], at: Lsn) -> Result<Lsn> {
        if self.segment.meta.ranges == 0 { Ok(0) } else { Ok(self.reader()?.ranges().covering(key, at)) }
    }
}

/// The segments of a keyspace.
#[derive(Default)]
pub(crate) struct Segments {
    pub(super) levels: Vec<Vec<Arc<OpenSegment>>>,
    /// Those that delete ranges.
    deleting: Vec<Arc<OpenSegment>>,
    /// Above the number of every segment there is.
    pub(super) next: u64,
}

impl Segments {
    /// Reads the list that a tree has.
    pub(super) fn read(core: &Arc<Core>, keyspace: KeyspaceId, tree: &Tree) -> Result<Segments> {
        let (mut rows, mut ahead): (Vec<(Vec<u8>, Vec<u8>)>, _) = (Vec::new(), ReadAhead::default());
        let mut from = Some(Vec::new());
        while let Some(low) = from {
            let range = (Bound::Included(&low[..]), Bound::Unbounded);
            let end = tree.read_leaf_batch(range.0, range.1, Direction::Forward, &mut ahead, |_, key, value| {
                // A value that is not inline cannot be one of ours: an empty one is refused below.
                let value = if let ValueRef::Inline(value) = value { value } else { &[] };
                rows.push((key.to_vec(), value.to_vec()));
                ControlFlow::Continue(())
            })?;
            from = end.next;
        }
        let found = list::segments(&rows, keyspace, tree.root())?;
        let mut this = Segments::default();
        for (level, segment) in found {
            this.add(level, OpenSegment::new(core, keyspace, segment));
        }
        this.note_deleting();
        if let Some(level) = this.levels.iter().skip(1).position(|level| !is_disjoint(level)) {
            let what = format!("list of segments: those of level {} have keys in common", level + 1);
            return Err(Error::corrupt_page(tree.root(), Some(keyspace), what));
        }
        Ok(this)
    }

    fn add(&mut self, level: u8, segment: Arc<OpenSegment>) {
        let level = usize::from(level);
        if self.levels.len() <= level {
            self.levels.resize_with(level + 1, Vec::new);
        }
        self.next = self.next.max(segment.segment.id + 1);
        let list = &mut self.levels[level];
        assert!(list.iter().all(|other| other.segment.id != segment.segment.id), "a segment is listed once");
        let at = match level {
            0 => list.partition_point(|other| other.segment.id > segment.segment.id),
            _ => list.partition_point(|other| other.segment.meta.smallest < segment.segment.meta.smallest),
        };
        list.insert(at, segment);
    }

    /// The same with some segments more and some less.
    pub(super) fn changed(&self, added: &[(u8, Arc<OpenSegment>)], dropped: &[Arc<OpenSegment>]) -> Segments {
        let mut this = Segments { levels: self.levels.clone(), deleting: Vec::new(), next: self.next };
        // What moves is listed elsewhere.
        let moved = added.iter().map(|(_, open)| open);
        let gone = |segment: &Arc<OpenSegment>| dropped.iter().chain(moved.clone()).any(|o| Arc::ptr_eq(segment, o));
        this.levels.iter_mut().for_each(|level| level.retain(|segment| !gone(segment)));
        let left = self.all().count() - this.all().count();
        assert!(left >= dropped.len() && left <= dropped.len() + added.len(), "what is dropped was listed, each once");
        added.iter().for_each(|(level, segment)| this.add(*level, segment.clone()));
        this.note_deleting();
        debug_assert!(
            this.levels.iter().take(1).all(|level| level.is_sorted_by(|a, b| a.segment.id > b.segment.id)),
            "segments of level 0 come from new to old"
        );
        debug_assert!(this.levels.iter().skip(1).all(|level| is_disjoint(level)), "segments of a level are disjoint");
        this
    }

    fn note_deleting(&mut self) {
        assert!(self.deleting.is_empty(), "they are noted once, when all segments are listed");
        self.deleting = self.all().filter(|open| open.segment.meta.ranges > 0).cloned().collect();
    }

    /// All segments.
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<OpenSegment>> {
        self.levels.iter().flatten()
    }

    /// The segments, as planners see them.
    pub(super) fn version(&self) -> Version {
        let level = |level: &Vec<Arc<OpenSegment>>| level.iter().map(|open| open.segment.clone()).collect();
        Version { levels: self.levels.iter().map(level).collect() }
    }

    /// Segments of level 0.
    pub(super) fn newest_level(&self) -> usize {
        self.levels.first().map_or(0, Vec::len)
    }

    /// Greatest commit number in them; 0: there are none.
    pub(super) fn newest(&self) -> Lsn {
        self.all().map(|open| open.segment.meta.commits.1).max().unwrap_or(0)
    }

    /// Hands the newest entry of `key` that is not newer than `at` to `f`; `look` is told of each segment that was
    /// looked at, with its level.
    pub(super) fn get<R>(
        &self,
        key: &[u8],
        at: Lsn,
        look: &mut dyn FnMut(usize, &Arc<OpenSegment>, Looked),
        f: impl FnOnce(Option<Entry<'_>>) -> R,
    ) -> Result<R> {
        let (hash, mut f) = (filter::hash(key), Some(f));
        for (n, level) in self.levels.iter().enumerate() {
            let candidates = match n {
                0 => &level[..],
                _ => {
                    let i = level.partition_point(|open| open.segment.meta.compare(key).is_lt());
                    &level[i..(i + 1).min(level.len())]
                }
            };
            for open in candidates.iter().filter(|open| open.covers(key) && open.segment.meta.commits.0 <= at) {
                let (reader, deleted) = (open.reader()?, open.deleted(key, at)?);
                // What was deleted with a range is as if it said so of the key; all older places are older than that.
                let gone = Entry { key, commit: deleted, kind: EntryKind::Delete, value: &[] };
                if !reader.may_have(&*open.pooled, hash)? {
                    look(n, open, Looked::Filtered);
                } else {
                    let see = |entry: Entry<'_>| {
                        let newer = if entry.commit > deleted { entry } else { gone };
                        (f.take().expect("found once"))(Some(newer))
                    };
                    let found = reader.find(&*open.pooled, key, at, see)?;
                    look(n, open, if found.is_some() { Looked::Found } else { Looked::Vain });
                    if let Some(result) = found {
                        return Ok(result);
                    }
                }
                if deleted > 0 {
                    return Ok((f.take().expect("not found"))(Some(gone)));
                }
            }
        }
        Ok((f.take().expect("not found"))(None))
    }

    /// All deletions of ranges in them.
    pub(super) fn ranges(&self) -> Result<Vec<Arc<SegmentReader>>> {
        self.deleting.iter().map(|open| open.reader()).collect()
    }

    /// A walk over each segment of level 0, which may have keys in common.
    pub(super) fn newest_walks(&self) -> impl Iterator<Item = Result<SegmentCursor>> {
        self.levels.iter().take(1).flatten().map(|open| open.walk())
    }

    /// A walk over each other level that has segments.
    pub(super) fn level_walks(self: &Arc<Self>) -> impl Iterator<Item = LevelWalk> {
        let levels = (1..self.levels.len()).filter(|level| !self.levels[*level].is_empty());
        levels.map(|level| LevelWalk { segments: self.clone(), level, at: 0, walk: None })
    }
}

/// A walk over the segments of a level that is not the first, of which one is open at a time.
pub(super) struct LevelWalk {
    segments: Arc<Segments>,
    level: usize,
    at: usize,
    walk: Option<SegmentCursor>,
}

impl LevelWalk {
    /// The segments of the level.
    fn list(&self) -> &[Arc<OpenSegment>] {
        assert!(self.level > 0, "segments of level 0 may have keys in common");
        &self.segments.levels[self.level]
    }

    /// The walk over the segment where it stands, if it stands in one.
    pub fn walk(&self) -> Option<&SegmentCursor> {
        self.walk.as_ref()
    }

    /// Goes to segment `at`, if there is one, and moves there as `go` says.
    fn enter(&mut self, at: usize, go: impl FnOnce(&mut SegmentCursor) -> Result<()>) -> Result<()> {
        let Some(open) = self.segments.levels[self.level].get(at) else {
            self.walk = None;
            return Ok(());
        };
        debug_assert!(is_disjoint(self.list()));
        if self.at != at || self.walk.is_none() {
            (self.at, self.walk) = (at, Some(open.walk()?));
        }
        self.walk.as_mut().map_or(Ok(()), go)
    }

    /// Goes on with the segments after this one until it stands at an entry.
    fn forth(&mut self) -> Result<()> {
        while self.walk.is_some() && self.entry().is_none() {
            self.enter(self.at + 1, |walk| walk.first())?;
        }
        Ok(())
    }

    /// The same the other way.
    fn back(&mut self) -> Result<()> {
        while self.walk.is_some() && self.entry().is_none() {
            self.enter(self.at.wrapping_sub(1), |walk| walk.last())?;
        }
        Ok(())
    }
}

impl Entries for LevelWalk {
    #[inline]
    fn entry(&self) -> Option<Entry<'_>> {
        self.walk.as_ref()?.entry()
    }

    fn seek(&mut self, key: &[u8], commit: Lsn) -> Result<()> {
        let at = self.list().partition_point(|open| open.segment.meta.compare(key).is_lt());
        self.enter(at, |walk| walk.seek(key, commit))?;
        self.forth()
    }

    fn seek_before(&mut self, key: &[u8], commit: Lsn) -> Result<()> {
        let after = self.list().partition_point(|open| &*open.segment.meta.smallest <= key);
        self.enter(after.wrapping_sub(1), |walk| walk.seek_before(key, commit))?;
        self.back()
    }

    fn first(&mut self) -> Result<()> {
        self.enter(0, |walk| walk.first())?;
        self.forth()
    }

    fn last(&mut self) -> Result<()> {
        self.enter(self.list().len().wrapping_sub(1), |walk| walk.last())?;
        self.back()
    }

    fn next(&mut self) -> Result<()> {
        self.walk.as_mut().map_or(Ok(()), |walk| walk.next())?;
        self.forth()
    }

    fn prev(&mut self) -> Result<()> {
        self.walk.as_mut().map_or(Ok(()), |walk| walk.prev())?;
        self.back()
    }
}

fn is_disjoint(level: &[Arc<OpenSegment>]) -> bool {
    level.windows(2).all(|two| two[0].segment.meta.compare(&two[1].segment.meta.smallest).is_lt())
}
