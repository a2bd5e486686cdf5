//! Keys and values of the crash simulation: pure functions of small numbers, so that the reference model stores a
//! digest instead of bytes and every process makes the same data from a seed.
//!
//! Invariant: within a keyspace, keys order as their indexes do, so a range of indexes is a range of keys.

use std::hash::{BuildHasher, Hasher};
use varve_rt::Rng;

/// Digits of an index in a key.
const DIGITS: usize = 6;

/// Number of keyspaces that hold rows.
pub(crate) const ROW_SPACES: u8 = 2;
/// The keyspace in which every writing transaction leaves a mark.
pub(crate) const MARKS: u8 = 2;
/// Names of all keyspaces, by number.
pub(crate) const NAMES: [&str; 3] = ["rows-a", "rows-b", "marks"];

/// What identifies a value: a hash of its bytes, and its length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Digest {
    hash: u64,
    len: u32,
}

impl Digest {
    /// The digest of `bytes`.
    pub(crate) fn of(bytes: &[u8]) -> Digest {
        let mut hasher = varve_rt::BuildHasher.build_hasher();
        hasher.write(bytes);
        Digest { hash: hasher.finish(), len: bytes.len() as u32 }
    }
}

impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes #{:08x}", self.len, self.hash as u32)
    }
}

/// The keys of one seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    /// Indexes are below this.
    pub(crate) count: u32,
    /// Bytes before the index, by keyspace: more of them give prefix compression more to do.
    pub(crate) prefix: [usize; ROW_SPACES as usize],
    /// Longest padding after the index.
    pub(crate) pad: usize,
    /// One key in this many gets the long padding; 0 = none.
    pub(crate) long_every: u32,
    /// Length of the long padding.
    pub(crate) long_pad: usize,
}

impl Keys {
    /// The key of an index. `index == count` gives a key above all others, for the end of a range.
    pub(crate) fn key(&self, space: u8, index: u32) -> Vec<u8> {
        debug_assert!(index <= self.count && self.count < 10u32.pow(DIGITS as u32));
        let mix = Rng::from_seed(u64::from(index) << 8 | u64::from(space)).next_u64();
        let long = self.long_every != 0 && index % self.long_every == self.long_every - 1;
        let pad = if long { self.long_pad } else { (mix % (self.pad as u64 + 1)) as usize };
        let mut key = vec![b'k' + space; self.prefix[space as usize]];
        key.extend_from_slice(format!("{index:0DIGITS$}").as_bytes());
        key.resize(key.len() + pad, b'a' + (mix >> 32) as u8 % 26);
        key
    }
}

/// The key of a transaction's mark.
pub(crate) fn mark_key(id: u64, by_client: bool, client: u32) -> Vec<u8> {
    let mut key = Vec::with_capacity(12);
    if by_client {
        key.extend_from_slice(&client.to_be_bytes());
    }
    key.extend_from_slice(&id.to_be_bytes());
    key
}

/// The transaction whose mark has this key.
pub(crate) fn mark_id(key: &[u8]) -> Option<u64> {
    let tail = key.len().checked_sub(8).filter(|at| *at == 0 || *at == 4)?;
    Some(u64::from_be_bytes(key[tail..].try_into().ok()?))
}

/// The value that tag `tag` stands for, `len` bytes long. Distinct tags give distinct bytes (but for very short
/// values).
pub(crate) fn value(tag: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::from_seed(tag).fill_bytes(&mut bytes);
    bytes
}

/// The tag of write number `write` of transaction `tx`.
pub(crate) fn tag(tx: u64, write: usize) -> u64 {
    tx << 16 | write as u64 & 0xffff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_order_as_their_indexes_do() {
        let keys = Keys { count: 500, prefix: [3, 20], pad: 9, long_every: 7, long_pad: 200 };
        for space in 0..ROW_SPACES {
            let all: Vec<_> = (0..=keys.count).map(|i| keys.key(space, i)).collect();
            assert!(all.is_sorted_by(|a, b| a < b));
            assert_eq!(all[3], keys.key(space, 3));
            assert!(all[6].len() >= 200 && all[5].len() < 40);
        }
    }

    #[test]
    fn marks_lead_back_to_their_transaction() {
        for id in [0, 1, 77_000, u64::MAX] {
            assert_eq!(mark_id(&mark_key(id, true, 3)), Some(id));
            assert_eq!(mark_id(&mark_key(id, false, 3)), Some(id));
        }
        assert_eq!(mark_id(b"short"), None);
    }

    #[test]
    fn values_differ_by_tag_and_length() {
        assert_eq!(value(5, 100), value(5, 100));
        assert_ne!(Digest::of(&value(tag(1, 0), 100)), Digest::of(&value(tag(1, 1), 100)));
        assert_ne!(Digest::of(&value(5, 100)), Digest::of(&value(5, 101)));
        assert_eq!(Digest::of(&value(5, 0)), Digest::of(b""));
    }
}
