//! What a database must hold: every row, the keys that were deleted, and what its last commits replaced, so that the
//! states before them can be told. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use varve_rt::atomic::{AtomicU64, Ordering::SeqCst};

/// Rows of a keyspace.
pub(super) type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// The keyspaces, by number.
pub(super) const NAMES: [&str; 4] = ["rows", "long", "marks", "loaded"];
/// Short rows, often changed.
pub(super) const ROWS: usize = 0;
/// Rows with values in pages of their own.
pub(super) const LONG: usize = 1;
/// Few rows, changed by every commit.
pub(super) const MARKS: usize = 2;
/// Came by a bulk load.
pub(super) const LOADED: usize = 3;

/// A keyspace's number and a key.
pub(super) type Place = (usize, Vec<u8>);
/// New values of places; `None` deletes.
pub(super) type Changes = BTreeMap<Place, Option<Vec<u8>>>;

/// One commit, newest state known.
#[derive(Clone, Debug)]
pub(super) struct Commit {
    /// What its places held before.
    undo: Changes,
    /// Its commit number, the end of its group in the log; 0 when it never got one.
    pub(super) end: Arc<AtomicU64>,
    /// `Sync`, and acknowledged.
    pub(super) kept: bool,
}

/// The rows, and the last commits.
#[derive(Clone, Debug, Default)]
pub(super) struct Truth {
    pub(super) spaces: [Rows; NAMES.len()],
    /// Keys that were there once.
    pub(super) gone: BTreeSet<Place>,
    /// Oldest first. Every older commit is known to be there.
    commits: Vec<Commit>,
}

impl Truth {
    /// Takes down a commit that begins; it counts as there until [`Truth::without_last`] takes it back.
    pub(super) fn begin(&mut self, changes: &Changes) -> Arc<AtomicU64> {
        let mut undo = Changes::new();
        for ((space, key), value) in changes {
            undo.insert((*space, key.clone()), self.set(*space, key, value.clone()));
        }
        let end = Arc::new(AtomicU64::new(0));
        self.commits.push(Commit { undo, end: end.clone(), kept: false });
        end
    }

    /// The commit taken down last was acknowledged; `kept`: it survives any crash.
    pub(super) fn acknowledge(&mut self, kept: bool) {
        self.commits.last_mut().expect("a commit began").kept = kept;
    }

    /// Sets one row; returns what was there.
    pub(super) fn set(&mut self, space: usize, key: &[u8], value: Option<Vec<u8>>) -> Option<Vec<u8>> {
        match value {
            Some(value) => {
                self.gone.remove(&(space, key.to_vec()));
                self.spaces[space].insert(key.to_vec(), value)
            }
            None => {
                self.gone.insert((space, key.to_vec()));
                self.spaces[space].remove(key)
            }
        }
    }

    /// The state before the last `n` commits.
    pub(super) fn without_last(&self, n: usize) -> Truth {
        let mut before = self.clone();
        for commit in before.commits.split_off(self.commits.len() - n).into_iter().rev() {
            for ((space, key), value) in commit.undo {
                before.set(space, &key, value);
            }
        }
        before
    }

    /// How many of the last commits a crash may take: those after the last that is known to be kept.
    pub(super) fn loose(&self) -> usize {
        self.commits.iter().rev().take_while(|c| !c.kept).count()
    }

    /// Forgets commits that end at or before `durable`: nothing can take them back.
    pub(super) fn keep_after(&mut self, durable: u64) {
        self.commits.retain(|c| c.end.load(SeqCst) > durable);
    }

    /// Every commit so far is there for good.
    pub(super) fn all_kept(&mut self) {
        self.commits.clear();
    }

    /// Commits that can be taken back.
    pub(super) fn undoable(&self) -> usize {
        self.commits.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_before_the_last_commits_is_found_again() {
        let mut truth = Truth::default();
        let put = |key: &[u8], value: &[u8]| ((ROWS, key.to_vec()), Some(value.to_vec()));
        truth.begin(&[put(b"a", b"1"), put(b"b", b"1")].into());
        truth.acknowledge(true);
        truth.begin(&[put(b"a", b"2"), ((ROWS, b"b".to_vec()), None)].into());
        assert_eq!(truth.loose(), 1);
        assert_eq!(truth.spaces[ROWS], Rows::from([(b"a".to_vec(), b"2".to_vec())]));
        assert!(truth.gone.contains(&(ROWS, b"b".to_vec())));
        let before = truth.without_last(1);
        assert_eq!(before.spaces[ROWS].len(), 2);
        assert_eq!(before.spaces[ROWS][&b"a".to_vec()], b"1");
        assert!(before.gone.is_empty());
        assert!(truth.without_last(2).spaces[ROWS].is_empty());
    }
}
