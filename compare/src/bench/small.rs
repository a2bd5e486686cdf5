//! Small rows: keys of 16 digits, values of 100 bytes. A value begins with the number of its row, so that each read
//! checks that it got the row it asked for, and a balance, which transfers move between rows.

use std::hint::black_box;
use std::ops::ControlFlow;
use std::sync::Arc;

use varve_lab::adapter::{Direction, Durability, End, KeyRange, TxMode, Txn, transact};
use varve_lab::{Error, Result};
use varve_rt::{Rng, now};

use super::Session;
use super::drive::{Measured, Timing, cpu_time, cpu_us, rate};
use crate::engine::Engine;

/// Bytes of a value.
const VALUE: usize = 100;
/// Rows per commit of a load.
const BATCH: usize = 1000;
/// Short operations between two looks at the clock.
const STRIDE: u64 = 32;
/// Rows of a scan.
const SCAN: u64 = 100;
/// Reads that share a read-only transaction.
const SHARED_READS: u64 = 1000;

/// The key of row `n`.
pub fn key(mut n: u64) -> [u8; 16] {
    let mut key = [b'0'; 16];
    for digit in key.iter_mut().rev() {
        *digit += (n % 10) as u8;
        n /= 10;
    }
    key
}

fn value(n: u64, rng: &mut Rng) -> [u8; VALUE] {
    let mut value = [0; VALUE];
    rng.fill_bytes(&mut value[16..]);
    value[..8].copy_from_slice(&n.to_le_bytes());
    value
}

fn missing(n: u64) -> Error {
    Error::Missing { table: "rows", key: n.to_string() }
}

fn verify(n: u64, value: Option<&[u8]>) -> Result<()> {
    match value {
        Some(value) if value.len() == VALUE && value[..8] == n.to_le_bytes() => {
            black_box(value[VALUE - 1]);
            Ok(())
        }
        Some(_) => {
            Err(Error::Row { table: "rows", key: n.to_string(), why: "it holds another row's value".to_string() })
        }
        None => Err(missing(n)),
    }
}

/// Takes the time of a load of `rows` rows.
fn timed<R>(rows: u64, load: impl FnOnce() -> Result<R>) -> Result<(R, Measured)> {
    let (began, before) = (now(), cpu_time());
    let result = load()?;
    let value = rows as f64 / began.elapsed().as_secs_f64();
    Ok((result, Measured { value, cpu_us: cpu_us(before, rows as f64) }))
}

/// Loads rows `0..n` the engine's fastest way into its keyspace.
pub fn bulk_load<E: Engine>(store: &E, seed: u64, n: u64) -> Result<(E::Keyspace, Measured)> {
    let mut rng = Rng::from_seed(seed);
    timed(n, || store.bulk_load("rows", |push| (0..n).try_for_each(|i| push(&key(i), &value(i, &mut rng)))))
}

/// Loads rows `0..n` in the order of `numbers` by transactions; the last commit is durable, and with it all.
pub fn load<E: Engine>(
    store: &E,
    ks: &E::Keyspace,
    seed: u64,
    numbers: impl ExactSizeIterator<Item = u64>,
) -> Result<Measured> {
    let count = numbers.len() as u64;
    let mut rng = Rng::from_seed(seed);
    let mut batch: Vec<(u64, [u8; VALUE])> = Vec::with_capacity(BATCH);
    let mut numbers = numbers.peekable();
    let load = || {
        while numbers.peek().is_some() {
            batch.clear();
            batch.extend(numbers.by_ref().take(BATCH).map(|n| (n, value(n, &mut rng))));
            let how = if numbers.peek().is_some() { Durability::None } else { Durability::Sync };
            transact(store, TxMode::ReadWrite, how, |tx| {
                for (n, value) in &batch {
                    tx.put(ks, &key(*n), value)?;
                }
                Ok(((), End::Commit))
            })?;
        }
        Ok(())
    };
    timed(count, load).map(|((), measured)| measured)
}

/// Loads in bulk, then measures reads, scans, transfers and writes.
pub fn run<E: Engine>(store: &Arc<E>, session: &mut Session<'_>) -> Result<()> {
    let (n, seed) = (session.scale.keys, session.seed);
    let (ks, loaded) = bulk_load(&**store, seed, n)?;
    let timing = Timing { warmup: session.scale.warmup, measure: session.scale.measure };
    (session.sink)("bulk-load", 1, loaded);
    read_all(&**store, &ks, n)?;
    let seed = seed ^ (u64::from(session.round) << 32);
    if (session.wanted)("reads") {
        (session.sink)("reads", 1, reads(store, &ks, n, timing, seed)?);
    }
    if (session.wanted)("reads-batch") {
        (session.sink)("reads-batch", 1, reads_batch(store, &ks, n, timing, seed)?);
    }
    if (session.wanted)("scans") {
        (session.sink)("scans", 1, scans(store, &ks, n, timing, seed, false)?);
    }
    if (session.wanted)("iterate") {
        (session.sink)("iterate", 1, scans(store, &ks, n, timing, seed, true)?);
    }
    if (session.wanted)("transfers") {
        (session.sink)("transfers", 1, transfers(store, &ks, n, 1, timing, seed)?);
        check_balances(&**store, &ks, n)?;
    }
    if (session.wanted)("overwrites") {
        (session.sink)("overwrites", 1, writes(store, &ks, n, (1, Durability::None), timing, seed)?);
    }
    for (row, threads) in [("durable-1", 1), ("durable-4", 4), ("durable-16", 16)] {
        if (session.wanted)(row) {
            (session.sink)(row, threads, writes(store, &ks, n, (threads, Durability::Sync), timing, seed)?);
        }
    }
    Ok(())
}

/// Loads in order by transactions.
pub fn run_sorted<E: Engine>(store: &Arc<E>, session: &mut Session<'_>) -> Result<()> {
    let ks = store.keyspace("rows")?;
    let order = 0..session.scale.keys as u32;
    (session.sink)("sorted-load", 1, load(&**store, &ks, session.seed, order.map(u64::from))?);
    Ok(())
}

/// Loads in random order by transactions.
pub fn run_random<E: Engine>(store: &Arc<E>, session: &mut Session<'_>) -> Result<()> {
    let ks = store.keyspace("rows")?;
    let mut order: Vec<u32> = (0..session.scale.keys as u32).collect();
    Rng::from_seed(session.seed).shuffle(&mut order);
    (session.sink)("random-load", 1, load(&**store, &ks, session.seed, order.into_iter().map(u64::from))?);
    Ok(())
}

fn reads<E: Engine>(store: &Arc<E>, ks: &E::Keyspace, n: u64, timing: Timing, seed: u64) -> Result<Measured> {
    let ks = ks.clone();
    rate(store, 1, timing, seed, move |store, rng| {
        for _ in 0..STRIDE {
            let i = rng.below(n);
            store.get_one(&ks, &key(i), |value| verify(i, value))??;
        }
        Ok(STRIDE)
    })
}

fn reads_batch<E: Engine>(store: &Arc<E>, ks: &E::Keyspace, n: u64, timing: Timing, seed: u64) -> Result<Measured> {
    let ks = ks.clone();
    rate(store, 1, timing, seed, move |store, rng| {
        let mut tx = store.begin(TxMode::ReadOnly, Durability::None)?;
        for _ in 0..SHARED_READS {
            let i = rng.below(n);
            tx.get(&ks, &key(i), |value| verify(i, value))??;
        }
        tx.commit()?;
        Ok(SHARED_READS)
    })
}

/// Reads every row once: a bulk load need not leave them in memory.
fn read_all<E: Engine>(store: &E, ks: &E::Keyspace, n: u64) -> Result<()> {
    let (mut next, mut found) = (0, Ok(()));
    store.scan_from(ks, &key(0), |_, value| {
        found = verify(next, Some(value));
        next += 1;
        if found.is_err() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    found?;
    if next == n { Ok(()) } else { Err(missing(next)) }
}

fn scans<E: Engine>(
    store: &Arc<E>,
    ks: &E::Keyspace,
    n: u64,
    timing: Timing,
    seed: u64,
    by_iterator: bool,
) -> Result<Measured> {
    let ks = ks.clone();
    rate(store, 1, timing, seed, move |store, rng| {
        let from = rng.below(n - SCAN);
        let (mut next, mut found) = (from, Ok(()));
        let each = |_: &[u8], value: &[u8]| {
            found = verify(next, Some(value));
            next += 1;
            if next == from + SCAN || found.is_err() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        match by_iterator {
            true => store.iterate_from(&ks, &key(from), each)?,
            false => store.scan_from(&ks, &key(from), each)?,
        }
        found?;
        if next == from + SCAN { Ok(1) } else { Err(missing(next)) }
    })
}

fn writes<E: Engine>(
    store: &Arc<E>,
    ks: &E::Keyspace,
    n: u64,
    (threads, how): (usize, Durability),
    timing: Timing,
    seed: u64,
) -> Result<Measured> {
    let ks = ks.clone();
    let stride = if how == Durability::Sync { 1 } else { STRIDE };
    // Not the values that the row before left: SQLite, for one, does not write what is there already.
    let seed = seed ^ ((threads as u64) << 8 | how as u64) << 40;
    rate(store, threads, timing, seed, move |store, rng| {
        for _ in 0..stride {
            let i = rng.below(n);
            store.put_one(&ks, &key(i), &value(i, rng), how)?;
        }
        Ok(stride)
    })
}

/// The balance of a row, and the row with another.
fn balance(value: &[u8]) -> i64 {
    i64::from_le_bytes(value[8..16].try_into().expect("eight bytes"))
}

/// Transfers between two random rows, in key order so that two of them cannot wait for each other in a circle.
pub fn transfers<E: Engine>(
    store: &Arc<E>,
    ks: &E::Keyspace,
    n: u64,
    threads: usize,
    timing: Timing,
    seed: u64,
) -> Result<Measured> {
    let ks = ks.clone();
    rate(store, threads, timing, seed, move |store, rng| {
        for _ in 0..STRIDE {
            let (a, b) = (rng.below(n), rng.below(n));
            if a == b {
                continue;
            }
            let (a, b) = (a.min(b), a.max(b));
            let amount = rng.below(100) as i64 - 50;
            transact(store, TxMode::ReadWrite, Durability::None, |tx| {
                let mut rows = [[0u8; VALUE]; 2];
                for (row, i) in rows.iter_mut().zip([a, b]) {
                    tx.get_for_update(&ks, &key(i), |value| {
                        verify(i, value)?;
                        row.copy_from_slice(value.unwrap_or_default());
                        Ok::<(), Error>(())
                    })??;
                }
                for ((row, i), change) in rows.iter_mut().zip([a, b]).zip([amount, -amount]) {
                    let now = balance(row) + change;
                    row[8..16].copy_from_slice(&now.to_le_bytes());
                    tx.put(&ks, &key(i), row)?;
                }
                Ok(((), End::Commit))
            })?;
        }
        Ok(STRIDE)
    })
}

/// Fails unless all rows are there and their balances add up to nothing.
pub fn check_balances<E: Engine>(store: &E, ks: &E::Keyspace, n: u64) -> Result<()> {
    let mut tx = store.begin(TxMode::ReadOnly, Durability::None)?;
    let (mut sum, mut count) = (0, 0);
    tx.scan(ks, KeyRange::ALL, Direction::Forward, |_, value| {
        sum += balance(value);
        count += 1;
        ControlFlow::Continue(())
    })?;
    tx.commit()?;
    if (sum, count) == (0, n) {
        return Ok(());
    }
    let why = format!("{count} rows of {n}, and balances that add up to {sum} instead of 0");
    Err(Error::Row { table: "rows", key: "all".to_string(), why })
}
