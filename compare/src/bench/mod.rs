//! The workloads, each over any engine. A row of the table is one figure of one of them; rows that share a data set
//! form a group, which is loaded once per round and engine.

pub mod drive;
pub mod iobound;
pub mod lab;
mod rows;
pub mod small;

use std::time::Duration;

pub use rows::{Against, Ask, ROWS, Row};

/// Sizes and lengths of a run.
#[derive(Debug, Clone, Copy, serde::Serialize, serde::Deserialize)]
pub struct Scale {
    /// Rows of the small-row data set.
    pub keys: u64,
    /// Records of 1000 bytes for YCSB.
    pub records: u64,
    /// Warehouses of TPC-C.
    pub warehouses: u32,
    /// Length of one measurement.
    pub measure: Duration,
    /// Length of one TPC-C measurement.
    pub measure_tpcc: Duration,
    /// Time before each measurement in which nothing is counted.
    pub warmup: Duration,
    /// Cache of each engine, bytes; for TPC-C twice as much.
    pub cache_bytes: u64,
    /// Records of 1000 bytes for the rows that are larger than memory.
    pub large_records: u64,
    /// Cache of each engine for these, bytes.
    pub large_cache_bytes: u64,
    /// Length of one measurement of these.
    pub measure_large: Duration,
    /// Time before the first of them, to fill the cache.
    pub warmup_large: Duration,
    /// Cache for TPC-C with a tenth of its data in memory, bytes.
    pub tpcc_cache_bytes: u64,
    /// Records of 400 bytes for reads that go to the device.
    pub io_records: u64,
    /// Cache for these, bytes.
    pub io_cache_bytes: u64,
}

impl Scale {
    /// What `docs/performance.md` reports.
    pub const FULL: Scale = Scale {
        keys: 1_000_000,
        records: 200_000,
        warehouses: 10,
        measure: Duration::from_millis(1000),
        measure_tpcc: Duration::from_secs(8),
        warmup: Duration::from_millis(300),
        cache_bytes: 1 << 30,
        large_records: 4_000_000,
        large_cache_bytes: 256 << 20,
        measure_large: Duration::from_secs(4),
        warmup_large: Duration::from_secs(3),
        tpcc_cache_bytes: 10 * (WAREHOUSE_BYTES / 10),
        io_records: 5_000_000,
        io_cache_bytes: 64 << 20,
    };

    /// Enough to see that everything runs.
    pub const QUICK: Scale = Scale {
        keys: 50_000,
        records: 10_000,
        warehouses: 1,
        measure: Duration::from_millis(200),
        measure_tpcc: Duration::from_millis(1000),
        warmup: Duration::from_millis(50),
        cache_bytes: 256 << 20,
        large_records: 300_000,
        large_cache_bytes: 128 << 20,
        measure_large: Duration::from_millis(500),
        warmup_large: Duration::from_millis(200),
        tpcc_cache_bytes: 2 * (WAREHOUSE_BYTES / 10),
        io_records: 100_000,
        io_cache_bytes: 8 << 20,
    };
}

/// What one of ten warehouses of TPC-C takes in a file of Varve or SQLite, bytes.
const WAREHOUSE_BYTES: u64 = 85 << 20;

/// Rows that share a data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub enum Group {
    /// Small rows, loaded in bulk.
    Small,
    /// Small rows, loaded in order by transactions.
    SmallSorted,
    /// Small rows, loaded in random order by transactions.
    SmallRandom,
    /// YCSB records.
    Ycsb,
    /// TPC-C.
    Tpcc,
    /// YCSB records, larger than memory.
    Large,
    /// TPC-C, larger than memory.
    TpccScarce,
    /// YCSB records, read from the device.
    IoBound,
}

/// One measured figure.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Sample {
    /// Name of the row.
    pub row: &'static str,
    /// Name of the engine, or `fio`.
    pub engine: &'static str,
    /// Round, from 1.
    pub round: u32,
    /// Client threads.
    pub threads: usize,
    /// The figure, in the unit of the row.
    pub value: f64,
    /// Processor time of the process per operation (TPC-C: per new order), microseconds.
    pub cpu_us: f64,
}

/// What a group's run is told and what it hands over.
pub struct Session<'a> {
    /// Sizes and lengths.
    pub scale: &'a Scale,
    /// Seed of data and requests.
    pub seed: u64,
    /// Round, from 1.
    pub round: u32,
    /// Names of the rows that are wanted.
    pub wanted: &'a dyn Fn(&str) -> bool,
    /// Takes a figure: row, threads, figure.
    pub sink: &'a mut dyn FnMut(&'static str, usize, drive::Measured),
}
