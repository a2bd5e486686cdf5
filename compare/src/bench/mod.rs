//! The workloads, each over any engine. A row of the table is one figure of one of them; rows that share a data set
//! form a group, which is loaded once per round and engine.

pub mod drive;
pub mod lab;
pub mod small;

use std::time::Duration;

/// Sizes and lengths of a run.
#[derive(Debug, Clone, Copy, serde::Serialize)]
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
}

impl Scale {
    /// What `docs/performance.md` reports.
    pub const FULL: Scale = Scale {
        keys: 1_000_000,
        records: 200_000,
        warehouses: 10,
        measure: Duration::from_millis(1500),
        measure_tpcc: Duration::from_secs(8),
        warmup: Duration::from_millis(300),
        cache_bytes: 1 << 30,
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
    };
}

/// Rows that share a data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// Small rows, loaded in order.
    Small,
    /// Small rows, loaded in random order.
    SmallRandom,
    /// YCSB records.
    Ycsb,
    /// TPC-C.
    Tpcc,
}

/// One row of the table.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// Name for `--only`.
    pub name: &'static str,
    /// What is measured, for people.
    pub title: &'static str,
    /// Unit of the figures.
    pub unit: &'static str,
    /// Data set.
    pub group: Group,
}

/// All rows, in the order of the table. Within a group, rows that only read come first.
pub const ROWS: &[Row] = &[
    row("reads", "random point reads, 1 thread", "reads/s", Group::Small),
    row("reads-batch", "the same, 1000 per read-only transaction", "reads/s", Group::Small),
    row("scans", "range scans of 100, 1 thread", "scans/s", Group::Small),
    row("transfers", "transfers (2 reads, 2 writes), not synced, 1 thread", "tx/s", Group::Small),
    row("overwrites", "random overwrites, not synced, 1 thread", "writes/s", Group::Small),
    row("durable-1", "durable single-put commits, 1 thread", "commits/s", Group::Small),
    row("durable-4", "durable single-put commits, 4 threads", "commits/s", Group::Small),
    row("durable-16", "durable single-put commits, 16 threads", "commits/s", Group::Small),
    row("sorted-load", "sorted load, 1000 rows per commit", "rows/s", Group::Small),
    row("random-load", "random load, 1000 rows per commit", "rows/s", Group::SmallRandom),
    row("ycsb-c", "YCSB C, 2 threads", "ops/s", Group::Ycsb),
    row("ycsb-a", "YCSB A, not synced, 2 threads", "ops/s", Group::Ycsb),
    row("tpcc", "TPC-C, durable, 8 threads (SQLite: its best)", "tpmC", Group::Tpcc),
];

const fn row(name: &'static str, title: &'static str, unit: &'static str, group: Group) -> Row {
    Row { name, title, unit, group }
}

/// One measured figure.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Sample {
    /// Name of the row.
    pub row: &'static str,
    /// Name of the engine.
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
