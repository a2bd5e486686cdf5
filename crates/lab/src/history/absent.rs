//! Set keys that were seen absent: what is certain of the version seen, and how it is narrowed down.

use super::graph::{Dependency, Edge};
use super::infer::{Ambiguous, Inferred};
use super::{History, KeyspaceKind, Object};

impl Inferred {
    /// Index of the ledger of a set key.
    pub fn ledger_of(&self, history: &History, object: Object) -> Option<u32> {
        let KeyspaceKind::Set { ledger } = history.keyspaces.get(object.keyspace as usize)?.kind else { return None };
        let ledger = Object { keyspace: ledger, key: object.key };
        self.objects.binary_search(&ledger).ok().map(|i| i as u32)
    }

    /// What is certain of an absent key seen in one of several versions: not before the first, not after the last.
    pub(super) fn edges_of_absent(&mut self, seen: Ambiguous, ledger: u32) {
        let Ambiguous { node, object, low, high, phantom } = seen;
        let chain = &self.chains[ledger as usize];
        let kind = if phantom { Dependency::PhantomReadWrite } else { Dependency::ReadWrite };
        let (first, last) = (chain.absent[low], chain.absent[high]);
        let before = chain.writer(first).filter(|w| *w != node);
        let after = chain.writer(last + 1).filter(|w| *w != node);
        self.edges.extend(before.map(|from| Edge {
            from,
            to: node,
            kind: Dependency::WriteRead,
            object,
            version: first,
        }));
        self.edges.extend(after.map(|to| Edge { from: node, to, kind, object, version: last }));
    }

    /// Narrows what absent keys may have been seen as, with `path(a, b)` telling whether `a` certainly precedes `b`.
    /// True if anything was narrowed; the new edges are among `edges` then.
    pub fn narrow(&mut self, mut path: impl FnMut(u32, u32) -> bool) -> bool {
        let mut changed = false;
        for mut seen in std::mem::take(&mut self.ambiguous) {
            let chain = &self.chains[seen.object as usize];
            let (low, high) = (seen.low, seen.high);
            while seen.low < seen.high
                && let Some(next) = chain.writer(chain.absent[seen.low] + 1)
                && next != seen.node
                && path(next, seen.node)
            {
                seen.low += 1;
            }
            while seen.low < seen.high
                && let Some(writer) = chain.writer(chain.absent[seen.high])
                && (writer == seen.node || path(seen.node, writer))
            {
                seen.high -= 1;
            }
            if (low, high) != (seen.low, seen.high) {
                changed = true;
                self.edges_of_absent(seen, seen.object);
            }
            if seen.low < seen.high {
                self.ambiguous.push(seen);
            }
        }
        changed
    }
}
