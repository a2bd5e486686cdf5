//! Runs a workload on a store with a number of threads and measures it. Threads, clock and sleeps are the runtime's,
//! so a run on OS threads and a run in a simulation (in virtual time) are the same code.
//!
//! A thread asks its [`Client`] for the next transaction, waits the keying time, runs it until it commits or rolls
//! back of its own will (again with backoff when the store asks for that), notes the response time from the first
//! attempt to the end, and waits the think time. What happens before the end of the warm-up is not counted.

mod measure;
mod result;
mod run;

use std::sync::Arc;
use std::time::Duration;

pub use measure::{Interval, Latency};
pub use result::{KindResult, RunResult, peak_rss_mb};
pub use run::{RunOptions, Until, run};

use crate::adapter::Store;
use crate::error::Result;

/// A workload over stores of type `S`.
pub trait Workload<S: Store>: Send + Sync + 'static {
    /// What one thread runs.
    type Client: Client<S>;

    /// Name for tables, such as `tpcc`.
    fn name(&self) -> &str;

    /// Names of the transaction types; [`Draw::kind`] is an index into them.
    fn kinds(&self) -> &'static [&'static str];

    /// The client of thread `thread` of `threads`.
    fn client(&self, store: &Arc<S>, thread: usize, threads: usize) -> Result<Self::Client>;

    /// Index of the transaction type whose rate per minute is the result (TPC-C: new orders); `None`: all, per second.
    fn counted_kind(&self) -> Option<usize> {
        None
    }

    /// Whether the transactions of this thread count towards the number after which a run ends; threads of which none
    /// do go on until the others have ended.
    fn ends_run(&self, _thread: usize) -> bool {
        true
    }
}

/// The transaction a client wants to run next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Draw {
    /// Index of its type.
    pub kind: usize,
    /// Time to wait before it.
    pub keying: Duration,
    /// Time to wait after it.
    pub think: Duration,
}

/// How a transaction that did not fail ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Committed.
    Committed,
    /// Rolled back of its own will, as the workload demands.
    RolledBack,
}

/// One thread's share of a workload.
pub trait Client<S: Store> {
    /// Draws the next transaction with its inputs.
    fn draw(&mut self) -> Draw;

    /// Runs the drawn transaction once, from begin to end. Called again with the same inputs after an error that can
    /// be retried.
    fn attempt(&mut self, store: &S) -> Result<Outcome>;
}
