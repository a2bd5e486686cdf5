//! One thread's requests.

use std::ops::ControlFlow;
use std::sync::Arc;

use varve_rt::Rng;
use varve_rt::atomic::{AtomicU64, Ordering};

use super::{Benchmark, Counters, DbBench, Options, ROWS, Values};
use crate::adapter::{Direction, Durability, KeyRange, Store, TxMode, Txn};
use crate::driver::{Client, Draw, Outcome};
use crate::error::Result;

const WRITE: usize = 0;
const READ: usize = 1;
const SEEK: usize = 2;
const SCAN: usize = 3;
const DELETE: usize = 4;

/// Draws requests and runs them.
pub struct DbBenchClient<S: Store> {
    keyspace: S::Keyspace,
    beside: Option<S::Keyspace>,
    options: Options,
    values: Arc<Values>,
    sequence: Arc<AtomicU64>,
    counters: Arc<Counters>,
    kind: usize,
    sequential: bool,
    missing: bool,
    direction: Direction,
    /// Beside readers: what it does is not counted as what was asked for.
    aside: bool,
    rng: Rng,
    /// Numbers of the keys that were drawn.
    drawn: Vec<u64>,
    /// Bytes of the values that they get.
    sizes: Vec<usize>,
    /// Entries that were drawn, and as many for each look-up among them.
    asked: u64,
    key: Vec<u8>,
    /// Where in the values it is.
    at: usize,
    /// Key of the row that the walk has come to; none: it begins.
    walked: Option<Vec<u8>>,
}

impl<S: Store> DbBenchClient<S> {
    pub(super) fn new(of: &DbBench<S>, thread: usize, counters: Arc<Counters>) -> DbBenchClient<S> {
        let aside = of.benchmark == Benchmark::ReadWhileWriting && thread == 0;
        let kind = match of.benchmark {
            Benchmark::FillSeq | Benchmark::FillRandom | Benchmark::Overwrite => WRITE,
            Benchmark::ReadWhileWriting if aside => WRITE,
            Benchmark::ReadRandom | Benchmark::ReadMissing | Benchmark::ReadWhileWriting => READ,
            Benchmark::SeekRandom => SEEK,
            Benchmark::ReadSeq | Benchmark::ReadReverse => SCAN,
            Benchmark::DeleteRandom => DELETE,
        };
        let reverse = of.benchmark == Benchmark::ReadReverse;
        // Others for each benchmark: what one deletes is not what the next one reads.
        let benchmark = (of.benchmark as u64 + 1).wrapping_mul(0xd6e8_feb8_6659_fd93);
        let seed = (of.options.seed ^ benchmark).wrapping_add((thread as u64 + 1).wrapping_mul(0x9fb2_1c65_1e98_df25));
        DbBenchClient {
            keyspace: of.keyspace.clone(),
            beside: of.beside.clone(),
            options: of.options,
            values: of.values.clone(),
            sequence: of.sequence.clone(),
            counters,
            kind,
            sequential: of.benchmark == Benchmark::FillSeq,
            missing: of.benchmark == Benchmark::ReadMissing,
            direction: if reverse { Direction::Reverse } else { Direction::Forward },
            aside,
            rng: Rng::from_seed(seed),
            drawn: Vec::new(),
            sizes: Vec::new(),
            asked: 0,
            key: Vec::new(),
            at: 0,
            walked: None,
        }
    }

    fn count(&self, operations: u64, found: u64, bytes: u64) {
        let written = if self.kind == WRITE { bytes } else { 0 };
        let asked = u64::from(!self.aside);
        for (counter, n) in [
            (&self.counters.operations, asked * operations),
            (&self.counters.found, asked * found),
            (&self.counters.bytes, asked * bytes),
            (&self.counters.written, written),
        ] {
            counter.fetch_add(n, Ordering::Relaxed);
        }
    }

    fn write(&mut self, store: &S) -> Result<()> {
        let (o, values) = (self.options, self.values.clone());
        let mut at = self.at;
        if let ([n], [size], None) = (&self.drawn[..], &self.sizes[..], &self.beside) {
            o.key(*n, &mut self.key);
            store.put_one(&self.keyspace, &self.key, values.next(&mut at, *size), o.durability)?;
        } else {
            let mut tx = store.begin(TxMode::ReadWrite, o.durability)?;
            for (i, (n, size)) in self.drawn.iter().zip(&self.sizes).enumerate() {
                o.key(*n, &mut self.key);
                let beside = || self.beside.as_ref().expect("made where it is written");
                let keyspace = if i < o.batch as usize { &self.keyspace } else { beside() };
                tx.put(keyspace, &self.key, values.next(&mut at, *size))?;
            }
            tx.commit()?;
        }
        self.at = at;
        let bytes = self.sizes.iter().map(|size| u64::from(o.key_size) + *size as u64).sum();
        self.count(self.drawn.len() as u64, 0, bytes);
        Ok(())
    }

    fn read(&mut self, store: &S) -> Result<()> {
        self.options.key(self.drawn[0], &mut self.key);
        if self.missing {
            self.key.push(b'.');
        }
        let found = store.get_one(&self.keyspace, &self.key, |value| value.map(<[u8]>::len))?;
        let bytes = found.map_or(0, |len| self.key.len() + len);
        self.count(1, found.is_some().into(), bytes as u64);
        Ok(())
    }

    fn seek(&mut self, store: &S) -> Result<()> {
        self.options.key(self.drawn[0], &mut self.key);
        let mut tx = store.begin(TxMode::Snapshot, Durability::None)?;
        let (mut left, mut found, mut bytes) = (u64::from(self.options.seek_nexts) + 1, 0, 0);
        let wanted = &self.key;
        tx.scan(&self.keyspace, KeyRange::starting_at(wanted), self.direction, |key, value| {
            found |= u64::from(key == &wanted[..]);
            bytes += (key.len() + value.len()) as u64;
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        tx.commit()?;
        self.count(1, found, bytes);
        Ok(())
    }

    /// Some rows more of a walk over all; at its end it begins again.
    fn walk(&mut self, store: &S) -> Result<()> {
        let mut tx = store.begin(TxMode::Snapshot, Durability::None)?;
        let (mut rows, mut bytes) = (0, 0);
        let mut last = Vec::new();
        let after = self.walked.take().unwrap_or_default();
        let range = match self.direction {
            _ if after.is_empty() => KeyRange::ALL,
            Direction::Forward => KeyRange::starting_at(&after),
            Direction::Reverse => KeyRange { from: &[], to: Some(&after) },
        };
        tx.scan(&self.keyspace, range, self.direction, |key, value| {
            rows += 1;
            bytes += (key.len() + value.len()) as u64;
            if rows == ROWS {
                last.extend_from_slice(key);
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })?;
        tx.commit()?;
        if !last.is_empty() {
            if self.direction == Direction::Forward {
                last.push(0);
            }
            self.walked = Some(last);
        }
        self.count(rows, 0, bytes);
        Ok(())
    }

    fn delete(&mut self, store: &S) -> Result<()> {
        let mut tx = store.begin(TxMode::ReadWrite, self.options.durability)?;
        for n in &self.drawn {
            self.options.key(*n, &mut self.key);
            tx.delete(&self.keyspace, &self.key)?;
        }
        tx.commit()?;
        self.count(self.drawn.len() as u64, 0, 0);
        Ok(())
    }
}

impl<S: Store> Client<S> for DbBenchClient<S> {
    fn draw(&mut self) -> Draw {
        let o = &self.options;
        if o.reads > 0.0 {
            self.kind = if self.rng.f64() < o.reads { READ } else { WRITE };
        }
        let keys = match self.kind {
            WRITE => o.batch + o.beside,
            DELETE => o.batch,
            _ => 1,
        };
        self.drawn.clear();
        if self.sequential {
            let from = self.sequence.fetch_add(u64::from(o.batch), Ordering::Relaxed);
            let ascending = |n: u32| (from + u64::from(n)) % o.num;
            self.drawn.extend((0..o.batch).map(ascending));
            self.drawn.extend((0..o.beside).map(ascending));
        } else {
            self.drawn.extend((0..keys).map(|_| self.rng.below(o.num)));
        }
        self.sizes.clear();
        self.sizes.resize(self.drawn.len(), o.value_size as usize);
        if let Some(large) = o.large.filter(|large| (large.from..large.until).contains(&self.asked)) {
            for size in &mut self.sizes {
                if self.rng.f64() < large.share {
                    *size = large.value_size as usize;
                }
            }
        }
        self.asked += u64::from(o.batch);
        Draw { kind: self.kind, keying: Default::default(), think: Default::default() }
    }

    fn attempt(&mut self, store: &S) -> Result<Outcome> {
        match self.kind {
            WRITE => self.write(store)?,
            READ => self.read(store)?,
            SEEK => self.seek(store)?,
            SCAN => self.walk(store)?,
            _ => self.delete(store)?,
        }
        Ok(Outcome::Committed)
    }
}
