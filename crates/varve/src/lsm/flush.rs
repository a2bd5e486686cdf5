//! Flushing: the frozen memtable becomes a segment of level 0, or further down where nothing overlaps it.

use super::index::{Lsm, Shared};
use super::install::Change;
use super::memtable::MemtableEntries;
use super::pages::Sink;
use super::picker::flush_level;
use super::segment::{SegmentOptions, SegmentWriter};
use super::{Entries, Segment, SegmentMeta};
use crate::error::Result;
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
        // Further down it might come to lie between the outputs of a merge, where its inputs left a gap.
        if self.merging.load(Ordering::SeqCst) {
            return 0;
        }
        flush_level(&self.shape(), &self.view().segments.version(), &meta.smallest, &meta.largest) as u8
    }

    /// How the next segment is written.
    pub fn segment_options(&self, id: u64) -> SegmentOptions {
        SegmentOptions {
            id,
            block_bytes: self.options().block_bytes as usize,
            codec: self.options().compression.codec(),
            bits_per_key: self.options().filter_bits.into(),
            prefix: 0,
        }
    }
}

impl Lsm {
    /// Flushes what the memtables hold by now. What commits add meanwhile stays in memory.
    pub(crate) fn flush(&self) -> Result<()> {
        let shared = &*self.0;
        let _one = shared.flushing.lock();
        let Some(table) = shared.freeze() else { return Ok(()) };
        // Readers of the present do not see what is newer than the horizon: what they see must not go.
        shared.core.horizon.wait(&shared.core.log, table.newest());
        let moments = shared.services.moments();
        let id = shared.next_id();
        let mut sink = Sink::new(&shared.core, shared.keyspace);
        let mut writer = SegmentWriter::new(shared.segment_options(id), shared.core.usable(shared.keyspace));
        let (mut keeper, mut walk) = (Keeper::default(), MemtableEntries::new(table.clone()));
        walk.first()?;
        while let Some(entry) = walk.entry() {
            if keeper.keeps(entry.key, entry.commit, &moments) {
                charge(Cost::MergePair, 1);
                charge(Cost::MergeByte, (entry.key.len() + entry.value.len()) as u64);
                writer.add(&entry, &mut sink)?;
            }
            walk.next()?;
        }
        // Each commit of a stretch deletes for some moment: merges drop those that nobody needs.
        writer.add_ranges(&table.ranges());
        let meta = writer.finish(&mut sink)?;
        assert_eq!(meta.commits.1, table.newest(), "the newest entry is kept");
        let level = shared.level_of_flush(&meta);
        let segment = Segment { id, meta, runs: sink.take_runs() };
        let settled = Some(table.newest());
        drop((walk, table));
        let bytes = segment.meta.pages * shared.core.page_size() as u64;
        shared.install(Change {
            added: vec![(level, segment)],
            pages: vec![sink.into_pages()],
            settled,
            ..Change::default()
        })?;
        shared.counters.flushed(level.into(), bytes);
        shared.pressure.flushed(shared.counters.user_bytes(), shared.counters.merge_bytes());
        Ok(())
    }
}
