//! YCSB beside keyspaces of a fixed number of records: a share of all requests looks records of them up, scans them, or
//! overwrites one.
//!
//! Each client draws from all kinds of requests, so that the load keeps its proportions whatever is slow. There may be
//! several such keyspaces of which one is asked for at a time; after a while it is the next one's turn.

use std::sync::Arc;
use std::time::Duration;

use varve_rt::{Instant, Rng};

use super::client::{YcsbClient, scan};
use super::{Shape, Ycsb};
use crate::adapter::{Durability, Store, TxMode, bad_option};
use crate::driver::{Client, Draw, Outcome, Workload};
use crate::error::{Error, Result};

/// Names of the request types: those of YCSB, then those to the keyspaces beside it.
pub const KINDS: [&str; 8] =
    ["read", "update", "insert", "scan", "read_mod_write", "fixed_read", "fixed_scan", "fixed_write"];

const READ: usize = 5;
const SCAN: usize = 6;
const WRITE: usize = 7;
/// Shares are drawn in millionths.
const MILLION: f64 = 1e6;

/// The name of a keyspace beside that of YCSB.
pub fn fixed_name(set: u32) -> String {
    format!("fixed.{set}")
}

/// What is asked of the keyspaces beside that of YCSB.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fixed {
    /// Records of each.
    pub records: u64,
    /// Keyspaces.
    pub sets: u32,
    /// Their share of all requests.
    pub share: f64,
    /// Of those, the share that overwrites a record.
    pub writes: f64,
    /// Of those that do not, the share that scans; the others look one record up.
    pub scans: f64,
    /// Longest scan in records; lengths are uniform from 1.
    pub max_scan: u32,
    /// After so long it is the next keyspace's turn.
    pub turn: Option<Duration>,
}

/// The workload over loaded records.
pub struct Beside<S: Store> {
    inner: Ycsb<S>,
    sets: Arc<[S::Keyspace]>,
    fixed: Fixed,
    seed: u64,
    began: Instant,
}

impl<S: Store> Beside<S> {
    /// Prepares a run; time counts from now.
    ///
    /// Errors: a share cannot be, a keyspace is missing, or the store failed.
    pub fn new(store: &S, inner: Ycsb<S>, fixed: Fixed) -> Result<Beside<S>> {
        let share = |s: f64| (0.0..=1.0).contains(&s);
        let shares = [fixed.share, fixed.writes, fixed.scans].into_iter().all(share);
        if !shares || fixed.records == 0 || fixed.sets == 0 || fixed.max_scan == 0 {
            return bad_option("fixed", "shares are 0 to 1; there is a keyspace, a record, and a scan of one at least");
        }
        let find = |set| {
            let name = fixed_name(set);
            store.find_keyspace(&name)?.ok_or_else(|| Error::NotLoaded(format!("it has no keyspace {name}")))
        };
        let sets: Result<Vec<S::Keyspace>> = (0..fixed.sets).map(find).collect();
        let seed = inner.options.seed ^ 0xf1fe_d000;
        Ok(Beside { inner, sets: sets?.into(), fixed, seed, began: varve_rt::now() })
    }
}

impl<S: Store> Workload<S> for Beside<S> {
    type Client = BesideClient<S>;

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn kinds(&self) -> &'static [&'static str] {
        &KINDS
    }

    fn client(&self, store: &Arc<S>, thread: usize, threads: usize) -> Result<BesideClient<S>> {
        Ok(BesideClient {
            inner: self.inner.client(store, thread, threads)?,
            sets: self.sets.clone(),
            fixed: self.fixed,
            shape: self.inner.shape,
            durability: self.inner.options.durability,
            record: Vec::new(),
            began: self.began,
            rng: Rng::from_seed(self.seed ^ (thread as u64 + 1).wrapping_mul(0xd1b5_4a32_d192_ed03)),
            kind: 0,
            n: 0,
            length: 0,
            seen: 0,
        })
    }
}

/// Draws requests and runs them.
pub struct BesideClient<S: Store> {
    inner: YcsbClient<S>,
    sets: Arc<[S::Keyspace]>,
    fixed: Fixed,
    shape: Shape,
    durability: Durability,
    record: Vec<u8>,
    began: Instant,
    rng: Rng,
    kind: usize,
    n: u64,
    length: u32,
    /// Bytes lent by scans: stands for their use.
    seen: u64,
}

impl<S: Store> BesideClient<S> {
    fn draws(&mut self, share: f64) -> bool {
        (self.rng.below(MILLION as u64) as f64) < share * MILLION
    }

    /// The keyspace whose turn it is.
    fn set(&self) -> &S::Keyspace {
        let turns = self.fixed.turn.map_or(0, |turn| {
            let passed = (varve_rt::now() - self.began).as_nanos();
            (passed / turn.as_nanos().max(1)) as usize
        });
        &self.sets[turns.min(self.sets.len() - 1)]
    }

    fn read(&mut self, store: &S) -> Result<()> {
        let (n, shape) = (self.n, self.shape);
        let key = shape.key(n);
        let verdict = store.get_one(self.set(), &key, |value| value.map(|value| shape.verify(n, &key, value)))?;
        verdict.ok_or_else(|| Error::Missing { table: "fixed", key: String::from_utf8_lossy(&key).into_owned() })?
    }

    fn write(&mut self, store: &S) -> Result<()> {
        let mut record = std::mem::take(&mut self.record);
        self.shape.fill(self.n, &mut self.rng, &mut record);
        let written = store.put_one(self.set(), &self.shape.key(self.n), &record, self.durability);
        self.record = record;
        written
    }

    fn scan(&mut self, store: &S) -> Result<()> {
        let from = self.shape.key(self.n);
        self.seen += scan(store, self.set(), (&from, self.length), TxMode::ReadOnly, Durability::None)?;
        Ok(())
    }
}

impl<S: Store> Client<S> for BesideClient<S> {
    fn draw(&mut self) -> Draw {
        if !self.draws(self.fixed.share) {
            let draw = self.inner.draw();
            self.kind = draw.kind;
            return draw;
        }
        self.n = self.rng.below(self.fixed.records);
        // Who never writes draws as before there were writes.
        self.kind = match self.fixed.writes > 0.0 && self.draws(self.fixed.writes) {
            true => WRITE,
            false if self.draws(self.fixed.scans) => SCAN,
            false => READ,
        };
        if self.kind == SCAN {
            self.length = self.rng.between(1, u64::from(self.fixed.max_scan)) as u32;
        }
        Draw { kind: self.kind, keying: Duration::ZERO, think: Duration::ZERO }
    }

    fn attempt(&mut self, store: &S) -> Result<Outcome> {
        match self.kind {
            READ => self.read(store)?,
            SCAN => self.scan(store)?,
            WRITE => self.write(store)?,
            _ => return self.inner.attempt(store),
        }
        Ok(Outcome::Committed)
    }
}
