//! Deletions of ranges: what a commit wrote about all keys from one to another.
//!
//! They are kept as *fragments*, which do not overlap: each is a stretch of keys with the commits that deleted all of
//! it, the newest first. So a look for a key finds one fragment, and a segment's fragments end where the segment does.

use super::SegmentMeta;
use std::collections::{BTreeMap, BTreeSet};
use varve_volume::Lsn;

/// One deletion: keys from `start` up to (not including) `end`, of entries that are older than `commit`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RangeDelete {
    pub start: Vec<u8>,
    pub end: Vec<u8>,
    pub commit: Lsn,
}

/// A stretch of keys that were deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fragment {
    /// First key.
    pub start: Vec<u8>,
    /// Key after the last.
    pub end: Vec<u8>,
    /// The commits that deleted them, the newest first; there is one.
    pub commits: Vec<Lsn>,
}

/// Fragments in key order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fragments(Vec<Fragment>);

impl Fragments {
    /// From deletions in any order.
    pub(crate) fn new(deletes: impl IntoIterator<Item = RangeDelete>) -> Fragments {
        let mut edges: BTreeMap<Vec<u8>, Vec<(bool, Lsn)>> = BTreeMap::new();
        for delete in deletes.into_iter().filter(|delete| delete.start < delete.end) {
            edges.entry(delete.start).or_default().push((true, delete.commit));
            edges.entry(delete.end).or_default().push((false, delete.commit));
        }
        // How often each commit deletes where the sweep is: one commit may name a key twice.
        let mut open: BTreeMap<Lsn, u32> = BTreeMap::new();
        let mut fragments = Fragments::default();
        let mut start = Vec::new();
        for (key, changes) in edges {
            if !open.is_empty() {
                fragments.push(Fragment { start, end: key.clone(), commits: open.keys().rev().copied().collect() });
            }
            for (begins, commit) in changes {
                let count = open.entry(commit).or_default();
                *count = if begins { *count + 1 } else { count.wrapping_sub(1) };
                // An end that came before its beginning at the same key leaves a count below zero for a moment.
                if *count == 0 {
                    open.remove(&commit);
                }
            }
            start = key;
        }
        assert!(open.is_empty(), "every range that began has ended");
        fragments
    }

    /// Adds a fragment that begins at the end of the last, or after it; the same commits again make it longer.
    fn push(&mut self, fragment: Fragment) {
        debug_assert!(
            fragment.start < fragment.end && !fragment.commits.is_empty(),
            "a fragment is of some keys and commits"
        );
        debug_assert!(fragment.commits.is_sorted_by(|a, b| a > b), "the commits of a fragment come from new to old");
        match self.0.last_mut() {
            Some(last) if last.end == fragment.start && last.commits == fragment.commits => last.end = fragment.end,
            last => {
                assert!(last.is_none_or(|last| last.end <= fragment.start), "fragments do not overlap");
                self.0.push(fragment);
            }
        }
    }

    /// The fragments.
    pub(crate) fn list(&self) -> &[Fragment] {
        &self.0
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The newest commit up to `as_of` that deleted `key`; 0: none did.
    #[inline]
    pub(crate) fn covering(&self, key: &[u8], as_of: Lsn) -> Lsn {
        if self.0.is_empty() {
            return 0;
        }
        let at = self.0.partition_point(|fragment| &*fragment.end <= key);
        let fragment = self.0.get(at).filter(|fragment| &*fragment.start <= key);
        fragment.and_then(|fragment| fragment.commits.iter().find(|commit| **commit <= as_of)).map_or(0, |c| *c)
    }

    /// Whether nobody sees an entry for what is deleted here: neither now nor at a moment (they ascend).
    #[inline]
    pub(crate) fn hide(&self, key: &[u8], commit: Lsn, moments: &[Lsn]) -> bool {
        let seen_by = moments.get(moments.partition_point(|moment| *moment < commit)).copied().unwrap_or(Lsn::MAX);
        self.covering(key, seen_by) > commit
    }

    /// Whether nobody sees anything of a segment, range deletions included, for one deletion of all of its keys.
    pub(crate) fn hide_all(&self, meta: &SegmentMeta, moments: &[Lsn]) -> bool {
        debug_assert!(moments.is_sorted(), "moments ascend");
        let at = self.0.partition_point(|fragment| *fragment.end <= *meta.smallest);
        let Some(fragment) = self.0.get(at).filter(|fragment| *fragment.start <= *meta.smallest) else { return false };
        let within = *meta.largest < *fragment.end || meta.open_end && *meta.largest == *fragment.end;
        let (oldest, newest) = meta.commits;
        let seen_by = moments.get(moments.partition_point(|moment| *moment < oldest)).copied().unwrap_or(Lsn::MAX);
        within && fragment.commits.iter().any(|commit| *commit <= seen_by && *commit > newest)
    }

    /// Fragments of several sources together.
    pub(crate) fn union<'f>(sources: impl IntoIterator<Item = &'f Fragments>) -> Fragments {
        Fragments::new(sources.into_iter().flat_map(|fragments| fragments.deletes()))
    }

    /// What lies within the range from `from` (none: from the beginning) up to (not including) `to`.
    pub(crate) fn clipped(&self, from: Option<&[u8]>, to: Option<&[u8]>) -> Fragments {
        let mut clipped = Fragments::default();
        for fragment in &self.0 {
            let start = from.map_or(&*fragment.start, |from| from.max(&fragment.start));
            let end = to.map_or(&*fragment.end, |to| to.min(&fragment.end));
            if start < end {
                let commits = fragment.commits.clone();
                clipped.push(Fragment { start: start.to_vec(), end: end.to_vec(), commits });
            }
        }
        clipped
    }

    /// What must be kept of them: of each fragment the newest commit, and for each moment of `snapshots` (ascending)
    /// the newest that is not past it; at the bottom, where nothing lies below, only those past the first moment.
    pub(crate) fn kept(&self, snapshots: &[Lsn], bottom: bool) -> Fragments {
        debug_assert!(snapshots.is_sorted(), "moments ascend");
        let mut kept = Fragments::default();
        for fragment in &self.0 {
            let mut stripes = BTreeSet::new();
            let mut commits = fragment.commits.clone();
            commits.retain(|commit| {
                let stripe = snapshots.partition_point(|moment| moment < commit);
                stripes.insert(stripe) && !(bottom && stripe == 0)
            });
            if !commits.is_empty() {
                kept.push(Fragment { start: fragment.start.clone(), end: fragment.end.clone(), commits });
            }
        }
        kept
    }

    /// As single deletions, in the order of their start, the newest first.
    pub(crate) fn deletes(&self) -> impl Iterator<Item = RangeDelete> + '_ {
        self.0.iter().flat_map(|fragment| {
            let delete = |commit: &Lsn| RangeDelete {
                start: fragment.start.clone(),
                end: fragment.end.clone(),
                commit: *commit,
            };
            fragment.commits.iter().map(delete)
        })
    }

    /// From single deletions in the order of [`deletes`](Fragments::deletes); none when they are not in that order.
    pub(crate) fn from_deletes(deletes: impl IntoIterator<Item = RangeDelete>) -> Option<Fragments> {
        let mut list: Vec<Fragment> = Vec::new();
        for delete in deletes {
            let last = list.last_mut();
            if delete.start >= delete.end {
                return None;
            }
            match last {
                Some(last) if last.start == delete.start => {
                    let after = last.end == delete.end && last.commits.last().is_some_and(|c| *c > delete.commit);
                    after.then(|| last.commits.push(delete.commit))?;
                }
                Some(last) if last.end > delete.start => return None,
                _ => list.push(Fragment { start: delete.start, end: delete.end, commits: vec![delete.commit] }),
            }
        }
        Some(Fragments(list))
    }

    /// Bytes of memory that they take.
    pub(crate) fn memory(&self) -> usize {
        let of = |f: &Fragment| size_of::<Fragment>() + f.start.len() + f.end.len() + 8 * f.commits.len();
        self.0.iter().map(of).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use varve_rt::Rng;

    fn key(n: u64) -> Vec<u8> {
        format!("{n:03}").into_bytes()
    }

    fn drawn(rng: &mut Rng) -> Vec<RangeDelete> {
        let n = rng.below(12);
        let mut one = || {
            let start = rng.below(50);
            RangeDelete { start: key(start), end: key(start + rng.below(20)), commit: 1 + rng.below(20) }
        };
        (0..n).map(|_| one()).collect()
    }

    /// The newest deletion of a key, the slow way.
    fn newest(deletes: &[RangeDelete], key: &[u8], as_of: Lsn) -> Lsn {
        let covers = |d: &&RangeDelete| *d.start <= *key && *key < *d.end && d.commit <= as_of;
        deletes.iter().filter(covers).map(|d| d.commit).max().unwrap_or(0)
    }

    #[test]
    fn what_is_hidden_is_seen_at_no_moment() {
        let mut rng = Rng::from_seed(5);
        let mut hidden = 0;
        for _ in 0..2000 {
            let fragments = Fragments::new(drawn(&mut rng));
            let mut moments: Vec<Lsn> = (0..rng.below(3)).map(|_| 1 + rng.below(20)).collect();
            moments.sort();
            let seen = |key: &[u8], commit| {
                let at = moments.iter().copied().filter(|moment| *moment >= commit).chain([Lsn::MAX]);
                at.into_iter().any(|moment| fragments.covering(key, moment) <= commit)
            };
            let mut keys = [rng.below(60), rng.below(60)];
            keys.sort();
            let mut commits = [1 + rng.below(20), 1 + rng.below(20)];
            commits.sort();
            let meta = SegmentMeta {
                smallest: key(keys[0]).into(),
                largest: key(keys[1]).into(),
                open_end: rng.below(3) == 0,
                commits: commits.into(),
                ..SegmentMeta::default()
            };
            let of_keys = || keys[0]..keys[1] + u64::from(!meta.open_end);
            for (k, commit) in of_keys().flat_map(|k| (commits[0]..=commits[1]).map(move |commit| (k, commit))) {
                assert_eq!(fragments.hide(&key(k), commit, &moments), !seen(&key(k), commit));
            }
            if fragments.hide_all(&meta, &moments) {
                hidden += 1;
                let all = of_keys().flat_map(|k| (commits[0]..=commits[1]).map(move |commit| (k, commit)));
                assert!(
                    all.into_iter().all(|(k, commit)| !seen(&key(k), commit)),
                    "{fragments:?} {meta:?} {moments:?}"
                );
            }
        }
        assert!(hidden > 20, "{hidden} were hidden as a whole");
    }

    #[test]
    fn a_key_is_covered_by_what_deleted_it() {
        let mut rng = Rng::from_seed(3);
        for _ in 0..400 {
            let deletes = drawn(&mut rng);
            let fragments = Fragments::new(deletes.clone());
            assert_eq!(Fragments::from_deletes(fragments.deletes()), Some(fragments.clone()));
            let (from, to) = (key(rng.below(40)), key(30 + rng.below(40)));
            let clipped = fragments.clipped(Some(&from), Some(&to));
            let mut snapshots = vec![rng.below(20), rng.below(20)];
            snapshots.sort_unstable();
            let (kept, bottom) = (fragments.kept(&snapshots, false), fragments.kept(&snapshots, true));
            for n in 0..75 {
                let (key, as_of) = (key(n), rng.below(25));
                let newest = |as_of| newest(&deletes, &key, as_of);
                assert_eq!(fragments.covering(&key, as_of), newest(as_of));
                let inside = from <= key && key < to;
                assert_eq!(clipped.covering(&key, as_of), if inside { newest(as_of) } else { 0 });
                for moment in [snapshots[0], snapshots[1], Lsn::MAX] {
                    assert_eq!(kept.covering(&key, moment), newest(moment), "as any open moment has it");
                    let below = newest(moment) <= snapshots[0];
                    assert_eq!(bottom.covering(&key, moment), if below { 0 } else { newest(moment) });
                }
            }
            let parts = [fragments.clipped(None, Some(&from)), fragments.clipped(Some(&from), None)];
            assert_eq!(Fragments::union(&parts).memory() > 0, !fragments.is_empty());
        }
    }

    #[test]
    fn lists_out_of_order_are_refused() {
        let delete = |a, b, commit| RangeDelete { start: key(a), end: key(b), commit };
        assert!(Fragments::from_deletes([delete(1, 3, 5), delete(2, 4, 4)]).is_none(), "they overlap");
        assert!(Fragments::from_deletes([delete(1, 3, 5), delete(1, 3, 6)]).is_none(), "older first");
        assert!(Fragments::from_deletes([delete(3, 3, 5)]).is_none(), "empty");
    }
}
