//! YCSB (Cooper et al., "Benchmarking cloud serving systems with YCSB", SoCC 2010), workloads A to F.
//!
//! A record is one value: its fields one after the other. The first eight bytes hold the number of the record, so
//! that each read checks that it got the record it asked for. An update writes the whole record unless told to write
//! one field, which takes a read first. Each request is a transaction of its own; reads, and writes of whole records,
//! go the store's shortest way for one key.

mod beside;
mod client;
pub mod distribution;
mod load;

use std::sync::Arc;

use varve_rt::Mutex;
use varve_rt::atomic::{AtomicU64, Ordering};

pub use beside::{Beside, BesideClient, Fixed, KINDS as BESIDE_KINDS, fixed_name};
pub use client::YcsbClient;
pub use distribution::Distribution;
pub use load::{CheckReport, Loaded, check, load, loaded};

use crate::adapter::{Durability, End, Store, TxMode, Txn, bad_option, transact};
use crate::driver::Workload;
use crate::error::{Error, Result};

/// Names of the request types.
pub const KINDS: [&str; 5] = ["read", "update", "insert", "scan", "read_mod_write"];

/// Shares of the request types, in the order of [`KINDS`]; they need not add up to anything.
pub type Shares = [u32; 5];

/// One of the six workloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum Letter {
    /// Update heavy: half reads, half updates.
    A,
    /// Read mostly: 95 % reads, 5 % updates.
    B,
    /// Reads only.
    C,
    /// Read latest: 95 % reads of what was inserted last, 5 % inserts.
    D,
    /// Short ranges: 95 % scans, 5 % inserts.
    E,
    /// Read-modify-write: half reads, half read-modify-writes.
    F,
}

impl Letter {
    /// The shares of its request types.
    pub fn shares(self) -> Shares {
        match self {
            Letter::A => [50, 50, 0, 0, 0],
            Letter::B => [95, 5, 0, 0, 0],
            Letter::C => [100, 0, 0, 0, 0],
            Letter::D => [95, 0, 5, 0, 0],
            Letter::E => [0, 0, 5, 95, 0],
            Letter::F => [50, 0, 0, 0, 50],
        }
    }

    /// Its distribution of requests.
    pub fn distribution(self) -> Distribution {
        if self == Letter::D { Distribution::Latest } else { Distribution::Zipfian }
    }
}

impl std::str::FromStr for Letter {
    type Err = Error;

    fn from_str(text: &str) -> Result<Letter> {
        let letters = [Letter::A, Letter::B, Letter::C, Letter::D, Letter::E, Letter::F];
        let found = letters.into_iter().find(|letter| format!("{letter:?}").eq_ignore_ascii_case(text));
        found.map_or_else(|| bad_option("workload", format!("{text:?} given; it is one of a to f")), Ok)
    }
}

/// How keys look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum KeyForm {
    /// `user` and twenty digits.
    User,
    /// Eight bytes, big endian.
    Binary8,
    /// Sixteen bytes: the eight above, then the record number.
    Binary16,
}

/// What the records look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Shape {
    /// Records to load.
    pub records: u64,
    /// Fields of a record.
    pub fields: u32,
    /// Bytes of a field.
    pub field_length: u32,
    /// How keys look.
    pub key: KeyForm,
    /// Keys in the order of insertion; else scattered.
    pub ordered: bool,
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} records of {} fields of {} bytes", self.records, self.fields, self.field_length)?;
        f.write_str(if self.ordered { ", in the order of their keys" } else { "" })
    }
}

impl Default for Shape {
    fn default() -> Self {
        Shape { records: 100_000, fields: 10, field_length: 100, key: KeyForm::User, ordered: false }
    }
}

/// A key, built in place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct YcsbKey {
    bytes: [u8; 24],
    len: u8,
}

impl std::ops::Deref for YcsbKey {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len as usize]
    }
}

impl Shape {
    /// Bytes of a record.
    pub fn record_length(&self) -> usize {
        self.fields as usize * self.field_length as usize
    }

    /// Refuses a shape that cannot be loaded.
    pub fn validate(&self) -> Result<()> {
        if self.records == 0 || self.records > 1 << 40 {
            return bad_option("records", format!("{} given, 1 to 2^40 possible", self.records));
        }
        if self.fields == 0 || self.field_length == 0 || self.record_length() > 64 << 20 {
            return bad_option("fields", "there must be at least one byte, and at most 64 MiB in a record");
        }
        Ok(())
    }

    /// The key of record `n`.
    pub fn key(&self, n: u64) -> YcsbKey {
        let place = if self.ordered { n } else { distribution::scatter(n) };
        let mut bytes = [0; 24];
        let len = match self.key {
            KeyForm::User => {
                bytes[..4].copy_from_slice(b"user");
                let mut rest = place;
                for digit in bytes[4..].iter_mut().rev() {
                    *digit = b'0' + (rest % 10) as u8;
                    rest /= 10;
                }
                24
            }
            KeyForm::Binary8 => {
                bytes[..8].copy_from_slice(&place.to_be_bytes());
                8
            }
            KeyForm::Binary16 => {
                bytes[..8].copy_from_slice(&place.to_be_bytes());
                bytes[8..16].copy_from_slice(&n.to_be_bytes());
                16
            }
        };
        YcsbKey { bytes, len }
    }

    /// Fills `record` with record `n`: its number, then random bytes.
    pub fn fill(&self, n: u64, rng: &mut varve_rt::Rng, record: &mut Vec<u8>) {
        record.resize(self.record_length(), 0);
        rng.fill_bytes(record);
        let head = record.len().min(8);
        record[..head].copy_from_slice(&n.to_le_bytes()[..head]);
    }

    /// Refuses a value that is not record `n`.
    pub fn verify(&self, n: u64, key: &[u8], value: &[u8]) -> Result<()> {
        let head = value.len().min(8);
        let why = match () {
            () if value.len() != self.record_length() => {
                format!("{} bytes long, {} expected", value.len(), self.record_length())
            }
            () if value[..head] != n.to_le_bytes()[..head] => "it holds another record".to_string(),
            () => return Ok(()),
        };
        Err(Error::Row { table: "ycsb", key: String::from_utf8_lossy(key).into_owned(), why })
    }
}

/// How YCSB is run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Name for the result, such as `ycsb-a`.
    pub name: String,
    /// Shares of the request types.
    pub shares: Shares,
    /// Which records are asked for.
    pub distribution: Distribution,
    /// Skew of the zipfian distributions, between 0 and 1.
    pub theta: f64,
    /// Longest scan in records; lengths are uniform from 1.
    pub max_scan: u32,
    /// What a scan reads in: a transaction that is serializable and current, or a snapshot.
    pub scan_mode: TxMode,
    /// Updates and read-modify-writes write one random field instead of the whole record.
    pub write_one_field: bool,
    /// Durability of the commits.
    pub durability: Durability,
    /// Seed of the requests.
    pub seed: u64,
}

impl Options {
    /// One of the six workloads as YCSB has it.
    pub fn of(letter: Letter) -> Options {
        Options {
            name: format!("ycsb-{}", format!("{letter:?}").to_lowercase()),
            shares: letter.shares(),
            distribution: letter.distribution(),
            theta: 0.99,
            max_scan: 100,
            scan_mode: TxMode::ReadOnly,
            write_one_field: false,
            durability: Durability::Sync,
            seed: 1,
        }
    }
}

/// Numbers of the records there are: each insertion takes the next, and it may be asked for once it and all before
/// it are there.
struct Inserts {
    next: AtomicU64,
    there: AtomicU64,
    /// Insertions that are there while one before them is not yet.
    early: Mutex<Vec<u64>>,
}

impl Inserts {
    fn take(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn done(&self, n: u64) {
        let mut early = self.early.lock();
        early.push(n);
        let mut there = self.there.load(Ordering::Relaxed);
        while let Some(i) = early.iter().position(|n| *n == there) {
            early.swap_remove(i);
            there += 1;
        }
        self.there.store(there, Ordering::Release);
    }

    fn there(&self) -> u64 {
        self.there.load(Ordering::Acquire)
    }
}

/// The workload over loaded records.
pub struct Ycsb<S: Store> {
    records: S::Keyspace,
    shape: Shape,
    options: Options,
    inserts: Arc<Inserts>,
}

impl<S: Store> Ycsb<S> {
    /// Prepares a run over the records the store holds.
    ///
    /// Errors: an option cannot be used, there are no completely loaded records, or the store failed.
    pub fn new(store: &S, options: Options) -> Result<Ycsb<S>> {
        if options.shares.iter().map(|s| u64::from(*s)).sum::<u64>() == 0 {
            return bad_option("shares", "all are zero; at least one must not be");
        }
        if options.max_scan == 0 {
            return bad_option("max_scan", "it must be at least 1");
        }
        let loaded = loaded(store)?.ok_or_else(|| Error::NotLoaded("it holds no complete YCSB data".into()))?;
        distribution::Chooser::new(options.distribution, loaded.shape.records, options.theta)?;
        let records = store.keyspace("ycsb")?;
        let there = count_inserted(store, &records, &loaded.shape)?;
        let inserts =
            Inserts { next: AtomicU64::new(there), there: AtomicU64::new(there), early: Mutex::new(Vec::new()) };
        Ok(Ycsb { records, shape: loaded.shape, options, inserts: Arc::new(inserts) })
    }

    /// What the records look like.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }
}

/// Records there are: those loaded, and those that earlier runs inserted after them.
fn count_inserted<S: Store>(store: &S, records: &S::Keyspace, shape: &Shape) -> Result<u64> {
    let there = |n: u64| {
        transact(store, TxMode::ReadOnly, Durability::Sync, |tx| {
            Ok((tx.get(records, &shape.key(n), |v| v.is_some())?, End::Commit))
        })
    };
    let (mut low, mut step) = (shape.records, 1);
    while there(low + step - 1)? {
        low += step;
        step *= 2;
    }
    let mut high = low + step - 1;
    while low < high {
        let middle = low + (high - low) / 2;
        if there(middle)? { low = middle + 1 } else { high = middle }
    }
    Ok(low)
}

impl<S: Store> Workload<S> for Ycsb<S> {
    type Client = YcsbClient<S>;

    fn name(&self) -> &str {
        &self.options.name
    }

    fn kinds(&self) -> &'static [&'static str] {
        &KINDS
    }

    fn client(&self, _store: &Arc<S>, thread: usize, _threads: usize) -> Result<YcsbClient<S>> {
        YcsbClient::new(self.records.clone(), self.shape, self.options.clone(), self.inserts.clone(), thread)
    }
}
