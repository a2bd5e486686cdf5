//! What is chosen for an LSM keyspace when it is made, and its bytes in the catalog.
//!
//! As stored: version u8 (1), compression u8, filter bits u8, executor of merges u8, block bytes u32, segment bytes
//! u64, memtable bytes u64, bytes of merges' requests u32 (older releases did not write that: 256 KiB). Bytes after
//! these are of a later release, which says by its feature bits whether they matter.

use super::part::Codec;
use crate::error::{Error, Result};
use varve_volume::setting;

/// How blocks of segments are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// LZ4: fast.
    Lz4,
    /// Zstandard, level 1: smaller.
    Zstd,
}

impl Compression {
    const ALL: [(&'static str, Compression, Codec); 3] = [
        ("none", Compression::None, Codec::None),
        ("lz4", Compression::Lz4, Codec::Lz4),
        ("zstd", Compression::Zstd, Codec::Zstd),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Compression::ALL.iter().find(|(_, this, _)| *this == self).expect("all have names").0
    }

    pub(super) fn codec(self) -> Codec {
        Compression::ALL.iter().find(|(_, this, _)| *this == self).expect("all have one").2
    }
}

/// How merges are done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MergeBy {
    /// One thread reads, merges and writes, one after the other.
    Sequential,
    /// Three threads do these at the same time, with bounded queues between.
    #[default]
    Pcp,
    /// A worker near the data does half, this host the other half; both one after the other.
    Cokv,
    /// The same, both reading, merging and writing at the same time.
    Copro,
    /// The same; each side decides by the sizes of what is merged whether it does so.
    CoproPlus,
    /// The worker's part is as large as the bandwidths of both sides in the merges before say.
    Tstore,
    /// The worker's part is as large as cores, frequencies and use of both sides say.
    Dstore,
    /// The worker does it all.
    Near,
}

impl MergeBy {
    const ALL: [(&'static str, MergeBy); 8] = [
        ("sequential", MergeBy::Sequential),
        ("pcp", MergeBy::Pcp),
        ("cokv", MergeBy::Cokv),
        ("copro", MergeBy::Copro),
        ("copro+", MergeBy::CoproPlus),
        ("tstore", MergeBy::Tstore),
        ("dstore", MergeBy::Dstore),
        ("near", MergeBy::Near),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        MergeBy::ALL.iter().find(|(_, this)| *this == self).expect("all have names").0
    }

    /// The executor that does its merges where there is no worker.
    pub(super) fn local(self) -> &'static str {
        if matches!(self, MergeBy::Sequential | MergeBy::Cokv) { "sequential" } else { "pcp" }
    }

    /// Whether a worker near the data does a part of its merges.
    pub fn needs_worker(self) -> bool {
        !matches!(self, MergeBy::Sequential | MergeBy::Pcp)
    }
}

/// Options of an LSM keyspace. They stay as they are for as long as the keyspace lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LsmOptions {
    /// How blocks of segments are compressed. Default: not at all.
    pub compression: Compression,
    /// Bits of a segment's Bloom filter for each key, 0 to 30; 0: no filter. A filter of 10 bits lets 1 % of the
    /// look-ups of absent keys pass. Default: 10.
    pub filter_bits: u8,
    /// Bytes of a block, the unit of compression, before it is compressed: 1 KiB to 1 MiB. Default: 16 KiB.
    pub block_bytes: u32,
    /// Bytes of a segment that a merge writes, about: 64 KiB to 1 GiB. Default: 16 MiB.
    pub segment_bytes: u64,
    /// Bytes of entries in memory, bookkeeping included, at which they are flushed: 64 KiB to 4 GiB. Half of what the
    /// cache gives memtables is the other limit. Default: 64 MiB.
    pub memtable_bytes: u64,
    /// How merges are done. Default: reading, merging and writing at the same time.
    pub merge: MergeBy,
    /// Bytes that merges read and write at a time, 4 KiB to 256 KiB; a page at least. Default: 256 KiB.
    pub blocks: u32,
}

impl Default for LsmOptions {
    fn default() -> LsmOptions {
        LsmOptions {
            compression: Compression::None,
            filter_bits: 10,
            block_bytes: 16 << 10,
            segment_bytes: 16 << 20,
            memtable_bytes: 64 << 20,
            merge: MergeBy::default(),
            blocks: BLOCKS,
        }
    }
}

const VERSION: u8 = 1;
/// Bytes that every release wrote.
const BYTES: usize = 24;
/// Bytes at a time of merges, where nothing is said of it.
const BLOCKS: u32 = 256 << 10;

impl LsmOptions {
    /// Names of the options, as [`LsmOptions::set`] takes them, and what each accepts.
    pub const NAMES: [(&'static str, &'static str); 7] = [
        ("compression", "none, lz4 or zstd"),
        ("filter-bits", "0 to 30"),
        ("block", "bytes, 1K to 1M"),
        ("segment", "bytes, 64K to 1G"),
        ("memtable", "bytes, 64K to 4G"),
        ("merge", "sequential, pcp, cokv, copro, copro+, tstore, dstore or near"),
        ("blocks", "bytes, 4K to 256K"),
    ];

    /// Sets an option by its name from text.
    ///
    /// # Errors
    /// `Invalid` for a name that there is not, or a value that it does not take, with what there is.
    pub fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let Some((_, accepts)) = LsmOptions::NAMES.iter().find(|(n, _)| *n == name) else {
            let names: Vec<&str> = LsmOptions::NAMES.iter().map(|(name, _)| *name).collect();
            return Err(Error::Invalid(format!("an LSM keyspace has no option {name:?}; it has {}", names.join(", "))));
        };
        let bad = || Error::Invalid(format!("{name}={value}: it takes {accepts}"));
        let bytes = || setting::bytes(value).ok_or_else(bad);
        let before = *self;
        match name {
            "compression" => {
                let found = Compression::ALL.iter().find(|(name, _, _)| *name == value);
                self.compression = found.ok_or_else(bad)?.1;
            }
            "filter-bits" => self.filter_bits = value.parse().map_err(|_| bad())?,
            "block" => self.block_bytes = u32::try_from(bytes()?).map_err(|_| bad())?,
            "merge" => self.merge = MergeBy::ALL.iter().find(|(name, _)| *name == value).ok_or_else(bad)?.1,
            "blocks" => self.blocks = u32::try_from(bytes()?).map_err(|_| bad())?,
            "segment" => self.segment_bytes = bytes()?,
            _ => self.memtable_bytes = bytes()?,
        }
        if self.check().is_err() {
            *self = before;
            return Err(bad());
        }
        Ok(())
    }

    /// Fails for values that are out of range.
    pub(crate) fn check(&self) -> Result<()> {
        let within = |n: u64, low: u64, high: u64| (low..=high).contains(&n);
        let fits = [
            within(self.filter_bits.into(), 0, 30),
            within(self.block_bytes.into(), 1 << 10, 1 << 20),
            within(self.segment_bytes, 64 << 10, 1 << 30),
            within(self.memtable_bytes, 64 << 10, 4 << 30),
            true,
            within(self.blocks.into(), 4 << 10, 256 << 10),
        ];
        match fits.iter().position(|fits| !fits) {
            None => Ok(()),
            Some(i) => {
                let (name, accepts) = LsmOptions::NAMES[i + 1];
                Err(Error::Invalid(format!("option {name} of an LSM keyspace: it takes {accepts}")))
            }
        }
    }

    /// As stored in the catalog.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION, self.compression.codec() as u8, self.filter_bits, self.merge as u8];
        out.extend_from_slice(&self.block_bytes.to_le_bytes());
        out.extend_from_slice(&self.segment_bytes.to_le_bytes());
        out.extend_from_slice(&self.memtable_bytes.to_le_bytes());
        assert_eq!(out.len(), BYTES, "as the head of the file has it");
        out.extend_from_slice(&self.blocks.to_le_bytes());
        out
    }

    /// What [`LsmOptions::encode`] wrote, or what is wrong with it.
    pub(crate) fn decode(bytes: &[u8]) -> std::result::Result<LsmOptions, String> {
        let Some(fixed) = bytes.get(..BYTES).filter(|b| b[0] >= VERSION) else {
            return Err("its options are cut short".into());
        };
        let Some((_, compression, _)) = Compression::ALL.iter().find(|(_, _, codec)| *codec as u8 == fixed[1]) else {
            return Err(format!("unknown compression {}", fixed[1]));
        };
        let Some((_, merge)) = MergeBy::ALL.iter().find(|(_, merge)| *merge as u8 == fixed[3]) else {
            return Err(format!("unknown executor of merges {}", fixed[3]));
        };
        let long = |at: usize| u64::from_le_bytes(fixed[at..at + 8].try_into().expect("eight bytes"));
        let options = LsmOptions {
            compression: *compression,
            filter_bits: fixed[2],
            block_bytes: u32::from_le_bytes(fixed[4..8].try_into().expect("four bytes")),
            segment_bytes: long(8),
            memtable_bytes: long(16),
            merge: *merge,
            blocks: bytes
                .get(BYTES..BYTES + 4)
                .map_or(BLOCKS, |b| u32::from_le_bytes(b.try_into().expect("four bytes"))),
        };
        debug_assert_eq!(fixed.len(), BYTES, "as much as was asked for");
        options.check().map(|()| options).map_err(|e| e.to_string())
    }
}
