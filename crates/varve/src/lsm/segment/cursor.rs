//! A walk over the entries of a segment, either way.

use super::SegmentReader;
use super::reader::location;
use crate::error::Result;
use crate::lsm::block::{Block, Frame, Place};
use crate::lsm::part::{Location, Part};
use crate::lsm::{Entries, Entry, PageSource};
use crate::rows::Damage;
use std::sync::Arc;
use varve_volume::Lsn;

/// Pages that are asked for ahead, at most.
const AHEAD: u64 = 64;

/// Bytes of a block, and a place in it.
#[derive(Default)]
struct Held {
    at: Location,
    bytes: Vec<u8>,
    frame: Frame,
    place: Place,
}

impl Held {
    #[inline]
    fn block(&self) -> Block<'_> {
        Block::again(&self.bytes, self.frame)
    }

    fn step(&mut self, step: impl FnOnce(&mut Place, &Block<'_>) -> std::result::Result<(), Damage>) -> Moved {
        let Held { bytes, frame, place, .. } = self;
        step(place, &Block::again(bytes, *frame))
    }
}

type Moved = std::result::Result<(), Damage>;

/// A walk; it keeps copies of the blocks that it stands in.
pub(crate) struct SegmentCursor {
    reader: Arc<SegmentReader>,
    source: Arc<dyn PageSource>,
    top: Place,
    index: Held,
    data: Held,
    /// Whether blocks are compared with their checksums, because nobody has looked at those of the pages.
    verify: bool,
    /// Pages before this one, on the way back from this one on, were asked for ahead; and how many the next time.
    ahead: u64,
    window: u64,
}

/// Where to go in a block.
#[derive(Clone, Copy)]
enum Goal<'k> {
    First,
    Last,
    From(&'k [u8], Lsn),
}

impl Goal<'_> {
    fn go(self, place: &mut Place, block: &Block<'_>) -> Moved {
        match self {
            Goal::First => place.first(block),
            Goal::Last => place.last(block),
            Goal::From(key, commit) => place.seek(block, key, commit),
        }
    }
}

impl SegmentCursor {
    /// A walk that stands nowhere yet.
    pub(crate) fn new(reader: Arc<SegmentReader>, source: Arc<dyn PageSource>) -> SegmentCursor {
        let (index, data) = (Held::default(), Held::default());
        SegmentCursor { reader, source, top: Place::default(), index, data, verify: true, ahead: 0, window: 0 }
    }

    /// The same; pages from `source` were compared with their checksums.
    pub(crate) fn of_checked_pages(reader: Arc<SegmentReader>, source: Arc<dyn PageSource>) -> SegmentCursor {
        SegmentCursor { verify: false, ..SegmentCursor::new(reader, source) }
    }

    fn damage(&self, at: Location, part: Part, damage: Damage) -> crate::Error {
        self.reader.damage(&*self.source, at, part, damage)
    }

    /// An error that says that the entry where it stands is not where it should be.
    pub(crate) fn out_of_order(&self) -> crate::Error {
        self.damage(self.data.at, Part::Data, Damage("entries do not ascend"))
    }

    /// Loads the block at `at` unless it is there.
    fn load(&mut self, at: Location, part: Part) -> Result<()> {
        let held = if part == Part::Index { &mut self.index } else { &mut self.data };
        held.place.leave();
        if held.at == at {
            return Ok(());
        }
        held.at = Location::default();
        let (bytes, frame) = (&mut held.bytes, &mut held.frame);
        self.reader.with_part(&*self.source, at, part, self.verify, |read| {
            *frame = Block::parse(read)?.frame();
            bytes.clear();
            bytes.extend_from_slice(read);
            Ok(())
        })?;
        held.at = at;
        Ok(())
    }

    /// Into the index block that the top stands at, if it stands at one.
    fn enter_index(&mut self, goal: Goal<'_>) -> Result<()> {
        self.index.place.leave();
        let Some(top) = self.reader.top().filter(|_| self.top.is_valid()) else { return Ok(()) };
        let at = location(Some(self.top.entry(&top).value));
        let at = at.map_err(|damage| self.damage(self.reader.footer().top, Part::Top, damage))?;
        self.load(at.expect("a value was given"), Part::Index)?;
        self.index.step(|place, block| goal.go(place, block)).map_err(|d| self.damage(self.index.at, Part::Index, d))
    }

    /// Into the data block that the index stands at, if it stands at one.
    fn enter_data(&mut self, goal: Goal<'_>) -> Result<()> {
        self.data.place.leave();
        if !self.index.place.is_valid() {
            return Ok(());
        }
        let at = location(Some(self.index.place.entry(&self.index.block()).value));
        let at = at.map_err(|damage| self.damage(self.index.at, Part::Index, damage))?;
        self.load(at.expect("a value was given"), Part::Data)?;
        self.data.step(|place, block| goal.go(place, block)).map_err(|d| self.damage(self.data.at, Part::Data, d))
    }

    fn go(&mut self, goal: Goal<'_>) -> Result<()> {
        (self.ahead, self.window) = (0, 0);
        self.data.place.leave();
        let Some(top) = self.reader.top() else { return Ok(()) };
        let moved = goal.go(&mut self.top, &top);
        moved.map_err(|damage| self.damage(self.reader.footer().top, Part::Top, damage))?;
        self.enter_index(goal)?;
        self.enter_data(goal)?;
        // The separator may be past the last entry of its block.
        if matches!(goal, Goal::From(..)) && self.index.place.is_valid() && !self.data.place.is_valid() {
            self.next_block()?;
        }
        Ok(())
    }

    /// To the first entry of the block after this one.
    fn next_block(&mut self) -> Result<()> {
        self.index.step(Place::next).map_err(|damage| self.damage(self.index.at, Part::Index, damage))?;
        if !self.index.place.is_valid() {
            self.move_top(Place::next)?;
            self.enter_index(Goal::First)?;
        }
        self.read_ahead();
        self.enter_data(Goal::First)
    }

    /// To the last entry of the block before this one.
    fn prev_block(&mut self) -> Result<()> {
        self.index.step(Place::prev).map_err(|damage| self.damage(self.index.at, Part::Index, damage))?;
        if !self.index.place.is_valid() {
            self.move_top(Place::prev)?;
            self.enter_index(Goal::Last)?;
        }
        self.read_behind();
        self.enter_data(Goal::Last)
    }

    fn move_top(&mut self, step: fn(&mut Place, &Block<'_>) -> Moved) -> Result<()> {
        let top = self.reader.top().expect("it stands in it");
        let moved = step(&mut self.top, &top);
        moved.map_err(|damage| self.damage(self.reader.footer().top, Part::Top, damage))
    }

    /// A walk that goes on asks for pages ahead, twice as many each time.
    fn read_ahead(&mut self) {
        let usable = self.source.usable() as u64;
        let (here, end) = (self.data.at.end() / usable, self.reader.footer().data.div_ceil(usable));
        if here + self.window / 2 < self.ahead || self.ahead >= end {
            return;
        }
        self.window = (2 * self.window).clamp(4, AHEAD);
        let first = self.ahead.max(here);
        let pages = (here + self.window).min(end).saturating_sub(first);
        if pages > 0 {
            self.source.prefetch(first, pages);
            self.ahead = first + pages;
        }
    }

    /// The same on the way back.
    fn read_behind(&mut self) {
        let here = u64::from(self.data.at.offset) / self.source.usable() as u64;
        // None were asked for yet.
        if self.window == 0 {
            self.ahead = here;
        }
        if self.ahead + self.window / 2 < here || self.ahead == 0 {
            return;
        }
        self.window = (2 * self.window).clamp(4, AHEAD);
        let end = self.ahead.min(here);
        let first = here.saturating_sub(self.window);
        debug_assert!(end - first.min(end) <= AHEAD, "what is asked for ahead is bounded");
        if first < end {
            self.source.prefetch(first, end - first);
            self.ahead = first;
        }
    }
}

impl Entries for SegmentCursor {
    fn entry(&self) -> Option<Entry<'_>> {
        self.data.place.is_valid().then(|| self.data.place.entry(&self.data.block()))
    }

    fn seek(&mut self, key: &[u8], commit: Lsn) -> Result<()> {
        self.go(Goal::From(key, commit))
    }

    fn seek_before(&mut self, key: &[u8], commit: Lsn) -> Result<()> {
        self.go(Goal::From(key, commit))?;
        if self.data.place.is_valid() { self.prev() } else { self.last() }
    }

    fn first(&mut self) -> Result<()> {
        self.go(Goal::First)
    }

    fn last(&mut self) -> Result<()> {
        self.go(Goal::Last)
    }

    fn next(&mut self) -> Result<()> {
        self.data.step(Place::next).map_err(|damage| self.damage(self.data.at, Part::Data, damage))?;
        if self.data.place.is_valid() { Ok(()) } else { self.next_block() }
    }

    fn prev(&mut self) -> Result<()> {
        self.data.step(Place::prev).map_err(|damage| self.damage(self.data.at, Part::Data, damage))?;
        if self.data.place.is_valid() { Ok(()) } else { self.prev_block() }
    }
}
