//! Recovery: replays the log from the redo point, and opens it for appending.
//!
//! There is no undo. Groups are replayed in order, whole; a record touches a page only when the page does not have it yet.
//! Rows of the decision table in `docs/wal.md`: `P1` the page has the change: skip. `P2` operations on a page whose LSN is
//! the one they were made on: apply. `P3` operations on any other LSN: a write was lost, corruption. `P4` operations on a torn
//! or unwritten page: remember it as damaged. `P5` an image: install it, the page is whole. `P6` a page still damaged at the
//! end: corruption. Where the log ends is the reader's decision (`L` rows).
//!
//! A crash inside recovery is harmless: nothing was appended and the redo point has not moved, so the next recovery replays the
//! same groups over whatever pages were written back. Memory: one window of groups ([`WINDOW_BYTES`]), the pool, and the set
//! of damaged pages.

use super::{GroupView, Log, LogEnd, LogState, Step};
use crate::error::{Damage, Error, Result};
use crate::redo::{self, Record};
use std::collections::VecDeque;
use std::time::Duration;
use varve_rt::{HashMap, HashSet, Instant, now};
use varve_volume::{KeyspaceId, Lsn, PageDamage, PageId, VolumeError, page};

/// Bytes of groups read ahead of replay, so that their pages can be fetched.
const WINDOW_BYTES: usize = 2 << 20;
/// Pages fetched ahead at a time.
const PREFETCH_BATCH: usize = 64;
/// Less redo than this says nothing about the replay rate.
const MEASURABLE_BYTES: u64 = 8 << 20;
/// Bytes replayed between two calls of the progress callback.
const PROGRESS_BYTES: u64 = 16 << 20;
/// Damaged pages listed before recovery gives up at once: this many are no torn writes.
const MOST_DAMAGED: usize = 100_000;

/// The pages, as recovery sees them.
pub trait ReplayPages {
    /// Bytes of a page.
    fn page_size(&self) -> usize;
    /// The pages will be wanted soon.
    fn prefetch(&self, pages: &[PageId]);
    /// Replaces the page, without reading it: `fill` gets zeros. Then it is dirty since `first_change`, with LSN `end`.
    fn replace(
        &self,
        page: PageId,
        keyspace: KeyspaceId,
        first_change: Lsn,
        end: Lsn,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<()>;
    /// Changes the page: if `change` returns true it is dirty since `first_change`, with LSN `end`. Damage of the stored page is
    /// an error.
    fn change(
        &self,
        page: PageId,
        first_change: Lsn,
        end: Lsn,
        change: &mut dyn FnMut(&mut [u8]) -> Result<bool>,
    ) -> Result<()>;
    /// Writes every dirty page and makes all of them durable.
    fn write_back(&self) -> Result<()>;
}

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

/// What recovery did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// The database had been closed cleanly; nothing was replayed.
    pub clean: bool,
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

/// How recovery is run.
#[derive(Default)]
pub struct RecoveryOptions<'a> {
    /// Called now and then.
    pub progress: Option<&'a mut (dyn FnMut(Progress) + 'a)>,
    /// Gets every record that is not a page change, with the end of its group.
    pub extra: Option<&'a mut ExtraRecord<'a>>,
    /// Deliberate fault: a group whose end is missing is applied as far as it goes.
    #[doc(hidden)]
    pub broken_partial_group: bool,
}

/// Replays the log that [`Log::open`] opened, and opens it for appending. Does nothing when the database was closed cleanly and
/// is opened read-only.
pub fn run(
    log: &Log,
    state: &LogState,
    pages: &dyn ReplayPages,
    options: &mut RecoveryOptions<'_>,
) -> Result<RecoveryReport> {
    let mut report = RecoveryReport { redo: state.redo, end: state.end, clean: state.clean, ..Default::default() };
    if state.clean {
        report.end_row = "L8";
        if !log.is_read_only() {
            log.resume_at(state.end, false)?;
        }
        return Ok(report);
    }
    let mut replay =
        Replay { log, pages, report, damaged: HashMap::default(), began: now(), known: state.end.max(state.redo) };
    let end = replay.all(options)?;
    let mut report = replay.finish(end)?;
    if report.bytes >= MEASURABLE_BYTES && !report.elapsed.is_zero() {
        let rate = (report.bytes as f64 / report.elapsed.as_secs_f64()) as u64;
        log.set_replay_rate(rate);
        report.rate = Some(rate);
    }
    let checkpoint = log.must_checkpoint_on_resume();
    if checkpoint {
        pages.write_back()?;
    }
    log.resume_at(end.at, checkpoint)?;
    Ok(report)
}

/// A group read ahead.
struct Ahead {
    start: Lsn,
    end: Lsn,
    body: Vec<u8>,
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
        if options.broken_partial_group {
            reader.break_partial_group();
        }
        let mut ahead: VecDeque<Ahead> = VecDeque::new();
        let (mut held, mut told, mut end) = (0, 0, None);
        let mut fetch = Fetch::default();
        loop {
            while end.is_none() && held < WINDOW_BYTES {
                match reader.next_group()? {
                    Step::Group(group) => {
                        held += group.body.len();
                        fetch.note(&group, self.pages);
                        ahead.push_back(Ahead { start: group.start, end: group.end, body: group.body.to_vec() });
                    }
                    Step::End(at) => end = Some(at),
                }
            }
            fetch.send(self.pages);
            // Half of the window is replayed before it is filled up again, so that fetching goes in batches.
            let keep = if end.is_some() { 0 } else { WINDOW_BYTES / 2 };
            while held > keep || (end.is_some() && !ahead.is_empty()) {
                let Some(group) = ahead.pop_front() else { break };
                held -= group.body.len();
                let done = self.group(&group, options);
                if !options.broken_partial_group {
                    done?;
                }
            }
            if self.report.bytes >= told + PROGRESS_BYTES {
                told = self.report.bytes;
                self.tell(options);
            }
            if let Some(end) = end {
                self.tell(options);
                return Ok(end);
            }
        }
    }

    fn tell(&self, options: &mut RecoveryOptions<'_>) {
        if let Some(progress) = &mut options.progress {
            let known = self.known.max(self.report.end) - self.report.redo;
            progress(Progress { bytes: self.report.bytes, known, elapsed: self.began.elapsed() });
        }
    }

    fn group(&mut self, group: &Ahead, options: &mut RecoveryOptions<'_>) -> Result<()> {
        // It was read from media, so pages that it changed may be written.
        self.log.note_recovered(group.end);
        self.report.groups += 1;
        self.report.bytes += group.end - group.start;
        self.report.end = group.end;
        for record in redo::decode(&group.body, self.pages.page_size(), group.start) {
            match record? {
                Record::Image { page, keyspace, head, hole, tail } => {
                    // P5.
                    let mut fill = |bytes: &mut [u8]| redo::apply_image(bytes, head, hole, tail);
                    self.pages.replace(page, keyspace, group.start, group.end, &mut fill)?;
                    self.report.images += 1;
                    if self.damaged.remove(&page).is_some() {
                        self.report.healed += 1;
                    }
                }
                Record::Ops { page, keyspace, prev, ops } => self.operations(group, page, keyspace, prev, ops)?,
                Record::Extra(bytes) => {
                    if let Some(extra) = &mut options.extra {
                        extra(group.end, bytes)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn operations(&mut self, group: &Ahead, id: PageId, keyspace: KeyspaceId, prev: Lsn, ops: &[u8]) -> Result<()> {
        if self.damaged.contains_key(&id) {
            self.report.on_damaged += 1;
            return Ok(());
        }
        let mut applied = false;
        let mut change = |bytes: &mut [u8]| {
            let lsn = page::lsn(bytes);
            if lsn >= group.end {
                return Ok(false); // P1
            }
            if lsn != prev {
                let what = format!(
                    "[P3] its LSN is {lsn}, the log at LSN {} changes it from {prev}: a write was lost",
                    group.start
                );
                return Err(Error::corrupt_page(id, Some(keyspace), what));
            }
            redo::apply_ops(bytes, ops, id, group.start)?; // P2
            applied = true;
            Ok(true)
        };
        match self.pages.change(id, group.start, group.end, &mut change) {
            Ok(()) if applied => self.report.applied += 1,
            Ok(()) => self.report.skipped += 1,
            Err(e) => {
                // P4.
                let Some(unwritten) = damage_of(&e) else { return Err(e) };
                self.damaged.insert(id, (keyspace, group.start));
                self.report.on_damaged += 1;
                self.report.torn += u64::from(!unwritten);
                if self.damaged.len() > MOST_DAMAGED {
                    return Err(self.still_damaged().unwrap_or(e));
                }
            }
        }
        Ok(())
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
        self.report.end = end.at;
        self.report.end_row = end.row.id();
        self.report.orphans = end.orphans;
        self.report.elapsed = self.began.elapsed();
        Ok(self.report)
    }
}

/// `Some(unwritten)` when the error says that the stored page is torn or was never written; a page of a newer format is not
/// damaged, it is an error of its own.
fn damage_of(e: &Error) -> Option<bool> {
    match e {
        Error::Volume(VolumeError::Damaged { damage: PageDamage::NewerVersion { .. }, .. }) => None,
        Error::Volume(VolumeError::Damaged { damage, .. }) => Some(*damage == PageDamage::Unwritten),
        Error::Corrupt(Damage::Page { what, .. }) if what.starts_with("[P3]") => None,
        Error::Corrupt(Damage::Page { what, .. }) => Some(*what == PageDamage::Unwritten.to_string()),
        _ => None,
    }
}

/// Collects the pages that replay will have to read: those whose first record in the window is not an image.
#[derive(Default)]
struct Fetch {
    seen: HashSet<PageId>,
    wanted: Vec<PageId>,
}

impl Fetch {
    fn note(&mut self, group: &GroupView<'_>, pages: &dyn ReplayPages) {
        for record in redo::decode(group.body, pages.page_size(), group.start).flatten() {
            match record {
                Record::Image { page, .. } => {
                    self.seen.insert(page);
                }
                Record::Ops { page, .. } if self.seen.insert(page) => self.wanted.push(page),
                _ => {}
            }
        }
    }

    fn send(&mut self, pages: &dyn ReplayPages) {
        for batch in self.wanted.chunks(PREFETCH_BATCH) {
            pages.prefetch(batch);
        }
        self.wanted.clear();
        self.seen.clear();
    }
}
