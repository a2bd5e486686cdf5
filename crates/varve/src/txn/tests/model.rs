//! Random transactions of several clients, replayed one after another in the order of their commit numbers against
//! plain maps: everything that each of them read must be what the serial run reads. On OS threads, and in simulation
//! with chaos.

use super::*;
use crate::db::Transaction;
use crate::error::Result;
use crate::txn::Savepoint;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use varve_device::Device;
use varve_models::MemOptions;
use varve_rt::{sim, spawn, yield_now};
use varve_volume::Lsn;

const SPACES: usize = 2;
type Rows = Vec<(Vec<u8>, Vec<u8>)>;
type State = [BTreeMap<Vec<u8>, Vec<u8>>; SPACES];

#[derive(Debug, Clone)]
enum Step {
    Get(usize, Vec<u8>, Option<Vec<u8>>),
    Put(usize, Vec<u8>, Vec<u8>),
    Delete(usize, Vec<u8>),
    /// Keyspace, range, descending, rows asked for, rows found.
    Scan(usize, (Vec<u8>, Vec<u8>), bool, usize, Rows),
    Count(usize, (Vec<u8>, Vec<u8>), u64),
    DeleteRange(usize, (Vec<u8>, Vec<u8>), u64),
    Savepoint,
    RollbackTo(usize),
}

/// The first rows of a range, by the scan that lends them.
fn lent(
    space: &Keyspace,
    tx: &mut Transaction,
    range: (Bound<&Vec<u8>>, Bound<&Vec<u8>>),
    most: usize,
) -> Result<Rows> {
    let mut rows = Rows::new();
    tx.scan_with(space, range, |key, value| {
        rows.push((key.to_vec(), value.to_vec()));
        if rows.len() == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(rows)
}

struct Record {
    at: Lsn,
    /// Writers come before readers of the same number.
    reader: bool,
    steps: Vec<Step>,
}

struct Client {
    db: Db,
    spaces: [Keyspace; SPACES],
    rng: Rng,
    keys: u64,
    /// Longest value.
    longest: u64,
    serial: u64,
}

impl Client {
    fn key(&mut self) -> Vec<u8> {
        key(self.rng.below(self.keys))
    }

    fn range(&mut self) -> (Vec<u8>, Vec<u8>) {
        let (a, b) = (self.rng.below(self.keys + 1), self.rng.below(self.keys + 1));
        let near = a + self.rng.below(6);
        let b = if self.rng.below(2) == 0 { near } else { b };
        (key(a.min(b)), key(a.max(b)))
    }

    fn value(&mut self) -> Vec<u8> {
        self.serial += 1;
        let len = if self.rng.below(12) == 0 { self.rng.below(self.longest) } else { self.rng.below(80) };
        let mut value = self.serial.to_be_bytes().to_vec();
        value.resize(8 + len as usize, self.serial as u8);
        value
    }

    fn step(&mut self, tx: &mut Transaction, marks: &mut Vec<Savepoint>, read_only: bool) -> Result<Step> {
        let at = self.rng.below(SPACES as u64) as usize;
        let space = self.spaces[at].clone();
        let kinds = if read_only { 6 } else { 17 };
        Ok(match self.rng.below(kinds) {
            0..3 => {
                let k = self.key();
                let v = tx.get(&space, &k)?;
                Step::Get(at, k, v)
            }
            3..5 => {
                let (range, reverse) = (self.range(), self.rng.below(2) == 0);
                let most = if self.rng.below(2) == 0 { 1 + self.rng.below(3) as usize } else { usize::MAX };
                let bounds = (Bound::Included(&range.0), Bound::Excluded(&range.1));
                let rows = match (reverse, self.rng.below(2)) {
                    (true, _) => tx.scan_rev(&space, bounds)?.take(most).collect::<Result<Rows>>()?,
                    (false, 0) => tx.scan(&space, bounds)?.take(most).collect::<Result<Rows>>()?,
                    _ => lent(&space, tx, bounds, most)?,
                };
                Step::Scan(at, range, reverse, most, rows)
            }
            5 => {
                let range = self.range();
                let n = tx.count(&space, &range.0..&range.1)?;
                Step::Count(at, range, n)
            }
            6 => {
                let k = self.key();
                let v = tx.get_for_update(&space, &k)?;
                Step::Get(at, k, v)
            }
            7..13 => {
                let (k, v) = (self.key(), self.value());
                tx.put(&space, &k, &v)?;
                Step::Put(at, k, v)
            }
            13 => {
                let k = self.key();
                tx.delete(&space, &k)?;
                Step::Delete(at, k)
            }
            14 => {
                let range = self.range();
                let n = tx.delete_range(&space, &range.0..&range.1)?;
                Step::DeleteRange(at, range, n)
            }
            15 => {
                marks.push(tx.savepoint()?);
                Step::Savepoint
            }
            _ if !marks.is_empty() => {
                let i = self.rng.below(marks.len() as u64) as usize;
                tx.rollback_to(marks[i])?;
                marks.truncate(i + 1);
                Step::RollbackTo(i)
            }
            _ => {
                marks.push(tx.savepoint()?);
                Step::Savepoint
            }
        })
    }

    fn transaction(&mut self) -> Result<Option<Record>> {
        let durability = [Durability::Sync, Durability::Async, Durability::None][self.rng.below(3) as usize];
        let read_only = self.rng.below(5) == 0;
        let options = TxOptions { read_only, ..TxOptions::durability(durability) };
        let mut tx = self.db.begin_with(options)?;
        let (mut steps, mut marks) = (Vec::new(), Vec::new());
        for _ in 0..1 + self.rng.below(8) {
            steps.push(self.step(&mut tx, &mut marks, read_only)?);
            if self.rng.below(4) == 0 {
                yield_now();
            }
        }
        if self.rng.below(8) == 0 {
            return Ok(None);
        }
        let (at, wrote) = tx.tx.commit_numbered()?;
        Ok(Some(Record { at, reader: !wrote, steps }))
    }

    /// A single operation; its number is not known, so it is bracketed by the transaction that reads it next.
    fn run(mut self, transactions: u64) -> Vec<Record> {
        let mut records = Vec::new();
        for _ in 0..transactions {
            match self.transaction() {
                Ok(record) => records.extend(record),
                Err(Error::Conflict { .. } | Error::SnapshotTooOld) => {}
                // A range deletion, in a database with little memory.
                Err(Error::TransactionTooLarge { .. } | Error::OverBudget { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        records
    }
}

fn select(state: &State, at: usize, range: &(Vec<u8>, Vec<u8>)) -> Rows {
    let rows = state[at].iter().filter(|(k, _)| range.0 <= **k && **k < range.1);
    rows.map(|(k, v)| (k.clone(), v.clone())).collect()
}

fn replay(state: &mut State, record: &Record) {
    let mut marks: Vec<State> = Vec::new();
    for step in &record.steps {
        match step {
            Step::Get(at, k, v) => assert_eq!(state[*at].get(k), v.as_ref(), "get of {k:?} at {}", record.at),
            Step::Put(at, k, v) => drop(state[*at].insert(k.clone(), v.clone())),
            Step::Delete(at, k) => drop(state[*at].remove(k)),
            Step::Scan(at, range, reverse, most, rows) => {
                let mut expected = select(state, *at, range);
                if *reverse {
                    expected.reverse();
                }
                expected.truncate(*most);
                let keys =
                    |rows: &Rows| rows.iter().map(|r| String::from_utf8_lossy(&r.0).into_owned()).collect::<Vec<_>>();
                assert!(expected == *rows, "scan at {}: {:?} instead of {:?}", record.at, keys(rows), keys(&expected));
            }
            Step::Count(at, range, n) => {
                assert_eq!(select(state, *at, range).len() as u64, *n, "count at {}", record.at)
            }
            Step::DeleteRange(at, range, n) => {
                let rows = select(state, *at, range);
                assert_eq!(rows.len() as u64, *n, "range deletion at {}", record.at);
                rows.iter().for_each(|(k, _)| drop(state[*at].remove(k)));
            }
            Step::Savepoint => marks.push(state.clone()),
            Step::RollbackTo(i) => {
                *state = marks[*i].clone();
                marks.truncate(i + 1);
            }
        }
    }
}

struct Shape {
    clients: u64,
    transactions: u64,
    keys: u64,
    longest: u64,
    /// Bytes of each key's first value; 0 begins with an empty database.
    preload: usize,
    cache: u64,
    broken: Option<crate::Mistake>,
    /// One of the keyspaces, or both, are LSM keyspaces.
    lsm: bool,
}

/// Runs clients and checks them; returns the database's counters.
fn check(seed: u64, devices: Devices, shape: &Shape) -> crate::TxnStats {
    let options = Options { faults: shape.broken.into(), cache_bytes: shape.cache, ..options() };
    let db = Db::create_on(devices, &layout(), options).unwrap();
    let kinds = if shape.lsm {
        [[KeyspaceKind::Tree, LSM], [LSM, LSM]][seed as usize / 2 % 2]
    } else {
        [KeyspaceKind::Tree; 2]
    };
    let mut names = ["one", "two"].into_iter();
    let spaces = kinds.map(|kind| db.create_keyspace_of(names.next().unwrap(), kind).unwrap());
    let mut state = State::default();
    if shape.preload > 0 {
        for (space, rows) in spaces.iter().zip(&mut state) {
            for n in 0..shape.keys {
                let value = vec![n as u8; shape.preload];
                space.put_with(&key(n), &value, Durability::None).unwrap();
                rows.insert(key(n), value);
            }
        }
    }
    let client = |n: u64| Client {
        db: db.clone(),
        spaces: spaces.clone(),
        rng: Rng::from_seed(seed.wrapping_mul(1009) + n),
        keys: shape.keys,
        longest: shape.longest,
        serial: n << 40,
    };
    let transactions = shape.transactions;
    let threads: Vec<_> = (0..shape.clients)
        .map(|n| (n, client(n)))
        .map(|(n, c)| spawn(format!("client {n}"), move || c.run(transactions)))
        .collect();
    let mut records: Vec<Record> = threads.into_iter().flat_map(|t| t.join().expect("client")).collect();
    records.sort_by_key(|r| (r.at, r.reader));
    let writers: Vec<_> = records.iter().filter(|r| !r.reader).map(|r| r.at).collect();
    assert!(writers.windows(2).all(|w| w[0] < w[1]), "commit numbers are unique");
    records.iter().for_each(|record| replay(&mut state, record));
    for (at, space) in spaces.iter().enumerate() {
        let rows: Rows = db.snapshot().unwrap().scan(space, ..).unwrap().map(|r| r.unwrap()).collect();
        assert!(rows == state[at].clone().into_iter().collect::<Rows>(), "final state of keyspace {at}");
    }
    let report = db.check().unwrap();
    assert!(report.is_clean(), "{report:?}");
    let stats = db.stats();
    for class in [crate::budget::Class::Versions, crate::budget::Class::WriteSets] {
        assert_eq!(db.inner.core.budget.used(class), 0, "{} left charged", class.name());
    }
    for space in &spaces {
        space.shared.locks().check();
        assert_eq!((space.shared.locks().locked_keys(), space.shared.locks().intervals()), (0, 0));
    }
    db.close().unwrap();
    stats.txn
}

/// `SEED=n` runs that one alone, `SEEDS=n` so many.
fn seeds(default: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|s| s.parse::<u64>().ok());
    match (number("SEED"), number("SEEDS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, count) => 0..count.unwrap_or(default),
    }
}

fn shape(keys: u64, transactions: u64) -> Shape {
    Shape { clients: 4, transactions, keys, longest: 7000, preload: 0, cache: 8 << 20, broken: None, lsm: false }
}

fn simulate(seed: u64, shape: Shape) -> sim::Outcome<crate::TxnStats> {
    let config = sim::Config { seed, chaos: true, cores: 4, ..sim::Config::default() };
    sim::run(config, move || {
        let device = || -> Arc<dyn Device> { MemDevice::with(0, MemOptions::default()) };
        check(seed, Devices::new(device(), device()), &shape)
    })
}

#[test]
fn what_transactions_read_is_what_a_serial_run_reads_in_simulation() {
    let mut sum = (0, 0);
    for seed in seeds(25) {
        let hot = seed % 2 == 0;
        let stats = simulate(seed, shape(if hot { 12 } else { 300 }, 60)).unwrap();
        simulate(seed, Shape { lsm: true, ..shape(if hot { 12 } else { 300 }, 60) }).unwrap();
        sum = (sum.0 + stats.commits, sum.1 + stats.conflicts);
    }
    assert!(sum.0 > 500 && sum.1 > 20, "the clients met each other: {} commits, {} conflicts", sum.0, sum.1);
}

#[test]
fn a_pool_far_smaller_than_the_data_makes_no_difference() {
    for seed in seeds(4) {
        let shape = Shape { preload: 250, cache: crate::MIN_CACHE_BYTES, ..shape(8000, 40) };
        simulate(seed, shape).unwrap();
    }
}

#[test]
fn a_simulated_run_is_a_function_of_its_seed() {
    for seed in [3, 4] {
        let (first, second) = (simulate(seed, shape(30, 20)), simulate(seed, shape(30, 20)));
        assert_eq!(first.hash, second.hash, "seed {seed}");
        assert_eq!(first.unwrap(), second.unwrap(), "seed {seed}");
    }
}

#[test]
fn what_transactions_read_is_what_a_serial_run_reads_on_threads() {
    for seed in seeds(4) {
        let shape = shape(if seed % 2 == 0 { 20 } else { 1000 }, 150);
        println!("seed {seed}: {:?}", check(seed, devices(), &shape));
        println!("seed {seed}: {:?}", check(seed, devices(), &Shape { lsm: true, ..shape }));
    }
}

#[test]
fn without_interval_locks_phantoms_are_noticed() {
    let broken = Some(crate::Mistake::SkipIntervalLock);
    let caught = (0..100).find(|&seed| simulate(seed, Shape { broken, ..shape(40, 60) }).result.is_err());
    assert!(caught.is_some(), "100 seeds without interval locks, and nothing was noticed");
}
