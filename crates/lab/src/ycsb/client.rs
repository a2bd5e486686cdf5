//! One thread's requests.

use std::ops::ControlFlow;
use std::sync::Arc;

use varve_rt::Rng;

use super::distribution::Chooser;
use super::{Inserts, Options, Shape};
use crate::adapter::{Direction, Durability, KeyRange, Store, TxMode, Txn};
use crate::driver::{Client, Draw, Outcome};
use crate::error::{Error, Result};

const READ: usize = 0;
const UPDATE: usize = 1;
const INSERT: usize = 2;
const SCAN: usize = 3;

/// Draws requests and runs them.
pub struct YcsbClient<S: Store> {
    records: S::Keyspace,
    shape: Shape,
    options: Options,
    inserts: Arc<Inserts>,
    chooser: Chooser,
    rng: Rng,
    kind: usize,
    /// Number of the record asked for.
    n: u64,
    /// Length of the scan.
    length: u32,
    record: Vec<u8>,
    /// Bytes lent by scans: stands for their use.
    seen: u64,
}

impl<S: Store> YcsbClient<S> {
    pub(super) fn new(
        records: S::Keyspace,
        shape: Shape,
        options: Options,
        inserts: Arc<Inserts>,
        thread: usize,
    ) -> Result<YcsbClient<S>> {
        let chooser = Chooser::new(options.distribution, inserts.there(), options.theta)?;
        let rng = Rng::from_seed(options.seed ^ (thread as u64 + 1).wrapping_mul(0xe703_7ed1_a0b4_28db));
        let record = Vec::new();
        Ok(YcsbClient { records, shape, options, inserts, chooser, rng, kind: 0, n: 0, length: 0, record, seen: 0 })
    }

    /// Bytes of records that scans have been lent.
    pub fn bytes_scanned(&self) -> u64 {
        self.seen
    }

    fn missing(&self) -> Error {
        Error::Missing { table: "ycsb", key: String::from_utf8_lossy(&self.shape.key(self.n)).into_owned() }
    }

    fn read(&mut self, store: &S) -> Result<()> {
        let (n, shape) = (self.n, self.shape);
        let key = shape.key(n);
        let verdict = store.get_one(&self.records, &key, |value| value.map(|value| shape.verify(n, &key, value)))?;
        verdict.ok_or_else(|| self.missing())?
    }

    /// Writes the drawn record.
    fn overwrite(&mut self, store: &S) -> Result<()> {
        self.shape.fill(self.n, &mut self.rng, &mut self.record);
        store.put_one(&self.records, &self.shape.key(self.n), &self.record, self.options.durability)
    }

    /// Writes the drawn record or one field of it, after reading it.
    fn rewrite(&mut self, store: &S) -> Result<()> {
        let (n, shape) = (self.n, self.shape);
        let key = shape.key(n);
        let mut tx = store.begin(TxMode::ReadWrite, self.options.durability)?;
        let record = &mut self.record;
        let verdict = tx.get_for_update(&self.records, &key, |value| {
            value.map(|value| {
                record.clear();
                record.extend_from_slice(value);
                shape.verify(n, &key, value)
            })
        })?;
        verdict.ok_or_else(|| self.missing())??;
        if self.options.write_one_field {
            let length = shape.field_length as usize;
            let at = self.rng.below(u64::from(shape.fields)) as usize * length;
            self.rng.fill_bytes(&mut self.record[at..at + length]);
            let head = self.record.len().min(8);
            self.record[..head].copy_from_slice(&n.to_le_bytes()[..head]);
        } else {
            shape.fill(n, &mut self.rng, &mut self.record);
        }
        tx.put(&self.records, &key, &self.record)?;
        tx.commit()
    }

    fn insert(&mut self, store: &S) -> Result<()> {
        self.overwrite(store)?;
        self.inserts.done(self.n);
        Ok(())
    }

    fn scan(&mut self, store: &S) -> Result<()> {
        let from = self.shape.key(self.n);
        self.seen += scan(store, &self.records, (&from, self.length), self.options.scan_mode, self.options.durability)?;
        Ok(())
    }
}

/// Scans up to `length` records from `from` on, one at least, in a transaction; returns the bytes of their values.
pub(super) fn scan<S: Store>(
    store: &S,
    records: &S::Keyspace,
    (from, length): (&[u8], u32),
    mode: TxMode,
    durability: Durability,
) -> Result<u64> {
    let mut tx = store.begin(mode, durability)?;
    let (mut left, mut bytes) = (length, 0);
    tx.scan(records, KeyRange::starting_at(from), Direction::Forward, |_, value| {
        bytes += value.len() as u64;
        left -= 1;
        if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    tx.commit()?;
    Ok(bytes)
}

impl<S: Store> Client<S> for YcsbClient<S> {
    fn draw(&mut self) -> Draw {
        let shares = self.options.shares;
        let mut point = self.rng.below(shares.iter().map(|s| u64::from(*s)).sum());
        self.kind = 0;
        while let Some(rest) = point.checked_sub(u64::from(shares[self.kind])) {
            point = rest;
            self.kind += 1;
        }
        self.n = match self.kind {
            INSERT => self.inserts.take(),
            _ => self.chooser.draw(self.inserts.there(), &mut self.rng),
        };
        if self.kind == SCAN {
            self.length = self.rng.between(1, u64::from(self.options.max_scan)) as u32;
        }
        Draw { kind: self.kind, keying: Default::default(), think: Default::default() }
    }

    fn attempt(&mut self, store: &S) -> Result<Outcome> {
        match self.kind {
            READ => self.read(store)?,
            UPDATE if !self.options.write_one_field => self.overwrite(store)?,
            INSERT => self.insert(store)?,
            SCAN => self.scan(store)?,
            _ => self.rewrite(store)?,
        }
        Ok(Outcome::Committed)
    }
}
