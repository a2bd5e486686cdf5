//! Is what the store did serializable? Histories of concurrent transactions over any [`Store`], and a checker that
//! searches them for cycles, in the style of Elle (Kingsbury, Alvaro: "Elle: inferring isolation anomalies from
//! experimental observations", VLDB 2020).
//!
//! A history is made of *objects* whose versions can be told apart:
//! - a *list* holds unique elements, a write appends one, so each value seen names every version before it;
//! - a *set key* is inserted with a unique element and deleted again. A deletion leaves nothing behind that a reader
//!   could recognise, so its writers (only they) also append the element of each insertion and deletion to a list,
//!   the *ledger* of the key, in another keyspace. The ledger gives the order of the key's lives. A reader that finds
//!   the key absent may have seen it before, between or after lives; what is certain in that is used.
//!
//! From the versions follow the dependencies between transactions: write-write, write-read, read-write (also from
//! keys that a range read did not find: phantoms), and from the clock of the recorder the real-time order. A cycle
//! means that no serial order explains the history.
//!
//! [`Store`]: crate::adapter::Store

mod absent;
pub mod check;
pub mod generate;
mod graph;
mod infer;
mod print;
mod record;

pub use check::{Anomaly, AnomalyKind, CheckOptions, RealTime, Report, check};
pub use generate::{GenerateOptions, generate};
pub use record::Recorder;

use crate::adapter::TxMode;

/// A unique element. Elements of appends, insertions and deletions are drawn from one sequence.
pub type Element = u64;

/// An object: a key of one of the history's keyspaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct Object {
    /// Index into [`History::keyspaces`].
    pub keyspace: u8,
    /// Number of the key.
    pub key: u32,
}

/// What the keys of a keyspace are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum KeyspaceKind {
    /// Lists.
    List,
    /// Set keys; their ledgers are the lists with the same key in this keyspace.
    Set {
        /// Index of the keyspace of the ledgers.
        ledger: u8,
    },
}

/// A keyspace of a history.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Keyspace {
    /// Its name in the store.
    pub name: String,
    /// What its keys are.
    pub kind: KeyspaceKind,
}

/// One operation of a transaction, with what the store answered.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Op {
    /// Read one key. Empty: there is no such key.
    Read {
        /// The object.
        object: Object,
        /// Its list (a set key: its one element).
        value: Vec<Element>,
    },
    /// Read all keys of a range.
    Scan {
        /// Index of the keyspace.
        keyspace: u8,
        /// First key.
        from: u32,
        /// First key past the range.
        to: u32,
        /// Keys found and their values, in the order in which they were found, reversed if the scan was.
        found: Vec<(u32, Vec<Element>)>,
    },
    /// Wrote the list read before in the same transaction, with one more element.
    Append {
        /// The object, a list.
        object: Object,
        /// The element appended.
        element: Element,
    },
    /// Inserted a set key.
    Insert {
        /// The object, a set key.
        object: Object,
        /// Its element.
        element: Element,
    },
    /// Deleted a set key.
    Delete {
        /// The object, a set key.
        object: Object,
        /// Stands for the deletion in the ledger.
        element: Element,
    },
}

impl Op {
    /// The element this operation writes, and where.
    pub fn written(&self) -> Option<(Object, Element)> {
        match self {
            Op::Append { object, element } | Op::Insert { object, element } | Op::Delete { object, element } => {
                Some((*object, *element))
            }
            Op::Read { .. } | Op::Scan { .. } => None,
        }
    }
}

/// How a transaction ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Outcome {
    /// The store said so.
    Committed,
    /// The store said so, or the client rolled back.
    Aborted,
    /// The commit never returned, or returned an error that leaves it open.
    Unknown,
}

/// A transaction of a history.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Txn {
    /// The client that ran it, one transaction after the other.
    pub client: u32,
    /// How it was begun.
    pub mode: TxMode,
    /// Tick of the recorder's clock before it began.
    pub begin: u64,
    /// Tick after it ended; the largest number if it is not known to have ended.
    pub end: u64,
    /// How it ended.
    pub outcome: Outcome,
    /// What it did, in order.
    pub ops: Vec<Op>,
}

/// Transactions of concurrent clients, in any order.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct History {
    /// The keyspaces that objects name by index.
    pub keyspaces: Vec<Keyspace>,
    /// The transactions.
    pub txns: Vec<Txn>,
}
