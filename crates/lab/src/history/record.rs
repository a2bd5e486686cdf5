//! Takes down what clients see. One recorder may span several runs of clients, with a restart of the store between.
//!
//! A transaction is entered before its commit is attempted, its outcome unknown; so a client that dies in its commit
//! leaves the transaction on record.

use varve_rt::Mutex;
use varve_rt::atomic::{AtomicU64, Ordering};

use super::{Element, History, Keyspace, Outcome, Txn};

/// Collects a history.
pub struct Recorder {
    clock: AtomicU64,
    elements: AtomicU64,
    rollbacks: AtomicU64,
    range_deletes: AtomicU64,
    history: Mutex<History>,
}

impl Recorder {
    /// An empty history over these keyspaces.
    pub fn new(keyspaces: Vec<Keyspace>) -> Recorder {
        let history = Mutex::new(History { keyspaces, txns: Vec::new() });
        let zero = || AtomicU64::new(0);
        Recorder { clock: zero(), elements: zero(), rollbacks: zero(), range_deletes: zero(), history }
    }

    /// The keyspaces of the history.
    pub fn keyspaces(&self) -> Vec<Keyspace> {
        self.history.lock().keyspaces.clone()
    }

    /// A new tick: what happened before has a smaller one, on whatever thread.
    pub fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    /// A new element.
    pub fn element(&self) -> Element {
        self.elements.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Elements handed out so far.
    pub fn elements(&self) -> u64 {
        self.elements.load(Ordering::Relaxed)
    }

    /// Counts a rollback to a savepoint that undid something.
    pub(super) fn rolled_back(&self) {
        self.rollbacks.fetch_add(1, Ordering::Relaxed);
    }

    /// Rollbacks to savepoints that undid something.
    pub fn rollbacks_to_savepoint(&self) -> u64 {
        self.rollbacks.load(Ordering::Relaxed)
    }

    /// Counts a range delete that found something.
    pub(super) fn range_deleted(&self) {
        self.range_deletes.fetch_add(1, Ordering::Relaxed);
    }

    /// Range deletes that found something.
    pub fn range_deletes(&self) -> u64 {
        self.range_deletes.load(Ordering::Relaxed)
    }

    /// Enters a transaction; returns its place.
    pub fn enter(&self, txn: Txn) -> usize {
        let mut history = self.history.lock();
        history.txns.push(txn);
        history.txns.len() - 1
    }

    /// Enters how a transaction ended, now.
    pub fn end(&self, place: usize, outcome: Outcome) {
        let end = match outcome {
            Outcome::Unknown => u64::MAX,
            _ => self.tick(),
        };
        let txn = &mut self.history.lock().txns[place];
        (txn.end, txn.outcome) = (end, outcome);
    }

    /// Takes the history; the recorder goes on with an empty one.
    pub fn take(&self) -> History {
        let mut history = self.history.lock();
        let keyspaces = history.keyspaces.clone();
        std::mem::replace(&mut history, History { keyspaces, txns: Vec::new() })
    }
}
