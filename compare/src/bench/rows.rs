//! The rows of the table, and what is asked of Varve in each.

use super::Group;

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
    /// What is asked of Varve; nothing: the row is there to be known.
    pub asks: &'static [Ask],
}

/// A ratio that Varve is asked to reach.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Ask {
    /// Whose figure Varve's is divided by.
    pub against: Against,
    /// Least ratio.
    pub least: f64,
    /// Ratio aimed at.
    pub aim: f64,
}

/// Whom Varve is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub enum Against {
    /// The best of all others.
    Best,
    /// The best of those whose durable commits survive a power cut.
    BestThatFlushes,
    /// The best B-tree.
    BestBTree,
    /// One engine, or fio.
    One(&'static str),
}

const fn ask(against: Against, least: f64, aim: f64) -> Ask {
    Ask { against, least, aim }
}

const DURABLE: &[Ask] = &[ask(Against::BestThatFlushes, 1.3, 2.0)];
const LOADS: &[Ask] = &[ask(Against::Best, 0.8, 1.2)];
const SORTED_LOADS: &[Ask] = &[ask(Against::One("lmdb"), 0.6, 0.6)];
const RANDOM_LOADS: &[Ask] = &[ask(Against::One("fjall"), 0.9, 1.2)];
const READS: &[Ask] = &[ask(Against::Best, 0.8, 1.2)];
const SCANS: &[Ask] = &[ask(Against::Best, 0.7, 1.0)];
const ITERATION: &[Ask] = &[ask(Against::Best, 1.0, 1.5)];
const SCANS_AND_INSERTS: &[Ask] = &[ask(Against::One("wiredtiger"), 1.0, 1.0)];
const TRANSFERS: &[Ask] = &[ask(Against::Best, 1.2, 2.0)];
const WRITES: &[Ask] = &[ask(Against::Best, 1.0, 2.0)];
const LARGE: &[Ask] = &[ask(Against::One("rocksdb"), 1.0, 1.5), ask(Against::BestBTree, 1.5, 3.0)];
const TPCC: &[Ask] = &[ask(Against::One("sqlite"), 4.0, 8.0)];
const TPCC_SCARCE: &[Ask] = &[ask(Against::One("sqlite"), 2.0, 4.0)];
const IO: &[Ask] = &[ask(Against::One("fio"), 0.7, 0.9)];

/// All rows, in the order of the table.
pub const ROWS: &[Row] = &[
    row("reads", "random point reads, 1 thread", "reads/s", Group::Small, READS),
    row("reads-batch", "the same, 1000 per read-only transaction", "reads/s", Group::Small, &[]),
    row("ycsb-c", "YCSB C, 2 threads", "ops/s", Group::Ycsb, READS),
    row("overwrites", "random overwrites, not synced, 1 thread", "writes/s", Group::Small, WRITES),
    row("ycsb-a", "YCSB A, not synced, 2 threads", "ops/s", Group::Ycsb, WRITES),
    row(
        "ycsb-e",
        "YCSB E (scans of up to 100, inserts), not synced, 2 threads",
        "ops/s",
        Group::Ycsb,
        SCANS_AND_INSERTS,
    ),
    row("durable-1", "durable single-put commits, 1 thread", "commits/s", Group::Small, DURABLE),
    row("durable-4", "durable single-put commits, 4 threads", "commits/s", Group::Small, DURABLE),
    row("durable-16", "durable single-put commits, 16 threads", "commits/s", Group::Small, DURABLE),
    row("bulk-load", "sorted load, each engine's fastest way", "rows/s", Group::Small, LOADS),
    row("sorted-load", "sorted load, 1000 rows per transaction", "rows/s", Group::SmallSorted, SORTED_LOADS),
    row("random-load", "random load, 1000 rows per transaction", "rows/s", Group::SmallRandom, RANDOM_LOADS),
    row("scans", "range scans of 100, 1 thread", "scans/s", Group::Small, SCANS),
    row("iterate", "the same by iterator", "scans/s", Group::Small, ITERATION),
    row("transfers", "transfers (2 reads, 2 writes), not synced, 1 thread", "tx/s", Group::Small, TRANSFERS),
    row("large-a", "larger than memory: YCSB A, not synced, 8 threads", "ops/s", Group::Large, LARGE),
    row("large-b", "larger than memory: YCSB B, not synced, 8 threads", "ops/s", Group::Large, LARGE),
    row("large-c", "larger than memory: YCSB C, 8 threads", "ops/s", Group::Large, LARGE),
    row("tpcc", "TPC-C, durable, 8 threads (others: their best)", "tpmC", Group::Tpcc, TPCC),
    row("tpcc-cache", "the same, a tenth of the data in memory", "tpmC", Group::TpccScarce, TPCC_SCARCE),
    row("io-reads", "random reads from the device, 32 threads", "reads/s", Group::IoBound, IO),
];

const fn row(name: &'static str, title: &'static str, unit: &'static str, group: Group, asks: &'static [Ask]) -> Row {
    Row { name, title, unit, group, asks }
}
