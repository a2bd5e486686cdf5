//! Clients that make histories over a [`Store`], on OS threads or in a simulation.
//!
//! Keys are used in a window that moves on: each key gets a bounded number of writes, so that lists stay short and
//! the history grows linearly. All choices come from the seed; the interleaving is the scheduler's.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use varve_rt::Rng;

use super::{Element, Keyspace, KeyspaceKind, Object, Op, Outcome, Recorder, Txn};
use crate::adapter::{self, Direction, Durability, KeyRange, Store, TxMode, Txn as _, bad_option};
use crate::error::{Error, Result};

/// Index of each keyspace of a generated history.
const LISTS: [u8; 2] = [0, 1];
const SET: u8 = 2;
const LEDGER: u8 = 3;

/// Bytes of a key of ballast; others have four.
const BALLAST_KEY: usize = 6;
/// Keys of ballast behind each key.
const BALLAST_KEYS: u64 = 64;

/// What the clients do.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GenerateOptions {
    /// Concurrent clients.
    pub clients: usize,
    /// Transactions that each client attempts.
    pub transactions: usize,
    /// Seed of all choices.
    pub seed: u64,
    /// Keys in use at a time, of each keyspace.
    pub keys: u32,
    /// Writes to a key before it is left alone, on average.
    pub writes_per_key: u32,
    /// Operations of a transaction, at most.
    pub ops: usize,
    /// Share of transactions begun as [`TxMode::ReadOnly`].
    pub read_only: f64,
    /// Share of transactions begun as [`TxMode::Snapshot`].
    pub snapshots: f64,
    /// Share of operations that read a range.
    pub scans: f64,
    /// Share of operations that insert or delete a set key.
    pub set_writes: f64,
    /// Share of these writes to set keys that delete a range of them.
    pub range_deletes: f64,
    /// Share of operations before which a savepoint is set, or rolled back to.
    pub savepoints: f64,
    /// Share of operations that append to a list.
    pub appends: f64,
    /// Share of transactions that roll back of their own will.
    pub rollbacks: f64,
    /// Share of read-write transactions with ballast: rows between the keys of both lists that are written and never
    /// looked at, so that the transaction outgrows its share of memory, and its locks become coarser.
    pub ballast: f64,
    /// Rows of ballast in a transaction.
    pub ballast_rows: u32,
    /// Bytes of their values.
    pub ballast_bytes: usize,
    /// Longest pause between two operations; zero: none. Pauses make transactions overlap on few cores.
    pub pause: Duration,
    /// Durability of the commits. Across a crash only [`Durability::Sync`] makes a history that must be serializable:
    /// the others may lose acknowledged commits.
    pub durability: Durability,
}

impl Default for GenerateOptions {
    fn default() -> Self {
        GenerateOptions {
            clients: 6,
            transactions: 200,
            seed: 1,
            keys: 6,
            writes_per_key: 24,
            ops: 6,
            read_only: 0.15,
            snapshots: 0.1,
            scans: 0.2,
            set_writes: 0.2,
            range_deletes: 0.2,
            savepoints: 0.15,
            appends: 0.3,
            rollbacks: 0.03,
            ballast: 0.0,
            ballast_rows: 160,
            ballast_bytes: 400,
            pause: Duration::ZERO,
            durability: Durability::Sync,
        }
    }
}

impl GenerateOptions {
    fn validate(&self) -> Result<()> {
        if self.clients == 0 || self.keys == 0 || self.writes_per_key == 0 || self.ops == 0 {
            return bad_option("clients, keys, writes_per_key, ops", "each must be at least 1");
        }
        let shares = self.scans + self.set_writes + self.appends;
        if !(0.0..=1.0).contains(&shares)
            || !(0.0..=1.0).contains(&(self.read_only + self.snapshots))
            || !(0.0..=1.0).contains(&self.ballast)
        {
            return bad_option("shares", "they must add up to at most 1");
        }
        Ok(())
    }
}

/// A recorder for histories that [`generate`] makes, in keyspaces whose names begin with `prefix`. They must be empty
/// in the beginning: a history knows only the elements that it has handed out itself.
pub fn recorder(prefix: &str) -> Recorder {
    let name = |name: &str, kind| Keyspace { name: format!("{prefix}_{name}"), kind };
    Recorder::new(vec![
        name("list_a", KeyspaceKind::List),
        name("list_b", KeyspaceKind::List),
        name("set", KeyspaceKind::Set { ledger: LEDGER }),
        name("ledger", KeyspaceKind::List),
    ])
}

/// Runs the clients; what they see is in `recorder` (made by [`recorder`]).
///
/// Errors: an option cannot be used, or the store failed; then what happened until then is on record, and the clients
/// may go on with the same recorder once the store has been opened again.
pub fn generate<S: Store>(store: &Arc<S>, recorder: &Arc<Recorder>, options: &GenerateOptions) -> Result<()> {
    options.validate()?;
    let keyspaces = recorder.keyspaces().iter().map(|k| store.keyspace(&k.name)).collect::<Result<Vec<_>>>()?;
    let mut clients = Vec::new();
    for number in 0..options.clients {
        let (store, recorder, keyspaces, options) = (store.clone(), recorder.clone(), keyspaces.clone(), *options);
        clients.push(varve_rt::spawn(format!("history-{number}"), move || {
            let seed = options.seed ^ (number as u64 + 1).wrapping_mul(0xa076_1d64_78bd_642f);
            let (recorder, rng) = (&*recorder, Rng::from_seed(seed));
            let client = Client { store: &*store, recorder, keyspaces: &keyspaces, options: &options, rng };
            client.run(number as u32)
        }));
    }
    let mut verdict = Ok(());
    for client in clients {
        let name = client.name().to_string();
        let ended = client.join().map_err(|_| Error::WorkerPanicked(name)).and_then(|ended| ended);
        verdict = verdict.and(ended);
    }
    verdict
}

fn encode(list: &[Element]) -> Vec<u8> {
    list.iter().flat_map(|element| element.to_le_bytes()).collect()
}

/// Bytes that are no list decode to elements that nobody wrote, which the checker reports.
fn decode(value: &[u8]) -> Vec<Element> {
    let word = |chunk: &[u8]| {
        let mut bytes = [0xff; 8];
        bytes[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(bytes)
    };
    value.chunks(8).map(word).collect()
}

struct Client<'a, S: Store> {
    store: &'a S,
    recorder: &'a Recorder,
    keyspaces: &'a [S::Keyspace],
    options: &'a GenerateOptions,
    rng: Rng,
}

impl<'a, S: Store> Client<'a, S> {
    fn run(mut self, number: u32) -> Result<()> {
        for _ in 0..self.options.transactions {
            let mut attempt = 0;
            // A conflict is an aborted transaction of the history; the next attempt is another one.
            while !self.transaction(number)? && attempt < 3 {
                attempt += 1;
                adapter::backoff(attempt, &mut self.rng);
            }
        }
        Ok(())
    }

    /// Runs one transaction; false if the store asked to repeat it.
    fn transaction(&mut self, client: u32) -> Result<bool> {
        let draw = self.rng.f64();
        let mode = match () {
            () if draw < self.options.read_only => TxMode::ReadOnly,
            () if draw < self.options.read_only + self.options.snapshots => TxMode::Snapshot,
            () => TxMode::ReadWrite,
        };
        let begin = self.recorder.tick();
        let mut ops = Vec::new();
        let prepared = self.prepare(mode, &mut ops);
        let writes = ops.iter().any(|op: &Op| op.written().is_some());
        let txn = |ops, end| Txn { client, mode, begin, end, outcome: Outcome::Unknown, ops };
        let (place, result) = match prepared {
            Ok(tx) => {
                // A transaction that did not write may roll back as well as commit, but then nobody would check it.
                let give_up = writes && self.rng.f64() < self.options.rollbacks;
                let place = self.recorder.enter(txn(ops, u64::MAX));
                if give_up {
                    tx.rollback();
                    self.recorder.end(place, Outcome::Aborted);
                    return Ok(true);
                }
                (place, tx.commit())
            }
            Err(e) => (self.recorder.enter(txn(ops, u64::MAX)), Err(e)),
        };
        let outcome = match &result {
            Ok(()) => Outcome::Committed,
            Err(e) if e.maybe_committed() => Outcome::Unknown,
            Err(_) => Outcome::Aborted,
        };
        self.recorder.end(place, outcome);
        match result {
            Ok(()) => Ok(true),
            Err(e) if e.retryable() => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn prepare(&mut self, mode: TxMode, ops: &mut Vec<Op>) -> Result<S::Txn<'a>> {
        let store: &'a S = self.store;
        let mut tx = store.begin(mode, self.options.durability)?;
        let count = self.rng.between(1, self.options.ops as u64);
        let heavy = mode == TxMode::ReadWrite && self.options.ballast > 0.0 && self.rng.f64() < self.options.ballast;
        let ballast_at = heavy.then(|| self.rng.below(count));
        // A savepoint, and the operations taken down before it.
        let mut mark = None;
        for n in 0..count {
            if n > 0 && !self.options.pause.is_zero() {
                let longest = self.options.pause.as_nanos() as u64;
                match self.rng.below(3) {
                    0 => varve_rt::sleep(Duration::from_nanos(self.rng.below(longest + 1))),
                    1 => varve_rt::yield_now(),
                    _ => {}
                }
            }
            if mode == TxMode::ReadWrite && self.rng.f64() < self.options.savepoints {
                match mark {
                    None => mark = tx.savepoint()?.map(|savepoint| (savepoint, ops.len())),
                    Some((savepoint, from)) => {
                        tx.rollback_to(savepoint)?;
                        if undo(ops, from) {
                            self.recorder.rolled_back();
                        }
                    }
                }
            }
            if ballast_at == Some(n) {
                self.take_ballast(&mut tx)?;
            }
            self.operation(&mut tx, mode, ops)?;
        }
        Ok(tx)
    }

    /// Writes rows that no history knows.
    fn take_ballast(&mut self, tx: &mut S::Txn<'_>) -> Result<()> {
        let mut value = vec![0; self.options.ballast_bytes];
        self.rng.fill_bytes(&mut value);
        for _ in 0..self.options.ballast_rows {
            let list = LISTS[self.rng.below(2) as usize];
            let number = self.rng.below(BALLAST_KEYS) as u16;
            let key = [&self.key().to_be_bytes()[..], &number.to_be_bytes()].concat();
            debug_assert_eq!(key.len(), BALLAST_KEY);
            tx.put(&self.keyspaces[list as usize], &key, &value)?;
        }
        Ok(())
    }

    fn operation(&mut self, tx: &mut S::Txn<'_>, mode: TxMode, ops: &mut Vec<Op>) -> Result<()> {
        let draw = self.rng.f64();
        let options = self.options;
        let writes = mode == TxMode::ReadWrite;
        if draw < options.scans {
            return self.scan(tx, ops);
        }
        if writes && draw < options.scans + options.set_writes {
            let range = self.rng.f64() < options.range_deletes;
            return if range { self.delete_range(tx, ops) } else { self.write_set_key(tx, ops) };
        }
        let list = Object { keyspace: LISTS[self.rng.below(2) as usize], key: self.key() };
        if writes && draw < options.scans + options.set_writes + options.appends {
            return self.append(tx, ops, list, None);
        }
        let object = if self.rng.one_in(4) { Object { keyspace: SET, key: self.key() } } else { list };
        let value = self.read(tx, object, false)?;
        ops.push(Op::Read { object, value });
        Ok(())
    }

    /// First key of the window in use.
    fn base(&self) -> u32 {
        // Every keyspace gets a part of the elements; half of them is close enough for each.
        (self.recorder.elements() / 2 / u64::from(self.options.writes_per_key)) as u32
    }

    fn key(&mut self) -> u32 {
        self.base() + self.rng.below(u64::from(self.options.keys)) as u32
    }

    fn read(&self, tx: &mut S::Txn<'_>, object: Object, for_update: bool) -> Result<Vec<Element>> {
        let ks = &self.keyspaces[object.keyspace as usize];
        let key = object.key.to_be_bytes();
        let decode = |value: Option<&[u8]>| value.map(decode).unwrap_or_default();
        if for_update { tx.get_for_update(ks, &key, decode) } else { tx.get(ks, &key, decode) }
    }

    /// Appends to a list: `element`, or a new one.
    fn append(
        &mut self,
        tx: &mut S::Txn<'_>,
        ops: &mut Vec<Op>,
        object: Object,
        element: Option<Element>,
    ) -> Result<()> {
        let for_update = self.rng.one_in(2);
        let mut value = self.read(tx, object, for_update)?;
        ops.push(Op::Read { object, value: value.clone() });
        let element = element.unwrap_or_else(|| self.recorder.element());
        value.push(element);
        tx.put(&self.keyspaces[object.keyspace as usize], &object.key.to_be_bytes(), &encode(&value))?;
        ops.push(Op::Append { object, element });
        Ok(())
    }

    /// Inserts the key if it is absent, else deletes it. Once per key and transaction, so that every life of a key
    /// can be seen by others.
    fn write_set_key(&mut self, tx: &mut S::Txn<'_>, ops: &mut Vec<Op>) -> Result<()> {
        let object = Object { keyspace: SET, key: self.key() };
        if ops.iter().any(|op| op.written().is_some_and(|(written, _)| written == object)) {
            return Ok(());
        }
        let for_update = self.rng.one_in(2);
        let value = self.read(tx, object, for_update)?;
        ops.push(Op::Read { object, value: value.clone() });
        let element = self.recorder.element();
        let (ks, key) = (&self.keyspaces[SET as usize], object.key.to_be_bytes());
        if value.is_empty() {
            tx.put(ks, &key, &encode(&[element]))?;
            ops.push(Op::Insert { object, element });
        } else {
            tx.delete(ks, &key)?;
            ops.push(Op::Delete { object, element });
        }
        self.append(tx, ops, Object { keyspace: LEDGER, key: object.key }, Some(element))
    }

    /// Deletes the set keys of a range. Which they are is read before, in the same transaction, so it cannot change.
    fn delete_range(&mut self, tx: &mut S::Txn<'_>, ops: &mut Vec<Op>) -> Result<()> {
        let (from, to) = self.range();
        let own = |op: &Op| op.written().is_some_and(|(o, _)| o.keyspace == SET && (from..to).contains(&o.key));
        if ops.iter().any(own) {
            return Ok(());
        }
        let found = self.scan_range(tx, SET, (from, to))?;
        let keys: Vec<u32> = found.iter().map(|(key, _)| *key).collect();
        ops.push(Op::Scan { keyspace: SET, from, to, found });
        let (low, high) = (from.to_be_bytes(), to.to_be_bytes());
        let deleted = tx.delete_range(&self.keyspaces[SET as usize], KeyRange::new(&low, &high))?;
        if deleted != keys.len() as u64 {
            let found = keys.len();
            return Err(Error::store(format!("a range delete removed {deleted} keys where a scan had found {found}")));
        }
        if deleted > 0 {
            self.recorder.range_deleted();
        }
        for key in keys {
            let element = self.recorder.element();
            ops.push(Op::Delete { object: Object { keyspace: SET, key }, element });
            self.append(tx, ops, Object { keyspace: LEDGER, key }, Some(element))?;
        }
        Ok(())
    }

    fn scan(&mut self, tx: &mut S::Txn<'_>, ops: &mut Vec<Op>) -> Result<()> {
        let keyspace = if self.rng.one_in(2) { SET } else { LISTS[self.rng.below(2) as usize] };
        let (from, to) = self.range();
        let found = self.scan_range(tx, keyspace, (from, to))?;
        ops.push(Op::Scan { keyspace, from, to, found });
        Ok(())
    }

    fn range(&mut self) -> (u32, u32) {
        let from = self.key();
        (from, from + 1 + self.rng.below(u64::from(self.options.keys)) as u32)
    }

    /// The keys of a range and their values in ascending order, read either way.
    fn scan_range(
        &mut self,
        tx: &mut S::Txn<'_>,
        keyspace: u8,
        (from, to): (u32, u32),
    ) -> Result<Vec<(u32, Vec<Element>)>> {
        let direction = if self.rng.one_in(2) { Direction::Forward } else { Direction::Reverse };
        let mut found = Vec::new();
        let (low, high) = (from.to_be_bytes(), to.to_be_bytes());
        tx.scan(&self.keyspaces[keyspace as usize], KeyRange::new(&low, &high), direction, |k, v| {
            // A key of another length is a key nobody wrote; a number outside the range makes the checker say so.
            let key = k.try_into().map_or(u32::MAX, u32::from_be_bytes);
            if self.options.ballast == 0.0 || k.len() != BALLAST_KEY {
                found.push((key, decode(v)));
            }
            ControlFlow::Continue(())
        })?;
        if direction == Direction::Reverse {
            found.reverse();
        }
        Ok(found)
    }
}

/// Forgets what a rollback to a savepoint undid: the writes from `from` on, and reads that saw them. Other reads stay:
/// what they saw is as true as before. An undone element that anybody sees afterwards is one that nobody wrote. Whether
/// there was any.
fn undo(ops: &mut Vec<Op>, from: usize) -> bool {
    let mut undone: Vec<Object> = Vec::new();
    for op in ops.split_off(from) {
        let stays = match &op {
            Op::Read { object, .. } => !undone.contains(object),
            Op::Scan { keyspace, from, to, .. } => {
                !undone.iter().any(|object| object.keyspace == *keyspace && (*from..*to).contains(&object.key))
            }
            write => {
                undone.extend(write.written().map(|(object, _)| object));
                false
            }
        };
        if stays {
            ops.push(op);
        }
    }
    !undone.is_empty()
}
