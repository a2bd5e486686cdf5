//! What is chosen for an LSM keyspace when it is made, and its bytes in the catalog. [`LSM_OPTIONS`] has a line for
//! each option.
//!
//! As stored: version u8 (2), compression u8, filter bits u8, executor of merges u8, block bytes u32 (0: none were
//! chosen), segment bytes u64, memtable bytes u64; from version 2 on bytes of merges' requests u32, level-0 trigger,
//! slowdown and stop u16 each, multiplier u16, level-1 bytes u64 (0: none were chosen), pick u8, pressure u8, input
//! u16. Bytes after these are of a later release, which says by its feature bits whether they matter.

use super::part::Codec;
use super::picker::{Choice, Leveled};
use crate::error::{Error, Result};
use std::fmt;
use std::str::FromStr;
use varve_volume::setting::{Accepts, Plain, Setting, Table};

/// Text of an enum of names.
macro_rules! by_name {
    ($type:ident, $names:expr) => {
        impl Plain for $type {}

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }

        impl FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> std::result::Result<$type, String> {
                let found = $names.iter().find(|(name, _)| *name == text);
                found.map(|(_, this)| *this).ok_or_else(|| format!("{text:?} is no name that there is"))
            }
        }

        impl $type {
            /// Its name.
            pub fn name(self) -> &'static str {
                $names.iter().find(|(_, this)| *this == self).expect("all have names").0
            }

            fn names() -> Vec<&'static str> {
                $names.iter().map(|(name, _)| *name).collect()
            }
        }
    };
}

/// How blocks of segments are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// LZ4: fast.
    Lz4,
    /// Zstandard, level 1: smaller. Needs the feature `zstd`.
    Zstd,
}

impl Compression {
    const ALL: [(&'static str, Compression); 3] =
        [("none", Compression::None), ("lz4", Compression::Lz4), ("zstd", Compression::Zstd)];

    pub(super) fn codec(self) -> Codec {
        match self {
            Compression::None => Codec::None,
            Compression::Lz4 => Codec::Lz4,
            Compression::Zstd => Codec::Zstd,
        }
    }
}

by_name!(Compression, Compression::ALL);

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

    /// The executor that does its merges where there is no worker.
    pub fn local(self) -> &'static str {
        if matches!(self, MergeBy::Sequential | MergeBy::Cokv) { "sequential" } else { "pcp" }
    }

    /// Whether a worker near the data does a part of its merges.
    pub fn needs_worker(self) -> bool {
        !matches!(self, MergeBy::Sequential | MergeBy::Pcp)
    }
}

by_name!(MergeBy, MergeBy::ALL);

/// Which segment of a level is merged next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pick {
    /// The one after the last that was merged, as LevelDB has it.
    #[default]
    RoundRobin,
    /// The one that overlaps least in the next level, for its bytes.
    LeastOverlap,
}

impl Pick {
    const ALL: [(&'static str, Pick); 2] = [("round-robin", Pick::RoundRobin), ("least-overlap", Pick::LeastOverlap)];

    pub(super) fn choice(self) -> Choice {
        match self {
            Pick::RoundRobin => Choice::RoundRobin,
            Pick::LeastOverlap => Choice::LeastOverlap,
        }
    }
}

by_name!(Pick, Pick::ALL);

/// What holds writers up when merges do not keep up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pressure {
    /// A delay per byte that rises smoothly with what merges have before them.
    #[default]
    Smooth,
    /// As LevelDB: a millisecond for each write from `l0-slowdown` segments of level 0 on, and a stop from `l0-stop`.
    Steps,
}

impl Pressure {
    const ALL: [(&'static str, Pressure); 2] = [("smooth", Pressure::Smooth), ("steps", Pressure::Steps)];
}

by_name!(Pressure, Pressure::ALL);

/// Options of an LSM keyspace. [`LSM_OPTIONS`] tells of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LsmOptions {
    /// How blocks of segments are compressed.
    pub compression: Compression,
    /// Bits of a segment's Bloom filter for each key; 0: no filter.
    pub filter_bits: u8,
    /// Bytes of a block, the unit of compression, before it is compressed; `None`: a page, or 16 KiB where blocks are
    /// compressed.
    pub block_bytes: Option<u32>,
    /// Bytes of a segment that a merge writes, about; no more than a memtable has room for where memory is scarce.
    pub segment_bytes: u64,
    /// Bytes of entries in memory, bookkeeping included, at which they are flushed.
    pub memtable_bytes: u64,
    /// How merges are done.
    pub merge: MergeBy,
    /// Segments of level 0 from which on they are merged.
    pub l0_trigger: u16,
    /// Segments of level 0 from which on writers are slowed, with [`Pressure::Steps`].
    pub l0_slowdown: u16,
    /// Segments of level 0 from which on nothing is flushed before some are merged.
    pub l0_stop: u16,
    /// Bytes of level 1; `None`: five segments, at least 10 MB.
    pub level1_bytes: Option<u64>,
    /// So many times the bytes of the level above has each level below level 1.
    pub multiplier: u16,
    /// Which segment of a level is merged next.
    pub pick: Pick,
    /// What holds writers up.
    pub pressure: Pressure,
    /// Segments that a merge of a level below 0 takes from it, at most.
    pub input: u16,
    /// Bytes that merges read and write at a time; a page at least.
    pub blocks: u32,
}

impl LsmOptions {
    /// The defaults.
    pub const DEFAULT: LsmOptions = LsmOptions {
        compression: Compression::None,
        filter_bits: 10,
        block_bytes: None,
        segment_bytes: 16 << 20,
        memtable_bytes: 64 << 20,
        merge: MergeBy::Pcp,
        l0_trigger: 4,
        l0_slowdown: 8,
        l0_stop: 12,
        level1_bytes: None,
        multiplier: 10,
        pick: Pick::RoundRobin,
        pressure: Pressure::Smooth,
        input: 1,
        blocks: 256 << 10,
    };
}

impl Default for LsmOptions {
    fn default() -> LsmOptions {
        LsmOptions::DEFAULT
    }
}

type Line = Setting<LsmOptions>;

/// The options of an LSM keyspace.
pub const LSM_OPTIONS: Table<LsmOptions> = Table {
    of: "LSM",
    settings: &[
        Line::new(
            "compression",
            Accepts::Name(Compression::names),
            "How blocks of segments are compressed: processor time of merges and reads, for room.",
            |o| &mut o.compression,
        ),
        Line::new(
            "filter-bits",
            Accepts::Number(0..=30, "bits"),
            "Bits of a segment's Bloom filter for each key; 10 let 1 % of look-ups of absent keys pass. 0: no filter.",
            |o| &mut o.filter_bits,
        ),
        Line::new(
            "block",
            Accepts::Bytes(1 << 10..=1 << 20),
            "Bytes of a block, the unit of compression: a look-up reads one; larger ones compress better.",
            |o| &mut o.block_bytes,
        )
        .or_none("a page, or 16K where blocks are compressed"),
        Line::new(
            "segment",
            Accepts::Bytes(64 << 10..=1 << 30),
            "Bytes of a segment that a merge writes; no more than a memtable may have. Larger ones make fewer merges.",
            |o| &mut o.segment_bytes,
        ),
        Line::new(
            "memtable",
            Accepts::Bytes(64 << 10..=4 << 30),
            "Bytes of entries in memory, bookkeeping included, at which they are flushed. Half of what the cache gives \
             memtables is the other limit.",
            |o| &mut o.memtable_bytes,
        ),
        Line::new(
            "merge",
            Accepts::Name(MergeBy::names),
            "How merges are done; pcp takes two more threads while one runs. From cokv on a worker near the data does \
             a part.",
            |o| &mut o.merge,
        ),
        Line::new(
            "blocks",
            Accepts::Bytes(4 << 10..=256 << 10),
            "Bytes that merges read and write at a time; a page at least.",
            |o| &mut o.blocks,
        ),
        Line::new(
            "l0-trigger",
            Accepts::Number(1..=100, "segments"),
            "Segments of level 0 from which on they are merged.",
            |o| &mut o.l0_trigger,
        ),
        Line::new(
            "l0-slowdown",
            Accepts::Number(1..=1000, "segments"),
            "With pressure=steps: segments of level 0 from which on each write waits for a millisecond.",
            |o| &mut o.l0_slowdown,
        ),
        Line::new(
            "l0-stop",
            Accepts::Number(1..=1000, "segments"),
            "Segments of level 0 from which on nothing is flushed before some are merged. Not below l0-trigger.",
            |o| &mut o.l0_stop,
        ),
        Line::new("level1", Accepts::Bytes(64 << 10..=1 << 40), "Bytes of level 1.", |o| &mut o.level1_bytes)
            .or_none("five segments, at least 10 MB"),
        Line::new(
            "multiplier",
            Accepts::Number(2..=100, "times"),
            "So many times the bytes of the level above has each level below level 1.",
            |o| &mut o.multiplier,
        ),
        Line::new(
            "pick",
            Accepts::Name(Pick::names),
            "Which segment of a level is merged next: each in its turn, or the one that overlaps least below.",
            |o| &mut o.pick,
        ),
        Line::new(
            "pressure",
            Accepts::Name(Pressure::names),
            "What holds writers up when merges do not keep up: a smooth delay per byte, or LevelDB's steps \
            and order of merges.",
            |o| &mut o.pressure,
        ),
        Line::new(
            "input",
            Accepts::Number(1..=100, "segments"),
            "Segments that a merge of a level below 0 takes from it, at most. More make longer merges.",
            |o| &mut o.input,
        ),
    ],
};

/// Bytes of a block that is to be compressed: smaller ones compress worse.
const COMPRESSED_BLOCK: usize = 16 << 10;

const VERSION: u8 = 2;
/// Bytes of version 1, and of version 2.
const BYTES_1: usize = 24;
const BYTES: usize = 48;

impl LsmOptions {
    /// Sets an option by its name from text.
    ///
    /// # Errors
    /// `Invalid` for a name that there is not, or a value that it does not take, with what there is.
    pub fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let mut changed = *self;
        LSM_OPTIONS.set(&mut changed, name, value).map_err(Error::Invalid)?;
        *self = changed;
        Ok(())
    }

    /// Fails for values that are out of range, or do not go together, as making a keyspace with them would.
    pub fn validate(&self) -> Result<()> {
        LSM_OPTIONS.check(self).map_err(Error::Invalid)?;
        if self.l0_stop < self.l0_trigger {
            let (stop, trigger) = (self.l0_stop, self.l0_trigger);
            return Err(Error::Invalid(format!(
                "l0-stop={stop} is below l0-trigger={trigger}: nothing would be merged, and then nothing flushed"
            )));
        }
        Ok(())
    }

    /// Bytes of a block, where pages of segments have `usable` bytes. A look-up copies a block that is compressed or
    /// lies in several pages; one that is a page is read where it is.
    pub(super) fn block(&self, usable: usize) -> usize {
        assert!(usable > 0, "pages of segments have room");
        let usual = if self.compression == Compression::None { usable } else { COMPRESSED_BLOCK };
        self.block_bytes.map_or(usual, |bytes| bytes as usize)
    }

    /// The sizes of the levels, with pages of so many bytes.
    pub(super) fn shape(&self, page_bytes: u64) -> Leveled {
        let usual = Leveled::new(self.segment_bytes, page_bytes);
        Leveled {
            trigger: self.l0_trigger.into(),
            base_bytes: self.level1_bytes.unwrap_or(usual.base_bytes),
            multiplier: self.multiplier.into(),
            choice: self.pick.choice(),
            level_0_first: self.pressure == Pressure::Smooth,
            more_input: self.input.into(),
            ..usual
        }
    }

    /// As stored in the catalog.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION, self.compression.codec() as u8, self.filter_bits, self.merge as u8];
        out.extend_from_slice(&self.block_bytes.unwrap_or(0).to_le_bytes());
        out.extend_from_slice(&self.segment_bytes.to_le_bytes());
        out.extend_from_slice(&self.memtable_bytes.to_le_bytes());
        out.extend_from_slice(&self.blocks.to_le_bytes());
        for short in [self.l0_trigger, self.l0_slowdown, self.l0_stop, self.multiplier] {
            out.extend_from_slice(&short.to_le_bytes());
        }
        out.extend_from_slice(&self.level1_bytes.unwrap_or(0).to_le_bytes());
        out.extend_from_slice(&[self.pick as u8, self.pressure as u8]);
        out.extend_from_slice(&self.input.to_le_bytes());
        assert_eq!(out.len(), BYTES, "as the head of the file has it");
        out
    }

    /// What [`LsmOptions::encode`] wrote, or what is wrong with it.
    pub(crate) fn decode(bytes: &[u8]) -> std::result::Result<LsmOptions, String> {
        let fixed = match bytes.first() {
            Some(1) => bytes.get(..BYTES_1),
            Some(&version) if version >= VERSION => bytes.get(..BYTES),
            _ => None,
        };
        let fixed = fixed.ok_or("its options are cut short")?;
        fn known<T: Copy>(
            all: &[(&str, T)],
            code: impl Fn(T) -> u8,
            of: u8,
            what: &str,
        ) -> std::result::Result<T, String> {
            let found = all.iter().find(|(_, this)| code(*this) == of);
            found.map(|(_, this)| *this).ok_or_else(|| format!("unknown {what} {of}"))
        }
        let short = |at: usize| u16::from_le_bytes(fixed[at..at + 2].try_into().expect("two bytes"));
        let long = |at: usize| u64::from_le_bytes(fixed[at..at + 8].try_into().expect("eight bytes"));
        let mut options = LsmOptions {
            compression: known(&Compression::ALL, |c| c.codec() as u8, fixed[1], "compression")?,
            filter_bits: fixed[2],
            block_bytes: Some(u32::from_le_bytes(fixed[4..8].try_into().expect("four bytes"))).filter(|b| *b > 0),
            segment_bytes: long(8),
            memtable_bytes: long(16),
            merge: known(&MergeBy::ALL, |m| m as u8, fixed[3], "executor of merges")?,
            ..LsmOptions::default()
        };
        if fixed.len() >= BYTES {
            options.blocks = u32::from_le_bytes(fixed[24..28].try_into().expect("four bytes"));
            (options.l0_trigger, options.l0_slowdown) = (short(28), short(30));
            (options.l0_stop, options.multiplier) = (short(32), short(34));
            options.level1_bytes = Some(long(36)).filter(|bytes| *bytes > 0);
            options.pick = known(&Pick::ALL, |p| p as u8, fixed[44], "choice of segments")?;
            options.pressure = known(&Pressure::ALL, |p| p as u8, fixed[45], "back-pressure")?;
            options.input = short(46);
        }
        options.validate().map(|()| options).map_err(|e| e.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stored_reads_back_and_earlier_bytes_do() {
        let mut options = LsmOptions::default();
        for (name, value) in [
            ("compression", "lz4"),
            ("block", "4K"),
            ("merge", "sequential"),
            ("l0-trigger", "3"),
            ("l0-slowdown", "5"),
            ("l0-stop", "7"),
            ("level1", "1M"),
            ("multiplier", "8"),
            ("pick", "least-overlap"),
            ("pressure", "steps"),
            ("input", "4"),
            ("blocks", "64K"),
        ] {
            options.set(name, value).expect("in range");
            assert_eq!(LSM_OPTIONS.find(name).expect("there").value(&options), value);
        }
        let stored = options.encode();
        assert_eq!(LsmOptions::decode(&stored), Ok(options));
        for len in 0..BYTES {
            assert!(LsmOptions::decode(&stored[..len]).is_err(), "{len} bytes");
        }
        // The first version had the first options alone.
        let mut first = stored.clone();
        first[0] = 1;
        let read = LsmOptions::decode(&first[..BYTES_1]).expect("known");
        assert_eq!((read.compression, read.l0_stop, read.pick), (Compression::Lz4, 12, Pick::RoundRobin));
        let mut wrong = stored;
        wrong[45] = 9;
        assert_eq!(LsmOptions::decode(&wrong), Err("unknown back-pressure 9".into()));
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
        let options = LsmOptions { l0_stop: 3, ..LsmOptions::default() };
        assert!(options.validate().expect_err("refused").to_string().contains("l0-trigger=4"));
    }
}
