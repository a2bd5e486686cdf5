//! Flushing: the frozen memtable becomes a segment of level 0, or further down where nothing overlaps it. What a range
//! deletion in it hides from everybody is not written, and segments that it hides as a whole are dropped: so clearing a
//! keyspace gives its room back at the next flush, also on a full device.

use super::index::{Lsm, Shared};
use super::install::Change;
use super::memtable::{Memtable, MemtableEntries};
use super::pages::Sink;
use super::picker::flush_level;
use super::ranges::Fragments;
use super::segment::{SegmentOptions, SegmentWriter};
use super::segments::OpenSegment;
use super::{Entries, Segment, SegmentMeta};
use crate::error::{Error, Result};
use std::sync::Arc;
use varve_rt::atomic::Ordering;
use varve_rt::{Cost, charge};
use varve_volume::Lsn;

/// Which entries of a key somebody can still see: the newest, and for each moment the newest that is not past it.
#[derive(Default)]
pub(super) struct Keeper {
    key: Vec<u8>,
    /// Commit number of the entry of the key that came before; none: another key came before.
    newer: Option<Lsn>,
}

impl Keeper {
    /// Whether the next entry, in internal order, is kept. `moments` ascend.
    pub fn keeps(&mut self, key: &[u8], commit: Lsn, moments: &[Lsn]) -> bool {
        let newer = self.newer.replace(commit).filter(|_| self.key == key);
        if newer.is_none() {
            self.key.clear();
            self.key.extend_from_slice(key);
            return true;
        }
        debug_assert!(newer > Some(commit) && moments.is_sorted(), "entries of a key come from new to old");
        let first = moments.get(moments.partition_point(|moment| *moment < commit));
        first.is_some_and(|moment| Some(*moment) < newer)
    }
}

impl Shared {
    /// The level for a segment that is newer than all there are. `flushing` is held.
    fn level_of_flush(&self, meta: &SegmentMeta) -> u8 {
        debug_assert!(self.flushing.is_locked(), "a level is chosen for as long as the list of segments stays");
        // Further down it might come to lie between the outputs of a merge, where its inputs left a gap.
        if self.merging.load(Ordering::SeqCst) {
            return 0;
        }
        flush_level(&self.shape(), &self.view().segments.version(), &meta.smallest, &meta.largest) as u8
    }

    /// Segments of which nobody sees anything for what `ranges` delete, which are newer; none while there is a merge,
    /// which may be of them. `flushing` is held.
    fn hidden(&self, ranges: &Fragments, moments: &[Lsn]) -> Vec<Arc<OpenSegment>> {
        if ranges.is_empty() || self.merging.load(Ordering::SeqCst) {
            return Vec::new();
        }
        let view = self.view();
        view.segments.all().filter(|open| ranges.hide_all(&open.segment.meta, moments)).cloned().collect()
    }

    /// How the next segment is written.
    pub fn segment_options(&self, id: u64) -> SegmentOptions {
        let (options, usable) = (self.options(), self.core.usable(self.keyspace));
        SegmentOptions {
            id,
            block_bytes: options.block(usable),
            codec: options.compression.codec(),
            bits_per_key: options.filter_bits.into(),
            prefix: 0,
        }
    }
}

impl Shared {
    /// The deletions of ranges that hide what a frozen memtable has: its own, and those that came after it, which the
    /// log has until they are flushed. Readers of the present see all of them.
    fn hiding(&self, frozen: &Memtable) -> Fragments {
        let later = self.view().active.ranges();
        let ranges = Fragments::union([&*frozen.ranges(), &*later]);
        let newest = ranges.deletes().map(|delete| delete.commit).max().unwrap_or(0);
        self.core.horizon.wait(&self.core.log, newest.max(frozen.newest()));
        ranges
    }

    /// Writes what somebody can still see of a frozen memtable; none: that is nothing.
    fn write_frozen(
        &self,
        table: &Arc<Memtable>,
        hiding: &Fragments,
        moments: &[Lsn],
    ) -> Result<Option<(u8, Segment, Sink)>> {
        let id = self.next_id();
        let mut sink = Sink::new(&self.core, self.keyspace).kept_in_free_frames();
        let mut writer = SegmentWriter::new(self.segment_options(id), self.core.usable(self.keyspace));
        let (mut keeper, mut walk) = (Keeper::default(), MemtableEntries::new(table.clone()));
        let mut nothing = table.ranges().is_empty();
        walk.first()?;
        while let Some(entry) = walk.entry() {
            let kept = keeper.keeps(entry.key, entry.commit, moments);
            if kept && !hiding.hide(entry.key, entry.commit, moments) {
                charge(Cost::MergePair, 1);
                charge(Cost::MergeByte, (entry.key.len() + entry.value.len()) as u64);
                writer.add(&entry, &mut sink)?;
                nothing = false;
            }
            walk.next()?;
        }
        if nothing {
            return Ok(None);
        }
        // Of many commits that delete a stretch the newest for each moment is enough, as of many entries of a key.
        writer.add_ranges(&table.ranges().kept(moments, false));
        let meta = writer.finish(&mut sink)?;
        assert!(meta.commits.1 <= table.newest(), "what is flushed was in the memtable");
        let level = self.level_of_flush(&meta);
        let segment = Segment { id, meta, runs: sink.take_runs() };
        Ok(Some((level, segment, sink)))
    }
}

impl Lsm {
    /// Flushes what the memtables hold by now. What commits add meanwhile stays in memory. Where a full device has no
    /// room for it, what was deleted makes some.
    pub(crate) fn flush(&self) -> Result<()> {
        match self.flush_once() {
            Err(Error::NoSpace(_)) if self.drop_hidden()? => self.flush_once(),
            flushed => flushed,
        }
    }

    fn flush_once(&self) -> Result<()> {
        let shared = &*self.0;
        let _one = shared.flushing.lock();
        let Some(table) = shared.freeze() else { return Ok(()) };
        // Readers of the present do not see what is newer than the horizon: what they see must not go.
        let hiding = shared.hiding(&table);
        let moments = shared.services.moments();
        let written = shared.write_frozen(&table, &hiding, &moments)?;
        let dropped = shared.hidden(&hiding, &moments);
        let drops = !dropped.is_empty();
        let mut change = Change { dropped, settled: Some(table.newest()), ..Change::default() };
        drop(table);
        let flushed = written.as_ref().map(|(level, segment, _)| (*level, segment.meta.pages));
        if let Some((level, segment, sink)) = written {
            change.added.push((level, segment));
            change.pages.push(sink.into_pages());
        }
        shared.install(change)?;
        if drops {
            shared.picker.lock().installed(&shared.view().segments.version());
        }
        if let Some((level, pages)) = flushed {
            shared.counters.flushed(level.into(), pages * shared.core.page_size() as u64);
        }
        let bytes = (shared.counters.user_bytes(), shared.counters.merge_bytes());
        shared.pressure.flushed(bytes, shared.shape().most_per_byte());
        Ok(())
    }

    /// Drops the segments that range deletions hide as a whole: what a flush had to leave to the merge that was under
    /// way, and what a flush would drop that there is no room for. Whether there were any.
    pub(crate) fn drop_hidden(&self) -> Result<bool> {
        let shared = &*self.0;
        let _one = shared.flushing.lock();
        let view = shared.view();
        // What is damaged is told by who reads it.
        let Ok(readers) = view.segments.ranges() else { return Ok(false) };
        // Those that only memory and the log have will be made again from the log.
        let tables: Vec<_> = view.frozen.iter().chain([&view.active]).map(|table| table.ranges()).collect();
        let stored = readers.iter().map(|reader| reader.ranges());
        let ranges = Fragments::union(stored.chain(tables.iter().map(|ranges| &**ranges)));
        let newest = ranges.deletes().map(|delete| delete.commit).max().unwrap_or(0);
        // As in a flush: readers of the present see all of the deletions.
        shared.core.horizon.wait(&shared.core.log, newest);
        let dropped = shared.hidden(&ranges, &shared.services.moments());
        if dropped.is_empty() {
            return Ok(false);
        }
        shared.install(Change { dropped, ..Change::default() })?;
        shared.picker.lock().installed(&shared.view().segments.version());
        Ok(true)
    }
}
