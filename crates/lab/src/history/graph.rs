//! A directed graph with labelled edges: strongly connected components (Tarjan) and shortest cycles within them.
//!
//! Nodes are numbers. The first `txns` of them are transactions, the others are moments in time: a transaction that
//! ends points to its moment, a moment to the next, and to each transaction that begins after it. So the real-time
//! order of n transactions takes O(n) edges.

use std::collections::VecDeque;

use varve_rt::HashMap;

/// Why one transaction comes before another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dependency {
    /// The second wrote the version after one of the first.
    WriteWrite,
    /// The second read a version of the first.
    WriteRead,
    /// The second wrote the version after one that the first read.
    ReadWrite,
    /// The second wrote the version after one that the first did not find in a range.
    PhantomReadWrite,
    /// The first ended before the second began.
    RealTime,
}

/// A set of dependencies.
pub(super) type Kinds = u8;

/// The set of one dependency.
pub(super) fn only(kind: Dependency) -> Kinds {
    1 << kind as u8
}

/// An edge. `object` and `version` say where it comes from: the index of an object, and the place of the version in
/// its chain that was read (or written by the first).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Edge {
    pub from: u32,
    pub to: u32,
    pub kind: Dependency,
    pub object: u32,
    pub version: u32,
}

/// Edges ordered by their first node.
pub(super) struct Graph {
    txns: u32,
    starts: Vec<u32>,
    edges: Vec<Edge>,
}

impl Graph {
    /// A graph of `nodes` nodes, of which the first `txns` are transactions.
    pub fn new(txns: usize, nodes: usize, mut edges: Vec<Edge>) -> Graph {
        edges.sort_unstable_by_key(|e| (e.from, e.to, e.kind));
        edges.dedup_by_key(|e| (e.from, e.to, e.kind));
        let mut starts = vec![0u32; nodes + 1];
        for edge in &edges {
            starts[edge.from as usize + 1] += 1;
        }
        for i in 0..nodes {
            starts[i + 1] += starts[i];
        }
        Graph { txns: txns as u32, starts, edges }
    }

    pub fn out(&self, node: u32) -> &[Edge] {
        &self.edges[self.starts[node as usize] as usize..self.starts[node as usize + 1] as usize]
    }

    pub fn edges(&self) -> &[Edge] {
        &self.edges
    }

    /// Components that hold a cycle, by Tarjan's algorithm without recursion. Edges of the kinds in `kinds` only.
    pub fn components(&self, kinds: Kinds) -> Vec<Vec<u32>> {
        const NEW: u32 = u32::MAX;
        let n = self.starts.len() - 1;
        let (mut index, mut low) = (vec![NEW; n], vec![0u32; n]);
        let mut on_stack = vec![false; n];
        let (mut stack, mut calls) = (Vec::new(), Vec::<(u32, u32)>::new());
        let (mut next, mut found) = (0, Vec::new());
        for root in 0..n as u32 {
            if index[root as usize] != NEW {
                continue;
            }
            calls.push((root, self.starts[root as usize]));
            while let Some((node, at)) = calls.last_mut() {
                let v = *node as usize;
                if index[v] == NEW {
                    (index[v], low[v]) = (next, next);
                    next += 1;
                    stack.push(*node);
                    on_stack[v] = true;
                }
                if *at < self.starts[v + 1] {
                    let edge = self.edges[*at as usize];
                    *at += 1;
                    let w = edge.to as usize;
                    if kinds & only(edge.kind) == 0 {
                        continue;
                    }
                    if index[w] == NEW {
                        calls.push((edge.to, self.starts[w]));
                    } else if on_stack[w] {
                        low[v] = low[v].min(index[w]);
                    }
                    continue;
                }
                if low[v] == index[v] {
                    let at = stack.iter().rposition(|n| *n as usize == v).expect("v is on the stack");
                    let component = stack.split_off(at);
                    component.iter().for_each(|n| on_stack[*n as usize] = false);
                    if component.len() > 1 {
                        found.push(component);
                    }
                }
                let done = calls.pop().expect("it is the last").0 as usize;
                if let Some((parent, _)) = calls.last() {
                    let parent = *parent as usize;
                    low[parent] = low[parent].min(low[done]);
                }
            }
        }
        found
    }

    /// A shortest path from `from` to `to` over edges of `kinds`, within the nodes that `inside` accepts; moments in
    /// time cost nothing. Looks at `budget` nodes at most and takes those off it.
    pub fn path(
        &self,
        from: u32,
        to: u32,
        kinds: Kinds,
        inside: impl Fn(u32) -> bool,
        budget: &mut usize,
    ) -> Option<Vec<Edge>> {
        let mut came_by: HashMap<u32, (u32, Edge)> = HashMap::default();
        let mut queue = VecDeque::from([(from, 0u32)]);
        while let Some((node, cost)) = queue.pop_front() {
            *budget = budget.checked_sub(1)?;
            if node != from && came_by[&node].0 < cost {
                continue;
            }
            if node == to && cost > 0 {
                break;
            }
            for edge in self.out(node).iter().filter(|e| kinds & only(e.kind) != 0) {
                let step = u32::from(edge.to < self.txns);
                let known = came_by.get(&edge.to).is_some_and(|(c, _)| *c <= cost + step);
                if known || !inside(edge.to) || edge.to == from && from != to {
                    continue;
                }
                came_by.insert(edge.to, (cost + step, *edge));
                if step == 0 {
                    queue.push_front((edge.to, cost));
                } else {
                    queue.push_back((edge.to, cost + step));
                }
            }
        }
        let mut path = vec![came_by.get(&to)?.1];
        while path.last().expect("never empty").from != from {
            let node = path.last().expect("never empty").from;
            path.push(came_by[&node].1);
        }
        path.reverse();
        Some(path)
    }

    /// Merges the hops from moment to moment of a path into one real-time edge between transactions. The path is
    /// a cycle that begins at a transaction.
    pub fn without_moments(&self, path: &[Edge]) -> Vec<Edge> {
        let mut merged: Vec<Edge> = Vec::new();
        for edge in path {
            match merged.last_mut() {
                Some(last) if last.to >= self.txns => last.to = edge.to,
                _ => merged.push(*edge),
            }
        }
        merged
    }
}
