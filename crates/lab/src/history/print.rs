//! Anomalies in words.

use std::fmt::Write as _;

use super::graph::{Dependency, Edge};
use super::infer::Inferred;
use super::{History, Object, Op, Outcome};
use crate::adapter::TxMode;

/// `keyspace/key`.
pub(super) fn object(history: &History, object: Object) -> String {
    match history.keyspaces.get(object.keyspace as usize) {
        Some(keyspace) => format!("{}/{}", keyspace.name, object.key),
        None => format!("keyspace {}/{}", object.keyspace, object.key),
    }
}

/// A cycle, an edge per line.
pub(super) fn cycle(history: &History, inferred: &Inferred, edges: &[Edge]) -> String {
    let mut out = String::new();
    for edge in edges {
        let [from, to] = [edge.from, edge.to].map(|node| format!("T{}", inferred.txns[node as usize]));
        let _ = writeln!(out, "{from} before {to}: {}", reason(history, inferred, edge, &from, &to));
    }
    let rw: Vec<bool> = edges.iter().map(|e| matches!(e.kind, Dependency::ReadWrite)).collect();
    let writers_alternate = rw.len() == 4 && (0..4).all(|i| rw[i] != rw[(i + 1) % 4]);
    if writers_alternate && edges.iter().filter(|e| e.kind == Dependency::WriteRead).count() == 2 {
        let _ = writeln!(out, "(a long fork: two readers saw two writers in opposite orders)");
    }
    if rw.len() == 2 && rw[0] && rw[1] {
        let _ = writeln!(out, "(write skew: each read what the other then overwrote)");
    }
    out
}

fn reason(history: &History, inferred: &Inferred, edge: &Edge, from: &str, to: &str) -> String {
    if edge.kind == Dependency::RealTime {
        return format!("{from} had ended when {to} began (real time)");
    }
    let at = inferred.objects[edge.object as usize];
    let name = object(history, at);
    let next = edge.version as usize;
    let ledger = inferred.ledger_of(history, at).unwrap_or(edge.object);
    let elements = &inferred.chains[ledger as usize].elements;
    let seen = elements.get(next.wrapping_sub(1)).map_or("its first state".to_string(), |e| format!("version {e}"));
    let after = elements.get(next).map_or("the next".to_string(), |e| e.to_string());
    match edge.kind {
        Dependency::WriteWrite => format!("{to} wrote {after} to {name} after {from} had written {seen} (ww)"),
        Dependency::WriteRead => format!("{to} read {seen} of {name}, or a later one, which {from} wrote (wr)"),
        Dependency::ReadWrite => format!("{from} read {seen} of {name}, before {to} wrote {after} (rw)"),
        Dependency::PhantomReadWrite => {
            format!("{from} read a range and did not find {name}, which {to} then inserted with {after} (rw, phantom)")
        }
        Dependency::RealTime => unreachable!("answered above"),
    }
}

/// The transactions of an anomaly, one per line.
pub(super) fn transactions(history: &History, txns: &[usize]) -> String {
    let mut out = String::new();
    let mut shown: Vec<usize> = txns.to_vec();
    shown.sort_unstable();
    shown.dedup();
    for t in shown {
        let txn = &history.txns[t];
        let mode = match txn.mode {
            TxMode::ReadWrite => "read-write",
            TxMode::ReadOnly => "read-only",
            TxMode::Snapshot => "snapshot",
        };
        let outcome = match txn.outcome {
            Outcome::Committed => "committed",
            Outcome::Aborted => "aborted",
            Outcome::Unknown => "outcome unknown",
        };
        let end = if txn.end == u64::MAX { "-".to_string() } else { txn.end.to_string() };
        let ops: Vec<String> = txn.ops.iter().map(|op| operation(history, op)).collect();
        let place = format!("client {}, {mode}, {outcome}, ticks {} to {end}", txn.client, txn.begin);
        let _ = writeln!(out, "    T{t} ({place}): {}", ops.join("; "));
    }
    out
}

fn operation(history: &History, op: &Op) -> String {
    match op {
        Op::Read { object: o, value } => format!("read {} {value:?}", object(history, *o)),
        Op::Append { object: o, element } => format!("append {} {element}", object(history, *o)),
        Op::Insert { object: o, element } => format!("insert {} {element}", object(history, *o)),
        Op::Delete { object: o, element } => format!("delete {} (as {element})", object(history, *o)),
        Op::Scan { keyspace, from, to, found } => {
            let from = object(history, Object { keyspace: *keyspace, key: *from });
            let found: Vec<String> = found.iter().map(|(key, value)| format!("{key}: {value:?}")).collect();
            format!("scan {from}..{to} {{{}}}", found.join(", "))
        }
    }
}
