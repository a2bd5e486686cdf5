//! Decides whether a history is serializable, and strictly so.
//!
//! The verdict is sound: an anomaly that is reported has no serial explanation. It is complete for the versions that
//! can be told apart: only an absent set key that may have been seen in several of its gaps is used with what is
//! certain of it.
//!
//! Real-time order (a transaction that ended before another began comes first) is demanded of read-write and
//! read-only transactions. Of snapshots ([`TxMode::Snapshot`]) it is not, unless asked for: a snapshot reads as of a
//! commit number that may lie in the past, and must only fit into the serial order at some place.

use std::fmt;

use super::graph::{Dependency, Edge, Graph, Kinds, only};
use super::infer::{Inferred, infer};
use super::{History, Op, Outcome, Txn, print};
use crate::adapter::TxMode;

/// Of which transactions real-time order is demanded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RealTime {
    /// Of none: plain serializability.
    None,
    /// Of all but snapshots.
    #[default]
    ExceptSnapshots,
    /// Of all: strict serializability throughout.
    All,
}

/// What is demanded of a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckOptions {
    /// Real-time order.
    pub real_time: RealTime,
    /// Anomalies to report at most, of values that are wrong in themselves and of cycles each.
    pub max_anomalies: usize,
}

impl Default for CheckOptions {
    fn default() -> Self {
        CheckOptions { real_time: RealTime::default(), max_anomalies: 20 }
    }
}

/// What is wrong with a history. The G classes are Adya's ("Weak Consistency", 1999), as named by Elle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AnomalyKind {
    /// Something that no operation may return, or a history that contradicts itself.
    Malformed,
    /// A value that nobody wrote.
    Garbage,
    /// A transaction does not see its own writes.
    Internal,
    /// Aborted read: a value of a transaction that was rolled back.
    G1a,
    /// Intermediate read: a value that its writer changed again.
    G1b,
    /// Two transactions changed the same version.
    LostUpdate,
    /// Values of one object that cannot follow each other.
    IncompatibleOrder,
    /// A cycle of write-write dependencies (dirty write).
    G0,
    /// A cycle of write-write and write-read dependencies (circular information flow).
    G1c,
    /// A cycle with exactly one read-write dependency (read skew, lost update, non-repeatable read).
    GSingle,
    /// A cycle with several read-write dependencies, all on keys that were found (write skew, long fork).
    G2Item,
    /// A cycle with a read-write dependency on a key that a range read did not find (phantom).
    G2Phantom,
}

impl fmt::Display for AnomalyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AnomalyKind::Malformed => "malformed",
            AnomalyKind::Garbage => "garbage read",
            AnomalyKind::Internal => "internal inconsistency",
            AnomalyKind::G1a => "G1a (aborted read)",
            AnomalyKind::G1b => "G1b (intermediate read)",
            AnomalyKind::LostUpdate => "lost update",
            AnomalyKind::IncompatibleOrder => "incompatible order",
            AnomalyKind::G0 => "G0 (dirty write)",
            AnomalyKind::G1c => "G1c (circular information flow)",
            AnomalyKind::GSingle => "G-single",
            AnomalyKind::G2Item => "G2-item",
            AnomalyKind::G2Phantom => "G2 (phantom)",
        })
    }
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Anomaly {
    /// Its class.
    pub kind: AnomalyKind,
    /// Whether the cycle needs real-time order: without it the history would be serializable here, only not strictly.
    pub real_time: bool,
    /// The transactions concerned (of a cycle: in its order), as indexes into the history.
    pub txns: Vec<usize>,
    /// The explanation, readable, several lines for a cycle.
    pub text: String,
}

impl Anomaly {
    pub(super) fn direct(kind: AnomalyKind, txns: Vec<usize>, text: String) -> Anomaly {
        Anomaly { kind, real_time: false, txns, text }
    }
}

/// The verdict on a history.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// What is wrong; empty if nothing.
    pub anomalies: Vec<Anomaly>,
    /// Transactions that count, aborted ones, and those of unknown outcome that nobody saw.
    pub committed: usize,
    /// Aborted transactions.
    pub aborted: usize,
    /// Transactions of unknown outcome of which nothing was seen.
    pub unseen: usize,
    /// Operations of the transactions that count: keys read, ranges read, elements written.
    pub reads: usize,
    /// Range reads.
    pub scans: usize,
    /// Elements written.
    pub writes: usize,
    /// Dependencies found, by kind in the order of [`Dependency`].
    pub dependencies: [usize; 5],
    /// Absent keys whose version could be bounded only.
    pub ambiguous: usize,
    /// The history's transactions and operations, printed for the anomalies.
    details: Vec<String>,
}

impl Report {
    /// Whether the history is what was demanded.
    pub fn serializable(&self) -> bool {
        self.anomalies.is_empty()
    }

    /// Whether an anomaly of this class was found.
    pub fn has(&self, kind: AnomalyKind) -> bool {
        self.anomalies.iter().any(|anomaly| anomaly.kind == kind)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [ww, wr, rw, phantom, _] = self.dependencies;
        writeln!(
            f,
            "{} transactions committed, {} aborted, {} unknown; {} keys and {} ranges read, {} elements written",
            self.committed, self.aborted, self.unseen, self.reads, self.scans, self.writes
        )?;
        writeln!(f, "dependencies: {ww} ww, {wr} wr, {rw} rw, {phantom} phantom rw; {} only bounded", self.ambiguous)?;
        for (anomaly, details) in self.anomalies.iter().zip(&self.details) {
            let strict = if anomaly.real_time { ", against real-time order" } else { "" };
            writeln!(f, "{}{strict}:\n{}{details}", anomaly.kind, indent(&anomaly.text))?;
        }
        match self.serializable() {
            true => writeln!(f, "serializable"),
            false => writeln!(f, "NOT serializable"),
        }
    }
}

fn indent(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}

/// Checks a history.
pub fn check(history: &History, options: &CheckOptions) -> Report {
    let demanded = |txn: &Txn| match options.real_time {
        RealTime::None => false,
        RealTime::ExceptSnapshots => txn.mode != TxMode::Snapshot,
        RealTime::All => true,
    };
    let before = |a: &Txn, b: &Txn| demanded(a) && demanded(b) && a.end < b.begin;
    let mut inferred = infer(history, before);
    let mut report = count(history, &inferred);
    report.anomalies = std::mem::take(&mut inferred.anomalies);
    report.anomalies.truncate(options.max_anomalies);

    let (moments, nodes) = real_time_edges(history, &inferred, demanded);
    let mut graph = build(&inferred, &moments, nodes);
    let span = |t: &usize| (history.txns[*t].begin, history.txns[*t].end);
    let spans: Vec<(u64, u64)> = inferred.txns.iter().map(span).collect();
    let mut budget = 20_000_000;
    for _ in 0..4 {
        let certain = |from: u32, to: u32| precedes(&graph, &spans, (from, to), &mut budget);
        if inferred.ambiguous.is_empty() || !inferred.narrow(certain) {
            break;
        }
        graph = build(&inferred, &moments, nodes);
    }
    report.ambiguous = inferred.ambiguous.len() + inferred.unexplained;
    for edge in graph.edges().iter().filter(|e| e.kind != Dependency::RealTime) {
        report.dependencies[edge.kind as usize] += 1;
    }
    report.dependencies[Dependency::RealTime as usize] = moments.len();
    find_cycles(history, &inferred, &graph, options, &mut report);
    report.details = report.anomalies.iter().map(|a| print::transactions(history, &a.txns)).collect();
    report
}

fn count(history: &History, inferred: &Inferred) -> Report {
    let mut report = Report { committed: inferred.txns.len(), ..Report::default() };
    report.aborted = history.txns.iter().filter(|t| t.outcome == Outcome::Aborted).count();
    report.unseen = history.txns.len() - report.aborted - report.committed;
    for op in inferred.txns.iter().flat_map(|t| &history.txns[*t].ops) {
        match op {
            Op::Read { .. } => report.reads += 1,
            Op::Scan { .. } => report.scans += 1,
            _ => report.writes += 1,
        }
    }
    report
}

fn build(inferred: &Inferred, moments: &[Edge], nodes: usize) -> Graph {
    Graph::new(inferred.txns.len(), nodes, [&inferred.edges[..], moments].concat())
}

/// Whether `from` certainly comes before `to`: by a path within the time of the two.
fn precedes(graph: &Graph, spans: &[(u64, u64)], (from, to): (u32, u32), budget: &mut usize) -> bool {
    let (earliest, latest) = (spans[from as usize].0, spans[to as usize].1);
    let inside = |node: u32| match spans.get(node as usize) {
        Some((begin, end)) => *begin <= latest && *end >= earliest,
        None => true,
    };
    let mut share = (*budget).min(2000);
    let given = share;
    let found = graph.path(from, to, ALL, inside, &mut share).is_some();
    *budget -= given - share.min(given);
    found
}

/// Edges of the real-time order over the moments at which transactions end; also the number of nodes.
fn real_time_edges(history: &History, inferred: &Inferred, demanded: impl Fn(&Txn) -> bool) -> (Vec<Edge>, usize) {
    let first = inferred.txns.len() as u32;
    let txn = |node: u32| &history.txns[inferred.txns[node as usize]];
    let mut ended: Vec<u32> = (0..first).filter(|n| demanded(txn(*n)) && txn(*n).end != u64::MAX).collect();
    ended.sort_by_key(|n| txn(*n).end);
    let edge = |from, to| Edge { from, to, kind: Dependency::RealTime, object: 0, version: 0 };
    let mut edges = Vec::new();
    for (moment, node) in (first..).zip(&ended) {
        edges.push(edge(*node, moment));
        if moment > first {
            edges.push(edge(moment - 1, moment));
        }
    }
    for node in (0..first).filter(|n| demanded(txn(*n))) {
        let passed = ended.partition_point(|n| txn(*n).end < txn(node).begin) as u32;
        if passed > 0 {
            edges.push(edge(first + passed - 1, node));
        }
    }
    (edges, first as usize + ended.len())
}

const WW: Kinds = 1 << Dependency::WriteWrite as u8;
const WR: Kinds = 1 << Dependency::WriteRead as u8;
const RW: Kinds = 1 << Dependency::ReadWrite as u8;
const PHANTOM: Kinds = 1 << Dependency::PhantomReadWrite as u8;
const TIME: Kinds = 1 << Dependency::RealTime as u8;
const ALL: Kinds = WW | WR | RW | PHANTOM | TIME;

/// How a class of cycles is searched: over `kinds`; `single`: through exactly one edge of these kinds besides.
struct Level {
    kind: AnomalyKind,
    kinds: Kinds,
    single: Kinds,
}

const LEVELS: [Level; 5] = [
    Level { kind: AnomalyKind::G0, kinds: WW, single: 0 },
    Level { kind: AnomalyKind::G1c, kinds: WW | WR, single: 0 },
    Level { kind: AnomalyKind::GSingle, kinds: WW | WR, single: RW },
    Level { kind: AnomalyKind::G2Item, kinds: WW | WR | RW, single: 0 },
    Level { kind: AnomalyKind::G2Phantom, kinds: WW | WR | RW | PHANTOM, single: 0 },
];

/// For each component that holds a cycle: a shortest cycle of the first class that has one, without real-time order
/// if possible.
fn find_cycles(history: &History, inferred: &Inferred, graph: &Graph, options: &CheckOptions, report: &mut Report) {
    for mut members in graph.components(ALL).into_iter().take(options.max_anomalies) {
        members.sort_unstable();
        let levels = [0, TIME].into_iter().flat_map(|time| LEVELS.iter().map(move |level| (level, time)));
        let found = levels.into_iter().find_map(|(level, time)| {
            let cycle = shortest(graph, &members, inferred.txns.len() as u32, level, time)?;
            Some((level, time, graph.without_moments(&cycle)))
        });
        // Moments in time point forward only, so a cycle has a dependency and falls under the last level at least.
        let (level, time, cycle) = found.expect("a component holds a cycle of some class");
        let txns = cycle.iter().map(|edge| inferred.txns[edge.from as usize]).collect();
        let text = print::cycle(history, inferred, &cycle);
        report.anomalies.push(Anomaly { kind: level.kind, real_time: time != 0, txns, text });
    }
}

/// A shortest cycle of one class within a component. In a large component only some of the nodes are tried.
fn shortest(graph: &Graph, members: &[u32], txns: u32, level: &Level, time: Kinds) -> Option<Vec<Edge>> {
    let inside = |node: u32| members.binary_search(&node).is_ok();
    let kinds = level.kinds | time;
    let mut best: Option<Vec<Edge>> = None;
    let mut budget = 5_000_000;
    let better = |best: &Option<Vec<Edge>>, cycle: &Vec<Edge>| best.as_ref().is_none_or(|b| cycle.len() < b.len());
    for node in members.iter().copied().filter(|n| *n < txns) {
        if best.as_ref().is_some_and(|b| b.len() <= 2) {
            break;
        }
        if level.single == 0 {
            if let Some(cycle) = graph.path(node, node, kinds, inside, &mut budget)
                && better(&best, &cycle)
            {
                best = Some(cycle);
            }
            continue;
        }
        for edge in graph.out(node).iter().filter(|e| level.single & only(e.kind) != 0 && inside(e.to)) {
            if let Some(mut cycle) = graph.path(edge.to, node, kinds, inside, &mut budget) {
                cycle.insert(0, *edge);
                if better(&best, &cycle) {
                    best = Some(cycle);
                }
            }
        }
    }
    best
}
