//! What a database uses that not every release knows: bits in its superblock, with their names beside them.
//!
//! Three classes, after ext4 (Linux, `fs/ext4/ext4.h`). The names are stored with the bits, so that an older program
//! can say what it lacks. A new feature is a constant here and a row in [`FEATURES`]; [`super::Log::set_feature`]
//! switches it on durably, before the first byte of it is written.

use crate::error::{Error, Result};
use crate::zstandard;
use std::collections::BTreeMap;

/// What a program may do with a database that uses a feature which it does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FeatureClass {
    /// Everything.
    Compatible,
    /// Read it.
    ReadOnlyCompatible,
    /// Nothing.
    Incompatible,
}

impl FeatureClass {
    const ALL: [FeatureClass; 3] =
        [FeatureClass::Compatible, FeatureClass::ReadOnlyCompatible, FeatureClass::Incompatible];

    fn name(self) -> &'static str {
        match self {
            FeatureClass::Compatible => "compatible",
            FeatureClass::ReadOnlyCompatible => "read-only compatible",
            FeatureClass::Incompatible => "incompatible",
        }
    }
}

/// A feature that a database may use.
#[derive(Debug, PartialEq, Eq)]
pub struct Feature {
    /// At most `LONGEST_NAME` bytes.
    pub name: &'static str,
    /// Bit in the word of its class.
    pub bit: u8,
    /// What programs may do that do not know it.
    pub class: FeatureClass,
}

/// Every file bears the database's identity and a generation; the data device has two pages for them.
pub const IDENTITY: Feature = Feature { name: "identity", bit: 0, class: FeatureClass::Incompatible };

/// The identity pages say how many pages the space map had: a release that does not know it leaves the place zero.
pub const MAP_COUNT: Feature = Feature { name: "map-count", bit: 0, class: FeatureClass::Compatible };

/// The data device has mark pages, which say what was written last to each page: who writes pages keeps them exact.
pub const LOST_WRITES: Feature =
    Feature { name: "detect-lost-writes", bit: 0, class: FeatureClass::ReadOnlyCompatible };

/// Some keyspace was made read-only: releases that do not know of it would change it.
pub const READ_ONLY_KEYSPACES: Feature =
    Feature { name: "read-only-keyspaces", bit: 1, class: FeatureClass::ReadOnlyCompatible };

/// Pages leave bytes at their end alone, for delta records of native flash: releases that do not know of it would count
/// the pages of the space map differently.
pub const ROOM: Feature = Feature { name: "room-for-delta-records", bit: 1, class: FeatureClass::Incompatible };

/// Rows left a keyspace all at once, and their tree has an entry in the catalog: releases that do not know of it would
/// take that for damage.
pub const FORMER_TREES: Feature = Feature { name: "former-trees", bit: 2, class: FeatureClass::Incompatible };

/// Some keyspace is or was a log-structured merge tree: the log has records, and the data device pages, that releases
/// which do not know of it cannot read.
pub const LSM_KEYSPACES: Feature = Feature { name: "lsm-keyspaces", bit: 3, class: FeatureClass::Incompatible };

/// The log's segments have sizes of their own, and it is noted below which size it does not shrink: releases that do
/// not know of it would look for the log in other places.
pub const SEGMENT_SIZES: Feature = Feature { name: "log-segment-sizes", bit: 4, class: FeatureClass::Incompatible };

/// A commit too large for one log group may be half applied, as the catalog says: who does not know of that would show
/// half of it.
pub const LARGE_COMMITS: Feature = Feature { name: "large-commits", bit: 5, class: FeatureClass::Incompatible };

/// Some LSM keyspace packs or packed its blocks with zstd: releases, and builds, that have none cannot read it.
pub const ZSTD_BLOCKS: Feature = Feature { name: "zstd-blocks", bit: 6, class: FeatureClass::Incompatible };

/// The log goes on behind a gap in its LSNs, and redo begins before it: releases that do not know of gaps would look
/// for the log in other places. Off again after the first checkpoint.
pub const LOG_GAPS: Feature = Feature { name: "log-gaps", bit: 7, class: FeatureClass::Incompatible };

/// All features that this release knows. A bit is never used again for something else.
pub const FEATURES: [&Feature; 11] = [
    &IDENTITY,
    &MAP_COUNT,
    &LOST_WRITES,
    &READ_ONLY_KEYSPACES,
    &ROOM,
    &FORMER_TREES,
    &LSM_KEYSPACES,
    &SEGMENT_SIZES,
    &LARGE_COMMITS,
    &ZSTD_BLOCKS,
    &LOG_GAPS,
];

/// Longest name, bytes.
pub const LONGEST_NAME: usize = 24;
/// Most features that a superblock has room for.
const MOST: usize = 20;
/// Most bytes of [`Features::encode_names`].
pub(super) const NAMES: usize = MOST * (LONGEST_NAME + 1);
const _: () = assert!(FEATURES.len() <= MOST && LONGEST_NAME <= u8::MAX as usize);
const _: () = {
    let (mut i, mut used) = (0, [0u64; FeatureClass::ALL.len()]);
    while i < FEATURES.len() {
        let Feature { name, bit, class } = FEATURES[i];
        assert!(name.len() <= LONGEST_NAME && *bit < 64, "a feature has a bit, and a name that fits");
        assert!(used[*class as usize] >> *bit & 1 == 0, "a bit stands for one feature of its class");
        used[*class as usize] |= 1 << *bit;
        i += 1;
    }
};

/// The features that a database uses, known or not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Features(BTreeMap<(FeatureClass, u8), String>);

impl Features {
    /// Whether the database uses it.
    pub fn has(&self, feature: &Feature) -> bool {
        self.0.contains_key(&(feature.class, feature.bit))
    }

    /// Their names.
    pub fn names(&self) -> Vec<&str> {
        self.0.values().map(String::as_str).collect()
    }

    pub(super) fn set(&mut self, feature: &Feature, on: bool) {
        assert!(feature.bit < 64 && feature.name.len() <= LONGEST_NAME, "a feature has a bit, and a name that fits");
        let key = (feature.class, feature.bit);
        if on {
            self.0.insert(key, feature.name.to_string());
        } else {
            self.0.remove(&key);
        }
        assert!(self.0.len() <= MOST, "a superblock has room for {MOST} features");
    }

    /// Fails when the database uses what this release does not know, unless what is asked for goes without.
    pub(super) fn check(&self, read_only: bool) -> Result<()> {
        let known = |key: &(FeatureClass, u8)| FEATURES.iter().any(|f| (f.class, f.bit) == *key);
        let matters = |class| match class {
            FeatureClass::Compatible => false,
            FeatureClass::ReadOnlyCompatible => !read_only,
            FeatureClass::Incompatible => true,
        };
        let lacking: Vec<_> = self.0.iter().filter(|(key, _)| matters(key.0) && !known(key)).collect();
        if lacking.is_empty() {
            return if self.has(&ZSTD_BLOCKS) {
                zstandard::require("the database has LSM keyspaces with compression=zstd")
            } else {
                Ok(())
            };
        }
        let may_read = lacking.iter().all(|(key, _)| key.0 == FeatureClass::ReadOnlyCompatible);
        let named = |((class, bit), name): &(&(FeatureClass, u8), &String)| match name.is_empty() {
            true => format!("{} feature {bit}", class.name()),
            false => format!("{name} ({} feature {bit})", class.name()),
        };
        let names = lacking.iter().map(named).collect::<Vec<_>>().join(", ");
        Err(Error::UnknownFeature { names, may_read })
    }

    /// The three words, in the order of the classes.
    pub(super) fn words(&self) -> [u64; 3] {
        let mut words = [0; 3];
        for (class, bit) in self.0.keys() {
            words[*class as usize] |= 1 << bit;
        }
        words
    }

    /// The names in the order of the words' bits, each after its length.
    pub(super) fn encode_names(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for name in self.0.values() {
            out.push(name.len() as u8);
            out.extend_from_slice(name.as_bytes());
        }
        out
    }

    /// The features of three words; `names` gives the next name. `None` when there are more than a superblock has room
    /// for.
    pub(super) fn decode<'a>(words: [u64; 3], mut names: impl FnMut() -> Option<&'a [u8]>) -> Option<Features> {
        let mut found = BTreeMap::new();
        for (class, word) in FeatureClass::ALL.into_iter().zip(words) {
            for bit in (0..64).filter(|bit| word >> bit & 1 == 1) {
                found.insert((class, bit), String::from_utf8_lossy(names()?).into_owned());
            }
        }
        (found.len() <= MOST).then_some(Features(found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_named_and_numbered_once() {
        for (i, a) in FEATURES.iter().enumerate() {
            assert!(a.bit < 64 && (1..=LONGEST_NAME).contains(&a.name.len()), "{a:?}");
            assert!(FEATURES[..i].iter().all(|b| a.name != b.name && (a.class, a.bit) != (b.class, b.bit)), "{a:?}");
        }
    }

    #[test]
    fn what_this_release_does_not_know_is_refused_by_name() {
        let of = |class| Feature { name: "moon-phase", bit: 63, class };
        let check = |class, read_only| {
            let mut features = Features::default();
            features.set(&IDENTITY, true);
            features.set(&of(class), true);
            features.check(read_only).map_err(|e| e.to_string())
        };
        assert_eq!(check(FeatureClass::Compatible, false), Ok(()));
        assert_eq!(check(FeatureClass::ReadOnlyCompatible, true), Ok(()));
        let writing = check(FeatureClass::ReadOnlyCompatible, false).unwrap_err();
        assert!(writing.contains("moon-phase (read-only compatible feature 63)") && writing.contains("reading only"));
        for read_only in [true, false] {
            let refused = check(FeatureClass::Incompatible, read_only).unwrap_err();
            assert!(refused.contains("moon-phase (incompatible feature 63)") && !refused.contains("identity"));
        }
    }
}
