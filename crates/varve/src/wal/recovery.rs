//! Recovery: replays the log from the redo point, and opens it for appending.
//!
//! There is no undo. Groups are replayed whole, a *window* of them at a time: the window's records are sorted by page
//! (and within a page by LSN), so that each page is fetched and latched once per window, in page order, and read ahead.
//! A page's records are all that matters to it, so the order between pages is free. Rows of the decision table in
//! `docs/wal.md`: `P1` the page has the change: skip. `P2` operations on a page whose LSN is the one they were made on:
//! apply. `P3` operations on any other LSN: a write was lost, corruption. `P4` operations on a torn or unwritten page:
//! remember it as damaged. `P5` an image: install it, the page is whole. `P6` a page still damaged at the end:
//! corruption. Where the log ends is the reader's decision (`L` rows).
//!
//! A crash inside recovery is harmless: nothing was appended and the redo point has not moved, so the next recovery
//! replays the same groups over whatever pages were written back. Memory: the window, the pool, and the set of damaged
//! pages.
//!
//! Invariants: the records of a page are replayed in the order of their LSNs; a page's LSN never goes back but by an
//! image; the log is opened for appending only when no page is left damaged.

use super::{Log, LogEnd, LogReader, LogState, Step};
use crate::error::{Damage, Error, Result};
use crate::redo::{self, Record};
use std::time::Duration;
use varve_device::Mistake;
use varve_rt::{HashMap, Instant, now};
use varve_volume::{KeyspaceId, Lsn, PageDamage, PageId, VolumeError, page};

/// Bytes of groups that are replayed together, unless told otherwise.
const WINDOW_BYTES: usize = 16 << 20;
/// Pages fetched ahead of the one being replayed.
const FETCH_AHEAD: usize = 128;
/// Less redo than this says nothing about the replay rate.
const MEASURABLE_BYTES: u64 = 8 << 20;
/// Bytes replayed between two calls of the progress callback.
const PROGRESS_BYTES: u64 = 16 << 20;
/// Damaged pages listed before recovery gives up at once: this many are no torn writes.
const MOST_DAMAGED: usize = 100_000;

/// Changes a page's bytes; `Some` is its new LSN.
pub type Change<'a> = dyn FnMut(&mut [u8]) -> Result<Option<Lsn>> + 'a;

/// How far recovery is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of log replayed.
    pub bytes: u64,
    /// Bytes of log known to be there (there may be more).
    pub known: u64,
    /// Time since recovery began.
    pub elapsed: Duration,
}

/// The pages, as recovery sees them.
pub trait ReplayPages {
    /// Bytes of a page.
    fn page_size(&self) -> usize;
    /// The pages will be wanted soon.
    fn prefetch(&self, pages: &[PageId]);
    /// Changes the page under its latch. With `fresh` the stored page is not read: `change` gets zeros. If `change`
    /// returns an LSN, the page is dirty since `first_change`, with that LSN. Damage of the stored page is an error.
    fn change(&self, page: PageId, fresh: Option<KeyspaceId>, first_change: Lsn, change: &mut Change<'_>)
    -> Result<()>;
    /// Writes every dirty page and makes all of them durable.
    fn write_back(&self) -> Result<()>;
}

/// What recovery did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// The database had been closed cleanly; nothing was replayed.
    pub clean: bool,
    /// The database is of an older release, and got identity and feature bits: older releases refuse it from here on.
    pub identified: bool,
    /// What was wrong with one of the superblocks, which was mended from the other: a torn write of the crash, or
    /// damage.
    pub mended_superblock: Option<String>,
    /// The fast device was of another time, and held copies only: which it was. The tier began empty.
    pub emptied_tier: Option<String>,
    /// Commits larger than one log group that were decided, not all applied, and are now.
    pub finished: u64,
    /// Where redo began.
    pub redo: Lsn,
    /// End of the log.
    pub end: Lsn,
    /// The row of the decision table that found the end.
    pub end_row: &'static str,
    /// Valid groups past the end, in flight when the power went.
    pub orphans: u64,
    /// Groups replayed.
    pub groups: u64,
    /// Bytes of log replayed.
    pub bytes: u64,
    /// Records of pages that had them already (`P1`).
    pub skipped: u64,
    /// Records applied to pages (`P2`).
    pub applied: u64,
    /// Operations on torn or unwritten pages (`P4`).
    pub on_damaged: u64,
    /// Images installed (`P5`).
    pub images: u64,
    /// Pages found torn.
    pub torn: u64,
    /// Torn or unwritten pages that an image made whole.
    pub healed: u64,
    /// Time taken.
    pub elapsed: Duration,
    /// Bytes of log per second, when there was enough to measure.
    pub rate: Option<u64>,
}

/// Gets the end of a group and a record of it that is not a page change.
pub type ExtraRecord<'a> = dyn FnMut(Lsn, &[u8]) -> Result<()> + 'a;

/// Gets start and end of a group and what an index remembers by it without a page.
pub type IndexRecord<'a> = dyn FnMut((Lsn, Lsn), KeyspaceId, &[u8]) -> Result<()> + 'a;

/// How recovery is run.
#[derive(Default)]
pub struct RecoveryOptions<'a> {
    /// Called now and then.
    pub progress: Option<&'a mut (dyn FnMut(Progress) + 'a)>,
    /// Gets every record that is not a page change, with the end of its group.
    pub extra: Option<&'a mut ExtraRecord<'a>>,
    /// Gets every record of an index that is not a page change, in the order of the log.
    pub index: Option<&'a mut IndexRecord<'a>>,
    /// Bytes of groups replayed together; at least one group is. The more, the fewer times a page is fetched.
    pub window_bytes: Option<usize>,
    /// Write everything back and begin redo anew at the end, so that no log that may be replayed again has a change of
    /// a free page.
    pub write_back: bool,
    /// A page was written when the log was durable to here: it must not end before (`L11`).
    pub written: Lsn,
    /// Called with the end of the log, before pages are changed by the last groups of it.
    pub reached: Option<&'a mut (dyn FnMut(Lsn) -> Result<()> + 'a)>,
}

/// Replays the log that [`Log::open`] opened, and opens it for appending. Does nothing when the database was closed
/// cleanly and is opened read-only.
pub fn run(
    log: &Log,
    state: &LogState,
    pages: &dyn ReplayPages,
    options: &mut RecoveryOptions<'_>,
) -> Result<RecoveryReport> {
    let mut report = RecoveryReport {
        redo: state.redo,
        end: state.end,
        clean: state.clean,
        mended_superblock: state.damaged_superblock.clone(),
        ..Default::default()
    };
    if state.clean {
        reaches(state.end, options.written)?;
        report.end_row = "L8";
        if !log.is_read_only() {
            log.resume_at(state.end, false)?;
        }
        return Ok(report);
    }
    let known = state.end.max(state.redo);
    let mut replay = Replay { log, pages, report, damaged: HashMap::default(), began: now(), known };
    let end = replay.all(options)?;
    let mut report = replay.finish(end)?;
    reaches(end.valid, options.written)?;
    if report.bytes >= MEASURABLE_BYTES && !report.elapsed.is_zero() {
        let rate = (report.bytes as f64 / report.elapsed.as_secs_f64()) as u64;
        log.set_replay_rate(rate);
        report.rate = Some(rate);
    }
    let checkpoint = options.write_back || log.must_checkpoint_on_resume();
    if checkpoint {
        pages.write_back()?;
    }
    log.resume_at(end.at, checkpoint)?;
    Ok(report)
}

/// Fails when what is valid of the log ends before `written`.
fn reaches(end: Lsn, written: Lsn) -> Result<()> {
    if end >= written {
        return Ok(());
    }
    let what = format!(
        "[L11] it ends here, but pages were written when it was durable to LSN {written}: the log is an older one, or its end is damaged"
    );
    Err(Error::corrupt_log(end, what))
}

/// Groups that are replayed together.
#[derive(Default)]
struct Window {
    /// Start and end LSN, and the end of the body in `bodies`.
    groups: Vec<(Lsn, Lsn, usize)>,
    bodies: Vec<u8>,
}

impl Window {
    /// Takes up groups until there are `limit` bytes of them; the end of the log if it was reached.
    fn fill(&mut self, reader: &mut LogReader, limit: usize) -> Result<Option<LogEnd>> {
        self.groups.clear();
        self.bodies.clear();
        while self.bodies.len() < limit {
            match reader.next_group()? {
                Step::Group(group) => {
                    self.bodies.extend_from_slice(group.body);
                    self.groups.push((group.start, group.end, self.bodies.len()));
                }
                Step::End(end) => return Ok(Some(end)),
            }
        }
        Ok(None)
    }
}

/// The records sorted by page, those of a page in the order they were in.
fn by_page<'w>(records: &[PageRecord<'w>]) -> Vec<PageRecord<'w>> {
    // Sorting numbers moves fewer bytes than sorting records.
    let mut order: Vec<(PageId, u32)> = records.iter().enumerate().map(|(i, r)| (r.page, i as u32)).collect();
    order.sort_unstable();
    let sorted: Vec<_> = order.into_iter().map(|(_, i)| records[i as usize]).collect();
    debug_assert!(sorted.is_sorted_by_key(|r| (r.page, r.end)), "records come page by page, in the log's order");
    sorted
}

/// A record of a page, with the LSNs of its group.
#[derive(Clone, Copy)]
struct PageRecord<'w> {
    page: PageId,
    keyspace: KeyspaceId,
    start: Lsn,
    end: Lsn,
    what: What<'w>,
}

#[derive(Clone, Copy)]
enum What<'w> {
    Ops { prev: Lsn, ops: &'w [u8] },
    Image { head: &'w [u8], hole: usize, tail: &'w [u8] },
}

struct Replay<'a> {
    log: &'a Log,
    pages: &'a dyn ReplayPages,
    report: RecoveryReport,
    /// Pages damaged so far, with keyspace and the group that wanted them.
    damaged: HashMap<PageId, (KeyspaceId, Lsn)>,
    began: Instant,
    known: Lsn,
}

impl Replay<'_> {
    fn all(&mut self, options: &mut RecoveryOptions<'_>) -> Result<LogEnd> {
        let mut reader = self.log.scan(self.report.redo);
        let (mut window, mut told) = (Window::default(), 0);
        loop {
            let end = window.fill(&mut reader, options.window_bytes.unwrap_or(WINDOW_BYTES))?;
            let records = by_page(&self.decode(&window, options)?);
            if let Some(&(_, last, _)) = window.groups.last() {
                // It was read from media, so pages that it changed may be written.
                self.log.note_recovered(last);
                self.report.end = last;
            }
            if let (Some(end), Some(reached)) = (&end, &mut options.reached) {
                reached(end.at)?;
            }
            self.apply(&records)?;
            if end.is_some() || self.report.bytes >= told + PROGRESS_BYTES {
                told = self.report.bytes;
                self.tell(options);
            }
            if let Some(end) = end {
                return Ok(end);
            }
        }
    }

    fn decode<'w>(&mut self, window: &'w Window, options: &mut RecoveryOptions<'_>) -> Result<Vec<PageRecord<'w>>> {
        let (mut records, mut from) = (Vec::new(), 0);
        for &(start, end, to) in &window.groups {
            assert!(start < end && from <= to, "groups of a window follow each other");
            self.report.groups += 1;
            self.report.bytes += end - start;
            for record in redo::decode(&window.bodies[from..to], self.pages.page_size(), start) {
                let (page, keyspace, what) = match record {
                    Ok(Record::Ops { page, keyspace, prev, ops }) => (page, keyspace, What::Ops { prev, ops }),
                    Ok(Record::Image { page, keyspace, head, hole, tail }) => {
                        (page, keyspace, What::Image { head, hole, tail })
                    }
                    Ok(Record::Extra(bytes)) => {
                        if let Some(extra) = &mut options.extra {
                            extra(end, bytes)?;
                        }
                        continue;
                    }
                    Ok(Record::Index { keyspace, bytes }) => {
                        if let Some(index) = &mut options.index {
                            index((start, end), keyspace, bytes)?;
                        }
                        continue;
                    }
                    // The rest of a group that is broken on purpose.
                    Err(_) if self.log.faults().has(Mistake::PartialGroup) => break,
                    Err(e) => return Err(e),
                };
                records.push(PageRecord { page, keyspace, start, end, what });
            }
            from = to;
        }
        Ok(records)
    }

    /// Replays records that are sorted by page, page by page.
    fn apply(&mut self, records: &[PageRecord<'_>]) -> Result<()> {
        let runs: Vec<&[PageRecord<'_>]> = records.chunk_by(|a, b| a.page == b.page).collect();
        let mut ahead = Vec::new();
        for (i, run) in runs.iter().enumerate() {
            if i % FETCH_AHEAD == 0 {
                // Those of the next stretch while this one is replayed; at the start this one's too.
                let from = if i == 0 { 0 } else { i + FETCH_AHEAD };
                let stretch = runs.iter().take(i + 2 * FETCH_AHEAD).skip(from);
                ahead.extend(stretch.filter(|run| last_image(run).is_none()).map(|run| run[0].page));
                self.pages.prefetch(&ahead);
                ahead.clear();
            }
            self.page(run)?;
        }
        Ok(())
    }

    /// Replays the records of one page.
    fn page(&mut self, run: &[PageRecord<'_>]) -> Result<()> {
        let (id, keyspace) = (run[0].page, run[run.len() - 1].keyspace);
        debug_assert!(run.iter().all(|r| r.page == id), "the records are of one page");
        // What comes before an image does not matter.
        let image = last_image(run);
        let run = &run[image.unwrap_or(0)..];
        if image.is_none() && self.damaged.contains_key(&id) {
            self.report.on_damaged += run.len() as u64;
            return Ok(());
        }
        let (mut skipped, mut applied, mut images) = (0, 0, 0);
        let mut change = |bytes: &mut [u8]| {
            let mut lsn = page::lsn(bytes);
            let before = (lsn, images);
            for r in run {
                match r.what {
                    What::Image { head, hole, tail } => {
                        redo::apply_image(bytes, head, hole, tail); // P5
                        images += 1;
                    }
                    What::Ops { .. } if lsn >= r.end => {
                        skipped += 1; // P1
                        continue;
                    }
                    What::Ops { prev, .. } if lsn != prev => {
                        let what = format!(
                            "[P3] its LSN is {lsn}, the log at LSN {} changes it from {prev}: a write was lost",
                            r.start
                        );
                        return Err(Error::corrupt_page(id, Some(r.keyspace), what));
                    }
                    What::Ops { ops, .. } => {
                        redo::apply_ops(bytes, ops, id, r.start)?; // P2
                        applied += 1;
                    }
                }
                lsn = r.end;
            }
            assert!(images > before.1 || lsn >= before.0, "but for an image, a page's LSN never goes back");
            Ok((before != (lsn, images)).then_some(lsn))
        };
        let done = self.pages.change(id, image.map(|_| keyspace), run[0].start, &mut change);
        self.report.skipped += skipped;
        self.report.applied += applied;
        self.report.images += images;
        match done {
            Ok(()) => {
                if images > 0 && self.damaged.remove(&id).is_some() {
                    self.report.healed += 1;
                }
            }
            Err(e) => {
                // P4.
                let Some(unwritten) = damage_of(&e) else { return Err(e) };
                self.damaged.insert(id, (keyspace, run[0].start));
                self.report.on_damaged += run.len() as u64;
                self.report.torn += u64::from(!unwritten);
                if self.damaged.len() > MOST_DAMAGED {
                    return Err(self.still_damaged().unwrap_or(e));
                }
            }
        }
        Ok(())
    }

    fn tell(&self, options: &mut RecoveryOptions<'_>) {
        if let Some(progress) = &mut options.progress {
            let known = self.log.bytes_between(self.report.redo, self.known.max(self.report.end));
            progress(Progress { bytes: self.report.bytes, known, elapsed: self.began.elapsed() });
        }
    }

    fn still_damaged(&self) -> Option<Error> {
        let (id, (keyspace, lsn)) = self.damaged.iter().min_by_key(|(id, _)| id.0)?;
        let more = match self.damaged.len() {
            1 => String::new(),
            n => format!(" ({} more pages likewise)", n - 1),
        };
        let what =
            format!("[P6] it is torn or was never written, and the log from LSN {lsn} on has no image of it{more}");
        Some(Error::corrupt_page(*id, Some(*keyspace), what))
    }

    fn finish(mut self, end: LogEnd) -> Result<RecoveryReport> {
        if let Some(damage) = self.still_damaged() {
            return Err(damage);
        }
        assert!(end.at >= self.report.redo && end.valid >= end.at, "the log ends after its redo point");
        let report = &self.report;
        assert!(
            report.healed <= report.images && report.torn <= report.on_damaged,
            "an image heals, a change finds torn"
        );
        self.report.end = end.at;
        self.report.end_row = end.row.id();
        self.report.orphans = end.orphans;
        self.report.elapsed = self.began.elapsed();
        Ok(self.report)
    }
}

/// `Some(unwritten)` when the error says that the stored page is torn or was never written; what recovery itself finds
/// wrong with a page, and a page of a newer format, are errors of their own.
fn damage_of(e: &Error) -> Option<bool> {
    match e {
        Error::Volume(VolumeError::Damaged { damage: PageDamage::NewerVersion { .. }, .. }) => None,
        Error::Volume(VolumeError::Damaged { damage, .. }) => Some(*damage == PageDamage::Unwritten),
        Error::Corrupt(Damage::Page { stored: Some(damage), .. }) => Some(*damage == PageDamage::Unwritten),
        _ => None,
    }
}

/// Where the last image among a page's records is.
fn last_image(run: &[PageRecord<'_>]) -> Option<usize> {
    run.iter().rposition(|r| matches!(r.what, What::Image { .. }))
}
