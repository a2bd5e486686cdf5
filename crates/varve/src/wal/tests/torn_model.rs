//! The torn-page rule, held against every short history: change, write, checkpoint begins, checkpoint ends, then a torn
//! crash.
//!
//! The model is one page and its log, in the terms of the rule: positions are integers, a change is an image or
//! operations. The same histories run under two naive rules, which must fail: images decided by the last *completed*
//! checkpoint, and a redo point at the first change of the pages dirty when a checkpoint ends. A second test runs every
//! history through the real log, checkpoint bookkeeping and recovery.

use super::pages::{Pages, change};
use super::recovery::{self, RecoveryOptions};
use super::*;
use varve_volume::PageId;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    Change,
    Write,
    Begin,
    End,
    /// Power cut and recovery; what was written is there.
    Crash,
    /// Power cut that tears a write of the page, and recovery.
    Torn,
}

const ACTS: [Act; 6] = [Act::Change, Act::Write, Act::Begin, Act::End, Act::Crash, Act::Torn];
const LONGEST: usize = 9;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    Ours,
    ImageRuleCompleted,
    RedoFromFirstChange,
}

/// A checkpoint under way: its T, and whether the page was dirty when it began and has not been written since.
#[derive(Debug, Clone, Copy)]
struct Checkpoint {
    t: u64,
    owes_write: bool,
}

#[derive(Debug, Clone, Default)]
struct Model {
    /// Per change: its end position, whether it was logged as an image.
    log: Vec<(u64, bool)>,
    /// LSN of the page in memory.
    page: u64,
    /// LSN of the page as stored; `None` when it is torn.
    stored: Option<u64>,
    /// Start of the page's first change since its last write.
    first_dirty: Option<u64>,
    /// A write that no sync covers may still be torn.
    unsynced: bool,
    late_write: bool,
    running: Option<Checkpoint>,
    floor: u64,
    redo: u64,
}

/// What an act came to.
enum Came {
    Next,
    Impossible,
    Lost,
}

impl Model {
    fn end(&self) -> u64 {
        10 + self.log.len() as u64 * 10
    }

    fn act(&mut self, act: Act, rule: Rule) -> Came {
        match act {
            Act::Change => {
                let floor = if rule == Rule::ImageRuleCompleted { self.redo } else { self.floor };
                let start = self.end();
                self.log.push((start + 10, self.page <= floor));
                self.page = start + 10;
                self.first_dirty.get_or_insert(start);
            }
            Act::Write => {
                if self.first_dirty.take().is_none() {
                    return Came::Impossible;
                }
                self.stored = Some(self.page);
                // A write that the checkpoint waits for comes before its sync; any other may come after it.
                let owed = self.running.as_mut().is_some_and(|c| std::mem::take(&mut c.owes_write));
                (self.unsynced, self.late_write) = (true, !owed);
            }
            Act::Begin => {
                if self.running.is_some() {
                    return Came::Impossible;
                }
                self.running = Some(Checkpoint { t: self.end(), owes_write: self.first_dirty.is_some() });
                self.floor = self.end();
                self.late_write = false;
            }
            Act::End => {
                let Some(c) = self.running.filter(|c| !c.owes_write) else { return Came::Impossible };
                self.running = None;
                self.unsynced &= self.late_write;
                self.redo = match rule {
                    Rule::RedoFromFirstChange => self.first_dirty.unwrap_or(self.end()),
                    _ => c.t,
                };
            }
            Act::Crash => return self.recover(),
            Act::Torn => {
                if self.first_dirty.is_none() && !self.unsynced {
                    return Came::Impossible;
                }
                self.stored = None;
                return self.recover();
            }
        }
        Came::Next
    }

    fn recover(&mut self) -> Came {
        let mut page = self.stored;
        self.first_dirty = None;
        for (i, &(end, image)) in self.log.iter().enumerate().filter(|(_, (end, _))| *end > self.redo) {
            if image || page.is_some_and(|lsn| lsn < end) {
                page = Some(end);
                self.first_dirty.get_or_insert(10 + i as u64 * 10);
            }
        }
        (self.running, self.floor) = (None, self.redo);
        if page == Some(self.page) { Came::Next } else { Came::Lost }
    }
}

/// Visits every history of up to `longest` acts that ends with a crash, and tells whether the page is lost by its last
/// act.
fn every_history(rule: Rule, longest: usize, visit: &mut dyn FnMut(&[Act], bool)) {
    fn go(path: &mut Vec<Act>, model: &Model, rule: Rule, longest: usize, visit: &mut dyn FnMut(&[Act], bool)) {
        if path.len() == longest {
            return;
        }
        for act in ACTS {
            let mut next = model.clone();
            path.push(act);
            let came = next.act(act, rule);
            if matches!(act, Act::Crash | Act::Torn) && !matches!(came, Came::Impossible) {
                visit(path, matches!(came, Came::Lost));
            }
            if matches!(came, Came::Next) {
                go(path, &next, rule, longest, visit);
            }
            path.pop();
        }
    }
    // The page exists, whole and empty, from before the log.
    let model = Model { floor: 10, redo: 10, stored: Some(0), ..Model::default() };
    go(&mut Vec::new(), &model, rule, longest, visit);
}

fn lost(rule: Rule) -> Vec<Vec<Act>> {
    let mut paths = Vec::new();
    every_history(rule, LONGEST, &mut |path, lost| paths.extend(lost.then(|| path.to_vec())));
    paths
}

#[test]
fn our_rule_loses_no_page_in_any_history() {
    let mut histories = 0;
    every_history(Rule::Ours, LONGEST, &mut |_, _| histories += 1);
    assert!(histories > 100_000, "only {histories} histories");
    let lost = lost(Rule::Ours);
    assert!(lost.is_empty(), "{} histories, the first {:?}", lost.len(), lost[0]);
}

#[test]
fn the_naive_rules_lose_pages() {
    use Act::*;
    let completed = lost(Rule::ImageRuleCompleted);
    assert!(completed.contains(&vec![Change, Write, Begin, Change, End, Torn]), "{} histories", completed.len());
    let first_change = lost(Rule::RedoFromFirstChange);
    assert!(first_change.contains(&vec![Begin, Change, Write, Change, End, Torn]), "{} histories", first_change.len());
}

/// Runs a history through the real log, the checkpoint's bookkeeping and recovery.
fn run_for_real(path: &[Act]) -> Result<()> {
    const PAGE: PageId = PageId(3);
    let (dev, mut log) = fresh(small());
    let pages = Pages::new(4096);
    pages.store_empty(PAGE);
    let (mut expect, mut t, mut stamp) = (None, 0, 0u8);
    for act in path {
        match act {
            Act::Change => {
                stamp += 1;
                change(&log, &pages, PAGE, stamp as usize * 16 + 64, &[stamp; 8]);
                expect = pages.load(PAGE);
            }
            Act::Write => pages.write(&log, PAGE),
            Act::Begin => t = log.begin_checkpoint(),
            Act::End => log.complete_checkpoint(t)?,
            Act::Torn | Act::Crash => {
                log.wait_durable(log.end_lsn())?;
                if *act == Act::Torn {
                    pages.tear(PAGE);
                }
                pages.crash();
                let (opened, state) = Log::open(dev.clone(), small(), false)?;
                recovery::run(&opened, &state, &pages, &mut RecoveryOptions::default())?;
                log = opened;
                if expect.is_some() {
                    assert!(pages.load(PAGE) == expect, "{path:?}");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn the_real_log_and_recovery_bring_the_page_back_in_every_history() {
    let mut paths = Vec::new();
    every_history(Rule::Ours, 6, &mut |path, _| paths.push(path.to_vec()));
    for path in paths {
        run_for_real(&path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
    }
}
