//! A client: runs scripts against the database and writes down what it saw.

use super::book::{self, Must, Shared};
use super::judge::{Verdict, judge};
use super::model::{Act, ScanSeen, Tx};
use super::rows::{self, Digest, MARKS};
use super::script::{Ending, Script, Scripts, Step};
use std::sync::Arc;
use std::time::Duration;
use varve::{BulkLoad, Db, Durability, Error, Keyspace, Result, Snapshot, Transaction, TxOptions};
use varve_rt::Rng;
use varve_rt::atomic::{AtomicU64, Ordering::SeqCst};

/// Snapshots that a client still tries after the database was poisoned.
const READS_AFTER_POISON: u32 = 3;
/// Errors of devices after which a client gives up: one that stays will not go away.
const MOST_ERRORS: u32 = 12;

/// Steps from which on a transaction counts as large.
const LARGE: usize = 100;

/// What a client needs.
pub(crate) struct Client {
    pub(crate) number: u32,
    pub(crate) shared: Arc<Shared>,
    pub(crate) db: Db,
    pub(crate) spaces: [Keyspace; 3],
    pub(crate) scripts: Scripts,
    pub(crate) rng: Rng,
}

/// Whether to go on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    Go,
    /// A device failed; the next transaction may work.
    Failed,
    /// Writes are refused; reads may go on.
    Poisoned,
    End,
}

impl Client {
    /// Runs until told to stop, or until the database or its power is gone.
    pub(crate) fn run(mut self) {
        let mut reads_left = READS_AFTER_POISON;
        let (mut poisoned, mut failed) = (false, 0);
        while !self.shared.is_stopping() && reads_left > 0 {
            let script = match self.shared.wants_large() && self.rng.one_in(3) {
                true => self.scripts.outgrowing(),
                false => self.scripts.next(),
            };
            let next = match script {
                Script::Snapshot { steps } => {
                    reads_left -= u32::from(poisoned);
                    self.snapshot(&steps)
                }
                _ if poisoned => continue,
                Script::Checkpoint => self.checkpoint(),
                Script::Compact => self.compact(),
                Script::Backup => self.backup(),
                Script::Close { snapshot } => self.close(snapshot),
                Script::Single { step, durability } => self.single(&step, durability),
                Script::Keyspace { which, rows, len } => self.keyspace(which, rows, len),
                Script::Reshape { which, how } => self.reshape(which, how),
                Script::Cut { space, range, durability } => self.cut(space, range, durability),
                Script::Write { steps, durability, ending } => self.write(&steps, durability, ending),
            };
            match next {
                Next::Go => {}
                Next::Failed if failed == MOST_ERRORS => return,
                Next::Failed => failed += 1,
                Next::Poisoned => poisoned = true,
                Next::End => return,
            }
            pause(self.scripts.think());
        }
    }

    /// Fills the database up to the plan's amount, in transactions of neighbouring rows in random order. Whether it
    /// came to the end.
    pub(crate) fn load(mut self) -> bool {
        const RUN: u32 = 8;
        let plan = self.shared.plan.clone();
        let mut runs: Vec<(u8, u32)> = (0..rows::ROW_SPACES)
            .flat_map(|space| (0..plan.keys.count.div_ceil(RUN)).map(move |run| (space, run * RUN)))
            .collect();
        self.rng.shuffle(&mut runs);
        let mut bytes = 0;
        for (space, from) in runs {
            if bytes >= plan.load_bytes {
                return true;
            }
            if self.shared.is_stopping() {
                return false;
            }
            let mut steps = Vec::new();
            for index in from..(from + RUN).min(plan.keys.count) {
                let len = plan.mix.lengths.draw(&mut self.rng);
                bytes += u64::from(len) + plan.keys.key(space, index).len() as u64;
                steps.push(Step::Put { space, index, len: Some(len) });
            }
            if self.write(&steps, Durability::None, Ending::Commit) != Next::Go {
                return false;
            }
        }
        true
    }

    /// What an error means for this client.
    pub(super) fn after(&self, error: &Error, doing: &str) -> Next {
        self.shared.trace.event(|| format!("client {}: {doing}: {error}", self.number));
        match judge(error, &self.shared) {
            Verdict::Retry => {
                self.shared.count("conflicts", 1);
                pause(50 + self.number as u64 * 30);
                Next::Go
            }
            Verdict::TooLarge => {
                self.shared.count("transactions refused as too large", 1);
                Next::Go
            }
            Verdict::Failed => {
                self.shared.count("errors seen by clients", 1);
                pause(500);
                Next::Failed
            }
            Verdict::Poisoned => Next::Poisoned,
            Verdict::PowerOff => Next::End,
            Verdict::Damage => {
                self.shared.damage(error);
                Next::End
            }
            Verdict::Wrong => {
                self.shared.wrong(format!("client {}: {doing}: {error}", self.number));
                Next::End
            }
        }
    }

    fn checkpoint(&self) -> Next {
        match self.db.checkpoint() {
            Ok(()) => Next::Go,
            Err(e) => self.after(&e, "checkpoint"),
        }
    }

    /// A tier refuses it, so that a checkpoint takes its place.
    fn compact(&self) -> Next {
        if self.db.stats().tier.is_some() {
            return self.checkpoint();
        }
        match self.db.compact() {
            Ok(report) => {
                self.shared.count("compactions", 1);
                self.shared.backups.compactions.fetch_add(1, SeqCst);
                self.shared.count("pages moved by compactions", report.moved);
                Next::Go
            }
            // Of backups there may be one at the same time: then the file is not cut.
            Err(Error::Invalid(_)) => Next::Go,
            Err(e) => self.after(&e, "compaction"),
        }
    }

    /// Asks for a close that has to be refused, after which work goes on.
    fn close(&self, snapshot: bool) -> Next {
        let refused = || match self.db.close() {
            Err(Error::Invalid(_)) => Ok(()),
            Err(e) => Err(format!("a close that has to wait for others fails with another error: {e}")),
            Ok(()) => Err("closed, though work was open".to_string()),
        };
        let (space, key) = (self.space(0), self.key(0, self.shared.plan.mix.hot_from));
        let read = if snapshot {
            self.db.snapshot().map(|snapshot| (refused(), snapshot.get(space, &key).map(drop)))
        } else {
            self.db.begin().map(|mut tx| {
                let read = tx.get(space, &key).map(drop);
                (refused(), read.and_then(|()| tx.commit()))
            })
        };
        match read {
            Ok((Ok(()), Ok(()))) => {
                self.shared.count("closes refused", 1);
                Next::Go
            }
            Ok((Err(what), _)) => {
                self.shared.wrong(format!("client {}: {what}", self.number));
                Next::End
            }
            Ok((_, Err(e))) | Err(e) => self.after(&e, "beside a refused close"),
        }
    }

    /// Creates and fills a keyspace of the client's own, or drops it. Its rows are not followed: what matters is
    /// whether it is there, and that its pages are accounted for.
    pub(super) fn keyspace(&self, which: u8, rows: u32, len: u32) -> Next {
        let name = format!("own-{}-{which}", self.number);
        let known = self.shared.own(&name);
        self.shared.set_own(&name, Must::Either);
        self.shared.trace.event(|| format!("client {}: keyspace {name} ({known:?}), {rows} rows", self.number));
        let result = match known {
            // One that is there can be replaced: it is there before, after, and whenever a crash comes.
            Must::Exist | Must::Empty if len % 3 == 1 => {
                self.shared.set_own(&name, Must::Exist);
                self.bulk_replace(&name, rows, len)
            }
            Must::Exist | Must::Empty => self.db.drop_keyspace(&name).map(|()| Must::Absent),
            // A name that must be absent can be loaded: with finished pages, beside the log.
            Must::Absent if len % 2 == 1 => self.bulk_load(&name, which, rows, len),
            _ => {
                let kind = self.shared.plan.kind(3 + usize::from(which));
                let made = self.db.keyspace_or_create_of(&name, kind);
                made.and_then(|space| {
                    if known == Must::Absent && self.db.snapshot()?.count(&space, ..)? > 0 {
                        self.shared.wrong(format!("keyspace {name} is new, and has rows"));
                    }
                    self.fill(&space, &name, rows, len)
                })
            }
        };
        match result {
            Ok(must) => {
                self.shared.set_own(&name, must);
                let what = if must == Must::Exist { "keyspaces created" } else { "keyspaces dropped" };
                self.shared.count(what, 1);
                Next::Go
            }
            Err(e) => self.after(&e, &format!("keyspace {name}")),
        }
    }

    fn fill(&self, space: &Keyspace, name: &str, rows: u32, len: u32) -> Result<Must> {
        self.shared.set_own(name, Must::Exist);
        for row in 0..rows {
            let key = self.key(0, row.min(self.shared.plan.keys.count));
            space.put_with(&key, &rows::value(u64::from(row), len as usize), Durability::None)?;
        }
        Ok(Must::Exist)
    }

    fn bulk_load(&self, name: &str, which: u8, rows: u32, len: u32) -> Result<Must> {
        let load = self.db.bulk_load_of(name, self.shared.plan.kind(3 + usize::from(which)))?;
        self.load_rows(load, rows, len, "bulk loads")
    }

    fn bulk_replace(&self, name: &str, rows: u32, len: u32) -> Result<Must> {
        self.load_rows(self.db.bulk_replace(name)?, rows, len, "bulk loads in the place of a keyspace")
    }

    fn load_rows(&self, mut load: BulkLoad, rows: u32, len: u32, what: &'static str) -> Result<Must> {
        for row in 0..rows {
            load.push(&row.to_be_bytes(), &rows::value(u64::from(row), len as usize))?;
        }
        load.finish()?;
        self.shared.count(what, 1);
        self.shared.backups.loads.fetch_add(1, SeqCst);
        Ok(Must::Exist)
    }

    fn write(&mut self, steps: &[Step], durability: Durability, ending: Ending) -> Next {
        let (id, began_after) = self.shared.begin();
        let position = Arc::new(AtomicU64::new(0));
        let options = TxOptions { durability: Some(durability), ..TxOptions::default() };
        let mut tx = match self.db.begin_with(options) {
            Ok(tx) => tx,
            Err(e) => return self.after(&e, "begin"),
        };
        tx.tell_commit_number(position.clone());
        self.shared.trace.event(|| format!("client {}: begin {id} {durability:?} {steps:?}", self.number));
        let mut session = Session { client: self, id, acts: Vec::new(), savepoints: Vec::new(), writes: 0 };
        let is_large = steps.len() >= LARGE;
        if let Err(e) = session.all(&mut tx, steps) {
            self.note_full(is_large, &e);
            let next = self.after(&e, &format!("transaction {id}"));
            tx.rollback();
            return next;
        }
        let Session { acts, .. } = session;
        match ending {
            Ending::Commit => self.commit(tx, book::tx(id, began_after, durability, acts), position, is_large),
            Ending::Rollback => {
                tx.rollback();
                self.shared.count("rollbacks", 1);
                Next::Go
            }
            Ending::Drop => {
                drop(tx);
                self.shared.count("rollbacks", 1);
                Next::Go
            }
        }
    }

    /// Counts a large transaction that found the device full.
    fn note_full(&self, is_large: bool, error: &Error) {
        if is_large && matches!(error, Error::NoSpace(_)) {
            self.shared.count("large transactions refused by a full device", 1);
        }
    }

    fn commit(&self, tx: Transaction, seen: Tx, position: Arc<AtomicU64>, is_large: bool) -> Next {
        let id = seen.id;
        let at = self.shared.write_down(seen, position.clone());
        if is_large {
            self.shared.large_commit_begins();
        }
        match tx.commit() {
            Ok(()) => {
                self.shared.count("large transactions", u64::from(is_large));
                let placed = position.load(SeqCst);
                self.shared.trace.event(|| format!("client {}: committed {id} at {placed}", self.number));
                self.shared.acknowledged(at);
                Next::Go
            }
            Err(e) => {
                self.note_full(is_large, &e);
                self.refused(at, &e, &position, &format!("commit of {id}"))
            }
        }
    }

    /// An operation that is written down as `at` ended with `error`: refused if it got no commit number; one that has a
    /// number must not be retried.
    pub(super) fn refused(&self, at: book::Written, error: &Error, position: &AtomicU64, doing: &str) -> Next {
        let placed = position.load(SeqCst);
        if placed == 0 {
            self.shared.refused(at);
        } else if error.is_retryable() {
            self.shared.wrong(format!("{doing} has commit number {placed} and is to be retried: {error}"));
        }
        self.after(error, &format!("{doing} (at {placed})"))
    }

    fn snapshot(&self, steps: &[Step]) -> Next {
        let (id, began_after) = self.shared.begin();
        let snapshot = match self.db.snapshot() {
            Ok(snapshot) => snapshot,
            Err(e) => return self.after(&e, "snapshot"),
        };
        let at = snapshot.lsn();
        self.shared.trace.event(|| format!("client {}: snapshot {id} at {at} {steps:?}", self.number));
        if at < began_after {
            self.shared.wrong(format!("snapshot at {at}, opened after commit {began_after} was acknowledged"));
            return Next::End;
        }
        let mut acts = Vec::new();
        for step in steps {
            if let Err(e) = self.snapshot_step(&snapshot, step, &mut acts) {
                return self.after(&e, &format!("snapshot {id}"));
            }
        }
        self.shared.count("snapshots", 1);
        let mut seen = book::tx(id, began_after, Durability::None, acts);
        seen.snapshot = Some(at);
        let at = self.shared.write_down(seen, Arc::new(AtomicU64::new(0)));
        self.shared.acknowledged(at);
        Next::Go
    }

    fn snapshot_step(&self, snapshot: &Snapshot, step: &Step, acts: &mut Vec<Act>) -> Result<()> {
        match *step {
            Step::Get { space, index } => {
                let key = self.key(space, index);
                let value = snapshot.get(self.space(space), &key)?;
                acts.push(Act::Get((space, key), value.as_deref().map(Digest::of)));
            }
            Step::Count { space, from, to } => {
                let (from, to) = (self.key(space, from), self.key(space, to));
                let n = snapshot.count(self.space(space), &from..&to)?;
                acts.push(Act::Count(space, from, to, n));
            }
            Step::Scan { space, from, to, reverse, limit } => {
                let (from, to) = (self.key(space, from), self.key(space, to));
                let range = &from..&to;
                let rows = match reverse {
                    false => collect(snapshot.scan(self.space(space), range)?, limit)?,
                    true => collect(snapshot.scan_rev(self.space(space), range)?, limit)?,
                };
                self.shared.count("rows scanned", rows.len() as u64);
                acts.push(Act::Scan(ScanSeen { space, from, to, reverse, limit: limit as usize, rows }));
            }
            Step::Pause(us) => pause(u64::from(us)),
            _ => unreachable!("a snapshot's script only reads"),
        }
        Ok(())
    }

    pub(super) fn key(&self, space: u8, index: u32) -> Vec<u8> {
        self.shared.plan.keys.key(space, index)
    }

    pub(super) fn space(&self, space: u8) -> &Keyspace {
        &self.spaces[space as usize]
    }
}

/// A transaction being run.
struct Session<'c> {
    client: &'c Client,
    id: u64,
    acts: Vec<Act>,
    savepoints: Vec<varve::Savepoint>,
    writes: usize,
}

impl Session<'_> {
    /// Every step, and the mark.
    fn all(&mut self, tx: &mut Transaction, steps: &[Step]) -> Result<()> {
        for step in steps {
            self.step(tx, step)?;
        }
        if self.writes > 0 {
            let key = rows::mark_key(self.id, self.client.shared.plan.marks_by_client, self.client.number);
            let value = rows::value(self.id, 8);
            tx.put(self.client.space(MARKS), &key, &value)?;
            self.acts.push(Act::Put((MARKS, key), Digest::of(&value)));
        }
        Ok(())
    }

    fn step(&mut self, tx: &mut Transaction, step: &Step) -> Result<()> {
        let client = self.client;
        match *step {
            Step::Get { space, index } => self.get(tx, space, index, false).map(|_| ()),
            Step::GetForUpdate { space, index } => self.get(tx, space, index, true).map(|_| ()),
            Step::Put { space, index, len } => self.put(tx, space, index, len),
            Step::Delete { space, index } => {
                let key = client.key(space, index);
                tx.delete(client.space(space), &key)?;
                self.wrote(Act::Delete((space, key)))
            }
            Step::DeleteRange { space, from, to } => {
                let (from, to) = (client.key(space, from), client.key(space, to));
                tx.delete_range(client.space(space), &from..&to)?;
                client.shared.count("range deletes", 1);
                self.wrote(Act::DeleteRange(space, from, to))
            }
            Step::Scan { space, from, to, reverse, limit } => {
                let (from, to) = (client.key(space, from), client.key(space, to));
                let range = &from..&to;
                let rows = match reverse {
                    false => collect(tx.scan(client.space(space), range)?, limit)?,
                    true => collect(tx.scan_rev(client.space(space), range)?, limit)?,
                };
                client.shared.count("rows scanned", rows.len() as u64);
                self.acts.push(Act::Scan(ScanSeen { space, from, to, reverse, limit: limit as usize, rows }));
                Ok(())
            }
            Step::Count { space, from, to } => {
                let (from, to) = (client.key(space, from), client.key(space, to));
                let n = tx.count(client.space(space), &from..&to)?;
                self.acts.push(Act::Count(space, from, to, n));
                Ok(())
            }
            Step::Savepoint => {
                self.savepoints.push(tx.savepoint()?);
                self.acts.push(Act::Savepoint);
                Ok(())
            }
            Step::RollbackTo => self.rollback_to(tx),
            Step::Pause(us) => {
                pause(u64::from(us));
                Ok(())
            }
        }
    }

    fn get(&mut self, tx: &mut Transaction, space: u8, index: u32, update: bool) -> Result<Option<usize>> {
        let key = self.client.key(space, index);
        let ks = self.client.space(space);
        let value = if update { tx.get_for_update(ks, &key)? } else { tx.get(ks, &key)? };
        self.acts.push(Act::Get((space, key), value.as_deref().map(Digest::of)));
        Ok(value.map(|v| v.len()))
    }

    fn put(&mut self, tx: &mut Transaction, space: u8, index: u32, len: Option<u32>) -> Result<()> {
        let len = match len {
            Some(len) => len as usize,
            None => self.get(tx, space, index, true)?.unwrap_or(24),
        };
        let value = rows::value(rows::tag(self.id, self.writes), len);
        let key = self.client.key(space, index);
        tx.put(self.client.space(space), &key, &value)?;
        if len > self.client.shared.plan.mix.lengths.inline as usize {
            self.client.shared.count("overflow values", 1);
        }
        self.wrote(Act::Put((space, key), Digest::of(&value)))
    }

    fn rollback_to(&mut self, tx: &mut Transaction) -> Result<()> {
        let newest = self.savepoints.len() - 1;
        tx.rollback_to(self.savepoints[newest])?;
        self.client.shared.count("rollbacks to savepoint", 1);
        self.acts.push(Act::RollbackTo(newest));
        Ok(())
    }

    fn wrote(&mut self, act: Act) -> Result<()> {
        self.writes += 1;
        self.acts.push(act);
        Ok(())
    }
}

fn collect(rows: impl Iterator<Item = Result<(Vec<u8>, Vec<u8>)>>, limit: u32) -> Result<Vec<(Vec<u8>, Digest)>> {
    in_order(rows).take(limit as usize).map(|row| row.map(|(key, value)| (key, Digest::of(&value)))).collect()
}

/// The rows of a scan as they come. It panics where they go back: such a scan may never come to an end.
pub(super) fn in_order(
    rows: impl Iterator<Item = Result<(Vec<u8>, Vec<u8>)>>,
) -> impl Iterator<Item = Result<(Vec<u8>, Vec<u8>)>> {
    let (mut before, mut direction) = (None::<Vec<u8>>, None);
    rows.inspect(move |row| {
        let Ok((key, _)) = row else { return };
        if let Some(before) = before.replace(key.clone()) {
            let step = key.cmp(&before);
            let onwards = step.is_ne() && *direction.get_or_insert(step) == step;
            assert!(onwards, "the rows of a scan go back, from {before:?} to {key:?}");
        }
    })
}

fn pause(us: u64) {
    if us > 0 {
        varve_rt::sleep(Duration::from_micros(us));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(keys: &[&str]) -> Vec<Result<(Vec<u8>, Vec<u8>)>> {
        keys.iter().map(|key| Ok((key.as_bytes().to_vec(), Vec::new()))).collect()
    }

    #[test]
    fn rows_that_ascend_or_descend_pass() {
        for keys in [&["a", "b", "c"][..], &["c", "b", "a"], &["a"], &[]] {
            assert_eq!(in_order(rows(keys).into_iter()).count(), keys.len());
        }
    }

    #[test]
    fn rows_that_go_back_are_a_finding_at_the_first_of_them() {
        for keys in [["a", "b", "a"], ["b", "a", "b"], ["a", "b", "b"]] {
            let mut scan = in_order(rows(&keys).into_iter());
            assert!(scan.next().is_some() && scan.next().is_some());
            let panicked = varve_rt::catch_panic(|| scan.next().map(drop)).expect_err("it goes back");
            assert!(panicked.to_string().contains("go back"), "{panicked}");
        }
    }
}
