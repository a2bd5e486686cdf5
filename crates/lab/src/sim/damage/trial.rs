//! One trial: opens files, reads everything and compares, checks, writes a little, closes, opens again, reads again. In
//! a simulation of its own, with a bound on device operations and page accesses: what does not end is a finding, not a
//! wait.

use super::build::{self, Shape};
use super::files::{File, Files};
use super::truth::{LONG, NAMES, Place, ROWS, Rows, Truth};
use crate::sim::book::Trace;
use std::collections::BTreeSet;
use std::sync::Arc;
use varve::{Db, Error, Keyspace, Result, SalvagedRow, Snapshot, TraceEvent, TraceHandle, TraceSink};
use varve_models::PowerSupply;
use varve_rt::Mutex;
use varve_rt::atomic::{AtomicU64, Ordering::SeqCst};
use varve_rt::sim::Failure;

/// Errors that are kept; of those that name no place, all.
const MOST_ERRORS: usize = 20;

/// What a trial may use, or used.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Limits {
    /// Device operations of the first opening.
    pub(super) opening: u64,
    /// Device operations in all.
    pub(super) operations: u64,
    /// Page accesses.
    pub(super) accesses: u64,
}

impl Limits {
    /// Without damage: so much that a sound database never gets there.
    pub(super) const NONE: Limits = Limits { opening: 0, operations: 10_000_000, accesses: 100_000_000 };

    /// What a trial with damage may use, given what one without took.
    pub(super) fn generous(self) -> Limits {
        let more = |n: u64| n * 20 + 50_000;
        Limits { operations: more(self.operations), accesses: more(self.accesses), ..self }
    }
}

/// An error that the engine gave.
#[derive(Clone, Debug)]
pub(super) struct Said {
    pub(super) doing: &'static str,
    pub(super) text: String,
    /// It names a page, a position of the log, a superblock or a file.
    pub(super) named: bool,
}

/// An answer that is not true.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Untrue {
    /// Rows are missing.
    Missing(String),
    /// Rows are there with other values, or should not be there.
    Other(String),
}

/// What a trial came to.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    pub(super) errors: Vec<Said>,
    /// Damages that `check` named.
    pub(super) check: Vec<String>,
    /// A superblock was mended, and the database says so.
    pub(super) mended: bool,
    pub(super) untrue: Option<Untrue>,
    /// The state is that before so many of the last commits.
    pub(super) lost: usize,
    pub(super) panic: Option<String>,
    pub(super) endless: Option<String>,
    pub(super) used: Limits,
    pub(super) log_end: u64,
}

impl Seen {
    /// Everything was read, everything was right, and there was nothing to say.
    pub(super) fn is_right(&self) -> bool {
        self.lost == 0 && self.is_true() && self.errors.is_empty() && self.check.is_empty()
    }

    fn is_true(&self) -> bool {
        self.untrue.is_none() && self.panic.is_none() && self.endless.is_none()
    }

    /// In words.
    pub(super) fn text(&self) -> String {
        let mut text = Vec::new();
        text.extend(self.untrue.iter().map(|u| match u {
            Untrue::Missing(what) | Untrue::Other(what) => what.clone(),
        }));
        text.extend(self.panic.iter().map(|what| format!("panic: {what}")));
        text.extend(self.endless.iter().cloned());
        text.extend((self.lost > 0).then(|| format!("the last {} commits are gone", self.lost)));
        text.extend(self.errors.iter().map(|e| format!("{}: {}", e.doing, e.text)));
        text.extend(self.check.iter().map(|damage| format!("check: {damage}")));
        text.truncate(4);
        if text.is_empty() { "all is right".into() } else { text.join("; ") }
    }
}

/// Runs the trial on copies of `files`.
pub(super) fn run(shape: &Shape, files: &Files, truth: &Truth, limits: Limits, trace: Trace) -> Seen {
    let supply = PowerSupply::new();
    supply.cut_at(limits.operations, 1);
    let steps = Arc::new(Steps { taken: AtomicU64::new(0), most: limits.accesses });
    let seen = Arc::new(Mutex::new(Seen::default()));
    let trial = Trial {
        shape: shape.clone(),
        files: files.copy(),
        truth: truth.clone(),
        unknown: None,
        supply: supply.clone(),
        steps: steps.clone(),
        seen: seen.clone(),
        trace,
    };
    let outcome = varve_rt::sim::run(build::config(shape.seed ^ 0x7a1a), move || trial.run());
    let mut seen = std::mem::take(&mut *seen.lock());
    seen.used.operations = supply.ops();
    seen.used.accesses = steps.taken.load(SeqCst);
    match outcome.result {
        _ if !supply.is_on() => seen.endless = Some(format!("more than {} device operations", limits.operations)),
        Ok(()) => {}
        Err(Failure::Panic(_)) if seen.used.accesses > limits.accesses => {
            seen.endless = Some(format!("more than {} page accesses", limits.accesses));
        }
        Err(Failure::Panic(panic)) => seen.panic = Some(panic.to_string()),
        Err(stuck) => seen.endless = Some(stuck.to_string()),
    }
    seen
}

/// Counts page accesses, and ends by a panic what makes too many.
struct Steps {
    taken: AtomicU64,
    most: u64,
}

impl TraceSink for Steps {
    fn event(&self, _: TraceEvent) {
        let taken = self.taken.fetch_add(1, SeqCst);
        assert!(taken < self.most, "a walk that does not end: {taken} page accesses");
    }
}

struct Trial {
    shape: Shape,
    files: Files,
    truth: Truth,
    /// A write of it failed.
    unknown: Option<Place>,
    supply: Arc<PowerSupply>,
    steps: Arc<Steps>,
    seen: Arc<Mutex<Seen>>,
    trace: Trace,
}

/// Rows that are not as they should be, missing ones and others, and an example.
#[derive(Default)]
struct Differences {
    missing: u64,
    other: u64,
    first: String,
    /// A place that may hold anything.
    unknown: Option<Place>,
}

impl Differences {
    fn add(&mut self, how: &str, space: usize, key: &[u8], wanted: Option<&[u8]>, found: Option<&[u8]>) {
        if wanted == found || self.unknown.as_ref().is_some_and(|(s, k)| *s == space && k == key) {
            return;
        }
        *if wanted.is_some() && found.is_none() { &mut self.missing } else { &mut self.other } += 1;
        if self.first.is_empty() {
            let text = |value: Option<&[u8]>| value.map_or("nothing".into(), |v| format!("{} bytes", v.len()));
            let key = String::from_utf8_lossy(key);
            self.first = format!("{how} of {key:?} in {} gives {}, not {}", NAMES[space], text(found), text(wanted));
        }
    }

    fn untrue(self, when: &str) -> Option<Untrue> {
        let text = format!("{when}: {} rows missing, {} wrong; {}", self.missing, self.other, self.first);
        match (self.missing, self.other) {
            (0, 0) => None,
            (_, 0) => Some(Untrue::Missing(text)),
            _ => Some(Untrue::Other(text)),
        }
    }
}

impl Trial {
    fn run(mut self) {
        let Some(db) = self.open("opening") else { return self.salvage() };
        self.note_recovery(&db);
        if !self.compare_first(&db) {
            return;
        }
        self.check(&db);
        self.write(&db);
        self.note("closing", db.close());
        let Some(db) = self.open("opening again") else { return };
        let differences = self.read(&db, &self.truth);
        self.untrue(differences, "after writing and opening again");
        self.note("closing again", db.close());
    }

    /// What errors point to when nothing opens: it must come to an end.
    fn salvage(&self) {
        let mut rows = 0u64;
        let each = &mut |_: SalvagedRow<'_>| {
            rows += 1;
            Ok(())
        };
        let done = varve::salvage_on(&self.files.devices(&self.supply), each);
        self.trace.event(|| format!("salvage: {rows} rows, {:?}", done.map(|report| report.is_whole())));
    }

    fn note_recovery(&self, db: &Db) {
        let report = db.recovery_report();
        self.trace.event(|| format!("recovery: {report:?}"));
        let mut seen = self.seen.lock();
        (seen.log_end, seen.mended) = (report.end, report.mended_superblock.is_some());
    }

    fn open(&self, doing: &'static str) -> Option<Db> {
        let before = self.supply.ops();
        let options = self.shape.trial(TraceHandle(self.steps.clone()));
        let opened = self.note(doing, Db::open_on(self.files.devices(&self.supply), options));
        if before == 0 {
            self.seen.lock().used.opening = self.supply.ops();
        }
        opened
    }

    /// Takes down an error; gives the value if there is none.
    fn note<T>(&self, doing: &'static str, result: Result<T>) -> Option<T> {
        self.trace.event(|| match &result {
            Ok(_) => format!("{doing}: done"),
            Err(e) => format!("{doing}: {e}"),
        });
        let error = match result {
            Ok(value) => return Some(value),
            Err(error) => error,
        };
        let said = Said { doing, text: error.to_string(), named: names_a_place(&error) };
        let mut seen = self.seen.lock();
        if seen.errors.len() < MOST_ERRORS || !said.named {
            seen.errors.push(said);
        }
        None
    }

    fn untrue(&self, differences: Differences, when: &str) -> bool {
        let untrue = differences.untrue(when);
        self.trace
            .event(|| format!("{when}: {}", if untrue.is_some() { "NOT TRUE" } else { "what was read is right" }));
        let found = untrue.is_some();
        if found {
            self.seen.lock().untrue = untrue;
        }
        found
    }

    /// Compares with the truth, or with the truth before the last commits; false when it is neither.
    fn compare_first(&mut self, db: &Db) -> bool {
        let differences = self.read(db, &self.truth);
        if differences.missing + differences.other == 0 {
            return true;
        }
        let errors = self.seen.lock().errors.clone();
        for lost in 1..=self.truth.undoable() {
            let before = self.truth.without_last(lost);
            let found = self.read(db, &before);
            if found.missing + found.other == 0 {
                let mut seen = self.seen.lock();
                (seen.lost, seen.errors) = (lost, errors);
                self.truth = before;
                return true;
            }
        }
        self.seen.lock().errors = errors;
        !self.untrue(differences, "reading")
    }

    /// Reads everything in every way.
    fn read(&self, db: &Db, truth: &Truth) -> Differences {
        let mut differences = Differences { unknown: self.unknown.clone(), ..Differences::default() };
        let Some(spaces) = self.spaces(db, &mut differences) else { return differences };
        let Some(snapshot) = self.note("opening a snapshot", db.snapshot()) else { return differences };
        for (number, space) in spaces.iter().enumerate() {
            let rows = &truth.spaces[number];
            self.get_all(space, number, rows, truth, &mut differences);
            for reverse in [false, true] {
                self.scan(&snapshot, space, number, rows, reverse, &mut differences);
            }
        }
        differences
    }

    /// The keyspaces, which must be just those that there are.
    fn spaces(&self, db: &Db, differences: &mut Differences) -> Option<Vec<Keyspace>> {
        let found: BTreeSet<String> =
            self.note("listing keyspaces", db.keyspaces())?.into_iter().map(|k| k.name).collect();
        let wanted: BTreeSet<String> = NAMES.iter().map(|name| name.to_string()).collect();
        if found != wanted {
            let lacks = wanted.difference(&found).next().is_some();
            *if lacks { &mut differences.missing } else { &mut differences.other } += 1;
            differences.first = format!("keyspaces are {found:?}, not {wanted:?}");
            return None;
        }
        NAMES.iter().map(|name| self.note("opening a keyspace", db.keyspace(name))).collect()
    }

    fn get_all(&self, space: &Keyspace, number: usize, rows: &Rows, truth: &Truth, differences: &mut Differences) {
        for (key, value) in rows {
            if let Some(found) = self.quiet("reading a key", space.get(key)) {
                differences.add("reading", number, key, Some(value), found.as_deref());
            }
        }
        for (_, key) in truth.gone.iter().filter(|(at, _)| *at == number) {
            if let Some(found) = self.quiet("reading a key", space.get(key)) {
                differences.add("reading", number, key, None, found.as_deref());
            }
        }
    }

    /// As `note`, without a line in the trace for what went well.
    fn quiet<T>(&self, doing: &'static str, result: Result<T>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => self.note(doing, Err(error)),
        }
    }

    fn scan(
        &self,
        snapshot: &Snapshot,
        space: &Keyspace,
        number: usize,
        rows: &Rows,
        reverse: bool,
        found: &mut Differences,
    ) {
        let (how, scan) = match reverse {
            false => ("a scan", snapshot.scan(space, ..)),
            true => ("a scan backwards", snapshot.scan_rev(space, ..)),
        };
        let Some(mut scan) = self.quiet(how, scan) else { return };
        let mut wanted: Box<dyn Iterator<Item = (&Vec<u8>, &Vec<u8>)>> =
            if reverse { Box::new(rows.iter().rev()) } else { Box::new(rows.iter()) };
        let mut most = rows.len() + 1000;
        loop {
            let row = match scan.next_row() {
                Ok(row) => row,
                // What comes after is not known, and it was said.
                Err(error) => {
                    self.note::<()>(how, Err(error));
                    return;
                }
            };
            let Some((key, value)) = row else { break };
            let mut next = wanted.next();
            while let Some((skipped, lost)) =
                next.filter(|(k, _)| k.as_slice() != key && (k.as_slice() < key) != reverse)
            {
                found.add(how, number, skipped, Some(lost), None);
                next = wanted.next();
            }
            let is = next.filter(|(k, _)| k.as_slice() == key);
            found.add(how, number, key, is.map(|(_, v)| v.as_slice()), Some(value));
            most -= 1;
            if is.is_none() || most == 0 {
                // Out of step: one row too many is enough to know.
                return;
            }
        }
        wanted.for_each(|(key, value)| found.add(how, number, key, Some(value), None));
    }

    fn check(&self, db: &Db) {
        let Some(report) = self.note("check", db.check()) else { return };
        let mut seen = self.seen.lock();
        seen.check.extend(report.damages.iter().map(ToString::to_string));
        seen.check.extend(report.unreadable.iter().map(ToString::to_string));
        seen.mended |= !report.warnings.is_empty() && db.stats().log.superblocks_mended > 0;
    }

    /// Changes rows all over the database. An error ends it; the row concerned is looked at no more.
    fn write(&mut self, db: &Db) {
        for space in [ROWS, LONG] {
            let Some(keyspace) = self.note("opening a keyspace", db.keyspace(NAMES[space])) else { return };
            let step = (self.truth.spaces[space].len() / 12).max(1);
            let keys: Vec<Vec<u8>> = self.truth.spaces[space].keys().step_by(step).cloned().collect();
            for (n, key) in keys.iter().enumerate() {
                let value = (n % 4 != 3).then(|| vec![n as u8; if space == LONG { 9000 } else { 300 }]);
                let done = match &value {
                    Some(value) => keyspace.put(key, value),
                    None => keyspace.delete(key).map(|_| ()),
                };
                if self.quiet("writing", done).is_none() {
                    self.unknown = Some((space, key.clone()));
                    return;
                }
                self.truth.set(space, key, value);
            }
        }
        self.note("a checkpoint", db.checkpoint());
    }
}

/// Whether an error says where: a page, a position of the log, a superblock, or a file.
fn names_a_place(error: &Error) -> bool {
    let text = error.to_string();
    let files = File::ALL.map(File::device);
    matches!(error, Error::Corrupt(_) | Error::Mismatch(_))
        || ["page ", "LSN ", "superblock"].iter().chain(&files).any(|place| text.contains(place))
}
