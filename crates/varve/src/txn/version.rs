//! Old values that open snapshots need.
//!
//! An entry says: until the commit that ended at `end`, the key had this value (or none). A snapshot S finds the value
//! of a key in the oldest entry with `end > S`; without one, what the index holds is as old as S. So a reader that
//! looks at the tree first and here second is right without holding both at once: a commit puts its entries here before
//! it
//! lets go of the leaves, and an entry that S needs stays until S is closed.
//!
//! Invariants: the entries of a key are in the order of their ends, each end once; no key and no keyspace is without an
//! entry.
//!
//! Lock order: the snapshot registry's mutex, then a shard's.

use super::key::{Bounds, KeyBuf};
use crate::rows::{OverflowRef, ValueRef};
use crate::space::HeldPages;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use varve_rt::Mutex;
use varve_volume::{KeyspaceId, Lsn};

const SHARDS: usize = 16;

/// A value as it was.
pub(super) enum Old {
    Bytes(Box<[u8]>),
    /// A long value stays where it was: its pages are kept from use.
    Long(OverflowRef, Arc<HeldPages>),
}

impl Old {
    fn as_ref(&self) -> ValueRef<'_> {
        match self {
            Old::Bytes(bytes) => ValueRef::Inline(bytes),
            Old::Long(reference, _) => ValueRef::Overflow(*reference),
        }
    }

    /// Bytes of memory beside itself.
    fn memory(&self) -> usize {
        match self {
            Old::Bytes(bytes) => bytes.len(),
            Old::Long(_, pages) => pages.memory(),
        }
    }
}

/// A value as it was: `None` when the key was not there.
pub(super) type OldValue = Option<Old>;

struct Version {
    end: Lsn,
    value: OldValue,
}

type Keys = BTreeMap<KeyBuf, Vec<Version>>;

/// The version store.
pub(super) struct Versions {
    shards: [Mutex<BTreeMap<KeyspaceId, Keys>>; SHARDS],
}

/// Names a version for its removal.
pub(super) struct VersionPlace {
    pub keyspace: KeyspaceId,
    pub key: KeyBuf,
    pub end: Lsn,
    pub bytes: u64,
}

/// Bytes that an entry takes, its removal note included.
pub(super) fn bytes_of(key: &[u8], value: &OldValue) -> u64 {
    let fixed =
        size_of::<KeyBuf>() * 2 + size_of::<Vec<Version>>() + 4 * size_of::<Version>() + size_of::<VersionPlace>();
    (fixed + 2 * KeyBuf::heap_bytes_of(key) + value.as_ref().map_or(0, Old::memory)) as u64
}

fn visible(versions: &[Version], at: Lsn) -> Option<&Version> {
    debug_assert!(versions.is_sorted_by(|a, b| a.end < b.end), "old values are in the order of their ends");
    versions.get(versions.partition_point(|v| v.end <= at))
}

impl Versions {
    pub fn new() -> Versions {
        Versions { shards: std::array::from_fn(|_| Mutex::default()) }
    }

    fn shard(&self, keyspace: KeyspaceId) -> &Mutex<BTreeMap<KeyspaceId, Keys>> {
        &self.shards[keyspace.0 as usize % SHARDS]
    }

    /// End of the commit that made the newest entry of a key; 0 without one.
    pub fn newest_end(&self, keyspace: KeyspaceId, key: &[u8]) -> Lsn {
        let shard = self.shard(keyspace).lock();
        let versions = shard.get(&keyspace).and_then(|keys| keys.get(key));
        versions.and_then(|v| v.last()).map_or(0, |v| v.end)
    }

    /// Adds an entry; those of one key come in the order of their commits.
    pub fn add(&self, place: &VersionPlace, value: OldValue) {
        let mut shard = self.shard(place.keyspace).lock();
        let versions = shard.entry(place.keyspace).or_default().entry(place.key.clone()).or_default();
        assert!(versions.last().is_none_or(|v| v.end < place.end), "commits of one key are in order");
        versions.push(Version { end: place.end, value });
    }

    /// Removes an entry.
    pub fn remove(&self, place: &VersionPlace) {
        let mut shard = self.shard(place.keyspace).lock();
        let keys = shard.get_mut(&place.keyspace).expect("what is removed was added");
        let versions = keys.get_mut(&*place.key).expect("what is removed was added");
        let before = versions.len();
        versions.retain(|v| v.end != place.end);
        assert_eq!(versions.len() + 1, before, "an entry is removed once");
        if versions.is_empty() {
            keys.remove(&*place.key);
        }
        if keys.is_empty() {
            shard.remove(&place.keyspace);
        }
    }

    /// Hands an entry that is there to `f`, with the pages of its long value.
    pub fn with<R>(
        &self,
        place: &VersionPlace,
        f: impl FnOnce(Option<ValueRef<'_>>, Option<&Arc<HeldPages>>) -> R,
    ) -> R {
        let shard = self.shard(place.keyspace).lock();
        let versions = shard.get(&place.keyspace).and_then(|keys| keys.get(&*place.key));
        let version = versions.and_then(|versions| versions.iter().find(|v| v.end == place.end));
        let value = version.expect("what is looked for was added").value.as_ref();
        let held = value.and_then(|old| match old {
            Old::Bytes(_) => None,
            Old::Long(_, pages) => Some(pages),
        });
        f(value.map(Old::as_ref), held)
    }

    /// Whether any key of the keyspace has an entry. Asked after the tree was read.
    pub fn any(&self, keyspace: KeyspaceId) -> bool {
        self.shard(keyspace).lock().contains_key(&keyspace)
    }

    /// The value of a key as of `at`, and when it ended: `None` when there is none here. Asked after the tree was read.
    pub fn get<R>(
        &self,
        keyspace: KeyspaceId,
        key: &[u8],
        at: Lsn,
        f: impl FnOnce(Lsn, Option<ValueRef<'_>>) -> R,
    ) -> Option<R> {
        let shard = self.shard(keyspace).lock();
        let versions = shard.get(&keyspace)?.get(key)?;
        visible(versions, at).map(|v| f(v.end, v.value.as_ref().map(Old::as_ref)))
    }

    /// Hands the keys of a range that have such an entry to `f`, ascending. Asked after the tree was read.
    pub fn range(
        &self,
        keyspace: KeyspaceId,
        range: Bounds<'_>,
        at: Lsn,
        mut f: impl FnMut(&[u8], Lsn, Option<ValueRef<'_>>),
    ) {
        let shard = self.shard(keyspace).lock();
        let Some(keys) = shard.get(&keyspace) else { return };
        for (key, versions) in keys.range::<[u8], (Bound<&[u8]>, Bound<&[u8]>)>(range) {
            if let Some(version) = visible(versions, at) {
                f(key, version.end, version.value.as_ref().map(Old::as_ref));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(key: &[u8], end: Lsn) -> VersionPlace {
        VersionPlace { keyspace: KeyspaceId(3), key: KeyBuf::new(key), end, bytes: 0 }
    }

    #[test]
    fn a_snapshot_finds_the_oldest_entry_past_it() {
        let v = Versions::new();
        v.add(&place(b"a", 10), None);
        v.add(&place(b"a", 20), Some(Old::Bytes(b"ten"[..].into())));
        v.add(&place(b"b", 15), Some(Old::Bytes(b"old"[..].into())));
        let ten = ValueRef::Inline(b"ten");
        let get = |key: &[u8], at| v.get(KeyspaceId(3), key, at, |_, v| v.map(|v| v == ten));
        assert_eq!(get(b"a", 9), Some(None));
        assert_eq!(get(b"a", 10), Some(Some(true)));
        assert_eq!(get(b"a", 19), Some(Some(true)));
        assert_eq!(get(b"a", 20), None);
        assert_eq!(get(b"c", 0), None);
        let mut seen = Vec::new();
        v.range(KeyspaceId(3), (Bound::Unbounded, Bound::Unbounded), 12, |k, _, v| {
            seen.push((k.to_vec(), v.is_some()))
        });
        assert_eq!(seen, [(b"a".to_vec(), true), (b"b".to_vec(), true)]);
        v.remove(&place(b"a", 10));
        v.remove(&place(b"a", 20));
        assert_eq!(get(b"a", 0), None);
        assert_eq!(v.newest_end(KeyspaceId(3), b"b"), 15);
        v.remove(&place(b"b", 15));
        assert!(v.shards.iter().all(|s| s.lock().is_empty()));
    }
}
