//! The benchmarks of LevelDB's and RocksDB's `db_bench`, by their names, over any store.
//!
//! Keys are decimal numbers below `num`, padded with zeros to `key_size` bytes. Values are parts of a megabyte that
//! compresses to `compression_ratio`, made as `db_bench` makes it. What differs from it: numbers of `fillseq` come from
//! one sequence for all threads and begin again after `num`; a walk (`readseq`, `readreverse`) that has come to an end
//! begins again; batches are transactions.

mod client;
mod values;

pub use client::DbBenchClient;
pub use values::Values;

use std::sync::Arc;

use varve_rt::Mutex;
use varve_rt::atomic::{AtomicU64, Ordering};

use crate::adapter::{Durability, Store, bad_option};
use crate::driver::Workload;
use crate::error::{Error, Result};

/// Names of the request types.
pub const KINDS: [&str; 5] = ["write", "read", "seek", "scan", "delete"];

/// The keyspace that all benchmarks use.
pub const KEYSPACE: &str = "dbbench";

/// The keyspace of the entries that commits write besides, with [`Options::beside`].
pub const BESIDE: &str = "dbbench.beside";

/// Rows that a walk takes at a time.
const ROWS: u64 = 1000;

/// One of the benchmarks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Benchmark {
    /// Writes ascending keys into an empty keyspace.
    FillSeq,
    /// Writes random keys into an empty keyspace.
    FillRandom,
    /// Writes random keys into a keyspace that has them.
    Overwrite,
    /// Looks random keys up.
    ReadRandom,
    /// Looks keys up that are not there, each right behind one that may be.
    ReadMissing,
    /// Walks over all keys, ascending.
    ReadSeq,
    /// The same, descending.
    ReadReverse,
    /// Goes to random keys and reads the row there, and `seek_nexts` more.
    SeekRandom,
    /// One thread writes random keys, all others look random ones up; they are what counts.
    ReadWhileWriting,
    /// Deletes random keys.
    DeleteRandom,
}

impl Benchmark {
    /// All, by name.
    pub const ALL: [(&'static str, Benchmark); 10] = [
        ("fillseq", Benchmark::FillSeq),
        ("fillrandom", Benchmark::FillRandom),
        ("overwrite", Benchmark::Overwrite),
        ("readrandom", Benchmark::ReadRandom),
        ("readmissing", Benchmark::ReadMissing),
        ("readseq", Benchmark::ReadSeq),
        ("readreverse", Benchmark::ReadReverse),
        ("seekrandom", Benchmark::SeekRandom),
        ("readwhilewriting", Benchmark::ReadWhileWriting),
        ("deleterandom", Benchmark::DeleteRandom),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Benchmark::ALL.iter().find(|(_, this)| *this == self).expect("all have names").0
    }

    /// Whether it begins with an empty keyspace.
    pub fn is_fill(self) -> bool {
        matches!(self, Benchmark::FillSeq | Benchmark::FillRandom)
    }

    /// Threads besides those that were asked for.
    pub fn more_threads(self) -> usize {
        usize::from(self == Benchmark::ReadWhileWriting)
    }
}

/// What `varve bench dbbench` does one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A benchmark.
    Run(Benchmark),
    /// `compact`: everything is merged, or compacted.
    Compact,
}

impl std::str::FromStr for Step {
    type Err = Error;

    fn from_str(text: &str) -> Result<Step> {
        if text == "compact" {
            return Ok(Step::Compact);
        }
        let found = Benchmark::ALL.iter().find(|(name, _)| *name == text);
        found.map_or_else(
            || {
                let names: Vec<&str> = Benchmark::ALL.iter().map(|(name, _)| *name).collect();
                bad_option("benchmarks", format!("no benchmark {text:?}; there are {}, compact", names.join(", ")))
            },
            |(_, benchmark)| Ok(Step::Run(*benchmark)),
        )
    }
}

/// Entries with larger values among those that a thread writes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Large {
    /// Bytes of their values.
    pub value_size: u32,
    /// Their share, from 0 to 1, of the entries from `from` on and before `until`; there are none elsewhere.
    pub share: f64,
    /// Entries that a thread was to write or look up before the first of them.
    pub from: u64,
    /// The same before there are no more of them.
    pub until: u64,
}

/// How a benchmark is run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Options {
    /// Keys are numbers below this; writes of each thread, if nothing else ends the run.
    pub num: u64,
    /// Bytes of a key.
    pub key_size: u32,
    /// Bytes of a value.
    pub value_size: u32,
    /// Larger ones among them, of `fillrandom` and `overwrite`.
    pub large: Option<Large>,
    /// Of `fillrandom` and `overwrite`: the share of requests that look a random key up instead, from 0 to less than 1.
    pub reads: f64,
    /// Entries of a commit.
    pub batch: u32,
    /// Entries that each commit writes to [`BESIDE`] besides.
    pub beside: u32,
    /// What values compress to, as a share.
    pub compression_ratio: f64,
    /// Rows that `seekrandom` reads after the first.
    pub seek_nexts: u32,
    /// Of the commits.
    pub durability: Durability,
    /// Seed of keys and values.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            num: 1_000_000,
            key_size: 16,
            value_size: 100,
            large: None,
            reads: 0.0,
            batch: 1,
            beside: 0,
            compression_ratio: 0.5,
            seek_nexts: 0,
            durability: Durability::None,
            seed: 301,
        }
    }
}

impl Options {
    /// Refuses what cannot be run.
    pub fn validate(&self) -> Result<()> {
        let digits = self.num.saturating_sub(1).checked_ilog10().unwrap_or(0) + 1;
        match () {
            () if self.num == 0 || self.num > 1 << 50 => bad_option("num", "1 to 2^50 are possible"),
            () if !(digits..=1000).contains(&self.key_size) => {
                bad_option("key_size", format!("{digits} (the digits of the last key) to 1000 are possible"))
            }
            () if self.largest() > 16 << 20 => bad_option("value_size", "at most 16 MiB are possible"),
            () if self.large.is_some_and(|large| !(0.0..=1.0).contains(&large.share)) => {
                bad_option("large.share", "0 to 1 are possible")
            }
            () if self.large.is_some_and(|large| large.from >= large.until) => {
                bad_option("large.until", "more than large.from is possible")
            }
            () if !(0.0..1.0).contains(&self.reads) => bad_option("reads", "0 and more, less than 1 are possible"),
            () if !(1..=100_000).contains(&self.batch) => bad_option("batch", "1 to 100000 are possible"),
            () if self.beside > 100_000 => bad_option("beside", "at most 100000 are possible"),
            () if !(0.0..=1.0).contains(&self.compression_ratio) || self.compression_ratio == 0.0 => {
                bad_option("compression_ratio", "more than 0, at most 1 are possible")
            }
            () if self.seek_nexts > 1_000_000 => bad_option("seek_nexts", "at most 1000000 are possible"),
            () => Ok(()),
        }
    }

    /// Refuses what this benchmark does not do.
    pub fn fit(&self, benchmark: Benchmark) -> Result<()> {
        let random_writes = matches!(benchmark, Benchmark::FillRandom | Benchmark::Overwrite);
        for (name, given) in [("large", self.large.is_some()), ("reads", self.reads > 0.0)] {
            if given && !random_writes {
                return bad_option(name, format!("{} has none: fillrandom and overwrite do", benchmark.name()));
            }
        }
        Ok(())
    }

    /// Key `n`, in `to`.
    pub fn key(&self, n: u64, to: &mut Vec<u8>) {
        to.clear();
        to.resize(self.key_size as usize, b'0');
        let mut rest = n;
        for digit in to.iter_mut().rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        assert_eq!(rest, 0, "keys have room for their digits");
    }

    /// Bytes of the largest values.
    fn largest(&self) -> u32 {
        self.large.map_or(self.value_size, |large| large.value_size.max(self.value_size))
    }

    /// Bytes of an entry whose value is not a [`Large`] one.
    pub fn entry(&self) -> u64 {
        u64::from(self.key_size) + u64::from(self.value_size)
    }

    /// Requests that make up `operations` (entries, look-ups, rows) of each of so many threads.
    pub fn requests(&self, benchmark: Benchmark, operations: u64, threads: usize) -> u64 {
        let each = match benchmark {
            Benchmark::FillSeq | Benchmark::FillRandom | Benchmark::Overwrite | Benchmark::DeleteRandom => {
                u64::from(self.batch)
            }
            Benchmark::ReadSeq | Benchmark::ReadReverse => ROWS,
            _ => 1,
        };
        operations.div_ceil(each) * threads as u64
    }
}

/// What was done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Entries written, keys looked up or deleted, rows walked over.
    pub operations: u64,
    /// Of the keys looked up, those that were there.
    pub found: u64,
    /// Bytes of keys and values written or read.
    pub bytes: u64,
    /// Of those, written.
    pub written: u64,
}

impl Totals {
    /// What was done since.
    pub fn since(&self, then: &Totals) -> Totals {
        Totals {
            operations: self.operations - then.operations,
            found: self.found - then.found,
            bytes: self.bytes - then.bytes,
            written: self.written - then.written,
        }
    }
}

/// Counters of one client. The thread that writes while others read counts only what it writes.
#[derive(Default)]
struct Counters {
    operations: AtomicU64,
    found: AtomicU64,
    bytes: AtomicU64,
    written: AtomicU64,
}

/// A benchmark over a store.
pub struct DbBench<S: Store> {
    keyspace: S::Keyspace,
    beside: Option<S::Keyspace>,
    benchmark: Benchmark,
    options: Options,
    values: Arc<Values>,
    sequence: Arc<AtomicU64>,
    counters: Mutex<Vec<Arc<Counters>>>,
}

impl<S: Store> DbBench<S> {
    /// Prepares a run. The keyspaces are made, if they are not there.
    ///
    /// Errors: an option cannot be used, or the store failed.
    pub fn new(store: &S, benchmark: Benchmark, options: Options) -> Result<DbBench<S>> {
        options.validate()?;
        options.fit(benchmark)?;
        let beside = if options.beside > 0 { Some(store.keyspace(BESIDE)?) } else { None };
        Ok(DbBench {
            keyspace: store.keyspace(KEYSPACE)?,
            beside,
            benchmark,
            options,
            values: Arc::new(Values::new(options.compression_ratio, options.largest(), options.seed)),
            sequence: Arc::default(),
            counters: Mutex::default(),
        })
    }

    /// What all clients have done so far.
    pub fn totals(&self) -> Totals {
        let mut sum = Totals::default();
        for c in self.counters.lock().iter() {
            sum.operations += c.operations.load(Ordering::Relaxed);
            sum.found += c.found.load(Ordering::Relaxed);
            sum.bytes += c.bytes.load(Ordering::Relaxed);
            sum.written += c.written.load(Ordering::Relaxed);
        }
        sum
    }
}

impl<S: Store> Workload<S> for DbBench<S> {
    type Client = DbBenchClient<S>;

    fn name(&self) -> &str {
        self.benchmark.name()
    }

    fn kinds(&self) -> &'static [&'static str] {
        &KINDS
    }

    fn client(&self, _store: &Arc<S>, thread: usize, _threads: usize) -> Result<DbBenchClient<S>> {
        let counters = Arc::new(Counters::default());
        self.counters.lock().push(counters.clone());
        Ok(DbBenchClient::new(self, thread, counters))
    }

    fn ends_run(&self, thread: usize) -> bool {
        self.benchmark != Benchmark::ReadWhileWriting || thread > 0
    }
}

/// What `db_bench` prints before the first benchmark.
pub fn head(o: &Options) -> String {
    let mib = |bytes: f64| bytes / f64::from(1 << 20);
    let (key, value) = (f64::from(o.key_size), f64::from(o.value_size));
    let packed = value * o.compression_ratio;
    format!(
        "Keys:       {} bytes each\nValues:     {} bytes each ({:.0} bytes after compression)\nEntries:    {}\n\
         RawSize:    {:.1} MB (estimated)\nFileSize:   {:.1} MB (estimated)\n{}",
        o.key_size,
        o.value_size,
        packed,
        o.num,
        mib((key + value) * o.num as f64),
        mib((key + packed) * o.num as f64),
        "-".repeat(48)
    )
}

/// The line that `db_bench` prints of a benchmark. `threads`: of those that count.
pub fn line(benchmark: Benchmark, done: &Totals, seconds: f64, threads: usize) -> String {
    let rate = done.operations as f64 / seconds.max(1e-9);
    let micros = seconds * 1e6 * threads as f64 / (done.operations as f64).max(1.0);
    let mut line = format!(
        "{:<12} : {micros:11.3} micros/op {rate:.0} ops/sec {seconds:.3} seconds {} operations;",
        benchmark.name(),
        done.operations
    );
    if done.bytes > 0 {
        line += &format!(" {:6.1} MB/s", done.bytes as f64 / f64::from(1 << 20) / seconds.max(1e-9));
    }
    let looks = [Benchmark::ReadRandom, Benchmark::ReadMissing, Benchmark::SeekRandom, Benchmark::ReadWhileWriting];
    if looks.contains(&benchmark) {
        line += &format!(" ({} of {} found)", done.found, done.operations);
    }
    line
}
