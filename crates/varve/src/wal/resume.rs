//! How the log goes on after an opening: a new run, and after a crash a gap before it.
//!
//! After a crash nobody knows whether what recovery found is all that was promised: a drive may have lost what it said
//! was durable, or an older copy of the log was put back. Pages may then bear LSNs past the end that was found. Were
//! the log to go on there, it would give out the same LSNs again, and such pages would pass for its own. So after a
//! crash it goes on [`GAP`] further. Nobody ever gets the LSNs between: a page with one of them is damage that is seen
//! whenever the page is read.
//!
//! A gap takes no room in the ring: the ring's table counts in *places*. The place of a position of the newest run is
//! the position itself; that of an older one lies further on, by the gaps since. So no live byte moves.
//!
//! Invariants: the place of what is live is the same before and after; a gap is known to the companions before the
//! superblock that makes it; without a crash there is none.

use super::features::LOG_GAPS;
use super::format::{BLOCK, block_ceil};
use super::log::Log;
use super::superblock::{MAX_RUNS, Run, Superblock};
use crate::error::Result;
use varve_device::Mistake;
use varve_rt::atomic::Ordering;
use varve_volume::Lsn;

/// LSNs that are left out after a crash, at least: much more than a log can lose.
pub const GAP: u64 = 1 << 38;
/// From here on no more are left out: a log has 2^62 LSNs.
const LAST: Lsn = 1 << 61;

/// LSNs that no group has and no page, but for the first and the last of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Gap {
    /// Where recovery found the log's end.
    pub end: Lsn,
    /// Where the log went on.
    pub start: Lsn,
}

impl Gap {
    /// Whether a page with this LSN is none of this log. (The end's block may have been padded, and the log have stood
    /// at its end; what came then began with the next block.)
    pub fn has(&self, lsn: Lsn) -> bool {
        block_ceil(self.end) < lsn && lsn < self.start
    }

    /// Whether a crash left it, and not only the end of a block.
    pub(crate) fn is_of_a_crash(&self) -> bool {
        self.start - self.end >= GAP
    }
}

impl Run {
    /// LSNs that were left out before it.
    pub(super) fn gap(&self) -> u64 {
        self.start.saturating_sub(block_ceil(self.prev_end))
    }
}

impl Superblock {
    /// Where in the ring a position lies, as the ring's table counts.
    pub(super) fn place(&self, lsn: Lsn) -> u64 {
        lsn + self.runs.iter().filter(|run| lsn < run.start).map(Run::gap).sum::<u64>()
    }

    /// Notes whether the runs that are listed have gaps: releases that do not know of them would look for the log in
    /// other places.
    pub(super) fn note_gaps(&mut self) {
        let gaps = self.runs[1..].iter().any(|run| run.gap() > 0);
        self.features.set(&LOG_GAPS, gaps);
    }

    /// Begins a run after the last valid group, whose end is `end`; returns its gap.
    fn begin_run(&mut self, end: Lsn) -> Gap {
        let at = block_ceil(self.place(end));
        // A ring's table begins at a multiple of its unit.
        let gap = if self.clean || at > LAST { 0 } else { GAP.next_multiple_of(self.ring.unit) };
        let number = self.runs.last().expect("never empty").number + 1;
        // Of runs past the end nothing is valid.
        self.runs.retain(|run| run.start <= end);
        self.ring.base += gap;
        let start = at + gap;
        assert!(end <= start && start.is_multiple_of(BLOCK), "a run begins at a block boundary past the one before it");
        self.runs.push(Run { number, start, prev_end: end });
        Gap { end, start }
    }
}

impl Log {
    /// These LSNs were left out by openings before.
    pub(crate) fn skipped_before(&self, gaps: Vec<Gap>) {
        assert!(!self.resumed.load(Ordering::Acquire), "the gaps before come first");
        self.newest_gap.store(gaps.last().map_or(0, |gap| gap.start), Ordering::Release);
        *self.gaps.write() = gaps;
    }

    /// The gap that a position lies in: the log has none such, and never will. What the newest run wrote is told from
    /// the rest by one look at a word that nobody writes.
    pub fn gap_at(&self, lsn: Lsn) -> Option<Gap> {
        if lsn >= self.newest_gap.load(Ordering::Acquire) {
            return None;
        }
        self.gaps.read().iter().rfind(|gap| gap.has(lsn)).copied()
    }

    /// Bytes of log from one position to a later one.
    pub(super) fn bytes_between(&self, from: Lsn, to: Lsn) -> u64 {
        let disk = self.disk.lock();
        disk.sb.place(to).saturating_sub(disk.sb.place(from))
    }

    /// Whether the table of runs is so full that recovery has to write back what it replayed before [`Log::resume_at`].
    pub fn must_checkpoint_on_resume(&self) -> bool {
        self.disk.lock().sb.runs.len() >= MAX_RUNS
    }

    /// Opens the log for appending after the last valid group, whose end is `end`: begins a new run, durably. With
    /// `checkpointed`, everything replayed has been written back and synced, and redo begins anew at the end.
    pub fn resume_at(&self, end: Lsn, checkpointed: bool) -> Result<()> {
        assert!(!self.is_read_only() && !self.resumed.load(Ordering::Acquire), "resumed once, for writing");
        let mut disk = self.disk.lock();
        let mut sb = disk.sb.clone();
        assert!(sb.redo <= block_ceil(end), "the log goes on after its redo point");
        let live = sb.ring.locate(sb.place(sb.redo));
        let gap = sb.begin_run(end);
        if checkpointed || sb.clean || self.faults().has(Mistake::RedoAtRecovery) {
            sb.redo = gap.start;
        } else {
            assert_eq!(sb.ring.locate(sb.place(sb.redo)), live, "what is live does not move");
        }
        sb.prune_runs();
        (sb.clean, sb.end) = (false, end);
        // Both copies are written now, the damaged one too.
        sb.mended += u64::from(self.found_damaged.is_some());
        sb.generation.tie = varve_rt::rng().next_u64();
        let number = sb.runs.last().expect("it was just begun").number;
        if self.faults().has(Mistake::RunNotRecorded) {
            disk.sb = sb;
        } else {
            self.companions.lock().iter().for_each(|companion| companion.opens(gap, sb.generation.tie));
            self.store_next_generation(&mut disk, sb, end)?;
        }
        if gap.is_of_a_crash() {
            self.gaps.write().push(gap);
            self.newest_gap.store(gap.start, Ordering::Release);
        }
        let redo = disk.sb.place(disk.sb.redo);
        self.redo.store(redo, Ordering::Release);
        self.limit.store(disk.sb.ring.limit(redo), Ordering::Release);
        self.use_ring(&disk.sb.ring);
        drop(disk);
        // Higher than redo needs: direct pages bear the floor as their LSN, and it must not lie before a backup that
        // was made in an earlier run.
        self.begin_appending(gap.start, gap.start, number);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::ring::Ring;
    use super::super::superblock::{Birth, DbHeader};
    use super::*;

    fn sound() -> Superblock {
        let header = DbHeader { uuid: [7; 16], page_size: 8192, room: 0, created: 0, options: Vec::new() };
        Superblock::new(header, Ring::new(3 << 20, 4), 8192, Birth::default())
    }

    #[test]
    fn live_bytes_stay_where_they_are_however_many_gaps_come() {
        let mut sb = sound();
        let ends = [100_000, 100_000, 0, 77_777, 0, 4_000_000];
        let first = sb.ring.locate(8192);
        let mut last = Gap { end: 8192, start: 8192 };
        for (n, written) in ends.into_iter().enumerate() {
            // An opening that wrote nothing, or of which nothing is left, ends where the one before did.
            let end = if written == 0 { last.end } else { last.start + written };
            let places = [8192, last.end, end].map(|lsn| sb.ring.locate(sb.place(lsn)));
            let gap = sb.begin_run(end);
            sb.note_gaps();
            assert_eq!([8192, last.end, end].map(|lsn| sb.ring.locate(sb.place(lsn))), places, "run {n}");
            assert!(gap.start > last.start + GAP / 2 && gap.has(gap.start - 1) && !gap.has(gap.start));
            assert!(!gap.has(end) && !gap.has(block_ceil(end)) && gap.has(block_ceil(end) + 1));
            assert!(sb.ring.is_valid() && sb.features.has(&LOG_GAPS));
            // The next group follows the last one's block.
            assert_eq!(sb.place(gap.start) % sb.ring.capacity(), gap.start % sb.ring.capacity());
            let (block, next) = (sb.ring.locate(sb.place(end.div_ceil(4096) * 4096)), sb.ring.locate(gap.start));
            assert!(end % 4096 != 0 && block == next || written == 0, "run {n}: {block:?} {next:?}");
            last = gap;
        }
        assert_eq!(sb.ring.locate(sb.place(8192)), first);
        sb.redo = last.start;
        sb.prune_runs();
        assert!(sb.runs.len() == 1 && !sb.features.has(&LOG_GAPS), "what is live has no gaps any more");
    }

    #[test]
    fn a_clean_close_leaves_no_gap() {
        let mut sb = sound();
        (sb.clean, sb.end) = (true, 20_000);
        assert_eq!(sb.begin_run(20_000), Gap { end: 20_000, start: 20_480 });
    }
}
