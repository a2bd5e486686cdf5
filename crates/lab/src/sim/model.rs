//! The reference model: what a history of transactions must have done, by the order of commit.
//!
//! A [`History`] holds every transaction of one life of the database (from opening to crash or close) as the clients
//! saw it: reads, writes, how it ended, and its *position*, the commit number the engine gave it when its log group was
//! placed (known even when the commit was never acknowledged). After a crash the marks found tell which transactions
//! survived. [`History::settle`] then demands, in this order:
//!
//! 1. survivors are a prefix of the commit order, and every acknowledged commit that had to survive is among them;
//! 2. every transaction's reads are what the transactions before it in commit order left, with its own writes on top
//!    (strict two-phase locking makes the commit order a serial order); a snapshot's reads are the state at its number;
//! 3. whoever was acknowledged and had read from a `sync` commit did so from a survivor;
//! 4. the commit order agrees with real time.
//!
//! It returns the state that the survivors left, to be compared with what the database holds, byte for byte.
//!
//! Pure: no engine, no clock.

use super::rows::Digest;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use varve::Durability;

/// A key of one of the keyspaces.
pub(crate) type Row = (u8, Vec<u8>);

/// What a key holds, and the transaction that put it there (0: from before this life).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cell {
    pub(crate) digest: Digest,
    pub(crate) writer: u64,
}

/// Committed rows.
pub(crate) type State = BTreeMap<Row, Cell>;

/// One thing a transaction did, in order.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    Put(Row, Digest),
    Delete(Row),
    DeleteRange(u8, Vec<u8>, Vec<u8>),
    Savepoint,
    /// Back to the savepoint of this number, counted from 0 among those that are live.
    RollbackTo(usize),
    Get(Row, Option<Digest>),
    /// Was told whether the row is there.
    Has(Row, bool),
    Scan(ScanSeen),
    Count(u8, Vec<u8>, Vec<u8>, u64),
}

/// What a scan returned.
#[derive(Clone, Debug)]
pub(crate) struct ScanSeen {
    pub(crate) space: u8,
    pub(crate) from: Vec<u8>,
    pub(crate) to: Vec<u8>,
    pub(crate) reverse: bool,
    /// The reader stopped after this many rows.
    pub(crate) limit: usize,
    pub(crate) rows: Vec<(Vec<u8>, Digest)>,
}

/// How a transaction ended, as its client saw it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// Still open, or given up, or rolled back: must have no effect.
    None,
    /// `commit` was called and had not returned, or returned an error that leaves it in doubt.
    InDoubt,
    /// `commit` returned.
    Acknowledged,
}

/// A transaction, or a snapshot (which has no writes and reads as of `at`).
#[derive(Clone, Debug)]
pub(crate) struct Tx {
    pub(crate) id: u64,
    pub(crate) durability: Durability,
    pub(crate) acts: Vec<Act>,
    pub(crate) end: End,
    /// Commit number, 0 while none was given.
    pub(crate) position: u64,
    /// The highest commit number acknowledged to anyone before this transaction began.
    pub(crate) began_after: u64,
    /// The highest commit number given to anyone when this transaction ended; `u64::MAX` when it did not.
    pub(crate) ended_by: u64,
    /// The id of the last transaction that began before this one was acknowledged; `u64::MAX` when it was not.
    pub(crate) last_beside: u64,
    /// A snapshot's commit number.
    pub(crate) snapshot: Option<u64>,
    /// A single operation outside of any transaction: it leaves no mark.
    pub(crate) single: bool,
    /// A single read as of the horizon (of an LSM keyspace): commits that nobody knows of yet may be missing from it,
    /// though their numbers are lower than those of others that are acknowledged.
    pub(crate) as_of_horizon: bool,
}

impl Tx {
    /// Whether it has a write that was not rolled back to a savepoint.
    pub(crate) fn writes(&self) -> bool {
        !live_writes(&self.acts).is_empty()
    }

    /// Whether it was shown this value of the row.
    pub(crate) fn saw(&self, row: &Row, value: Digest) -> bool {
        self.acts.iter().any(|act| match act {
            Act::Get(of, seen) => of == row && *seen == Some(value),
            Act::Scan(scan) => {
                scan.space == row.0 && scan.rows.iter().any(|(key, seen)| *key == row.1 && *seen == value)
            }
            _ => false,
        })
    }
}

/// The writes of `acts` that no rollback to a savepoint undid.
fn live_writes(acts: &[Act]) -> Vec<&Act> {
    let (mut writes, mut marks) = (Vec::new(), Vec::new());
    for act in acts {
        match act {
            Act::Put(..) | Act::Delete(_) | Act::DeleteRange(..) => writes.push(act),
            Act::Savepoint => marks.push(writes.len()),
            Act::RollbackTo(n) => {
                writes.truncate(marks[*n]);
                marks.truncate(*n + 1);
            }
            Act::Get(..) | Act::Has(..) | Act::Scan(_) | Act::Count(..) => {}
        }
    }
    writes
}

/// What a backup restored.
pub(crate) struct Restored {
    /// Every commit up to this number, and no other.
    pub(crate) at: u64,
    pub(crate) rows: BTreeMap<Row, Digest>,
}

/// Something the engine did that the model says it must not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wrong(pub(crate) String);

/// What must have survived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kept {
    /// Acknowledged `sync` commits: after a power cut.
    Sync,
    /// Every acknowledged commit: after a clean close.
    All,
}

/// Every transaction of one life.
#[derive(Default)]
pub(crate) struct History {
    base: State,
    txs: Vec<Tx>,
    restored: Vec<Restored>,
}

impl History {
    /// A history that begins from `base`.
    pub(crate) fn new(mut base: State) -> History {
        for cell in base.values_mut() {
            cell.writer = 0;
        }
        History { base, ..History::default() }
    }

    /// Adds a transaction, ended or not.
    pub(crate) fn add(&mut self, tx: Tx) {
        self.txs.push(tx);
    }

    /// Adds what a backup restored.
    pub(crate) fn add_restored(&mut self, restored: Restored) {
        self.restored.push(restored);
    }

    /// Settles the history given the ids of the transactions whose marks were found, and all rows found: single
    /// operations leave no mark, so how many of those after the last mark survived is told by what they left. `None`:
    /// all of them.
    pub(crate) fn settle(
        self,
        marks: &[u64],
        kept: Kept,
        found: Option<&BTreeMap<Row, Digest>>,
    ) -> Result<Settled, Wrong> {
        let History { base, mut txs, restored } = self;
        txs.sort_by_key(|tx| (tx.position, tx.id));
        let (unplaced, placed): (Vec<Tx>, Vec<Tx>) = txs.into_iter().partition(|tx| tx.position == 0);
        restored.iter().try_for_each(|r| agrees_restored(&base, &placed, r))?;
        let possible = prefix(&placed, &unplaced, marks, kept)?;
        let fits = |n: &usize| found.is_some_and(|found| compare(&state_after(&base, &placed[..*n]), found).is_ok());
        let most = *possible.end();
        let survivors = if possible.start() == &most { most } else { possible.rev().find(fits).unwrap_or(most) };
        real_time(&placed)?;
        check_reads(base.clone(), &placed, &unplaced, survivors)?;
        let state = state_after(&base, &placed[..survivors]);
        if let Some(found) = found {
            compare(&state, found)?;
        }
        let in_flight = placed[..survivors].iter().filter(|tx| tx.end == End::InDoubt).count() as u64;
        Ok(Settled { state, in_flight, lost: (placed.len() - survivors) as u64 })
    }
}

/// What a history came to.
#[derive(Debug)]
pub(crate) struct Settled {
    /// The state that the survivors left.
    pub(crate) state: State,
    /// Survivors that were never acknowledged.
    pub(crate) in_flight: u64,
    /// Transactions that had a commit number and did not survive.
    pub(crate) lost: u64,
}

fn state_after(base: &State, txs: &[Tx]) -> State {
    let mut state = base.clone();
    for tx in txs {
        for write in live_writes(&tx.acts) {
            apply(&mut state, write, tx.id);
        }
    }
    state
}

/// Whether a backup restored the state of its moment, whatever became of the commits afterwards.
fn agrees_restored(base: &State, placed: &[Tx], restored: &Restored) -> Result<(), Wrong> {
    let n = placed.partition_point(|tx| tx.position <= restored.at);
    compare(&state_after(base, &placed[..n]), &restored.rows)
        .map_err(|wrong| Wrong(format!("a backup to {} restores another state: {}", restored.at, wrong.0)))
}

/// The possible numbers of placed transactions that survived, which must be the first ones.
fn prefix(placed: &[Tx], unplaced: &[Tx], marks: &[u64], kept: Kept) -> Result<RangeInclusive<usize>, Wrong> {
    if let Some(pair) = placed.windows(2).find(|p| p[0].position == p[1].position) {
        return Err(Wrong(format!("{} and {} have the same commit number", name(&pair[0]), name(&pair[1]))));
    }
    if let Some(tx) = unplaced.iter().find(|tx| marks.contains(&tx.id)) {
        return Err(Wrong(format!("{} is in the database but never committed", name(tx))));
    }
    if let Some(tx) = unplaced.iter().find(|tx| tx.end == End::Acknowledged && tx.writes()) {
        return Err(Wrong(format!("{} was acknowledged without a commit number", name(tx))));
    }
    let survived = |tx: &Tx| marks.contains(&tx.id);
    let count = placed.iter().take_while(|tx| survived(tx) || tx.single).count();
    if let Some(later) = placed[count..].iter().find(|tx| survived(tx)) {
        return Err(Wrong(format!(
            "not a prefix of the commit order: {} is gone, but the later {} is there",
            name(&placed[count]),
            name(later)
        )));
    }
    let must = |tx: &&Tx| tx.end == End::Acknowledged && (kept == Kept::All || tx.durability == Durability::Sync);
    if let Some(lost) = placed[count..].iter().find(must) {
        let after = if kept == Kept::All { "a clean close" } else { "the crash" };
        return Err(Wrong(format!("lost: {} was acknowledged and is gone after {after}", name(lost))));
    }
    let least = placed[..count].iter().rposition(|tx| survived(tx) || must(&tx)).map_or(0, |last| last + 1);
    Ok(least..=count)
}

fn real_time(placed: &[Tx]) -> Result<(), Wrong> {
    match placed.iter().find(|tx| tx.position <= tx.began_after) {
        Some(tx) => Err(Wrong(format!(
            "{} began after commit {} was acknowledged, but has an earlier commit number",
            name(tx),
            tx.began_after
        ))),
        None => Ok(()),
    }
}

/// Walks the commit order once. Transactions with a number are checked at it; snapshots at theirs; transactions that
/// only read must agree with one of the states between their beginning and their end.
fn check_reads(mut state: State, placed: &[Tx], unplaced: &[Tx], survivors: usize) -> Result<(), Wrong> {
    let mut readers: Vec<&Tx> =
        unplaced.iter().filter(|tx| tx.snapshot.is_some() || tx.end == End::Acknowledged).collect();
    let lost: Vec<u64> =
        placed[survivors..].iter().filter(|tx| tx.durability == Durability::Sync).map(|tx| tx.id).collect();
    let mut last: Vec<(u64, Wrong)> = Vec::new();
    for step in 0..=placed.len() {
        let from = if step == 0 { 0 } else { placed[step - 1].position };
        let until = placed.get(step).map_or(u64::MAX, |tx| tx.position - 1);
        let mut failed = None;
        readers.retain(|tx| {
            let (low, high) = window(tx, placed);
            if high < from || low > until {
                return true;
            }
            match agrees(&state, tx, &lost) {
                Ok(()) => false,
                Err(wrong) if tx.snapshot.is_some() => {
                    failed.get_or_insert(wrong);
                    false
                }
                Err(wrong) => {
                    last.push((tx.id, wrong));
                    true
                }
            }
        });
        if let Some(wrong) = failed {
            return Err(wrong);
        }
        if let Some(tx) = placed.get(step) {
            agrees(&state, tx, &lost)?;
            for write in live_writes(&tx.acts) {
                apply(&mut state, write, tx.id);
            }
        }
    }
    match readers.first() {
        None => Ok(()),
        Some(tx) => {
            let why = last.iter().rev().find(|(id, _)| *id == tx.id);
            let why = why.map_or("it has no state to read".to_string(), |(_, wrong)| wrong.0.clone());
            Err(Wrong(format!("{} read no state between its beginning and its end; at the last one: {why}", name(tx))))
        }
    }
}

/// The commit numbers at which a transaction without one of its own may have read.
fn window(tx: &Tx, placed: &[Tx]) -> (u64, u64) {
    match tx.snapshot {
        Some(at) => (at, at),
        None if tx.as_of_horizon => (horizon(tx, placed), tx.ended_by),
        None => (tx.began_after, tx.ended_by),
    }
}

/// The least that a read as of the horizon shows: all before the first commit that was not acknowledged when it began,
/// and every commit that was and wrote what it read.
fn horizon(tx: &Tx, placed: &[Tx]) -> u64 {
    let before = placed.partition_point(|other| other.position <= tx.began_after);
    let known = |other: &&Tx| other.last_beside < tx.id;
    let open = placed[..before].iter().find(|other| !known(other)).map_or(tx.began_after, |other| other.position - 1);
    let wrote = placed[..before].iter().rev().filter(known).find(|other| changed_what(other, tx));
    open.max(wrote.map_or(0, |other| other.position))
}

/// Whether `writer` changed a row that `reader` got.
fn changed_what(writer: &Tx, reader: &Tx) -> bool {
    let row = |act: &'_ Act| match act {
        Act::Get(row, _) | Act::Has(row, _) => Some(row.clone()),
        _ => None,
    };
    let rows: Vec<Row> = reader.acts.iter().filter_map(row).collect();
    live_writes(&writer.acts).iter().any(|write| match write {
        Act::Put(of, _) | Act::Delete(of) => rows.contains(of),
        Act::DeleteRange(space, from, to) => rows.iter().any(|of| of.0 == *space && *from <= of.1 && of.1 < *to),
        _ => false,
    })
}

/// Whether the transaction's reads are what `state` and its own writes give. An acknowledged reader must not have read
/// from a lost `sync` commit.
fn agrees(state: &State, tx: &Tx, lost: &[u64]) -> Result<(), Wrong> {
    let (mut own, mut marks): (Vec<&Act>, Vec<usize>) = (Vec::new(), Vec::new());
    for act in &tx.acts {
        match act {
            Act::Put(..) | Act::Delete(_) | Act::DeleteRange(..) => own.push(act),
            Act::Savepoint => marks.push(own.len()),
            Act::RollbackTo(n) => {
                own.truncate(marks[*n]);
                marks.truncate(*n + 1);
            }
            Act::Get(row, seen) => {
                let expected = lookup(state, &own, row);
                if expected.map(|c| c.digest) != *seen {
                    return Err(Wrong(format!(
                        "{} read {}: found {}, expected {}",
                        name(tx),
                        row_name(row),
                        digest_name(*seen),
                        cell_name(expected.as_ref())
                    )));
                }
                durable_source(tx, expected.iter(), lost)?;
            }
            Act::Has(row, seen) => {
                let expected = lookup(state, &own, row);
                if expected.is_some() != *seen {
                    let (found, expected) = (if *seen { "something" } else { "nothing" }, cell_name(expected.as_ref()));
                    let (name, row) = (name(tx), row_name(row));
                    return Err(Wrong(format!("{name} was told that {row} is {found}, expected {expected}")));
                }
                durable_source(tx, expected.iter(), lost)?;
            }
            Act::Count(space, from, to, seen) => {
                let expected = range(state, &own, *space, from, to);
                if expected.len() as u64 != *seen {
                    return Err(Wrong(format!(
                        "{} counted {seen} rows in {}, expected {}",
                        name(tx),
                        range_name(*space, from, to),
                        expected.len()
                    )));
                }
                durable_source(tx, expected.values(), lost)?;
            }
            Act::Scan(seen) => agrees_scan(state, &own, tx, seen, lost)?,
        }
    }
    Ok(())
}

fn agrees_scan(state: &State, own: &[&Act], tx: &Tx, seen: &ScanSeen, lost: &[u64]) -> Result<(), Wrong> {
    let all = range(state, own, seen.space, &seen.from, &seen.to);
    let rows: Vec<_> = match seen.reverse {
        false => all.iter().take(seen.limit).collect(),
        true => all.iter().rev().take(seen.limit).collect(),
    };
    let found = seen.rows.iter().map(|(key, digest)| (key, *digest));
    if !rows.iter().map(|(key, cell)| (**key, cell.digest)).eq(found) {
        let at = rows.iter().zip(&seen.rows).take_while(|(a, b)| *a.0 == &b.0 && a.1.digest == b.1).count();
        let way = if seen.reverse { "backwards" } else { "forwards" };
        return Err(Wrong(format!(
            "{} scanned {} {way}: {} rows, expected {}; row {at}: found {}, expected {}",
            name(tx),
            range_name(seen.space, &seen.from, &seen.to),
            seen.rows.len(),
            rows.len(),
            seen.rows.get(at).map_or("the end".into(), |(k, d)| format!("{} = {d}", key_name(k))),
            rows.get(at).map_or("the end".into(), |(k, c)| format!("{} = {}", key_name(k), cell_name(Some(c)))),
        )));
    }
    durable_source(tx, rows.iter().map(|(_, cell)| *cell), lost)
}

fn durable_source<'a>(tx: &Tx, mut cells: impl Iterator<Item = &'a Cell>, lost: &[u64]) -> Result<(), Wrong> {
    if tx.end != End::Acknowledged || lost.is_empty() {
        return Ok(());
    }
    match cells.find(|cell| cell.writer != tx.id && lost.contains(&cell.writer)) {
        Some(cell) => Err(Wrong(format!(
            "{} was acknowledged, but had read from sync commit {}, which is gone",
            name(tx),
            cell.writer
        ))),
        None => Ok(()),
    }
}

fn lookup(state: &State, own: &[&Act], row: &Row) -> Option<Cell> {
    for act in own.iter().rev() {
        match act {
            Act::Put(r, digest) if r == row => return Some(Cell { digest: *digest, writer: 0 }),
            Act::Delete(r) if r == row => return None,
            Act::DeleteRange(space, from, to) if *space == row.0 && *from <= row.1 && row.1 < *to => return None,
            _ => {}
        }
    }
    state.get(row).copied()
}

fn range<'a>(state: &'a State, own: &[&'a Act], space: u8, from: &[u8], to: &[u8]) -> BTreeMap<&'a Vec<u8>, Cell> {
    if from >= to {
        return BTreeMap::new();
    }
    let bounds = (space, from.to_vec())..(space, to.to_vec());
    let mut rows: BTreeMap<&Vec<u8>, Cell> = state.range(bounds).map(|(row, cell)| (&row.1, *cell)).collect();
    for act in own {
        match act {
            Act::Put(row, digest) if row.0 == space && from <= &row.1[..] && &row.1[..] < to => {
                rows.insert(&row.1, Cell { digest: *digest, writer: 0 });
            }
            Act::Delete(row) if row.0 == space => {
                rows.remove(&row.1);
            }
            Act::DeleteRange(s, low, high) if *s == space => rows.retain(|key, _| !(low <= *key && *key < high)),
            _ => {}
        }
    }
    rows
}

fn apply(state: &mut State, write: &Act, writer: u64) {
    match write {
        // What puts a value that is there already changes nothing, and nobody can have read it from there.
        Act::Put(row, digest) if state.get(row).is_some_and(|cell| cell.digest == *digest) => {}
        Act::Put(row, digest) => {
            state.insert(row.clone(), Cell { digest: *digest, writer });
        }
        Act::Delete(row) => {
            state.remove(row);
        }
        Act::DeleteRange(space, from, to) if from < to => {
            let bounds = (*space, from.clone())..(*space, to.clone());
            let gone: Vec<Row> = state.range(bounds).map(|(row, _)| row.clone()).collect();
            for row in gone {
                state.remove(&row);
            }
        }
        _ => {}
    }
}

/// Compares what the database holds with the state it must hold; at most five differences are told.
pub(crate) fn compare(expected: &State, found: &BTreeMap<Row, Digest>) -> Result<(), Wrong> {
    let mut differences = Vec::new();
    for (row, cell) in expected {
        match found.get(row) {
            Some(digest) if *digest == cell.digest => {}
            other => differences.push((row, digest_name(other.copied()), cell_name(Some(cell)))),
        }
    }
    for (row, digest) in found {
        if !expected.contains_key(row) {
            differences.push((row, digest.to_string(), "no such row".to_string()));
        }
    }
    if differences.is_empty() {
        return Ok(());
    }
    let mut text = format!("{} of {} rows differ", differences.len(), expected.len());
    for (row, found, expected) in differences.iter().take(5) {
        text.push_str(&format!("; {}: found {found}, expected {expected}", row_name(row)));
    }
    Err(Wrong(text))
}

fn name(tx: &Tx) -> String {
    let kind = match (tx.snapshot, tx.single) {
        (Some(_), _) => "snapshot",
        (None, true) => "single operation",
        (None, false) => "transaction",
    };
    let end = match tx.end {
        End::None => "not committed",
        End::InDoubt => "in flight",
        End::Acknowledged => "acknowledged",
    };
    let at = tx.snapshot.unwrap_or(tx.position);
    format!("{kind} {} ({:?}, {end}, at {at})", tx.id, tx.durability).replace("Sync", "sync")
}

fn key_name(key: &[u8]) -> String {
    let mut text: String = key.iter().take(48).map(|b| char::from(*b)).flat_map(char::escape_default).collect();
    if key.len() > 48 {
        text.push_str(&format!("...({} bytes)", key.len()));
    }
    text
}

fn row_name(row: &Row) -> String {
    format!("{}/{}", super::rows::NAMES[row.0 as usize], key_name(&row.1))
}

fn range_name(space: u8, from: &[u8], to: &[u8]) -> String {
    format!("{}/{}..{}", super::rows::NAMES[space as usize], key_name(from), key_name(to))
}

fn digest_name(digest: Option<Digest>) -> String {
    digest.map_or("nothing".into(), |d| d.to_string())
}

fn cell_name(cell: Option<&Cell>) -> String {
    match cell {
        Some(cell) if cell.writer != 0 => format!("{} of transaction {}", cell.digest, cell.writer),
        Some(cell) => cell.digest.to_string(),
        None => "nothing".into(),
    }
}

#[cfg(test)]
#[path = "model_tests.rs"]
mod tests;
