//! Every order of uses, flushes, checkpoints, crashes and backups of one page, up to a number of log records: what
//! recovery makes of any durable part of the log, and what a backup restores, is what the page's owner wrote.
//!
//! The rules are those of `ripe.rs` and `direct.rs`, around the real [`Unripe`]; log, device and pool are a model. It
//! is harsher than the engine where that is simpler: redo installs images whatever the page holds.

use super::extents::PageSet;
use super::ripe::{PastLog, Unripe};
use std::hash::BuildHasher as _;
use varve_rt::{BuildHasher, HashSet};
use varve_volume::PageId;

const PAGE: PageId = PageId(5);
/// Most records of the log, over all crashes.
const RECORDS: usize = 4;
/// What a page holds that is being written.
const TORN: u8 = u8::MAX;

/// Rules that can be left out, each of which must be missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// All are kept.
    Kept,
    /// A segment's page is free before the group that dropped it is durable.
    FreeEarly,
    /// A tree's page is ripe at once too.
    TreesToo,
    /// What trees freed ripens during a backup.
    DuringBackups,
    /// A backup is not told of pages that are linked meanwhile.
    NotTold,
    /// Pages that were written before a backup began, and are linked after that, keep their LSN.
    NotStamped,
    /// Recovery takes free pages for ripe whatever it replayed.
    AfterCrashes,
    /// Pages of segments bear the image floor.
    SameLsn,
    /// Others than segments get pages that a segment had, too.
    OthersToo,
}

/// A record: its position is its LSN less one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Record {
    /// A tree writes the page, logged whole.
    Image(u8),
    /// A tree changes what it was to something else.
    Change(u8, u8),
    Free,
    /// The page, which is written and bears this LSN, is of a segment, or direct otherwise.
    Link(u8, usize, PastLog),
    Drop,
    /// Of another page.
    Elsewhere,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Content {
    lsn: usize,
    is: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Owner {
    Nobody,
    /// It is set aside; written when it is not torn; the number of backups when it was filled.
    Aside(u8, u8, PastLog),
    Direct(u8, PastLog),
    /// Its segment was dropped by a group that ends here.
    Dropped(usize),
    Tree(u8),
}

/// A backup under way: where it began, whether the map named the page, what was copied last, and whether the page was
/// linked since.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Backup {
    start: usize,
    listed: Option<bool>,
    copied: Option<Content>,
    linked: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    log: Vec<Record>,
    durable: usize,
    redo: usize,
    floor: usize,
    /// T of the checkpoint that is being made.
    checkpoint: Option<usize>,
    unripe: Unripe,
    owner: Owner,
    device: Content,
    /// What the pool has and the device has not.
    dirty: Option<Content>,
    backups: u8,
    backup: Option<Backup>,
    /// Where the last complete backup began, and the page in it.
    base: Option<(usize, Option<Content>)>,
    crashes: u8,
}

/// The last record of the page.
fn last(log: &[Record]) -> Option<&Record> {
    log.iter().rev().find(|record| **record != Record::Elsewhere)
}

/// Who has the page after these records, and what it holds then.
fn truth(log: &[Record]) -> Option<u8> {
    match last(log) {
        None | Some(Record::Free | Record::Drop | Record::Elsewhere) => None,
        Some(Record::Image(is) | Record::Change(_, is) | Record::Link(is, ..)) => Some(*is),
    }
}

/// What redo makes of a page.
fn redone(mut page: Content, from: usize, log: &[Record]) -> Content {
    for (i, record) in log.iter().enumerate().skip(from) {
        let lsn = i + 1;
        match record {
            Record::Image(is) => page = Content { lsn, is: *is },
            Record::Change(was, is) if page.lsn < lsn => {
                page = Content { lsn, is: if page.is == *was { *is } else { TORN } };
            }
            _ => {}
        }
    }
    page
}

impl World {
    fn new() -> World {
        World {
            log: Vec::new(),
            durable: 0,
            redo: 0,
            floor: 0,
            checkpoint: None,
            unripe: Unripe::default(),
            owner: Owner::Nobody,
            device: Content { lsn: 0, is: TORN },
            dirty: None,
            backups: 0,
            backup: None,
            base: None,
            crashes: 0,
        }
    }

    fn is_ripe(&self, whose: PastLog, rule: Rule) -> bool {
        let whose = if rule == Rule::OthersToo { PastLog::Segment } else { whose };
        self.unripe.word_for(0, whose) >> PAGE.0 & 1 == 0
    }

    /// The LSN of a direct page.
    fn stamp(&self, whose: PastLog, rule: Rule) -> usize {
        if whose == PastLog::Segment && rule != Rule::SameLsn { self.floor.max(self.durable) } else { self.floor }
    }

    /// Something that the page has not held before.
    fn fresh(&self) -> u8 {
        10 * self.crashes + self.log.len() as u8
    }

    fn flush_log(&mut self, to: usize) {
        self.durable = self.durable.max(to);
        if matches!(self.owner, Owner::Dropped(end) if end <= self.durable) {
            self.owner = Owner::Nobody;
        }
    }

    /// Any crash now is survived, and no two versions of the page have one LSN.
    fn check(&self) -> Result<(), String> {
        let mut before = None;
        for (i, record) in self.log.iter().enumerate() {
            let lsn = match record {
                Record::Image(_) | Record::Change(..) => i + 1,
                Record::Link(_, lsn, _) => *lsn,
                Record::Free | Record::Drop | Record::Elsewhere => continue,
            };
            if before.is_some_and(|before| lsn <= before) {
                return Err(format!("record {i} does not make a newer version: {self:?}"));
            }
            before = Some(lsn);
        }
        for end in self.durable..=self.log.len() {
            let found = redone(self.device, self.redo, &self.log[..end]);
            let right = truth(&self.log[..end]).is_none_or(|is| is == found.is);
            if !right {
                return Err(format!("a crash with {end} records finds {found:?}: {self:?}"));
            }
        }
        Ok(())
    }

    /// All that may happen next.
    fn next(&self, rule: Rule) -> Result<Vec<World>, String> {
        let mut found = Vec::new();
        if self.log.len() < RECORDS {
            self.uses(rule, &mut found);
        }
        self.maintenance(rule, &mut found);
        self.backing_up(&mut found)?;
        if self.crashes == 0 {
            self.crash(rule, &mut found);
        }
        Ok(found)
    }

    /// Who has the page, or would like to.
    fn uses(&self, rule: Rule, found: &mut Vec<World>) {
        let mut step = |change: &dyn Fn(&mut World)| {
            let mut next = self.clone();
            change(&mut next);
            found.push(next);
        };
        if !self.log.contains(&Record::Elsewhere) {
            step(&|w| w.log.push(Record::Elsewhere));
        }
        let is = self.fresh();
        match self.owner {
            Owner::Nobody => {
                step(&|w| w.write_tree(Record::Image(is), is));
                for whose in [PastLog::Segment, PastLog::Other].into_iter().filter(|whose| self.is_ripe(*whose, rule)) {
                    step(&|w| {
                        w.owner = Owner::Aside(TORN, w.backups, whose);
                        w.device = Content { lsn: w.stamp(whose, rule), is: TORN };
                    });
                }
            }
            Owner::Aside(TORN, backups, whose) => step(&|w| {
                w.owner = Owner::Aside(is, backups, whose);
                w.device.is = is;
            }),
            Owner::Aside(is, backups, whose) => {
                step(&|w| w.owner = Owner::Nobody);
                step(&|w| {
                    if w.backups != backups && rule != Rule::NotStamped {
                        w.device.lsn = w.stamp(whose, rule);
                    }
                    w.log.push(Record::Link(is, w.device.lsn, whose));
                    w.owner = Owner::Direct(is, whose);
                    if let Some(backup) = w.backup.as_mut().filter(|_| rule != Rule::NotTold) {
                        backup.linked = true;
                    }
                });
            }
            Owner::Direct(_, PastLog::Segment) => step(&|w| {
                w.log.push(Record::Drop);
                w.owner = if rule == Rule::FreeEarly { Owner::Nobody } else { Owner::Dropped(w.log.len()) };
                w.unripe.freed_of_segment(&[PAGE]);
            }),
            Owner::Direct(_, PastLog::Other) => step(&|w| {
                w.log.push(Record::Free);
                w.owner = Owner::Nobody;
                w.unripe.freed(&[PAGE]);
            }),
            Owner::Dropped(_) => {}
            Owner::Tree(was) => {
                let page = self.dirty.unwrap_or(self.device);
                let record = if page.lsn <= self.floor { Record::Image(is) } else { Record::Change(was, is) };
                step(&|w| w.write_tree(record, is));
                step(&|w| {
                    w.log.push(Record::Free);
                    (w.owner, w.dirty) = (Owner::Nobody, None);
                    if rule == Rule::TreesToo {
                        w.unripe.freed_of_segment(&[PAGE]);
                    } else {
                        w.unripe.freed(&[PAGE]);
                    }
                });
            }
        }
    }

    fn write_tree(&mut self, record: Record, is: u8) {
        self.log.push(record);
        self.owner = Owner::Tree(is);
        self.dirty = Some(Content { lsn: self.log.len(), is });
    }

    /// The log and the page are flushed; a checkpoint begins or is completed.
    fn maintenance(&self, rule: Rule, found: &mut Vec<World>) {
        let mut next = self.clone();
        next.flush_log(self.log.len());
        found.push(next);
        if let Some(page) = self.dirty {
            let mut next = self.clone();
            next.flush_log(page.lsn);
            (next.device, next.dirty) = (page, None);
            found.push(next);
        }
        let mut next = self.clone();
        match self.checkpoint {
            None => {
                (next.checkpoint, next.floor) = (Some(self.log.len()), self.log.len());
                next.unripe.checkpoint_begins();
            }
            Some(t) => {
                next.flush_log(self.log.len());
                next.device = next.dirty.take().unwrap_or(next.device);
                (next.checkpoint, next.redo) = (None, t);
                if self.backup.is_none() || rule == Rule::DuringBackups {
                    next.unripe.checkpoint_completed();
                }
            }
        }
        found.push(next);
    }

    /// A backup begins, looks at the map, copies the page, ends.
    fn backing_up(&self, found: &mut Vec<World>) -> Result<(), String> {
        let Some(backup) = &self.backup else {
            if self.backups < 2 {
                let mut next = self.clone();
                next.backups += 1;
                next.floor = self.log.len();
                next.backup = Some(Backup { start: self.log.len(), listed: None, copied: None, linked: false });
                found.push(next);
            }
            return Ok(());
        };
        let mut step = |change: &dyn Fn(&mut Backup)| {
            let mut next = self.clone();
            change(next.backup.as_mut().expect("there is one"));
            found.push(next);
        };
        let Some(listed) = backup.listed else {
            step(&|backup| backup.listed = Some(truth(&self.log).is_some()));
            return Ok(());
        };
        let mut to_copy = backup.linked;
        if listed && backup.copied.is_none() {
            to_copy = true;
        }
        if to_copy {
            let page = self.dirty.unwrap_or(self.device);
            if page.is == TORN && truth(&self.log).is_some() {
                return Err(format!("a backup reads a page that is allocated, and torn: {self:?}"));
            }
            // What changed since its base only, but for what was linked meanwhile. What it leaves out is the base's.
            let since = self.base.filter(|_| !backup.linked).map_or(0, |(start, _)| start);
            let of_base = self.base.and_then(|(_, page)| page).unwrap_or(Content { lsn: 0, is: TORN });
            let copied = if page.lsn < since { of_base } else { page };
            step(&|backup| (backup.copied, backup.linked) = (Some(copied), false));
            return Ok(());
        }
        let mut next = self.clone();
        next.flush_log(self.log.len());
        let old = self.base.and_then(|(_, page)| page);
        let copied = backup.copied.or(old);
        let restored = redone(copied.unwrap_or(Content { lsn: 0, is: TORN }), backup.start, &self.log);
        if truth(&self.log).is_some_and(|is| is != restored.is) {
            return Err(format!("a backup restores {restored:?}: {self:?}"));
        }
        (next.base, next.backup) = (Some((backup.start, copied)), None);
        found.push(next);
        Ok(())
    }

    /// A crash, with each part of the log that may survive it, and the recovery.
    fn crash(&self, rule: Rule, found: &mut Vec<World>) {
        for end in self.durable..=self.log.len() {
            let log = self.log[..end].to_vec();
            let page = redone(self.device, self.redo, &log);
            let owner = match last(&log) {
                None | Some(Record::Free | Record::Drop | Record::Elsewhere) => Owner::Nobody,
                Some(Record::Link(is, _, whose)) => Owner::Direct(*is, *whose),
                Some(Record::Image(is) | Record::Change(_, is)) => Owner::Tree(*is),
            };
            let mut pages = PageSet::default();
            let named = log[self.redo..]
                .iter()
                .any(|record| !matches!(record, Record::Link(..) | Record::Drop | Record::Elsewhere));
            if named && rule != Rule::AfterCrashes {
                pages.add(PAGE);
            }
            let dirty = Some(page).filter(|_| matches!(owner, Owner::Tree(_)) && page != self.device);
            found.push(World {
                durable: end,
                log,
                floor: end,
                checkpoint: None,
                unripe: Unripe::redone(pages),
                owner,
                dirty,
                backup: None,
                crashes: 1,
                ..self.clone()
            });
        }
    }
}

/// Looks at every world that can come about; how many, or what is wrong with one.
fn explore(rule: Rule) -> Result<usize, String> {
    let hasher = BuildHasher;
    // Their hashes: they are many.
    let (mut seen, mut open): (HashSet<u64>, _) = (HashSet::default(), vec![World::new()]);
    while let Some(world) = open.pop() {
        world.check()?;
        for next in world.next(rule)? {
            if seen.insert(hasher.hash_one(&next)) {
                open.push(next);
            }
        }
    }
    Ok(seen.len())
}

#[test]
fn pages_of_segments_are_ripe_when_they_are_free() {
    let worlds = explore(Rule::Kept).unwrap();
    assert!(worlds > 100_000, "only {worlds} worlds");
}

#[test]
fn each_rule_is_missed_that_is_left_out() {
    for rule in [
        Rule::FreeEarly,
        Rule::TreesToo,
        Rule::DuringBackups,
        Rule::NotTold,
        Rule::NotStamped,
        Rule::AfterCrashes,
        Rule::SameLsn,
        Rule::OthersToo,
    ] {
        assert!(explore(rule).is_err(), "{rule:?}: nobody misses it");
    }
}
